"""KernelSpec -> launches of CUDA kernels: the entry of the CUDA target for fused kernels, the twin of `targets/cpu/lower.py`.

The words of a run are the addresses of inputs, then of outputs, then the run-time scalars, as `kernels/spec.py` says.
"""

from __future__ import annotations

import math

from tensorsmith.kernels.canonical import Canonical, canonicalize
from tensorsmith.kernels.spec import KernelSpec, Kind
from tensorsmith.targets.cuda.kernel import Argument, Constant, DeviceProperties, ErrorWord, Launch, Lowered, Word
from tensorsmith.targets.cuda.render import render


def lower(spec: KernelSpec, properties: DeviceProperties | None = None) -> Lowered:
    """The launches of a spec on a device of these properties (an H200's where none are given).

    Raises:
        NotImplementedError: the spec needs what no CUDA schedule offers yet.
    """
    properties = properties or DeviceProperties()
    rendered = render(spec)
    operands = len(spec.inputs) + len(spec.stores)
    words = operands + len(spec.params)
    arguments: tuple[Argument, ...] = (*(Word(index) for index in range(words)), ErrorWord(), Constant(rendered.sizes))
    launch = Launch(rendered.source, rendered.name, (rendered.grid, 1, 1), (*rendered.block, 1), arguments)
    moved, flops = counts(canonicalize(spec))
    return Lowered(spec.name, (launch,), words, (), moved, flops)


def counts(canonical: Canonical) -> tuple[int, int]:
    """Bytes read and written (each operand's distinct elements once) and scalar operations."""
    structure = canonical.structure
    moved = 0
    for operand, elements in enumerate(structure.operand_sizes):
        if structure.is_coordinate(operand):
            continue
        for extent, stride in zip(canonical.extents, canonical.strides[operand]):
            elements *= extent if stride else 1
        if canonical.reduce_extent and canonical.reduce_strides[operand]:
            elements *= canonical.reduce_extent
        if canonical.slab_strides and canonical.slab_strides[operand]:
            elements *= canonical.slab_extent
        moved += elements
    points = math.prod(canonical.extents) * max(canonical.reduce_extent, 1) * canonical.slab_extent
    operations = sum(1 for instr in structure.body if instr.kind in (Kind.APPLY, Kind.REDUCE, Kind.RANDOM))
    return moved, points * operations
