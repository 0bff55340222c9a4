"""What this machine can do at most: bytes a second from memory and floating-point operations a second, measured once.

The bandwidth is that of our own kernel for x + y over three arrays of 32 MB, counted as 12 bytes an element; the peak that of
independent multiply-adds in registers on every thread. Both take a fraction of a second, and are kept in the cache folder
for each processor, instruction set and number of threads. A kernel whose operands lie in a cache may be above the first.
"""

from __future__ import annotations

import functools
import hashlib
import json
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
TURNS = 7
STEPS = 200_000  # of the loop of multiply-adds
CHAINS = 12  # more than latency times throughput, fewer than there are registers


@dataclass(frozen=True)
class Roof:
    """The best of some turns. bytes_per_second: from memory; flops_per_second: float32 in registers."""

    bytes_per_second: float
    flops_per_second: float
    threads: int

    def least_seconds(self, bytes_moved: int, flops: int) -> float:
        """The time below which this machine does not do that much (the roofline model: Williams, Waterman, Patterson, 2009)."""
        return max(bytes_moved / self.bytes_per_second, flops / self.flops_per_second)

    def bound(self, bytes_moved: int, flops: int) -> str:
        """What limits that work: "memory" or "arithmetic"."""
        memory = bytes_moved / self.bytes_per_second
        return "memory" if memory >= flops / self.flops_per_second else "arithmetic"


def roof() -> Roof:
    """The roof for the number of threads there are now: kept from an earlier run, or measured."""
    return _roof(get_num_threads())


@functools.cache
def _roof(threads: int) -> Roof:
    here = machine()
    parts = f"roof 1 {here.name} {here.cpu} {here.features} {threads}"
    key = hashlib.blake2b(parts.encode(), digest_size=32).hexdigest()
    kept = disk_cache().load(key)
    if kept is not None:
        return Roof(**json.loads(kept))
    found = Roof(_bandwidth(), _peak(threads), threads)
    disk_cache().store(key, json.dumps(asdict(found)).encode())
    return found


def _best(call: Callable[[], object]) -> float:
    """The shortest of some turns, in seconds."""
    call()
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _bandwidth() -> float:
    graph = Graph()
    x, y = (graph.input((ELEMENTS,), float32) for _ in range(2))
    graph.outputs = (x + y,)
    place = Strided((ELEMENTS,), contiguous_strides((ELEMENTS,)))
    plan = build_plan(graph, [place, place])
    arrays = [np.ones(ELEMENTS, np.float32) for _ in range(3)]
    words = [array.ctypes.data for array in arrays]
    return 12 * ELEMENTS / _best(lambda: plan.run(words))


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
