"""Tensorsmith: deep learning that opens at every level.

Scalars, tensors, gradients and modules with PyTorch's names; every operator described once and compiled to kernels.
"""

from math import e as e
from math import inf as inf
from math import nan as nan
from math import pi as pi

from tensorsmith import autograd as autograd
from tensorsmith import nn as nn
from tensorsmith import ops as _ops
from tensorsmith import optim as optim
from tensorsmith import scalar as scalar
from tensorsmith.compile import compile as compile
from tensorsmith.compile import explain as explain
from tensorsmith.core.dtypes import DType as dtype
from tensorsmith.core.dtypes import (
    bfloat16 as bfloat16,
)
from tensorsmith.core.dtypes import bool_ as bool  # noqa: A004 - PyTorch's name
from tensorsmith.core.dtypes import (
    complex64 as complex64,
)
from tensorsmith.core.dtypes import (
    complex128 as complex128,
)
from tensorsmith.core.dtypes import (
    finfo as finfo,
)
from tensorsmith.core.dtypes import (
    float16 as float16,
)
from tensorsmith.core.dtypes import (
    float32 as float32,
)
from tensorsmith.core.dtypes import (
    float64 as float64,
)
from tensorsmith.core.dtypes import (
    get_default_dtype as get_default_dtype,
)
from tensorsmith.core.dtypes import (
    iinfo as iinfo,
)
from tensorsmith.core.dtypes import (
    int8 as int8,
)
from tensorsmith.core.dtypes import (
    int16 as int16,
)
from tensorsmith.core.dtypes import (
    int32 as int32,
)
from tensorsmith.core.dtypes import (
    int64 as int64,
)
from tensorsmith.core.dtypes import (
    promote_types as promote_types,
)
from tensorsmith.core.dtypes import (
    set_default_dtype as set_default_dtype,
)
from tensorsmith.core.dtypes import (
    uint8 as uint8,
)
from tensorsmith.core.dtypes import (
    uint16 as uint16,
)
from tensorsmith.core.dtypes import (
    uint32 as uint32,
)
from tensorsmith.core.dtypes import (
    uint64 as uint64,
)
from tensorsmith.ops.creation import from_numpy as from_numpy
from tensorsmith.ops.elementwise import elementwise as elementwise
from tensorsmith.ops.random import (
    Generator as Generator,
)
from tensorsmith.ops.random import (
    default_generator as default_generator,
)
from tensorsmith.ops.random import (
    get_rng_state as get_rng_state,
)
from tensorsmith.ops.random import (
    initial_seed as initial_seed,
)
from tensorsmith.ops.random import (
    manual_seed as manual_seed,
)
from tensorsmith.ops.random import (
    seed as seed,
)
from tensorsmith.ops.random import (
    set_rng_state as set_rng_state,
)
from tensorsmith.ops.registry import namespace as _namespace
from tensorsmith.targets.cpu.pool import get_num_threads as get_num_threads
from tensorsmith.targets.cpu.pool import set_num_threads as set_num_threads
from tensorsmith.tensor.modes import (
    enable_grad as enable_grad,
)
from tensorsmith.tensor.modes import (
    inference_mode as inference_mode,
)
from tensorsmith.tensor.modes import (
    is_grad_enabled as is_grad_enabled,
)
from tensorsmith.tensor.modes import (
    no_grad as no_grad,
)
from tensorsmith.tensor.modes import (
    set_grad_enabled as set_grad_enabled,
)
from tensorsmith.tensor.printing import set_printoptions as set_printoptions
from tensorsmith.tensor.tensor import Device as device
from tensorsmith.tensor.tensor import Size as Size
from tensorsmith.tensor.tensor import Tensor as Tensor

globals().update(_namespace(""))
float, double, half, int, long, short = float32, float64, float16, int32, int64, int16  # noqa: A001

newaxis = None

__version__ = "0.1.0"

# Imported when first asked for: name -> (module, attribute), or the module itself.
_LATER: dict[str, tuple[str, str | None]] = {
    "cuda": ("tensorsmith.cuda", None),
    "data": ("tensorsmith.data", None),
    "linalg": ("tensorsmith.linalg", None),
    "load": ("tensorsmith.data.serialization", "load"),
    "save": ("tensorsmith.data.serialization", "save"),
    "special": ("tensorsmith.special", None),
}


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
_ = (_ops, dtype, bool, device)
