"""Which convolutions Winograd's algorithm computes, by a fixed rule, and with how large a tile."""

from __future__ import annotations

from tensorsmith.core.dtypes import float32
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.winograd import FORMS

CHANNELS = 24  # input and output channels from which fewer multiplications pay,
SIDE = 20  # and rows and columns of the result


def winograd_outputs(node: Node) -> int:
    """Rows and columns of the tiles of results of a convolution; 0 where another kernel computes it."""
    x, w = node.inputs[:2]
    attrs = node.attrs
    if node.dtype is not float32 or w.shape[2:] != (3, 3) or attrs["groups"] != 1:
        return 0
    if set(attrs["stride"] + attrs["dilation"] + attrs["step"]) != {1}:
        return 0
    across, down = node.shape[3], node.shape[2]
    return 2 if min(x.shape[1], w.shape[0]) >= CHANNELS and min(across, down) >= SIDE else 0


def transformed_weight(w: Node, outputs: int) -> Node:
    """G w G' of every kernel (points, O, C), in the order that the kernel of the convolution reads; nothing else may."""
    shape = (FORMS[outputs].products, *w.shape[:2])
    return w.graph.add(
        Primitive.LIBRARY, (w,), name="winograd_weight", outputs=outputs, shape=shape, dtype=w.dtype
    )
