"""The gradient of a recurrent layer over all steps in one kernel (`ir/recurrent.py:RECURRENT_GRADIENT`).

    W_hh packed;  dh (and dc) = the gradients of the last state, in the result
    for step in steps, the last first:
        for each row: d gates[step], dc from gs[step] + dh, dc and what was kept
        dh = d gates[step] W_hh                            on tiles; of a GRU: dh z + d product[step] W_hh

Gradients of the weights are products over all steps at once, outside.
"""

from __future__ import annotations

from tensorsmith.ir.recurrent import GATES, KEPT
from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_kernels import Kernels
from tensorsmith.targets.cpu.recurrent_product import WORDS as SHARED, Layer, RecurrentStructure

WORDS = (
    *SHARED, "grad_row", "grad_hidden_row", "grad_cell_row", "hidden_row", "cell_row",
    "at_gates", "at_product", "at_hidden", "at_cell", "kept_states", "kept_cells", "kept_parts",
)  # fmt: skip


def launch_words(structure: RecurrentStructure) -> tuple[str, ...]:
    """What a launch is given."""
    lstm = structure.mode == "lstm"
    return (
        "grad", "grad_hidden", *(("grad_cell",) if lstm else ()), "kept", "hidden", *(("cell",) if lstm else ()), "w",
        *(("grad_kept",) if structure.grad_kept else ()), "result", "workspace",
    )  # fmt: skip


class _Backward(Layer):
    def __init__(self, structure: RecurrentStructure, pieces: Kernels, name: str) -> None:
        super().__init__(structure, pieces, name, launch_words(structure), WORDS)

    def build(self) -> Function:
        f, w = self.f, self.w
        lstm, gru = self.mode == "lstm", self.mode == "gru"
        deep = f.mul(w["hidden"], GATES[self.mode])
        wide = f.mul(self.row, GATES[self.mode])
        dh = self.state_rows("grad_hidden", w["grad_hidden_row"], self.result("hidden"))
        dc = self.state_rows("grad_cell", w["grad_cell_row"], self.result("cell")) if lstm else ""
        self.pack(False, self.at["w"], self.workspace, deep, w["w_row"], w["hidden"], w["slot"])
        gates = self.result("gates")
        product = self.result("product") if gru else gates
        states, cells, parts = (f.offset(self.at["kept"], w[f"kept_{name}"]) for name in ("states", "cells", "parts"))
        with self.steps(True) as (rows, at, before, have):
            first, last = f.add(at, self.start), f.add(before, self.start)
            linked = f.sub(have, self.start)

            def one(row: Value, first: Value = first, last: Value = last, linked: Value = linked) -> None:
                number = f.add(first, row)
                along, here, there = f.mul(row, self.row), f.mul(number, self.row), f.mul(f.add(last, row), self.row)
                old = ""
                if lstm or gru:  # the value before the step: of the step before it, or the first
                    values, initial, stride = (cells, "cell", w["cell_row"]) if lstm else (states, "hidden", w["hidden_row"])
                    start = f.offset(self.at[initial], f.mul(f.add(self.start, row), stride))
                    old = f.select(f.compare("slt", row, linked), "ptr", f.offset(values, there), start)
                self._row(
                    f.offset(self.at["grad"], f.mul(number, w["grad_row"])), f.offset(dh, along),
                    f.offset(dc, along) if dc else "", f.offset(states, here), f.offset(cells, here),
                    f.offset(parts, f.mul(number, f.mul(self.row, KEPT[self.mode]))), old,
                    f.offset(gates, f.mul(number, wide)), f.offset(product, f.mul(number, wide)),
                    f.mul(number, self.row),
                )  # fmt: skip

            self.each_row(rows, one)
            f.note("dh = d W")
            a = f.offset(product, f.mul(first, wide))
            self.product(a, self.workspace, dh, deep, rows, w["hidden"], wide, self.row, int(gru))
        return f

    def _row(
        self, grad: str, dh: str, dc: str, states: str, cells: str, parts: str, old: str, gates: str, product: str,
        here: Value,
    ) -> None:  # fmt: skip
        """The gradient of the cell on one row, in vectors."""

        own_cells = own_parts = ""
        if self.structure.grad_kept:
            given = self.at["grad_kept"]
            own_cells = self.f.offset(self.f.offset(given, self.w["kept_cells"]), here)
            own_parts = self.f.offset(self.f.offset(given, self.w["kept_parts"]), self.f.mul(here, KEPT[self.mode]))

        def step(column: Value, mask: str | None) -> list[str]:
            def own(number: int, value: str, place: str = own_parts) -> str:
                """A value's gradient with the one that a kept part has of its own."""
                return self.plus(value, self.read(place, number, column, mask)) if place else value

            given = self.plus(self.read(grad, 0, column, mask), self.read(dh, 0, column, mask))
            kept = [self.read(parts, k, column, mask) for k in range(KEPT[self.mode])]
            if self.mode == "lstm":
                i, forget, g, o = kept
                t = self.apply(Fn.TANH, self.read(cells, 0, column, mask))
                change = self.plus(self.read(dc, 0, column, mask), self.times(given, o, self.rest(self.times(t, t))))
                change = own(0, change, own_cells)
                before = self.read(old, 0, column, mask)
                found = [
                    self.times(own(0, self.times(change, g)), i, self.rest(i)),
                    self.times(own(1, self.times(change, before)), forget, self.rest(forget)),
                    self.times(own(2, self.times(change, i)), self.rest(self.times(g, g))),
                    self.times(own(3, self.times(given, t)), o, self.rest(o)),
                ]  # fmt: skip
                self.write(self.times(change, forget), dc, 0, column, mask)
            elif self.mode == "gru":
                reset, stay, new, p_n = kept
                to_new = self.times(own(2, self.times(given, self.rest(stay))), self.rest(self.times(new, new)))
                difference = self.op("fsub", self.read(old, 0, column, mask), new)
                found = [
                    self.times(own(0, self.times(to_new, p_n)), reset, self.rest(reset)),
                    self.times(own(1, self.times(given, difference)), stay, self.rest(stay)), to_new,
                ]  # fmt: skip
                self.write(self.times(given, stay), dh, 0, column, mask)
                for k, part in enumerate((*found[:2], own(3, self.times(to_new, reset)))):
                    self.write(part, product, k, column, mask)
            else:
                state = self.read(states, 0, column, mask)
                if self.mode == "rnn_tanh":
                    found = [self.times(given, self.rest(self.times(state, state)))]
                else:
                    off = self.lanes.compare("ole", self.element, state, self.zero)
                    found = [self.lanes.select(off, self.element, self.zero, given)]
            for k, part in enumerate(found):
                self.write(part, gates, k, column, mask)
            return []

        self.along(self.w["hidden"], [], step)


def build(structure: RecurrentStructure, pieces: Kernels, name: str) -> Function:
    """The backward kernel."""
    return _Backward(structure, pieces, name).build()
