"""The handwritten digits that come with the package, as arrays and as a data set."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np

from tensorsmith.data.images import Images


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """All 1797 digits: images uint8 (1797, 8, 8) with values 0 to 16, labels int64 (1797,).

    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository (files/NOTICE.txt).
    """
    file = resources.files("tensorsmith.data").joinpath("files", "digits.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"].astype(np.int64)


def in_test_part(labels: np.ndarray) -> np.ndarray:
    """Mask of the test part: every fifth image of each class, in file order; always the same rows."""
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        mask[np.flatnonzero(labels == label)[4::5]] = True
    return mask


class Digits(Images):
    """The handwritten digits of `load_digits`: 8x8 grey images, 1442 to train on and 355 to test."""

    def __init__(self, train: bool = True, transform: Callable[[Any], Any] | None = None) -> None:
        images, labels = load_digits()
        chosen = in_test_part(labels) != train
        super().__init__(images[chosen], labels[chosen], 16.0, [str(digit) for digit in range(10)], transform)
