"""Tiled pointwise kernels: an input is consecutive along another axis (the tile axis) than the outputs (the inner axis).

A block has a square tile of both axes. Such inputs are read in packs along the tile axis and laid into shared memory, from
which they are taken in packs along the inner one; everything else is read and written along the inner axis as usual. Packs of
a row of shared memory are permuted by an exclusive or with the row's number, so that neither way meets in one bank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tensorsmith.kernels.canonical import Canonical, Structure, stride_class
from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.targets.cuda.body import body_cost, loaded, parameters, uniform_scope
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.index_plan import PACK_BYTES, division_words, fits_int, reach
from tensorsmith.targets.cuda.kernel import Constant
from tensorsmith.targets.cuda.memory_functions import MEMORY_FUNCTIONS
from tensorsmith.targets.cuda.packs import aligned_test, computed_packs
from tensorsmith.targets.cuda.scalars import memory_type
from tensorsmith.targets.cuda.sizes import sizes_struct

BLOCK = 256
_LEAST_EXTENT = 8
_MOST_COST = 60
_SHARED = 48 << 10


@dataclass(frozen=True)
class TransposeTile:
    """side: elements of a tile along either axis; width: of a pack; narrow: whether indices are ints; outer: other axes."""

    side: int
    width: int
    narrow: bool
    outer: int

    @property
    def packs(self) -> int:
        """Packs of a thread."""
        return self.side * self.side // self.width // BLOCK


def tile_axis(canonical: Canonical) -> int | None:
    """The axis along which a strided input is consecutive, where tiles pay; None elsewhere."""
    structure, extents = canonical.structure, canonical.extents
    consecutive = all(k == 1 for k in structure.inner[structure.first_output :])
    if len(extents) < 2 or extents[-1] < _LEAST_EXTENT or not consecutive or body_cost(structure.body) > _MOST_COST:
        return None
    for k in range(len(structure.inputs)):
        if structure.inner[k] == 2:
            for axis in range(len(extents) - 1):
                if canonical.strides[k][axis] == 1 and extents[axis] >= _LEAST_EXTENT:
                    return axis
    return None


def turned(canonical: Canonical, axis: int) -> Canonical:
    """The canonical form with the tile axis next to the innermost one and its stride classes as `along`."""
    order = [a for a in range(len(canonical.extents) - 1) if a != axis] + [axis, len(canonical.extents) - 1]
    strides = tuple(tuple(operand[a] for a in order) for operand in canonical.strides)
    along = tuple(stride_class(operand[-2]) for operand in strides)
    structure = replace(canonical.structure, along=along)
    return Canonical(structure, tuple(canonical.extents[a] for a in order), strides, 0, ())


def through_tiles(structure: Structure) -> list[int]:
    """Inputs that go through shared memory."""
    return [k for k in range(len(structure.inputs)) if structure.inner[k] == 2 and structure.along[k] == 1]


def choose(canonical: Canonical) -> TransposeTile | None:
    """The tile of a kernel whose tile axis is the second last one; None where the tiles of its inputs have no room."""
    structure = canonical.structure
    tiles = through_tiles(structure)
    memory = [k for k in range(structure.operand_count) if not structure.is_coordinate(k)]
    packed = [k for k in memory if structure.inner[k] == 1 or k in tiles]
    largest = max(structure.operand_dtypes[k].itemsize for k in packed)
    width = max(1, PACK_BYTES // largest)
    for k in packed:
        fixed = canonical.strides[k][:-1] if structure.inner[k] == 1 else [*canonical.strides[k][:-2], canonical.strides[k][-1]]
        while any(stride % width for stride in fixed):
            width //= 2
    side = {1: 128, 2: 64, 4: 64}.get(largest, 32)
    while side > 32 and side // 2 >= max(canonical.extents[-1], canonical.extents[-2]):
        side //= 2
    while width > 1 and side * side // width < BLOCK:
        width //= 2
    if sum(structure.operand_dtypes[k].itemsize for k in tiles) * side * side > _SHARED:
        return None
    slack = side * 2
    narrow = fits_int(
        _tiles(canonical, side), *(reach(canonical.extents, s) + slack * max(map(abs, s)) for s in canonical.strides)
    )
    return TransposeTile(side, width, narrow, len(canonical.extents) - 2)


def _tiles(canonical: Canonical, side: int) -> int:
    *outer, along, inner = canonical.extents
    return math.prod(outer) * math.ceil(along / side) * math.ceil(inner / side)


def grid(canonical: Canonical, tile: TransposeTile) -> int:
    """How many blocks there are: one a tile."""
    return _tiles(canonical, tile.side)


def sizes(canonical: Canonical, tile: TransposeTile) -> tuple[str, Constant]:
    """The struct `Sizes`: its declaration and words."""
    *outer, along, inner = canonical.extents
    counts = [*outer, math.ceil(along / tile.side), math.ceil(inner / tile.side)]
    steps = [stride for strides in canonical.strides for stride in strides]
    text, words = sizes_struct(
        {"along": along, "inner": inner, "divisors": division_words(counts, tile.narrow), "counts": counts, "steps": steps}
    )
    return text.replace(f"steps[{len(steps)}]", f"steps[{len(canonical.strides)}][{len(canonical.extents)}]"), words


def text(structure: Structure, tile: TransposeTile, name: str, sizes_text: str) -> str:
    """The kernel's source."""
    side, width, rank = tile.side, tile.width, tile.outer + 2
    inner, count = structure.inner, structure.operand_count
    types = [memory_type(d) for d in structure.operand_dtypes]
    inputs, tiles = range(len(structure.inputs)), through_tiles(structure)
    outputs = range(structure.first_output, count)
    names = {k: f"in{k}" for k in inputs} | {k: f"out{k - structure.first_output}" for k in outputs}
    head = uniform_scope(structure)
    arguments = ", ".join([*parameters(structure), "long long* error", "const Sizes sizes"])
    per_row = side // width
    lines = [f'extern "C" __global__ void __launch_bounds__({BLOCK}) {name}({arguments}) {{', *head.lines]

    def line(indent: int, *texts: str) -> None:
        lines.extend("    " * indent + text for text in texts)

    line(1, "Index number = blockIdx.x;")
    coordinates = {}
    for axis in range(rank - 1, 0, -1):
        line(1, f"const Index n{axis} = divide(number, sizes.divisors[{axis}]);")
        line(1, f"const Index c{axis} = number - n{axis} * (Index)sizes.counts[{axis}];", f"number = n{axis};")
        coordinates[axis] = f"c{axis}"
    coordinates[0] = "number"
    line(1, f"const Index top = {coordinates[rank - 2]} * {side}, left = {coordinates[rank - 1]} * {side};")
    for k in range(count):
        terms = [f"{coordinates[axis]} * (Index)sizes.steps[{k}][{axis}]" for axis in range(tile.outer)]
        terms += [f"top * {_step(structure, k, rank - 2)}", f"left * {_step(structure, k, rank - 1)}"]
        line(1, f"const Index o{k} = {' + '.join(terms)};")
    packed = {names[k]: structure.operand_dtypes[k] for k in names if inner[k] == 1 or k in tiles}
    line(1, f"const bool aligned = {aligned_test(packed, width)};")
    inside = f"top + {side} <= (Index)sizes.along && left + {side} <= (Index)sizes.inner"
    line(1, f"const bool whole = aligned && {inside};")
    line(1, f"const int within = threadIdx.x % {per_row} * {width}, first = threadIdx.x / {per_row};")
    every = f"for (int u = 0; u < {tile.packs}; u++)"
    for k in inputs:
        line(1, f"Pack<{types[k]}, {width if inner[k] else 1}> x{k}[{tile.packs}];")
        if k in tiles:
            line(1, f"__shared__ alignas(16) {types[k]} tile{k}[{side * side}];")
    line(1, "// Inputs along the tile axis: row `within`, column `other`; all others: row `other`, column `within`.")
    for whole in (True, False):
        line(1, "if (whole) {" if whole else "} else {", "    #pragma unroll", f"    {every} {{")
        line(3, f"const int other = first + u * {BLOCK // per_row};")
        if not whole:
            line(3, *_counts("turned_count", "(Index)sizes.along - top", "left + other < (Index)sizes.inner", width))
            line(3, *_counts("count", "(Index)sizes.inner - left", "top + other < (Index)sizes.along", width))
        for k in inputs:
            along_step, inner_step = _step(structure, k, rank - 2), _step(structure, k, rank - 1)
            row, column = ("within", "other") if k in tiles else ("other", "within")
            at = f"{row} * {along_step} + {column} * {inner_step}"
            address = f"in{k} + o{k} + {at}"
            limit = str(width) if whole else "turned_count" if k in tiles else "count"
            if not whole:
                line(3, f"x{k}[u] = {{}};")
            if inner[k] == 0:
                line(3, f"{'' if whole else 'if (count > 0) '}x{k}[u].at[0] = *({address});")
            elif whole and (inner[k] == 1 or k in tiles):
                line(3, f"load_pack(x{k}[u], {address});")
            else:
                step = "(Index)1" if inner[k] == 1 or k in tiles else inner_step
                line(3, f"load_elements(x{k}[u], {address}, {step}, {limit});")
        line(2, "}")
    line(1, "}", "#pragma unroll", f"{every} {{", f"    const int other = first + u * {BLOCK // per_row};")
    line(2, "#pragma unroll", f"for (int e = 0; e < {width}; e++) {{")
    mask = per_row - 1
    swizzled = f"(within + e) * {side} + ((other / {width} ^ (within + e) / {width} & {mask}) * {width}) + other % {width}"
    for k in tiles:
        line(3, f"tile{k}[{swizzled}] = x{k}[u].at[e];")
    line(2, "}")
    line(1, "}", "__syncthreads();", "#pragma unroll", f"{every} {{", f"    const int other = first + u * {BLOCK // per_row};")
    line(2, *_counts("count", "(Index)sizes.inner - left", "top + other < (Index)sizes.along", width))
    for k in tiles:
        place = f"other * {side} + (within / {width} ^ other / {width} & {mask}) * {width}"
        line(2, f"load_pack(x{k}[u], tile{k} + {place});")
    for k in range(structure.first_coordinate, structure.first_output):
        place = f"o{k} + other * {_step(structure, k, rank - 2)} + within * {_step(structure, k, rank - 1)}"
        line(2, f"const Index at{k} = {place};")

    def leaf(position: int, instr: Instr) -> str:
        if instr.kind is Kind.LOAD:
            return loaded(structure.inputs[instr.index], f"x{instr.index}[u].at[{'e' if inner[instr.index] else 0}]")
        k = instr.index + structure.first_coordinate
        return f"at{k} + e * {_step(structure, k, rank - 1)}"

    line(2, *computed_packs(structure, head.known, leaf, width, "count"))
    for whole in (True, False):
        line(2, "if (whole) {" if whole else "} else {")
        for k in outputs:
            at = f"{names[k]} + o{k} + other * {_step(structure, k, rank - 2)} + within"
            line(3, f"store_pack(y{k}, {at});" if whole else f"store_elements(y{k}, {at}, (Index)1, count);")
    line(2, "}")
    lines += ["    }", "}"]
    kernel = "\n".join(lines)
    index = f"typedef {'int' if tile.narrow else 'long long'} Index;"
    functions = with_dependencies(kernel, MEMORY_FUNCTIONS)
    return "\n\n".join(part for part in (functions, index, sizes_text, kernel) if part) + "\n"


def _step(structure: Structure, k: int, axis: int) -> str:
    """An operand's stride along an axis; those of the innermost one are known by class."""
    return f"(Index)sizes.steps[{k}][{axis}]"


def _counts(name: str, left: str, row: str, width: int) -> list[str]:
    """How many elements of a pack are in the tensor: none beyond the last row."""
    return [
        f"const Index {name}_left = {row} ? {left} - within : 0;",
        f"const int {name} = {name}_left < 0 ? 0 : {name}_left < {width} ? (int){name}_left : {width};",
    ]
