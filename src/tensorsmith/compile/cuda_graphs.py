"""CUDA graphs by hand, as PyTorch's: what is called once is replayed, without Python and without launches by the host.

    g = ts.cuda.CUDAGraph()
    with ts.cuda.graph(g):
        y = model(x)                   # captured, not run
    x.copy_(batch)
    g.replay()                         # y holds the result

A compiled function replays by itself and follows new addresses and numbers (`runtime/cuda_graph.py`); a captured graph knows
the addresses and the Python numbers that it was captured with. Call what is captured once before: kernels are compiled then,
and tables copied to the device.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tensorsmith.autograd.function import Function
from tensorsmith.compile.nest import flatten, unflatten
from tensorsmith.ops.registry import TABLE
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def is_current_stream_capturing() -> bool:
    """Whether this thread captures what it calls into a CUDA graph."""
    return modes.capture is not None


def graph_pool_handle() -> Any:
    """A pool of memory for graphs that share it: each may write over what the others left."""
    from tensorsmith.targets.cuda import allocator, devices

    return allocator.PrivatePool(devices.current_device())


class CUDAGraph:
    """A CUDA graph of what was called between `capture_begin` and `capture_end`, or in `with ts.cuda.graph(g)`.

    Errors: RuntimeError for a replay without a capture, a second capture, random numbers (every replay would draw the same),
    the value of a tensor, a copy from memory that is not pinned; CudaError where CUDA refuses.
    """

    def __init__(self) -> None:
        self._capture: Any = None
        self._pool: Any = None
        self._own_pool = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin on the current stream, which must not be the default one.

        pool: of `graph_pool_handle()` or another graph's `pool()`, to share memory
        """
        from tensorsmith.targets.cuda import allocator, devices
        from tensorsmith.targets.cuda.captures import Capture

        if is_current_stream_capturing():
            raise RuntimeError("a CUDA graph is being captured in this thread already")
        if self._capture is not None:
            raise RuntimeError("this CUDAGraph has been captured; reset() it first")
        index = devices.current_device()
        capture = Capture(index)
        pool = pool.pool() if isinstance(pool, CUDAGraph) else pool
        chosen = allocator.PrivatePool(index) if pool is None else pool
        capture.begin(chosen, capture_error_mode)
        self._capture, self._pool, self._own_pool = capture, chosen, pool is None
        modes.capture = self

    def capture_end(self) -> None:
        """End the capture; from now on the graph can be replayed."""
        if modes.capture is not self:
            raise RuntimeError("capture_end() without capture_begin() in this thread")
        modes.capture = None
        try:
            self._capture.end()
        except BaseException:
            self._capture = None
            raise

    def _give_up(self) -> None:
        if modes.capture is self:
            modes.capture = None
            self._capture.give_up()
            self._capture = None

    def replay(self) -> None:
        """Run what was captured, over the same memory, after what the current stream has been given so far."""
        if self._capture is None or not self._capture.executable:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self._capture.launch()

    def reset(self) -> None:
        """Let go of the graph, and of its memory as tensors in it die."""
        if self._capture is not None:
            self._capture.destroy()
        if self._own_pool and self._pool is not None:
            self._pool.release()
        self._capture, self._pool = None, None

    def pool(self) -> Any:
        """The pool of this graph's memory, for others to share."""
        if self._pool is None:
            raise RuntimeError("this CUDAGraph has no memory before a capture")
        return self._pool

    def __del__(self) -> None:
        try:
            self.reset()
        except Exception:  # noqa: BLE001  the interpreter or the driver is ending
            pass


class graph:  # noqa: N801 - PyTorch's name
    """Capture a block of code: `with ts.cuda.graph(g): ...`, on a stream of its own.

    pool: memory to share; stream: the stream to capture on; capture_error_mode: whose forbidden calls are errors: "global",
    "thread_local", "relaxed"
    """

    def __init__(
        self, cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
    ) -> None:
        from tensorsmith import cuda

        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_error_mode = capture_error_mode
        self.stream_ctx = cuda.stream(cuda.Stream() if stream is None else stream)

    def __enter__(self) -> None:
        from tensorsmith import cuda

        cuda.synchronize()
        gc.collect()
        cuda.empty_cache()
        self.stream_ctx.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self.stream_ctx.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.cuda_graph.capture_end()
            else:
                self.cuda_graph._give_up()
        finally:
            self.stream_ctx.__exit__(kind, error, trace)


# --- callables with graphs forwards and backwards ---------------------------------------------------------------------


def make_graphed_callables(
    callables: Any, sample_args: Any, num_warmup_iters: int = 3, allow_unused_input: bool = False, pool: Any = None
) -> Any:
    """Functions or modules whose forward and backward pass are replays of graphs.

    callables: one, or a tuple, of functions or modules of CUDA tensors
    sample_args: a tuple of tensors (or a tuple of such tuples), with the shapes, dtypes and `requires_grad` of later calls;
        their memory becomes the graphs' and is written over
    num_warmup_iters: calls before the capture; allow_unused_input: inputs without a gradient are no error
    A module is given back itself, with a forward that replays while its `training` is as it was; hooks and buffers that require
    gradients are refused. Errors: RuntimeError.
    """
    single = not isinstance(callables, tuple)
    functions = (callables,) if single else callables
    samples = (sample_args,) if single else sample_args
    if len(functions) != len(samples):
        raise RuntimeError(f"{len(functions)} callables, but sample arguments for {len(samples)}")
    if modes.autocast is not None and modes.casts is not None:
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )
    memory = graph_pool_handle() if pool is None else pool
    parts = [_Part(f, tuple(args), num_warmup_iters, allow_unused_input) for f, args in zip(functions, samples)]
    for part in parts:
        part.warm_up()
    for part in parts:  # forward passes in order, backward passes in the opposite one: as they will run
        part.capture_forward(memory)
    for part in reversed(parts):
        part.capture_backward(memory)
    found = tuple([part.replaying() for part in parts])
    return found[0] if single else found


def _like(x: Tensor) -> Tensor:
    """Memory for another tensor of this layout."""
    return TABLE["empty_like"].function(x.detach())  # type: ignore[attr-defined, no-any-return]


class _Part:
    """One callable: its inputs, graphs and outputs, whose memory stays."""

    def __init__(self, function: Any, arguments: tuple[Tensor, ...], warm_ups: int, allow_unused: bool) -> None:
        if not all([isinstance(x, Tensor) for x in arguments]):
            raise RuntimeError(
                "make_graphed_callables: sample_args for each callable must contain only Tensors. Other types are not allowed."
            )
        self.function = function
        self.arguments = arguments
        self.warm_ups = warm_ups
        self.allow_unused = allow_unused
        self.parameters: tuple[Tensor, ...] = ()
        self.is_module = hasattr(function, "named_parameters")
        if self.is_module:
            hooks = function._hooks
            kinds = ("forward", "forward_pre", "backward", "backward_pre", "legacy")
            if hooks is not None and any([getattr(hooks, kind) for kind in kinds]):
                raise RuntimeError(
                    "Modules must not have hooks registered at the time they are passed. However, registering hooks on modules "
                    "after passing them through make_graphed_callables is allowed."
                )
            if any(buffer.requires_grad for buffer in function.buffers()):
                raise RuntimeError(
                    "In any Module passed to make_graphed_callables(), only parameters may be trainable. All buffers must have "
                    "requires_grad=False."
                )
            self.parameters = tuple(function.parameters())
        self.inputs = (*arguments, *self.parameters)
        self.forward, self.backward = CUDAGraph(), CUDAGraph()
        self.outputs: list[Tensor] = []
        self.nest: Any = None
        self.given: list[Tensor | None] = []  # gradients of the outputs
        self.found: list[Tensor | None] = []  # gradients of the inputs

    def _wanted(self) -> list[Tensor]:
        return [x for x in self.inputs if x.layout.tracked]

    def _gradients(self, outputs: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor | None]:
        from tensorsmith.autograd import grad

        return grad(outputs, self._wanted(), given, only_inputs=True, allow_unused=self.allow_unused)  # type: ignore[no-any-return]

    def warm_up(self) -> None:
        """Call it a few times on a stream of its own, for kernels to be compiled and tables to be copied."""
        from tensorsmith import cuda
        cuda.synchronize()
        with cuda.stream(cuda.Stream()):
            for _ in range(self.warm_ups):
                outputs = [x for x in flatten(self.function(*self.arguments))[0] if x.layout.tracked]
                if outputs:
                    self._gradients(outputs, [_like(x) for x in outputs])  # type: ignore[attr-defined]
        cuda.synchronize()

    def capture_forward(self, pool: Any) -> None:
        """Capture the call itself."""
        with graph(self.forward, pool):
            result = self.function(*self.arguments)
        self.outputs, self.nest = flatten(result)

    def capture_backward(self, pool: Any) -> None:
        """Capture the gradients of the inputs from those of the outputs."""
        tracked = [x for x in self.outputs if x.layout.tracked]
        self.given = [_like(x) if x.layout.tracked else None for x in self.outputs]  # type: ignore[attr-defined]
        found: Sequence[Tensor | None] = []
        if tracked:
            with graph(self.backward, pool):
                found = self._gradients(tracked, [g for g in self.given if g is not None])
        rest = iter(found)
        self.found = [next(rest, None) if x.layout.tracked else None for x in self.inputs]
        self.has_backward = bool(tracked)
        self.outputs = [x.detach() for x in self.outputs]  # type: ignore[attr-defined]

    def replaying(self) -> Any:
        """The callable that replays."""
        part = self

        class Graphed(Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Tensor) -> Any:
                for static, given in zip(part.arguments, inputs):
                    if static.ptr != given.ptr:
                        static.detach().copy_(given)  # type: ignore[attr-defined]
                part.forward.replay()
                return tuple([x.detach() for x in part.outputs])  # type: ignore[attr-defined]

            @staticmethod
            def backward(ctx: Any, *grads: Tensor) -> Any:
                for static, given in zip(part.given, grads):
                    if static is not None and static.ptr != given.ptr:
                        static.copy_(given)  # type: ignore[attr-defined]
                if part.has_backward:
                    part.backward.replay()
                return tuple([g if g is None else g.detach() for g in part.found])  # type: ignore[attr-defined]

        def call(*arguments: Any) -> Any:
            outputs = Graphed.apply(*arguments, *part.parameters)
            return unflatten(part.nest, list(outputs) if isinstance(outputs, tuple) else [outputs])

        if not self.is_module:
            return call
        module, original, mode = self.function, self.function.forward, self.function.training

        def forward(*arguments: Any) -> Any:
            return call(*arguments) if module.training == mode else original(*arguments)

        module.forward = forward
        return module
