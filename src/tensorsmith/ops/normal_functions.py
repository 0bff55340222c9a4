"""erfcx, and of the normal distribution the logarithm of its distribution function and its quantile: one kernel each.

    erfcx(x) = P(t) / (1 + 2 a) with a = |x|, t = (a - k) / (a + k); below 0 it is 2 e**(x**2) less that
    log_ndtr(x) = log(R) - x**2 / 2 below 0, R = erfcx(|x| / sqrt 2) / 2, and log(1 - R e**(-x**2 / 2)) above
    ndtri(p): rational in p - 1/2 near the middle, in sqrt(-log(min(p, 1 - p))) beyond

    d erfcx = 2 x erfcx - 2 / sqrt pi    d log_ndtr = sqrt(2 / pi) / erfcx(-x / sqrt 2)    d ndtri = sqrt(2 pi) e**(out**2 / 2)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tensorsmith.core.dtypes import float64, type_name
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.pointwise_composites import floating
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.scalar.normal_series import ERFCX, ERFCX_SHORT, QUANTILE_CENTRE, QUANTILE_FAR, QUANTILE_NEAR, Ratio
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor

m = build.map_


def _horner(x: Node, coefficients: Sequence[float]) -> Node:
    total = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        total = total * x + coefficient
    return total


def _exp_of_square(x: Node, factor: float) -> Node:
    """e**(factor x**2), with what the rounded square lost: x = head + tail, the head's square exact."""
    square = x * x
    wide = x * (134217729.0 if x.dtype is float64 else 4097.0)
    head = wide - (wide - x)
    tail = x - head
    lost = (head * head - square) + head * tail * 2 + tail * tail
    return m(Fn.EXP, square * factor) * (lost * factor + 1)


def _at_most(x: Node, bound: float) -> Node:
    return build.where(x > bound, bound, x)


def _erfcx_above(a: Node) -> Node:
    """erfcx for a >= 0."""
    wide = a.dtype is float64
    k = 4.0 if wide else 2.0
    t = 1 - 2 * k / (a + k)
    return _horner(t, ERFCX if wide else ERFCX_SHORT) / (a * 2 + 1)


def _erfcx(x: Node) -> Node:
    size = m(Fn.ABS, x)
    above = _erfcx_above(size)
    finite = _at_most(size, 27.0 if x.dtype is float64 else 10.0)  # below, it is infinite from there on
    return build.where(x < 0, _exp_of_square(finite, 1.0) * 2 - above, above)


def _log_ndtr(x: Node) -> Node:
    size = m(Fn.ABS, x)
    ratio = _erfcx_above(size * math.sqrt(0.5)) * 0.5
    upper = ratio * _exp_of_square(_at_most(size, 40.0), -0.5)
    rest = 1 - upper
    lost = ((1 - rest) - upper) / rest  # exact but for the division: log(1 - upper) = log(rest) + lost
    below = x < 0
    return m(Fn.LOG, build.where(below, ratio, rest)) + build.where(below, x * x * -0.5, lost)


def _ndtri(p: Node) -> Node:
    q = p - 0.5
    middle = m(Fn.ABS, q) <= 0.425
    tail = build.where(q < 0, p, 1 - p)
    r = m(Fn.SQRT, -m(Fn.LOG, tail))
    near = r <= 5
    inside, beside, outside = -(q * q) + 0.180625, r - 1.6, r - 5

    def part(number: int) -> Node:
        def of(ratio: Ratio, x: Node) -> Node:
            return _horner(x, ratio[number])

        return build.where(middle, of(QUANTILE_CENTRE, inside),
                           build.where(near, of(QUANTILE_NEAR, beside), of(QUANTILE_FAR, outside)))  # fmt: skip

    size = part(0) / part(1)
    value = build.where(middle, q * size, m(Fn.COPYSIGN, size, q))
    return build.where(m(Fn.EQ, tail, 0), m(Fn.COPYSIGN, math.inf, q), value)


_SLOPES: dict[str, Callable[[Node, Node], Node]] = {
    "erfcx": lambda x, y: x * y * 2 - 2 / math.sqrt(math.pi),
    "log_ndtr": lambda x, y: math.sqrt(2 / math.pi) / _erfcx(x * -math.sqrt(0.5)),
    "ndtri": lambda p, x: m(Fn.EXP, x * x * 0.5) * math.sqrt(2 * math.pi),
}


def _enter(name: str, formula: Callable[[Node], Node], what: str) -> None:
    def vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node]:
        return [grads[0] * _SLOPES[name](floating(inputs[0]), outputs[0])]

    operator = Operator(name, lambda x: formula(floating(x)), vjp, pointwise=True)

    def function(input: Tensor) -> Tensor:  # noqa: A002
        x = need_tensor(f"special_{name}", input)
        if x.dtype.is_half or x.dtype.kind == "c":
            raise NotImplementedError(f'"{name}_cpu" not implemented for \'{type_name(x.dtype)}\'')
        return call(operator, (x,), {})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{what} float32 and float64; integers in the default dtype."
    public("pointwise", namespace="special", method=False, out=True)(function)


_enter("erfcx", _erfcx, "exp(x**2) erfc(x), which does not underflow.")
_enter("log_ndtr", _log_ndtr, "The logarithm of the normal distribution function.")
_enter("ndtri", _ndtri, "The inverse of the normal distribution function: NaN outside [0, 1].")
