"""Public functions take PyTorch's argument names, in its order: those of one overload of the function at least."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

import tensorsmith as ts
from tensorsmith.ops.registry import TABLE, Public

torch = pytest.importorskip("torch")

# Prefix of PyTorch's schema names by namespace.
PREFIXES = {"": "", "special": "special_", "linalg": "linalg_"}
# What names a place in a machine, or a physical layout, of which there is one here.
_PLACE = {"layout", "pin_memory", "device", "non_blocking"}
# Functions of PyTorch that are written in Python: their arguments are not those of the schema of that name.
_IN_PYTHON = {"broadcast_shapes", "rrelu", "softplus", "split", "tensordot"}
_EITHER = {"linalg.vector_norm"}  # PyTorch takes `x` and `input`
# Arguments that PyTorch's Python functions call otherwise than its schemas, or do not have.
_RENAMED = {"self": "input"}


def schemas() -> dict[str, list[list[str]]]:
    """The argument names of every overload that is not an `out` form, by name."""
    found: dict[str, list[list[str]]] = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        names = [_RENAMED.get(a.name, a.name) for a in schema.arguments]
        generated = [a.name for a in schema.arguments if a.is_out]
        named_dims = any(a.name in ("dimname", "names") or "Dimname" in str(a.type) for a in schema.arguments)
        if space == "aten" and not generated and not named_dims:
            found.setdefault(name, []).append([n for n in names if n not in _PLACE])
    return found


SCHEMAS = schemas()


def accepted(function: Any) -> tuple[list[str], bool, bool]:
    """The names a function takes, in order, and whether it takes any number of positions or any names."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return names, any(p.kind is p.VAR_POSITIONAL for p in parameters), any(p.kind is p.VAR_KEYWORD for p in parameters)


def difference(entry: Public) -> str:
    """What keeps a function from taking the names of any overload; "" where one fits."""
    ours, positions, keywords = accepted(entry.function)
    missing = []
    for theirs in SCHEMAS[PREFIXES[entry.namespace] + entry.name]:
        absent = [n for n in theirs if n not in ours]
        if keywords or not absent or (positions and len(absent) == 1):
            return ""
        missing.append(absent)
    return f"{entry.namespace}.{entry.name}({', '.join(ours)}) lacks {min(missing, key=len)}".lstrip(".")


def has_schema(entry: Public) -> bool:
    """Whether the schema of its name is that of the function."""
    if entry.family == "custom" or entry.name in _IN_PYTHON or f"{entry.namespace}.{entry.name}" in _EITHER:
        return False
    return entry.namespace in PREFIXES and PREFIXES[entry.namespace] + entry.name in SCHEMAS


ENTRIES = [entry for entry in TABLE.values() if has_schema(entry)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.namespace}.{entry.name}".lstrip("."))
def test_pytorchs_argument_names(entry):
    assert not difference(entry)


# --- order and defaults -------------------------------------------------------------------------------------------------

# Two schemas of PyTorch are one function here and there: the argument is `indices_or_sections`.
_OF_TWO = {"tensor_split"}
METHODS = [
    name for name, found in sorted(vars(ts.Tensor).items())
    if name in SCHEMAS and callable(found) and not name.startswith("__") and hasattr(torch.Tensor, name)
    and name not in _OF_TWO | _IN_PYTHON
]  # fmt: skip


def against(function: Any, arguments: list[Any], method: bool) -> list[str]:
    """How names, order and defaults of a function differ from the arguments of one overload."""
    parameters = list(inspect.signature(function).parameters.values())
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return []  # it takes what it is given, and says itself what it does not know
    called = {p.name: p.default for p in parameters}
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given = [a for a in arguments if a.name not in _PLACE]
    names = [(a.name if method else _RENAMED.get(a.name, a.name)) for a in given]
    if method and "self" in names:
        called, positional = {"self": inspect.Parameter.empty, **dict(list(called.items())[1:])}, ["self", *positional[1:]]
        if names.index("self"):  # `x.where(condition, other)`: the method's tensor stands first all the same
            place = names.index("self")
            names, given = ["self", *names[:place], *names[place + 1 :]], [given[place], *given[:place], *given[place + 1 :]]
    absent = [name for name in names if name not in called]
    if absent:
        return [f"lacks {absent}"]
    found = []
    wanted = [name for name, a in zip(names, given) if not a.kwarg_only]
    if positional[: len(wanted)] != wanted:
        found.append(f"takes {positional} in order, not {wanted}")
    for name, a in zip(names, given):
        ours, theirs = called[name], a.default_value
        if a.has_default_value() and ours is inspect.Parameter.empty:
            found.append(f"has no default of {name}, which is {theirs!r}")
        elif isinstance(theirs, bool | int | float | str) and isinstance(ours, bool | int | float | str) and ours != theirs:
            found.append(f"has the default {name}={ours!r}, not {theirs!r}")
    return found


@functools.cache
def overloads() -> dict[str, list[list[Any]]]:
    """The arguments of all overloads that are not `out` forms, by name."""
    found: dict[str, list[list[Any]]] = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space == "aten" and not any(a.is_out for a in schema.arguments):
            found.setdefault(name, []).append(list(schema.arguments))
    return found


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.namespace}.{entry.name}".lstrip("."))
def test_order_and_defaults_of_functions(entry):
    each = [against(entry.function, arguments, False) for arguments in overloads()[PREFIXES[entry.namespace] + entry.name]]
    assert entry.name in _OF_TWO or [] in each, min(each, key=len)


@pytest.mark.parametrize("name", METHODS)
def test_names_order_and_defaults_of_methods(name):
    each = [against(vars(ts.Tensor)[name], arguments, True) for arguments in overloads()[name]]
    assert [] in each, min(each, key=len)


def test_a_difference_is_seen():
    arguments = next(a for a in overloads()["cumsum"] if "dim" in [x.name for x in a])
    assert against(lambda input, dim, *, dtype=None: None, arguments, False) == []
    assert against(lambda input, axis, *, dtype=None: None, arguments, False) == ["lacks ['dim']"]
    assert "in order" in against(lambda dim, input, *, dtype=None: None, arguments, False)[0]
    assert "default" in against(lambda input, dim, *, dtype: None, arguments, False)[0]


def test_names_are_those_of_calls_too():
    x, v = ts.ones(2, 2), ts.ones(2)
    assert ts.mm(x, mat2=x).shape == x.mm(mat2=x).shape == (2, 2)
    assert ts.mv(x, vec=v).tolist() == [2.0, 2.0] and ts.dot(v, tensor=v).item() == 2.0
    assert ts.pow(x, exponent=2).shape == (2, 2) and ts.heaviside(v, values=v).tolist() == [1.0, 1.0]
    assert ts.addmm(v, mat1=x, mat2=x, beta=0).shape == (2, 2)
    with pytest.raises(TypeError):
        ts.mm(x, other=x)


def test_numpys_names_of_dim_and_keepdim():
    x = ts.ones(2, 3)
    assert ts.sum(x, axis=1, keepdims=True).shape == (2, 1)
    assert x.amax(axis=0).shape == (3,)


if __name__ == "__main__":
    for each in ENTRIES:
        if difference(each):
            print(difference(each))
