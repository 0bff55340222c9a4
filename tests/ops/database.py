"""PyTorch's operator database seen from here: which entries we have, and its arguments carried over.

    for entry in entries(): ours(entry)(*(carry(x) for x in ...))

An entry whose calling convention differs from the public function's (`where` gets its input first) is in `_CONVENTIONS`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import tensorsmith as ts

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[1]))

# Internals of PyTorch and layouts we do not have.
_INTERNAL = ("_", "aten.", "torch.", "ops.", "sparse.", "native_", "jiterator", "masked.", "signal.")

_CONVENTIONS: dict[str, Callable[..., Any]] = {
    "__getitem__": lambda x, i: x[i],
    "__radd__": lambda x, y: y + x,
    "__rsub__": lambda x, y: y - x,
    "__rmul__": lambda x, y: y * x,
    "__rdiv__": lambda x, y: y / x,
    "__rpow__": lambda x, y: y**x,
    "__rmod__": lambda x, y: y % x,
    "__rand__": lambda x, y: y & x,
    "__ror__": lambda x, y: y | x,
    "__rxor__": lambda x, y: y ^ x,
    "__rmatmul__": lambda x, y: y @ x,
    "einsum": lambda tensors, equation: ts.einsum(equation, tensors),
    "where": lambda x, condition, other, **options: ts.where(condition, x, other, **options),
    "nn.functional.embedding": lambda weight, index, **options: ts.nn.functional.embedding(index, weight, **options),
    "nn.functional.embedding_bag": lambda weight, index, **options: ts.nn.functional.embedding_bag(index, weight, **options),
    "polygamma": lambda x, n, **options: ts.polygamma(n, x, **options),
    "special.polygamma": lambda x, n, **options: ts.special.polygamma(n, x, **options),
}


def entries() -> list[Any]:
    """The public operators of the database that we have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

        import torch_samples  # noqa: F401
    found = [entry for entry in op_db if entry.name in _CONVENTIONS or not entry.name.startswith(_INTERNAL)]
    return [entry for entry in found if ours(entry) is not None]


def ours(entry: Any) -> Callable[..., Any] | None:
    """Our function or method of an entry's name; None where there is none."""
    name = entry.name
    if entry.variant_test_name == "in_place":
        return lambda x, *args, **kwargs: getattr(x, name + "_")(*args, **kwargs)
    if name in _CONVENTIONS:
        return _CONVENTIONS[name] if name.startswith("__") or _named(name) else None
    function = _named(name)
    if function is not None:
        return function if callable(function) else None
    if "." in name or not hasattr(ts.Tensor, name):
        return None
    if isinstance(getattr(ts.Tensor, name), property):
        return lambda x: getattr(x, name)
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def _named(name: str) -> Any:
    try:
        return attrgetter(name)(ts)
    except AttributeError:
        return None


def carry(value: Any, memory: dict[Any, Any] | None = None) -> Any:
    """A value of PyTorch's as ours; NotImplementedError for what we have no counterpart of.

    Tensors keep their strides and offsets, and those over one memory are over one memory here too.
    """
    memory = {} if memory is None else memory
    if isinstance(value, torch.Tensor):
        return carry_tensor(value, memory)
    if isinstance(value, torch.dtype):
        name = str(value).removeprefix("torch.")
        if not hasattr(ts, name):
            raise NotImplementedError(f"dtype {name}")
        return getattr(ts, name)
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, torch.memory_format):
        return getattr(ts, str(value).removeprefix("torch."))
    if isinstance(value, torch.Generator | torch.layout):
        raise NotImplementedError(f"an argument of {type(value)}")
    if type(value) in (list, tuple):
        return type(value)(carry(each, memory) for each in value)
    if isinstance(value, dict):
        return {key: carry(each, memory) for key, each in value.items()}
    if isinstance(value, slice):
        return slice(*(carry(each, memory) for each in (value.start, value.stop, value.step)))
    return value


def carry_tensor(value: Any, memory: dict[Any, Any]) -> ts.Tensor:
    """A copy of a tensor; `memory` holds the storages carried over so far, and the tensors themselves."""
    if id(value) in memory:
        return memory[id(value)]
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise NotImplementedError(f"a tensor of {value.layout} on {value.device}")
    dtype, plain = carry(value.dtype), value.detach().resolve_conj().resolve_neg()
    key = plain.untyped_storage()._cdata
    if (key, dtype) not in memory:
        if plain.numel() and not plain.untyped_storage().nbytes():
            raise NotImplementedError("a tensor without memory")
        count = plain.untyped_storage().nbytes() // plain.itemsize
        flat = torch.as_strided(plain, (count,), (1,), 0)
        # of a copy: `numpy()` fixes the size of the memory it is called on
        wide = (flat.float() if value.dtype is torch.bfloat16 else flat.clone()).numpy()
        memory[key, dtype] = ts.tensor(wide, dtype=dtype), plain  # the storage must live as long as its key
    flat, _ = memory[key, dtype]
    result = flat.as_strided(tuple(plain.shape), tuple(plain.stride()), plain.storage_offset()).detach()
    memory[id(value)] = result.requires_grad_() if value.requires_grad else result
    return memory[id(value)]


def tensors_of(value: Any) -> Iterator[Any]:
    """All tensors in nested arguments or results, of either library."""
    if isinstance(value, ts.Tensor | torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)
