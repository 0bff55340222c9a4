"""`autocast`: a region whose operators each run in the dtype that suits them.

    with ts.autocast("cuda", dtype=ts.bfloat16):
        loss = loss_function(model(x), y)          # products in bfloat16, the loss in float32
    loss.backward()                                # gradients of float32 weights are float32
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from tensorsmith.amp.casting import device_type_of
from tensorsmith.amp.state import (
    autocast_decrement_nesting,
    autocast_increment_nesting,
    clear_autocast_cache,
    get_autocast_dtype,
    is_autocast_available,
    is_autocast_enabled,
    settings,
)
from tensorsmith.core.dtypes import DType, as_dtype, bfloat16, float16, float64, type_name
from tensorsmith.targets.cuda.devices import is_available
from tensorsmith.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])

_DTYPES = (bfloat16, float16)


class autocast:  # noqa: N801 - PyTorch's name
    """Mixed precision in a region of code: a context manager, or a decorator, that nests; it holds for the calling thread.

    device_type:   "cuda" or "cpu": operators on tensors of that device are seen
    dtype:         bfloat16 or float16; `get_autocast_dtype(device_type)` by default
    enabled:       False switches it off inside of a region where it is on
    cache_enabled: keep the casts of float32 weights until the outermost region is left; as it was by default
    Operators by their policy (`amp/policy.py`): products in `dtype`, losses, norms and sums in float32, joins in the widest
    dtype of their operands, everything else in what it is given. What is written in place, or with `out=`, is not seen.
    Raises ValueError and RuntimeError for another device type; warns, and does nothing, for a dtype that is none of the two and
    for "cuda" without a device.

    >>> with ts.autocast("cpu"):
    ...     y = ts.ones(2, 3) @ ts.ones(3, 4)
    >>> y.dtype
    ts.bfloat16
    """

    def __init__(
        self, device_type: str, dtype: DType | None = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        if not is_autocast_available(device_type):
            raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}'")
        found = as_dtype(dtype)
        self.device = device_type
        self.fast_dtype = get_autocast_dtype(device_type) if found is None else found
        self._keeps_casts = cache_enabled
        if enabled and self.fast_dtype not in _DTYPES:
            name = device_type.upper()
            warnings.warn(
                f"In {name} autocast, but the target dtype is not supported. Disabling autocast.\n{name} Autocast only "
                f"supports dtypes of {', '.join(map(repr, _DTYPES))} currently; got {type_name(self.fast_dtype)}.",
                stacklevel=2,
            )
            enabled = False
        elif enabled and device_type == "cuda" and not is_available():
            warnings.warn("CUDA is not available. Disabling autocast.", stacklevel=2)
            enabled = False
        self._enabled = bool(enabled)
        self._before: list[tuple[bool, DType, bool]] = []

    def __enter__(self) -> autocast:
        device = self.device
        self._before.append((settings.enabled[device], settings.dtype[device], settings.keeps_casts))
        autocast_increment_nesting()
        settings.enabled[device], settings.dtype[device] = self._enabled, self.fast_dtype
        if self._keeps_casts is not None:
            settings.keeps_casts = self._keeps_casts
        settings.apply()
        return self

    def __exit__(self, *exc: object) -> None:
        if autocast_decrement_nesting() == 0:
            clear_autocast_cache()
        settings.enabled[self.device], settings.dtype[self.device], settings.keeps_casts = self._before.pop()
        settings.apply()

    def __call__(self, function: F) -> F:
        if not callable(function):
            raise TypeError(
                f"autocast()(function) requires a callable, but got {type(function).__name__}. To use it as a context manager: "
                "with ts.autocast(device_type=...): ..."
            )

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


def _cast(value: Any, device_type: str, dtype: DType) -> Any:
    """Floating-point tensors of a device, alone or in containers, in another dtype; float64 stays."""
    if isinstance(value, Tensor):
        seen = value.dtype.kind == "f" and value.dtype is not float64 and device_type_of(value.layout) == device_type
        return value.to(dtype) if seen else value  # type: ignore[attr-defined]
    if isinstance(value, str | bytes | np.ndarray):
        return value
    if isinstance(value, Mapping):
        return {_cast(k, device_type, dtype): _cast(v, device_type, dtype) for k, v in value.items()}
    if isinstance(value, Iterable):
        found = (_cast(each, device_type, dtype) for each in value)
        return type(value)(found) if isinstance(value, list | tuple) else found  # type: ignore[call-arg]
    return value


def custom_fwd(fwd: Callable | None = None, *, device_type: str, cast_inputs: DType | None = None) -> Any:
    """A decorator for `forward` of an `autograd.Function` that is called under autocast.

    cast_inputs: the dtype that floating-point tensors among its arguments are cast to; `forward` then runs with autocast
        off. Without it `forward` runs as the code around it does. Outside of autocast nothing is changed.
    Raises ValueError where `device_type` is no string.
    """
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    run: Callable[..., Any] = fwd

    @functools.wraps(run)
    def forward(*args: Any, **kwargs: Any) -> Any:
        ctx, is_on = args[0], is_autocast_enabled(device_type)
        ctx._dtype = get_autocast_dtype(device_type)
        ctx._fwd_used_autocast = is_on and cast_inputs is None
        if cast_inputs is None or not is_on:
            return run(*args, **kwargs)
        rest = _cast(args[1:], device_type, cast_inputs)
        with autocast(device_type, enabled=False):
            return run(ctx, *rest, **_cast(kwargs, device_type, cast_inputs))

    return forward


def custom_bwd(bwd: Callable | None = None, *, device_type: str) -> Any:
    """A decorator for `backward` beside `custom_fwd`: it runs with autocast as `forward` did.

    Raises ValueError where `device_type` is no string.
    """
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    run: Callable[..., Any] = bwd

    @functools.wraps(run)
    def backward(*args: Any, **kwargs: Any) -> Any:
        ctx = args[0]
        with autocast(device_type, enabled=ctx._fwd_used_autocast, dtype=ctx._dtype):
            return run(*args, **kwargs)

    return backward
