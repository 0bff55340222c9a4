// layer_norm_weights over (65536, 1024), scratch (536576, 536576)
// grid (4, 131, 1) block (32, 8, 1) cluster (1, 1, 1)

__device__ __forceinline__ float widen_bfloat16(unsigned short bits) {
    return __uint_as_float((unsigned int)bits << 16);
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

template <int N> __device__ __forceinline__ float widen_at_bfloat16(const Pack<unsigned short, N>& pack, int e) {
    if constexpr (N % 2) return widen_bfloat16(pack.at[e]);
    const unsigned int word = reinterpret_cast<const unsigned int*>(pack.at)[e / 2];
    return __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16);
}

typedef int Index;

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[6], along[6], steps[6][1]; };

extern "C" __global__ void __launch_bounds__(256, 4) kernel_layer_norm_weights(const unsigned short* in0, const unsigned short* in1, const float* in2, const float* in3, unsigned short* out0, unsigned short* out1, float* part9, float* part10, long long* error, const Sizes sizes) {
    const int lane = threadIdx.y;
    const Index number = blockIdx.x * (Index)32 + threadIdx.x;
    const bool live = number < (Index)sizes.points;
    const Index i = live ? number : (Index)sizes.points - 1;  // threads beyond the last row repeat it
    const Index from = (Index)blockIdx.y * (Index)sizes.chunk;
    const Index begin = from + lane;
    const Index next = from + (Index)sizes.chunk;
    const Index end = next < (Index)sizes.units ? next : (Index)sizes.units;
    Index o0, o1, o2, o3, o4, o5;
    {
        o0 = i * (Index)sizes.steps[0][0];
        o1 = i * (Index)sizes.steps[1][0];
        o2 = i * (Index)sizes.steps[2][0];
        o3 = i * (Index)sizes.steps[3][0];
        o4 = i * (Index)sizes.steps[4][0];
        o5 = i * (Index)sizes.steps[5][0];
    }
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0) | reinterpret_cast<unsigned long long>(in1) | reinterpret_cast<unsigned long long>(out0) | reinterpret_cast<unsigned long long>(out1)) & 15) == 0;
    float s9[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { s9[e] = 0.0f; }
    float s10[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { s10[e] = 0.0f; }
    for (Index base = begin; base < end; base += 24) {
        Pack<unsigned short, 8> x0[3];
        Pack<unsigned short, 8> x1[3];
        Pack<float, 1> x2[3];
        Pack<float, 1> x3[3];
        if (aligned) {
        #pragma unroll
        for (int n = 0; n < 3; n++) {
            const Index q = base + n * 8;
            x0[n] = {};
            if (q < end) load_pack(x0[n], in0 + o0 + q * (Index)sizes.along[0]);
            x1[n] = {};
            if (q < end) load_pack(x1[n], in1 + o1 + q * (Index)sizes.along[1]);
            x2[n] = {};
            if (q < end) x2[n].at[0] = *(in2 + o2 + q * (Index)sizes.along[2]);
            x3[n] = {};
            if (q < end) x3[n].at[0] = *(in3 + o3 + q * (Index)sizes.along[3]);
        }
        } else {
        #pragma unroll
        for (int n = 0; n < 3; n++) {
            const Index q = base + n * 8;
            x0[n] = {};
            if (q < end) load_elements(x0[n], in0 + o0 + q * (Index)sizes.along[0], (Index)1, 8);
            x1[n] = {};
            if (q < end) load_elements(x1[n], in1 + o1 + q * (Index)sizes.along[1], (Index)1, 8);
            x2[n] = {};
            if (q < end) x2[n].at[0] = *(in2 + o2 + q * (Index)sizes.along[2]);
            x3[n] = {};
            if (q < end) x3[n].at[0] = *(in3 + o3 + q * (Index)sizes.along[3]);
        }
        }
        #pragma unroll
        for (int n = 0; n < 3; n++) {
            const Index q = base + n * 8;
            if (q >= end) continue;
            #pragma unroll
            for (int e = 0; e < 8; e++) {
                const float v5 = x3[n].at[0];
                const float v4 = x2[n].at[0];
                const unsigned short v0 = x0[n].at[e];
                const float v1 = widen_at_bfloat16(x0[n], e);
                const float v6 = v1 - v4;
                const float v7 = v6 * v5;
                const unsigned short v2 = x1[n].at[e];
                const float v3 = widen_at_bfloat16(x1[n], e);
                const float v8 = v3 * v7;
                s9[e] = s9[e] + v8;
                s10[e] = s10[e] + v3;
            }
        }
    }
    __shared__ float shared9[2048];
    __shared__ float shared10[2048];
    {
        #pragma unroll
        for (int e = 0; e < 8; e++) { shared9[lane / 1 * 256 + threadIdx.x * 8 + e] = s9[e]; }
        #pragma unroll
        for (int e = 0; e < 8; e++) { shared10[lane / 1 * 256 + threadIdx.x * 8 + e] = s10[e]; }
    }
    __syncthreads();
    for (int c = lane * 32 + threadIdx.x; c < 256; c += 256) {
        float several9[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several9[g] = shared9[g * 256 + c]; }
        float t9 = several9[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { t9 = t9 + several9[g]; }
        shared9[c] = t9;
        float several10[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several10[g] = shared10[g * 256 + c]; }
        float t10 = several10[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { t10 = t10 + several10[g]; }
        shared10[c] = t10;
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < 8; e++) { s9[e] = shared9[threadIdx.x * 8 + e]; }
    #pragma unroll
    for (int e = 0; e < 8; e++) { s10[e] = shared10[threadIdx.x * 8 + e]; }
    if (live && lane == 0) {
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const long long index = ((long long)blockIdx.y * sizes.points + i) * 8 + e;
            part9[index] = s9[e];
        }
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const long long index = ((long long)blockIdx.y * sizes.points + i) * 8 + e;
            part10[index] = s10[e];
        }
    }
}

// grid (16, 1, 1) block (8, 32, 1) cluster (1, 1, 1)

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

template <typename T, int N> __device__ __forceinline__ void store_pack(const Pack<T, N>& pack, T* to) {
    typedef typename Pack<T, N>::Word Word;
    #pragma unroll
    for (int w = 0; w < Pack<T, N>::bytes / Pack<T, N>::word_bytes; w++) {
        reinterpret_cast<Word*>(to)[w] = reinterpret_cast<const Word*>(pack.at)[w];
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

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[6], along[6], steps[6][1]; };

extern "C" __global__ void __launch_bounds__(256) kernel_layer_norm_weights(const unsigned short* in0, const unsigned short* in1, const float* in2, const float* in3, unsigned short* out0, unsigned short* out1, float* part9, float* part10, long long* error, const Sizes sizes) {
    const int lane = threadIdx.y;
    const Index number = blockIdx.x * (Index)8 + threadIdx.x;
    const bool live = number < (Index)sizes.points;
    const Index i = live ? number : (Index)sizes.points - 1;  // threads beyond the last row repeat it
    const Index from = ((Index)sizes.parts - 1 - (Index)blockIdx.y) * (Index)sizes.chunk;
    const Index begin = from + lane;
    const Index next = from + (Index)sizes.chunk;
    const Index end = next < (Index)sizes.units ? next : (Index)sizes.units;
    Index o0, o1, o2, o3, o4, o5;
    {
        o0 = i * (Index)sizes.steps[0][0];
        o1 = i * (Index)sizes.steps[1][0];
        o2 = i * (Index)sizes.steps[2][0];
        o3 = i * (Index)sizes.steps[3][0];
        o4 = i * (Index)sizes.steps[4][0];
        o5 = i * (Index)sizes.steps[5][0];
    }
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0) | reinterpret_cast<unsigned long long>(in1) | reinterpret_cast<unsigned long long>(out0) | reinterpret_cast<unsigned long long>(out1)) & 15) == 0;
    float s9[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { s9[e] = 0.0f; }
    float s10[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) { s10[e] = 0.0f; }
    #pragma unroll 4
    for (long long part = lane; part < sizes.parts; part += 32) {
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const long long index = (part * sizes.points + i) * 8 + e;
            s9[e] = s9[e] + part9[index];
        }
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const long long index = (part * sizes.points + i) * 8 + e;
            s10[e] = s10[e] + part10[index];
        }
    }
    #pragma unroll
    for (int distance = 16; distance >= 8; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const float other = shuffle<float>(s9[e], distance);
            s9[e] = s9[e] + other;
        }
    }
    #pragma unroll
    for (int distance = 16; distance >= 8; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            const float other = shuffle<float>(s10[e], distance);
            s10[e] = s10[e] + other;
        }
    }
    __shared__ float shared9[512];
    __shared__ float shared10[512];
    if (lane % 4 == 0) {
        #pragma unroll
        for (int e = 0; e < 8; e++) { shared9[lane / 4 * 64 + threadIdx.x * 8 + e] = s9[e]; }
        #pragma unroll
        for (int e = 0; e < 8; e++) { shared10[lane / 4 * 64 + threadIdx.x * 8 + e] = s10[e]; }
    }
    __syncthreads();
    for (int c = lane * 8 + threadIdx.x; c < 64; c += 256) {
        float several9[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several9[g] = shared9[g * 64 + c]; }
        float t9 = several9[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { t9 = t9 + several9[g]; }
        shared9[c] = t9;
        float several10[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several10[g] = shared10[g * 64 + c]; }
        float t10 = several10[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { t10 = t10 + several10[g]; }
        shared10[c] = t10;
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < 8; e++) { s9[e] = shared9[threadIdx.x * 8 + e]; }
    #pragma unroll
    for (int e = 0; e < 8; e++) { s10[e] = shared10[threadIdx.x * 8 + e]; }
    unsigned short v11[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) v11[e] = narrow_bfloat16(s9[e]);
    unsigned short v12[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) v12[e] = narrow_bfloat16(s10[e]);
    if (live && lane == 0 && blockIdx.y == 0) {
        Pack<unsigned short, 8> y4;
        #pragma unroll
        for (int e = 0; e < 8; e++) y4.at[e] = v11[e];
        if (aligned) store_pack(y4, out0 + o4);
        else store_elements(y4, out0 + o4, (Index)1, 8);
        Pack<unsigned short, 8> y5;
        #pragma unroll
        for (int e = 0; e < 8; e++) y5.at[e] = v12[e];
        if (aligned) store_pack(y5, out1 + o5);
        else store_elements(y5, out1 + o5, (Index)1, 8);
    }
}
