"""What a worker process of a DataLoader does: fetch batches as it is told, until the other end is gone."""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorsmith.data import shared_batches
from tensorsmith.ops.random import manual_seed
from tensorsmith.targets.cpu.pool import set_num_threads

_PATIENCE = 5.0  # seconds between looks at whether the parent still lives


@dataclass(frozen=True)
class WorkerInfo:
    """What `get_worker_info()` says in a worker: its number, how many there are, its seed and its copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """The WorkerInfo of the worker process that this runs in; None in the main process."""
    return _info


@dataclass(frozen=True)
class Failure:
    """An exception in a worker, as it travels."""

    kind: type
    text: str

    def raise_(self) -> None:
        """Raise it here: the same class with the worker's traceback in the message, where the class takes a message."""
        try:
            error = self.kind(self.text)
        except Exception:
            error = RuntimeError(self.text)
        raise error


class End:
    """An iterable dataset has given all it has in this worker."""


def failure_in(worker: int, error: BaseException) -> Failure:
    """What to send of an exception."""
    name = type(error).__name__
    trace = "".join(traceback.format_exception(error))
    return Failure(type(error), f"Caught {name} in DataLoader worker process {worker}.\nOriginal {trace}")


def seed_all(seed: int) -> None:
    """Seed this library's, Python's and NumPy's random numbers."""
    manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def run(
    channel: Any, to_close: list[Any], make_fetch: Callable[[], Callable[[Any], Any]], dataset: Any, folder: str,
    worker: int, workers: int, seed: int, init: Callable[[int], Any] | None, parent: int,
) -> None:  # fmt: skip
    """The loop of a worker. Messages in: ("fetch", number, indices), ("seed", seed); out: (number, path, length)."""
    global _info
    for other in to_close:  # ends that a fork copied: a pipe counts as closed when every copy is
        other.close()
    set_num_threads(1)
    _info = WorkerInfo(worker, workers, seed, dataset)
    fetch: Any = None
    broken: Failure | None = None

    def begin(new: int) -> None:
        nonlocal fetch, broken
        global _info
        _info = WorkerInfo(worker, workers, new, dataset)
        seed_all(new)
        try:
            fetch = make_fetch()
        except Exception as error:
            broken = failure_in(worker, error)

    begin(seed)
    if init is not None and broken is None:
        try:
            init(worker)
        except Exception as error:
            broken = failure_in(worker, error)
    try:
        while True:
            while not channel.poll(_PATIENCE):
                if os.getppid() != parent:
                    return
            message = channel.recv()
            if message[0] == "seed":
                begin(message[1])
                continue
            number, indices = message[1:]
            result: Any
            try:
                result = broken or fetch(indices)
            except StopIteration:
                result = End()
            except Exception as error:
                result = failure_in(worker, error)
            try:
                place = shared_batches.write(result, folder, f"{worker}-{number}")
            except Exception as error:  # what a dataset gives may not be picklable, nor an exception's class
                text = result.text if isinstance(result, Failure) else failure_in(worker, error).text
                place = shared_batches.write(Failure(RuntimeError, text), folder, f"{worker}-{number}")
            channel.send((number, *place))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
