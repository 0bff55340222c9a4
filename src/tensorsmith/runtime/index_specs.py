"""Specs of the irregular primitives: what index kernels, scans, ranks and searches of a plan read and write, on any target.

Each function gives the spec and the words of a launch: buffers with byte offsets, in the order of the spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.kernels.errors import FIRST_POINT
from tensorsmith.kernels.spec import Operand
from tensorsmith.kernels.spec_index import IndexOperand, IndexSpec
from tensorsmith.kernels.spec_order import RankSpec, SearchSpec
from tensorsmith.kernels.spec_scan import ScanSpec
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer

Words = list[tuple[Node | None, int]]


def words_of(*places: tuple[Node, Strided]) -> Words:
    """Buffers and byte offsets of values where they lie."""
    return [(node, seen.offset * node.dtype.itemsize) for node, seen in places]


def part_of(whole: Strided, low: Sequence[int], step: Sequence[int], shape: Sequence[int]) -> Strided:
    """The region of a buffer that starts at `low` and advances by `step`."""
    offset = whole.offset + sum(l * s for l, s in zip(low, whole.strides))
    return Strided(tuple(shape), tuple(s * k for s, k in zip(whole.strides, step)), offset)


@dataclass(frozen=True)
class IndexPosition:
    """Where an index that is out of range stands, from the code that a kernel left; the value itself may be gone by then."""

    name: str
    index: Strided
    size: int
    of_pairs: bool = False

    def __call__(self, code: int, addresses: object = ()) -> Exception:
        index = self.index
        varying = tuple(n if stride else 1 for n, stride in zip(index.shape, index.strides))  # what the kernel counts
        if code < FIRST_POINT:
            return RuntimeError(f"{self.name}: kernel error {code}")
        position = np.unravel_index(code - FIRST_POINT, varying) if varying else ()
        position = position[:-1] if self.of_pairs else position
        where = f" at position {[int(i) for i in position]}" if position else ""
        return IndexError(f"{self.name}: the index{where} is out of bounds for dimension with size {self.size}")


def index_spec(fusion: Fusion, group: Group) -> tuple[IndexSpec, Words, Strided]:
    """TAKE, GATHER, PUT or SCATTER, and where its index lies."""
    root = group.roots[0]
    axis = root.attrs["axis"]
    reads = root.op in (Primitive.TAKE, Primitive.GATHER)
    if reads:
        (table_node, table), (index_node, index) = (fusion.locate(x) for x in root.inputs)
        other_node, other = root, fusion.place(root)
    else:
        (index_node, index), (other_node, other) = (fusion.locate(x) for x in root.inputs[1:])
        table_node, table = root, fusion.place(root)
    domain = other.shape
    step, size = (table.strides[axis], table.shape[axis]) if table.shape else (1, 1)
    if root.op in (Primitive.TAKE, Primitive.PUT):  # a one-axis index walks the axis, whole slices move
        index_strides = tuple(index.strides[0] if i == axis else 0 for i in range(len(domain)))
    else:
        index_strides = index.strides
    table_strides = tuple(0 if i == axis else s for i, s in enumerate(table.strides))
    mode = "gather" if reads else ("scatter_add" if root.attrs["reduce"] == "add" else "scatter")
    spec = IndexSpec(
        mode,
        domain,
        Operand(table_node.dtype, table_strides),
        (IndexOperand(Operand(index_node.dtype, index_strides), step, size),),
        Operand(other_node.dtype, other.strides),
        name=root.op.value,
    )
    return spec, words_of((table_node, table), (index_node, index), (other_node, other)), index


def scan_spec(fusion: Fusion, group: Group) -> tuple[ScanSpec, Words]:
    """SCAN of real numbers."""
    root = group.roots[0]
    node, seen = fusion.locate(root.inputs[0])
    place = fusion.place(root)
    spec = ScanSpec(root.attrs["kind"], root.shape, root.attrs["axis"], node.dtype, seen.strides, place.strides)
    return spec, words_of((node, seen), (root, place))


def rank_spec(fusion: Fusion, group: Group) -> tuple[RankSpec, Words]:
    """Positions of the elements of some ranks."""
    root = group.roots[0]
    operand, attrs = root.inputs[0], root.attrs
    node, seen = fusion.locate(operand)
    place, axis = fusion.place(root), attrs["axis"]
    start, length = attrs.get("start", 0), attrs.get("length", operand.shape[axis])
    spec = RankSpec(node.dtype, attrs["descending"], seen.shape, axis, start, length, seen.strides, place.strides)
    return spec, words_of((node, seen), (root, place))


def search_spec(fusion: Fusion, group: Group) -> tuple[SearchSpec, Words]:
    """Places of values in sorted sequences, both of one dtype."""
    root = group.roots[0]
    (sequence_node, sequence), (values_node, values) = (fusion.locate(operand) for operand in root.inputs)
    place, extent = fusion.place(root), sequence.shape[-1]
    if extent > 1 and sequence.strides[-1] != 1:
        raise NeedsBuffer(root.inputs[0])
    rows = (0,) * len(values.shape) if len(sequence.shape) == 1 else (*sequence.strides[:-1], 0)
    spec = SearchSpec(values_node.dtype, root.attrs["right"], extent, values.shape, rows, values.strides, place.strides)
    return spec, words_of((sequence_node, sequence), (values_node, values), (root, place))
