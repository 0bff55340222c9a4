"""How long each step of a plan takes, beside what it moves and computes, and beside the machine's roof."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorsmith.core.device import CPU
from tensorsmith.core.dtypes import DType
from tensorsmith.core.views import Strided, extent
from tensorsmith.ir.graph import Graph
from tensorsmith.runtime import profiler
from tensorsmith.runtime.plan import Plan
from tensorsmith.runtime.roof import Roof, roof
from tensorsmith.tensor.storage import storage_type

TURNS = 9
ABOVE = 1.1  # of the roof: more than this is no measurement's noise
LONGEST = 1.0  # seconds that all turns may take; two are made in any case


@dataclass(frozen=True)
class TimedStep:
    """One step of a plan: the median of its times, and what the plan says that it moves and computes."""

    name: str
    seconds: float
    bytes_moved: int
    flops: int

    def of_roof(self, limit: Roof) -> float:
        """The fraction of what the machine can do: its least time over the measured one."""
        return limit.least_seconds(self.bytes_moved, self.flops) / self.seconds if self.seconds else 0.0


def operands_for(
    graph: Graph, places: Sequence[Strided | None], given: Sequence[Any] | None, made: Callable[[int, DType], tuple[int, Any]]
) -> tuple[list[Any], list[Any]]:
    """Words of the operands and what keeps their memory.

    made: the address of a number of elements, and what keeps them, for tensors that were not given.
    """
    words: list[Any] = []
    kept: list[Any] = []
    for number, (node, place) in enumerate(zip(graph.inputs, places)):
        value = given[number] if given is not None else None
        if place is None:
            words.append(value if isinstance(value, int | float) else (1 if node.dtype.kind in "iub" else 1.0))
        elif value is not None and hasattr(value, "ptr"):
            words.append(value.ptr)
            kept.append(value)
        else:
            address, keeps = made(max(extent(place), 1), node.dtype)
            words.append(address)
            kept.append(keeps)
    return words, kept


def _drawn() -> Callable[[int, DType], tuple[int, Any]]:
    """Random numbers, and zeros for integers, in memory of the host."""
    random = np.random.default_rng(0)

    def made(count: int, dtype: DType) -> tuple[int, Any]:
        drawn = np.zeros(count, dtype.numpy) if dtype.kind in "iub" else random.random(count, np.float32).astype(dtype.numpy)
        return drawn.ctypes.data, drawn

    return made


def timed_steps(plan: Plan, graph: Graph, places: Sequence[Strided | None], given: Sequence[Any] | None) -> list[TimedStep]:
    """Every step of a plan, timed one by one in several runs. graph, places: as the plan was built for them."""
    if plan.device is not CPU:
        return _timed_on_device(plan, graph, places, given)
    operands, kept = operands_for(graph, places, given, _drawn())
    new = [np.empty(nbytes + 64, np.uint8) for nbytes in plan.new_bytes]
    words = [operands[i] for i in plan.tensor_inputs] + [array.ctypes.data for array in new] + plan.number_words(operands)
    times: list[list[float]] = [[] for _ in plan.steps]
    spent = 0.0
    plan.run(words)
    for turn in range(TURNS):
        if turn > 1 and spent > LONGEST:
            break
        seconds = profiler.step_seconds(lambda: plan.run(words))
        for step, value in zip(times, seconds, strict=True):
            step.append(value)
        spent += sum(seconds)
    del kept
    return [
        TimedStep(step.name, statistics.median(values), step.bytes_moved, step.flops) for step, values in zip(plan.steps, times)
    ]


def _timed_on_device(
    plan: Plan, graph: Graph, places: Sequence[Strided | None], given: Sequence[Any] | None
) -> list[TimedStep]:
    """The same on a CUDA device, by its own clock; what was not given is zeros, as numbers on the host are not read."""
    from tensorsmith.runtime.device_roof import step_seconds

    new = storage_type(plan.device)

    def zeros(count: int, dtype: DType) -> tuple[int, Any]:
        storage = new.zeros(count * dtype.itemsize)
        return storage.ptr, storage

    words, kept = operands_for(graph, places, given, zeros)
    made = [new(nbytes) for nbytes in plan.new_bytes]
    run = [words[i] for i in plan.tensor_inputs] + [storage.ptr for storage in made] + plan.number_words(words)
    plan.run(run)
    seconds = step_seconds(plan, run)
    del kept
    return [TimedStep(step.name, value, step.bytes_moved, step.flops) for step, value in zip(plan.steps, seconds, strict=True)]


def table(steps: Sequence[TimedStep], limit: Roof | None = None) -> str:
    """The steps as a table: time, share, GB/s, GFLOP/s, fraction of the roof and what bounds the step."""
    if limit is None:
        limit = roof()
        if any(step.of_roof(limit) > ABOVE for step in steps):  # so it was too low: something else ran meanwhile
            limit = roof(again=True)
    whole = sum(step.seconds for step in steps) or 1e-12
    rows: list[tuple[str, ...]] = [("step", "time us", "share", "GB/s", "GFLOP/s", "of roof", "bound by")]
    for number, step in enumerate(steps, 1):
        rows.append((f"{number} {step.name}", *_cells(step, whole, limit)))
    total = TimedStep("all", whole, sum(s.bytes_moved for s in steps), sum(s.flops for s in steps))
    rows.append(("all", *_cells(total, whole, limit)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]) for row in rows]
    lines.append(str(limit))
    return "\n".join(line.rstrip() for line in lines)


def _cells(step: TimedStep, whole: float, limit: Roof) -> tuple[str, ...]:
    seconds = step.seconds or 1e-12
    counted = bool(step.bytes_moved or step.flops)
    return (
        f"{seconds * 1e6:.1f}", f"{seconds / whole:.1%}",
        f"{step.bytes_moved / seconds / 1e9:.1f}" if step.bytes_moved else "-",
        f"{step.flops / seconds / 1e9:.1f}" if step.flops else "-",
        f"{step.of_roof(limit):.0%}" if counted else "-", limit.bound(step.bytes_moved, step.flops) if counted else "-",
    )  # fmt: skip
