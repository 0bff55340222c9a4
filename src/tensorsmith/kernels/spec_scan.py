"""ScanSpec: kernels that write the running sum, product, maximum, minimum or log-sum-exp along one axis."""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.scalar.fn import Fn

# The function that joins what was met so far with the next value.
JOINED: dict[str, Fn] = {
    "sum": Fn.ADD, "prod": Fn.MUL, "max": Fn.MAXIMUM, "min": Fn.MINIMUM, "logsumexp": Fn.LOGADDEXP,
}  # fmt: skip


@dataclass(frozen=True)
class ScanSpec:
    """One scan; launch words are the addresses of the source and of the result, which have one dtype.

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
        if self.kind not in JOINED:
            raise ValueError(f"ScanSpec: kind must be one of {', '.join(JOINED)}, got {self.kind!r}")

    @property
    def state_dtype(self) -> DType:
        """The dtype in which values are joined; each result is rounded from it once."""
        if self.dtype.is_half:
            return dtypes.float32
        if self.dtype is dtypes.float32 and self.kind not in ("max", "min"):
            return dtypes.float64
        return self.dtype


def identity(kind: str, dtype: DType) -> bool | int | float:
    """What changes no value it is joined with."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    largest = kind == "min"
    if dtype.is_floating_point:
        return float("inf") if largest else float("-inf")
    if dtype.kind == "b":
        return largest
    limits = dtypes.iinfo(dtype)
    return limits.max if largest else limits.min
