"""GemmSpec: a batch of matrix products with what is computed of every result before it is stored."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.epilogue import Body

Strides = tuple[int, int, int, int]  # in elements: of the outer and inner batch axes, of rows, of columns


@dataclass(frozen=True)
class GemmSpec:
    """C[i, j] (M, N) = body(A[i, j] (M, K) @ B[i, j] (K, N), operands beside the results).

    Launch words are the addresses of A, B, C, then of the operands beside the results; each that of the first element.

    dtype:   of A, B, C and the operands beside: float16 and bfloat16 accumulate in float32, integers wrap
    batch:   extents of the two batch axes
    a, b, c: strides of (batch, batch, rows, columns), none negative, 0 where all share: A's columns and B's rows run along K
    body:    computed of each result, or None; LOAD 0 is the result (in the compute dtype: it is not rounded before),
             LOAD k the operand beside[k - 1]
    beside:  strides of those operands, as those of C
    allow_tf32: whether float32 products may round their operands to 10 bits of mantissa (tensor cores)
    """

    dtype: DType
    batch: tuple[int, int]
    M: int
    N: int
    K: int
    a: Strides
    b: Strides
    c: Strides
    body: Body | None = None
    beside: tuple[Strides, ...] = ()
    allow_tf32: bool = False

    @property
    def results(self) -> int:
        """How many elements C has."""
        return math.prod(self.batch) * self.M * self.N

    @property
    def flops(self) -> int:
        """Operations of the product alone."""
        return 2 * self.results * self.K

    @property
    def bytes_moved(self) -> int:
        """Every element of every operand once."""
        size = self.dtype.itemsize
        operands = ((self.a, (self.M, self.K)), (self.b, (self.K, self.N)), (self.c, (self.M, self.N)))
        beside = tuple((strides, (self.M, self.N)) for strides in self.beside)
        return size * sum(
            math.prod(extent for extent, stride in zip((*self.batch, *shape), strides) if stride)
            for strides, shape in (*operands, *beside)
        )

    def transposed(self) -> GemmSpec:
        """The same work with rows and columns exchanged: C^T = B^T A^T. Its first two words are B and A."""
        return GemmSpec(
            self.dtype, self.batch, self.N, self.M, self.K, _exchanged(self.b), _exchanged(self.a), _exchanged(self.c),
            self.body, tuple(_exchanged(strides) for strides in self.beside), self.allow_tf32,
        )  # fmt: skip


def _exchanged(strides: Strides) -> Strides:
    outer, inner, row, column = strides
    return outer, inner, column, row
