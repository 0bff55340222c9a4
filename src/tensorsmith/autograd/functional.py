"""Functional transforms: `jacobian`, `hessian`, `vjp`, `jvp`, `hvp`, `vhp`, from backward alone.

A Jacobian-vector product comes from two backwards: g(u) = u^T J is linear in u, and its derivative along v is J v.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.autograd.backward import grad
from tensorsmith.autograd.memory import from_array
from tensorsmith.core.dtypes import DType
from tensorsmith.tensor.modes import enable_grad
from tensorsmith.tensor.tensor import Tensor

Tensors = Tensor | tuple[Tensor, ...]


def _as_tuple(values: Any, what: str, function: str) -> tuple[bool, tuple[Tensor, ...]]:
    """Whether several tensors were given, and they as a tuple."""
    many = isinstance(values, tuple | list)
    found = tuple(values) if many else (values,)
    for number, value in enumerate(found):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"The {what} given to {function} must be either a Tensor or a tuple of Tensors but the value at index "
                f"{number} has type {type(value)}."
            )
    return many, found


def _fresh(inputs: Sequence[Tensor], create_graph: bool) -> tuple[Tensor, ...]:
    """Inputs that can be differentiated for: part of the caller's graph where that is asked for, else detached."""
    found = []
    for tensor in inputs:
        if create_graph and tensor.layout.tracked:
            found.append(arithmetic.clone(tensor, tensor.layout))
        else:
            leaf = tensor.detach()
            leaf.layout = leaf.layout.with_tracking(True)
            found.append(leaf)
    return tuple(found)


def _finished(tensors: Sequence[Tensor | None], inputs: Sequence[Tensor], create_graph: bool) -> tuple[Tensor, ...]:
    """Zeros where there is no gradient; detached unless a graph was asked for."""
    found = []
    for tensor, like in zip(tensors, inputs):
        if tensor is None:
            tensor = arithmetic.zeros(like.layout.with_tracking(False))
        found.append(tensor if create_graph or not tensor.layout.tracked else tensor.detach())
    return tuple(found)


def _check_strict(found: Sequence[Any], strict: bool, function: str) -> None:
    if strict and any(t is None or (isinstance(t, Tensor) and not t.layout.tracked) for t in found):
        raise RuntimeError(
            f"{function}: an output or gradient does not depend on an input. This is not allowed in strict mode."
        )


def _vectors(v: Any, like: Sequence[Tensor], what: str, function: str) -> tuple[Tensor, ...]:
    """The given vectors, checked; one for a lone scalar."""
    if v is None:
        if len(like) != 1 or like[0].layout.numel != 1:
            raise RuntimeError(
                f"The vector v can only be None if the {what} is a single Tensor with a single element ({function})."
            )
        return (from_array(np.ones(like[0].layout.shape), like[0].layout.dtype),)
    found = _as_tuple(v, "v", function)[1]
    if len(found) != len(like):
        raise RuntimeError(f"v is a tuple of invalid length: should be {len(like)} but got {len(found)}.")
    for number, (vector, tensor) in enumerate(zip(found, like)):
        if vector.layout.shape != tensor.layout.shape:
            raise RuntimeError(
                f"Entry {number} in v has invalid size: should be {tensor.shape} but got {vector.shape}."
            )
    return found


def _run(
    func: Callable, inputs: Sequence[Tensor], function: str, scalar: bool = False
) -> tuple[bool, tuple[Tensor, ...]]:
    many, outputs = _as_tuple(func(*inputs), "outputs", function)
    if scalar and (many or outputs[0].layout.numel != 1):
        raise RuntimeError(f"The function given to {function} should return a single Tensor with a single element.")
    return many, outputs


def _grad(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor] | None, create_graph: bool = True
) -> tuple[Tensor | None, ...]:
    """`grad` from those outputs that depend on anything."""
    pairs = [(o, None if vectors is None else vectors[i]) for i, o in enumerate(outputs) if o.layout.tracked]
    if not pairs:
        return (None,) * len(inputs)
    return grad([o for o, _ in pairs], inputs, [v for _, v in pairs], create_graph=create_graph, retain_graph=True,
                allow_unused=True)  # fmt: skip


def _packed(many: bool, values: Sequence[Any]) -> Any:
    return tuple(values) if many else values[0]


@enable_grad()
def vjp(
    func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), v^T J): v has the shapes of the outputs and may be left out for a scalar."""
    many, given = _as_tuple(inputs, "inputs", "vjp")
    fresh = _fresh(given, create_graph)
    several, outputs = _run(func, fresh, "vjp")
    _check_strict(outputs, strict, "vjp")
    found = _grad(outputs, fresh, _vectors(v, outputs, "output", "vjp"), create_graph)
    _check_strict([g for g in found if g is None], strict, "vjp")
    values = _packed(several, _finished(outputs, outputs, create_graph))
    return values, _packed(many, _finished(found, given, create_graph))


@enable_grad()
def jvp(
    func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), J v): v has the shapes of the inputs and may be left out for a scalar."""
    _, given = _as_tuple(inputs, "inputs", "jvp")
    fresh = _fresh(given, create_graph)
    several, outputs = _run(func, fresh, "jvp")
    _check_strict(outputs, strict, "jvp")
    found = _push(outputs, fresh, _vectors(v, given, "input", "jvp"), create_graph)
    values = _packed(several, _finished(outputs, outputs, create_graph))
    return values, _packed(several, _finished(found, outputs, create_graph))


def _push(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor], create_graph: bool
) -> tuple[Tensor | None, ...]:
    """J v by two backwards."""
    duals = tuple(from_array(np.zeros(o.layout.shape), o.layout.dtype, tracked=True) for o in outputs)
    pulled = _grad(outputs, inputs, duals)
    kept = [(g, vector) for g, vector in zip(pulled, vectors) if g is not None]
    return _grad([g for g, _ in kept], duals, [vector for _, vector in kept], create_graph)


@enable_grad()
def vhp(
    func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), v^T H) for a scalar function."""
    many, given = _as_tuple(inputs, "inputs", "vhp")
    fresh = _fresh(given, create_graph)
    _, outputs = _run(func, fresh, "vhp", scalar=True)
    first = _grad(outputs, fresh, None)
    _check_strict(first, strict, "vhp")
    kept = [(g, vector) for g, vector in zip(first, _vectors(v, given, "input", "vhp")) if g is not None]
    found = _grad([g for g, _ in kept], fresh, [vector for _, vector in kept], create_graph)
    return _finished(outputs, outputs, create_graph)[0], _packed(many, _finished(found, given, create_graph))


@enable_grad()
def hvp(
    func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), H v) for a scalar function."""
    many, given = _as_tuple(inputs, "inputs", "hvp")
    fresh = _fresh(given, create_graph)
    _, outputs = _run(func, fresh, "hvp", scalar=True)
    first = _grad(outputs, fresh, None)
    _check_strict(first, strict, "hvp")
    vectors = _vectors(v, given, "input", "hvp")
    kept = [number for number, g in enumerate(first) if g is not None]
    pushed = iter(_push([first[i] for i in kept], fresh, vectors, create_graph))  # type: ignore[misc]
    found = [next(pushed) if g is not None else None for g in first]
    return _finished(outputs, outputs, create_graph)[0], _packed(many, _finished(found, given, create_graph))


@enable_grad()
def jacobian(
    func: Callable, inputs: Tensors, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The Jacobian of func: for each output and input a tensor of the output's shape followed by the input's.

    A lone tensor, a tuple over inputs, a tuple over outputs, or a tuple of tuples, as inputs and outputs are given.
    """
    if vectorize or strategy != "reverse-mode":
        raise NotImplementedError("jacobian: vectorize=True and forward mode are not implemented")
    many, given = _as_tuple(inputs, "inputs", "jacobian")
    fresh = _fresh(given, create_graph)
    several, outputs = _run(func, fresh, "jacobian")
    _check_strict(outputs, strict, "jacobian")
    rows = []
    for output in outputs:
        found: list[list[Tensor]] = [[] for _ in fresh]
        for index in np.ndindex(output.layout.shape):
            unit = np.zeros(output.layout.shape)
            unit[index] = 1
            grads = _grad([output], fresh, [from_array(unit, output.layout.dtype)], create_graph)
            _check_strict([g for g in grads if g is None], strict, "jacobian")
            for parts, part in zip(found, _finished(grads, fresh, create_graph)):
                parts.append(part)
        shape = output.layout.shape
        blocks = []
        for parts, tensor in zip(found, fresh):
            whole = (*shape, *tensor.layout.shape)
            blocks.append(arithmetic.stack(parts, whole) if parts else _empty(whole, tensor.layout.dtype))
        rows.append(_packed(many, blocks))
    return _packed(several, rows)


def _empty(shape: tuple[int, ...], dtype: DType) -> Tensor:
    return from_array(np.zeros(shape), dtype)


@enable_grad()
def hessian(
    func: Callable, inputs: Tensors, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The Hessian of a scalar function: the Jacobian of its gradient, a tensor or a tuple of tuples."""
    many, given = _as_tuple(inputs, "inputs", "hessian")

    def gradient(*args: Tensor) -> tuple[Tensor, ...]:
        _, outputs = _run(func, args, "hessian", scalar=True)
        found = _grad(outputs, args, None)
        _check_strict(found, strict, "hessian")
        return _finished(found, args, True)

    found = jacobian(gradient, tuple(given), create_graph, strict, vectorize, outer_jacobian_strategy)
    return found if many else found[0][0]


__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
