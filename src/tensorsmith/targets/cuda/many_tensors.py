"""One kernel over many tensors: the update rule of an optimiser for all its parameters in one launch.

Every tensor is a row of operands of its own (parameter, gradient, moments), all of one structure; run-time scalars are
shared. A block takes a chunk of one row: the first blocks that of the first row, and so on.

    extern "C" __global__ void NAME(void* a0, void* a1, ..., void* b0, void* b1, ..., double p0, const Sizes sizes)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from tensorsmith.kernels.canonical import Structure, canonicalize
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind
from tensorsmith.targets.cuda.body import Scope, loaded, reports_errors, uniform_scope
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.kernel import Argument, Constant, Launch, Lowered, Word
from tensorsmith.targets.cuda.lower import counts
from tensorsmith.targets.cuda.scalars import c_type, memory_type

_THREADS = 256
_ITEMS = 4  # elements of a thread in one round: all are loaded before any is written
_ROUNDS = 4
_CHUNK = _THREADS * _ITEMS * _ROUNDS
_ROWS = (4, 16, 48)  # tensors of a launch, by which texts differ
_MOST_PARAMETERS = 4000 // 8  # words that all devices take


def structure_of(spec: KernelSpec) -> Structure | None:
    """The structure by which tensors can share a kernel; None for a spec that none may share.

    All operands are consecutive, or one element for all points, and nothing depends on the place of an element.
    """
    canonical = canonicalize(spec)
    structure = canonical.structure
    alone = len(canonical.extents) == 1 and not spec.reduce_axes and not structure.coordinates
    random = any(instr.kind is Kind.RANDOM for instr in structure.body)
    if not alone or random or reports_errors(structure.body) or any(kind == 2 for kind in structure.inner):
        return None
    return structure


def lower_many(specs: Sequence[KernelSpec], sources: Sequence[Sequence[int]], words: int) -> Lowered:
    """The launches of several specs of one structure (`structure_of`).

    sources: of every spec the words of its operands, inputs then outputs, then those of its run-time scalars, which are the
    same words for all; words: how many a run gives
    """
    structure = structure_of(specs[0])
    assert structure is not None
    name = "kernel_many_" + re.sub(r"\W", "_", specs[0].name)
    operands = structure.operand_count
    slots, places = _slots(sources, operands)
    most = [rows for rows in _ROWS if rows * (max(places) + 3) + len(structure.params) + 1 <= _MOST_PARAMETERS]
    launches, moved, flops = [], 0, 0
    start = 0
    while start < len(specs):
        left = len(specs) - start
        room = next((rows for rows in most if rows >= left), most[-1])
        here = range(start, min(start + room, len(specs)))
        lengths = [canonicalize(specs[row]).extents[0] for row in here]
        first = [0]
        for length in lengths:
            first.append(first[-1] + -(-length // _CHUNK))
        empty = room - len(here)
        sizes = [*lengths, *[0] * empty, *first, *[first[-1]] * empty]
        rows = [*here, *[start] * empty]
        arguments: list[Argument] = [Word(slots[row][k]) for k in range(max(places) + 1) for row in rows]
        arguments += [Word(word) for word in sources[start][operands:]]
        text = _text(structure, name, tuple(places), room)
        arguments.append(Constant(tuple(sizes)))
        launches.append(Launch(text, name, (first[-1], 1, 1), (_THREADS, 1, 1), tuple(arguments)))
        start = here.stop
    for spec in specs:
        bytes_of, operations = counts(canonicalize(spec))
        moved, flops = moved + bytes_of, flops + operations
    return Lowered(f"{specs[0].name} x {len(specs)}", tuple(launches), words, (), moved, flops)


def _slots(sources: Sequence[Sequence[int]], operands: int) -> tuple[list[list[int]], list[int]]:
    """The different words of every spec's operands, and for every operand which of them it is; the same for all specs."""
    places, distinct = [], list[int]()
    for word in sources[0][:operands]:
        if word not in distinct:
            distinct.append(word)
        places.append(distinct.index(word))
    found = [[row[places.index(k)] for k in range(len(distinct))] for row in sources]
    for row, words in zip(sources, found):
        if [words[k] for k in places] != list(row[:operands]):  # operands that are one in the first spec differ here
            return [list(each[:operands]) for each in sources], list(range(operands))
    return found, places


@functools.cache
def _text(structure: Structure, name: str, places: tuple[int, ...], rows: int) -> str:
    head = uniform_scope(structure)
    inputs, outputs = structure.inputs, structure.outputs

    def leaf(position: int, instr: Instr) -> str:
        return f"read{instr.index}[j]"

    element = Scope(structure, " " * 16, leaf, dict(head.known))
    for value in structure.values:
        element.value(value)
    for k, value in enumerate(structure.values):
        element.line(f"out{k}[i] = {element.known[value]};")
    used = sorted({instr.index for instr in structure.body if instr.kind is Kind.LOAD})
    types = [memory_type(dtype) for dtype in inputs]
    declared = [f"const {types[k]}* in{k} = (const {types[k]}*)at[{places[k]}];" for k in used]
    for k, dtype in enumerate(outputs):
        kind = memory_type(dtype)
        declared.append(f"{kind}* out{k} = ({kind}*)at[{places[structure.first_output + k]}];")
    registers = [f"{c_type(inputs[k])} read{k}[{_ITEMS}];" for k in used]
    reads = [f"read{k}[j] = {loaded(inputs[k], f'in{k}[i]' if structure.inner[k] else f'in{k}[0]')};" for k in used]
    slots = max(places) + 1
    parameters = [f"void* t{k}_{row}" for k in range(slots) for row in range(rows)]
    parameters += [f"{'double' if d.kind == 'f' else 'long long'} p{k}" for k, d in enumerate(structure.params)]
    cases = "\n".join(
        f"        case {row}: {' '.join(f'at[{k}] = t{k}_{row};' for k in range(slots))} break;" for row in range(rows)
    )
    lines = "\n".join(element.lines)
    newline = "\n    "
    kernel = f"""struct Sizes {{ long long lengths[{rows}], first[{rows + 1}]; }};  // first: the block that a row begins with

extern "C" __global__ void __launch_bounds__({_THREADS}) {name}(
    {", ".join(parameters)}, const Sizes sizes) {{
    int low = 0, high = {rows};  // the row of this block
    while (high - low > 1) {{
        const int middle = (low + high) / 2;
        if ((long long)blockIdx.x >= sizes.first[middle]) low = middle;
        else high = middle;
    }}
    void* at[{slots}];
    switch (low) {{
{cases}
    }}
    {newline.join(declared)}
{newline.join(["", *(line.strip() for line in head.lines)]) if head.lines else ""}
    const long long length = sizes.lengths[low], start = ((long long)blockIdx.x - sizes.first[low]) * {_CHUNK};
    const long long end = start + {_CHUNK} < length ? start + {_CHUNK} : length;
    for (long long base = start + threadIdx.x; base < end; base += {_THREADS * _ITEMS}) {{
        {(newline + "    ").join(registers)}
        #pragma unroll
        for (int j = 0; j < {_ITEMS}; j++) {{
            const long long i = base + j * {_THREADS};
            if (i < end) {{ {" ".join(reads)} }}
        }}
        #pragma unroll
        for (int j = 0; j < {_ITEMS}; j++) {{
            const long long i = base + j * {_THREADS};
            if (i < end) {{
{lines}
            }}
        }}
    }}
}}
"""
    return "\n\n".join(part for part in (with_dependencies(kernel), kernel) if part)
