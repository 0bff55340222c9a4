"""How the results of a tile leave Hopper's tensor cores: finished in registers, turned in shared memory, 16 bytes a store."""

from __future__ import annotations

from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.conv_maps import VECTOR
from tensorsmith.targets.cuda.conv_tiles import Structure
from tensorsmith.targets.cuda.wgmma_ring import LINE


def code(lines: list[str], indent: int) -> str:
    """Lines of a text at an indentation."""
    return ("\n" + " " * indent).join(lines)


def stores_vectors(spec: ConvSpec) -> bool:
    others = [s for axis, (n, s) in enumerate(zip(spec.y, spec.y_strides)) if axis != 1 and n > 1]
    groups = spec.groups == 1 or spec.w[0] // spec.groups % VECTOR == 0
    return spec.y_strides[1] == 1 and spec.starts[2] % VECTOR == 0 and groups and all(s % VECTOR == 0 for s in others)


def partial_store_lines() -> str:
    """Sums of a part of the depth, as they are."""
    return """\
                float* const sums = y + (long long)split * s.rows * columns;
                #pragma unroll
                for (int h = 0; h < 2; h++) {
                    const long long at = __shfl_sync(0xffffffffu, place, lane / 4 + 8 * h);
                    #pragma unroll
                    for (int j = 0; j < COLUMNS / 8; j++) {
                        const int column = first_column + 8 * j + lane % 4 * 2;
                        if (at >= 0 && column < columns) sums[at * columns + column] = d[i][4 * j + 2 * h];
                        if (at >= 0 && column + 1 < columns) sums[at * columns + column + 1] = d[i][4 * j + 2 * h + 1];
                    }
                }"""


def store_lines(s: Structure) -> str:
    """16 rows of a warp: finished in registers, laid out in shared memory, stored 8 channels at a time.

    Others that lie as the results do come the same way back: in pieces into shared memory, from there as fragments.
    """
    packed = f"pack_{s.dtype.name}(d[i][4 * j + 2 * h], d[i][4 * j + 2 * h + 1])"
    before, per_column, first = [], [], []
    whole = [k for k, kind in enumerate(s.others, 1) if kind == "y" and s.vectors]
    for k in whole:
        first.append(f"unsigned int whole{k}[4][4];")
        first += _brought(s, k)
    for k, kind in enumerate(s.others, 1):
        if kind in ("column", "one"):
            for half in range(2):
                own = f"(group * columns + min(column + {half}, columns - 1)) * (int)s.o{k}_strides[1]"
                place = own if kind == "column" else "0"
                per_column.append(f"const unsigned short beside{k}_{half} = o{k}[s.starts[{k + 2}] + {place}];")
    if s.body is not None:
        before.append("const int at = __shfl_sync(0xffffffffu, place, lane / 4 + 8 * h);")
        for k, kind in enumerate(s.others, 1):
            if not kind:
                before.append(f"const int at{k} = __shfl_sync(0xffffffffu, place{k}, lane / 4 + 8 * h);")
        before.append("unsigned int bits = 0;")
        for half in range(2):
            given = []
            for k, kind in enumerate(s.others, 1):
                own = f"(group * columns + column + {half}) * (int)s.o{k}_strides[1]"
                y_own = f"at + (group * columns + column + {half}) * (int)s.y_strides[1]"
                if k in whole:
                    given.append(f"(unsigned short)(whole{k}[q][c * 2 + h] >> {16 * half})")
                elif kind in ("column", "one"):
                    given.append(f"beside{k}_{half}")
                else:
                    given.append(f"o{k}[s.starts[{k + 2}] + {y_own if kind == 'y' else f'at{k} + {own}'}]")
            call = f"finished({', '.join([f'd[i][4 * j + 2 * h + {half}]', *given, 'error'])})"
            before.append(f"if (at >= 0 && column + {half} < columns) bits |= (unsigned int){call} << {16 * half};")
        packed = "bits"
    wide = "(((unsigned long long)y + 2 * s.starts[2]) & 15) == 0 && column + 8 <= columns" if s.vectors else "false"
    return f"""\
                #pragma unroll
                for (int part = 0; part < COLUMNS / 64; part++) {{
                    __syncwarp();
                    {code(first, 20)}
                    #pragma unroll
                    for (int q = 0; q < 4; q++) {{  // 16 columns: four matrices of 8 x 8
                        unsigned int pair[2][2];
                        #pragma unroll
                        for (int c = 0; c < 2; c++) {{
                            const int j = part * 8 + q * 2 + c, column = first_column + 8 * j + lane % 4 * 2;
                            {code(per_column, 28)}
                            #pragma unroll
                            for (int h = 0; h < 2; h++) {{
                                {code(before, 32)}
                                pair[c][h] = {packed};
                            }}
                        }}
                        {_PIECE}
                        stmatrix_x4(ring + box + line * {LINE} + ((piece ^ (line & 7)) * 16),
                            pair[0][0], pair[0][1], pair[1][0], pair[1][1]);
                    }}
                    __syncwarp();
                    #pragma unroll 1
                    for (int q = 0; q < 4; q++) {{
                        const int line = q * 4 + lane / 8, piece = lane % 8, column = first_column + part * 64 + piece * 8;
                        const int at = __shfl_sync(0xffffffffu, place, line);
                        if (at < 0 || column >= columns) continue;
                        const unsigned char* const from = memory + box + line * {LINE} + ((piece ^ (line & 7)) * 16);
                        const long long place_of_piece = at + (long long)(group * columns + column) * s.y_strides[1];
                        unsigned short* const to = y + s.starts[2] + place_of_piece;
                        if ({wide}) {{
                            *(uint4*)to = *(const uint4*)from;
                        }} else {{
                            #pragma unroll 1
                            for (int e = 0; e < 8 && column + e < columns; e++) {{
                                to[e * s.y_strides[1]] = ((const unsigned short*)from)[e];
                            }}
                        }}
                    }}
                }}"""


# Lane l has the address of row l % 16 of the matrices on the left, or from 16 on, the right.
_PIECE = "const unsigned int line = lane % 16, piece = q * 2 + lane / 16;"


def _brought(s: Structure, k: int) -> list[str]:
    """Lines that bring 64 channels of an other that lies as the results into fragments `whole{k}`."""
    return [
        "#pragma unroll",
        "for (int q = 0; q < 4; q++) {",
        "    const int line = q * 4 + lane / 8, piece = lane % 8, column = first_column + part * 64 + piece * 8;",
        "    const int at = __shfl_sync(0xffffffffu, place, line);",
        f"    unsigned char* const to = memory + box + line * {LINE} + ((piece ^ (line & 7)) * 16);",
        f"    const unsigned short* const from = o{k} + s.starts[{k + 2}] + at + group * columns + column;",
        "    uint4 found = make_uint4(0, 0, 0, 0);",
        "    if (at >= 0 && column + 8 <= columns && ((unsigned long long)from & 15) == 0) {",
        "        found = *(const uint4*)from;",
        "    } else if (at >= 0) {",
        "        unsigned int words[4] = {0, 0, 0, 0};",
        "        #pragma unroll",
        "        for (int e = 0; e < 8; e++)",
        "            if (column + e < columns) words[e / 2] |= (unsigned int)from[e] << (e % 2 * 16);",
        "        found = make_uint4(words[0], words[1], words[2], words[3]);",
        "    }",
        "    *(uint4*)to = found;",
        "}",
        "__syncwarp();",
        "#pragma unroll",
        "for (int q = 0; q < 4; q++) {",
        f"    {_PIECE}",
        f"    ldmatrix_x4(whole{k}[q], ring + box + line * {LINE} + ((piece ^ (line & 7)) * 16));",
        "}",
        "__syncwarp();",
    ]
