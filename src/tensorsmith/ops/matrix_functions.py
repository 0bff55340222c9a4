"""Functions of matrices that orthogonal weights are made of: solve, matrix_exp, householder_product.

The gradient of X = A^-1 B is gB = A^-H g, gA = -gB X^H; that of exp(A) the upper right block of exp [[A^H, g], [0, A^H]]
(Najfeld, Havel, 1995). Both are solve and matrix_exp again (`ir/library_gradients.py`), so derivatives have derivatives.
"""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import int64, type_name
from tensorsmith.core.shapes import broadcast_shapes
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.raw_keys import as_bool
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _solve_node(a: Node, b: Node) -> Node:
    """a^-1 b for matrices in the last two axes, leading axes broadcast."""
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (build.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    return a.graph.add(Primitive.LIBRARY, (a, b), name="solve", shape=b.shape, dtype=b.dtype)


def _turned(x: Node) -> Node:
    return build.transpose(x, x.ndim - 2, x.ndim - 1)


def _solve(a: Node, b: Node, left: bool) -> Node:
    return _solve_node(a, b) if left else _turned(_solve_node(_turned(a), _turned(b)))


def _matrix_exp(x: Node) -> Node:
    wide = build.wide(x)
    return build.cast(x.graph.add(Primitive.LIBRARY, (wide,), name="matrix_exp", shape=x.shape, dtype=wide.dtype), x.dtype)


def _householder_product(x: Node, tau: Node) -> Node:
    """The first columns of H_1 ... H_k = 1 - V T V^H, T^-1 = diag(1 / tau) + the strict upper triangle of V^H V."""
    graph, (*lead, rows, columns), count = x.graph, x.shape, tau.shape[-1]
    work = build.wide(x)
    vectors = build.slice_(work, x.ndim - 1, 0, count)
    row = build.cast(build.reshape(graph.iota(rows), (rows, 1)), int64)
    column = build.reshape(graph.iota(count), (1, count))
    vectors = build.where(f.gt(row, column), vectors, 0)
    vectors = build.where(f.eq(row, column), 1, vectors)
    adjoint = _turned(build.conj(vectors))
    factor = build.reshape(build.wide(tau), (*lead, count, 1))
    upper = build.reshape(graph.iota(count), (count, 1))
    product = build.where(f.lt(upper, column), build.matmul(adjoint, vectors), 0) * factor
    same = f.eq(upper, column)
    inner = _solve_node(build.where(same, 1, product), build.where(same, build.broadcast_to(factor, product.shape), 0))
    head = build.slice_(adjoint, x.ndim - 1, 0, columns)
    found = build.matmul(vectors, build.matmul(inner, head))
    one = f.eq(row, build.reshape(graph.iota(columns), (1, columns)))
    return build.cast(build.where(one, 1 - found, -found), x.dtype)


solve_operator = Operator("solve", _solve)
matrix_exp_operator = Operator("matrix_exp", _matrix_exp)
householder_operator = Operator("householder_product", _householder_product)


def _need_matrices(name: str, x: Any, argument: str, square: bool, routine: str = "") -> Tensor:
    need_tensor(name, x, argument)
    if x.ndim < 2:
        raise RuntimeError(f"{name}: The input tensor {argument} must have at least 2 dimensions.")
    if square and x.layout.shape[-1] != x.layout.shape[-2]:
        rows, columns = x.layout.shape[-2:]
        raise RuntimeError(f"{name}: {argument} must be batches of square matrices, but they are {rows} by {columns} matrices")
    if x.dtype.kind not in "fc" and routine != "orgqr":
        raise RuntimeError(f"{name}: Expected a floating point or complex tensor as input. Got {type_name(x.dtype)}")
    if routine and (x.dtype.is_half or x.dtype.kind not in "fc"):
        raise NotImplementedError(f"{name}: \"{routine}_cpu\" not implemented for '{type_name(x.dtype)}'")
    return x  # type: ignore[no-any-return]


@public("matmul", namespace="linalg", method=False, kind="library", out=True)
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:  # noqa: N803 - PyTorch's names
    """X with A X = B, or X A = B where `left` is False.

    A (..., n, n); B (..., n, k), leading axes broadcast, or vectors (n) or (..., n) with the leading axes of A.
    float32, float64 and complex. Raises RuntimeError for a singular matrix and for sizes that do not fit.

    >>> ts.linalg.solve(ts.tensor([[2.0, 0.0], [0.0, 4.0]]), ts.tensor([2.0, 2.0]))
    tensor([1.0000, 0.5000])
    """
    if modes.autocast is not None:
        A, B = modes.autocast.operands("solve", A, B)  # noqa: N806
    _need_matrices("linalg.solve", A, "A", True, "lu")
    need_tensor("linalg.solve", B, "B")
    if B.dtype is not A.dtype:
        raise RuntimeError(
            f"linalg.solve: Expected A and B to have the same dtype, but found A of type {type_name(A.dtype)} and B of type "
            f"{type_name(B.dtype)} instead"
        )
    left = as_bool("linalg.solve", left, "left")
    a, b = A.layout.shape, B.layout.shape
    vector = len(b) == 1 or (len(a) - 1 == len(b) and b == a[:-1])
    if vector and not left:
        raise RuntimeError("linalg.solve: Vector broadcasting of the left hand side is not supported for left=False")
    given = B.unsqueeze(-1) if vector else B
    if len(b) < 1 or given.layout.shape[-2 if left else -1] != a[-1]:
        equation = "AX = B" if left else "XA = B"
        raise RuntimeError(f"linalg.solve: Incompatible shapes of A and B for the equation {equation} ({a} and {b})")
    found = solve_operator(A, given, left=left)
    return found.squeeze(-1) if vector else found


@public("matmul", namespace="linalg", name="matrix_exp", method=False, kind="library")
def _linalg_matrix_exp(input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
    """1 + A + A A / 2 + ... of the square matrices in the last two axes, by scaling and squaring (Higham, 2005).

    Raises RuntimeError for integers and for matrices that are not square.

    >>> ts.linalg.matrix_exp(ts.zeros(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    return matrix_exp_operator(_need_matrices("linalg.matrix_exp", input, "A", True))


@public("matmul", kind="library")
def matrix_exp(input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
    """`linalg.matrix_exp`."""
    return _linalg_matrix_exp(input)


@public("matmul", namespace="linalg", method=False, kind="library", out=True)
def householder_product(input: Tensor, tau: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
    """The first n columns of H_1 ... H_k, H_i = 1 - tau_i v_i v_i^H, where v_i is column i of (..., m, n) below a 1.

    tau (..., k), k <= n <= m. What is on and above the diagonal of `input` takes no part. Raises RuntimeError for other sizes.

    >>> ts.linalg.householder_product(ts.zeros(2, 2), ts.tensor([2.0, 0.0]))
    tensor([[-1.,  0.],
            [ 0.,  1.]])
    """
    name = "linalg.householder_product"
    _need_matrices(name, input, "input", False, "orgqr")
    need_tensor(name, tau, "tau")
    *lead, rows, columns = input.layout.shape
    if rows < columns:
        raise RuntimeError(f"{name}: input.shape[-2] must be greater than or equal to input.shape[-1]")
    if not tau.ndim or columns < tau.layout.shape[-1]:
        raise RuntimeError(f"{name}: input.shape[-1] must be greater than or equal to tau.shape[-1]")
    if tuple(lead) != tau.layout.shape[:-1]:
        raise RuntimeError(
            f"{name}: Expected batch dimensions of tau to be equal to input.shape[:-2], but got {tau.shape[:-1]}"
        )
    if tau.dtype is not input.dtype:
        raise RuntimeError(f"{name}: tau dtype {type_name(tau.dtype)} does not match input dtype {type_name(input.dtype)}")
    return householder_operator(input, tau)
