"""Implicit products on tensor cores by warps (mma.sync): halves, and float32 rounded to TF32; sm_80 and later.

Stages of a ring in shared memory are filled by asynchronous copies of 16 bytes where memory is contiguous and aligned, else
element by element. A tile lies there as its operand lies in memory, along the depth or along rows (columns), and fragments
are read so, transposed where need be. Sums leave through shared memory, in the order in which results lie in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorsmith.kernels.spec_conv import ConvSpec, Extents
from tensorsmith.targets.cuda.conv_gather import Gather, GatherText, Tile, gather_of, gather_sizes
from tensorsmith.targets.cuda.conv_maps import by_taps
from tensorsmith.targets.cuda.conv_pack import packed_bytes, packed_strides, packing_launch
from tensorsmith.targets.cuda.conv_split import finishing_launch, partial_bytes
from tensorsmith.targets.cuda.epilogue import finished_function
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.tensor_core_functions import with_tensor_core_functions

STAGES = 4
DEPTH_BYTES = 64  # of a stage, two steps of the tensor cores
PIECE = 16  # bytes of a copy
PAD = 16  # bytes between lines of a tile, against conflicts of banks


@dataclass(frozen=True)
class _Structure:
    """What the text depends on; a_pieces, b_pieces: whether 16 bytes of an operand may be contiguous and aligned."""

    gather: Gather
    tile: Tile
    warps: tuple[int, int]  # along rows, along columns
    a_pieces: bool
    b_pieces: bool


def fits_mma(spec: ConvSpec, properties: DeviceProperties) -> bool:
    """Whether tensor cores may compute it, given that it `conv_gather.fits`."""
    return properties.capability >= (8, 0) and (spec.dtype.is_half or (spec.dtype.itemsize == 4 and spec.tf32))


def mma_launches(
    spec: ConvSpec, properties: DeviceProperties, scratch: int
) -> tuple[tuple[Launch, ...], tuple[int, ...]]:  # fmt: skip
    """The launches of a convolution, and the bytes of its scratch, which begins with word `scratch`: copies of operands
    whose channels do not lie side by side in eights, and sums of parts of the depth.
    """
    copies: list[Launch] = []
    needed: list[int] = []
    words = [0, 1]
    lies, shapes = _in_pieces(spec)
    for number, strides in enumerate(lies):
        if strides is None:
            continue
        contiguous = 0 if by_taps(spec) else 1
        shape, given = (spec.x, spec.x_strides) if number == 0 else (spec.w, spec.w_strides)
        words[number] = scratch + len(needed)
        needed.append(packed_bytes(shape, contiguous))
        target = Word(words[number])
        copies.append(packing_launch(shape, given, spec.starts[number], contiguous, Word(number), target))
    if copies:
        starts = tuple(0 if n < 2 and lies[n] is not None else start for n, start in enumerate(spec.starts))
        x_strides, w_strides = lies[0] or spec.x_strides, lies[1] or spec.w_strides
        spec = replace(spec, x=shapes[0], w=shapes[1], x_strides=x_strides, w_strides=w_strides, starts=starts)
    launches, more = _multiplied(spec, properties, (words[0], words[1]), scratch + len(needed))
    return (*copies, *launches), (*needed, *more)


def _in_pieces(spec: ConvSpec) -> tuple[tuple[Extents | None, Extents | None], tuple[Extents, Extents]]:
    """How copies of x and w lie in which 16 bytes are channels of a pixel, None where the operand itself does or no copy
    would; and the extents of both, with channels behind the last that are zeros.
    """
    gather = gather_of(spec, True)
    if not spec.dtype.is_half or spec.groups != 1 or 0 in (*spec.x, *spec.w):
        return (None, None), (spec.x, spec.w)
    eights = -(-spec.x[0 if by_taps(spec) else 1] // 8) * 8
    if by_taps(spec):
        x, w = (eights, *spec.x[1:]), spec.w
        copied = (not _a_pieces(spec, gather), not _b_pieces(spec, gather) and spec.w[0] % 8 == 0)
    else:
        x, w = (spec.x[0], eights, *spec.x[2:]), (spec.w[0], eights, *spec.w[2:])
        ragged = eights != spec.w[1]
        copied = (ragged or not _a_pieces(spec, gather), ragged or not _b_pieces(spec, gather))
    contiguous = 0 if by_taps(spec) else 1
    of_x = packed_strides(spec.x, contiguous) if copied[0] else None
    of_w = packed_strides(spec.w, contiguous) if copied[1] else None
    return (of_x, of_w), (x, w)


def _multiplied(
    spec: ConvSpec, properties: DeviceProperties, operands: tuple[int, int], scratch: int
) -> tuple[tuple[Launch, ...], tuple[int, ...]]:  # fmt: skip
    """The launches for operands, words `operands`, as they lie."""
    rows, columns, depth = spec.x[0] * spec.positions, spec.w[0] // spec.groups, spec.w[1] * spec.taps
    tile, warps = _tile(spec, properties)
    blocks = -(-rows // tile.rows) * -(-columns // tile.columns) * spec.groups
    splits = max(1, min(2 * properties.multiprocessors // blocks, -(-depth // (8 * tile.depth))))
    gather = gather_of(spec, splits > 1)
    structure = _Structure(gather, tile, warps, _a_pieces(spec, gather), _b_pieces(spec, gather))
    text, arguments, grid = _text(structure, spec, splits)
    others = len(spec.others)
    shared = _shared_bytes(structure)
    if splits == 1:
        words = tuple(map(Word, (*operands, *range(2, 3 + others))))
        return (Launch(text, "conv_mma", (grid, 1, 1), (256, 1, 1), (*words, ErrorWord(), arguments), shared),), ()
    partial = Word(scratch)
    given = (Word(operands[0]), Word(operands[1]), partial, ErrorWord(), arguments)
    first = Launch(text, "conv_mma", (grid, 1, 1), (256, 1, 1), given, shared)
    return (first, finishing_launch(spec, splits, partial)), (partial_bytes(spec, splits),)


def _tile(spec: ConvSpec, properties: DeviceProperties) -> tuple[Tile, tuple[int, int]]:
    """The tile and its warps: as many columns as there are channels, up to 128."""
    rows, columns, depth = spec.x[0] * spec.positions, spec.w[0] // spec.groups, DEPTH_BYTES // spec.dtype.itemsize
    if columns > 64 and -(-rows // 128) * -(-columns // 128) * spec.groups * 2 >= properties.multiprocessors:
        return Tile(128, 128, depth), (2, 4)
    if columns > 32:
        return Tile(128, 64, depth), (4, 2)
    return (Tile(128, 32, depth), (8, 1)) if columns > 16 else (Tile(256, 16, depth), (8, 1))


def _a_pieces(spec: ConvSpec, gather: Gather) -> bool:
    """Whether 16 bytes of x belong to one tap and, along rows, to one position."""
    vector = PIECE // spec.dtype.itemsize
    axis, count = (0, spec.x[0]) if gather.a_along_rows else (1, spec.w[1])
    runs = gather.batch_fastest if gather.a_along_rows else gather.channel_fastest
    return runs and count % vector == 0 and _aligned(spec.x, spec.x_strides, axis, spec.starts[0], vector)


def _b_pieces(spec: ConvSpec, gather: Gather) -> bool:
    vector = PIECE // spec.dtype.itemsize
    axis, count = (0, spec.w[0] // spec.groups) if gather.b_along_columns else (1, spec.w[1])
    runs = gather.b_along_columns or gather.channel_fastest
    return runs and count % vector == 0 and _aligned(spec.w, spec.w_strides, axis, spec.starts[1], vector)


def _aligned(shape: tuple[int, ...], strides: tuple[int, ...], axis: int, start: int, vector: int) -> bool:
    others = [s for i, (n, s) in enumerate(zip(shape, strides)) if i != axis and n > 1]
    return strides[axis] == 1 and start % vector == 0 and all(s % vector == 0 for s in others)


def _pitches(s: _Structure) -> tuple[int, int]:
    """Bytes from line to line of the tiles of A and B."""
    size = s.gather.dtype.itemsize
    a = s.tile.rows * size if s.gather.a_along_rows else DEPTH_BYTES
    b = s.tile.columns * size if s.gather.b_along_columns else DEPTH_BYTES
    return a + PAD, b + PAD


def _stage_parts(s: _Structure) -> tuple[int, int]:
    """Bytes of the tiles of A and B in a stage."""
    a, b = _pitches(s)
    lines_a = s.tile.depth if s.gather.a_along_rows else s.tile.rows
    lines_b = s.tile.depth if s.gather.b_along_columns else s.tile.columns
    return a * lines_a, b * lines_b


def _shared_bytes(s: _Structure) -> int:
    return max(STAGES * sum(_stage_parts(s)), 4 * s.tile.rows * (s.tile.columns + 1))


def _text(s: _Structure, spec: ConvSpec, splits: int) -> tuple[str, Constant, int]:
    struct, arguments, grid = gather_sizes(spec, s.tile, splits)
    gather, tile = s.gather, s.tile
    parts = GatherText(gather, tile, 2)
    a_bytes, b_bytes = _stage_parts(s)
    warp_rows, warp_columns = tile.rows // s.warps[0], tile.columns // s.warps[1]
    m_count, n_count = warp_rows // 16, warp_columns // 8
    kind = gather.dtype.name if gather.dtype.is_half else "tf32"
    line = "\n            "
    along = (tile.rows, tile.columns) if gather.y_along_rows else (tile.columns, tile.rows)
    row, column = ("i % {0}", "i / {0}") if gather.y_along_rows else ("i / {0}", "i % {0}")
    flags = []
    if s.a_pieces:
        flags.append("const bool a_aligned = ((unsigned long long)x & 15) == 0;")
    if s.b_pieces:
        flags.append("const bool b_aligned = ((unsigned long long)w & 15) == 0;")
    kernel = f"""
{struct}

{"" if gather.partial else finished_function(gather.body, gather.dtype, len(gather.others))}

{parts.signature("conv_mma")}
    extern __shared__ __align__(16) unsigned char shared[];
    {line[:5].join([*parts.tables(), *parts.place_of_block(), *flags, *parts.row_table()])}
    const unsigned int ring = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / {s.warps[1]} * {warp_rows}, warp_column = warp % {s.warps[1]} * {warp_columns};
    float sum[{m_count}][{n_count}][4];
    #pragma unroll
    for (int i = 0; i < {m_count}; i++) {{
        #pragma unroll
        for (int j = 0; j < {n_count}; j++) {{
            #pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
        }}
    }}
    const int tiles = (end_depth - first_depth + {tile.depth - 1}) / {tile.depth};
    auto table = [&](int number) {{
        const int slot = number & 1, next = first_depth + number * {tile.depth};
        {line[:-4].join(parts.depth_table("slot", "next"))}
    }};
    auto load = [&](int number) {{
        const int slot = number & 1, first = first_depth + number * {tile.depth};
        const unsigned int a_stage = number % {STAGES} * {a_bytes + b_bytes}, b_stage = a_stage + {a_bytes};
        {line[:-4].join(_loads(s, parts))}
    }};
    for (int number = 0; number < {STAGES - 1}; number++) {{
        table(number);
        __syncthreads();
        if (number < tiles) load(number);
        cp_async_commit();
    }}
    table({STAGES - 1});
    for (int number = 0; number < tiles; number++) {{
        cp_async_wait<{STAGES - 2}>();
        __syncthreads();
        if (number + {STAGES - 1} < tiles) load(number + {STAGES - 1});
        cp_async_commit();
        table(number + {STAGES});
        const unsigned int a_stage = number % {STAGES} * {a_bytes + b_bytes}, b_stage = a_stage + {a_bytes};
        #pragma unroll
        for (int step = 0; step < {DEPTH_BYTES // 32}; step++) {{
            unsigned int a[{m_count}][4], b[{n_count}][2];
            {line.join(_fragments(s, m_count, n_count))}
            #pragma unroll
            for (int i = 0; i < {m_count}; i++) {{
                #pragma unroll
                for (int j = 0; j < {n_count}; j++) mma_{kind}(sum[i][j], a[i], b[j]);
            }}
        }}
    }}
    cp_async_wait<0>();
    __syncthreads();
    float* const results = (float*)shared;
    #pragma unroll
    for (int i = 0; i < {m_count}; i++) {{
        #pragma unroll
        for (int j = 0; j < {n_count}; j++) {{
            #pragma unroll
            for (int e = 0; e < 4; e++) {{
                const int m = warp_row + i * 16 + lane / 4 + e / 2 * 8, n = warp_column + j * 8 + lane % 4 * 2 + e % 2;
                results[m * {tile.columns + 1} + n] = sum[i][j][e];
            }}
        }}
    }}
    __syncthreads();
    for (int i = threadIdx.x; i < {tile.rows * tile.columns}; i += 256) {{
        const int m = {row.format(along[0])}, n = {column.format(along[0])};
        if (first_row + m < rows && first_column + n < columns) {{
            const float total = results[m * {tile.columns + 1} + n];
            {parts.stored("m", "n", "total")}
        }}
    }}
}}
"""
    return with_tensor_core_functions(kernel) + "\n" + kernel, arguments, grid


def _loads(s: _Structure, parts: GatherText) -> list[str]:
    """Fill a stage: `load(number)` for a tile of depth."""
    gather, tile, size = s.gather, s.tile, s.gather.dtype.itemsize
    a_pitch, b_pitch = _pitches(s)
    inside_b = "first + {k} < end_depth && first_column + {n} < columns"
    a = ("m", tile.rows, gather.a_along_rows, a_pitch, s.a_pieces, "a", "x[row_x[{m}] + depth_x[slot][{k}]]")
    b = ("n", tile.columns, gather.b_along_columns, b_pitch, s.b_pieces, "b",
         "w[(first_column + {n}) * (int)s.w_strides[0] + depth_w[slot][{k}]]")  # fmt: skip
    lines = []
    for name, extent, across, pitch, pieces, operand, element in (a, b):
        vector = PIECE // size
        count = extent * tile.depth // vector
        of_line = (extent if across else tile.depth) // vector
        first, second = (name, "k") if across else ("k", name)

        def inside(m: str, k: str, operand: str = operand) -> str:
            return parts.inside(m, "slot", k) if operand == "a" else inside_b.format(n=m, k=k)

        def at(m: str, k: str, element: str = element, name: str = name) -> str:
            return element.format(**{name: m, "k": k})

        pointer = at(name, "k").replace("x[", "&x[", 1) if operand == "a" else "&" + at(name, "k")
        lines += [
            "#pragma unroll",
            f"for (int i = threadIdx.x; i < {count}; i += 256) {{",
            f"    const int {first} = i % {of_line} * {vector}, {second} = i / {of_line};",
            f"    const unsigned int to = {operand}_stage + {second} * {pitch} + {first} * {size};",
        ]
        if pieces:
            lines += [
                f"    if ({operand}_aligned) {{",
                f"        const bool inside = {inside(name, 'k')};",
                f"        const void* const from = inside ? {pointer} : {'x' if operand == 'a' else 'w'};",
                "        cp_async_16(ring + to, from, inside ? 16 : 0);",
                "        continue;",
                "    }",
            ]
        moved = {"m": f"{name} + e" if across else name, "k": "k" if across else "k + e"}
        word = f"__float_as_uint({at(moved['m'], moved['k'])})" if size == 4 else at(moved["m"], moved["k"])
        lines += [
            "    unsigned int words[4] = {0, 0, 0, 0};",
            "    #pragma unroll",
            f"    for (int e = 0; e < {vector}; e++) {{",
            f"        if ({inside(moved['m'], moved['k'])})",
            f"            words[e * {size} / 4] |= (unsigned int){word} << (e * {size} % 4 * 8);",
            "    }",
            "    *(uint4*)(shared + to) = make_uint4(words[0], words[1], words[2], words[3]);",
            "}",
        ]
    return lines


def _fragments(s: _Structure, m_count: int, n_count: int) -> list[str]:
    """Read the fragments of a step out of a stage."""
    gather, size = s.gather, s.gather.dtype.itemsize
    a_pitch, b_pitch = _pitches(s)
    lines = ["#pragma unroll", f"for (int i = 0; i < {m_count}; i++) {{"]
    top = "warp_row + i * 16"
    if not gather.a_along_rows:
        lines.append(f"    ldmatrix_x4(a[i], ring + a_stage + ({top} + lane % 16) * {a_pitch} + step * 32 + lane / 16 * 16);")
    elif size == 2:
        deep = "step * 16 + lane % 8 + lane / 16 * 8"
        lines.append(
            f"    ldmatrix_x4_transposed(a[i], ring + a_stage + ({deep}) * {a_pitch} + ({top} + lane / 8 % 2 * 8) * 2);"
        )
    else:
        lines += ["    #pragma unroll", "    for (int e = 0; e < 4; e++) {"]
        lines.append(f"        const int row = {top} + lane / 4 + e % 2 * 8, deep = step * 8 + lane % 4 + e / 2 * 4;")
        lines.append(f"        a[i][e] = *(const unsigned int*)(shared + a_stage + deep * {a_pitch} + row * 4);")
        lines.append("    }")
    if size == 4:
        lines.append("    #pragma unroll")
        lines.append("    for (int e = 0; e < 4; e++) a[i][e] = round_to_tf32(__uint_as_float(a[i][e]));")
    lines += ["}", "#pragma unroll", f"for (int j = 0; j < {n_count}; j += 2) {{", "    unsigned int pair[4];"]
    left = "warp_column + j * 8"
    if not gather.b_along_columns:
        place = f"({left} + lane % 8 + lane / 16 * 8) * {b_pitch} + step * 32 + lane / 8 % 2 * 16"
        lines.append(f"    ldmatrix_x4(pair, ring + b_stage + {place});")
    elif size == 2:
        deep = "step * 16 + lane % 8 + lane / 8 % 2 * 8"
        lines.append(
            f"    ldmatrix_x4_transposed(pair, ring + b_stage + ({deep}) * {b_pitch} + ({left} + lane / 16 * 8) * 2);"
        )
    else:
        lines += ["    #pragma unroll", "    for (int e = 0; e < 4; e++) {"]
        lines.append(f"        const int column = {left} + lane / 4 + e / 2 * 8, deep = step * 8 + lane % 4 + e % 2 * 4;")
        lines.append(f"        pair[e] = *(const unsigned int*)(shared + b_stage + deep * {b_pitch} + column * 4);")
        lines.append("    }")
    lines += ["    #pragma unroll", "    for (int e = 0; e < 4; e++)"]
    value = "round_to_tf32(__uint_as_float(pair[e]))" if size == 4 else "pair[e]"
    lines += [f"        b[j + e / 2][e % 2] = {value};", "}"]
    return lines
