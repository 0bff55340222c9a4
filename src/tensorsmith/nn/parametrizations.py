"""Ready parametrizations of weights: weight_norm and spectral_norm; orthogonal is in `nn/orthogonal.py`."""

from __future__ import annotations

from typing import Any

from tensorsmith.nn import functional as F
from tensorsmith.nn.convolution import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from tensorsmith.nn.module import Module
from tensorsmith.nn.parametrize import register_parametrization
from tensorsmith.ops.creation import empty
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor

_TRANSPOSED = (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)


def weight_of(module: Module, name: str) -> Tensor:
    """The parameter or buffer; ValueError where there is none."""
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    return weight


def output_axis(module: Module, dim: int | None) -> int:
    """The axis of the outputs in a layer's weight."""
    return dim if dim is not None else 1 if isinstance(module, _TRANSPOSED) else 0


# --- weight_norm ------------------------------------------------------------------------------------------------------


def norm_except_dim(v: Tensor, dim: int) -> Tensor:
    """The Euclidean norm over all axes but `dim`, which is kept; over all for -1."""
    if dim == -1:
        return (v * v).sum().sqrt()
    return (v * v).sum([i for i in range(v.ndim) if i != dim], keepdim=True).sqrt()


def direction_and_length(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """g v / |v|."""
    return v * (g / norm_except_dim(v, dim))


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return direction_and_length(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except_dim(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """weight = g v / |v|, the norm over all axes but `dim` (over all for None); g and v are learned (Salimans, Kingma, 2016).

    g is `parametrizations.weight.original0` and v `original1`; states of the older `weight_norm` are read too.
    """
    weight_of(module, name)
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def older_names(owner: Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}{name}_g" in state and f"{prefix}{name}_v" in state:
            for number, letter in enumerate("gv"):
                state[f"{prefix}parametrizations.{name}.original{number}"] = state.pop(f"{prefix}{name}_{letter}")

    module.register_load_state_dict_pre_hook(older_names)
    return module


# --- spectral_norm ----------------------------------------------------------------------------------------------------


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """The weight with axis `dim` as rows and the others as columns."""
    if dim:
        weight = weight.permute(dim, *(i for i in range(weight.ndim) if i != dim))
    return weight.reshape(weight.shape[0], -1)


def unit_vector(like: Tensor, size: int, eps: float) -> Tensor:
    """A random direction."""
    return F.normalize(empty(size, dtype=like.dtype, device=like.device).normal_(0, 1), dim=0, eps=eps)


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        axes = weight.ndim
        if not -axes <= dim < axes:
            raise IndexError(f"Dimension out of range (expected to be in range of [-{axes}, {axes - 1}] but got {dim})")
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.dim = dim % axes
        self.eps = eps
        if axes > 1:
            self.n_power_iterations = n_power_iterations
            with no_grad():
                matrix = as_matrix(weight.detach(), self.dim)
            for name, size in zip(("_u", "_v"), matrix.shape):
                self.register_buffer(name, unit_vector(matrix, size, eps))
            self._power_method(matrix, 15)

    @no_grad()
    def _power_method(self, matrix: Tensor, iterations: int) -> None:
        for _ in range(iterations):
            self._u.copy_(F.normalize(matrix.mv(self._v), dim=0, eps=self.eps))
            self._v.copy_(F.normalize(matrix.t().mv(self._u), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            self._power_method(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()  # the next step writes over the buffers
        return weight / u.dot(matrix.mv(v))

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """weight / sigma, sigma its largest singular value as a matrix of axis `dim` and the rest (Miyato et al., 2018).

    sigma = u^T W v, with u and v (buffers) moved by power iterations at every reading while training. dim: the axis of the
    outputs where None. Raises ValueError for a name that is not there and for n_power_iterations below 1.
    """
    weight = weight_of(module, name)
    return register_parametrization(
        module, name, _SpectralNorm(weight, n_power_iterations, output_axis(module, dim), eps)
    )
