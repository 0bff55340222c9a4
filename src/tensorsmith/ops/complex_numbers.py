"""Complex numbers and their parts: complex, polar, real, imag, view_as_real, view_as_complex, conj.

`real`, `imag` and the `view_as_` functions share memory with their operand: they show it under the other dtype. Conjugates are
computed at once, so that `is_conj` is always False and `resolve_conj` has nothing to do.
"""

from __future__ import annotations

from typing import Any

from tensorsmith.core import views
from tensorsmith.core.dtypes import bool_, complex_dtype, float16, real_dtype, type_name
from tensorsmith.core.views import Strided
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor


def _part_place(x: Strided, number: int) -> Strided:
    return Strided(x.shape, tuple(2 * s for s in x.strides), 2 * x.offset + number)


view_as_real_operator = Operator(
    "view_as_real", build.as_real, geometry=views.as_real, view_dtype=real_dtype, node_name="ViewAsReal"
)
view_as_complex_operator = Operator(
    "view_as_complex", build.as_complex, geometry=views.as_complex, view_dtype=complex_dtype, node_name="ViewAsComplex"
)
_part_operator = Operator("complex_part", build.part, geometry=_part_place, view_dtype=real_dtype, node_name="Select")


def _polar(size: Node, angle: Node) -> Node:
    return build.make_complex(size * build.map_(Fn.COS, angle), size * build.map_(Fn.SIN, angle))


_complex_operator = Operator("complex", build.make_complex, pointwise=True)
_polar_operator = Operator("polar", _polar, pointwise=True)
_conj_operator = Operator("conj", build.conj, pointwise=True)
_isreal_operator = Operator("isreal", lambda x: build.map_(Fn.EQ, build.part(x, 1), 0), pointwise=True)


@public("complex", kind="view", method=False)
def view_as_real(input: Tensor) -> Tensor:  # noqa: A002
    """The same memory as real numbers: complex (...) as real (..., 2), the parts along the last axis.

    Raises RuntimeError for a tensor that is not complex.

    >>> ts.view_as_real(ts.tensor([1 + 2j, 3j]))
    tensor([[1., 2.],
            [0., 3.]])
    """
    if not need_tensor("view_as_real", input).is_complex():
        raise RuntimeError(f"view_as_real is only supported for complex tensors, got {input.dtype.name}")
    return view_as_real_operator(input)


@public("complex", kind="view", method=False)
def view_as_complex(input: Tensor) -> Tensor:  # noqa: A002
    """The same memory as complex numbers: real (..., 2) as complex (...).

    Raises RuntimeError for another dtype than float32 and float64, a last axis that is not of extent 2, or memory in which the
    two parts of a number do not lie side by side at an even place.

    >>> ts.view_as_complex(ts.tensor([[1.0, 2.0], [0.0, 3.0]]))
    tensor([1.+2.j, 0.+3.j])
    """
    layout = need_tensor("view_as_complex", input).layout
    if layout.dtype is float16:
        raise NotImplementedError("view_as_complex: float16 pairs would be complex32, which does not exist here")
    if layout.dtype.kind != "f" or layout.dtype.is_half:
        raise RuntimeError(
            f"view_as_complex is only supported for half, float and double tensors, but got a tensor of scalar type: "
            f"{type_name(layout.dtype)}"
        )
    if not layout.shape:
        raise RuntimeError("Input tensor must have one or more dimensions")
    if layout.shape[-1] != 2:
        raise RuntimeError(f"Tensor must have a last dimension of size 2, got shape {list(layout.shape)}")
    if layout.strides[-1] != 1:
        raise RuntimeError(f"Tensor must have a last dimension with stride 1, got strides {list(layout.strides)}")
    if input.storage_offset() % 2:
        raise RuntimeError(f"Tensor must have a storage_offset divisible by 2, got {input.storage_offset()}")
    if views.as_complex(Strided(layout.shape, layout.strides)) is None:
        raise RuntimeError(f"Tensor must have a stride divisible by 2 for all but last dimension, got {list(layout.strides)}")
    return view_as_complex_operator(input)


@public("complex", kind="view", method=False)
def real(input: Tensor) -> Tensor:  # noqa: A002
    """The real part, over the same memory; a real tensor itself.

    >>> ts.real(ts.tensor([1 + 2j, 3j]))
    tensor([1., 0.])
    """
    return _part_operator(input, number=0) if need_tensor("real", input).is_complex() else input


@public("complex", kind="view", method=False)
def imag(input: Tensor) -> Tensor:  # noqa: A002
    """The imaginary part, over the same memory. Raises RuntimeError for a tensor that is not complex.

    >>> ts.imag(ts.tensor([1 + 2j, 3j]))
    tensor([2., 3.])
    """
    if not need_tensor("imag", input).is_complex():
        raise RuntimeError(
            f"imag is not implemented for tensors with non-complex dtypes, got {input.dtype.name}; it would be zeros_like(x)"
        )
    return _part_operator(input, number=1)


def _set_real(self: Tensor, value: Any) -> None:
    real(self).copy_(value if isinstance(value, Tensor) else self.new_tensor(value))


def _set_imag(self: Tensor, value: Any) -> None:
    part = imag(self)
    part.copy_(value if isinstance(value, Tensor) else part.new_tensor(value))


Tensor.real = property(real, _set_real)  # type: ignore[assignment, method-assign]
Tensor.imag = property(imag, _set_imag)  # type: ignore[assignment, method-assign]


@public("complex", method=False, out=True)
def complex(real: Tensor, imag: Tensor) -> Tensor:  # noqa: A001 - PyTorch's name
    """real + i imag, of two tensors of one dtype, float32 or float64, whose shapes broadcast.

    Raises RuntimeError for other dtypes, or two different ones.

    >>> ts.complex(ts.tensor([1.0, 0.0]), ts.tensor([2.0, 3.0]))
    tensor([1.+2.j, 0.+3.j])
    """
    _need_parts("complex", need_tensor("complex", real, "real"), need_tensor("complex", imag, "imag", 2))
    return call(_complex_operator, (real, imag), {})


@public("complex", method=False, out=True)
def polar(abs: Tensor, angle: Tensor) -> Tensor:  # noqa: A002
    """abs * (cos(angle) + i sin(angle)), of two tensors of one dtype, float32 or float64, whose shapes broadcast.

    >>> ts.polar(ts.tensor([2.0]), ts.tensor([0.0]))
    tensor([2.+0.j])
    """
    _need_parts("polar", need_tensor("polar", abs, "abs"), need_tensor("polar", angle, "angle", 2))
    return call(_polar_operator, (abs, angle), {})


def _need_parts(name: str, a: Tensor, b: Tensor) -> None:
    for x in (a, b):
        if x.dtype is float16:
            raise NotImplementedError(f"{name}: float16 parts would make complex32, which does not exist here")
        if x.dtype.kind != "f" or x.dtype.is_half:
            raise RuntimeError(
                f"Expected both inputs to be Half, Float or Double tensors but got {type_name(a.dtype)} and "
                f"{type_name(b.dtype)} (in {name})"
            )
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"Expected object of scalar type {type_name(a.dtype)} but got scalar type {type_name(b.dtype)} for second argument "
            f"(in {name})"
        )


@public("complex")
def conj(input: Tensor) -> Tensor:  # noqa: A002
    """The complex conjugate, a new tensor; a real tensor itself.

    >>> ts.tensor([1 + 2j]).conj()
    tensor([1.-2.j])
    """
    return call(_conj_operator, (input,), {}) if need_tensor("conj", input).is_complex() else input


@public("complex")
def resolve_conj(input: Tensor) -> Tensor:  # noqa: A002
    """The tensor itself: conjugates are computed at once."""
    return need_tensor("resolve_conj", input)


@public("complex")
def resolve_neg(input: Tensor) -> Tensor:  # noqa: A002
    """The tensor itself: negatives are computed at once."""
    return need_tensor("resolve_neg", input)


@public("complex", differentiable=False)
def is_conj(input: Tensor) -> bool:  # noqa: A002
    """False: conjugates are computed at once."""
    need_tensor("is_conj", input)
    return False


@public("complex", differentiable=False)
def is_neg(input: Tensor) -> bool:  # noqa: A002
    """False: negatives are computed at once."""
    need_tensor("is_neg", input)
    return False


@public("complex", differentiable=False)
def isreal(input: Tensor) -> Tensor:  # noqa: A002
    """Whether each element is a real number: its imaginary part is zero.

    >>> ts.isreal(ts.tensor([1 + 0j, 3j]))
    tensor([ True, False])
    """
    if need_tensor("isreal", input).is_complex():
        return call(_isreal_operator, (input,), {})
    return input.new_ones(input.layout.shape, dtype=bool_)
