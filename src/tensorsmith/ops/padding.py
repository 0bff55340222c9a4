"""Padding at the ends of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.memory_format import format_of_first
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import refuse
from tensorsmith.ops.raw_keys import as_ints
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.tensor.tensor import Tensor


def _pad_constant(x: Node, value: Any, widths: tuple[tuple[int, int], ...]) -> Node:
    for axis, (low, high) in enumerate(widths):  # negative widths cut
        start, end = max(-low, 0), max(-high, 0)
        x = build.slice_(x, axis, start, x.shape[axis] - start - end)
    before, after = [max(w[0], 0) for w in widths], [max(w[1], 0) for w in widths]
    padded = build.pad(x, before, after)
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0 and math.copysign(1, value) > 0:
        return padded
    inside: Node | None = None
    for axis, (first, extent) in enumerate(zip(before, x.shape)):
        if not first and not after[axis]:
            continue
        place = build.reshape(
            x.graph.iota(padded.shape[axis]), [n if i == axis else 1 for i, n in enumerate(padded.shape)]
        )
        here = (place >= first) & (place < first + extent)
        inside = here if inside is None else inside & here
    return padded if inside is None else build.where(inside, padded, build.cast(value, x.dtype, x.graph))


def _pad_taking(x: Node, widths: tuple[tuple[int, int], ...], mode: str) -> Node:
    for axis, (low, high) in enumerate(widths):
        if not low and not high:
            continue
        extent = x.shape[axis]
        place = x.graph.iota(extent + low + high) - low
        if mode == "replicate":
            index = build.where(place < 0, 0, build.where(place >= extent, extent - 1, place))
        elif mode == "circular":
            index = build.where(place < 0, place + extent, build.where(place >= extent, place - extent, place))
        else:
            index = build.where(place < 0, -place, build.where(place >= extent, 2 * (extent - 1) - place, place))
        x = x.graph.add(Primitive.TAKE, (x, index), axis=axis)
    return x


pad_operator = Operator("constant_pad_nd", _pad_constant, keeps_format=format_of_first)
pad_taking_operator = Operator("pad_taking", _pad_taking, fresh=True, node_name="Pad", keeps_format=format_of_first)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:  # noqa: A002
    """Padded at both ends of the last axes: (last low, last high, next-to-last low, ...); negative widths cut.

    mode: "constant" (with `value`, 0 by default), "reflect", "replicate" or "circular".
    """
    need_tensor("pad", input)
    flat = as_ints("pad", pad, "pad")
    if len(flat) % 2:
        raise RuntimeError("Padding length must be divisible by 2")
    if len(flat) // 2 > input.ndim:
        raise RuntimeError(
            f"Padding length should be less than or equal to two times the input dimension but got padding length {len(flat)} "
            f"and input of dimension {input.ndim}"
        )
    pairs = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
    widths = tuple([(0, 0)] * (input.ndim - len(pairs)) + pairs[::-1])
    for axis, (low, high) in enumerate(widths):
        if input.layout.shape[axis] + low + high < 0 or min(low, 0) + min(high, 0) + input.layout.shape[axis] < 0:
            raise RuntimeError(
                f"The input size {input.layout.shape[axis]}, plus negative padding {low} and {high}, resulted in a negative "
                f"output size, which is invalid. Check dimension {axis} of your input."
            )
    if mode == "constant":
        return call(pad_operator, (input,), {"value": 0.0 if value is None else value, "widths": widths})
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if value is not None and value != 0:
        raise RuntimeError(f'Padding mode "{mode}" doesn\'t take in value argument, got value={value}')
    for axis, (low, high) in enumerate(widths):
        extent = input.layout.shape[axis]
        if not low and not high:
            continue
        most = extent - 1 if mode == "reflect" else extent if mode == "circular" else max(low, high)
        if max(low, high) > most:
            raise RuntimeError(
                f"Padding size should be {'less than' if mode == 'reflect' else 'at most'} the corresponding input dimension, "
                f"but got: padding ({low}, {high}) at dimension {axis} of input {list(input.layout.shape)}"
            )
        if mode == "replicate" and not extent and (low or high):
            raise RuntimeError(f"replicate padding of dimension {axis} with size 0: there is nothing to repeat")
    if mode != "circular":
        kernel = "reflection" if mode == "reflect" else "replication"
        refuse(f"{kernel}_pad{len(pad) // 2}d", input.layout.dtype, "b")
    if mode == "circular":  # what is cut off is not wrapped around; the other modes look at the whole input
        cuts = tuple((min(low, 0), min(high, 0)) for low, high in widths)
        if any(cut != (0, 0) for cut in cuts):
            input = call(pad_operator, (input,), {"value": 0.0, "widths": cuts})  # noqa: A001
        widths = tuple((max(low, 0), max(high, 0)) for low, high in widths)
    return call(pad_taking_operator, (input,), {"widths": widths, "mode": mode})


public("joining", namespace="nn.functional", method=False)(pad)


@public("joining", method=False)
def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:  # noqa: A002
    """Padded with a constant; widths as for `pad`."""
    return _constant(input, pad, value)


def _constant(x: Tensor, widths: Sequence[int], value: float) -> Tensor:
    return pad(x, widths, "constant", value)
