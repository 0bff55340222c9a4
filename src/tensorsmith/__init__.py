"""Tensorsmith: deep learning that opens at every level.

Scalars, tensors, gradients and modules with PyTorch's names; every operator described once and compiled to kernels.
"""

from math import e as e, inf as inf, nan as nan, pi as pi

from tensorsmith import (
    autograd as autograd,
    func as func,
    nn as nn,
    ops as _ops,  # noqa: F401 - importing it binds the operators
    optim as optim,
    passes as passes,
    scalar as scalar,
)
from tensorsmith.compile import (
    compile as compile,
    cond as cond,
    explain as explain,
    while_loop as while_loop,
)
from tensorsmith.core.device import Device as device
from tensorsmith.core.dtypes import (
    DType as dtype,
    bfloat16 as bfloat16,
    bool_ as bool,  # noqa: A004 - PyTorch's name
    complex64 as complex64,
    complex128 as complex128,
    finfo as finfo,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    get_default_dtype as get_default_dtype,
    iinfo as iinfo,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    promote_types as promote_types,
    set_default_dtype as set_default_dtype,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from tensorsmith.core.memory_format import (
    MemoryFormat as memory_format,
    channels_last as channels_last,
    channels_last_3d as channels_last_3d,
    contiguous_format as contiguous_format,
    preserve_format as preserve_format,
)
from tensorsmith.func.vmap import vmap as vmap
from tensorsmith.ops.creation import from_numpy as from_numpy
from tensorsmith.ops.elementwise import elementwise as elementwise
from tensorsmith.ops.exchange import from_dlpack as from_dlpack, to_dlpack as to_dlpack
from tensorsmith.ops.random import (
    Generator as Generator,
    default_generator as default_generator,
    get_rng_state as get_rng_state,
    initial_seed as initial_seed,
    manual_seed as manual_seed,
    seed as seed,
    set_rng_state as set_rng_state,
)
from tensorsmith.ops.registry import namespace as _namespace
from tensorsmith.targets.cpu.pool import get_num_threads as get_num_threads, set_num_threads as set_num_threads
from tensorsmith.targets.cuda.precision import (
    float32_matmul_precision as get_float32_matmul_precision,
    set_float32_matmul_precision as set_float32_matmul_precision,
)
from tensorsmith.tensor.modes import (
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    is_grad_enabled as is_grad_enabled,
    is_inference_mode_enabled as is_inference_mode_enabled,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)
from tensorsmith.tensor.placement import (
    get_default_device as get_default_device,
    set_default_device as set_default_device,
)
from tensorsmith.tensor.printing import set_printoptions as set_printoptions
from tensorsmith.tensor.tensor import Size as Size, Tensor as Tensor

globals().update(_namespace(""))
float, double, half, int, long, short = float32, float64, float16, int32, int64, int16  # noqa: A001
cfloat, cdouble = complex64, complex128

newaxis = None

__version__ = "0.1.0"

# Imported when first asked for: name -> (module, attribute), or the module itself.
_LATER: dict[str, tuple[str, str | None]] = {
    "amp": ("tensorsmith.amp", None),
    "autocast": ("tensorsmith.amp", "autocast"),
    "backends": ("tensorsmith.backends", None),
    "compiler": ("tensorsmith.compiler", None),
    "cuda": ("tensorsmith.cuda", None),
    "data": ("tensorsmith.data", None),
    "linalg": ("tensorsmith.linalg", None),
    "load": ("tensorsmith.data.serialization", "load"),
    "save": ("tensorsmith.data.serialization", "save"),
    "profiler": ("tensorsmith.profiler", None),
    "special": ("tensorsmith.special", None),
    "utils": ("tensorsmith.utils", None),
    **{
        name: ("tensorsmith.amp.state", name)
        for name in (
            "autocast_decrement_nesting", "autocast_increment_nesting", "clear_autocast_cache", "get_autocast_cpu_dtype",
            "get_autocast_dtype", "get_autocast_gpu_dtype", "is_autocast_cache_enabled", "is_autocast_cpu_enabled",
            "is_autocast_enabled", "set_autocast_cache_enabled", "set_autocast_cpu_dtype", "set_autocast_cpu_enabled",
            "set_autocast_dtype", "set_autocast_enabled", "set_autocast_gpu_dtype",
        )
    },
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _LATER:
        from sys import modules

        from tensorsmith.core.missing import missing

        raise missing(modules[__name__], name)
    from importlib import import_module

    module, attribute = _LATER[name]
    found = import_module(module)
    globals()[name] = found = found if attribute is None else getattr(found, attribute)
    return found


__all__ = [name for name in globals() if not name.startswith("_")] + list(_LATER)
