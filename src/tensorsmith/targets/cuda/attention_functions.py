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
    # A copy into the same place of every block of the cluster in `blocks`, each of which has its barrier told.
    "tensor_load_4d_for_blocks": """
__device__ __forceinline__ void tensor_load_4d_for_blocks(
    unsigned int to, const void* map, int c0, int c1, int c2, int c3, unsigned int barrier, unsigned short blocks
) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;"
        :: "r"(to), "l"((unsigned long long)map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier), "h"(blocks) : "memory");
}""".strip(),
    # Arrive at the barrier that block `rank` of the cluster has at the same place.
    "mbarrier_arrive_at": """
__device__ __forceinline__ void mbarrier_arrive_at(unsigned int barrier, unsigned int rank) {
    unsigned int there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(barrier), "r"(rank));
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
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
