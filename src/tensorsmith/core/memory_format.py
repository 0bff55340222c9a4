"""Memory formats: orders in which the axes of a tensor lie in memory, as PyTorch names them.

    contiguous_format   row-major: the last axis lies closest together
    channels_last       (N, C, H, W) lies as N, H, W, C; channels_last_3d is the same of (N, C, D, H, W)
    preserve_format     as the tensor lies that something is made from
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.layout import Layout, contiguous_strides, is_contiguous


class MemoryFormat:
    """One of the four formats; they are compared by identity."""

    __slots__ = ("name", "order")

    def __init__(self, name: str, order: tuple[int, ...] = ()) -> None:
        self.name = name
        self.order = order  # axes from the one that lies closest together outwards; () for any number of axes

    def __repr__(self) -> str:
        return f"tensorsmith.{self.name}"


contiguous_format = MemoryFormat("contiguous_format")
preserve_format = MemoryFormat("preserve_format")
channels_last = MemoryFormat("channels_last", (1, 3, 2, 0))
channels_last_3d = MemoryFormat("channels_last_3d", (1, 4, 3, 2, 0))


def format_of(operator: str, given: Any, default: MemoryFormat = preserve_format) -> MemoryFormat:
    """The format of an argument, which None leaves open; TypeError for anything else."""
    if given is None:
        return default
    if not isinstance(given, MemoryFormat):
        raise TypeError(
            f"{operator}(): argument 'memory_format' must be tensorsmith.memory_format, not {type(given).__name__}"
        )
    return given


def format_strides(form: MemoryFormat, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a new tensor. RuntimeError where the format is of another number of axes, or is none of its own."""
    if form is preserve_format:
        raise RuntimeError("unsupported memory format Preserve: there is no tensor whose format could be kept")
    if form is contiguous_format:
        return contiguous_strides(tuple(shape))
    if len(shape) != len(form.order):
        raise RuntimeError(f"required rank {len(form.order)} tensor to use {form.name} format, got shape {list(shape)}")
    strides, step = [0] * len(shape), 1
    for axis in form.order:
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def lies_in(form: MemoryFormat, shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor lies in a format, without gaps; strides of axes of extent 1 do not matter."""
    if not form.order:
        return is_contiguous(tuple(shape), tuple(strides))
    if len(shape) != len(form.order):
        return False
    step = 1
    for axis in form.order:
        if shape[axis] != 1:
            if strides[axis] != step:
                return False
            step *= shape[axis]
    return True


def suggested(shape: Sequence[int], strides: Sequence[int]) -> MemoryFormat:
    """channels_last where the order of the strides is that one, gaps or not; contiguous_format elsewhere."""
    for form in (channels_last, channels_last_3d):
        if len(shape) == len(form.order) and _ordered(form, shape, strides):
            return form
    return contiguous_format


def format_of_first(operands: Sequence[Layout]) -> MemoryFormat:
    """The format that the first operand suggests, as results of pooling and normalisation have it."""
    return suggested(operands[0].shape, operands[0].strides)


def format_of_image(operands: Sequence[Layout]) -> MemoryFormat:
    """channels_last where the first operand suggests it; results with three axes of space are row-major."""
    found = format_of_first(operands)
    return found if found is channels_last else contiguous_format


def format_of_any(operands: Sequence[Layout]) -> MemoryFormat:
    """The format of the first two operands where one of them is not row-major, as results of convolutions have it."""
    found = [suggested(each.shape, each.strides) for each in operands[:2]]
    return next((form for form in found if form is not contiguous_format), contiguous_format)


def format_of_all(operands: Sequence[Layout]) -> MemoryFormat:
    """The format that all operands suggest, as what is joined of them has it; row-major where they differ."""
    found = {suggested(each.shape, each.strides) for each in operands}
    return found.pop() if len(found) == 1 else contiguous_format


def result_strides(form: MemoryFormat, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a result in a format of images, the batch axis left away or not; row-major for another number of axes."""
    away = len(form.order) - len(shape)
    if form.order and away in (0, 1):
        return format_strides(form, (1,) * away + tuple(shape))[away:]
    return contiguous_strides(tuple(shape))


def _ordered(form: MemoryFormat, shape: Sequence[int], strides: Sequence[int]) -> bool:
    if strides[1] == 0:
        return False
    least = 0
    for axis in form.order:
        # Where all other axes have extent 1, an order is not told apart from row-major: that counts as row-major.
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


__all__ = [
    "MemoryFormat", "channels_last", "channels_last_3d", "contiguous_format", "format_of", "format_of_all", "format_of_any",
    "format_of_first", "format_of_image", "format_strides", "lies_in", "preserve_format", "result_strides", "suggested",
]  # fmt: skip
