"""Orthogonal (unitary) weights: `parametrizations.orthogonal` with its three maps from any matrix X to an orthogonal one.

    A = L - L^H, L the lower triangle of X:    matrix_exp: Q = exp(A)      cayley: Q = (1 - A/2)^-1 (1 + A/2)
    householder:                               Q = H_1 ... H_k diag(X), reflections along the columns of X below the diagonal

Wide matrices are turned. With trivialization (Lezcano-Casado, 2019) the weight is B Q with a fixed orthogonal B, so that
learning starts at Q = 1.
"""

from __future__ import annotations

import numpy as np

from tensorsmith.core.dtypes import int32
from tensorsmith.nn.module import Module
from tensorsmith.nn.parametrizations import weight_of
from tensorsmith.nn.parametrize import register_parametrization
from tensorsmith.ops.creation import array_of, copy_array, eye
from tensorsmith.ops.joining import cat
from tensorsmith.ops.matrix_functions import householder_product, matrix_exp, solve
from tensorsmith.ops.random import randn
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor

MAPS = ("matrix_exp", "cayley", "householder")


def _made_orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Q of the QR decomposition with a positive diagonal of R."""
    q, r = np.linalg.qr(matrix)
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    return np.asarray(q * np.where(diagonal == 0, 1, np.sign(diagonal.real))[..., None, :])


def _is_orthogonal(matrix: np.ndarray) -> bool:
    rows, columns = matrix.shape[-2:]
    product = np.swapaxes(matrix, -1, -2).conj() @ matrix
    return np.allclose(product, np.eye(columns), atol=10 * rows * float(np.finfo(matrix.dtype).eps))


class _Orthogonal(Module):
    base: Tensor | None

    def __init__(self, weight: Tensor, orthogonal_map: str, *, use_trivialization: bool = True) -> None:
        super().__init__()
        if weight.is_complex() and orthogonal_map == "householder":
            raise ValueError("The householder parametrization does not support complex tensors.")
        self.shape = weight.shape
        self.orthogonal_map = orthogonal_map
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, X: Tensor) -> Tensor:  # noqa: N803 - PyTorch's name
        wide = X.shape[-2] < X.shape[-1]
        x = X.mT if wide else X
        rows, columns = x.shape[-2:]
        if self.orthogonal_map == "householder":
            below = x.tril(-1)
            q = householder_product(below, 2.0 / (1.0 + (below * below).sum(-2)))
            q = q * x.diagonal(dim1=-2, dim2=-1).to(int32).unsqueeze(-2)
        else:
            lower = x.tril()
            if rows != columns:
                lower = cat([lower, x.new_zeros((*x.shape[:-2], rows, rows - columns))], -1)
            skew = lower - lower.mH
            if self.orthogonal_map == "matrix_exp":
                q = matrix_exp(skew)
            else:
                one = eye(rows, dtype=skew.dtype, device=skew.device)
                q = solve(one - skew * 0.5, one + skew * 0.5)
            q = q[..., :columns]
        if hasattr(self, "base"):
            q = self.base @ q
        return q.mT if wide else q

    @no_grad()
    def right_inverse(self, Q: Tensor) -> Tensor:  # noqa: N803 - PyTorch's name
        if Q.shape != self.shape:
            raise ValueError(
                f"Expected a matrix or batch of matrices of shape {self.shape}. Got a tensor of shape {Q.shape}."
            )
        wide = Q.shape[-2] < Q.shape[-1]
        matrix = array_of(Q)
        matrix = np.swapaxes(matrix, -1, -2) if wide else matrix
        rows, columns = matrix.shape[-2:]
        if hasattr(self, "base"):
            if rows != columns:
                more = array_of(randn((*matrix.shape[:-1], rows - columns), dtype=Q.dtype))
                matrix = _made_orthogonal(np.concatenate([matrix, more], -1))
            elif not _is_orthogonal(matrix):
                matrix = _made_orthogonal(matrix)
            self.base = copy_array(matrix, device=Q.layout.device)
            start = Q.new_zeros(Q.shape)
            start.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
            return start
        if self.orthogonal_map != "householder":
            raise NotImplementedError(
                "It is not possible to assign to the matrix exponential or the Cayley parametrizations when "
                "use_trivialization=False."
            )
        vectors, tau = np.linalg.qr(matrix, "raw")
        vectors = np.array(np.swapaxes(vectors, -1, -2))
        place = range(columns)
        sign = np.sign(vectors[..., place, place])
        vectors[..., place, place] = np.where(tau == 0, -sign, sign)  # LAPACK says with 0 that it does not reflect
        return copy_array(np.swapaxes(vectors, -1, -2) if wide else vectors, device=Q.layout.device)


def orthogonal(
    module: Module, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True
) -> Module:
    """Make a weight (..., m, n) orthogonal: orthonormal columns where m >= n, else rows.

    orthogonal_map: "matrix_exp", "cayley" or "householder"; where None, "matrix_exp" for square and complex matrices
    use_trivialization: a fixed factor `base` is kept, so that the start is the weight, or its Q where it is not orthogonal
    Raises ValueError for a name that is not there, for vectors, another map and complex numbers by "householder".

    >>> layer = ts.nn.utils.parametrizations.orthogonal(ts.nn.Linear(3, 3, bias=False))
    >>> bool(ts.allclose(layer.weight @ layer.weight.T, ts.eye(3), atol=1e-5))
    True
    """
    weight = weight_of(module, name)
    if weight.ndim < 2:
        raise ValueError(f"Expected a matrix or batch of matrices. Got a tensor of {weight.ndim} dimensions.")
    if orthogonal_map is None:
        square = weight.shape[-2] == weight.shape[-1]
        orthogonal_map = "matrix_exp" if square or weight.is_complex() else "householder"
    if orthogonal_map not in MAPS:
        raise ValueError(f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {orthogonal_map}')
    made = _Orthogonal(weight, orthogonal_map, use_trivialization=use_trivialization)
    register_parametrization(module, name, made, unsafe=True)
    return module
