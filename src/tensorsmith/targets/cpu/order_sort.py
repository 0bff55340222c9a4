"""Sorting words (`order_keys.py`) in a workspace: one function per kind of word, shared by every kernel of ranks.

    few    each word is compared with every other: how many are lower is its rank
    many   radix sort from the lowest digit up, over the bits in which the keys differ; a pass counts the next digit on its
           way. It is stable, so equal keys stay in the order of their positions

Keys that lie side by side with their positions are packed first where they differ in few bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.machine import Machine
from tensorsmith.targets.cpu.order_keys import POSITION_BITS, Words
from tensorsmith.targets.cpu.vector import Lanes

WIDEST_DIGIT = 11
NARROW_DIGIT = 8
COUNTS_BYTES = 2 * 4 << WIDEST_DIGIT  # this digit's and the next one's
FEW = {True: 64, False: 32}  # by whether words are packed
_LONG = 6000  # elements from which fewer passes over wider digits pay

ORDER = [
    ("ptr", "words"), ("ptr", "space"), ("i64", "n"), ("ptr", "counts"), ("i64", "skip"), ("i64", "length"),
    ("ptr", "result"), ("i64", "step"),
]  # fmt: skip
_RADIX = [*ORDER, ("i64", "base"), ("i64", "shift"), ("i64", "bits")]
_PASS = [*ORDER[:4], ("ptr", "next"), ("i64", "base"), ("i64", "shift"), ("i64", "digit")]
_FINISH = [("ptr", "words"), ("i64", "length"), ("ptr", "result"), ("i64", "step")]


def order_name(words: Words) -> str:
    """The symbol of `void (words, space, n, counts, skip, length, result, step)`.

    It writes the positions of ranks skip ... skip + length - 1 of n words to `result`, `step` bytes apart. `space` is as
    large as the words; both have room for a vector behind them.
    """
    return f"order_{words.name}"


def order_functions(words: Words, machine: Machine) -> list[Function]:
    """`order_name(words)` and what it calls."""
    functions = [*_radix_functions(words), _finish(words, machine), _order(words, machine)]
    if not words.packed:
        packed = Words(True)
        functions += [*_radix_functions(packed), _finish(packed, machine)]
    return functions


def call(f: Function, name: str, parameters: Sequence[tuple[str, str]], values: Sequence[Value]) -> None:
    """Call a function of the same module."""
    f.do(f"call void @{name}({', '.join(f'{kind} {value}' for (kind, _), value in zip(parameters, values, strict=True))})")


def _order(words: Words, machine: Machine) -> Function:
    f = Function(order_name(words), ORDER)
    lanes = Lanes(f, max(machine.vector_bytes // 8, 2), machine)

    def many() -> None:
        base, bits = _spread(f, words, lanes)
        if words.packed:
            _finished(f, words, "%words", "%space", base, POSITION_BITS, bits)
            return

        def narrow() -> None:
            with f.loop(0, "%n", 1) as loop:
                at = f.mul(loop.index, 16)
                key = f.sub(f.load("i64", f.offset("%words", at), 8), base)
                moved = f.value(f"shl i64 {key}, {POSITION_BITS}")
                word = f.value(f"or i64 {moved}, {words.position(f, f.offset('%words', at))}")
                f.store(word, "i64", f.offset("%space", f.mul(loop.index, 8)), 8)
            _finished(f, Words(True), "%space", "%words", 0, POSITION_BITS, bits)

        f.branch(
            f.compare("sle", bits, 64 - POSITION_BITS), narrow,
            lambda: _finished(f, words, "%words", "%space", base, 0, bits),
        )  # fmt: skip

    f.branch(f.compare("sle", "%n", FEW[words.packed]), lambda: _few(f, words, lanes), many)
    return f


def _finished(f: Function, words: Words, a: str, b: str, base: Value, shift: int, bits: Value) -> None:
    """Sort by the bits from `shift` on and write the positions."""
    values: list[Value] = [a, b, *(f"%{name}" for _, name in ORDER[2:]), base, shift, bits]
    call(f, f"radix_{words.name}", _RADIX, values)


def _few(f: Function, words: Words, lanes: Lanes) -> None:
    """Ranks by counting: a vector of words meets every word in turn."""
    count, vectors = lanes.count, 2
    kind = lanes.type("i64")
    with f.loop(0, "%n", count * vectors, name="words, compared with all") as loop:
        here = f.offset("%words", f.mul(loop.index, words.size))
        own, places = [], []
        for k in range(vectors):
            at = f.offset(here, k * count * words.size)
            own.append(lanes.load("i64", at) if words.packed else lanes.load_pairs("i64", at)[0])
            first = lanes.splat("i64", str(f.add(loop.index, k * count)))
            places.append(lanes.op("add", "i64", first, lanes.iota("i64")))
        zeros = [(kind, "zeroinitializer")] * vectors
        with f.loop(0, "%n", 1, zeros) as inner:
            other = lanes.splat("i64", f.load("i64", f.offset("%words", f.mul(inner.index, words.size)), 8))
            following: list[Value] = []
            for k in range(vectors):
                lower = lanes.compare("sgt", "i64", own[k], other)
                if not words.packed:
                    before = lanes.compare("sgt", "i64", places[k], lanes.splat("i64", inner.index))
                    equal = lanes.compare("eq", "i64", own[k], other)
                    lower = lanes.op("or", "i1", lower, lanes.op("and", "i1", equal, before))
                following.append(lanes.op("sub", "i64", inner.carried[k], lanes.convert("sext", "i1", "i64", lower)))
            inner.next = following
        for k in range(vectors):
            ranks = lanes.op("sub", "i64", str(inner.out[k]), lanes.splat("i64", "%skip"))
            for lane in range(count):
                rank = lanes.extract("i64", ranks, lane)
                number = f.add(loop.index, k * count + lane)
                wanted = f.compare("ult", rank, "%length")
                inside = f.compare("slt", number, "%n")
                with f.if_(f.value(f"and i1 {wanted}, {inside}")):
                    position = words.position(f, f.offset("%words", f.mul(number, words.size)))
                    f.store(position, "i64", f.offset("%result", f.mul(rank, "%step")), 8)


def _spread(f: Function, words: Words, lanes: Lanes) -> tuple[str, str]:
    """What is subtracted from every key, and in how many bits keys differ then (at least 1)."""
    kind = lanes.type("i64")
    last = f.load(words.kind(), f.offset("%words", f.mul(f.sub("%n", 1), words.size)), 8)
    for k in range(lanes.count):  # whole vectors may be read
        f.store(last, words.kind(), f.offset("%words", f.mul(f.add("%n", k), words.size)), 8)
    bounds = [(kind, lanes.splat("i64", words.key(f, last)))] * 2
    with f.loop(0, "%n", lanes.count, bounds) as loop:
        here = f.offset("%words", f.mul(loop.index, words.size))
        keys = lanes.load("i64", here) if words.packed else lanes.load_pairs("i64", here)[0]
        loop.next = [lanes.intrinsic(name, "i64", carried, keys) for name, carried in zip(("smin", "smax"), loop.carried)]
    low, high = [
        f.call("i64", f"llvm.vector.reduce.{name}.v{lanes.count}i64", (kind, value))
        for name, value in zip(("smin", "smax"), loop.out)
    ]
    if words.packed:
        low = f.value(f"and i64 {low}, {-(1 << POSITION_BITS)}")
    spread = f.sub(high, low)
    if words.packed:
        spread = f.value(f"lshr i64 {spread}, {POSITION_BITS}")
    some = f.value(f"or i64 {spread}, 1")
    return low, str(f.sub(64, f.call("i64", "llvm.ctlz.i64", ("i64", some), ("i1", "true"))))


def _radix_functions(words: Words) -> list[Function]:
    return [_radix(words), *(_pass(words, counting) for counting in (True, False))]


def _digit(f: Function, words: Words, word: str, shift: Value, mask: Value) -> str:
    moved = f.value(f"lshr i64 {f.sub(words.key(f, word), '%base')}, {shift}")
    return f.value(f"and i64 {moved}, {mask}")


def _radix(words: Words) -> Function:
    """Sort by `bits` bits from `shift` on and write the positions."""
    f = Function(f"radix_{words.name}", _RADIX)
    widest = f.select(f.compare("sge", "%n", _LONG), "i64", WIDEST_DIGIT, NARROW_DIGIT)
    passes = f.udiv(f.add("%bits", f.sub(widest, 1)), widest)
    digit = f.udiv(f.add("%bits", f.sub(passes, 1)), passes)
    entries = f.value(f"shl i64 1, {digit}")
    mask = f.sub(entries, 1)
    other = f.offset("%counts", COUNTS_BYTES // 2)
    _clear(f, "%counts", entries)
    with f.loop(0, "%n", 1, name="words, counted by their first digit") as loop:
        word = f.load(words.kind(), f.offset("%words", f.mul(loop.index, words.size)), 8)
        _count(f, "%counts", _digit(f, words, word, "%shift", mask))
    carried = [("ptr", "%words"), ("ptr", "%space"), ("ptr", "%counts"), ("ptr", other), ("i64", "%shift")]
    with f.loop(0, f.sub(passes, 1), 1, carried, name="digits but the last") as loop:
        a, b, here, following, shift = loop.carried
        _clear(f, following, entries)
        _start(f, here, entries)
        _run(f, words, "count", [a, b, "%n", here, following, "%base", shift, digit])
        loop.next = [b, a, following, here, f.add(shift, digit)]
    a, b, here, following, shift = (str(value) for value in loop.out)
    _start(f, here, entries)
    _run(f, words, "last", [a, b, "%n", here, following, "%base", shift, digit])
    call(f, f"finish_{words.name}", _FINISH, [f.offset(b, f.mul("%skip", words.size)), "%length", "%result", "%step"])
    return f


def _run(f: Function, words: Words, which: str, values: list[Value]) -> None:
    call(f, f"pass_{which}_{words.name}", _PASS, values)


def _clear(f: Function, counts: str, entries: Value) -> None:
    f.call("void", "llvm.memset.p0.i64", ("ptr", counts), ("i8", 0), ("i64", f.mul(entries, 4)), ("i1", "false"))


def _count(f: Function, counts: str, digit: str) -> None:
    at = f.value(f"getelementptr i32, ptr {counts}, i64 {digit}")
    f.store(f.value(f"add i32 {f.load('i32', at, 4)}, 1"), "i32", at, 4)


def _start(f: Function, counts: str, entries: Value) -> None:
    """Counts become where each digit's words start."""
    with f.loop(0, entries, 1, [("i32", "0")]) as loop:
        at = f.value(f"getelementptr i32, ptr {counts}, i64 {loop.index}")
        count = f.load("i32", at, 4)
        f.store(loop.carried[0], "i32", at, 4)
        loop.next = [f.value(f"add i32 {loop.carried[0]}, {count}")]


def _pass(words: Words, counting: bool) -> Function:
    """Put every word where its digit's words go on; count the next digit."""
    f = Function(f"pass_{'count' if counting else 'last'}_{words.name}", _PASS)
    mask = f.sub(f.value("shl i64 1, %digit"), 1)
    following = f.add("%shift", "%digit")
    unroll = 4
    whole = f.round_down("%n", unroll)

    def step(index: Value) -> None:
        word = f.load(words.kind(), f.offset("%words", f.mul(index, words.size)), 8)
        at = f.value(f"getelementptr i32, ptr %counts, i64 {_digit(f, words, word, '%shift', mask)}")
        place = f.load("i32", at, 4)
        f.store(f.value(f"add i32 {place}, 1"), "i32", at, 4)
        target = f.mul(f.value(f"zext i32 {place} to i64"), words.size)
        f.store(word, words.kind(), f.offset("%space", target), 8)
        if counting:
            _count(f, "%next", _digit(f, words, word, following, mask))

    with f.loop(0, whole, unroll, name="words") as loop:
        for k in range(unroll):
            step(f.add(loop.index, k))
    with f.loop(whole, "%n", 1) as rest:
        step(rest.index)
    return f


def _finish(words: Words, machine: Machine) -> Function:
    """Write positions one after the other."""
    f = Function(f"finish_{words.name}", _FINISH)
    lanes = Lanes(f, max(machine.vector_bytes // 8, 2), machine)

    def vectors() -> None:
        whole = f.round_down("%length", lanes.count)
        with f.loop(0, whole, lanes.count) as loop:
            here = f.offset("%words", f.mul(loop.index, words.size))
            if words.packed:
                low = lanes.constant("i64", (1 << POSITION_BITS) - 1)
                found = lanes.op("and", "i64", lanes.load("i64", here), low)
            else:
                found = lanes.load_pairs("i64", here)[1]
            lanes.store("i64", found, f.offset("%result", f.mul(loop.index, 8)))
        one_by_one(whole)

    def one_by_one(first: Value) -> None:
        with f.loop(first, "%length", 1) as loop:
            position = words.position(f, f.offset("%words", f.mul(loop.index, words.size)))
            f.store(position, "i64", f.offset("%result", f.mul(loop.index, "%step")), 8)

    f.branch(f.compare("eq", "%step", 8), vectors, lambda: one_by_one(0))
    return f
