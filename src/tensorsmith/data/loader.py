"""DataLoader: batches of a dataset, in order or shuffled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tensorsmith.data.collate import default_collate, default_convert
from tensorsmith.data.dataset import fetch, fetch_batch
from tensorsmith.data.sampler import BatchSampler, RandomSampler, SequentialSampler


class DataLoader:
    """Iterate over a dataset in batches; each `iter` is a new pass.

    batch_size:    samples a batch; None gives single samples, not collated
    shuffle:       a new random order every pass, from `generator` (or the default one)
    sampler:       an iterable of indices instead of `shuffle`
    batch_sampler: an iterable of lists of indices, instead of batch_size, shuffle, sampler and drop_last
    collate_fn:    list of samples -> batch; default: `default_collate`
    drop_last:     leave out a last batch that is shorter
    num_workers:   only 0: samples are loaded by the process that iterates
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        generator: Any = None,
    ) -> None:
        if num_workers != 0:
            raise NotImplementedError(f"DataLoader: num_workers={num_workers} is not supported yet; use num_workers=0")
        if pin_memory:
            raise NotImplementedError("DataLoader: pin_memory=True is not supported yet; use pin_memory=False")
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: sampler and shuffle exclude each other; the sampler decides the order")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError(
                "DataLoader: batch_sampler excludes batch_size, shuffle, sampler and drop_last; it decides all of them"
            )
        if batch_size is None and batch_sampler is None and drop_last:
            raise ValueError("DataLoader: drop_last needs batches, but batch_size is None")
        self.dataset = dataset
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.generator = generator
        if sampler is None:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.sampler = sampler
        if batch_sampler is not None:
            self.batch_size = None
            self.batch_sampler: Iterable[list[int]] | None = batch_sampler
        else:
            self.batch_size = batch_size
            self.batch_sampler = None if batch_size is None else BatchSampler(sampler, batch_size, drop_last)
        batched = self.batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)

    def __iter__(self) -> Iterator[Any]:
        if self.batch_sampler is None:
            for index in self.sampler:
                yield self.collate_fn(self.dataset[index])
        elif self.collate_fn is default_collate:
            for indices in self.batch_sampler:
                yield fetch_batch(self.dataset, indices)
        else:
            for indices in self.batch_sampler:
                yield self.collate_fn(fetch(self.dataset, indices))

    def __len__(self) -> int:
        """The number of batches (of samples, with batch_size=None)."""
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]
