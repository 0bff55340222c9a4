"""Advanced indexing under a mask: where the mask does not hold, positions may be anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.ops.indexing import index_put
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.tensor.tensor import Tensor


def _clamped(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[Any, ...]:
    found: list[Any] = []
    for axis, index in enumerate(indices):
        extent = x.layout.shape[axis]
        found.append(slice(None) if index is None else index.clamp(-extent, extent - 1))
    return tuple(found)


@public("indexing", name="_unsafe_masked_index", method=False, kind="composite")
def _unsafe_masked_index(input: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: float) -> Tensor:  # noqa: A002
    """input[indices] where the mask holds, else `fill`.

    >>> ts._unsafe_masked_index(ts.tensor([1, 2]), ts.tensor([True, False]), [ts.tensor([1, 9])], 0)
    tensor([2, 0])
    """
    if not need_tensor("_unsafe_masked_index", input).layout.numel:
        return input.new_full(mask.layout.shape, fill)
    return input[_clamped(input, indices)].masked_fill(mask.logical_not(), fill)


@public("indexing", name="_unsafe_masked_index_put_accumulate", method=False, kind="composite")
def _unsafe_masked_index_put_accumulate(
    input: Tensor,
    mask: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,  # noqa: A002
) -> Tensor:
    """A copy with values added at the indices where the mask holds.

    >>> ts._unsafe_masked_index_put_accumulate(
    ...     ts.tensor([1, 2]), ts.tensor([True, False]), [ts.tensor([1, 9])], ts.tensor([5, 5])
    ... )
    tensor([1, 7])
    """
    if not need_tensor("_unsafe_masked_index_put_accumulate", input).layout.numel:
        return input.clone()
    positions = tuple(None if isinstance(i, slice) else i for i in _clamped(input, indices))
    return index_put(input, positions, values.masked_fill(mask.logical_not(), 0), accumulate=True)
