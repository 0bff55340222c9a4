"""Pointwise kernels: every thread takes some packs of neighbouring points, loads all it needs, computes, stores.

    aligned and whole:  packs of at most 16 bytes an access, `unroll` of them in flight
    else:               the same elements one by one (a view that starts at an odd element, the last points)

Which way is chosen at run time, once a thread: addresses are known only then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorsmith.kernels.canonical import Canonical, Structure
from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.targets.cuda.body import (
    body_cost,
    loaded,
    parameters,
    uniform_scope,
)  # fmt: skip
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.index_plan import (
    coordinate_lines,
    division_words,
    fits_int,
    is_small,
    pack_width,
    reach,
)  # fmt: skip
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties
from tensorsmith.targets.cuda.memory_functions import MEMORY_FUNCTIONS
from tensorsmith.targets.cuda.packs import aligned_test, computed_packs
from tensorsmith.targets.cuda.scalars import memory_type
from tensorsmith.targets.cuda.sizes import sizes_struct

BLOCK = 128
_IN_FLIGHT = 32  # bytes that a thread asks for before it computes: measured best; of halves, which take longer to compute,
_IN_FLIGHT_OF_HALVES = 64
_MOST_INSTRUCTIONS = 2000  # of the unrolled body
_MOST_BLOCKS = 2**31 - 1  # of a launch


@dataclass(frozen=True)
class PointwiseTile:
    """width: points of a pack; unroll: packs of a thread; narrow: whether indices are ints; rank: kept axes."""

    width: int
    unroll: int
    narrow: bool
    rank: int
    block: int = BLOCK


def choose(canonical: Canonical, properties: DeviceProperties) -> PointwiseTile:
    """The tile of a kernel on a device."""
    structure, extents = canonical.structure, canonical.extents
    packed = [
        k for k, inner in enumerate(structure.inner) if inner == 1 and not structure.is_coordinate(k)
    ]  # fmt: skip
    sizes = [structure.operand_dtypes[k].itemsize for k in packed]
    divides = [abs(stride) for k in packed for stride in canonical.strides[k][:-1]]
    if len(extents) > 1:
        divides.append(extents[-1])
    width = pack_width(sizes, divides)
    cost = max(body_cost(structure.body), 1)
    while width > 1 and width * cost > _MOST_INSTRUCTIONS:
        width //= 2
    points = math.prod(extents)
    read = sum(structure.inputs[k].itemsize for k, inner in enumerate(structure.inner[: len(structure.inputs)]) if inner)
    in_flight = _IN_FLIGHT_OF_HALVES if min(sizes, default=4) < 4 else _IN_FLIGHT
    unroll = max(1, min(4, in_flight // max(1, width * read), _MOST_INSTRUCTIONS // (width * cost)))
    unroll = 1 << unroll.bit_length() - 1
    if is_small(points // (width * unroll), properties):
        unroll = 1
    while _blocks(canonical, width, unroll) > _MOST_BLOCKS:
        unroll *= 2
    slack = points + width * unroll * BLOCK
    narrow = fits_int(slack, *(reach(extents, strides) for strides in canonical.strides))
    return PointwiseTile(width, unroll, narrow, len(extents))


def _blocks(canonical: Canonical, width: int, unroll: int) -> int:
    packs = math.prod(canonical.extents[:-1]) * math.ceil(canonical.extents[-1] / width)
    return math.ceil(packs / (BLOCK * unroll))


def sizes(canonical: Canonical, tile: PointwiseTile) -> tuple[str, Constant]:
    """The struct `Sizes`: its declaration and words."""
    extents = [*canonical.extents[:-1], math.ceil(canonical.extents[-1] / tile.width)]
    steps: list[int] = []
    for strides in canonical.strides:
        steps += [*strides[:-1], strides[-1] * tile.width]
    text, words = sizes_struct(
        {
            "points": math.prod(canonical.extents),
            "divisors": division_words(extents, tile.narrow),
            "extents": extents,
            "inner": [strides[-1] for strides in canonical.strides],
            "steps": steps,
        }
    )
    return text.replace(f"steps[{len(steps)}]", f"steps[{len(canonical.strides)}][{tile.rank}]"), words


def grid(canonical: Canonical, tile: PointwiseTile) -> int:
    """How many blocks cover the points."""
    return _blocks(canonical, tile.width, tile.unroll)


def text(structure: Structure, tile: PointwiseTile, name: str, sizes_text: str) -> str:
    """The kernel's source."""
    inner, width, unroll = structure.inner, tile.width, tile.unroll
    types = [memory_type(d) for d in structure.operand_dtypes]
    inputs = range(len(structure.inputs))
    outputs = range(structure.first_output, structure.operand_count)
    head = uniform_scope(structure)
    each = f"#pragma unroll\n    for (int u = 0; u < {unroll}; u++)"
    arguments = ", ".join([*parameters(structure), "long long* error", "const Sizes sizes"])
    lines = [
        f'extern "C" __global__ void __launch_bounds__({tile.block}) {name}({arguments}) {{',
        *head.lines,
        f"    const Index first = blockIdx.x * (Index){tile.block * unroll} + threadIdx.x;",
    ]
    names = {k: f"in{k}" for k in inputs} | {k: f"out{k - structure.first_output}" for k in outputs}
    packed = {names[k]: structure.operand_dtypes[k] for k in names if inner[k] == 1}
    lines.append(f"    const bool aligned = {aligned_test(packed, width)};")
    last = f"(first + {(unroll - 1) * tile.block} + 1) * {width}"
    lines.append(f"    const bool whole = aligned && {last} <= (Index)sizes.points;")
    for k in range(structure.operand_count):
        lines.append(f"    Index o{k}[{unroll}];")
    lines += [f"    int count[{unroll}];", f"    {each} {{", f"        const Index i = first + u * {tile.block};"]
    offsets = coordinate_lines("i", tile.rank, range(structure.operand_count), inner, "o{k}[u]")
    lines += [f"        {line}" for line in offsets]
    lines.append(f"        const Index left = (Index)sizes.points - i * {width};")
    lines += [f"        count[u] = left < 0 ? 0 : left < {width} ? (int)left : {width};", "    }"]
    for k in inputs:
        lines.append(f"    Pack<{types[k]}, {width if inner[k] else 1}> x{k}[{unroll}];")
    fast, slow = [], []
    for k in inputs:
        step = "(Index)1" if inner[k] == 1 else f"(Index)sizes.inner[{k}]"
        one_by_one = f"load_elements(x{k}[u], in{k} + o{k}[u], {step}, "
        if inner[k] == 0:
            fast.append(f"x{k}[u].at[0] = in{k}[o{k}[u]];")
            slow.append(f"x{k}[u].at[0] = count[u] > 0 ? in{k}[o{k}[u]] : ({types[k]})0;")
        else:
            fast.append(f"load_pack(x{k}[u], in{k} + o{k}[u]);" if inner[k] == 1 else f"{one_by_one}{width});")
            slow += [f"x{k}[u] = {{}};", f"{one_by_one}count[u]);"]
    if inputs:
        lines += ["    if (whole) {", f"    {each} {{", *(f"        {line}" for line in fast), "    }", "    } else {"]
        lines += [f"    {each} {{", *(f"        {line}" for line in slow), "    }", "    }"]

    def leaf(position: int, instr: Instr) -> str:
        if instr.kind is Kind.LOAD:
            k = instr.index
            return loaded(structure.inputs[k], f"x{k}[u].at[{'e' if inner[k] else 0}]")
        k = instr.index + structure.first_coordinate
        return f"o{k}[u]" + ("", " + e", f" + e * (Index)sizes.inner[{k}]")[inner[k]]

    lines.append(f"    {each} {{")
    lines += [f"        {line}" for line in computed_packs(structure, head.known, leaf, width, "count[u]")]
    for whole in (True, False):
        lines.append("        if (whole) {" if whole else "        } else {")
        for k in outputs:
            at = f"{names[k]} + o{k}[u]"
            step = "(Index)1" if inner[k] == 1 else f"(Index)sizes.inner[{k}]"
            if whole and inner[k] == 1:
                lines.append(f"            store_pack(y{k}, {at});")
            else:
                lines.append(f"            store_elements(y{k}, {at}, {step}, {width if whole else 'count[u]'});")
    lines += ["        }", "    }", "}"]
    kernel = "\n".join(lines)
    index = f"typedef {'int' if tile.narrow else 'long long'} Index;"
    functions = with_dependencies(kernel, MEMORY_FUNCTIONS)
    return "\n\n".join(part for part in (functions, index, sizes_text, kernel) if part) + "\n"
