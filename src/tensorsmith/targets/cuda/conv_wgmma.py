"""Convolutions of halves on Hopper's tensor cores: tensor maps bring boxes (`conv_maps.py`), warpgroups multiply them.

A block stays on its multiprocessor and takes tile after tile. One warpgroup, the producer, keeps boxes on their way into a
ring of stages; two consumers multiply what has arrived. They share a tile, half of its rows each, or each has tiles of its
own ("alternating"): one multiplies while the other stores. Results go through shared memory, so that a row's channels are
written in pieces of 16 bytes.

Addresses that tensor maps do not take are found out in the kernel, which then computes without them.
"""

from __future__ import annotations

from dataclasses import replace

from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.conv_direct import direct_function
from tensorsmith.targets.cuda.conv_gather import gather_of
from tensorsmith.targets.cuda.conv_maps import (
    BLOCK,
    b_across,
    by_taps,
    fits_boxes,
    map_of_w,
    maps_of_x,
    maps_take_w,
    maps_take_x,
)
from tensorsmith.targets.cuda.conv_pack import packed_bytes, packed_strides, packing_launch
from tensorsmith.targets.cuda.conv_split import finishing_launch, partial_bytes
from tensorsmith.targets.cuda.conv_stores import code, partial_store_lines, store_lines, stores_vectors
from tensorsmith.targets.cuda.conv_tiles import BOXES, Structure, WgmmaTile, choice, work_of
from tensorsmith.targets.cuda.epilogue import finished_function
from tensorsmith.targets.cuda.kernel import Argument, DeviceProperties, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.sizes import sizes_struct
from tensorsmith.targets.cuda.tensor_core_functions import with_tensor_core_functions
from tensorsmith.targets.cuda.wgmma_ring import LINE, products_of_ring

LEAST_CHANNELS = 32  # of x; of fewer, lines of 64 are mostly zeros


def pays_wgmma(spec: ConvSpec, properties: DeviceProperties) -> bool:
    """Whether the tensor cores of warpgroups compute it, and boxes of 64 channels are not mostly empty."""
    if properties.architecture != "sm_90a" or not fits_boxes(spec):
        return False
    channels = spec.x[0] if by_taps(spec) else spec.w[1]
    return channels >= LEAST_CHANNELS


def wgmma_launches(
    spec: ConvSpec, properties: DeviceProperties, scratch: int, tile: WgmmaTile | None = None, splits: int = 0
) -> tuple[tuple[Launch, ...], tuple[int, ...]]:  # fmt: skip
    """The launches of a convolution that `conv_maps.fits_boxes`, and the bytes of its scratch, which begins with word
    `scratch`: copies of operands that maps do not take as they lie, and sums of parts of the depth.
    """
    copies: list[Launch] = []
    needed: list[int] = []
    words = [0, 1]
    contiguous = 0 if by_taps(spec) else 1
    for number, taken in enumerate((maps_take_x(spec), maps_take_w(spec))):
        if taken:
            continue
        shape, strides = (spec.x, spec.x_strides) if number == 0 else (spec.w, spec.w_strides)
        words[number] = scratch + len(needed)
        needed.append(packed_bytes(shape, contiguous))
        target = Word(words[number])
        copies.append(packing_launch(shape, strides, spec.starts[number], contiguous, Word(number), target))
        starts = tuple(0 if place == number else start for place, start in enumerate(spec.starts))
        lies = packed_strides(shape, contiguous)
        spec = replace(spec, x_strides=lies, starts=starts) if number == 0 else replace(spec, w_strides=lies, starts=starts)
    launches, more = _multiplied(spec, properties, (words[0], words[1]), scratch + len(needed), tile, splits)
    return (*copies, *launches), (*needed, *more)


def _multiplied(
    spec: ConvSpec, properties: DeviceProperties, operands: tuple[int, int], scratch: int, tile: WgmmaTile | None, splits: int
) -> tuple[tuple[Launch, ...], tuple[int, ...]]:  # fmt: skip
    """The launches for operands, words `operands`, that lie as maps take them."""
    chosen, parts = choice(spec, properties)
    tile, splits = tile or chosen, splits or (parts if tile in (None, chosen) else 1)
    work, taps, columns = work_of(spec, tile), by_taps(spec), spec.w[0] // spec.groups
    box, chunks, items = work.box, work.chunks, work.items
    part = -(-chunks // splits)
    splits = -(-chunks // part)
    partial = splits > 1
    gather = gather_of(spec, partial)
    maps = [*maps_of_x(spec, box, operands[0]), map_of_w(spec, box, tile.columns, operands[1])]
    structure = Structure(
        spec.dtype, spec.rank, tile, taps, b_across(spec),
        tuple(step > 1 for step in (spec.dilation if taps else spec.stride)), len(maps) - 1, gather.body, gather.others,
        partial, not taps or box.lines == BLOCK, stores_vectors(spec),
    )  # fmt: skip
    direct = as_partial(spec) if partial else spec
    direct_struct, direct_sizes, function = direct_function(direct, partial)
    struct, sizes = sizes_struct(
        {
            "items": items * splits, "across": work.across, "down": work.down, "splits": splits, "groups": spec.groups,
            "part": part, "chunks": chunks, "blocks": work.blocks, "columns": columns, "inner": spec.w[1], "batch": spec.y[0],
            "rows": spec.y[0] * spec.positions, "images": box.images, "box_bytes": box.lines * LINE, "tiles": box.tiles,
            "box": box.space, "y": spec.y[2:], "kernel": spec.w[2:],
            "backwards": [int(s < 0) for s in spec.w_strides[2:]],
            "stride": spec.stride, "low": spec.low, "dilation": spec.dilation, "y_strides": spec.y_strides,
            "starts": spec.starts, **{f"o{k}_strides": strides for k, strides in enumerate(spec.others, 1)},
        }
    )  # fmt: skip
    text = _text(structure, struct, direct_struct, function)
    others = 0 if partial else len(spec.others)
    results = [Word(scratch)] if partial else [Word(2 + k) for k in range(1 + others)]
    arguments: tuple[Argument, ...] = (
        *maps, Word(operands[0]), Word(operands[1]), *results, ErrorWord(), sizes, direct_sizes,
    )  # fmt: skip
    grid = min(items * splits, properties.multiprocessors)
    first = Launch(text, "conv_wgmma", (grid, 1, 1), (384, 1, 1), arguments, tile.shared_bytes)
    if not partial:
        return (first,), ()
    return (first, finishing_launch(spec, splits, Word(scratch))), (partial_bytes(spec, splits),)


def as_partial(spec: ConvSpec) -> ConvSpec:
    """The convolution with its results where sums of parts lie: row by row."""
    strides = [0] * (spec.rank + 2)
    along = spec.w[0] // spec.groups
    axes = [0, *reversed(range(2, spec.rank + 2))] if by_taps(spec) else [*reversed(range(2, spec.rank + 2)), 0]
    for axis in axes:
        strides[axis] = along
        along *= spec.y[axis]
    strides[1] = 1
    return replace(spec, y_strides=tuple(strides))


def _text(s: Structure, struct: str, direct_struct: str, function: str) -> str:
    tile, rank = s.tile, s.rank
    maps = ", ".join(f"const __grid_constant__ TensorMap x_map{i}" for i in range(s.maps))
    element, stored = "unsigned short", "float" if s.partial else "unsigned short"
    others = range(1, len(s.others) + 1)
    parameters = "".join(f"const {element}* o{k}, " for k in others)
    load = f"tensor_load_{rank + 2}d"
    instruction = f"wgmma_n{tile.columns}_{s.dtype.name}<{int(s.by_taps)}, {int(s.b_across)}>"
    multiply = products_of_ring(
        tile.rows, tile.tile_rows, tile.alternating, instruction, s.by_taps, s.b_across, "first_chunk", "end_chunk"
    )
    zero = """for (unsigned int at = threadIdx.x * 16; at < STAGES * STAGE_BYTES; at += 384 * 16)
        *(uint4*)(memory + at) = make_uint4(0, 0, 0, 0);
    fence_async_shared();"""
    kernel = f"""
#define TILE_ROWS {tile.tile_rows}
#define COLUMNS {tile.columns}
#define STAGES {tile.stages}
#define STAGE_BYTES {tile.stage_bytes}

struct __align__(64) TensorMap {{ unsigned long long opaque[16]; }};
{struct}
{direct_struct}

{"" if s.partial else finished_function(s.body, s.dtype, len(s.others))}

{function}

extern "C" __global__ void __launch_bounds__(384, 1) conv_wgmma(
    {maps}, const __grid_constant__ TensorMap w_map,
    const {element}* x, const {element}* w, {stored}* y, {parameters}long long* error,
    const __grid_constant__ Sizes s, const __grid_constant__ DirectSizes direct) {{
    if (((unsigned long long)x | (unsigned long long)w) & 15) {{
        any_convolution(x, w, y, {"".join(f"o{k}, " for k in others)}error, direct);
        {other_parts() if s.partial else ""}
        return;
    }}
    extern __shared__ unsigned char shared[];
    const unsigned int ring = (shared_address(shared) + 1023) & ~1023u;
    unsigned char* const memory = shared + (ring - shared_address(shared));
    const unsigned int barriers = ring + STAGES * STAGE_BYTES + {BOXES};
    {zero if not s.filled else ""}
    if (threadIdx.x == 0) {{
        for (int stage = 0; stage < STAGES; stage++) {{
            mbarrier_init(barriers + 8 * stage, 1);
            mbarrier_init(barriers + 8 * (STAGES + stage), {1 if tile.alternating else 2});
        }}
        {"for (int i = 0; i < 2; i++) mbarrier_init(barriers + 8 * (2 * STAGES + i), 1);" if tile.alternating else ""}
        mbarrier_fence();
    }}
    __syncthreads();
    const int items = (int)s.items, columns = (int)s.columns;
    if (threadIdx.x < 128) {{
        fewer_registers<40>();
        if (threadIdx.x == 0) {{
            int stage = 0, parity = 1;
            for (int item = blockIdx.x; item < items; item += gridDim.x) {{
                {_item(s)}
                {code(_producer_start(s), 16)}
                for (int chunk = first_chunk; chunk < end_chunk; chunk++) {{
                    const unsigned int a = ring + stage * STAGE_BYTES, b = a + TILE_ROWS * {LINE}, full = barriers + 8 * stage;
                    mbarrier_wait(barriers + 8 * (STAGES + stage), parity);
                    {code(_producer_chunk(s, load), 20)}
                    if (++stage == STAGES) {{
                        stage = 0;
                        parity ^= 1;
                    }}
                }}
            }}
        }}
    }} else {{
        more_registers<232>();
        const int consumer = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
        const unsigned int box = STAGES * STAGE_BYTES + (consumer * 4 + warp) * {16 * LINE};
        int stage = 0, parity = 0, turn = 0{", mine = 0" if tile.alternating else ""};
        float d[{tile.rows // 64}][COLUMNS / 2];
        for (int item = blockIdx.x; item < items; item += gridDim.x, turn ^= 1) {{
            {_item(s)}
            {multiply}
            const int first_column = column_tile * COLUMNS;
            #pragma unroll
            for (int i = 0; i < {tile.rows // 64}; i++) {{
                const int r = {"0" if tile.alternating else f"consumer * {tile.rows}"} + i * 64 + warp * 16 + lane % 16;
                {code(_place_of_row(s), 16)}
{partial_store_lines() if s.partial else store_lines(s)}
            }}
        }}
    }}
}}
"""
    return with_tensor_core_functions(kernel) + "\n" + kernel


def other_parts() -> str:
    """The sums of the first part are all; those of the others are zero."""
    return """const long long results = s.rows * s.columns, threads = gridDim.x * (long long)blockDim.x;
        const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        for (long long i = results + thread; i < results * s.splits; i += threads) y[i] = 0;"""


def _item(s: Structure) -> str:
    """What an item is: a tile of columns, of rows, a part of the depth, a group."""
    lines = [
        "int rest = item;",
        "const int column_tile = rest % (int)s.across; rest /= (int)s.across;",
        "const int row_tile = rest % (int)s.down; rest /= (int)s.down;",
        "const int split = rest % (int)s.splits, group = rest / (int)s.splits;",
        "const int first_chunk = split * (int)s.part, end_chunk = min(first_chunk + (int)s.part, (int)s.chunks);",
    ]
    return code(lines, 16)


def _tile_coordinates(s: Structure, number: str, name: str) -> list[str]:
    """Which box along each axis of space, and of images, a number is."""
    lines = [f"int {name}_rest = {number};"]
    for a in reversed(range(s.rank)):
        lines.append(f"int {name}{a} = {name}_rest % (int)s.tiles[{a}]; {name}_rest /= (int)s.tiles[{a}];")
    return [*lines, f"int {name}_image = {name}_rest;"]


def _shifted(s: Structure, a: int, value: str, name: str, step: str) -> list[str]:
    """The place in a map of a coordinate of x, and the remainder that chooses the map."""
    if not s.strided[a]:
        return [f"const int {name}{a} = {value};"]
    return [
        f"const int {name}_all{a} = {value};",
        f"const int {name}_remainder{a} = (({name}_all{a} % (int)s.{step}[{a}]) + (int)s.{step}[{a}]) % (int)s.{step}[{a}];",
        f"const int {name}{a} = ({name}_all{a} - {name}_remainder{a}) / (int)s.{step}[{a}];",
    ]


def _which_map(s: Structure, name: str, step: str) -> list[str]:
    """The map of the remainders."""
    if s.maps == 1:
        return [f"const TensorMap* const {name}_map = &x_map0;"]
    number = "0"
    for a in range(s.rank):
        if s.strided[a]:
            number = f"({number}) * (int)s.{step}[{a}] + {name}_remainder{a}"
    chosen = f"&x_map{s.maps - 1}"
    for i in reversed(range(s.maps - 1)):
        chosen = f"{name}_number == {i} ? &x_map{i} : {chosen}"
    return [f"const int {name}_number = {number};", f"const TensorMap* const {name}_map = {chosen};"]


def _producer_start(s: Structure) -> list[str]:
    """What the producer knows of an item before it walks the depth."""
    axes = range(s.rank)
    if not s.by_taps:
        lines = _tile_coordinates(s, "row_tile", "p")
        lines.append("int block = first_chunk % (int)s.blocks, tap_rest = first_chunk / (int)s.blocks;")
        for a in reversed(axes):
            lines.append(f"int k{a} = tap_rest % (int)s.kernel[{a}]; tap_rest /= (int)s.kernel[{a}];")
        return lines
    lines = _tile_coordinates(s, "first_chunk", "k")
    for i in range(s.tile.tile_rows // BLOCK):
        lines.append(f"const int r{i} = row_tile * {s.tile.tile_rows // BLOCK} + {i}, r{i}_block = r{i} % (int)s.blocks;")
        lines.append(f"int r{i}_rest = r{i} / (int)s.blocks;")
        for a in reversed(axes):
            lines.append(f"const int r{i}_p{a} = r{i}_rest % (int)s.y[{a}]; r{i}_rest /= (int)s.y[{a}];")
            lines += _shifted(s, a, f"r{i}_p{a} * (int)s.stride[{a}] - (int)s.low[{a}]", f"r{i}_c", "dilation")
        lines += _which_map(s, f"r{i}_c", "dilation")
    return lines


def _producer_chunk(s: Structure, load: str) -> list[str]:
    """The copies of a chunk, and the step to the next."""
    axes, back = range(s.rank), list(reversed(range(s.rank)))
    b_boxes = s.tile.columns // BLOCK
    if not s.by_taps:
        lines = [f"mbarrier_arrive_expect(full, (int)s.box_bytes + {s.tile.columns * LINE});"]
        for a in axes:
            lines += _shifted(s, a, f"k{a} * (int)s.dilation[{a}] - (int)s.low[{a}]", "c", "stride")
        lines += _which_map(s, "c", "stride")
        at = ", ".join(f"p{a} * (int)s.box[{a}] + c{a}" for a in back)
        lines.append(f"{load}(a, c_map, group * (int)s.inner + block * {BLOCK}, {at}, p_image * (int)s.images, full);")
        of_tap = ", ".join(f"(s.backwards[{a}] ? (int)s.kernel[{a}] - 1 - k{a} : k{a})" for a in back)
        column = "group * columns + column_tile * COLUMNS"
        if s.b_across:
            lines.append(f"for (int i = 0; i < {b_boxes}; i++)")
            lines.append(
                f"    {load}(b + i * {BLOCK * LINE}, &w_map, {column} + i * {BLOCK}, {of_tap}, block * {BLOCK}, full);"
            )
        else:
            lines.append(f"{load}(b, &w_map, block * {BLOCK}, {of_tap}, {column}, full);")
        step = "if (++block == (int)s.blocks) { block = 0; "
        for a in back[:-1]:
            step += f"if (++k{a} == (int)s.kernel[{a}]) {{ k{a} = 0; "
        return [*lines, f"{step}++k0;{' }' * s.rank}"]
    count = s.tile.tile_rows // BLOCK
    lines = [f"mbarrier_arrive_expect(full, {count + b_boxes} * (int)s.box_bytes);"]
    for i in range(count):
        at = ", ".join(f"k{a} * (int)s.box[{a}] + r{i}_c{a}" for a in back)
        lines.append(
            f"{load}(a + {i * BLOCK * LINE}, r{i}_c_map, r{i}_block * {BLOCK}, {at}, k_image * (int)s.images, full);"
        )
    at = ", ".join(f"k{a} * (int)s.box[{a}]" for a in back)
    lines.append(f"for (int i = 0; i < {b_boxes}; i++)")
    column = f"column_tile * COLUMNS + i * {BLOCK}"
    lines.append(f"    {load}(b + i * {BLOCK * LINE}, &w_map, {column}, {at}, k_image * (int)s.images, full);")
    step = ""
    for a in back:
        step += f"if (++k{a} == (int)s.tiles[{a}]) {{ k{a} = 0; "
    return [*lines, f"{step}++k_image;{' }' * s.rank}"]


def _place_of_row(s: Structure) -> list[str]:
    """Where the results of row r of a tile go: elements from y, -1 outside; and where the others of the body lie."""
    axes = range(s.rank)
    if s.by_taps:
        lines = [
            f"const int row = row_tile * TILE_ROWS + r, image = row / {BLOCK} % (int)s.blocks * {BLOCK} + row % {BLOCK};",
            f"int row_rest = row / {BLOCK} / (int)s.blocks;",
        ]
        for a in reversed(axes[1:]):
            lines.append(f"const int p{a} = row_rest % (int)s.y[{a}]; row_rest /= (int)s.y[{a}];")
        lines += ["const int p0 = row_rest;", "const bool valid = image < (int)s.batch && p0 < (int)s.y[0];"]
    else:
        lines = [*_tile_coordinates(s, "row_tile", "t"), "int row_rest = r;"]
        for a in reversed(axes):
            lines.append(f"const int p{a} = t{a} * (int)s.box[{a}] + row_rest % (int)s.box[{a}];")
            lines.append(f"row_rest /= (int)s.box[{a}];")
        lines.append("const int image = t_image * (int)s.images + row_rest;")
        inside = " && ".join(f"p{a} < (int)s.y[{a}]" for a in axes)
        lines.append(f"const bool valid = row_rest < (int)s.images && image < (int)s.batch && {inside};")
    if s.partial:
        position = "p0"
        for a in axes[1:]:
            position = f"({position}) * (int)s.y[{a}] + p{a}"
        if s.by_taps:
            linear = f"({position}) * (int)s.batch + image"
        else:
            total = " * ".join(f"(int)s.y[{a}]" for a in axes)
            linear = f"image * ({total}) + {position}"
        lines.append(f"const int place = valid ? {linear} : -1;")
        return lines
    places = {"y_strides": "place", **{f"o{k}_strides": f"place{k}" for k, kind in enumerate(s.others, 1) if not kind}}
    for strides, name in places.items():
        at = " + ".join([f"image * (int)s.{strides}[0]", *(f"p{a} * (int)s.{strides}[{a + 2}]" for a in axes)])
        lines.append(f"const int {name} = valid ? {at} : -1;")
    return lines
