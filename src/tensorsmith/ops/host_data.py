"""Between tensors and data of the host: the array over a tensor, and the array and dtype that nested Python data stands for.

Numbers from Python are checked against the dtype they are to have (as in PyTorch an int8 does not hold 300); NumPy arrays and
tensors are cast like any tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import (
    DType,
    bool_,
    from_numpy_dtype,
    get_default_dtype,
    iinfo,
    int64,
    of_python_scalar,
    promote_types,
    uint64,
)
from tensorsmith.targets.reference.representation import converted, rounded
from tensorsmith.tensor.host_values import values_at
from tensorsmith.tensor.tensor import Tensor, readable, refuse_value


def array_of(tensor: Tensor) -> np.ndarray:
    """The values of a tensor as a NumPy array: over its memory, for use while the tensor lives; a copy of a CUDA device's.

    It is to be read only: `write_values` writes.
    """
    layout = tensor.layout
    if layout.level is not None:
        tensor = readable(tensor, "this operator")
    if tensor.storage.traced:
        refuse_value(tensor, "this operator")
    return values_at(tensor)


def cast_array(array: np.ndarray, dtype: DType) -> np.ndarray:
    """An array in another dtype, as tensors are cast: out of range saturates, NaN becomes 0, integers wrap around."""
    if array.dtype == dtype.numpy:
        return array
    with np.errstate(all="ignore"):
        if dtype.kind in "iu" and array.dtype.kind not in "biu":
            wide = array if array.dtype.kind in "fc" else array.astype(np.float64)  # bfloat16 is of kind V to NumPy
            return converted(wide, dtype)
        return rounded(array, dtype)


def check_fits(name: str, value: bool | int | float | complex, dtype: DType) -> None:
    """Refuse a Python number that an integer dtype cannot hold; a negative int wraps around in an unsigned dtype.

    A complex number fits where its imaginary part is 0 and its real part fits; into bool, any.

    Raises RuntimeError, as PyTorch, and OverflowError for an int of more than 64 bits.
    """
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise OverflowError(f"{name}: the int {value} does not fit into 64 bits")
    if isinstance(value, complex):
        if dtype.kind in "cb":
            return
        if value.imag != 0:
            raise RuntimeError(f"{name}: the complex value {value} cannot be converted to type {dtype.name} without overflow")
        value = value.real
    if dtype.kind not in "iu":
        return
    limits = iinfo(dtype)
    low = -limits.max if dtype.kind == "u" and not isinstance(value, float) else limits.min
    if not low <= value <= limits.max:  # NaN is not either
        raise RuntimeError(f"{name}: value {value} cannot be converted to type {dtype.name} without overflow")


def from_python(data: Any, dtype: DType | None) -> tuple[np.ndarray, DType]:
    """The array of nested Python data, and its dtype: the one given, or PyTorch's choice.

    Raises ValueError for ints beyond 64 bits and for sequences of unlike lengths, RuntimeError for what is no number or what
    the dtype does not hold, TypeError for complex numbers in a real dtype.
    """
    if isinstance(data, np.ndarray | np.generic) or (not isinstance(data, _SEQUENCE) and hasattr(data, "__array__")):
        array = np.asarray(data)
        return array, dtype or from_numpy_dtype(array.dtype)
    if dtype is uint64:
        return _each(data, dtype)
    if isinstance(data, bool | int | float | complex):
        dtype = dtype or of_python_scalar(data)
        return _checked(_plain_array(data), dtype)
    if not isinstance(data, list | tuple | range):
        if isinstance(data, str):
            raise TypeError("tensor(): invalid data type 'str'")
        raise RuntimeError(f"Could not infer dtype of {type(data).__name__}")
    if not _all_plain(data):
        return _each(data, dtype)
    try:
        array = np.array(data)
    except ValueError:
        return _each(data, dtype)  # which says what is wrong
    if array.size == 0 and array.dtype.kind == "f":
        return array, dtype or get_default_dtype()
    if array.dtype.kind not in "bifc" or (array.dtype.kind == "f" and float(np.abs(array).max()) >= 2.0**63):
        return _each(data, dtype)  # objects, text, or ints beyond 63 bits, of which NumPy makes floats
    inferred = {"b": bool_, "i": int64, "f": get_default_dtype(), "c": of_python_scalar(1j)}[array.dtype.kind]
    return _checked(array, dtype or inferred)


_SEQUENCE = (list, tuple, range, bool, int, float, complex)


def _plain_array(value: Any) -> np.ndarray:
    return np.asarray(value, dtype=object if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63 else None)


def _all_plain(data: Sequence[Any]) -> bool:
    """Whether the first number of the data is Python's own or an array: then NumPy's reading of it is ours too."""
    while isinstance(data, list | tuple) and len(data) > 0:
        if any(isinstance(x, np.generic | Tensor) for x in data):
            return False
        data = data[0]
    return not (isinstance(data, np.ndarray) and data.dtype.kind != "i") or data.dtype.itemsize == 8


def _checked(array: np.ndarray, dtype: DType) -> tuple[np.ndarray, DType]:
    """The numbers of a Python source in `dtype`, if it holds them."""
    if array.dtype == object:
        if dtype.kind in "iu":
            raise ValueError("Overflow when unpacking long long")
        return array.astype(np.float64), dtype
    if array.dtype.kind == "c" and dtype.kind != "c":
        if dtype.kind in "iu":
            raise TypeError("'complex' object cannot be interpreted as an integer")
        if dtype.kind == "f":
            raise TypeError("must be real number, not complex")
    if dtype.kind in "iu" and array.size and not (array.dtype.kind == "i" and dtype is int64):
        for extreme in (array.min(), array.max()):
            check_fits("tensor", extreme.item(), dtype)
    return array, dtype


def _each(data: Any, dtype: DType | None) -> tuple[np.ndarray, DType]:
    """Number by number: for data that NumPy would read in another way."""
    shape = _shape(data)
    leaves: list[Any] = []
    _collect(data, shape, leaves)
    if dtype is None:
        for leaf in leaves:
            found = _leaf_dtype(leaf)
            dtype = found if dtype is None else promote_types(dtype, found)
    dtype = dtype or get_default_dtype()
    convert = _converter(dtype)
    numbers = [convert(leaf.item() if isinstance(leaf, Tensor | np.generic) else leaf) for leaf in leaves]
    array = np.array(numbers, dtype=dtype.numpy if dtype.kind in "bu" else None).reshape(shape)
    return array if array.size else array.astype(dtype.numpy), dtype


def _shape(data: Any) -> tuple[int, ...]:
    shape = []
    while isinstance(data, list | tuple | range | np.ndarray) or (isinstance(data, Tensor) and data.ndim):
        shape.append(len(data))
        if not len(data):
            break
        data = data[0]
    return tuple(shape)


def _collect(data: Any, shape: tuple[int, ...], leaves: list[Any]) -> None:
    if not shape:
        if isinstance(data, Tensor):
            data = data.item() if data.numel() == 1 and data.ndim else data
        elif isinstance(data, list | tuple | range | np.ndarray):
            raise TypeError(f"'{type(data).__name__}' object cannot be interpreted as a number: the others here are numbers")
        leaves.append(data)
        return
    if not isinstance(data, list | tuple | range | np.ndarray | Tensor) or (isinstance(data, Tensor) and not data.ndim):
        raise TypeError(f"not a sequence: {type(data).__name__} among sequences of length {shape[0]}")
    if len(data) != shape[0]:
        raise ValueError(
            f"expected sequences of equal length at every depth: expected sequence of length {shape[0]} (got {len(data)})"
        )
    for each in data:
        _collect(each, shape[1:], leaves)


def _leaf_dtype(leaf: Any) -> DType:
    if isinstance(leaf, Tensor):
        return leaf.dtype
    if isinstance(leaf, np.generic):
        return from_numpy_dtype(leaf.dtype)
    if isinstance(leaf, bool | int | float | complex):
        return of_python_scalar(leaf)
    if isinstance(leaf, str):
        raise ValueError("too many dimensions 'str': text is no number")
    raise RuntimeError(f"Could not infer dtype of {type(leaf).__name__}")


def _converter(dtype: DType) -> Callable[[Any], Any]:
    def number(leaf: Any) -> Any:
        if not isinstance(leaf, bool | int | float | complex):
            raise TypeError(f"tensor(): must be a number, not {type(leaf).__name__}")
        if dtype.kind == "c":
            return complex(leaf)
        if isinstance(leaf, complex):
            if dtype.kind == "b":
                return bool(leaf)
            raise TypeError("must be real number, not complex")
        if dtype.kind == "f":
            return float(leaf)
        if dtype is uint64:
            if isinstance(leaf, float):
                raise TypeError(f"an integer is required, got {leaf}")
            if leaf < 0:
                raise OverflowError("can't convert negative int to unsigned")
            if leaf >= 1 << 64:
                raise OverflowError("int too big to convert")
            return leaf
        if dtype.kind == "b":
            return bool(leaf)
        if isinstance(leaf, int) and not -(1 << 63) <= leaf < 1 << 63:
            raise ValueError("Overflow when unpacking long long")
        check_fits("tensor", leaf, dtype)
        whole = int(leaf)
        return whole % (iinfo(dtype).max + 1) if dtype.kind == "u" else whole

    return number
