"""Captures: what a stream is given meanwhile becomes a CUDA graph, which is launched as often as one likes.

Memory that is taken meanwhile comes from a private pool, so that nothing else is written at the addresses that the graph knows.
"""

from __future__ import annotations

import contextlib

from tensorsmith.targets.cuda import allocator, devices, driver
from tensorsmith.targets.cuda.allocator import PrivatePool

MODES = ("global", "thread_local", "relaxed")


class Capture:
    """One graph of what the current stream of a device is given between `begin` and `end`."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.stream = 0
        self.executable = 0
        self.nodes = 0
        self._entered: contextlib.ExitStack | None = None

    def begin(self, pool: PrivatePool, mode: str) -> None:
        """Begin on the device's current stream, which is not the default one.

        mode: which calls that a capture does not allow are errors: those of any thread, of this one, of none
        Errors: RuntimeError on the default stream; ValueError for another mode; CudaError.
        """
        if mode not in MODES:
            raise ValueError(f"capture_error_mode is one of {', '.join(MODES)}, not {mode!r}")
        devices.use(self.index)
        self.stream = allocator.current_stream(self.index)
        if not self.stream:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the "
                "default stream.)"
            )
        chosen = getattr(driver.bindings().CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode.upper()}")
        with contextlib.ExitStack() as entered:
            entered.enter_context(allocator.private_pool(self.index, pool))
            driver.call("cuStreamBeginCapture", self.stream, chosen)
            self._entered = entered.pop_all()

    def end(self) -> None:
        """End, and make what was captured ready to be launched. Errors: CudaError where something could not be captured."""
        assert self._entered is not None, "end follows begin"
        entered, self._entered = self._entered, None
        with entered:
            devices.use(self.index)
            graph = driver.call("cuStreamEndCapture", self.stream)
        try:
            _, self.nodes = driver.call("cuGraphGetNodes", graph, 0)
            self.executable = int(driver.call("cuGraphInstantiate", graph, 0))
        finally:
            driver.call("cuGraphDestroy", graph)

    def give_up(self) -> None:
        """End without a graph, after an error."""
        if self._entered is None:
            return
        entered, self._entered = self._entered, None
        with entered:
            devices.use(self.index)
            driver.status("cuStreamEndCapture", self.stream)

    def launch(self) -> None:
        """Run the graph after what the device's current stream has been given so far."""
        devices.use(self.index)
        driver.call("cuGraphLaunch", self.executable, allocator.current_stream(self.index))

    def destroy(self) -> None:
        """Let go of the graph."""
        if self.executable and not driver.lost_by_fork():
            driver.status("cuGraphExecDestroy", self.executable)
        self.executable = 0
