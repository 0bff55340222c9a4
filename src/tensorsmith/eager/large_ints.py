"""Python ints of 64 unsigned bits (2**63 to 2**64 - 1) as operands.

Run-time scalars are handed to kernels as int64. An int above that makes the launch fail, and the call is made again with a
number of the same meaning: a float where the result is computed in floating point, else the int64 of the same 64 bits, which
is what wrapping arithmetic makes of it. PyTorch does the same; ints beyond 64 bits are an OverflowError in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import promote_types, uint64
from tensorsmith.core.layout import Layout
from tensorsmith.eager.operator import Kind, Operation


def call_again(operation: Operation, kinds: Sequence[Kind], attrs: dict[str, Any], operands: Sequence[Any]) -> Any:
    """The call that failed with OverflowError, with ints of 64 unsigned bits replaced.

    Raises OverflowError for an int that has more bits, RuntimeError beside bool, which has no common type with uint64.
    """
    dtypes = [k.dtype for k in kinds if isinstance(k, Layout)]
    outputs = operation.program(kinds, attrs).graph.outputs
    floating = any(d.kind == "f" for d in dtypes) or any(n.dtype.kind == "f" for n in outputs)
    replaced: list[Any] = []
    for x in operands:
        if isinstance(x, int) and not -(1 << 63) <= x < 1 << 63:
            if not 0 <= x < 1 << 64:
                raise OverflowError(f"{operation.name}: the int {x} does not fit into 64 bits")
            for dtype in dtypes:
                if dtype.kind == "b":
                    promote_types(dtype, uint64)
            x = float(x) if floating else x - (1 << 64)
        replaced.append(x)
    if all(a is b for a, b in zip(replaced, operands)):
        raise OverflowError(f"{operation.name}: a number does not fit into 64 bits")
    return operation(*replaced, **attrs)
