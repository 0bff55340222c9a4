"""CUDA C++ device functions that move data: packs of neighbouring elements, division of indices by run-time extents."""

from __future__ import annotations

# A pack of N elements is one or several words of at most 16 bytes; `at` is indexed by constants alone, so it is registers.
_PACKS = {
    "Pack": """
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
};""",
    # All words of a pack at an address that is a multiple of their size.
    "load_pack": """
template <typename T, int N> __device__ __forceinline__ void load_pack(Pack<T, N>& pack, const T* from) {
    typedef typename Pack<T, N>::Word Word;
    #pragma unroll
    for (int w = 0; w < Pack<T, N>::bytes / Pack<T, N>::word_bytes; w++) {
        reinterpret_cast<Word*>(pack.at)[w] = reinterpret_cast<const Word*>(from)[w];
    }
}""",
    "store_pack": """
template <typename T, int N> __device__ __forceinline__ void store_pack(const Pack<T, N>& pack, T* to) {
    typedef typename Pack<T, N>::Word Word;
    #pragma unroll
    for (int w = 0; w < Pack<T, N>::bytes / Pack<T, N>::word_bytes; w++) {
        reinterpret_cast<Word*>(to)[w] = reinterpret_cast<const Word*>(pack.at)[w];
    }
}""",
    # Hides from the compiler what a pack holds, so that values computed of it are computed again rather than kept.
    "forget": """
template <typename T, int N> __device__ __forceinline__ void forget(Pack<T, N>& pack) {
    if constexpr (Pack<T, N>::bytes % 4 == 0) {
        #pragma unroll
        for (int w = 0; w < Pack<T, N>::bytes / 4; w++) {
            asm volatile("" : "+r"(reinterpret_cast<unsigned int*>(pack.at)[w]));
        }
    }
}""",
    # The same offset, of which the compiler does not know that it has read there before.
    "read_again": """
__device__ __forceinline__ int read_again(int offset) {
    asm volatile("" : "+r"(offset));
    return offset;
}
__device__ __forceinline__ long long read_again(long long offset) {
    asm volatile("" : "+l"(offset));
    return offset;
}""",
    # Elements apart from each other, or at an address that no pack can have; those from `count` on are left as they are.
    "load_elements": """
template <typename T, int N, typename Index>
__device__ __forceinline__ void load_elements(Pack<T, N>& pack, const T* from, Index step, int count) {
    #pragma unroll
    for (int e = 0; e < N; e++) {
        if (e < count) pack.at[e] = from[e * step];
    }
}""",
    "store_elements": """
template <typename T, int N, typename Index>
__device__ __forceinline__ void store_elements(const Pack<T, N>& pack, T* to, Index step, int count) {
    #pragma unroll
    for (int e = 0; e < N; e++) {
        if (e < count) to[e * step] = pack.at[e];
    }
}""",
}

# Element e of a pack of bfloat16, from the word that holds it: one instruction for either half.
_HALVES = {
    "widen_at_bfloat16": """
template <int N> __device__ __forceinline__ float widen_at_bfloat16(const Pack<unsigned short, N>& pack, int e) {
    if constexpr (N % 2) return widen_bfloat16(pack.at[e]);
    const unsigned int word = reinterpret_cast<const unsigned int*>(pack.at)[e / 2];
    return __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16);
}""",
}

# Two floats rounded to a pair of halves, the first in the low bits.
_PAIRS = {
    "narrow_pair_float16": """
__device__ __forceinline__ unsigned int narrow_pair_float16(float low, float high) {
    unsigned int bits;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
#else
    asm("{.reg .f16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}" : "=r"(bits) : "f"(low), "f"(high));
#endif
    return bits;
}""",
    "narrow_pair_bfloat16": """
__device__ __forceinline__ unsigned int narrow_pair_bfloat16(float low, float high) {
#if __CUDA_ARCH__ >= 800
    unsigned int bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#else
    return (unsigned int)narrow_bfloat16(high) << 16 | narrow_bfloat16(low);
#endif
}""",
    "narrow_pack_float16": """
template <int N> __device__ __forceinline__ void narrow_pack_float16(Pack<unsigned short, N>& pack, const float* values) {
    #pragma unroll
    for (int e = 0; e + 1 < N; e += 2) {
        const unsigned int pair = narrow_pair_float16(values[e], values[e + 1]);
        pack.at[e] = (unsigned short)pair;
        pack.at[e + 1] = (unsigned short)(pair >> 16);
    }
    if (N % 2) pack.at[N - 1] = narrow_float16(values[N - 1]);
}""",
    "narrow_pack_bfloat16": """
template <int N> __device__ __forceinline__ void narrow_pack_bfloat16(Pack<unsigned short, N>& pack, const float* values) {
    #pragma unroll
    for (int e = 0; e + 1 < N; e += 2) {
        const unsigned int pair = narrow_pair_bfloat16(values[e], values[e + 1]);
        pack.at[e] = (unsigned short)pair;
        pack.at[e + 1] = (unsigned short)(pair >> 16);
    }
    if (N % 2) pack.at[N - 1] = narrow_bfloat16(values[N - 1]);
}""",
}

_INDICES = {
    # n / d for 0 <= n < 2^31 by a multiplication (Granlund & Montgomery 1994): `magic` holds the multiplier in its low half,
    # the shift in its high half (`index_plan.py: magic`).
    "divide": """
__device__ __forceinline__ int divide(int n, long long magic) {
    return (int)((__umulhi((unsigned int)n, (unsigned int)magic) + (unsigned int)n) >> (int)(magic >> 32));
}
__device__ __forceinline__ long long divide(long long n, long long divisor) { return n / divisor; }""",
}

# Blocks of a cluster: all of them wait, with what they wrote to shared memory visible to the others; reading another's.
_CLUSTERS = {
    "cluster_barrier": """
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\\n\\tbarrier.cluster.wait.aligned;" ::: "memory");
}""",
    "address_in_block": """
__device__ __forceinline__ unsigned long long address_in_block(const void* shared, unsigned int block) {
    unsigned long long address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(shared), "r"(block));
    return address;
}""",
    "load_from_block": """
template <typename T> __device__ __forceinline__ T load_from_block(const T* shared, unsigned int block) {
    return *reinterpret_cast<const T*>(address_in_block(shared, block));
}""",
}

# Blocks that stay: each thread has packs copied to a place of its own in shared memory, long before it takes them.
_WALKS = {
    "copy_ahead": """
template <typename T, int N> __device__ __forceinline__ void copy_ahead(Pack<T, N>& to, const T* from) {
    constexpr int word = Pack<T, N>::word_bytes;
    #pragma unroll
    for (int w = 0; w < Pack<T, N>::bytes / word; w++) {
        const unsigned int place = (unsigned int)__cvta_generic_to_shared(reinterpret_cast<char*>(to.at) + w * word);
        const void* source = reinterpret_cast<const char*>(from) + w * word;
        if constexpr (word == 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place), "l"(source) : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(place), "l"(source), "n"(word) : "memory");
        }
    }
}""",
    "copies_asked": """
__device__ __forceinline__ void copies_asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }""",
    "copies_done": """
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }""",
    # What all blocks wrote before is seen by all of them behind it: release and acquire by one thread, barriers around it.
    "wait_for_blocks": """
__device__ __forceinline__ void wait_for_blocks(unsigned int* arrived, unsigned int blocks) {
    __syncthreads();
    if (threadIdx.x + threadIdx.y == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(arrived) : "memory");
        unsigned int count;
        while (true) {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
            if (count >= blocks) break;
            __nanosleep(32);
        }
    }
    __syncthreads();
}""",
}

MEMORY_FUNCTIONS: dict[str, str] = {
    name: text.strip() for name, text in (_PACKS | _HALVES | _PAIRS | _INDICES | _CLUSTERS | _WALKS).items()
}
