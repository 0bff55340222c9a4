"""A launch that notes when each thread of the pool worked: for profiles.

The kernel runs inside a function of our own, which reads the clock around every chunk. That function is launched as any
kernel is, with three words more in front: the kernel, a table for the times, the clock. The kernel gets the words behind them.
The clock is `clock_gettime(CLOCK_MONOTONIC)`, which on Linux is Python's `time.perf_counter`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensorsmith.targets.cpu import launch as launching
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.pool import supported
from tensorsmith.targets.cpu.recipe import MOST_WORDS, Recipe

_FRONT = 3  # words before the kernel's
_ROW = 5  # of the table: seconds and nanoseconds of beginning and end, the worker
_TEXT = f"""
define void @traced(ptr %arguments, i32 %chunk, i32 %chunks, i32 %worker) {{
  %kernel = load ptr, ptr %arguments
  %second = getelementptr i64, ptr %arguments, i64 1
  %table = load ptr, ptr %second
  %third = getelementptr i64, ptr %arguments, i64 2
  %clock = load ptr, ptr %third
  %inner = getelementptr i64, ptr %arguments, i64 {_FRONT}
  %number = zext i32 %chunk to i64
  %first = mul i64 %number, {_ROW}
  %begin = getelementptr i64, ptr %table, i64 %first
  %end = getelementptr i64, ptr %begin, i64 2
  %who = getelementptr i64, ptr %begin, i64 4
  %worker64 = zext i32 %worker to i64
  store i64 %worker64, ptr %who
  %a = call i32 %clock(i32 1, ptr %begin)
  call void %kernel(ptr %inner, i32 %chunk, i32 %chunks, i32 %worker)
  %b = call i32 %clock(i32 1, ptr %end)
  ret void
}}
"""


class Worked(NamedTuple):
    """What one worker of the pool did in a launch; 0 is the thread that launched it. start: of `time.perf_counter`."""

    worker: int
    start: float
    seconds: float
    chunks: int


@functools.cache
def _functions() -> tuple[int, int] | None:
    """The addresses of the function and of the clock; None where the pool or the clock is not Linux's."""
    if not supported()[0]:
        return None
    (traced,) = compile_functions(_TEXT, ["traced"])
    clock = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
    return None if clock is None else (traced, clock)


def launch_traced(recipe: Recipe, words: Sequence[int | float]) -> tuple[int | None, list[Worked]]:
    """Launch a recipe: the error code, and what each worker that had a chunk did."""
    functions = _functions()
    if functions is None or recipe.chunks < 2 or recipe.width + _FRONT > MOST_WORDS:
        return launching.launch(recipe.address, *words), []
    traced, clock = functions
    table = np.zeros((recipe.chunks, _ROW), np.int64)
    outer = Recipe(traced, recipe.chunks, recipe.launch_words + _FRONT, recipe.constants, recipe.flags)
    code = launching.launch(outer.address, recipe.function, table.ctypes.data, clock, *words)
    starts = table[:, 0] + table[:, 1] * 1e-9
    ends = table[:, 2] + table[:, 3] * 1e-9
    found = []
    for worker in np.unique(table[:, 4]).tolist():
        of = table[:, 4] == worker
        start = float(starts[of].min())
        found.append(Worked(worker, start, float(ends[of].max()) - start, int(of.sum())))
    return code, found
