"""The table of public operators: every function users call, where it lives and what it is made of.

    @public("reductions", out=True)
    def sum(input, dim=None, keepdim=False, *, dtype=None): ...

makes `ts.sum` and `Tensor.sum`, both with `out=`. The documentation page and the stub files are generated from the table.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, TypeVar

from tensorsmith.core.dtypes import as_dtype
from tensorsmith.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Public:
    """One public operator.

    name:      as users write it, without namespace
    namespace: "" for `ts.name`, "nn.functional", "special", "linalg"
    family:    the section it is documented in; `ops/__init__.py` says in which files a family is
    method:    whether it is also `Tensor.name`
    inplace:   whether `name_` exists
    kind:      "kernel" (compiled by us), "view", "library" (a NumPy routine), "composite" (of other operators)
    """

    name: str
    function: Callable[..., Any]
    family: str
    namespace: str = ""
    method: bool = True
    inplace: bool = False
    kind: str = "kernel"
    differentiable: bool = True
    aliases: tuple[str, ...] = field(default=())


TABLE: dict[str, Public] = {}


# PyTorch's names of arguments, where one function here makes several operators: ours -> PyTorch's.
_ARGUMENT_NAMES: dict[str, dict[str, str]] = {
    "mm": {"other": "mat2"}, "bmm": {"other": "mat2"}, "mv": {"other": "vec"}, "dot": {"other": "tensor"},
    "linalg.norm": {"A": "input"}, "linalg.matrix_norm": {"A": "input"}, "scalar_tensor": {"value": "s"},
    "result_type": {"tensor1": "tensor", "tensor2": "other"}, "unsafe_split": {"split_size_or_sections": "split_size"},
    "addmm_": {"first": "mat1", "second": "mat2"}, "addmv_": {"first": "mat", "second": "vec"},
    "addr_": {"first": "vec1", "second": "vec2"}, "addbmm_": {"first": "batch1", "second": "batch2"},
    "baddbmm_": {"first": "batch1", "second": "batch2"}, "heaviside_": {"other": "values"},
    "outer": {"other": "vec2"}, "heaviside": {"other": "values"}, "float_power": {"other": "exponent"},
    **dict.fromkeys(
        [f"special.{name}" for name in (
            "airy_ai", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0",
            *(f"{kind}chebyshev_polynomial_{letter}" for kind in ("", "shifted_") for letter in "tuvw"),
            "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
        )], {"input": "x"},
    ),
}  # fmt: skip


def _with_arguments_called(function: Any, names: dict[str, str]) -> Any:
    """The same function with other names of its arguments; nothing is added to a call."""
    code = function.__code__
    assert set(names) <= set(code.co_varnames[: code.co_argcount]), (function, names)
    code = code.replace(co_varnames=tuple([names.get(n, n) for n in code.co_varnames]))
    found = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    functools.update_wrapper(found, function)
    found.__kwdefaults__ = function.__kwdefaults__
    found.__annotations__ = {names.get(n, n): each for n, each in function.__annotations__.items()}
    del found.__wrapped__  # type: ignore[attr-defined]  # its signature is that of the code, with the new names
    return found


def public(
    family: str, *, name: str | None = None, namespace: str = "", method: bool = True, kind: str = "kernel",
    differentiable: bool = True, aliases: tuple[str, ...] = (), out: bool = False,
) -> Callable[[F], F]:  # fmt: skip
    """Enter a function into the table; with `out` it also takes `out=` (computed, then written over `out`)."""

    def enter(function: F) -> F:
        public_name = name or function.__name__.rstrip("_")
        key = f"{namespace}.{public_name}" if namespace else public_name
        if key in _ARGUMENT_NAMES:
            function = _with_arguments_called(function, _ARGUMENT_NAMES[key])
        renamed = _with_other_names(function)
        wrapped: Any = _with_out(function, key) if out else renamed
        TABLE[key] = Public(
            public_name, wrapped, family, namespace, method, False, kind, differentiable, tuple(aliases)
        )
        if method:
            for each in (public_name, *aliases):
                setattr(Tensor, each, renamed)  # methods take no `out`
        return wrapped

    return enter


def method(name: str | None = None) -> Callable[[F], F]:
    """Bind a function onto Tensor only."""

    def bind(function: F) -> F:
        setattr(Tensor, name or function.__name__, function)
        return function

    return bind


def inplace_method(name: str, function: Callable[..., Any]) -> None:
    """Bind the in-place form `name_` of a public operator."""
    found = TABLE.get(name)
    if found is not None:
        found.inplace = True
    if name + "_" in _ARGUMENT_NAMES:
        function = _with_arguments_called(function, _ARGUMENT_NAMES[name + "_"])
    setattr(Tensor, name + "_", function)


def _with_out(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            return function(*args)
        out = kwargs.pop("out", None)
        if renamed:
            kwargs = _pytorch_names(kwargs)
        if out is None:
            return function(*args, **kwargs)
        from tensorsmith.ops.out import run_into

        return run_into(name, function, args, kwargs, out)

    signature = inspect.signature(function)
    renamed = not {"dim", "dtype"}.isdisjoint(signature.parameters)
    parameters = list(signature.parameters.values())
    last = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    parameters.insert(last, inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None))
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapped


_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}


def _pytorch_names(keywords: dict[str, Any]) -> dict[str, Any]:
    """NumPy's names of `dim` and `keepdim`, which PyTorch takes too, as its own; and Python's float as a dtype."""
    if "dtype" in keywords:
        keywords["dtype"] = as_dtype(keywords["dtype"])
    for theirs, ours in _NUMPY_NAMES.items():
        if theirs in keywords:
            if ours in keywords:
                raise TypeError(f"got both {ours}= and {theirs}=, which mean the same")
            keywords[ours] = keywords.pop(theirs)
    return keywords


def _with_other_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that has `dim` also takes `axis` (and `keepdims`), one that has `dtype` also Python's classes of numbers."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    if {"dim", "dtype"}.isdisjoint(parameters) or "axis" in parameters or hasattr(function, "converts_dtype"):
        return function

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **_pytorch_names(kwargs)) if kwargs else function(*args)

    return wrapped


def namespace(prefix: str) -> dict[str, Callable[..., Any]]:
    """name -> function of one namespace, aliases included."""
    found: dict[str, Callable[..., Any]] = {}
    for entry in TABLE.values():
        if entry.namespace == prefix:
            for name in (entry.name, *entry.aliases):
                found[name] = entry.function
    return found


def need_tensor(operator: str, value: Any, argument: str = "input", position: int = 1) -> Tensor:
    """The value, or PyTorch's TypeError where it is no tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{operator}(): argument '{argument}' (position {position}) must be Tensor, not {type(value).__name__}"
        )
    return value
