"""Matrix products of every rank, with what is added to them.

All are one primitive, a batch of matrix products: vectors get an axis of extent 1, a matrix on the right takes the batch of
the left as rows, other batch axes broadcast. Operands of a product have one dtype; the half types accumulate in float32.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import compute_dtype, type_name
from tensorsmith.core.shapes import broadcast_shapes
from tensorsmith.eager.dispatch import FAST, NUMBERS, call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import refuse
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

# --- graphs -----------------------------------------------------------------------------------------------------------


def product(a: Node, b: Node) -> Node:
    """`a @ b` by NumPy's and PyTorch's rule for every pair of ranks."""
    if a.ndim == 1 and b.ndim == 1:
        return dot_product(a, b)
    if b.ndim == 1:
        column = build.reshape(b, (*b.shape, 1))
        return build.reshape(_rows_times(a, column), a.shape[:-1])
    if a.ndim == 1:
        row = build.reshape(a, (1, *a.shape))
        found = _rows_times(row, b) if b.ndim == 2 else build.matmul(row, b)
        return build.reshape(found, (*b.shape[:-2], b.shape[-1]))
    return _rows_times(a, b) if b.ndim == 2 else build.matmul(a, b)


def _rows_times(a: Node, b: Node) -> Node:
    """(..., K) @ (K, N): all rows of the left in one product."""
    if a.ndim == 2:
        return build.matmul(a, b)
    rows = math.prod(a.shape[:-1])
    return build.reshape(build.matmul(build.reshape(a, (rows, a.shape[-1])), b), (*a.shape[:-1], b.shape[-1]))


def dot_product(a: Node, b: Node) -> Node:
    """Sum of products of two vectors."""
    refuse("dot", a.dtype, "b")
    work = compute_dtype(a.dtype)
    return build.cast(build.reduce(build.cast(a, work) * build.cast(b, work), "sum", (0,)), a.dtype)


def _scaled(x: Node, factor: Any) -> Node:
    return x if factor == 1 else x * factor


def _added(bias: Node, found: Node, beta: Any, alpha: Any) -> Node:
    """beta * bias + alpha * found; beta = 0 ignores the bias, NaN and all."""
    if found.dtype.kind in "iu":
        beta, alpha = int(beta), int(alpha)
    found = _scaled(found, alpha)
    if beta == 0:
        return found
    total = found + _scaled(bias, beta)
    return build.broadcast_to(total, found.shape)


def _addmm(bias: Node, a: Node, b: Node, beta: Any, alpha: Any) -> Node:
    return _added(bias, product(a, b), beta, alpha)


def _addbmm(bias: Node, a: Node, b: Node, beta: Any, alpha: Any) -> Node:
    return _added(bias, build.reduce(build.matmul(a, b), "sum", (0,)), beta, alpha)


def _outer(a: Node, b: Node) -> Node:
    return build.reshape(a, (*a.shape, 1)) * build.reshape(b, (1, *b.shape))


matmul_operator = Operator("matmul", product)
mm_operator = Operator("mm", product)
bmm_operator = Operator("bmm", product)
mv_operator = Operator("mv", product)
dot_operator = Operator("dot", dot_product)
outer_operator = Operator("outer", _outer)
addmm_operator = Operator("addmm", _addmm)
addmv_operator = Operator("addmv", _addmm)
baddbmm_operator = Operator("baddbmm", _addmm)
addbmm_operator = Operator("addbmm", _addbmm)
addr_operator = Operator("addr", lambda bias, a, b, beta, alpha: _added(bias, _outer(a, b), beta, alpha))


# --- checks -----------------------------------------------------------------------------------------------------------


def check_dtype(name: str, a: Tensor, b: Tensor) -> None:
    """Refuse operands of two dtypes."""
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"{name}: expected both operands to have the same dtype, but got: {type_name(a.dtype)} and {type_name(b.dtype)}"
        )


def _check_matmul(a: Tensor, b: Tensor) -> None:
    check_dtype("matmul", a, b)
    m, n = a.layout.shape, b.layout.shape
    if not m or not n:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {len(m)}D and {len(n)}D")
    if len(m) == 1 and len(n) == 1:
        _check_dot("dot", a, b)
    elif m[-1] != (n[-2] if len(n) > 1 else n[0]):
        if len(n) <= 2:
            rows = math.prod(m[:-1])
            raise RuntimeError(
                f"mat1 and mat2 shapes cannot be multiplied ({rows}x{m[-1]} and {n[0]}x{n[1] if len(n) > 1 else 1})"
            )
        raise RuntimeError(f"matmul: shapes {list(m)} and {list(n)} cannot be multiplied: {m[-1]} against {n[-2]}")
    broadcast_shapes(m[:-2], n[:-2])


def _check_dot(name: str, a: Tensor, b: Tensor) -> None:
    if a.ndim != 1 or b.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors")
    check_dtype(name, a, b)
    if a.layout.numel != b.layout.numel:
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor [{a.layout.numel}] and src [{b.layout.numel}] to have the same number "
            f"of elements, but got {a.layout.numel} and {b.layout.numel} elements respectively"
        )


def _check_mm(name: str, a: Tensor, b: Tensor) -> None:
    for which, x in (("self", a), ("mat2", b)):
        if x.ndim != 2:
            raise RuntimeError(f"{which} must be a matrix: {name} of a tensor of {x.ndim} dimensions")
    check_dtype(name, a, b)
    (rows, inner), (depth, columns) = a.layout.shape, b.layout.shape
    if inner != depth:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({rows}x{inner} and {depth}x{columns})")


def _check_bmm(name: str, a: Tensor, b: Tensor) -> None:
    for which, x in (("batch1", a), ("batch2", b)):
        if x.ndim != 3:
            raise RuntimeError(f"{which} must be a 3D tensor: {name} got {x.ndim} dimensions")
    check_dtype(name, a, b)
    m, n = a.layout.shape, b.layout.shape
    if m[0] != n[0] or m[2] != n[1]:
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{m[0]}, {m[2]}] but got: [{n[0]}, {n[1]}]."
        )


def _check_mv(name: str, a: Tensor, b: Tensor) -> None:
    if a.ndim != 2 or b.ndim != 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got {b.ndim}, {a.ndim}, {b.ndim}: {name}")
    check_dtype(name, a, b)
    if a.layout.shape[1] != b.layout.shape[0]:
        raise RuntimeError(
            f"size mismatch, got input ({a.layout.shape[0]}), mat ({a.layout.shape[0]}x{a.layout.shape[1]}), vec "
            f"({b.layout.shape[0]})"
        )


def _check_outer(name: str, a: Tensor, b: Tensor) -> None:
    if a.ndim != 1 or b.ndim != 1:
        raise RuntimeError(f"{name}: Expected 1-D arguments, but got {a.ndim}-D and {b.ndim}-D")


# --- products ---------------------------------------------------------------------------------------------------------


@public("matmul", out=True)
def matmul(input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    """The product of vectors, matrices, or batches of matrices (batch axes broadcast)."""
    try:
        entry = FAST.get((matmul_operator, input.layout, other.layout))
    except AttributeError:
        need_tensor("matmul", input)
        need_tensor("matmul", other, "other", 2)
        raise
    if entry is not None:
        return entry(input, other)
    if modes.autocast is not None:
        return modes.autocast.run(matmul_operator, (input, other), _check_matmul)
    _check_matmul(input, other)
    return call(matmul_operator, (input, other), {})


def _matmul_symbol(self: Tensor, other: Any) -> Tensor:
    """`x @ y`."""
    try:
        entry = FAST.get((matmul_operator, self.layout, other.layout))
    except AttributeError:
        return NotImplemented
    if entry is not None:
        return entry(self, other)
    if modes.autocast is not None:
        return modes.autocast.run(matmul_operator, (self, other), _check_matmul)
    _check_matmul(self, other)
    return call(matmul_operator, (self, other), {})


def _reflected_matmul(self: Tensor, other: Any) -> Tensor:
    """`x @ y` with an array on the left."""
    from tensorsmith.ops.pointwise import with_array

    return with_array("matmul", other, self) if isinstance(other, np.ndarray) else NotImplemented


Tensor.matmul = matmul.__wrapped__  # type: ignore[method-assign, attr-defined, method-assign]
Tensor.__matmul__ = _matmul_symbol  # type: ignore[method-assign]
Tensor.__rmatmul__ = _reflected_matmul  # type: ignore[method-assign]
public("matmul", name="matmul", namespace="linalg", method=False)(matmul)


def _pair(name: str, operator: Operator, check: Any, what: str, second: str, aliases: tuple[str, ...] = ()) -> Any:
    def function(input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
        try:
            entry = FAST.get((operator, input.layout, other.layout))
        except AttributeError:
            need_tensor(name, input)
            need_tensor(name, other, second, 2)
            raise
        if entry is not None:
            return entry(input, other)
        if modes.autocast is not None:
            return modes.autocast.run(operator, (input, other), functools.partial(check, name))
        check(name, input, other)
        return call(operator, (input, other), {})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    return public("matmul", out=True, aliases=aliases)(function)


mm = _pair("mm", mm_operator, _check_mm, "The product of two matrices.", "mat2")
bmm = _pair(
    "bmm", bmm_operator, _check_bmm, "The products of two batches of matrices, (B, M, K) and (B, K, N).", "mat2"
)
mv = _pair("mv", mv_operator, _check_mv, "The product of a matrix and a vector.", "vec")
dot = _pair("dot", dot_operator, _check_dot, "The sum of the products of two vectors.", "tensor")


@public("matmul", out=True)
def vdot(input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    """The sum of the products of two vectors, the first conjugated where it is complex."""
    return dot(need_tensor("vdot", input).conj(), other)


outer = _pair("outer", outer_operator, _check_outer, "All products of the elements of two vectors.", "vec2", ("ger",))


# --- products added to something ------------------------------------------------------------------------------------


def _check_factors(name: str, x: Tensor, beta: Any, alpha: Any) -> None:
    for which, value in (("beta", beta), ("alpha", alpha)):
        if value.__class__ not in NUMBERS:
            raise TypeError(f"argument '{which}' must be Number, not {type(value).__name__}")
        if isinstance(value, float) and x.dtype.kind in "iu" and name == "addr":
            raise RuntimeError(f"For integral input tensors, argument {which} must not be a floating point number.")


def _adding(name: str, operator: Operator, check: Any, names: tuple[str, str], what: str, shape_of: Any) -> Any:
    inplace = InplaceOperation(operator)

    def checked(input: Tensor, first: Tensor, second: Tensor, beta: Any, alpha: Any) -> None:  # noqa: A002
        need_tensor(name, input)
        need_tensor(name, first, names[0], 2)
        need_tensor(name, second, names[1], 3)
        check(name, first, second)
        check_dtype(name, input, first)
        _check_factors(name, first, beta, alpha)
        wanted = shape_of(first.layout.shape, second.layout.shape)
        if broadcast_shapes(input.layout.shape, wanted) != wanted:
            raise RuntimeError(
                f"{name}: The expanded size of the tensor {list(wanted)} must match the size of input "
                f"{list(input.layout.shape)}"
            )

    def function(input: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:  # noqa: A002
        try:
            key = (operator, input.layout, first.layout, second.layout, ("beta", beta), ("alpha", alpha))
            entry = FAST.get(key)
        except (AttributeError, TypeError):
            entry = None
        if entry is not None:
            return entry(input, first, second)
        if modes.autocast is not None:
            input, first, second = modes.autocast.operands(name, input, first, second)
        checked(input, first, second, beta, alpha)
        return call(operator, (input, first, second), {"beta": beta, "alpha": alpha})

    def function_(self: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
        checked(self, first, second, beta, alpha)
        return inplace(self, first, second, beta=beta, alpha=alpha)

    def named(input: Tensor, *args: Any, **keywords: Any) -> Tensor:  # noqa: A002
        if len(args) < 2 and names[1] in keywords:
            args = (*args, *(keywords.pop(n) for n in names[len(args) :]))
        return function(input, *args, **keywords)

    named.__name__ = named.__qualname__ = name
    named.__doc__ = f"{what}\n\n{name}(input, {names[0]}, {names[1]}, *, beta=1, alpha=1); beta = 0 ignores the input."
    inplace_after = public("matmul", out=True)(named)
    inplace_method(name, function_)
    return inplace_after


addmm = _adding(
    "addmm", addmm_operator, _check_mm, ("mat1", "mat2"), "beta * input + alpha * (mat1 @ mat2).",
    lambda m, n: (m[0], n[1]),
)  # fmt: skip
addmv = _adding(
    "addmv", addmv_operator, _check_mv, ("mat", "vec"), "beta * input + alpha * (mat @ vec).", lambda m, n: (m[0],)
)
baddbmm = _adding(
    "baddbmm", baddbmm_operator, _check_bmm, ("batch1", "batch2"), "beta * input + alpha * (batch1 @ batch2).",
    lambda m, n: (m[0], m[1], n[2]),
)  # fmt: skip
addbmm = _adding(
    "addbmm", addbmm_operator, _check_bmm, ("batch1", "batch2"),
    "beta * input + alpha * the sum over the batch of batch1 @ batch2.", lambda m, n: (m[1], n[2]),
)  # fmt: skip
addr = _adding(
    "addr", addr_operator, _check_outer, ("vec1", "vec2"), "beta * input + alpha * outer(vec1, vec2).",
    lambda m, n: (m[0], n[0]),
)  # fmt: skip
