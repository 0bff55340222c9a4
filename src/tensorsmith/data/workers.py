"""The processes that load for a DataLoader, seen from the process that iterates.

Every worker has a pipe of its own, on which only small messages travel, so that neither side waits for the other and a
worker's death shows at once: its end of the pipe closes.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from typing import Any

from tensorsmith.data import shared_batches, worker_process
from tensorsmith.data.worker_process import End, Failure

_GRACE = 1.0  # seconds that workers get to end by themselves


class Workers:
    """Worker processes over one dataset.

    make_fetch: called in each worker, gives what makes a batch of indices; for iterable datasets it is called anew at
    every pass. timeout: seconds to wait for a batch, 0 for ever.
    """

    def __init__(
        self, dataset: Any, make_fetch: Callable[[], Callable[[Any], Any]], count: int, seed: int, prefetch: int,
        timeout: float, init: Callable[[int], Any] | None, context: Any, in_order: bool,
    ) -> None:  # fmt: skip
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        self.count, self.prefetch, self.timeout = count, prefetch, timeout
        self.in_order = in_order
        self.folder = shared_batches.new_folder()
        self.channels: list[Any] = []
        self.processes: list[Any] = []
        self.number = 0  # of batches asked for, over all passes
        self._finalizer = weakref.finalize(self, _stop, self.processes, self.channels, self.folder, os.getpid())
        forked = context.get_start_method() == "fork"
        for worker in range(count):
            ours, theirs = context.Pipe()
            self.channels.append(ours)
            process = context.Process(
                target=worker_process.run,
                args=(
                    theirs, list(self.channels) if forked else [], make_fetch, dataset, self.folder, worker, count,
                    seed + worker, init, os.getpid(),
                ),
                daemon=True,
            )  # fmt: skip
            process.start()
            theirs.close()  # the only copy is the worker's: its death closes the pipe
            self.processes.append(process)

    @property
    def alive(self) -> bool:
        """Whether they have not been closed, by a failure among others."""
        return self._finalizer.alive

    def reseed(self, seed: int) -> None:
        """Another pass: new random numbers, and iterators of iterable datasets anew."""
        for worker in range(self.count):
            self._send(worker, ("seed", seed + worker))

    def close(self) -> None:
        """End the processes and free what they shared."""
        self._finalizer()

    def batches(self, indices: Iterator[Any]) -> Iterator[Any]:
        """One pass: batches in the order of `indices`, or with in_order=False as they are ready."""
        asked: list[int] = []  # numbers of batches under way, oldest first
        of: dict[int, int] = {}  # the worker of a number
        ready: dict[int, Any] = {}
        active = [True] * self.count
        turn, more = 0, True

        def ask() -> None:
            nonlocal turn, more
            if not any(active):
                more = False
            while more:
                worker, turn = turn, (turn + 1) % self.count
                if active[worker]:
                    break
            if not more:
                return
            try:
                chosen = next(indices)
            except StopIteration:
                more = False
                return
            self._send(worker, ("fetch", self.number, chosen))
            asked.append(self.number)
            of[self.number] = worker
            self.number += 1

        try:
            for _ in range(self.prefetch * self.count):
                ask()
            while asked:
                number = asked[0] if self.in_order else next((n for n in asked if n in ready), asked[0])
                if number not in ready:
                    self._receive(ready, {of[n] for n in asked if n not in ready})
                    continue
                asked.remove(number)
                worker = of.pop(number)
                batch = ready.pop(number)
                if isinstance(batch, End):
                    active[worker] = False
                    ask()
                    continue
                ask()
                if isinstance(batch, Failure):
                    batch.raise_()
                yield batch
        finally:
            self._drain([n for n in asked if n not in ready], of)

    def _drain(self, open_numbers: list[int], of: dict[int, int]) -> None:
        """Take in what a pass that was left early still has under way, so that the next one finds empty pipes."""
        if not self._finalizer.alive:
            return
        left: dict[int, Any] = {}
        try:
            while any(number not in left for number in open_numbers):
                self._receive(left, {of[n] for n in open_numbers if n not in left})
        except RuntimeError:
            pass  # a dead or slow worker: the next pass says so, or starts new ones

    def _send(self, worker: int, message: tuple[Any, ...]) -> None:
        try:
            self.channels[worker].send(message)
        except (BrokenPipeError, ConnectionResetError, OSError):
            self._died(worker)

    def _receive(self, ready: dict[int, Any], workers: set[int]) -> None:
        """Wait for messages of some workers, which have batches under way."""
        channels: dict[Any, int] = {self.channels[worker]: worker for worker in workers}
        found: list[Any] = wait(list(channels), self.timeout or None)
        if not found:
            self.close()
            raise RuntimeError(f"DataLoader timed out after {self.timeout} seconds")
        for channel in found:
            try:
                number, path, length = channel.recv()
            except (EOFError, ConnectionResetError):
                self._died(channels[channel])
            ready[number] = shared_batches.read(path, length)

    def _died(self, worker: int) -> None:
        process = self.processes[worker]
        process.join(_GRACE)
        code = process.exitcode
        if code is not None and code < 0:
            how = f"was killed by signal {signal.Signals(-code).name}"
        else:
            how = f"exited unexpectedly with exit code {code}"
        hint = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
        self.close()
        raise RuntimeError(
            f"DataLoader worker {worker} (pid {process.pid}) {how}{hint}. Use num_workers=0 to see an error in this process"
        )


def _stop(processes: list[Any], channels: list[Any], folder: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked child has copies of these objects, not of the processes
        return
    for channel in channels:
        channel.close()
    deadline = time.monotonic() + _GRACE
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.terminate()
            process.join(_GRACE)
            if process.is_alive():
                process.kill()
                process.join()
    shutil.rmtree(folder, ignore_errors=True)
