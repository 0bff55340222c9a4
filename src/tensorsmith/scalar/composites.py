"""Scalar functions composed of rows of the table: no row of their own, gradients derived.

Where one side of a `where` could overflow or leave its domain, its input is replaced there, so that neither the value
nor a gradient of the side not taken becomes infinite. Gradients at the corners are PyTorch's.
"""

import math
from typing import Any

from tensorsmith.scalar import functions as f

__all__ = [
    "square",
    "clamp",
    "hardtanh",
    "relu6",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "threshold",
    "elu",
    "celu",
    "selu",
    "silu",
    "gelu",
    "mish",
    "softsign",
    "logsigmoid",
    "tanhshrink",
    "hardshrink",
    "softshrink",
    "logit",
    "xlogy",
    "lerp",
    "logsumexp",
]


def square(x: Any) -> Any:
    """x squared."""
    return x * x


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """x held between min and max, either of which may be None; the gradient passes at the bounds themselves."""
    if min is None and max is None:
        raise ValueError("clamp: at least one of min and max must be given")
    if min is not None:
        x = f.where(f.lt(x, min), min, x)
    if max is not None:
        x = f.where(f.gt(x, max), max, x)
    return x


def hardtanh(x: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    """x held between the bounds, with gradient 0 at the bounds (unlike clamp)."""
    return f.where(f.le(x, min_val), min_val, f.where(f.ge(x, max_val), max_val, x))


def relu6(x: Any) -> Any:
    """min(max(x, 0), 6), with gradient 0 at 0 and at 6."""
    return hardtanh(x, 0.0, 6.0)


def hardsigmoid(x: Any) -> Any:
    """relu6(x + 3) / 6."""
    return f.div(relu6(x + 3.0), 6.0)


def hardswish(x: Any) -> Any:
    """x relu6(x + 3) / 6."""
    return f.where(f.le(x, -3.0), 0.0, f.where(f.ge(x, 3.0), x, f.div(x * (x + 3.0), 6.0)))


def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """x where positive, negative_slope x elsewhere."""
    return f.where(f.gt(x, 0), x, x * negative_slope)


def threshold(x: Any, threshold: Any, value: Any) -> Any:
    """x where above the threshold, the value elsewhere."""
    return f.where(f.le(x, threshold), value, x)


def elu(x: Any, alpha: Any = 1.0) -> Any:
    """x where positive, alpha (e**x - 1) elsewhere."""
    positive = f.gt(x, 0)
    return f.where(positive, x, f.expm1(f.where(positive, 0, x)) * alpha)


def celu(x: Any, alpha: Any = 1.0) -> Any:
    """x where positive, alpha (e**(x / alpha) - 1) elsewhere."""
    positive = f.gt(x, 0)
    return f.where(positive, x, f.expm1(f.div(f.where(positive, 0, x), alpha)) * alpha)


_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def selu(x: Any) -> Any:
    """The self-normalising elu of Klambauer et al. (2017)."""
    return elu(x, _SELU_ALPHA) * _SELU_SCALE


def silu(x: Any) -> Any:
    """x sigmoid(x), also called swish."""
    return x * f.sigmoid(x)


def gelu(x: Any, approximate: str = "none") -> Any:
    """x Phi(x), Phi the normal distribution: by erf, or by PyTorch's approximation with approximate="tanh"."""
    if approximate == "none":
        return x * 0.5 * (1 + f.erf(x * math.sqrt(0.5)))
    if approximate == "tanh":
        return x * 0.5 * (1 + f.tanh((x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)))
    raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")


def mish(x: Any) -> Any:
    """x tanh(softplus(x))."""
    return x * f.tanh(f.softplus(x))


def softsign(x: Any) -> Any:
    """x / (1 + |x|)."""
    return f.div(x, f.abs(x) + 1)


def logsigmoid(x: Any) -> Any:
    """log(sigmoid(x)), without overflow."""
    return -f.softplus(-x)


def tanhshrink(x: Any) -> Any:
    """x - tanh(x)."""
    return x - f.tanh(x)


def hardshrink(x: Any, lambd: Any = 0.5) -> Any:
    """x outside [-lambd, lambd], 0 inside."""
    return f.where(f.logical_and(f.ge(x, -lambd), f.le(x, lambd)), 0.0, x)


def softshrink(x: Any, lambd: Any = 0.5) -> Any:
    """x moved by lambd towards 0, 0 inside [-lambd, lambd]."""
    return f.where(f.gt(x, lambd), x - lambd, f.where(f.lt(x, -lambd), x + lambd, x * 0))


def logit(x: Any) -> Any:
    """log(x / (1 - x)), the inverse of sigmoid."""
    return f.log(f.div(x, 1 - x))


def xlogy(x: Any, y: Any) -> Any:
    """x log(y), and 0 where x is 0 (NaN where y is NaN)."""
    nothing = f.logical_and(f.eq(x, 0), f.logical_not(f.isnan(y)))
    return f.where(nothing, 0, x * f.log(f.where(nothing, 1, y)))


def lerp(start: Any, end: Any, weight: Any) -> Any:
    """start + weight (end - start)."""
    return start + weight * (end - start)


def logsumexp(*values: Any) -> Any:
    """log of the sum of e**value, for one or more values, without overflow."""
    if not values:
        raise ValueError("logsumexp: at least one value must be given")
    total = values[0]
    for value in values[1:]:
        total = f.logaddexp(total, value)
    return total
