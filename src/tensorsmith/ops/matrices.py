"""Matrices made of vectors, and norms of matrices: vander, cdist, vecdot, diagonal, matrix_norm, norm."""

from __future__ import annotations

import math
from typing import Any

from tensorsmith.core.dtypes import DType, int64, type_name
from tensorsmith.core.shapes import normalise_axes
from tensorsmith.ops.checks import HALF, refuse
from tensorsmith.ops.moments import in_dtype, vector_norm_of
from tensorsmith.ops.raw_keys import as_ints
from tensorsmith.ops.reduction_steps import Dim
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.ops.singular_values import check_matrix_dtype, nuclear_norm_of, svdvals_operator
from tensorsmith.ops.splitting import diagonal
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _powers(x: Tensor, count: int) -> Tensor:
    """1, x, x**2, ... along a new last axis, as running products, so that integers stay exact."""
    base = x.unsqueeze(-1).expand((*x.layout.shape, max(count - 1, 0)))
    return Tensor.cumprod(_with_one(base), -1) if count else base


def _with_one(x: Tensor) -> Tensor:
    from tensorsmith.ops.joining import cat

    return cat([x.new_ones((*x.layout.shape[:-1], 1)), x], -1)


@public("matmul", method=False, kind="composite")
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:  # noqa: N803
    """The powers of each element, one row each: x**(N-1) ... x 1, or the other way round if `increasing`.

    Integers give int64. Raises RuntimeError for anything but a vector, and for a negative N.

    >>> ts.vander(ts.tensor([1, 2, 3]))
    tensor([[1, 1, 1],
            [4, 2, 1],
            [9, 3, 1]])
    """
    if need_tensor("vander", x, "x").ndim != 1:
        raise RuntimeError("x must be a one-dimensional tensor.")
    count = x.layout.numel if N is None else int(N)
    if count < 0:
        raise RuntimeError("N must be non-negative.")
    found = _powers(x.to(int64) if x.dtype.kind in "iub" else x, count)
    return found if increasing else found.flip(-1)


def _linalg_vander(x: Tensor, *, N: int | None = None) -> Tensor:  # noqa: N803
    """The powers 1, x, ..., x**(N-1) of each element along a new last axis (N is the last extent by default)."""
    if need_tensor("linalg.vander", x, "x").dtype.kind == "b" or x.dtype in HALF:
        raise RuntimeError(f"linalg.vander supports floating point, complex, and integer tensors, but got {type_name(x.dtype)}")
    count = (x.layout.shape[-1] if x.ndim else 1) if N is None else int(N)
    if count <= 1:
        raise RuntimeError("N must be greater than 1.")
    rows = x if x.ndim else x.reshape((1,))
    return _powers(rows.to(int64) if x.dtype.kind in "iu" else rows, count)


def _vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The dot products of vectors along an axis, the first conjugated; other axes broadcast."""
    if modes.autocast is not None and need_tensor("linalg.vecdot", x, "x").dtype.kind == "f":  # a product of two operands
        x, y = modes.autocast.operands("linalg.vecdot", x, y)
        return (x * y).sum(dim, dtype=x.dtype)
    check_matrix_dtype("linalg.vecdot", need_tensor("linalg.vecdot", x, "x"))
    return (x.conj() * need_tensor("linalg.vecdot", y, "y", 2)).sum(dim)


def _diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:  # noqa: N803
    """The diagonal of the matrices in two axes, the last two by default: a view."""
    return diagonal(A, offset, dim1, dim2)


public("matmul", name="vander", namespace="linalg", method=False, kind="composite")(_linalg_vander)
public("matmul", name="vecdot", namespace="linalg", method=False, kind="composite", out=True)(_vecdot)
public("matmul", name="diagonal", namespace="linalg", method=False, kind="view")(_diagonal)


@public("matmul", method=False, kind="composite")
def cdist(
    x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary"
) -> Tensor:
    """The p-distances between all rows of two matrices: (..., P, M) and (..., R, M) give (..., P, R).

    Batch axes broadcast. `compute_mode` is taken and not needed: differences are always taken directly, which is exact for
    close points. A distance of 0 has gradient 0. Raises RuntimeError for other dtypes than floating ones, and for shapes that
    do not fit.

    >>> ts.cdist(ts.tensor([[0.0, 0.0]]), ts.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5., 1.]])
    """
    if modes.autocast is not None:
        x1, x2 = modes.autocast.operands("cdist", x1, x2)
    for number, x in enumerate((need_tensor("cdist", x1, "x1"), need_tensor("cdist", x2, "x2", 2)), start=1):
        if x.dtype.kind != "f":
            raise RuntimeError(f"cdist only supports floating-point dtypes, X{number} got: {x.dtype.name}")
        refuse("cdist", x.dtype, "", HALF)
        if x.ndim < 2:
            raise RuntimeError(f"cdist only supports at least 2D tensors, X{number} got: {x.ndim}D")
    if x1.layout.shape[-1] != x2.layout.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1.layout.shape[-1]} X2: {x2.layout.shape[-1]}"
        )
    if p < 0:
        raise RuntimeError("cdist only supports non-negative p values")
    compute_modes = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
    if compute_mode not in compute_modes:
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode")
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if not apart.layout.shape[-1]:
        return apart.sum(-1)
    return vector_norm_of(apart, float(p), (-1,), False, None)


# --- norms ------------------------------------------------------------------------------------------------------------


def _extreme(x: Tensor, axis: int, largest: bool) -> Tensor:
    """The largest or smallest magnitude along an axis, which stays. The largest of none is 0."""
    if largest and not x.layout.shape[axis]:
        return x.sum(axis, True)
    return x.amax(axis, True) if largest else x.amin(axis, True)


def _matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: DType | None = None  # noqa: N803, A002
) -> Tensor:  # fmt: skip
    """Norms of the matrices in two axes.

    ord: "fro" (root of the squares' sum), "nuc" (the singular values' sum), 2 and -2 (the largest and smallest one), 1 and
    -1 (the largest and smallest sum of a column's magnitudes), inf and -inf (of a row's).
    """
    if need_tensor("linalg.matrix_norm", A, "A").ndim < 2:
        raise RuntimeError("linalg.matrix_norm: The input tensor A must have at least 2 dimensions.")
    axes = tuple(as_ints("linalg.matrix_norm", dim, "dim"))
    if len(axes) != 2:
        raise RuntimeError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {' '.join(map(str, axes))}")
    normalise_axes(axes, A.ndim)
    row, column = (a % A.ndim for a in axes)
    x = in_dtype("linalg.matrix_norm", A, dtype)
    if ord == "fro":
        return vector_norm_of(x, 2.0, (row, column), keepdim, None)
    if ord == "nuc":
        return nuclear_norm_of(x, (row, column), keepdim)
    if isinstance(ord, str) or abs(ord) not in (1, 2, math.inf):
        raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported.")
    if abs(ord) == 2:
        check_matrix_dtype("linalg.matrix_norm", x)  # refuses half precision
        values = svdvals_operator(x.movedim((row, column), (-2, -1)))
        found = _extreme(values, -1, ord > 0).squeeze(-1)
    else:
        summed, left = (row, column) if abs(ord) == 1 else (column, row)
        sums = vector_norm_of(x, 1.0, (summed,), True, None)
        found = _extreme(sums, left, ord > 0).squeeze((row, column))
    return found.unsqueeze(min(row, column)).unsqueeze(max(row, column)) if keepdim else found


def _norm(
    A: Tensor, ord: Any = None, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None  # noqa: N803, A002
) -> Tensor:  # fmt: skip
    """A vector's norm, of all elements or over an axis; a matrix' norm where `dim` is a pair or `ord` is given for two axes."""
    need_tensor("linalg.norm", A, "A")
    if ord is None:
        return vector_norm_of(A, 2.0, dim, keepdim, dtype)
    if dim is None:
        if A.ndim not in (1, 2):
            raise RuntimeError(
                f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {A.ndim}D."
            )
        axes: tuple[int, ...] = tuple(range(A.ndim))
    else:
        axes = tuple(as_ints("linalg.norm", dim, "dim"))
        if len(axes) not in (1, 2):
            raise RuntimeError(f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(axes)}")
    if len(axes) == 2:
        return _matrix_norm(A, ord, axes, keepdim, dtype=dtype)
    if isinstance(ord, str):
        raise RuntimeError(f"linalg.norm: If ord is a str, the norm is a matrix norm. Got ord={ord!r} for one axis")
    return vector_norm_of(A, float(ord), axes, keepdim, dtype)


public("matmul", name="matrix_norm", namespace="linalg", method=False, kind="composite", out=True)(_matrix_norm)
public("matmul", name="norm", namespace="linalg", method=False, kind="composite", out=True)(_norm)
