"""The text of kernels with reductions: threads read a row once into registers, or again in every pass.

    inner   packs lie along the reduce axis: `lanes` threads share a row, `across` rows share a block
    outer   packs lie along the innermost kept axis: a thread has `width` rows (columns of memory), `across` threads stand
            side by side, `lanes` of them share the reduce axis

A *unit* is what a thread takes at once: a pack along the reduce axis (inner), or one step along it (outer). Lane l takes the
units l, l + lanes, ...; its states are one for each element of a pack; states are joined over the pack, over lanes (shuffles
and shared memory) and over parts in fixed trees, so results depend on the shape alone.

A row in `parts` is shared by as many blocks. In one launch they are a cluster and read each other's shared memory; else there
is a launch for every pass, which leaves its states in scratch and first joins those of the passes before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorsmith.core.dtypes import DType, float32
from tensorsmith.kernels.canonical import Structure
from tensorsmith.kernels.levels import find_levels
from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.body import (
    PLACES,
    Scope,
    expression,
    loaded,
    needed_for,
    parameters,
    random_blocks,
    state_dtype,
    uniform_scope,
)  # fmt: skip
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.index_plan import coordinate_lines
from tensorsmith.targets.cuda.memory_functions import MEMORY_FUNCTIONS
from tensorsmith.targets.cuda.packs import aligned_test, narrow_line, narrowed
from tensorsmith.targets.cuda.rescaled_sums import rescaled_sums
from tensorsmith.targets.cuda.row_states import RowStates
from tensorsmith.targets.cuda.row_tile import RowTile, kept_values, passes
from tensorsmith.targets.cuda.scalars import c_type, memory_type


class RowText(RowStates):
    """The text of one kernel."""

    def __init__(self, structure: Structure, tile: RowTile, name: str, sizes_text: str) -> None:
        levels, sums = find_levels(structure), dict[int, int]()
        if not tile.resident or tile.walks:
            levels, sums = rescaled_sums(structure, levels)
        super().__init__(structure, tile, sums)
        self.name, self.sizes_text, self.levels = name, sizes_text, levels
        self.kept = kept_values(structure, self.levels) if tile.resident and tile.keep else ()
        self.classes = structure.along if tile.inner else structure.inner
        self.moves = [
            along != 0 or bool(structure.slabs and structure.slabs[k]) for k, along in enumerate(structure.along)
        ]  # fmt: skip
        self.types = [memory_type(d) for d in structure.operand_dtypes]
        self.inputs = range(len(structure.inputs))
        self.outputs = range(structure.first_output, structure.operand_count)
        self.names = {k: f"in{k}" for k in self.inputs}
        self.names |= {k: f"out{k - structure.first_output}" for k in self.outputs}
        self.read = [k for k in self.inputs if self.moves[k] and k not in tile.shared]
        self.divisors: set[str] = set()
        self.passed = 0
        along = [d for d, row in zip(structure.outputs, structure.rows) if not row]
        self.all_halves = all(dtype.is_half for dtype in along) and not structure.summed
        self.only_halves = all(dtype.is_half for dtype in structure.outputs) and not structure.summed
        self.uniform = uniform_scope(structure)
        self.row_known: dict[int, str] = dict(self.uniform.known)
        self.stored: set[int] = set()  # kept values computed by a pass before
        self.reduces = [p for level in self.levels.reduces for p in level]

    # ---------------------------------------------------------------------------------------------------- the frame

    def source(self) -> str:
        """The whole text."""
        self._fixed()
        self._row_head()
        self._row()
        if self.tile.cluster > 1:
            self._line("cluster_barrier();  // others may still read what this block has in shared memory")
        return self._text()

    def _row(self) -> None:
        """All passes over a row, or those of this launch."""
        last = self.levels.count if self.tile.stage is None else self.tile.stage
        for level in range(last):
            if self.tile.stage is None:
                self._reduce(self.levels.reduces[level])
            else:
                self._joined_parts(self.levels.reduces[level])
        if last < self.levels.count:
            self._reduce(self.levels.reduces[last])
        else:
            self._store_along()
            self._store_rows()

    def _text(self) -> str:
        kernel = "\n".join([self._signature(), *self.lines, "}"])
        index = f"typedef {'int' if self.tile.narrow else 'long long'} Index;"
        functions = with_dependencies(kernel, MEMORY_FUNCTIONS)
        return "\n\n".join(part for part in (functions, index, self.sizes_text, kernel) if part) + "\n"

    def _signature(self) -> str:
        arguments = parameters(self.structure)
        if self.tile.stage is not None or self.tile.walks:
            for p in self.reduces:  # in the order of `row_plan.py: scratch`
                arguments.append(f"{memory_type(state_dtype(self.structure, self.body[p]))}* part{p}")
                if (second := self._second(p)) is not None:
                    arguments.append(f"{second}* place{p}")
        arguments += [*self._partial_results(), "long long* error", "const Sizes sizes"]
        blocks = f", {self.tile.blocks}" if self.tile.blocks > 1 else ""
        bounds = f"__launch_bounds__({self.tile.threads}{blocks})"
        return f'extern "C" __global__ void {bounds} {self.name}({", ".join(arguments)}) {{'

    def _partial_results(self) -> list[str]:
        """Parameters for what blocks leave of sums over the rows."""
        return []

    def _fixed(self) -> None:
        """What is the same for all rows."""
        tile = self.tile
        self.lines += self.uniform.lines
        self._line(f"const int lane = threadIdx.{'x' if tile.inner else 'y'};")

    def _row_number(self, first: str) -> None:
        """The row of a thread."""
        self._line(f"const Index number = {first} + threadIdx.{'y' if self.tile.inner else 'x'};")
        self._line("const bool live = number < (Index)sizes.points;")
        self._line("const Index i = live ? number : (Index)sizes.points - 1;  // threads beyond the last row repeat it")

    def _units_of_block(self) -> None:
        tile = self.tile
        if tile.stage is None and tile.cluster == 1 and not tile.walks:
            self._line("const Index begin = lane, end = (Index)sizes.units;")
        else:
            part = "(Index)blockIdx.y"
            if tile.stage == self.levels.count:  # what the pass before read last may still be in the cache
                part = "((Index)sizes.parts - 1 - (Index)blockIdx.y)"
            self._line(f"const Index from = {part} * (Index)sizes.chunk;")
            self._line("const Index begin = from + lane;")
            self._line("const Index next = from + (Index)sizes.chunk;")
            self._line("const Index end = next < (Index)sizes.units ? next : (Index)sizes.units;")

    def _row_head(self) -> None:
        tile = self.tile
        self._row_number(f"blockIdx.x * (Index){tile.across}")
        self._units_of_block()
        self._offsets("o", range(self.structure.operand_count))
        self._alignment()
        if tile.resident:
            self._declare_packs("", self.read)
            self._loads("begin", "")
        if not tile.inner:
            self._row_packs()
        for p in self.kept:
            self._line(f"{c_type(self.body[p].dtype)} k{p}[{tile.unroll}][{tile.width}];")

    def _offsets(self, name: str, operands: Sequence[int]) -> None:
        """Where operands are at row i."""
        self._line(f"Index {', '.join(f'{name}{k}' for k in operands)};")
        self._line("{")
        for line in coordinate_lines("i", self.tile.rank, operands, [2] * len(self.moves), name + "{k}"):
            self._line("    " + line)
        self._line("}")

    def _alignment(self) -> None:
        packed = {self.names[k]: self.structure.operand_dtypes[k] for k in self._packed()}
        self.aligned = aligned_test(packed, self.tile.width)
        if self.aligned != "true":
            self._line(f"const bool aligned = {self.aligned};")

    def _packed(self) -> list[int]:
        """Operands in memory that are read or written by packs."""
        found = [k for k in (*self.read, *self.tile.shared) if self.classes[k] == 1]
        rows = self.structure.rows
        for output, k in enumerate(self.outputs):
            if self.classes[k] == 1 and (not rows[output] or not self.tile.inner):
                found.append(k)
        if not self.tile.inner:
            found += [k for k in self.inputs if not self.moves[k] and self.classes[k] == 1]
        return found

    # ------------------------------------------------------------------------------------------------------- memory

    def _pack_type(self, k: int) -> str:
        return f"Pack<{self.types[k]}, {self.tile.width if self.classes[k] else 1}>"

    def _declare_packs(self, indent: str, operands: Iterable[int], name: str = "x") -> None:
        for k in operands:
            self._line(f"{indent}{self._pack_type(k)} {name}{k}[{self.tile.unroll}];")

    def _row_packs(self) -> None:
        """What an outer kernel reads once for its rows."""
        for k in self.inputs:
            if not self.moves[k]:
                self._line(f"{self._pack_type(k)} w{k};")
                fast, slow = (self._load(k, f"w{k}", f"in{k} + o{k}", way) for way in (True, False))
                for line in self._either(fast, slow):
                    self._line(line)

    def _either(self, fast: str, slow: str) -> list[str]:
        if self.aligned == "true" or fast == slow:
            return [fast]
        return [f"if (aligned) {fast}", f"else {slow}"]

    def _load(self, k: int, pack: str, address: str, fast: bool) -> str:
        if self.classes[k] == 0:
            return f"{pack}.at[0] = *({address});"
        if self.classes[k] == 1 and fast:
            return f"load_pack({pack}, {address});"
        step = "(Index)1" if self.classes[k] == 1 else f"(Index)sizes.inner[{k}]"
        return f"load_elements({pack}, {address}, {step}, {self.tile.width});"

    def _unit_lines(self, base: str) -> list[str]:
        """The number of a thread's unit n and what it needs to find elements."""
        lines = [f"const Index q = {base} + n * {self.tile.lanes};"]
        if self.tile.slabs:
            lines.append("const Index slab = divide(q, sizes.slab_divisor), step = q - slab * (Index)sizes.slab_units;")
        return lines

    def _place(self, k: int, row: str = "o") -> str:
        """An operand's offset at unit q; row: the name of the offset of its row."""
        offset = f"{row}{k}"
        if self.structure.along[k]:
            offset += f" + {'step' if self.tile.slabs else 'q'} * (Index)sizes.along[{k}]"
        if self.tile.slabs and self.structure.slabs[k]:
            offset += f" + slab * (Index)sizes.from_slab[{k}]"
        return offset

    def _loads(
        self, base: str, indent: str, operands: Sequence[int] | None = None, pack: str = "x", row: str = "o"
    ) -> None:  # fmt: skip
        """Ask for all units of a thread, in one run of accesses; operands: those of the row where not given."""
        operands = self.read if operands is None else operands
        if not operands:
            return
        ways = [True] if self.aligned == "true" else [True, False]
        for way in ways:
            if len(ways) == 2:
                self._line(indent + ("if (aligned) {" if way else "} else {"))
            self._line(f"{indent}#pragma unroll")
            self._line(f"{indent}for (int n = 0; n < {self.tile.unroll}; n++) {{")
            for line in self._unit_lines(base):
                self._line(f"{indent}    {line}")
            for k in operands:
                load = self._load(k, f"{pack}{k}[n]", f"in{k} + {self._place(k, row)}", way)
                if not self.tile.exact:
                    self._line(f"{indent}    {pack}{k}[n] = {{}};")
                    load = f"if (q < end) {load}"
                self._line(f"{indent}    {load}")
            self._line(f"{indent}}}")
        if len(ways) == 2:
            self._line(indent + "}")

    # ------------------------------------------------------------------------------------------------ values of rows

    def _row_leaf(self, position: int, instr: Instr) -> str:
        if instr.kind is Kind.LOAD:
            k = instr.index
            if self.tile.inner:
                return loaded(self.structure.inputs[k], f"in{k}[o{k}]")
            return loaded(self.structure.inputs[k], f"w{k}.at[{'e' if self.classes[k] else 0}]")
        k = instr.index + self.structure.first_coordinate
        return f"o{k}" if self.tile.inner else f"o{k}" + ("", " + e", f" + e * (Index)sizes.inner[{k}]")[self.classes[k]]

    def _row_values(self, roots: Iterable[int]) -> None:
        """Compute what `roots` need of values that are constant along the row."""
        for p in sorted(needed_for(self.structure, roots, self.row_known)):
            if self.levels.varies[p] or p in self.row_known or self.body[p].kind is Kind.REDUCE:
                continue
            instr = self.body[p]
            args = [self.row_known[a] for a in instr.args]
            if instr.kind in (Kind.LOAD, Kind.INDEX):
                value = self._row_leaf(p, instr)
            elif instr.kind is Kind.RANDOM:
                value = f"philox({args[0]}, {args[1]})"
            else:
                value = expression(self.structure, instr, args)
            kind = c_type(instr.dtype)
            if self.tile.inner:
                self._line(f"const {kind} v{p} = {value};")
                self.row_known[p] = f"v{p}"
            else:
                self._line(f"{kind} v{p}[{self.tile.width}];")
                self._line("#pragma unroll")
                self._line(f"for (int e = 0; e < {self.tile.width}; e++) v{p}[e] = {value};")
                self.row_known[p] = f"v{p}[e]"

    def _divisors(self, roots: Iterable[int]) -> None:
        """What quotients of elements by values of the row need."""
        for p in sorted(needed_for(self.structure, roots, self.row_known)):
            divisor = self._divisor(self.body[p])
            if divisor is None or f"inverse{divisor}" in self.divisors:
                continue
            self.divisors.add(f"inverse{divisor}")
            value, e = self.row_known[divisor], "" if self.tile.inner else "[e]"
            if self.all_halves:
                lines = [f"scale{divisor}{e} = scale_for_quotients({value});",
                         f"inverse{divisor}{e} = 1.0f / ({value} * scale{divisor}{e});"]  # fmt: skip
            else:
                lines = [f"inverse{divisor}{e} = inverse_for_quotients({value});"]
            if self.tile.inner:
                self.lines += [f"    const float {line}" for line in lines]
            else:
                scale = f"scale{divisor}[{self.tile.width}], " if self.all_halves else ""
                self._line(f"float {scale}inverse{divisor}[{self.tile.width}];")
                self._line("#pragma unroll")
                self._line(f"for (int e = 0; e < {self.tile.width}; e++) {{ {' '.join(lines)} }}")

    def _divisor(self, instr: Instr) -> int | None:
        """The value of the row by which an element is divided."""
        if instr.fn is not Fn.DIV or instr.dtype is not float32:
            return None
        numerator, divisor = instr.args
        if self.levels.varies[divisor] or not self.levels.varies[numerator] or divisor in self.uniform.known:
            return None
        return divisor

    def _special(self, instr: Instr, args: list[str]) -> str | None:
        """What costs less than usual where its row, or what it is rounded to, is known."""
        if instr.fn is Fn.EXP and self._exp_is_rounded(instr.dtype):
            return f"exp_for_half({args[0]})"
        return self._quotient(instr, args)

    def _exp_is_rounded(self, dtype: DType) -> bool:
        """Whether an exponential of this dtype only goes to results that are halves."""
        return self.only_halves and dtype is float32

    def _quotient(self, instr: Instr, args: list[str]) -> str | None:
        divisor = self._divisor(instr)
        if divisor is None or f"inverse{divisor}" not in self.divisors:
            return None
        e = "" if self.tile.inner else "[e]"
        if not self.all_halves:
            return f"quotient({args[0]}, {args[1]}, inverse{divisor}{e})"
        return f"quotient_for_half({args[0]}, scale{divisor}{e}, inverse{divisor}{e})"

    # ----------------------------------------------------------------------------------------------------- elements

    def _element_leaf(self, position: int, instr: Instr) -> str:
        if instr.kind is Kind.LOAD:
            k = instr.index
            return loaded(self.structure.inputs[k], f"x{k}[n].at[{'e' if self.classes[k] else 0}]")
        k = instr.index + self.structure.first_coordinate
        return self._place(k) + ("", " + e", f" + e * (Index)sizes.inner[{k}]")[self.classes[k]]

    def _element_scope(self, indent: str) -> Scope:
        known = dict(self.row_known)
        known |= {p: f"k{p}[n][e]" for p in self.stored}
        return Scope(self.structure, indent, self._element_leaf, known, special=self._special)

    def _pass(
        self, inside: Scope, before: Sequence[str] = (), after: Sequence[str] = (), ahead: Sequence[str] = (),
        behind: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """The loop over a thread's units around the lines of `inside`, which compute what is wanted of one element.

        before, after: lines around the loop over a pack's elements; ahead, behind: around that over units taken at once
        """
        tile, indent = self.tile, ""
        if not tile.resident:
            indent = "    "
            self._line(f"for (Index base = begin; base < end; base += {tile.lanes * tile.unroll}) {{")
            self._declare_packs(indent, self.read)
            self._loads("base", indent)
        for line in ahead:
            self._line(indent + line)
        self._line(f"{indent}#pragma unroll")
        self._line(f"{indent}for (int n = 0; n < {tile.unroll}; n++) {{")
        for line in self._unit_lines("base" if not tile.resident else "begin"):
            self._line(f"{indent}    {line}")
        if not tile.exact:
            self._line(f"{indent}    if (q >= end) continue;")
        drawn = [p for p in range(len(self.body)) if any(f"random{p}.at(" in line for line in inside.lines)]
        for line in [*self._shared_lines(inside), *before, *random_blocks(self.body, drawn)]:
            self._line(f"{indent}    {line}")
        self._line(f"{indent}    #pragma unroll")
        self._line(f"{indent}    for (int e = 0; e < {tile.width}; e++) {{")
        self.lines += [f"    {indent}{line}" for line in inside.lines]
        for p in self.kept:
            if p in inside.known and p not in self.stored:
                self._line(f"{indent}        k{p}[n][e] = {inside.known[p]};")
        self._line(f"{indent}    }}")
        for line in after:
            self._line(f"{indent}    {line}")
        self._line(f"{indent}}}")
        for line in behind:
            self._line(indent + line)
        if not tile.resident:
            self._line("}")
        self.stored |= {p for p in self.kept if p in inside.known}
        self.passed += 1
        again = self._read_from_packs_again() if tile.resident else []
        if again:
            self._line("#pragma unroll")
            self._line(f"for (int n = 0; n < {tile.unroll}; n++) {{ {' '.join(f'forget(x{k}[n]);' for k in again)} }}")

    def _read_from_packs_again(self) -> list[int]:
        """Packs of which later passes compute anew: of halves, which take half the room, and of all where nothing is kept."""
        later = [p for roots in passes(self.structure, self.levels)[self.passed :] for p in roots]
        needed = needed_for(self.structure, later, self.stored)
        loads = {self.body[p].index for p in needed if self.body[p].kind is Kind.LOAD}
        return [k for k in self.read if k in loads and (self.structure.inputs[k].is_half or not self.tile.keep)]

    def _shared_lines(self, inside: Scope) -> list[str]:
        """Read the packs of unit n that all rows share, where the lines of a pass name them."""
        lines = []
        for k in self.tile.shared:
            if any(f"x{k}[n]" in line for line in inside.lines):
                address = f"in{k} + read_again({self._place(k)})"
                lines.append(f"{self._pack_type(k)} x{k}[1];")
                lines += self._either(self._load(k, f"x{k}[0]", address, True), self._load(k, f"x{k}[0]", address, False))
                inside.lines[:] = [line.replace(f"x{k}[n]", f"x{k}[0]") for line in inside.lines]
        return lines

    def _reduce(self, positions: Sequence[int]) -> None:
        """One pass for several REDUCEs, and their states joined; where passes are launches, left in scratch."""
        if not positions:
            return
        tile = self.tile
        roots = [self.body[p].args[0] for p in positions]
        self._row_values(roots)
        for p in positions:
            self._start_states(p, tile.width)
        inside = self._element_scope("        ")
        for p in positions:
            value = inside.value(self.body[p].args[0])
            place = f"(long long)q * {tile.width} + e" if tile.inner else "(long long)q"
            if p in self.sums:
                inside.line(f"z{p}[n][e] = {value};")
            else:
                more = (self._as_state(p, value), place)
                inside.line(self._combined(p, (f"s{p}[e]", f"at{p}[e]"), more))
        self._pass(inside, ahead=self._gather_lines(positions), behind=self._rescaling_lines(positions))
        for p in positions:
            self._across_pack(p)
        self._across_lanes(positions)
        if tile.cluster > 1 and tile.inner:
            self._across_cluster(positions)
        if tile.stage is not None:
            self._leave_parts(positions)
            return
        for p in positions:
            self._result(p)

    def _joined_parts(self, positions: Sequence[int]) -> None:
        """REDUCEs of passes that were launches before."""
        if positions:
            self._joined_states(positions)
            for p in positions:
                self._result(p)

    def _result(self, p: int) -> None:
        """The joined state as the REDUCE's value."""
        instr = self.body[p]
        if p in self.sums:
            index = "0" if self.tile.inner else "e"
            self.row_known[p] = f"s{p}[{index}]"
            self.row_known[self.sums[p]] = f"rescaled_sum(s{p}[{index}], at{p}[{index}])"
            return
        kind = c_type(instr.dtype)
        state = f"at{p}" if instr.reduction in PLACES else f"s{p}"
        index = "0" if self.tile.inner else "e"
        self.row_known[p] = f"{state}[{index}]"
        if instr.reduction in PLACES and kind != "long long":
            self.row_known[p] = f"({kind}){state}[{index}]"

    # ------------------------------------------------------------------------------------------------------- stores

    def _store(self, k: int, pack: str, address: str, fast: bool) -> str:
        if self.classes[k] == 1 and fast:
            return f"store_pack({pack}, {address});"
        step = "(Index)1" if self.classes[k] == 1 else f"(Index)sizes.inner[{k}]"
        return f"store_elements({pack}, {address}, {step}, {self.tile.width});"

    def _store_along(self) -> None:
        structure, width = self.structure, self.tile.width
        chosen = [(k, v) for k, v, row in zip(self.outputs, structure.values, structure.rows) if not row]
        if not chosen and not structure.summed:
            return
        halves = {k: narrowed(structure, value) for k, value in chosen}
        roots = [value if (half := halves[k]) is None else half for k, value in chosen]
        wanted = [*roots, *[value for value, _ in structure.summed]]
        self._row_values(wanted)
        self._divisors(wanted)
        inside = self._element_scope("        ")
        before, after = [], []
        for (k, _), root in zip(chosen, roots):
            half = halves[k] is not None
            before.append(f"Pack<{self.types[k]}, {width}> y{k};" + (f" float f{k}[{width}];" if half else ""))
            inside.line(f"{f'f{k}[e]' if half else f'y{k}.at[e]'} = {inside.value(root)};")
            if half:
                after.append(narrow_line(structure.operand_dtypes[k], f"y{k}", f"f{k}"))
        self._take_into_sums(inside)
        if not self.tile.inner or self.tile.across > 1:
            after.append("if (!live) continue;")
        for k, _ in chosen:
            address = f"{self.names[k]} + {self._place(k)}"
            after += self._either(self._store(k, f"y{k}", address, True), self._store(k, f"y{k}", address, False))
        self._pass(inside, before, after)

    def _take_into_sums(self, inside: Scope) -> None:
        """Lines that take an element into the sums over the rows (`row_rounds.py`)."""

    def _store_rows(self) -> None:
        structure = self.structure
        chosen = [(k, v) for k, v, row in zip(self.outputs, structure.values, structure.rows) if row]
        if not chosen:
            return
        self._row_values([value for _, value in chosen])
        together = self.tile.stage is not None or self.tile.cluster > 1 or self.tile.walks
        first = "live && lane == 0" + (" && blockIdx.y == 0" if together else "")
        self._line(f"if ({first}) {{")
        for k, value in chosen:
            if self.tile.inner:
                self._line(f"    {self.names[k]}[o{k}] = {self.row_known[value]};")
                continue
            self._line(f"    Pack<{self.types[k]}, {self.tile.width}> y{k};")
            self._line("    #pragma unroll")
            self._line(f"    for (int e = 0; e < {self.tile.width}; e++) y{k}.at[e] = {self.row_known[value]};")
            address = f"{self.names[k]} + o{k}"
            for line in self._either(self._store(k, f"y{k}", address, True), self._store(k, f"y{k}", address, False)):
                self._line("    " + line)
        self._line("}")
