"""Module 3: `FastOps`, map, zip, reduce and matrix multiply as kernels compiled for this CPU.

The function is lifted to an expression (branches too), and the engine makes one vectorised, parallel kernel of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import float64
from tensorsmith.eager.fast import FAST
from tensorsmith.eager.operator import Operator
from tensorsmith.minitorch.lifting import NEUTRAL, Lifted, reduction_of
from tensorsmith.minitorch.parallel_check import Diagnosed
from tensorsmith.minitorch.tensor import Tensor, make
from tensorsmith.minitorch.tensor_data import TensorData, shape_broadcast
from tensorsmith.minitorch.tensor_ops import MapProto, TensorOps, matrix_shape, reduced_shape
from tensorsmith.ops.creation import full
from tensorsmith.ops.matmul import bmm_operator, matmul, mm_operator
from tensorsmith.tensor.tensor import Tensor as EngineTensor


@functools.cache
def _moving() -> Operator:
    """x + step * direction as one kernel."""
    return Operator("minitorch.moved", lambda x, direction, step: x + direction * step)



class FastOps(TensorOps):
    """Kernels on the CPU."""

    on_engine = True

    @staticmethod
    def map(fn: Callable[[float], float]) -> MapProto:
        lifted = Lifted(fn, 1)

        def ret(a: Tensor, out: Tensor | None = None) -> Tensor:
            result = lifted.one(a.value)
            if out is None:
                return make(result, a.backend)
            out.value.copy_(result)
            return out

        return ret

    @staticmethod
    def zip(fn: Callable[[float, float], float]) -> Callable[[Tensor, Tensor], Tensor]:
        lifted = Lifted(fn, 2)

        def ret(a: Tensor, b: Tensor) -> Tensor:
            try:
                return make(lifted.two(a.value, b.value), a.backend)
            except RuntimeError:
                shape_broadcast(a.shape, b.shape)  # says what does not fit, where that is the fault
                raise

        return ret

    @staticmethod
    def reduce(fn: Callable[[float, float], float], start: float = 0.0) -> Callable[[Tensor, int], Tensor]:
        lifted = Lifted(fn, 2)

        def ret(a: Tensor, dim: int) -> Tensor:
            shape = reduced_shape(a.shape, dim)
            kind = reduction_of(lifted)
            if kind is not None and start == NEUTRAL[kind] and a.shape[dim]:
                value = reduced(kind, a.value, dim)
            else:
                value = folded(lifted, full(shape, start, dtype=float64), a.value, dim)
            # The engine's reductions keep the order of permuted operands; MiniTorch's results are in row-major order.
            return make(value if value.is_contiguous() else value.contiguous(), a.backend)

        return ret

    @staticmethod
    def matrix_multiply(a: Tensor, b: Tensor) -> Tensor:
        """The matrix product, over leading dimensions that broadcast."""
        shape = matrix_shape(a.shape, b.shape)
        operator: Any = matmul
        if a.dims == b.dims == 2:
            operator = mm_operator
        elif a.dims == b.dims == 3 and a.shape[0] == b.shape[0] == shape[0]:
            operator = bmm_operator
        result = operator(a.value, b.value)
        return make(result, a.backend)

    # What a backend of kernels does at once and others in steps (`Tensor.expand`, `Tensor.moved`).

    @staticmethod
    def fit(gradient: Tensor, full: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        """A gradient repeated to `full` and summed to `shape`."""
        value = gradient.value
        if gradient.shape != full:
            value = value.expand(full)
        if full != shape:
            skipped = len(full) - len(shape)
            dims = [i for i in range(len(full)) if i < skipped or (shape[i - skipped] == 1 and full[i] != 1)]
            value = value.sum(dims)
            if len(value.shape) != len(shape):
                value = value.view(shape)
        return make(value, gradient.backend)

    @staticmethod
    def moved(value: Tensor, direction: Tensor, step: float) -> Tensor:
        """value + step * direction in one kernel."""
        x, d, move = value.value, direction.value, _moving()
        entry = FAST.get((move, x.layout, d.layout, float))
        return make(entry(x, d, step) if entry is not None else move(x, d, step), value.backend)


def folded(lifted: Lifted, start: EngineTensor, value: EngineTensor, dim: int) -> EngineTensor:
    """fn(.. fn(start, x[0]) .., x[n - 1]) along a dimension, which stays: one kernel where the engine has the reduction."""
    kind = reduction_of(lifted)
    if kind is not None and value.shape[dim]:
        return lifted.two(start, reduced(kind, value, dim))
    for i in range(value.shape[dim]):
        start = lifted.two(start, value.narrow(dim, i, 1))
    return start


def reduced(kind: str, value: EngineTensor, dim: int) -> EngineTensor:
    """The engine's reduction along a dimension, which stays."""
    return value.sum(dim, True) if kind == "sum" else getattr(value, kind)(dim, True)  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------ on storage, shape and strides


def _seen(storage: Any, shape: Any, strides: Any) -> EngineTensor:
    return TensorData.over(storage, shape, strides).value


def tensor_map(fn: Callable[[float], float]) -> Diagnosed:
    """`fn` lifted to (out, out_shape, out_strides, in_storage, in_shape, in_strides); the operand broadcasts to out."""
    lifted = Lifted(fn, 1)

    def _map(*arguments: Any) -> None:
        _seen(*arguments[:3]).copy_(lifted.one(_seen(*arguments[3:6])))

    return Diagnosed(_map, "map", lifted)


def tensor_zip(fn: Callable[[float, float], float]) -> Diagnosed:
    """`fn` lifted to three triples of storage, shape and strides: out, a, b; a and b broadcast to out."""
    lifted = Lifted(fn, 2)

    def _zip(*arguments: Any) -> None:
        _seen(*arguments[:3]).copy_(lifted.two(_seen(*arguments[3:6]), _seen(*arguments[6:9])))

    return Diagnosed(_zip, "zip", lifted)


def tensor_reduce(fn: Callable[[float, float], float]) -> Diagnosed:
    """`fn` lifted to a fold of a along `reduce_dim` into what out holds already."""
    lifted = Lifted(fn, 2)

    def _reduce(*arguments: Any) -> None:
        out, a, dim = _seen(*arguments[:3]), _seen(*arguments[3:6]), int(arguments[6])
        out.copy_(folded(lifted, out, a, dim))

    return Diagnosed(_reduce, "reduce", lifted)


def _multiply(*arguments: Any) -> None:
    _seen(*arguments[:3]).copy_(matmul(_seen(*arguments[3:6]), _seen(*arguments[6:9])))


tensor_matrix_multiply = Diagnosed(_multiply, "matrix multiply", None)
