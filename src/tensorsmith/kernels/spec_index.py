"""IndexSpec: kernels that read or write one tensor at positions given by others.

One form covers gathers and scatters. At every point p of a rectangular domain

    place(p) = sum of coordinate * stride of `table` over the axes + sum over the indices of index_k(p) * step_k
    gather: other[p] = table[place(p)]   scatter: table[place(p)] = other[p]   scatter_add: table[place(p)] += other[p]

    embedding, index_select(0):  domain (N, D), index strides (1, 0), table strides (0, 1), step D, size V
    gather(dim=1):               domain (I, J), index strides (J, 1), table strides (C, 0), step 1, size C
    x[i, t[i]] (class pick):     domain (N,),   index strides (1,),   table strides (C,),   step 1, size C
    x[a, b] (advanced):          domain (N,),   two indices, table strides (0,), steps (C, 1), sizes (R, C)
    embedding's backward:        the embedding's spec with mode scatter_add, `table` the gradient, `other` the rows
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec import Operand

MODES = ("gather", "scatter", "scatter_add")


@dataclass(frozen=True)
class IndexOperand:
    """One index tensor (int32 or int64): `step` elements of the table per unit, valid in [0, size).

    wrap: whether -size..-1 count from the end.
    """

    operand: Operand
    step: int
    size: int
    wrap: bool = False


@dataclass(frozen=True)
class IndexSpec:
    """One gather or scatter; launch words are the addresses of the table, of each index, and of `other`.

    domain: extents, all >= 1. table, other: the same dtype, strides per domain axis (the table's are 0 along axes
    that only the indices walk). A scatter changes the table in place: whatever it does not touch keeps its value.
    Points of a scatter_add are added in domain order, so the result does not depend on threads.

    An index out of range leaves 1 + its position (row-major, over the axes along which an index has a stride) in the
    error word; the element is not read or written.
    """

    mode: str
    domain: tuple[int, ...]
    table: Operand
    indices: tuple[IndexOperand, ...]
    other: Operand
    name: str = "index"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"IndexSpec: mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.table.dtype is not self.other.dtype:
            raise ValueError(f"IndexSpec: table is {self.table.dtype.name} but other is {self.other.dtype.name}")

    @property
    def dtype(self) -> DType:
        """The element type that is moved."""
        return self.table.dtype
