"""Images with class labels as data sets: from arrays, and from MNIST-format files by path."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorsmith.data.collate import default_collate
from tensorsmith.data.dataset import Dataset, rows
from tensorsmith.data.idx import find_idx_pair, load_idx
from tensorsmith.ops.creation import from_numpy


class Images(Dataset):
    """Images with class labels: item i is (float32 tensor (channels, height, width) in [0, 1], int label).

    images:    uint8 (N, height, width), or (N, height, width, channels)
    largest:   the pixel value that becomes 1.0; labels: integers (N,)
    transform: a function of the image tensor, applied on access
    `images` (float32) and `labels` (int64) are the whole set as tensors.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        largest: float,
        classes: Sequence[str],
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        scaled = images.astype(np.float32) * np.float32(1 / largest)
        scaled = scaled[:, None] if scaled.ndim == 3 else scaled.transpose(0, 3, 1, 2)
        self.images: Any = from_numpy(np.ascontiguousarray(scaled))
        self.labels: Any = from_numpy(np.ascontiguousarray(labels, dtype=np.int64))
        self.classes = list(classes)
        self.transform = transform
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.images[index]
        return image if self.transform is None else self.transform(image), int(self._labels[index])

    def batch(self, indices: Sequence[int]) -> list[Any]:
        """Images (n, channels, height, width) and labels int64 (n,) of the given items."""
        if self.transform is not None:
            return default_collate([self[index] for index in indices])
        return [rows(self.images, indices), rows(self.labels, indices)]


class IdxImages(Images):
    """Images and labels from IDX files (MNIST, Fashion-MNIST, ...).

    path: a folder (the files are found by name), or an image file beside its label file
    Errors: FileNotFoundError; ValueError where the files are damaged or do not belong together.
    """

    def __init__(
        self, path: str | os.PathLike[str], train: bool = True, transform: Callable[[Any], Any] | None = None
    ) -> None:
        image_file, label_file = (
            (Path(path), _label_file(Path(path))) if Path(path).is_file() else find_idx_pair(path, train)
        )
        images, labels = load_idx(image_file), load_idx(label_file)
        if images.ndim != 3 or images.dtype != np.uint8:
            raise ValueError(
                f"IdxImages: {image_file} holds {images.dtype} of shape {images.shape}, expected uint8 images "
                "(count, height, width); give the -images- file"
            )
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise ValueError(
                f"IdxImages: {label_file} holds {labels.dtype} of shape {labels.shape}, expected one integer an image; "
                "give the -labels- file"
            )
        if len(images) != len(labels):
            raise ValueError(
                f"IdxImages: {image_file} holds {len(images)} images but {label_file} {len(labels)} labels; "
                "both must be of the same part (train or t10k)"
            )
        if not len(labels):
            raise ValueError(f"IdxImages: {image_file} holds no images; give a file with at least one")
        if labels.min() < 0:
            raise ValueError(f"IdxImages: {label_file} holds the label {labels.min()}; class labels start at 0")
        super().__init__(images, labels, 255.0, [str(label) for label in range(int(labels.max()) + 1)], transform)


def _label_file(image_file: Path) -> Path:
    """The label file that belongs to an image file given by path."""
    name = image_file.name.replace("images", "labels").replace("idx3", "idx1")
    if name == image_file.name:
        raise ValueError(
            f"IdxImages: no label file can be told from the name {image_file}; expected a name with -images-, "
            "such as train-images-idx3-ubyte, or give the folder"
        )
    for candidate in (name, f"{name}.gz", name.removesuffix(".gz")):
        if (image_file.parent / candidate).is_file():
            return image_file.parent / candidate
    raise FileNotFoundError(f"IdxImages: {image_file.parent / name} does not exist; the labels go beside {image_file}")
