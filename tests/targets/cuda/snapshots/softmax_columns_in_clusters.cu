// softmax over (8192, 8192), scratch ()
// grid (512, 8, 1) block (4, 64, 1) cluster (1, 8, 1)

__device__ __forceinline__ float larger_float(float x, float y) {
#if __CUDA_ARCH__ >= 800
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
    return result;
#else
    return x != x || y != y ? x + y : fmaxf(x, y);
#endif
}

template <typename T> __device__ __forceinline__ T maximum(T x, T y) {
    return x != x || y != y ? x + y : fmax(x, y);
}
template <> __device__ __forceinline__ float maximum<float>(float x, float y) { return larger_float(x, y); }

__device__ __noinline__ float ordinary_quotient(float x, float divisor) { return x / divisor; }  // seldom: once in the text

__device__ __forceinline__ float inverse_for_quotients(float divisor) {
    const float size = fabsf(divisor);
    return size > 8.67361738e-19f && size < 1152921504606846976.0f ? 1.0f / divisor : __int_as_float(0x7fc00000);
}

__device__ __forceinline__ float quotient(float x, float divisor, float inverse) {
    const float first = x * inverse, size = fabsf(first);
    if (size > 9.09494702e-13f && size < 1099511627776.0f) {
        const float second = __fmaf_rn(__fmaf_rn(-first, divisor, x), inverse, first);
        return __fmaf_rn(__fmaf_rn(-second, divisor, x), inverse, second);
    }
    return x == 0.0f && size == 0.0f ? first : ordinary_quotient(x, divisor);
}

template <typename T> struct Carrier { typedef int type; };
template <> struct Carrier<unsigned int> { typedef unsigned int type; };
template <> struct Carrier<long long> { typedef long long type; };
template <> struct Carrier<unsigned long long> { typedef unsigned long long type; };
template <> struct Carrier<float> { typedef float type; };
template <> struct Carrier<double> { typedef double type; };
template <typename T> __device__ __forceinline__ T shuffle(T value, int distance) {
    return T(__shfl_xor_sync(0xffffffffu, (typename Carrier<T>::type)value, distance));
}

template <int BYTES> struct MemoryWord;
template <> struct MemoryWord<1> { typedef unsigned char type; };
template <> struct MemoryWord<2> { typedef unsigned short type; };
template <> struct MemoryWord<4> { typedef unsigned int type; };
template <> struct MemoryWord<8> { typedef uint2 type; };
template <> struct MemoryWord<16> { typedef uint4 type; };
template <typename T, int N> struct Pack {
    static constexpr int bytes = N * sizeof(T), word_bytes = bytes < 16 ? bytes : 16;
    typedef typename MemoryWord<word_bytes>::type Word;
    alignas(word_bytes) T at[N];
};

template <typename T, int N> __device__ __forceinline__ void load_pack(Pack<T, N>& pack, const T* from) {
    typedef typename Pack<T, N>::Word Word;
    #pragma unroll
    for (int w = 0; w < Pack<T, N>::bytes / Pack<T, N>::word_bytes; w++) {
        reinterpret_cast<Word*>(pack.at)[w] = reinterpret_cast<const Word*>(from)[w];
    }
}

template <typename T, int N> __device__ __forceinline__ void store_pack(const Pack<T, N>& pack, T* to) {
    typedef typename Pack<T, N>::Word Word;
    #pragma unroll
    for (int w = 0; w < Pack<T, N>::bytes / Pack<T, N>::word_bytes; w++) {
        reinterpret_cast<Word*>(to)[w] = reinterpret_cast<const Word*>(pack.at)[w];
    }
}

template <typename T, int N, typename Index>
__device__ __forceinline__ void load_elements(Pack<T, N>& pack, const T* from, Index step, int count) {
    #pragma unroll
    for (int e = 0; e < N; e++) {
        if (e < count) pack.at[e] = from[e * step];
    }
}

template <typename T, int N, typename Index>
__device__ __forceinline__ void store_elements(const Pack<T, N>& pack, T* to, Index step, int count) {
    #pragma unroll
    for (int e = 0; e < N; e++) {
        if (e < count) to[e * step] = pack.at[e];
    }
}

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ unsigned long long address_in_block(const void* shared, unsigned int block) {
    unsigned long long address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(shared), "r"(block));
    return address;
}

template <typename T> __device__ __forceinline__ T load_from_block(const T* shared, unsigned int block) {
    return *reinterpret_cast<const T*>(address_in_block(shared, block));
}

typedef int Index;

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[2], along[2], steps[2][1]; };

extern "C" __global__ void __launch_bounds__(256) kernel_softmax(const float* in0, float* out0, long long* error, const Sizes sizes) {
    const int lane = threadIdx.y;
    const Index number = blockIdx.x * (Index)4 + threadIdx.x;
    const bool live = number < (Index)sizes.points;
    const Index i = live ? number : (Index)sizes.points - 1;  // threads beyond the last row repeat it
    const Index from = (Index)blockIdx.y * (Index)sizes.chunk;
    const Index begin = from + lane;
    const Index next = from + (Index)sizes.chunk;
    const Index end = next < (Index)sizes.units ? next : (Index)sizes.units;
    Index o0, o1;
    {
        o0 = i * (Index)sizes.steps[0][0];
        o1 = i * (Index)sizes.steps[1][0];
    }
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0) | reinterpret_cast<unsigned long long>(out0)) & 15) == 0;
    Pack<float, 4> x0[16];
    if (aligned) {
    #pragma unroll
    for (int n = 0; n < 16; n++) {
        const Index q = begin + n * 64;
        load_pack(x0[n], in0 + o0 + q * (Index)sizes.along[0]);
    }
    } else {
    #pragma unroll
    for (int n = 0; n < 16; n++) {
        const Index q = begin + n * 64;
        load_elements(x0[n], in0 + o0 + q * (Index)sizes.along[0], (Index)1, 4);
    }
    }
    float k3[16][4];
    float s1[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = (-__int_as_float(0x7f800000)); }
    #pragma unroll
    for (int n = 0; n < 16; n++) {
        const Index q = begin + n * 64;
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const float v0 = x0[n].at[e];
            s1[e] = maximum<float>(s1[e], v0);
        }
    }
    #pragma unroll
    for (int distance = 16; distance >= 4; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const float other = shuffle<float>(s1[e], distance);
            s1[e] = maximum<float>(s1[e], other);
        }
    }
    __shared__ float shared1[128];
    if (lane % 8 == 0) {
        #pragma unroll
        for (int e = 0; e < 4; e++) { shared1[lane / 8 * 16 + threadIdx.x * 4 + e] = s1[e]; }
    }
    __syncthreads();
    for (int c = lane * 4 + threadIdx.x; c < 16; c += 256) {
        float several1[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several1[g] = shared1[g * 16 + c]; }
        float t1 = several1[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { t1 = maximum<float>(t1, several1[g]); }
        shared1[c] = t1;
    }
    cluster_barrier();
    __shared__ float cluster1[16];
    for (int c = lane * 4 + threadIdx.x; c < 16; c += 256) {
        float several1[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several1[g] = load_from_block(&shared1[c], g); }
        float t1 = several1[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { t1 = maximum<float>(t1, several1[g]); }
        cluster1[c] = t1;
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = cluster1[threadIdx.x * 4 + e]; }
    float s4[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { s4[e] = 0.0f; }
    #pragma unroll
    for (int n = 0; n < 16; n++) {
        const Index q = begin + n * 64;
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const float v0 = x0[n].at[e];
            const float v2 = v0 - s1[e];
            const float v3 = expf(v2);
            s4[e] = s4[e] + v3;
            k3[n][e] = v3;
        }
    }
    #pragma unroll
    for (int distance = 16; distance >= 4; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const float other = shuffle<float>(s4[e], distance);
            s4[e] = s4[e] + other;
        }
    }
    __shared__ float shared4[128];
    if (lane % 8 == 0) {
        #pragma unroll
        for (int e = 0; e < 4; e++) { shared4[lane / 8 * 16 + threadIdx.x * 4 + e] = s4[e]; }
    }
    __syncthreads();
    for (int c = lane * 4 + threadIdx.x; c < 16; c += 256) {
        float several4[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several4[g] = shared4[g * 16 + c]; }
        float t4 = several4[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { t4 = t4 + several4[g]; }
        shared4[c] = t4;
    }
    cluster_barrier();
    __shared__ float cluster4[16];
    for (int c = lane * 4 + threadIdx.x; c < 16; c += 256) {
        float several4[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several4[g] = load_from_block(&shared4[c], g); }
        float t4 = several4[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { t4 = t4 + several4[g]; }
        cluster4[c] = t4;
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < 4; e++) { s4[e] = cluster4[threadIdx.x * 4 + e]; }
    float inverse4[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { inverse4[e] = inverse_for_quotients(s4[e]); }
    #pragma unroll
    for (int n = 0; n < 16; n++) {
        const Index q = begin + n * 64;
        Pack<float, 4> y1;
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const float v5 = quotient(k3[n][e], s4[e], inverse4[e]);
            y1.at[e] = v5;
        }
        if (!live) continue;
        if (aligned) store_pack(y1, out0 + o1 + q * (Index)sizes.along[1]);
        else store_elements(y1, out0 + o1 + q * (Index)sizes.along[1], (Index)1, 4);
    }
    cluster_barrier();  // others may still read what this block has in shared memory
}
