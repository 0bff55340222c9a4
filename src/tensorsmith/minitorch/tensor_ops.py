"""Module 2: map, zip and reduce lift a function of numbers to one of tensors; `SimpleOps` is the reference.

    map(fn)(a)              out[i, j] = fn(a[i, j])
    zip(fn)(a, b)           out[i, j] = fn(a[i, j], b[0, j])               the operands broadcast
    reduce(fn, start)(a, 0) out[0, j] = fn(.. fn(fn(start, a[0, j]), a[1, j]) .., a[n, j])

A backend (`TensorBackend`) is the set of functions that tensors need, made by one of `SimpleOps` (NumPy), `FastOps`
(kernels on the CPU), `CudaOps`, or by a class of your own with the same four methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tensorsmith.minitorch import operators
from tensorsmith.minitorch.lifting import ON_ARRAYS, Lifted, reduction_of
from tensorsmith.minitorch.tensor_data import IndexingError, TensorData, shape_broadcast

if TYPE_CHECKING:
    from tensorsmith.minitorch.tensor import Tensor


class MapProto(Protocol):
    """A function lifted by map; `out` receives the result and may be larger than the operand."""

    def __call__(self, x: Tensor, out: Tensor | None = ..., /) -> Tensor: ...


class TensorOps:
    """What a backend is made of; subclass it to make your own."""

    cuda = False
    on_engine = False  # whether it computes on engine's tensors, and has `fit` and `moved` of `FastOps`

    @staticmethod
    def map(fn: Callable[[float], float]) -> MapProto:
        """Lift a function of one number."""
        raise NotImplementedError("TensorOps.map: define it in the subclass")

    @classmethod
    def cmap(cls, fn: Callable[[float], float]) -> Callable[[Tensor, Tensor], Tensor]:
        """Lift a function of one number; the result goes to the second operand."""
        mapped = cls.map(fn)
        return lambda a, out: mapped(a, out)

    @staticmethod
    def zip(fn: Callable[[float, float], float]) -> Callable[[Tensor, Tensor], Tensor]:
        """Lift a function of two numbers."""
        raise NotImplementedError("TensorOps.zip: define it in the subclass")

    @staticmethod
    def reduce(fn: Callable[[float, float], float], start: float = 0.0) -> Callable[[Tensor, int], Tensor]:
        """Lift a function of two numbers to a fold along one dimension, which stays with extent 1."""
        raise NotImplementedError("TensorOps.reduce: define it in the subclass")

    @staticmethod
    def matrix_multiply(a: Tensor, b: Tensor) -> Tensor:
        """The matrix product, over leading dimensions that broadcast."""
        raise NotImplementedError("TensorOps.matrix_multiply: define it in the subclass")


class TensorBackend:
    """The functions of tensors that one class of operations makes."""

    def __init__(self, ops: type[TensorOps]) -> None:
        self.ops = ops
        self.neg_map = ops.map(operators.neg)
        self.sigmoid_map = ops.map(operators.sigmoid)
        self.relu_map = ops.map(operators.relu)
        self.log_map = ops.map(operators.log)
        self.exp_map = ops.map(operators.exp)
        self.id_map = ops.map(operators.id)
        self.id_cmap = ops.cmap(operators.id)
        self.inv_map = ops.map(operators.inv)

        self.add_zip = ops.zip(operators.add)
        self.mul_zip = ops.zip(operators.mul)
        self.lt_zip = ops.zip(operators.lt)
        self.eq_zip = ops.zip(operators.eq)
        self.is_close_zip = ops.zip(operators.is_close)
        self.relu_back_zip = ops.zip(operators.relu_back)
        self.log_back_zip = ops.zip(operators.log_back)
        self.inv_back_zip = ops.zip(operators.inv_back)
        self.sigmoid_back_zip = ops.zip(operators.sigmoid_back)

        self.add_reduce = ops.reduce(operators.add, 0.0)
        self.mul_reduce = ops.reduce(operators.mul, 1.0)
        self.matrix_multiply = ops.matrix_multiply
        self.cuda = ops.cuda
        self.on_engine = getattr(ops, "on_engine", False)

    def __repr__(self) -> str:
        return f"TensorBackend({self.ops.__name__})"


# ------------------------------------------------------------------------------------ on storage, shape and strides


def _seen(storage: np.ndarray, shape: Any, strides: Any) -> np.ndarray:
    """The elements of a storage through a shape and strides."""
    return TensorData.over(storage, shape, strides).array


def tensor_map(fn: Callable[[float], float]) -> Callable[..., None]:
    """`fn` lifted to (out, out_shape, out_strides, in_storage, in_shape, in_strides); the operand broadcasts to out."""
    lifted = Lifted(fn, 1)

    def _map(out: Any, out_shape: Any, out_strides: Any, in_storage: Any, in_shape: Any, in_strides: Any) -> None:
        _seen(out, out_shape, out_strides)[...] = lifted.on_arrays(_seen(in_storage, in_shape, in_strides))

    return _map


def tensor_zip(fn: Callable[[float, float], float]) -> Callable[..., None]:
    """`fn` lifted to three triples of storage, shape and strides: out, a, b; a and b broadcast to out."""
    lifted = Lifted(fn, 2)

    def _zip(
        out: Any, out_shape: Any, out_strides: Any,
        a_storage: Any, a_shape: Any, a_strides: Any,
        b_storage: Any, b_shape: Any, b_strides: Any,
    ) -> None:  # fmt: skip
        a, b = _seen(a_storage, a_shape, a_strides), _seen(b_storage, b_shape, b_strides)
        _seen(out, out_shape, out_strides)[...] = lifted.on_arrays(a, b)

    return _zip


def tensor_reduce(fn: Callable[[float, float], float]) -> Callable[..., None]:
    """`fn` lifted to a fold of a along `reduce_dim` into what out holds already."""
    lifted = Lifted(fn, 2)

    def _reduce(
        out: Any, out_shape: Any, out_strides: Any, a_storage: Any, a_shape: Any, a_strides: Any, reduce_dim: int
    ) -> None:
        result, a = _seen(out, out_shape, out_strides), _seen(a_storage, a_shape, a_strides)
        result[...] = _fold(lifted, np.ascontiguousarray(result), a, reduce_dim)

    return _reduce


def _fold(lifted: Lifted, start: np.ndarray, a: np.ndarray, dim: int) -> np.ndarray:
    """fn(.. fn(start, a[0]) .., a[n - 1]) along a dimension."""
    kind = reduction_of(lifted)
    if kind is not None and a.shape[dim]:
        return lifted.on_arrays(start, ON_ARRAYS[kind].reduce(a, dim, keepdims=True))
    out = start
    for i in range(a.shape[dim]):
        out = lifted.on_arrays(out, np.take(a, [i], dim))
    return out


def reduced_shape(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """`shape` with an extent of 1 in dimension `dim`. Raises IndexingError where there is no such dimension."""
    if not 0 <= dim < len(shape):
        raise IndexingError(f"reduce: dimension {dim} is not one of shape {shape}")
    return (*shape[:dim], 1, *shape[dim + 1 :])


# ------------------------------------------------------------------------------------------------------ the reference


class SimpleOps(TensorOps):
    """The reference: every function of the expression in NumPy, one after the other; sums in order."""

    @staticmethod
    def map(fn: Callable[[float], float]) -> MapProto:
        lifted = Lifted(fn, 1)

        def ret(a: Tensor, out: Tensor | None = None) -> Tensor:
            result = lifted.on_arrays(a._tensor.array)
            return a._new_array(result) if out is None else out._write(result)

        return ret

    @staticmethod
    def zip(fn: Callable[[float, float], float]) -> Callable[[Tensor, Tensor], Tensor]:
        lifted = Lifted(fn, 2)

        def ret(a: Tensor, b: Tensor) -> Tensor:
            if a.shape != b.shape:
                shape_broadcast(a.shape, b.shape)
            return a._new_array(lifted.on_arrays(a._tensor.array, b._tensor.array))

        return ret

    @staticmethod
    def reduce(fn: Callable[[float, float], float], start: float = 0.0) -> Callable[[Tensor, int], Tensor]:
        lifted = Lifted(fn, 2)

        def ret(a: Tensor, dim: int) -> Tensor:
            first = np.full(reduced_shape(a.shape, dim), start)
            return a._new_array(_fold(lifted, first, a._tensor.array, dim))

        return ret

    @staticmethod
    def matrix_multiply(a: Tensor, b: Tensor) -> Tensor:
        matrix_shape(a.shape, b.shape)
        return a._new_array(np.matmul(a._tensor.array, b._tensor.array))


def matrix_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a matrix product. Raises IndexingError naming both shapes where they do not fit."""
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise IndexingError(
            f"matrix_multiply: shapes {a} and {b} do not fit; needs (.., n, k) and (.., k, m) of two dimensions or more"
        )
    return (*shape_broadcast(a[:-2], b[:-2]), a[-2], b[-1])


SimpleBackend = TensorBackend(SimpleOps)
