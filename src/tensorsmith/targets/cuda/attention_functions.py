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
    # The same by ordinary arithmetic, within 3e-6: x = n + f, a polynomial of f in [-1/2, 1/2] times 2^n. The unit of
    # `exp2_fast` has a quarter of a multiprocessor's lanes. x at most 127.
    "exp2_by_hand": """
__device__ __forceinline__ float exp2_by_hand(float x) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-127.0f));
    const float shifted = x + 12583039.0f;  // 1.5 2^23 + 127: the lowest bits are n + 127
    const float f = x - (shifted - 12583039.0f);
    float y = 9.58285294e-3f;
    y = __fmaf_rn(y, f, 5.59064262e-2f);
    y = __fmaf_rn(y, f, 2.40240991e-1f);
    y = __fmaf_rn(y, f, 6.93124175e-1f);
    y = __fmaf_rn(y, f, 1.0f);
    return y * __int_as_float(__float_as_int(shifted) << 23);  // 0 for n = -127
}""".strip(),
}


def with_attention_functions(text: str) -> str:
    """`text` behind the device functions that it calls."""
    own = [body for name, body in ATTENTION_FUNCTIONS.items() if re.search(rf"\b{name}\b(?=\()", text)]
    return "\n\n".join(part for part in (with_tensor_core_functions(text), *own, indented(text)) if part)


def indented(text: str) -> str:
    """Statements put together from parts, each line as deep as the brackets around it."""
    lines, depth = [], 0
    for line in filter(None, (line.strip() for line in text.splitlines())):
        code = line.split("//")[0]
        closing = len(code) - len(code.lstrip(")}"))
        lines.append("    " * (depth - closing) + line)
        if line == "}" and depth == 1:
            lines.append("")
        depth += sum(map(code.count, "({")) - sum(map(code.count, ")}"))
    return "\n".join(lines).rstrip()
