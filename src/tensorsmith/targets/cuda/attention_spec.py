"""What a kernel of attention computes, and the words that its launches take: `ir/attention.py` says what it means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType, float32, float64
from tensorsmith.core.views import Strided
from tensorsmith.ir.dropout import limit, whole_groups
from tensorsmith.targets.cuda.kernel import Constant, Word
from tensorsmith.targets.cuda.scalars import memory_type

FORWARD = ("q", "k", "v")
BACKWARD = ("q", "k", "v", "g", "lse", "delta")


@dataclass(frozen=True)
class AttentionSpec:
    """Attention of outer * inner batches: queries (L, E), keys (S, E), values (S, F); or its gradient.

    dtype:    of q, k, v and g; lse, delta and a mask of numbers have `accumulator`
    operands: by name, as (outer, inner, rows, columns) with strides in elements: FORWARD or BACKWARD, then mask and streams
              where there are any (lse, delta: one column; streams: two rows of one column)
    result:   the dtype of out and lse, or of the gradients: `accumulator` or, for half types, `dtype` (lse then in parts)
    beside:   results have the inner batches of a row side by side
    aligned:  the addresses of q, k, v and g are known to be multiples of 16
    """

    dtype: DType
    backward: bool
    causal: bool
    scale: float
    outer: int
    inner: int
    L: int
    S: int
    E: int
    F: int
    operands: tuple[tuple[str, Strided], ...]
    mask: DType | None = None
    dropout: float = 0.0
    beside: bool = False
    result: DType | None = None
    aligned: bool = False

    @property
    def accumulator(self) -> DType:
        """The dtype of sums, lse and delta."""
        return float64 if self.dtype is float64 else float32

    @property
    def result_dtype(self) -> DType:
        return self.result or self.accumulator

    @property
    def batch(self) -> int:
        return self.outer * self.inner

    @property
    def names(self) -> tuple[str, ...]:
        """The operands in the order of the words; the result follows."""
        return tuple(name for name, _ in self.operands)

    def word(self, name: str) -> Word:
        return Word(self.names.index(name))

    def strides(self, name: str) -> tuple[int, int, int, int]:
        outer, inner, row, column = dict(self.operands)[name].strides
        return outer, inner, row, column

    def results(self) -> list[tuple[int, tuple[int, int, int]]]:
        """For every matrix among the results: where it starts in bytes, and the strides of outer, inner and row."""
        shapes = [(self.L, self.E), (self.S, self.E), (self.S, self.F)] if self.backward else [(self.L, self.F)]
        found, start = [], 0
        for rows, columns in shapes:
            by_row = (rows * self.inner * columns, columns, self.inner * columns)
            by_head = (self.inner * rows * columns, rows * columns, columns)
            found.append((start, by_row if self.beside else by_head))
            start += self.batch * rows * columns * self.result_dtype.itemsize
        return found

    @property
    def lse_start(self) -> int:
        """Where the log-sum-exps, or their parts, start among the results of the forward pass, in bytes."""
        return self.batch * self.L * self.F * self.result_dtype.itemsize

    @property
    def pairs(self) -> int:
        """Scores that count: half of them where causal."""
        return self.batch * self.L * self.S // (2 if self.causal else 1)

    @property
    def flops(self) -> int:
        """Of the products: two forward, five backward."""
        return self.pairs * (2 * (3 * self.E + 2 * self.F) if self.backward else 2 * (self.E + self.F))

    @property
    def bytes_moved(self) -> int:
        read = self.dtype.itemsize * (self.L + self.S) * (self.E + self.F)
        written = (self.L + self.S) * self.E + self.S * self.F if self.backward else self.L * self.F
        return self.batch * (read + self.result_dtype.itemsize * written)

    def sizes(self) -> list[tuple[str, int | float]]:
        """The words that every kernel takes, as fields of a struct: extents, strides in elements, places of results."""
        fields: list[tuple[str, int | float]] = [
            ("inner", self.inner), ("batch", self.batch), ("L", self.L), ("S", self.S), ("E", self.E), ("F", self.F),
            ("lse_start", self.lse_start), ("limit", limit(self.dropout)), ("row_words", whole_groups(self.S)),
        ]  # fmt: skip
        for name, seen in self.operands:
            fields += [(f"{name}_{level}", s) for level, s in zip(("outer", "inner", "row", "column"), seen.strides)]
        for number, (start, strides) in enumerate(self.results()):
            fields.append((f"result{number}", start))
            fields += [(f"result{number}_{level}", s) for level, s in zip(("outer", "inner", "row"), strides)]
        return [*fields, ("scale", float(self.scale)), ("factor", 1.0 / (1.0 - self.dropout))]


def struct_text(name: str, fields: Sequence[tuple[str, int | float]]) -> str:
    """The declaration of a struct of 64-bit words."""
    lines = [f"    {'double' if isinstance(value, float) else 'long long'} {field};" for field, value in fields]
    return "\n".join([f"struct {name} {{", *lines, "};"])


def constant(fields: Sequence[tuple[str, int | float]]) -> Constant:
    return Constant(tuple(value for _, value in fields))


def parameter_types(spec: AttentionSpec) -> list[str]:
    """The declarations of the operands, in the order of the words, and of the results as bytes."""
    kinds = {"lse": spec.accumulator, "delta": spec.accumulator, "mask": spec.mask}
    found = []
    for name in spec.names:
        dtype = kinds.get(name, spec.dtype)
        kind = "long long" if name == "streams" else memory_type(dtype or spec.dtype)
        found.append(f"const {kind}* __restrict__ {name}")
    return [*found, "char* __restrict__ result"]


def check(spec: AttentionSpec) -> None:
    """ValueError where the parts of a spec do not fit together."""
    expected: tuple[str, ...] = BACKWARD if spec.backward else FORWARD
    expected += ("mask",) * (spec.mask is not None) + ("streams",) * (spec.dropout > 0)
    if spec.names != expected:
        raise ValueError(f"attention takes {expected}, got {spec.names}")
    if not math.prod((spec.batch, spec.L, spec.S, spec.E, spec.F)):
        raise ValueError("attention of nothing has no kernel")
    if spec.result_dtype not in (spec.dtype, spec.accumulator):
        raise ValueError(f"attention of {spec.dtype.name} has no results of {spec.result_dtype.name}")
