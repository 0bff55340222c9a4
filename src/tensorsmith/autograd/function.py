"""`Function`: operators with a gradient written by the user in Python.

The context that `forward` and `backward` are given is the node itself, as in PyTorch; outputs that it saves are kept
without a reference cycle (`saved.py`).
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd.anomaly import user_trace
from tensorsmith.autograd.arithmetic import arithmetic, fitted
from tensorsmith.autograd.node import Node, _sequence, gradient_edge, rebase_history
from tensorsmith.autograd.saved import FREED, SavedTensor
from tensorsmith.core.layout import Layout
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Origin, Tensor, alias_of, make_view


class FunctionCtx:
    """What `forward` and `backward` may do with their context."""

    needs_input_grad: tuple[bool, ...] = ()
    materialize_grads: bool = True
    to_save: tuple = ()
    for_forward: tuple | None = None
    seen_by_jvp: tuple | None = None  # what `saved_tensors` is while `jvp` runs
    dirty: tuple = ()
    non_differentiable: tuple = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `backward`, where they are `ctx.saved_tensors`; writing to them in place is then noticed."""
        for number, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, Tensor):
                kind = type(tensor).__name__
                raise TypeError(f"save_for_backward can only save variables, but argument {number} is of type {kind}")
        self.to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `jvp`, where they are `ctx.saved_tensors`, until it has run."""
        for tensor in tensors:
            if tensor is not None and not isinstance(tensor, Tensor):
                raise AssertionError(
                    "save_for_forward expects all arguments to be tensors; you should save non-tensors as attributes on ctx."
                )
        self.for_forward = tensors if modes.tracer is not None else None

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say which inputs `forward` wrote in place; each must be returned as an output."""
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say which outputs have no gradient."""
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether `backward` gets zeros (the default) or None for outputs without a gradient."""
        self.materialize_grads = bool(value)


class FunctionNode(FunctionCtx, Node):
    """The node of one call of a `Function`; its `__dict__` holds what the user puts on the context."""

    accepts_missing = True
    _forward_cls: type[Function]

    output_count: int
    saved: tuple[SavedTensor | None, ...] | None
    positions: tuple[int, ...]  # of the tensors among the arguments
    argument_count: int
    input_layouts: tuple[Layout, ...]
    output_layouts: tuple[Layout | None, ...]

    def name(self) -> str:
        return type(self).__name__

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What `save_for_backward` was given; in `jvp`, what `save_for_forward` was given."""
        if self.seen_by_jvp is not None:
            return self.seen_by_jvp
        if self.saved is None:
            raise RuntimeError(FREED)
        return tuple([s.get(self) if s is not None else None for s in self.saved])

    def release(self) -> None:
        if self.saved:
            self.saved = None

    def apply(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        """Run the user's `backward` and check what it returns."""
        given = list(grads)
        if self.materialize_grads:
            for number, layout in enumerate(self.output_layouts):
                if given[number] is None and layout is not None:
                    given[number] = arithmetic.zeros(layout)
        found = _backward_of(self._forward_cls)(self, *given)
        return self._checked(found if isinstance(found, tuple) else (found,))

    def _checked(self, found: tuple) -> list[Tensor | None]:
        count = self.argument_count
        if len(found) > count and all(g is None for g in found[count:]):
            found = found[:count]
        if len(found) != count:
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients (expected {count}, got {len(found)})"
            )
        tensors = dict(zip(self.positions, range(len(self.positions))))
        results: list[Tensor | None] = [None] * len(self.positions)
        for position, grad in enumerate(found):
            if grad is None:
                continue
            place = tensors.get(position)
            if place is None:
                raise RuntimeError(
                    f"function {self.name()} returned a gradient different than None at position {position + 1}, but "
                    "the corresponding forward input was not a Variable"
                )
            if not isinstance(grad, Tensor):
                raise RuntimeError(f"expected Variable or None (got {type(grad).__name__})")
            if self.edges[place] is None:
                continue
            try:
                results[place] = fitted(grad, self.input_layouts[place])
            except ValueError as error:
                raise RuntimeError(
                    f"Function {self.name()} returned an invalid gradient at index {place} - {error}"
                ) from None
        return results


class Function:
    """An operator written by the user: subclass it, give it `forward` and `backward`, call `apply`.

        class Cube(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x * x

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 3 * x * x * grad

        y = Cube.apply(x)

    `forward(*args)` with `setup_context(ctx, inputs, output)` is the other form. A `jvp(ctx, *tangents)` beside or in place of
    `backward` is for forward mode.
    """

    _node_cls: type[FunctionNode]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        body = {"_forward_cls": cls, "__module__": cls.__module__}
        cls._node_cls = type(cls.__name__ + "Backward", (FunctionNode,), body)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            f"{self.__class__} should not be instantiated. Methods on autograd functions are all static, so you should "
            "invoke them on the class itself.",
            DeprecationWarning,
            stacklevel=2,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd "
            "function with static forward method."
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """The operator itself; nothing is recorded while it runs."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        """Keep on `ctx` what `backward` needs, where `forward` takes no context."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Gradients of the arguments of `forward` (None for what is no tensor) from those of its outputs."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
            "backward mode AD."
        )

    vjp = backward

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Tangents of the results of `forward` from those of its arguments (None for what is no tensor)."""
        raise NotImplementedError(
            "You must implement the jvp function for custom autograd.Function to use it with forward mode AD."
        )

    generate_vmap_rule = False  # whether `forward` and `backward` may be run under vmap themselves

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[Any, Any]:
        """(results, out_dims) for a batch: `info.batch_size` examples along axis `in_dims[i]` of argument i (None: shared)."""
        raise NotImplementedError("implement the vmap staticmethod to use the custom autograd.Function with vmap")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` on the arguments and record the call."""
        separate = cls.setup_context is not Function.setup_context
        if separate:
            args = _with_defaults(cls.forward, args, kwargs)
        elif kwargs:
            args = _in_order(cls, args, kwargs)
        if modes.tracer is not None:
            found = modes.tracer.call_function(cls, args)
            if found is not NotImplemented:
                return found
        if separate:
            return cls._recorded(args, lambda node: cls.forward(*args), lambda t: True)
        return cls._recorded(args, lambda node: cls.forward(node, *args), lambda t: True)

    @classmethod
    def _recorded(
        cls, args: tuple, run: Callable[[FunctionNode], Any], counts: Callable[[Tensor], bool]
    ) -> Any:
        """The results of `run(node)` as outputs of a node of this Function.

        counts: whether a tracked argument is one that this node is for (a function transform records its own wrappers)
        """
        separate = cls.setup_context is not Function.setup_context
        positions = tuple([i for i, a in enumerate(args) if isinstance(a, Tensor)])
        tensors = [args[i] for i in positions]
        node: FunctionNode = cls._node_cls.__new__(cls._node_cls)
        node.needs_input_grad = tuple([isinstance(a, Tensor) and a.layout.tracked and counts(a) for a in args])
        recorded = modes.grad and True in node.needs_input_grad
        node.edges = tuple([gradient_edge(t) if counts(t) else None for t in tensors]) if recorded else ()
        node.sequence = next(_sequence)
        node.attached = None
        node.positions = positions
        node.argument_count = len(args)
        node.input_layouts = tuple([t.layout for t in tensors])
        node.saved = ()

        before, modes.grad = modes.grad, False
        try:
            result = run(node)
            if separate:
                cls.setup_context(node, args, result)
        finally:
            modes.grad = before
        many = isinstance(result, tuple)
        outputs = _wrap_outputs(node, tensors, result if many else (result,), recorded)
        if recorded and modes.anomaly:
            node.trace = user_trace()
        return outputs if many else outputs[0]


def _backward_of(cls: type[Function]) -> Callable:
    """The user's `backward`, or `vjp`, which is another name for it."""
    has_backward = cls.backward is not Function.backward
    if has_backward and cls.vjp is not Function.vjp:
        raise RuntimeError(
            "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only implement "
            "one of them."
        )
    return cls.backward if has_backward else cls.vjp


def _with_defaults(function: Callable, args: tuple, kwargs: dict) -> tuple:
    """All arguments in order, with the defaults of `forward`'s signature."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args


def _in_order(cls: type[Function], args: tuple, kwargs: dict) -> tuple:
    """The arguments given, in the order of `forward`'s after `ctx`; none before the last given may be left out."""
    bound = inspect.signature(cls.forward).bind(None, *args, **kwargs)
    if bound.kwargs:
        missing = next((name for name in bound.signature.parameters if name not in bound.arguments), next(iter(bound.kwargs)))
        raise TypeError(
            f"{cls.__name__}.forward() missing required argument: '{missing}': arguments given by keyword to "
            f"{cls.__name__}.apply() leave none out before them, and are none that forward takes by keyword only"
        )
    return bound.args[1:]


def _wrap_outputs(node: FunctionNode, tensors: list[Tensor], raw: tuple, recorded: bool) -> tuple:
    """The results of `forward` as outputs of the node; what was saved is kept."""
    inputs = {id(t) for t in tensors}
    dirty = {id(t) for t in node.dirty}
    returned = {id(o) for o in raw}
    if not dirty <= returned:
        raise RuntimeError(
            "Some elements marked as dirty during the forward method were not returned as output. The inputs that are "
            "modified inplace must all be outputs of the Function."
        )
    constant = {id(t) for t in node.non_differentiable}
    for tensor in node.dirty:
        tensor.storage.version += 1  # as PyTorch: the write may have been behind our back (through NumPy, say)

    node.output_count = len(raw)
    outputs: list[Any] = []
    layouts: list[Layout | None] = []
    seen: set[int] = set()
    for number, tensor in enumerate(raw):
        if not isinstance(tensor, Tensor):
            outputs.append(tensor)
            layouts.append(None)
            continue
        tracked = recorded and id(tensor) not in constant and tensor.layout.dtype.kind in "fc"
        if id(tensor) in dirty:
            if tracked:
                _check_writable(tensor)
                rebase_history(tensor, node, number)
            output = tensor
        else:
            output = _fresh_output(tensor, tensors, id(tensor) in inputs, id(tensor) in seen or tensor.layout.tracked)
            if tracked:
                output.layout = output.layout.with_tracking(True)
                output.node = node
                output.output_number = number
        seen.add(id(tensor))
        outputs.append(output)
        layouts.append(output.layout.with_tracking(False))
    node.output_layouts = tuple(layouts)

    if recorded:
        numbers = {id(t): i for i, t in enumerate(raw) if id(t) not in inputs or id(t) in dirty}
        saved: list[SavedTensor | None] = []
        for kept in node.to_save:
            output_number = numbers.get(id(kept))
            if kept is None:
                saved.append(None)
            elif output_number is None:
                saved.append(SavedTensor(kept, None))
            else:
                saved.append(SavedTensor(outputs[output_number], output_number))
        node.saved = tuple(saved)
    node.to_save = node.dirty = node.non_differentiable = ()
    return tuple(outputs)


def _fresh_output(tensor: Tensor, inputs: list[Tensor], is_input: bool, foreign: bool) -> Tensor:
    """A tensor that the node may call its own: `forward`'s result, or an alias of it where others know it already."""
    shared = is_input or any(t.storage is tensor.storage for t in inputs)
    if shared:  # a view, which nobody may write to in place: the node hides how it came about
        source = tensor if is_input else next(t for t in inputs if t.storage is tensor.storage)
        offset = (tensor.ptr - source.ptr) // tensor.layout.dtype.itemsize
        view = make_view(source, tensor.layout.with_tracking(False), offset)
        view.origin = Origin.FUNCTION
        return view
    if foreign:
        return alias_of(tensor, False)
    if tensor.base is not None:  # a view of something that only `forward` saw: it may not be written over either
        tensor.origin = Origin.FUNCTION
    return tensor


def _check_writable(tensor: Tensor) -> None:
    target = tensor.base if tensor.base is not None else tensor
    if target.layout.tracked and target.node is None:
        kind = "a view of a leaf" if tensor.base is not None else "a leaf"
        raise RuntimeError(f"{kind} Variable that requires grad has been used in an in-place operation.")


class _OnceDifferentiable(Node):
    """Stands where a second derivative would flow through a backward that does not have one."""

    accepts_missing = True

    def apply(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")


def once_differentiable(backward: Callable) -> Callable:
    """Decorator of a `backward` that cannot be differentiated: doing so is an error instead of a wrong result."""

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        before, modes.grad = modes.grad, False
        try:
            found = backward(ctx, *grads)
        finally:
            modes.grad = before
        sources = [g for g in grads if isinstance(g, Tensor) and g.layout.tracked]
        if not before or not sources:
            return found
        many = isinstance(found, tuple)
        outputs = list(found) if many else [found]
        node = _OnceDifferentiable(tuple([gradient_edge(g) for g in sources]))
        node.output_count = len(outputs)
        for number, output in enumerate(outputs):
            if isinstance(output, Tensor) and output.layout.dtype.kind in "fc":
                alias = alias_of(output, True)
                alias.node = node
                alias.output_number = number
                outputs[number] = alias
        return tuple(outputs) if many else outputs[0]

    return wrapper
