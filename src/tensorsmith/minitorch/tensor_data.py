"""Module 2: storage, shape and strides, and the arithmetic of indices.

`TensorData` and the engine's tensors are two views of one block of memory: `TensorData.value` is the float64 tensor over
`_storage`, and `TensorData.of` the reverse.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tensorsmith.core.layout import contiguous_strides
from tensorsmith.ops.creation import from_numpy
from tensorsmith.tensor.tensor import Tensor as EngineTensor

MAX_DIMS = 32

Storage: TypeAlias = npt.NDArray[np.float64]
OutIndex: TypeAlias = npt.NDArray[np.int32]
Index: TypeAlias = npt.NDArray[np.int32]
Shape: TypeAlias = npt.NDArray[np.int32]
Strides: TypeAlias = npt.NDArray[np.int32]

UserIndex: TypeAlias = Sequence[int]
UserShape: TypeAlias = Sequence[int]
UserStrides: TypeAlias = Sequence[int]


class IndexingError(RuntimeError):
    """An index, shape or stride that does not fit."""


def index_to_position(index: Any, strides: Any) -> int:
    """The place in storage: the sum of index times stride over the dimensions."""
    position = 0
    for i, stride in zip(index, strides):
        position += int(i) * int(stride)
    return position


def to_index(ordinal: int, shape: Any, out_index: Any) -> None:
    """Write the index of the `ordinal`-th element in row-major order to `out_index`."""
    rest = int(ordinal)
    for i in range(len(shape) - 1, -1, -1):
        rest, out_index[i] = divmod(rest, int(shape[i]))


def broadcast_index(big_index: Any, big_shape: Any, shape: Any, out_index: Any) -> None:
    """Write to `out_index` where an element of a broadcast shape comes from.

    Leading dimensions that `shape` lacks fall away, in dimensions of extent 1 the index is 0.
    """
    skipped = len(big_shape) - len(shape)
    for i in range(len(shape)):
        out_index[i] = big_index[i + skipped] if shape[i] > 1 else 0


def shape_broadcast(shape1: UserShape, shape2: UserShape) -> tuple[int, ...]:
    """The shape of two operands together: aligned at the end, equal extents or 1.

    Raises IndexingError naming both shapes and the dimension that does not fit.
    """
    length = max(len(shape1), len(shape2))
    first = (1,) * (length - len(shape1)) + tuple(shape1)
    second = (1,) * (length - len(shape2)) + tuple(shape2)
    for i, (a, b) in enumerate(zip(first, second)):
        if a != b and a != 1 and b != 1:
            raise IndexingError(
                f"shapes {tuple(shape1)} and {tuple(shape2)} do not broadcast: "
                f"{a} and {b} in dimension {i - length} are neither equal nor 1"
            )
    return tuple(b if a == 1 else a for a, b in zip(first, second))


def strides_from_shape(shape: UserShape) -> tuple[int, ...]:
    """Row-major strides."""
    return contiguous_strides(tuple(shape))


class TensorData:
    """A block of float64 numbers seen through a shape and strides (in elements).

    storage: a list, or a one-dimensional array whose memory is shared; strides: row-major by default
    Raises IndexingError where strides and shape do not fit each other or the size of the storage.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dims: int
    size: int

    def __init__(self, storage: Any, shape: UserShape, strides: UserStrides | None = None) -> None:
        if not isinstance(shape, tuple) or not (strides is None or isinstance(strides, tuple)):
            raise TypeError(f"TensorData: shape and strides must be tuples, got {shape!r} and {strides!r}")
        strides = contiguous_strides(shape) if strides is None else strides
        if len(strides) != len(shape):
            raise IndexingError(f"TensorData: strides {strides} and shape {shape} differ in length")
        array = np.asarray(storage, np.float64)
        self._set(shape, strides)
        if array.shape != (self.size,):
            raise IndexingError(f"TensorData: shape {shape} needs {self.size} numbers, got storage of shape {array.shape}")
        if self.size and index_to_position([n - 1 for n in shape], strides) >= self.size:
            raise IndexingError(f"TensorData: strides {strides} of shape {shape} reach past {self.size} numbers")
        self._array: Storage | None = array
        self._value: EngineTensor | None = None
        self._shaped: npt.NDArray[np.float64] | None = None

    def _set(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.shape = shape
        self.strides = strides
        self.dims = len(shape)
        size = 1
        for extent in shape:
            size *= extent
        self.size = size

    @classmethod
    def of(cls, value: EngineTensor) -> TensorData:
        """The data of an engine's tensor whose elements fill their memory."""
        data = cls.__new__(cls)
        data._set(tuple(value.shape), value.stride())
        data._array = None
        data._value = value
        data._shaped = None
        return data

    @classmethod
    def of_array(cls, array: npt.NDArray[np.float64]) -> TensorData:
        """The data of a NumPy array in row-major order, sharing its memory."""
        data = cls.__new__(cls)
        data.shape = array.shape
        data.strides = contiguous_strides(array.shape)
        data.dims = array.ndim
        data.size = array.size
        data._array = None
        data._value = None
        data._shaped = array
        return data

    @classmethod
    def over(cls, storage: Any, shape: Any, strides: Any) -> TensorData:
        """The same of a shape and strides given as arrays, as the functions of `tensor_map` and its like take them."""
        return cls(storage, tuple(map(int, shape)), tuple(map(int, strides)))

    @property
    def array(self) -> npt.NDArray[np.float64]:
        """A NumPy array of this shape over the same memory."""
        if self._shaped is None:
            storage = self._storage
            if self.is_contiguous():
                self._shaped = storage.reshape(self.shape)
            else:
                self._shaped = np.ndarray(self.shape, np.float64, storage, 0, tuple(8 * stride for stride in self.strides))
        return self._shaped

    @property
    def _storage(self) -> Any:
        """The numbers in the order of memory, a NumPy array that shares it."""
        if self._array is None:
            if self._shaped is not None:  # in row-major order
                self._array = self._shaped.reshape(-1)
            else:
                assert self._value is not None
                self._array = self._value.as_strided((self.size,), (1,)).numpy()
        return self._array

    @_storage.setter
    def _storage(self, storage: Any) -> None:
        self._array = storage
        self._value = None
        self._shaped = None

    @property
    def value(self) -> EngineTensor:
        """The engine's tensor over the same memory."""
        if self._value is None:
            flat = from_numpy(self._storage)
            if self.is_contiguous():
                self._value = flat.view(self.shape) if self.dims != 1 else flat
            else:
                self._value = flat.as_strided(self.shape, self.strides)
        return self._value

    @property
    def _shape(self) -> Shape:
        return np.array(self.shape)

    @property
    def _strides(self) -> Strides:
        return np.array(self.strides)

    def to_cuda_(self) -> None:
        """Move the storage to a GPU: not there yet."""
        raise NotImplementedError("TensorData.to_cuda_: tensors on a GPU are not implemented; use FastOps or SimpleOps")

    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order (dimensions of extent 1 do not count)."""
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides)):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True

    @staticmethod
    def shape_broadcast(shape_a: UserShape, shape_b: UserShape) -> tuple[int, ...]:
        """The shape of two operands together."""
        return shape_broadcast(shape_a, shape_b)

    def index(self, index: int | UserIndex) -> int:
        """The place of an element in storage. Raises IndexingError outside the shape; negative indices are outside."""
        indices = index if isinstance(index, tuple) else tuple(index) if isinstance(index, Iterable) else (index,)
        shape = self.shape
        if not shape and indices:
            shape = (1,)  # a number is seen as a vector of one
        if len(indices) != len(shape):
            raise IndexingError(f"index {indices} needs {len(shape)} numbers, one for each dimension of {self.shape}")
        for i, extent in zip(indices, shape):
            if isinstance(i, slice) or i is None or i is ...:
                raise IndexingError(f"index {indices}: whole numbers only, one for each dimension of {self.shape}; no slices")
            if i >= extent:
                raise IndexingError(f"index {indices} is out of range for shape {self.shape}")
            if i < 0:
                raise IndexingError(f"index {indices}: negative indices are not supported")
        return index_to_position(indices, self.strides)

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Every index, in row-major order."""
        return iter(np.ndindex(*self.shape))

    def sample(self) -> tuple[int, ...]:
        """A random index."""
        return tuple(random.randint(0, extent - 1) for extent in self.shape)

    def get(self, key: int | UserIndex) -> float:
        """The element at an index."""
        return self._storage[self.index(key)]  # type: ignore[no-any-return]

    def set(self, key: int | UserIndex, val: float) -> None:
        """Write the element at an index."""
        self._storage[self.index(key)] = val

    def tuple(self) -> tuple[Storage, Shape, Strides]:
        """(storage, shape, strides) as arrays, what the functions of `tensor_map` and its like take."""
        return (self._storage, self._shape, self._strides)

    def permute(self, *order: int) -> TensorData:
        """The same storage with the dimensions in another order.

        Raises IndexingError unless `order` names every dimension once.
        """
        if sorted(order) != list(range(self.dims)):
            raise IndexingError(f"permute: {order} does not name each dimension of shape {self.shape} once")
        return TensorData(
            self._storage, tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order)
        )

    def to_string(self) -> str:
        """The elements, two digits after the point, with a bracket and a line for each row."""
        text = ""
        for index in self.indices():
            opening = ""
            for i in range(len(index) - 1, -1, -1):
                if index[i] != 0:
                    break
                opening = "\n" + "\t" * i + "[" + opening
            closing = ""
            for i in range(len(index) - 1, -1, -1):
                if index[i] != self.shape[i] - 1:
                    break
                closing += "]"
            text += f"{opening}{self.get(index):3.2f}{closing or ' '}"
        return text
