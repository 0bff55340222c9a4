"""Activations as modules: each is the function of the same name in `nn.functional`, with its arguments kept."""

from __future__ import annotations

import warnings
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.nn import functional as F, init as initialisation
from tensorsmith.nn.linear import new_parameter
from tensorsmith.nn.module import Module
from tensorsmith.tensor.tensor import Tensor


class _Activation(Module):
    """Keeps its arguments as attributes and shows them; `inplace` only where it is set."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self._arguments = tuple(arguments)
        for name, value in arguments.items():
            setattr(self, name, value)

    def extra_repr(self) -> str:
        shown = [name for name in self._arguments if name != "inplace" or self.inplace]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)


class ReLU(_Activation):
    """max(x, 0)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return F.relu(input, inplace=self.inplace)


class ReLU6(_Activation):
    """min(max(x, 0), 6)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.relu6(input, inplace=self.inplace)


class Hardtanh(_Activation):
    """x held between min_val and max_val."""

    def __init__(
        self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False, min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:  # fmt: skip
        for name, older in (("min_val", min_value), ("max_val", max_value)):
            if older is not None:
                warnings.warn(
                    f"keyword argument `{name}ue` is deprecated and rename to `{name}`", FutureWarning, stacklevel=2
                )
        min_val, max_val = (new if old is None else old for new, old in ((min_val, min_value), (max_val, max_value)))
        if max_val <= min_val:
            raise AssertionError(f"max_val ({max_val}) must be greater than min_val ({min_val})")
        super().__init__(min_val=min_val, max_val=max_val, inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.hardtanh(input, self.min_val, self.max_val, inplace=self.inplace)


class LeakyReLU(_Activation):
    """x where positive, negative_slope x elsewhere."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(negative_slope=negative_slope, inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.leaky_relu(input, self.negative_slope, inplace=self.inplace)


class ELU(_Activation):
    """x where positive, alpha (e^x - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(alpha=alpha, inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.elu(input, self.alpha, inplace=self.inplace)


class SELU(_Activation):
    """scale (x where positive, alpha (e^x - 1) elsewhere), with the constants of Klambauer et al. (2017)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.selu(input, inplace=self.inplace)


class CELU(_Activation):
    """x where positive, alpha (e^(x / alpha) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(alpha=alpha, inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.celu(input, self.alpha, inplace=self.inplace)


class GELU(_Activation):
    """x Phi(x), Phi the normal distribution function; approximate="tanh" for the usual approximation."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(approximate=approximate)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.gelu(input, approximate=self.approximate)


class SiLU(_Activation):
    """x sigmoid(x)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.silu(input, inplace=self.inplace)


class Mish(_Activation):
    """x tanh(softplus(x))."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.mish(input, inplace=self.inplace)


class Sigmoid(_Activation):
    """1 / (1 + e^-x)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.sigmoid(input)


class Tanh(_Activation):
    """(e^x - e^-x) / (e^x + e^-x)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.tanh(input)


class Softplus(_Activation):
    """log(1 + e^(beta x)) / beta; x itself where beta x exceeds threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__(beta=beta, threshold=threshold)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.softplus(input, self.beta, self.threshold)


class Softshrink(_Activation):
    """x moved towards 0 by lambd, 0 between -lambd and lambd."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__(lambd=lambd)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(_Activation):
    """x, but 0 between -lambd and lambd."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__(lambd=lambd)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Tanhshrink(_Activation):
    """x - tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.tanhshrink(input)


class Softsign(_Activation):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.softsign(input)


class Hardsigmoid(_Activation):
    """min(max(x / 6 + 1/2, 0), 1)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.hardsigmoid(input, inplace=self.inplace)


class Hardswish(_Activation):
    """x hardsigmoid(x)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.hardswish(input, inplace=self.inplace)


class LogSigmoid(_Activation):
    """log(1 / (1 + e^-x))."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.logsigmoid(input)


class Threshold(_Activation):
    """x where x > threshold, value elsewhere."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(threshold=threshold, value=value, inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.threshold(input, self.threshold, self.value, inplace=self.inplace)


class Softmax(_Activation):
    """e^x / sum(e^x) along dim."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__(dim=dim)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.softmax(input, dim=self.dim)


class LogSoftmax(_Activation):
    """x - log(sum(e^x)) along dim."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__(dim=dim)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.log_softmax(input, dim=self.dim)


class Softmin(_Activation):
    """e^-x / sum(e^-x) along dim."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__(dim=dim)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.softmin(input, dim=self.dim)


class GLU(_Activation):
    """a sigmoid(b), with a and b the halves of x along dim."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.glu(input, dim=self.dim)


class PReLU(Module):
    """x where positive, weight x elsewhere; the slope is learned, one for all channels or one for each (axis 1).

    Initialisation: `init` everywhere.
    """

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = new_parameter((num_parameters,), dtype, device)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The slope `init` everywhere."""
        initialisation.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class Softmax2d(Module):
    """Softmax over the channels of (N, C, H, W) or (C, H, W). Raises ValueError for another number of axes."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return F.softmax(input, -3)


class RReLU(_Activation):
    """x where positive, a x elsewhere: a is drawn from U(lower, upper) while training, their mean in evaluation."""

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__(lower=lower, upper=upper, inplace=inplace)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)
