"""KernelSpec -> a compiled kernel and the words of its recipe: the entry of the CPU target for plans.

Kernels are kept under their structure (`kernels/canonical.py`) and schedule: a spec with other extents or another rank
finds the compiled kernel and only gets other constant words. A schedule is a file that writes the loops around a body:

    pointwise  no reduction, vectors along the innermost axis (`pointwise.py`)
    tiled      no reduction, an input is consecutive along another axis than the outputs (`transpose.py`)
    narrow     no reduction, many rows of few elements (`narrow.py`)
    row inner  a reduction, the reduce axis has the smallest strides: vectors along it (`inner_row.py`)
    row kept   the same with an expensive value of a row that is not too long kept on the stack from pass to pass
    row outer  a reduction, another axis has: vectors along that axis, one lane a row (`outer_row.py`)
    row short  a reduction over few elements: one lane a row, brought into columns in registers (`short_row.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tensorsmith.kernels.canonical import Canonical, Structure, canonicalize, numbers_apart
from tensorsmith.kernels.spec import KernelSpec, Kind
from tensorsmith.targets.cpu import inner_row, narrow, outer_row, pointwise, short_row, transpose
from tensorsmith.targets.cpu.body import instruction_cost
from tensorsmith.targets.cpu.build import Function, Line, format_lines, module_text
from tensorsmith.targets.cpu.compiled_once import CompiledOnce
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine


class Schedule(NamedTuple):
    """build: (structure, machine, symbol) -> (function, launch words); constants: canonical -> (words, chunks)."""

    build: Callable[[Structure, Machine, str], tuple[Function, int]]
    constants: Callable[[Canonical], tuple[list[int], int]]


SCHEDULES = {
    "pointwise": Schedule(pointwise.build, pointwise.constants),
    "tiled": Schedule(transpose.build, transpose.constants),
    "narrow": Schedule(narrow.build, narrow.constants),
    "row inner": Schedule(inner_row.build, inner_row.constants),
    "row kept": Schedule(inner_row.build_kept, inner_row.constants),
    "row outer": Schedule(outer_row.build, outer_row.constants),
    "row short": Schedule(short_row.build, short_row.constants),
}


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one structure under one schedule."""

    schedule: str
    function_address: int
    launch_words: int
    text: str  # LLVM IR
    loops: list[Line]


@dataclass(frozen=True)
class LoweredKernel:
    """A kernel ready for a recipe.

    chunks, launch_words, constants: as `Recipe` takes them; launch words are inputs, outputs, parameters and, if
    workspace_bytes > 0, the address of the workspace. bytes_moved and flops are counted from the spec.
    """

    kernel: CompiledKernel
    chunks: int
    constants: Sequence[int | float]
    workspace_bytes: int
    bytes_moved: int
    flops: int

    @property
    def function_address(self) -> int:
        """Address of `void fn(ptr args, i32 chunk, i32 chunks, i32 worker)`."""
        return self.kernel.function_address

    @property
    def launch_words(self) -> int:
        """How many words a launch gives."""
        return self.kernel.launch_words

    @property
    def schedule(self) -> str:
        """Name of the schedule chosen."""
        return self.kernel.schedule

    @property
    def text(self) -> str:
        """The kernel's LLVM IR."""
        return self.kernel.text

    @property
    def loops(self) -> str:
        """The kernel's loop structure, as indented text."""
        return format_lines(self.kernel.loops)


_kernels: CompiledOnce[tuple[Structure, str, Machine], CompiledKernel] = CompiledOnce()


def compiled_kernels() -> int:
    """How many kernels (structures under a schedule) this process has made so far."""
    return len(_kernels)


def lower(spec: KernelSpec, machine: Machine | None = None) -> LoweredKernel:
    """The compiled kernel of a spec, with the words of its recipe.

    Raises:
        NotImplementedError: the spec needs what no CPU schedule offers yet.
    """
    machine = machine or default_machine()
    canonical = canonicalize(spec)
    apart, numbers = numbers_apart(canonical.structure)
    canonical = replace(canonical, structure=apart) if numbers else canonical
    schedule, canonical, structure = _choose(canonical)
    key = (structure, schedule, machine)
    kernel = _kernels.get(key, lambda: _compile(structure, schedule, spec.name, machine))
    words, chunks = SCHEDULES[schedule].constants(canonical)
    computed = sum(1 for instr in canonical.structure.body if instruction_cost(instr) and instr.kind is not Kind.LOAD)
    moved, flops = canonical.bytes_moved, canonical.points * computed
    return LoweredKernel(kernel, chunks, [*numbers, *words], 0, moved, flops)


def _choose(canonical: Canonical) -> tuple[str, Canonical, Structure]:
    """The schedule, the canonical form it wants, and the structure it compiles."""
    if canonical.structure.along:
        schedule = _row_schedule(canonical)
        structure = replace(canonical.structure, outer=False)  # how many kept axes there are is a run-time size
        if schedule in ("row inner", "row kept"):
            structure = replace(structure, inner=(), pairs=())  # so is every stride along them
        else:
            structure = replace(structure, pairs_along=())
        return schedule, canonical, structure
    axis = transpose.tile_axis(canonical) if 2 in canonical.structure.inner else None
    if axis is not None:
        turned = transpose.tiled(canonical, axis)
        return "tiled", turned, turned.structure
    flat = narrow.narrow(canonical) if canonical.structure.outer else None
    if flat is not None:
        return "narrow", flat, flat.structure
    canonical = pointwise.long_axis_inside(canonical)
    return "pointwise", canonical, canonical.structure


def _row_schedule(canonical: Canonical) -> str:
    """The schedule of a kernel with a reduce axis."""
    body = canonical.structure.body
    if canonical.reduce_extent >= 1 << 31 and any(i.reduction in ("argmax", "argmin") for i in body):
        raise NotImplementedError("argmax and argmin along an axis of 2**31 elements or more")
    if outer_row.fits(canonical):
        return "row outer"
    if short_row.fits(canonical):
        return "row short"
    return "row kept" if inner_row.keeps(canonical) else "row inner"


def _compile(structure: Structure, schedule: str, name: str, machine: Machine) -> CompiledKernel:
    symbol = "kernel_" + "".join(c if c.isalnum() else "_" for c in name)  # never the name of a library function
    function, launch_words = SCHEDULES[schedule].build(structure, machine, symbol)
    text = module_text([function])
    (address,) = compile_functions(text, [symbol], machine)
    return CompiledKernel(schedule, address, launch_words, text, function.structure)
