"""The modified Bessel functions of order 0 and 1, plain and scaled by exp(-|x|): one kernel from Cephes' Chebyshev series.

    i0e(x) = S(|x|/2 - 2) up to 8, S(32/|x| - 2) / sqrt|x| beyond          i0(x) = exp|x| i0e(x)
    d i0 = i1          d i0e = i1e - sign(x) i0e          d i1 = i0 - i1 / x          d i1e = i0e - i1e (sign(x) + 1/x)

In float32 terms below 1e-9 are left out; error at most 4 ulp (float32, half precision in float32) and 8 ulp (float64).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorsmith.core.dtypes import float64
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.pointwise_composites import floating, unary
from tensorsmith.scalar.bessel_series import I0_LARGE, I0_SMALL, I1_LARGE, I1_SMALL
from tensorsmith.scalar.table import Fn

m = build.map_


def _chebyshev(x: Node, coefficients: Sequence[float]) -> Node:
    """The series at x, highest term first and the constant counted half (Clenshaw)."""
    least = 0.0 if x.dtype is float64 else 1e-9
    terms = list(coefficients)
    while abs(terms[0]) < least:
        terms.pop(0)
    last: Node | None = None
    before: Node | None = None
    now: Node | float = terms[0]
    for c in terms[1:]:
        following = x * now + c if before is None else x * now - before + c
        now, before, last = following, now if isinstance(now, Node) else build.full(x.graph, x.shape, now, x.dtype), before
    assert isinstance(now, Node) and last is not None
    return (now - last) * 0.5


def _scaled(size: Node, small: Sequence[float], large: Sequence[float], odd: bool) -> Node:
    """exp(-size) I(size) for size >= 0. Each side is given arguments at which it is finite."""
    near = size <= 8
    inner = _chebyshev(build.where(near, size, 8) * 0.5 - 2, small)
    outside = build.where(near, 8, size)
    outer = _chebyshev(32 / outside - 2, large) / m(Fn.SQRT, outside)
    return build.where(near, inner * size if odd else inner, outer)


def _i0e(x: Node) -> Node:
    return _scaled(m(Fn.ABS, x), I0_SMALL, I0_LARGE, False)


def _i1e(x: Node) -> Node:
    return m(Fn.COPYSIGN, _scaled(m(Fn.ABS, x), I1_SMALL, I1_LARGE, True), x)


def _grown(x: Node, scaled: Node) -> Node:
    """exp|x| times a scaled function; infinite where |x| is."""
    size = m(Fn.ABS, x)
    value = m(Fn.EXP, size) * scaled
    return build.where(m(Fn.EQ, size, math.inf), m(Fn.COPYSIGN, math.inf, scaled), value)


def _i0(x: Node) -> Node:
    return _grown(x, _i0e(x))


def _i1(x: Node) -> Node:
    return _grown(x, _i1e(x))


def _over(y: Node, x: Node) -> Node:
    """y / x for an odd function of slope 1/2 at 0, where its limit is taken."""
    zero = m(Fn.EQ, x, 0)
    return build.where(zero, 0.5, y / build.where(zero, 1, x))


_SLOPES = {
    "i0": lambda x, y: _i1(x),
    "i0e": lambda x, y: _i1e(x) - m(Fn.SIGN, x) * y,
    "i1": lambda x, y: _i0(x) - _over(y, x),
    "i1e": lambda x, y: _i0e(x) - m(Fn.SIGN, x) * y - _over(y, x),
}


def _enter(name: str, formula: object, what: str) -> None:
    def graph(x: Node) -> Node:
        x = floating(x)
        return build.cast(formula(build.wide(x)), x.dtype)  # type: ignore[operator]

    def vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node]:
        x = build.wide(floating(inputs[0]))
        slope = _SLOPES[name](x, build.wide(outputs[0]))
        return [build.cast(build.wide(grads[0]) * slope, grads[0].dtype)]

    plain = name == "i0"
    unary(name, graph, what, vjp, inplace=plain, method=plain, namespaces=("special",))


_enter("i0", _i0, "The modified Bessel function of order 0.")
_enter("i0e", _i0e, "The modified Bessel function of order 0, times exp(-|x|).")
_enter("i1", _i1, "The modified Bessel function of order 1.")
_enter("i1e", _i1e, "The modified Bessel function of order 1, times exp(-|x|).")
