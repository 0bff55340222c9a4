"""Batches on their way to a device: into pinned memory, and ahead of the computation on a stream of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.tensor.placement import device_from
from tensorsmith.tensor.tensor import Tensor


def mapped(batch: Any, function: Callable[[Tensor], Tensor], method: str = "") -> Any:
    """The same structure with `function` of every tensor; other objects that have `method` are asked by it."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, str | bytes):
        return batch
    if isinstance(batch, Mapping):
        return {key: mapped(value, function, method) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, function, method) for value in batch))
    if isinstance(batch, tuple):
        return tuple(mapped(value, function, method) for value in batch)
    if isinstance(batch, Sequence):
        return [mapped(value, function, method) for value in batch]
    return getattr(batch, method)() if method and hasattr(batch, method) else batch


def pinned_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches with their tensors in pinned memory; objects that have a method `pin_memory` are asked to do it."""
    try:
        for batch in batches:
            yield mapped(batch, lambda x: x.pin_memory(), "pin_memory")  # type: ignore[attr-defined]
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


class Prefetcher:
    """The batches of a loader on a device, each copied while the one before it is computed with.

    loader: any iterable of batches: tensors, mappings and sequences of such; device: where they go, default the current
    CUDA device
    The copies run on a stream of their own; what is launched with a batch comes after its copy. On the CPU batches pass
    through.

    >>> import tensorsmith as ts
    >>> loader = ts.data.DataLoader(ts.data.TensorDataset(ts.arange(4)), batch_size=2)
    >>> [x.tolist() for x, in ts.data.Prefetcher(loader, "cpu")]
    [[0, 1], [2, 3]]
    """

    def __init__(self, loader: Iterable[Any], device: Any = "cuda") -> None:
        self.loader = loader
        self.device: Device = device_from(device)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self.device is CPU:
            yield from (mapped(batch, lambda x: x.to(CPU)) for batch in self.loader)  # type: ignore[attr-defined]
            return
        from tensorsmith.targets.cuda.streams import Event, Stream, StreamContext, current_stream

        index = self.device.index
        side = Stream(index)

        def sent(batch: Any) -> tuple[Any, Event]:
            with StreamContext(side):
                there = mapped(batch, lambda x: x.to(self.device, non_blocking=True))  # type: ignore[attr-defined]
            return there, side.record_event()

        def received(batch: Any, done: Event) -> Any:
            stream = current_stream(index)
            stream.wait_event(done)

            def used_here(x: Tensor) -> Tensor:
                x.record_stream(stream)  # type: ignore[attr-defined]
                return x

            return mapped(batch, used_here)

        ahead: tuple[Any, Event] | None = None
        for batch in self.loader:
            following = sent(batch)
            if ahead is not None:
                yield received(*ahead)
            ahead = following
        if ahead is not None:
            yield received(*ahead)
