"""Hooks common to all modules: they run before a module's own.

They are meant for debugging and profiling. A module without hooks of its own looks at one dict, `CALLS`, and no further.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorsmith.autograd.hooks import RemovableHandle, new_hooks

CALLS: dict[int, tuple] = new_hooks()  # (kind, hook, ...): what runs around a call of a module
REGISTRATIONS: dict[str, dict[int, Callable]] = {"parameter": new_hooks(), "buffer": new_hooks(), "module": new_hooks()}


def calls(kind: str) -> list[tuple[int, tuple]]:
    """The hooks of one kind, with their numbers, in the order of registration; each a tuple (hook, flags...)."""
    return [(number, entry[1:]) for number, entry in CALLS.items() if entry[0] == kind]


def registered(what: str, module: Any, name: str, value: Any) -> Any:
    """A parameter, buffer or submodule after the hooks on its registration, each of which may replace it."""
    for hook in list(REGISTRATIONS[what].values()):
        replaced = hook(module, name, value)
        if replaced is not None:
            value = replaced
    return value


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """`hook(module, args)` before `forward` of every module; what it returns replaces args.

    >>> seen = []
    >>> with ts.nn.modules.module.register_module_forward_pre_hook(lambda module, args: seen.append(args[0].shape)):
    ...     y = ts.nn.ReLU()(ts.zeros(2, 3))
    >>> seen
    [tensorsmith.Size([2, 3])]
    """
    return RemovableHandle.register(CALLS, ("forward_pre", hook, False))


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """`hook(module, args, output)` after `forward` of every module; what it returns (not None) replaces the output.

    with_kwargs: `hook(module, args, kwargs, output)`; always_call: also when `forward` or another hook raises.
    """
    return RemovableHandle.register(CALLS, ("forward", hook, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """`hook(module, grad_output)` before the backward of every module; what it returns replaces grad_output."""
    return RemovableHandle.register(CALLS, ("backward_pre", hook))


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """`hook(module, grad_input, grad_output)` when the gradients of a module's inputs are known, for every module.

    Raises RuntimeError beside `register_module_backward_hook`.
    """
    _one_kind_only("legacy")
    return RemovableHandle.register(CALLS, ("backward", hook))


def register_module_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """The older form, at the last operator of every module: grad_input is what that operator's operands get.

    Raises RuntimeError beside `register_module_full_backward_hook`, which is the one to use.
    """
    _one_kind_only("backward")
    return RemovableHandle.register(CALLS, ("legacy", hook))


def register_module_parameter_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """`hook(module, name, parameter)` when any module gets a parameter; what it returns (not None) is registered instead."""
    return RemovableHandle.register(REGISTRATIONS["parameter"], hook)


def register_module_buffer_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """`hook(module, name, buffer)` when any module gets a buffer; what it returns (not None) is registered instead."""
    return RemovableHandle.register(REGISTRATIONS["buffer"], hook)


def register_module_module_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """`hook(module, name, submodule)` when any module gets a submodule; what it returns (not None) is registered instead."""
    return RemovableHandle.register(REGISTRATIONS["module"], hook)


def _one_kind_only(other: str) -> None:
    if calls(other):
        raise RuntimeError(
            "Cannot use both regular backward hooks and full backward hooks as a global Module hook. Please use only one of "
            "them."
        )
