"""Singular values of matrices, and the nuclear norm: their sum.

For A = U diag(s) V^H the values' gradient is U diag(g) V^H; the norm's is U V^H, the nearest isometry, which has a
gradient of its own (dU V^H from the antisymmetric part of U^H dA V).
"""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import real_dtype, type_name
from tensorsmith.core.shapes import normalise_axes
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.raw_keys import as_ints
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _values(x: Node) -> Node:
    shape = (*x.shape[:-2], min(x.shape[-2:]))
    return x.graph.add(Primitive.LIBRARY, (x,), name="singular_values", shape=shape, dtype=real_dtype(x.dtype))


def _nuclear_norm(x: Node) -> Node:
    return build.reduce(_values(x), "sum", (x.ndim - 2,))


def _nuclear_norm_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node]:
    x = inputs[0]
    isometry = x.graph.add(Primitive.LIBRARY, (x,), name="nearest_isometry", shape=x.shape, dtype=x.dtype)
    return [isometry * build.reshape(grads[0], (*x.shape[:-2], 1, 1))]


svdvals_operator = Operator("svdvals", _values)
nuclear_norm_operator = Operator("nuclear_norm", _nuclear_norm, _nuclear_norm_vjp)


def nuclear_norm_of(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """The sum of the singular values of the matrices in two axes."""
    axes = tuple(range(x.ndim)) if dim is None else tuple(as_ints("norm", dim, "dim"))
    if x.ndim < 2:
        raise RuntimeError("linalg.matrix_norm: The input tensor A must have at least 2 dimensions.")
    if len(axes) != 2:
        raise RuntimeError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {' '.join(map(str, axes))}")
    check_matrix_dtype("linalg.matrix_norm", x)
    normalise_axes(axes, x.ndim)
    first, second = (a % x.ndim for a in axes)
    found = nuclear_norm_operator(x.movedim((first, second), (-2, -1)))
    if keepdim:
        for axis in sorted((first, second)):
            found = found.unsqueeze(axis)
    return found


def check_matrix_dtype(name: str, x: Tensor) -> None:
    """Refuse what singular values are not computed of."""
    if x.dtype.kind not in "fc":
        raise RuntimeError(f"{name}: Expected a floating point or complex tensor as input. Got {type_name(x.dtype)}")
    if x.dtype.is_half:
        raise NotImplementedError(f"{name}: Low precision dtypes not supported. Got {type_name(x.dtype)}")


@public("matmul", name="svdvals", namespace="linalg", method=False, kind="library", out=True)
def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:  # noqa: N803 - PyTorch's name
    """The singular values of the matrices in the last two axes, from the largest to the smallest.

    (..., m, n) gives (..., min(m, n)); float32, float64 and complex (whose
    values are real, and are differentiated once), RuntimeError for others. `driver` has no meaning on the CPU.

    >>> ts.linalg.svdvals(ts.tensor([[3.0, 0], [0, -4]]))
    tensor([4., 3.])
    """
    if driver is not None:
        raise RuntimeError("linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER backend.")
    if need_tensor("linalg.svdvals", A, "A").ndim < 2:
        raise RuntimeError(
            f"linalg.svd: The input tensor A must have at least 2 dimensions. Got a tensor with {A.ndim} dimensions."
        )
    if modes.autocast is not None:
        (A,) = modes.autocast.operands("svdvals", A)  # noqa: N806
    check_matrix_dtype("linalg.svd", A)
    return svdvals_operator(A)
