"""Kernels of a group of parameters, launched one after the other by one native call; on a GPU as one kernel, or few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from tensorsmith.core.device import CPU, Device
from tensorsmith.runtime import profiler
from tensorsmith.runtime.plan import Plan
from tensorsmith.runtime.requests import LONG_WORK, KernelStep
from tensorsmith.targets.cpu import launch as launching
from tensorsmith.targets.cpu.recipe import MOST_WORDS, RELEASE_GIL, Given, NativePlan, Recipe, decode_error

_SPARE_WORDS = 16  # that a recipe holds besides those it is given


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


def _joined(device: Device, steps: Sequence[tuple[KernelStep, Sequence[int]]], words: int) -> tuple[list[Recipe], list[int]]:
    """Kernels over many tensors for the steps that can share one, and which steps cannot; each with its words."""
    from tensorsmith.targets.cuda import launcher
    from tensorsmith.targets.cuda.many_tensors import lower_many, structure_of

    alike: dict[object, list[int]] = {}
    for number, (step, places) in enumerate(steps):
        spec = getattr(step.kernel, "spec", None)
        structure = None if spec is None else structure_of(spec)
        if structure is not None:
            alike.setdefault((structure, tuple(places[structure.operand_count :])), []).append(number)
    recipes, found = [], set[int]()
    for numbers in alike.values():
        if len(numbers) > 1:
            lowered = lower_many([steps[n][0].kernel.spec for n in numbers], [steps[n][1] for n in numbers], words)
            recipes.append(launcher.recipe(lowered, device.index or 0))
            found.update(numbers)
    return recipes, [number for number in range(len(steps)) if number not in found]


class Sequenced:
    """The launches of several parameters that share their numbers, as few native calls (of MOST_WORDS words at most).

    launches: one a parameter; tensors, numbers: how many each takes.
    """

    def __init__(self, launches: Sequence[Launch], tensors: int, numbers: int) -> None:
        self.rows, self.tensors = len(launches), tensors
        most = (MOST_WORDS - numbers - _SPARE_WORDS) // tensors
        self.parts: list[tuple[int, int, NativePlan, list[tuple[int, Launch] | Recipe]]] = []
        for start in range(0, self.rows, most):
            end = min(start + most, self.rows)
            words = (end - start) * tensors + numbers
            table: list[tuple[Recipe, list[Given]]] = []
            steps: list[tuple[int, Launch] | Recipe] = []
            moved = 0
            # Words: the addresses column by column (all parameters, all gradients, ...), then the numbers.
            placed = [
                (start + row, launch, launch.step, [
                    i * (end - start) + row if i < tensors else (end - start - 1) * tensors + i for i in launch.picked
                ]) for row, launch in enumerate(launches[start:end]) if launch.step is not None
            ]  # fmt: skip
            if launches[0].plan.device is not CPU:
                joined, rest = _joined(launches[0].plan.device, [(step, places) for _, _, step, places in placed], words)
                for recipe in joined:
                    table.append((recipe, [Given(place) for place in range(words)]))
                    steps.append(recipe)
                placed = [placed[number] for number in rest]
            for row, launch, step, places in placed:
                table.append((step.recipe, [Given(place) for place in places]))
                steps.append((row, launch))
                moved += step.bytes_moved
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
                failed = steps[step]
                if isinstance(failed, Recipe):
                    from tensorsmith.targets.cuda import launcher

                    raise launcher.failed(failed, code)
                row, launch = failed
                words = [*ptrs[row :: self.rows], *numbers]
                launch.plan.fail(0, code, [words[i] for i in launch.words])
