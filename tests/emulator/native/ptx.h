// What inline PTX is translated to (ptx_instructions.py). Included where a kernel's text has asm statements.
namespace cuda_text {

// A value by its bits; integers may change their size.
template <typename To, typename From> inline To ptx_as(From value) {
    if constexpr (sizeof(To) == sizeof(From)) {
        return emulated_bits<To>(value);
    } else {
        static_assert(__is_same(To, bool) || (To(0.5) == To(0) && From(0.5) == From(0)), "a float of another size");
        return (To)value;
    }
}
template <typename T, typename V> inline void ptx_put(T& target, V value) { target = ptx_as<T>(value); }
template <typename T, typename V> inline void ptx_give(T& target, V value) { target = (T)value; }
template <typename T, typename V> inline void ptx_move(T& target, V value) { target = ptx_as<T>(value); }
template <typename T, typename A, typename B> inline T ptx_pack(A low, B high) {
    static_assert(sizeof(A) + sizeof(B) == sizeof(T), "parts that do not make the whole");
    T result;
    __builtin_memcpy(&result, &low, sizeof(A));
    __builtin_memcpy((char*)&result + sizeof(A), &high, sizeof(B));
    return result;
}
template <typename T, typename A, typename B> inline void ptx_unpack(T whole, A& low, B& high) {
    static_assert(sizeof(A) + sizeof(B) == sizeof(T), "parts that do not make the whole");
    __builtin_memcpy(&low, &whole, sizeof(A));
    __builtin_memcpy(&high, (char*)&whole + sizeof(A), sizeof(B));
}

inline float ptx_relu(float x) { return x != x ? x : x > 0 ? x : 0.0f; }
inline float ptx_saturated(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
template <typename T> inline T ptx_to_integer(float x) {
    if constexpr (T(-1) < T(0))
        return emulated_to_integer<T, float>(x, -(float)(1ull << (8 * sizeof(T) - 1)), (float)(1ull << (8 * sizeof(T) - 1)));
    else
        return emulated_to_integer<T, float>(x, 0.0f, 2.0f * (float)(1ull << (8 * sizeof(T) - 1)));
}
template <typename T> inline T ptx_to_integer(double x) {
    if constexpr (T(-1) < T(0))
        return emulated_to_integer<T, double>(x, -(double)(1ull << (8 * sizeof(T) - 1)), (double)(1ull << (8 * sizeof(T) - 1)));
    else
        return emulated_to_integer<T, double>(x, 0.0, 2.0 * (double)(1ull << (8 * sizeof(T) - 1)));
}

inline float ptx_widen_float16(unsigned short bits) { return (float)emulated_bits<_Float16>(bits); }
inline unsigned short ptx_narrow_float16(float x, bool toward_zero) {
    if (x != x) return 0x7fff;
    unsigned short bits = emulated_bits<unsigned short>((_Float16)x);
    if (toward_zero && __builtin_fabsf(ptx_widen_float16(bits)) > __builtin_fabsf(x)) bits--;
    return bits;
}
inline float ptx_widen_bfloat16(unsigned short bits) { return emulated_bits<float>((unsigned int)bits << 16); }
inline unsigned short ptx_narrow_bfloat16(float x, bool toward_zero) {
    if (x != x) return 0x7fff;
    const unsigned int bits = emulated_bits<unsigned int>(x);
    return (unsigned short)((toward_zero ? bits : bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline unsigned int ptx_round_tf32(float x) {
    const unsigned int bits = emulated_bits<unsigned int>(x);
    return x - x != 0 ? bits : (bits + 0x1000) & ~0x1fffu;  // half away from zero
}

}  // namespace cuda_text
