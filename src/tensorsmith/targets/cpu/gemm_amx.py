"""The register tile of bfloat16 products on CPUs with a matrix unit (AMX), and the packing of A for it.

    for each of `count` tiles of up to 32 rows, one below the other:
        C'[16, 16] of 2 x 2 matrices = 0
        for k step 32:  C'[h][j] += A[16 h.., k..] * B[k.., 16 j..]       A as its rows lie, B packed in pairs along k
        C[r][v] = function(C'[r][v] + bias[v]  (+ C[r][v]))               by vectors, through a scratch of 4 KB

The unit sums in float32, takes denormal operands as zero and gives zero for denormal results (Intel's manual, TDPBF16PS). It
wants whole steps of k: where 32 does not divide K, A is copied, and both operands are filled up with zeros.

The vector instruction for the same pairs (VDPBF16PS) is not used: on Sapphire Rapids, tiles of it took 1.8 times as long as
those of float32.
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_epilogue import apply
from tensorsmith.targets.cpu.gemm_pack import PACK_LEFT, PACK_LEFT_ARGUMENTS
from tensorsmith.targets.cpu.gemm_tile import ACCUMULATE, ARGUMENTS, FINISH, tile_name
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors

MOST_ROWS = 32
_SIDE = 16  # rows of a matrix register, and pairs or sums in each
_BYTES = 64  # of its rows
_A, _B = 4, 6  # the first of two registers each; those before hold the sums


def _configuration(heights: list[int]) -> list[int]:
    """The eight words that shape the registers: 64-byte rows, as many as there are rows of C, A or B."""
    rows = [heights[i // 2] if i // 2 < len(heights) else 0 for i in range(4)]
    rows += [heights[h] if h < len(heights) else 0 for h in range(2)] + [_SIDE, _SIDE]
    data = bytearray(64)
    data[0] = 1
    for register, count in enumerate(rows):
        data[16 + 2 * register] = _BYTES if count else 0
        data[48 + register] = count
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, 64, 8)]


def tile_function(vectors: Vectors, rows: int, columns: int, function: str = "") -> Function:
    """The kernel for `rows` (1 to 32) rows and `columns` (1 or 2) vectors of columns; arguments as of `gemm_tile`."""
    f = Function(tile_name(rows, columns), ARGUMENTS, attributes="noinline")
    heights = [min(rows, _SIDE), *[rows - _SIDE] * (rows > _SIDE)]
    row_bytes, stored_vector = columns * _BYTES, vectors.lanes * vectors.storage_size
    scratch, shape = f.stack("i8", rows * row_bytes, 64), f.stack("i8", 64, 64)
    for i, word in enumerate(_configuration(heights)):
        f.store(word, "i64", f.offset(shape, 8 * i), 8)

    def unit(name: str, *arguments: tuple[str, Value]) -> None:
        vectors.declarations.add(f"declare void @llvm.x86.{name}({', '.join(kind for kind, _ in arguments)})")
        f.do(f"call void @llvm.x86.{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})")

    unit("ldtilecfg", ("ptr", shape))
    places = [(h, j) for h in range(len(heights)) for j in range(columns)]
    tail = vectors.mask(f, f.sub("%width", (columns - 1) * vectors.lanes))
    masks = [*[None] * (columns - 1), tail]
    accumulate = f.compare("ne", f.value(f"and i64 %flags, {ACCUMULATE}"), 0)
    finish = f.compare("ne", f.value(f"and i64 %flags, {FINISH}"), 0)
    kinds = [vectors.type] * columns

    def bias_row() -> list[Value]:
        return [vectors.load(f, f.offset("%bias", j * stored_vector), masks[j]) for j in range(columns)]

    has_bias = f.compare("ne", "%bias", "null", "ptr")
    bias = f.choose(has_bias, kinds, bias_row, lambda: [vectors.zero] * columns)
    lower = f.mul("%a_row", _SIDE)
    b_step = f.mul("%b_row", _SIDE)
    with f.loop(0, "%count", 1, [("ptr", "%A"), ("ptr", "%C")], do_while=True, name="tile") as tiles:
        for h, j in places:
            unit("tilezero", ("i8", 2 * h + j))
        start = [("ptr", tiles.carried[0]), ("ptr", "%B")]
        with f.loop(0, "%K", 2 * _SIDE, start, name="k in steps of 32") as k:
            a, b = k.carried
            for j in range(columns):
                unit("tileloadd64", ("i8", _B + j), ("ptr", f.offset(b, j * _BYTES)), ("i64", "%b_row"))
            for h in range(len(heights)):
                unit("tileloadd64", ("i8", _A + h), ("ptr", f.offset(a, lower) if h else a), ("i64", "%a_row"))
                for j in range(columns):
                    unit("tdpbf16ps", ("i8", 2 * h + j), ("i8", _A + h), ("i8", _B + j))
            f.note(f"sums[{rows}][{columns} x 16] += A[tile rows, k..] * B[k.., panel]")
            k.next = [f.offset(a, _BYTES), f.offset(b, b_step)]
        for h, j in places:
            place = f.offset(scratch, h * _SIDE * row_bytes + j * _BYTES)
            unit("tilestored64", ("i8", 2 * h + j), ("ptr", place), ("i64", row_bytes))
        with f.loop(0, rows, 1, [("ptr", scratch), ("ptr", tiles.carried[1])], name="r in tile rows") as r:
            place, c = r.carried
            sums: list[Value] = [
                vectors.plus(f, vectors.load(f, f.offset(place, j * _BYTES), None, True), bias[j]) for j in range(columns)
            ]

            def added(sums: list[Value] = sums, c: str = str(c)) -> list[Value]:
                old = [vectors.load(f, f.offset(c, j * stored_vector), masks[j]) for j in range(columns)]
                return [vectors.plus(f, x, y) for x, y in zip(old, sums)]

            done: list[Value] = list(f.choose(accumulate, kinds, added, lambda: sums))  # noqa: B023
            if function:
                before = list(done)
                done = list(f.choose(finish, kinds, lambda: apply(f, vectors, function, before), lambda: before))  # noqa: B023
            for j in range(columns):
                vectors.store(f, done[j], f.offset(c, j * stored_vector), masks[j])
            f.note(f"C[r, panel] = {function or 'sums'}")
            r.next = [f.offset(place, row_bytes), f.offset(c, "%c_row")]
        tiles.next = [f.offset(tiles.carried[0], f.mul("%a_row", rows)), f.offset(tiles.carried[1], f.mul("%c_row", rows))]
    unit("tilerelease")
    return f


def pack_left(vectors: Vectors, transposed: bool) -> Function:
    """Rows of A one after the other, filled up with zeros to whole steps of k; arguments as of `gemm_pack.pack_left`."""
    f = Function(PACK_LEFT, PACK_LEFT_ARGUMENTS, attributes="noinline")
    deep, lanes, size = vectors.lanes * vectors.depth, vectors.lanes, vectors.storage_size
    whole = f.round_down("%K", deep)
    rest = f.sub("%K", whole)
    tail, ragged = vectors.along_mask(f, rest), f.compare("sgt", rest, 0)
    total = f.add(f.mul("%big", f.add("%base", 1)), f.mul("%small", "%base"))
    room = f.mul(f.add(vectors.steps(f, "%K"), lanes), vectors.compute_size)

    if not transposed:
        with f.loop(0, total, 1, [("ptr", "%A"), ("ptr", "%out")], name="r in rows") as row:
            source, target = row.carried

            def copy(k: Value, mask: Mask | None, source: str = str(source), target: str = str(target)) -> None:
                along = f.mul(k, size)
                vectors.store(f, vectors.load_along(f, f.offset(source, along), mask), f.offset(target, along), None, True)

            with f.loop(0, whole, deep, name="k in steps of 32") as k:
                copy(k.index, None)
            with f.if_(ragged):
                copy(whole, tail)
            row.next = [f.offset(source, "%a_row"), f.offset(target, room)]
        return f

    with f.loop(0, total, lanes, name="r in groups of rows") as group:
        left = f.sub(total, group.index)
        some = vectors.mask(f, left)
        first = f.offset("%A", f.mul(group.index, size))
        out = f.offset("%out", f.mul(group.index, room))

        def square(k: Value, count: Value | None) -> None:
            pairs = []
            for p in range(0, deep, 2):
                pointers = [f.offset(first, f.mul("%a_k", f.add(k, p + i))) for i in range(2)]  # noqa: B023
                masks: list[Mask | None] = [some, some]  # noqa: B023
                if count is not None:
                    masks = [
                        vectors.mask(f, f.select(f.compare("slt", p + i, count), "i64", left, 0))  # noqa: B023
                        for i in range(2)
                    ]
                pairs.append(vectors.load_across(f, pointers, masks))
            for r, value in enumerate(vectors.transpose(f, pairs)):
                with f.if_(f.compare("sgt", left, r)):  # noqa: B023
                    place = f.offset(out, f.add(f.mul(room, r), f.mul(k, size)))  # noqa: B023
                    vectors.store(f, value, place, None, True)

        with f.loop(0, whole, deep, name="k in steps of 32") as k:
            square(k.index, None)
        with f.if_(ragged):
            square(whole, rest)
    return f


__all__ = ["MOST_ROWS", "pack_left", "tile_function"]
