"""What this machine can do at most: bytes a second from memory and caches, and floating-point operations a second.

The bandwidths are those of our own kernel for x + y over three arrays, counted as 12 bytes an element: arrays of 32 MB for
memory, smaller ones for what caches give to work of their size. The peak is that of independent multiply-adds in registers on
every thread. All take a second or so, and are kept in the cache folder for each processor, instruction set and number of
threads. What is measured while other programs run is too low: where a step is above it, it is measured again, and the best of
both counts.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from tensorsmith.core.dtypes import float32
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Graph
from tensorsmith.runtime.plan import build_plan
from tensorsmith.targets.cpu import launch as launching
from tensorsmith.targets.cpu.compiler import compile_functions, disk_cache
from tensorsmith.targets.cpu.machine import machine
from tensorsmith.targets.cpu.pool import get_num_threads
from tensorsmith.targets.cpu.recipe import Recipe

ELEMENTS = 8 << 20  # of each array: more than caches hold
SMALLER = (1 << 12, 1 << 15, 1 << 18, 1 << 20)  # elements of each array in caches: 48 KB to 12 MB of work
SECONDS = 0.15  # of turns for each figure
STEPS = 200_000  # of the loop of multiply-adds
CHAINS = 12  # more than latency times throughput, fewer than there are registers


@dataclass(frozen=True)
class Roof:
    """The best of some turns. bytes_per_second: from memory; flops_per_second: float32 in registers.

    cached: (bytes that are moved again and again, bytes a second), the least first
    """

    bytes_per_second: float
    flops_per_second: float
    threads: int
    cached: tuple[tuple[int, float], ...] = ()
    name: str = ""  # of a device; the CPU's threads where there is none

    def __str__(self) -> str:
        whose = self.name or f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return (
            f"roof of {whose}: {self.bytes_per_second / 1e9:.1f} GB/s from memory, more from a cache, "
            f"{self.flops_per_second / 1e9:.0f} GFLOP/s in float32"
        )

    def bandwidth(self, bytes_moved: int) -> float:
        """Bytes a second for work of this size, which may lie in a cache."""
        return max([self.bytes_per_second, *(rate for size, rate in self.cached if size >= bytes_moved)])

    def least_seconds(self, bytes_moved: int, flops: int) -> float:
        """The time below which this machine does not do that much (the roofline model: Williams, Waterman, Patterson, 2009)."""
        return max(bytes_moved / self.bandwidth(bytes_moved), flops / self.flops_per_second)

    def bound(self, bytes_moved: int, flops: int) -> str:
        """What limits that work: "memory" or "arithmetic"."""
        memory = bytes_moved / self.bandwidth(bytes_moved)
        return "memory" if memory >= flops / self.flops_per_second else "arithmetic"

    def better(self, other: Roof) -> Roof:
        """The best of two measurements."""
        cached = tuple((size, max(rate, again)) for (size, rate), (_, again) in zip(self.cached, other.cached))
        memory = max(self.bytes_per_second, other.bytes_per_second)
        return Roof(memory, max(self.flops_per_second, other.flops_per_second), self.threads, cached, self.name)


_roofs: dict[int, Roof] = {}


def roof(again: bool = False) -> Roof:
    """The roof for the number of threads there are now: kept from an earlier run, or measured; again: measured in any case."""
    threads = get_num_threads()
    found = _roofs.get(threads)
    if found is None or again:
        found = _roofs[threads] = _roof(threads, again)
    return found


def _roof(threads: int, again: bool = False) -> Roof:
    here = machine()
    parts = f"roof 2 {here.name} {here.cpu} {here.features} {threads}"
    key = hashlib.blake2b(parts.encode(), digest_size=32).hexdigest()
    kept = disk_cache().load(key)
    before = None
    if kept is not None:
        values = json.loads(kept)
        before = Roof(**{**values, "cached": tuple((size, rate) for size, rate in values["cached"])})
        if not again:
            return before
    cached = tuple((12 * elements, _bandwidth(elements)) for elements in SMALLER)
    found = Roof(_bandwidth(ELEMENTS), _peak(threads), threads, cached)
    if before is not None:
        found = found.better(before)
    disk_cache().store(key, json.dumps(asdict(found)).encode())
    return found


def _best(call: Callable[[], object]) -> float:
    """The shortest of the turns that fit into `SECONDS`, in seconds."""
    call()
    best, end = math.inf, time.perf_counter() + SECONDS
    while (start := time.perf_counter()) < end or best == math.inf:
        call()
        best = min(best, time.perf_counter() - start)
    return best


def _bandwidth(elements: int) -> float:
    graph = Graph()
    x, y = (graph.input((elements,), float32) for _ in range(2))
    graph.outputs = (x + y,)
    place = Strided((elements,), contiguous_strides((elements,)))
    plan = build_plan(graph, [place, place])
    arrays = [np.ones(elements, np.float32) for _ in range(3)]
    words = [array.ctypes.data for array in arrays]
    return 12 * elements / _best(lambda: plan.run(words))


def _peak(threads: int) -> float:
    lanes = machine().lanes(4)
    (address,) = compile_functions(_multiply_adds(lanes), ["roof"])
    recipe = Recipe(address, threads, 0)
    return 2 * lanes * CHAINS * STEPS * threads / _best(lambda: launching.launch(recipe.address))


def _multiply_adds(lanes: int) -> str:
    """A loop of independent chains a <- x x + a; the volatile store keeps them."""
    vector = f"<{lanes} x float>"
    half = "<" + ", ".join(["float 5.000000e-01"] * lanes) + ">"
    chains = range(CHAINS)
    function = f"@llvm.fmuladd.v{lanes}f32"
    lines = [
        f"declare {vector} {function}({vector}, {vector}, {vector})",
        "define void @roof(ptr %arguments, i32 %chunk, i32 %chunks, i32 %worker) {",
        "entry:", f"  %kept = alloca {vector}", "  br label %loop",
        "loop:", "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *[f"  %a{k} = phi {vector} [ zeroinitializer, %entry ], [ %b{k}, %loop ]" for k in chains],
        *[f"  %b{k} = call {vector} {function}({vector} {half}, {vector} {half}, {vector} %a{k})" for k in chains],
        "  %next = add i64 %i, 1", f"  %more = icmp ult i64 %next, {STEPS}", "  br i1 %more, label %loop, label %done",
        "done:", *[f"  store volatile {vector} %b{k}, ptr %kept" for k in chains], "  ret void", "}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
