"""Reading and writing operands along one axis by stride class: 0 broadcast, 1 consecutive, 2 any other stride."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tensorsmith.targets.cpu.body import KernelText, from_memory, memory_element, to_memory
from tensorsmith.targets.cpu.build import Value
from tensorsmith.targets.cpu.vector import size_of


class Axis:
    """The operands of a kernel as seen along one axis.

    offsets: byte offset of each operand where the axis starts (element offset for coordinates); classes: stride class
    of each operand along the axis; strides: byte stride of each operand, needed where the class is 2; pairs: operands of
    stride 2 elements that lie side by side, which are read and written together (`Structure.pairs`).
    """

    def __init__(
        self, kernel: KernelText, classes: Sequence[int], offsets: Sequence[Value], strides: Mapping[int, Value],
        pairs: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.classes = classes
        self.offsets = offsets
        self.strides = strides
        self.first_of = {k: pair[0] for pair in pairs for k in pair}
        self.second_of = dict(pairs)
        self.both: dict[tuple[int, Value], tuple[str, str]] = {}  # vectors of pairs read so far
        # The addresses are made here, before the loop over the axis.
        self.pointers = [
            None if (base := kernel.base(k)) is None else kernel.function.offset(base, offsets[k])
            for k in range(kernel.structure.operand_count)
        ]

    def address(self, operand: int, index: Value) -> str:
        """Where an operand lies at a position along the axis."""
        f = self.kernel.function
        pointer = self.pointers[operand]
        assert pointer is not None
        kind = self.classes[operand]
        if kind == 0:
            return pointer
        if kind == 2:
            return f.offset(pointer, f.mul(index, self.strides[operand]))
        if isinstance(index, int) and index == 0:
            return pointer
        element = memory_element(self.kernel.operand_dtype(operand))
        return f.value(f"getelementptr {element}, ptr {pointer}, i64 {index}")

    def broadcast(self, operand: int) -> str:
        """The one value of an operand of class 0, in every lane."""
        kernel = self.kernel
        if operand >= len(kernel.inputs):
            return kernel.lanes.splat("i64", self.offsets[operand])
        dtype = kernel.operand_dtype(operand)
        element = memory_element(dtype)
        pointer = self.pointers[operand]
        assert pointer is not None
        scalar = kernel.function.load(element, pointer, size_of(element))
        return from_memory(kernel.lanes, dtype, kernel.lanes.splat(element, scalar))

    def load(self, operand: int, index: Value, mask: str | None) -> str:
        """The vector of an input at positions index, index + 1, ... along the axis."""
        kernel = self.kernel
        if self.classes[operand] == 0:
            return self.broadcast(operand)
        dtype = kernel.operand_dtype(operand)
        element = memory_element(dtype)
        if operand in self.first_of:
            return self._part_of_pair(operand, index, mask)
        pointer = self.address(operand, index)
        if self.classes[operand] == 1:
            value = kernel.lanes.load(element, pointer, mask)
        elif mask is None:
            value = self._gather_or_reverse(element, pointer, str(self.strides[operand]))
        else:
            value = kernel.lanes.gather(element, pointer, str(self.strides[operand]), mask)
        return from_memory(kernel.lanes, dtype, value)

    def _part_of_pair(self, operand: int, index: Value, mask: str | None) -> str:
        """The vector of one part of pairs; both parts are read at once, by the first that is asked for."""
        first = self.first_of[operand]
        found = self.both.get((first, index))
        if found is None:
            kernel = self.kernel
            element = memory_element(kernel.operand_dtype(first))
            found = self.both[first, index] = kernel.lanes.load_pairs(element, self.address(first, index), mask)
        return found[operand != first]

    def store_all(self, values: Mapping[int, str], index: Value, mask: str | None) -> None:
        """Write outputs (number: value) at positions index, index + 1, ...; both parts of pairs at once."""
        kernel = self.kernel
        start = kernel.structure.first_output
        for output, value in values.items():
            operand = start + output
            if operand not in self.first_of:
                self.store(output, value, index, mask)
            elif operand in self.second_of:
                element = memory_element(kernel.structure.outputs[output])
                other = values[self.second_of[operand] - start]
                kernel.lanes.store_pairs(element, value, other, self.address(operand, index), mask)

    def _gather_or_reverse(self, element: str, pointer: str, stride: str) -> str:
        """Elements `stride` bytes apart; of an axis walked backwards, a whole vector turned round."""
        lanes, f = self.kernel.lanes, self.kernel.function
        size = size_of(element)

        def turned() -> list[str]:
            return [lanes.reverse(element, lanes.load(element, f.offset(pointer, -size * (lanes.count - 1))))]

        backwards = f.compare("eq", stride, -size)
        return f.choose(
            backwards, [lanes.type(element)], turned, lambda: [lanes.gather(element, pointer, stride)]
        )[0]

    def coordinate(self, number: int, index: Value) -> str:
        """The vector of coordinate `number` (an int64) at positions index, index + 1, ... along the axis."""
        kernel = self.kernel
        lanes, f = kernel.lanes, kernel.function
        operand = len(kernel.inputs) + number
        if self.classes[operand] == 0:
            return self.broadcast(operand)
        if self.classes[operand] == 1:
            return lanes.op("add", "i64", lanes.splat("i64", f.add(self.offsets[operand], index)), lanes.iota("i64"))
        steps = lanes.op("add", "i64", lanes.splat("i64", index), lanes.iota("i64"))
        scaled = lanes.op("mul", "i64", steps, lanes.splat("i64", self.strides[operand]))
        return lanes.op("add", "i64", scaled, lanes.splat("i64", self.offsets[operand]))

    def load_output(self, output: int, index: Value, mask: str | None) -> str:
        """Read back what `store` wrote at the same positions."""
        kernel = self.kernel
        operand = kernel.structure.first_output + output
        element = memory_element(kernel.structure.outputs[output])
        pointer = self.address(operand, index)
        if self.classes[operand] == 2:
            return kernel.lanes.gather(element, pointer, str(self.strides[operand]), mask)
        return kernel.lanes.load(element, pointer, mask)

    def store(self, output: int, value: str, index: Value, mask: str | None) -> None:
        """Write output number `output` at positions index, index + 1, ... along the axis."""
        kernel = self.kernel
        operand = kernel.structure.first_output + output
        dtype = kernel.structure.outputs[output]
        element = memory_element(dtype)
        raw = to_memory(kernel.lanes, dtype, value)
        pointer = self.address(operand, index)
        if self.classes[operand] == 2:
            kernel.lanes.scatter(element, raw, pointer, str(self.strides[operand]), mask)
        else:
            kernel.lanes.store(element, raw, pointer, mask)


def vector_loop(
    kernel: KernelText,
    low: Value,
    high: Value,
    unroll: int,
    step: Callable[[Value, str | None, list[str]], list[str]],
    carried: Sequence[tuple[str, str]] = (),
    merge: Callable[[list[list[str]]], list[str]] | None = None,
    title: str = "vectors",
) -> list[str]:
    """The vectors of low..high: a loop of `unroll` vectors, a loop of single ones, then what is left under a mask.

    `step(index, mask, carried)` handles one vector and returns the next carried values. With carried values (type,
    initial value), each of the `unroll` vectors has its own set; `merge` combines the sets before the masked loop.
    Under a mask the step must leave the carried values of inactive lanes as they are. Returns the carried values at
    the end.
    """
    kinds = [kind for kind, _ in carried]
    states = [[value for _, value in carried] for _ in range(unroll)]
    return vector_sets(kernel, low, high, states, kinds, step, merge or (lambda sets: sets[0]), title)[0]


def vector_sets(
    kernel: KernelText,
    low: Value,
    high: Value,
    states: list[list[str]],
    kinds: Sequence[str],
    step: Callable[[Value, str | None, list[str]], list[str]],
    merge: Callable[[list[list[str]]], list[str]] | None,
    title: str,
) -> list[list[str]]:
    """`vector_loop` from given sets of carried values, one for each vector of a step, of types `kinds`.

    Where `merge` is None the sets stay apart, for a loop around this one to carry on.
    """
    f, lanes = kernel.function, kernel.lanes
    unroll, sets = len(states), len(kinds)
    steps = [unroll, 4, 1] if unroll > 4 else [unroll, 1] if unroll > 1 else [1]
    others: list[list[str]] = []
    for number in steps:
        if merge is None:
            states, others = states[:number], states[number:] + others
        while len(states) > number:  # fewer vectors at once: sets of carried values join
            half = len(states) // 2
            assert merge is not None
            states = [merge([a, b]) for a, b in zip(states[:half], states[half:])]
        end = f.add(low, f.round_down(f.sub(high, low), lanes.count * number))
        entering = list(zip(list(kinds) * number, [value for state in states for value in state]))
        with f.loop(
            low, end, lanes.count * number, entering, name=f"{number} x {lanes.count} lanes of {title}"
        ) as loop:
            steps_apart = [
                partial(step, f.add(loop.index, u * lanes.count), None, loop.carried[u * sets : (u + 1) * sets])
                for u in range(number)
            ]
            loop.next = [value for following in f.side_by_side(steps_apart) for value in following]
        states = [[str(v) for v in loop.out[u * sets : (u + 1) * sets]] for u in range(number)]
        low = end
    with f.loop(
        low, high, lanes.count, list(zip(kinds, states[0])), name=f"{lanes.count} masked lanes of {title}"
    ) as rest:
        mask = lanes.below(f.sub(high, rest.index))
        rest.next = list(step(rest.index, mask, rest.carried))
    return [[str(v) for v in rest.out], *others]
