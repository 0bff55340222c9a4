"""The transforms of Winograd's convolution as instructions on vectors, one tile a lane.

Points come in pairs +-p (`ir/winograd.py`), so the sums for both share an even and an odd half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tensorsmith.ir.winograd import Form
from tensorsmith.targets.cpu.build import Function, Value, float_literal
from tensorsmith.targets.cpu.gemm_vectors import Vectors

Rule = Callable[[list[Value]], list[Value]]


class Transforms:
    """The transforms of a form on vectors: each rule takes and gives the elements of one row or column."""

    def __init__(self, form: Form, f: Function, vectors: Vectors) -> None:
        self.form, self.f, self.vectors = form, f, vectors

    def both_ways(self, rule: Rule, d: list[list[Value]]) -> list[list[Value]]:
        """A rule on the columns, then on the rows of a matrix of vectors."""
        columns = [rule([row[j] for row in d]) for j in range(len(d[0]))]
        return [rule([column[i] for column in columns]) for i in range(len(columns[0]))]

    @property
    def in_passes(self) -> bool:
        """Whether a transform takes columns, then rows, through memory: far more elements than there are registers."""
        return self.form.products > 2 * self.vectors.registers

    def scratch(self) -> str:
        """Memory for `rows`, of the function being written: to ask for in its entry block."""
        return self.f.stack(self.vectors.type, self.form.products, 64) if self.in_passes else ""

    def rows(self, rule: Rule, element: Callable[[int, int], Value], scratch: str) -> Iterator[list[Value]]:
        """`both_ways` of the matrix of `element(i, j)`, row by row of the result."""
        side, bytes_of_vector = self.form.side, self.vectors.lanes * self.vectors.compute_size
        if not self.in_passes:
            yield from self.both_ways(rule, [[element(i, j) for j in range(side)] for i in range(side)])
            return
        count = 0
        for j in range(side):
            column = rule([element(i, j) for i in range(side)])
            count = len(column)
            for i, value in enumerate(column):
                self.vectors.store(self.f, value, self.f.offset(scratch, (i * side + j) * bytes_of_vector))
        for i in range(count):
            places = [self.f.offset(scratch, (i * side + j) * bytes_of_vector) for j in range(side)]
            yield rule([self.vectors.load(self.f, place) for place in places])

    def plus(self, a: Value, factor: float, b: Value) -> Value:
        """a + factor * b."""
        if abs(factor) == 1:
            return self.f.value(f"{'fadd' if factor == 1 else 'fsub'} {self.vectors.type} {a}, {b}")
        return self.vectors.multiply_add(self.f, self._number(factor), b, a)

    def times(self, factor: float, a: Value) -> Value:
        """factor * a."""
        return a if factor == 1 else self.f.value(f"fmul {self.vectors.type} {self._number(factor)}, {a}")

    def _number(self, number: float) -> str:
        return "<" + ", ".join([f"{self.vectors.scalar} {float_literal(number)}"] * self.vectors.lanes) + ">"

    def of_input(self, d: list[Value]) -> list[Value]:
        """B' d."""
        squares = [p * p for p in self.form.pairs]

        def whole(d: list[Value]) -> Value:  # the product of (t t - square) over all pairs
            if len(squares) == 1:
                return self.plus(d[2], -squares[0], d[0])
            return self.plus(self.plus(d[4], -sum(squares), d[2]), squares[0] * squares[1], d[0])

        out = [whole(d)]
        for number, p in enumerate(self.form.pairs):
            even, odd = d[2], d[1]
            for other in squares[:number] + squares[number + 1 :]:
                even, odd = self.plus(d[4], -other, d[2]), self.plus(d[3], -other, d[1])
            out += [self.plus(even, p, odd), self.plus(even, -p, odd)]
        return [*out, whole(d[1:])]

    def of_kernel(self, g: list[Value]) -> list[Value]:
        """G g."""
        matrix = self.form.kernel_matrix()
        out = [self.times(matrix[0, 0], g[0])]
        for row in range(1, len(matrix) - 1, 2):
            even = self.plus(self.times(matrix[row, 0], g[0]), matrix[row, 2], g[2])
            out += [self.plus(even, matrix[row, 1], g[1]), self.plus(even, -matrix[row, 1], g[1])]
        return [*out, g[2]]

    def of_output(self, m: list[Value]) -> list[Value]:
        """A' m."""
        halves = [[self.plus(m[1 + 2 * k], sign, m[2 + 2 * k]) for sign in (1, -1)] for k in range(len(self.form.pairs))]
        out = []
        for i in range(self.form.outputs):
            sums = [self.times(p**i, half[i % 2]) for p, half in zip(self.form.pairs, halves)][:1]
            for p, half in list(zip(self.form.pairs, halves))[1:]:
                sums.append(self.plus(sums[-1], p**i, half[i % 2]))
            total = sums[-1]
            for more in ([m[0]] if i == 0 else []) + ([m[-1]] if i == self.form.outputs - 1 else []):
                total = self.plus(total, 1, more)
            out.append(total)
        return out
