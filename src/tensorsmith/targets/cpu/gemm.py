"""Matrix multiplication on the CPU: which kernel for which shape, and the words it is launched with.

    C[b] (M, N) = function(A[b] (M, K) @ B[b] (K, N) + bias (N) [+ C[b]])

`plan_matmul` is arithmetic on shapes and strides only. Sizes are run-time words of the kernels, so that nothing is
compiled per shape; pieces of code are compiled when the first shape asks for them. Three ways to multiply:

* blocks: register tiles, or a matrix unit's (`gemm_amx`), inside cache blocks (`gemm_blocks`), for all but the next two;
* dot:    few rows and B transposed (`x @ w.T`): rows of both operands are multiplied as vectors along k (`gemm_dot`);
* stream: few rows and a large B: B is read once, row by row (`gemm_stream`).

The partition into chunks depends on shape and strides alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.epilogue import EXTRAS, Body
from tensorsmith.targets.cpu import gemm_dot, gemm_epilogue, gemm_stream
from tensorsmith.targets.cpu.build import format_lines
from tensorsmith.targets.cpu.gemm_blocks import BUSY, MOST_WORKSPACES, PACKED, WORDS
from tensorsmith.targets.cpu.gemm_kernels import Kernels, Piece, entry_name, kernels
from tensorsmith.targets.cpu.gemm_pack import left_bytes
from tensorsmith.targets.cpu.gemm_tile import CONSECUTIVE, PACKED as PACKED_LEFT, STRIDED
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.pool import native_pool

_K_BLOCK_BYTES = 2048  # depth of a block: sums of blocks are added up, so that long sums round little
_ROW_BLOCK_TILES = 24
_ROW_BLOCK_SHARE = 0.625  # of the second-level cache: packed rows of A stay there
_COLUMN_BLOCK_BYTES = 8 << 20  # packed panels of B stay in the last-level cache
_ONE_USE_BYTES = 128 << 10  # panels that are packed together where one block of rows uses them
_SHARED_BYTES = 16 << 20  # a B up to which it is packed as a whole, once for all chunks,
_SHARE_BYTES = 128 << 10  # in shares of at least this much of B
_SHALLOW, _ROWS_OF_SHALLOW = 128, 72  # a K for which a block of rows is this small
_READING = 5.0  # rows of a matrix whose work takes as long as to read a packed one again
_SKEW = 320  # bytes between packed panels, which would share cache sets where their sizes are powers of two
_CHUNK_FLOPS = 4e6  # about 40 us of work: below that a second thread gains nothing
_CHUNK_BYTES = 1 << 20  # the same for kernels that only read memory
_STREAM_BYTES = 256 << 10  # a B that leaves the first-level cache is read in the order it lies in memory
_STREAM_BATCHED_ROWS = 2  # rows of a batch up to which many small B are read like a large one
_PREFETCH_BYTES = 1 << 20  # a B that leaves the second-level cache
_FEW_ROWS = 8
_DOT_ROWS, _DOT_ROWS_OF_FEW_REGISTERS = 128, 48  # most rows for which reading B where it lies beats packing it (measured),
_DOT_DEPTH = 256  # where K is long enough to hide the sums over lanes
_FEW_COLUMNS = 3  # of a transposed B: hardly any of a panel would be used
_FEW_COLUMNS_DEPTH = 64
_STREAM_COLUMNS = 2048  # a chunk reads whole pages of B's rows
_ALIGNMENT = 64
_CLOSE_BYTES, _FEW_USES = 1536, 384  # between rows of B that are read in place; how often, or how many, at most
_APART_BYTES, _MANY_PANELS, _MANY_ROWS = 3584, 24, 256  # rows of A this far apart are packed for so large a product


@dataclass(frozen=True)
class MatmulKernel:
    """A planned multiplication, ready for a recipe.

    function_address, chunks, constants: as a Recipe takes them; `chunks` is 0 where C has no elements
    launch_order: names of the launch words: A, B, C (or B, A, C), then bias and workspace where the kernel takes them;
        of a body then C again and its operands, the last of them as often as it takes to be EXTRAS
    workspace_bytes: size of the temporary whose address is the workspace word (0 without one); alignment 64
    flops: 2 * batch * M * N * K
    leading: how many of the chunks, the first ones, others wait for; those may run in any order after them
    """

    function_address: int
    chunks: int
    constants: tuple[int, ...]
    launch_order: tuple[str, ...]
    workspace_bytes: int
    flops: int
    method: str
    pieces: tuple[Piece, ...] = field(repr=False, default=())
    leading: int = 0

    @property
    def loops(self) -> str:
        """The loop structure, outermost piece first."""
        structures = [(f.name, f.structure) for piece in self.pieces for f in piece.functions if f.structure]
        return "\n".join(f"{name}:\n{format_lines(structure, 1)}" for name, structure in structures)

    @property
    def text(self) -> str:
        """The LLVM text of every piece."""
        return "\n".join(piece.text for piece in self.pieces)


@dataclass
class _Problem:
    """A canonical multiplication; strides in elements."""

    batch: int
    M: int
    N: int
    K: int
    a_batch: int
    a_row: int
    a_k: int
    b_batch: int
    b_k: int
    b_column: int
    c_batch: int
    c_row: int

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.M * self.N * self.K


def plan_matmul(
    dtype: DType,
    batch: int,
    M: int,
    N: int,
    K: int,
    a_strides: Sequence[int],
    b_strides: Sequence[int],
    c_strides: Sequence[int],
    epilogue: str | Body | None = None,
    accumulate: bool = False,
    machine: Machine | None = None,
    packed: bool = False,
) -> MatmulKernel:
    """Plan C[b] = function(A[b] @ B[b] + bias), for run by a recipe.

    Args:
        dtype: of A, B, C and bias; float16 and bfloat16 accumulate in float32, integers wrap.
        batch, M, N, K: extents; K = 0 gives zeros (or the bias), an empty C gives a kernel of 0 chunks.
        a_strides, b_strides, c_strides: (batch, row, column) in elements; 0 broadcasts over the batch.
            B needs unit stride along its rows or its columns, C along its rows; A may have any strides, except that
            the half types need a unit stride in A too.
        epilogue: None, "bias", "relu", "bias_relu", or a body on results and operands in memory (`gemm_epilogue`).
        accumulate: add to what C holds (before the function).
        packed: B is what `plan_packing` wrote, for a batch of 1; its strides do not matter.

    Raises:
        NotImplementedError: dtype, strides or epilogue outside the above; the message names it.
    """
    if dtype.kind not in "fiu":
        raise NotImplementedError(f"matrix multiplication of {dtype.name} is not implemented on the CPU")
    has_bias, function = (False, epilogue) if isinstance(epilogue, Body) else gemm_epilogue.parse(epilogue)
    has_body = isinstance(function, Body)
    p = _canonical(batch, M, N, K, tuple(a_strides), tuple(b_strides), tuple(c_strides))
    pieces = kernels(dtype, machine or default_machine())
    if c_strides[2] != 1 and N > 1:
        raise NotImplementedError(f"matrix multiplication needs unit stride along the rows of C, got {c_strides[2]}")
    if p.b_column != 1 and p.b_k != 1:
        raise NotImplementedError(f"matrix multiplication needs a unit stride in B, got strides {tuple(b_strides)}")
    if pieces.converts and p.a_row != 1 and p.a_k != 1:
        raise NotImplementedError(
            f"matrix multiplication of {dtype.name} needs a unit stride in A, got strides {tuple(a_strides)}"
        )
    if has_body and pieces.converts:
        raise NotImplementedError(f"matrix multiplication of {dtype.name} has no epilogue but bias and relu")
    if packed and (batch != 1 or pieces.converts):
        raise NotImplementedError(f"matrix multiplication with a packed B in {dtype.name}, batch {batch}")
    if batch == 0 or M == 0 or N == 0:
        entry = pieces.blocks().addresses[entry_name(has_bias, False, has_body)]
        order = (*"ABC", *(("bias",) if has_bias else ()), *_extras(function))
        return MatmulKernel(entry, 0, (0,) * len(WORDS), order, 0, 0, "blocks", (pieces.blocks(),))
    operands = ("A", "B", "C")
    if packed:
        return _plan_blocks(pieces, p, operands, has_bias, function, accumulate, packed)
    if p.N == 1 and M > _FEW_ROWS and not (has_bias or has_body) and p.c_row == 1 and 1 in (p.a_row, p.a_k):
        # A column of results is a row of the transposed problem, which reads A in vectors.
        # Its only row may have any stride: half types, which are packed from vectors, need a unit stride somewhere.
        row = 1 if pieces.converts and p.b_k != 1 else K
        p = _Problem(p.batch, 1, p.M, K, p.b_batch, row, p.b_k, p.a_batch, p.a_k, p.a_row, p.c_batch, p.M)
        operands = ("B", "A", "C")
    dot_rows = _DOT_ROWS if pieces.machine.registers >= 32 else _DOT_ROWS_OF_FEW_REGISTERS
    few = p.M <= _FEW_ROWS or (p.M <= dot_rows and p.K >= _DOT_DEPTH and not pieces.converts)
    few = few or (p.N <= _FEW_COLUMNS and p.K >= _FEW_COLUMNS_DEPTH and not pieces.converts)
    if few and p.b_k == 1 and (p.b_column != 1 or p.N == 1) and p.a_k == 1 and K > 0:
        return _plan_rows(pieces, p, "dot", operands, has_bias, function, accumulate)
    batches = p.batch if p.b_batch and p.M <= _STREAM_BATCHED_ROWS else 1
    large = batches * p.K * p.N * pieces.storage_size >= _STREAM_BYTES
    # Where masks are dear, the blocks pack a last panel that is not whole: for few rows that costs more than the product.
    streams = p.b_column == 1 and (large or _ends_packed(pieces, p.N)) and not pieces.converts
    if streams and p.M <= gemm_stream.MAX_ROWS[pieces.machine.name]:
        return _plan_rows(pieces, p, "stream", operands, has_bias, function, accumulate)
    return _plan_blocks(pieces, p, operands, has_bias, function, accumulate)


def _plan_rows(
    pieces: Kernels,
    p: _Problem,
    method: str,
    operands: tuple[str, ...],
    has_bias: bool,
    function: str | Body,
    accumulate: bool,
) -> MatmulKernel:
    """A kernel of few rows: chunks are batches and ranges of columns."""
    size = pieces.storage_size
    rows, more, tiles = p.M, 0, 1
    # Fewer registers, shorter steps: there the hardware's own prefetching keeps up with one row (measured).
    ahead = pieces.machine.registers >= 32 or (method == "dot" and p.M > 1)
    large = ahead and p.K * p.N * size >= _PREFETCH_BYTES
    if method == "dot":
        tiles = _ceil(p.M, gemm_dot.TILE_ROWS[pieces.machine.name])
        rows, more = divmod(p.M, tiles)
        names: tuple[str, ...] = gemm_dot.WORDS
        piece = pieces.dot(rows, more > 0, function, large)
        unit = gemm_dot.group_columns(rows + (more > 0), pieces.machine.name, pieces.lanes)
    else:
        piece, names, unit = pieces.stream(p.M, function, large), gemm_stream.WORDS, _STREAM_COLUMNS
    wanted = _chunk_count(p, p.batch * p.K * p.N * size)
    parts = _ceil(wanted, p.batch)
    part_columns = _up(_ceil(p.N, parts), unit)
    parts = max(1, _ceil(p.N, part_columns))
    units = p.batch * parts
    units_per_chunk = max(1, _ceil(units, wanted))
    words = {
        "K": p.K, "N": p.N, "big": more, "small": tiles - more,
        "units": units, "units_per_chunk": units_per_chunk,
        "column_block": part_columns if tiles == 1 else max(unit, pieces.machine.level2 // (p.K * size) // unit * unit),
        "column_parts": parts, "part_columns": part_columns,
        "a_batch": p.a_batch * size, "a_row": p.a_row * size, "a_k": p.a_k * size,
        "b_batch": p.b_batch * size, "b_k": p.b_k * size, "b_column": p.b_column * size,
        "c_batch": p.c_batch * size, "c_row": p.c_row * size, "accumulate": int(accumulate),
    }  # fmt: skip
    return MatmulKernel(
        function_address=piece.addresses[entry_name(has_bias, False, isinstance(function, Body))],
        chunks=_ceil(units, units_per_chunk),
        constants=tuple(words[name] for name in names),
        launch_order=(*operands, *(("bias",) if has_bias else ()), *_extras(function)),
        workspace_bytes=0,
        flops=p.flops,
        method=method,
        pieces=(piece,),
    )


def _canonical(
    batch: int, M: int, N: int, K: int, a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...]
) -> _Problem:
    """Strides of extents of one made convenient; batches that are rows of one larger A joined to it."""
    p = _Problem(batch, M, N, K, a[0], a[1], a[2], b[0], b[1], b[2], c[0], c[1])
    if M == 1:
        p.a_row, p.c_row = p.a_batch, p.c_batch
    if batch > 1 and p.b_batch == 0 and p.c_batch == M * p.c_row and (p.a_batch == M * p.a_row):
        p.batch, p.M = 1, batch * M
    if p.batch == 1:
        p.a_batch = p.b_batch = p.c_batch = 0
    if p.K <= 1 and p.a_row != 1:
        p.a_k = 1
    if p.M <= 1 and p.a_k != 1:
        p.a_row = 1
    if p.K <= 1 and p.b_column != 1:
        p.b_k = 1
    if p.N <= 1 and p.b_k != 1:
        p.b_column = 1
    return p


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _up(a: int, b: int) -> int:
    return -(-a // b) * b


def _ends_packed(pieces: Kernels, columns: int) -> bool:
    """Whether the last panel is packed although B is read in place: it is not whole, and masks are dear."""
    return not pieces.cheap_masks and columns % pieces.lanes != 0


def _plan_blocks(
    pieces: Kernels, p: _Problem, operands: tuple[str, ...], has_bias: bool, function: str | Body, accumulate: bool,
    packed: bool = False,
) -> MatmulKernel:  # fmt: skip
    """The general kernel: partition, blocking, packing and tiles."""
    stored, computed, panel = pieces.storage_size, pieces.compute_size, pieces.panel
    M, N, K = p.M, p.N, p.K
    tiles = _ceil(M, pieces.max_rows)
    base, extra = divmod(M, tiles)
    transposed_b = p.b_column != 1
    pack_all = packed or transposed_b or pieces.converts or not _read_b_in_place(p, pieces)
    packs = pack_all or _ends_packed(pieces, N)
    transposed_a = p.a_row == 1 and p.a_k != 1
    # The matrix unit reads A where it lies, in whole steps of k; else half types are converted while they are packed.
    reads_left = pieces.tiles and p.a_k == 1 and K % (pieces.depth * pieces.lanes) == 0
    converts_left = pieces.converts and not reads_left
    packs_left = converts_left or _pack_a(p, pieces, transposed_a)
    left = PACKED_LEFT if packs_left else CONSECUTIVE if p.a_k == 1 else STRIDED

    panels_of_b = _panels(pieces, K, N)
    k_block, slot, panels = panels_of_b.k_block, panels_of_b.slot, panels_of_b.panels
    steps = _ceil(k_block, pieces.depth)
    block_bytes = int(_ROW_BLOCK_SHARE * pieces.machine.level2)
    row_tiles = max(1, min(_ROW_BLOCK_TILES, block_bytes // (pieces.max_rows * steps * computed)))
    if k_block <= _SHALLOW:  # little work between stores: to few pages
        row_tiles = min(row_tiles, max(1, _ROWS_OF_SHALLOW // pieces.max_rows))

    shareable = packed or (pack_all and p.batch == 1 and panels_of_b.nbytes <= _SHARED_BYTES)
    row_parts, column_parts = _parts(p, tiles, panels, pack_all and not shareable, packs_left)
    units = p.batch * row_parts * column_parts
    chunks = min(units, _chunk_count(p))
    units_per_chunk = _ceil(units, max(1, chunks))
    chunks = _ceil(units, units_per_chunk)
    shared = shareable and row_parts > 1 and not packed
    shares = max(1, min(chunks, panels, K * N * stored // _SHARE_BYTES)) if shared else 0

    part_tiles, part_columns = _ceil(tiles, row_parts), _ceil(panels, column_parts) * panel
    one_use = part_tiles <= row_tiles and not packed  # a panel's only use follows its packing
    column_block = max(panel, (_ONE_USE_BYTES if one_use else _COLUMN_BLOCK_BYTES) // slot * panel)
    if shared or not packs or column_block > part_columns:
        column_block = part_columns
    block_rows = min(part_tiles, row_tiles) * (base + (1 if extra else 0))
    packed_left = left_bytes(pieces.lanes, computed, pieces.max_rows, block_rows, steps)
    panel_offset = _up(packed_left, _ALIGNMENT) if packs_left else 0
    slots = 0 if shared or packed or not packs else column_block // panel if pack_all else 1
    workspace_stride = panel_offset + slots * slot
    shared_bytes = panels_of_b.nbytes if shared else 0
    workspace_bytes = shared_bytes + workspace_stride * chunks

    narrow = 0 < N % panel <= pieces.lanes
    wide = N % panel > pieces.lanes or N >= panel
    tile_pieces: dict[str, Piece] = {}
    for size, rows in (("small", base), ("big", base + 1)):
        if rows == 0 or (size == "big" and not extra):
            continue
        if wide:
            tile_pieces[f"{size}_wide"] = pieces.tile(rows, 2, function, left)
        if narrow:
            tile_pieces[f"{size}_narrow"] = pieces.tile(rows, 1, function, left)
    blocks_piece = pieces.blocks()
    pack_piece = pieces.pack(transposed_b) if packs and not packed else None
    left_piece = pieces.pack_left(transposed_a) if packs_left else None

    words = {
        "K": K, "N": N, "tiles": tiles, "base": base, "extra": extra,
        "units": units, "units_per_chunk": units_per_chunk, "row_parts": row_parts, "column_parts": column_parts,
        "panels": panels, "k_block": k_block, "row_block_tiles": row_tiles, "column_block": column_block,
        "a_batch": p.a_batch * stored, "a_row": p.a_row * stored, "a_k": p.a_k * stored,
        "b_batch": p.b_batch * stored, "b_k": p.b_k * stored, "b_column": p.b_column * stored,
        "c_batch": p.c_batch * stored, "c_row": p.c_row * stored,
        "pack": _address(pack_piece), "pack_all": int(pack_all),
        "pack_stride": (p.b_column if transposed_b else p.b_k) * stored,
        "panel_bytes": slot if pack_all else 0, "panel_offset": panel_offset,
        "pack_chunks": shares, "block_bytes": panels * slot if shared or packed else 0,
        "column_bytes": slot if shared or packed else 0, "packed_before": int(packed),
        "shared_bytes": shared_bytes, "wait": native_pool().wait if shared else 0, PACKED: 0, BUSY: 0,
        "pack_left": _address(left_piece),
        "workspace_stride": workspace_stride, "accumulate": int(accumulate),
        **{name: _address(tile_pieces.get(name)) for name in ("big_wide", "small_wide", "big_narrow", "small_narrow")},
    }  # fmt: skip
    order = (
        *operands, *(("bias",) if has_bias else ()), *(("workspace",) if workspace_bytes else ()), *_extras(function)
    )  # fmt: skip
    used = (blocks_piece, pack_piece, left_piece, *tile_pieces.values())
    return MatmulKernel(
        function_address=blocks_piece.addresses[entry_name(has_bias, bool(workspace_bytes), isinstance(function, Body))],
        chunks=shares + chunks,
        constants=tuple(words[name] for name in WORDS),
        launch_order=order,
        workspace_bytes=workspace_bytes,
        flops=p.flops,
        method="blocks",
        pieces=tuple(piece for piece in used if piece is not None),
        leading=shares,
    )


def _extras(function: str | Body) -> tuple[str, ...]:
    """The launch words of a body: always as many, so that one entry serves all."""
    return EXTRAS if isinstance(function, Body) else ()


@dataclass(frozen=True)
class _Panels:
    """How the whole of a packed B lies: blocks of k, in each its panels, `slot` bytes apart."""

    k_block: int
    blocks: int
    panels: int
    slot: int

    @property
    def nbytes(self) -> int:
        return self.blocks * self.panels * self.slot


def _panels(pieces: Kernels, K: int, N: int) -> _Panels:
    """The panels of a B (K, N), whatever it is multiplied with."""
    # Half types accumulate in registers over the whole of K, since C cannot hold partial sums.
    depth = K if pieces.converts else _K_BLOCK_BYTES // pieces.compute_size
    blocks = max(1, _ceil(K, depth or 1))
    k_block = max(1, K if blocks == 1 else _up(_ceil(K, blocks), pieces.lanes))
    slot = _up(_ceil(k_block, pieces.depth), pieces.lanes) * pieces.panel * pieces.compute_size + _SKEW
    return _Panels(k_block, blocks, _ceil(N, pieces.panel), slot)


def packed_bytes(dtype: DType, K: int, N: int, machine: Machine | None = None) -> int:
    """Memory of a B (K, N) that `plan_packing` wrote."""
    return _panels(kernels(dtype, machine or default_machine()), K, N).nbytes


def plan_packing(dtype: DType, K: int, N: int, strides: Sequence[int], machine: Machine | None = None) -> MatmulKernel:
    """Plan the panels of a B (K, N), strides in elements, one of them 1: what `plan_matmul(packed=True)` reads.

    They are the panels that the chunks of a product would pack for each other, by the same chunks.
    """
    pieces = kernels(dtype, machine or default_machine())
    b_k, b_column = strides
    if b_column != 1 and b_k != 1:
        raise NotImplementedError(f"packing needs a unit stride in B, got strides {tuple(strides)}")
    transposed = b_column != 1 and N > 1
    stored, lie = pieces.storage_size, _panels(pieces, K, N)
    pack_piece, blocks_piece = pieces.pack(transposed), pieces.blocks()
    shares = max(1, min(lie.panels, K * N * stored // _SHARE_BYTES))
    words = {
        **dict.fromkeys(WORDS, 0), "K": K, "N": N, "panels": lie.panels, "k_block": lie.k_block,
        "b_k": b_k * stored, "b_column": (b_column if N > 1 else 1) * stored, "pack": _address(pack_piece), "pack_all": 1,
        "pack_stride": (b_column if transposed else b_k) * stored, "panel_bytes": lie.slot, "pack_chunks": shares,
        "block_bytes": lie.panels * lie.slot, "column_bytes": lie.slot,
    }  # fmt: skip
    entry, order = blocks_piece.addresses[entry_name(False, True, False)], ("B", "B", "B", "packed")
    used = (blocks_piece, pack_piece)
    return MatmulKernel(entry, shares, tuple(words[name] for name in WORDS), order, 0, 0, "packing", used, shares)


def _address(piece: Piece | None) -> int:
    """The address of a piece's only function, or 0."""
    return next(iter(piece.addresses.values())) if piece else 0


def _read_b_in_place(p: _Problem, pieces: Kernels) -> bool:
    """Whether a row-major B is read where it lies: packing it pays where enough row tiles use it again (measured)."""
    if p.N <= pieces.panel or p.M <= 2 * pieces.max_rows:
        return True
    if pieces.machine.registers >= 32:  # long tiles: much work between two rows of B, while they lie close together
        return p.b_k * pieces.storage_size <= _CLOSE_BYTES and min(p.M, p.K) <= _FEW_USES
    return p.N < 8 * pieces.panel


def _pack_a(p: _Problem, pieces: Kernels, transposed: bool) -> bool:
    """Whether A's blocks are packed: where enough panels use them again, and its rows lie apart (measured)."""
    if transposed:
        return p.N > 2 * pieces.panel and p.K > 32 and p.a_k * pieces.storage_size >= 256
    many = p.N >= _MANY_PANELS * pieces.panel and p.M >= _MANY_ROWS
    return p.a_k == 1 and many and p.a_row * pieces.storage_size >= _APART_BYTES


def _chunk_count(p: _Problem, traffic: int = 0) -> int:
    """How many chunks the work (operations, or bytes of memory read) is worth."""
    wanted = max(int(p.flops / _CHUNK_FLOPS), traffic // _CHUNK_BYTES)
    return max(1, min(wanted, 16 if p.flops < 1 << 33 else MOST_WORKSPACES))


def _parts(p: _Problem, tiles: int, panels: int, packs: bool, packs_left: bool) -> tuple[int, int]:
    """Row and column parts of each matrix: enough for the chunks, with little packing done twice.

    packs, packs_left: every part packs its B; its A.
    """
    chunks = _chunk_count(p)
    if p.batch >= chunks or chunks == 1:
        return 1, 1
    # A single matrix is cut into few parts unless it is very large.
    wanted = min(_ceil(chunks, p.batch), max(4, p.flops >> 29) if packs else max(8, p.flops >> 28))
    best, choice = float("inf"), (1, 1)
    for rows in range(1, min(wanted, tiles) + 1):
        columns = min(_ceil(wanted, rows), panels)
        part_tiles, part_panels = _ceil(tiles, rows), _ceil(panels, columns)
        largest = part_tiles * part_panels / (tiles * panels)  # share of the largest part
        short = max(0, wanted - rows * columns) / wanted
        # Every part reads its rows of A and its columns of B from further caches, or packs them.
        again = (6.0 if packs else 1.0) * (rows - 1) / p.M + (16.0 if packs_left else 4.0) * (columns - 1) / p.N
        again += _READING * (rows / p.M + columns / p.N)
        cost = largest * rows * columns + again + short
        if cost < best:
            best, choice = cost, (rows, columns)
    return choice
