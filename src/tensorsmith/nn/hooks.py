"""Hooks of modules: what runs before and after `forward`, and in the backward pass through a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorsmith.autograd.hooks import RemovableHandle, new_hooks
from tensorsmith.eager.operator import Operator
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tensorsmith.nn.module import Module


class ModuleHooks:
    """The hooks of one module, by kind. Hooks of `forward*` come with whether they take keyword arguments."""

    __slots__ = (
        "forward_pre", "forward", "backward_pre", "backward", "state_pre", "state_post", "load_pre", "load_post",
    )  # fmt: skip

    def __init__(self) -> None:
        self.forward_pre: dict[int, tuple[Callable, bool]] = new_hooks()
        self.forward: dict[int, tuple[Callable, bool, bool]] = new_hooks()  # hook, with kwargs, always called
        self.backward_pre: dict[int, Callable] = new_hooks()
        self.backward: dict[int, Callable] = new_hooks()
        self.state_pre: dict[int, Callable] = new_hooks()
        self.state_post: dict[int, Callable] = new_hooks()
        self.load_pre: dict[int, Callable] = new_hooks()
        self.load_post: dict[int, Callable] = new_hooks()

    def __getstate__(self) -> dict[str, dict[int, Any]]:
        return {name: dict(getattr(self, name)) for name in self.__slots__}

    def __setstate__(self, state: dict[str, dict[int, Any]]) -> None:
        self.__init__()  # type: ignore[misc]
        for name, hooks in state.items():
            getattr(self, name).update(hooks)


def register(hooks: dict[int, Any], hook: Any, prepend: bool = False) -> RemovableHandle:
    """Add a hook after the others, or before them."""
    others = dict(hooks)
    handle = RemovableHandle.register(hooks, hook)
    if prepend:
        for number, other in others.items():
            del hooks[number]
            hooks[number] = other
    return handle


def call_with_hooks(module: Module, hooks: ModuleHooks, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`module.forward(*args, **kwargs)` between the module's hooks."""
    called: set[int] = set()
    result = None
    try:
        for hook, with_kwargs in list(hooks.forward_pre.values()):
            if with_kwargs:
                changed = hook(module, args, kwargs)
                if changed is not None:
                    if not isinstance(changed, tuple) or len(changed) != 2:
                        raise RuntimeError(
                            "forward pre-hook must return None or a tuple of (new_args, new_kwargs), "
                            f"but got {changed}."
                        )
                    args, kwargs = changed
            else:
                changed = hook(module, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        backward = _BackwardHooks(module, hooks) if hooks.backward or hooks.backward_pre else None
        if backward is not None:
            args = backward.watch_inputs(args)
        result = module.forward(*args, **kwargs)
        for number, (hook, with_kwargs, _) in list(hooks.forward.items()):
            called.add(number)
            changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            if changed is not None:
                result = changed
        return result if backward is None else backward.watch_outputs(result)
    except Exception:
        for number, (hook, with_kwargs, always) in list(hooks.forward.items()):
            if always and number not in called:
                hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
        raise


# All tensors go through one node, so that the gradients of all arrive together.
_same = Operator("module_boundary", lambda *tensors: tensors, node_name="BackwardHookFunction", shares=True)


class _BackwardHooks:
    """The backward hooks of one call of a module: `hook(module, grad_input, grad_output)`.

    A node that changes nothing stands before the module's inputs and one after its outputs. The latter sees grad_output
    and runs the pre-hooks; the former sees grad_input and runs the hooks. Where no input needs a gradient the hooks run
    at the outputs, with grad_input of None.
    """

    def __init__(self, module: Module, hooks: ModuleHooks) -> None:
        self.module = module
        self.hooks = list(hooks.backward.values())
        self.pre_hooks = list(hooks.backward_pre.values())
        self.grad_output: tuple[Tensor | None, ...] | None = None
        self.places: list[int] = []
        self.count = 0
        self.inputs_watched = False

    def watch_inputs(self, args: tuple) -> tuple:
        self.count = len(args)
        self.places = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
        watched, node = _through_node(list(args), self.places)
        if node is not None:
            self.inputs_watched = True
            node.register_hook(self._at_inputs)
        return tuple(watched)

    def watch_outputs(self, result: Any) -> Any:
        values = list(result) if isinstance(result, tuple) else [result]
        places = [i for i, x in enumerate(values) if isinstance(x, Tensor)]
        watched, node = _through_node(values, places)
        if node is None:
            return result

        def at_outputs(grads: tuple) -> tuple | None:
            full = self._spread(grads, places, len(values))
            for hook in self.pre_hooks:
                changed = hook(self.module, full)
                if changed is not None:
                    full = changed if isinstance(changed, tuple) else (changed,)
            self.grad_output = full
            if not self.inputs_watched:
                for hook in self.hooks:
                    if hook(self.module, self._spread((), [], self.count), full) is not None:
                        raise RuntimeError(
                            "backward hook for Modules where no input requires gradient should "
                            "always return None or None "
                            "for all gradients."
                        )
            return tuple(full[i] for i in places)

        node.register_prehook(at_outputs)
        if isinstance(result, tuple):
            return type(result)(*watched) if hasattr(result, "_fields") else tuple(watched)
        return watched[0]

    def _at_inputs(self, grads: tuple, _: tuple) -> tuple | None:
        if self.grad_output is None:
            return None  # a backward that does not start behind this module
        full = self._spread(grads, self.places, self.count)
        for hook in self.hooks:
            changed = hook(self.module, full, self.grad_output)
            if changed is None:
                continue
            changed = changed if isinstance(changed, tuple) else (changed,)
            if len(changed) != len(full):
                raise RuntimeError(
                    f"Backward hook returned an invalid number of grad_input, got {len(changed)}, but "
                    f"expected {len(full)}"
                )
            full = changed
        self.grad_output = None
        return tuple(full[i] for i in self.places)

    @staticmethod
    def _spread(grads: tuple, places: list[int], count: int) -> tuple[Tensor | None, ...]:
        full: list[Tensor | None] = [None] * count
        for place, grad in zip(places, grads):
            full[place] = grad
        return tuple(full)


def _through_node(values: list, places: list[int]) -> tuple[list, Any]:
    """The values with their tensors behind one identity node; no node where nothing is recorded."""
    tensors = [values[i] for i in places]
    if not modes.grad or not any(t.layout.tracked for t in tensors):
        return values, None
    behind = _same(*tensors)
    behind = (behind,) if isinstance(behind, Tensor) else behind
    node = next(t.node for t in behind if t.node is not None)
    for place, tensor in zip(places, behind):
        values[place] = tensor
    return values, node
