"""Values whose rows lie a little further apart than they are long, because products read them.

A product reads some rows of its left operand at once. Where these lie a multiple of 4 KB apart, as those of 1024 or 3072 values
do, they meet in the same few sets of the nearest cache and push each other out. So a value that only such products read, as the
inner values of a transformer's layer, gets one cache line more for every row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Node, Primitive

SETS_BYTES = 4096  # rows so far apart meet
LINE = 64


def rows_apart(
    nodes: Sequence[Node], consumers: Mapping[Node, Sequence[Node]], results: Collection[Node]
) -> dict[Node, Strided]:
    """How such values lie: computed by kernels or products, and read by nothing but packed products, on the left."""
    found = {}
    for node in nodes:
        if node.op is Primitive.MATMUL and node.attrs.get("packed"):
            value = node.inputs[0]
            while value.op is Primitive.RESHAPE and value.shape[-1:] == value.inputs[0].shape[-1:]:
                value = value.inputs[0]
            if value.op is Primitive.MAP and value.ndim > 1 and value.shape[-1] * value.dtype.itemsize % SETS_BYTES == 0:
                if value not in found and _only_products_read(value, consumers, results):
                    found[value] = _apart(value)
    return found


def _only_products_read(value: Node, consumers: Mapping[Node, Sequence[Node]], results: Collection[Node]) -> bool:
    """Whether packed products alone read a value on their left, as it is or with other leading axes."""
    if value in results:
        return False
    for reader in consumers.get(value, ()):
        if reader.op is Primitive.RESHAPE and reader.shape[-1:] == value.shape[-1:]:
            if not _only_products_read(reader, consumers, results):
                return False
        elif reader.op is not Primitive.MATMUL or not reader.attrs.get("packed"):
            return False
    return True


def _apart(value: Node) -> Strided:
    strides = [1, value.shape[-1] + LINE // value.dtype.itemsize]
    for extent in reversed(value.shape[1:-1]):
        strides.append(strides[-1] * extent)
    return Strided(value.shape, tuple(reversed(strides)))
