"""What the kernels of attention for Hopper share: tiles by tensor maps, barriers, fragments of scores, results.

A block is one producer warpgroup, of which one thread asks for copies, and some consumer warpgroups of 64 rows each. Tiles
lie in shared memory in blocks of 64 columns, 128 bytes a row, swizzled. An accumulator of a warpgroup with C columns is
C / 2 registers a thread: number i holds row 16 warp + lane / 4 + 8 (i / 2 % 2) and column i / 4 * 8 + 2 (lane % 4) + i % 2.
"""

from __future__ import annotations

from tensorsmith.core.dtypes import bfloat16, bool_
from tensorsmith.targets.cuda.attention_scores import infinity
from tensorsmith.targets.cuda.attention_spec import AttentionSpec
from tensorsmith.targets.cuda.kernel import TensorMap

ALIGNMENT = 16  # of addresses and strides that a tensor map can express, in bytes
BLOCK = 64  # columns of a tile that lie together
GROUP_BYTES = 32 << 20  # keys and values of the batches that run at once: they stay in the cache
_LARGEST = 1 << 31

TENSOR_MAP = "struct __align__(64) TensorMap { unsigned long long opaque[16]; };"


def padded(columns: int) -> int:
    """Columns as whole blocks: what is beyond counts as zeros."""
    return -(-columns // BLOCK) * BLOCK


def takes(spec: AttentionSpec) -> bool:
    """Whether operands lie as tensor maps and tensor cores want them."""
    matrices = ("q", "k", "v", "g") if spec.backward else ("q", "k", "v")
    return (
        spec.dtype.is_half
        and spec.aligned
        and max(spec.L, spec.S) + 512 < _LARGEST
        and max(spec.E, spec.F) <= 256
        and all(_describable(spec, name) for name in matrices)
    )


def _describable(spec: AttentionSpec, name: str) -> bool:
    outer, inner, row, column = spec.strides(name)
    columns = spec.E if name in "qk" else spec.F
    rows = spec.L if name in "qg" else spec.S
    lies = (column == 1 or columns == 1) and (row != 0 or rows == 1)
    return lies and all(stride * 2 % ALIGNMENT == 0 for stride in (outer, inner, row))


def tensor_map(spec: AttentionSpec, name: str, rows: int) -> TensorMap:
    """Tiles of `rows` rows and one block of columns of a matrix, along (columns, rows, inner, outer)."""
    length = spec.L if name in "qg" else spec.S
    columns = spec.E if name in "qk" else spec.F
    outer, inner, row, _ = spec.strides(name)
    # An axis along which nothing moves is one of extent 1, as `moves` says to the kernel.
    shape = (columns, length if row else 1, spec.inner if inner else 1, spec.outer if outer else 1)
    strides = tuple(2 * stride if stride else ALIGNMENT for stride in (row, inner, outer))
    dtype = "BFLOAT16" if spec.dtype is bfloat16 else "FLOAT16"
    return TensorMap(spec.names.index(name), dtype, shape, strides, (BLOCK, rows, 1, 1))


def moves(spec: AttentionSpec, names: str) -> list[tuple[str, int]]:
    """Fields that say whether a matrix differs along the batch axes."""
    found = []
    for name in names:
        outer, inner, _, _ = spec.strides(name)
        found += [(f"{name}_outer_moves", int(outer != 0)), (f"{name}_inner_moves", int(inner != 0))]
    return found


def load_text(name: str, to: str, row: str, rows: int, columns: int, barrier: str) -> str:
    """Statements that ask for a tile of `columns` columns from `row` on."""
    place = f"(int)(inner * sizes.{name}_inner_moves), (int)(outer * sizes.{name}_outer_moves)"
    return "\n".join(
        f"tensor_load_4d({to} + {c * rows * 2}, &{name}_map, {c}, {row}, {place}, {barrier});" for c in range(0, columns, BLOCK)
    )


def prescaled(spec: AttentionSpec) -> bool:
    """Whether scores are scaled before their largest is looked for: not where the scale is a factor that keeps their order."""
    return spec.scale <= 0 or (spec.mask is not None and spec.mask is not bool_)


def scores_text(spec: AttentionSpec, count: int, query: str, key: str, first_query: str, end_key: str) -> str:
    """Statements that make the products in s scores, in units of log2, or to be scaled so where not `prescaled`.

    query, key:  expressions of the element i
    first_query, end_key: the first query of the warpgroup's tile, and one beyond its last key: inside, nothing is hidden
    """
    hidden = f"-{infinity('float')}"
    tests = ["key >= keys", *(["key > query"] if spec.causal else [])]
    edges = [f"{end_key} > keys", *([f"{end_key} > {first_query} + 1"] if spec.causal else [])]
    head = f"#pragma unroll\nfor (int i = 0; i < {count}; i++) {{\nconst int query = {query}, key = {key};"
    place = "mask_rows[query * sizes.mask_row + key * sizes.mask_column]"
    lines = []
    if spec.mask is not None:
        beyond = " || ".join(["query >= queries", *tests])
        if spec.mask is bool_:
            scaled = "s[i] * scale_log2" if prescaled(spec) else "s[i]"
            lines += [head, f"if ({beyond} || !{place}) s[i] = {hidden};", f"else s[i] = {scaled};", "}"]
        else:
            added = f"__fmaf_rn(s[i], scale_log2, {place} * LOG2_E)"
            lines += [head, f"s[i] = {beyond} ? {hidden} : {added};", "}"]
        return "\n".join(lines)
    if prescaled(spec):
        lines += ["#pragma unroll", f"for (int i = 0; i < {count}; i++) s[i] *= scale_log2;"]
    lines += [f"if ({' || '.join(edges)}) {{", head, f"if ({' || '.join(tests)}) s[i] = {hidden};", "}", "}"]
    return "\n".join(lines)
