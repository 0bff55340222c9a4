"""Initialisation: tensors filled in place, without being recorded, with PyTorch's distributions.

fan_in of a weight (out, in, *kernel) is in x kernel elements, fan_out is out x kernel elements.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensorsmith.ops.creation import array_of, copy_array
from tensorsmith.ops.random import rand
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor

_LINEAR = {
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid",
}  # fmt: skip


_skipping = False


@contextmanager
def skipped() -> Iterator[None]:
    """Within it tensors stay as they are: for modules whose weights are loaded at once (`nn.utils.skip_init`)."""
    global _skipping
    before, _skipping = _skipping, True
    try:
        yield
    finally:
        _skipping = before


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance through a non-linearity: relu sqrt(2), leaky_relu sqrt(2 / (1 + a^2)).

    param: the negative slope of leaky_relu (0.01 where not given). ValueError for an unknown name.
    """
    if nonlinearity in _LINEAR:
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, int | float):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity == "selu":
        return 3.0 / 4
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """U(a, b)."""
    return tensor if _skipping else tensor.uniform_(a, b, generator=generator)


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """N(mean, std^2)."""
    return tensor if _skipping else tensor.normal_(mean, std, generator=generator)


@no_grad()
def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any = None
) -> Tensor:
    """N(mean, std^2) cut to [a, b]: x = mean + std sqrt(2) erfinv(u), with u uniform between the cuts' quantiles."""
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of "
            "values may be incorrect.",
            stacklevel=3,
        )

    if _skipping:
        return tensor

    def below(x: float) -> float:
        return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0

    low, high = below((a - mean) / std), below((b - mean) / std)
    tensor.uniform_(2 * low - 1, 2 * high - 1, generator=generator)
    tensor.erfinv_().mul_(std * math.sqrt(2.0)).add_(mean)
    return tensor.clamp_(a, b)


@no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """One value everywhere."""
    return tensor if _skipping else tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return constant_(tensor, 0.0)


@no_grad()
def eye_(tensor: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix, zeros elsewhere. ValueError for a tensor that is no matrix."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    return tensor.copy_(copy_array(np.eye(*tensor.shape), tensor.dtype))


def calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight. ValueError for fewer than two axes."""
    if tensor.ndim < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    kernel = math.prod(tensor.shape[2:])
    return tensor.shape[1] * kernel, tensor.shape[0] * kernel


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """U(-a, a) with a = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6.0 / sum(calculate_fan_in_and_fan_out(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """N(0, std^2) with std = gain sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(calculate_fan_in_and_fan_out(tensor))), generator)


def _fan(tensor: Tensor, mode: str) -> int:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return calculate_fan_in_and_fan_out(tensor)[mode == "fan_out"]


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    return calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))


def _is_empty(tensor: Tensor) -> bool:
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return True
    return False


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    """U(-b, b) with b = gain sqrt(3 / fan), gain that of the non-linearity with slope a (He et al., 2015)."""
    if _is_empty(tensor):
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    """N(0, std^2) with std = gain / sqrt(fan) (He et al., 2015)."""
    if _is_empty(tensor):
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


@no_grad()
def orthogonal_(tensor: Tensor, gain: float = 1, generator: Any = None) -> Tensor:
    """A (semi-)orthogonal matrix times gain: Q of the QR decomposition of a normal matrix (Saxe et al., 2013).

    More than two axes: the trailing ones are taken together. ValueError for fewer.
    """
    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if tensor.numel() == 0 or _skipping:
        return tensor
    normal_(tensor, 0.0, 1.0, generator)
    rows = tensor.shape[0]
    flat = array_of(tensor).astype(np.float64).reshape(rows, -1)
    wide = flat.shape[0] < flat.shape[1]
    q, r = np.linalg.qr(flat.T if wide else flat)
    q *= np.sign(np.diag(r))  # makes Q uniform over the orthogonal group
    q = q.T if wide else q
    return tensor.copy_(copy_array(np.ascontiguousarray(gain * q).reshape(tensor.shape), tensor.dtype))


@no_grad()
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A convolution's weight (out, in, *kernel) that keeps its inputs: 1 at the middle of the kernel from channel d to d.

    groups: the same in every group of outputs. ValueError for another number of axes than 3, 4 or 5, and for groups that do
    not divide the outputs.
    """
    if tensor.ndim not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    outputs, inputs, *kernel = tensor.shape
    if outputs % groups:
        raise ValueError("dim 0 must be divisible by groups")
    values = np.zeros(tuple(tensor.shape))
    each = outputs // groups
    for channel in range(min(each, inputs)):
        values[(slice(channel, None, each), channel, *(n // 2 for n in kernel))] = 1
    return tensor.copy_(copy_array(values, tensor.dtype))


@no_grad()
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """N(0, std^2), with a share of every column, rounded up, set to zero (Martens, 2010). ValueError for no matrix."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    normal_(tensor, 0.0, std, generator)
    order = array_of(rand(rows, columns, generator=generator)).argsort(0)
    kept = np.ones((rows, columns))
    np.put_along_axis(kept, order[:zeros], 0.0, 0)
    return tensor.mul_(copy_array(kept, tensor.dtype, tensor.layout.device))


def _older(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The name without the underscore, which warns."""
    name = function.__name__

    @functools.wraps(function)
    def renamed(*args: Any, **kwargs: Any) -> Tensor:
        warnings.warn(
            f"`nn.init.{name[:-1]}` is now deprecated in favor of `nn.init.{name}`.", FutureWarning, stacklevel=2
        )
        return function(*args, **kwargs)

    return renamed


uniform, normal, constant, eye, dirac = (_older(each) for each in (uniform_, normal_, constant_, eye_, dirac_))
xavier_uniform, xavier_normal = _older(xavier_uniform_), _older(xavier_normal_)
kaiming_uniform, kaiming_normal = _older(kaiming_uniform_), _older(kaiming_normal_)
orthogonal, sparse = _older(orthogonal_), _older(sparse_)
