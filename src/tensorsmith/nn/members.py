"""What belongs to a module: parameters, buffers and submodules, registered by assignment, and how to walk over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tensorsmith.nn.global_hooks import registered
from tensorsmith.nn.parameter import Buffer, Parameter
from tensorsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tensorsmith.nn.module import Module

_TABLES = ("_parameters", "_buffers", "_modules")


class Members:
    """The part of Module that keeps its tables of parameters, buffers and submodules.

    Assigning a Parameter, a Buffer or a Module to an attribute registers it; a plain tensor is an ordinary attribute,
    unless a buffer of that name exists. `module.name` looks into the tables when there is no ordinary attribute.
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent_buffers: set[str]

    def __init__(self) -> None:
        fill = self.__dict__.__setitem__  # past __setattr__, which needs the tables
        fill("training", True)
        for table in _TABLES:
            fill(table, {})
        fill("_non_persistent_buffers", set())

    # --- attributes -------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        try:
            return own["_parameters"][name]
        except KeyError:
            pass
        for table in ("_modules", "_buffers"):
            if table in own and name in own[table]:
                return own[table][name]
        if "_parameters" not in own and name != "_parameters":
            raise AttributeError(
                f"'{type(self).__name__}' object has no attribute '{name}': was super().__init__() called first in "
                f"{type(self).__name__}.__init__?"
            )
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if isinstance(value, Parameter):
            self._need_tables("parameters")
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
        elif name in own.get("_parameters", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{_type_name(value)}' as parameter '{name}' "
                    "(tensorsmith.nn.Parameter or None expected)"
                )
            own["_parameters"][name] = None
        elif isinstance(value, Members):
            self._need_tables("module")
            self._forget(name, "_modules")
            own["_modules"][name] = registered("module", self, name, value)
        elif name in own.get("_modules", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{_type_name(value)}' as child module '{name}' "
                    "(tensorsmith.nn.Module or None expected)"
                )
            own["_modules"][name] = registered("module", self, name, None)
        elif isinstance(value, Buffer):
            self._need_tables("buffers")
            self._forget(name, "_buffers")
            self.register_buffer(name, value, value.persistent)
        elif name in own.get("_buffers", ()):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"cannot assign '{_type_name(value)}' as buffer '{name}' "
                    "(tensorsmith.nn.Buffer, tensorsmith.Tensor or None expected)"
                )
            own["_buffers"][name] = registered("buffer", self, name, value)
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        for table in _TABLES:
            if name in self.__dict__.get(table, ()):
                del self.__dict__[table][name]
                self._non_persistent_buffers.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = [*object.__dir__(self), *(name for table in _TABLES for name in self.__dict__.get(table, ()))]
        return sorted({name for name in names if not name[:1].isdigit()})

    def _need_tables(self, what: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(
                f"cannot assign {what} before Module.__init__() call: call super().__init__() first in "
                f"{type(self).__name__}.__init__"
            )

    def _forget(self, name: str, kept: str) -> None:
        """Remove a name from wherever else it is, before it is registered in `kept` (where it keeps its position)."""
        own = self.__dict__
        own.pop(name, None)
        for table in _TABLES:
            if table != kept:
                own[table].pop(name, None)
        own["_non_persistent_buffers"].discard(name)

    # --- registration -----------------------------------------------------------------------------------------------

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter; None keeps the name without one (a layer without bias).

        Raises AttributeError before `super().__init__()`, KeyError for a name that is taken or cannot be an attribute,
        TypeError for anything but a Parameter, ValueError for a tensor that an operator made.
        """
        self._need_tables("parameter")
        self._check_name("parameter", name, self._parameters)
        if param is not None:
            if not isinstance(param, Parameter):
                raise TypeError(
                    f"cannot assign '{_type_name(param)}' object to parameter '{name}' "
                    "(tensorsmith.nn.Parameter or None required)"
                )
            if param.node is not None:
                raise ValueError(
                    f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be "
                    "created explicitly. "
                    f"To express '{name}' as a function of another Tensor, compute the value in the forward() method."
                )
            param = registered("parameter", self, name, param)
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is part of the state but not learned; a non-persistent one is not in `state_dict()`."""
        self._need_tables("buffer")
        self._check_name("buffer", name, self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{_type_name(tensor)}' object to buffer '{name}' (tensorsmith Tensor or None required)"
            )
        self._buffers[name] = registered("buffer", self, name, tensor)
        if persistent:
            self._non_persistent_buffers.discard(name)
        else:
            self._non_persistent_buffers.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule under a name."""
        if module is not None and not isinstance(module, Members):
            raise TypeError(f"{_type_name(module)} is not a Module subclass")
        self._need_tables("module")
        self._check_name("module", name, self._modules)
        self._modules[name] = registered("module", self, name, module)

    def register_module(self, name: str, module: Module | None) -> None:
        """Alias of `add_module`."""
        self.add_module(name, module)

    def _check_name(self, what: str, name: str, table: dict[str, Any]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{what} name can\'t contain "."' + (f", got: {name}" if what == "module" else ""))
        if name == "":
            raise KeyError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in table:
            raise KeyError(f"attribute '{name}' already exists")

    # --- walks ------------------------------------------------------------------------------------------------------

    def named_modules(
        self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(dotted name, module) of this module and everything below it; a module met twice is given once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self  # type: ignore[misc]
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and everything below it, each once, or as often as it is met."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the direct submodules, each module once."""
        memo = set()
        for name, module in self._modules.items():
            if module is not None and module not in memo:
                memo.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct submodules."""
        for _, module in self.named_children():
            yield module

    def _named_members(
        self, table: Callable[[Module], dict[str, Any]], prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        memo = set()
        owners = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in owners:
            for name, member in table(module).items():  # type: ignore[arg-type]
                if member is None or member in memo:
                    continue
                if remove_duplicate:
                    memo.add(member)
                yield (f"{path}.{name}" if path else name), member

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter), in the order of registration; a shared parameter is given once."""
        return self._named_members(lambda module: module._parameters, prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, for an optimiser."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(dotted name, buffer)."""
        return self._named_members(lambda module: module._buffers, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    # --- by dotted name ---------------------------------------------------------------------------------------------

    def get_submodule(self, target: str) -> Module:
        """The module of a dotted name ("" is this one). AttributeError where there is none."""
        module: Any = self
        for part in target.split(".") if target else ():
            if not hasattr(module, part):
                raise AttributeError(f"{type(module).__name__} has no attribute `{part}`")
            module = getattr(module, part)
            if not isinstance(module, Members):
                raise AttributeError(f"`{part}` is not an nn.Module")
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put a module in place of the one of a dotted name; strict: there must be one.

        Raises ValueError for an empty name or what is no module, AttributeError where the way there, or what is there, is no
        module.
        """
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Members):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{type(parent).__name__} has no attribute `{name}`")
        if not isinstance(getattr(parent, name, module), Members):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of a dotted name. AttributeError where there is none."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        found = getattr(module, name, None) if hasattr(module, name) else self._missing(module, name)
        if not isinstance(found, Parameter):
            raise AttributeError(f"`{name}` is not an nn.Parameter")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of a dotted name. AttributeError where there is none."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            self._missing(module, name)
        if name not in module._buffers:
            raise AttributeError(f"`{name}` is not a buffer")
        return module._buffers[name]  # type: ignore[return-value]

    @staticmethod
    def _missing(module: Any, name: str) -> Any:
        raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")


def _type_name(value: Any) -> str:
    kind = type(value)
    if issubclass(kind, Tensor):
        return f"tensorsmith.{kind.__name__}"
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
