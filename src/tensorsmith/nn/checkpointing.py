"""Checkpointing: memory saved by computing a part of the network again when its gradients are needed.

Two forms, as in PyTorch. The one by saved-tensor hooks (`use_reentrant=False`) records the part as ever, but what its nodes
save is only a ticket; the first ticket that a backward hands in runs the part again and fills all of them. The reentrant form
is a custom Function that runs the part without recording, and once more, recorded, in its backward.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorsmith.amp.state import same_autocast
from tensorsmith.autograd.backward import backward as run_backward
from tensorsmith.autograd.function import Function
from tensorsmith.autograd.hooks import saved_tensors_hooks
from tensorsmith.ops.random import get_rng_state, set_rng_state
from tensorsmith.tensor.modes import enable_grad, modes, no_grad
from tensorsmith.tensor.tensor import Tensor, alias_of


class CheckpointError(RuntimeError):
    """The part computed something else when it was run again."""


class _StopRecomputation(Exception):
    """Every ticket is filled: the rest of the part need not run."""


class _Ticket:
    """Stands for a tensor that a node would have saved."""

    __slots__ = ("__weakref__",)


_early_stop = [True]


class set_checkpoint_early_stop:  # noqa: N801 - PyTorch's name
    """Whether a part that runs again ends as soon as everything that was saved is there (the default)."""

    def __init__(self, enable: bool) -> None:
        self._enable = bool(enable)
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_early_stop[0])
        _early_stop[0] = self._enable

    def __exit__(self, *exc: object) -> None:
        _early_stop[0] = self._before.pop()


def noop_context_fn() -> tuple[Any, Any]:
    """Contexts that do nothing, for the forward run and for the run in the backward."""
    return contextlib.nullcontext(), contextlib.nullcontext()


def _described(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.layout.shape), tensor.layout.dtype.name


class _RandomNumbers:
    """What a part draws: the run in the backward draws the same again, from a generator set back, or, while a function is
    compiled, by the same numbers of the trace."""

    def __init__(self, preserve: bool) -> None:
        self.tracer = modes.tracer if hasattr(modes.tracer, "computing_again") else None
        self.drawn: list[Any] | None = [] if preserve else None
        self.state = get_rng_state() if preserve and self.tracer is None else None

    def first(self) -> contextlib.AbstractContextManager[Any]:
        """A context for the first run."""
        if self.tracer is None or self.drawn is None:
            return contextlib.nullcontext()
        return self.tracer.noting_draws(self.drawn)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """A context for the run in the backward."""
        if self.tracer is not None:
            with self.tracer.computing_again(self.drawn):
                yield
            return
        before = get_rng_state() if self.state is not None else None
        try:
            if self.state is not None:
                set_rng_state(self.state)
            yield
        finally:
            if before is not None:
                set_rng_state(before)


class _Part:
    """One call of a part: its tickets, and how to run it again."""

    def __init__(self, run: Callable[[], Any], preserve: bool, context: Any, check: bool) -> None:
        self.run = run
        self.context = context
        self.check = check
        self.early_stop = _early_stop[0]
        self.numbers = _RandomNumbers(preserve)
        self.autocast = same_autocast()
        self.tickets: list[weakref.ref[_Ticket]] = []
        self.described: list[tuple] = []
        self.filled: weakref.WeakKeyDictionary[_Ticket, Tensor] = weakref.WeakKeyDictionary()

    def pack(self, tensor: Tensor) -> _Ticket:
        ticket = _Ticket()
        self.tickets.append(weakref.ref(ticket))
        self.described.append(_described(tensor))
        return ticket

    def unpack(self, ticket: _Ticket) -> Tensor:
        if ticket not in self.filled:
            self.fill()
        if ticket not in self.filled:
            raise CheckpointError(
                "checkpoint: fewer tensors were saved when the function was run again than during the forward pass; it must do "
                "the same both times"
            )
        return self.filled.pop(ticket)  # a second backward runs the part again

    def fill(self) -> None:
        """Run the part again and keep what its nodes save."""
        number = 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal number
            if number >= len(self.tickets):
                raise CheckpointError(
                    "checkpoint: more tensors were saved when the function was run again than during the forward pass "
                    f"({len(self.tickets)}); it must do the same both times"
                )
            if self.check and _described(tensor) != self.described[number]:
                raise CheckpointError(
                    "checkpoint: Recomputed values for the following tensors have different metadata than during the forward "
                    f"pass: tensor {number}: saved {self.described[number]}, recomputed {_described(tensor)}"
                )
            ticket = self.tickets[number]()
            number += 1
            if ticket is not None:
                self.filled[ticket] = alias_of(tensor, False)
            if self.early_stop and number == len(self.tickets):
                raise _StopRecomputation
            return tensor

        try:
            with self.numbers.again(), enable_grad(), self.autocast, self.context, saved_tensors_hooks(keep, lambda kept: kept):
                self.run()
        except _StopRecomputation:
            pass


class _Reentrant(Function):
    """The part without recording; recorded in the backward, which goes through it at once."""

    @staticmethod
    def forward(ctx: Any, function: Callable, preserve: bool, *args: Any) -> Any:
        ctx.function = function
        ctx.numbers = _RandomNumbers(preserve)
        ctx.autocast = same_autocast()
        ctx.places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        ctx.others = [None if isinstance(a, Tensor) else a for a in args]
        ctx.save_for_backward(*[args[i] for i in ctx.places])
        with no_grad(), ctx.numbers.first():
            return function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if modes.backwards and modes.backwards[-1].needed is not None:
            raise RuntimeError(
                "When use_reentrant=True, tensorsmith.utils.checkpoint is incompatible with .grad() or passing an `inputs` "
                "parameter to .backward(). To resolve this error, you can either set use_reentrant=False, or call .backward() "
                "without passing the `inputs` argument."
            )
        args = list(ctx.others)
        for place, tensor in zip(ctx.places, ctx.saved_tensors):
            args[place] = alias_of(tensor, tensor.layout.tracked)
        with ctx.numbers.again(), enable_grad(), ctx.autocast:
            outputs = ctx.function(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(o, g) for o, g in zip(outputs, grads) if isinstance(o, Tensor) and o.layout.tracked]
        if not pairs:
            raise RuntimeError("none of output has requires_grad=True, this checkpoint() is not necessary")
        run_backward([o for o, _ in pairs], [g for _, g in pairs])
        return (None, None, *[a.grad if isinstance(a, Tensor) else None for a in args])  # type: ignore[attr-defined]


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None,
    context_fn: Callable[[], tuple[Any, Any]] = noop_context_fn, determinism_check: str = "default", debug: bool = False,
    early_stop: bool = True, preserve_rng_state: bool = True, **kwargs: Any,
) -> Any:  # fmt: skip
    """`function(*args, **kwargs)`, without keeping what its gradients need: it is run again in the backward.

    use_reentrant: False is recommended: it works with `grad`, keyword arguments and nested calls. True (and None, with a
        warning) is the older form, for positional arguments, one of which must require a gradient.
    context_fn: gives two contexts, for the run now and for the run in the backward; determinism_check: "default" compares
        shapes and dtypes of both runs, "none" nothing; preserve_rng_state: random numbers are the same in both runs.
    Raises ValueError for keyword arguments or contexts in the reentrant form, CheckpointError where the second run differs.

        >>> x = ts.ones(3, requires_grad=True)
        >>> y = ts.utils.checkpoint.checkpoint(lambda x: (x * x).exp(), x, use_reentrant=False)
        >>> y.sum().backward()
    """
    if use_reentrant is None:
        warnings.warn(
            "tensorsmith.utils.checkpoint: the use_reentrant parameter should be passed explicitly. use_reentrant=False is "
            "recommended; use_reentrant=True is what happens now.",
            stacklevel=2,
        )
        use_reentrant = True
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check should be one of ['default', 'none'], but got {determinism_check}")
    if use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        if context_fn is not noop_context_fn or debug:
            raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
        if not any(isinstance(a, Tensor) and a.layout.tracked for a in args):
            warnings.warn("None of the inputs have requires_grad=True. Gradients will be None", stacklevel=2)
        return _Reentrant.apply(function, preserve_rng_state, *args)
    now, again = context_fn()
    if not modes.grad:
        with now:
            return function(*args, **kwargs)
    part = _Part(lambda: function(*args, **kwargs), preserve_rng_state, again, determinism_check == "default")
    part.early_stop = part.early_stop and early_stop
    with part.numbers.first(), saved_tensors_hooks(part.pack, part.unpack), now:
        return function(*args, **kwargs)


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, *, preserve_rng_state: bool = True,  # noqa: A002
) -> Any:  # fmt: skip
    """A chain of modules in `segments` parts, each of them but the last checkpointed."""
    modules: Sequence[Any] = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(modules) // segments

    def part(start: int, end: int) -> Callable[[Any], Any]:
        def run(value: Any) -> Any:
            for module in modules[start:end]:
                value = module(value)
            return value

        return run

    for number in range(segments - 1):
        input = checkpoint(  # noqa: A001
            part(number * size, (number + 1) * size), input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state
        )
    return part((segments - 1) * size, len(modules))(input)
