"""Convolutions as nodes: the shape rule, the builder and the two transposes.

    y[n, o, p] = sum over c, k of x'[n, c, p stride + k dilation] w[o, c, k]

x' is x with step - 1 zeros between its elements along every axis of space, and low and high zeros around (negative ones
cut). Channels fall into groups: output channel o of group g sees the input channels of group g alone, and the weight is
(O, C / groups, *K). Any stride, dilation and step may occur together, which closes the primitive under differentiation:
the gradient of either operand is a convolution of the other one with the gradient of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive

Extents = tuple[int, ...]


def padded_extents(space: Sequence[int], attrs: dict[str, Any]) -> Extents:
    """The extents of x': dilated and padded."""
    each = zip(space, attrs["low"], attrs["high"], attrs["step"])
    return tuple(low + ((n - 1) * step + 1 if n else 0) + high for n, low, high, step in each)


def result_shape(x: Sequence[int], w: Sequence[int], attrs: dict[str, Any]) -> Extents:
    """The shape of the result; ValueError where the operands do not fit."""
    rank, groups = len(x) - 2, attrs["groups"]
    given = [len(attrs[name]) for name in ("stride", "low", "high", "dilation", "step")]
    if rank < 1 or len(w) != rank + 2 or given != [rank] * 5:
        raise ValueError(f"conv: operands {tuple(x)} and {tuple(w)} with {given} attributes per axis of space")
    if groups < 1 or x[1] != w[1] * groups or w[0] % groups:
        raise ValueError(f"conv: channels of {tuple(x)} and {tuple(w)} do not fit in {groups} groups")
    if min(*attrs["stride"], *attrs["dilation"], *attrs["step"]) < 1:
        raise ValueError(f"conv: stride, dilation and step are at least 1: {attrs}")
    each = zip(padded_extents(x[2:], attrs), w[2:], attrs["stride"], attrs["dilation"])
    return (x[0], w[0], *(max((n - (k - 1) * dilation - 1) // stride + 1, 0) if k else 0 for n, k, stride, dilation in each))


def convolution(
    x: Node, w: Node, stride: Sequence[int], low: Sequence[int], high: Sequence[int], dilation: Sequence[int],
    step: Sequence[int], groups: int,
) -> Node:  # fmt: skip
    """The convolution of x (N, C, *S) with w (O, C / groups, *K); a sum over nothing is zero."""
    attrs = {
        "stride": tuple(stride), "low": tuple(low), "high": tuple(high), "dilation": tuple(dilation), "step": tuple(step),
        "groups": groups,
    }  # fmt: skip
    return x.graph.add(Primitive.CONV, (x, w), **attrs)


def turned(w: Node, groups: int) -> Node:
    """The weight of the opposite direction: (C, O / groups, *K), every kernel reversed."""
    out, inner, *kernel = w.shape
    w = build.reshape(w, (groups, out // groups, inner, *kernel))
    w = build.permute(w, (0, 2, 1, *range(3, w.ndim)))
    w = build.reshape(w, (groups * inner, out // groups, *kernel))
    return build.flip(w, [i + 2 for i, n in enumerate(kernel) if n > 1])


def of_input(space: Sequence[int], grad: Node, w: Node, attrs: dict[str, Any]) -> Node:
    """The transpose in x, whose axes of space have extents `space`: a convolution of the gradient with the turned weight."""
    each = [*zip(space, grad.shape[2:], w.shape[2:], attrs["stride"], attrs["low"], attrs["dilation"], attrs["step"])]
    low = [(k - 1) * dilation - before for _, _, k, _, before, dilation, _ in each]
    high = [(n - 1) * step - (p - 1) * stride + before for n, p, _, stride, before, _, step in each]
    return convolution(
        grad, turned(w, attrs["groups"]), attrs["step"], low, high, attrs["dilation"], attrs["stride"], attrs["groups"]
    )


def of_weight(kernel: Sequence[int], grad: Node, x: Node, attrs: dict[str, Any]) -> Node:
    """The transpose in w, whose kernels have extents `kernel`: x, with its batch as channels, convolved with the gradient.

    Where x has zeros between its elements and there is no stride, the two change places, and the result is turned.
    """
    groups = attrs["groups"]
    if set(attrs["stride"]) == {1} and set(attrs["step"]) != {1}:
        low = tuple((k - 1) * spaced - before for k, spaced, before in zip(kernel, attrs["dilation"], attrs["low"]))
        attrs = {**attrs, "stride": attrs["step"], "step": attrs["stride"], "low": low}
        return turned(of_weight(kernel, x, grad, attrs), groups)
    batch, channels, *space = x.shape
    each = [*zip(space, grad.shape[2:], kernel, attrs["stride"], attrs["low"], attrs["dilation"], attrs["step"])]
    high = [
        (k - 1) * dilation - (n - 1) * step - before + (p - 1) * stride
        for n, p, k, stride, before, dilation, step in each
    ]
    x = build.reshape(x, (batch, groups, channels // groups, *space))
    x = build.permute(x, (2, 1, 0, *range(3, x.ndim)))
    x = build.reshape(x, (channels // groups, groups * batch, *space))
    kernels = build.permute(grad, (1, 0, *range(2, grad.ndim)))
    found = convolution(
        x, kernels, attrs["dilation"], attrs["low"], high, attrs["stride"], attrs["step"], groups
    )
    return build.permute(found, (1, 0, *range(2, found.ndim)))


def batched(node: Node, x: Node, w: Node, batches: Sequence[bool], extent: int) -> Node:
    """One convolution for `extent` examples along a new first axis of x, of w or of both: as batch, or as groups."""
    attrs = dict(node.attrs)
    count, out, *space = node.shape
    if not batches[1]:
        x = build.reshape(x, (extent * x.shape[1], *x.shape[2:]))
        return build.reshape(x.graph.add(Primitive.CONV, (x, w), **attrs), (extent, *node.shape))
    w = build.reshape(w, (extent * w.shape[1], *w.shape[2:]))
    if batches[0]:
        x = build.permute(x, (1, 0, *range(2, x.ndim)))
        x = build.reshape(x, (x.shape[0], extent * x.shape[2], *x.shape[3:]))
    elif attrs["groups"] > 1:
        x = build.broadcast_to(build.reshape(x, (x.shape[0], 1, *x.shape[1:])), (x.shape[0], extent, *x.shape[1:]))
        x = build.reshape(x, (x.shape[0], extent * x.shape[2], *x.shape[3:]))
    if batches[0] or attrs["groups"] > 1:
        attrs["groups"] *= extent
    found = build.reshape(x.graph.add(Primitive.CONV, (x, w), **attrs), (count, extent, out, *space))
    return build.permute(found, (1, 0, *range(2, found.ndim)))


def spread(x: Node, attrs: dict[str, Any]) -> Node:
    """x': x with zeros between and around its elements, and cut where the padding is negative."""
    low, high = attrs["low"], attrs["high"]
    x = build.pad(x, (0, 0, *(max(n, 0) for n in low)), (0, 0, *(max(n, 0) for n in high)), (1, 1, *attrs["step"]))
    for axis, (before, after) in enumerate(zip(low, high), 2):
        start = max(-before, 0)
        x = build.slice_(x, axis, start, max(x.shape[axis] - start - max(-after, 0), 0))
    return x


def windows(x: Node, kernel: Sequence[int], attrs: dict[str, Any]) -> Node:
    """What every kernel sees of x': (N, C, *P, *K), a view of it."""
    x = spread(x, attrs)
    for axis, (k, stride, dilation) in enumerate(zip(kernel, attrs["stride"], attrs["dilation"]), 2):
        size = (k - 1) * dilation + 1
        x = x.graph.add(Primitive.UNFOLD, (x,), axis=axis, size=size, step=stride)
        x = build.slice_(x, x.ndim - 1, 0, k, dilation)
    return x


def lies_last(node: Node) -> bool:
    """Whether a convolution's result is written with its channels last (`passes/layout.py`)."""
    return node.op is Primitive.CONV and bool(node.attrs.get("channels_last"))


def operations(node: Node) -> int:
    """Multiplications and additions of a convolution."""
    return 2 * node.numel * math.prod(node.inputs[1].shape[1:])
