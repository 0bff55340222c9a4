"""Hooks: registration, order of call, and what their results may be.

Hooks are kept in plain dicts by the number of their handle: insertion order is call order.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorsmith.autograd.saved import tensor_type_name
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tensorsmith.autograd.node import Attachments

_numbers = itertools.count()


class _Hooks(dict[int, Any]):
    """A dict that can be weakly referenced, so that a handle keeps nobody alive."""

    __slots__ = ("__weakref__",)


class RemovableHandle:
    """Takes a hook away again: `handle.remove()`, or `with handle: ...`."""

    __slots__ = ("id", "hooks", "__weakref__")

    def __init__(self, hooks: dict[int, Any]) -> None:
        self.id = next(_numbers)
        self.hooks: Any = weakref.ref(hooks)

    @staticmethod
    def register(hooks: dict[int, Any], hook: Any) -> RemovableHandle:
        """Put a hook into a dict of hooks made by `new_hooks`, and return its handle."""
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    def remove(self) -> None:
        """Forget the hook; a second call does nothing."""
        hooks = self.hooks()
        if hooks is not None:
            hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def new_hooks() -> dict[int, Any]:
    """An empty, ordered collection of hooks."""
    return _Hooks()


def hook_name(hook: Any) -> str:
    """How an error names a hook."""
    return getattr(hook, "__name__", type(hook).__name__)


def call_tensor_hooks(hooks: dict[int, Any], grad: Tensor | None) -> Tensor | None:
    """Run the hooks of a tensor on its gradient, each on the result of the one before.

    Raises TypeError where a hook returns something that is no tensor, RuntimeError where it changes shape or dtype.
    """
    for hook in list(hooks.values()):
        replaced = hook(grad)
        if replaced is not None:
            check_replacement(hook, grad, replaced)
            grad = replaced
    return grad


def check_replacement(hook: Any, before: Tensor | None, after: Any) -> None:
    """A hook may change a gradient's values, not what it is."""
    if not isinstance(after, Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(after).__name__}'")
    if before is None:
        return
    if after.layout.dtype is not before.layout.dtype:
        raise RuntimeError(
            f"hook '{hook_name(hook)}' has changed the type of value "
            f"(was {tensor_type_name(before.layout)} got {tensor_type_name(after.layout)})"
        )
    if after.layout.shape != before.layout.shape:
        raise RuntimeError(f"hook '{hook_name(hook)}' has changed the size of value")


def call_node_hooks(hooks: dict[int, Any], grads: tuple, others: tuple | None) -> tuple:
    """Run pre-hooks (`hook(grads)`) or, with the gradients of the outputs, hooks (`hook(grads, others)`) of a node."""
    for hook in list(hooks.values()):
        replaced = hook(grads) if others is None else hook(grads, others)
        if replaced is None:
            continue
        if others is None and isinstance(replaced, Tensor):
            replaced = (replaced,)  # PyTorch's pre-hooks may return a lone tensor
        if not isinstance(replaced, tuple | list):
            raise TypeError(f"expected tuple, but hook returned '{type(replaced).__name__}'")
        if len(replaced) != len(grads):
            raise RuntimeError(
                f"hook '{hook_name(hook)}' has returned an incorrect number of values "
                f"(got {len(replaced)}, but expected {len(grads)})"
            )
        for before, after in zip(grads, replaced):
            if after is not None:
                check_replacement(hook, before, after)
        grads = tuple(replaced)
    return grads


def run_tensor_hooks(attached: Attachments, grads: list[Tensor | None]) -> None:
    """Hooks of the tensors that a node made, then the gradients they retain; replaces in `grads`."""
    if attached.tensor_hooks is not None:
        for number, hooks in attached.tensor_hooks.items():
            grads[number] = call_tensor_hooks(hooks, grads[number])
    if attached.retained is not None:
        for number, reference in attached.retained.items():
            tensor = reference()
            grad = grads[number]
            if tensor is not None and grad is not None:
                retain(tensor, grad)


def retain(tensor: Tensor, grad: Tensor) -> None:
    """Keep the gradient of a tensor that is no leaf in its `grad`; a later one is added out of place."""
    from tensorsmith.autograd.arithmetic import arithmetic

    state = tensor.ensure_state()
    state.grad = grad if state.grad is None else arithmetic.add(state.grad, grad)


def retain_on(tensor: Tensor) -> None:
    """Have the node of a tensor retain its gradient (again, after an in-place operation gave it another node)."""
    attached = tensor.node.attach()
    if attached.retained is None:
        attached.retained = {}
    attached.retained[tensor.output_number] = weakref.ref(tensor)


def move_retained(tensor: Tensor, before: Any) -> None:
    """An in-place operation replaced node `before` of a tensor: a retained gradient follows, hooks stay behind."""
    if tensor.state is None or not tensor.state.retains_grad:
        return
    attached = before.attached if before is not None else None
    if attached is not None and attached.retained is not None:
        attached.retained = {n: kept for n, kept in attached.retained.items() if kept() is not tensor}
    retain_on(tensor)


class saved_tensors_hooks:  # noqa: N801 - PyTorch's name
    """While active, what nodes save goes through `pack_hook(tensor)`, and `unpack_hook(packed)` when it is needed."""

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        if modes.tracer is not None:
            modes.tracer.note_saved_hooks()
        if modes.saved_hooks_refused is not None:
            raise RuntimeError(modes.saved_hooks_refused)
        modes.saved_hooks = (*modes.saved_hooks, (self.pack_hook, self.unpack_hook))

    def __exit__(self, *exc: object) -> None:
        modes.saved_hooks = modes.saved_hooks[:-1]
