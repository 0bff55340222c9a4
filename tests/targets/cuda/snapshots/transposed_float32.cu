// transposed over (4096, 4096), scratch ()
// grid (4096, 1, 1) block (256, 1, 1) cluster (1, 1, 1)

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

__device__ __forceinline__ int divide(int n, long long magic) {
    return (int)((__umulhi((unsigned int)n, (unsigned int)magic) + (unsigned int)n) >> (int)(magic >> 32));
}
__device__ __forceinline__ long long divide(long long n, long long divisor) { return n / divisor; }

typedef int Index;

struct Sizes { long long along, inner, divisors[2], counts[2], steps[2][2]; };

extern "C" __global__ void __launch_bounds__(256) kernel_transposed(const float* in0, float* out0, long long* error, const Sizes sizes) {
    Index number = blockIdx.x;
    const Index n1 = divide(number, sizes.divisors[1]);
    const Index c1 = number - n1 * (Index)sizes.counts[1];
    number = n1;
    const Index top = number * 64, left = c1 * 64;
    const Index o0 = top * (Index)sizes.steps[0][0] + left * (Index)sizes.steps[0][1];
    const Index o1 = top * (Index)sizes.steps[1][0] + left * (Index)sizes.steps[1][1];
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0) | reinterpret_cast<unsigned long long>(out0)) & 15) == 0;
    const bool whole = aligned && top + 64 <= (Index)sizes.along && left + 64 <= (Index)sizes.inner;
    const int within = threadIdx.x % 16 * 4, first = threadIdx.x / 16;
    Pack<float, 4> x0[4];
    __shared__ alignas(16) float tile0[4096];
    // Inputs along the tile axis: row `within`, column `other`; all others: row `other`, column `within`.
    if (whole) {
        #pragma unroll
        for (int u = 0; u < 4; u++) {
            const int other = first + u * 16;
            load_pack(x0[u], in0 + o0 + within * (Index)sizes.steps[0][0] + other * (Index)sizes.steps[0][1]);
        }
    } else {
        #pragma unroll
        for (int u = 0; u < 4; u++) {
            const int other = first + u * 16;
            const Index turned_count_left = left + other < (Index)sizes.inner ? (Index)sizes.along - top - within : 0;
            const int turned_count = turned_count_left < 0 ? 0 : turned_count_left < 4 ? (int)turned_count_left : 4;
            const Index count_left = top + other < (Index)sizes.along ? (Index)sizes.inner - left - within : 0;
            const int count = count_left < 0 ? 0 : count_left < 4 ? (int)count_left : 4;
            x0[u] = {};
            load_elements(x0[u], in0 + o0 + within * (Index)sizes.steps[0][0] + other * (Index)sizes.steps[0][1], (Index)1, turned_count);
        }
    }
    #pragma unroll
    for (int u = 0; u < 4; u++) {
        const int other = first + u * 16;
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            tile0[(within + e) * 64 + ((other / 4 ^ (within + e) / 4 & 15) * 4) + other % 4] = x0[u].at[e];
        }
    }
    __syncthreads();
    #pragma unroll
    for (int u = 0; u < 4; u++) {
        const int other = first + u * 16;
        const Index count_left = top + other < (Index)sizes.along ? (Index)sizes.inner - left - within : 0;
        const int count = count_left < 0 ? 0 : count_left < 4 ? (int)count_left : 4;
        load_pack(x0[u], tile0 + other * 64 + (within / 4 ^ other / 4 & 15) * 4);
        Pack<float, 4> y1;
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const float v0 = x0[u].at[e];
            y1.at[e] = v0;
        }
        if (whole) {
            store_pack(y1, out0 + o1 + other * (Index)sizes.steps[1][0] + within);
        } else {
            store_elements(y1, out0 + o1 + other * (Index)sizes.steps[1][0] + within, (Index)1, count);
        }
    }
}
