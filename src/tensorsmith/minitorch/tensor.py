"""Module 2: `Tensor`, numbers in a shape that remember how they were made.

The numbers are an engine's tensor (`value`, float64) or, in the reference backend, a NumPy array; `_tensor` shows them as
`TensorData`. The history is MiniTorch's own: the Function, what it kept, its inputs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from tensorsmith.minitorch.autodiff import Context, Variable, backpropagate
from tensorsmith.minitorch.student_line import at_method
from tensorsmith.minitorch.tensor_data import TensorData, UserIndex, UserShape, UserStrides, shape_broadcast
from tensorsmith.ops.creation import from_numpy
from tensorsmith.tensor.tensor import Tensor as EngineTensor

if TYPE_CHECKING:
    from tensorsmith.minitorch.tensor_functions import Function
    from tensorsmith.minitorch.tensor_ops import TensorBackend

TensorLike = Union[float, int, "Tensor"]

_numbers = itertools.count(1)


@functools.lru_cache(maxsize=256)
def _constant(number: float) -> EngineTensor:
    """A number as an engine's tensor of shape (1,), which nobody writes to."""
    return from_numpy(np.array([number]))


@dataclass(slots=True)
class History:
    """How a Tensor was made: the last Function, what it kept, and its inputs. A leaf has no Function."""

    last_fn: type[Function] | None = None
    ctx: Context | None = None
    inputs: Sequence[Any] = ()


class Tensor:
    """Float64 numbers in a shape.

    backend (or f): the functions it computes with; grad: what `backward` added, None before; history: None where
    nothing is recorded
    """

    backend: TensorBackend
    history: History | None
    grad: Tensor | None

    def __init__(
        self,
        v: TensorData,
        back: History | None = None,
        name: str | None = None,
        backend: TensorBackend | None = None,
    ) -> None:
        if not isinstance(v, TensorData):
            raise TypeError(f"Tensor: needs TensorData, got {type(v).__name__}; minitorch.tensor(...) takes lists")
        if backend is None:
            from tensorsmith.minitorch.tensor_ops import SimpleBackend

            backend = SimpleBackend
        self._value: EngineTensor | None = None
        self._data: TensorData | None = v
        self.shape = v.shape
        self.backend = backend
        self.history = back
        self.grad = None
        self.unique_id = next(_numbers)
        self._name = name

    # ------------------------------------------------------------------------------------------------ what it holds

    @property
    def value(self) -> EngineTensor:
        """The engine's tensor over the same memory."""
        if self._value is not None:
            return self._value
        assert self._data is not None
        return self._data.value

    @property
    def _tensor(self) -> TensorData:
        if self._data is None:
            value = self._value
            assert value is not None
            reach = sum((n - 1) * s for n, s in zip(value.shape, value.stride()))
            if reach != self.size - 1:  # a repeated gradient: TensorData has a number of its own for every element
                value = value.contiguous()
            self._data, self._value = TensorData.of(value), None  # from here on the data may be given another storage
        return self._data

    @property
    def f(self) -> TensorBackend:
        """The functions this tensor computes with."""
        return self.backend

    @property
    def name(self) -> str:
        """The name given to it, or its number."""
        return self._name if self._name is not None else str(self.unique_id)

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def size(self) -> int:
        """How many numbers."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def dims(self) -> int:
        """How many dimensions."""
        return len(self.shape)

    def to_numpy(self) -> npt.NDArray[np.float64]:
        """A copy as a NumPy array."""
        return self._tensor.array.copy()

    def tuple(self) -> Any:
        """(storage, shape, strides) as arrays."""
        return self._tensor.tuple()

    def item(self) -> float:
        """The number of a tensor of one."""
        if self.size != 1:
            raise ValueError(f"item: needs a tensor of one number, got shape {self.shape}")
        return self._tensor._storage[0]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return self._tensor.to_string()

    def __getitem__(self, key: int | UserIndex) -> float:
        if key == 0 and self._value is not None and self.shape == (1,):
            return self._value.item()  # type: ignore[no-any-return]
        return self._tensor.get(key)

    def __setitem__(self, key: int | UserIndex, val: float) -> None:
        self._tensor.set(key, val)

    __hash__ = object.__hash__

    # ---------------------------------------------------------------------------------------------------- functions

    def _ensure_tensor(self, b: Any) -> Tensor:
        """A number as a tensor of this backend; a tensor is moved to it."""
        if isinstance(b, Tensor):
            if b.backend is not self.backend:
                b._type_(self.backend)
            return b
        if isinstance(b, (int, float, np.floating, np.integer)):
            if self.backend.on_engine:
                return make(_constant(float(b)), self.backend)
            return self._new_array(np.array([b], np.float64))
        raise TypeError(f"needs a minitorch.Tensor or a number, got {type(b).__name__}")

    def __add__(self, b: TensorLike) -> Tensor:
        return functions.Add.apply(self, self._ensure_tensor(b))

    def __radd__(self, b: TensorLike) -> Tensor:
        return functions.Add.apply(self._ensure_tensor(b), self)

    def __sub__(self, b: TensorLike) -> Tensor:
        if not isinstance(b, Tensor):
            return functions.Add.apply(self, self._ensure_tensor(-b))
        return functions.Add.apply(self, functions.Neg.apply(self._ensure_tensor(b)))

    def __rsub__(self, b: TensorLike) -> Tensor:
        return functions.Add.apply(self._ensure_tensor(b), functions.Neg.apply(self))

    def __mul__(self, b: TensorLike) -> Tensor:
        return functions.Mul.apply(self, self._ensure_tensor(b))

    def __rmul__(self, b: TensorLike) -> Tensor:
        return functions.Mul.apply(self._ensure_tensor(b), self)

    def __truediv__(self, b: TensorLike) -> Tensor:
        if not isinstance(b, Tensor) and b != 0:
            return functions.Mul.apply(self, self._ensure_tensor(1.0 / b))
        return functions.Mul.apply(self, functions.Inv.apply(self._ensure_tensor(b)))

    def __rtruediv__(self, b: TensorLike) -> Tensor:
        return functions.Mul.apply(self._ensure_tensor(b), functions.Inv.apply(self))

    def __matmul__(self, b: Tensor) -> Tensor:
        return functions.MatMul.apply(self, b)

    def __neg__(self) -> Tensor:
        return functions.Neg.apply(self)

    def __lt__(self, b: TensorLike) -> Tensor:
        return functions.LT.apply(self, self._ensure_tensor(b))

    def __gt__(self, b: TensorLike) -> Tensor:
        return functions.LT.apply(self._ensure_tensor(b), self)

    def __eq__(self, b: TensorLike) -> Tensor:  # type: ignore[override]
        return functions.EQ.apply(self, self._ensure_tensor(b))

    def __ne__(self, b: TensorLike) -> Tensor:  # type: ignore[override]
        return functions.NE.apply(self, self._ensure_tensor(b))

    def all(self, dim: int | None = None) -> Tensor:
        """1.0 where every number is 1.0 (the product), along a dimension or over everything."""
        if dim is None:
            return functions.All.apply(self.contiguous().view(self.size), 0)
        return functions.All.apply(self, dim)

    def is_close(self, y: Tensor) -> Tensor:
        """1.0 where the two differ by less than 0.01."""
        return functions.IsClose.apply(self, y)

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x))"""
        return functions.Sigmoid.apply(self)

    def relu(self) -> Tensor:
        """x if x > 0, else 0"""
        return functions.ReLU.apply(self)

    def log(self) -> Tensor:
        """log(x + 1e-6)"""
        return functions.Log.apply(self)

    def exp(self) -> Tensor:
        """e^x"""
        return functions.Exp.apply(self)

    def sum(self, dim: int | None = None) -> Tensor:
        """The sum along a dimension, which stays with extent 1; without one over everything, of shape (1,)."""
        if dim is None:
            flat = self if self.dims == 1 else functions.View.apply(self._in_order(), (self.size,))
            return functions.Sum.apply(flat, 0)
        return functions.Sum.apply(self, dim)

    def mean(self, dim: int | None = None) -> Tensor:
        """The sum divided by how many numbers it is of."""
        return self.sum(dim) / (self.size if dim is None else self.shape[dim])

    def permute(self, *order: int) -> Tensor:
        """The dimensions in another order, over the same storage."""
        return functions.Permute.apply(self, order)

    def view(self, *shape: int) -> Tensor:
        """The same storage in another shape. Raises IndexingError unless it is contiguous and the sizes agree."""
        return functions.View.apply(self, shape)

    def contiguous(self) -> Tensor:
        """A copy in row-major order."""
        return functions.Copy.apply(self)

    def _in_order(self) -> Tensor:
        """This tensor if it lies in row-major order, else a copy that does."""
        return self if self._is_contiguous() else functions.Copy.apply(self)

    def _is_contiguous(self) -> bool:
        return self._value.is_contiguous() if self._value is not None else self._tensor.is_contiguous()

    # ------------------------------------------------------------------------------------------------ making tensors

    def _type_(self, backend: TensorBackend) -> None:
        """Compute with another backend from now on."""
        self.backend = backend
        if backend.cuda:
            self._tensor.to_cuda_()

    def _new(self, tensor_data: TensorData) -> Tensor:
        """A tensor over other data, without history."""
        return Tensor(tensor_data, None, None, self.backend)

    def _new_array(self, array: npt.NDArray[np.float64]) -> Tensor:
        """A tensor over a NumPy array, without history."""
        return Tensor(TensorData.of_array(array), None, None, self.backend)

    def _write(self, array: npt.NDArray[np.float64]) -> Tensor:
        """Fill this tensor with an array that broadcasts to it."""
        self._tensor.array[...] = array
        return self

    @staticmethod
    def make(
        storage: Any, shape: UserShape, strides: UserStrides | None = None, backend: TensorBackend | None = None
    ) -> Tensor:
        """A tensor over a storage (a list, or an array whose memory is shared)."""
        return Tensor(TensorData(storage, shape, strides), None, None, backend)

    def zeros(self, shape: UserShape | None = None) -> Tensor:
        """Zeros of this backend, of this shape or another."""
        return self._new_array(np.zeros(self.shape if shape is None else shape))

    def detach(self) -> Tensor:
        """The same data without history."""
        if self._value is not None:
            return make(self._value, self.backend)
        return Tensor(self._tensor, None, None, self.backend)

    def expand(self, other: Tensor) -> Tensor:
        """A gradient of another shape fitted to this tensor: repeated where it is smaller, summed where it is larger.

        other: a gradient whose shape broadcasts with this tensor's
        """
        if self.shape == other.shape:
            return other
        full = shape_broadcast(self.shape, other.shape)
        operations: Any = self.backend.ops
        if self.backend.on_engine:
            return operations.fit(other, full, self.shape)  # type: ignore[no-any-return]
        out = other
        if other.shape != full:
            out = self.zeros(full)
            self.backend.id_map(other, out)
        aligned = (1,) * (len(full) - len(self.shape)) + tuple(self.shape)
        for dim, (have, want) in enumerate(zip(full, aligned)):
            if want == 1 and have != 1:
                out = self.backend.add_reduce(out, dim)
        return out if out.shape == self.shape else Tensor.make(out._tensor._storage, self.shape, backend=self.backend)

    # --------------------------------------------------------------------------------------- what backpropagation asks

    def requires_grad_(self, x: bool = True) -> None:
        """Make this a leaf that collects its gradient (also a computed tensor), or (False) stop recording it."""
        self.history = History() if x else None

    def requires_grad(self) -> bool:
        """Whether something is recorded for it."""
        return self.history is not None

    def zero_grad_(self) -> None:
        """Forget the gradient."""
        self.grad = None

    def accumulate_derivative(self, x: Any) -> None:
        """Add x to `grad` of a leaf."""
        if not self.is_leaf():
            raise ValueError(f"accumulate_derivative: tensor {self.name} is no leaf; only leaves collect gradients")
        # A copy, since one gradient may have gone to several leaves.
        self.grad = self.backend.id_map(self._ensure_tensor(x)) if self.grad is None else self.grad + x

    def is_leaf(self) -> bool:
        """Whether this was given, not computed."""
        return self.history is not None and self.history.last_fn is None

    def is_constant(self) -> bool:
        """Whether nothing is recorded for it."""
        return self.history is None

    @property
    def parents(self) -> Iterable[Variable]:
        """The tensors that the Function which made this was given."""
        if self.history is None:
            raise ValueError(f"parents: tensor {self.name} has no history")
        return [x for x in self.history.inputs if isinstance(x, Tensor)]

    def chain_rule(self, d_output: Any) -> Iterable[Any]:
        """(input, gradient with respect to it) for every tensor that the Function which made this was given."""
        h = self.history
        if h is None or h.last_fn is None or h.ctx is None:
            raise ValueError(f"chain_rule: tensor {self.name} was not computed by a Function")
        gradients = h.last_fn._backward(h.ctx, d_output)
        if len(gradients) != len(h.inputs):
            raise ValueError(
                f"{h.last_fn.__name__}.backward returned {len(gradients)} gradients for "
                f"{len(h.inputs)} inputs{at_method(h.last_fn, 'backward')}"
            )
        pairs = []
        for x, gradient in zip(h.inputs, gradients):
            if not isinstance(x, Tensor):
                continue  # a dimension, a shape, an order
            if x.history is None or (isinstance(gradient, Tensor) and gradient.shape == x.shape):
                pairs.append((x, gradient))
            else:
                pairs.append((x, self._fitted(x, gradient, h.last_fn)))
        return pairs

    def _fitted(self, x: Tensor, gradient: Any, last_fn: type[Function]) -> Tensor:
        try:
            return x.expand(self._ensure_tensor(gradient))
        except (RuntimeError, TypeError) as error:
            got = f"shape {gradient.shape}" if isinstance(gradient, Tensor) else type(gradient).__name__
            raise type(error)(
                f"{last_fn.__name__}.backward: the gradient of an input of shape {x.shape} must be a tensor that "
                f"broadcasts with it, got {got}{at_method(last_fn, 'backward')}"
            ) from error

    def backward(self, grad_output: Tensor | None = None) -> None:
        """Add the gradient of this (times grad_output, by default 1 for shape (1,)) to every leaf it was computed from."""
        if grad_output is None:
            if self.shape != (1,):
                raise ValueError(f"backward: a tensor of shape {self.shape} needs grad_output; only shape (1,) does not")
            grad_output = self._ensure_tensor(1.0)
        backpropagate(self, grad_output)

    def moved(self, direction: Tensor, step: float) -> Tensor:
        """self + step * direction, without history."""
        operations: Any = self.backend.ops
        if self.backend.on_engine:
            return operations.moved(self, direction, step)  # type: ignore[no-any-return]
        return self.detach() + direction.detach() * step


def make(value: EngineTensor, backend: TensorBackend, history: History | None = None) -> Tensor:
    """A tensor over an engine's tensor: what every call of `FastOps` ends with, so without `__init__`'s checks."""
    tensor = Tensor.__new__(Tensor)
    tensor._value = value
    tensor._data = None
    tensor.shape = value.layout.shape
    tensor.backend = backend
    tensor.history = history
    tensor.grad = None
    tensor.unique_id = next(_numbers)
    tensor._name = None
    return tensor


# The Functions stand on this class, so its methods find them in their module, which is imported last.
from tensorsmith.minitorch import tensor_functions as functions  # noqa: E402
