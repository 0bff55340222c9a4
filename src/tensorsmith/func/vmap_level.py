"""The level of vmap: an operator on wrappers of one example runs below for the whole batch.

What is below a wrapper has the batch as first axis, and the wrapper lies as its first example does. The batched operation is
derived from the graph of the operation for one example (`eager/batched.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import Layout, LevelLayout, layout_of
from tensorsmith.eager.batched import batched_operation
from tensorsmith.eager.inplace import InplaceOperation, check_operands
from tensorsmith.eager.operator import Operation
from tensorsmith.func.custom import Mapped, Mapping, VmapInfo, need_setup_context, vmap_rule
from tensorsmith.func.levels import Level
from tensorsmith.func.trees import broadcast, flatten, unflatten
from tensorsmith.ops.transposing import movedim
from tensorsmith.tensor.tensor import Tensor

_UNBATCHED_TARGET = (
    "vmap: inplace arithmetic(self, *extra_args) is not possible because there exists a Tensor `other` in extra_args that has "
    "more elements than `self`. This happened due to `other` being vmapped over but `self` not being vmapped over in a vmap. "
    "Please try to use out-of-place operators instead of inplace arithmetic."
)
_RANDOM = (
    "vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' randomness "
    "flags on vmap or perform the randomness operation out of vmap"
)


class VmapLevel(Level):
    """Examples of a batch, `extent` of them. randomness: "error", "different" or "same"."""

    title = "BatchedTensor"

    def __init__(self, extent: int, randomness: str = "error") -> None:
        super().__init__()
        self.extent = extent
        self.randomness = randomness

    def layout_over(self, below: Layout) -> LevelLayout:
        return self.layout_of(below.dtype, below.shape[1:], below.strides[1:], False, below.device)

    def layout_below(self, wrapper: Tensor, layout: Layout) -> Layout:
        below = self.lower(wrapper).layout
        step, rest = divmod(below.strides[0] * below.dtype.itemsize, layout.dtype.itemsize)
        if rest:
            raise RuntimeError(
                f"vmap: the examples do not lie so that {below.dtype.name} could be seen as {layout.dtype.name}"
            )
        return layout_of(layout.dtype, (self.extent, *layout.shape), (step, *layout.strides), device=layout.device)

    def blank(
        self, wrapper: Tensor, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None
    ) -> Tensor:
        one = layout_of(dtype, shape, strides)
        return self.wrap(super().blank(wrapper, dtype, (self.extent, *shape), (max(one.extent, 1), *one.strides)))

    def readable(self, wrapper: Tensor, what: str) -> Tensor:
        if what in ("item()", "bool()"):
            raise RuntimeError(
                "vmap: It looks like you're calling .item() on a Tensor, or using one in some data-dependent control flow. "
                "That has another value for every example: rewrite it with other operations (ts.where instead of an if), or do "
                "it outside of vmap."
            )
        raise RuntimeError(
            f"vmap: {what} needs the values of a tensor, which are others for every example: it looks like you're calling an "
            "operation whose result's size, or what it does, depends on data. Do it outside of vmap."
        )

    def from_host(self, wrapper: Tensor, what: str, function: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        return self.wrap(super().from_host(wrapper, what, lambda values: np.stack([function(one) for one in values])))

    def text(self, wrapper: Tensor) -> str:
        return super().text(wrapper).replace(", value", ", bdim=0, value", 1)

    def abandon(self, wrapper: Tensor) -> None:
        wrapper.__dict__.pop("below")
        wrapper.layout = _ESCAPED

    def check_randomness(self) -> None:
        """Refuse random numbers where it was not said what they are to be."""
        if self.randomness == "error":
            raise RuntimeError(_RANDOM)

    def call(self, operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        program = operation.program(self.kinds(operands), attrs)
        batched = batched_operation(program, tuple([self.owns(x) for x in operands]), self.extent)
        return self.wrapped(self.stack.call(batched, [self.lower(x) for x in operands], {}), operands)

    def call_inplace(self, operation: InplaceOperation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        flags = tuple([self.owns(x) for x in operands])
        if not all([flags[i] for i in operation.writes]):
            raise RuntimeError(_UNBATCHED_TARGET)
        kinds = self.kinds(operands)
        check_operands(operation, kinds, attrs)
        batched = batched_operation(operation.operator.program(kinds, attrs), flags, self.extent)
        key = (operation.writes, operation.name)
        inplace = batched.inplace.get(key)
        if inplace is None:
            inplace = batched.inplace[key] = InplaceOperation(batched, operation.writes, operation.name)  # type: ignore[arg-type]
        self.stack.call_inplace(inplace, [self.lower(x) for x in operands], {})
        targets = tuple([operands[i] for i in operation.writes])
        return targets[0] if len(targets) == 1 else targets

    def call_function(self, function: Any, arguments: Sequence[Any]) -> Any:
        need_setup_context(function)
        in_dims = tuple([0 if self.owns(x) else None for x in arguments])
        lowered = [self.lower(x) for x in arguments]
        rule = vmap_rule(function)
        if rule is None:
            return self.rewrapped(Mapped.apply(Mapping(function, in_dims, self.extent, self.randomness), *lowered), 0)
        results, out_dims = rule(VmapInfo(self.extent, self.randomness), in_dims, *lowered)
        return self.rewrapped(results, out_dims)

    def rewrapped(self, results: Any, dims: Any) -> Any:
        """Wrappers over results whose batch axis is where `dims` says."""
        leaves, spec = flatten(results)
        axes = broadcast(dims, spec)
        if axes is None:
            raise RuntimeError(f"vmap: out_dims {dims!r} does not fit the results of the vmap staticmethod")
        found = [
            x if axis is None or not isinstance(x, Tensor) else self.wrap(movedim(x, axis, 0)) for x, axis in zip(leaves, axes)
        ]
        return unflatten(found, spec)


class _Escaped(Layout):
    """What the layout of a wrapper becomes when its vmap is over."""

    __slots__ = ()

    def __init__(self) -> None:
        pass


def _is_over(self: Layout) -> Any:
    raise RuntimeError(
        "vmap: a tensor of the function under vmap is used after the vmap is over. It stood for one example while the function "
        "ran: return it from the function instead."
    )


for _name in (*Layout.__slots__, "level"):
    if not _name.startswith("__"):
        setattr(_Escaped, _name, property(_is_over))
_ESCAPED = _Escaped()
