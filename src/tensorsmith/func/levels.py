"""Levels: how function transforms (grad, vmap, jvp) stack up.

A transform enters a `Level` and calls the user's function with *wrappers*: tensors whose `below` is the tensor they stand for,
of a lower level or plain. A wrapper shares the memory of what is below it, so that views, versions and overlaps are what they
are; its layout is a `LevelLayout`, which is how it is told apart and why no kept entry is ever found for it.

While any level is entered the calling thread's `modes.tracer` is its `LevelStack`. An operator reaches
`LevelStack.call(operation, operands, attrs)`, which hands it to the highest level among its operands:

    level.call        unwraps its own wrappers (`lower`), calls what replaces the operation through `stack.call` (the
                      operands are of lower levels now, so this is the next level's turn), and wraps the results
    no level left     the call runs as it would have without transforms: eagerly, or into the graph of `ts.compile`

A new transform is a subclass of `Level` with `call` and `call_inplace`, and a function that enters it:

    class Doubled(Level):                                  # every result counts twice
        title = "DoubledTensor"

        def call(self, operation, operands, attrs):
            results = self.stack.call(operation, [self.lower(x) for x in operands], attrs)
            return self.wrapped(self.twice(results), operands)

    with Doubled() as level:
        result = level.unwrap(function(level.wrap(x)))

When a level is left, wrappers of it that somebody kept become what they stood for; a level whose wrappers mean nothing outside
(vmap) overrides `abandon`.
"""

from __future__ import annotations

import textwrap
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import Layout, LevelLayout, layout_of
from tensorsmith.eager import dispatch
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Kind, Operation
from tensorsmith.ops.index_steps import from_host
from tensorsmith.tensor.modes import modes, traced_by
from tensorsmith.tensor.tensor import Tensor, empty_tensor, make_view, readable


class Level:
    """One entered transform. `depth` counts from 1 at the bottom; higher levels see an operator first."""

    title = "WrappedTensor"  # what a wrapper prints as
    refuses_backward = True  # backward() accumulates into leaves, which inside of a transform are wrappers
    stack: LevelStack
    depth: int

    def __init__(self) -> None:
        self.layouts: dict[tuple, LevelLayout] = {}
        self.made: list[weakref.ref[Tensor]] = []

    def __enter__(self) -> Any:
        if not isinstance(modes.tracer, LevelStack):
            modes.tracer = LevelStack(modes.tracer)
        self.stack = modes.tracer
        self.stack.levels.append(self)
        self.depth = len(self.stack.levels)
        return self

    def __exit__(self, *exc: object) -> None:
        popped = self.stack.levels.pop()
        assert popped is self, "levels are left in the opposite order of entering"
        if not self.stack.levels:
            modes.tracer = self.stack.before
        for reference in self.made:
            tensor = reference()
            if tensor is not None and tensor.layout.level is self:
                self.abandon(tensor)

    # --- wrappers ---------------------------------------------------------------------------------------------------

    def layout_of(
        self, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], tracked: bool, device: Device
    ) -> LevelLayout:
        """The one layout of these properties at this level."""
        key = (dtype, shape, strides, tracked, device)
        found = self.layouts.get(key)
        if found is None:
            found = self.layouts[key] = LevelLayout(layout_of(dtype, shape, strides, False, device), tracked, self)
        return found

    def layout_over(self, below: Layout) -> LevelLayout:
        """The layout of a wrapper, from that of the tensor below it."""
        return self.layout_of(below.dtype, below.shape, below.strides, False, below.device)

    def wrap(self, below: Tensor, operands: Sequence[Any] = ()) -> Tensor:
        """A wrapper over a tensor of a lower level; a view of the operand among `operands` whose memory it shares."""
        wrapper = Tensor.__new__(Tensor)
        wrapper.layout = self.layout_over(below.layout)
        wrapper.storage, wrapper.ptr = below.storage, below.ptr
        wrapper.node, wrapper.output_number, wrapper.state, wrapper.base = None, 0, None, None
        wrapper.__dict__["below"] = below
        if below.base is not None:
            for x in operands:
                if isinstance(x, Tensor) and x.layout.level is self and x.storage is below.storage:
                    wrapper.base = x if x.base is None else x.base
                    wrapper.base.viewed = True
                    wrapper.stamp, wrapper.origin = below.storage.version, below.origin
                    break
        self.made.append(weakref.ref(wrapper))
        return wrapper

    def wrapped(self, results: Any, operands: Sequence[Any]) -> Any:
        """Wrappers over the result or the tuple of results of an operation."""
        if isinstance(results, Tensor):
            return self.wrap(results, operands)
        return tuple([self.wrap(x, operands) for x in results])

    def keep(self, copy: Tensor, wrapper: Tensor) -> None:
        """Make a tensor that was given the layout of a wrapper one over the same tensor below."""
        copy.__dict__["below"] = wrapper.__dict__["below"]
        self.made.append(weakref.ref(copy))

    def check_saved_hooks(self) -> None:
        """Refuse hooks on what nodes save where the level records nodes of its own."""

    def owns(self, x: Any) -> bool:
        """Whether `x` is a wrapper of this level."""
        return isinstance(x, Tensor) and x.layout.level is self

    def lower(self, x: Any) -> Any:
        """What a wrapper of this level stands for; anything else as it is."""
        return x.__dict__["below"] if isinstance(x, Tensor) and x.layout.level is self else x

    unwrap = lower

    def view(self, wrapper: Tensor, layout: Layout, offset: int) -> Tensor:
        """A view of a wrapper by geometry (as `make_view`); where it is tracked its history is derived from its base."""
        found = self.wrap(view_below(self.lower(wrapper), self.layout_below(wrapper, layout), offset), (wrapper,))
        if layout.tracked:
            found.layout, found.stamp = found.layout.with_tracking(True), -1
        return found

    def layout_below(self, wrapper: Tensor, layout: Layout) -> Layout:
        """The layout that a view of a wrapper has below it."""
        return layout_of(layout.dtype, layout.shape, layout.strides, device=layout.device)

    def detach(self, wrapper: Tensor) -> Tensor:
        """An untracked wrapper over what is below, detached."""
        return self.wrap(self.lower(wrapper).detach())

    def blank(
        self, wrapper: Tensor, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None
    ) -> Tensor:
        """A new tensor to be written, made after a wrapper, on its device."""
        below = self.lower(wrapper)
        if below.layout.level is not None:
            return below.layout.level.blank(below, dtype, shape, strides)
        return self.stack.blank(dtype, shape, strides, below.layout.device)

    def readable(self, wrapper: Tensor, what: str) -> Tensor:
        """The tensor whose memory holds the values of a wrapper. RuntimeError where there is no one value."""
        return self.lower(wrapper)

    def from_host(self, wrapper: Tensor, what: str, function: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        """What NumPy computes from the values of a wrapper."""
        return from_host(self.lower(wrapper), what, function)

    def text(self, wrapper: Tensor) -> str:
        """What a wrapper prints as."""
        inside = textwrap.indent(repr(self.lower(wrapper)), "    ")
        return f"{self.title}(lvl={self.depth}, value=\n{inside}\n)"

    def abandon(self, wrapper: Tensor) -> None:
        """A wrapper outlived the level: it becomes what it stands for."""
        become(wrapper, self.lower(wrapper))

    # --- operators --------------------------------------------------------------------------------------------------

    def kinds(self, operands: Sequence[Any]) -> list[Kind]:
        """What a program needs of the operands; only wrappers of this level count as tracked."""
        found: list[Kind] = []
        for x in operands:
            if not isinstance(x, Tensor):  # a number; one that a compiled function asks for names its kind
                found.append(x.kind if hasattr(x, "kind") else dispatch.kind_of(x))
            elif x.layout.level is not self and x.layout.tracked:
                found.append(x.layout.with_tracking(False))
            else:
                found.append(x.layout)
        return found

    def call(self, operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Run what stands for an operation at this level; at least one operand is a wrapper of it."""
        raise NotImplementedError(f"{type(self).__name__}.call")

    def call_inplace(self, operation: InplaceOperation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The same for an operation that writes over operands."""
        raise NotImplementedError(f"{type(self).__name__}.call_inplace")

    def call_function(self, function: Any, arguments: Sequence[Any]) -> Any:
        """The same for a custom `autograd.Function`."""
        raise NotImplementedError(f"a custom autograd.Function ({function.__name__}) under {self.title}s")


class LevelStack:
    """The entered levels of a thread; what `modes.tracer` is while there are any.

    before: the tracer that was active when the first level was entered, or None
    """

    def __init__(self, before: Any) -> None:
        self.before = before
        self.levels: list[Level] = []

    def highest(self, operands: Sequence[Any]) -> Level | None:
        """The highest level among the operands."""
        best = None
        for x in operands:
            if isinstance(x, Tensor):
                level = x.layout.level
                if level is not None and (best is None or level.depth > best.depth):
                    best = level
        return best

    def call(self, operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Run an operation at the highest level of its operands, or without any."""
        level = self.highest(operands)
        if level is not None:
            return level.call(operation, operands, attrs)
        modes.tracer = self.before
        try:
            return dispatch.call(operation, operands, attrs)
        finally:
            modes.tracer = self

    def call_inplace(self, operation: InplaceOperation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The same for an operation that writes over operands."""
        level = self.highest(operands)
        if level is not None:
            return level.call_inplace(operation, operands, attrs)
        modes.tracer = self.before
        try:
            return operation(*operands, **attrs)
        finally:
            modes.tracer = self

    def call_function(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Run a custom `autograd.Function` at the highest level of its arguments; NotImplemented where there is none."""
        level = self.highest(arguments)
        return NotImplemented if level is None else level.call_function(function, arguments)

    # --- what else a tracer is asked --------------------------------------------------------------------------------

    def refuse(self, tensor: Tensor, what: str) -> None:
        """Raise where the values of a tensor are not to be had."""
        tensor = readable(tensor, what)
        if self.before is not None:
            self.before.refuse(tensor, what)

    def hides(self, tensor: Tensor) -> bool:
        """Whether a tensor that is no wrapper has no values to print."""
        return self.before is not None and self.before.hides(tensor)

    def detach(self, tensor: Tensor) -> Tensor:
        """An untracked tensor over the same memory, at every level."""
        if tensor.layout.level is not None:
            return tensor.layout.level.detach(tensor)
        modes.tracer = self.before
        try:
            return tensor.detach()
        finally:
            modes.tracer = self

    def blank(
        self, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None, device: Device = CPU
    ) -> Tensor:
        """A new tensor to be written by operators."""
        if self.before is None:
            return empty_tensor(dtype, shape, strides, device)
        return self.before.blank(dtype, shape, strides, device)

    def draw(self, generator: Any, count: int) -> tuple[Any, Any]:
        """Key and first counter for random numbers; under vmap what its `randomness` says."""
        for level in reversed(self.levels):
            check = getattr(level, "check_randomness", None)
            if check is not None:
                check()
        different = [level for level in self.levels if getattr(level, "randomness", "same") == "different"]
        if different:
            from tensorsmith.func.randomness import draw_each

            return draw_each(self, different, generator, count)
        modes.tracer = self.before
        try:
            return generator.draw(count)
        finally:
            modes.tracer = self

    def host(self, ask: Any, key: Any = None) -> Any:
        """A number that a compiled function asks for at every run."""
        return ask() if self.before is None else self.before.host(ask, key)

    def effect(self, act: Any, keep: Any) -> Any:
        """Python state that belongs to a step changes."""
        if self.before is not None:
            return self.before.effect(act, keep)
        with traced_by(None):
            return act()

    def writes_to(self, tensor: Tensor) -> int:
        """How often the function that is compiled has written a tensor so far."""
        return 0 if self.before is None else self.before.writes_to(tensor)

    def note_optimizer(self, optimizer: Any) -> None:
        """An optimiser steps."""
        if self.before is not None:
            self.before.note_optimizer(optimizer)

    def note_uninitialized(self, module: Any) -> None:
        """A lazy module takes its sizes as ever; a compiled function around the transform is told."""
        if self.before is not None:
            self.before.note_uninitialized(module)

    def note_module(self, module: Any) -> None:
        """A module is called."""
        if self.before is not None:
            self.before.note_module(module)

    def note_backward(self) -> None:
        """A backward accumulates into leaves, which are wrappers or belong to the world outside."""
        if not any([level.refuses_backward for level in self.levels]):
            if self.before is not None:
                self.before.note_backward()
            return
        raise RuntimeError(
            "backward() called inside a function transform. This is not supported: use ts.func.grad or ts.func.vjp instead, or "
            "call backward() outside of the transform."
        )

    def note_saved_hooks(self) -> None:
        """What nodes save goes through hooks of the user, which know no levels."""
        for level in self.levels:
            level.check_saved_hooks()

    def note_requires_grad(self) -> None:
        """A tensor is made a leaf that autograd tracks, beside the level that tracks."""
        if not self.levels[-1].refuses_backward:  # the duals of `forward_ad` are leaves as other tensors are
            if self.before is not None:
                self.before.note_requires_grad()
            return
        raise RuntimeError(
            "You are attempting to call Tensor.requires_grad_() (or perhaps using autograd.functional APIs) inside of a "
            "function being transformed. This is unsupported: use ts.func.grad, vjp or jacrev, or call it outside."
        )

    def note_grad_set(self, tensor: Tensor) -> None:
        """The gradient of a leaf is set."""
        if self.before is not None and tensor.layout.level is None:
            self.before.note_grad_set(tensor)


def debug_unwrap(tensor: Tensor, *, recurse: bool = True) -> Tensor:
    """What a wrapper stands for, to look at while a transformed function runs: under vmap the whole batch.

    recurse: through all levels; otherwise through the highest. Any other tensor is returned as it is.

    >>> seen = []
    >>> _ = ts.vmap(lambda x: seen.append(ts.func.debug_unwrap(x)) or x)(ts.ones(2, 3))
    >>> seen[0].shape
    tensorsmith.Size([2, 3])
    """
    while tensor.layout.level is not None:
        tensor = tensor.layout.level.lower(tensor)
        if not recurse:
            break
    return tensor


def view_below(source: Tensor, layout: Layout, offset: int) -> Tensor:
    """A view by geometry of a tensor that a wrapper stands for; its history, if there is one, is derived from its base."""
    tracked = source.layout.tracked and layout.dtype is source.layout.dtype
    found = make_view(source, layout.with_tracking(tracked), offset)
    if found.layout.tracked:
        found.stamp = -1
    return found


def become(wrapper: Tensor, below: Tensor) -> None:
    """Make a wrapper another tensor object of what it stands for."""
    if below.layout.tracked and below.node is None:
        below.ensure_state()  # shared, so that both are one leaf
    wrapper.layout = below.layout
    wrapper.storage, wrapper.ptr = below.storage, below.ptr
    wrapper.node, wrapper.output_number = below.node, below.output_number
    wrapper.base, wrapper.state = below.base, below.state
    if below.base is not None:
        wrapper.stamp = below.stamp
    del wrapper.__dict__["below"]
    if below.layout.level is not None:
        below.layout.level.keep(wrapper, below)
