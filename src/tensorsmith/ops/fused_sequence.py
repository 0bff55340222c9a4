"""Kernels of a group of parameters, launched one after the other by one native call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from tensorsmith.runtime import profiler
from tensorsmith.runtime.plan import Plan
from tensorsmith.runtime.requests import LONG_WORK, KernelStep
from tensorsmith.targets.cpu import launch as launching
from tensorsmith.targets.cpu.recipe import MOST_WORDS, RELEASE_GIL, Given, NativePlan, decode_error


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel over the tensors of one parameter; its words are numbered as the tensors, then the numbers, are.

    words: those of the plan; picked: those of its one step, in the kernel's order. step: None where there is nothing
    to compute.
    """

    plan: Plan
    words: Sequence[int]
    step: KernelStep | None
    picked: Sequence[int]

    def __call__(self, ptrs: Sequence[int], numbers: Sequence[float]) -> None:
        """Run it over tensors at these addresses."""
        if self.step is None:
            return
        given = [*ptrs, *numbers]
        if profiler.active:
            self.plan.run([given[i] for i in self.words])
            return
        code = launching.launch(self.step.recipe.address, *[given[i] for i in self.picked])
        if code is not None:
            self.plan.fail(0, code, [given[i] for i in self.words])


class Sequenced:
    """The launches of several parameters that share their numbers, as few native calls (of MOST_WORDS words at most).

    launches: one a parameter; tensors, numbers: how many each takes.
    """

    def __init__(self, launches: Sequence[Launch], tensors: int, numbers: int) -> None:
        self.rows, self.tensors = len(launches), tensors
        most = (MOST_WORDS - numbers) // tensors
        self.parts: list[tuple[int, int, NativePlan, list[tuple[int, Launch]]]] = []
        for start in range(0, self.rows, most):
            end = min(start + most, self.rows)
            table, steps, moved = [], [], 0
            for row, launch in enumerate(launches[start:end]):
                if launch.step is None:
                    continue
                # Words: the addresses column by column (all parameters, all gradients, ...), then the numbers.
                places = [i * (end - start) + row if i < tensors else (end - start - 1) * tensors + i for i in launch.picked]
                table.append((launch.step.recipe, [Given(place) for place in places]))
                steps.append((start + row, launch))
                moved += launch.step.bytes_moved
            words = (end - start) * tensors + numbers
            self.parts.append((start, end, NativePlan(table, words, (), RELEASE_GIL if moved >= LONG_WORK else 0), steps))

    def __call__(self, ptrs: Sequence[int], numbers: tuple[float, ...]) -> None:
        """Run them over tensors at these addresses, column by column."""
        for start, end, native, steps in self.parts:
            given = ptrs
            if len(self.parts) > 1:
                columns = range(0, self.rows * self.tensors, self.rows)
                given = list(chain.from_iterable(ptrs[first + start : first + end] for first in columns))
            code = launching.launch_many(native.address, *given, *numbers)
            if code is not None:
                step, code = decode_error(code)
                row, launch = steps[step]
                words = [*ptrs[row :: self.rows], *numbers]
                launch.plan.fail(0, code, [words[i] for i in launch.words])
