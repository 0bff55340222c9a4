"""Planned before: plans of compiled functions that other processes left in the cache folder.

Planning a training step takes longer than tracing it. The same question, the traced graph and how its inputs lie, has the
same answer as long as the sources of passes, kernels and the target, the machine and the settings are the same; all of that
is the key of the plan's file (`runtime/plan_file.py`), which lies beside the compiled objects and is guarded like them.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import marshal
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType, get_default_dtype
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.passes import registry, winograd
from tensorsmith.passes.manager import Report, optimise, verifying
from tensorsmith.runtime.plan import Plan, build_plan
from tensorsmith.runtime.plan_file import pack, unpack
from tensorsmith.targets.cpu.compiler import disk_cache, key_of
from tensorsmith.targets.cpu.machine import machine
from tensorsmith.targets.cpu.pool import get_num_threads

FEWEST_STEPS = 8  # of a plan that is kept: smaller ones are planned as fast
# Settings that no plan depends on; any other variable of ours may decide one.
_ELSEWHERE = ("CACHE", "CACHE_BYTES", "CACHED_BYTES", "LAUNCH", "DEBUG")
_ROOMS = ("scalar", "core", "ir", "passes", "kernels", "targets", "runtime")  # what decides a plan
_DETERMINISTIC = 2  # a version of marshal's format that writes equal values alike


@dataclass(frozen=True)
class Question:
    """What a plan is asked for: the arguments of `optimise` and `build_plan`."""

    graph: Graph
    places: Sequence[Strided | None]
    outputs: Mapping[int, Strided]
    updates: Mapping[int, int]
    lasting: Collection[int]
    left_out: frozenset[str]
    stamped: Collection[int] = ()
    device: Device = CPU

    def answer(self, verified: bool = False) -> tuple[Plan, Report]:
        """The plan, made now, and what the passes did."""
        graph, report = optimise(self.graph, self.left_out, True if verified else None)
        plan = build_plan(
            graph, self.places, self.outputs, self.updates, self.lasting, self.left_out, self.stamped, self.device
        )
        return plan, report


class _Unknown(Exception):
    """An attribute that has no name outside this process."""


def planned(question: Question, verified: bool = False) -> tuple[Plan, Report]:
    """The plan of a traced graph, from the cache folder where it lies there, and what the passes did.

    verified: check the graph between passes, which needs them to run
    """
    anew = verified or verifying() or len(question.graph.nodes) < FEWEST_STEPS or question.device is not CPU
    key = None if anew else key_of_question(question)
    if key is None:
        return question.answer(verified)
    cache = disk_cache()
    raw = cache.load(key)
    if raw is not None:
        try:
            again = functools.cache(lambda: question.answer()[0])
            length = int.from_bytes(raw[:8], "little")
            fired = json.loads(raw[8 : 8 + length])
            report = Report({name: Counter(counts) for name, counts in fired.items()})
            return unpack(raw[8 + length :], again), report
        except (ValueError, AttributeError):  # whole, but not written by us
            cache.discard(key)
    plan, report = question.answer()
    packed = pack(plan) if len(plan.steps) >= FEWEST_STEPS else None
    if packed is not None:
        fired = json.dumps(report.fired).encode()
        cache.store(key, len(fired).to_bytes(8, "little") + fired + packed)
    return plan, report


def key_of_question(question: Question) -> str | None:
    """The name of the plan's file; None where the question has parts that only this process knows, as a user's pass."""
    if registry.registered():
        return None
    try:
        content = _content(question)
    except _Unknown:
        return None
    settings = [winograd.mode(), get_default_dtype().name, str(get_num_threads()), *sorted(question.left_out)]
    for name, value in sorted(os.environ.items()):
        if name.startswith("TENSORSMITH_") and name.removeprefix("TENSORSMITH_") not in _ELSEWHERE:
            settings.append(f"{name}={value}")
    return key_of(machine(), "plan", _sources(), "\0".join(settings), hashlib.blake2b(content).hexdigest())


def _content(question: Question) -> bytes:
    """The graph and how its inputs lie, the same bytes in every process."""
    known: dict[int, Any] = {}  # attributes that were written before, by identity: replayed nodes share theirs
    nodes: list[Any] = []
    for node in question.graph.live_nodes():
        if node.op is Primitive.INPUT:
            described: Any = (node.attrs["number"], node.attrs["param"], node.shape, node.dtype.name)
        else:
            described = known.get(id(node.key))
            if described is None:
                described = known[id(node.key)] = _plain(node.key)
        nodes.append((node.index, node.op.value, tuple([operand.index for operand in node.inputs]), described))
    inputs = [(node.shape, node.dtype.name) for node in question.graph.inputs]
    outputs = [node.index for node in question.graph.outputs]
    required = sorted(_plain(item) for item in question.outputs.items())
    numbers = [sorted(each) for each in (question.updates.items(), question.lasting, question.stamped)]
    rest = (inputs, outputs, _plain(question.places), required, numbers)
    return marshal.dumps((nodes, rest, question.graph.interning), _DETERMINISTIC)


def _plain(value: Any) -> Any:
    """A value as nested tuples of numbers and strings. _Unknown for what has no name (a graph, a function)."""
    if value is None or isinstance(value, str | bytes | bool | int | float | complex) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, tuple | list):
        return tuple([_plain(each) for each in value])
    if isinstance(value, DType):
        return "dtype", value.name
    if isinstance(value, enum.Enum):
        return type(value).__name__, value.name
    raise _Unknown


@functools.cache
def _sources() -> str:
    """The sources that decide a plan, by what Python's own compiled files go by: size and time of the last change."""
    found: list[tuple[str, int, int]] = []
    folder = Path(__file__).parents[1]

    def walk(place: str) -> None:
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    walk(entry.path)
                elif entry.name.endswith(".py"):
                    status = entry.stat()
                    found.append((entry.path, status.st_size, status.st_mtime_ns))

    for room in _ROOMS:
        walk(str(folder / room))
    return hashlib.blake2b(marshal.dumps(sorted(found), _DETERMINISTIC)).hexdigest()
