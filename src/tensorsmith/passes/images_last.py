"""Images of halves lie with their channels last, where tensor cores read and write them.

An implicit product takes 16 bytes of channels at a time. So the values that convolutions of float16 and bfloat16 read or
write, and what is connected to them point by point (normalised, activated, added), lie as (N, H, W, C), each in full; values
keep their shape (N, C, H, W). So do weights that are computed, as by a cast from float32, and the gradients of weights. What
is given, results with a place of their own, and everything else lie as ever, and whoever reads across is a kernel with other
strides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided, permute
from tensorsmith.ir.graph import Node, Primitive, base_of
from tensorsmith.passes.walk import channels_last

_POINTWISE = frozenset({Primitive.MAP, Primitive.CAST})
FEWEST_CHANNELS = 8  # 16 bytes of them


def images_last(
    nodes: Sequence[Node], consumers: Mapping[Node, Sequence[Node]], results: Collection[Node]
) -> dict[Node, Strided]:
    """How such values lie."""
    found: set[Node] = set()
    shown = frozenset(results)
    turned: dict[Node, Strided] = {}  # gradients of weights, whose channels are the axis before
    waiting: list[Node] = []

    def reach(node: Node) -> None:
        while node.op is Primitive.AGAIN:  # shows a value as it is
            node = node.inputs[0]
        image = node.op is Primitive.CONV or node.op in _POINTWISE
        if image and node.ndim == 4 and node.dtype.is_floating_point and node.numel and node not in found:
            found.add(node)
            waiting.append(node)

    for node in nodes:
        if node.op is not Primitive.CONV or not node.dtype.is_half:
            continue
        if all(reader.op is Primitive.PERMUTE for reader in consumers.get(node, ())):
            for image in map(base_of, node.inputs):  # seen with batch and channels exchanged
                if image.ndim == 4 and image.dtype.is_half and image.shape[1] >= FEWEST_CHANNELS:
                    reach(image)
            if node.ndim == 4 and node.numel and node.shape[0] >= FEWEST_CHANNELS and node not in shown:
                inner, outer, *kernel = node.shape
                shape = (outer, *kernel, inner)
                turned[node] = permute(Strided(shape, contiguous_strides(shape)), (3, 0, 1, 2))
        elif node.shape[1] >= FEWEST_CHANNELS:
            reach(node)
        if node.inputs[0].shape[1] >= FEWEST_CHANNELS:
            reach(node.inputs[0])
        weight = base_of(node.inputs[1])
        if weight.op in _POINTWISE and weight.ndim == 4 and weight.dtype.is_half and weight.shape[1] % FEWEST_CHANNELS == 0:
            found.add(weight)
    while waiting:
        node = waiting.pop()
        beside = list(node.inputs) if node.op in _POINTWISE else []
        readers = list(consumers.get(node, ()))
        for reader in readers:
            if reader.op is Primitive.AGAIN:
                readers += consumers.get(reader, ())
        beside += [reader for reader in readers if reader.op in _POINTWISE]
        for other in beside:
            if other.shape == node.shape:
                reach(other)
    return turned | {node: channels_last(node) for node in found}
