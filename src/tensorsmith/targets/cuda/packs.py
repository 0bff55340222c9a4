"""Lines of kernels that test and round packs of neighbouring elements (`memory_functions.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import Structure
from tensorsmith.kernels.spec import Kind
from tensorsmith.targets.cuda.body import Leaf, Scope, needed_for, random_blocks, reports_errors
from tensorsmith.targets.cuda.index_plan import PACK_BYTES
from tensorsmith.targets.cuda.scalars import memory_type


def aligned_test(packed: Mapping[str, DType], width: int) -> str:
    """Whether the addresses of operands (names and dtypes) are multiples of their packs' words."""
    by_bytes: dict[int, list[str]] = {}
    for name, dtype in packed.items():
        needed = min(PACK_BYTES, dtype.itemsize * width)
        if needed > dtype.itemsize:
            by_bytes.setdefault(needed, []).append(f"reinterpret_cast<unsigned long long>({name})")
    tests = [f"(({' | '.join(addresses)}) & {needed - 1}) == 0" for needed, addresses in sorted(by_bytes.items())]
    return " && ".join(tests) or "true"


def narrowed(structure: Structure, value: int) -> int | None:
    """The float32 value that a half value is rounded from, so that two are rounded at once; None where there is none."""
    instr = structure.body[value]
    if instr.kind is Kind.CAST and instr.dtype.is_half and structure.body[instr.args[0]].dtype is dtypes.float32:
        return instr.args[0]
    return None


def narrow_line(dtype: DType, pack: str, values: str) -> str:
    """A statement that rounds an array of floats to a pack of halves."""
    return f"narrow_pack_{dtype.name}({pack}, {values});"


def computed_packs(
    structure: Structure, known: Mapping[int, str], leaf: Leaf, width: int, count: str
) -> list[str]:
    """Lines that compute a pack `y{k}` for every output from packs of inputs.

    known: values outside; leaf: how a LOAD or INDEX of element `e` is written; count: how many elements of the pack exist,
    looked at where what is computed of others could be an error
    """
    outputs = range(structure.first_output, structure.operand_count)
    halves = {k: narrowed(structure, value) for k, value in zip(outputs, structure.values)}
    roots = [value if (half := halves[k]) is None else half for k, value in zip(outputs, structure.values)]
    scope = Scope(structure, "    ", leaf, dict(known))
    for k, root in zip(outputs, roots):
        target = f"y{k}.at[e]" if halves[k] is None else f"f{k}[e]"
        scope.line(f"{target} = {scope.value(root)};")
    lines = random_blocks(structure.body, needed_for(structure, roots, known))
    for k in outputs:
        floats = f" float f{k}[{width}];" if halves[k] is not None else ""
        lines.append(f"Pack<{memory_type(structure.operand_dtypes[k])}, {width}> y{k};{floats}")
    lines += ["#pragma unroll", f"for (int e = 0; e < {width}; e++) {{"]
    if reports_errors(structure.body):
        lines.append(f"    if (e >= {count}) break;")
    lines += [*scope.lines, "}"]
    for k in outputs:
        if halves[k] is not None:
            lines.append(narrow_line(structure.operand_dtypes[k], f"y{k}", f"f{k}"))
    return lines
