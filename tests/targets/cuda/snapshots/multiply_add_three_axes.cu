// multiply_add over (3, 5, 48), scratch ()
// grid (2, 1, 1) block (128, 1, 1) cluster (1, 1, 1)

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

struct Sizes { long long points, divisors[3], extents[3], inner[4], steps[4][3]; };

extern "C" __global__ void __launch_bounds__(128) kernel_multiply_add(const float* in0, const float* in1, const float* in2, float* out0, long long* error, const Sizes sizes) {
    const Index first = blockIdx.x * (Index)128 + threadIdx.x;
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0) | reinterpret_cast<unsigned long long>(out0)) & 15) == 0;
    const bool whole = aligned && (first + 0 + 1) * 4 <= (Index)sizes.points;
    Index o0[1];
    Index o1[1];
    Index o2[1];
    Index o3[1];
    int count[1];
    #pragma unroll
    for (int u = 0; u < 1; u++) {
        const Index i = first + u * 128;
        const Index n2 = divide(i, sizes.divisors[2]);
        const Index c2 = i - n2 * (Index)sizes.extents[2];
        const Index n1 = divide(n2, sizes.divisors[1]);
        const Index c1 = n2 - n1 * (Index)sizes.extents[1];
        o0[u] = n1 * (Index)sizes.steps[0][0] + c1 * (Index)sizes.steps[0][1] + c2 * (Index)sizes.steps[0][2];
        o1[u] = n1 * (Index)sizes.steps[1][0] + c1 * (Index)sizes.steps[1][1];
        o2[u] = n1 * (Index)sizes.steps[2][0] + c1 * (Index)sizes.steps[2][1] + c2 * (Index)sizes.steps[2][2];
        o3[u] = n1 * (Index)sizes.steps[3][0] + c1 * (Index)sizes.steps[3][1] + c2 * (Index)sizes.steps[3][2];
        const Index left = (Index)sizes.points - i * 4;
        count[u] = left < 0 ? 0 : left < 4 ? (int)left : 4;
    }
    Pack<float, 4> x0[1];
    Pack<float, 1> x1[1];
    Pack<float, 4> x2[1];
    if (whole) {
    #pragma unroll
    for (int u = 0; u < 1; u++) {
        load_pack(x0[u], in0 + o0[u]);
        x1[u].at[0] = in1[o1[u]];
        load_elements(x2[u], in2 + o2[u], (Index)sizes.inner[2], 4);
    }
    } else {
    #pragma unroll
    for (int u = 0; u < 1; u++) {
        x0[u] = {};
        load_elements(x0[u], in0 + o0[u], (Index)1, count[u]);
        x1[u].at[0] = count[u] > 0 ? in1[o1[u]] : (float)0;
        x2[u] = {};
        load_elements(x2[u], in2 + o2[u], (Index)sizes.inner[2], count[u]);
    }
    }
    #pragma unroll
    for (int u = 0; u < 1; u++) {
        Pack<float, 4> y3;
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const float v3 = x2[u].at[e];
            const float v1 = x1[u].at[0];
            const float v0 = x0[u].at[e];
            const float v2 = v0 * v1;
            const float v4 = v2 + v3;
            y3.at[e] = v4;
        }
        if (whole) {
            store_pack(y3, out0 + o3[u]);
        } else {
            store_elements(y3, out0 + o3[u], (Index)1, count[u]);
        }
    }
}
