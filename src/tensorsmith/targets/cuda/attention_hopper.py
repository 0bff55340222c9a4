"""What the kernels of attention for Hopper share: tiles by tensor maps, products of warpgroups.

A block is one producer warpgroup, of which one thread asks for copies, and some consumer warpgroups of 64 rows each. Tiles
lie in shared memory in blocks of 64 columns, 128 bytes a row, swizzled.
"""

from __future__ import annotations

from tensorsmith.core.dtypes import bfloat16
from tensorsmith.targets.cuda.attention_spec import AttentionSpec, parameter_types
from tensorsmith.targets.cuda.kernel import TensorMap, Word

ALIGNMENT = 16  # of addresses and strides that a tensor map can express, in bytes
BLOCK = 64  # columns of a tile that lie together
GROUP_BYTES = 32 << 20  # keys and values of the batches that run at once: they stay in the cache
_LARGEST = 1 << 31

NEXT_STAGE = "if (++stage == STAGES) {\nstage = 0;\nparity ^= 1;\n}"
TENSOR_MAP = "struct __align__(64) TensorMap { unsigned long long opaque[16]; };"


def padded(columns: int) -> int:
    """Columns as whole blocks: what is beyond counts as zeros."""
    return -(-columns // BLOCK) * BLOCK


def takes(spec: AttentionSpec) -> bool:
    """Whether strides are what tensor maps can express, and sizes what the kernels are for; of addresses, see `guard_text`."""
    matrices = ("q", "k", "v", "g") if spec.backward else ("q", "k", "v")
    return (
        spec.dtype.is_half
        and max(spec.L, spec.S) + 512 < _LARGEST
        and max(spec.E, spec.F) <= 256
        and all(_describable(spec, name) for name in matrices)
    )


def operand_parameters(spec: AttentionSpec) -> tuple[list[str], list[Word]]:
    """Declarations and words beside the tensor maps: matrices only where their addresses have to be looked at."""
    mapped = ("q", "k", "v", "g") if spec.aligned else ()
    kinds, numbers = parameter_types(spec), range(len(spec.operands) + 1)
    kept = [n for n in numbers if n == len(spec.operands) or spec.names[n] not in mapped]
    return [kinds[n] for n in kept], [Word(n) for n in kept]


def guard_text(spec: AttentionSpec) -> str:
    """A statement that leaves the kernel where an address is no multiple of ALIGNMENT: another kernel follows for that."""
    return "" if spec.aligned else f"if ({misaligned_text(spec)}) return;"


def misaligned_text(spec: AttentionSpec) -> str:
    matrices = [f"(unsigned long long){name}" for name in (("q", "k", "v", "g") if spec.backward else ("q", "k", "v"))]
    return f"(({' | '.join(matrices)}) & {ALIGNMENT - 1}) != 0"


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


def load_text(name: str, to: str, row: str, rows: int, columns: int, barrier: str, cluster: int = 1) -> str:
    """Statements that ask for a tile of `columns` columns from `row` on.

    cluster: of so many blocks that want the same tile, each asks for its part of the rows, for all of them
    """
    place = f"(int)(inner * sizes.{name}_inner_moves), (int)(outer * sizes.{name}_outer_moves), {barrier}"
    lines = []
    for c in range(0, columns, BLOCK):
        if cluster == 1:
            lines.append(f"tensor_load_4d({to} + {c * rows * 2}, &{name}_map, {c}, {row}, {place});")
        else:
            part, all_blocks = rows // cluster, (1 << cluster) - 1
            start = f"{to} + {c * rows * 2} + rank * {128 * part}"
            lines.append(f"tensor_load_4d_for_blocks({start}, &{name}_map, {c}, {row} + rank * {part}, {place}, {all_blocks});")
    return "\n".join(lines)


def products_text(name: str, dtype: str, columns: int, depth: int, a_rows: int, b_rows: int) -> str:
    """A device function: d = a b^T of a tile of 64 rows and one of `columns` rows, in blocks of `a_rows` and `b_rows` rows."""
    return f"""
__device__ __forceinline__ void {name}(float (&d)[{columns // 2}], unsigned int a, unsigned int b) {{
    #pragma unroll
    for (int step = 0; step < {depth // 16}; step++) {{
        const unsigned int along = step % 4 * 32;
        wgmma_n{columns}_{dtype}<0, 0>(
            d, matrix_descriptor(a + step / 4 * {128 * a_rows} + along, 16, 1024),
            matrix_descriptor(b + step / 4 * {128 * b_rows} + along, 16, 1024), step != 0);
    }}
}}"""


def sums_text(name: str, dtype: str, columns: int, rows: int) -> str:
    """A device function: sum += p b of a fragment of `rows` columns and a tile of so many rows and `columns` columns."""
    parameters = f"float (&sum)[{columns // 2}], const unsigned int (&p)[{rows // 16}][4], unsigned int b"
    return f"""
__device__ __forceinline__ void {name}({parameters}) {{
    #pragma unroll
    for (int step = 0; step < {rows // 16}; step++) {{
        wgmma_n{columns}_{dtype}_registers<1>(sum, p[step], matrix_descriptor(b + step * 2048, {128 * rows}, 1024), 1);
    }}
}}"""
