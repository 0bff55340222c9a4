"""Element types and PyTorch's promotion rules.

A `DType` is one of a closed set of interned objects (`float32`, `int64`, ...). Promotion has three priorities, as in
PyTorch: tensors with dimensions, then zero-dim tensors, then Python scalars; a lower priority changes the result only
where its *category* (bool < integer < floating < complex) is higher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import ml_dtypes
import numpy as np


class DType:
    """An element type: `name`, `itemsize` in bytes, `kind` (b u i f c) and its NumPy counterpart.

    digits:  significant binary digits of a floating-point type (24 for float32), the leading one included; 0 for others
    is_half: whether it is one of the two half types, on which kernels compute in float32
    """

    __slots__ = (
        "name", "itemsize", "kind", "numpy", "is_floating_point", "is_complex", "is_signed", "is_half", "digits", "code",
    )  # fmt: skip

    def __init__(self, name: str, kind: str, numpy: object, code: int) -> None:
        self.name = name
        self.kind = kind
        self.numpy = np.dtype(numpy)  # type: ignore[call-overload]
        self.itemsize: int = self.numpy.itemsize
        self.is_floating_point = kind == "f"
        self.is_complex = kind == "c"
        self.is_signed = kind in "ifc"
        self.is_half = kind == "f" and self.itemsize == 2
        self.digits: int = ml_dtypes.finfo(self.numpy).nmant + 1 if kind == "f" else 0
        self.code = code

    def __repr__(self) -> str:
        return f"tensorsmith.{self.name}"

    def __reduce__(self) -> tuple:
        return _by_name, (self.name,)

    def __deepcopy__(self, memo: dict) -> DType:
        return self


bool_ = DType("bool", "b", np.bool_, 0)
uint8 = DType("uint8", "u", np.uint8, 1)
int8 = DType("int8", "i", np.int8, 2)
int16 = DType("int16", "i", np.int16, 3)
int32 = DType("int32", "i", np.int32, 4)
int64 = DType("int64", "i", np.int64, 5)
float16 = DType("float16", "f", np.float16, 6)
bfloat16 = DType("bfloat16", "f", ml_dtypes.bfloat16, 7)
float32 = DType("float32", "f", np.float32, 8)
float64 = DType("float64", "f", np.float64, 9)
uint16 = DType("uint16", "u", np.uint16, 10)
uint32 = DType("uint32", "u", np.uint32, 11)
uint64 = DType("uint64", "u", np.uint64, 12)
complex64 = DType("complex64", "c", np.complex64, 13)
complex128 = DType("complex128", "c", np.complex128, 14)

ALL: tuple[DType, ...] = (
    bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64,
    uint16, uint32, uint64, complex64, complex128,
)  # fmt: skip
BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
BY_NUMPY: dict[np.dtype, DType] = {d.numpy: d for d in ALL}

_TYPE_NAMES = {
    "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double", "uint8": "Byte", "int8": "Char",
    "int16": "Short", "int32": "Int", "int64": "Long", "bool": "Bool", "uint16": "UInt16", "uint32": "UInt32",
    "uint64": "UInt64", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip

_default = float32


def type_name(dtype: DType) -> str:
    """PyTorch's word for a dtype in its messages: Float, Long, ..."""
    return _TYPE_NAMES[dtype.name]


def _by_name(name: str) -> DType:
    return BY_NAME[name]


def get_default_dtype() -> DType:
    """The dtype of Python floats and of integer inputs to floating-point functions (float32 unless set)."""
    return _default


when_default_changes: list[Callable[[], None]] = []  # what has to be forgotten then


def set_default_dtype(dtype: DType) -> None:
    """Set the default floating dtype; anything but a floating dtype is refused."""
    global _default
    if not isinstance(dtype, DType) or dtype.kind != "f":
        raise TypeError(
            f"set_default_dtype: only floating-point types are supported as the default type, got {dtype!r}"
        )
    _default = dtype
    for forget in when_default_changes:
        forget()


def from_numpy_dtype(dtype: np.dtype) -> DType:
    """The DType of a NumPy dtype; TypeError where there is none."""
    found = BY_NUMPY.get(dtype)
    if found is None:
        supported = ", ".join(d.name for d in ALL)
        raise TypeError(f"can't convert np.ndarray of type {dtype}. The supported types are: {supported}")
    return found


_RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 floating, 3 complex."""
    return _RANK[dtype.kind]


def _promote_uncached(a: DType, b: DType) -> DType:
    if a is b:
        return a
    ka, kb = a.kind, b.kind
    if "f" not in (ka, kb) and (_is_wide_unsigned(a) or _is_wide_unsigned(b)):
        # As in PyTorch, the wide unsigned types mix with floating ones only.
        raise RuntimeError(
            f"Promotion for uint16, uint32, uint64 types is not supported, attempted to promote {a.name} and {b.name}; "
            "cast one of them explicitly"
        )
    if ka == "b":
        return b
    if kb == "b":
        return a
    if "c" in (ka, kb):
        parts = {d.itemsize // 2 if d.kind == "c" else (d.itemsize if d.kind == "f" else 0) for d in (a, b)}
        return complex128 if max(parts) >= 8 else complex64
    if "f" in (ka, kb):
        if ka != "f":
            return b
        if kb != "f":
            return a
        if a.itemsize == b.itemsize:  # float16 with bfloat16
            return float32
        return a if a.itemsize > b.itemsize else b
    if ka == kb:
        return a if a.itemsize > b.itemsize else b
    signed = a if ka == "i" else b
    return signed if signed.itemsize > 1 else int16  # the other is uint8


def _is_wide_unsigned(dtype: DType) -> bool:
    return dtype.kind == "u" and dtype.itemsize > 1


_TABLE: dict[tuple[DType, DType], DType] = {}
for _a in ALL:
    for _b in ALL:
        try:
            _TABLE[_a, _b] = _promote_uncached(_a, _b)
        except RuntimeError:
            pass


def promote_types(a: DType, b: DType) -> DType:
    """The smallest dtype that holds both, by PyTorch's table."""
    found = _TABLE.get((a, b))
    if found is None and not (isinstance(a, DType) and isinstance(b, DType)):
        raise TypeError(f"promote_types(): expected two dtypes, got {type(a).__name__} and {type(b).__name__}")
    return found if found is not None else _promote_uncached(a, b)


def as_dtype(value: object) -> DType | None:
    """A dtype from what users may give as one: None, a dtype, or Python's bool, int, float (64 bits) or complex."""
    if value is None or isinstance(value, DType):
        return value
    for kind, found in ((bool, bool_), (int, int64), (float, float64), (complex, complex128)):
        if value is kind:
            return found
    given = f"{value.__module__}.{value.__name__}" if isinstance(value, type) else repr(value)
    raise TypeError(f"dtype must be a dtype such as tensorsmith.float32, not {given}")


def of_python_scalar(value: object) -> DType:
    """The dtype a Python number has before promotion: bool, int64, the default float or its complex."""
    if isinstance(value, (bool, np.bool_)):
        return bool_
    if isinstance(value, (int, np.integer)):
        return int64
    if isinstance(value, (float, np.floating)):
        return _default
    if isinstance(value, (complex, np.complexfloating)):
        return complex128 if _default is float64 else complex64
    raise TypeError(f"expected a Python number, got {type(value).__name__}")


def promote_operands(dimensioned: Iterable[DType], zero_dim: Iterable[DType] = (), weak: Iterable[DType] = ()) -> DType:
    """Result dtype of an operator over tensors with dimensions, zero-dim tensors and Python scalars.

    A lower priority only counts where its category is above the one reached so far; PyTorch's `result_type`.
    """
    result: DType | None = None
    for group in (dimensioned, zero_dim, weak):
        inner: DType | None = None
        for dtype in group:
            inner = dtype if inner is None else promote_types(inner, dtype)
        if inner is None:
            continue
        if result is None:
            result = inner
        elif category(inner) > category(result):
            if result.kind == "b" and _is_wide_unsigned(inner):
                promote_types(result, inner)  # refused, as between tensors with dimensions
            if inner.kind == "c" and result.kind == "f":  # the tensor's precision, made complex
                inner = complex_dtype(result)
            result = inner
    if result is None:
        raise TypeError("promotion needs at least one operand")
    return result


def real_dtype(dtype: DType) -> DType:
    """The dtype of the parts of a complex dtype; another dtype as it is."""
    return (float32 if dtype is complex64 else float64) if dtype.kind == "c" else dtype


def complex_dtype(dtype: DType) -> DType:
    """The complex dtype whose parts hold `dtype`: complex128 for float64 and complex128, else complex64."""
    return complex128 if dtype in (float64, complex128) else complex64


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which kernels compute on `dtype`: float32 for the half types, otherwise itself."""
    return float32 if dtype.is_half else dtype


class finfo:  # noqa: N801 - PyTorch's name
    """Machine limits of a floating dtype: eps, max, min, tiny, smallest_normal, bits, resolution."""

    def __init__(self, dtype: DType | None = None) -> None:
        dtype = dtype or _default
        if dtype.kind not in "fc":
            raise TypeError(f"finfo: requires a floating point dtype, got {dtype}. Use iinfo for integers")
        info = ml_dtypes.finfo(dtype.numpy)
        self.dtype = dtype.name
        self.bits: int = info.bits
        self.eps, self.max, self.min = float(info.eps), float(info.max), float(info.min)
        self.tiny = self.smallest_normal = float(info.smallest_normal)
        self.resolution = float(f"1e-{info.precision}")

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        return f"finfo({', '.join(f'{n}={getattr(self, n):g}' for n in names)}, dtype={self.dtype})"


class iinfo:  # noqa: N801 - PyTorch's name
    """Limits of an integer dtype: min, max, bits."""

    def __init__(self, dtype: DType) -> None:
        if dtype.kind not in "iu":
            raise TypeError(f"iinfo: requires an integer dtype, got {dtype}. Use finfo for floating types")
        info = np.iinfo(dtype.numpy)
        self.dtype = dtype.name
        self.bits, self.min, self.max = int(info.bits), int(info.min), int(info.max)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"
