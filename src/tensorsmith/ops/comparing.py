"""Whether tensors are equal, or nearly."""

from __future__ import annotations

import math
from typing import Any

from tensorsmith.core.dtypes import DType, float64, of_python_scalar, promote_operands
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.device_copies import need_one_device
from tensorsmith.ops.index_steps import host
from tensorsmith.ops.reductions import all_
from tensorsmith.ops.registry import method, need_tensor, public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor

m = build.map_


def _isclose(x: Node, y: Node, rtol: float, atol: float, equal_nan: bool) -> Node:
    close = m(Fn.EQ, x, y)
    if x.dtype.kind in "fc":
        if equal_nan:
            close = m(Fn.LOGICAL_OR, close, m(Fn.LOGICAL_AND, m(Fn.ISNAN, x), m(Fn.ISNAN, y)))
        if rtol or atol:
            distance = m(Fn.ABS, x - y)
            near = m(Fn.LOGICAL_AND, m(Fn.ISFINITE, distance), m(Fn.LE, distance, atol + m(Fn.ABS, y * rtol)))
            close = m(Fn.LOGICAL_OR, close, near)
    elif rtol or atol:
        a, b = build.cast(x, float64), build.cast(y, float64)
        close = m(Fn.LOGICAL_OR, close, m(Fn.LE, m(Fn.ABS, a - b), atol + m(Fn.ABS, b * rtol)))
    return close


isclose_operator = Operator("isclose", _isclose, pointwise=True)


@public("comparing", differentiable=False)
def isclose(
    input: Tensor,
    other: Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,  # noqa: A002
) -> Tensor:
    """Whether |input - other| <= atol + rtol * |other|, elementwise; equal infinities are close."""
    if need_tensor("isclose", input).dtype is not need_tensor("isclose", other, "other", 2).dtype:
        raise RuntimeError(f"{input.dtype.name.capitalize()} did not match {other.dtype.name.capitalize()}")
    if not (rtol >= 0 and math.isfinite(rtol)):
        raise RuntimeError(f"rtol must be greater than or equal to zero, but got {rtol}")
    if not atol >= 0:
        raise RuntimeError(f"atol must be greater than or equal to zero, but got {atol}")
    attrs = {"rtol": float(rtol), "atol": float(atol), "equal_nan": bool(equal_nan)}
    return call(isclose_operator, (input, other), attrs)


@public("comparing", differentiable=False)
def allclose(
    input: Tensor,
    other: Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,  # noqa: A002
) -> bool:
    """Whether all elements are close."""
    return bool(all_(isclose(input, other, rtol, atol, equal_nan)))


@public("comparing", differentiable=False)
def equal(input: Tensor, other: Tensor) -> bool:  # noqa: A002
    """Whether two tensors have the same shape and elements."""
    need_tensor("equal", input)
    need_tensor("equal", other, "other", 2)
    need_one_device("equal", input, other)
    if input.layout.shape != other.layout.shape:
        return False
    return bool(all_(input == other))


@method("__contains__")
def contains(self: Tensor, element: Any) -> bool:
    """`element in tensor`: whether some element equals it. RuntimeError for what is neither a tensor nor a number."""
    if not isinstance(element, Tensor | bool | int | float | complex):
        raise RuntimeError(
            f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a {type(element).__name__}."
        )
    return bool((self == element).any())


@public("comparing", method=False, differentiable=False)
def numel(input: Tensor) -> int:  # noqa: A002
    """How many elements a tensor has."""
    return need_tensor("numel", input).layout.numel


def _question(name: str, answer: Any, what: str) -> None:
    def function(input: Any) -> bool:  # noqa: A002
        return answer(input)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    public("comparing", method=False, differentiable=False)(function)


_question("is_tensor", lambda x: isinstance(x, Tensor), "Whether something is a tensor.")
_question(
    "is_floating_point", lambda x: need_tensor("is_floating_point", x).is_floating_point(), "Whether the dtype floats."
)
_question("is_complex", lambda x: need_tensor("is_complex", x).is_complex(), "Whether the dtype is complex.")


@public("comparing", differentiable=False)
def is_nonzero(input: Tensor) -> bool:  # noqa: A002
    """Whether the only element is non-zero."""
    if need_tensor("is_nonzero", input).layout.numel != 1:
        what = "no values" if input.layout.numel == 0 else "more than one value"
        raise RuntimeError(f"Boolean value of Tensor with {what} is ambiguous")
    return bool(host(input, "is_nonzero").reshape(()))


@public("comparing", differentiable=False)
def is_inference(input: Tensor) -> bool:  # noqa: A002
    """False: tensors made in `inference_mode` are ordinary ones, which may be saved and written over outside of it."""
    need_tensor("is_inference", input)
    return False


@public("comparing", method=False, differentiable=False)
def result_type(tensor1: Any, tensor2: Any) -> Any:
    """The dtype that an arithmetic operator of the two has."""
    groups: tuple[list, list, list] = ([], [], [])
    for x in (tensor1, tensor2):
        if isinstance(x, Tensor):
            groups[0 if x.ndim else 1].append(x.dtype)
        else:
            groups[2].append(of_python_scalar(x))
    return promote_operands(*groups)


@public("comparing", method=False, differentiable=False)
def can_cast(from_: Any, to: Any) -> bool:
    """Whether one dtype may be written as another: never back from complex to real, from floats to integers, or to bool."""
    if not (isinstance(from_, DType) and isinstance(to, DType)):
        raise TypeError(f"can_cast(): expected two dtypes, got {type(from_).__name__} and {type(to).__name__}")
    rank = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    return rank[from_.kind] <= rank[to.kind]
