"""Special functions composed of the scalar table: sinc, logit, polygamma, the multivariate gamma function, x log y."""

from __future__ import annotations

import math
from typing import Any

from tensorsmith.eager.dispatch import call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.pointwise_composites import as_one_floating, binary, floating, unary
from tensorsmith.ops.registry import TABLE as PUBLIC, inplace_method, need_tensor, public
from tensorsmith.scalar.table import TABLE, Fn
from tensorsmith.tensor.tensor import Tensor

m = build.map_


def _sinc(x: Node) -> Node:
    x = floating(x)
    zero = m(Fn.EQ, x, 0)
    angle = build.where(zero, 1, x) * math.pi
    return build.where(zero, 1, m(Fn.SIN, angle) / angle)


def _sinc_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node]:
    # (cos a - sin a / a) / x with a = pi x; near 0, where the difference cancels, its Taylor series in a**2.
    x = inputs[0]
    angle = x * math.pi
    square = angle * angle
    near = (m(Fn.ABS, square) if square.dtype.is_complex else square) < 0.25
    away, a = build.where(near, 1, x), build.where(near, math.pi, angle)
    slope = (m(Fn.COS, a) - m(Fn.SIN, a) / a) / away
    series = _horner(build.where(near, square, 0), [-1 / 3, 1 / 30, -1 / 840, 1 / 45360, -1 / 3991680, 1 / 518918400])
    return [grads[0] * build.conj(build.where(near, angle * (series * math.pi), slope))]


def _logit(x: Node, eps: float | None) -> Node:
    x = floating(x)
    if eps is not None:
        x = build.where(x < eps, eps, build.where(x > 1 - eps, 1 - eps, x))
    return m(Fn.LOG, x / (1 - x))


def _logit_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], eps: float | None) -> list[Node]:
    x, grad = inputs[0], grads[0]
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    outside = m(Fn.LOGICAL_OR, x < low, x > high)
    return [build.where(outside, math.nan if eps is None else 0, grad / (x * (1 - x)))]


def _polygamma(x: Node, n: int) -> Node:
    x = floating(x)
    if n == 0:
        return m(Fn.DIGAMMA, x)
    if n == 1:
        return TABLE[Fn.DIGAMMA].derivative(x, m(Fn.DIGAMMA, x))[0]
    reflected = x < 0.5
    z = build.where(reflected, 1 - x, x)
    value = hurwitz_zeta(z, n + 1) * float((-1) ** (n + 1) * math.factorial(n))
    # psi_n(1 - x) - (-1)^n psi_n(x) = (-1)^n pi d^n/dx^n cot(pi x), a polynomial in the cotangent (DLMF 5.15.6)
    turn = build.where(reflected, x - m(Fn.ROUND, x), 0.25)  # what is left of the period is exact, and so is cot at a half
    cotangent = m(Fn.SIN, (0.5 - m(Fn.ABS, turn)) * math.pi) / m(Fn.SIN, turn * math.pi)
    slope = m(Fn.MUL, _horner(cotangent, _cotangent_derivative(n)), math.pi ** (n + 1))
    pole = m(Fn.LOGICAL_AND, reflected, m(Fn.EQ, x, m(Fn.FLOOR, x)))
    return build.where(
        pole, math.inf if n % 2 else -math.inf, build.where(reflected, value * (-1.0) ** n - slope, value)
    )


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)
_HEAD = 10  # terms summed before the asymptotic series


def hurwitz_zeta(a: Node, s: int) -> Node:
    """sum of (a + k)^-s over k >= 0, for a > 0 and an integer s >= 2: Euler and Maclaurin after ten terms."""
    total: Node | None = None
    for k in range(_HEAD):
        term = m(Fn.POW, a + float(k), float(-s))
        total = term if total is None else total + term
    assert total is not None
    w = a + float(_HEAD)
    base = m(Fn.POW, w, float(-s))
    total = total + base * w / float(s - 1) + base * 0.5
    inverse = m(Fn.RECIPROCAL, w)
    factor, power = float(s), base * inverse
    for j, bernoulli in enumerate(_BERNOULLI, start=1):
        total = total + power * (bernoulli * factor / math.factorial(2 * j))
        factor *= (s + 2 * j - 1) * (s + 2 * j)
        power = power * inverse * inverse
    return total


def _cotangent_derivative(n: int) -> list[float]:
    """Coefficients of the n-th derivative of cot, as a polynomial in cot."""
    coefficients = [0.0, 1.0]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(coefficients)][1:]
        following = [0.0] * (len(slope) + 2)
        for k, c in enumerate(slope):  # d/dx p(cot) = -(1 + cot^2) p'(cot)
            following[k] -= c
            following[k + 2] -= c
        coefficients = following
    return coefficients


def _horner(x: Node, coefficients: list[float]) -> Node:
    total = x * 0.0 + coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _polygamma_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], n: int) -> list[Node]:
    return [grads[0] * _polygamma(inputs[0], n + 1)]


def _mvlgamma(x: Node, p: int) -> Node:
    x = floating(x)
    total = m(Fn.LGAMMA, x)
    for j in range(1, p):
        total = total + m(Fn.LGAMMA, x - j / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)


def _entr(x: Node) -> Node:
    x = floating(x)
    safe = build.where(x > 0, x, 1)
    inside = build.where(m(Fn.EQ, x, 0), 0, build.where(x > 0, -x * m(Fn.LOG, safe), -math.inf))
    return build.where(m(Fn.ISNAN, x), x, inside)


def _xlogy(x: Any, y: Any) -> Node:
    return _xlogy_of(x, y, Fn.LOG)


def _xlogy_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node]:
    x, y = as_one_floating(*inputs)
    flat = m(Fn.LOGICAL_AND, m(Fn.EQ, x, 0), m(Fn.LE, y, 0))
    by_x = build.where(flat, 0, m(Fn.LOG, build.where(flat, 1, y)))
    return [grads[0] * by_x, grads[0] * m(Fn.DIV, x, y)]


def _xlog1py(x: Any, y: Any) -> Node:
    return _xlogy_of(x, y, Fn.LOG1P)


def _xlogy_of(x: Any, y: Any, log: Fn) -> Node:
    x, y = as_one_floating(x, y)
    zero = m(Fn.EQ, x, 0)
    value = build.where(zero, 0, x * m(log, build.where(zero, 1, y)))
    return build.where(m(Fn.ISNAN, y), math.nan, value)


def _xlog1py_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node]:
    x, y = as_one_floating(*inputs)
    flat = m(Fn.LOGICAL_AND, m(Fn.EQ, x, 0), m(Fn.LE, y, -1))
    by_x = build.where(flat, 0, m(Fn.LOG1P, build.where(flat, 1, y)))
    return [grads[0] * by_x, grads[0] * m(Fn.DIV, x, y + 1)]


unary("sinc", _sinc, "sin(pi x) / (pi x), 1 at 0.", _sinc_vjp, namespaces=("special",))
binary("xlogy", _xlogy, "x log(y), 0 where x is 0.", _xlogy_vjp, namespaces=("special",))
binary("xlog1py", _xlog1py, "x log(1 + y), 0 where x is 0.", _xlog1py_vjp, namespaces=("special",), method=False)
unary("entr", _entr, "-x log(x), 0 at 0 and -inf below.", inplace=False, namespaces=("special",), method=False)
unary(
    "ndtr", lambda x: m(Fn.ERFC, floating(x) * -math.sqrt(0.5)) * 0.5, "The normal distribution function.",
    inplace=False, namespaces=("special",), method=False,
)  # fmt: skip
_logit_operator = Operator("logit", _logit, _logit_vjp, pointwise=True)
_logit_in_place = InplaceOperation(_logit_operator)


@public("pointwise", out=True)
def logit(input: Tensor, eps: float | None = None) -> Tensor:  # noqa: A002
    """log(x / (1 - x)), with x first moved into [eps, 1 - eps] where eps is given."""
    return call(_logit_operator, (need_tensor("logit", input),), {"eps": eps})


public("pointwise", name="logit", namespace="special", method=False)(logit)
inplace_method("logit", lambda self, eps=None: _logit_in_place(self, eps=eps))
_polygamma_operator = Operator("polygamma", _polygamma, _polygamma_vjp, pointwise=True)
_mvlgamma_operator = Operator("mvlgamma", _mvlgamma, pointwise=True)


def _polygamma_function(n: int, input: Tensor) -> Tensor:  # noqa: A002
    """The n-th derivative of digamma."""
    if n < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    return call(_polygamma_operator, (need_tensor("polygamma", input, "input", 2),), {"n": n})


public("pointwise", name="polygamma", method=False, out=True)(_polygamma_function)
public("pointwise", name="polygamma", namespace="special", method=False, out=True)(_polygamma_function)
Tensor.polygamma = lambda self, n: _polygamma_function(n, self)  # type: ignore[method-assign]


@public("pointwise", out=True)
def mvlgamma(input: Tensor, p: int) -> Tensor:  # noqa: A002
    """The logarithm of the multivariate gamma function of dimension p."""
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    return call(_mvlgamma_operator, (need_tensor("mvlgamma", input),), {"p": int(p)})


public("pointwise", name="multigammaln", namespace="special", method=False)(mvlgamma)

# Names that the table of functions has under another one.
for _name, _alias in {
    "sigmoid": "expit", "erf": "erf", "erfc": "erfc", "erfinv": "erfinv",
    "exp2": "exp2", "expm1": "expm1", "log1p": "log1p", "round": "round", "digamma": "psi", "lgamma": "gammaln",
    "softmax": "softmax", "log_softmax": "log_softmax", "logsumexp": "logsumexp",
}.items():  # fmt: skip
    if f"special.{_alias}" not in PUBLIC:
        public(PUBLIC[_name].family, name=_alias, namespace="special", method=False)(PUBLIC[_name].function)
public("pointwise", name="digamma", namespace="special", method=False)(PUBLIC["digamma"].function)
