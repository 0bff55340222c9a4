// softmax over (65536, 1024), scratch ()
// grid (8192, 1, 1) block (32, 8, 1) cluster (1, 1, 1)

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

typedef int Index;

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[2], along[2], steps[2][1]; };

extern "C" __global__ void __launch_bounds__(256) kernel_softmax(const unsigned short* in0, unsigned short* out0, long long* error, const Sizes sizes) {
    const int lane = threadIdx.x;
    const Index number = blockIdx.x * (Index)8 + threadIdx.y;
    const bool live = number < (Index)sizes.points;
    const Index i = live ? number : (Index)sizes.points - 1;  // threads beyond the last row repeat it
    const Index begin = lane, end = (Index)sizes.units;
    Index o0, o1;
    {
        o0 = i * (Index)sizes.steps[0][0];
        o1 = i * (Index)sizes.steps[1][0];
    }
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0) | reinterpret_cast<unsigned long long>(out0)) & 15) == 0;
    Pack<unsigned short, 8> x0[4];
    if (aligned) {
    #pragma unroll
    for (int n = 0; n < 4; n++) {
        const Index q = begin + n * 32;
        load_pack(x0[n], in0 + o0 + q * (Index)sizes.along[0]);
    }
    } else {
    #pragma unroll
    for (int n = 0; n < 4; n++) {
        const Index q = begin + n * 32;
        load_elements(x0[n], in0 + o0 + q * (Index)sizes.along[0], (Index)1, 8);
    }
    }
    float k4[4][8];
    float s2[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { s2[e] = (-__int_as_float(0x7f800000)); }
    #pragma unroll
    for (int n = 0; n < 4; n++) {
        const Index q = begin + n * 32;
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const unsigned short v0 = x0[n].at[e];
            const float v1 = widen_at_bfloat16(x0[n], e);
            s2[e] = maximum<float>(s2[e], v1);
        }
    }
    #pragma unroll
    for (int n = 0; n < 4; n++) { forget(x0[n]); }
    #pragma unroll
    for (int half = 4; half > 0; half >>= 1) {
        #pragma unroll
        for (int e = 0; e < half; e++) s2[e] = maximum<float>(s2[e], s2[e + half]);
    }
    #pragma unroll
    for (int distance = 16; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s2[e], distance);
            s2[e] = maximum<float>(s2[e], other);
        }
    }
    float s5[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { s5[e] = 0.0f; }
    #pragma unroll
    for (int n = 0; n < 4; n++) {
        const Index q = begin + n * 32;
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const unsigned short v0 = x0[n].at[e];
            const float v1 = widen_at_bfloat16(x0[n], e);
            const float v3 = v1 - s2[0];
            const float v4 = exp_for_half(v3);
            s5[e] = s5[e] + v4;
            k4[n][e] = v4;
        }
    }
    #pragma unroll
    for (int half = 4; half > 0; half >>= 1) {
        #pragma unroll
        for (int e = 0; e < half; e++) s5[e] = s5[e] + s5[e + half];
    }
    #pragma unroll
    for (int distance = 16; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s5[e], distance);
            s5[e] = s5[e] + other;
        }
    }
    const float scale5 = scale_for_quotients(s5[0]);
    const float inverse5 = 1.0f / (s5[0] * scale5);
    #pragma unroll
    for (int n = 0; n < 4; n++) {
        const Index q = begin + n * 32;
        Pack<unsigned short, 8> y1; float f1[8];
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const float v6 = quotient_for_half(k4[n][e], scale5, inverse5);
            f1[e] = v6;
        }
        narrow_pack_bfloat16(y1, f1);
        if (!live) continue;
        if (aligned) store_pack(y1, out0 + o1 + q * (Index)sizes.along[1]);
        else store_elements(y1, out0 + o1 + q * (Index)sizes.along[1], (Index)1, 8);
    }
}
