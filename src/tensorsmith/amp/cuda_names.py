"""`ts.cuda.amp`: the older names of mixed precision on a GPU, which warn and lead to `ts.amp`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tensorsmith import amp as _amp
from tensorsmith.core.dtypes import DType, float16


def _warn(name: str, instead: str) -> None:
    warnings.warn(
        f"`ts.cuda.amp.{name}(args...)` is deprecated. Please use `ts.amp.{instead}` instead.", FutureWarning, stacklevel=3
    )


class autocast(_amp.autocast):  # noqa: N801 - PyTorch's name
    """`ts.amp.autocast("cuda", ...)`, with a warning."""

    def __init__(self, enabled: bool = True, dtype: DType = float16, cache_enabled: bool = True) -> None:
        _warn("autocast", "autocast('cuda', args...)")
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(_amp.GradScaler):
    """`ts.amp.GradScaler("cuda", ...)`, with a warning."""

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        _warn("GradScaler", "GradScaler('cuda', args...)")
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(fwd: Callable | None = None, *, cast_inputs: DType | None = None) -> Any:
    """`ts.amp.custom_fwd(..., device_type="cuda")`, with a warning."""
    _warn("custom_fwd", "custom_fwd(args..., device_type='cuda')")
    return _amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable) -> Any:
    """`ts.amp.custom_bwd(..., device_type="cuda")`, with a warning."""
    _warn("custom_bwd", "custom_bwd(args..., device_type='cuda')")
    return _amp.custom_bwd(bwd, device_type="cuda")


__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
