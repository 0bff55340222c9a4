"""CUDA C++ device functions of attention alone."""

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
}


def with_attention_functions(text: str) -> str:
    """`text` behind the device functions that it calls."""
    own = [body for name, body in ATTENTION_FUNCTIONS.items() if re.search(rf"\b{name}\b(?=\()", text)]
    return "\n\n".join(part for part in (with_tensor_core_functions(text), *own, text) if part)
