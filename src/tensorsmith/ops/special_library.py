"""Special functions that NumPy routines compute in float64 (`targets/reference/special.py`).

Those that PyTorch does not differentiate are not here either: their results do not require gradients, as there. The
derivatives of igamma by its first argument and of zeta by its exponent are missing in PyTorch too: asking for one raises.
"""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import type_name
from tensorsmith.core.shapes import broadcast_shapes
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.library_gradients import UNDIFFERENTIATED
from tensorsmith.ops.pointwise_composites import as_one_floating, floating, number_or_tensor, two_operands
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.tensor.tensor import Tensor


def _library(name: str, *operands: Node) -> Node:
    first = operands[0]
    return first.graph.add(Primitive.LIBRARY, operands, name=name, shape=first.shape, dtype=first.dtype)


# --- of one tensor ----------------------------------------------------------------------------------------------------


def _no_halves(name: str, x: Tensor) -> None:
    if x.dtype.is_half or x.dtype.kind == "c":
        raise NotImplementedError(f'"{name}_cpu" not implemented for \'{type_name(x.dtype)}\'')


def _of_one(name: str, what: str) -> None:
    operator = Operator(name, lambda x: _library(name, floating(x)), pointwise=True)
    smooth = name not in UNDIFFERENTIATED

    def function(input: Tensor) -> Tensor:  # noqa: A002
        _no_halves(name, need_tensor(f"special_{name}", input))
        return call(operator, (input if smooth else input.detach(),), {})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{what} float32 and float64; integers in the default dtype."
    public(
        "pointwise", namespace="special", method=False, kind="library", out=True, differentiable=smooth
    )(function)


_of_one("airy_ai", "The Airy function Ai.")
_of_one("bessel_j0", "The Bessel function of the first kind of order 0.")
_of_one("bessel_j1", "The Bessel function of the first kind of order 1.")
_of_one("bessel_y0", "The Bessel function of the second kind of order 0: -inf at 0, NaN below.")
_of_one("bessel_y1", "The Bessel function of the second kind of order 1: -inf at 0, NaN below.")
_of_one("modified_bessel_i0", "The modified Bessel function of the first kind of order 0.")
_of_one("modified_bessel_i1", "The modified Bessel function of the first kind of order 1.")
_of_one("modified_bessel_k0", "The modified Bessel function of the second kind of order 0: inf at 0, NaN below.")
_of_one("modified_bessel_k1", "The modified Bessel function of the second kind of order 1: inf at 0, NaN below.")
_of_one("scaled_modified_bessel_k0", "exp(x) times the modified Bessel function of the second kind of order 0.")
_of_one("scaled_modified_bessel_k1", "exp(x) times the modified Bessel function of the second kind of order 1.")
_of_one("spherical_bessel_j0", "sin(x) / x: the spherical Bessel function of order 0.")

# --- of two operands --------------------------------------------------------------------------------------------------


def _pair(name: str, x: Any, y: Any) -> Node:
    x, y = as_one_floating(x, y)
    shape = broadcast_shapes(x.shape, y.shape)
    return _library(name, build.broadcast_to(x, shape), build.broadcast_to(y, shape))


def _two(name: str, operator: Operator, input: Any, other: Any, halves: bool) -> Tensor:  # noqa: A002
    x, y = two_operands(name, input, other)
    for each in (x, y):
        if isinstance(each, Tensor) and not halves:
            _no_halves(name, each)
    return call(operator, (x, y), {})


def _of_two(name: str, what: str) -> None:
    operator = Operator(name, lambda x, y: _pair(name, x, y), pointwise=True)

    def function(input: Tensor, other: Any) -> Tensor:  # noqa: A002
        return _two(name, operator, input, other, name != "zeta")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    if name == "zeta":
        public("pointwise", namespace="special", method=False, kind="library", out=True)(function)
        return

    def gamma(input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
        x, y = need_tensor(name, input), need_tensor(name, other, "other", 2)
        if x.dtype.kind != "f" or y.dtype.kind != "f":
            wrong = x if x.dtype.kind != "f" else y
            raise NotImplementedError(f'"{name}_cpu" not implemented for \'{type_name(wrong.dtype)}\'')
        return function(x, y)

    gamma.__name__ = gamma.__qualname__ = name
    gamma.__doc__ = what
    public("pointwise", kind="library", out=True)(gamma)
    operation = InplaceOperation(operator)
    inplace_method(name, lambda self, other: operation(self, number_or_tensor(name, other)))
    alias = {"igamma": "gammainc", "igammac": "gammaincc"}[name]
    public("pointwise", name=alias, namespace="special", method=False, kind="library", out=True)(gamma)


_of_two("zeta", "Hurwitz' zeta function: the sum of (other + k)**-input over k >= 0.")
_of_two("igamma", "The regularised lower incomplete gamma function P(input, other); differentiable in `other`.")
_of_two("igammac", "The regularised upper incomplete gamma function Q(input, other); differentiable in `other`.")


def _polynomial(name: str, what: str) -> None:
    operator = Operator(name, lambda x, n: _pair(name, x, n), pointwise=True)

    def function(input: Any, n: Any) -> Tensor:  # noqa: A002
        given = [x.detach() if isinstance(x, Tensor) else x for x in (input, n)]
        return _two(name, operator, given[0], given[1], False)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{what} of degree n (a tensor or a number; 0 for a negative one)."
    public("pointwise", namespace="special", method=False, kind="library", out=True, differentiable=False)(function)


for _kind, _ordinal in {"t": "first", "u": "second", "v": "third", "w": "fourth"}.items():
    _polynomial(f"chebyshev_polynomial_{_kind}", f"The Chebyshev polynomial of the {_ordinal} kind")
    _polynomial(f"shifted_chebyshev_polynomial_{_kind}", f"The Chebyshev polynomial of the {_ordinal} kind at 2 x - 1,")
_polynomial("hermite_polynomial_h", "The physicists' Hermite polynomial")
_polynomial("hermite_polynomial_he", "The probabilists' Hermite polynomial")
_polynomial("laguerre_polynomial_l", "The Laguerre polynomial")
_polynomial("legendre_polynomial_p", "The Legendre polynomial")
