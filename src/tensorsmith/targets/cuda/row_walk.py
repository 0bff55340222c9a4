"""Kernels with reductions whose columns are too long for a block: blocks that stay, and walk over the columns together.

    grid (groups, parts): the `parts` blocks of a group share a stretch of columns, each has some of its rows in registers;
    then they take the next stretch that is no other group's

Outer kernels (`row_text.py`). While a stretch is worked on, the next one is on its way: every thread has its packs copied to a
place of its own in shared memory. The states of the blocks meet in scratch memory: every block leaves its own, counts itself
as arrived, waits for the others of its group and joins all of them, in the same order. So a column is read once, however long
it is, and memory is never idle while blocks wait for each other. All blocks have to run at once: the launch is a cooperative
one. A launch before it sets the counts to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tensorsmith.kernels.canonical import Structure
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.kernel import Constant, Launch, Word
from tensorsmith.targets.cuda.row_text import RowText
from tensorsmith.targets.cuda.row_tile import RowTile
from tensorsmith.targets.cuda.scalars import apply_expression, c_type
from tensorsmith.targets.cuda.walk_plan import place_starts


def clearing(name: str, word: int, counts: int) -> Launch:
    """The launch that sets the counts of arrived blocks to 0."""
    source = (
        f'extern "C" __global__ void {name}_clear(unsigned int* arrived, long long counts) {{\n'
        "    const long long i = blockIdx.x * 256ll + threadIdx.x;\n    if (i < counts) arrived[i] = 0;\n}\n"
    )
    return Launch(source, f"{name}_clear", (math.ceil(counts / 256), 1, 1), (256, 1, 1), (Word(word), Constant((counts,))))


class WalkText(RowText):
    """The text of one such kernel.

    pairs: the sum that goes with a maximum (`rescaled_sums.py`); joined: passes whose states blocks have joined
    """

    def __init__(self, structure: Structure, tile: RowTile, name: str, sizes_text: str) -> None:
        super().__init__(structure, tile, name, sizes_text)
        self.pairs, self.sums = self.sums, {}
        self.reduces = [q for p in self.reduces for q in (p, self.pairs.get(p)) if q is not None]
        self.joined = 0

    def source(self) -> str:
        """The whole text."""
        tile = self.tile
        assert not tile.inner and tile.resident and tile.cluster == 1 and tile.stage is None and not self.structure.summed
        self._fixed()
        self._units_of_block()
        self._alignment()
        self._line(f"const Index stretches = ((Index)sizes.points + {tile.across - 1}) / {tile.across};")
        self._line("extern __shared__ uint4 places[];")
        for k, start in zip(self.read, place_starts(self.structure, tile, self.read)):
            place = f"reinterpret_cast<{self._pack_type(k)}*>(reinterpret_cast<char*>(places) + {start})"
            self._line(f"{self._pack_type(k)}* const ahead{k} = {place} + threadIdx.y * {tile.across} + threadIdx.x;")
        self._line("const auto ask = [&](Index stretch) {  // for all that this thread will hold of a stretch of columns")
        outside, self.lines = self.lines, []
        self._asking()
        self.lines = [*outside, *("    " + line for line in self.lines), "    };"]
        self._line(("" if self.aligned == "true" else "if (aligned) ") + "ask(blockIdx.x);")
        self._line("#pragma unroll 1")
        self._line("for (Index stretch = blockIdx.x; stretch < stretches; stretch += gridDim.x) {")
        outside, self.lines = self.lines, []
        self._row_number(f"stretch * {tile.across}")
        self._offsets("o", range(self.structure.operand_count))
        self._take_what_came()
        self._row_packs()
        self._row()
        self.lines = outside + ["    " + line for line in self.lines]
        self._line("}")
        return self._text()

    def _partial_results(self) -> list[str]:
        return ["unsigned int* arrived"]

    def _asking(self) -> None:
        self._row_number(f"stretch * {self.tile.across}")
        self._offsets("o", self.read)
        self._line("#pragma unroll")
        self._line(f"for (int n = 0; n < {self.tile.unroll}; n++) {{")
        for line in self._unit_lines("begin"):
            self._line("    " + line)
        guard = "" if self.tile.exact else "if (q < end) "
        for k in self.read:
            self._line(f"    {guard}copy_ahead(ahead{k}[n * {self.tile.threads}], in{k} + {self._place(k)});")
        self._line("}")
        self._line("copies_asked();")

    def _take_what_came(self) -> None:
        """The packs of this stretch into registers, and ask for those of the next."""
        tile, ways = self.tile, self.aligned != "true"
        self._declare_packs("", self.read)
        indent = "    " if ways else ""
        if ways:
            self._line("if (aligned) {")
        self._line(indent + "copies_done();")
        self._line(indent + "#pragma unroll")
        self._line(f"{indent}for (int n = 0; n < {tile.unroll}; n++) {{")
        if not tile.exact:
            self._line(f"{indent}    if (begin + n * {tile.lanes} >= end) {{ {self._nothing()} continue; }}")
        for k in self.read:
            self._line(f"{indent}    x{k}[n] = ahead{k}[n * {tile.threads}];")
        self._line(indent + "}")
        self._line(f"{indent}if (stretch + gridDim.x < stretches) ask(stretch + gridDim.x);")
        if ways:
            self._line("} else {")
            self._line("    #pragma unroll")
            self._line(f"    for (int n = 0; n < {tile.unroll}; n++) {{")
            for line in self._unit_lines("begin"):
                self._line("        " + line)
            if not tile.exact:
                self._line(f"        if (q >= end) {{ {self._nothing()} continue; }}")
            for k in self.read:
                self._line("        " + self._load(k, f"x{k}[n]", f"in{k} + {self._place(k)}", False))
            self._line("    }")
            self._line("}")

    def _nothing(self) -> str:
        return " ".join(f"x{k}[n] = {{}};" for k in self.read)

    # -------------------------------------------------------------------------------------------------------- passes

    def _reduce(self, positions: Sequence[int]) -> None:
        """The states of a stretch: of a thread, of a block, of all blocks.

        A sum of exp(x - max x) is taken in a second pass over the registers, of the distances to the maximum of the block, so
        that only sums of blocks have to be rescaled.
        """
        if not positions:
            return
        sums = [self.pairs[p] for p in positions if p in self.pairs]
        self._row_values([self.body[p].args[0] for p in positions])
        for p in (*positions, *sums):
            self._start_states(p, self.tile.width)
        inside = self._element_scope("        ")
        for p in positions:
            more = self._as_state(p, inside.value(self.body[p].args[0])), "(long long)q"
            inside.line(self._combined(p, (f"s{p}[e]", f"at{p}[e]"), more))
        self._pass(inside)
        self._in_block(self._across_lanes, positions)
        if sums:
            self._exponentials(positions)
            self._in_block(self._across_lanes, sums)
        self._leave_parts([*positions, *sums])
        levels = sum(1 for reduces in self.levels.reduces if reduces)
        self._line(f"wait_for_blocks(arrived + stretch * {levels} + {self.joined}, gridDim.y);")
        self.joined += 1
        self._in_block(self._joined_states, positions)
        if sums:
            self._in_block(self._rescaled_states, positions)
        for p in positions:
            self._result(p)
            if p in self.pairs:
                self.row_known[self.pairs[p]] = f"rescaled_sum(s{p}[e], s{self.pairs[p]}[e])"

    def _in_block(self, write: Callable[[Sequence[int]], None], positions: Sequence[int]) -> None:
        """Lines in braces: they declare shared memory of their own."""
        self._line("{")
        write(positions)
        self._line("}")

    def _exponentials(self, positions: Sequence[int]) -> None:
        inside = self._element_scope("        ")
        for p in positions:
            if p not in self.pairs:
                continue
            dtype = self.body[p].dtype
            self._line(f"{c_type(dtype)} reference{p}[{self.tile.width}];")
            self._line("#pragma unroll")
            self._line(f"for (int e = 0; e < {self.tile.width}; e++) reference{p}[e] = rescaling_reference(s{p}[e]);")
            distance = f"{inside.value(self.body[p].args[0])} - reference{p}[e]"
            fast = self._exp_is_rounded(dtype)
            power = f"exp_for_half({distance})" if fast else apply_expression(Fn.EXP, dtype, [distance])
            inside.line(f"s{self.pairs[p]}[e] += {power};")
        self._pass(inside)

    def _joined_states(self, positions: Sequence[int], again: bool = True) -> None:
        super()._joined_states(positions, again)

    def _rescaled_states(self, positions: Sequence[int]) -> None:
        """Sums of all blocks, each of distances to its own maximum."""
        pairs = [(p, self.pairs[p]) for p in positions if p in self.pairs]
        for _, total in pairs:
            self._start_states(total, self.states, again=True)
        self._line("#pragma unroll 1")
        self._line(f"for (long long part = lane; part < sizes.parts; part += {self.tile.lanes}) {{")
        for p, total in pairs:
            self._line("    #pragma unroll")
            self._line(f"    for (int e = 0; e < {self.states}; e++) {{")
            self._line(f"        const long long index = {self._part_index('part', 'e')};")
            self._line(f"        s{total}[e] += part{total}[index] * rescaling(part{p}[index], s{p}[e]);")
            self._line("    }")
        self._line("}")
        self._across_lanes([total for _, total in pairs])
