"""Where a function may look: closures, defaults, globals, objects, modules, and the functions that it may call.

What can be found from a function without running it is given to `Guards` before a trace. Of an object of the user's, of a
class and of a Python module only those entries count whose names occur in the code of some function that may be called; of
lists, dicts and sets all do.
"""

from __future__ import annotations

import dis
import enum
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tensorsmith.compile.guards import MISSING, Guards, is_plain
from tensorsmith.compile.source_lines import Line
from tensorsmith.tensor.tensor import Tensor

MOST_ELEMENTS = 256  # of a list, dict or set that are compared; of a longer one only the length
MOST_IN_ALL = 20_000
MOST_BYTES = 1 << 20  # of an array whose values are compared
_NEVER = ("tensorsmith", "builtins", "numpy")
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_TABLES = ("_parameters", "_buffers", "_modules")
_CALLED = ("__call__", "forward")  # what is called without its name in the code


class Reach:
    """One walk: what is found is guarded once."""

    def __init__(self, guards: Guards) -> None:
        self.guards = guards
        self._seen: dict[int, Any] = {}  # by id; they are kept alive, so that no other object gets the id
        self._names: dict[str, None] = dict.fromkeys(_CALLED)
        self._objects: list[tuple[str, Any, dict, set[str]]] = []  # by names: label, owner, namespace, names looked up
        self.optimizers: list[Any] = []  # that were found
        guards.stream(random.getstate, random.setstate, "the module random")
        guards.stream(np.random.get_state, np.random.set_state, "numpy.random")

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._seen

    def function(self, function: Any) -> None:
        """Everything from a function, a bound method, or an object that can be called."""
        self.visit("self" if isinstance(function, types.MethodType) else _name_of(function), function)
        self._settle()

    def value(self, name: str, value: Any) -> None:
        """Everything from a value: an object among the arguments, a module that is called."""
        if id(value) not in self._seen:
            self.visit(name, value)
            self._settle()

    def line_that_stores(self, name: str) -> str:
        """A line of a function that was found, which assigns what is called `name`; "" where none does."""
        for function in [each for each in self._seen.values() if isinstance(each, types.FunctionType)]:
            for line, instruction in _instructions(function.__code__):
                if instruction.opname.startswith("STORE_") and instruction.argval == name.rpartition(".")[2]:
                    return str(Line(function.__code__.co_filename, line))
        return ""

    # --- the walk ---------------------------------------------------------------------------------------------------

    def visit(self, name: str, value: Any) -> None:
        """Guard what can be found from a value; it itself is guarded where it was found."""
        if value is MISSING or is_plain(value) or id(value) in self._seen:
            return
        if isinstance(value, Tensor | enum.Enum | types.BuiltinFunctionType):
            return
        self._seen[id(value)] = value
        if hasattr(type(value), "__next__") and type(value).__module__ in ("builtins", "itertools"):
            raise NotImplementedError(
                f"compile: the function uses {name}, a {type(value).__name__}, whose next value would be taken once, while the "
                "function is traced; call next() outside of it and pass the value, or let it capture a list"
            )
        if isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.MethodType):
            self.visit(name, value.__self__)
            self.visit(name, value.__func__)
        elif isinstance(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self.visit(name, each)
        elif isinstance(value, classmethod | staticmethod):
            self.visit(name, value.__func__)
        elif isinstance(value, property | functools.cached_property):
            for accessor in (value.func,) if isinstance(value, functools.cached_property) else (value.fget, value.fset):
                self.visit(name, accessor)
        elif isinstance(value, type):
            if _is_walked(value.__module__):
                self._objects.append((name, value, {}, set()))
        elif isinstance(value, types.ModuleType):
            if _is_walked(value.__name__) and "-packages" not in (getattr(value, "__file__", None) or "-packages"):
                self._objects.append((name, value, value.__dict__, set()))
        elif isinstance(value, list | tuple | set | frozenset | deque | dict):
            self._visit_container(name, value)
        elif isinstance(value, np.ndarray):
            if value.nbytes <= MOST_BYTES and not value.dtype.hasobject:
                self.guards.array(lambda: value, name)
        elif isinstance(value, np.random.Generator):
            bits = value.bit_generator
            self.guards.stream(lambda: bits.state, functools.partial(setattr, bits, "state"), name)
        elif isinstance(value, np.random.RandomState):
            self.guards.stream(value.get_state, value.set_state, name)
        elif isinstance(value, random.Random):
            self.guards.stream(value.getstate, value.setstate, name)
        else:
            own = getattr(value, "__dict__", {})
            if "_parameters" in own and "_modules" in own:
                self._visit_module(value)
            elif "param_groups" in own:
                self._visit_optimizer(name, value)
            elif "specialisations" in own:  # another compiled function
                self.visit(name, value.function)
            else:
                self._visit_object(name, value)

    def _visit_function(self, function: types.FunctionType) -> None:
        if function.__module__ is not None and not _is_walked(function.__module__, function):
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            content = _content(cell)
            self.guards.ask(functools.partial(_content, cell), name, functools.partial(_fill, cell))
            if content is not MISSING:
                self.visit(name, content)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(f"a default of {function.__name__}", default)
        names = dict.fromkeys(_names(function.__code__))
        self._names.update(names)
        stores = _STORE_GLOBAL in function.__code__.co_code[::2]
        for name in names:
            found = function.__globals__.get(name, MISSING)
            if found is not MISSING or stores:
                self.guards.entry(function.__globals__, name, name)
                self.visit(name, found)

    def _visit_container(self, name: str, value: Any) -> None:
        if len(value) > MOST_ELEMENTS or self.guards.elements > MOST_IN_ALL:
            if not isinstance(value, tuple | frozenset):
                self.guards.measure(value, name)
            return
        if not isinstance(value, tuple | frozenset):
            self.guards.elements_of(value, name, f"{name}.{{key}}" if isinstance(value, dict) else "")
        for key, each in list(value.items()) if isinstance(value, dict) else [(None, each) for each in value]:
            self.visit(name if key is None else f"{name}.{key}", each)
        if isinstance(value, dict) and type(value).__module__ not in ("builtins", "collections"):
            self._visit_object(name, value)

    def _visit_module(self, module: Any) -> None:
        """A module of `nn`: its mode, what it holds, its hooks, its attributes, and those of all below."""
        own, guards, label = module.__dict__, self.guards, type(module).__name__
        for table in _TABLES:
            if table in own:
                guards.elements_of(
                    own[table], f"module structure: the parameters, buffers or submodules of {label}", keys=False
                )
        if any(_is_layer(base) for base in type(module).__mro__):
            guards.elements_of(own, f"the attributes of {label}", f"{label}.{{key}}", keys=False)
            for key, value in list(own.items()):
                if key not in _TABLES:
                    self.visit(f"{label}.{key}", value)
        else:
            guards.measure(own, f"the attributes of {label}", keys=True)
            guards.entry(own, "training", f"the mode of {label}")
            self._objects.append((label, module, own, {"training", *_TABLES}))
        hooks = own.get("_hooks")
        for kind in getattr(hooks, "__slots__", ()):
            if kind != "compiled":
                self._visit_container(f"the hooks of {label}", getattr(hooks, kind))
        if _is_walked(type(module).__module__):
            self.visit(label, type(module))
        for child in own.get("_modules", {}).values():
            self.visit(label, child)

    def _visit_optimizer(self, name: str, optimizer: Any) -> None:
        """One of ours says itself what it relies on; of the user's, the numbers of its groups are constants."""
        self.optimizers.append(optimizer)
        for kind in ("_pre_hooks", "_post_hooks"):
            self._visit_container(f"the hooks of {name}", getattr(optimizer, kind, {}))
        if _is_walked(type(optimizer).__module__):
            self._visit_container(f"{name}.param_groups", optimizer.param_groups)
            self._visit_object(name, optimizer)

    def _visit_object(self, name: str, value: Any) -> None:
        own = getattr(value, "__dict__", None)
        if type(value).__module__.partition(".")[0] in _NEVER:
            return
        if isinstance(own, dict):
            self.guards.measure(own, f"the attributes of {name}", keys=True)
        self._objects.append((name, value, own if isinstance(own, dict) else {}, set()))
        self.visit(name, type(value))

    def _settle(self) -> None:
        """Look up in objects, classes and Python modules every name that some code mentions, until nothing new is found."""
        before = (-1, -1)
        while before != (len(self._names), len(self._objects)):
            before = (len(self._names), len(self._objects))
            for label, owner, own, done in list(self._objects):
                whole = own if "vars" in self._names or "__dict__" in self._names else ()
                new = [key for key in (*self._names, *whole) if key not in done]
                done.update(new)
                for key in new:
                    self._look_up(label, owner, own, key)

    def _look_up(self, label: str, owner: Any, own: dict, key: str) -> None:
        if key in own:
            self.guards.entry(own, key, f"{label}.{key}")
            self.visit(f"{label}.{key}", own[key])
        elif isinstance(owner, type):
            for base in owner.__mro__:
                if key in base.__dict__ and _is_walked(base.__module__):
                    self.guards.ask(functools.partial(base.__dict__.get, key, MISSING), f"{base.__name__}.{key}")
                    self.visit(f"{base.__name__}.{key}", base.__dict__[key])
        elif isinstance(getattr(type(owner), key, None), types.MemberDescriptorType):  # a slot
            get: Callable[[], Any] = functools.partial(getattr, owner, key, MISSING)
            self.guards.ask(get, f"{label}.{key}", functools.partial(setattr, owner, key))
            self.visit(f"{label}.{key}", get())


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _is_walked(module: str, function: Any = None) -> bool:
    """Whether code of a Python module may be the user's; a decorated function counts as what it is made of."""
    root = module.partition(".")[0]
    if function is not None and function.__closure__:
        return root not in sys.stdlib_module_names
    return root not in _NEVER and root not in sys.stdlib_module_names


def _is_layer(kind: type) -> bool:
    """Whether a class is one of our modules with attributes of its own."""
    return kind.__module__.startswith("tensorsmith.") and kind.__name__ not in ("Module", "Members")


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return MISSING


def _fill(cell: types.CellType, value: Any) -> None:
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code, and functions defined in it, look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str) and constant.isidentifier():  # getattr(x, "name")
            yield constant
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _instructions(code: types.CodeType) -> Iterator[tuple[int, dis.Instruction]]:
    """The instructions of code, and of functions defined in it, with their lines."""
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        yield line, instruction
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)
