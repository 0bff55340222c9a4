// layer_norm over (65536, 1024), scratch ()
// grid (65536, 1, 1) block (64, 1, 1) cluster (1, 1, 1)

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

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[6], along[6], steps[6][1]; };

extern "C" __global__ void __launch_bounds__(64) kernel_layer_norm(const unsigned short* in0, const unsigned short* in1, const unsigned short* in2, unsigned short* out0, float* out1, float* out2, double p0, long long* error, const Sizes sizes) {
    const float v6 = (float)(p0);
    const float v13 = 9.999999747378752e-06f;
    const int lane = threadIdx.x;
    const Index number = blockIdx.x * (Index)1 + threadIdx.y;
    const bool live = number < (Index)sizes.points;
    const Index i = live ? number : (Index)sizes.points - 1;  // threads beyond the last row repeat it
    const Index begin = lane, end = (Index)sizes.units;
    Index o0, o1, o2, o3, o4, o5;
    {
        o0 = i * (Index)sizes.steps[0][0];
        o1 = i * (Index)sizes.steps[1][0];
        o2 = i * (Index)sizes.steps[2][0];
        o3 = i * (Index)sizes.steps[3][0];
        o4 = i * (Index)sizes.steps[4][0];
        o5 = i * (Index)sizes.steps[5][0];
    }
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0) | reinterpret_cast<unsigned long long>(in1) | reinterpret_cast<unsigned long long>(in2) | reinterpret_cast<unsigned long long>(out0)) & 15) == 0;
    Pack<unsigned short, 8> x0[2];
    Pack<unsigned short, 8> x1[2];
    Pack<unsigned short, 8> x2[2];
    if (aligned) {
    #pragma unroll
    for (int n = 0; n < 2; n++) {
        const Index q = begin + n * 64;
        load_pack(x0[n], in0 + o0 + q * (Index)sizes.along[0]);
        load_pack(x1[n], in1 + o1 + q * (Index)sizes.along[1]);
        load_pack(x2[n], in2 + o2 + q * (Index)sizes.along[2]);
    }
    } else {
    #pragma unroll
    for (int n = 0; n < 2; n++) {
        const Index q = begin + n * 64;
        load_elements(x0[n], in0 + o0 + q * (Index)sizes.along[0], (Index)1, 8);
        load_elements(x1[n], in1 + o1 + q * (Index)sizes.along[1], (Index)1, 8);
        load_elements(x2[n], in2 + o2 + q * (Index)sizes.along[2], (Index)1, 8);
    }
    }
    float s7[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { s7[e] = 0.0f; }
    #pragma unroll
    for (int n = 0; n < 2; n++) {
        const Index q = begin + n * 64;
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const unsigned short v0 = x0[n].at[e];
            const float v1 = widen_at_bfloat16(x0[n], e);
            s7[e] = s7[e] + v1;
        }
    }
    #pragma unroll
    for (int n = 0; n < 2; n++) { forget(x0[n]); forget(x1[n]); forget(x2[n]); }
    #pragma unroll
    for (int half = 4; half > 0; half >>= 1) {
        #pragma unroll
        for (int e = 0; e < half; e++) s7[e] = s7[e] + s7[e + half];
    }
    #pragma unroll
    for (int distance = 16; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s7[e], distance);
            s7[e] = s7[e] + other;
        }
    }
    __shared__ float shared7[2];
    if (lane % 32 == 0) { shared7[lane / 32] = s7[0]; }
    __syncthreads();
    s7[0] = shared7[lane % 2];
    #pragma unroll
    for (int distance = 1; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s7[e], distance);
            s7[e] = s7[e] + other;
        }
    }
    const float v8 = s7[0] * v6;
    float s11[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { s11[e] = 0.0f; }
    #pragma unroll
    for (int n = 0; n < 2; n++) {
        const Index q = begin + n * 64;
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const unsigned short v0 = x0[n].at[e];
            const float v1 = widen_at_bfloat16(x0[n], e);
            const float v9 = v1 - v8;
            const float v10 = v9 * v9;
            s11[e] = s11[e] + v10;
        }
    }
    #pragma unroll
    for (int n = 0; n < 2; n++) { forget(x0[n]); forget(x1[n]); forget(x2[n]); }
    #pragma unroll
    for (int half = 4; half > 0; half >>= 1) {
        #pragma unroll
        for (int e = 0; e < half; e++) s11[e] = s11[e] + s11[e + half];
    }
    #pragma unroll
    for (int distance = 16; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s11[e], distance);
            s11[e] = s11[e] + other;
        }
    }
    __shared__ float shared11[2];
    if (lane % 32 == 0) { shared11[lane / 32] = s11[0]; }
    __syncthreads();
    s11[0] = shared11[lane % 2];
    #pragma unroll
    for (int distance = 1; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s11[e], distance);
            s11[e] = s11[e] + other;
        }
    }
    const float v12 = s11[0] * v6;
    const float v14 = v12 + v13;
    const float v15 = 1.0f / sqrtf(v14);
    #pragma unroll
    for (int n = 0; n < 2; n++) {
        const Index q = begin + n * 64;
        Pack<unsigned short, 8> y3; float f3[8];
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const unsigned short v4 = x2[n].at[e];
            const float v5 = widen_at_bfloat16(x2[n], e);
            const unsigned short v2 = x1[n].at[e];
            const float v3 = widen_at_bfloat16(x1[n], e);
            const unsigned short v0 = x0[n].at[e];
            const float v1 = widen_at_bfloat16(x0[n], e);
            const float v9 = v1 - v8;
            const float v16 = v9 * v15;
            const float v17 = v16 * v3;
            const float v18 = v17 + v5;
            f3[e] = v18;
        }
        narrow_pack_bfloat16(y3, f3);
        if (aligned) store_pack(y3, out0 + o3 + q * (Index)sizes.along[3]);
        else store_elements(y3, out0 + o3 + q * (Index)sizes.along[3], (Index)1, 8);
    }
    #pragma unroll
    for (int n = 0; n < 2; n++) { forget(x0[n]); forget(x1[n]); forget(x2[n]); }
    if (live && lane == 0) {
        out1[o4] = v8;
        out2[o5] = v15;
    }
}
