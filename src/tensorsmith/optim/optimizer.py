"""Optimizer: parameter groups, state per parameter, and both as a state_dict in PyTorch's format."""

from __future__ import annotations

import functools
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

from tensorsmith.autograd.hooks import RemovableHandle, new_hooks
from tensorsmith.core.dtypes import float32
from tensorsmith.core.layout import layout_of
from tensorsmith.ir.graph import Node
from tensorsmith.nn.module import clear_grads
from tensorsmith.ops.creation import array_of, like_strides
from tensorsmith.tensor.modes import enable_grad, modes, no_grad
from tensorsmith.tensor.storage import storage_type
from tensorsmith.tensor.tensor import Tensor, make_tensor

Parameters = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class Optimizer:
    """Base class: subclasses define `step`.

    params: parameters, (name, parameter) pairs, or dicts with "params" and options of their own
    defaults: the options of groups that do not set them
    """

    like_parameter: tuple[str, ...] = ()  # entries of the state that have the parameter's shape, for checks at loading
    scalars: tuple[str, ...] = ()  # entries that are zero-dimensional tensors of their own dtype

    def __init__(self, params: Parameters, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
                f"{type(params).__module__}.{type(params).__name__}"
            )
        self.defaults = defaults
        self.state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        self._opt_called = False
        self._pre_hooks: dict[int, Any] = new_hooks()
        self._post_hooks: dict[int, Any] = new_hooks()
        self._saving_hooks: dict[int, Any] = new_hooks()  # before and after `state_dict`, `load_state_dict`
        self._saved_hooks: dict[int, Any] = new_hooks()
        self._loading_hooks: dict[int, Any] = new_hooks()
        self._loaded_hooks: dict[int, Any] = new_hooks()
        groups: list[Any] = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = _with_hooks(cls.__dict__["step"])  # type: ignore[method-assign]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters from their gradients; `closure` computes the loss anew, which is returned."""
        raise NotImplementedError(f"{type(self).__name__}.step")

    def choices(self) -> tuple:
        """What of the groups a compiled step is traced for: everything but the parameters and the rate."""
        return tuple(
            (name, value) for group in self.param_groups for name, value in group.items()
            if name not in ("params", "lr", "initial_lr") and isinstance(value, bool | int | float | str | tuple | None)
        )  # fmt: skip

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or (set_to_none=False) fill them with zeros."""
        for group in self.param_groups:
            clear_grads(group["params"], set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own.

        Raises TypeError for what is no dict or no tensor, ValueError for a non-leaf or a parameter it has already.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = dict(param_group)
        params = group["params"]
        if isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering "
                "of tensors in sets will "
                "change between runs. Please use a list instead."
            )
        entries = [params] if isinstance(params, Tensor) else list(params)
        names = [entry[0] for entry in entries if isinstance(entry, tuple)]
        if names and len(names) != len(entries):
            raise ValueError("all optimizer params should be with/without names. Some param names are missing")
        group["params"] = [entry[1] if isinstance(entry, tuple) else entry for entry in entries]
        if names:
            group["param_names"] = names
        for parameter in group["params"]:
            if not isinstance(parameter, Tensor):
                raise TypeError(
                    f"optimizer can only optimize Tensors, but one of the params is {type(parameter).__name__}"
                )
            if not parameter.is_leaf and not parameter.retains_grad:
                raise ValueError("can't optimize a non-leaf Tensor")
        for name, default in self.defaults.items():
            group.setdefault(name, default)
        if len(set(group["params"])) != len(group["params"]):
            warnings.warn("optimizer contains a parameter group with duplicate parameters", stacklevel=3)
        for other in self.param_groups:
            if ("param_names" in group) != ("param_names" in other):
                raise ValueError("all optimizer param groups should be with/without names")
            if not set(other["params"]).isdisjoint(group["params"]):
                raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(group)

    # --- hooks ------------------------------------------------------------------------------------------------------

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`hook(optimizer, args, kwargs)` before every step; (args, kwargs) that it returns replace them."""
        return RemovableHandle.register(self._pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`hook(optimizer, args, kwargs)` after every step."""
        return RemovableHandle.register(self._post_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """`hook(optimizer)` before `state_dict` collects."""
        return _registered(self._saving_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """`hook(optimizer, state_dict)` after `state_dict`; a dict that it returns replaces the result."""
        return _registered(self._saved_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """`hook(optimizer, state_dict)` with a shallow copy before it is loaded; a dict that it returns is loaded instead."""
        return _registered(self._loading_hooks, hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """`hook(optimizer)` after a state was loaded."""
        return _registered(self._loaded_hooks, hook, prepend)

    # --- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """{"state": {number: state}, "param_groups": [group with "params" as numbers]}."""
        for hook in list(self._saving_hooks.values()):
            hook(self)
        numbers: dict[int, int] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                numbers.setdefault(id(parameter), len(numbers))
        groups = []
        for group in self.param_groups:
            packed = {name: value for name, value in group.items() if name != "params"}
            packed["params"] = [numbers[id(parameter)] for parameter in group["params"]]
            groups.append(packed)
        state = {numbers[id(k)] if isinstance(k, Tensor) else k: v for k, v in self.state.items()}
        found: dict[str, Any] = {"state": state, "param_groups": groups}
        for hook in list(self._saved_hooks.values()):
            found = _replaced(found, hook(self, found))
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a `state_dict`, converted to the parameters' dtypes.

        Raises ValueError where groups, their sizes or the shapes of the state do not fit; nothing is then changed.
        """
        if self._loading_hooks:
            state_dict = dict(state_dict)
            for hook in list(self._loading_hooks.values()):
                state_dict = _replaced(state_dict, hook(self, state_dict))
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
            raise ValueError('an optimizer\'s state dict has the entries "state" and "param_groups"')
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError(
                f"loaded state dict has a different number of parameter groups: {len(saved)}, not "
                f"{len(self.param_groups)}"
            )
        parameter_of: dict[Any, Tensor] = {}
        for number, (old, new) in enumerate(zip(self.param_groups, saved)):
            if len(old["params"]) != len(new["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of optimizer's group: "
                    f"group {number} has {len(new['params'])} parameters, not {len(old['params'])}"
                )
            parameter_of.update(zip(new["params"], old["params"]))
        state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for key, entries in state_dict["state"].items():
            parameter = parameter_of.get(key)
            if parameter is None:
                state[key] = entries
            else:
                state[parameter] = {
                    name: self._adopt(f"state of parameter {key}, {name}", parameter, name, value)
                    for name, value in entries.items()
                }
        groups = []
        for old, new in zip(self.param_groups, saved):
            group = {name: deepcopy(value) for name, value in new.items() if name != "params"}
            group["params"] = old["params"]
            if "param_names" in old:
                group.setdefault("param_names", old["param_names"])
            for name, default in self.defaults.items():
                group.setdefault(name, default)
            groups.append(group)
        self._replace(state, groups)
        for hook in list(self._loaded_hooks.values()):
            hook(self)

    @no_grad()
    def _replace(self, state: defaultdict[Any, dict[str, Any]], groups: list[dict[str, Any]]) -> None:
        """New state and options, in the tensors and dicts there are where they fit: a compiled step refers to them."""
        for key, entries in state.items():
            before = self.state[key] if key in self.state else {}
            for name, value in entries.items():
                kept = before.get(name)
                if isinstance(value, Tensor) and isinstance(kept, Tensor) and kept.layout is value.layout:
                    entries[name] = kept.copy_(value)
        self.state = state
        for old, new in zip(self.param_groups, groups):
            old.clear()
            old.update(new)

    def _adopt(self, where: str, parameter: Tensor, name: str, value: Any) -> Any:
        """A copy of a saved state entry, in the dtype and on the device of its parameter."""
        if isinstance(value, Tensor):
            if name in self.like_parameter and value.shape != parameter.shape:
                raise ValueError(
                    f"loaded state dict does not fit: {where} has shape {tuple(value.shape)}, the parameter "
                    f"{tuple(parameter.shape)}"
                )
            with no_grad():
                if name == "step":  # counted by the host, wherever the parameters are
                    return value.detach().to("cpu", float32, copy=True)
                if name in self.scalars:  # in the parameter's dtype they would lose what the next steps build on
                    return value.detach().to("cpu", copy=True)
                floating = parameter.is_floating_point() or parameter.is_complex()
                return value.detach().to(parameter.device, parameter.dtype if floating else value.dtype, copy=True)
        if isinstance(value, dict):
            return {key: self._adopt(where, parameter, key, each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._adopt(where, parameter, name, each) for each in value]
        return deepcopy(value)

    def __getstate__(self) -> dict[str, Any]:
        own = dict(self.__dict__)
        own.update({name: dict(own[name]) for name in _HOOKS})
        return own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in _HOOKS:
            hooks = new_hooks()
            hooks.update(self.__dict__.get(name, {}))
            self.__dict__[name] = hooks

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name != "params"]
        return "\n".join([*lines, ")"])


_HOOKS = ("_pre_hooks", "_post_hooks", "_saving_hooks", "_saved_hooks", "_loading_hooks", "_loaded_hooks")


def _registered(hooks: dict[int, Any], hook: Callable[..., Any], prepend: bool) -> RemovableHandle:
    """A hook after the others, or before them."""
    handle = RemovableHandle.register(hooks, hook)
    if prepend:
        others = {number: other for number, other in hooks.items() if number != handle.id}
        hooks.clear()
        hooks.update({handle.id: hook, **others})
    return handle


def _replaced(before: Any, after: Any) -> Any:
    """What a hook returned, where it returned something."""
    return before if after is None else after


def _with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """A `step` without recording, between the optimiser's hooks; a closure is called with recording on."""
    if getattr(step, "has_hooks", False):
        return step

    @functools.wraps(step)
    def wrapped(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if self._pre_hooks:
            for hook in list(self._pre_hooks.values()):
                changed = hook(self, args, kwargs)
                if changed is not None:
                    if not isinstance(changed, tuple) or len(changed) != 2:
                        raise RuntimeError(
                            f"{hook} must return None or a tuple of (new_args, new_kwargs), but got {changed}."
                        )
                    args, kwargs = changed
        if modes.tracer is not None:
            modes.tracer.note_optimizer(self)
        with no_grad():
            result = step(self, *args, **kwargs)
        self._opt_called = True  # schedules warn where they step first
        if self._post_hooks:
            for hook in list(self._post_hooks.values()):
                hook(self, args, kwargs)
        return result

    wrapped.has_hooks = True  # type: ignore[attr-defined]
    return wrapped


def zeros_like(parameter: Tensor) -> Tensor:
    """State of zeros that lies as its parameter does; no kernel has to be found for every shape."""
    device = parameter.layout.device
    layout = layout_of(parameter.layout.dtype, parameter.layout.shape, like_strides(parameter), device=device)
    storage = storage_type(device).zeros(layout.extent * layout.dtype.itemsize)
    return make_tensor(layout, storage, storage.ptr)


def with_gradients(params: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that have a gradient."""
    return [p for p in params if p.state is not None and p.state.grad is not None]


def run_closure(closure: Callable[[], Any] | None) -> Any:
    """The loss of a closure, recorded; None without one."""
    if closure is None:
        return None
    with enable_grad():
        return closure()


def number_of(value: Any) -> float:
    """A hyperparameter, number or tensor of one element, as a Python float. TypeError for anything else."""
    if isinstance(value, str):
        raise TypeError(f"an optimizer's hyperparameters are numbers, got {value!r}")
    # Read from memory, not by item(): a step that is being compiled asks for it again at every run.
    return array_of(value).item() if isinstance(value, Tensor) else float(value)


def check_hyperparameter(name: str, value: Any, valid: bool) -> None:
    """ValueError where a hyperparameter is out of its range."""
    if not valid:
        raise ValueError(f"Invalid {name}: {value}")


def check_rate(lr: Any) -> None:
    """ValueError for a learning rate that is negative, not finite, or a tensor of several elements."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    check_hyperparameter("learning rate", lr, 0 <= number_of(lr) < math.inf)


def check_choices(optimizer: Optimizer, differentiable: bool, foreach: bool | None, fused: bool | None = None) -> None:
    """Refuse what cannot be: steps that are differentiated, and two ways of running at once."""
    if fused and differentiable:
        raise RuntimeError("`fused` does not support `differentiable`")
    if fused and foreach:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    if differentiable:
        raise NotImplementedError(
            f"{type(optimizer).__name__}: differentiable=True is not implemented: steps are not recorded; "
            "write the update with operators to differentiate through it"
        )


def direction(param: Node, grad: Node, weight_decay: Node, *, maximize: bool, decayed: bool) -> Node:
    """The gradient to follow: turned round to maximise, with the parameter's share where it decays."""
    grad = -grad if maximize else grad
    return grad + weight_decay * param if decayed else grad
