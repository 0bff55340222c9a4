"""Modes of the calling thread: whether gradients are recorded, and who traces.

`no_grad` and its kin are context managers and decorators, as PyTorch's.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class _Modes(threading.local):
    grad: bool = True  # record operators on tracked tensors
    inference: bool = False  # in inference mode
    tracer: Any = None  # an object whose `call(operator, operands, attrs)` replaces execution
    autocast: Any = None  # who casts operands to the dtype that their operator runs in (`amp/casting.py`)
    casts: dict | None = None  # what it keeps of weights, until the outermost autocast is left; None: it keeps nothing
    capture: Any = None  # the CUDA graph that this thread captures its calls into (`compile/cuda_graphs.py`)
    anomaly: bool = False  # keep the user's line with every node, look for NaN in gradients
    check_nan: bool = True  # in anomaly mode: look for NaN
    saved_hooks: tuple = ()  # stack of (pack, unpack)
    saved_hooks_refused: str | None = None  # why no saved-tensor hooks may be entered now
    multithreading: bool = True  # what the user set; a backward has one thread
    device: Any = None  # where new tensors go where a call does not say; None is the CPU
    devices_before: tuple = ()  # of the contexts that set it, the outermost first
    backwards: tuple = ()  # the backward calls that run in this thread, the innermost last (`autograd/engine.py`)


modes = _Modes()


class traced_by:  # noqa: N801 - like its kin here
    """A context in which `tracer`, or nobody, sees what this thread calls; after it the one before."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def __enter__(self) -> None:
        self._before, modes.tracer = modes.tracer, self._tracer

    def __exit__(self, *exc: object) -> None:
        modes.tracer = self._before


class _GradMode:
    """Base of the grad-mode managers: sets `modes.grad` while active, usable as decorator (also of generators)."""

    _value: bool = False

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(modes.grad)
        modes.grad = self._value

    def __exit__(self, *exc: object) -> None:
        modes.grad = self._before.pop()

    def _clone(self) -> _GradMode:
        return type(self)()

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(*args: Any, **kwargs: Any) -> Any:
                iterator = function(*args, **kwargs)
                sent: Any = None
                while True:
                    with self._clone():
                        try:
                            value = iterator.send(sent)
                        except StopIteration as stop:
                            return stop.value
                    sent = yield value

            return generator  # type: ignore[return-value]

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._clone():
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


class no_grad(_GradMode):  # noqa: N801 - PyTorch's name
    """Nothing is recorded while active: `with ts.no_grad(): ...` or `@ts.no_grad()`."""

    def __new__(cls, function: Callable | None = None) -> Any:
        instance = super().__new__(cls)
        if callable(function):  # used as `@no_grad` without parentheses
            instance.__init__()  # type: ignore[misc]
            return instance(function)
        return instance

    def __init__(self, function: Callable | None = None) -> None:
        super().__init__()


class enable_grad(no_grad):  # noqa: N801
    """Recording is on while active, inside `no_grad` too."""

    _value = True


class inference_mode(_GradMode):  # noqa: N801
    """As `no_grad`; `inference_mode(False)` records again inside of it. Results are ordinary tensors here."""

    def __new__(cls, mode: Any = True) -> Any:
        instance = super().__new__(cls)
        if callable(mode):  # used as `@inference_mode` without parentheses
            instance.__init__()  # type: ignore[misc]
            return instance(mode)
        return instance

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self._mode = bool(mode)
        self._value = not self._mode
        self._outer: list[bool] = []

    def __enter__(self) -> None:
        super().__enter__()
        self._outer.append(modes.inference)
        modes.inference = self._mode

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        modes.inference = self._outer.pop()

    def _clone(self) -> inference_mode:
        return type(self)(self._mode)


class set_grad_enabled(_GradMode):  # noqa: N801
    """Set recording on or off, at once, and restore it where used as a context manager."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._value = bool(mode)
        self._outer = modes.grad
        modes.grad = self._value

    def __enter__(self) -> None:
        self._before.append(self._outer)
        modes.grad = self._value

    def _clone(self) -> set_grad_enabled:
        before = modes.grad
        manager = set_grad_enabled(self._value)
        modes.grad = manager._outer = before
        return manager

    def __call__(self, function: F) -> F:
        modes.grad = self._outer  # used as a decorator: nothing changes now
        return super().__call__(function)


def is_inference_mode_enabled() -> bool:
    """Whether this thread is in inference mode."""
    return modes.inference


def is_grad_enabled() -> bool:
    """Whether operators on tracked tensors are recorded in this thread."""
    return modes.grad


class set_multithreading_enabled:  # noqa: N801
    """Accepted as PyTorch's: a backward runs in the thread that calls it, so there is nothing to switch.

    `is_multithreading_enabled()` answers what was set, and a `with` puts it back.
    """

    def __init__(self, mode: bool) -> None:
        self._before = modes.multithreading
        modes.multithreading = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        modes.multithreading = self._before


def is_multithreading_enabled() -> bool:
    """What `set_multithreading_enabled` set, True at first."""
    return modes.multithreading
