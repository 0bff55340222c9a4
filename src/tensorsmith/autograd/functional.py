"""Functional transforms: `jacobian`, `hessian`, `vjp`, `jvp`, `hvp`, `vhp`, with the API of `torch.autograd.functional`.

They are written with backward. A Jacobian-vector product comes from two backwards: g(u) = u^T J is linear in u, and its
derivative along v is J v. Jacobians also come column by column in forward mode, and batched (`vectorize`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.autograd import forward_ad
from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.autograd.backward import grad
from tensorsmith.autograd.memory import from_array
from tensorsmith.autograd.strictness import as_tuple, check_scalar, check_tracked, check_vectors, filled
from tensorsmith.autograd.transforms import transforms
from tensorsmith.core.layout import Layout
from tensorsmith.tensor.modes import enable_grad, modes, set_grad_enabled
from tensorsmith.tensor.tensor import Tensor

Tensors = Tensor | tuple[Tensor, ...]

_OUTPUTS = "outputs of the user-provided function"


def _fresh(inputs: Sequence[Tensor], create_graph: bool, tracked: bool = True) -> tuple[Tensor, ...]:
    """Tensors of our own: part of the caller's graph where that is asked for, else detached."""
    return tuple(
        [
            x.view(x.layout.shape) if create_graph and x.layout.tracked else x.detach().requires_grad_(tracked)  # type: ignore[attr-defined]
            for x in inputs
        ]
    )


def _finished(tensors: Sequence[Tensor], create_graph: bool) -> tuple[Tensor, ...]:
    """Detached, unless a graph was asked for."""
    return tuple(tensors) if create_graph else tuple([t.detach() for t in tensors])


def _given_vectors(v: Any, like: Sequence[Tensor], many: bool, function: str, create_graph: bool, what: str) -> Any:
    """The given vectors, checked; None for a lone scalar."""
    if v is None:
        if len(like) != 1 or like[0].layout.numel != 1:
            raise RuntimeError(f"The vector v can only be None if {what} a single Tensor with a single element.")
        return None
    vectors = _fresh(as_tuple(v, "v", function)[1], create_graph, False)
    check_vectors(vectors, like, many)
    return vectors


_FOR_INPUTS = "the input to the user-provided function is"


def _grad(
    outputs: Sequence[Tensor | None], inputs: Sequence[Tensor], vectors: Sequence[Tensor] | None, create_graph: bool,
    retain_graph: bool | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """`grad` from those outputs that depend on anything."""
    pairs = [(o, None if vectors is None else vectors[i]) for i, o in enumerate(outputs) if o is not None and o.layout.tracked]
    if not pairs:
        return (None,) * len(inputs)
    return grad(
        [o for o, _ in pairs], inputs, [v for _, v in pairs], create_graph=create_graph, retain_graph=retain_graph,
        allow_unused=True,
    )  # fmt: skip


def _packed(many: bool, values: Sequence[Any]) -> Any:
    return tuple(values) if many else values[0]


def _last(create_graph: bool) -> set_grad_enabled:
    """The grad mode of the last backward: the caller's, unless a graph is asked for."""
    return set_grad_enabled(True if create_graph else modes.grad)


def vjp(
    func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), v^T J): v has the shapes of the outputs and may be left out for a scalar.

    create_graph: the results can be differentiated. strict: RuntimeError where an output does not depend on an input
    (otherwise its part is zero).
    """
    with enable_grad():
        many, given = as_tuple(inputs, "inputs", "vjp")
        fresh = _fresh(given, create_graph)
        several, outputs = as_tuple(func(*fresh), _OUTPUTS, "vjp")
        if strict:
            check_tracked(outputs, "outputs")
        vectors = _given_vectors(v, outputs, several, "vjp", create_graph, "the user-provided function returns")
    with _last(create_graph):
        found = filled(_grad(outputs, fresh, vectors, create_graph), fresh, strict, create_graph, "back")
    return _packed(several, _finished(outputs, create_graph)), _packed(many, _finished(found, create_graph))


def jvp(
    func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), J v) by two backwards: v has the shapes of the inputs and may be left out for a scalar.

    `ts.func.jvp` does it in one forward run. create_graph, strict: as for `vjp`.
    """
    with enable_grad():
        many, given = as_tuple(inputs, "inputs", "jvp")
        fresh = _fresh(given, create_graph)
        vectors = _given_vectors(v, fresh, many, "jvp", create_graph, _FOR_INPUTS)
        several, outputs = as_tuple(func(*fresh), _OUTPUTS, "jvp")
        if strict:
            check_tracked(outputs, "outputs")
        duals = _zeros(outputs)
        pulled = _grad(outputs, fresh, duals, True)
        if strict:
            check_tracked(pulled, "gradients")
    with _last(create_graph):
        found = filled(_grad(pulled, duals, vectors, create_graph), outputs, strict, create_graph, "back_trick")
    return _packed(several, _finished(outputs, create_graph)), _packed(several, _finished(found, create_graph))


def _zeros(like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple([from_array(np.zeros(t.layout.shape), t.layout.dtype, True, t.layout.device) for t in like])


def _first_derivative(
    function: str, func: Callable, inputs: Tensors, v: Tensors | None, create_graph: bool, strict: bool
) -> tuple[bool, tuple[Tensor, ...], Any, tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """What `vhp` and `hvp` begin with: whether a tuple was given, inputs, vectors, outputs and the gradient."""
    many, given = as_tuple(inputs, "inputs", function)
    fresh = _fresh(given, create_graph)
    vectors = _given_vectors(v, fresh, many, function, create_graph, _FOR_INPUTS)
    several, outputs = as_tuple(func(*fresh), _OUTPUTS, function)
    if strict:
        check_tracked(outputs, "outputs")
    check_scalar(several, outputs, function)
    first = _grad(outputs, fresh, None, True)
    if strict:
        check_tracked(first, "jacobian")
    return many, fresh, vectors, outputs, first


def vhp(
    func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), v^T H) for a scalar function; create_graph, strict: as for `vjp`."""
    with enable_grad():
        many, fresh, vectors, outputs, first = _first_derivative("vhp", func, inputs, v, create_graph, strict)
    with _last(create_graph):
        found = filled(_grad(first, fresh, vectors, create_graph), fresh, strict, create_graph, "double_back")
    return _finished(outputs, create_graph)[0], _packed(many, _finished(found, create_graph))


def hvp(
    func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), H v) for a scalar function, by the transpose of `vhp`; create_graph, strict: as for `vjp`."""
    with enable_grad():
        many, fresh, vectors, outputs, first = _first_derivative("hvp", func, inputs, v, create_graph, strict)
        duals = _zeros(fresh)
        second = _grad(first, fresh, duals, True)
        if strict:
            check_tracked(first, "hessian")
    with _last(create_graph):
        found = filled(_grad(second, duals, vectors, create_graph), fresh, strict, create_graph, "double_back_trick")
    return _finished(outputs, create_graph)[0], _packed(many, _finished(found, create_graph))


def jacobian(
    func: Callable, inputs: Tensors, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The Jacobian of func: for each output and input a tensor of the output's shape followed by the input's.

    A lone tensor, a tuple over inputs, a tuple over outputs, or a tuple of tuples, as inputs and outputs are given.
    strategy: "reverse-mode" takes one backward per element of the outputs, "forward-mode" one forward run per element of the
    inputs. vectorize: all of them in one batched run; forward mode is always batched, as in PyTorch.
    Raises NotImplementedError, RuntimeError for combinations that PyTorch refuses too: forward mode with create_graph, with
    strict or without vectorize; vectorize with strict.
    """
    if strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError(
            'Expected strategy to be either "forward-mode" or "reverse-mode". Hint: If your function has more outputs than '
            'inputs, "forward-mode" tends to be more performant. Otherwise, prefer to use "reverse-mode".'
        )
    if strategy == "forward-mode":
        if create_graph:
            raise NotImplementedError(
                'jacobian: `create_graph=True` and `strategy="forward-mode"` are not supported together. Please either set '
                '`create_graph=False` or `strategy="reverse-mode"`, or use tensorsmith.func.jacfwd.'
            )
        return _by_columns(func, inputs, strict, vectorize)
    with enable_grad():
        many, given = as_tuple(inputs, "inputs", "jacobian")
        fresh = _fresh(given, create_graph)
        several, outputs = as_tuple(func(*fresh), _OUTPUTS, "jacobian")
        if strict:
            check_tracked(outputs, "outputs")
            if vectorize:
                raise RuntimeError(
                    "jacobian: `strict=True` and `vectorize=True` are not supported together. Please either set "
                    "`strict=False` or `vectorize=False`."
                )
        rows = _batched_rows(outputs, fresh, create_graph) if vectorize else _rows(outputs, fresh, create_graph, strict)
    return _packed(several, [_packed(many, _finished(row, create_graph)) for row in rows])


def _rows(outputs: Sequence[Tensor], inputs: Sequence[Tensor], create_graph: bool, strict: bool) -> list[list[Tensor]]:
    """Row by row: for every output the blocks of its Jacobian."""
    rows = []
    for number, output in enumerate(outputs):
        found: list[list[Tensor]] = [[] for _ in inputs]
        shape = output.layout.shape
        for index in np.ndindex(shape):
            unit = np.zeros(shape)
            unit[index] = 1
            seed = from_array(unit, output.layout.dtype, device=output.layout.device)
            gradients = _grad([output], inputs, [seed], create_graph, True)
            for place, (parts, part, tensor) in enumerate(zip(found, gradients, inputs)):
                if part is None:
                    if strict:
                        raise RuntimeError(
                            f"Output {number} of the user-provided function is independent of input {place}. This is not "
                            "allowed in strict mode."
                        )
                    part = arithmetic.zeros(tensor.layout.with_tracking(False))
                elif strict and create_graph and not part.layout.tracked:
                    raise RuntimeError(
                        f"The jacobian of the user-provided function is independent of input {number}. This is not allowed "
                        "in strict mode when create_graph=True."
                    )
                parts.append(part)
        blocks = []
        for parts, tensor in zip(found, inputs):
            whole = (*shape, *tensor.layout.shape)
            blocks.append(arithmetic.stack(parts, whole) if parts else _empty(whole, tensor.layout))
        rows.append(blocks)
    return rows


def _empty(shape: tuple[int, ...], like: Layout) -> Tensor:
    return from_array(np.zeros(shape), like.dtype, device=like.device)


def _units(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """For every tensor the unit vectors of all of them: (total number of elements, *its shape)."""
    total, start, found = sum(t.layout.numel for t in tensors), 0, []
    for tensor in tensors:
        size = tensor.layout.numel
        rows = np.zeros((total, size))
        rows[start : start + size] = np.eye(size)
        layout = tensor.layout
        found.append(from_array(rows.reshape(total, *layout.shape), layout.dtype, device=layout.device))
        start += size
    return tuple(found)


def _batched_rows(outputs: Sequence[Tensor], inputs: Sequence[Tensor], create_graph: bool) -> list[list[Tensor]]:
    """All rows in one backward from all unit vectors."""
    units = _units(outputs)
    total = units[0].layout.shape[0]
    missing: list[bool] = [False] * len(inputs)

    def pull(*seeds: Tensor) -> tuple[Tensor, ...]:
        gradients = _grad(outputs, inputs, seeds, create_graph, True)
        missing[:] = [g is None for g in gradients]
        return tuple(g for g in gradients if g is not None)

    present = iter(transforms.vmap(pull)(*units)) if total else iter(())
    if not total:
        missing = [True] * len(inputs)
    stacked: list[Any] = [
        _empty((total, *t.layout.shape), t.layout) if gone else next(present) for gone, t in zip(missing, inputs)
    ]
    rows, start = [], 0
    for output in outputs:
        end = start + output.layout.numel
        rows.append([s[start:end].reshape(output.layout.shape + t.layout.shape) for s, t in zip(stacked, inputs)])
        start = end
    return rows


def _by_columns(func: Callable, inputs: Tensors, strict: bool, vectorize: bool) -> Any:
    """Forward mode: one batched run on duals whose tangents are all unit vectors."""
    if strict:
        raise RuntimeError(
            'jacobian: `strict=True` and `strategy="forward-mode"` are not supported together. Please either set '
            '`strict=False` or `strategy="reverse-mode"`.'
        )
    if not vectorize:
        raise NotImplementedError(
            "Computing Jacobian using forward-AD or forward-over-reverse Hessian is only implemented for `vectorize=True`."
        )
    many, given = as_tuple(inputs, "inputs", "jacobian")
    kept: dict[str, Any] = {}

    def push(*tangents: Tensor) -> tuple[Any, ...]:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(x, t) for x, t in zip(given, tangents)]
            kept["several"], outputs = as_tuple(func(*duals), "outputs", "jacobian")
            parts = [forward_ad.unpack_dual(output) for output in outputs]
        kept["shapes"] = [primal.layout.shape for primal, _ in parts]
        return tuple(arithmetic.zeros(p.layout.with_tracking(False)) if t is None else t for p, t in parts)

    columns = transforms.vmap(push)(*_units(given))
    rows = []
    for column, shape in zip(columns, kept["shapes"]):
        turned, start, blocks = column.permute(*range(1, column.ndim), 0), 0, []
        for x in given:
            end = start + x.layout.numel
            blocks.append(turned[..., start:end].reshape(shape + x.layout.shape))
            start = end
        rows.append(_packed(many, blocks))
    return _packed(kept["several"], rows)


def hessian(
    func: Callable, inputs: Tensors, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The Hessian of a scalar function: the Jacobian of its gradient, a tensor or a tuple of tuples.

    outer_jacobian_strategy, vectorize: how that Jacobian is computed, as for `jacobian`; the gradient is reverse mode.
    """
    many, given = as_tuple(inputs, "inputs", "hessian")
    if outer_jacobian_strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError('Expected strategy to be either "forward-mode" or "reverse-mode".')

    def scalar(*args: Tensor) -> Any:
        several, outputs = as_tuple(func(*args), _OUTPUTS, "hessian")
        if strict:
            check_tracked(outputs, "outputs")
        check_scalar(several, outputs, "hessian")
        return outputs[0].reshape(())  # type: ignore[attr-defined]

    def gradient(*args: Tensor) -> tuple[Tensor, ...]:
        if outer_jacobian_strategy == "forward-mode":
            args = tuple([x.requires_grad_(True) for x in args])  # type: ignore[attr-defined]
        found = jacobian(scalar, args, create_graph=True)
        if strict:
            check_tracked(found, "jacobian")
        return found

    found = jacobian(gradient, given, create_graph, strict, vectorize, outer_jacobian_strategy)
    return found if many else found[0][0]


__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
