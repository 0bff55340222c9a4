"""Hooks of modules: what runs before and after `forward`, and in the backward pass through a module."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorsmith.autograd.hooks import RemovableHandle, new_hooks
from tensorsmith.eager.operator import Operator
from tensorsmith.nn import global_hooks
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tensorsmith.nn.module import Module


class ModuleHooks:
    """The hooks of one module, by kind. Hooks of `forward*` come with whether they take keyword arguments."""

    __slots__ = (
        "forward_pre", "forward", "backward_pre", "backward", "legacy", "state_pre", "state_post", "load_pre", "load_post",
        "compiled",
    )  # fmt: skip

    def __init__(self) -> None:
        self.forward_pre: dict[int, tuple[Callable, bool]] = new_hooks()
        self.forward: dict[int, tuple[Callable, bool, bool]] = new_hooks()  # hook, with kwargs, always called
        self.backward_pre: dict[int, Callable] = new_hooks()
        self.backward: dict[int, Callable] = new_hooks()
        self.legacy: dict[int, Callable] = new_hooks()  # of register_backward_hook
        self.state_pre: dict[int, Callable] = new_hooks()
        self.state_post: dict[int, Callable] = new_hooks()
        self.load_pre: dict[int, Callable] = new_hooks()
        self.load_post: dict[int, Callable] = new_hooks()
        self.compiled: Callable | None = None  # what `Module.compile` made, which runs in place of all this

    def __getstate__(self) -> dict[str, dict[int, Any]]:
        return {name: dict(getattr(self, name)) for name in self.__slots__ if name != "compiled"}

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


_NONE = ModuleHooks()


def call_with_hooks(module: Module, hooks: ModuleHooks | None, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`module.forward(*args, **kwargs)` between the hooks common to all modules and the module's own."""
    if hooks is None:
        hooks = _NONE
    called: set[int] = set()
    result = None
    try:
        for hook, with_kwargs in [*(h for _, h in global_hooks.calls("forward_pre")), *hooks.forward_pre.values()]:
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
        backward = _BackwardHooks(
            module,
            [*(h[0] for _, h in global_hooks.calls("backward")), *hooks.backward.values()],
            [*(h[0] for _, h in global_hooks.calls("backward_pre")), *hooks.backward_pre.values()],
        )
        if backward.hooks or backward.pre_hooks:
            args = backward.watch_inputs(args)
        result = module.forward(*args, **kwargs)
        for number, (hook, with_kwargs, _) in _after(hooks):
            called.add(number)
            changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            if changed is not None:
                result = changed
        if backward.hooks or backward.pre_hooks:
            result = backward.watch_outputs(result)
        legacy = [*(h[0] for _, h in global_hooks.calls("legacy")), *hooks.legacy.values()]
        if legacy:
            _watch_last_node(module, legacy, result)
        return result
    except Exception:
        for number, (hook, with_kwargs, always) in _after(hooks):
            if not always or number in called:
                continue
            try:
                hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            except Exception as error:
                warnings.warn(
                    "module forward hook with ``always_call=True`` raised an exception that was silenced as another error "
                    f"was raised in forward: {error}",
                    stacklevel=2,
                )
        raise


def _after(hooks: ModuleHooks) -> list[tuple[int, Any]]:
    return [*global_hooks.calls("forward"), *hooks.forward.items()]


def _watch_last_node(module: Module, hooks: list[Callable], result: Any) -> None:
    """Hooks of the older form, at the operator that made the (first) output."""
    while not isinstance(result, Tensor):
        found = result.values() if isinstance(result, dict) else result
        result = next(v for v in found if isinstance(v, Tensor) or not isinstance(result, dict))
    node = result.grad_fn
    if node is None:
        return
    for hook in hooks:
        node.register_hook(functools.partial(hook, module))


# All tensors go through one node, so that the gradients of all arrive together.
_same = Operator("module_boundary", lambda *tensors: tensors, node_name="BackwardHookFunction", shares=True)


class _BackwardHooks:
    """The backward hooks of one call of a module: `hook(module, grad_input, grad_output)`.

    A node that changes nothing stands before the module's inputs and one after its outputs. The latter sees grad_output
    and runs the pre-hooks; the former sees grad_input and runs the hooks. Where no input needs a gradient the hooks run
    at the outputs, with grad_input of None.
    """

    def __init__(self, module: Module, hooks: list[Callable], pre_hooks: list[Callable]) -> None:
        self.module = module
        self.hooks = hooks
        self.pre_hooks = pre_hooks
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
