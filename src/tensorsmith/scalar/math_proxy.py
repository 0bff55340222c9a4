"""A copy of a function in which the `math` module takes traced values.

`math.exp(x)` calls float(x), which a symbolic number cannot answer. So lifting runs a copy whose globals, closure and
imports hold a stand-in for `math`: it calls the scalar function of the same name on symbolic arguments and the real
one on numbers. Plain Python functions that the function calls are copied likewise.
"""

import builtins
import functools
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

from tensorsmith.scalar import functions
from tensorsmith.scalar.lift_error import LiftError, is_ours, user_line


def _math_function(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """math.<name> that also takes traced values."""
    symbolic = _SYMBOLIC_MATH.get(name)

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(hasattr(arg, "_apply_") for arg in args):
            return real(*args, **kwargs)
        if symbolic is None:
            known = ", ".join(sorted(_SYMBOLIC_MATH))
            raise LiftError(f"math.{name} has no scalar function; those that have: {known}", *user_line())
        return symbolic(*args, **kwargs)

    return call


def _log(x: Any, base: Any = None) -> Any:
    return functions.log(x) if base is None else functions.div(functions.log(x), functions.log(base))


def _hypot(*coordinates: Any) -> Any:
    return functools.reduce(functions.hypot, coordinates, 0.0)


_SAME_NAME = (
    "exp exp2 expm1 log1p log2 log10 sqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh "
    "erf erfc lgamma floor ceil trunc fmod pow copysign nextafter isnan isinf isfinite"
).split()

_SYMBOLIC_MATH: dict[str, Callable[..., Any]] = {
    **{name: getattr(functions, name) for name in _SAME_NAME},
    "fabs": functions.abs,
    "log": _log,
    "hypot": _hypot,
    "degrees": lambda x: x * (180.0 / math.pi),
    "radians": lambda x: x * (math.pi / 180.0),
}


def _math_proxy() -> types.ModuleType:
    proxy = types.ModuleType("math", math.__doc__)
    for name in dir(math):
        content = getattr(math, name)
        if callable(content):
            content = _math_function(name, content)
            _PROXIED[id(getattr(math, name))] = content
        if not name.startswith("__"):
            setattr(proxy, name, content)
    return proxy


_PROXIED: dict[int, Callable[..., Any]] = {}  # by the id of math's own function, which lives as long as the process
_PROXY = _math_proxy()


def _import(name: str, *args: Any, **kwargs: Any) -> Any:
    return _PROXY if name == "math" else builtins.__import__(name, *args, **kwargs)


class Patching:
    """Copies of functions that see `math` replaced, also in the plain Python functions they call."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any]] = {}  # by id; the original is kept so that the id stays its own

    def callable(self, function: Any) -> Any:
        """The function, or a copy of it; partials and bound methods are taken apart."""
        if isinstance(function, functools.partial):
            return functools.partial(self.callable(function.func), *function.args, **function.keywords)
        if isinstance(function, types.MethodType):
            return types.MethodType(self.callable(function.__func__), function.__self__)
        if isinstance(function, types.BuiltinFunctionType):
            return _PROXIED.get(id(function), function)
        if isinstance(function, types.FunctionType):
            return self._copy(function)
        call = inspect.getattr_static(type(function), "__call__", None)
        if isinstance(call, types.FunctionType):
            return types.MethodType(self._copy(call), function)
        return function

    def _copy(self, function: types.FunctionType) -> types.FunctionType:
        if is_ours(function.__code__.co_filename):
            return function
        known = self._copies.get(id(function))
        if known is not None:
            return known[1]  # type: ignore[no-any-return]
        own_globals = dict(function.__globals__)
        own_globals["__builtins__"] = {**vars(builtins), "__import__": _import}
        names = function.__code__.co_freevars
        cells = dict(zip(names, function.__closure__ or (), strict=True))
        replaced: dict[str, types.CellType] = {}
        closure = tuple(self._cell(cell, replaced, name) for name, cell in cells.items())
        copy = types.FunctionType(
            function.__code__, own_globals, function.__name__, function.__defaults__, closure or None
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        self._copies[id(function)] = function, copy
        # Only now, with the copy known, may its surroundings lead back to it (recursion).
        for name, cell in replaced.items():
            cell.cell_contents = self._replacement(cells[name].cell_contents)
        for name in _names(function.__code__):
            if name in own_globals:
                own_globals[name] = self._replacement(own_globals[name])
        return copy

    def _cell(self, cell: types.CellType, replaced: dict[str, types.CellType], name: str) -> types.CellType:
        """The same cell, unless what it holds has to be replaced: then a new one, filled afterwards."""
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            return cell
        if content is math or isinstance(content, (types.FunctionType, types.BuiltinFunctionType)):
            replaced[name] = types.CellType()
            return replaced[name]
        return cell

    def _replacement(self, content: Any) -> Any:
        if content is math:
            return _PROXY
        if isinstance(content, (types.FunctionType, types.BuiltinFunctionType)):
            return self.callable(content)
        return content


def _names(code: types.CodeType) -> set[str]:
    """The global names a function or the functions inside it may look up."""
    names: set[str] = set()
    stack = [code]
    while stack:
        current = stack.pop()
        names.update(current.co_names)
        stack.extend(inner for inner in current.co_consts if isinstance(inner, types.CodeType))
    return names
