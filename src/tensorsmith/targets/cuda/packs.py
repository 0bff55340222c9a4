"""Lines of kernels that test and round packs of neighbouring elements (`memory_functions.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import Structure
from tensorsmith.kernels.spec import Kind
from tensorsmith.targets.cuda.index_plan import PACK_BYTES


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
