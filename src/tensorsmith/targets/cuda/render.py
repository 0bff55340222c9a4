"""KernelSpec -> CUDA C++ text: pointwise kernels and row kernels, without headers.

Only the structure of a kernel (`kernels/canonical.py`) is in the text; extents and strides come at launch in a struct:

    extern "C" __global__ void NAME(inputs..., outputs..., parameters..., long long* error, Sizes sizes)

Parameters are long long or double. All index arithmetic has 64 bits.

pointwise: threads stride over the points; a point's number gives its coordinates, these the operands' offsets.
row:       a warp (short rows) or a block (long ones) per row. Every level of reductions is a pass over the row; what
           an element needs is recomputed in each pass. Threads combine through shuffles in a fixed tree, warps in
           order, so results depend on the shape alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType, iinfo
from tensorsmith.kernels.canonical import Canonical, Structure, canonicalize
from tensorsmith.kernels.levels import find_levels
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.scalars import apply_expression, c_type, cast_expression, literal

MAX_AXES = 12  # kept axes after merging; the struct of sizes has room for so many
BLOCK = 256  # threads in a block
WARP = 32
LONGEST_WARP_ROW = 1024  # longer rows get a whole block
MOST_BLOCKS = 132 * 32  # enough to fill any card; threads stride over the rest

_COMBINE = {"sum": Fn.ADD, "prod": Fn.MUL, "max": Fn.MAXIMUM, "min": Fn.MINIMUM}


@dataclass(frozen=True)
class Rendered:
    """A kernel's text with the name of its entry and what a launch needs.

    block: threads in x and y; grid: blocks; sizes: the 64-bit words of the struct `Sizes`
    """

    source: str
    name: str
    block: tuple[int, int]
    grid: int
    sizes: tuple[int, ...]


def render(spec: KernelSpec) -> Rendered:
    """The CUDA C++ kernel of a spec. NotImplementedError names what has no rendering."""
    canonical = canonicalize(spec)
    name = "kernel_" + re.sub(r"\W", "_", spec.name)  # the prefix keeps away from CUDA's own names (max, exp)
    if len(canonical.extents) > MAX_AXES:
        axes = len(canonical.extents)
        raise NotImplementedError(f"{spec.name}: {axes} axes that do not merge, at most {MAX_AXES} fit")
    rows = math.prod(canonical.extents)
    if not spec.reduce_axes:
        source = _Text(canonical.structure, 0).pointwise(name)
        block, grid = (BLOCK, 1), min(MOST_BLOCKS, -(-rows // BLOCK))
    else:
        threads = WARP if canonical.reduce_extent * canonical.slab_extent <= LONGEST_WARP_ROW else BLOCK
        source = _Text(canonical.structure, threads).row(name)
        block, grid = (threads, BLOCK // threads), min(MOST_BLOCKS, -(-rows // (BLOCK // threads)))
    return Rendered(source, name, block, grid, _size_words(canonical))


def _size_words(canonical: Canonical) -> tuple[int, ...]:
    """points, axes, length, extents[MAX_AXES], strides[MAX_AXES] of every operand, strides along the row, those of slabs."""

    def padded(values: Iterable[int]) -> list[int]:
        values = list(values)
        return values + [0] * (MAX_AXES - len(values))

    extents = canonical.extents
    words = [math.prod(extents), len(extents), canonical.reduce_extent, *padded(extents)]
    for strides in canonical.strides:
        words += padded(strides)
    words += canonical.reduce_strides or [0] * len(canonical.strides)
    return (*words, canonical.slab_extent, *canonical.slab_strides) if canonical.slab_strides else tuple(words)


@dataclass
class _Scope:
    """Lines of one block of C++ and the names of the values visible in it."""

    text: _Text
    indent: str
    offsets: Mapping[int, str]  # operand -> element offset
    known: dict[int, str]
    lines: list[str] = field(default_factory=list)

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def value(self, position: int) -> str:
        """The value of one body instruction, computed here unless already known."""
        waiting = [position]
        while waiting:
            current = waiting[-1]
            missing = [a for a in self.text.body[current].args if a not in self.known]
            if current in self.known:
                waiting.pop()
            elif missing and self.text.body[current].kind is not Kind.REDUCE:
                waiting += missing
            else:
                waiting.pop()
                self._compute(current)
        return self.known[position]

    def _compute(self, position: int) -> None:
        instr = self.text.body[position]
        expression = self.text.expression(instr, self.known, self.offsets)
        self.line(f"const {c_type(instr.dtype)} v{position} = {expression};")
        self.known[position] = f"v{position}"


class _Text:
    """The text of one structure; `threads` work on a row (0 in a pointwise kernel)."""

    def __init__(self, structure: Structure, threads: int) -> None:
        self.structure = structure
        self.body = structure.body
        self.threads = threads

    # ------------------------------------------------------------------------------------------------- instructions

    def expression(self, instr: Instr, known: Mapping[int, str], offsets: Mapping[int, str]) -> str:
        """One instruction but REDUCE as a C++ expression of known values."""
        args = [known[a] for a in instr.args]
        if instr.kind is Kind.LOAD:
            loaded = f"in{instr.index}[{offsets[instr.index]}]"
            return f"{loaded} != 0" if instr.dtype.kind == "b" else loaded
        if instr.kind is Kind.CONST:
            assert instr.value is not None
            return literal(instr.dtype, instr.value)
        if instr.kind is Kind.PARAM:
            given = self.structure.params[instr.index]
            word = dtypes.float64 if given.kind == "f" else dtypes.int64
            return cast_expression(word, instr.dtype, f"p{instr.index}")
        if instr.kind is Kind.INDEX:
            return offsets[self.structure.first_coordinate + instr.index]
        if instr.kind is Kind.CAST:
            return cast_expression(self.body[instr.args[0]].dtype, instr.dtype, args[0])
        if instr.kind is Kind.RANDOM:
            return f"philox({args[0]}, {args[1]})"
        if instr.kind is Kind.APPLY:
            assert instr.fn is not None
            return apply_expression(instr.fn, self.body[instr.args[-1]].dtype, args)
        raise NotImplementedError(f"a {instr.kind.value} instruction outside its place in a kernel body")

    def _memory_type(self, dtype: DType) -> str:
        return "unsigned char" if dtype.kind == "b" else c_type(dtype)

    # ---------------------------------------------------------------------------------------------------- the frame

    def _signature(self, name: str) -> str:
        arguments = [f"const {self._memory_type(d)}* in{i}" for i, d in enumerate(self.structure.inputs)]
        arguments += [f"{self._memory_type(d)}* out{i}" for i, d in enumerate(self.structure.outputs)]
        arguments += [f"{'double' if d.kind == 'f' else 'long long'} p{i}" for i, d in enumerate(self.structure.params)]
        arguments += ["long long* error", "const Sizes sizes"]
        return f'extern "C" __global__ void __launch_bounds__({BLOCK}) {name}({", ".join(arguments)})'

    def _assembled(self, name: str, lines: list[str]) -> str:
        sizes = (
            "struct Sizes {\n"
            "    long long points, axes, length;  // points (or rows), kept axes, extent of the reduced axis\n"
            f"    long long extents[{MAX_AXES}], strides[{self.structure.operand_count}][{MAX_AXES}];  // in elements\n"
            f"    long long along[{self.structure.operand_count}];  // strides along the reduced axis\n"
        )
        if self.structure.slabs:
            sizes += f"    long long slabs, from_slab[{self.structure.operand_count}];  // of the second one\n"
        sizes += "};"
        kernel = "\n".join([self._signature(name) + " {", *lines, "}"])
        return "\n\n".join(part for part in (with_dependencies(kernel), sizes, kernel) if part) + "\n"

    def _coordinates(self, index: str, varying: list[int], stop_before_inner: bool) -> list[str]:
        """Lines that turn the number `index` into offsets o0, o1, ... of the operands over the kept axes."""
        if not varying:
            return []
        last = "sizes.axes - 2" if stop_before_inner else "sizes.axes - 1"
        lines = [f"long long {', '.join(f'o{k} = 0' for k in varying)};"]
        lines += [f"for (long long axis = {last}, rest = {index}; axis >= 0; axis--) {{"]
        lines += ["    const long long coordinate = rest % sizes.extents[axis];", "    rest /= sizes.extents[axis];"]
        lines += [f"    o{k} += coordinate * sizes.strides[{k}][axis];" for k in varying]
        return lines + ["}"]

    def _uniform(self) -> _Scope:
        """What depends on constants and parameters alone, at the head of the kernel."""
        scope = _Scope(self, "    ", {}, {})
        for position, instr in enumerate(self.body):
            leaf = instr.kind in (Kind.CONST, Kind.PARAM)
            derived = instr.kind in (Kind.APPLY, Kind.CAST) and all(a in scope.known for a in instr.args)
            if leaf or derived:
                scope.value(position)
        return scope

    def _store(self, scope: _Scope, output: int, offset: str, guard: str = "") -> None:
        scope.line(f"{guard}out{output}[{offset}] = {scope.known[self.structure.values[output]]};")

    # ---------------------------------------------------------------------------------------------------- pointwise

    def pointwise(self, name: str) -> str:
        """Every thread takes points i, i + number of threads, ..."""
        head = self._uniform()
        offsets: dict[int, str] = {}
        for k in range(self.structure.operand_count):
            inner = {0: "0", 1: "k", 2: f"k * sizes.strides[{k}][sizes.axes - 1]"}[self.structure.inner[k]]
            offsets[k] = f"o{k} + {inner}" if self.structure.outer else inner
        scope = _Scope(self, "        ", offsets, dict(head.known))
        if self.structure.outer:
            scope.line("const long long inner = sizes.extents[sizes.axes - 1], k = i % inner, row = i / inner;")
            for line in self._coordinates("row", list(range(self.structure.operand_count)), True):
                scope.line(line)
        else:
            scope.line("const long long k = i;")
        for value in self.structure.values:
            scope.value(value)
        for output in range(len(self.structure.outputs)):
            self._store(scope, output, offsets[self.structure.first_output + output])
        start = "blockIdx.x * (long long)blockDim.x + threadIdx.x"
        loop = f"    for (long long i = {start}; i < sizes.points; i += gridDim.x * (long long)blockDim.x) {{"
        return self._assembled(name, [*head.lines, loop, *scope.lines, "    }"])

    # ---------------------------------------------------------------------------------------------------------- rows

    def row(self, name: str) -> str:
        """Warps or blocks take rows; reductions of one level share a pass, stores along the row are the last pass."""
        head = self._uniform()
        offsets = {}
        for k, stride_class in enumerate(self.structure.along):
            offsets[k] = f"o{k}" + ("", " + j", f" + j * sizes.along[{k}]")[stride_class]
            if self.structure.slabs and self.structure.slabs[k]:
                offsets[k] += f" + slab * sizes.from_slab[{k}]"
        row = _Scope(self, "        ", {k: f"o{k}" for k in range(self.structure.operand_count)}, dict(head.known))
        row.line("const long long length = sizes.length;")
        for line in self._coordinates("row", list(range(self.structure.operand_count)), False):
            row.line(line)
        levels = find_levels(self.structure)
        for level in range(levels.count + 1):
            if level and levels.reduces[level - 1]:
                self._reductions(row, levels.reduces[level - 1], offsets)
            for position, instr in enumerate(self.body):
                if levels.depth[position] == level and not levels.varies[position] and instr.kind is not Kind.REDUCE:
                    row.value(position)
        inside = [k for k, is_row in enumerate(self.structure.rows) if not is_row]
        if inside:
            element = self._elements(row, offsets)
            for output in inside:
                element.value(self.structure.values[output])
            for output in inside:
                self._store(element, output, offsets[self.structure.first_output + output])
            row.line("}")
        for output, is_row in enumerate(self.structure.rows):
            if is_row:
                self._store(row, output, f"o{self.structure.first_output + output}", "if (threadIdx.x == 0) ")
        if self.threads > WARP:
            row.line("__syncthreads();  // before the next row writes the shared partial results")
        start = "blockIdx.x * (long long)blockDim.y + threadIdx.y"
        loop = f"    for (long long row = {start}; row < sizes.points; row += gridDim.x * (long long)blockDim.y) {{"
        return self._assembled(name, [*head.lines, loop, *row.lines, "    }"])

    def _elements(self, row: _Scope, offsets: Mapping[int, str]) -> _Scope:
        """Open the loop over the elements of a row: element j, of every slab where there are several."""
        inside = _Scope(self, row.indent + "    ", offsets, dict(row.known), row.lines)
        if not self.structure.slabs:
            row.line(f"for (long long j = threadIdx.x; j < length; j += {self.threads}) {{")
        else:
            row.line(f"for (long long i = threadIdx.x; i < length * sizes.slabs; i += {self.threads}) {{")
            inside.line("const long long slab = i / length, j = i % length;")
        return inside

    def _reductions(self, row: _Scope, positions: Sequence[int], offsets: Mapping[int, str]) -> None:
        """One pass over the row for several reductions, then their combination over threads."""
        for p in positions:
            instr = self.body[p]
            state = self._state_dtype(instr)
            row.line(f"{c_type(state)} r{p} = {literal(state, self._identity(instr))};")
            if instr.reduction in ("argmax", "argmin"):
                row.line(f"long long i{p} = -1;")
        element = self._elements(row, offsets)
        for p in positions:
            source = self.body[self.body[p].args[0]].dtype
            value = element.value(self.body[p].args[0])
            self._combine(element, p, cast_expression(source, self._state_dtype(self.body[p]), value), "j")
        row.line("}")
        for p in positions:
            self._across_threads(row, p)
            dtype = self.body[p].dtype
            result = f"i{p}" if self.body[p].reduction in ("argmax", "argmin") else f"r{p}"
            source = dtypes.int64 if result.startswith("i") else dtype
            row.known[p] = result if source is dtype else f"v{p}"
            if source is not dtype:
                row.line(f"const {c_type(dtype)} v{p} = {cast_expression(source, dtype, result)};")

    def _state_dtype(self, instr: Instr) -> DType:
        """The dtype in which a reduction compares or accumulates."""
        return self.body[instr.args[0]].dtype if instr.reduction in ("argmax", "argmin") else instr.dtype

    def _identity(self, instr: Instr) -> bool | int | float:
        if instr.reduction not in (*_COMBINE, "argmax", "argmin"):
            raise NotImplementedError(f"the reduction {instr.reduction} has no CUDA kernel")
        if instr.reduction in ("sum", "prod"):
            return 0 if instr.reduction == "sum" else 1
        largest, dtype = instr.reduction.endswith("max"), self._state_dtype(instr)
        if dtype.kind == "f":
            return -math.inf if largest else math.inf
        if dtype.kind == "b":
            return not largest
        return iinfo(dtype).min if largest else iinfo(dtype).max

    def _combine(self, scope: _Scope, position: int, value: str, index: str) -> None:
        """Take one more value (and its index) into the running result."""
        instr = self.body[position]
        result = f"r{position}"
        if instr.reduction in ("argmax", "argmin"):
            largest = "true" if instr.reduction == "argmax" else "false"
            test = f"replaces<{c_type(self._state_dtype(instr))}>({value}, {index}, {result}, i{position}, {largest})"
            scope.line(f"if ({test}) {{ {result} = {value}; i{position} = {index}; }}")
        else:
            combined = apply_expression(_COMBINE[instr.reduction], instr.dtype, [result, value])
            scope.line(f"{result} = {combined};")

    def _across_threads(self, row: _Scope, p: int) -> None:
        """Combine the threads' results: a tree of shuffles in each warp, then the warps in order."""
        with_index = self.body[p].reduction in ("argmax", "argmin")
        kind = c_type(self._state_dtype(self.body[p]))
        inner = _Scope(self, row.indent + "    ", {}, {}, row.lines)
        row.line(f"for (int distance = {WARP // 2}; distance > 0; distance >>= 1) {{")
        inner.line(f"const {kind} other = shuffle<{kind}>(r{p}, distance);")
        if with_index:
            inner.line(f"const long long at = shuffle<long long>(i{p}, distance);")
        self._combine(inner, p, "other", "at")
        row.line("}")
        warps = self.threads // WARP
        if warps == 1:
            return
        row.line(f"__shared__ {kind} shared_r{p}[{warps}];")
        save = f"shared_r{p}[threadIdx.x / {WARP}] = r{p};"
        load = f"r{p} = shared_r{p}[0];"
        if with_index:
            row.line(f"__shared__ long long shared_i{p}[{warps}];")
            save += f" shared_i{p}[threadIdx.x / {WARP}] = i{p};"
            load += f" i{p} = shared_i{p}[0];"
        row.line(f"if (threadIdx.x % {WARP} == 0) {{ {save} }}")
        row.line("__syncthreads();")
        row.line(load)
        row.line(f"for (int warp = 1; warp < {warps}; warp++) {{")
        self._combine(inner, p, f"shared_r{p}[warp]", f"shared_i{p}[warp]")
        row.line("}")
