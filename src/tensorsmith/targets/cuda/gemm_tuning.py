"""Choices of products that were measured, by shape: kept in this process and in the cache folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from tensorsmith.kernels.spec_gemm import GemmSpec, Strides
from tensorsmith.targets.cpu.compiler import disk_cache
from tensorsmith.targets.cuda.gemm_choice import Choice
from tensorsmith.targets.cuda.gemm_mma import MmaTile
from tensorsmith.targets.cuda.gemm_tiled import Tile
from tensorsmith.targets.cuda.gemm_wgmma import WgmmaTile

VERSION = 1  # of the kernels' texts: what was measured with others is measured again
_TILES = {"wgmma": WgmmaTile, "mma": MmaTile, "tiled": Tile}
_known: dict[str, Choice] = {}


def key_of(spec: GemmSpec, device: str) -> str:
    """What a choice depends on: shape, dtype, how operands lie, whether there is a body, the name of the device."""
    lie = [_lies(strides) for strides in (spec.a, spec.b, spec.c)]
    parts = [VERSION, device, spec.dtype.name, spec.batch, spec.M, spec.N, spec.K, lie, spec.body is not None, spec.allow_tf32]
    return hashlib.blake2b(repr(["tuned product", *parts]).encode(), digest_size=32).hexdigest()


def _lies(strides: Strides) -> tuple[object, ...]:
    """Which axes have stride 0 or 1, and whether others are multiples of 8 elements."""
    return tuple(stride if stride in (0, 1) else stride % 8 == 0 for stride in strides)


def known(key: str) -> Choice | None:
    """The choice that was kept, here or on disk."""
    found = _known.get(key)
    if found is None:
        entry = disk_cache().load(key)
        if entry is not None:
            found = _known[key] = unpacked(entry)
    return found


def keep(key: str, choice: Choice) -> None:
    """Keep a choice."""
    _known[key] = choice
    disk_cache().store(key, packed(choice))


def packed(choice: Choice) -> bytes:
    """A choice as text."""
    kind = next((name for name, tile in _TILES.items() if isinstance(choice.tile, tile)), "")
    tile = asdict(choice.tile) if choice.tile is not None else {}
    return json.dumps({"kind": kind, "tile": tile, "splits": choice.splits, "depth": choice.depth}).encode()


def unpacked(entry: bytes) -> Choice:
    """The choice of such a text."""
    fields = json.loads(entry)
    tile = _TILES[fields["kind"]](**fields["tile"]) if fields["kind"] else None
    return Choice(tile, fields["splits"], fields["depth"])
