"""KernelSpec -> canonical form: fewest axes, in the best order, and the key under which a compiled kernel is shared.

Axes of extent 1 are dropped; the kept axes are ordered so that the outputs' (then the inputs') smallest stride is
innermost; neighbours are merged where every operand walks them as one. INDEX instructions become *coordinates*:
operands whose value is their own offset (stride 1 along their axis, 0 along the others), so that reordering and
merging keep them right by the same rule as memory operands. The reduce axis is never merged with kept axes. Of two reduced
axes that every operand walks as one a single reduce axis is made; else the one with the smaller strides is the reduce axis,
and the other counts its *slabs*.

    (N, C, H) + (C, 1)  ->  kept axes (N, C, H), classes {1, 0}      (N, C) + (N, C)  ->  one axis N * C, classes {1, 1}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorsmith.core.dtypes import DType, float32, float64, int64
from tensorsmith.kernels.halves import widened
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind
from tensorsmith.scalar.table import Fn


@dataclass(frozen=True, slots=True)
class Structure:
    """What a compiled kernel depends on: no extents, no rank, no strides but their classes.

    Operands are counted inputs first, then coordinates, then outputs. A class is 0 (stride 0), 1 (stride 1) or 2 (any
    other stride): `inner` along the innermost kept axis, `along` along the reduce axis (empty without one).
    """

    body: tuple[Instr, ...]
    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]
    values: tuple[int, ...]  # instruction stored to each output
    rows: tuple[bool, ...]  # whether each output is written once per row
    params: tuple[DType, ...]
    coordinates: int
    inner: tuple[int, ...]
    along: tuple[int, ...]
    outer: bool  # whether kept axes exist beyond the innermost one
    # Operands (a, b) of stride 2 of which b is the element behind a, so that whole vectors hold both: by stride along the
    # innermost kept axis, and along the reduce axis.
    pairs: tuple[tuple[int, int], ...] = ()
    pairs_along: tuple[tuple[int, int], ...] = ()
    slabs: tuple[bool, ...] = ()  # whether each operand moves from slab to slab; empty where there is one slab
    numbers: int = 0  # how many parameters behind those of `params` are constants of the launch: see `numbers_apart`
    # Instructions whose values are joined over all rows, each with its reduction: see `joint.py`.
    summed: tuple[tuple[int, str], ...] = ()

    @property
    def first_coordinate(self) -> int:
        """Number of the first coordinate among the operands."""
        return len(self.inputs)

    @property
    def first_output(self) -> int:
        """Number of the first output among the operands."""
        return len(self.inputs) + self.coordinates

    @property
    def operand_count(self) -> int:
        """How many operands there are, coordinates included."""
        return len(self.inputs) + self.coordinates + len(self.outputs)

    @property
    def operand_dtypes(self) -> tuple[DType, ...]:
        """The dtype of every operand; coordinates are int64."""
        return (*self.inputs, *(int64,) * self.coordinates, *self.outputs)

    @property
    def operand_sizes(self) -> tuple[int, ...]:
        """What one unit of each operand's stride counts: bytes in memory, 1 in a coordinate."""
        return (*(d.itemsize for d in self.inputs), *(1,) * self.coordinates, *(d.itemsize for d in self.outputs))

    @property
    def values_along(self) -> tuple[int, ...]:
        """The instructions whose values are wanted at every point, not once per row."""
        stored = tuple([value for value, is_row in zip(self.values, self.rows) if not is_row])
        return (*stored, *[value for value, _ in self.summed])

    def is_coordinate(self, operand: int) -> bool:
        """Whether an operand is a coordinate and not in memory."""
        return self.first_coordinate <= operand < self.first_output


@dataclass(frozen=True, slots=True)
class Canonical:
    """A kernel's structure with its concrete sizes.

    extents: kept axes, outermost first, at least one; strides[operand][axis] in elements; reduce_extent and
    reduce_strides (one per operand) are 0 and empty without a reduction. slab_extent and slab_strides: the same of the second
    reduced axis, 1 and empty where there is none.
    """

    structure: Structure
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    reduce_extent: int
    reduce_strides: tuple[int, ...]
    slab_extent: int = 1
    slab_strides: tuple[int, ...] = ()

    @property
    def points(self) -> int:
        """How many points are computed: kept ones times reduced ones."""
        return math.prod(self.extents) * max(self.reduce_extent, 1) * self.slab_extent

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written, each operand's distinct elements once."""
        structure = self.structure
        moved = 0
        for operand, elements in enumerate(structure.operand_sizes):
            if structure.is_coordinate(operand):
                continue
            for extent, stride in zip(self.extents, self.strides[operand]):
                elements *= extent if stride else 1
            if self.reduce_extent and self.reduce_strides[operand]:
                elements *= self.reduce_extent
            if self.slab_strides and self.slab_strides[operand]:
                elements *= self.slab_extent
            moved += elements
        return moved


def _with_coordinates(spec: KernelSpec) -> tuple[tuple[Instr, ...], list[tuple[int, ...]]]:
    """The body with INDEX counting coordinates, and the coordinates' strides."""
    axes: list[int] = []
    body = []
    for instr in spec.body:
        if instr.kind is Kind.INDEX:
            if instr.index not in axes:
                axes.append(instr.index)
            instr = replace(instr, index=axes.index(instr.index))
        body.append(instr)
    rank = len(spec.domain)
    return tuple(body), [tuple(int(axis == other) for other in range(rank)) for axis in axes]


def stride_class(stride: int) -> int:
    """0 for stride 0, 1 for stride 1, 2 for any other."""
    return stride if stride in (0, 1) else 2


def arrange(
    domain: Sequence[int],
    columns: Sequence[Sequence[int]],
    priority: Sequence[int],
    without: Sequence[int] = (),
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """(extents, strides per operand) over the fewest axes, outermost first, at least one axis.

    columns: each operand's strides per domain axis; priority: operands in the order in which their strides decide the
    order of the axes; without: axes to leave out.
    """
    kept = [
        (extent, [strides[axis] for strides in columns])
        for axis, extent in enumerate(domain)
        if extent > 1 and axis not in without
    ]
    if not kept:  # a lone point is the contiguous kernel at n = 1, whatever its strides say
        return (1,), ((1,),) * len(columns)
    if len(kept) > 1:
        kept.sort(key=lambda entry: [-abs(entry[1][k]) for k in priority])
        merged = [kept[0]]
        for extent, strides in kept[1:]:
            outer_extent, outer_strides = merged[-1]
            for outer_stride, stride in zip(outer_strides, strides):
                if outer_stride != stride * extent:
                    merged.append((extent, strides))
                    break
            else:
                merged[-1] = (outer_extent * extent, strides)
        kept = merged
    extents, rows = zip(*kept)
    return extents, tuple(zip(*rows))


def canonicalize(spec: KernelSpec) -> Canonical:
    """The canonical form of a kernel spec."""
    spec = widened(spec)
    body = spec.body
    coordinates: list[tuple[int, ...]] = []
    for instr in body:
        if instr.kind is Kind.INDEX:
            body, coordinates = _with_coordinates(spec)
            break
    outputs = [store.operand.strides for store in spec.stores]
    columns = [operand.strides for operand in spec.inputs] + coordinates + outputs
    first_output = len(columns) - len(outputs)
    priority = [*range(first_output, len(columns)), *range(first_output)]
    priority_of_reads = range(len(columns))  # a row output says nothing about the order of what is reduced
    extents, strides = arrange(spec.domain, columns, priority, spec.reduce_axes)
    inner = tuple([stride_class(operand[-1]) for operand in strides])
    reduce_extent, slab_extent = 0, 1
    reduce_strides: tuple[int, ...] = ()
    slab_strides: tuple[int, ...] = ()
    along: tuple[int, ...] = ()
    if spec.reduce_axis is not None:
        reduce_extent = spec.domain[spec.reduce_axis]
        reduce_strides = tuple([operand[spec.reduce_axis] for operand in columns])
        if spec.outer_reduce_axis is not None:
            if any(instr.reduction in ("argmax", "argmin") for instr in body):
                raise NotImplementedError("argmax and argmin over two axes that are not one")
            (*outer, reduce_extent), by_axis = arrange(spec.domain, columns, priority_of_reads, _kept_axes(spec))
            reduce_strides = tuple([strides[-1] for strides in by_axis])
            if outer:
                slab_extent, slab_strides = outer[0], tuple([strides[0] for strides in by_axis])
        if reduce_extent == 1:  # likewise, where the operand varies along the axis at all
            moves = [any([operand[axis] for axis in spec.reduce_axes]) for operand in columns[:first_output]]
            varies = moves + [not store.row for store in spec.stores]
            reduce_strides = tuple([int(v) for v in varies])
        along = tuple([stride_class(s) for s in reduce_strides])
    shift = len(coordinates)
    pairs = [tuple([k + shift if k >= len(spec.inputs) else k for k in pair]) for pair in spec.pairs]
    structure = Structure(
        body,
        tuple([operand.dtype for operand in spec.inputs]),
        tuple([store.operand.dtype for store in spec.stores]),
        tuple([store.value for store in spec.stores]),
        tuple([store.row for store in spec.stores]),
        spec.params,
        len(coordinates),
        inner,
        along,
        len(extents) > 1,
        tuple([(a, b) for a, b in pairs if strides[a][-1] == 2]),
        tuple([(a, b) for a, b in pairs if reduce_strides and reduce_strides[a] == 2]),
        tuple([stride != 0 for stride in slab_strides]),
    )
    return Canonical(structure, extents, strides, reduce_extent, reduce_strides, slab_extent, slab_strides)


_SCALING = frozenset({Fn.DIV, Fn.MUL})
_SHORT_BITS, _LARGE = 8, 16.0  # significant bits and size of constants that stay in the body, as 0.5 and 3 do


def numbers_apart(structure: Structure) -> tuple[Structure, tuple[float, ...]]:
    """The structure with the long factors and divisors of its body as numbers that each launch is given, and these numbers.

    They are counts of elements, or follow from such: a mean over other rows is the same kernel.
    """
    body = list(structure.body)
    scaling = {a for instr in body if instr.kind is Kind.APPLY and instr.fn in _SCALING for a in instr.args}
    numbers: list[float] = []
    for position in sorted(scaling):
        instr = body[position]
        if instr.kind is Kind.CONST and instr.dtype in (float32, float64) and _is_long(instr.value):
            body[position] = Instr(Kind.PARAM, instr.dtype, index=len(structure.params) + len(numbers))
            numbers.append(float(instr.value))  # type: ignore[arg-type]
    if not numbers:
        return structure, ()
    return replace(structure, body=tuple(body), numbers=len(numbers)), tuple(numbers)


def _is_long(value: bool | int | float | None) -> bool:
    size = abs(float(value or 0))
    if not 0 < size < math.inf:
        return False
    return not 1 / _LARGE < size < _LARGE or math.frexp(size)[0] * (1 << _SHORT_BITS) % 1 != 0


def _kept_axes(spec: KernelSpec) -> tuple[int, ...]:
    return tuple([axis for axis in range(len(spec.domain)) if axis not in spec.reduce_axes])
