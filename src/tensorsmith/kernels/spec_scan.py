"""ScanSpec: kernels that write the running sum, product, extreme, its place, or log-sum-exp along one axis."""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.scalar.fn import Fn

# The function that joins what was met so far with the next value; of the places of extremes nothing is joined but compared.
JOINED: dict[str, Fn] = {
    "sum": Fn.ADD, "prod": Fn.MUL, "max": Fn.MAXIMUM, "min": Fn.MINIMUM, "logsumexp": Fn.LOGADDEXP,
}  # fmt: skip
PLACES = {"argmax": "max", "argmin": "min"}


@dataclass(frozen=True)
class ScanSpec:
    """One scan; launch words are the addresses of the source and of the result, of one dtype but for places (int64).

    The place of an extreme is where it was met last; a NaN is larger and smaller than all before it.

    domain: extents, all >= 1. source, result: element strides per axis. The state along the axis is held in
    `state_dtype`: sums, products and log-sum-exps of float32 in float64 and of half types in float32, as in PyTorch.
    """

    kind: str
    domain: tuple[int, ...]
    axis: int
    dtype: DType
    source: tuple[int, ...]
    result: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.kind not in JOINED and self.kind not in PLACES:
            raise ValueError(f"ScanSpec: kind must be one of {', '.join([*JOINED, *PLACES])}, got {self.kind!r}")

    @property
    def state_dtype(self) -> DType:
        """The dtype in which values are joined; each result is rounded from it once."""
        if self.dtype.is_half:
            return dtypes.float32
        if self.dtype is dtypes.float32 and self.kind in ("sum", "prod", "logsumexp"):
            return dtypes.float64
        return self.dtype

    @property
    def result_dtype(self) -> DType:
        """The dtype of what is written."""
        return dtypes.int64 if self.kind in PLACES else self.dtype


def identity(kind: str, dtype: DType) -> bool | int | float:
    """What changes no value it is joined with."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    largest = kind in ("min", "argmin")
    if dtype.is_floating_point:
        return float("inf") if largest else float("-inf")
    if dtype.kind == "b":
        return largest
    limits = dtypes.iinfo(dtype)
    return limits.max if largest else limits.min
