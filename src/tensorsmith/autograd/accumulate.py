"""Accumulation into leaves: `leaf.grad += gradient`, by PyTorch's rules of ownership and layout."""

from __future__ import annotations

import sys
import threading

from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.autograd.hooks import call_tensor_hooks
from tensorsmith.core.layout import Layout, layout_of
from tensorsmith.core.views import Strided, covers_once
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor, alias_of

# Two threads may send gradients to one leaf. A lock per leaf would cost every leaf a slot; leaves share these.
_locks = tuple(threading.RLock() for _ in range(16))
_getrefcount = sys.getrefcount


def into_leaf(leaf: Tensor, grads: list[Tensor | None], hooks_ran: bool = False) -> None:
    """Run the hooks of a leaf on `grads[0]` and add it into `leaf.grad`.

    The gradient comes in the list that alone refers to it, so that a reference count tells whether it may be taken
    over: where nobody else has the tensor or its memory and it lies as the leaf does, it becomes `leaf.grad` itself;
    otherwise it is copied. A later gradient is added in place, or out of place while the backward is recorded.
    """
    if not leaf.layout.tracked:  # it was detached since
        return
    state = leaf.ensure_state()
    if state.hooks and not hooks_ran:
        grads[0] = call_tensor_hooks(state.hooks, grads[0])
    if grads[0] is not None:
        if grads[0].layout.level is not None and not modes.grad:
            grads[0] = grads[0].detach()  # without the tangent of a dual  # type: ignore[attr-defined]
        with _locks[(id(leaf) >> 7) & 15]:
            before = state.grad
            if before is None:
                state.grad = _owned(grads, leaf.layout)
            elif modes.grad:
                state.grad = arithmetic.add(before, grads[0])
            else:
                arithmetic.add_(before, grads[0])
    if state.post_hooks:
        for hook in list(state.post_hooks.values()):
            if (returned := hook(leaf)) is not None:
                raise TypeError(f"post accumulate grad hooks should return None, got '{type(returned).__name__}'")


def _owned(grads: list[Tensor | None], layout: Layout) -> Tensor:
    """The gradient as a tensor of its own with the leaf's strides: itself where possible, else a copy."""
    wanted = layout.with_tracking(False)
    if (
        not modes.grad
        # one reference from the list, one from the argument of getrefcount; the same for the storage's slot
        and _getrefcount(grads[0]) == 2
        and grads[0].layout is wanted  # type: ignore[union-attr]
        and grads[0].base is None  # type: ignore[union-attr]
        and _getrefcount(grads[0].storage) == 2  # type: ignore[union-attr]
    ):
        return grads[0]  # type: ignore[return-value]
    grad = grads[0]
    assert grad is not None
    copy = arithmetic.clone(grad, dense_like(layout))
    if copy.layout.tracked and not modes.grad:
        copy = alias_of(copy, False)
    return copy


def dense_like(layout: Layout) -> Layout:
    """The layout of a gradient for a leaf: the leaf's own where it is dense, else row-major; not tracked."""
    if layout.contiguous or covers_once(Strided(layout.shape, layout.strides)):
        return layout.with_tracking(False)
    return layout_of(layout.dtype, layout.shape, device=layout.device)
