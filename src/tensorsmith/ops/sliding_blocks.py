"""Blocks of two axes as columns (im2col), and columns added up to what they are blocks of (col2im).

Each is the other's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.gradients import put, strided_positions
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import need_tensors, type_name
from tensorsmith.ops.pooling_windows import Windows, padded
from tensorsmith.ops.raw_keys import as_ints
from tensorsmith.ops.registry import public
from tensorsmith.tensor.tensor import Tensor

_public = public("resizing", namespace="nn.functional", method=False)


def _windows(
    extents: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[Windows]:
    found = []
    for n, k, s, p, d in zip(extents, kernel, stride, padding, dilation):
        found.append(Windows(n, (n + 2 * p - d * (k - 1) - 1) // s + 1, k, s, p, d))
    return found


def columns(x: Node, **attrs: Any) -> Node:
    """(N, C, H, W) -> (N, C kh kw, blocks)."""
    windows = _windows(x.shape[2:], **attrs)
    value = padded(x, windows, 0)
    for axis, w in enumerate(windows, 2):
        value = w.stacked(value, axis)
    n, c, rows, columns_, kh, kw = value.shape
    return build.reshape(build.permute(value, (0, 1, 4, 5, 2, 3)), (n, c * kh * kw, rows * columns_))


def added_up(blocks: Node, output: Sequence[int], **attrs: Any) -> Node:
    """(N, C kh kw, blocks) -> (N, C, H, W)."""
    high, wide = _windows(output, **attrs)
    n, c = blocks.shape[0], blocks.shape[1] // (high.size * wide.size)
    extents = [w.extent + 2 * w.padding for w in (high, wide)]
    pitch = extents[1]
    positions = strided_positions(
        blocks.graph, (high.size, wide.size, high.count, wide.count),
        (high.dilation * pitch, wide.dilation, high.stride * pitch, wide.stride), 0,
    )  # fmt: skip
    source = build.reshape(build.wide(blocks), (n, c, positions.shape[0]))
    base = build.full(blocks.graph, (n, c, math.prod(extents)), 0, source.dtype)
    result = build.reshape(put(base, positions, source, 2, "add"), (n, c, *extents))
    for axis, w in enumerate((high, wide), 2):
        result = build.slice_(result, axis, w.padding, w.extent)
    return build.cast(result, blocks.dtype)


def _columns_gradient(inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], **attrs: Any) -> list[Node]:
    return [added_up(grads[0], inputs[0].shape[2:], **attrs)]


def _added_up_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], output: Sequence[int], **attrs: Any
) -> list[Node]:
    return [columns(grads[0], **attrs)]


IM2COL = Operator("im2col", columns, _columns_gradient)
COL2IM = Operator("col2im", added_up, _added_up_gradient)


def _pair(argument: str, value: Any) -> tuple[int, int]:
    found = as_ints("im2col", value, argument)
    if len(found) not in (1, 2):
        raise RuntimeError(f"It is expected {argument} equals to 2, but got size {len(found)}")
    return (found[0], found[-1])


def _refuse_integers(routine: str, x: Tensor) -> None:
    if x.dtype.kind in "iu":
        raise NotImplementedError(f"\"{routine}_out_cpu\" not implemented for '{type_name(x.dtype)}'; convert it first")


def _attrs(kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> dict[str, Any]:
    attrs = {
        "kernel": _pair("kernel_size", kernel_size), "stride": _pair("stride", stride),
        "padding": _pair("padding", padding), "dilation": _pair("dilation", dilation),
    }  # fmt: skip
    for name, what in (("kernel", "kernel size"), ("dilation", "dilation"), ("stride", "stride")):
        a, b = attrs[name]
        if a <= 0 or b <= 0:
            raise RuntimeError(f"{what} should be greater than zero, but got {name}_height: {a} {name}_width: {b}")
    a, b = attrs["padding"]
    if a < 0 or b < 0:
        raise RuntimeError(f"padding should be non-negative, but got pad_height: {a} pad_width: {b}")
    return attrs


@_public
def unfold(
    input: Tensor, kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1,  # noqa: A002
    padding: int | Sequence[int] = 0, stride: int | Sequence[int] = 1,
) -> Tensor:  # fmt: skip
    """Every block of the last two axes as a column, channel by channel (im2col).

    input (N, C, H, W) or (C, H, W) -> (N, C kh kw, L) or (C kh kw, L), with L = rows times columns of blocks, each
    floor((size + 2 padding - dilation (kernel_size - 1) - 1) / stride) + 1. Raises RuntimeError where there is no block.

    >>> ts.nn.functional.unfold(ts.ones(1, 3, 4, 4), 2).shape
    Size([1, 12, 9])
    """
    need_tensors("unfold", input=input)
    attrs = _attrs(kernel_size, dilation, padding, stride)
    shape = input.layout.shape
    if len(shape) not in (3, 4) or 0 in shape[len(shape) - 3 :]:
        raise RuntimeError(
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but "
            f"got: {list(shape)}"
        )
    counts = tuple([w.count for w in _windows(shape[-2:], **attrs)])
    if min(counts) < 1:
        raise RuntimeError(
            f"Given input with spatial size {tuple(shape[-2:])}, kernel_size={attrs['kernel']}, dilation={attrs['dilation']}, "
            f"padding={attrs['padding']}, calculated shape of the array of sliding blocks as {counts}, but its components must "
            "be at least one."
        )
    _refuse_integers("im2col", input)
    if input.ndim == 3:
        return call(IM2COL, (input.unsqueeze(0),), attrs).squeeze(0)
    return call(IM2COL, (input,), attrs)


@_public
def fold(
    input: Tensor, output_size: int | Sequence[int], kernel_size: int | Sequence[int],  # noqa: A002
    dilation: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, stride: int | Sequence[int] = 1,
) -> Tensor:  # fmt: skip
    """The sum of blocks at their places: what `unfold` makes columns of, each element as often as it is in a block (col2im).

    input (N, C kh kw, L) or (C kh kw, L) -> (N, C, *output_size) or (C, *output_size). Raises RuntimeError unless L is the
    number of blocks that `unfold` makes of output_size.

    >>> ts.nn.functional.fold(ts.ones(1, 4, 4), 3, 2)[0, 0]
    tensor([[1., 2., 1.],
            [2., 4., 2.],
            [1., 2., 1.]])
    """
    need_tensors("fold", input=input)
    attrs = _attrs(kernel_size, dilation, padding, stride)
    output = _pair("output_size", output_size)
    shape = input.layout.shape
    if len(shape) not in (2, 3) or 0 in shape[len(shape) - 2 :]:
        raise RuntimeError(
            "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions for input, but "
            f"got: {list(shape)}"
        )
    first = len(shape) - 2
    if shape[first] % math.prod(attrs["kernel"]):
        raise RuntimeError(
            f"Expected size of input's dimension {first} to be divisible by the product of kernel_size, but got "
            f"input.size({first})={shape[first]} and kernel_size={attrs['kernel']}."
        )
    rows, wide = (w.count for w in _windows(output, **attrs))
    if min(output) < 1 or min(rows, wide) < 1 or rows * wide != shape[-1]:
        raise RuntimeError(
            f"Given output_size={output}, kernel_size={attrs['kernel']}, dilation={attrs['dilation']}, "
            f"padding={attrs['padding']}, stride={attrs['stride']}, expected size of input's dimension "
            f"{first + 1} to match the calculated number of sliding blocks {rows} * {wide} = {rows * wide}, but got "
            f"input.size({first + 1})={shape[-1]}."
        )
    _refuse_integers("col2im", input)
    if input.ndim == 2:
        return call(COL2IM, (input.unsqueeze(0),), {"output": output, **attrs}).squeeze(0)
    return call(COL2IM, (input,), {"output": output, **attrs})
