"""Values as unsigned integers of the same order, and how a block sorts words of a key and a position in shared memory."""

from __future__ import annotations

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cuda.scalars import memory_type


def key_bits(dtype: DType) -> int:
    """Bits of the keys of a dtype."""
    return 8 * dtype.itemsize


def key_bytes(dtype: DType) -> int:
    """Bytes of the type that holds them, 4 or 8."""
    return max(4, dtype.itemsize)


def key_text(dtype: DType, descending: bool) -> str:
    """The types `Value` (in memory) and `Key`, and `key_of(value)`: NaN is the largest value, -0.0 equals 0.0.

    Descending keys are those of the opposite order.
    """
    bits = key_bits(dtype)
    key = "unsigned long long" if bits == 64 else "unsigned int"
    suffix = "ull" if bits == 64 else "u"
    every, sign = f"{hex((1 << bits) - 1)}{suffix}", f"{hex(1 << (bits - 1))}{suffix}"
    if dtype.kind == "b":
        lines = ["Key key = value != 0;"]
    elif dtype.kind == "f":
        read = {2: "value", 4: "__float_as_uint(value)", 8: "(Key)__double_as_longlong(value)"}[dtype.itemsize]
        largest = {dtypes.float16: 0x7C00, dtypes.bfloat16: 0x7F80, dtypes.float32: 0x7F800000}
        infinity = f"{hex(largest.get(dtype, 0x7FF0000000000000))}{suffix}"
        lines = [
            f"Key key = {read};",
            f"const Key magnitude = key & ~{sign} & {every};",
            "if (magnitude == 0) key = 0;",
            f"key = key & {sign} ? ~key & {every} : key | {sign};",
            f"if (magnitude > {infinity}) key = {every};",
        ]
    elif dtype.kind == "i":
        lines = [f"Key key = ((Key)value ^ {sign}) & {every};"]
    else:
        lines = ["Key key = value;"]
    if descending:
        lines.append(f"key ^= {every};")
    body = "\n    ".join(lines)
    memory = memory_type(dtype)
    return f"""typedef {memory} Value;
typedef {key} Key;
__device__ __forceinline__ Key key_of(Value value) {{
    {body}
    return key;
}}"""


def words_text(dtype: DType) -> str:
    """`Words` in shared memory, and `bitonic_sort(words, count, padded)`: every `padded` words, a power of two, on their own.

    Words are a key above a position, which makes all of them different: the sort is stable. Where a key has 64 bits they are
    two arrays. All threads of a block have to call the sort.
    """
    if key_bytes(dtype) == 4:
        words = """struct Words {
    unsigned long long* words;
    __device__ Words(char* memory, int count) { words = (unsigned long long*)memory; }
    __device__ void set(int i, Key key, unsigned int position) { words[i] = (unsigned long long)key << 32 | position; }
    __device__ unsigned int position(int i) const { return (unsigned int)words[i]; }
    __device__ void order(int i, int j, bool ascending) {
        const unsigned long long a = words[i], b = words[j];
        if ((a > b) == ascending) { words[i] = b; words[j] = a; }
    }
};"""
    else:
        words = """struct Words {
    Key* keys;
    unsigned int* positions;
    __device__ Words(char* memory, int count) { keys = (Key*)memory; positions = (unsigned int*)(keys + count); }
    __device__ void set(int i, Key key, unsigned int position) { keys[i] = key; positions[i] = position; }
    __device__ unsigned int position(int i) const { return positions[i]; }
    __device__ void order(int i, int j, bool ascending) {
        const Key a = keys[i], b = keys[j];
        const unsigned int p = positions[i], q = positions[j];
        if ((a > b || (a == b && p > q)) == ascending) { keys[i] = b; keys[j] = a; positions[i] = q; positions[j] = p; }
    }
};"""
    return f"""{words}
__device__ void bitonic_sort(Words& words, int count, int padded) {{
    int before = 64;  // distance of the words that met last; at first they come from anywhere
    for (int width = 2; width <= padded; width *= 2) {{
        for (int distance = width / 2; distance > 0; distance /= 2) {{
            // A warp orders 64 words beside each other: what is nearer than that stays with it.
            if (distance > 32 || before > 32) __syncthreads();
            else __syncwarp();
            before = distance;
            for (int t = threadIdx.x; t < count / 2; t += blockDim.x) {{
                const int i = 2 * t - (t & (distance - 1));
                words.order(i, i + distance, (i & (padded - 1) & width) == 0);
            }}
        }}
    }}
    __syncthreads();
}}"""


def word_bytes(dtype: DType) -> int:
    """Bytes of a word in shared memory."""
    return 8 if key_bytes(dtype) == 4 else 12
