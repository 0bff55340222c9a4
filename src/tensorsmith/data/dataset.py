"""Datasets: indexable collections of samples, as PyTorch names them."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tensorsmith.data.collate import default_collate
from tensorsmith.ops.creation import tensor
from tensorsmith.ops.random import randperm


class Dataset:
    """A collection of samples: `dataset[i]` is sample i and `len(dataset)` their number. `a + b` joins two.

    A dataset may also have `__getitems__(indices)`, a list of samples, and `batch(indices)`, what `default_collate`
    makes of these samples, in fewer steps: `fetch` and `fetch_batch` call them where they exist.
    """

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__}.__getitem__ is missing: a Dataset gives sample `index`")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__}.__len__ is missing: a Dataset tells its number of samples")

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Samples that come one after the other: subclasses define `__iter__`, and `__len__` where the number is known.

    In worker processes each worker has a copy and iterates over it: `get_worker_info()` tells a copy which share is its
    own. `a + b` gives the samples of a, then those of b.
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__}.__iter__ is missing: an IterableDataset iterates over samples")

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} is iterated over, not indexed")

    def __len__(self) -> int:
        raise TypeError(f"object of type '{type(self).__name__}' has no len()")

    def __add__(self, other: Dataset) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])


class ChainDataset(IterableDataset):
    """Several iterable datasets one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise TypeError(f"ChainDataset only supports IterableDataset, got {type(dataset).__name__}")
            yield from dataset

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets)


def fetch(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """The samples at `indices`."""
    many = getattr(dataset, "__getitems__", None)
    return many(indices) if many else [dataset[index] for index in indices]


def fetch_batch(dataset: Any, indices: Sequence[int]) -> Any:
    """`default_collate` of the samples at `indices`, through `dataset.batch` where it is as valid."""
    if _defining_class(dataset, "batch") is not None:
        # A subclass that changes what one sample is must not be served whole rows of its base.
        if _defining_class(dataset, "batch") is _defining_class(dataset, "__getitem__"):
            return dataset.batch(indices)
    return default_collate(fetch(dataset, indices))


def _defining_class(value: object, name: str) -> type | None:
    return next((parent for parent in type(value).__mro__ if name in vars(parent)), None)


def rows(values: Any, indices: Sequence[int]) -> Any:
    """The rows of a tensor at `indices`: a copy, so that a batch may be changed in place."""
    first, count = indices[0], len(indices)
    if first >= 0 and list(indices) == list(range(first, first + count)):
        return values[first : first + count].clone()  # in order: one copy without an index tensor
    return values[tensor(list(indices))]


class TensorDataset(Dataset):
    """Sample i is the tuple of row i of every tensor; all tensors have the same first extent."""

    def __init__(self, *tensors: Any) -> None:
        if not tensors:
            raise ValueError("TensorDataset: expected at least one tensor")
        if any(values.ndim == 0 for values in tensors):
            raise ValueError("TensorDataset: a zero-dimensional tensor has no rows; give 1 or more dimensions")
        sizes = [values.shape[0] for values in tensors]
        if len(set(sizes)) != 1:
            raise AssertionError(f"TensorDataset: Size mismatch between tensors, their first extents are {sizes}")
        self.tensors = tensors

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(values[index] for values in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def batch(self, indices: Sequence[int]) -> list[Any]:
        """The rows of every tensor at `indices`."""
        return [rows(values, indices) for values in self.tensors]


class Subset(Dataset):
    """The samples of `dataset` at `indices`, in that order."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def batch(self, indices: Sequence[int]) -> Any:
        """The batch of the dataset underneath."""
        return fetch_batch(self.dataset, [self.indices[index] for index in indices])

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset):
    """Several datasets one after the other."""

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: expected at least one dataset")
        self.cumulative_sizes = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, index: int) -> Any:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"ConcatDataset: index {index} is out of range for {len(self)} samples")
        which = bisect.bisect_right(self.cumulative_sizes, position)
        return self.datasets[which][position - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(dataset: Dataset, lengths: Sequence[int | float], generator: Any = None) -> list[Subset]:
    """Split a dataset at random into parts that do not overlap.

    lengths:   numbers of samples that sum to len(dataset), or fractions that sum to 1 (the first parts get remainders)
    generator: the source of random numbers; the default one otherwise
    """
    size = len(dataset)
    counts = _counts(lengths, size)
    if sum(counts) != size:
        raise ValueError(
            f"random_split: the lengths {list(lengths)} sum to {sum(lengths)}, neither to the dataset's {size} samples nor to 1"
        )
    order: list[int] = randperm(size, generator=generator).tolist()
    return [Subset(dataset, order[end - count : end]) for end, count in zip(itertools.accumulate(counts), counts)]


def _counts(lengths: Sequence[int | float], size: int) -> list[int]:
    """Numbers of samples: as given, or from fractions as PyTorch rounds them."""
    if any(length < 0 for length in lengths):
        raise ValueError(f"random_split: lengths must not be negative, got {list(lengths)}")
    if not math.isclose(sum(lengths), 1) or sum(lengths) > 1:
        return [int(length) for length in lengths]
    counts = [math.floor(size * fraction) for fraction in lengths]
    for place in range(size - sum(counts)):
        counts[place % len(counts)] += 1
    return counts



class StackDataset(Dataset):
    """Sample i is the tuple (or, with keywords, the dict) of sample i of every dataset; all have the same length."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError("StackDataset: give datasets as arguments (tuples) or by keyword (dicts), not both")
        if not args and not kwargs:
            raise ValueError("StackDataset: at least one dataset should be passed")
        self.datasets: Any = args or kwargs
        lengths = [len(dataset) for dataset in self._all()]
        if len(set(lengths)) != 1:
            raise ValueError(f"StackDataset: size mismatch between datasets, their lengths are {lengths}")
        self._length = lengths[0]

    def _all(self) -> list[Any]:
        return list(self.datasets.values()) if isinstance(self.datasets, dict) else list(self.datasets)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples at several places, each dataset asked once."""
        columns = [fetch(dataset, indices) for dataset in self._all()]
        for column in columns:
            if len(column) != len(indices):
                raise ValueError(
                    f"StackDataset: nested dataset's output size mismatch, expected {len(indices)}, got {len(column)}"
                )
        if isinstance(self.datasets, dict):
            return [dict(zip(self.datasets, row)) for row in zip(*columns)]
        return list(zip(*columns))

    def __len__(self) -> int:
        return self._length
