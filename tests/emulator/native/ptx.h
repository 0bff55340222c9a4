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

namespace cuda_text {

template <typename F> inline unsigned int ptx_pairs(unsigned int a, unsigned int b, unsigned int c, F act) {
    return (unsigned int)(unsigned short)act(a & 0xffff, b & 0xffff, c & 0xffff) |
           (unsigned int)(unsigned short)act(a >> 16, b >> 16, c >> 16) << 16;
}
inline float ptx_fma_once(float a, float b, float c) {  // rounded once to a half: through double, to odd
    const double exact = (double)a * b, sum = exact + c, z = sum - exact, rest = (exact - (sum - z)) + (c - z);
    unsigned long long bits = emulated_bits<unsigned long long>(sum);
    if (rest != 0 && !(bits & 1)) bits += (rest > 0) == (sum > 0) ? 1 : -1;
    const double odd = emulated_bits<double>(bits);
    float narrow = (float)odd;
    if ((double)narrow != odd && !(emulated_bits<unsigned int>(narrow) & 1)) {
        const bool up = (double)narrow < odd;
        unsigned int n = emulated_bits<unsigned int>(narrow);
        n += up == (narrow > 0) ? 1 : -1;
        narrow = emulated_bits<float>(n);
    }
    return narrow;
}
inline unsigned int ptx_lop3(unsigned int a, unsigned int b, unsigned int c, unsigned int table) {
    unsigned int result = 0;
    for (int i = 0; i < 32; i++) result |= (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
    return result;
}
inline void* ptx_place(bool shared, unsigned long long address, unsigned int bytes) {
    if (shared) return emulated_shared_pointer((unsigned int)address, bytes);
    if (bytes && address % bytes) emulated_trap("a misaligned address of a load or store");
    return (void*)address;
}
template <typename T> inline void* ptx_place(bool shared, T* address, unsigned int bytes) {
    return ptx_place(shared, (unsigned long long)address, bytes);
}
inline unsigned int ptx_map(unsigned int address, unsigned int rank) { return (address & 0xffffff) | (rank + 1) << 24; }
inline unsigned int ptx_elect(unsigned int mask) {
    const unsigned int here = __ballot_sync(mask, 1);
    return __builtin_ctz(here);
}
inline void emulated_cluster_arrive() { emulated_cluster_barrier(true, false); }
inline void emulated_cluster_wait() { emulated_cluster_barrier(false, true); }

extern "C" {
void ptx_copy(unsigned int to, const void* from, unsigned int size, unsigned int read, bool only_16);
void ptx_copy_commit();
void ptx_copy_wait(int pending);
void ptx_copy_arrive(unsigned int barrier, bool counted);
void ptx_load_matrices(unsigned int row, int count, bool transposed, unsigned int* m);
void ptx_store_matrices(unsigned int row, int count, bool transposed, const unsigned int* m);
unsigned int ptx_transposed(unsigned int value);
void ptx_product(int k, int format, int registers_a, int registers_b, const void* a, const void* b, void* d);
void ptx_mbarrier_init(unsigned int barrier, unsigned int count);
void ptx_mbarrier_end(unsigned int barrier);
unsigned long long ptx_mbarrier_arrive(unsigned int barrier, unsigned int count, unsigned int expected);
bool ptx_mbarrier_over(unsigned int barrier, unsigned int parity);
void ptx_tensor_load(unsigned int to, unsigned long long map, int rank, const int* at, unsigned int barrier, unsigned int blocks);
void ptx_tensor_store(unsigned long long map, int rank, const int* at, unsigned int from);
void ptx_bulk_load(unsigned int to, const void* from, unsigned int size, unsigned int barrier);
void ptx_bulk_store(void* to, unsigned int from, unsigned int size);
void ptx_wgmma(int n, int format, float** d, const unsigned int* a, unsigned long long a_matrix, unsigned long long b_matrix,
               bool add, int sign_a, int sign_b, int across_a, int across_b);
}
template <typename D, int A, int B, typename T> inline void ptx_mma(int k, int format, const T* a, const T* b, D* d) {
    ptx_product(k, format, A, B, a, b, d);
}

}  // namespace cuda_text
