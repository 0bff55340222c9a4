"""Images of halves lie with their channels last, where tensor cores read and write them.

An implicit product takes 16 bytes of channels at a time. So the values that convolutions of float16 and bfloat16 read or
write, and what is connected to them point by point (normalised, activated, added), lie as (N, H, W, C), each in full; values
keep their shape (N, C, H, W). What is given, results with a place of their own, and everything else lie as ever, and whoever
reads across is a kernel with other strides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.passes.walk import channels_last

_POINTWISE = frozenset({Primitive.MAP, Primitive.CAST})
FEWEST_CHANNELS = 8  # 16 bytes of them


def images_last(
    nodes: Sequence[Node], consumers: Mapping[Node, Sequence[Node]], results: Collection[Node]
) -> dict[Node, Strided]:
    """How such values lie."""
    found: set[Node] = set()
    waiting: list[Node] = []

    def reach(node: Node) -> None:
        image = node.op is Primitive.CONV or node.op in _POINTWISE
        if image and node.ndim == 4 and node.dtype.is_floating_point and node.numel and node not in found:
            found.add(node)
            waiting.append(node)

    for node in nodes:
        turned = all(reader.op is Primitive.PERMUTE for reader in consumers.get(node, ()))  # a weight's gradient, no image
        if node.op is Primitive.CONV and node.dtype.is_half and node.shape[1] >= FEWEST_CHANNELS and not turned:
            reach(node)
        if node.op is Primitive.CONV and node.dtype.is_half and node.inputs[0].shape[1] >= FEWEST_CHANNELS:
            reach(node.inputs[0])
    while waiting:
        node = waiting.pop()
        beside = list(node.inputs) if node.op in _POINTWISE else []
        beside += [reader for reader in consumers.get(node, ()) if reader.op in _POINTWISE]
        for other in beside:
            if other.shape == node.shape:
                reach(other)
    return {node: channels_last(node) for node in found}
