// What CUDA C++ knows without any header, for g++: translate.py puts it before a kernel's text.
#include "machine.h"

// A mathematical function of the C library by its builtin: no header declares it, so that CUDA's overloads can.
namespace cuda_text {

typedef unsigned long size_t;
typedef unsigned long uintptr_t;

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __constant__ static
#define __restrict__ __restrict
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __nv_pure__
#define __assume(x) ((x) ? (void)0 : emulated_trap("an assumption that does not hold"))
#define __builtin_assume(x) __assume(x)
#define __CUDACC_RTC__ 1
#define __CUDACC__ 1

// ----------------------------------------------------------------------------------------------------- vector types

#define EMULATED_VECTOR(T, NAME, A2, A4)                                                                                    \
    struct NAME##1 { T x; };                                                                                              \
    struct __attribute__((aligned(A2))) NAME##2 { T x, y; };                                                              \
    struct NAME##3 { T x, y, z; };                                                                                        \
    struct __attribute__((aligned(A4))) NAME##4 { T x, y, z, w; };                                                        \
    inline NAME##1 make_##NAME##1(T x) { return {x}; }                                                                    \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                                            \
    inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                                                    \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATED_VECTOR(signed char, char, 2, 4)
EMULATED_VECTOR(unsigned char, uchar, 2, 4)
EMULATED_VECTOR(short, short, 4, 8)
EMULATED_VECTOR(unsigned short, ushort, 4, 8)
EMULATED_VECTOR(int, int, 8, 16)
EMULATED_VECTOR(unsigned int, uint, 8, 16)
EMULATED_VECTOR(long, long, 16, 16)
EMULATED_VECTOR(unsigned long, ulong, 16, 16)
EMULATED_VECTOR(long long, longlong, 16, 16)
EMULATED_VECTOR(unsigned long long, ulonglong, 16, 16)
EMULATED_VECTOR(float, float, 8, 16)
EMULATED_VECTOR(double, double, 16, 16)

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
};

#define threadIdx emulated_thread
#define blockIdx emulated_block
#define blockDim emulated_block_size
#define gridDim emulated_grid_size
#define warpSize 32

template <typename To, typename From> inline To emulated_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast between types of different size");
    To result;
    __builtin_memcpy(&result, &value, sizeof(To));
    return result;
}

// ------------------------------------------------------------------------------------------- barriers, warps, memory

#define __syncthreads() emulated_barrier(0, -1, __LINE__)
#define __syncthreads_count(x) emulated_barrier_reduce((x), 0, __LINE__)
#define __syncthreads_and(x) emulated_barrier_reduce((x), 1, __LINE__)
#define __syncthreads_or(x) emulated_barrier_reduce((x), 2, __LINE__)

inline void emulated_nothing(void**, unsigned int, const void*) {}
inline void __syncwarp(unsigned int mask = 0xffffffffu) { emulated_warp(mask, emulated_nothing, (void*)1, nullptr, "__syncwarp"); }
inline void __threadfence() { machine::progress(); }
inline void __threadfence_block() { machine::progress(); }
inline void __threadfence_system() { machine::progress(); }
inline void __nanosleep(unsigned int) { machine::poll(); }
inline unsigned int __activemask() { return emulated_active(); }
[[noreturn]] inline void __trap() { emulated_trap("__trap()"); }
inline long long clock64() { return 0; }

inline unsigned int emulated_lane() { return machine::thread_in_block() % 32; }

template <typename T> inline T emulated_from(unsigned int mask, T value, int source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    unsigned long long word = 0;
    __builtin_memcpy(&word, &value, sizeof(T));
    word = emulated_shuffle(mask, word, source);
    __builtin_memcpy(&value, &word, sizeof(T));
    return value;
}
#define EMULATED_SHUFFLES(T)                                                                                              \
    inline T __shfl_sync(unsigned int mask, T value, int source, int width = 32) {                                        \
        const int lane = emulated_lane();                                                                                 \
        return emulated_from(mask, value, (lane & -width) + (source & (width - 1)));                                      \
    }                                                                                                                     \
    inline T __shfl_xor_sync(unsigned int mask, T value, int bits, int width = 32) {                                      \
        const int lane = emulated_lane(), source = lane ^ bits;                                                           \
        return emulated_from(mask, value, source >= (lane & -width) + width ? lane : source);                             \
    }                                                                                                                     \
    inline T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {                             \
        const int lane = emulated_lane(), source = lane - (int)delta;                                                     \
        return emulated_from(mask, value, source < (lane & -width) ? lane : source);                                      \
    }                                                                                                                     \
    inline T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {                           \
        const int lane = emulated_lane(), source = lane + (int)delta;                                                     \
        return emulated_from(mask, value, source >= (lane & -width) + width ? lane : source);                             \
    }
EMULATED_SHUFFLES(int)
EMULATED_SHUFFLES(unsigned int)
EMULATED_SHUFFLES(long)
EMULATED_SHUFFLES(unsigned long)
EMULATED_SHUFFLES(long long)
EMULATED_SHUFFLES(unsigned long long)
EMULATED_SHUFFLES(float)
EMULATED_SHUFFLES(double)

struct EmulatedVote {
    bool given;
    unsigned int ballot;
};
inline void emulated_vote(void** lanes, unsigned int count, const void*) {
    unsigned int ballot = 0;
    for (unsigned int i = 0; i < count; i++) ballot |= lanes[i] && ((EmulatedVote*)lanes[i])->given ? 1u << i : 0;
    for (unsigned int i = 0; i < count; i++) {
        if (lanes[i]) ((EmulatedVote*)lanes[i])->ballot = ballot;
    }
}
inline unsigned int __ballot_sync(unsigned int mask, int given) {
    EmulatedVote mine{given != 0, 0};
    emulated_warp(mask, emulated_vote, &mine, nullptr, "a vote");
    return mine.ballot;
}
inline int __any_sync(unsigned int mask, int given) { return __ballot_sync(mask, given) != 0; }
inline int __all_sync(unsigned int mask, int given) { return __ballot_sync(mask, !given) == 0; }

struct EmulatedMatch {
    unsigned long long value;
    unsigned int same, reduced;
    int kind;
};
inline void emulated_match(void** lanes, unsigned int count, const void*) {
    for (unsigned int i = 0; i < count; i++) {
        EmulatedMatch* mine = (EmulatedMatch*)lanes[i];
        for (unsigned int j = 0; mine && j < count; j++) {
            if (lanes[j] && ((EmulatedMatch*)lanes[j])->value == mine->value) mine->same |= 1u << j;
        }
    }
}
template <typename T> inline unsigned int __match_any_sync(unsigned int mask, T value) {
    EmulatedMatch mine{};
    __builtin_memcpy(&mine.value, &value, sizeof(T));
    emulated_warp(mask, emulated_match, &mine, nullptr, "__match_any_sync");
    return mine.same;
}
template <typename T> inline unsigned int __match_all_sync(unsigned int mask, T value, int* all) {
    const unsigned int same = __match_any_sync(mask, value), here = __ballot_sync(mask, 1);
    *all = same == here;
    return *all ? here : 0;
}
inline void emulated_reduce(void** lanes, unsigned int count, const void*) {
    unsigned int total = 0;
    bool first = true;
    for (unsigned int i = 0; i < count; i++) {
        EmulatedMatch* mine = (EmulatedMatch*)lanes[i];
        if (!mine) continue;
        const unsigned int v = (unsigned int)mine->value;
        if (first) total = v;
        else switch (mine->kind) {
            case 0: total += v; break;
            case 1: total = v < total ? v : total; break;
            case 2: total = v > total ? v : total; break;
            case 3: total = (int)v < (int)total ? v : total; break;
            case 4: total = (int)v > (int)total ? v : total; break;
            case 5: total &= v; break;
            case 6: total |= v; break;
            default: total ^= v;
        }
        first = false;
    }
    for (unsigned int i = 0; i < count; i++) {
        if (lanes[i]) ((EmulatedMatch*)lanes[i])->reduced = total;
    }
}
inline unsigned int emulated_reduced(unsigned int mask, unsigned int value, int kind) {
    EmulatedMatch mine{value, 0, 0, kind};
    emulated_warp(mask, emulated_reduce, &mine, nullptr, "a reduction of a warp");
    return mine.reduced;
}
inline unsigned int __reduce_add_sync(unsigned int m, unsigned int v) { return emulated_reduced(m, v, 0); }
inline unsigned int __reduce_min_sync(unsigned int m, unsigned int v) { return emulated_reduced(m, v, 1); }
inline unsigned int __reduce_max_sync(unsigned int m, unsigned int v) { return emulated_reduced(m, v, 2); }
inline int __reduce_add_sync(unsigned int m, int v) { return emulated_reduced(m, v, 0); }
inline int __reduce_min_sync(unsigned int m, int v) { return emulated_reduced(m, v, 3); }
inline int __reduce_max_sync(unsigned int m, int v) { return emulated_reduced(m, v, 4); }
inline unsigned int __reduce_and_sync(unsigned int m, unsigned int v) { return emulated_reduced(m, v, 5); }
inline unsigned int __reduce_or_sync(unsigned int m, unsigned int v) { return emulated_reduced(m, v, 6); }
inline unsigned int __reduce_xor_sync(unsigned int m, unsigned int v) { return emulated_reduced(m, v, 7); }

template <typename T> inline T __ldg(const T* p) { return *p; }
template <typename T> inline T __ldca(const T* p) { return *p; }
template <typename T> inline T __ldcg(const T* p) { return *p; }
template <typename T> inline T __ldcs(const T* p) { return *p; }
template <typename T> inline T __ldlu(const T* p) { return *p; }
template <typename T> inline T __ldcv(const T* p) { return *p; }
template <typename T> inline void __stwb(T* p, T v) { *p = v; }
template <typename T> inline void __stcg(T* p, T v) { *p = v; }
template <typename T> inline void __stcs(T* p, T v) { *p = v; }
template <typename T> inline void __stwt(T* p, T v) { *p = v; }
inline size_t __cvta_generic_to_shared(const void* p) { return emulated_shared_address(p); }
inline size_t __cvta_generic_to_global(const void* p) { return (size_t)p; }
inline void* __cvta_shared_to_generic(size_t address) { return emulated_shared_pointer((unsigned int)address, 0); }

// --------------------------------------------------------------------------------------------------------- atomics

#define EMULATED_ATOMIC(NAME, T, EXPRESSION)                                                                              \
    inline T NAME(T* address, T given) {                                                                                  \
        const T old = *address;                                                                                           \
        *address = EXPRESSION;                                                                                            \
        machine::progress();                                                                                              \
        return old;                                                                                                       \
    }                                                                                                                     \
    inline T NAME##_block(T* address, T given) { return NAME(address, given); }                                           \
    inline T NAME##_system(T* address, T given) { return NAME(address, given); }
EMULATED_ATOMIC(atomicAdd, int, (int)((unsigned int)old + (unsigned int)given))
EMULATED_ATOMIC(atomicAdd, unsigned int, old + given)
EMULATED_ATOMIC(atomicAdd, unsigned long long, old + given)
EMULATED_ATOMIC(atomicAdd, float, old + given)
EMULATED_ATOMIC(atomicAdd, double, old + given)
EMULATED_ATOMIC(atomicSub, int, (int)((unsigned int)old - (unsigned int)given))
EMULATED_ATOMIC(atomicSub, unsigned int, old - given)
EMULATED_ATOMIC(atomicExch, int, given)
EMULATED_ATOMIC(atomicExch, unsigned int, given)
EMULATED_ATOMIC(atomicExch, unsigned long long, given)
EMULATED_ATOMIC(atomicExch, float, given)
EMULATED_ATOMIC(atomicInc, unsigned int, old >= given ? 0 : old + 1)
EMULATED_ATOMIC(atomicDec, unsigned int, old == 0 || old > given ? given : old - 1)
#define EMULATED_ATOMICS(T)                                                                                               \
    EMULATED_ATOMIC(atomicMin, T, given < old ? given : old)                                                              \
    EMULATED_ATOMIC(atomicMax, T, given > old ? given : old)                                                              \
    EMULATED_ATOMIC(atomicAnd, T, old & given)                                                                            \
    EMULATED_ATOMIC(atomicOr, T, old | given)                                                                             \
    EMULATED_ATOMIC(atomicXor, T, old ^ given)
EMULATED_ATOMICS(int)
EMULATED_ATOMICS(unsigned int)
EMULATED_ATOMICS(unsigned long long)
EMULATED_ATOMIC(atomicMin, long long, given < old ? given : old)
EMULATED_ATOMIC(atomicMax, long long, given > old ? given : old)
#define EMULATED_SWAP(T)                                                                                                  \
    inline T atomicCAS(T* address, T expected, T given) {                                                                 \
        const T old = *address;                                                                                           \
        if (old == expected) *address = given;                                                                            \
        machine::progress();                                                                                              \
        return old;                                                                                                       \
    }
EMULATED_SWAP(int)
EMULATED_SWAP(unsigned int)
EMULATED_SWAP(unsigned long long)
EMULATED_SWAP(unsigned short)

// ------------------------------------------------------------------------------------------------- bits and integers

inline unsigned int __float_as_uint(float x) { return emulated_bits<unsigned int>(x); }
inline int __float_as_int(float x) { return emulated_bits<int>(x); }
inline float __uint_as_float(unsigned int x) { return emulated_bits<float>(x); }
inline float __int_as_float(int x) { return emulated_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
inline int __double2hiint(double x) { return (int)(emulated_bits<unsigned long long>(x) >> 32); }
inline int __double2loint(double x) { return (int)emulated_bits<unsigned long long>(x); }
inline double __hiloint2double(int hi, int lo) {
    return emulated_bits<double>((unsigned long long)(unsigned int)hi << 32 | (unsigned int)lo);
}
inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned int)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned int __brev(unsigned int x) {
    unsigned int r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
    return r;
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned int)x) << 32 | __brev((unsigned int)(x >> 32));
}
inline unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned int)((unsigned long long)a * b >> 32); }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selector) {
    const unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned int result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned int s = selector >> 4 * i & 15;
        unsigned int byte = (unsigned int)(both >> 8 * (s & 7)) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}
inline unsigned int __funnelshift_l(unsigned int lo, unsigned int hi, unsigned int n) {
    return (unsigned int)((((unsigned long long)hi << 32 | lo) << (n & 31)) >> 32);
}
inline unsigned int __funnelshift_r(unsigned int lo, unsigned int hi, unsigned int n) {
    return (unsigned int)(((unsigned long long)hi << 32 | lo) >> (n & 31));
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
    return c;
}
#define EMULATED_MINMAX(A, B, T)                                                                                          \
    inline T min(A a, B b) { return (T)a < (T)b ? (T)a : (T)b; }                                                          \
    inline T max(A a, B b) { return (T)a > (T)b ? (T)a : (T)b; }
EMULATED_MINMAX(int, int, int)
EMULATED_MINMAX(unsigned int, unsigned int, unsigned int)
EMULATED_MINMAX(int, unsigned int, unsigned int)
EMULATED_MINMAX(unsigned int, int, unsigned int)
EMULATED_MINMAX(long, long, long)
EMULATED_MINMAX(unsigned long, unsigned long, unsigned long)
EMULATED_MINMAX(long long, long long, long long)
EMULATED_MINMAX(unsigned long long, unsigned long long, unsigned long long)
EMULATED_MINMAX(long long, unsigned long long, unsigned long long)
EMULATED_MINMAX(unsigned long long, long long, unsigned long long)
// Of zeros the positive one is the larger, as the device's instructions have it; g++ leaves that open.
inline double fmin(double x, double y) { return x == y ? __builtin_signbit(x) ? x : y : __builtin_fmin(x, y); }
inline double fmax(double x, double y) { return x == y ? __builtin_signbit(x) ? y : x : __builtin_fmax(x, y); }
inline float fminf(float x, float y) { return x == y ? __builtin_signbit(x) ? x : y : __builtin_fminf(x, y); }
inline float fmaxf(float x, float y) { return x == y ? __builtin_signbit(x) ? y : x : __builtin_fmaxf(x, y); }
inline float fmin(float x, float y) { return fminf(x, y); }
inline float fmax(float x, float y) { return fmaxf(x, y); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
inline int abs(int x) { return x < 0 ? (int)(0u - (unsigned int)x) : x; }
inline long long abs(long long x) { return x < 0 ? (long long)(0ull - (unsigned long long)x) : x; }
inline long long llabs(long long x) { return abs(x); }

// ------------------------------------------------------------------------------------------------------- mathematics

#define EMULATED_UNARY(NAME)                                                                                              \
    inline float NAME##f(float x) { return __builtin_##NAME##f(x); }                                                      \
    inline float NAME(float x) { return __builtin_##NAME##f(x); }                                                         \
    inline double NAME(double x) { return __builtin_##NAME(x); }
EMULATED_UNARY(exp) EMULATED_UNARY(exp2) EMULATED_UNARY(expm1) EMULATED_UNARY(log) EMULATED_UNARY(log2) EMULATED_UNARY(log10)
EMULATED_UNARY(log1p) EMULATED_UNARY(sqrt) EMULATED_UNARY(cbrt) EMULATED_UNARY(sin) EMULATED_UNARY(cos) EMULATED_UNARY(tan)
EMULATED_UNARY(asin) EMULATED_UNARY(acos) EMULATED_UNARY(atan) EMULATED_UNARY(sinh) EMULATED_UNARY(cosh) EMULATED_UNARY(tanh)
EMULATED_UNARY(asinh) EMULATED_UNARY(acosh) EMULATED_UNARY(atanh) EMULATED_UNARY(erf) EMULATED_UNARY(erfc)
EMULATED_UNARY(lgamma) EMULATED_UNARY(tgamma) EMULATED_UNARY(floor) EMULATED_UNARY(ceil) EMULATED_UNARY(trunc)
EMULATED_UNARY(round) EMULATED_UNARY(rint) EMULATED_UNARY(nearbyint) EMULATED_UNARY(fabs) EMULATED_UNARY(logb)
EMULATED_UNARY(j0) EMULATED_UNARY(j1) EMULATED_UNARY(y0) EMULATED_UNARY(y1) EMULATED_UNARY(exp10)
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
#define EMULATED_BINARY(NAME)                                                                                             \
    inline float NAME##f(float x, float y) { return __builtin_##NAME##f(x, y); }                                          \
    inline float NAME(float x, float y) { return __builtin_##NAME##f(x, y); }                                             \
    inline double NAME(double x, double y) { return __builtin_##NAME(x, y); }
EMULATED_BINARY(pow) EMULATED_BINARY(fmod) EMULATED_BINARY(atan2)
EMULATED_BINARY(copysign) EMULATED_BINARY(hypot) EMULATED_BINARY(nextafter) EMULATED_BINARY(fdim) EMULATED_BINARY(remainder)
inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float ldexpf(float x, int n) { return __builtin_ldexpf(x, n); }
inline float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
inline double ldexp(double x, int n) { return __builtin_ldexp(x, n); }
inline float scalbnf(float x, int n) { return __builtin_scalbnf(x, n); }
inline double scalbn(double x, int n) { return __builtin_scalbn(x, n); }
inline float frexpf(float x, int* n) { return __builtin_frexpf(x, n); }
inline float frexp(float x, int* n) { return __builtin_frexpf(x, n); }
inline double frexp(double x, int* n) { return __builtin_frexp(x, n); }
inline float modff(float x, float* whole) { return __builtin_modff(x, whole); }
inline double modf(double x, double* whole) { return __builtin_modf(x, whole); }
inline int ilogbf(float x) { return __builtin_ilogbf(x); }
inline int ilogb(double x) { return __builtin_ilogb(x); }
inline long long llrint(double x) { return __builtin_llrint(x); }
inline long long llrintf(float x) { return __builtin_llrintf(x); }
inline long lrint(double x) { return __builtin_lrint(x); }
inline long lrintf(float x) { return __builtin_lrintf(x); }
inline float rsqrtf(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline float rcbrtf(float x) { return (float)(1.0 / __builtin_cbrt((double)x)); }
inline double rcbrt(double x) { return 1.0 / __builtin_cbrt(x); }
inline void sincosf(float x, float* s, float* c) { *s = __builtin_sinf(x), *c = __builtin_cosf(x); }
inline void sincos(float x, float* s, float* c) { *s = __builtin_sinf(x), *c = __builtin_cosf(x); }
inline void sincos(double x, double* s, double* c) { *s = __builtin_sin(x), *c = __builtin_cos(x); }
extern "C" double emulated_erfinv(double x);
extern "C" double emulated_sinpi(double x);
extern "C" double emulated_cospi(double x);
inline double erfinv(double x) { return emulated_erfinv(x); }
inline float erfinvf(float x) { return (float)emulated_erfinv(x); }
inline float erfinv(float x) { return (float)emulated_erfinv(x); }
inline double normcdfinv(double x) { return 1.4142135623730951 * emulated_erfinv(2 * x - 1); }
inline float normcdfinvf(float x) { return (float)normcdfinv((double)x); }
inline double normcdf(double x) { return 0.5 * __builtin_erfc(-x * 0.7071067811865476); }
inline float normcdff(float x) { return (float)normcdf((double)x); }
inline double erfcx(double x) { return __builtin_exp(x * x) * __builtin_erfc(x); }
inline float erfcxf(float x) { return (float)erfcx((double)x); }
inline double sinpi(double x) { return emulated_sinpi(x); }
inline float sinpif(float x) { return (float)emulated_sinpi(x); }
inline double cospi(double x) { return emulated_cospi(x); }
inline float cospif(float x) { return (float)emulated_cospi(x); }
#define EMULATED_TEST(NAME, BUILTIN)                                                                                      \
    inline bool NAME(float x) { return BUILTIN(x) != 0; }                                                                 \
    inline bool NAME(double x) { return BUILTIN(x) != 0; }
EMULATED_TEST(isnan, __builtin_isnan)
EMULATED_TEST(isinf, __builtin_isinf)
EMULATED_TEST(isfinite, __builtin_isfinite)
EMULATED_TEST(signbit, __builtin_signbit)

// Functions that are fast and less exact on a device are exact here.
inline float __expf(float x) { return __builtin_expf(x); }
inline float __exp10f(float x) { return __builtin_powf(10.0f, x); }
inline float __logf(float x) { return __builtin_logf(x); }
inline float __log2f(float x) { return __builtin_log2f(x); }
inline float __log10f(float x) { return __builtin_log10f(x); }
inline float __sinf(float x) { return __builtin_sinf(x); }
inline float __cosf(float x) { return __builtin_cosf(x); }
inline float __tanf(float x) { return __builtin_tanf(x); }
inline float __tanhf(float x) { return __builtin_tanhf(x); }
inline float __powf(float x, float y) { return __builtin_powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __drcp_rn(double x) { return 1.0 / x; }
inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }

// Conversions saturate on a device, and NaN gives 0 (0x80...0 for 64 bits).
template <typename To, typename From> inline To emulated_to_integer(From x, From lowest, From beyond) {
    if (x != x) return sizeof(To) == 8 ? To(1ull << 63) : To(0);
    if (x >= beyond) return To(-1) < To(0) ? To((1ull << (8 * sizeof(To) - 1)) - 1) : To(~To(0));
    if (x <= lowest) return To(-1) < To(0) ? To(1ull << (8 * sizeof(To) - 1)) : To(0);
    return To(x);
}
#define EMULATED_CONVERSIONS(PREFIX, FROM, NAME, TO, LOWEST, BEYOND, F)                                                   \
    inline TO PREFIX##2##NAME##_rz(FROM x) { return emulated_to_integer<TO, FROM>(__builtin_trunc##F(x), LOWEST, BEYOND); } \
    inline TO PREFIX##2##NAME##_rn(FROM x) { return emulated_to_integer<TO, FROM>(__builtin_rint##F(x), LOWEST, BEYOND); } \
    inline TO PREFIX##2##NAME##_rd(FROM x) { return emulated_to_integer<TO, FROM>(__builtin_floor##F(x), LOWEST, BEYOND); } \
    inline TO PREFIX##2##NAME##_ru(FROM x) { return emulated_to_integer<TO, FROM>(__builtin_ceil##F(x), LOWEST, BEYOND); }
EMULATED_CONVERSIONS(__float, float, int, int, -2147483648.0f, 2147483648.0f, f)
EMULATED_CONVERSIONS(__float, float, uint, unsigned int, 0.0f, 4294967296.0f, f)
EMULATED_CONVERSIONS(__float, float, ll, long long, -9223372036854775808.0f, 9223372036854775808.0f, f)
EMULATED_CONVERSIONS(__float, float, ull, unsigned long long, 0.0f, 18446744073709551616.0f, f)
EMULATED_CONVERSIONS(__double, double, int, int, -2147483648.0, 2147483648.0, )
EMULATED_CONVERSIONS(__double, double, uint, unsigned int, 0.0, 4294967296.0, )
EMULATED_CONVERSIONS(__double, double, ll, long long, -9223372036854775808.0, 9223372036854775808.0, )
EMULATED_CONVERSIONS(__double, double, ull, unsigned long long, 0.0, 18446744073709551616.0, )
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned int x) { return (float)x; }
inline float __ll2float_rn(long long x) { return (float)x; }
inline float __ull2float_rn(unsigned long long x) { return (float)x; }
inline double __int2double_rn(int x) { return (double)x; }
inline double __uint2double_rn(unsigned int x) { return (double)x; }
inline double __ll2double_rn(long long x) { return (double)x; }
inline double __ull2double_rn(unsigned long long x) { return (double)x; }
inline float __double2float_rn(double x) { return (float)x; }

// ------------------------------------------------------------------------------------------------- entries of kernels

template <unsigned long... I> struct EmulatedIndices {};
template <typename... P> struct EmulatedParameters {
    static constexpr unsigned int count = sizeof...(P);
    static constexpr unsigned int sizes[sizeof...(P) + 1] = {(unsigned int)sizeof(P)..., 0};
    template <unsigned long... I> static void apply(void (*kernel)(P...), void** arguments, EmulatedIndices<I...>) {
        kernel(*(P*)arguments[I]...);
    }
    static void call(void (*kernel)(P...), void** arguments) {
        apply(kernel, arguments, EmulatedIndices<__integer_pack(sizeof...(P))...>());
    }
};
template <typename... P> constexpr EmulatedParameters<P...> emulated_parameters(void (*)(P...)) { return {}; }
static unsigned int emulated_static_bytes;  // of the module's __shared__ variables that were used

}  // namespace cuda_text
