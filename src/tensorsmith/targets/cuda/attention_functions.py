"""CUDA C++ device functions of attention alone: fast exponentials, random bits for a fragment."""

from __future__ import annotations

import re

from tensorsmith.targets.cuda.tensor_core_functions import with_tensor_core_functions

ATTENTION_FUNCTIONS: dict[str, str] = {
    # 2^x within 2 units of the last place, 0 for minus infinity; the instruction that tensor cores wait for least.
    "exp2_fast": """
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}""".strip(),
    # All four words of a Philox block, as `philox` gives them one by one.
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
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}""".strip(),
}


def with_attention_functions(text: str) -> str:
    """`text` behind the device functions that it calls."""
    own = [body for name, body in ATTENTION_FUNCTIONS.items() if re.search(rf"\b{name}\b(?=\()", text)]
    return "\n\n".join(part for part in (with_tensor_core_functions(text), *own, text) if part)
