"""The weights of a convolution laid out anew, where they are seen turned or in part: (O, C, taps), contiguous.

    for output channels in blocks:                      whose lines of the result stay in the nearest cache
        for c in input channels:  for o in the block:   result[o][c][taps] = w[o][c][taps]

The weights of the opposite direction lie side by side along o, each kernel reversed: a line of w is read once. A general copy
goes along c, from line to line.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.conv import ConvKernel
from tensorsmith.targets.cpu.gemm_kernels import Kernels, Piece
from tensorsmith.targets.cpu.gemm_vectors import Vectors
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine

WORDS = ("outs_per_chunk", "outs", "ins", "taps", "w_out", "w_in", "offsets", "reversed")  # strides in bytes
_BLOCK = 8  # output channels: lines a multiple of 2 KB apart still find places in the nearest cache
_PIECE_BYTES = 16  # moved at once
_ELEMENTS_PER_CHUNK = 1 << 15
_MOST_CHUNKS = 32


def weight_function(vectors: Vectors) -> Function:
    """An entry of the kernel ABI: launch words w and u."""
    f = Function("conv_weight", [("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker")])
    source, target = (f.load("ptr", f.offset("%args", 8 * i), 8) for i in range(2))
    w: dict[str, Value] = {word: f.load("i64", f.offset("%args", 8 * (3 + i)), 8) for i, word in enumerate(WORDS)}
    offsets = f.value(f"inttoptr i64 {w['offsets']} to ptr")
    size = vectors.compute_size
    count = _PIECE_BYTES // size
    kind = f"<{count} x {vectors.scalar}>"
    order = ", ".join(f"i32 {k}" for k in reversed(range(count)))
    lowest = f.load("i64", f.offset(offsets, f.mul(f.sub(w["taps"], 1), 8)), 8)  # where a reversed kernel begins in w
    row = f.mul(f.mul(w["ins"], w["taps"]), size)
    out0 = f.mul(f.value("zext i32 %chunk to i64"), w["outs_per_chunk"])
    out1 = f.minimum(f.add(out0, w["outs_per_chunk"]), w["outs"])

    def in_pieces(here: str, there: str) -> None:
        first, last = f.offset(here, lowest), f.sub(w["taps"], count)
        with f.loop(0, w["taps"], count, name="taps in pieces, the last one over the end of the one before") as t:
            at = f.minimum(t.index, last)
            piece = f.load(kind, f.offset(first, f.mul(f.sub(last, at), size)), size)
            turned = f.value(f"shufflevector {kind} {piece}, {kind} poison, <{count} x i32> <{order}>")
            f.store(turned, kind, f.offset(there, f.mul(at, size)), size)

    def one_by_one(here: str, there: str) -> None:
        with f.loop(0, w["taps"], 1, name="tap") as t:
            place = f.offset(here, f.load("i64", f.offset(offsets, f.mul(t.index, 8)), 8))
            f.store(f.load(vectors.scalar, place, size), vectors.scalar, f.offset(there, f.mul(t.index, size)), size)

    with f.loop(out0, out1, _BLOCK, name="output channels in blocks") as block:
        end = f.minimum(f.add(block.index, _BLOCK), out1)
        first = [("ptr", f.offset(source, f.mul(block.index, w["w_out"]))), ("ptr", f.offset(target, f.mul(block.index, row)))]
        with f.loop(0, w["ins"], 1, first, name="c in input channels") as c:
            with f.loop(block.index, end, 1, [("ptr", p) for p in c.carried], name="o in the block") as o:
                here, there = o.carried
                ways = [functools.partial(way, here, there) for way in (in_pieces, one_by_one)]
                f.branch(f.compare("ne", w["reversed"], 0), *ways)
                f.note("result[o][c][taps] = w[o][c][taps]")
                o.next = [f.offset(here, w["w_out"]), f.offset(there, row)]
            c.next = [f.offset(c.carried[0], w["w_in"]), f.offset(c.carried[1], f.mul(w["taps"], size))]
    return f


class WeightKernels(Kernels):
    """The compiled copy for one dtype on one machine."""

    def weight(self) -> Piece:
        """The copy."""
        return self._piece(("conv weight",), lambda v: [weight_function(v)])


@functools.cache
def weight_kernels(dtype: DType, machine: Machine) -> WeightKernels:
    """The piece for a dtype and machine."""
    return WeightKernels(dtype, machine)


def plan_conv_weight(
    dtype: DType, shape: Sequence[int], strides: Sequence[int], machine: Machine | None = None
) -> ConvKernel:
    """Plan the contiguous copy of weights (O, C, *K) of any strides, in elements, in float32 or float64."""
    pieces = weight_kernels(dtype, machine or default_machine())
    size = pieces.storage_size
    outs, ins, *kernel = shape
    places = [sum(k * s for k, s in zip(tap, strides[2:])) for tap in itertools.product(*map(range, kernel))]
    reverse = len(places) >= _PIECE_BYTES // size and all(b == a - 1 for a, b in itertools.pairwise(places))
    chunks = max(1, min(-(-outs // _BLOCK), _MOST_CHUNKS, outs * ins * len(places) // _ELEMENTS_PER_CHUNK))
    outs_per_chunk = -(-outs // chunks)
    table = np.array(places, np.int64) * size
    words = {
        "outs_per_chunk": outs_per_chunk, "outs": outs, "ins": ins, "taps": len(places), "w_out": strides[0] * size,
        "w_in": strides[1] * size, "offsets": table.ctypes.data, "reversed": int(reverse),
    }  # fmt: skip
    piece = pieces.weight()
    return ConvKernel(
        function_address=next(iter(piece.addresses.values())),
        chunks=-(-outs // outs_per_chunk),
        constants=tuple(words[name] for name in WORDS),
        launch_order=("w", "u"),
        workspace_bytes=0,
        flops=0,
        pieces=(piece,),
        tables=(table,),
    )


__all__ = ["WORDS", "plan_conv_weight", "weight_function"]
