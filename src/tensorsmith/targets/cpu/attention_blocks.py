"""What the forward and the backward kernel of attention share: blocks of scores, products on the tiles of the matrix
multiplication, panels packed as it packs them, and where operands lie.

Scores exist for at most `ROWS` queries and `COLUMNS` keys at a time, in the workspace of a chunk. Every extent and stride is a
word of the launch; a kernel depends on dtype, kind of mask and causality only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.ir.dropout import BLOCKS, GROUP
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_kernels import Kernels
from tensorsmith.targets.cpu.random import block, round_keys
from tensorsmith.targets.cpu.tiled_kernel import TiledKernel

ROWS = 96  # most queries of a block: whole tiles on every instruction set
COLUMNS = 192  # keys of a block: whole tiles, whole panels and whole groups of random bits
TILES = ("wide", "narrow", "query_wide", "query_narrow", "key_wide", "key_narrow")  # whole tiles; the rest of queries, of keys

_PRODUCT = (
    *(("ptr", name) for name in "ABC"),
    *(("i64", name) for name in ("K", "rows", "columns", "a_row", "a_k", "slot", "c_row", "flags")),
    *(("i64", name) for name in ("wide", "narrow", "rest_wide", "rest_narrow")),
)


@dataclass(frozen=True)
class AttentionStructure:
    """What a compiled kernel depends on. mask: "", "bool" or "float"; spread: it is the same for all keys of a row; dropout:
    whether weights are dropped."""

    dtype: DType
    causal: bool
    mask: str
    spread: bool
    backward: bool
    dropout: bool = False


def product_function(pieces: Kernels) -> Function:
    """C (+)= A B for a B in packed panels: whole tiles of rows, then one tile of those that are left."""
    f = Function("product", _PRODUCT, attributes="noinline")
    size, panel, most = pieces.storage_size, pieces.panel, pieces.max_rows
    count = f.udiv("%rows", most)
    whole = f.mul(count, most)
    rest = f.sub("%rows", whole)
    a_rest = f.offset("%A", f.mul(whole, "%a_row"))
    c_rest = f.offset("%C", f.mul(whole, "%c_row"))
    with f.loop(0, "%columns", panel, name="panel") as p:
        width = f.minimum(panel, f.sub("%columns", p.index))
        b = f.offset("%B", f.mul(f.udiv(p.index, panel), "%slot"))
        wide = f.compare("sgt", width, pieces.lanes)
        across = f.mul(p.index, size)
        for number, a, c, kind in ((count, "%A", "%C", ""), (rest, a_rest, c_rest, "rest_")):
            address = f.value(f"inttoptr i64 {f.select(wide, 'i64', f'%{kind}wide', f'%{kind}narrow')} to ptr")
            times: Value = number if not kind else 1
            with f.if_(f.compare("sgt", number, 0)):
                f.do(
                    f"call void {address}(ptr {a}, ptr {b}, ptr {f.offset(c, across)}, i64 %K, i64 {times}, i64 %a_row, "
                    f"i64 %a_k, i64 {panel * size}, i64 %c_row, i64 {width}, ptr null, i64 %flags, ptr null, i64 0)"
                )
    return f


def launch_words(structure: AttentionStructure, operands: Sequence[str]) -> tuple[str, ...]:
    """What a launch is given."""
    given = [*operands, *["mask"] * bool(structure.mask), *["streams"] * structure.dropout]
    return (*given, "result", "workspace")


class Blocks(TiledKernel):
    """A kernel of attention while it is written: its words, and the pieces that both directions are made of."""

    def __init__(
        self, structure: AttentionStructure, pieces: Kernels, name: str, launch: Sequence[str], words: Sequence[str]
    ) -> None:
        super().__init__(pieces, name, launch, words, ("scale", "factor"))
        self.structure = structure
        self.width = COLUMNS * self.size
        self.scale = self._number("scale")
        self.infinite = self.lanes.constant(self.element, float("-inf"))

        if structure.dropout:
            self.factor, self.limit = self._number("factor"), self.lanes.splat("i64", self.w["limit"])
            self.kept = self.f.offset(self.workspace, self.w["at_kept"])

    def _number(self, name: str) -> str:
        """A word that is a double, in every lane."""
        word = self.w[name]
        scalar = word if self.element == "double" else self.f.value(f"fptrunc double {word} to float")
        return self.lanes.splat(self.element, scalar)

    def rest(self, kind: str) -> Sequence[Value]:
        """The tiles for what is left of the queries, or of the keys."""
        return self.w[f"{kind}_wide"], self.w[f"{kind}_narrow"]

    def operand(self, name: str, outer: Value, inner: Value) -> str:
        """Where an operand's batch starts."""
        f, w = self.f, self.w
        return f.offset(self.at[name], f.add(f.mul(outer, w[f"{name}_outer"]), f.mul(inner, w[f"{name}_inner"])))

    def result(self, start: str, outer: Value, inner: Value, rows: Value, columns: Value) -> str:
        """Where a batch starts in a result: its rows lie together, or each `beside` those of the others."""
        f, w = self.f, self.w
        step = f.select(f.compare("eq", w["beside"], 1), "i64", rows, 1)
        place = f.add(f.mul(f.mul(outer, rows), w["inner"]), f.mul(inner, step))
        return f.offset(start, f.mul(f.mul(place, columns), self.size))

    def across(self, value: str, join: Callable[[str, str], str]) -> str:
        """All lanes joined, in every lane."""
        distance = 1
        while distance < self.lanes.count:
            value = join(value, self.lanes.rotate(self.element, value, distance))
            distance *= 2
        return value

    def larger(self, a: str, b: str) -> str:
        """The larger of two, the second where the first is NaN: NaN reaches the result through the exponential."""
        return self.lanes.select(self.lanes.compare("ogt", self.element, a, b), self.element, a, b)

    def product(
        self, a: str, b: str, c: str, depth: Value, rows: Value, columns: Value, a_row: Value, a_k: Value, slot: Value,
        c_row: Value, accumulate: Value, rest: Sequence[Value],
    ) -> None:  # fmt: skip
        """C = A B, or C += A B where `accumulate` is 1; `rest` are the tiles for the rows that are no whole tile."""
        w = self.w
        numbers = (depth, rows, columns, a_row, a_k, slot, c_row, accumulate, w["wide"], w["narrow"], *rest)
        text = ", ".join(f"i64 {n}" for n in numbers)
        self.f.do(f"call void @product(ptr {a}, ptr {b}, ptr {c}, {text})")

    def seen(self, number: Value, first: Value, width: Value) -> Value:
        """How many of a block's keys a query sees, where causal only those up to itself; what is behind is not computed.

        number, first, width: of this query, of the block's first key, and how many keys it has.
        """
        f = self.f
        if not self.structure.causal:
            return width
        until = f.add(f.sub(number, first), 1)
        return f.select(f.compare("sgt", until, 0), "i64", f.minimum(until, width), 0)

    def hide(self, rows: Sequence[str], seen: Value, width: Value) -> None:
        """Zeros in rows of weights behind the keys that are seen; the last vector of those is whole."""
        if not self.structure.causal:
            return
        f, lanes = self.f, self.lanes
        start = f.round_down(f.add(seen, lanes.count - 1), lanes.count)
        with f.loop(start, width, lanes.count, name="hidden") as column:
            for row in rows:
                lanes.store(self.element, self.zero, f.offset(row, f.mul(column.index, self.size)))

    def scores(self, row: str, mask: str | None) -> Callable[[Value, str | None], str]:
        """A function of a column of the block (and of the lanes that count): its scores, scaled and masked.

        row: the block's row; mask: that row of the mask.
        """
        f, lanes, element = self.f, self.lanes, self.element
        kind, spread = self.structure.mask, self.structure.spread
        memory = "i8" if kind == "bool" else element
        whole = ""
        if spread and mask is not None:
            whole = lanes.splat(memory, f.load(memory, mask, 1 if kind == "bool" else self.size))

        def at(column: Value, counted: str | None) -> str:
            value = self.op("fmul", lanes.load(element, f.offset(row, f.mul(column, self.size))), self.scale)
            if mask is not None:
                step = 1 if kind == "bool" else self.size
                given = whole if spread else lanes.load(memory, f.offset(mask, f.mul(column, step)), counted)
                if kind == "bool":
                    kept = lanes.convert("trunc", "i8", "i1", given)
                    value = lanes.select(kept, element, value, self.infinite)
                else:
                    value = self.op("fadd", value, given)
            return value if counted is None else lanes.select(counted, element, value, self.infinite)

        return at

    def stream(self, outer: Value, inner: Value) -> tuple[str, str]:
        """The key and the first counter of a batch."""
        start = self.operand("streams", outer, inner)
        return self.f.load("i64", start), self.f.load("i64", self.f.offset(start, self.w["streams_row"]))

    def draw(self, stream: tuple[str, str], number: Value, first: Value, width: Value) -> None:
        """Which weights of a row are dropped (`ir/dropout.py`), as a row of zeros and factors at `kept`.

        number, first, width: of this query, of the block's first key, and how many keys it has.
        """
        f, lanes = self.f, self.lanes
        key, counter = stream
        keys = round_keys(lanes, lanes.splat("i64", key))
        words = f.add(f.mul(number, self.w["row_words"]), first)
        start = f.value(f"lshr i64 {f.add(counter, words)}, 2")
        groups = f.udiv(f.add(width, GROUP - 1), GROUP)
        with f.loop(0, f.mul(groups, BLOCKS), lanes.count, name="block of random bits") as each:
            at = each.index
            numbers = lanes.op("add", "i64", lanes.splat("i64", f.add(start, at)), lanes.iota("i64"))
            column = f.add(f.mul(f.udiv(at, BLOCKS), GROUP), f.urem(at, BLOCKS))
            for k, bits in enumerate(block(lanes, keys, numbers)):
                dropped = lanes.compare("slt", "i64", bits, self.limit)
                value = lanes.select(dropped, self.element, self.zero, self.factor)
                lanes.store(self.element, value, f.offset(self.kept, f.mul(f.add(column, k * BLOCKS), self.size)))

    def times_kept(self, value: str, column: Value, counted: str | None = None) -> str:
        """A vector of weights, or of their gradients, without what is dropped."""
        if not self.structure.dropout:
            return value
        place = self.f.offset(self.kept, self.f.mul(column, self.size))
        return self.op("fmul", value, self.lanes.load(self.element, place, counted))

    def scaled(self, row: str, width: Value, factor: str) -> None:
        """A row of memory times a vector."""

        def step(column: Value, counted: str | None) -> list[str]:
            place = self.f.offset(row, self.f.mul(column, self.size))
            value = self.op("fmul", self.lanes.load(self.element, place, counted), factor)
            self.lanes.store(self.element, value, place, counted)
            return []

        self.along(width, [], step)
