"""The gradient of attention in one kernel: scores are computed again, a block at a time, from the saved log-sum-exps.

    for unit in units of this chunk:                       (batch)
        for keys in blocks:
            for queries in blocks (from the diagonal on, where causal):
                s = Q K^T;  dp = G V^T                     on tiles
                p = exp(s scale + mask - lse);  ds = p (z dp - delta) scale
                p = p z                                    with dropout, z made again from the same random bits
                dV += p^T G;  dQ += ds K;  dK += ds^T Q    on tiles

The result is dQ, rows as those of the forward result, then dK and dV. A batch is one chunk's work, so that sums have one order.
"""

from __future__ import annotations

from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cpu.attention_blocks import COLUMNS, TILES, AttentionStructure, Blocks, launch_words
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_kernels import Kernels

OPERANDS = ("q", "k", "v", "g", "lse", "delta")
WORDS = (
    "scale", "units", "units_per_chunk", "rows", "inner", "beside", "batch", "L", "S", "E", "F", "space",
    "at_ds", "at_kt", "at_vt", "at_k", "at_g", "at_q", "slot_kt", "slot_vt", "slot_keys", "slot_queries",
    "pack_transposed", "pack_rows", *TILES, "limit", "factor", "at_kept", "row_words",
    *(f"{name}_{level}" for name in (*OPERANDS, "mask", "streams") for level in ("outer", "inner", "row")),
)  # fmt: skip


class _Backward(Blocks):
    def __init__(self, structure: AttentionStructure, pieces: Kernels, name: str) -> None:
        super().__init__(structure, pieces, name, launch_words(structure, OPERANDS), WORDS)

    def build(self) -> Function:
        f, w = self.f, self.w
        start = f.mul(f.value("zext i32 %chunk to i64"), w["units_per_chunk"])
        end = f.minimum(f.add(start, w["units_per_chunk"]), w["units"])
        with f.loop(start, end, 1, name="unit in batches") as unit:
            self._batch(unit.index)
        return f

    def _batch(self, batch: Value) -> None:
        f, w, size = self.f, self.w, self.size
        outer, inner = f.udiv(batch, w["inner"]), f.urem(batch, w["inner"])
        here = {name: self.operand(name, outer, inner) for name in OPERANDS}
        if self.structure.mask:
            here["mask"] = self.operand("mask", outer, inner)
        stream = self.stream(outer, inner) if self.structure.dropout else None
        e_bytes, f_bytes = f.mul(w["E"], size), f.mul(w["F"], size)
        e_row, f_row = f.mul(w["beside"], e_bytes), f.mul(w["beside"], f_bytes)
        of_keys = f.offset(self.at["result"], f.mul(f.mul(w["batch"], w["L"]), e_bytes))
        of_values = f.offset(of_keys, f.mul(f.mul(w["batch"], w["S"]), e_bytes))
        dq = self.result(self.at["result"], outer, inner, w["L"], w["E"])
        dk = self.result(of_keys, outer, inner, w["S"], w["E"])
        dv = self.result(of_values, outer, inner, w["S"], w["F"])
        with f.loop(0, w["S"], 1, name="row of the results") as each:
            for pointer, row, count in ((dk, e_row, e_bytes), (dv, f_row, f_bytes)):
                at = f.offset(pointer, f.mul(each.index, row))
                f.call("void", "llvm.memset.p0.i64", ("ptr", at), ("i8", 0), ("i64", count), ("i1", "false"))
        with f.loop(0, w["S"], COLUMNS, name="keys in blocks") as keys:
            first = keys.index
            width = f.minimum(COLUMNS, f.sub(w["S"], first))
            k = f.offset(here["k"], f.mul(first, w["k_row"]))
            v = f.offset(here["v"], f.mul(first, w["v_row"]))
            kt, vt, kr = (f.offset(self.workspace, w[name]) for name in ("at_kt", "at_vt", "at_k"))
            self.pack(True, k, kt, w["E"], w["k_row"], width, w["slot_kt"])
            self.pack(True, v, vt, w["F"], w["v_row"], width, w["slot_vt"])
            self.pack(False, k, kr, width, w["k_row"], w["E"], w["slot_keys"])
            low: Value = f.mul(f.udiv(first, w["rows"]), w["rows"]) if self.structure.causal else 0
            dk_here, dv_here = f.offset(dk, f.mul(first, e_row)), f.offset(dv, f.mul(first, f_row))
            with f.loop(low, w["L"], w["rows"], name="queries in blocks") as queries:
                row = queries.index
                dq_here = f.offset(dq, f.mul(row, e_row))
                self._block(here, stream, row, first, width, (kt, vt, kr), (dq_here, dk_here, dv_here), (e_row, f_row))

    def _block(
        self, here: dict[str, str], stream: tuple[str, str] | None, row: Value, first: Value, width: Value,
        packed: tuple[str, str, str], results: tuple[str, str, str], steps: tuple[Value, Value],
    ) -> None:  # fmt: skip
        f, w, size = self.f, self.w, self.size
        rows = f.minimum(w["rows"], f.sub(w["L"], row))
        of_queries, of_keys = self.rest("query"), self.rest("key")
        if self.structure.causal:  # up to the diagonal: keys that are left then are as many as queries are
            seen = f.sub(f.add(row, rows), first)
            short = f.compare("slt", seen, width)
            width = f.minimum(seen, width)
            of_keys = [f.select(short, "i64", a, b) for a, b in zip(of_queries, of_keys)]
        q = f.offset(here["q"], f.mul(row, w["q_row"]))
        g = f.offset(here["g"], f.mul(row, w["g_row"]))
        kt, vt, kr = packed
        dq, dk, dv = results
        e_row, f_row = steps
        p, ds = self.workspace, f.offset(self.workspace, w["at_ds"])
        f.note("s = Q K^T; dp = G V^T")
        self.product(q, kt, p, w["E"], rows, width, w["q_row"], size, w["slot_kt"], self.width, 0, of_queries)
        self.product(g, vt, ds, w["F"], rows, width, w["g_row"], size, w["slot_vt"], self.width, 0, of_queries)
        with f.loop(0, rows, 1, name="row of the scores") as each:
            number = f.add(row, each.index)
            mask = None
            if self.structure.mask:
                step = 1 if self.structure.mask == "bool" else size
                mask = f.offset(here["mask"], f.mul(number, w["mask_row"]))
                mask = mask if self.structure.spread else f.offset(mask, f.mul(first, step))
            lse, delta = (
                self.splat_from(f.offset(here[name], f.mul(number, w[f"{name}_row"]))) for name in ("lse", "delta")
            )
            if stream is not None:
                self.draw(stream, number, first, width)
            across = f.mul(each.index, self.width)
            self._row(f.offset(p, across), f.offset(ds, across), mask, number, first, width, lse, delta)
        queries = f.offset(self.workspace, w["at_g"])
        self.pack(False, g, queries, rows, w["g_row"], w["F"], w["slot_queries"])
        f.note("dV += p^T G")
        self.product(p, queries, dv, rows, width, w["F"], size, self.width, w["slot_queries"], f_row, 1, of_keys)
        f.note("dQ += ds K")
        again = f.select(f.compare("sgt", first, 0), "i64", 1, 0)
        self.product(ds, kr, dq, width, rows, w["E"], self.width, size, w["slot_keys"], e_row, again, of_queries)
        queries = f.offset(self.workspace, w["at_q"])
        self.pack(False, q, queries, rows, w["q_row"], w["E"], w["slot_queries"])
        f.note("dK += ds^T Q")
        self.product(ds, queries, dk, rows, width, w["E"], size, self.width, w["slot_queries"], e_row, 1, of_keys)

    def _row(
        self, p: str, ds: str, mask: str | None, number: Value, first: Value, width: Value, lse: str, delta: str
    ) -> None:
        f, lanes, element = self.f, self.lanes, self.element
        score, seen = self.scores(p, mask), self.seen(number, first, width)

        def step(column: Value, counted: str | None) -> list[str]:
            at = f.mul(column, self.size)
            weight = self.apply(Fn.EXP, self.op("fsub", score(column, counted), lse))
            lanes.store(element, self.times_kept(weight, column), f.offset(p, at))
            change = self.op("fsub", self.times_kept(lanes.load(element, f.offset(ds, at)), column), delta)
            change = self.op("fmul", self.op("fmul", weight, change), self.scale)
            change = change if counted is None else lanes.select(counted, element, change, self.zero)
            lanes.store(element, change, f.offset(ds, at))
            return []

        self.along(seen, [], step)
        self.hide([p, ds], seen, width)


def build(structure: AttentionStructure, pieces: Kernels, name: str) -> Function:
    """The backward kernel."""
    return _Backward(structure, pieces, name).build()
