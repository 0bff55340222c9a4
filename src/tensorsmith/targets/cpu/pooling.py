"""Max pooling over the last two axes: every row of results from whole vectors.

    for plane in this chunk:
        for row of results:
            line = -inf, the largest of the window's rows of x, -inf       as long as windows reach
            y[row] = the largest of the window's places along the line     every second place by a shuffle of two vectors

What lies outside of x is -inf; NaN is passed on.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.context import Context
from tensorsmith.targets.cpu.conv import ConvKernel
from tensorsmith.targets.cpu.gemm_kernels import Kernels, Piece
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.scalars import RENDERINGS
from tensorsmith.targets.cpu.vector import Lanes

# Constant words, in order; strides in bytes. columns: of x that windows see, which lie in the line from `before` on, until
# `reach`; table: for every row of results where the first row of x in its window lies in a plane, and how many there are.
WORDS = (
    "planes", "planes_per_chunk", "inner", "x_outer", "x_inner", "x_step", "y_outer", "y_inner", "y_row", "rows", "width",
    "columns", "first_column", "before", "reach", "line_bytes", "dilation", "table",
)  # fmt: skip
_ELEMENTS_PER_CHUNK = 1 << 16
_MOST_CHUNKS = 32


def pool_function(vectors: Vectors, taps: int, stride: int) -> Function:
    """An entry of the kernel ABI for windows of `taps` places along a row: launch words x, y, workspace."""
    f = Function(f"max_pool_{taps}_{stride}", [("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker")])
    x, y, workspace = (f.load("ptr", f.offset("%args", 8 * i), 8) for i in range(3))
    w: dict[str, Value] = {word: f.load("i64", f.offset("%args", 8 * (4 + i)), 8) for i, word in enumerate(WORDS)}
    table = f.value(f"inttoptr i64 {w['table']} to ptr")
    size, lanes = vectors.compute_size, vectors.lanes
    assert vectors.machine is not None
    context = Context(Lanes(f, lanes, vectors.machine))
    lowest = vectors.splat(f, "0xFFF0000000000000")  # -inf

    def larger(a: Value, b: Value) -> str:
        return RENDERINGS[Fn.MAXIMUM](context, vectors.dtype, (str(a), str(b)))

    def fill(low: Value, high: Value) -> None:
        with f.loop(low, high, lanes) as i:
            vectors.store(f, lowest, f.offset(line, f.mul(i.index, size)))

    chunk = f.value("zext i32 %chunk to i64")
    line = f.offset(workspace, f.mul(chunk, w["line_bytes"]))
    inside, behind = f.offset(line, f.mul(w["before"], size)), f.add(w["before"], w["columns"])
    whole = f.round_down(w["columns"], lanes)
    tail = vectors.mask(f, f.sub(w["columns"], whole))
    results = f.round_down(w["width"], lanes)
    last = vectors.mask(f, f.sub(w["width"], results))
    fill(0, w["before"])
    plane0 = f.mul(chunk, w["planes_per_chunk"])
    plane1 = f.minimum(f.add(plane0, w["planes_per_chunk"]), w["planes"])
    with f.loop(plane0, plane1, 1, name="plane in planes of this chunk") as plane:
        outer = f.udiv(plane.index, w["inner"])
        inner = f.sub(plane.index, f.mul(outer, w["inner"]))
        x0, y0 = (
            f.offset(p, f.add(f.mul(outer, w[f"{n}_outer"]), f.mul(inner, w[f"{n}_inner"]))) for n, p in (("x", x), ("y", y))
        )
        x0 = f.offset(x0, f.mul(w["first_column"], size))
        with f.loop(0, w["rows"], 1, [("ptr", y0), ("ptr", table)], name="row of results") as row:
            to, entry = row.carried
            source, count = f.offset(x0, f.load("i64", entry, 8)), f.load("i64", f.offset(entry, 8), 8)

            def of_rows(column: Value, mask: Mask | None, source: str = source, count: Value = count) -> None:
                here = [("ptr", f.offset(source, f.mul(column, size))), (vectors.type, lowest)]
                with f.loop(0, count, 1, here) as a:
                    at, found = a.carried
                    a.next = [f.offset(at, w["x_step"]), larger(found, vectors.load(f, at, mask))]
                vectors.store(f, a.out[1], f.offset(inside, f.mul(column, size)))

            with f.loop(0, whole, lanes, name="columns in vectors") as column:
                of_rows(column.index, None)
                f.note("line = largest of the window's rows")
            with f.if_(f.compare("slt", whole, w["columns"])):
                of_rows(whole, tail)
            fill(behind, w["reach"])

            def of_columns(column: Value, mask: Mask | None, to: str = to) -> None:
                at = f.offset(line, f.mul(column, stride * size))
                found = ""
                for _ in range(taps):
                    value = vectors.load(f, at)
                    if stride == 2:
                        behind = vectors.load(f, f.offset(at, lanes * size))
                        value = vectors.shuffle(f, value, behind, [2 * k for k in range(lanes)])
                    found = larger(found, value) if found else value
                    at = f.offset(at, f.mul(w["dilation"], size))
                vectors.store(f, found, f.offset(to, f.mul(column, size)), mask)

            with f.loop(0, results, lanes, name="results in vectors") as column:
                of_columns(column.index, None)
                f.note("y = largest of the places along the line")
            with f.if_(f.compare("slt", results, w["width"])):
                of_columns(results, last)
            row.next = [f.offset(to, w["y_row"]), f.offset(entry, 16)]
    return f


class PoolKernels(Kernels):
    """The compiled pooling for one dtype on one machine."""

    def pool(self, taps: int, stride: int) -> Piece:
        """Windows of some places along a row."""
        return self._piece(("max pool", taps, stride), lambda v: [pool_function(v, taps, stride)])


@functools.cache
def pool_kernels(dtype: DType, machine: Machine) -> PoolKernels:
    """The pieces for a dtype and machine."""
    return PoolKernels(dtype, machine)


def plan_max_pool(
    dtype: DType, x_shape: Sequence[int], y_shape: Sequence[int], attrs: dict[str, Any], x: Sequence[int], y: Sequence[int],
    machine: Machine | None = None,
) -> ConvKernel:  # fmt: skip
    """Plan y (A, B, rows, columns) of x (A, B, H, W), float32 or float64, whose rows lie contiguously.

    attrs: kernel, stride (along rows 1 or 2), low (of the padding, negative where windows begin later), dilation: of the last
    two axes. x, y: strides, in elements.
    """
    pieces = pool_kernels(dtype, machine or default_machine())
    size, lanes = pieces.storage_size, pieces.lanes
    outer, inner, height, width = x_shape
    rows, columns = y_shape[2:]
    (k0, k1), (s0, s1), (low0, low1), (d0, d1) = (attrs[name] for name in ("kernel", "stride", "low", "dilation"))
    table = np.zeros((rows, 2), np.int64)
    for i in range(rows):
        seen = [r for r in range(i * s0 - low0, i * s0 - low0 + k0 * d0, d0) if 0 <= r < height]
        if seen:
            table[i] = seen[0] * x[2] * size, len(seen)
    reach = (columns - 1) * s1 + (k1 - 1) * d1 + 1
    before, first = max(low1, 0), max(-low1, 0)
    seen_columns = max(0, min(width - first, reach - before))
    line = s1 * (-(-columns // lanes) * lanes) + (k1 - 1) * d1 + before + 3 * lanes
    line_bytes = -(-line * size // 64) * 64
    planes = outer * inner
    planes_per_chunk = -(-planes // max(1, min(planes, _MOST_CHUNKS, planes * height * width // _ELEMENTS_PER_CHUNK)))
    chunks = -(-planes // planes_per_chunk)
    words = {
        "planes": planes, "planes_per_chunk": planes_per_chunk, "inner": inner, "x_outer": x[0] * size,
        "x_inner": x[1] * size, "x_step": x[2] * d0 * size, "y_outer": y[0] * size, "y_inner": y[1] * size,
        "y_row": y[2] * size, "rows": rows, "width": columns, "columns": seen_columns, "first_column": first,
        "before": before, "reach": reach, "line_bytes": line_bytes, "dilation": d1, "table": table.ctypes.data,
    }  # fmt: skip
    piece = pieces.pool(k1, s1)
    return ConvKernel(
        function_address=next(iter(piece.addresses.values())),
        chunks=chunks,
        constants=tuple(words[name] for name in WORDS),
        launch_order=("x", "y", "workspace"),
        workspace_bytes=line_bytes * chunks,
        flops=planes * rows * columns * k0 * k1,
        pieces=(piece,),
        tables=(table,),
    )


__all__ = ["WORDS", "plan_max_pool"]
