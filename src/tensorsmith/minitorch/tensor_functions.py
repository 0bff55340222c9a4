"""Module 2: Functions of tensors, each a `forward` and a `backward` of a few calls of the backend; and making tensors."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.minitorch.autodiff import Context
from tensorsmith.minitorch.student_line import at_method
from tensorsmith.minitorch.tensor import History, Tensor, make
from tensorsmith.minitorch.tensor_data import IndexingError, TensorData, UserShape
from tensorsmith.minitorch.tensor_ops import SimpleBackend, TensorBackend
from tensorsmith.ops.creation import from_numpy


def wrap_tuple(x: Any) -> tuple[Any, ...]:
    """A tuple stays, any other value becomes a tuple of one."""
    return x if isinstance(x, tuple) else (x,)


class Function:
    """A function of tensors, never instantiated.

    `forward(ctx, *inputs)` returns a tensor, `backward(ctx, grad_output)` a gradient for each input. An input that is no
    tensor (a dimension, an order) is passed as it is, and its gradient is ignored. A gradient may have any shape that
    broadcasts with its input: `chain_rule` fits it.
    """

    # Whether forward computes with the backend's functions only, so that inputs need not be cut off from their history.
    _ours = False

    @classmethod
    def _backward(cls, ctx: Context, grad_out: Tensor) -> tuple[Any, ...]:
        return wrap_tuple(cls.backward(ctx, grad_out))  # type: ignore[attr-defined]

    @classmethod
    def _forward(cls, ctx: Context, *inps: Any) -> Tensor:
        return cls.forward(ctx, *inps)  # type: ignore[attr-defined, no-any-return]

    @classmethod
    def apply(cls, *vals: Any) -> Tensor:
        """Compute on tensors, and record how the result was made if one of them requires a gradient."""
        needed = False
        for v in vals:
            if isinstance(v, Tensor) and v.history is not None:
                needed = True
                break
        ctx = Context(not needed)
        if cls._ours:
            out = cls.forward(ctx, *vals)  # type: ignore[attr-defined]
            if needed:
                out.history = History(cls, ctx, vals)
            return out  # type: ignore[no-any-return]
        out = cls._forward(ctx, *[v.detach() if isinstance(v, Tensor) else v for v in vals])
        if not isinstance(out, Tensor):
            raise TypeError(f"{cls.__name__}.forward must return a Tensor, got {type(out).__name__}{at_method(cls, 'forward')}")
        return Tensor(out._tensor, History(cls, ctx, vals) if needed else None, None, out.backend)


class _Elementary(Function):
    _ours = True


class Neg(_Elementary):
    """-x"""

    @staticmethod
    def forward(ctx: Context, t1: Tensor) -> Tensor:
        return t1.backend.neg_map(t1)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> Tensor:
        return grad_output.backend.neg_map(grad_output)


class Inv(_Elementary):
    """1 / x"""

    @staticmethod
    def forward(ctx: Context, t1: Tensor) -> Tensor:
        ctx.save_for_backward(t1)
        return t1.backend.inv_map(t1)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> Tensor:
        (t1,) = ctx.saved_values
        return grad_output.backend.inv_back_zip(t1, grad_output)


class Add(_Elementary):
    """x + y"""

    @staticmethod
    def forward(ctx: Context, t1: Tensor, t2: Tensor) -> Tensor:
        return t1.backend.add_zip(t1, t2)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        return grad_output, grad_output


class Mul(_Elementary):
    """x y"""

    @staticmethod
    def forward(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a.backend.mul_zip(a, b)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[Any, Any]:
        a, b = ctx.saved_values
        mul = grad_output.backend.mul_zip
        return (
            0.0 if a.history is None else mul(b, grad_output),
            0.0 if b.history is None else mul(a, grad_output),
        )


class Sigmoid(_Elementary):
    """s = 1 / (1 + exp(-x)); its derivative is s (1 - s)"""

    @staticmethod
    def forward(ctx: Context, t1: Tensor) -> Tensor:
        out = t1.backend.sigmoid_map(t1)
        ctx.save_for_backward(out.detach())
        return out

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> Tensor:
        (out,) = ctx.saved_values
        return grad_output.backend.sigmoid_back_zip(out, grad_output)


class ReLU(_Elementary):
    """x if x > 0, else 0"""

    @staticmethod
    def forward(ctx: Context, t1: Tensor) -> Tensor:
        ctx.save_for_backward(t1)
        return t1.backend.relu_map(t1)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> Tensor:
        (t1,) = ctx.saved_values
        return grad_output.backend.relu_back_zip(t1, grad_output)


class Log(_Elementary):
    """log(x + 1e-6)"""

    @staticmethod
    def forward(ctx: Context, t1: Tensor) -> Tensor:
        ctx.save_for_backward(t1)
        return t1.backend.log_map(t1)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> Tensor:
        (t1,) = ctx.saved_values
        return grad_output.backend.log_back_zip(t1, grad_output)


class Exp(_Elementary):
    """e^x"""

    @staticmethod
    def forward(ctx: Context, t1: Tensor) -> Tensor:
        out = t1.backend.exp_map(t1)
        ctx.save_for_backward(out.detach())
        return out

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> Tensor:
        (out,) = ctx.saved_values
        return grad_output.backend.mul_zip(out, grad_output)


class Sum(_Elementary):
    """The sum along a dimension, which stays with extent 1"""

    @staticmethod
    def forward(ctx: Context, a: Tensor, dim: Any) -> Tensor:
        return a.backend.add_reduce(a, _number(dim))

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[Tensor, float]:
        return grad_output, 0.0  # `chain_rule` repeats it along the dimension


class All(_Elementary):
    """The product along a dimension of ones and zeros; it has no gradient"""

    @staticmethod
    def forward(ctx: Context, a: Tensor, dim: Any) -> Tensor:
        return a.backend.mul_reduce(a, _number(dim))

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError("All has no gradient: it is a product of ones and zeros")


class LT(_Elementary):
    """1.0 if x < y, else 0.0: constant wherever it has a derivative"""

    @staticmethod
    def forward(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
        return a.backend.lt_zip(a, b)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[float, float]:
        return 0.0, 0.0


class EQ(_Elementary):
    """1.0 if x = y, else 0.0: constant wherever it has a derivative"""

    @staticmethod
    def forward(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
        return a.backend.eq_zip(a, b)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[float, float]:
        return 0.0, 0.0


class NE(_Elementary):
    """0.0 if x = y, else 1.0: constant wherever it has a derivative"""

    @staticmethod
    def forward(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
        f = a.backend
        return f.add_zip(Tensor(TensorData([1.0], (1,)), None, None, f), f.neg_map(f.eq_zip(a, b)))

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[float, float]:
        return 0.0, 0.0


class IsClose(_Elementary):
    """1.0 where |x - y| < 0.01, else 0.0: constant wherever it has a derivative"""

    @staticmethod
    def forward(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
        return a.backend.is_close_zip(a, b)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[float, float]:
        return 0.0, 0.0


class Permute(_Elementary):
    """The dimensions in another order, over the same storage"""

    @staticmethod
    def forward(ctx: Context, a: Tensor, order: Any) -> Tensor:
        wanted = _numbers(order)
        ctx.save_for_backward(wanted)
        return permuted(a, wanted)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[Tensor, float]:
        (order,) = ctx.saved_values
        inverse = [0] * len(order)
        for place, dim in enumerate(order):
            inverse[dim] = place
        return permuted(grad_output, tuple(inverse)), 0.0


class View(_Elementary):
    """The same storage in another shape"""

    @staticmethod
    def forward(ctx: Context, a: Tensor, shape: Any) -> Tensor:
        wanted = _numbers(shape)
        if not a._is_contiguous():
            raise IndexingError(
                f"view: shape {a.shape} with strides {a._tensor.strides} is not contiguous; call contiguous() first"
            )
        size = 1
        for extent in wanted:
            size *= extent
        if size != a.size or any(extent < 0 for extent in wanted):
            raise IndexingError(f"view: shape {a.shape} has {a.size} numbers, shape {wanted} {size}")
        ctx.save_for_backward(a.shape)
        return _viewed(a, wanted)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[Tensor, float]:
        (shape,) = ctx.saved_values
        # A gradient need not lie in row-major order (that of a permute does not): its elements are what is viewed.
        if not grad_output._is_contiguous():
            grad_output = grad_output.backend.id_map(grad_output)
        return _viewed(grad_output, shape), 0.0


class Copy(_Elementary):
    """The same numbers in row-major order"""

    @staticmethod
    def forward(ctx: Context, a: Tensor) -> Tensor:
        return a.backend.id_map(a)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> Tensor:
        return grad_output


class MatMul(_Elementary):
    """The matrix product; leading dimensions broadcast"""

    @staticmethod
    def forward(ctx: Context, t1: Tensor, t2: Tensor) -> Tensor:
        ctx.save_for_backward(t1, t2)
        return t1.backend.matrix_multiply(t1, t2)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[Any, Any]:
        t1, t2 = ctx.saved_values
        multiply = grad_output.backend.matrix_multiply
        return (
            0.0 if t1.history is None else multiply(grad_output, _transposed(t2)),
            0.0 if t2.history is None else multiply(_transposed(t1), grad_output),
        )


def _transposed(a: Tensor) -> Tensor:
    if a._value is not None:
        return make(a._value.transpose(-2, -1), a.backend)
    order = list(range(a.dims))
    order[-2], order[-1] = order[-1], order[-2]
    return permuted(a, tuple(order))


def permuted(a: Tensor, order: tuple[int, ...]) -> Tensor:
    """The same storage with the dimensions in another order, without history."""
    if a._value is not None and sorted(order) == list(range(len(order))) and len(order) == a.dims:
        return make(a._value.permute(order), a.backend)
    return a._new(a._tensor.permute(*order))


def _viewed(a: Tensor, shape: tuple[int, ...]) -> Tensor:
    if a._value is not None:
        return make(a._value.view(shape), a.backend)
    return a._new_array(a._tensor.array.reshape(shape))  # a is contiguous, so the memory is shared


def of_array(array: np.ndarray, backend: TensorBackend) -> Tensor:
    """A tensor over a NumPy array in row-major order: as the engine's tensor where the backend computes with those."""
    if backend.on_engine:
        return make(from_numpy(array), backend)
    return Tensor(TensorData.of_array(array), None, None, backend)


def _number(x: Any) -> int:
    """A dimension, given as a number or as a tensor of one."""
    return int(x.item()) if isinstance(x, Tensor) else int(x)


def _numbers(x: Any) -> tuple[int, ...]:
    """A shape or an order, given as numbers or as a tensor of them."""
    return tuple(int(x[i]) for i in range(x.size)) if isinstance(x, Tensor) else tuple(map(int, x))


# ---------------------------------------------------------------------------------------------------- making tensors


def zeros(shape: UserShape, backend: TensorBackend = SimpleBackend) -> Tensor:
    """Zeros in a shape."""
    return of_array(np.zeros(_shape("zeros", shape)), backend)


def _shape(name: str, shape: UserShape) -> tuple[int, ...]:
    """A shape as given to a function that makes tensors. Raises TypeError unless it is a sequence of whole numbers."""
    if isinstance(shape, (Sequence, np.ndarray)) and all(isinstance(extent, (int, np.integer)) for extent in shape):
        return tuple(map(int, shape))
    raise TypeError(f"{name}: the shape is a tuple of whole numbers such as (2, 3), got {shape!r}")


def rand(shape: UserShape, backend: TensorBackend = SimpleBackend, requires_grad: bool = False) -> Tensor:
    """Numbers from [0, 1), drawn one after the other from `random`."""
    shape = _shape("rand", shape)
    return _tensor([random.random() for _ in range(math.prod(shape))], shape, backend, requires_grad)


def _tensor(
    ls: Any, shape: UserShape, backend: TensorBackend = SimpleBackend, requires_grad: bool = False
) -> Tensor:
    """A tensor of a flat list in a shape."""
    made = Tensor(TensorData(ls, tuple(shape)), None, None, backend)
    if requires_grad:
        made.requires_grad_(True)
    return made


def tensor(ls: Any, backend: TensorBackend = SimpleBackend, requires_grad: bool = False) -> Tensor:
    """A tensor of nested lists of numbers. IndexingError where rows differ in length, TypeError for what is no number."""
    try:
        array = np.array(ls)
    except ValueError as error:
        raise IndexingError(f"tensor: the rows of a nested list must have the same length ({error})") from None
    numeric = array.dtype.kind in "biuf" or all(isinstance(number, int) for number in array.flat)  # large integers are objects
    if not numeric:
        raise TypeError(f"tensor: needs a number or nested lists of numbers, got {ls!r:.80}")
    array = array.astype(np.float64)
    made = of_array(array, backend)
    if requires_grad:
        made.requires_grad_(True)
    return made
