"""The compiled pieces of the matrix multiplication, each built when first needed and kept on disk.

One small object per tile size, packing function and driver: a network that multiplies 64 rows compiles the two tiles
that 64 rows fall into, not the two dozen that exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.epilogue import Body
from tensorsmith.targets.cpu import gemm_amx
from tensorsmith.targets.cpu.build import Function
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.gemm_blocks import blocks_function, entry_functions, entry_name
from tensorsmith.targets.cpu.gemm_dot import dot_function
from tensorsmith.targets.cpu.gemm_pack import pack_left, pack_rows, pack_transposed
from tensorsmith.targets.cpu.gemm_pairs import PairVectors, uses_tiles
from tensorsmith.targets.cpu.gemm_stream import stream_function
from tensorsmith.targets.cpu.gemm_tile import PANEL_VECTORS, STRIDED, most_rows, tile_function
from tensorsmith.targets.cpu.gemm_vectors import Vectors
from tensorsmith.targets.cpu.machine import Machine


@dataclass(frozen=True)
class Piece:
    """One compiled module: its text, the structure of its loops and the addresses of its functions by name."""

    text: str
    functions: tuple[Function, ...]
    addresses: dict[str, int]


class Kernels:
    """Pieces for one dtype on one machine."""

    def __init__(self, dtype: DType, machine: Machine) -> None:
        self.dtype = dtype
        self.machine = machine
        self.tiles = uses_tiles(dtype, machine)
        probe = self._vectors()
        self.lanes = probe.lanes
        self.panel = PANEL_VECTORS * probe.lanes
        self.max_rows = gemm_amx.MOST_ROWS if self.tiles else most_rows(machine) if probe.is_float else 4
        self.storage_size, self.compute_size = probe.storage_size, probe.compute_size
        self.converts, self.cheap_masks = probe.converts, probe.cheap_masks
        self.depth = probe.depth
        self._pieces: dict[tuple, Piece] = {}

    def _vectors(self) -> Vectors:
        return (PairVectors if self.tiles else Vectors)(self.dtype, self.machine.name, machine=self.machine)

    def _piece(
        self, key: tuple, write: Callable[[Vectors], list[Function]], vectors: Vectors | None = None
    ) -> Piece:
        found = self._pieces.get(key)
        if found is None:
            vectors = vectors or self._vectors()
            functions = write(vectors)
            bodies = [function.text() for function in functions]
            declarations = vectors.declarations.union(*(function.declarations for function in functions))
            text = "\n".join([*sorted(declarations), *bodies])
            names = [function.name for function in functions]
            addresses = dict(zip(names, compile_functions(text, names, self.machine)))
            # Two threads may both get here; the compiler hands the same addresses to both.
            found = self._pieces.setdefault(key, Piece(text, tuple(functions), addresses))
        return found

    def tile(self, rows: int, columns: int, function: str | Body, left: str = STRIDED) -> Piece:
        """The register tile of `rows` rows and `columns` vectors with an epilogue function ('' for none)."""
        if self.tiles:
            assert isinstance(function, str)
            return self._piece(
                ("tile", rows, columns, function),
                lambda v: [gemm_amx.tile_function(v, rows, columns, function)],
            )
        return self._piece(
            ("tile", rows, columns, function, left), lambda v: [tile_function(v, rows, columns, function, left)]
        )

    def pack_left(self, transposed: bool) -> Piece:
        """The packing of tiles of A."""
        if self.tiles:
            return self._piece(("pack_left", transposed), lambda v: [gemm_amx.pack_left(v, transposed)])
        return self._piece(("pack_left", transposed), lambda v: [pack_left(v, self.max_rows, transposed)])

    def pack(self, transposed: bool) -> Piece:
        """The packing of a panel of B."""
        return self._piece(("pack", transposed), lambda v: [pack_transposed(v) if transposed else pack_rows(v)])

    def blocks(self) -> Piece:
        """The blocked loops and their entries."""
        return self._piece(("blocks",), lambda v: [blocks_function(v), *entry_functions("blocks", True)])

    def dot(self, rows: int, more: bool, function: str | Body, prefetch: bool) -> Piece:
        """Rows, in tiles of `rows` and perhaps rows + 1, times a transposed B, with its entries."""
        return self._piece(
            ("dot", rows, more, function, prefetch),
            lambda v: [dot_function(v, rows, more, function, prefetch), *entry_functions("dot", False)],
            Vectors(self.dtype, self.machine.name, machine=self.machine),
        )

    def stream(self, rows: int, function: str | Body, prefetch: bool) -> Piece:
        """Few rows times a large row-major B, with its entries."""
        return self._piece(
            ("stream", rows, function, prefetch),
            lambda v: [stream_function(v, rows, function, prefetch), *entry_functions("stream", False)],
        )


@functools.cache
def kernels(dtype: DType, machine: Machine) -> Kernels:
    """The pieces for a dtype and machine (one object per pair and process)."""
    return Kernels(dtype, machine)


__all__ = ["Kernels", "Piece", "entry_name", "kernels"]
