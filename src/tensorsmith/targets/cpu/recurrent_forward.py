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
        f, w, size = self.f, self.w, self.size
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
        assert size == self.dtype.itemsize
        return f

    def _row(self, gates: str, p: str, hidden: str, cell: str, states: str, cells: str, parts: str) -> None:
        """The cell on one row, in vectors."""
        keep = self.structure.keep

        def step(column: Value, mask: str | None) -> list[str]:
            a = [self.read(gates, k, column, mask) for k in range(GATES[self.mode])]
            b = [self.read(p, k, column, mask) for k in range(GATES[self.mode])]
            if self.structure.bias:
                b = [self.plus(x, self.read(self.at["bias"], k, column, mask)) for k, x in enumerate(b)]
            kept: list[str] = []
            if self.mode == "lstm":
                i, forget, g, o = (self.plus(x, y) for x, y in zip(a, b))
                i, forget = self.apply(Fn.SIGMOID, i), self.apply(Fn.SIGMOID, forget)
                g, o = self.apply(Fn.TANH, g), self.apply(Fn.SIGMOID, o)
                new = self.plus(self.times(forget, self.read(cell, 0, column, mask)), self.times(i, g))
                state = self.times(o, self.apply(Fn.TANH, new))
                self.write(new, cell, 0, column, mask)
                if keep:
                    self.write(new, cells, 0, column, mask)
                kept = [i, forget, g, o]
            elif self.mode == "gru":
                reset = self.apply(Fn.SIGMOID, self.plus(a[0], b[0]))
                stay = self.apply(Fn.SIGMOID, self.plus(a[1], b[1]))
                new = self.apply(Fn.TANH, self.plus(a[2], self.times(reset, b[2])))
                old = self.read(hidden, 0, column, mask)
                state = self.plus(new, self.times(stay, self.op("fsub", old, new)))
                kept = [reset, stay, new, b[2]]
            else:
                state = self.apply(Fn.TANH if self.mode == "rnn_tanh" else Fn.RELU, self.plus(a[0], b[0]))
            self.write(state, hidden, 0, column, mask)
            self.write(state, states, 0, column, mask)
            if keep:
                for k, part in enumerate(kept):
                    self.write(part, parts, k, column, mask)
            return []

        self.along(self.w["hidden"], [], step)


def build(structure: RecurrentStructure, pieces: Kernels, name: str) -> Function:
    """The forward kernel."""
    return _Forward(structure, pieces, name).build()
