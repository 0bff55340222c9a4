"""What the forward and the backward kernel of recurrent layers share: how a chunk walks the steps, and its products.

A chunk is a range of the batch, whose elements never meet: it takes its rows through all steps by itself. `table` holds the
steps in the order of the layer (`ir/recurrent.py:steps`), four words each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_kernels import Kernels
from tensorsmith.targets.cpu.tiled_kernel import TiledKernel

STEP_WORDS = 4
WORDS = (
    "batch", "hidden", "steps", "table", "per_chunk", "space", "slot", "w_row", "pack_transposed", "pack_rows",
)  # fmt: skip

_PRODUCT = (
    *(("ptr", name) for name in "ABC"),
    *(("i64", name) for name in ("K", "columns", "a_row", "slot", "c_row", "flags")),
    *(("i64", f"{kind}_{name}") for kind in ("big", "small") for name in ("count", "rows", "wide", "narrow")),
)


@dataclass(frozen=True)
class RecurrentStructure:
    """What a compiled kernel depends on.

    keep: what the gradient reads is stored; bias: of the product; grad_kept: what was kept has gradients of its own.
    """

    dtype: DType
    mode: str
    backward: bool
    keep: bool = True
    bias: bool = False
    grad_kept: bool = False


def product_function(pieces: Kernels) -> Function:
    """C (+)= A B for a B in packed panels: `big_count` tiles of rows, then `small_count` of one row less."""
    f = Function("product", _PRODUCT, attributes="noinline")
    size, panel = pieces.storage_size, pieces.panel
    above = f.mul("%big_count", "%big_rows")
    a_small, c_small = (f.offset(f"%{x}", f.mul(above, f"%{x.lower()}_row")) for x in "AC")
    with f.loop(0, "%columns", panel, name="panel") as p:
        width = f.minimum(panel, f.sub("%columns", p.index))
        b = f.offset("%B", f.mul(f.udiv(p.index, panel), "%slot"))
        wide = f.compare("sgt", width, pieces.lanes)
        across = f.mul(p.index, size)
        for kind, a, c in (("big", "%A", "%C"), ("small", a_small, c_small)):
            address = f.value(f"inttoptr i64 {f.select(wide, 'i64', f'%{kind}_wide', f'%{kind}_narrow')} to ptr")
            with f.if_(f.compare("sgt", f"%{kind}_count", 0)):
                f.do(
                    f"call void {address}(ptr {a}, ptr {b}, ptr {f.offset(c, across)}, i64 %K, i64 %{kind}_count, i64 %a_row, "
                    f"i64 {size}, i64 {panel * size}, i64 %c_row, i64 {width}, ptr null, i64 %flags, ptr null, i64 0)"
                )
    return f


def tile_words(pieces: Kernels) -> tuple[str, ...]:
    """Names of the words that hold the tiles: by rows, of two vectors and of one."""
    return tuple(f"{kind}_{rows}" for kind in ("wide", "narrow") for rows in range(1, pieces.max_rows + 1))


class Layer(TiledKernel):
    """A kernel of a recurrent layer while it is written."""

    def __init__(
        self, structure: RecurrentStructure, pieces: Kernels, name: str, launch: Sequence[str], words: Sequence[str]
    ) -> None:
        super().__init__(pieces, name, launch, words)
        self.structure = structure
        self.mode = structure.mode
        self.tiles = self.first_word + len(words)  # where the tiles' addresses start
        f, w = self.f, self.w
        self.row = f.mul(w["hidden"], self.size)  # bytes of one block of a row
        self.start = f.mul(f.value("zext i32 %chunk to i64"), w["per_chunk"])
        self.end = f.minimum(f.add(self.start, w["per_chunk"]), w["batch"])

    def result(self, name: str) -> str:
        """Where a part of the result starts."""
        return self.f.offset(self.at["result"], self.w[f"at_{name}"])

    def state_rows(self, operand: str, stride: Value, target: str) -> str:
        """Copy the chunk's rows of a state into a part of the result, where it lives; the address of the first of them."""
        f = self.f
        place = f.offset(target, f.mul(self.start, self.row))
        source = f.offset(self.at[operand], f.mul(self.start, stride))
        with f.loop(0, f.sub(self.end, self.start), 1, name=f"row of {operand} copied") as each:
            row, to = f.offset(source, f.mul(each.index, stride)), f.offset(place, f.mul(each.index, self.row))
            f.call("void", "llvm.memcpy.p0.p0.i64", ("ptr", to), ("ptr", row), ("i64", self.row), ("i1", "false"))
        return place

    @contextmanager
    def steps(self, backwards: bool) -> Iterator[tuple[Value, str, str, str]]:
        """The body runs for every step with rows of this chunk: how many, then `at`, `before` and `linked` of `Step`."""
        f, w = self.f, self.w
        table = f.value(f"inttoptr i64 {w['table']} to ptr")
        with f.loop(0, w["steps"], 1, name="step") as step:
            number = f.sub(f.sub(w["steps"], step.index), 1) if backwards else step.index
            entry = f.offset(table, f.mul(number, STEP_WORDS * 8))
            at, count, before, linked = (f.word(entry, k) for k in range(STEP_WORDS))
            rows = f.sub(f.minimum(count, self.end), self.start)
            with f.if_(f.compare("sgt", rows, 0)):
                yield rows, at, before, linked

    def product(
        self, a: str, b: str, c: str, depth: Value, rows: Value, columns: Value, a_row: Value, c_row: Value, accumulate: int
    ) -> None:
        """C = A B, or C += A B, on the fewest tiles of nearly equal height."""
        f, most = self.f, self.pieces.max_rows
        tiles = f.udiv(f.add(rows, most - 1), most)
        height = f.udiv(rows, tiles)
        more = f.urem(rows, tiles)
        first = self.tiles - 1

        def address(kind: int, row: Value) -> str:
            # of a row more than the most there is none: it is asked for by no tile, and the word of the most is read
            return f.word("%args", f.add(first + kind * most, f.minimum(row, most)))

        taller = f.add(height, 1)
        numbers = [
            depth, columns, a_row, self.w["slot"], c_row, accumulate,
            more, taller, address(0, taller), address(1, taller),
            f.sub(tiles, more), height, address(0, height), address(1, height),
        ]  # fmt: skip
        f.do(f"call void @product(ptr {a}, ptr {b}, ptr {c}, {', '.join(f'i64 {n}' for n in numbers)})")

    def each_row(self, rows: Value, body: Callable[[Value], None]) -> None:
        """`body(row)` for every row of the step, counted from the chunk's first."""
        with self.f.loop(0, rows, 1, name="row of the step") as each:
            body(each.index)

    def block(self, pointer: str, number: int, column: Value) -> str:
        """A column of block `number` of a row."""
        f = self.f
        return f.offset(f.offset(pointer, f.mul(self.row, number)), f.mul(column, self.size))

    def read(self, pointer: str, number: int, column: Value, mask: str | None) -> str:
        """A vector of a row's block."""
        return self.lanes.load(self.element, self.block(pointer, number, column), mask)

    def write(self, value: str, pointer: str, number: int, column: Value, mask: str | None) -> None:
        """Store a vector into a row's block."""
        self.lanes.store(self.element, value, self.block(pointer, number, column), mask)

    def plus(self, a: str, b: str) -> str:
        """a + b."""
        return self.op("fadd", a, b)

    def times(self, *values: str) -> str:
        """The product of all, from the left."""
        found = values[0]
        for value in values[1:]:
            found = self.op("fmul", found, value)
        return found

    def rest(self, value: str) -> str:
        """1 - value."""
        return self.op("fsub", self.one, value)
