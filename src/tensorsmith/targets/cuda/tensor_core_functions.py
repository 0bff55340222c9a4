"""CUDA C++ device functions over inline PTX: copies into shared memory, barriers, tensor maps and tensor cores.

A kernel's text holds no PTX of its own; it calls these by name, and `with_tensor_core_functions` puts before it those that
it names. Shared memory is addressed by 32-bit words (`shared_address`). Fragments are laid out as the PTX manual says: lane
l holds rows l / 4 and l / 4 + 8 and, of each 8 columns, 2 (l % 4) and the one after it.

cp_async*:            all; before sm_80 they copy at once (whole 4-byte words)
ldmatrix*, mma_*:     sm_80 and later
mbarrier_*, tensor_*, wgmma_*, stmatrix*, *_registers:  sm_90a
"""

from __future__ import annotations

import re

from tensorsmith.targets.cuda.device_functions import with_dependencies


def _cp_async(size: int) -> str:
    """A copy of 4, 8 or 16 bytes, of which `bytes` are read and the rest are zeros; before sm_80 at once."""
    cached = "cg" if size == 16 else "ca"
    words = size // 4
    stores = "\n".join(
        f'    asm volatile("st.shared.u32 [%0], %1;" :: "r"(to + {4 * i}), '
        f'"r"(bytes > {4 * i} ? ((const unsigned int*)from)[{i}] : 0u) : "memory");'
        for i in range(words)
    )
    return f"""
__device__ __forceinline__ void cp_async_{size}(unsigned int to, const void* from, unsigned int bytes) {{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.{cached}.shared.global [%0], [%1], {size}, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
#else
{stores}
#endif
}}"""


_SHARED = {
    "shared_address": """
__device__ __forceinline__ unsigned int shared_address(const void* pointer) {
    return (unsigned int)__cvta_generic_to_shared(pointer);
}""",
    **{f"cp_async_{size}": _cp_async(size) for size in (4, 8, 16)},
    "cp_async_commit": """
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}""",
    # Until at most `pending` of the newest groups are under way.
    "cp_async_wait": """
template <int pending> __device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");
#endif
}""",
}

_MATRICES = {
    # Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
    "ldmatrix_x4": """
__device__ __forceinline__ void ldmatrix_x4(unsigned int (&r)[4], unsigned int row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}""",
    "ldmatrix_x4_transposed": """
__device__ __forceinline__ void ldmatrix_x4_transposed(unsigned int (&r)[4], unsigned int row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}""",
    "stmatrix_x4": """
__device__ __forceinline__ void stmatrix_x4(unsigned int row, unsigned int a, unsigned int b, unsigned int c, unsigned int d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
        :: "r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}""",
    # Two floats rounded to a pair of halves, the first in the low bits.
    "pack_bfloat16": """
__device__ __forceinline__ unsigned int pack_bfloat16(float low, float high) {
    unsigned int pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}""",
    "pack_float16": """
__device__ __forceinline__ unsigned int pack_float16(float low, float high) {
    unsigned int pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}""",
    "round_to_tf32": """
__device__ __forceinline__ unsigned int round_to_tf32(float x) {
    unsigned int bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}""",
}


def _mma(name: str, k: int, dtype: str, factors: int) -> str:
    """d (16, 8) += a (16, k) b (k, 8) of a warp; a has `factors` registers, b half as many."""
    a = ", ".join(f"%{4 + i}" for i in range(factors))
    b = ", ".join(f"%{4 + factors + i}" for i in range(factors // 2))
    inputs = ", ".join([f'"r"(a[{i}])' for i in range(factors)] + [f'"r"(b[{i}])' for i in range(factors // 2)])
    parameters = f"float (&d)[4], const unsigned int (&a)[{factors}], const unsigned int (&b)[{factors // 2}]"
    return f"""
__device__ __forceinline__ void {name}({parameters}) {{
    asm volatile("mma.sync.aligned.m16n8k{k}.row.col.f32.{dtype}.{dtype}.f32 "
        "{{%0, %1, %2, %3}}, {{{a}}}, {{{b}}}, {{%0, %1, %2, %3}};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : {inputs});
}}"""


_MMA = {
    "mma_float16": _mma("mma_float16", 16, "f16", 4),
    "mma_bfloat16": _mma("mma_bfloat16", 16, "bf16", 4),
    "mma_tf32": _mma("mma_tf32", 8, "tf32", 4),
}

_BARRIERS = {
    "mbarrier_init": """
__device__ __forceinline__ void mbarrier_init(unsigned int barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}""",
    # After the initialisation, before any thread or copy uses the barriers.
    "mbarrier_fence": """
__device__ __forceinline__ void mbarrier_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}""",
    "mbarrier_arrive": """
__device__ __forceinline__ void mbarrier_arrive(unsigned int barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}""",
    # Arrive, and have the phase wait for so many bytes of copies too.
    "mbarrier_arrive_expect": """
__device__ __forceinline__ void mbarrier_arrive_expect(unsigned int barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}""",
    # Until the phase of this parity is over: at once, of a new barrier, for 1.
    "mbarrier_wait": """
__device__ __forceinline__ void mbarrier_wait(unsigned int barrier, int parity) {
    unsigned int over = 0;
    while (!over) {
        asm volatile("{\\n.reg .pred p;\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\nselp.u32 %0, 1, 0, p;\\n}\\n"
            : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
    }
}""",
    "cluster_rank": """
__device__ __forceinline__ unsigned int cluster_rank() {
    unsigned int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}""",
    # What block `rank` of the cluster has at the same place of its shared memory.
    "cluster_load_32": """
__device__ __forceinline__ unsigned int cluster_load_32(unsigned int at, unsigned int rank) {
    unsigned int there, word;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(there) : "memory");
    return word;
}""",
    "cluster_load_64": """
__device__ __forceinline__ unsigned long long cluster_load_64(unsigned int at, unsigned int rank) {
    unsigned int there;
    unsigned long long word;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(word) : "r"(there) : "memory");
    return word;
}""",
    # A barrier of all threads of a cluster.
    "cluster_sync": """
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}""",
    # A barrier of some warps of a block: `id` is 1 to 15.
    "barrier_sync": """
__device__ __forceinline__ void barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}""",
    "barrier_arrive": """
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}""",
}


def _tensor_load(rank: int) -> str:
    coordinates = ", ".join(f"int c{i}" for i in range(rank))
    places = ", ".join(f"%{2 + i}" for i in range(rank))
    inputs = ", ".join(f'"r"(c{i})' for i in range(rank))
    return f"""
__device__ __forceinline__ void tensor_load_{rank}d(unsigned int to, const void* map, {coordinates}, unsigned int barrier) {{
    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {{{places}}}], [%{2 + rank}];"
        :: "r"(to), "l"((unsigned long long)map), {inputs}, "r"(barrier) : "memory");
}}"""


def _tensor_store(rank: int) -> str:
    coordinates = ", ".join(f"int c{i}" for i in range(rank))
    places = ", ".join(f"%{1 + i}" for i in range(rank))
    inputs = ", ".join(f'"r"(c{i})' for i in range(rank))
    return f"""
__device__ __forceinline__ void tensor_store_{rank}d(const void* map, {coordinates}, unsigned int from) {{
    asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%0, {{{places}}}], [%{1 + rank}];"
        :: "l"((unsigned long long)map), {inputs}, "r"(from) : "memory");
}}"""


_TENSORS = {
    **{f"tensor_load_{rank}d": _tensor_load(rank) for rank in (2, 3, 4, 5)},
    **{f"tensor_store_{rank}d": _tensor_store(rank) for rank in (2, 3, 4, 5)},
    "tensor_prefetch": """
__device__ __forceinline__ void tensor_prefetch(const void* map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"((unsigned long long)map) : "memory");
}""",
    "tensor_store_commit": """
__device__ __forceinline__ void tensor_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}""",
    # Until shared memory was read by all but the `pending` newest groups of stores.
    "tensor_store_wait_read": """
template <int pending> __device__ __forceinline__ void tensor_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(pending) : "memory");
}""",
    # Shared memory written by threads is seen by copies and tensor cores that start afterwards.
    "fence_async_shared": """
__device__ __forceinline__ void fence_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}""",
    "more_registers": """
template <int count> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(count));
}""",
    "fewer_registers": """
template <int count> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(count));
}""",
}

_WARPGROUPS = {
    "wgmma_fence": """
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}""",
    "wgmma_commit": """
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}""",
    "wgmma_wait": """
template <int pending> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(pending) : "memory");
}""",
    # The compiler may not move uses of an accumulator before this.
    "settle": """
template <int count> __device__ __forceinline__ void settle(float (&d)[count]) {
    #pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}""",
    # Descriptor of a matrix in shared memory, 128-byte swizzled, at a multiple of 1024 bytes (plus a step along k).
    # along: bytes between blocks of 64 elements of rows, of an operand whose rows lie side by side (else unused);
    # across: bytes between groups of 8 lines of 128 bytes.
    "matrix_descriptor": """
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned int at, unsigned int along, unsigned int across) {
    return (unsigned long long)((at & 0x3FFFF) >> 4) | (unsigned long long)(along >> 4) << 16
        | (unsigned long long)(across >> 4) << 32 | 1ull << 62;
}""",
}

_PTX_TYPES = {"float16": "f16", "bfloat16": "bf16", "tf32": "tf32"}
_WGMMA = re.compile(r"\bwgmma_n(\d+)_(float16|bfloat16|tf32)(_registers)?\b(?=[(<])")


def wgmma(n: int, dtype: str, from_registers: bool = False) -> str:
    """The text of `wgmma_n{n}_{dtype}`: d (64, n) = a (64, k) b (k, n) [+ d] of a warpgroup, k being 32 bytes.

    Template arguments of 16-bit types: whether a and b lie with their rows (of b: its columns) side by side in shared
    memory. With `_registers` a comes as a fragment in registers. add: 0 takes d as zeros.
    """
    count, kind = n // 2, _PTX_TYPES[dtype]
    k = 8 if dtype == "tf32" else 16
    results = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    a = ", ".join(f"%{count + i}" for i in range(4))
    left = f"{{{a}}}" if from_registers else f"%{count}"
    at = count + (4 if from_registers else 1)
    given = ", ".join(f'"r"(a[{i}])' for i in range(4)) if from_registers else '"l"(a)'
    parameter = "const unsigned int (&a)[4]" if from_registers else "unsigned long long a"
    signs, template, immediates = "1, 1", "", ""
    if dtype != "tf32":
        names = ["b_across"] if from_registers else ["a_across", "b_across"]
        template = f"template <{', '.join(f'int {name}' for name in names)}> "
        signs += "".join(f", %{at + 2 + i}" for i in range(len(names)))
        immediates = "".join(f', "n"({name})' for name in names)
    name = f"wgmma_n{n}_{dtype}{'_registers' if from_registers else ''}"
    return f"""
{template}__device__ __forceinline__ void {name}(float (&d)[{count}], {parameter}, unsigned long long b, int add) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{at + 1}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{kind}.{kind} {{{results}}}, {left}, %{at}, p, {signs};\\n}}\\n"
        : {outputs} : {given}, "l"(b), "r"(add){immediates});
}}"""


TENSOR_CORE_FUNCTIONS: dict[str, str] = {
    name: text.strip()
    for name, text in (_SHARED | _MATRICES | _MMA | _BARRIERS | _TENSORS | _WARPGROUPS).items()
}


def with_tensor_core_functions(text: str) -> str:
    """The device functions that `text` calls, those of `device_functions.py` first."""
    called = set(re.findall(r"\b\w+\b(?=[(<])", text))
    parts = [with_dependencies(text)]
    parts += [body for name, body in TENSOR_CORE_FUNCTIONS.items() if name in called]
    wanted = sorted({match.groups() for match in _WGMMA.finditer(text)}, key=str)
    parts += [wgmma(int(n), dtype, bool(registers)).strip() for n, dtype, registers in wanted]
    return "\n\n".join(part for part in parts if part)
