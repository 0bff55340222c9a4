// argmax over (1000, 64), scratch (1024, 2048)
// grid (1, 4, 1) block (16, 16, 1) cluster (1, 1, 1)

template <typename T> struct Carrier { typedef int type; };
template <> struct Carrier<unsigned int> { typedef unsigned int type; };
template <> struct Carrier<long long> { typedef long long type; };
template <> struct Carrier<unsigned long long> { typedef unsigned long long type; };
template <> struct Carrier<float> { typedef float type; };
template <> struct Carrier<double> { typedef double type; };
template <typename T> __device__ __forceinline__ T shuffle(T value, int distance) {
    return T(__shfl_xor_sync(0xffffffffu, (typename Carrier<T>::type)value, distance));
}

template <typename T> __device__ __forceinline__ bool replaces(T x, long long i, T best, long long at, bool largest) {
    if (i < 0 || at < 0) return at < 0 && i >= 0;
    const bool x_is_nan = x != x, best_is_nan = best != best;
    if (x_is_nan != best_is_nan) return x_is_nan;
    if (x_is_nan || x == best) return i < at;
    return largest ? x > best : x < best;
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

extern "C" __global__ void __launch_bounds__(256, 4) kernel_argmax(const float* in0, long long* out0, float* part1, long long* place1, long long* error, const Sizes sizes) {
    const int lane = threadIdx.y;
    const Index number = blockIdx.x * (Index)16 + threadIdx.x;
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
    float s1[4]; long long at1[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = (-__int_as_float(0x7f800000)); at1[e] = -1; }
    for (Index base = begin; base < end; base += 128) {
        Pack<float, 4> x0[8];
        if (aligned) {
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            const Index q = base + n * 16;
            x0[n] = {};
            if (q < end) load_pack(x0[n], in0 + o0 + q * (Index)sizes.along[0]);
        }
        } else {
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            const Index q = base + n * 16;
            x0[n] = {};
            if (q < end) load_elements(x0[n], in0 + o0 + q * (Index)sizes.along[0], (Index)1, 4);
        }
        }
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            const Index q = base + n * 16;
            if (q >= end) continue;
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float v0 = x0[n].at[e];
                if (replaces<float>(v0, (long long)q, s1[e], at1[e], true)) { s1[e] = v0; at1[e] = (long long)q; }
            }
        }
    }
    #pragma unroll
    for (int distance = 16; distance >= 16; distance >>= 1) {
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const float other = shuffle<float>(s1[e], distance);
            const long long place = shuffle<long long>(at1[e], distance);
            if (replaces<float>(other, place, s1[e], at1[e], true)) { s1[e] = other; at1[e] = place; }
        }
    }
    __shared__ float shared1[512];
    __shared__ long long shared_at1[512];
    if (lane % 2 == 0) {
        #pragma unroll
        for (int e = 0; e < 4; e++) { shared1[lane / 2 * 64 + threadIdx.x * 4 + e] = s1[e]; shared_at1[lane / 2 * 64 + threadIdx.x * 4 + e] = at1[e]; }
    }
    __syncthreads();
    for (int c = lane * 16 + threadIdx.x; c < 64; c += 256) {
        float several1[8]; long long places1[8];
        #pragma unroll
        for (int g = 0; g < 8; g++) { several1[g] = shared1[g * 64 + c]; places1[g] = shared_at1[g * 64 + c]; }
        float t1 = several1[0]; long long u1 = places1[0];
        #pragma unroll
        for (int g = 1; g < 8; g++) { if (replaces<float>(several1[g], places1[g], t1, u1, true)) { t1 = several1[g]; u1 = places1[g]; } }
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

// grid (1, 1, 1) block (64, 4, 1) cluster (1, 1, 1)

template <typename T> __device__ __forceinline__ bool replaces(T x, long long i, T best, long long at, bool largest) {
    if (i < 0 || at < 0) return at < 0 && i >= 0;
    const bool x_is_nan = x != x, best_is_nan = best != best;
    if (x_is_nan != best_is_nan) return x_is_nan;
    if (x_is_nan || x == best) return i < at;
    return largest ? x > best : x < best;
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

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[2], along[2], steps[2][1]; };

extern "C" __global__ void __launch_bounds__(256) kernel_argmax(const float* in0, long long* out0, float* part1, long long* place1, long long* error, const Sizes sizes) {
    const int lane = threadIdx.y;
    const Index number = blockIdx.x * (Index)64 + threadIdx.x;
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
    float s1[4]; long long at1[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = (-__int_as_float(0x7f800000)); at1[e] = -1; }
    #pragma unroll 4
    for (long long part = lane; part < sizes.parts; part += 4) {
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const long long index = (part * sizes.points + i) * 4 + e;
            if (replaces<float>(part1[index], place1[index], s1[e], at1[e], true)) { s1[e] = part1[index]; at1[e] = place1[index]; }
        }
    }
    __shared__ float shared1[1024];
    __shared__ long long shared_at1[1024];
    {
        #pragma unroll
        for (int e = 0; e < 4; e++) { shared1[lane / 1 * 256 + threadIdx.x * 4 + e] = s1[e]; shared_at1[lane / 1 * 256 + threadIdx.x * 4 + e] = at1[e]; }
    }
    __syncthreads();
    for (int c = lane * 64 + threadIdx.x; c < 256; c += 256) {
        float several1[4]; long long places1[4];
        #pragma unroll
        for (int g = 0; g < 4; g++) { several1[g] = shared1[g * 256 + c]; places1[g] = shared_at1[g * 256 + c]; }
        float t1 = several1[0]; long long u1 = places1[0];
        #pragma unroll
        for (int g = 1; g < 4; g++) { if (replaces<float>(several1[g], places1[g], t1, u1, true)) { t1 = several1[g]; u1 = places1[g]; } }
        shared1[c] = t1; shared_at1[c] = u1;
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < 4; e++) { s1[e] = shared1[threadIdx.x * 4 + e]; at1[e] = shared_at1[threadIdx.x * 4 + e]; }
    if (live && lane == 0 && blockIdx.y == 0) {
        Pack<long long, 4> y1;
        #pragma unroll
        for (int e = 0; e < 4; e++) y1.at[e] = at1[e];
        if (aligned) store_pack(y1, out0 + o1);
        else store_elements(y1, out0 + o1, (Index)1, 4);
    }
}
