// sum over (1, 268435456), scratch (1580,)
// grid (1, 395, 1) block (512, 1, 1) cluster (1, 1, 1)

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

template <typename T, int N, typename Index>
__device__ __forceinline__ void load_elements(Pack<T, N>& pack, const T* from, Index step, int count) {
    #pragma unroll
    for (int e = 0; e < N; e++) {
        if (e < count) pack.at[e] = from[e * step];
    }
}

typedef int Index;

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[2], along[2], steps[2][1]; };

extern "C" __global__ void __launch_bounds__(512, 3) kernel_sum(const float* in0, float* out0, float* part1, long long* error, const Sizes sizes) {
    const int lane = threadIdx.x;
    const Index number = blockIdx.x * (Index)1 + threadIdx.y;
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
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0)) & 15) == 0;
    float s1[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = 0.0f; }
    for (Index base = begin; base < end; base += 2048) {
        Pack<float, 4> x0[4];
        if (aligned) {
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const Index q = base + n * 512;
            x0[n] = {};
            if (q < end) load_pack(x0[n], in0 + o0 + q * (Index)sizes.along[0]);
        }
        } else {
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const Index q = base + n * 512;
            x0[n] = {};
            if (q < end) load_elements(x0[n], in0 + o0 + q * (Index)sizes.along[0], (Index)1, 4);
        }
        }
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const Index q = base + n * 512;
            if (q >= end) continue;
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float v0 = x0[n].at[e];
                s1[e] = s1[e] + v0;
            }
        }
    }
    #pragma unroll
    for (int half = 2; half > 0; half >>= 1) {
        #pragma unroll
        for (int e = 0; e < half; e++) s1[e] = s1[e] + s1[e + half];
    }
    #pragma unroll
    for (int distance = 16; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s1[e], distance);
            s1[e] = s1[e] + other;
        }
    }
    __shared__ float shared1[16];
    if (lane % 32 == 0) { shared1[lane / 32] = s1[0]; }
    __syncthreads();
    s1[0] = shared1[lane % 16];
    #pragma unroll
    for (int distance = 8; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s1[e], distance);
            s1[e] = s1[e] + other;
        }
    }
    if (live && lane == 0) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const long long index = (long long)i * sizes.parts + (long long)blockIdx.y;
            part1[index] = s1[e];
        }
    }
}

// grid (1, 1, 1) block (512, 1, 1) cluster (1, 1, 1)

template <typename T> struct Carrier { typedef int type; };
template <> struct Carrier<unsigned int> { typedef unsigned int type; };
template <> struct Carrier<long long> { typedef long long type; };
template <> struct Carrier<unsigned long long> { typedef unsigned long long type; };
template <> struct Carrier<float> { typedef float type; };
template <> struct Carrier<double> { typedef double type; };
template <typename T> __device__ __forceinline__ T shuffle(T value, int distance) {
    return T(__shfl_xor_sync(0xffffffffu, (typename Carrier<T>::type)value, distance));
}

typedef int Index;

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[2], along[2], steps[2][1]; };

extern "C" __global__ void __launch_bounds__(512, 3) kernel_sum(const float* in0, float* out0, float* part1, long long* error, const Sizes sizes) {
    const int lane = threadIdx.x;
    const Index number = blockIdx.x * (Index)1 + threadIdx.y;
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
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0)) & 15) == 0;
    float s1[1];
    #pragma unroll
    for (int e = 0; e < 1; e++) { s1[e] = 0.0f; }
    #pragma unroll 4
    for (long long part = lane; part < sizes.parts; part += 512) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const long long index = (long long)i * sizes.parts + part;
            s1[e] = s1[e] + part1[index];
        }
    }
    #pragma unroll
    for (int distance = 16; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s1[e], distance);
            s1[e] = s1[e] + other;
        }
    }
    __shared__ float shared1[16];
    if (lane % 32 == 0) { shared1[lane / 32] = s1[0]; }
    __syncthreads();
    s1[0] = shared1[lane % 16];
    #pragma unroll
    for (int distance = 8; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s1[e], distance);
            s1[e] = s1[e] + other;
        }
    }
    if (live && lane == 0 && blockIdx.y == 0) {
        out0[o1] = s1[0];
    }
}
