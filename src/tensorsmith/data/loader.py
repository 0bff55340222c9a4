"""DataLoader: batches of a dataset, in order or shuffled, loaded here or by worker processes."""

from __future__ import annotations

import functools
import hashlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tensorsmith.data.collate import default_collate, default_convert
from tensorsmith.data.dataset import IterableDataset, fetch, fetch_batch
from tensorsmith.data.device_batches import pinned_batches
from tensorsmith.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from tensorsmith.data.workers import Workers
from tensorsmith.ops.random import default_generator
from tensorsmith.targets.cuda.devices import is_available


class DataLoader:
    """Iterate over a dataset in batches; each `iter` is a new pass.

    batch_size:    samples a batch; None gives single samples, not collated
    shuffle:       a new random order every pass, from `generator` (or the default one)
    sampler:       an iterable of indices instead of `shuffle`
    batch_sampler: an iterable of lists of indices, instead of batch_size, shuffle, sampler and drop_last
    num_workers:   processes that load ahead; 0: samples are loaded by the process that iterates. The batches are the same,
                   but for random numbers that the dataset draws: worker i is seeded with base seed + i every pass
    collate_fn:    list of samples -> batch; default: `default_collate`
    pin_memory:    batches in memory that a CUDA device reads by itself; without a device a warning
    drop_last:     leave out a last batch that is shorter
    timeout:       seconds to wait for a batch of a worker, 0 for ever
    worker_init_fn: called with the worker's number in every worker when it starts
    multiprocessing_context: "fork", "spawn", "forkserver" or a context; default: Python's
    prefetch_factor: batches under way a worker (default 2); persistent_workers: keep the processes for the next pass
    in_order:      False: give batches as they are ready

    An exception in a worker is raised here with the worker's traceback. A worker that dies raises RuntimeError naming
    worker, process and signal; a new pass then starts new workers. Errors: ValueError for options that exclude each other.

    >>> import tensorsmith as ts
    >>> loader = ts.data.DataLoader(ts.data.TensorDataset(ts.arange(5)), batch_size=2)
    >>> [batch.tolist() for batch, in loader]
    [[0, 1], [2, 3], [4]]
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
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        if num_workers < 0:
            raise ValueError(
                f"num_workers option should be non-negative, got {num_workers}; use num_workers=0 to disable multiprocessing."
            )
        if timeout < 0:
            raise ValueError(f"timeout option should be non-negative, got {timeout}")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError(
                f"prefetch_factor={prefetch_factor} option could only be specified in multiprocessing: let num_workers > 0 "
                "to enable multiprocessing, otherwise set prefetch_factor to None."
            )
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ValueError(f"prefetch_factor option should be positive, got {prefetch_factor}")
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if multiprocessing_context is not None and num_workers == 0:
            raise ValueError("multiprocessing_context can only be used with multi-process loading (num_workers > 0)")
        if pin_memory and not is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
                stacklevel=2,
            )
        self.iterable = isinstance(dataset, IterableDataset)
        if self.iterable:
            if shuffle:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified shuffle option, but got shuffle={shuffle}"
                )
            for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
                if given is not None:
                    raise ValueError(
                        f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={given}"
                    )
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
        self.pin_memory_device = pin_memory_device
        self.drop_last = drop_last
        self.generator = generator
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.batch_size = None if batch_sampler is not None else batch_size
        self.sampler: Any = None
        self.batch_sampler: Any = None
        if not self.iterable:
            if sampler is None:
                sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
            self.sampler = sampler
            if batch_sampler is not None:
                self.batch_sampler = batch_sampler
            elif batch_size is not None:
                self.batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        elif batch_size is not None:
            BatchSampler((), batch_size, drop_last)  # for its check of batch_size
        self.collate_fn = collate_fn or (default_collate if self._batched else default_convert)
        self._workers: Workers | None = None
        self._pass: Any = None
        self._passes = 0

    @property
    def _batched(self) -> bool:
        return self.batch_sampler is not None or (self.iterable and self.batch_size is not None)

    def _make_fetch(self) -> Callable[[], Callable[[Any], Any]]:
        if self.iterable:
            return functools.partial(_stream, self.dataset, self.collate_fn, self._batched, self.drop_last)
        return functools.partial(_lookup, self.dataset, self.collate_fn, self._batched)

    def _indices(self) -> Iterator[Any]:
        """What the fetching function is asked for, batch by batch."""
        if self.iterable:
            return itertools.repeat(self.batch_size)
        return iter(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        found = self._batches()
        return pinned_batches(found) if self.pin_memory and is_available() else found

    def _batches(self) -> Iterator[Any]:
        if not self.num_workers:
            return self._here()
        seed = self._new_seed()
        if self._pass is not None:
            self._pass.close()
        workers = self._workers
        if workers is not None and workers.alive:
            workers.reseed(seed)
        else:
            workers = Workers(
                self.dataset, self._make_fetch(), self.num_workers, seed, self.prefetch_factor or 1, self.timeout,
                self.worker_init_fn, self.multiprocessing_context, self.in_order,
            )  # fmt: skip
        self._workers = workers if self.persistent_workers else None
        found = _pass(workers, self._indices(), self.persistent_workers)
        if self.persistent_workers:
            self._pass = found
        return found

    def _new_seed(self) -> int:
        """The base seed of a pass: from the generator, which stays where it is.

        Nothing is drawn, so that shuffled orders do not depend on the number of workers.
        """
        generator = self.generator or default_generator
        self._passes += 1
        words = f"{generator.key} {generator.offset} {self._passes}"
        return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "little") >> 2

    def _here(self) -> Iterator[Any]:
        load = self._make_fetch()()
        for indices in self._indices():
            try:
                batch = load(indices)
            except StopIteration:
                return
            yield batch

    def __len__(self) -> int:
        """The number of batches (of samples, with batch_size=None); TypeError where a dataset does not know it."""
        if self.iterable:
            count = len(self.dataset)
            if self.batch_size is None:
                return count
            return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)


def _pass(workers: Workers, indices: Iterator[Any], keep: bool) -> Iterator[Any]:
    """One pass over the batches of workers, which end with it unless they are kept."""
    batches: Any = workers.batches(indices)
    try:
        yield from batches
        batches.close()
    finally:
        if keep:
            batches.close()
        else:
            workers.close()


def _lookup(dataset: Any, collate: Callable[[Any], Any], batched: bool) -> Callable[[Any], Any]:
    """Batches of an indexed dataset."""
    if not batched:
        return lambda index: collate(dataset[index])
    if collate is default_collate:
        return lambda indices: fetch_batch(dataset, indices)
    return lambda indices: collate(fetch(dataset, indices))


def _stream(dataset: Any, collate: Callable[[Any], Any], batched: bool, drop_last: bool) -> Callable[[Any], Any]:
    """Batches of an iterable dataset; StopIteration where it has no more."""
    samples = iter(dataset)

    def load(size: int | None) -> Any:
        if not batched:
            return collate(next(samples))
        batch = list(itertools.islice(samples, size))
        if not batch or (drop_last and len(batch) < (size or 0)):
            raise StopIteration
        return collate(batch)

    return load
