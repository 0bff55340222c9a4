"""Positions of a convolution that are left over after whole vectors: dot products of kernels with copies of their windows.

    y[o][p] = function(bias[o] + sum over k of w[o, k] windows[p, k])        k: channel and tap, as vectors

Where 49 positions are three vectors of 16 and one more, a vector for that one would cost as much as the 16. Rows of w lie
contiguously, so a copy of the position's window meets them in whole vectors. Between blocks of channels y holds the sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_epilogue import apply
from tensorsmith.targets.cpu.gemm_tile import Rows
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors

ARGUMENTS = (
    ("ptr", "w"),
    ("ptr", "windows"),
    ("ptr", "y"),  # at the first position
    ("ptr", "bias"),  # null without one, and where y holds sums
    ("i64", "depth"),  # of a sum: channels of the block by taps
    ("i64", "count"),  # of output channels
    ("i64", "window"),  # bytes from position to position
    ("i64", "w_row"),
    ("i64", "y_row"),
    ("i1", "later"),  # whether y holds sums of the channels before
    ("i1", "more"),  # whether channels are to come
)
_ROWS = 4


def most_left(lanes: int, depth: int) -> int:
    """Up to how many positions are cheaper than a vector of them. depth: of the sums."""
    return lanes // 4 if depth >= 8 * lanes else 0


def left_name(positions: int) -> str:
    """Symbol of the kernel for a number of positions."""
    return f"conv_left_{positions}"


def copy_windows(
    f: Function, vectors: Vectors, w: dict[str, str], slab: str, windows: str, taps: str, count: Value
) -> None:
    """The windows of `count` positions, the first of which `slab` points at: [position][channel][tap]."""
    size = vectors.compute_size
    with f.loop(0, count, 1, [("ptr", windows)], name="position left over") as p:
        seen = f.offset(slab, f.mul(p.index, size))
        with f.loop(0, w["channels"], 1, [("ptr", seen), ("ptr", p.carried[0])]) as c:
            with f.loop(0, w["tap_count"], 1, [("ptr", c.carried[1])]) as t:
                place = f.offset(c.carried[0], f.load("i64", f.offset(taps, f.mul(t.index, 8)), 8))
                f.store(f.load(vectors.scalar, place, size), vectors.scalar, t.carried[0], size)
                f.note("window = x[...] of the position")
                t.next = [f.offset(t.carried[0], size)]
            c.next = [f.offset(c.carried[0], w["plane"]), t.out[0]]
        p.next = [c.out[1]]


def left_function(vectors: Vectors, positions: int, function: str = "") -> Function:
    """The kernel for a number of positions that follow each other in y."""
    f = Function(left_name(positions), ARGUMENTS, attributes="noinline")
    fours = f.round_down("%count", _ROWS)
    start = [("ptr", "%w"), ("ptr", "%y"), ("ptr", "%bias")]
    for rows, low, high in ((_ROWS, 0, fours), (1, fours, "%count")):
        with f.loop(low, high, rows, start, name=f"{rows} output channels") as o:
            _rows(f, vectors, rows, positions, function, *o.carried)
            step = f.select(f.compare("ne", "%bias", "null", "ptr"), "i64", rows * vectors.compute_size, 0)
            moved = (f.mul(f"%{name}", rows) for name in ("w_row", "y_row"))
            o.next = [f.offset(p, by) for p, by in zip(o.carried, (*moved, step))]
        start = [("ptr", str(p)) for p in o.out]
    return f


def _rows(f: Function, vectors: Vectors, rows: int, positions: int, function: str, w: str, y: str, bias: str) -> None:
    """Some output channels."""
    size, lanes, cells = vectors.compute_size, vectors.lanes, rows * positions
    w_rows, seen_rows, y_rows = (
        Rows(f, count, stride) for count, stride in ((rows, "%w_row"), (positions, "%window"), (rows, "%y_row"))
    )

    def step(pointers: Sequence[Value], sums: Sequence[Value], mask: Mask | None) -> list[Value]:
        of_w, of_seen = ([str(p) for p in part] for part in (pointers[: w_rows.groups], pointers[w_rows.groups :]))
        left = [vectors.load(f, w_rows.at(of_w, r), mask) for r in range(rows)]
        right = [vectors.load(f, seen_rows.at(of_seen, p), mask) for p in range(positions)]
        return [vectors.multiply_add(f, left[i // positions], right[i % positions], sums[i]) for i in range(cells)]

    pointers: list[Value] = [*w_rows.bases(w), *seen_rows.bases("%windows")]
    whole = f.round_down("%depth", lanes)
    carried = [(vectors.type, vectors.zero)] * cells + [("ptr", p) for p in pointers]
    with f.loop(0, whole, lanes, carried, name="k in vectors") as k:
        after = step(k.carried[cells:], k.carried[:cells], None)
        f.note(f"sums[{rows}][{positions}] += w[rows, k..] * windows[positions, k..]")
        k.next = [*after, *(f.offset(p, lanes * size) for p in k.carried[cells:])]
    sums, ends = k.out[:cells], k.out[cells:]
    rest = f.sub("%depth", whole)
    tail = vectors.mask(f, rest)
    kinds = [vectors.type] * cells
    some = f.compare("sgt", rest, 0)
    reduced = vectors.sum_lanes(f, f.choose(some, kinds, lambda: step(ends, sums, tail), lambda: list(sums)))
    y_bases = y_rows.bases(y)
    places = [y_rows.at(y_bases, i // positions, i % positions * size) for i in range(cells)]
    with_bias = f.compare("ne", bias, "null", "ptr")

    def from_memory(addresses: list[str]) -> list[Value]:
        found: list[Value] = [vectors.zero] * len(reduced)
        for i, address in enumerate(addresses):
            element = f.load(vectors.scalar, address, size)
            found[i // lanes] = f.value(
                f"insertelement {vectors.type} {found[i // lanes]}, {vectors.scalar} {element}, i64 {i % lanes}"
            )
        return found

    def of_bias() -> list[Value]:
        return from_memory([f.offset(bias, i // positions * size) for i in range(cells)])

    kinds = [vectors.type] * len(reduced)
    zeros: list[Value] = [vectors.zero] * len(reduced)
    before = f.choose(
        "%later", kinds, lambda: from_memory(places), lambda: list(f.choose(with_bias, kinds, of_bias, lambda: zeros))
    )
    found: list[Value] = [vectors.plus(f, value, old) for value, old in zip(reduced, before)]
    if function:
        found = list(f.choose("%more", kinds, lambda: found, lambda: apply(f, vectors, function, found)))
    for i, place in enumerate(places):
        element = f.value(f"extractelement {vectors.type} {found[i // lanes]}, i64 {i % lanes}")
        f.store(element, vectors.scalar, place, size)
    f.note("y[rows][positions] = sums over the lanes")
