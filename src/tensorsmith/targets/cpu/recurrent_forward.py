"""A recurrent layer over all steps in one kernel (`ir/recurrent.py:RECURRENT`).

    W_hh packed;  h (and c) = the first state, in the result
    for step in steps:
        p = h W_hh^T                                       on tiles
        for each row: h, c = cell(a[step] + p, h, c);  states[step] = h;  what is kept
"""

from __future__ import annotations

from tensorsmith.ir.recurrent import GATES, KEPT
from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_kernels import Kernels
from tensorsmith.targets.cpu.recurrent_product import WORDS as SHARED, Layer, RecurrentStructure

WORDS = (
    *SHARED, "gates_row", "hidden_row", "cell_row", "at_states", "at_hidden", "at_cell", "at_cells", "at_parts", "at_p",
    "p_row",
)  # fmt: skip


def launch_words(structure: RecurrentStructure) -> tuple[str, ...]:
    """What a launch is given."""
    cell = ("cell",) if structure.mode == "lstm" else ()
    bias = ("bias",) if structure.bias else ()
    return ("gates", "hidden", *cell, "w", *bias, "result", "workspace")


class _Forward(Layer):
    def __init__(self, structure: RecurrentStructure, pieces: Kernels, name: str) -> None:
        super().__init__(structure, pieces, name, launch_words(structure), WORDS)

    def build(self) -> Function:
        f, w = self.f, self.w
        gates = GATES[self.mode]
        wide = f.mul(w["hidden"], gates)
        hidden = self.state_rows("hidden", w["hidden_row"], self.result("hidden"))
        cell = self.state_rows("cell", w["cell_row"], self.result("cell")) if self.mode == "lstm" else ""
        p = f.offset(self.workspace, w["at_p"])
        self.pack(True, self.at["w"], self.workspace, w["hidden"], w["w_row"], wide, w["slot"])
        states, cells, parts = (self.result(name) for name in ("states", "cells", "parts"))
        with self.steps(False) as (rows, at, _, _):
            f.note("p = h W^T")
            self.product(hidden, self.workspace, p, w["hidden"], rows, wide, self.row, w["p_row"], 0)
            first = f.add(at, self.start)

            def one(row: Value, first: Value = first) -> None:
                number = f.add(first, row)
                kept = f.offset(parts, f.mul(number, f.mul(self.row, KEPT[self.mode])))
                along, here = f.mul(row, self.row), f.mul(number, self.row)
                self._row(
                    f.offset(self.at["gates"], f.mul(number, w["gates_row"])), f.offset(p, f.mul(row, w["p_row"])),
                    f.offset(hidden, along), f.offset(cell, along) if cell else "", f.offset(states, here),
                    f.offset(cells, here), kept,
                )  # fmt: skip

            self.each_row(rows, one)
        return f

    def _row(self, gates: str, p: str, hidden: str, cell: str, states: str, cells: str, parts: str) -> None:
        """The cell on one row, in vectors.

        Gates first, one after the other: so many short loops run at the speed of the arithmetic, one long one at that of its
        chain of dependent steps.
        """
        keep, lstm = self.structure.keep, self.mode == "lstm"

        def total(number: int, column: Value, mask: str | None) -> str:
            """A column of p + b of block `number`."""
            value = self.read(p, number, column, mask)
            return self.plus(value, self.read(self.at["bias"], number, column, mask)) if self.structure.bias else value

        def gate(fn: Fn, number: int, blocks: int) -> None:
            """Some blocks through their function: into what is kept, or over p."""

            def step(column: Value, mask: str | None) -> list[str]:
                value = self.apply(fn, self.plus(self.read(gates, number, column, mask), total(number, column, mask)))
                self.write(value, parts if keep else p, number, column, mask)
                return []

            self.along(self.f.mul(self.w["hidden"], blocks), [], step)

        def of_lstm(column: Value, mask: str | None) -> list[str]:
            i, forget, g, o = (self.read(parts if keep else p, k, column, mask) for k in range(4))
            new = self.plus(self.times(forget, self.read(cell, 0, column, mask)), self.times(i, g))
            self.write(new, cell, 0, column, mask)
            if keep:
                self.write(new, cells, 0, column, mask)
            return finish(self.times(o, self.apply(Fn.TANH, new)), column, mask)

        def of_gru(column: Value, mask: str | None) -> list[str]:
            reset, stay = (self.read(parts if keep else p, k, column, mask) for k in range(2))
            of_state = total(2, column, mask)
            new = self.apply(Fn.TANH, self.plus(self.read(gates, 2, column, mask), self.times(reset, of_state)))
            if keep:
                self.write(new, parts, 2, column, mask)
                self.write(of_state, parts, 3, column, mask)
            old = self.read(hidden, 0, column, mask)
            return finish(self.plus(new, self.times(stay, self.op("fsub", old, new))), column, mask)

        def of_rnn(column: Value, mask: str | None) -> list[str]:
            value = self.plus(self.read(gates, 0, column, mask), total(0, column, mask))
            return finish(self.apply(Fn.TANH if self.mode == "rnn_tanh" else Fn.RELU, value), column, mask)

        def finish(state: str, column: Value, mask: str | None) -> list[str]:
            self.write(state, hidden, 0, column, mask)
            self.write(state, states, 0, column, mask)
            return []

        if lstm or self.mode == "gru":
            gate(Fn.SIGMOID, 0, 2)
        if lstm:
            gate(Fn.TANH, 2, 1)
            gate(Fn.SIGMOID, 3, 1)
        self.along(self.w["hidden"], [], {"lstm": of_lstm, "gru": of_gru}.get(self.mode, of_rnn))


def build(structure: RecurrentStructure, pieces: Kernels, name: str) -> Function:
    """The forward kernel."""
    return _Forward(structure, pieces, name).build()
