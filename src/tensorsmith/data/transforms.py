"""Transforms of images for datasets: to tensors, normalised, cropped, flipped, one after the other.

Images are tensors (..., height, width); `ToTensor` makes them of arrays and Pillow images. Random transforms draw from
this library's default generator, so that `manual_seed` and the seeds of worker processes decide them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import float32
from tensorsmith.nn import functional as F
from tensorsmith.ops.creation import from_numpy, tensor
from tensorsmith.ops.random import rand, randint
from tensorsmith.tensor.tensor import Tensor

__all__ = [
    "CenterCrop", "Compose", "Lambda", "Normalize", "RandomCrop", "RandomHorizontalFlip", "RandomVerticalFlip", "ToTensor",
]  # fmt: skip


class Compose:
    """Several transforms, the first one first.

    >>> import tensorsmith as ts
    >>> t = ts.data.transforms
    >>> change = t.Compose([t.ToTensor(), t.Normalize([0.5], [0.5])])
    >>> change(ts.zeros(2, 2, dtype=ts.uint8).numpy()).shape
    tensorsmith.Size([1, 2, 2])
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for each in self.transforms:
            image = each(image)
        return image

    def __repr__(self) -> str:
        return "\n".join(["Compose(", *(f"    {each}" for each in self.transforms), ")"])


class Lambda:
    """Any function as a transform; TypeError for what cannot be called."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        if not callable(lambd):
            raise TypeError(f"Argument lambd should be callable, got {type(lambd).__name__}")
        self.lambd = lambd

    def __call__(self, image: Any) -> Any:
        return self.lambd(image)


class ToTensor:
    """A Pillow image or an array (height, width) or (height, width, channels) as a tensor (channels, height, width).

    Bytes become float32 in [0, 1], bools 0 and 1 in float32; other dtypes stay. TypeError for anything else, ValueError
    for another number of axes.
    """

    def __call__(self, picture: Any) -> Any:
        array = picture if isinstance(picture, np.ndarray) else _pixels(picture)
        if array.ndim not in (2, 3):
            raise ValueError(f"pic should be 2/3 dimensional. Got {array.ndim} dimensions.")
        array = np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
        if array.dtype == np.uint8:
            return from_numpy(array.astype(np.float32) / np.float32(255))
        return from_numpy(array.astype(np.float32)) if array.dtype == np.bool_ else from_numpy(array)

    def __repr__(self) -> str:
        return "ToTensor()"


def _pixels(picture: Any) -> np.ndarray:
    if not hasattr(picture, "__array_interface__"):
        raise TypeError(f"pic should be PIL Image or ndarray. Got {type(picture)}")
    return np.array(picture)


class Normalize:
    """(x - mean) / std, one mean and one standard deviation a channel (or one for all).

    inplace: write over the input. TypeError for a tensor that is not floating, ValueError for a std of 0 or fewer than
    three axes.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean, self.std, self.inplace = list(mean), list(std), inplace
        if any(value == 0 for value in self.std):
            raise ValueError(f"Normalize: std holds a zero, {self.std}, leading to division by zero")

    def __call__(self, image: Any) -> Any:
        _check("Normalize", image)
        if not image.is_floating_point():
            raise TypeError(f"Input tensor should be a float tensor. Got {image.dtype}.")
        if image.ndim < 3:
            raise ValueError(
                f"Expected tensor to be a tensor image of size (..., C, H, W). Got tensor.size() = {tuple(image.shape)}"
            )
        mean, std = (tensor(values, dtype=image.dtype, device=image.device).view(-1, 1, 1) for values in (self.mean, self.std))
        return image.sub_(mean).div_(std) if self.inplace else (image - mean) / std

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std})"


def _check(name: str, image: Any) -> None:
    if not isinstance(image, Tensor) or image.ndim < 2:
        found = f"a tensor of shape {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
        raise TypeError(f"{name}: expected a tensor (..., height, width), got {found}; apply ToTensor first")


def _size(size: int | Sequence[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"a crop must have at least one pixel, got {height}x{width}")
    return height, width


def _padded(image: Any, left: int, top: int, right: int, bottom: int, fill: float) -> Any:
    if not (left or top or right or bottom):
        return image
    return F.pad(image, (left, right, top, bottom), value=fill)


class CenterCrop:
    """The middle `size` pixels (a number, or height and width); a smaller image is padded with zeros first."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = _size(size)

    def __call__(self, image: Any) -> Any:
        _check("CenterCrop", image)
        height, width = self.size
        more = max(height - image.shape[-2], 0), max(width - image.shape[-1], 0)
        image = _padded(image, more[1] // 2, more[0] // 2, (more[1] + 1) // 2, (more[0] + 1) // 2, 0)
        top, left = round((image.shape[-2] - height) / 2), round((image.shape[-1] - width) / 2)
        return image[..., top : top + height, left : left + width]

    def __repr__(self) -> str:
        return f"CenterCrop(size={self.size})"


class RandomCrop:
    """`size` pixels (a number, or height and width) at a random place, after `padding` pixels of `fill` on every side.

    pad_if_needed: pad a smaller image to the size; otherwise ValueError naming both sizes.
    """

    def __init__(
        self, size: int | Sequence[int], padding: int = 0, pad_if_needed: bool = False, fill: float = 0
    ) -> None:
        self.size, self.padding, self.pad_if_needed, self.fill = _size(size), padding, pad_if_needed, fill

    def __call__(self, image: Any) -> Any:
        _check("RandomCrop", image)
        height, width = self.size
        sides = self.padding
        image = _padded(image, sides, sides, sides, sides, self.fill)
        if self.pad_if_needed:
            down, across = max(height - image.shape[-2], 0), max(width - image.shape[-1], 0)
            image = _padded(image, across, down, across, down, self.fill)
        room = image.shape[-2] - height, image.shape[-1] - width
        if min(room) < 0:
            raise ValueError(
                f"Required crop size {self.size} is larger than input image size {tuple(image.shape[-2:])}"
            )
        top, left = (int(randint(0, free + 1, ()).item()) if free else 0 for free in room)
        return image[..., top : top + height, left : left + width]

    def __repr__(self) -> str:
        return f"RandomCrop(size={self.size}, padding={self.padding})"


class _RandomFlip:
    axis = -1

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"{type(self).__name__}: p should be a probability, got {p}")
        self.p = p

    def __call__(self, image: Any) -> Any:
        _check(type(self).__name__, image)
        return image.flip(self.axis) if rand((), dtype=float32).item() < self.p else image

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p={self.p})"


class RandomHorizontalFlip(_RandomFlip):
    """Left and right exchanged with probability p."""


class RandomVerticalFlip(_RandomFlip):
    """Top and bottom exchanged with probability p."""

    axis = -2
