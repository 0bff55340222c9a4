"""Channels rearranged into space and back, and among each other."""

from __future__ import annotations

from tensorsmith.core.memory_format import format_of_first
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import need_tensors
from tensorsmith.ops.raw_keys import as_int
from tensorsmith.ops.registry import public
from tensorsmith.tensor.tensor import Tensor


def _pixel_shuffle(x: Node, factor: int) -> Node:
    *lead, channels, high, wide = x.shape
    k, r = len(lead), factor
    parts = build.reshape(x, (*lead, channels // (r * r), r, r, high, wide))
    moved = build.permute(parts, (*range(k + 1), k + 3, k + 1, k + 4, k + 2))
    return build.reshape(moved, (*lead, channels // (r * r), high * r, wide * r))


def _pixel_unshuffle(x: Node, factor: int) -> Node:
    *lead, channels, high, wide = x.shape
    k, r = len(lead), factor
    parts = build.reshape(x, (*lead, channels, high // r, r, wide // r, r))
    moved = build.permute(parts, (*range(k + 1), k + 2, k + 4, k + 1, k + 3))
    return build.reshape(moved, (*lead, channels * r * r, high // r, wide // r))


def _channel_shuffle(x: Node, groups: int) -> Node:
    batch, channels, *space = x.shape
    parts = build.reshape(x, (batch, groups, channels // groups, *space))
    return build.reshape(build.transpose(parts, 1, 2), x.shape)


_shuffle_operator = Operator("pixel_shuffle", _pixel_shuffle, keeps_format=format_of_first)
_unshuffle_operator = Operator("pixel_unshuffle", _pixel_unshuffle, keeps_format=format_of_first)
_channel_operator = Operator("channel_shuffle", _channel_shuffle, fresh=True)


def _check(name: str, input: Tensor, argument: str, value: object) -> int:  # noqa: A002
    need_tensors(name, input=input)
    factor = as_int(name, value, argument)
    if input.ndim < 3:
        raise RuntimeError(f"{name} expects input to have at least 3 dimensions, but got input with {input.ndim} dimension(s)")
    if factor <= 0:
        raise RuntimeError(f"{name} expects a positive {argument}, but got {factor}")
    return factor


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:  # noqa: A002
    """(*, C r**2, H, W) -> (*, C, H r, W r), r = upscale_factor: every r**2 channels are the pixels of a square (Shi, 2016).

    Raises RuntimeError where r**2 does not divide the channels.

    >>> ts.nn.functional.pixel_shuffle(ts.arange(4.0).reshape(4, 1, 1), 2)
    tensor([[[0., 1.],
             [2., 3.]]])
    """
    factor = _check("pixel_shuffle", input, "upscale_factor", upscale_factor)
    channels = input.layout.shape[-3]
    if channels % (factor * factor):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, but "
            f"input.size(-3)={channels} is not divisible by {factor * factor}"
        )
    return call(_shuffle_operator, (input,), {"factor": factor})


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:  # noqa: A002
    """(*, C, H r, W r) -> (*, C r**2, H, W), r = downscale_factor: the inverse of `pixel_shuffle`.

    Raises RuntimeError where r does not divide the sizes.

    >>> ts.nn.functional.pixel_unshuffle(ts.ones(1, 4, 4), 2).shape
    Size([4, 2, 2])
    """
    factor = _check("pixel_unshuffle", input, "downscale_factor", downscale_factor)
    for side, axis in (("height", -2), ("width", -1)):
        if input.layout.shape[axis] % factor:
            raise RuntimeError(
                f"pixel_unshuffle expects {side} to be divisible by downscale_factor, but "
                f"input.size({axis})={input.layout.shape[axis]} is not divisible by {factor}"
            )
    return call(_unshuffle_operator, (input,), {"factor": factor})


def channel_shuffle(input: Tensor, groups: int) -> Tensor:  # noqa: A002
    """The channels of (N, C, ...) in another order: the first of every group, then the second ... (Zhang et al., 2017).

    Raises RuntimeError where groups does not divide C.

    >>> ts.nn.functional.channel_shuffle(ts.arange(4.0).reshape(1, 4, 1), 2).flatten()
    tensor([0., 2., 1., 3.])
    """
    need_tensors("channel_shuffle", input=input)
    count = as_int("channel_shuffle", groups, "groups")
    shape = input.layout.shape
    if len(shape) <= 2:
        raise RuntimeError(f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(shape)}")
    if count <= 0:
        raise RuntimeError(f"Number of groups to divide channels in must be positive. Value of groups:{count}")
    if shape[1] % count:
        raise RuntimeError(f"Number of channels must be divisible by groups. Got {shape[1]} channels and {count} groups.")
    return call(_channel_operator, (input,), {"groups": count})


def native_channel_shuffle(input: Tensor, groups: int) -> Tensor:  # noqa: A002
    """`channel_shuffle`, which has one implementation here."""
    return channel_shuffle(input, groups)


for _function in (pixel_shuffle, pixel_unshuffle, channel_shuffle, native_channel_shuffle):
    public("resizing", namespace="nn.functional", method=False)(_function)
    public("resizing", method=False)(_function)
