"""Gather and scatter kernels (`kernels/spec_index.py`): a thread moves one element, or some vectors of a row.

    rows       no index varies along the innermost axis and both sides are consecutive there: a thread moves up to four
               vectors, all of which are read before the first is written
    elements   anything else: a thread moves one element

Of a gather, and of a scatter whose points all have places of their own, that is all. Where several points of a scatter may
meet at one place (an axis along which only the indices walk), the last one in the order of the domain has to win: a first
kernel leaves the number of the last point at every place (the maximum, of integers, whose order does not matter), and only
that point is written. Sums are in `scatter_add.py`.

Words: addresses of the table, of each index, of `other`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.errors import FIRST_POINT
from tensorsmith.kernels.spec_index import IndexSpec
from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.kernel import Argument, Constant, DeviceProperties, ErrorWord, Launch, Lowered, Word
from tensorsmith.targets.cuda.scalars import apply_expression, c_type, cast_expression, memory_type
from tensorsmith.targets.cuda.walk import THREADS, WALK, blocks_for, walk_words

_WIDEST = 16  # bytes that a thread loads at once
_UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_ATOMIC = {dtypes.int32: "int", dtypes.uint32: "unsigned int", dtypes.int64: "unsigned long long",
           dtypes.uint64: "unsigned long long"}  # fmt: skip


@dataclass(frozen=True)
class IndexStructure:
    """What the text of an index kernel depends on.

    what: gather, scatter, add (every point alone at its place), atomic (integer sums), mark (the last point of every place
    is found), last (only that point is written); lanes, vectors: that a thread moves at once; wide: points are counted in
    64 bits
    """

    what: str
    dtype: DType
    indices: tuple[tuple[DType, bool], ...]  # dtype and wrap of each index
    lanes: int = 1
    vectors: int = 1
    wide: bool = False

    @property
    def meets(self) -> bool:
        """Whether the kernel knows which points meet."""
        return self.what in ("mark", "last")


def lower_index(spec: IndexSpec, properties: DeviceProperties | None = None) -> Lowered:
    """The launches of a gather or scatter. NotImplementedError for dtypes that kernels do not have."""
    properties = properties or DeviceProperties()
    places = Meetings(spec)
    if spec.mode == "scatter_add" and places.many and spec.dtype not in _ATOMIC and spec.dtype.kind != "b":
        from tensorsmith.targets.cuda.scatter_add import lower_scatter_add

        return lower_scatter_add(spec, places, properties)
    words = len(spec.indices) + 2
    launches: list[Launch] = []
    scratch: list[int] = []
    what = {"gather": "gather", "scatter": "scatter", "scatter_add": "add"}[spec.mode]
    if spec.mode == "scatter_add" and places.many:
        what = "atomic"
    if spec.mode == "scatter" and places.many:
        what = "last"
        wide = places.points >= 0xFFFFFFFF
        scratch = [places.slots * (8 if wide else 4)]
        launches += [zeros(words, scratch[0], properties), _launch(spec, places, "mark", wide, properties)]
        launches += [_launch(spec, places, what, wide, properties)]
    else:
        launches += [_launch(spec, places, what, False, properties)]
    points = math.prod(spec.domain)
    moved = points * spec.dtype.itemsize * (3 if spec.mode == "scatter_add" else 2)
    indexed = math.prod(n for axis, n in enumerate(spec.domain) if any(i.operand.strides[axis] for i in spec.indices))
    moved += sum(indexed * index.operand.dtype.itemsize for index in spec.indices)
    return Lowered(spec.name, tuple(launches), words, tuple(scratch), moved, 0)


class Meetings:
    """Which points of a scatter may meet at one place of the table.

    Along the axes where the table has a stride, points have places of their own (`own`); along the others (`walked`) they
    may meet. Whether two points with the same own coordinates meet depends on the indices alone, so places are numbered as
    slots: the index, then the own coordinates along which an index varies (`varied`). Plain axes are own ones along which
    none does: whole rows there.
    """

    def __init__(self, spec: IndexSpec) -> None:
        axes = [axis for axis, extent in enumerate(spec.domain) if extent > 1]
        indexed = [axis for axis in axes if any(index.operand.strides[axis] for index in spec.indices)]
        self.domain = spec.domain
        self.walked = [axis for axis in axes if not spec.table.strides[axis]]
        self.varied = [axis for axis in axes if spec.table.strides[axis] and axis in indexed]
        self.plain = [axis for axis in axes if spec.table.strides[axis] and axis not in indexed]
        self.indexed = indexed
        self.points = math.prod(spec.domain[axis] for axis in (*self.walked, *self.varied))
        self.varied_points = math.prod(spec.domain[axis] for axis in self.varied)
        self.slots = math.prod(index.size for index in spec.indices) * self.varied_points
        self.many = bool(self.walked)

    def numbers(self, axes: list[int]) -> tuple[int, ...]:
        """Strides that number the points along some axes, row-major; 0 along the others."""
        strides, step = [0] * len(self.domain), 1
        for axis in sorted(axes, reverse=True):
            strides[axis] = step
            step *= self.domain[axis]
        return tuple(strides)


def zeros(word: int, nbytes: int, properties: DeviceProperties) -> Launch:
    """A launch that fills a buffer of 4-byte words with zeros."""
    count = -(-nbytes // 4)
    text = f"""struct Sizes {{ long long count; }};

extern "C" __global__ void __launch_bounds__({THREADS}) kernel_zeros(unsigned int* words, const Sizes sizes) {{
    const long long stride = gridDim.x * (long long){THREADS};
    for (long long i = blockIdx.x * (long long){THREADS} + threadIdx.x; i < sizes.count; i += stride) words[i] = 0;
}}
"""
    grid = (blocks_for(count, properties.multiprocessors), 1, 1)
    return Launch(text, "kernel_zeros", grid, (THREADS, 1, 1), (Word(word), Constant((count,))))


def _launch(spec: IndexSpec, places: Meetings, what: str, wide: bool, properties: DeviceProperties) -> Launch:
    """One kernel over the points, or ("mark") over those that differ in their indices."""
    numbered = [places.numbers(places.indexed)]  # the position that an error names
    if what in ("mark", "last"):
        numbered += [places.numbers([*places.walked, *places.varied]), places.numbers(places.varied)]
    columns = [spec.table.strides, *(i.operand.strides for i in spec.indices), spec.other.strides, *numbered]
    first = len(spec.indices) + 1
    extents, strides = arrange(spec.domain, columns, [first, 0], places.plain if what == "mark" else ())
    size, inner, lanes, vectors = spec.dtype.itemsize, 1, 1, 1
    indexed = any(operand[-1] for operand in strides[1:first]) or any(operand[-1] for operand in strides[first + 1 :])
    if not indexed and strides[0][-1] == 1 and strides[first][-1] == 1 and what not in ("mark", "atomic"):
        inner = extents[-1]
        steps = [index.step for index in spec.indices]
        lanes = lanes_of([inner, *strides[0][:-1], *strides[first][:-1], *steps], size)
        vectors = next(count for count in (4, 2, 1) if inner // lanes % count == 0)
        extents, strides = extents[:-1], tuple(operand[:-1] for operand in strides)
    indices = tuple((index.operand.dtype, index.wrap) for index in spec.indices)
    structure = IndexStructure(what, spec.dtype, indices, lanes, vectors, wide)
    words = [*walk_words(spec.name, extents, strides), inner]
    words += [*(index.size for index in spec.indices), *(index.step for index in spec.indices)]
    words += [places.varied_points] if structure.meets else []
    count = len(spec.indices) + 2
    arguments: list[Argument] = [*(Word(k) for k in range(count)), *([Word(count)] if structure.meets else [])]
    grid = blocks_for(math.prod(extents) * inner // (lanes * vectors), properties.multiprocessors)
    arguments += [ErrorWord(), Constant(tuple(words))]
    return Launch(_text(structure), f"kernel_index_{what}", (grid, 1, 1), (THREADS, 1, 1), tuple(arguments))


def lanes_of(multiples: list[int], size: int) -> int:
    """How many elements are moved at once, so that rows that begin at whole vectors stay there."""
    lanes = max(1, _WIDEST // size)
    while lanes > 1 and any(number % lanes for number in multiples):
        lanes //= 2
    return lanes


def place_text(indices: tuple[tuple[DType, bool], ...], slot: bool) -> str:
    """Lines that compute `place` (elements of the table), `inside` and `slot` from the offsets o[1], ... of the indices."""
    lines = ["long long place = o[0];", "bool inside = true;"]
    if slot:
        lines.append("long long slot = 0;")
    for k, (_, wrap) in enumerate(indices):
        lines.append(f"long long at{k} = index{k}[o[{1 + k}]];")
        if wrap:
            lines.append(f"if (at{k} < 0) at{k} += sizes.counts[{k}];")
        lines.append(f"inside = inside && (unsigned long long)at{k} < (unsigned long long)sizes.counts[{k}];")
        lines.append(f"place += at{k} * sizes.steps[{k}];")
        if slot:
            lines.append(f"slot = slot * sizes.counts[{k}] + at{k};")
    return "\n        ".join(lines)


@functools.cache
def _text(structure: IndexStructure) -> str:
    what, count = structure.what, len(structure.indices)
    operands = count + (5 if structure.meets else 3)
    adds = what in ("add", "atomic")
    element = memory_type(structure.dtype) if adds else _UNSIGNED[structure.dtype.itemsize]
    source, target = ("table + place", "other + here") if what == "gather" else ("other + here", "table + place")
    moves = [
        f"Moved from[{structure.vectors}];",
        *_each_vector(structure, f"from[v] = *(const Moved*)({source} + v * apart);"),
    ]
    if adds:
        sums = f"for (int i = 0; i < lanes; i++) from[v].values[i] = {_sum(structure.dtype)};"
        moves.append(f"Moved to[{structure.vectors}];")
        moves += _each_vector(structure, f"to[v] = *(const Moved*)({target} + v * apart);")
        moves += _each_vector(structure, sums)
    moves += _each_vector(structure, f"*(Moved*)({target} + v * apart) = from[v];")
    number = "unsigned long long" if structure.wide else "unsigned int"
    if what == "mark":
        body = f"atomicMax(&last[slot * sizes.own + o[{count + 4}]], ({number})(o[{count + 3}] + 1));"
    elif what == "atomic":
        body = _atomic(structure.dtype)
    else:
        body = "\n        ".join(moves)
    if what == "last":
        test = f"last[slot * sizes.own + o[{count + 4}]] != ({number})(o[{count + 3}] + 1)"
        body = f"if ({test}) continue;\n        {body}"
    arguments = [f"{element}* table", *(f"const {c_type(d)}* index{k}" for k, (d, _) in enumerate(structure.indices))]
    arguments += [f"{element}* other", *([f"{number}* last"] if structure.meets else [])]
    given = ", ".join(["table", *(f"index{k}" for k in range(count)), "other", *(["last"] if structure.meets else [])])
    own = " long long own;" if structure.meets else ""
    call = f"points<{structure.lanes}>({given}, error, sizes)"
    if structure.lanes > 1:
        mask = structure.lanes * structure.dtype.itemsize - 1
        aligned = f"(((unsigned long long)table | (unsigned long long)other) & {mask}) == 0"
        call = f"if ({aligned}) {call};\n    else points<1>({given}, error, sizes)"
    kernel = f"""struct Sizes {{ Walk<{operands}> walk; long long inner, counts[{count}], steps[{count}];{own} }};
template <typename T, int count> struct __align__(count * sizeof(T)) Vector {{ T values[count]; }};

template <int lanes>
__device__ __forceinline__ void points({", ".join(arguments)}, long long* error, const Sizes& sizes) {{
    typedef Vector<{element}, lanes> Moved;
    const long long of_row = sizes.inner / (lanes * {structure.vectors}), count = sizes.walk.points * of_row;
    const long long apart = of_row * lanes;  // from one vector of a thread to the next
    const long long stride = gridDim.x * (long long){THREADS};
    for (long long point = blockIdx.x * (long long){THREADS} + threadIdx.x; point < count; point += stride) {{
        const long long row = quotient_of(point, of_row), j = (point - row * of_row) * lanes;
        long long o[{operands}];
        offsets_at(sizes.walk, row, o);
        {place_text(structure.indices, structure.meets)}
        if (!inside) {{
            if (j == 0) *error = {FIRST_POINT} + o[{count + 2}];
            continue;
        }}
        place += j;
        const long long here = o[{count + 1}] + j;
        {body}
    }}
}}

extern "C" __global__ void __launch_bounds__({THREADS}) kernel_index_{what}(
    {", ".join(arguments)}, long long* error, const Sizes sizes) {{
    {call};
}}
"""
    return "\n\n".join(part for part in (with_dependencies(kernel), WALK, kernel) if part)


def _each_vector(structure: IndexStructure, statement: str) -> list[str]:
    return ["#pragma unroll", f"for (int v = 0; v < {structure.vectors}; v++) {statement}"]


def _sum(dtype: DType) -> str:
    """What stands at the place, and what is added, as one value."""
    compute = dtypes.float32 if dtype.is_half else dtype
    parts = [f"({name}[v].values[i] != 0)" if dtype.kind == "b" else f"{name}[v].values[i]" for name in ("to", "from")]
    total = apply_expression(Fn.ADD, compute, [cast_expression(dtype, compute, part) for part in parts])
    return cast_expression(compute, dtype, f"({total})")


def _atomic(dtype: DType) -> str:
    """Integers: sums do not depend on the order."""
    if dtype.kind == "b":
        return "if (other[here]) table[place] = 1;"
    kind = _ATOMIC[dtype]
    return f"atomicAdd(({kind}*)(table + place), ({kind})other[here]);"
