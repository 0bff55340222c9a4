"""The text of kernels whose blocks stay and take row after row, and of sums over the rows that they leave.

Block b of B takes the rows b * across, (b + B) * across, ...; what all rows share is read once, into shared memory, and the
next row is asked for before the present one is reduced, where registers allow it. Which rows a block takes follows from the
shape and the card, so the sums of its rows, one for every column and kept by the thread that has the column, are always the
same. At last each block joins those of its rows side by side, in order, and leaves one partial result a column.
"""

from __future__ import annotations

from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.targets.cuda.body import Scope, combined, identity
from tensorsmith.targets.cuda.row_text import RowText
from tensorsmith.targets.cuda.row_tile import WARP
from tensorsmith.targets.cuda.scalars import c_type


class RoundsText(RowText):
    """The text of one kernel; its rows lie along the packs, each in one block."""

    def source(self) -> str:
        """The whole text."""
        tile = self.tile
        assert tile.inner and tile.resident and tile.cluster == 1 and tile.stage is None
        self.totals = [
            Instr(Kind.REDUCE, self.body[p].dtype, (p,), reduction=kind) for p, kind in self.structure.summed
        ]  # fmt: skip
        self._fixed()
        self._alignment()
        self._line("const Index begin = lane, end = (Index)sizes.units;")
        self._common()
        for number, total in enumerate(self.totals):
            self._line(f"{c_type(total.dtype)} total{number}[{tile.unroll}][{tile.width}];")
            self._for_units(f"total{number}[n][e] = {identity(self.structure, total)};")
        self._line(f"const Index stride = gridDim.x * (Index){tile.across};")
        if tile.ahead:
            self._declare_packs("", self.read, "next")
            self._ask("", f"blockIdx.x * (Index){tile.across}")
        self._line("#pragma unroll 1")
        self._line(f"for (Index first = blockIdx.x * (Index){tile.across}; first < (Index)sizes.points; first += stride) {{")
        outside, self.lines = self.lines, []
        self._row_head()
        self._row()
        if tile.lanes > WARP and sum(bool(reduces) for reduces in self.levels.reduces) == 1:
            self._line("__syncthreads();  // the next row writes what some may still read")
        self.lines = outside + ["    " + line for line in self.lines]
        self._line("}")
        self._leave_totals()
        return self._text()

    def _partial_results(self) -> list[str]:
        return [f"{c_type(self.body[p].dtype)}* sum{number}" for number, (p, _) in enumerate(self.structure.summed)]

    def _for_units(self, line: str) -> None:
        self._line("#pragma unroll")
        self._line(f"for (int n = 0; n < {self.tile.unroll}; n++) {{")
        self._line("    #pragma unroll")
        self._line(f"    for (int e = 0; e < {self.tile.width}; e++) {line}")
        self._line("}")

    # ---------------------------------------------------------------------------------------------------------- rows

    def _ask(self, condition: str, first: str) -> None:
        """Ask for a row that is computed later."""
        outside, self.lines = self.lines, []
        self._row_number(first)
        self._offsets("ahead", self.read)
        self._loads("begin", "", self.read, "next", "ahead")
        inside, self.lines = self.lines, outside
        self._line(f"{condition}{{")
        self.lines += ["    " + line for line in inside]
        self._line("}")

    def _row_head(self) -> None:
        tile = self.tile
        self._row_number("first")
        self._offsets("o", range(self.structure.operand_count))
        self._declare_packs("", self.read)
        if tile.ahead:
            taken = " ".join(f"x{k}[n] = next{k}[n];" for k in self.read)
            self._line("#pragma unroll")
            self._line(f"for (int n = 0; n < {tile.unroll}; n++) {{ {taken} }}")
            self._ask("if (first + stride < (Index)sizes.points) ", "first + stride")
        else:
            self._loads("begin", "")
        for p in self.kept:
            self._line(f"{c_type(self.body[p].dtype)} k{p}[{tile.unroll}][{tile.width}];")

    def _place(self, k: int, row: str = "o") -> str:
        """An operand's offset at unit q; that of packs side by side is known where the text is compiled."""
        if self.structure.along[k] == 1:
            return f"{row}{k} + q * {self.tile.width}"
        return super()._place(k, row)

    def _common(self) -> None:
        """What all rows share, into shared memory: a thread reads there what one with its lane has put there."""
        tile = self.tile
        if not tile.shared:
            return
        for k in tile.shared:
            self._line(f"typedef {self._pack_type(k)} Common{k};")
            self._line(f"__shared__ Common{k} common{k}[{tile.lanes * tile.unroll}];")
        self._line("if (threadIdx.y == 0) {")
        outside, self.lines = self.lines, []
        self._line("const Index i = 0;")
        self._offsets("o", tile.shared)
        self._declare_packs("", tile.shared)
        self._loads("begin", "", tile.shared)
        keep = " ".join(f"store_pack(x{k}[n], common{k}[begin + n * {tile.lanes}].at);" for k in tile.shared)
        self._line("#pragma unroll")
        self._line(f"for (int n = 0; n < {tile.unroll}; n++) {{ {keep} }}")
        self.lines = outside + ["    " + line for line in self.lines]
        self._line("}")
        if tile.across > 1:
            self._line("__syncthreads();")

    def _shared_lines(self, inside: Scope) -> list[str]:
        lines = []
        for k in self.tile.shared:
            if any(f"x{k}[n]" in line for line in inside.lines):
                lines.append(f"{self._pack_type(k)} x{k}[1];")
                lines.append(f"load_pack(x{k}[0], common{k}[read_again(q)].at);")
                inside.lines[:] = [line.replace(f"x{k}[n]", f"x{k}[0]") for line in inside.lines]
        return lines

    # ---------------------------------------------------------------------------------------------------------- sums

    def _take_into_sums(self, inside: Scope) -> None:
        dead = self.tile.across > 1
        for number, total in enumerate(self.totals):
            value = inside.value(total.args[0])
            line = combined(self.structure, total, (f"total{number}[n][e]", ""), (value, ""))
            inside.line(f"if (live) {line}" if dead else line)

    def _leave_totals(self) -> None:
        """Partial results of the block, a sum after the other; the rows side by side are joined in order."""
        tile = self.tile
        columns = tile.lanes * tile.width
        if not self.totals:
            return
        self._line(f"const long long mine = (long long)blockIdx.x * sizes.units * {tile.width};")
        if tile.across == 1:
            for number in range(len(self.totals)):
                store = f"sum{number}[mine + (lane + n * {tile.lanes}) * {tile.width} + e] = total{number}[n][e];"
                self._for_units(store if tile.exact else f"if (lane + n * {tile.lanes} < end) {store}")
            return
        self._line(f"const int thread = threadIdx.y * {tile.lanes} + lane;")
        for number, total in enumerate(self.totals):
            self._line(f"__shared__ {c_type(total.dtype)} several{number}[{tile.across * columns}];")
        self._line("#pragma unroll")
        self._line(f"for (int n = 0; n < {tile.unroll}; n++) {{")
        self._line("    __syncthreads();")
        for number in range(len(self.totals)):
            self._line("    #pragma unroll")
            element = f"several{number}[thread * {tile.width} + e] = total{number}[n][e];"
            self._line(f"    for (int e = 0; e < {tile.width}; e++) {element}")
        self._line("    __syncthreads();")
        self._line(f"    for (int c = thread; c < {columns}; c += {tile.threads}) {{")
        if not tile.exact:
            self._line(f"        if (n * {columns} + c >= end * {tile.width}) break;")
        for number, total in enumerate(self.totals):
            kind = c_type(total.dtype)
            more = combined(self.structure, total, (f"t{number}", ""), (f"several{number}[g * {columns} + c]", ""))
            self._line(f"        {kind} t{number} = several{number}[c];")
            self._line("        #pragma unroll")
            self._line(f"        for (int g = 1; g < {tile.across}; g++) {more}")
            self._line(f"        sum{number}[mine + n * {columns} + c] = t{number};")
        self._line("    }")
        self._line("}")
