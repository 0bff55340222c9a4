"""Implicit products: a convolution as a matrix product whose operands are gathered where they lie.

    rows     (n, p): images and positions of results      columns   output channels of a group
    depth    (c, k): channels of a group and taps         A[row, depth] = x'[n, c, p stride + k dilation - low]

An element's offset in x, and its coordinates in space, are sums of one part of its row and one of its depth. A block keeps
both in tables in shared memory: `row_x`, `row_c0`, ... of its rows; `depth_x`, `depth_w`, `depth_c0`, ... of a tile of depth,
made one tile ahead. A coordinate outside of x reads zero. The order of rows and depth follows memory: what is contiguous
there runs fastest, so that threads side by side read side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.core.dtypes import DType, compute_dtype
from tensorsmith.kernels.epilogue import Body
from tensorsmith.kernels.spec_conv import ConvSpec, Extents
from tensorsmith.targets.cuda.kernel import Constant
from tensorsmith.targets.cuda.scalars import c_type, memory_type
from tensorsmith.targets.cuda.sizes import sizes_struct

LIMIT = 1 << 30  # offsets and counts that kernels hold in 32 bits
OUTSIDE = 1 << 29  # a coordinate that no part of another brings inside


@dataclass(frozen=True)
class Tile:
    """How much a block computes: rows x columns of results, `depth` at a time; threads a block."""

    rows: int
    columns: int
    depth: int
    threads: int = 256


@dataclass(frozen=True)
class Gather:
    """The structure of an implicit product, all that its text depends on.

    batch_fastest: images run faster than positions along rows (weights' gradients of images with channels last)
    channel_fastest: channels run faster than taps along the depth
    a_along_rows, b_along_columns: whether memory runs along rows (columns) of A (B), else along the depth
    y_along_rows: whether results lie side by side along rows, else along columns
    checked: whether coordinates can lie outside of x
    others: of every other of the body: "y" where it lies as the results, "column", "one", or "" for any way
    partial: whether sums of a part of the depth are stored, in float, for another kernel to finish
    """

    dtype: DType
    rank: int
    batch_fastest: bool
    channel_fastest: bool
    a_along_rows: bool
    b_along_columns: bool
    y_along_rows: bool
    checked: bool
    body: Body | None
    others: tuple[str, ...]
    partial: bool


def gather_of(spec: ConvSpec, partial: bool) -> Gather:
    """The structure of a spec without zeros between elements."""
    x, w, y = spec.x_strides, spec.w_strides, spec.y_strides
    batch_fastest = x[0] == 1 and spec.x[0] > 1 and not (x[1] == 1 and spec.w[1] > 1)
    channel_fastest = x[1] == 1 and spec.w[1] > 1
    taps_contiguous = x[-1] * spec.dilation[-1] == 1 and spec.w[-1] >= 16
    return Gather(
        spec.dtype, spec.rank, batch_fastest, channel_fastest, not (channel_fastest or taps_contiguous) or batch_fastest,
        abs(w[0]) == 1 and spec.w[0] > spec.groups, not partial and (y[1] != 1 or spec.y[1] == spec.groups),
        any(map(_checked, spec.x[2:], spec.w[2:], spec.y[2:], spec.stride, spec.low, spec.dilation)),
        None if partial else spec.body,
        () if partial else tuple(_kind(spec, other) for other in spec.others), partial,
    )  # fmt: skip


def _checked(space: int, kernel: int, positions: int, stride: int, low: int, dilation: int) -> bool:
    return low > 0 or (positions - 1) * stride + (kernel - 1) * dilation - low >= space


def _kind(spec: ConvSpec, other: Extents) -> str:
    if other == spec.y_strides:
        return "y"
    moving = [axis for axis, (n, s) in enumerate(zip(spec.y, other)) if n > 1 and s]
    return "one" if not moving else "column" if moving == [1] else ""


def fits(spec: ConvSpec) -> bool:
    """Whether all counts and offsets fit in 32 bits, and x has no zeros between its elements."""
    places = ((spec.x, spec.x_strides), (spec.w, spec.w_strides), (spec.y, spec.y_strides), *((spec.y, o) for o in spec.others))
    around = sum((k - 1) * d * abs(s) for k, d, s in zip(spec.w[2:], spec.dilation, spec.x_strides[2:]))
    around += sum(abs(low) * abs(s) for low, s in zip(spec.low, spec.x_strides[2:]))
    around += sum(p * d * abs(s) for p, d, s in zip(spec.y[2:], spec.stride, spec.x_strides[2:]))
    largest = max(sum((n - 1) * abs(s) for n, s in zip(shape, strides)) for shape, strides in places)
    counts = (spec.x[0] * spec.positions, spec.w[1] * spec.taps, spec.w[0], around + largest)
    return set(spec.step) == {1} and max(counts) < LIMIT


def gather_sizes(spec: ConvSpec, tile: Tile, splits: int, parts: int = 1) -> tuple[str, Constant, int]:
    """The struct of an implicit product, its words, and how many blocks there are; `parts` of sums are added up."""
    rows, columns, depth = spec.x[0] * spec.positions, spec.w[0] // spec.groups, spec.w[1] * spec.taps
    down, across = -(-rows // tile.rows), -(-columns // tile.columns)
    part = -(-depth // (splits * tile.depth)) * tile.depth
    struct, constant = sizes_struct(
        {
            "rows": rows, "columns": columns, "depth": depth, "down": down, "across": across, "splits": splits,
            "part": part, "parts": parts, "groups": spec.groups, "batch": spec.x[0], "kept": spec.y[0],
            "inner": max(spec.w[1], 1), "taps": max(spec.taps, 1), "positions": spec.positions, "starts": spec.starts,
            "y": spec.y[2:], "kernel": [max(n, 1) for n in spec.w[2:]], "space": spec.x[2:], "stride": spec.stride,
            "low": spec.low, "dilation": spec.dilation, "x_strides": spec.x_strides, "w_strides": spec.w_strides,
            "y_strides": spec.y_strides,
            **{f"o{k}_strides": strides for k, strides in enumerate(spec.others, 1)},
        }
    )  # fmt: skip
    return struct, constant, down * across * splits * spec.groups


class GatherText:
    """The parts of a kernel's text that any implicit product has; `slots` tiles of depth have tables at once."""

    def __init__(self, gather: Gather, tile: Tile, slots: int) -> None:
        self.gather, self.tile, self.slots = gather, tile, slots
        self.axes = range(gather.rank)
        self.checks = list(self.axes) if gather.checked else []
        self.apart = [k for k, kind in enumerate(gather.others, 1) if not kind]

    def signature(self, name: str, read: str = "") -> str:
        """The entry's head; `read` stands in the place of x and w."""
        element, gather = memory_type(self.gather.dtype), self.gather
        stored = c_type(compute_dtype(gather.dtype)) if gather.partial else element
        parameters = [read or f"const {element}* __restrict__ x, const {element}* __restrict__ w", f"{stored}* __restrict__ y"]
        parameters += [f"const {element}* __restrict__ o{k}" for k in range(1, len(gather.others) + 1)]
        parameters += ["long long* error", "const Sizes s"]
        bounds = f"__launch_bounds__({self.tile.threads})"
        return f'extern "C" __global__ void {bounds} {name}(\n    {", ".join(parameters)}) {{'

    def tables(self, of_depth: bool = True) -> list[str]:
        """Declarations of the tables."""
        of_rows = ["row_x", "row_y", *(f"row_c{a}" for a in self.checks), *(f"row_o{k}" for k in self.apart)]
        lines = [f"__shared__ int {', '.join(f'{name}[{self.tile.rows}]' for name in of_rows)};"]
        if of_depth:
            names = ["depth_x", "depth_w", *(f"depth_c{a}" for a in self.checks)]
            lines.append(f"__shared__ int {', '.join(f'{name}[{self.slots}][{self.tile.depth}]' for name in names)};")
        return lines

    def place_of_block(self, reads: bool = True) -> list[str]:
        """Which tile, part of the depth and group a block has; pointers moved to its group."""
        lines = [
            "unsigned int place = blockIdx.x;",
            f"const int first_column = place % (unsigned int)s.across * {self.tile.columns}; place /= (unsigned int)s.across;",
            f"const int first_row = place % (unsigned int)s.down * {self.tile.rows}; place /= (unsigned int)s.down;",
            "const int split = place % (unsigned int)s.splits; const long long group = place / (unsigned int)s.splits;",
            "const int rows = (int)s.rows, columns = (int)s.columns;",
        ]
        if reads:
            lines.append("const int first_depth = split * (int)s.part;")
            lines.append("const int end_depth = min((int)s.depth, first_depth + (int)s.part);")
            lines.append("x += s.starts[0] + group * s.inner * s.x_strides[1];")
            lines.append("w += s.starts[1] + group * s.columns * s.w_strides[0];")
        if not self.gather.partial:
            lines.append("y += s.starts[2] + group * s.columns * s.y_strides[1];")
        for k in range(1, len(self.gather.others) + 1):
            lines.append(f"o{k} += s.starts[{k + 2}] + group * s.columns * s.o{k}_strides[1];")
        return lines

    def row_table(self) -> list[str]:
        """Fill the tables of rows."""
        one, many = ("batch", "positions") if self.gather.batch_fastest else ("positions", "batch")
        names = {"batch": "image", "positions": "position"}
        lines = [
            f"for (int i = threadIdx.x; i < {self.tile.rows}; i += {self.tile.threads}) {{",
            "    const int row = first_row + i;",
            f"    const int {names[one]} = row % (int)s.{one}, {names[many]} = row / (int)s.{one};",
            *(f"    {line}" for line in self._decoded("position", "p", "y")),
            "    int at = image * (int)s.x_strides[0], to = image * (int)s.y_strides[0];",
        ]
        for a in self.axes:
            lines.append(f"    const int c{a} = p{a} * (int)s.stride[{a}] - (int)s.low[{a}];")
            lines.append(f"    at += c{a} * (int)s.x_strides[{a + 2}]; to += p{a} * (int)s.y_strides[{a + 2}];")
        lines.append("    row_x[i] = at; row_y[i] = image < (int)s.kept ? to : -1;")
        for number, a in enumerate(self.checks):
            lines.append(f"    row_c{a}[i] = {f'row < rows ? c{a} : {OUTSIDE}' if number == 0 else f'c{a}'};")
        for k in self.apart:
            places = [f"p{a} * (int)s.o{k}_strides[{a + 2}]" for a in self.axes]
            lines.append(f"    row_o{k}[i] = {' + '.join([f'image * (int)s.o{k}_strides[0]', *places])};")
        return [*lines, "}"]

    def depth_table(self, slot: str, first: str) -> list[str]:
        """Fill a table of depth, from `first` on."""
        one, many = ("inner", "taps") if self.gather.channel_fastest else ("taps", "inner")
        names = {"inner": "channel", "taps": "tap"}
        lines = [
            f"for (int i = threadIdx.x; i < {self.tile.depth}; i += {self.tile.threads}) {{",
            f"    const int depth = {first} + i, {names[one]} = depth % (int)s.{one}, {names[many]} = depth / (int)s.{one};",
            *(f"    {line}" for line in self._decoded("tap", "k", "kernel")),
            "    int at = channel * (int)s.x_strides[1], of_w = channel * (int)s.w_strides[1];",
        ]
        for a in self.axes:
            lines.append(f"    const int c{a} = k{a} * (int)s.dilation[{a}];")
            lines.append(f"    at += c{a} * (int)s.x_strides[{a + 2}]; of_w += k{a} * (int)s.w_strides[{a + 2}];")
        lines.append(f"    depth_x[{slot}][i] = at; depth_w[{slot}][i] = of_w;")
        lines += [f"    depth_c{a}[{slot}][i] = c{a};" for a in self.checks]
        return [*lines, "}"]

    def _decoded(self, number: str, name: str, extents: str) -> list[str]:
        """Lines that take a number apart into coordinates, the last axis fastest."""
        if self.gather.rank == 1:
            return [f"const int {name}0 = {number};"]
        lines = [f"int {name}_rest = {number};"]
        for a in reversed(self.axes[1:]):
            lines.append(f"const int {name}{a} = {name}_rest % (int)s.{extents}[{a}]; {name}_rest /= (int)s.{extents}[{a}];")
        return [*lines, f"const int {name}0 = {name}_rest;"]

    def inside(self, row: str, slot: str, depth: str) -> str:
        """The condition that element (row, depth) of a tile lies in x and in the block's part of the depth."""
        terms = [f"first + {depth} < end_depth"]
        if not self.checks:
            terms.append(f"first_row + {row} < rows")
        for a in self.checks:
            terms.append(f"(unsigned int)(row_c{a}[{row}] + depth_c{a}[{slot}][{depth}]) < (unsigned int)s.space[{a}]")
        return " && ".join(terms)

    def stored(self, row: str, column: str, value: str) -> str:
        """The statement that stores a result; row and column are those in the tile."""
        if self.gather.partial:
            at = f"((split * s.groups + group) * rows + first_row + {row}) * columns + first_column + {column}"
            return f"y[{at}] = {value};"
        places = {"y": f"row_y[{row}] + (first_column + {column}) * (int)s.y_strides[1]", "one": "0"}
        given = []
        for k, kind in enumerate(self.gather.others, 1):
            own = f"(first_column + {column}) * (int)s.o{k}_strides[1]"
            places |= {"column": own, "": f"row_o{k}[{row}] + {own}"}
            given.append(f"o{k}[{places[kind]}]")
        return f"if (row_y[{row}] >= 0) y[{places['y']}] = finished({', '.join([value, *given, 'error'])});"
