"""CUDA C++ device functions that generated kernels call: what no operator and no built-in function of CUDA computes.

No header is included, which would cost more than compiling the kernel: conversions of the half types are inline PTX.
`with_dependencies` gives the text of the functions that a kernel's text names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tensorsmith.kernels.errors import ZERO_DIVISION

# Conversions. Floats to integers saturate and NaN gives 0, as the policy for all targets says.
_CONVERSIONS = {
    "saturate": """
template <typename To, typename From> __device__ __forceinline__ To saturate(From x, From lowest, From beyond) {
    // `beyond` is the first value too large, a power of two and so exact; the largest To may not be.
    if (!(x == x)) return To(0);
    const bool has_sign = To(-1) < To(0);
    const To largest = has_sign ? To((1ull << (8 * sizeof(To) - 1)) - 1) : To(~To(0));
    if (x >= beyond) return largest;
    if (x <= lowest) return has_sign ? To(-largest - 1) : To(0);
    return To(x);
}""",
    "widen_float16": """
__device__ __forceinline__ float widen_float16(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}""",
    "narrow_float16": """
__device__ __forceinline__ unsigned short narrow_float16(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}""",
    "widen_bfloat16": """
__device__ __forceinline__ float widen_bfloat16(unsigned short bits) {
    return __uint_as_float((unsigned int)bits << 16);
}""",
    "narrow_bfloat16": """
__device__ __forceinline__ unsigned short narrow_bfloat16(float value) {
#if __CUDA_ARCH__ >= 800
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const unsigned int word = __float_as_uint(value);  // half to even; NaN has one pattern
    return value != value ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
#endif
}""",
}

_FLOATS = {
    # One instruction from sm_80 on; +0 is larger than -0, and NaN wins.
    "smaller_float": """
__device__ __forceinline__ float smaller_float(float x, float y) {
#if __CUDA_ARCH__ >= 800
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
    return result;
#else
    return x != x || y != y ? x + y : fminf(x, y);
#endif
}""",
    "larger_float": """
__device__ __forceinline__ float larger_float(float x, float y) {
#if __CUDA_ARCH__ >= 800
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
    return result;
#else
    return x != x || y != y ? x + y : fmaxf(x, y);
#endif
}""",
    "minimum": """
template <typename T> __device__ __forceinline__ T minimum(T x, T y) {
    return x != x || y != y ? x + y : fmin(x, y);  // fmin alone would drop a NaN
}
template <> __device__ __forceinline__ float minimum<float>(float x, float y) { return smaller_float(x, y); }""",
    "maximum": """
template <typename T> __device__ __forceinline__ T maximum(T x, T y) {
    return x != x || y != y ? x + y : fmax(x, y);
}
template <> __device__ __forceinline__ float maximum<float>(float x, float y) { return larger_float(x, y); }""",
    "reciprocal_estimate": """
__device__ __forceinline__ float reciprocal_estimate(float x) {  // within one unit in the last place
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}""",
    # For results that are rounded to bfloat16: within 4.3e-7 (1.2e-6 of the value) of erf, in two thirds of its instructions.
    # x P(x^2) / Q(x^2) by reweighted least squares on [0, 3.7]; beyond, 1 to that error.
    "erf_for_bfloat16": """
__device__ __forceinline__ float erf_for_bfloat16(float x) {
    x = smaller_float(larger_float(x, -3.7f), 3.7f);  // NaN stays
    const float t = x * x;
    float p = 0.00027012129430659115f, q = 1.6326919649145566e-05f;
    p = __fmaf_rn(p, t, 0.007300678174942732f);
    p = __fmaf_rn(p, t, 0.06306628882884979f);
    p = __fmaf_rn(p, t, 0.2848568558692932f);
    p = __fmaf_rn(p, t, 1.1283780336380005f);
    q = __fmaf_rn(q, t, 0.0018516338896006346f);
    q = __fmaf_rn(q, t, 0.02202269248664379f);
    q = __fmaf_rn(q, t, 0.15119372308254242f);
    q = __fmaf_rn(q, t, 0.5857685208320618f);
    q = __fmaf_rn(q, t, 1.0f);
    return x * p * reciprocal_estimate(q);
}""",
    # For results that are rounded to halves: 2^-24 of |x| off, relatively, and 0 below float's normal numbers.
    "exp_for_half": """
__device__ __forceinline__ float exp_for_half(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}""",
    # Many numbers over one, for results that are rounded to halves: within 1.5 units in float's last place. The divisor is
    # scaled so that its reciprocal is a normal number.
    "scale_for_quotients": """
__device__ __forceinline__ float scale_for_quotients(float divisor) {
    const float size = fabsf(divisor);
    return size < 8.67361738e-19f ? 18446744073709551616.0f : size > 1152921504606846976.0f ? 5.42101086e-20f : 1.0f;
}""",
    # Correctly rounded: two steps of Newton's on the quotient (Markstein 1990), exact where neither they nor the quotient leave
    # the middle of the exponents; else an ordinary division. The inverse of a divisor that is not ordinary is NaN.
    "ordinary_quotient": """
__device__ __noinline__ float ordinary_quotient(float x, float divisor) { return x / divisor; }  // seldom: once in the text""",
    "inverse_for_quotients": """
__device__ __forceinline__ float inverse_for_quotients(float divisor) {
    const float size = fabsf(divisor);
    return size > 8.67361738e-19f && size < 1152921504606846976.0f ? 1.0f / divisor : __int_as_float(0x7fc00000);
}""",
    "quotient": """
__device__ __forceinline__ float quotient(float x, float divisor, float inverse) {
    const float first = x * inverse, size = fabsf(first);
    if (size > 9.09494702e-13f && size < 1099511627776.0f) {
        const float second = __fmaf_rn(__fmaf_rn(-first, divisor, x), inverse, first);
        return __fmaf_rn(__fmaf_rn(-second, divisor, x), inverse, second);
    }
    return x == 0.0f && size == 0.0f ? first : ordinary_quotient(x, divisor);
}""",
    "quotient_for_half": """
__device__ __forceinline__ float quotient_for_half(float x, float scale, float inverse) {
    return x * scale * inverse;  // inverse: 1 / (divisor * scale)
}""",
    "floored_remainder": """
template <typename T> __device__ T floored_remainder(T x, T y) {
    const T remainder = fmod(x, y);
    return remainder != T(0) && (y < T(0)) != (remainder < T(0)) ? remainder + y : remainder;
}""",
    "floor_divide": """
template <typename T> __device__ T floor_divide(T x, T y) {
    if (y == T(0)) return x / y;
    const T remainder = fmod(x, y);
    T quotient = (x - remainder) / y;  // whole up to rounding: take the nearer neighbour
    if (remainder != T(0) && (y < T(0)) != (remainder < T(0))) quotient -= T(1);
    T whole = floor(quotient);
    if (quotient - whole > T(0.5)) whole += T(1);
    return whole == T(0) ? copysign(whole, x / y) : whole;
}""",
    "softplus": """
template <typename T> __device__ T softplus(T x) {
    return (x <= T(0) ? T(0) : x) + log1p(exp(-fabs(x)));
}""",
    "logaddexp": """
template <typename T> __device__ T logaddexp(T x, T y) {
    if (x == y && x - x != T(0)) return x;  // equal infinities
    return maximum(x, y) + log1p(exp(-fabs(x - y)));
}""",
    # Recurrence up to 10, then the asymptotic series; reflection below 0 (Abramowitz & Stegun 6.3).
    "digamma": """
__device__ double digamma(double x) {
    const double infinity = __longlong_as_double(0x7ff0000000000000ll), pi = 3.14159265358979323846;
    if (x == 0.0) return copysign(infinity, -x);
    if (x < 0.0 && x == floor(x)) return infinity - infinity;
    double result = 0.0;
    if (x < 0.0) {
        result = -pi / tan(pi * (x - trunc(x)));
        x = 1.0 - x;
    }
    while (x < 10.0) {
        result -= 1.0 / x;
        x += 1.0;
    }
    if (x > 1e17) return result + log(x);
    const double square = 1.0 / (x * x);
    double series = 1.0 / 12;
    series = series * square - 691.0 / 32760;
    series = series * square + 1.0 / 132;
    series = series * square - 1.0 / 240;
    series = series * square + 1.0 / 252;
    series = series * square - 1.0 / 120;
    series = series * square + 1.0 / 12;
    return result + (log(x) - 0.5 / x - series * square);
}""",
}

# Integers wrap; a zero divisor is reported through the error word and gives 0.
_INTEGERS = {
    "integer_quotient": f"""
template <typename T> __device__ T integer_quotient(T x, T y, long long* error) {{
    if (y == T(0)) {{
        *error = {ZERO_DIVISION};
        return T(0);
    }}
    if (T(-1) < T(0) && y == T(-1)) return T(0ull - (unsigned long long)x);  // the smallest integer has no negative
    const T quotient = x / y;
    return x % y != T(0) && (x % y < T(0)) != (y < T(0)) ? quotient - T(1) : quotient;
}}""",
    "integer_remainder": f"""
template <typename T> __device__ T integer_remainder(T x, T y, bool floored, long long* error) {{
    if (y == T(0)) {{
        *error = {ZERO_DIVISION};
        return T(0);
    }}
    if (T(-1) < T(0) && y == T(-1)) return T(0);
    const T remainder = x % y;
    return floored && remainder != T(0) && (remainder < T(0)) != (y < T(0)) ? remainder + y : remainder;
}}""",
    "integer_power": """
template <typename T> __device__ T integer_power(T base, T exponent) {
    if (exponent < T(0)) return base == T(1) ? T(1) : base == T(-1) ? ((exponent & T(1)) ? T(-1) : T(1)) : T(0);
    unsigned long long total = 1, power = (unsigned long long)base, left = (unsigned long long)exponent;
    for (; left; left >>= 1, power *= power) {
        if (left & 1) total *= power;
    }
    return T(total);
}""",
    "left_shift": """
template <typename T> __device__ __forceinline__ T left_shift(T x, T count) {
    return (unsigned long long)count < 8 * sizeof(T) ? T((unsigned long long)x << count) : T(0);
}""",
    "right_shift": """
template <typename T> __device__ __forceinline__ T right_shift(T x, T count) {
    return (unsigned long long)count < 8 * sizeof(T) ? T(x >> count) : x < T(0) ? T(-1) : T(0);
}""",
    # Philox4x32-10 (Salmon et al. 2011): element c takes word c % 4 of the block c / 4.
    "philox_block": """
__device__ __forceinline__ void philox_block(unsigned long long key, unsigned long long block, unsigned int (&words)[4]) {
    unsigned int c0 = block, c1 = block >> 32, c2 = 0, c3 = 0, k0 = key, k1 = key >> 32;
    #pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned int high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const unsigned int high2 = __umulhi(0xCD9E8D57u, c2), low2 = 0xCD9E8D57u * c2;
        c0 = high2 ^ c1 ^ k0;
        c1 = low2;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}""",
    "philox": """
__device__ unsigned int philox(unsigned long long key, unsigned long long counter) {
    unsigned int words[4];
    philox_block(key, counter >> 2, words);
    const unsigned int word = counter & 3;
    return word == 0 ? words[0] : word == 1 ? words[1] : word == 2 ? words[2] : words[3];
}""",
    # Neighbouring elements share a block, which is made once.
    "PhiloxBlock": """
template <int WORDS> struct PhiloxBlock {
    unsigned long long block = ~0ull;
    unsigned int words[WORDS];
    __device__ __forceinline__ unsigned int at(unsigned long long key, unsigned long long counter) {
        if (counter >> 2 != block) {
            block = counter >> 2;
            philox_block(key, block, words);
        }
        const unsigned int word = counter & 3;
        return word == 0 ? words[0] : word == 1 ? words[1] : word == 2 ? words[2] : words[3];
    }
};""",
}

_REDUCTIONS = {
    # A maximum m and the sum s of exp(x - m); of no value, or of -inf alone, s counts as exp(-inf - 0) = 0 on the way.
    "rescaling_reference": """
template <typename T> __device__ __forceinline__ T rescaling_reference(T top) {
    return top == -T(__int_as_float(0x7f800000)) ? T(0) : top;
}""",
    "rescaling": """
template <typename T> __device__ __forceinline__ T rescaling(T old, T top) { return old == top ? T(1) : exp(old - top); }""",
    "join_rescaled": """
template <typename T> __device__ __forceinline__ void join_rescaled(T& m, T& s, T other_m, T other_s) {
    const T top = maximum<T>(m, other_m);
    s = s * rescaling(m, top) + other_s * rescaling(other_m, top);
    m = top;
}""",
    # As if exp(x - m) had been taken of every x: of -inf alone that is NaN.
    "rescaled_sum": """
template <typename T> __device__ __forceinline__ T rescaled_sum(T m, T s) {
    return m == -T(__int_as_float(0x7f800000)) ? m - m : s;
}""",
    # Shuffles exist for 4- and 8-byte types; smaller ones travel as int.
    "shuffle": """
template <typename T> struct Carrier { typedef int type; };
template <> struct Carrier<unsigned int> { typedef unsigned int type; };
template <> struct Carrier<long long> { typedef long long type; };
template <> struct Carrier<unsigned long long> { typedef unsigned long long type; };
template <> struct Carrier<float> { typedef float type; };
template <> struct Carrier<double> { typedef double type; };
template <typename T> __device__ __forceinline__ T shuffle(T value, int distance) {
    return T(__shfl_xor_sync(0xffffffffu, (typename Carrier<T>::type)value, distance));
}""",
    # Of two candidates for argmax or argmin: NaN wins, then the better value, then the smaller index; -1 is none.
    "replaces": """
template <typename T> __device__ __forceinline__ bool replaces(T x, long long i, T best, long long at, bool largest) {
    if (i < 0 || at < 0) return at < 0 && i >= 0;
    const bool x_is_nan = x != x, best_is_nan = best != best;
    if (x_is_nan != best_is_nan) return x_is_nan;
    if (x_is_nan || x == best) return i < at;
    return largest ? x > best : x < best;
}""",
}

FUNCTIONS: dict[str, str] = {
    name: text.strip() for name, text in (_CONVERSIONS | _FLOATS | _INTEGERS | _REDUCTIONS).items()
}


_CALL = re.compile(r"\b(\w+)(?=[(<])")


def with_dependencies(text: str, more: Mapping[str, str] | None = None) -> str:
    """The device functions that `text` calls, and those that they call, in an order that compiles.

    more: functions beside those of this file, which they may call
    """
    functions = FUNCTIONS | dict(more or {})
    needed: set[str] = set()
    waiting = [text]
    while waiting:
        for name in _named(waiting.pop(), functions):
            if name not in needed:
                needed.add(name)
                waiting.append(functions[name])
    # The tables are ordered so that callees come first (maximum before logaddexp, remainder before floor_divide).
    return "\n\n".join(body for name, body in functions.items() if name in needed)


def _named(text: str, functions: Iterable[str]) -> list[str]:
    called = set(_CALL.findall(text))
    return [name for name in functions if name in called]
