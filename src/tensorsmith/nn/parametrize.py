"""Parametrizations: a parameter or buffer that is a function of another tensor, which is what is learned.

    register_parametrization(layer, "weight", Symmetric())     # layer.weight is Symmetric()(original) from now on

`layer.parametrizations.weight` holds the functions (modules) and `original`, or `original0`, `original1`, ... where the first
function's `right_inverse` gives several tensors. Reading `layer.weight` computes it; assigning to it goes through
`right_inverse`, the last function first.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorsmith.nn.containers import ModuleDict, ModuleList
from tensorsmith.nn.module import Module
from tensorsmith.nn.parameter import Parameter
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor

_cache: dict[tuple[int, str], Any] = {}
_caching = 0


@contextmanager
def cached() -> Iterator[None]:
    """Within it every parametrized tensor is computed once, when it is first read."""
    global _caching
    _caching += 1
    try:
        yield
    finally:
        _caching -= 1
        if not _caching:
            _cache.clear()


def _register(module: Module, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _inverse(function: Module, value: Any) -> Any:
    """`function.right_inverse(value)`; None stands for a function that has none."""
    if not hasattr(function, "right_inverse"):
        return None
    try:
        return function.right_inverse(value)
    except NotImplementedError:
        return None


def _same_kind(what: str, before: Tensor, after: Any) -> None:
    """A parametrization keeps dtype and shape."""
    if not isinstance(after, Tensor):
        raise ValueError(f"{what} must return a tensor. Got {type(after).__name__}.")
    for name, a, b in (("dtype", before.dtype, after.dtype), ("shape", before.shape, after.shape)):
        if a != b:
            raise ValueError(
                f"Registering a parametrization may not change the {name} of the tensor, unless `unsafe` flag is enabled: "
                f"{what} makes {a} to {b}"
            )


class ParametrizationList(ModuleList):
    """The functions of one parametrized tensor, and the tensors that they start from. Made by `register_parametrization`."""

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        shape_and_dtype = original.detach()
        with no_grad():
            new: Any = original
            for function in reversed(list(self)):
                found = _inverse(function, new)
                new = new if found is None else found
        if not isinstance(new, Tensor | Sequence):
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                f"Got {type(new).__name__}"
            )
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if isinstance(new, Tensor) else len(new)
        if isinstance(new, Tensor):
            if new.dtype is not original.dtype:
                raise ValueError(
                    f"When `right_inverse` outputs one tensor, it may not change the dtype: {original.dtype} to {new.dtype}"
                )
            if new is not original:
                original.data = new.detach()
            _register(self, "original", original)
        else:
            for i, each in enumerate(new):
                if not isinstance(each, Tensor):
                    raise ValueError(
                        "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). Got element "
                        f"{i} of the sequence with type {type(each).__name__}."
                    )
                tracked = original.requires_grad
                _register(self, f"original{i}", Parameter(each, tracked) if isinstance(original, Parameter) else each)
        if not unsafe:
            _same_kind("A parametrization", shape_and_dtype, self())

    @no_grad()
    def right_inverse(self, value: Tensor) -> None:
        """Have the originals be such that the parametrized tensor is `value`.

        Raises RuntimeError for a function without `right_inverse`, ValueError for what does not fit the originals.
        """
        found: Any = value
        for function in reversed(list(self)):
            if not hasattr(function, "right_inverse"):
                raise RuntimeError(f"parametrization {type(function).__name__} does not implement right_inverse.")
            found = function.right_inverse(found)
        if self.is_tensor:
            parts = {"original": found}
        else:
            if not isinstance(found, Sequence) or len(found) != self.ntensors:
                count = f" of length {len(found)}" if isinstance(found, Sequence) else ""
                raise ValueError(
                    f"'right_inverse' must return a sequence of tensors of length {self.ntensors}. Got a "
                    f"{type(found).__name__}{count}."
                )
            parts = {f"original{i}": each for i, each in enumerate(found)}
        for name, each in parts.items():
            own = getattr(self, name)
            if not isinstance(each, Tensor):
                raise ValueError(f"`right_inverse` should return a tensor. Got {type(each).__name__}")
            if each.dtype is not own.dtype:
                raise ValueError(
                    f"The tensor returned by `right_inverse` has dtype {each.dtype} while `{name}` has dtype {own.dtype}"
                )
            if each is not own:
                own.data = each.detach().clone()

    def forward(self) -> Any:
        first, *others = list(self)
        if self.is_tensor:
            x = first(self.original)
        else:
            x = first(*(getattr(self, f"original{i}") for i in range(self.ntensors)))
        for function in others:
            x = function(x)
        return x


def _deepcopy(module: Any, memo: dict[int, Any]) -> Any:
    """A copy with a class of its own, so that removing its parametrizations leaves the other's."""
    if id(module) in memo:
        return memo[id(module)]
    base: Any = type(module).__bases__[0]
    replica = memo[id(module)] = base.__new__(base)
    replica.__dict__.update(copy.deepcopy(module.__dict__, memo))
    _parametrized_class(replica, list(replica.parametrizations))
    return replica


def _no_pickle(module: Any) -> Any:
    raise RuntimeError(
        "Serialization of parametrized modules is only supported through state_dict(): save that, make the module anew, "
        "register its parametrizations and load the state"
    )


def _property(name: str) -> property:
    def read(self: Any) -> Any:
        if not _caching:
            return self.parametrizations[name]()
        found = _cache.get((id(self), name))
        if found is None:
            found = _cache[id(self), name] = self.parametrizations[name]()
        return found

    def write(self: Any, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    return property(read, write)


def _parametrized_class(module: Module, names: Sequence[str]) -> None:
    """Give a module a class of its own, a subclass of the one it has, with a property for every name."""
    base: Any = type(module)
    members: dict[str, Any] = {name: _property(name) for name in names}
    members |= {"__deepcopy__": _deepcopy, "__reduce_ex__": lambda self, protocol: _no_pickle(self)}
    made: Any = types.new_class(f"Parametrized{base.__name__}", (base,), {}, lambda body: body.update(members))
    module.__class__ = made


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Have a parameter or buffer of a module be `parametrization` of what it was; the module is returned.

    parametrization: a module; with `right_inverse(value)` it can also be assigned to, and starts at the value it has.
    Registered a second time for the same tensor, it is applied to the result of the first.
    unsafe: dtype and shape may change, and nothing is checked.
    Raises ValueError for a name that the module does not have, and for a function that changes dtype or shape.

    >>> class Positive(ts.nn.Module):
    ...     def forward(self, x):
    ...         return x.exp()
    >>> layer = ts.nn.utils.parametrize.register_parametrization(ts.nn.Linear(2, 1), "weight", Positive())
    >>> bool((layer.weight > 0).all()), [name for name, _ in layer.named_parameters()]
    (True, ['bias', 'parametrizations.weight.original'])
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        held = module.parametrizations[tensor_name]
        if not unsafe:
            own = getattr(module, tensor_name)
            changed = parametrization(own)
            _same_kind("A parametrization", own, changed)
            back = _inverse(parametrization, changed)
            if back is not None:
                _same_kind("parametrization.right_inverse", own, back)
        held.append(parametrization)
        held.unsafe = held.unsafe or unsafe
    elif tensor_name in module._buffers or tensor_name in module._parameters:
        held = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe)
        delattr(module, tensor_name)
        if is_parametrized(module):
            setattr(type(module), tensor_name, _property(tensor_name))
        else:
            _parametrized_class(module, [tensor_name])
            module.parametrizations = ModuleDict()
        module.parametrizations[tensor_name] = held
    else:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name '{tensor_name}'"
        )
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has a parametrized tensor, or one of this name."""
    found = module._modules.get("parametrizations")
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Have a tensor be an ordinary parameter or buffer again: with its parametrized value, or the original one.

    Raises ValueError for a tensor that is not parametrized, and where there are several originals and
    leave_parametrized=False.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    held = module.parametrizations[tensor_name]
    if held.is_tensor:
        original = held.original
        if leave_parametrized:
            with no_grad():
                original.data = getattr(module, tensor_name).detach().clone()
    elif leave_parametrized:
        value = getattr(module, tensor_name)
        original = Parameter(value.detach()) if value.requires_grad else value
    else:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a sequence "
            "of tensors."
        )
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    _register(module, tensor_name, original)
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module).__bases__[0]
    return module


def type_before_parametrizations(module: Module) -> type:
    """The class that a module had before its first parametrization."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Register the parametrizations of one module, or of one tensor of it, with another, over the same originals."""
    if is_parametrized(from_module):
        for name in list(from_module.parametrizations) if tensor_name is None else [tensor_name]:
            held = from_module.parametrizations[name]
            if not hasattr(to_module, name):
                setattr(to_module, name, Parameter(getattr(from_module, name).detach()))
            for function in held:
                register_parametrization(to_module, name, function, unsafe=held.unsafe)
            for own in ["original"] if held.is_tensor else [f"original{i}" for i in range(held.ntensors)]:
                setattr(to_module.parametrizations[name], own, getattr(held, own))
    return to_module
