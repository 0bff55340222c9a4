"""`register_multi_grad_hook`: one hook for the gradients of several tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd.engine import BackwardCall
from tensorsmith.autograd.hooks import RemovableHandle
from tensorsmith.autograd.node import gradient_edge
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


class MultiHandle:
    """Takes the hook away from every tensor: `handle.remove()`, or `with handle: ...`."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self.handles = tuple(handles)

    def remove(self) -> None:
        """Forget the hook; a second call does nothing."""
        for handle in self.handles:
            handle.remove()

    def __enter__(self) -> MultiHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[..., None], *, mode: str = "all"
) -> MultiHandle:  # fmt: skip
    """One hook for the gradients of several tensors, called once in every backward call that reaches them.

    mode: "all": `fn(gradients)` when every gradient that this call computes is known; None in the list for a tensor that it
        does not reach. "any": `fn(gradient)` with the first one.
    Raises ValueError for another mode, RuntimeError for a tensor that needs no gradient.

        >>> a, b = ts.ones(2, requires_grad=True), ts.ones(2, requires_grad=True)
        >>> handle = ts.autograd.graph.register_multi_grad_hook((a, b), lambda grads: print(len(grads)))
        >>> (a * b).sum().backward()
        2
    """
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    edges = [gradient_edge(tensor) for tensor in tensors]
    if any(edge is None for edge in edges):
        raise RuntimeError("register_multi_grad_hook: every tensor must require a gradient")
    lock = threading.Lock()
    waiting: dict[int, tuple[BackwardCall, list[Any], list[int]]] = {}
    seen: list[BackwardCall | None] = [None]

    def first(grad: Tensor) -> None:
        call = modes.backwards[-1]
        with lock:
            if seen[0] is call:
                return
            seen[0] = call
        fn(grad)

    def hook_of(number: int) -> Callable[[Tensor], None]:
        def hook(grad: Tensor) -> None:
            call = modes.backwards[-1]
            with lock:
                found = waiting.get(id(call))
                if found is None or found[0] is not call:
                    reached = call.reached()
                    expected = sum(edge is not None and edge[0] in reached for edge in edges)
                    waiting.clear()  # an earlier call that failed half-way
                    found = waiting[id(call)] = (call, [None] * len(edges), [expected])
                _, grads, left = found
                grads[number] = grad
                left[0] -= 1
                if left[0]:
                    return
                del waiting[id(call)]
            fn(grads)

        return hook

    hooks = [first if mode == "any" else hook_of(number) for number in range(len(edges))]
    return MultiHandle([tensor.register_hook(hook) for tensor, hook in zip(tensors, hooks)])  # type: ignore[attr-defined]
