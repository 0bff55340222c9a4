"""The blocked loops of the matrix multiplication around its register tile, as one entry point of the kernel ABI.

    chunks that pack:  their panels of B, for every k block, then one more in the count of packed shares
    the other chunks:  wait for that count, then
    for unit in this chunk:                              (batch, row part, column part)
        for k in K step k_block:                         sums continue in C from block to block
            for j in columns step column_block:          B's panels packed, read in place, or packed before (by chunks, or kept)
                for rows in row blocks:                  A's block packed, where that pays
                    for panel in columns of the block:
                        tiles of base + 1 rows, then tiles of base rows

A chunk waits only for chunks with lower numbers, which are handed out before it, so that some chunk can always go on.
Everything that depends on sizes is a constant word computed by the planner, including the addresses of the tile and
packing functions, so this text is compiled once per element size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tensorsmith.kernels.epilogue import EXTRAS
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_tile import ACCUMULATE, AHEAD, FINISH, PANEL_VECTORS
from tensorsmith.targets.cpu.gemm_vectors import Vectors

# Words that chunks write, for every launch has a copy of its words of its own: a count of packed shares, and a bit for every
# workspace of a chunk in use. (Taken by number of chunk, one thread would go through them all, and through its cache.)
PACKED, BUSY = "packed", "busy"
MOST_WORKSPACES = 64

# Constant words, in order. Strides in bytes. Units are (batch, row part, column part), columns fastest.
WORDS = (
    "K", "N", "tiles", "base", "extra",  # `tiles` row tiles: `extra` of base + 1 rows, then tiles of base rows
    "units", "units_per_chunk", "row_parts", "column_parts", "panels",
    "k_block", "row_block_tiles", "column_block",
    "a_batch", "a_row", "a_k", "b_batch", "b_k", "b_column", "c_batch", "c_row",
    "pack", "pack_all", "pack_stride", "panel_bytes", "panel_offset",  # packing function, its stride; slots of panels
    "pack_chunks", "block_bytes", "column_bytes", "shared_bytes", "wait",  # for panels packed once, for all chunks
    "packed_before",  # whether B is what `plan_packing` wrote
    "pack_left",  # packing function of A or 0
    "workspace_stride", "accumulate",
    "big_wide", "small_wide", "big_narrow", "small_narrow",  # tile functions: rows base + 1 or base, two vectors or one
    PACKED, BUSY,
)  # fmt: skip

_LAUNCH = ("A", "B", "C", "bias", "workspace", "extras")


def entry_name(bias: bool, workspace: bool, extras: bool = False) -> str:
    """Symbol of the entry whose launch words are A, B, C and those named; extras are the last ones."""
    return "matmul" + ("_bias" if bias else "") + ("_workspace" if workspace else "") + ("_extras" if extras else "")


def entry_function(name: str, target: str, launch: Sequence[str], given: Collection[str]) -> Function:
    """An entry of the kernel ABI that unpacks its launch words and calls `target`.

    launch: the addresses that the target takes, in order; given: those that the launch words hold, the others are null;
    "extras" stands for a table of addresses (`gemm_epilogue.EXTRAS`), the last of the launch words
    """
    f = Function(name, [("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker")])
    words = [each for each in launch if each in given and each != "extras"]
    loaded = {each: f.load("ptr", f.offset("%args", 8 * i), 8) for i, each in enumerate(words)}
    extras = len(EXTRAS) if "extras" in given else 0
    if extras:
        loaded["extras"] = f.offset("%args", 8 * len(words))
    pointers = ", ".join(f"ptr {loaded.get(each, 'null')}" for each in launch)
    constants = f.offset("%args", 8 * (len(words) + extras + 1))
    chunk = f.value("zext i32 %chunk to i64")
    f.do(f"call void @{target}({pointers}, ptr {constants}, i64 {chunk})")
    return f


def entry_functions(target: str, workspace: bool) -> list[Function]:
    """The entries of `target` with and without a bias, or with extras, each without and with a workspace if it may need one."""
    return [
        entry_function(
            entry_name(bias, space, extras), target, _LAUNCH,
            [*"ABC", *["bias"] * bias, *["workspace"] * space, *["extras"] * extras],
        )
        for bias, extras in ((False, False), (True, False), (False, True))
        for space in ((False, True) if workspace else (False,))
    ]  # fmt: skip


DRIVER_ARGUMENTS = (*(("ptr", name) for name in _LAUNCH), ("ptr", "words"), ("i64", "chunk"))


def read_words(f: Function, names: Sequence[str]) -> dict[str, str]:
    """Load constant words by name from `%words`."""
    return {name: f.load("i64", f.offset("%words", 8 * i), 8) for i, name in enumerate(names)}


def _take_lowest(f: Function, busy: str) -> list[Value]:
    """Set the lowest clear bit of a word that other threads change too: its number and the bit."""
    again, done = f.new_label("take"), f.new_label("taken")
    f.jump(again)
    f.place(again)
    taken = f.value(f"load atomic i64, ptr {busy} monotonic, align 8")
    free = f.value(f"xor i64 {taken}, -1")
    bit = f.value(f"and i64 {free}, {f.value(f'sub i64 0, {free}')}")
    pair = f.value(f"cmpxchg ptr {busy}, i64 {taken}, i64 {f.value(f'or i64 {taken}, {bit}')} acquire monotonic, align 8")
    f.do(f"br i1 {f.value(f'extractvalue {{ i64, i1 }} {pair}, 1')}, label %{done}, label %{again}")
    f.place(done)
    return [f.call("i64", "llvm.cttz.i64", ("i64", bit), ("i1", "true")), bit]


def blocks_function(vectors: Vectors) -> Function:
    """The blocked loops for one element type, called `blocks`."""
    f = Function("blocks", DRIVER_ARGUMENTS, attributes="noinline")
    w = read_words(f, WORDS[: WORDS.index(PACKED)])
    counter, busy = (f.offset("%words", 8 * WORDS.index(name)) for name in (PACKED, BUSY))
    panel = PANEL_VECTORS * vectors.lanes
    stored, computed = vectors.storage_size, vectors.compute_size
    shares = f.compare("slt", "%chunk", w["pack_chunks"])
    packed_before = f.compare("ne", w["packed_before"], 0)
    waits = f.compare("ne", w["pack_chunks"], 0)
    shared = f.value(f"or i1 {waits}, {packed_before}")
    chunk = f.sub("%chunk", w["pack_chunks"])
    needs = f.value(f"and i1 {f.compare('sge', chunk, 0)}, {f.compare('ne', w['workspace_stride'], 0)}")
    number, bit = f.choose(needs, ["i64", "i64"], lambda: _take_lowest(f, busy), lambda: [0, 0])
    workspace = f.offset("%workspace", f.add(w["shared_bytes"], f.mul(number, w["workspace_stride"])))
    slots = f.select(shared, "ptr", "%workspace", f.offset(workspace, w["panel_offset"]))
    slots = f.select(packed_before, "ptr", "%B", slots)
    packs = f.compare("ne", w["pack_all"], 0)
    packs_left = f.compare("ne", w["pack_left"], 0)
    has_bias = f.compare("ne", "%bias", "null", "ptr")
    accumulate = f.compare("ne", w["accumulate"], 0)
    left_function = f.value(f"inttoptr i64 {w['pack_left']} to ptr")

    def row_of(tile: Value) -> Value:
        return f.add(f.mul(tile, w["base"]), f.minimum(tile, w["extra"]))

    def slots_of(k: Value, column: Value) -> str:
        """Where the panels from a column on lie, for the block from k on."""
        block = f.mul(f.udiv(k, w["k_block"]), w["block_bytes"])
        return f.offset(slots, f.add(block, f.mul(f.udiv(column, panel), w["column_bytes"])))

    def pack(source: str, target: str, depth: Value, columns: Value) -> None:
        address = f.value(f"inttoptr i64 {w['pack']} to ptr")
        f.do(
            f"call void {address}(ptr {source}, ptr {target}, i64 {depth}, i64 {w['pack_stride']}, i64 {columns}, "
            f"i64 {w['panel_bytes']})"
        )

    with f.nested("chunks that pack:"), f.if_(shares):
        low = f.mul(f.udiv(f.mul("%chunk", w["panels"]), w["pack_chunks"]), panel)
        high = f.mul(f.udiv(f.mul(f.add("%chunk", 1), w["panels"]), w["pack_chunks"]), panel)
        columns = f.sub(f.minimum(high, w["N"]), low)
        with f.loop(0, w["K"], w["k_block"], name="k in range(0, K, k_block)") as k:
            source = f.offset("%B", f.add(f.mul(k.index, w["b_k"]), f.mul(low, w["b_column"])))
            pack(source, slots_of(k.index, low), f.minimum(w["k_block"], f.sub(w["K"], k.index)), columns)
            f.note("pack a share of B's panels")
        f.do(f"atomicrmw add ptr {counter}, i64 1 release, align 8")
    with f.if_(f.value(f"and i1 {waits}, {f.value(f'xor i1 {shares}, true')}")):
        wait = f.value(f"inttoptr i64 {w['wait']} to ptr")
        f.do(f"call void {wait}(ptr {counter}, i64 {w['pack_chunks']})")

    unit0 = f.mul(chunk, w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    unit0 = f.select(shares, "i64", unit1, unit0)
    with f.loop(unit0, unit1, 1, name="unit in units of this chunk (batch, row part, column part)") as unit:
        row_unit = f.udiv(unit.index, w["column_parts"])
        column_part = f.sub(unit.index, f.mul(row_unit, w["column_parts"]))
        batch = f.udiv(row_unit, w["row_parts"])
        row_part = f.sub(row_unit, f.mul(batch, w["row_parts"]))
        a0 = f.offset("%A", f.mul(batch, w["a_batch"]))
        b0 = f.offset("%B", f.mul(batch, w["b_batch"]))
        c0 = f.offset("%C", f.mul(batch, w["c_batch"]))
        tile0 = f.udiv(f.mul(row_part, w["tiles"]), w["row_parts"])
        tile1 = f.udiv(f.mul(f.add(row_part, 1), w["tiles"]), w["row_parts"])
        several = f.compare("sgt", f.sub(tile1, tile0), w["row_block_tiles"])
        panel0 = f.udiv(f.mul(column_part, w["panels"]), w["column_parts"])
        panel1 = f.udiv(f.mul(f.add(column_part, 1), w["panels"]), w["column_parts"])
        column0, column1 = f.mul(panel0, panel), f.minimum(f.mul(panel1, panel), w["N"])
        with f.loop(0, w["K"], w["k_block"], do_while=True, name="k in range(0, K, k_block)") as k:
            depth = f.minimum(w["k_block"], f.sub(w["K"], k.index))
            first = f.compare("eq", k.index, 0)
            last = f.compare("sge", f.add(k.index, depth), w["K"])
            adds = f.value(f"or i1 {accumulate}, {f.value(f'xor i1 {first}, true')}")
            flags = f.add(f.select(adds, "i64", ACCUMULATE, 0), f.select(last, "i64", FINISH, 0))
            flags = f.add(flags, f.select(packs, "i64", AHEAD, 0))
            with_bias = f.value(f"and i1 {first}, {has_bias}")
            with f.loop(column0, column1, w["column_block"], name="j in columns of the part, step column_block") as j:
                columns = f.minimum(w["column_block"], f.sub(column1, j.index))
                source = f.offset(b0, f.add(f.mul(k.index, w["b_k"]), f.mul(j.index, w["b_column"])))
                slot0 = slots_of(k.index, j.index)
                with f.if_(f.value(f"and i1 {packs}, {f.value(f'xor i1 {shared}, true')}")):
                    pack(source, slot0, depth, columns)
                    f.note("pack B's panels (where they are not read in place, nor packed before)")
                if not vectors.cheap_masks:
                    # Only whole vectors are read in place here; a ragged last panel is packed in any case.
                    width = f.urem(columns, panel)
                    ragged = f.compare("ne", f.urem(columns, vectors.lanes), 0)
                    with f.if_(f.value(f"and i1 {ragged}, {f.value(f'xor i1 {packs}, true')}")):
                        pack(f.offset(source, f.mul(f.sub(columns, width), w["b_column"])), slot0, depth, width)
                new = f.value(f"or i1 {several}, {f.compare('eq', j.index, column0)}")
                with f.loop(
                    tile0, tile1, w["row_block_tiles"], name="i in row tiles of the part, step row_block_tiles"
                ) as t:
                    end = f.minimum(f.add(t.index, w["row_block_tiles"]), tile1)
                    row0 = row_of(t.index)
                    a_block = f.offset(a0, f.add(f.mul(row0, w["a_row"]), f.mul(k.index, w["a_k"])))
                    big = f.sub(f.minimum(w["extra"], end), f.minimum(w["extra"], t.index))
                    small = f.sub(f.sub(end, t.index), big)
                    big_rows = f.mul(big, f.add(w["base"], 1))
                    with f.if_(f.value(f"and i1 {packs_left}, {new}")):
                        f.do(
                            f"call void {left_function}(ptr {a_block}, ptr {workspace}, i64 {big}, i64 {small}, "
                            f"i64 {w['base']}, i64 {depth}, i64 {w['a_row']}, i64 {w['a_k']})"
                        )
                        f.note("pack A's block (where it is not read in place)")
                    a = f.select(packs_left, "ptr", workspace, a_block)
                    room = f.mul(f.add(vectors.steps(f, depth), vectors.lanes), computed)
                    a_row = f.select(packs_left, "i64", room, w["a_row"])
                    a_small = f.offset(a, f.mul(big_rows, a_row))
                    c_rows = f.offset(c0, f.mul(row0, w["c_row"]))
                    with f.loop(0, columns, panel, name="p in panels of the column block") as p:
                        width = f.minimum(panel, f.sub(columns, p.index))
                        column = f.add(j.index, p.index)
                        slot = f.offset(slot0, f.mul(f.udiv(p.index, panel), w["panel_bytes"]))
                        packed = packs
                        if not vectors.cheap_masks:
                            ragged = f.compare("ne", f.urem(width, vectors.lanes), 0)
                            packed = f.value(f"or i1 {packs}, {ragged}")
                        b = f.select(packed, "ptr", slot, f.offset(source, f.mul(p.index, w["b_column"])))
                        b_row = f.select(packed, "i64", panel * computed, w["b_k"])
                        along = f.mul(column, stored)
                        c = f.offset(c_rows, along)
                        bias = f.select(with_bias, "ptr", f.offset("%bias", along), "null")
                        wide = f.compare("sgt", width, vectors.lanes)

                        def call(
                            count: Value, function: str, a: str, c: str, *rest: Value,
                            b: str = b, width: Value = width, along: Value = along,
                        ) -> None:  # fmt: skip
                            a_row, b_row, depth, bias, flags = rest
                            address = f.value(f"inttoptr i64 {function} to ptr")
                            with f.if_(f.compare("sgt", count, 0)):
                                f.do(
                                    f"call void {address}(ptr {a}, ptr {b}, ptr {c}, i64 {depth}, i64 {count}, "
                                    f"i64 {a_row}, i64 {w['a_k']}, i64 {b_row}, i64 {w['c_row']}, i64 {width}, "
                                    f"ptr {bias}, i64 {flags}, ptr %extras, i64 {along})"
                                )

                        rest = (a_row, b_row, depth, bias, flags)
                        call(big, f.select(wide, "i64", w["big_wide"], w["big_narrow"]), a, c, *rest)
                        c_small = f.offset(c, f.mul(big_rows, w["c_row"]))
                        call(small, f.select(wide, "i64", w["small_wide"], w["small_narrow"]), a_small, c_small, *rest)
                        f.note("tiles of base + 1 rows; tiles of base rows")
    with f.if_(needs):
        f.do(f"atomicrmw xor ptr {busy}, i64 {bit} release, align 8")
    return f
