"""The states of a kernel's REDUCEs and how they are joined: over a pack, over threads, over blocks, in fixed orders.

A state is a value `s{p}[e]` of REDUCE p for every element of a pack, and with it, in `at{p}[e]`, the place of an extreme or
the sum that goes with a maximum (`rescaled_sums.py`). An inner kernel joins those of its packs at once and goes on with one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.kernels.canonical import Structure
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.body import PLACES, combined, identity, loaded, state_dtype
from tensorsmith.targets.cuda.row_tile import WARP, RowTile
from tensorsmith.targets.cuda.scalars import apply_expression, c_type, cast_expression, memory_type


class RowStates:
    """Lines of one kernel, and those that join states."""

    def __init__(self, structure: Structure, tile: RowTile, sums: dict[int, int]) -> None:
        self.structure, self.tile, self.sums = structure, tile, sums
        self.body = structure.body
        self.lines: list[str] = []

    def _line(self, text: str) -> None:
        self.lines.append("    " + text)

    # ---------------------------------------------------------------------------------------------- a thread's states

    def _second(self, p: int) -> str | None:
        """The C++ type of what a state has beside its value: a place, or the sum that goes with a maximum."""
        if p in self.sums:
            return c_type(self.body[p].dtype)
        return "long long" if self.body[p].reduction in PLACES else None

    def _combined(self, p: int, into: tuple[str, str], more: tuple[str, str]) -> str:
        """A statement that takes one state into another."""
        if p in self.sums:
            return f"join_rescaled({into[0]}, {into[1]}, {more[0]}, {more[1]});"
        return combined(self.structure, self.body[p], into, more)

    def _as_state(self, p: int, value: str) -> str:
        source, target = self.body[self.body[p].args[0]].dtype, state_dtype(self.structure, self.body[p])
        if source is target:
            return value
        return cast_expression(source, target, value)

    def _start_states(self, p: int, width: int, again: bool = False) -> None:
        kind = c_type(state_dtype(self.structure, self.body[p]))
        second = self._second(p)
        if not again:
            self._line(f"{kind} s{p}[{width}];" + (f" {second} at{p}[{width}];" if second else ""))
        start = f"s{p}[e] = {identity(self.structure, self.body[p])};"
        start += f" at{p}[e] = {0 if p in self.sums else -1};" if second else ""
        self._line("#pragma unroll")
        self._line(f"for (int e = 0; e < {width}; e++) {{ {start} }}")

    @property
    def states(self) -> int:
        """Elements of a thread's joined states: one, or one for every row of a pack."""
        return 1 if self.tile.inner else self.tile.width

    def _join(self, p: int, state: str, more: str) -> str:
        """A statement: what stands at index `more` (of s and at) is taken into index `state`."""
        into, taken = ((f"s{p}[{index}]", f"at{p}[{index}]") for index in (state, more))
        return self._combined(p, into, taken)

    def _across_pack(self, p: int) -> None:
        if self.tile.inner and self.tile.width > 1:
            self._line("#pragma unroll")
            self._line(f"for (int half = {self.tile.width // 2}; half > 0; half >>= 1) {{")
            self._line("    #pragma unroll")
            self._line(f"    for (int e = 0; e < half; e++) {self._join(p, 'e', 'e + half')}")
            self._line("}")

    def _value_of(self, p: int, element: str) -> str:
        return loaded(state_dtype(self.structure, self.body[p]), element)

    def _gather_lines(self, positions: Sequence[int]) -> list[str]:
        """Room for the values of a maximum with a sum: those of all units that a thread takes at once."""
        lines = []
        for p in positions:
            if p in self.sums:
                tile, start = self.tile, identity(self.structure, self.body[p])
                lines.append(f"{c_type(self.body[p].dtype)} z{p}[{tile.unroll}][{tile.width}];")
                if not tile.exact:
                    lines += ["#pragma unroll", f"for (int n = 0; n < {tile.unroll}; n++) {{", "    #pragma unroll"]
                    lines += [f"    for (int e = 0; e < {tile.width}; e++) z{p}[n][e] = {start};", "}"]
        return lines

    def _rescaling_lines(self, positions: Sequence[int]) -> list[str]:
        """Take these values into the maximum and the sum of every element of a pack: the sum is rescaled once for all."""
        lines = []
        for p in positions:
            if p in self.sums:
                dtype, units = self.body[p].dtype, self.tile.unroll
                power = apply_expression(Fn.EXP, dtype, [f"z{p}[n][e] - reference"])
                kind = c_type(dtype)
                lines += [
                    "#pragma unroll", f"for (int e = 0; e < {self.tile.width}; e++) {{", f"    {kind} top = s{p}[e];",
                    "    #pragma unroll", f"    for (int n = 0; n < {units}; n++) top = maximum<{kind}>(top, z{p}[n][e]);",
                    f"    const {kind} reference = rescaling_reference(top);",
                    f"    at{p}[e] *= rescaling(s{p}[e], top);", f"    s{p}[e] = top;",
                    "    #pragma unroll", f"    for (int n = 0; n < {units}; n++) at{p}[e] += {power};", "}",
                ]  # fmt: skip
        return lines

    # ------------------------------------------------------------------------------------------------------- threads

    def _across_lanes(self, positions: Sequence[int]) -> None:
        if self.tile.inner:
            for p in positions:
                self._shuffled(p, min(self.tile.lanes, WARP))
            if self.tile.lanes > WARP:
                self._across_warps(positions)
        else:
            self._across_columns(positions)

    def _shuffled(self, p: int, threads: int, first: int = 1, states: int = 1) -> None:
        """A tree over `threads` neighbouring threads, those `first` apart, for every state; all get the result."""
        if threads == first:
            return
        kind = c_type(state_dtype(self.structure, self.body[p]))
        self._line("#pragma unroll")
        self._line(f"for (int distance = {threads // 2}; distance >= {first}; distance >>= 1) {{")
        self._line("    #pragma unroll")
        self._line(f"    for (int e = 0; e < {states}; e++) {{")
        self._line(f"        const {kind} other = shuffle<{kind}>(s{p}[e], distance);")
        if (second := self._second(p)) is not None:
            self._line(f"        const {second} place = shuffle<{second}>(at{p}[e], distance);")
        self._line(f"        {self._combined(p, (f's{p}[e]', f'at{p}[e]'), ('other', 'place'))}")
        self._line("    }")
        self._line("}")

    def _shared(self, p: int, size: str) -> None:
        kind = memory_type(state_dtype(self.structure, self.body[p]))
        self._line(f"__shared__ {kind} shared{p}[{size}];")
        if (second := self._second(p)) is not None:
            self._line(f"__shared__ {second} shared_at{p}[{size}];")

    def _to_shared(self, p: int, index: str, e: str) -> str:
        text = f"shared{p}[{index}] = s{p}[{e}];"
        return text + (f" shared_at{p}[{index}] = at{p}[{e}];" if self._second(p) else "")

    def _from_shared(self, p: int, index: str, e: str) -> str:
        text = f"s{p}[{e}] = {self._value_of(p, f'shared{p}[{index}]')};"
        return text + (f" at{p}[{e}] = shared_at{p}[{index}];" if self._second(p) else "")

    def _across_warps(self, positions: Sequence[int]) -> None:
        """The warps of a block that share a row: each joins the results of all by a tree of its own."""
        warps = self.tile.lanes // WARP
        row = f"threadIdx.y * {warps} + " if self.tile.across > 1 else ""
        for p in positions:
            self._shared(p, str(warps * self.tile.across))
            self._line(f"if (lane % {WARP} == 0) {{ {self._to_shared(p, f'{row}lane / {WARP}', '0')} }}")
        self._line("__syncthreads();")
        for p in positions:
            self._line(self._from_shared(p, f"{row}lane % {warps}", "0"))
            self._shuffled(p, warps)

    def _across_columns(self, positions: Sequence[int]) -> None:
        """The lanes of an outer kernel: those of a warp by shuffles, then a thread for every row joins what is left in order.

        In a cluster that thread goes on with the results of the other blocks.
        """
        tile = self.tile
        together, columns = tile.lanes_of_warp, tile.width * tile.across
        groups = tile.lanes // together
        for p in positions:
            self._shuffled(p, tile.across * together, tile.across, tile.width)
        if groups == 1 and tile.cluster == 1:
            return
        for p in positions:
            self._shared(p, f"{groups * columns}")
        every = f"for (int e = 0; e < {tile.width}; e++)"
        self._line(f"if (lane % {together} == 0) {{" if together > 1 else "{")
        for p in positions:
            mine = f"lane / {together} * {columns} + threadIdx.x * {tile.width} + e"
            self._line("    #pragma unroll")
            self._line(f"    {every} {{ {self._to_shared(p, mine, 'e')} }}")
        self._line("}")
        self._line("__syncthreads();")
        self._line(f"for (int c = lane * {tile.across} + threadIdx.x; c < {columns}; c += {tile.threads}) {{")
        for p in positions:
            for line in self._in_order(p, groups, f"shared{p}[g * {columns} + c]", f"shared_at{p}[g * {columns} + c]"):
                self._line("    " + line)
            self._line(f"    {self._keep_joined(p, f'shared{p}', f'shared_at{p}')}")
        self._line("}")
        if tile.cluster == 1:
            self._line("__syncthreads();")
        else:
            self._line("cluster_barrier();")
            for p in positions:
                kind = memory_type(state_dtype(self.structure, self.body[p]))
                self._line(f"__shared__ {kind} cluster{p}[{columns}];")
                if (second := self._second(p)) is not None:
                    self._line(f"__shared__ {second} cluster_at{p}[{columns}];")
            self._line(f"for (int c = lane * {tile.across} + threadIdx.x; c < {columns}; c += {tile.threads}) {{")
            for p in positions:
                there = f"load_from_block(&shared{p}[c], g)", f"load_from_block(&shared_at{p}[c], g)"
                for line in self._in_order(p, tile.cluster, *there):
                    self._line("    " + line)
                self._line(f"    {self._keep_joined(p, f'cluster{p}', f'cluster_at{p}')}")
            self._line("}")
            self._line("__syncthreads();")
        array = "shared" if tile.cluster == 1 else "cluster"
        for p in positions:
            value = self._value_of(p, f"{array}{p}[threadIdx.x * {tile.width} + e]")
            place = f" at{p}[e] = {array}_at{p}[threadIdx.x * {tile.width} + e];" if self._second(p) else ""
            self._line("#pragma unroll")
            self._line(f"{every} {{ s{p}[e] = {value};{place} }}")

    def _in_order(self, p: int, count: int, element: str, place: str) -> list[str]:
        """Lines that join `count` states, number g at `element` and `place`, into t and its place u."""
        kind = c_type(state_dtype(self.structure, self.body[p]))
        second = self._second(p)
        places = second is not None
        lines = [f"{kind} several{p}[{count}];" + (f" {second} places{p}[{count}];" if places else ""), "#pragma unroll"]
        read = f"several{p}[g] = {self._value_of(p, element)};" + (f" places{p}[g] = {place};" if places else "")
        lines.append(f"for (int g = 0; g < {count}; g++) {{ {read} }}")
        lines.append(f"{kind} t{p} = several{p}[0];" + (f" {second} u{p} = places{p}[0];" if places else ""))
        join = self._combined(p, (f"t{p}", f"u{p}"), (f"several{p}[g]", f"places{p}[g]"))
        return [*lines, "#pragma unroll", f"for (int g = 1; g < {count}; g++) {{ {join} }}"]

    def _keep_joined(self, p: int, array: str, places: str) -> str:
        return f"{array}[c] = t{p};" + (f" {places}[c] = u{p};" if self._second(p) else "")

    # -------------------------------------------------------------------------------------------------------- blocks

    def _across_cluster(self, positions: Sequence[int]) -> None:
        """The blocks of a cluster that share the rows of an inner kernel: each joins the states of all, in order."""
        tile = self.tile
        for p in positions:
            kind = memory_type(state_dtype(self.structure, self.body[p]))
            self._line(f"__shared__ {kind} cluster{p}[{tile.across}];")
            if (second := self._second(p)) is not None:
                self._line(f"__shared__ {second} cluster_at{p}[{tile.across}];")
            self._line(f"if (lane == 0) cluster{p}[threadIdx.y] = s{p}[0];")
            if self._second(p):
                self._line(f"if (lane == 0) cluster_at{p}[threadIdx.y] = at{p}[0];")
        self._line("cluster_barrier();")
        for p in positions:
            there = f"load_from_block(&cluster{p}[threadIdx.y], g)", f"load_from_block(&cluster_at{p}[threadIdx.y], g)"
            for line in self._in_order(p, tile.cluster, *there):
                self._line(line)
            self._line(f"s{p}[0] = t{p};" + (f" at{p}[0] = u{p};" if self._second(p) else ""))

    def _part_index(self, part: str, e: str) -> str:
        """Where the state of one part of a row is in scratch."""
        if self.tile.inner:
            return f"(long long)i * sizes.parts + {part}"
        return f"({part} * sizes.points + i) * {self.tile.width} + {e}"

    def _leave_parts(self, positions: Sequence[int]) -> None:
        self._line("if (live && lane == 0) {")
        for p in positions:
            self._line("    #pragma unroll")
            self._line(f"    for (int e = 0; e < {self.states}; e++) {{")
            self._line(f"        const long long index = {self._part_index('(long long)blockIdx.y', 'e')};")
            self._line(f"        part{p}[index] = s{p}[e];")
            if self._second(p):
                self._line(f"        place{p}[index] = at{p}[e];")
            self._line("    }")
        self._line("}")

    def _joined_states(self, positions: Sequence[int], again: bool = False) -> None:
        """Join what the parts of a row left in scratch, every block anew, in the same order.

        again: in states that are declared already
        """
        for p in positions:
            self._start_states(p, self.states, again)
        self._line("#pragma unroll 4")
        self._line(f"for (long long part = lane; part < sizes.parts; part += {self.tile.lanes}) {{")
        for p in positions:
            more = (self._value_of(p, f"part{p}[index]"), f"place{p}[index]")
            join = self._combined(p, (f"s{p}[e]", f"at{p}[e]"), more)
            self._line("    #pragma unroll")
            self._line(f"    for (int e = 0; e < {self.states}; e++) {{")
            self._line(f"        const long long index = {self._part_index('part', 'e')};")
            self._line(f"        {join}")
            self._line("    }")
        self._line("}")
        self._across_lanes(positions)
