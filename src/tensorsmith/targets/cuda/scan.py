"""Scan kernels (`kernels/spec_scan.py`): running sums, products, extremes, their places, and log-sum-exps along one axis.

    thread   a thread walks a row: short rows, and rows that lie beside each other
    warp     32 threads walk a row, each with some consecutive elements: their running values, then by shuffles those of the
             threads, then what was met before
    block    the same with 256 threads, for long rows

Where rows are few and long they are cut into chunks: a first kernel joins every chunk to one value, a second one makes of
these, one after the other, what every chunk begins with, a third scans the chunks. What is joined in which order depends on
the shape alone.

Words: addresses of the source and of the result.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.spec_scan import JOINED, PLACES, ScanSpec, identity
from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties, Launch, Lowered, Word
from tensorsmith.targets.cuda.scalars import apply_expression, c_type, cast_expression, literal, memory_type
from tensorsmith.targets.cuda.walk import WALK, walk_words

_BLOCK = 256
_ITEMS_BYTES = 16  # of consecutive elements that a thread takes, four of them to eight
_SHORT = 16  # elements of a row that one thread walks
_LONGEST_OF_WARP = 1024
_TILES_OF_CHUNK = 4


@dataclass(frozen=True)
class _Structure:
    """What the text of a scan depends on.

    threads: that walk a row, 1, 32 or 256; phase: whole, or where rows are cut: joined (a value a chunk), before (what
    every chunk begins with), carried
    """

    kind: str
    dtype: DType
    state: DType
    threads: int
    phase: str = "whole"

    @property
    def places(self) -> bool:
        return self.kind in PLACES

    @property
    def summed(self) -> bool:
        """Whether a log-sum-exp is held as the largest value and the sum of the exponentials of the distances to it.

        Joining takes one exponential so. It rounds what is beyond the digits of float32, so float64 is joined by logarithms.
        """
        return self.kind == "logsumexp" and self.dtype is not dtypes.float64

    @property
    def second(self) -> str:
        """The other part of the state, beside the value."""
        return "place" if self.places else "sum" if self.summed else ""

    @property
    def second_type(self) -> str:
        return "long long" if self.places else c_type(self.state)

    @property
    def items(self) -> int:
        """Consecutive elements of a thread."""
        return min(8, max(4, _ITEMS_BYTES // self.dtype.itemsize))

    @property
    def bounds(self) -> str:
        """Threads of a block, and how many blocks a multiprocessor takes: so many that no registers are spilled."""
        return f"{_BLOCK}, {3 if self.second else 4}"


def lower_scan(spec: ScanSpec, properties: DeviceProperties | None = None) -> Lowered:
    """The launches of a scan. NotImplementedError for dtypes that kernels do not have."""
    properties = properties or DeviceProperties()
    extents, strides = arrange(spec.domain, [spec.source, spec.result], [1, 0], (spec.axis,))
    steps = (spec.source[spec.axis], spec.result[spec.axis])
    extent, rows = spec.domain[spec.axis], math.prod(extents)
    beside = extents[-1] >= 8 and all(operand[-1] == 1 for operand in strides) and steps != (1, 1)
    threads = 1 if beside or extent <= _SHORT else 32 if extent <= _LONGEST_OF_WARP else _BLOCK
    structure = _Structure(spec.kind, spec.dtype, spec.state_dtype, threads)
    tile = threads * structure.items
    wanted = properties.multiprocessors * properties.threads // threads  # rows at once that fill the device
    chunk, chunks = extent, 1
    if rows < wanted and extent >= 4 * _TILES_OF_CHUNK * max(tile, 32):
        least = _TILES_OF_CHUNK * max(tile, 32)
        chunk = max(least, -(-extent // max(1, wanted // rows)))
        chunk = -(-chunk // tile) * tile
        chunks = -(-extent // chunk)
    walk = walk_words(f"scan {spec.kind}", extents, strides)
    constant = Constant((*walk, *steps, extent, chunk, chunks))
    width = 1 if threads == 1 else threads
    scratch: tuple[int, ...] = ()
    launches = []
    given = [Word(0), Word(1)]
    if chunks > 1:
        size = spec.state_dtype.itemsize
        scratch = (rows * chunks * size, *((rows * chunks * 8,) if structure.second else ()))
        given += [Word(2 + k) for k in range(len(scratch))]
        phases = [("joined", rows * chunks * width), ("before", rows), ("carried", rows * chunks * width)]
    else:
        phases = [("whole", rows * width)]
    for phase, work in phases:
        each = replace(structure, phase=phase)
        launches.append(Launch(_text(each), _name(each), (-(-work // _BLOCK), 1, 1), (_BLOCK, 1, 1), (*given, constant)))
    points = math.prod(spec.domain)
    moved = points * (spec.dtype.itemsize + spec.result_dtype.itemsize)
    return Lowered(f"scan {spec.kind}", tuple(launches), 2, scratch, moved, points)


def _join(structure: _Structure) -> str:
    """The body of the device function that joins what was met with what comes next."""
    state, kind = structure.state, PLACES.get(structure.kind, structure.kind)
    if structure.places:
        comparison = ">=" if kind == "max" else "<="
        newer = f"b.value {comparison} a.value" + (" || b.value != b.value" if state.is_floating_point else "")
        return f"return b.place >= 0 && ({newer}) ? b : a;"
    if kind in ("max", "min") and state.is_floating_point:
        # Of equal zeros the later one, which is where cummax and cummin say that the extreme was met.
        comparison = ">" if kind == "max" else "<"
        return f"return a.value {comparison} b.value || a.value != a.value ? a : b;"
    if structure.summed:
        factor = apply_expression(Fn.EXP, state, ["(less - a.value)"])
        return f"""const {c_type(state)} less = b.value > a.value ? a.value : b.value;
    const {c_type(state)} of_less = b.value > a.value ? a.sum : b.sum, of_more = b.value > a.value ? b.sum : a.sum;
    a.value = b.value > a.value ? b.value : a.value;
    a.sum = of_more + of_less * (less == a.value ? 1 : {factor});  // equal infinities are as far as equal numbers
    return a;"""
    return f"a.value = {apply_expression(JOINED[kind], state, ['a.value', 'b.value'])};\n    return a;"


def _state_text(structure: _Structure) -> str:
    """The state of a row, and how it is joined, read and written."""
    dtype, state, places = structure.dtype, structure.state, structure.places
    loaded = "(element != 0)" if dtype.kind == "b" else cast_expression(dtype, state, "element")
    total = f"(state.value + {apply_expression(Fn.LOG, state, ['state.sum'])})" if structure.summed else "state.value"
    stored = "state.place" if places else cast_expression(state, dtype, total)
    second = f" {structure.second_type} {structure.second};" if structure.second else ""
    nothing = {"place": " state.place = -1;", "sum": " state.sum = 0;"}.get(structure.second, "")
    one = {"place": " state.place = at;", "sum": " state.sum = 1;"}.get(structure.second, "")

    part = f"state.{structure.second}"
    up = f"\n    {part} = __shfl_up_sync(0xffffffffu, {part}, distance);" if structure.second else ""
    across = f"\n    {part} = __shfl_sync(0xffffffffu, {part}, 31);" if structure.second else ""
    result = "long long" if places else memory_type(dtype)
    carrier = "int" if state.itemsize < 4 else c_type(state)  # shuffles exist for 4 and 8 bytes
    return f"""struct Sizes {{ Walk<2> walk; long long along[2], extent, chunk, chunks; }};
struct State {{
    {c_type(state)} value;{second}
}};
__device__ __forceinline__ State nothing() {{
    State state;
    state.value = {literal(state, identity(structure.kind, state))};{nothing}
    return state;
}}
__device__ __forceinline__ State join(State a, State b) {{
    {_join(structure)}
}}
typedef {memory_type(dtype)} Element;
typedef {result} Result;
__device__ __forceinline__ State state_of(Element element, long long at) {{
    State state;
    state.value = {loaded};{one}
    return state;
}}
__device__ __forceinline__ Result result_of(State state) {{
    return {stored};
}}
__device__ __forceinline__ State earlier(State state, int distance) {{  // that of the thread `distance` before
    state.value = ({c_type(state)})__shfl_up_sync(0xffffffffu, ({carrier})state.value, distance);{up}
    return state;
}}
__device__ __forceinline__ State last(State state) {{  // that of the last thread of the warp
    state.value = ({c_type(state)})__shfl_sync(0xffffffffu, ({carrier})state.value, 31);{across}
    return state;
}}"""


_BEFORE = f"""    const long long row = blockIdx.x * {_BLOCK}ll + threadIdx.x;
    if (row >= sizes.walk.points) return;
    State before = nothing();
    for (long long number = row * sizes.chunks; number < (row + 1) * sizes.chunks; number++) {{
        State total;
        TAKE(total)
        KEEP(before)
        before = join(before, total);
    }}"""

_ALONE = f"""    const long long thread = blockIdx.x * {_BLOCK}ll + threadIdx.x;
    if (thread >= sizes.walk.points * sizes.chunks) return;
    const long long part = quotient_of(thread, sizes.walk.points), row = thread - part * sizes.walk.points;
    const long long number = row * sizes.chunks + part;
    BEGIN
    for (long long at = first; at < end; at++) {{
        carry = join(carry, state_of(source[at * sizes.along[0]], at));
        WRITE(result[at * sizes.along[1]] = result_of(carry);)
    }}
    END"""

_TOGETHER = f"""    const int member = threadIdx.x % THREADS, lane = threadIdx.x % 32;
    const long long number = blockIdx.x * {_BLOCK}ll / THREADS + threadIdx.x / THREADS;
    if (number >= sizes.walk.points * sizes.chunks) return;
    const long long row = number / sizes.chunks, part = number % sizes.chunks;
    BEGIN
    const bool whole_reads = sizes.along[0] == 1 && (unsigned long long)source % alignof(Elements) == 0;
    WRITE(const bool whole_writes = sizes.along[1] == 1 && (unsigned long long)result % alignof(Results) == 0;)
    Elements next = loaded(source, first + member * ITEMS, end, whole_reads, sizes);
    for (long long tile = first; tile < end; tile += THREADS * ITEMS) {{
        const long long at = tile + member * ITEMS;
        const Elements here = next;
        if (tile + THREADS * ITEMS < end) next = loaded(source, at + THREADS * ITEMS, end, whole_reads, sizes);
        State own[ITEMS];
        #pragma unroll
        for (int i = 0; i < ITEMS; i++) own[i] = at + i < end ? state_of(here.values[i], at + i) : nothing();
        #pragma unroll
        for (int i = 1; i < ITEMS; i++) own[i] = join(own[i - 1], own[i]);
        State total = own[ITEMS - 1];
        #pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {{
            const State other = earlier(total, distance);
            if (lane >= distance) total = join(other, total);
        }}
        State before = earlier(total, 1);
        if (lane == 0) before = nothing();
        ACROSS
        WRITE(store(result, at, end, before, own, whole_writes, sizes);)
    }}
    END"""

# Consecutive elements of a thread, in vectors where they lie so.
_PACKS = """
struct __align__(ELEMENTS_ALIGNMENT) Elements { Element values[ITEMS]; };
struct __align__(RESULTS_ALIGNMENT) Results { Result values[ITEMS]; };
__device__ __forceinline__ Elements loaded(
    const Element* source, long long at, long long end, bool whole, const Sizes& sizes) {
    Elements found;
    if (whole && at + ITEMS <= end) return *(const Elements*)(source + at);
    #pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (at + i < end) found.values[i] = source[(at + i) * sizes.along[0]];
    }
    return found;
}
__device__ __forceinline__ void store(
    Result* result, long long at, long long end, State before, const State (&own)[ITEMS], bool whole, const Sizes& sizes) {
    Results found;
    #pragma unroll
    for (int i = 0; i < ITEMS; i++) found.values[i] = result_of(join(before, own[i]));
    if (whole && at + ITEMS <= end) {
        *(Results*)(result + at) = found;
        return;
    }
    #pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (at + i < end) result[(at + i) * sizes.along[1]] = found.values[i];
    }
}"""

# The threads' values before those of their warp, and the total of all, in the order of the warps.
_ACROSS_WARPS = f"""__shared__ State of_warps[{_BLOCK // 32}];
        __syncthreads();  // whoever still reads those of the tile before
        if (lane == 31) of_warps[threadIdx.x / 32] = total;
        __syncthreads();
        State ahead = carry;
        for (int warp = 0; warp < {_BLOCK // 32}; warp++) {{
            if (warp == threadIdx.x / 32) ahead = carry;
            carry = join(carry, of_warps[warp]);
        }}
        before = join(ahead, before);"""

_ACROSS_LANES = """before = join(carry, before);
        carry = join(carry, last(total));"""


@functools.cache
def _text(structure: _Structure) -> str:
    places, phase, threads = structure.places, structure.phase, structure.threads
    result = "long long" if places else memory_type(structure.dtype)
    pointers = f"const {memory_type(structure.dtype)}* source, {result}* result"
    if phase != "whole":
        pointers += f", {c_type(structure.state)}* values"
        pointers += f", {structure.second_type}* seconds" if structure.second else ""
    take, keep = "{0}.value = values[number];", "values[number] = {0}.value;"
    if structure.second:
        take += f" {{0}}.{structure.second} = seconds[number];"
        keep += f" seconds[number] = {{0}}.{structure.second};"
    if phase == "before":
        body = _BEFORE.replace("TAKE(total)", take.format("total")).replace("KEEP(before)", keep.format("before"))
    else:
        begin = f"""long long o[2];
    offsets_at(sizes.walk, row, o);
    source += o[0];
    result += o[1];
    const long long first = part * sizes.chunk;
    const long long end = first + sizes.chunk < sizes.extent ? first + sizes.chunk : sizes.extent;
    State carry = nothing();{" " + take.format("carry") if phase == "carried" else ""}"""
        across = _ACROSS_WARPS if threads > 32 else _ACROSS_LANES
        body = (_ALONE if threads == 1 else _TOGETHER).replace("THREADS", str(threads)).replace("BEGIN", begin)
        body = body.replace("ACROSS", across).replace("ITEMS", str(structure.items))
        body = re.sub(r" *WRITE\((.*;)\)\n", "" if phase == "joined" else r"        \1\n", body)
        last = keep.format("carry") if threads == 1 else f"if (member == 0) {{ {keep.format('carry')} }}"
        body = body.replace("END", last if phase == "joined" else "")
    packs = _PACKS if threads > 1 and phase != "before" else ""
    alignments = [
        min(16, structure.items * size) for size in (structure.dtype.itemsize, 8 if places else structure.dtype.itemsize)
    ]
    for name, value in (("ELEMENTS", alignments[0]), ("RESULTS", alignments[1])):
        packs = packs.replace(f"{name}_ALIGNMENT", str(value))
    kernel = f"""{_state_text(structure)}{packs.replace("ITEMS", str(structure.items))}

extern "C" __global__ void __launch_bounds__({structure.bounds}) {_name(structure)}({pointers}, const Sizes sizes) {{
{body.rstrip()}
}}
"""
    return "\n\n".join(part for part in (with_dependencies(kernel), WALK, kernel) if part)


def _name(structure: _Structure) -> str:
    return f"kernel_scan_{structure.kind}_{structure.phase}"
