"""Attention in one kernel that never holds the scores: softmax while it runs over the keys (Milakov, Gimelshein 2018).

    for unit in units of this chunk:                       (batch, block of queries)
        m = -inf, l = 0
        for keys in blocks (up to the diagonal, where causal):
            s = Q K^T                                      on tiles, K packed
            for each row: s = s scale + mask;  m' = max(m, max s);  p = exp(s - m');  a = exp(m - m')
                          l = l a + sum p;  out = out a
                          p = p z                          with dropout: z is 0 or 1 / (1 - its probability)
            out += p V                                     on tiles, V packed
        out = out / l;  lse = m + log l                    zeros where a row is masked wholly

The result is `out`, rows in the order of (outer, inner, L), or (outer, L, inner) for `beside`; then `lse`.
"""

from __future__ import annotations

from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cpu.attention_blocks import COLUMNS, ROWS, TILES, AttentionStructure, Blocks, launch_words
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_kernels import Kernels

OPERANDS = ("q", "k", "v")
WORDS = (
    "scale", "units", "units_per_chunk", "rows", "blocks", "inner", "beside", "batch", "L", "S", "E", "F", "space", "at_stats",
    "at_k", "at_v", "slot_k", "slot_v", "q_k", "pack_transposed", "pack_rows", *TILES,
    "limit", "factor", "at_kept", "row_words",
    *(f"{name}_{level}" for name in (*OPERANDS, "mask", "streams") for level in ("outer", "inner", "row")),
)  # fmt: skip


class _Forward(Blocks):
    def __init__(self, structure: AttentionStructure, pieces: Kernels, name: str) -> None:
        super().__init__(structure, pieces, name, launch_words(structure, OPERANDS), WORDS)

    def build(self) -> Function:
        f, w = self.f, self.w
        start = f.mul(f.value("zext i32 %chunk to i64"), w["units_per_chunk"])
        end = f.minimum(f.add(start, w["units_per_chunk"]), w["units"])
        with f.loop(start, end, 1, name="unit in batches and blocks of queries") as unit:
            batch, block = f.udiv(unit.index, w["blocks"]), f.urem(unit.index, w["blocks"])
            self._unit(batch, f.mul(block, w["rows"]))
        return f

    def _unit(self, batch: Value, row: Value) -> None:
        f, w, size = self.f, self.w, self.size
        rows = f.minimum(w["rows"], f.sub(w["L"], row))
        outer, inner = f.udiv(batch, w["inner"]), f.urem(batch, w["inner"])
        q, k, v = (self.operand(name, outer, inner) for name in OPERANDS)
        q = f.offset(q, f.mul(row, w["q_row"]))
        mask = None
        if self.structure.mask:
            mask = f.offset(self.operand("mask", outer, inner), f.mul(row, w["mask_row"]))
        stream = self.stream(outer, inner) if self.structure.dropout else None
        place = f.add(f.mul(batch, w["L"]), row)
        out_row = f.mul(f.mul(w["beside"], w["F"]), size)
        out = self.result(self.at["result"], outer, inner, w["L"], w["F"])
        out = f.offset(out, f.mul(row, out_row))
        behind = f.mul(f.mul(f.mul(w["batch"], w["L"]), w["F"]), size)
        lse = f.offset(f.offset(self.at["result"], behind), f.mul(place, size))
        largest = f.offset(self.workspace, w["at_stats"])
        total = f.offset(largest, ROWS * size)
        with f.loop(0, ROWS, self.lanes.count) as each:
            at = f.mul(each.index, size)
            self.lanes.store(self.element, self.infinite, f.offset(largest, at))
            self.lanes.store(self.element, self.zero, f.offset(total, at))
        limit = f.minimum(w["S"], f.add(row, rows)) if self.structure.causal else w["S"]
        packed_k, packed_v = f.offset(self.workspace, w["at_k"]), f.offset(self.workspace, w["at_v"])
        with f.loop(0, limit, COLUMNS, name="keys in blocks") as keys:
            first = keys.index
            width = f.minimum(COLUMNS, f.sub(limit, first))
            self.pack(True, f.offset(k, f.mul(first, w["k_row"])), packed_k, w["E"], w["k_row"], width, w["slot_k"])
            f.note("scores = Q K^T")
            self.product(
                q, packed_k, self.workspace, w["E"], rows, width, w["q_row"], w["q_k"], w["slot_k"], self.width, 0,
                self.rest("query"),
            )  # fmt: skip
            again = f.compare("sgt", first, 0)
            with f.loop(0, rows, 1, name="row of the scores") as each:
                at = f.mul(each.index, size)
                there = None
                if mask is not None:
                    step = 1 if self.structure.mask == "bool" else size
                    there = f.offset(mask, f.mul(each.index, w["mask_row"]))
                    there = there if self.structure.spread else f.offset(there, f.mul(first, step))
                number = f.add(row, each.index)
                if stream is not None:
                    self.draw(stream, number, first, width)
                self._row(
                    f.offset(self.workspace, f.mul(each.index, self.width)), there, number, first, width,
                    f.offset(largest, at), f.offset(total, at), f.offset(out, f.mul(each.index, out_row)), again,
                )  # fmt: skip
            self.pack(False, f.offset(v, f.mul(first, w["v_row"])), packed_v, width, w["v_row"], w["F"], w["slot_v"])
            f.note("out += scores V")
            accumulate = f.select(again, "i64", 1, 0)
            self.product(
                self.workspace, packed_v, out, width, rows, w["F"], self.width, size, w["slot_v"], out_row, accumulate,
                self.rest("query"),
            )  # fmt: skip
        with f.loop(0, rows, 1, name="row of the result") as each:
            at = f.mul(each.index, size)
            self._finish(
                f.offset(largest, at), f.offset(total, at), f.offset(out, f.mul(each.index, out_row)), f.offset(lse, at)
            )

    def _safe(self, largest: str) -> str:
        """The largest score, or 0 where there is none."""
        hidden = self.lanes.compare("oeq", self.element, largest, self.infinite)
        return self.lanes.select(hidden, self.element, self.zero, largest)

    def _row(
        self, row: str, mask: str | None, number: Value, first: Value, width: Value, largest_at: str, total_at: str,
        out: str, again: str,
    ) -> None:  # fmt: skip
        f, lanes, element = self.f, self.lanes, self.element
        score, seen = self.scores(row, mask), self.seen(number, first, width)

        def masked(column: Value, counted: str | None, most: str) -> list[str]:
            value = score(column, counted)
            lanes.store(element, value, f.offset(row, f.mul(column, self.size)))
            return [self.larger(value, most)]

        before = self.splat_from(largest_at)
        (most,) = self.along(seen, [before], masked)
        most = self.across(str(most), self.larger)
        base = self._safe(most)
        with f.loop(0, seen, lanes.count, [(self.vector, self.zero)], name="column") as column:
            place = f.offset(row, f.mul(column.index, self.size))
            value = self.apply(Fn.EXP, self.op("fsub", lanes.load(element, place), base))
            lanes.store(element, self.times_kept(value, column.index), place)
            column.next = [self.op("fadd", column.carried[0], value)]
            f.note("scores = exp(scores - largest)")
        self.hide([row], seen, width)
        factor = self.apply(Fn.EXP, self.op("fsub", before, base))
        total = self.across(str(column.out[0]), lambda a, b: self.op("fadd", a, b))
        total = self.op("fadd", self.op("fmul", self.splat_from(total_at), factor), total)
        f.store(lanes.extract(element, most), element, largest_at, self.size)
        f.store(lanes.extract(element, total), element, total_at, self.size)
        with f.if_(again):
            self.scaled(out, self.w["F"], factor)

    def _finish(self, largest_at: str, total_at: str, out: str, lse: str) -> None:
        lanes, element = self.lanes, self.element
        total = self.splat_from(total_at)
        hidden = lanes.compare("oeq", element, total, self.zero)
        inverse = self.op("fdiv", self.one, lanes.select(hidden, element, self.one, total))
        self.scaled(out, self.w["F"], lanes.select(hidden, element, self.zero, inverse))
        logarithm = self.apply(Fn.LOG, lanes.select(hidden, element, self.one, total))
        value = self.op("fadd", self._safe(self.splat_from(largest_at)), logarithm)
        self.f.store(lanes.extract(element, value), element, lse, self.size)


def build(structure: AttentionStructure, pieces: Kernels, name: str) -> Function:
    """The forward kernel."""
    return _Forward(structure, pieces, name).build()
