"""Slabs: a part of the input of a convolution, copied so that every tap of a kernel is a vector load at a constant distance.

[channel][phase 0][phase 1][phase w][row 0][row 1][pitch]: zeros stand where the padding is, and what a stride of s skips
lies in another of its s phases. Along axes 1 and w the phases may also be whole copies, one a tap, each of just the
positions of results: more to write, but no positions between the rows that are no results.
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_vectors import Vectors


def fill_slab(
    f: Function, vectors: Vectors, w: dict[str, str], x: str, slab: str, edges: str, outer0: Value, rows_0: Value
) -> None:
    """Write a slab from row `outer0` on: `rows_0` rows of axis 0 of every channel and phase.

    w: the words channels, slab_0, slab_1, pitch, plane, space_0, space_1, stride_0, stride_1, low_0, low_1, phases_0,
    phases_1, phases_w, x_channel, x_0, x_1, x_w, x_step, contiguous; perhaps apart_1, the rows of x from phase to phase of
    axis 1; perhaps spread_0, spread_w: places that an element of x has, zeros between them. edges: for every phase of w the
    first position inside x, the end of those, and where in x the first one lies.
    Row after row, so that a vector may write past its row's end.
    """
    size = vectors.compute_size
    row_bytes = f.mul(w["pitch"], size)
    row_1 = f.mul(row_bytes, w["slab_1"])
    phase = f.mul(row_1, w["slab_0"])
    with f.loop(0, w["channels"], 1, [("ptr", slab)], name="c in channels") as c:
        source_c = f.offset(x, f.mul(c.index, w["x_channel"]))
        target_c = c.carried[0]
        with f.loop(0, w["phases_0"], 1, [("ptr", target_c)], name="phase 0") as p0:
            with f.loop(0, w["phases_1"], 1, [("ptr", p0.carried[0])], name="phase 1") as p1:
                with f.loop(0, w["phases_w"], 1, [("ptr", p1.carried[0])], name="phase w") as pw:
                    edge = f.offset(edges, f.mul(pw.index, 24))
                    first, stop, start = (f.load("i64", f.offset(edge, 8 * i), 8) for i in range(3))
                    with f.loop(0, rows_0, 1, name="row of axis 0") as r0:
                        at_0 = f.sub(f.add(f.mul(f.add(outer0, r0.index), w["stride_0"]), p0.index), w["low_0"])
                        inside_0 = f.compare("ult", at_0, w["space_0"])
                        if "spread_0" in w:
                            between = f.urem(at_0, w["spread_0"])
                            at_0 = f.udiv(at_0, w["spread_0"])  # of one before x: far beyond it
                            inside_0 = f.compare("ult", f.select(f.compare("eq", between, 0), "i64", at_0, -1), w["space_0"])
                        source_0 = f.offset(source_c, f.mul(at_0, w["x_0"]))
                        target_0 = f.offset(pw.carried[0], f.mul(r0.index, row_1))
                        with f.loop(0, w["slab_1"], 1, name="row of axis 1") as r1:
                            of_phase = f.mul(p1.index, w.get("apart_1", 1))
                            at_1 = f.sub(f.add(f.mul(r1.index, w["stride_1"]), of_phase), w["low_1"])
                            inside = f.value(f"and i1 {inside_0}, {f.compare('ult', at_1, w['space_1'])}")
                            low = f.select(inside, "i64", first, w["pitch"])
                            target = f.offset(target_0, f.mul(r1.index, row_bytes))
                            _zeros(f, vectors, target, 0, low)
                            with f.if_(inside):
                                source = f.offset(f.offset(source_0, f.mul(at_1, w["x_1"])), f.mul(start, w["x_w"]))
                                if "spread_w" in w:
                                    _spread_row(f, vectors, w, source, target, first, stop)
                                else:
                                    _row(f, vectors, w, source, target, first, stop)
                                    _zeros(f, vectors, target, stop, w["pitch"])
                            f.note("slab row = zeros, x[...], zeros")
                    pw.next = [f.offset(pw.carried[0], phase)]
                p1.next = [pw.out[0]]
            p0.next = [p1.out[0]]
        c.next = [f.offset(target_c, w["plane"])]


def _zeros(f: Function, vectors: Vectors, target: str, low: Value, high: Value) -> None:
    with f.loop(low, high, vectors.lanes) as i:
        vectors.store(f, vectors.zero, f.offset(target, f.mul(i.index, vectors.compute_size)))


def _row(f: Function, vectors: Vectors, w: dict[str, str], source: str, target: str, first: Value, stop: Value) -> None:
    size, lanes = vectors.compute_size, vectors.lanes
    count = f.sub(stop, first)
    place = f.offset(target, f.mul(first, size))

    def in_vectors() -> None:
        whole = f.round_down(count, lanes)
        with f.loop(0, whole, lanes) as i:
            bytes_in = f.mul(i.index, size)
            vectors.store(f, vectors.load(f, f.offset(source, bytes_in)), f.offset(place, bytes_in))
        rest = f.sub(count, whole)
        with f.if_(f.compare("sgt", rest, 0)):
            bytes_in = f.mul(whole, size)
            value = vectors.load(f, f.offset(source, bytes_in), vectors.mask(f, rest))
            vectors.store(f, value, f.offset(place, bytes_in))

    def one_by_one() -> None:
        with f.loop(0, count, 1, [("ptr", source)]) as i:
            value = f.load(vectors.scalar, i.carried[0], size)
            f.store(value, vectors.scalar, f.offset(place, f.mul(i.index, size)), size)
            i.next = [f.offset(i.carried[0], w["x_step"])]

    def every_second() -> None:
        even = [2 * k for k in range(lanes)]
        # The last vector reads no element beyond the last one copied.
        whole = f.round_down(f.sub(count, 1), lanes)
        with f.loop(0, whole, lanes) as i:
            there = f.offset(source, f.mul(i.index, 2 * size))
            pair = [vectors.load(f, f.offset(there, half * lanes * size)) for half in range(2)]
            vectors.store(f, vectors.shuffle(f, pair[0], pair[1], even), f.offset(place, f.mul(i.index, size)))
        rest = f.sub(f.mul(f.sub(count, whole), 2), 1)
        there = f.offset(source, f.mul(whole, 2 * size))
        pair = [
            vectors.load(f, f.offset(there, half * lanes * size), vectors.mask(f, f.sub(rest, half * lanes)))
            for half in range(2)
        ]
        vectors.store(f, vectors.shuffle(f, pair[0], pair[1], even), f.offset(place, f.mul(whole, size)))

    def apart() -> None:
        dense = f.value(f"and i1 {f.compare('eq', w['x_step'], 2 * size)}, {f.compare('sgt', count, 0)}")
        f.branch(dense, every_second, one_by_one)

    f.branch(f.compare("ne", w["contiguous"], 0), in_vectors, apart)


def _spread_row(f: Function, vectors: Vectors, w: dict[str, str], source: str, target: str, first: Value, stop: Value) -> None:
    """Elements of x `spread_w` places apart, zeros between and behind them."""
    size, lanes = vectors.compute_size, vectors.lanes
    count = f.udiv(f.add(f.sub(stop, first), f.sub(w["spread_w"], 1)), w["spread_w"])

    def one_by_one(low: Value) -> None:
        with f.loop(low, count, 1) as i:
            value = f.load(vectors.scalar, f.offset(source, f.mul(i.index, w["x_step"])), size)
            f.store(value, vectors.scalar, f.offset(target, f.mul(f.add(first, f.mul(i.index, w["spread_w"])), size)), size)

    def every_second() -> None:
        whole = f.round_down(count, lanes)
        order = [[k // 2 if k % 2 == 0 else lanes for k in range(half * lanes, (half + 1) * lanes)] for half in range(2)]
        place = f.offset(target, f.mul(first, size))
        with f.loop(0, whole, lanes) as i:
            value = vectors.load(f, f.offset(source, f.mul(i.index, size)))
            there = f.offset(place, f.mul(i.index, 2 * size))
            for half in range(2):
                spread = vectors.shuffle(f, value, vectors.zero, order[half])
                vectors.store(f, spread, f.offset(there, half * lanes * size))
        _zeros(f, vectors, target, f.add(first, f.mul(whole, 2)), w["pitch"])
        one_by_one(whole)

    def scattered() -> None:
        _zeros(f, vectors, target, first, w["pitch"])
        one_by_one(0)

    pairs = f.value(f"and i1 {f.compare('eq', w['spread_w'], 2)}, {f.compare('ne', w['contiguous'], 0)}")
    f.branch(pairs, every_second, scattered)
