// softmax over (1048576, 128), scratch (133632, 133632)
// grid (1, 261, 1) block (32, 8, 1) cluster (1, 1, 1)

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

template <typename T> __device__ __forceinline__ T rescaling_reference(T top) {
    return top == -T(__int_as_float(0x7f800000)) ? T(0) : top;
}

template <typename T> __device__ __forceinline__ T rescaling(T old, T top) { return old == top ? T(1) : exp(old - top); }

template <typename T> __device__ __forceinline__ void join_rescaled(T& m, T& s, T other_m, T other_s) {
    const T top = maximum<T>(m, other_m);
    s = s * rescaling(m, top) + other_s * rescaling(other_m, top);
    m = top;
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

template <typename T, int N, typename Index>
__device__ __forceinline__ void load_elements(Pack<T, N>& pack, const T* from, Index step, int count) {
    #pragma unroll
    for (int e = 0; e < N; e++) {
        if (e < count) pack.at[e] = from[e * step];
    }
}

typedef int Index;

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[2], along[2], steps[2][1]; };

extern "C" __global__ void __launch_bounds__(256, 2) kernel_softmax(const float* in0, float* out0, float* part1, float* place1, long long* error, const Sizes sizes) {
    const int lane = threadIdx.y;
    const Index number = blockIdx.x * (Index)32 + threadIdx.x;
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
    float s1[4]; float at1[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = (-__int_as_float(0x7f800000)); at1[e] = 0; }
    for (Index base = begin; base < end; base += 64) {
        Pack<float, 4> x0[8];
        if (aligned) {
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            const Index q = base + n * 8;
            x0[n] = {};
            if (q < end) load_pack(x0[n], in0 + o0 + q * (Index)sizes.along[0]);
        }
        } else {
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            const Index q = base + n * 8;
            x0[n] = {};
            if (q < end) load_elements(x0[n], in0 + o0 + q * (Index)sizes.along[0], (Index)1, 4);
        }
        }
        float z1[8][4];
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) z1[n][e] = (-__int_as_float(0x7f800000));
        }
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            const Index q = base + n * 8;
            if (q >= end) continue;
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float v0 = x0[n].at[e];
                z1[n][e] = v0;
            }
        }
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            float top = s1[e];
            #pragma unroll
            for (int n = 0; n < 8; n++) top = maximum<float>(top, z1[n][e]);
            const float reference = rescaling_reference(top);
            at1[e] *= rescaling(s1[e], top);
            s1[e] = top;
            #pragma unroll
            for (int n = 0; n < 8; n++) at1[e] += expf(z1[n][e] - reference);
        }
    }
    __shared__ float shared1[1024];
    __shared__ float shared_at1[1024];
    {
        #pragma unroll
        for (int e = 0; e < 4; e++) { shared1[lane / 1 * 128 + threadIdx.x * 4 + e] = s1[e]; shared_at1[lane / 1 * 128 + threadIdx.x * 4 + e] = at1[e]; }
    }
    __syncthreads();
    for (int c = lane * 32 + threadIdx.x; c < 128; c += 256) {
        float several1[8]; float places1[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several1[g] = shared1[g * 128 + c]; places1[g] = shared_at1[g * 128 + c]; }
        float t1 = several1[0]; float u1 = places1[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { join_rescaled(t1, u1, several1[g], places1[g]); }
        shared1[c] = t1; shared_at1[c] = u1;
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = shared1[threadIdx.x * 4 + e]; at1[e] = shared_at1[threadIdx.x * 4 + e]; }
    if (live && lane == 0) {
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const long long index = ((long long)blockIdx.y * sizes.points + i) * 4 + e;
            part1[index] = s1[e];
            place1[index] = at1[e];
        }
    }
}

// grid (1, 261, 1) block (32, 8, 1) cluster (1, 1, 1)

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

template <typename T> __device__ __forceinline__ T rescaling(T old, T top) { return old == top ? T(1) : exp(old - top); }

template <typename T> __device__ __forceinline__ void join_rescaled(T& m, T& s, T other_m, T other_s) {
    const T top = maximum<T>(m, other_m);
    s = s * rescaling(m, top) + other_s * rescaling(other_m, top);
    m = top;
}

template <typename T> __device__ __forceinline__ T rescaled_sum(T m, T s) {
    return m == -T(__int_as_float(0x7f800000)) ? m - m : s;
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

typedef int Index;

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[2], along[2], steps[2][1]; };

extern "C" __global__ void __launch_bounds__(256, 2) kernel_softmax(const float* in0, float* out0, float* part1, float* place1, long long* error, const Sizes sizes) {
    const int lane = threadIdx.y;
    const Index number = blockIdx.x * (Index)32 + threadIdx.x;
    const bool live = number < (Index)sizes.points;
    const Index i = live ? number : (Index)sizes.points - 1;  // threads beyond the last row repeat it
    const Index from = ((Index)sizes.parts - 1 - (Index)blockIdx.y) * (Index)sizes.chunk;
    const Index begin = from + lane;
    const Index next = from + (Index)sizes.chunk;
    const Index end = next < (Index)sizes.units ? next : (Index)sizes.units;
    Index o0, o1;
    {
        o0 = i * (Index)sizes.steps[0][0];
        o1 = i * (Index)sizes.steps[1][0];
    }
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0) | reinterpret_cast<unsigned long long>(out0)) & 15) == 0;
    float s1[4]; float at1[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = (-__int_as_float(0x7f800000)); at1[e] = 0; }
    #pragma unroll 4
    for (long long part = lane; part < sizes.parts; part += 8) {
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const long long index = (part * sizes.points + i) * 4 + e;
            join_rescaled(s1[e], at1[e], part1[index], place1[index]);
        }
    }
    __shared__ float shared1[1024];
    __shared__ float shared_at1[1024];
    {
        #pragma unroll
        for (int e = 0; e < 4; e++) { shared1[lane / 1 * 128 + threadIdx.x * 4 + e] = s1[e]; shared_at1[lane / 1 * 128 + threadIdx.x * 4 + e] = at1[e]; }
    }
    __syncthreads();
    for (int c = lane * 32 + threadIdx.x; c < 128; c += 256) {
        float several1[8]; float places1[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several1[g] = shared1[g * 128 + c]; places1[g] = shared_at1[g * 128 + c]; }
        float t1 = several1[0]; float u1 = places1[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { join_rescaled(t1, u1, several1[g], places1[g]); }
        shared1[c] = t1; shared_at1[c] = u1;
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = shared1[threadIdx.x * 4 + e]; at1[e] = shared_at1[threadIdx.x * 4 + e]; }
    float inverse4[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { inverse4[e] = inverse_for_quotients(rescaled_sum(s1[e], at1[e])); }
    for (Index base = begin; base < end; base += 64) {
        Pack<float, 4> x0[8];
        if (aligned) {
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            const Index q = base + n * 8;
            x0[n] = {};
            if (q < end) load_pack(x0[n], in0 + o0 + q * (Index)sizes.along[0]);
        }
        } else {
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            const Index q = base + n * 8;
            x0[n] = {};
            if (q < end) load_elements(x0[n], in0 + o0 + q * (Index)sizes.along[0], (Index)1, 4);
        }
        }
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            const Index q = base + n * 8;
            if (q >= end) continue;
            Pack<float, 4> y1;
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float v0 = x0[n].at[e];
                const float v2 = v0 - s1[e];
                const float v3 = expf(v2);
                const float v5 = quotient(v3, rescaled_sum(s1[e], at1[e]), inverse4[e]);
                y1.at[e] = v5;
            }
            if (!live) continue;
            if (aligned) store_pack(y1, out0 + o1 + q * (Index)sizes.along[1]);
            else store_elements(y1, out0 + o1 + q * (Index)sizes.along[1], (Index)1, 4);
        }
    }
}
