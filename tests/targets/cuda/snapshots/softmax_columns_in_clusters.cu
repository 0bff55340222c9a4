// softmax over (2000, 4096), scratch ()
// grid (128, 2, 1) block (4, 64, 1) cluster (1, 2, 1)

__device__ __forceinline__ float widen_bfloat16(unsigned short bits) {
    return __uint_as_float((unsigned int)bits << 16);
}

__device__ __forceinline__ unsigned short narrow_bfloat16(float value) {
#if __CUDA_ARCH__ >= 800
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const unsigned int word = __float_as_uint(value);  // half to even; NaN has one pattern
    return value != value ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
#endif
}

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

__device__ __forceinline__ float exp_for_half(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

__device__ __forceinline__ float scale_for_quotients(float divisor) {
    const float size = fabsf(divisor);
    return size < 8.67361738e-19f ? 18446744073709551616.0f : size > 1152921504606846976.0f ? 5.42101086e-20f : 1.0f;
}

__device__ __forceinline__ float quotient_for_half(float x, float scale, float inverse) {
    return x * scale * inverse;  // inverse: 1 / (divisor * scale)
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

template <typename T, int N> __device__ __forceinline__ void forget(Pack<T, N>& pack) {
    if constexpr (Pack<T, N>::bytes % 4 == 0) {
        #pragma unroll
        for (int w = 0; w < Pack<T, N>::bytes / 4; w++) {
            asm volatile("" : "+r"(reinterpret_cast<unsigned int*>(pack.at)[w]));
        }
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

template <int N> __device__ __forceinline__ float widen_at_bfloat16(const Pack<unsigned short, N>& pack, int e) {
    if constexpr (N % 2) return widen_bfloat16(pack.at[e]);
    const unsigned int word = reinterpret_cast<const unsigned int*>(pack.at)[e / 2];
    return __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16);
}

__device__ __forceinline__ unsigned int narrow_pair_bfloat16(float low, float high) {
#if __CUDA_ARCH__ >= 800
    unsigned int bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#else
    return (unsigned int)narrow_bfloat16(high) << 16 | narrow_bfloat16(low);
#endif
}

template <int N> __device__ __forceinline__ void narrow_pack_bfloat16(Pack<unsigned short, N>& pack, const float* values) {
    #pragma unroll
    for (int e = 0; e + 1 < N; e += 2) {
        const unsigned int pair = narrow_pair_bfloat16(values[e], values[e + 1]);
        pack.at[e] = (unsigned short)pair;
        pack.at[e + 1] = (unsigned short)(pair >> 16);
    }
    if (N % 2) pack.at[N - 1] = narrow_bfloat16(values[N - 1]);
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

extern "C" __global__ void __launch_bounds__(256) kernel_softmax(const unsigned short* in0, unsigned short* out0, long long* error, const Sizes sizes) {
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
    Pack<unsigned short, 8> x0[16];
    if (aligned) {
    #pragma unroll
    for (int n = 0; n < 16; n++) {
        const Index q = begin + n * 64;
        x0[n] = {};
        if (q < end) load_pack(x0[n], in0 + o0 + q * (Index)sizes.along[0]);
    }
    } else {
    #pragma unroll
    for (int n = 0; n < 16; n++) {
        const Index q = begin + n * 64;
        x0[n] = {};
        if (q < end) load_elements(x0[n], in0 + o0 + q * (Index)sizes.along[0], (Index)1, 8);
    }
    }
    float s2[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { s2[e] = (-__int_as_float(0x7f800000)); }
    #pragma unroll
    for (int n = 0; n < 16; n++) {
        const Index q = begin + n * 64;
        if (q >= end) continue;
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const unsigned short v0 = x0[n].at[e];
            const float v1 = widen_at_bfloat16(x0[n], e);
            s2[e] = maximum<float>(s2[e], v1);
        }
    }
    #pragma unroll
    for (int n = 0; n < 16; n++) { forget(x0[n]); }
    #pragma unroll
    for (int distance = 16; distance >= 4; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const float other = shuffle<float>(s2[e], distance);
            s2[e] = maximum<float>(s2[e], other);
        }
    }
    __shared__ float shared2[256];
    if (lane % 8 == 0) {
        #pragma unroll
        for (int e = 0; e < 8; e++) { shared2[lane / 8 * 32 + threadIdx.x * 8 + e] = s2[e]; }
    }
    __syncthreads();
    for (int c = lane * 4 + threadIdx.x; c < 32; c += 256) {
        float several2[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several2[g] = shared2[g * 32 + c]; }
        float t2 = several2[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { t2 = maximum<float>(t2, several2[g]); }
        shared2[c] = t2;
    }
    cluster_barrier();
    __shared__ float cluster2[32];
    for (int c = lane * 4 + threadIdx.x; c < 32; c += 256) {
        float several2[2];
        #pragma unroll
        for (int g = 0; g < 2; g++) { several2[g] = load_from_block(&shared2[c], g); }
        float t2 = several2[0];
        #pragma unroll
        for (int g = 1; g < 2; g++) { t2 = maximum<float>(t2, several2[g]); }
        cluster2[c] = t2;
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < 8; e++) { s2[e] = cluster2[threadIdx.x * 8 + e]; }
    float s5[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { s5[e] = 0.0f; }
    #pragma unroll
    for (int n = 0; n < 16; n++) {
        const Index q = begin + n * 64;
        if (q >= end) continue;
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const unsigned short v0 = x0[n].at[e];
            const float v1 = widen_at_bfloat16(x0[n], e);
            const float v3 = v1 - s2[e];
            const float v4 = exp_for_half(v3);
            s5[e] = s5[e] + v4;
        }
    }
    #pragma unroll
    for (int n = 0; n < 16; n++) { forget(x0[n]); }
    #pragma unroll
    for (int distance = 16; distance >= 4; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const float other = shuffle<float>(s5[e], distance);
            s5[e] = s5[e] + other;
        }
    }
    __shared__ float shared5[256];
    if (lane % 8 == 0) {
        #pragma unroll
        for (int e = 0; e < 8; e++) { shared5[lane / 8 * 32 + threadIdx.x * 8 + e] = s5[e]; }
    }
    __syncthreads();
    for (int c = lane * 4 + threadIdx.x; c < 32; c += 256) {
        float several5[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several5[g] = shared5[g * 32 + c]; }
        float t5 = several5[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { t5 = t5 + several5[g]; }
        shared5[c] = t5;
    }
    cluster_barrier();
    __shared__ float cluster5[32];
    for (int c = lane * 4 + threadIdx.x; c < 32; c += 256) {
        float several5[2];
        #pragma unroll
        for (int g = 0; g < 2; g++) { several5[g] = load_from_block(&shared5[c], g); }
        float t5 = several5[0];
        #pragma unroll
        for (int g = 1; g < 2; g++) { t5 = t5 + several5[g]; }
        cluster5[c] = t5;
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < 8; e++) { s5[e] = cluster5[threadIdx.x * 8 + e]; }
    float scale5[8], inverse5[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { scale5[e] = scale_for_quotients(s5[e]); inverse5[e] = 1.0f / (s5[e] * scale5[e]); }
    #pragma unroll
    for (int n = 0; n < 16; n++) {
        const Index q = begin + n * 64;
        if (q >= end) continue;
        Pack<unsigned short, 8> y1; float f1[8];
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const unsigned short v0 = x0[n].at[e];
            const float v1 = widen_at_bfloat16(x0[n], e);
            const float v3 = v1 - s2[e];
            const float v4 = exp_for_half(v3);
            const float v6 = quotient_for_half(v4, scale5[e], inverse5[e]);
            f1[e] = v6;
        }
        narrow_pack_bfloat16(y1, f1);
        if (!live) continue;
        if (aligned) store_pack(y1, out0 + o1 + q * (Index)sizes.along[1]);
        else store_elements(y1, out0 + o1 + q * (Index)sizes.along[1], (Index)1, 8);
    }
    #pragma unroll
    for (int n = 0; n < 16; n++) { forget(x0[n]); }
    cluster_barrier();  // others may still read what this block has in shared memory
}
