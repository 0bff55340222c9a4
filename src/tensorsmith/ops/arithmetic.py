"""Elementwise operators composed of the scalar table: each is one kernel, and its gradient is derived from the composition
(or given, where a limit has to be stated)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import bool_, finfo, float64, get_default_dtype, int64
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.rules import float_result
from tensorsmith.ops.pointwise import OPERATORS, as_operand
from tensorsmith.ops.registry import TABLE as PUBLIC
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.scalar.table import TABLE, Fn
from tensorsmith.tensor.tensor import Tensor

m = build.map_


def _floating(x: Node) -> Node:
    return build.cast(x, float_result(x.dtype))


def _operand(name: str, value: Any, argument: str = "other") -> Any:
    found = as_operand(value)
    if found is None:
        raise TypeError(f"{name}(): argument '{argument}' must be Tensor or Number, not {type(value).__name__}")
    return found


# --- of one tensor ----------------------------------------------------------------------------------------------------


def _sinc(x: Node) -> Node:
    x = _floating(x)
    zero = m(Fn.EQ, x, 0)
    angle = build.where(zero, 1, x) * math.pi
    return build.where(zero, 1, m(Fn.SIN, angle) / angle)


def _sinc_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node]:
    x = inputs[0]
    zero = m(Fn.EQ, x, 0)
    safe = build.where(zero, 1, x)
    angle = safe * math.pi
    slope = (angle * m(Fn.COS, angle) - m(Fn.SIN, angle)) / (angle * safe)
    return [build.where(zero, 0, grads[0] * slope)]


def _round_decimals(x: Node, decimals: int) -> Node:
    if decimals == 0 or x.dtype.kind in "iub":
        return m(Fn.ROUND, x)
    scale = 10.0 ** abs(decimals)
    return m(Fn.ROUND, x * scale) / scale if decimals > 0 else m(Fn.ROUND, x / scale) * scale


def _zero_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], **attrs: Any) -> list[Node | None]:
    return [build.full(x.graph, x.shape, 0, x.dtype) if x.dtype.kind == "f" else None for x in inputs]


def _nan_to_num(x: Node, nan: float, posinf: float | None, neginf: float | None) -> Node:
    if x.dtype.kind != "f":
        return x.graph.add(Primitive.CAST, (x,), dtype=x.dtype)
    limits = finfo(x.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    found = build.where(m(Fn.ISNAN, x), nan, x)
    found = build.where(m(Fn.EQ, x, math.inf), high, found)
    return build.where(m(Fn.EQ, x, -math.inf), low, found)


def _logit(x: Node, eps: float | None) -> Node:
    x = _floating(x)
    if eps is not None:
        x = build.where(x < eps, eps, build.where(x > 1 - eps, 1 - eps, x))
    return m(Fn.LOG, x / (1 - x))


def _logit_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], eps: float | None) -> list[Node]:
    x, grad = inputs[0], grads[0]
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    outside = m(Fn.LOGICAL_OR, x < low, x > high)
    return [build.where(outside, math.nan if eps is None else 0, grad / (x * (1 - x)))]


def _angle(x: Node) -> Node:
    x = _floating(x)
    return build.where(m(Fn.ISNAN, x), x, build.where(x < 0, math.pi, build.full(x.graph, x.shape, 0, x.dtype)))


def _square(x: Node) -> Node:
    return x * x if x.dtype.kind != "b" else build.cast(x, int64) * build.cast(x, int64)


def _polygamma(x: Node, n: int) -> Node:
    x = _floating(x)
    if n == 0:
        return m(Fn.DIGAMMA, x)
    if n == 1:
        return TABLE[Fn.DIGAMMA].derivative(x, m(Fn.DIGAMMA, x))[0]
    reflected = x < 0.5
    z = build.where(reflected, 1 - x, x)
    value = hurwitz_zeta(z, n + 1) * float((-1) ** (n + 1) * math.factorial(n))
    # psi_n(1 - x) - (-1)^n psi_n(x) = (-1)^n pi d^n/dx^n cot(pi x), a polynomial in the cotangent (DLMF 5.15.6)
    angle = build.where(reflected, x, 0.25) * math.pi
    cotangent = m(Fn.COS, angle) / m(Fn.SIN, angle)
    slope = m(Fn.MUL, _horner(cotangent, _cotangent_derivative(n)), math.pi ** (n + 1))
    pole = m(Fn.LOGICAL_AND, reflected, m(Fn.EQ, x, m(Fn.FLOOR, x)))
    return build.where(pole, math.inf if n % 2 else math.nan, build.where(reflected, value * (-1.0) ** n - slope, value))


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
    x = _floating(x)
    total = m(Fn.LGAMMA, x)
    for j in range(1, p):
        total = total + m(Fn.LGAMMA, x - j / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)


def _unary(
    name: str, graph: Callable[..., Node], what: str, vjp: Any = None, *, inplace: bool = True,
    aliases: tuple[str, ...] = (), differentiable: bool = True, namespaces: tuple[str, ...] = (),
) -> Operator:  # fmt: skip
    operator = Operator(name, graph, vjp, pointwise=True)

    def function(input: Tensor) -> Tensor:  # noqa: A002
        try:
            entry = FAST.get((operator, input.layout))
        except AttributeError:
            need_tensor(name, input)
            raise
        if entry is not None:
            return entry(input)
        return call(operator, (need_tensor(name, input),), {})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    public("pointwise", aliases=aliases, out=True, differentiable=differentiable)(function)
    setattr(Tensor, name, function)
    for each in namespaces:
        public("pointwise", name=name, namespace=each, method=False, out=True, differentiable=differentiable)(function)
    if inplace:
        operation = InplaceOperation(operator)
        inplace_method(name, lambda self: operation(self))
    return operator


_unary("square", _square, "x * x.")
_unary("frac", lambda x: x - m(Fn.TRUNC, x), "What follows the point: x - trunc(x).")
_unary("deg2rad", lambda x: _floating(x) * (math.pi / 180), "Degrees in radians.")
_unary("rad2deg", lambda x: _floating(x) * (180 / math.pi), "Radians in degrees.")
_unary("sgn", lambda x: m(Fn.SIGN, x), "The sign: -1, 0 or 1.", _zero_vjp)
_unary("sinc", _sinc, "sin(pi x) / (pi x), 1 at 0.", _sinc_vjp, namespaces=("special",))
_unary(
    "signbit", lambda x: m(Fn.LT, m(Fn.COPYSIGN, 1.0, x), 0) if x.dtype.kind == "f" else m(Fn.LT, x, 0),
    "Whether the sign bit is set (it is for -0.0).", inplace=False, differentiable=False,
)  # fmt: skip
_unary("isposinf", lambda x: m(Fn.EQ, x, math.inf), "Whether +inf.", inplace=False, differentiable=False)
_unary("isneginf", lambda x: m(Fn.EQ, x, -math.inf), "Whether -inf.", inplace=False, differentiable=False)
_unary("angle", _angle, "The angle of a real number: pi below zero, else 0.", _zero_vjp, inplace=False)
_nan_operator = Operator("nan_to_num", _nan_to_num, pointwise=True)
_nan_in_place = InplaceOperation(_nan_operator)


@public("pointwise", out=True)
def nan_to_num(input: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:  # noqa: A002
    """NaN as `nan` (0), infinities as given or as the largest finite numbers."""
    return call(_nan_operator, (need_tensor("nan_to_num", input),), {"nan": nan or 0.0, "posinf": posinf, "neginf": neginf})


inplace_method(
    "nan_to_num",
    lambda self, nan=None, posinf=None, neginf=None: _nan_in_place(self, nan=nan or 0.0, posinf=posinf, neginf=neginf),
)
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
Tensor.polygamma = lambda self, n: _polygamma_function(n, self)  # type: ignore[assignment, method-assign]


@public("pointwise", out=True)
def mvlgamma(input: Tensor, p: int) -> Tensor:  # noqa: A002
    """The logarithm of the multivariate gamma function of dimension p."""
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    return call(_mvlgamma_operator, (need_tensor("mvlgamma", input),), {"p": int(p)})


public("pointwise", name="multigammaln", namespace="special", method=False)(mvlgamma)


@public("pointwise")
def positive(input: Tensor) -> Tensor:  # noqa: A002
    """The tensor itself; bool is refused."""
    if need_tensor("positive", input).dtype.kind == "b":
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


def _real_only(name: str, what: str) -> None:
    def function(input: Tensor) -> Tensor:  # noqa: A002
        if need_tensor(name, input).is_complex():
            raise NotImplementedError(f"{name}: complex numbers are not implemented")
        return input

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{what} of a real tensor: the tensor itself."
    public("pointwise", kind="view")(function)


for _name, _what in {
    "conj": "The conjugate", "conj_physical": "The conjugate", "real": "The real part", "resolve_conj": "The conjugate",
    "resolve_neg": "The value",
}.items():  # fmt: skip
    _real_only(_name, _what)


@public("pointwise", differentiable=False)
def isreal(input: Tensor) -> Tensor:  # noqa: A002
    """Whether each element is a real number."""
    if need_tensor("isreal", input).is_complex():
        raise NotImplementedError("isreal: complex numbers are not implemented")
    return input.new_ones(input.layout.shape, dtype=bool_)  # type: ignore[attr-defined]


# --- round with decimals, division with a rounding mode ---------------------------------------------------------------

_round_operator = Operator("round_decimals", _round_decimals, _zero_vjp, pointwise=True, node_name="Round")
_round_in_place = InplaceOperation(_round_operator)


def _with_decimals() -> None:
    plain, plain_ = OPERATORS[Fn.ROUND], InplaceOperation(OPERATORS[Fn.ROUND])

    def round_(input: Tensor, *, decimals: int = 0) -> Tensor:  # noqa: A002
        """Rounded to the nearest integer, ties to even, or to `decimals` digits after the point (before it if negative)."""
        if decimals == 0:
            return call(plain, (need_tensor("round", input),), {})
        return call(_round_operator, (need_tensor("round", input),), {"decimals": int(decimals)})

    public("pointwise", name="round", out=True)(round_)
    inplace_method(
        "round", lambda self, *, decimals=0: plain_(self) if not decimals else _round_in_place(self, decimals=int(decimals))
    )


_with_decimals()


def _trunc_divide(x: Any, y: Any) -> Node:
    dtype = build.promote([x, y])
    if dtype.kind == "f":
        return m(Fn.TRUNC, m(Fn.DIV, x, y))
    remainder = m(Fn.FMOD, x, y)  # of the sign of x, so that what is left divides exactly
    return m(Fn.FLOOR_DIVIDE, m(Fn.SUB, x, remainder), y)


_trunc_divide_operator = Operator("div_trunc", _trunc_divide, _zero_vjp, pointwise=True, node_name="Div")
_floor_divide_operator = Operator(
    "div_floor", lambda x, y: m(Fn.FLOOR_DIVIDE, x, y), _zero_vjp, pointwise=True, node_name="Div"
)
_DIVISIONS = {None: OPERATORS[Fn.DIV], "trunc": _trunc_divide_operator, "floor": _floor_divide_operator}
_DIVISIONS_IN_PLACE = {mode: InplaceOperation(operator, name="div_") for mode, operator in _DIVISIONS.items()}


def _division(mode: str | None) -> Operator:
    if mode not in _DIVISIONS:
        raise RuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{mode}'"
        )
    return _DIVISIONS[mode]


def _two(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    x, y = _operand(name, a, "input"), _operand(name, b)
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        from tensorsmith.ops.creation import tensor

        x = tensor(x)
    return x, y


@public("pointwise", aliases=("divide",), out=True)
def div(input: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:  # noqa: A002
    """input / other; with rounding_mode "trunc" or "floor" rounded towards zero or down, integers staying integers."""
    return call(_division(rounding_mode), _two("div", input, other), {})


def _div_in_place(self: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    _division(rounding_mode)
    return _DIVISIONS_IN_PLACE[rounding_mode](self, _operand("div_", other))


inplace_method("div", _div_in_place)
Tensor.divide_ = _div_in_place  # type: ignore[assignment, method-assign]


@public("pointwise", out=True)
def true_divide(input: Tensor, other: Any) -> Tensor:  # noqa: A002
    """input / other."""
    return call(OPERATORS[Fn.DIV], _two("true_divide", input, other), {})


inplace_method("true_divide", lambda self, other: _div_in_place(self, other))

# --- of two operands --------------------------------------------------------------------------------------------------


def _fmax(x: Any, y: Any) -> Node:
    dtype = build.promote([x, y])
    x, y = build.cast(x, dtype, build.graph_of([x, y])), build.cast(y, dtype, build.graph_of([x, y]))
    return build.where(m(Fn.LOGICAL_OR, x >= y, m(Fn.ISNAN, y)), x, y)


def _fmin(x: Any, y: Any) -> Node:
    dtype = build.promote([x, y])
    x, y = build.cast(x, dtype, build.graph_of([x, y])), build.cast(y, dtype, build.graph_of([x, y]))
    return build.where(m(Fn.LOGICAL_OR, x <= y, m(Fn.ISNAN, y)), x, y)


def _xlogy(x: Any, y: Any) -> Node:
    return _xlogy_of(x, y, Fn.LOG)


def _xlogy_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node]:
    x, y = inputs
    flat = m(Fn.LOGICAL_AND, m(Fn.EQ, x, 0), m(Fn.LE, y, 0))
    by_x = build.where(flat, 0, m(Fn.LOG, build.where(flat, 1, _floating(y) if isinstance(y, Node) else y)))
    return [grads[0] * by_x, grads[0] * m(Fn.DIV, x, y)]


def _xlog1py(x: Any, y: Any) -> Node:
    return _xlogy_of(x, y, Fn.LOG1P)


def _xlogy_of(x: Any, y: Any, log: Fn) -> Node:
    dtype = float_result(build.promote([x, y]))
    graph = build.graph_of([x, y])
    x, y = build.cast(x, dtype, graph), build.cast(y, dtype, graph)
    zero = m(Fn.EQ, x, 0)
    value = build.where(zero, 0, x * m(log, build.where(zero, 1, y)))
    return build.where(m(Fn.ISNAN, y), math.nan, value)


def _xlog1py_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node]:
    x, y = inputs
    flat = m(Fn.LOGICAL_AND, m(Fn.EQ, x, 0), m(Fn.LE, y, -1))
    by_x = build.where(flat, 0, m(Fn.LOG1P, build.where(flat, 1, y)))
    return [grads[0] * by_x, grads[0] * m(Fn.DIV, x, y + 1)]


def _float_power(x: Any, y: Any) -> Node:
    graph = build.graph_of([x, y])
    return m(Fn.POW, build.cast(x, float64, graph), build.cast(y, float64, graph))


def _heaviside(x: Any, y: Any) -> Node:
    dtype = build.promote([x, y])
    graph = build.graph_of([x, y])
    x, y = build.cast(x, dtype, graph), build.cast(y, dtype, graph)
    step = build.where(m(Fn.EQ, x, 0), y, build.cast(x > 0, dtype))
    return build.where(m(Fn.ISNAN, x), 0, step) if dtype.kind == "f" else step


def _ldexp(x: Any, y: Any) -> Node:
    two = build.graph_of([x, y]).constant(2.0, get_default_dtype())
    return m(Fn.MUL, x, m(Fn.POW, two, y))


def _logaddexp2(x: Any, y: Any) -> Node:
    return m(Fn.LOGADDEXP, m(Fn.MUL, x, math.log(2)), m(Fn.MUL, y, math.log(2))) / math.log(2)


def _rsub(x: Any, y: Any, alpha: Any) -> Node:
    return m(Fn.SUB, y, m(Fn.MUL, x, alpha) if alpha != 1 else x)


def _binary(
    name: str, graph: Callable[..., Node], what: str, vjp: Any = None, *, inplace: bool = True,
    namespaces: tuple[str, ...] = (), aliases: tuple[str, ...] = (), differentiable: bool = True, method: bool = True,
) -> Operator:  # fmt: skip
    operator = Operator(name, graph, vjp, pointwise=True)

    def function(input: Tensor, other: Any) -> Tensor:  # noqa: A002
        return call(operator, _two(name, input, other), {})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    if method:
        public("pointwise", out=True, aliases=aliases, differentiable=differentiable)(function)
    for each in namespaces:
        public("pointwise", name=name, namespace=each, method=False, out=True)(function)
    if inplace and method:
        operation = InplaceOperation(operator)
        inplace_method(name, lambda self, other: operation(self, _operand(name, other)))
    return operator


_binary("fmax", _fmax, "The larger of two; where one is NaN, the other.", inplace=False)
_binary("fmin", _fmin, "The smaller of two; where one is NaN, the other.", inplace=False)
_binary("xlogy", _xlogy, "x log(y), 0 where x is 0.", _xlogy_vjp, namespaces=("special",))
_binary("xlog1py", _xlog1py, "x log(1 + y), 0 where x is 0.", _xlog1py_vjp, namespaces=("special",), method=False)
_binary("float_power", _float_power, "x ** y in float64.", inplace=False)
_binary("heaviside", _heaviside, "0 below zero, 1 above, and the second operand at zero.", differentiable=False)
_binary("ldexp", _ldexp, "x * 2**y.")
_binary("logaddexp2", _logaddexp2, "log2(2**x + 2**y).", inplace=False)
_rsub_operator = Operator("rsub", _rsub, pointwise=True)


@public("pointwise")
def rsub(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:  # noqa: A002
    """other - alpha * input."""
    if need_tensor("rsub", input).dtype.kind == "b":
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the "
            "`~` or `logical_not()` operator instead."
        )
    return call(_rsub_operator, (input, _operand("rsub", other)), {"alpha": alpha})


# Names that the table of functions has under another one.
for _name, _alias in {
    "sigmoid": "expit", "erf": "erf", "erfc": "erfc", "erfinv": "erfinv",
    "exp2": "exp2", "expm1": "expm1", "log1p": "log1p", "round": "round", "digamma": "psi", "lgamma": "gammaln",
}.items():  # fmt: skip
    if f"special.{_alias}" not in PUBLIC:
        public("pointwise", name=_alias, namespace="special", method=False)(PUBLIC[_name].function)
