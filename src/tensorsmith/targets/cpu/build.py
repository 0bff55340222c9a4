"""A small builder of LLVM IR text: SSA values, address arithmetic with constant folding, loops with carried values.

Values are strings (`%t7`, a literal such as `zeroinitializer`) or Python integers, which fold at build time. Control
flow is structured (`loop`, `if_`, `branch`, `choose`), so the text never needs repair and the loop structure can be
recorded while it is written: `Function.structure` holds it as nested lines for `explain`.

    f = Function("copy", [("ptr", "source"), ("ptr", "target"), ("i64", "count")])
    with f.loop(0, "%count", 1, name="i") as step:
        offset = f.mul(step.index, 4)
        f.store(f.load("float", f.offset("%source", offset), 4), "float", f.offset("%target", offset), 4)
    text = f.text()
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeVar

Value = str | int
T = TypeVar("T")


@dataclass
class Line:
    """One line of the recorded loop structure, with what is nested in it."""

    text: str
    inner: list[Line] = field(default_factory=list)


@dataclass
class Loop:
    """A loop under construction: set `next` (one value per carried value) in the body; `out` holds the final values."""

    index: str
    carried: list[str]
    next: list[Value]
    out: list[Value] = field(default_factory=list)


def format_lines(lines: Sequence[Line], indent: int = 0) -> str:
    """The recorded structure as indented text, one line a loop or statement."""
    parts: list[str] = []
    for line in lines:
        parts.append("    " * indent + line.text)
        if line.inner:
            parts.append(format_lines(line.inner, indent + 1))
    return "\n".join(parts)


class Function:
    """One LLVM function being written.

    name, arguments: symbol and (LLVM type, argument name) pairs; argument `n` is the value `%n`
    result, attributes: LLVM return type and function attributes (for example `noinline`)
    """

    def __init__(
        self, name: str, arguments: Sequence[tuple[str, str]], result: str = "void", attributes: str = ""
    ) -> None:
        joined = ", ".join(f"{kind} %{argument}" for kind, argument in arguments)
        self.name = name
        self.result = result
        self.structure: list[Line] = []
        self.declarations: set[str] = set()
        self._head = f"define {result} @{name}({joined}) {attributes} {{"
        self._lines: list[str] = ["entry:"]
        self._count = 0
        self._block = "entry"
        self._open = self.structure

    # Text ---------------------------------------------------------------------------------------------------------

    def value(self, text: str) -> str:
        """Append an instruction with a result and return the result's name."""
        self._count += 1
        name = f"%t{self._count}"
        self._lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self._lines.append("  " + text)

    def note(self, text: str) -> None:
        """Record a line in the loop structure (it emits nothing)."""
        self._open.append(Line(text))

    @contextmanager
    def nested(self, text: str) -> Iterator[None]:
        """Record a line of the structure and nest what the block records under it."""
        line = Line(text)
        self._open.append(line)
        before, self._open = self._open, line.inner
        yield
        self._open = before

    def text(self, ending: str = "ret void") -> str:
        """The whole function, closed by `ending`."""
        return f"{self._head}\n" + "\n".join(self._lines) + f"\n  {ending}\n}}\n"

    def side_by_side(self, parts: Sequence[Callable[[], T]]) -> list[T]:
        """The results of parts that do not depend on each other, their instructions written in turns.

        The code generator keeps much of the order it is given, and a processor looks only so far ahead: chains of
        instructions that wait for each other overlap if they are near. Parts with blocks of their own stay one after another.
        """
        before, block = self._lines, self._block
        results, written = [], []
        for part in parts:
            self._lines = []
            results.append(part())
            written.append(self._lines)
        self._lines = before
        if self._block == block and all(line.startswith("  ") for lines in written for line in lines):
            turns = zip_longest(*written)
            self._lines += [line for turn in turns for line in turn if line is not None]
        else:
            self._lines += [line for lines in written for line in lines]
        return results

    # Blocks -------------------------------------------------------------------------------------------------------

    def new_label(self, prefix: str = "b") -> str:
        """A fresh label, not yet placed."""
        self._count += 1
        return f"{prefix}{self._count}"

    def place(self, label: str) -> None:
        """Start the block `label` here."""
        self._lines.append(f"{label}:")
        self._block = label

    def jump(self, label: str) -> None:
        """End the block with a branch to `label`."""
        self.do(f"br label %{label}")

    @property
    def block(self) -> str:
        """Label of the block being written (what a phi names as its predecessor)."""
        return self._block

    # Integers (i64) with constant folding ---------------------------------------------------------------------------

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0:
            return b
        if b == 0:
            return a
        return self.value(f"add i64 {a}, {b}")

    def sub(self, a: Value, b: Value) -> Value:
        """a - b."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.value(f"sub i64 {a}, {b}")

    def mul(self, a: Value, b: Value) -> Value:
        """a * b."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1:
            return b
        return a if b == 1 else self.value(f"mul i64 {a}, {b}")

    def minimum(self, a: Value, b: Value) -> Value:
        """The smaller of two signed integers."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.select(self.compare("slt", a, b), "i64", a, b)

    def round_down(self, a: Value, multiple: int) -> Value:
        """The largest multiple (a power of two) not above a."""
        return a & -multiple if isinstance(a, int) else self.value(f"and i64 {a}, {-multiple}")

    def udiv(self, a: Value, b: Value) -> Value:
        """a // b for a >= 0 and b > 0."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if b == 1 else self.value(f"udiv i64 {a}, {b}")

    def urem(self, a: Value, b: Value) -> Value:
        """a % b for a >= 0 and b > 0."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if b == 1 else self.value(f"urem i64 {a}, {b}")

    def compare(self, predicate: str, a: Value, b: Value, kind: str = "i64") -> str:
        """An i1: `icmp predicate`."""
        return self.value(f"icmp {predicate} {kind} {a}, {b}")

    def select(self, condition: Value, kind: str, yes: Value, no: Value) -> str:
        """yes where condition else no."""
        return self.value(f"select i1 {condition}, {kind} {yes}, {kind} {no}")

    # Memory ---------------------------------------------------------------------------------------------------------

    def offset(self, pointer: str, count: Value) -> str:
        """The address `count` bytes after `pointer`."""
        return pointer if count == 0 else self.value(f"getelementptr i8, ptr {pointer}, i64 {count}")

    def load(self, kind: str, pointer: str, align: int = 1) -> str:
        """Load a value of an LLVM type."""
        return self.value(f"load {kind}, ptr {pointer}, align {align}")

    def store(self, value: Value, kind: str, pointer: str, align: int = 1) -> None:
        """Store a value of an LLVM type."""
        self.do(f"store {kind} {value}, ptr {pointer}, align {align}")

    def word(self, arguments: str, index: Value, kind: str = "i64") -> str:
        """The 8-byte word number `index` of an argument array, as an i64, ptr or double."""
        return self.load(kind, self.offset(arguments, self.mul(index, 8)), 8)

    def stack(self, kind: str, count: int, align: int) -> str:
        """`count` elements of stack memory; for the entry block."""
        return self.value(f"alloca {kind}, i64 {count}, align {align}")

    # Calls ----------------------------------------------------------------------------------------------------------

    def call(self, result: str, name: str, *arguments: tuple[str, Value]) -> str:
        """Call an external function or intrinsic with (type, value) pairs and note its declaration; '' for void.

        A type may carry an alignment (`ptr align 4`).
        """
        kinds = ", ".join(kind.split(" align ")[0] for kind, _ in arguments)
        self.declarations.add(f"declare {result} @{name}({kinds})")
        text = f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})"
        if result == "void":
            self.do(text)
            return ""
        return self.value(text)

    # Structure ------------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self,
        low: Value,
        high: Value,
        step: Value,
        carried: Sequence[tuple[str, Value]] = (),
        do_while: bool = False,
        name: str = "",
    ) -> Iterator[Loop]:
        """for index in range(low, high, step), with (type, initial value) pairs carried through phi nodes.

        do_while: the body runs before the first test (for loops known to run at least once).
        name: recorded in the structure when given, with the range unless it says `in` itself.
        """
        before = self._block
        head, body, latch, done = (self.new_label(p) for p in ("head", "body", "latch", "done"))
        self._count += 1
        index, following = f"%i{self._count}", f"%n{self._count}"
        names = [f"%c{self._count}_{k}" for k in range(len(carried))]
        loop = Loop(index, list(names), list(names))
        self.jump(head)
        self.place(head)
        self._lines.append("")
        slot = len(self._lines) - 1
        if not do_while:
            inside = self.compare("slt", index, high)
            self.do(f"br i1 {inside}, label %{body}, label %{done}")
            self.place(body)
        if name:
            where = name if " in " in name else f"{name} in {_range_text(low, high, step)}"
            with self.nested(f"for {where}:"):
                yield loop
        else:
            yield loop
        self.jump(latch)
        self.place(latch)
        self.do(f"{following} = add i64 {index}, {step}")
        phis = [f"  {index} = phi i64 [{low}, %{before}], [{following}, %{latch}]"]
        phis += [
            f"  {carry} = phi {kind} [{first}, %{before}], [{after}, %{latch}]"
            for carry, (kind, first), after in zip(names, carried, loop.next)
        ]
        self._lines[slot] = "\n".join(phis)
        if do_while:
            again = self.compare("slt", following, high)
            self.do(f"br i1 {again}, label %{head}, label %{done}")
            loop.out = list(loop.next)
        else:
            self.jump(head)
            loop.out = list(names)
        self.place(done)

    @contextmanager
    def if_(self, condition: Value) -> Iterator[None]:
        """Run the block where the i1 condition holds."""
        yes, done = self.new_label("yes"), self.new_label("join")
        self.do(f"br i1 {condition}, label %{yes}, label %{done}")
        self.place(yes)
        yield
        self.jump(done)
        self.place(done)

    def branch(self, condition: Value, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """if condition: yes() else: no(), both only for their effects."""

        def run(part: Callable[[], None]) -> Callable[[], Sequence[Value]]:
            def call() -> Sequence[Value]:
                part()
                return ()

            return call

        self.choose(condition, (), run(yes), run(no))

    def choose(
        self,
        condition: Value,
        kinds: Sequence[str],
        yes: Callable[[], Sequence[Value]],
        no: Callable[[], Sequence[Value]],
        rare: bool = False,
    ) -> list[str]:
        """The values of yes() or of no(), one per LLVM type in `kinds`.

        rare: the condition hardly ever holds, so that yes() is moved out of the way.
        """
        first, second, done = self.new_label("yes"), self.new_label("no"), self.new_label("join")
        weights = ", !prof !0" if rare else ""
        if rare:
            self.declarations.add('!0 = !{!"branch_weights", i32 1, i32 4000}')
        self.do(f"br i1 {condition}, label %{first}, label %{second}{weights}")
        self.place(first)
        a = list(yes())
        a_block = self._block
        self.jump(done)
        self.place(second)
        b = list(no())
        b_block = self._block
        self.jump(done)
        self.place(done)
        return [
            self.value(f"phi {kind} [{x}, %{a_block}], [{y}, %{b_block}]") for kind, x, y in zip(kinds, a, b)
        ]


def _range_text(low: Value, high: Value, step: Value) -> str:
    def plain(value: Value) -> str:
        return str(value).lstrip("%")

    if step == 1 and low == 0:
        return f"range({plain(high)})"
    return f"range({plain(low)}, {plain(high)}{'' if step == 1 else ', ' + plain(step)})"


def module_text(functions: Sequence[Function]) -> str:
    """One module: the functions (each returning void) and what they declare."""
    declared: set[str] = set()
    for function in functions:
        declared |= function.declarations
    return "\n".join([*(function.text() for function in functions), *sorted(declared), ""])


def float_literal(value: float) -> str:
    """A float32 constant as LLVM writes it: the value rounded to float32, as the bits of a double."""
    try:
        return double_literal(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return double_literal(float("inf") if value > 0 else float("-inf"))


def double_literal(value: float) -> str:
    """A float64 constant as LLVM writes it."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
