"""Walking the outer axes of a kernel: a run-time odometer over any number of axes, with one byte offset per operand.

The table of an axis, innermost axis first, is 1 + 2 * operands words: its extent, then each operand's byte stride, then
each operand's rewind, -(extent - 1) * stride, added when the axis turns over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tensorsmith.targets.cpu.build import Function, Value

MOST_AXES = 64


def table(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """The constant words for outer axes given outermost first; strides[operand][axis] in bytes."""
    words: list[int] = []
    if len(extents) > MOST_AXES:
        raise NotImplementedError(
            f"a kernel over {len(extents)} axes that do not merge; at most {MOST_AXES} are supported"
        )
    for axis in range(len(extents) - 1, -1, -1):
        steps = [operand[axis] for operand in strides]
        words += [extents[axis], *steps, *[-(extents[axis] - 1) * step for step in steps]]
    return words


class Odometer:
    """Emits the walk. Create it in the entry block (it owns stack memory for the coordinates)."""

    def __init__(self, function: Function, first_axis: str, axes: Value, operands: int) -> None:
        """first_axis: pointer to the table's first word; axes: number of axes."""
        self.function = function
        self.first_axis = first_axis
        self.axes = axes
        self.operands = operands
        self.coordinates = function.stack("i64", MOST_AXES, 8)

    @property
    def _axis_bytes(self) -> int:
        return 8 * (1 + 2 * self.operands)

    @contextmanager
    def walk(self, low: Value, high: Value, title: str) -> Iterator[list[str]]:
        """for position in low..high, as mixed-radix coordinates; yields the operands' byte offsets."""
        f = self.function
        offsets = [("i64", "0")] * self.operands
        with f.loop(0, self.axes, 1, [("i64", str(low)), *offsets]) as start:
            rest, *current = start.carried
            axis = f.offset(self.first_axis, f.mul(start.index, self._axis_bytes))
            extent = f.load("i64", axis, 8)
            coordinate = f.urem(rest, extent)
            f.store(coordinate, "i64", f.offset(self.coordinates, f.mul(start.index, 8)), 8)
            moved = [
                str(f.add(offset, f.mul(coordinate, f.load("i64", f.offset(axis, 8 * (1 + k)), 8))))
                for k, offset in enumerate(current)
            ]
            start.next = [str(f.udiv(rest, extent)), *moved]
        carried = [("i64", offset) for offset in start.out[1:]]
        with f.loop(low, high, 1, carried, name=title) as loop:
            yield loop.carried
            loop.next = list(self._advance(loop.carried))

    def _advance(self, offsets: Sequence[str]) -> list[str]:
        """Turn the odometer by one and return the new offsets."""
        f = self.function
        before = f.block
        head, check, step, wrap, done = (f.new_label(stem) for stem in ("turn", "check", "step", "wrap", "turned"))
        axis_number, next_number = f"%{f.new_label('axis')}", f"%{f.new_label('next')}"
        rewound = [f"%{f.new_label('rewound')}" for _ in offsets]
        f.jump(head)
        f.place(head)
        f.do(f"{axis_number} = phi i64 [0, %{before}], [{next_number}, %{wrap}]")
        current = [
            f.value(f"phi i64 [{offset}, %{before}], [{again}, %{wrap}]") for offset, again in zip(offsets, rewound)
        ]
        f.do(f"br i1 {f.compare('slt', axis_number, self.axes)}, label %{check}, label %{done}")
        f.place(check)
        axis = f.offset(self.first_axis, f.mul(axis_number, self._axis_bytes))
        place = f.offset(self.coordinates, f.mul(axis_number, 8))
        coordinate = f.add(f.load("i64", place, 8), 1)
        inside = f.compare("slt", coordinate, f.load("i64", axis, 8))
        f.do(f"br i1 {inside}, label %{step}, label %{wrap}")
        f.place(step)
        f.store(coordinate, "i64", place, 8)
        stepped = [f.add(c, f.load("i64", f.offset(axis, 8 * (1 + k)), 8)) for k, c in enumerate(current)]
        f.jump(done)
        f.place(wrap)
        f.store(0, "i64", place, 8)
        for k, (name, c) in enumerate(zip(rewound, current)):
            rewind = f.load("i64", f.offset(axis, 8 * (1 + self.operands + k)), 8)
            f.do(f"{name} = add i64 {c}, {rewind}")
        f.do(f"{next_number} = add i64 {axis_number}, 1")
        f.jump(head)
        f.place(done)
        return [f.value(f"phi i64 [{c}, %{head}], [{s}, %{step}]") for c, s in zip(current, stepped)]
