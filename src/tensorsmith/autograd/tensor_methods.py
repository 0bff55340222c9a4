"""Methods and properties of Tensor that belong to autograd; the room of operators binds `METHODS` onto the class."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd import engine
from tensorsmith.autograd.backward import GradientEdge, _implicit_root, backward as run_backward
from tensorsmith.autograd.hooks import RemovableHandle, new_hooks, retain_on
from tensorsmith.autograd.node import Node, derive_view_node, tell_views
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor, alias_of


def backward(
    self: Tensor, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False,
    inputs: Tensor | GradientEdge | Sequence[Tensor | GradientEdge] | None = None,
) -> None:  # fmt: skip
    """Gradients of this tensor with respect to the leaves, added into their `grad` (see `ts.autograd.backward`)."""
    if gradient is None and inputs is None:  # the usual call, without another frame
        engine.run([_implicit_root(self, 0)], create_graph if retain_graph is None else retain_graph, create_graph)
        return
    run_backward(self, gradient, retain_graph, create_graph, inputs)


def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """`hook(grad)` whenever the gradient of this tensor is known; what it returns (not None) replaces it.

    Raises RuntimeError where the tensor needs no gradient.
    """
    if not self.layout.tracked:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    node = current_node(self)
    if node is None:
        state = self.ensure_state()
        if state.hooks is None:
            state.hooks = new_hooks()
        return RemovableHandle.register(state.hooks, hook)
    attached = node.attach()
    if attached.tensor_hooks is None:
        attached.tensor_hooks = {}
    hooks = attached.tensor_hooks.setdefault(self.output_number, new_hooks())
    return RemovableHandle.register(hooks, hook)


def register_post_accumulate_grad_hook(self: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """`hook(leaf)` after a backward has added into `leaf.grad`; leaves only."""
    if not self.layout.tracked:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if current_node(self) is not None:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    state = self.ensure_state()
    if state.post_hooks is None:
        state.post_hooks = new_hooks()
    return RemovableHandle.register(state.post_hooks, hook)


def retain_grad(self: Tensor) -> None:
    """Have the gradient of a tensor that is no leaf kept in its `grad`; nothing to do for a leaf."""
    if not self.layout.tracked:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    if self.node is None or current_node(self) is None:
        return
    state = self.ensure_state()
    if not state.retains_grad:
        state.retains_grad = True
        retain_on(self)


def current_node(tensor: Tensor) -> Node | None:
    """The node that made a tensor; derived anew for a view whose base was written in place."""
    if tensor.base is not None and tensor.layout.tracked and tensor.stamp != tensor.storage.version:
        derive_view_node(tensor)
    return tensor.node


def _get_grad(self: Tensor) -> Tensor | None:
    return self.state.grad if self.state is not None else None


def _set_grad(self: Tensor, grad: Tensor | None) -> None:
    if modes.tracer is not None:
        modes.tracer.note_grad_set(self)
    if grad is None:
        if self.state is not None:
            self.state.grad = None
        return
    if not isinstance(grad, Tensor):
        raise TypeError(f"assigned grad expected to be a Tensor or None but got grad of type {type(grad).__name__}")
    if grad is self:
        raise RuntimeError("can't assign Variable as its own grad")
    if grad.layout.dtype is not self.layout.dtype:
        raise RuntimeError(
            f"attempting to assign a gradient with dtype '{grad.layout.dtype.name}' to a tensor with dtype "
            f"'{self.layout.dtype.name}'. The gradient must match the tensor's dtype"
        )
    if grad.layout.shape != self.layout.shape:
        raise RuntimeError(
            f"attempting to assign a gradient of size '{list(grad.layout.shape)}' to a tensor of size "
            f"'{list(self.layout.shape)}'. Please ensure that the gradient and the tensor are the same size"
        )
    self.ensure_state().grad = grad


def _set_requires_grad(self: Tensor, value: bool) -> None:
    if self.node is not None:
        hint = "" if value else (
            " If you want to use a computed variable in a subgraph that doesn't require differentiation use "
            "var_no_grad = var.detach()."
        )  # fmt: skip
        raise RuntimeError(f"you can only change requires_grad flags of leaf variables.{hint}")
    requires_grad_(self, value)


def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Have autograd track this leaf, or not.

    Raises RuntimeError for a dtype that is not floating, and for a tensor that an operator made.
    """
    value = bool(requires_grad)
    if modes.tracer is not None:
        modes.tracer.note_requires_grad()
    if value and self.layout.dtype.kind not in "fc":
        raise RuntimeError("only Tensors of floating point dtype can require gradients")
    if not value and self.node is not None:
        raise RuntimeError(
            "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a "
            "subgraph that doesn't require differentiation use var_no_grad = var.detach()."
        )
    if self.base is not None:
        self.ensure_state().own = value
        value = value or self.base.layout.tracked
    if self.layout.tracked != value:
        self.layout = self.layout.with_tracking(value)
        if sys.getrefcount(self) > 2:  # the argument's and this frame's: there may be views
            tell_views(self)
    return self


def detach(self: Tensor) -> Tensor:
    """The same memory as a tensor that autograd does not track."""
    return alias_of(self, False)


def detach_(self: Tensor) -> Tensor:
    """Make this tensor a leaf that is not tracked. RuntimeError for a view, whose base would still be tracked."""
    if self.base is not None:
        raise RuntimeError(
            "Can't detach views in-place. Use detach() instead. If you are using DistributedDataParallel (DDP) for "
            "training, and gradient_as_bucket_view is set as True, gradients are views of DDP buckets, and hence "
            "detach_() cannot be called on these gradients."
        )
    self.layout = self.layout.with_tracking(False)
    self.node = None
    self.output_number = 0
    tell_views(self)
    return self


def _output_nr(self: Tensor) -> int:
    return self.output_number


METHODS: dict[str, Any] = {
    "backward": backward,
    "register_hook": register_hook,
    "register_post_accumulate_grad_hook": register_post_accumulate_grad_hook,
    "retain_grad": retain_grad,
    "retains_grad": property(lambda self: self.state is not None and self.state.retains_grad),
    "requires_grad": property(lambda self: self.layout.tracked, _set_requires_grad, doc="Whether autograd tracks it."),
    "requires_grad_": requires_grad_,
    "grad": property(_get_grad, _set_grad, lambda self: _set_grad(self, None), doc="The accumulated gradient."),
    "grad_fn": property(current_node, doc="The node that made this tensor; None for a leaf."),
    "output_nr": property(_output_nr),
    "detach": detach,
    "detach_": detach_,
}

__all__ = ["METHODS", "current_node"]
