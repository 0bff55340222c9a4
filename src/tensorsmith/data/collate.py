"""How a list of samples becomes one batch, by PyTorch's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorsmith.core import dtypes
from tensorsmith.ops.creation import from_numpy, tensor
from tensorsmith.ops.joining import stack
from tensorsmith.tensor.tensor import Tensor


def default_convert(sample: Any) -> Any:
    """A sample with its NumPy arrays and scalars as tensors; everything else as it is."""
    if isinstance(sample, np.generic):
        return from_numpy(np.array(sample))
    if isinstance(sample, np.ndarray):
        return from_numpy(sample) if sample.dtype.kind not in "SUO" else sample
    if isinstance(sample, Mapping):
        return {key: default_convert(value) for key, value in sample.items()}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*(default_convert(value) for value in sample))
    if isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        return [default_convert(value) for value in sample]
    return sample


def default_collate(batch: Sequence[Any]) -> Any:
    """Samples of one structure as the same structure of batches.

    Tensors and arrays are stacked along a new first axis; Python floats become float64, integers int64; mappings,
    tuples and lists are collated item by item; strings stay a list. Errors: TypeError for other samples, RuntimeError
    (from stack) or ValueError where shapes or lengths differ, ValueError where there is no sample.
    """
    if not len(batch):
        raise ValueError("default_collate: got no samples; a batch needs at least one")
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(list(batch), 0)
    if isinstance(first, np.ndarray | np.generic):
        if first.dtype.kind in "SUO":
            raise TypeError(f"default_collate: arrays of dtype {first.dtype} do not become tensors; give numbers")
        return from_numpy(np.stack(batch))
    if isinstance(first, float):
        return tensor(list(batch), dtype=dtypes.float64)
    if isinstance(first, int):
        return tensor(list(batch))
    if isinstance(first, str | bytes):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, Sequence):
        lengths = {len(sample) for sample in batch}
        if len(lengths) != 1:
            raise ValueError(f"default_collate: each sample must have as many items, got {sorted(lengths)}")
        columns = [default_collate(column) for column in zip(*batch)]
        return type(first)(*columns) if isinstance(first, tuple) and hasattr(first, "_fields") else columns
    raise TypeError(
        f"default_collate: a batch must hold tensors, arrays, numbers, strings, mappings or sequences, found "
        f"{type(first).__name__}; pass a collate_fn"
    )
