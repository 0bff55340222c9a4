"""Kernels of ranks (`kernels/spec_order.py`): sorts, the first k, single ranks. A chunk is a range of rows.

    all    every element of a row becomes a word (`order_keys.py`), the words are sorted (`order_sort.py`)
    least  the first k, few of many: the k-th lowest of the minima of groups of elements is a bound that at least k
           elements do not exceed, and few others; those are collected and sorted
    some   any other ranks: counts of the keys' leading digits, between the least and the largest key, say between which
           bounds the ranks lie; what lies there is collected and sorted

Rows that are not consecutive, or that lie beside each other, are copied first, a few at a time.

Constant words: `WORDS`, then the odometer's table. The workspace of a chunk: counts, words, as much space again, copied rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.spec_order import RankSpec
from tensorsmith.targets.cpu.body import ARGUMENTS, memory_element
from tensorsmith.targets.cpu.build import Function, Value, module_text
from tensorsmith.targets.cpu.chunks import chunk_count
from tensorsmith.targets.cpu.compiled_once import CompiledOnce
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.lower import CompiledKernel, LoweredKernel
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.odometer import Odometer, table
from tensorsmith.targets.cpu.order_keys import Words, key_element, keys_of
from tensorsmith.targets.cpu.order_sort import COUNTS_BYTES, FEW, ORDER, WIDEST_DIGIT, call, order_functions, order_name
from tensorsmith.targets.cpu.vector import Lanes, size_of

WORDS = (
    "extent", "start", "length", "units", "per_chunk", "space", "step", "groups", "digit", "axes",
    "columns", "pitch", "along", "beside", "result_beside",
)  # fmt: skip
_LAUNCH_WORDS = 3
_UNROLLED = 4
_SIDE_BY_SIDE = 8  # rows that are copied together: what they read, and the positions they write, lie in the same lines
_MOST_CHUNKS = 16  # each has a workspace of its own
_LINE = 64
_NANOSECONDS = {"all": 7.0, "least": 0.3, "some": 2.0}  # an element
_LARGEST_SPACE = 1 << 28  # bytes of all workspaces, where one row does not need more


@dataclass(frozen=True)
class RankStructure:
    """What a compiled kernel depends on."""

    dtype: DType
    descending: bool
    way: str  # all, least or some
    apart: bool  # the elements of a row are not consecutive


class _RankKernel:
    """Emits one kernel."""

    def __init__(self, structure: RankStructure, machine: Machine, name: str) -> None:
        self.structure = structure
        self.f = f = Function(name, ARGUMENTS)
        self.element = key_element(structure.dtype)
        self.key_size = size_of(self.element)
        self.lanes = Lanes(f, max(machine.vector_bytes // self.key_size, 2), machine)
        self.kind = self.lanes.type(self.element)
        self.words = Words(structure.dtype.itemsize < 8)
        self.found = f.stack(self.kind, 1, 64)  # a vector of keys, for its lanes to be read one by one
        bits = 8 * self.key_size - 1
        self.highest = self.lanes.constant(self.element, (1 << bits) - 1)
        self.lowest = self.lanes.constant(self.element, -(1 << bits))

    def build(self) -> Function:
        """The whole kernel."""
        f = self.f
        source, result, workspace = (f.word("%args", k, "ptr") for k in range(_LAUNCH_WORDS))
        constant = {name: f.word("%args", _LAUNCH_WORDS + 1 + k) for k, name in enumerate(WORDS)}
        self.extent, self.start, self.length = constant["extent"], constant["start"], constant["length"]
        self.step, self.groups, self.digit = constant["step"], constant["groups"], constant["digit"]
        chunk = f.value("zext i32 %chunk to i64")
        first = f.mul(chunk, constant["per_chunk"])
        last = f.minimum(constant["units"], f.add(first, constant["per_chunk"]))
        self.counts = f.offset(workspace, f.mul(chunk, constant["space"]))
        self.a = f.offset(self.counts, COUNTS_BYTES)
        room = f.mul(f.add(self.extent, 2 * self.lanes.count), self.words.size)
        self.b = f.offset(self.a, room)
        at_table = f.offset("%args", 8 * (_LAUNCH_WORDS + 1 + len(WORDS)))
        way = {"all": self._all, "least": self._least, "some": self._some}[self.structure.way]
        operands = 3 if self.structure.apart else 2
        with Odometer(f, at_table, constant["axes"], operands).walk(first, last, "rows") as offsets:
            self.row, self.result = f.offset(source, offsets[0]), f.offset(result, offsets[1])
            if self.structure.apart:
                self._side_by_side(f.offset(self.b, room), offsets[2], constant, way)
            else:
                way()
        return f

    def _side_by_side(self, copies: str, column: Value, constant: dict[str, str], way: Callable[[], None]) -> None:
        """Rows from number `column` on, each after it has been copied."""
        f, place = self.f, self.result
        width = f.minimum(f.sub(constant["columns"], column), _SIDE_BY_SIDE)
        self._copy(copies, width, constant["along"], constant["beside"], constant["pitch"])
        with f.loop(0, width, 1, name="rows side by side") as loop:
            self.row = f.offset(copies, f.mul(loop.index, constant["pitch"]))
            self.result = f.offset(place, f.mul(loop.index, constant["result_beside"]))
            way()

    def _copy(self, copies: str, width: Value, along: Value, beside: Value, pitch: Value) -> None:
        """Rows that lie side by side, each on its own."""
        f, element, size = self.f, memory_element(self.structure.dtype), self.structure.dtype.itemsize
        source = self.row

        def one(pointer: str, target: str) -> None:
            f.store(f.load(element, pointer, size), element, target, size)

        def together() -> None:
            with f.loop(0, self.extent, 1, name=f"elements of {_SIDE_BY_SIDE} rows") as loop:
                pointer = f.offset(source, f.mul(loop.index, along))
                target = f.offset(copies, f.mul(loop.index, size))
                for k in range(_SIDE_BY_SIDE):
                    one(f.offset(pointer, f.mul(beside, k)), f.offset(target, f.mul(pitch, k)))

        def one_by_one() -> None:
            with f.loop(0, width, 1) as row, f.loop(0, self.extent, 1) as loop:
                pointer = f.offset(f.offset(source, f.mul(row.index, beside)), f.mul(loop.index, along))
                one(pointer, f.offset(f.offset(copies, f.mul(row.index, pitch)), f.mul(loop.index, size)))

        f.branch(f.compare("eq", width, _SIDE_BY_SIDE), together, one_by_one)

    def _keys(self, index: Value, mask: str | None = None) -> str:
        pointer = self.f.offset(self.row, self.f.mul(index, self.structure.dtype.itemsize))
        return keys_of(self.lanes, self.structure.dtype, self.structure.descending, pointer, mask)

    def _kept(self, keys: str, mask: str | None, other: str) -> str:
        return keys if mask is None else self.lanes.select(mask, self.element, keys, other)

    def _rest(self, index: Value) -> str:
        """The lanes before the end of a row."""
        return self.lanes.below(self.f.sub(self.extent, index))

    def _order(self, n: Value, skip: Value) -> None:
        values = [self.a, self.b, n, self.counts, skip, self.length, self.result, self.step]
        call(self.f, order_name(self.words), ORDER, values)

    # ---------------------------------------------------------------------------------------------------------- all

    def _all(self) -> None:
        f, count = self.f, self.lanes.count
        whole = f.round_down(self.extent, count)

        def store(index: Value, mask: str | None) -> None:  # behind the end there is room for a vector
            pointer = f.offset(self.a, f.mul(index, self.words.size))
            self.words.store_vector(self.lanes, self.element, self._keys(index, mask), index, pointer)

        with f.loop(0, whole, count, name=f"{count} words") as loop:
            store(loop.index, None)
        with f.loop(whole, self.extent, count) as rest:
            store(rest.index, self._rest(rest.index))
        self._order(self.extent, self.start)

    # -------------------------------------------------------------------------------------------------------- least

    def _least(self) -> None:
        f, count = self.f, self.lanes.count
        minima = self.b

        def at(group: Value) -> str:
            return f.offset(minima, f.mul(group, self.key_size))

        def meet(group: Value, index: Value, mask: str | None = None) -> None:
            keys = self._kept(self._keys(index, mask), mask, self.highest)
            before = self.lanes.load(self.element, at(group))
            self.lanes.store(self.element, self.lanes.intrinsic("smin", self.element, before, keys), at(group))

        def each(index: Value, unroll: int, act: Callable[[Value, Value], None]) -> None:
            with f.loop(0, self.groups, unroll * count) as inner:
                for k in range(unroll):
                    group = f.add(inner.index, k * count)
                    act(group, f.add(index, group))

        each(0, 1, lambda group, index: self.lanes.store(self.element, self._keys(index), at(group)))
        blocks = f.mul(f.udiv(self.extent, self.groups), self.groups)
        with f.loop(self.groups, blocks, self.groups, name="minima of groups") as loop:
            each(loop.index, 2, meet)
        whole = f.add(blocks, f.round_down(f.sub(self.extent, blocks), count))
        with f.loop(blocks, whole, count) as loop:
            meet(f.sub(loop.index, blocks), loop.index)
        with f.loop(whole, self.extent, count) as loop:
            meet(f.sub(loop.index, blocks), loop.index, self._rest(loop.index))
        bound = self._bound(at)
        self._order(self._collect(None, bound), 0)

    def _bound(self, at: Callable[[Value], str]) -> str:
        """A key that at least `length` of the minima do not exceed, and not many more: found by halving intervals."""
        f, lanes, count = self.f, self.lanes, self.lanes.count
        with f.loop(0, self.groups, count, [(self.kind, self.highest), (self.kind, self.lowest)]) as loop:
            keys = lanes.load(self.element, at(loop.index))
            low, high = loop.carried
            loop.next = [lanes.intrinsic("smin", self.element, low, keys), lanes.intrinsic("smax", self.element, high, keys)]
        low, high = (self._reduced(name, str(value)) for name, value in zip(("smin", "smax"), loop.out))
        enough = f.add(self.length, f.udiv(self.length, 8))
        with f.loop(0, 8 * self.key_size, 1, [("i64", low), ("i64", high)], name="halved intervals of the bound") as halving:
            low, high = halving.carried

            def halved() -> list[Value]:
                middle = f.add(low, f.value(f"lshr i64 {f.sub(high, low)}, 1"))
                narrow = middle if self.key_size == 8 else f.value(f"trunc i64 {middle} to i32")
                limit = lanes.splat(self.element, str(narrow))
                with f.loop(0, self.groups, count, [(self.kind, "zeroinitializer")]) as inner:
                    inside = lanes.compare("sle", self.element, lanes.load(self.element, at(inner.index)), limit)
                    one = lanes.convert("sext", "i1", self.element, inside)
                    inner.next = [lanes.op("sub", self.element, inner.carried[0], one)]
                counted = self._reduced("add", str(inner.out[0]))
                below = f.compare("slt", counted, self.length)
                close = f.value(f"and i1 {f.compare('sge', counted, self.length)}, {f.compare('sle', counted, enough)}")
                following = f.select(below, "i64", f.add(middle, 1), low)
                upper = f.select(below, "i64", high, middle)
                return [f.select(close, "i64", middle, following), upper]

            open_ = f.compare("ne", low, high)
            halving.next = list(f.choose(open_, ["i64", "i64"], halved, lambda: [low, high]))
        return str(halving.out[1])

    def _reduced(self, name: str, vector: str) -> str:
        """A reduction over the lanes, as i64."""
        found = self.f.call(
            self.element, f"llvm.vector.reduce.{name}.v{self.lanes.count}{self.element}", (self.kind, vector)
        )
        return found if self.key_size == 8 else self.f.value(f"sext i32 {found} to i64")

    # --------------------------------------------------------------------------------------------------------- some

    def _some(self) -> None:
        f, lanes, count = self.f, self.lanes, self.lanes.count
        whole = f.round_down(self.extent, count)

        def wider(index: Value, bounds: list[str], mask: str | None = None) -> list[Value]:
            keys = self._keys(index, mask)
            low = lanes.intrinsic("smin", self.element, bounds[0], self._kept(keys, mask, self.highest))
            return [low, lanes.intrinsic("smax", self.element, bounds[1], self._kept(keys, mask, self.lowest))]

        with f.loop(0, whole, count, [(self.kind, self.highest), (self.kind, self.lowest)], name="least and largest") as loop:
            loop.next = wider(loop.index, loop.carried)
        with f.loop(whole, self.extent, count, [(self.kind, value) for value in loop.out]) as rest:
            rest.next = wider(rest.index, rest.carried, self._rest(rest.index))
        base, high = (self._reduced(name, str(value)) for name, value in zip(("smin", "smax"), rest.out))
        some = f.value(f"or i64 {f.sub(high, base)}, 1")
        bits = f.sub(64, f.call("i64", "llvm.ctlz.i64", ("i64", some), ("i1", "true")))
        shift = f.sub(bits, f.minimum(bits, self.digit))
        entries = f.value(f"shl i64 1, {self.digit}")
        f.call("void", "llvm.memset.p0.i64", ("ptr", self.counts), ("i8", 0), ("i64", f.mul(entries, 4)), ("i1", "false"))
        self._count(whole, base, shift)
        first, before = self._entry(entries, self.start)
        last, _ = self._entry(entries, f.add(self.start, f.sub(self.length, 1)))
        low = f.add(base, f.value(f"shl i64 {first}, {shift}"))
        reach = f.sub(f.value(f"shl i64 {f.add(last, 1)}, {shift}"), 1)
        end = f.add(base, reach)  # past the largest key it may leave the keys' range
        over = f.compare("ugt", reach, f.sub(high, base))
        self._order(self._collect(low, f.select(over, "i64", high, end)), f.sub(self.start, before))

    def _count(self, whole: Value, base: Value, shift: Value) -> None:
        """Count the keys by their leading digits."""
        f, lanes, count = self.f, self.lanes, self.lanes.count
        narrow: Callable[[Value], str] = str if self.key_size == 8 else lambda x: f.value(f"trunc i64 {x} to i32")
        least, moved = lanes.splat(self.element, narrow(base)), lanes.splat(self.element, narrow(shift))

        def digits(index: Value, mask: str | None = None) -> None:
            offset = lanes.op("sub", self.element, self._keys(index, mask), least)
            lanes.store(self.element, lanes.op("lshr", self.element, offset, moved), self.found)

        def add(pointer: str) -> None:
            digit = f.load(self.element, pointer, self.key_size)
            at = f.value(f"getelementptr i32, ptr {self.counts}, {self.element} {digit}")
            f.store(f.value(f"add i32 {f.load('i32', at, 4)}, 1"), "i32", at, 4)

        with f.loop(0, whole, count, name=f"{count} leading digits, counted") as loop:
            digits(loop.index)
            for lane in range(count):
                add(f.offset(self.found, lane * self.key_size))
        with f.loop(whole, self.extent, count) as rest:
            digits(rest.index, self._rest(rest.index))
            with f.loop(0, f.sub(self.extent, rest.index), 1) as inner:
                add(f.offset(self.found, f.mul(inner.index, self.key_size)))

    def _entry(self, entries: Value, rank: Value) -> tuple[str, str]:
        """The leading digit of the element of this rank, and how many elements have lower ones."""
        f = self.f
        with f.loop(0, entries, 1, [("i64", "0"), ("i64", "0"), ("i64", "0")]) as loop:
            at = f.value(f"getelementptr i32, ptr {self.counts}, i64 {loop.index}")
            total = f.add(loop.carried[0], f.value(f"zext i32 {f.load('i32', at, 4)} to i64"))
            passed = f.compare("sle", total, rank)
            digit = f.select(passed, "i64", f.add(loop.index, 1), loop.carried[1])
            loop.next = [total, digit, f.select(passed, "i64", total, loop.carried[2])]
        return str(loop.out[1]), str(loop.out[2])

    # ------------------------------------------------------------------------------------------------------ collect

    def _collect(self, low: Value | None, high: Value) -> str:
        """Words of the keys from `low` to `high`, in the order of their positions; how many."""
        f, lanes, count = self.f, self.lanes, self.lanes.count
        narrow: Callable[[Value], str] = str if self.key_size == 8 else lambda x: f.value(f"trunc i64 {x} to i32")
        least = None if low is None else lanes.splat(self.element, narrow(low))
        most = lanes.splat(self.element, narrow(high))

        def inside(keys: str, mask: str | None) -> str:
            found = lanes.compare("sle", self.element, keys, most)
            if least is not None:
                found = lanes.op("and", "i1", found, lanes.compare("sge", self.element, keys, least))
            return found if mask is None else lanes.op("and", "i1", found, mask)

        def append(number: Value, keys: str, found: str, index: Value) -> Value:
            bits = f.value(f"bitcast {lanes.type('i1')} {found} to i{count}")
            wide = bits if count == 64 else f.value(f"zext i{count} {bits} to i64")
            hits = f.call("i64", "llvm.ctpop.i64", ("i64", wide))
            lanes.store(self.element, keys, self.found)
            with f.loop(0, hits, 1, [("i64", wide)]) as loop:
                lane = f.call("i64", "llvm.cttz.i64", ("i64", loop.carried[0]), ("i1", "true"))
                key = f.load(self.element, f.offset(self.found, f.mul(lane, self.key_size)), self.key_size)
                at = f.offset(self.a, f.mul(f.add(number, loop.index), self.words.size))
                self.words.store_one(f, self.element, key, f.add(index, lane), at)
                loop.next = [f.value(f"and i64 {loop.carried[0]}, {f.sub(loop.carried[0], 1)}")]
            return f.add(number, hits)

        def block(index: Value, number: Value, vectors: int, mask: str | None = None) -> Value:
            places = [f.add(index, k * count) for k in range(vectors)]
            keys = [self._keys(place, mask) for place in places]
            found = [inside(each, mask) for each in keys]
            some = found[0]
            for other in found[1:]:
                some = lanes.op("or", "i1", some, other)

            def appended() -> list[Value]:
                total = number
                for each, hit, place in zip(keys, found, places):
                    total = append(total, each, hit, place)
                return [total]

            return f.choose(lanes.any(some), ["i64"], appended, lambda: [number])[0]

        large = f.round_down(self.extent, _UNROLLED * count)
        with f.loop(0, large, _UNROLLED * count, [("i64", "0")], name="collected") as loop:
            loop.next = [block(loop.index, loop.carried[0], _UNROLLED)]
        with f.loop(large, self.extent, count, [("i64", loop.out[0])]) as rest:
            rest.next = [block(rest.index, rest.carried[0], 1, self._rest(rest.index))]
        return str(rest.out[0])


_kernels: CompiledOnce[tuple[RankStructure, Machine], CompiledKernel] = CompiledOnce()


def lower_ranks(spec: RankSpec, machine: Machine | None = None) -> LoweredKernel:
    """The compiled kernel, with the words of its recipe.

    NotImplementedError for dtypes that kernels do not have.
    """
    machine = machine or default_machine()
    extent, size = spec.domain[spec.axis], spec.dtype.itemsize
    extents, strides = arrange(spec.domain, [spec.source, spec.result], [0], (spec.axis,))
    words = Words(size < 8)
    way, groups, digit = _way(spec, machine, words)
    structure = RankStructure(spec.dtype, spec.descending, way, extent > 1 and spec.source[spec.axis] != 1)
    kernel = _kernels.get((structure, machine), lambda: _compile(structure, machine, words))
    source, result = ([s * scale for s in operand] for operand, scale in zip(strides, (size, 8)))
    walked: list[list[int]] = [source, result]
    columns, beside, result_beside = 1, 0, 0
    if structure.apart:
        columns, beside, result_beside = extents[-1], source[-1], result[-1]
        extents = (*extents[:-1], math.ceil(columns / _SIDE_BY_SIDE))
        source[-1], result[-1] = beside * _SIDE_BY_SIDE, result_beside * _SIDE_BY_SIDE
        walked.append([*[0] * (len(extents) - 1), _SIDE_BY_SIDE])
    units = math.prod(extents)
    rows = units * min(columns, _SIDE_BY_SIDE)
    margin = 2 * max(machine.vector_bytes // size_of(key_element(spec.dtype)), 2)  # whole vectors behind the end of a row
    pitch = _LINE * (math.ceil((extent + margin) * size / _LINE) | 1)
    space = COUNTS_BYTES + 2 * words.size * (extent + margin) + (pitch * _SIDE_BY_SIDE if structure.apart else 0)
    space = _LINE * math.ceil(space / _LINE)
    wanted = min(chunk_count(rows * extent * _NANOSECONDS[way]), _MOST_CHUNKS)
    wanted = max(1, min(wanted, units, _LARGEST_SPACE // space))
    per_chunk = math.ceil(units / wanted)
    chunks = math.ceil(units / per_chunk)
    values = {
        "extent": extent, "start": spec.start, "length": spec.length, "units": units, "per_chunk": per_chunk, "space": space,
        "step": 8 * (spec.result[spec.axis] if spec.length > 1 else 1), "groups": groups, "digit": digit,
        "axes": len(extents), "columns": columns, "pitch": pitch, "along": spec.source[spec.axis] * size, "beside": beside,
        "result_beside": result_beside,
    }  # fmt: skip
    constants = [*(values[name] for name in WORDS), *table(extents, walked)]
    moved = rows * (extent * size + spec.length * 8)
    return LoweredKernel(kernel, chunks, constants, space * chunks, moved, rows * extent)


def _way(spec: RankSpec, machine: Machine, words: Words) -> tuple[str, int, int]:
    """The way, and its groups and bits of leading digits."""
    extent, length = spec.domain[spec.axis], spec.length
    if length == extent or extent <= FEW[words.packed]:
        return "all", 0, 0
    lanes = max(machine.vector_bytes // size_of(key_element(spec.dtype)), 2)
    groups = max(2 * lanes, 64 if extent >= 512 else 16, 1 << (4 * length - 1).bit_length())
    if spec.start == 0 and extent >= 4 * groups:
        return "least", groups, 0
    return "some", 0, max(4, min(WIDEST_DIGIT, extent.bit_length() - 1))


def _compile(structure: RankStructure, machine: Machine, words: Words) -> CompiledKernel:
    symbol = f"kernel_ranks_{structure.way}"
    function = _RankKernel(structure, machine, symbol).build()
    text = module_text([*order_functions(words, machine), function])
    (address,) = compile_functions(text, [symbol], machine)
    return CompiledKernel(symbol, address, _LAUNCH_WORDS, text, function.structure)
