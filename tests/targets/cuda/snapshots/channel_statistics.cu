// channel_statistics over (32, 64, 196), scratch ()
// grid (64, 1, 1) block (512, 1, 1) cluster (1, 1, 1)

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

__device__ __forceinline__ int divide(int n, long long magic) {
    return (int)((__umulhi((unsigned int)n, (unsigned int)magic) + (unsigned int)n) >> (int)(magic >> 32));
}
__device__ __forceinline__ long long divide(long long n, long long divisor) { return n / divisor; }

typedef int Index;

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[3], along[3], slab_units, slab_divisor, from_slab[3], steps[3][1]; };

extern "C" __global__ void __launch_bounds__(512, 3) kernel_channel_statistics(const float* in0, float* out0, float* out1, long long* error, const Sizes sizes) {
    const int lane = threadIdx.x;
    const Index number = blockIdx.x * (Index)1 + threadIdx.y;
    const bool live = number < (Index)sizes.points;
    const Index i = live ? number : (Index)sizes.points - 1;  // threads beyond the last row repeat it
    const Index begin = lane, end = (Index)sizes.units;
    Index o0, o1, o2;
    {
        o0 = i * (Index)sizes.steps[0][0];
        o1 = i * (Index)sizes.steps[1][0];
        o2 = i * (Index)sizes.steps[2][0];
    }
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0)) & 15) == 0;
    float s1[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = 0.0f; }
    float s3[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { s3[e] = 0.0f; }
    for (Index base = begin; base < end; base += 2048) {
        Pack<float, 4> x0[4];
        if (aligned) {
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const Index q = base + n * 512;
            const Index slab = divide(q, sizes.slab_divisor), step = q - slab * (Index)sizes.slab_units;
            x0[n] = {};
            if (q < end) load_pack(x0[n], in0 + o0 + step * (Index)sizes.along[0] + slab * (Index)sizes.from_slab[0]);
        }
        } else {
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const Index q = base + n * 512;
            const Index slab = divide(q, sizes.slab_divisor), step = q - slab * (Index)sizes.slab_units;
            x0[n] = {};
            if (q < end) load_elements(x0[n], in0 + o0 + step * (Index)sizes.along[0] + slab * (Index)sizes.from_slab[0], (Index)1, 4);
        }
        }
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const Index q = base + n * 512;
            const Index slab = divide(q, sizes.slab_divisor), step = q - slab * (Index)sizes.slab_units;
            if (q >= end) continue;
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float v0 = x0[n].at[e];
                s1[e] = s1[e] + v0;
                const float v2 = v0 * v0;
                s3[e] = s3[e] + v2;
            }
        }
    }
    #pragma unroll
    for (int half = 2; half > 0; half >>= 1) {
        #pragma unroll
        for (int e = 0; e < half; e++) s1[e] = s1[e] + s1[e + half];
    }
    #pragma unroll
    for (int half = 2; half > 0; half >>= 1) {
        #pragma unroll
        for (int e = 0; e < half; e++) s3[e] = s3[e] + s3[e + half];
    }
    #pragma unroll
    for (int distance = 16; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s1[e], distance);
            s1[e] = s1[e] + other;
        }
    }
    #pragma unroll
    for (int distance = 16; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s3[e], distance);
            s3[e] = s3[e] + other;
        }
    }
    __shared__ float shared1[16];
    if (lane % 32 == 0) { shared1[lane / 32] = s1[0]; }
    __shared__ float shared3[16];
    if (lane % 32 == 0) { shared3[lane / 32] = s3[0]; }
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
    s3[0] = shared3[lane % 16];
    #pragma unroll
    for (int distance = 8; distance >= 1; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 1; e++) {
            const float other = shuffle<float>(s3[e], distance);
            s3[e] = s3[e] + other;
        }
    }
    if (live && lane == 0) {
        out0[o1] = s1[0];
        out1[o2] = s3[0];
    }
}
