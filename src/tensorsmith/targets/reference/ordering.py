"""Order along an axis: positions that sort, all of them or those of some ranks.

Values become unsigned keys of the same order (NaN largest, -0.0 equal to 0.0). Where key and position fit into 64 bits they
are one word: sorting the words sorts stably, by NumPy's vectorised sort, and ranks come from its partition. Wider keys are
sorted by position and, where equal ones occur, again by a stable sort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def argsort(arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> np.ndarray:
    """int64 positions that sort along `axis`, `descending` or not; stable both ways; NaN counts as largest.

    With `start` and `length` those of the ranks start ... start + length - 1 alone.
    """
    x, axis = arrays[0], attrs["axis"]
    extent = x.shape[axis]
    start = attrs.get("start", 0)
    length = attrs.get("length", extent)
    rows = np.moveaxis(x, axis, -1)
    keys = sort_keys(rows)
    if attrs.get("descending", False):
        keys = ~keys
    return np.moveaxis(_ranked(keys, extent, start, length), -1, axis)


def sort_keys(x: np.ndarray) -> np.ndarray:
    """Unsigned integers in the order of the values."""
    kind, size = x.dtype.kind, x.dtype.itemsize
    if kind == "b":
        return x.astype(np.uint8)
    unsigned = np.dtype(f"u{size}")
    top = unsigned.type(1 << (8 * size - 1))
    if kind == "u":
        return x.copy()
    if kind == "i":
        return np.ascontiguousarray(x).view(unsigned) ^ top
    if size >= 4:
        bits = (x + x.dtype.type(0)).view(unsigned)  # -0.0 becomes 0.0
    else:
        bits = np.ascontiguousarray(x).view(unsigned)
        bits = np.where(bits == top, unsigned.type(0), bits)
    negative = (bits.view(f"i{size}") >> (8 * size - 1)).view(unsigned)  # all bits of a negative number, none of another
    keys: np.ndarray = bits ^ (negative | top)
    nan = x != x
    if nan.any():
        keys[nan] = ~unsigned.type(0)
    return keys


def _ranked(keys: np.ndarray, extent: int, start: int, length: int) -> np.ndarray:
    if not keys.size or not length:
        return np.zeros((*keys.shape[:-1], length), np.int64)
    if not start and 8 * length <= extent:
        return _lowest(keys, length)
    index_bits = max(int(extent - 1).bit_length(), 1)
    key_bits = 8 * keys.dtype.itemsize
    if key_bits + index_bits > 64:
        lowest = keys.min()
        spread = int(keys.max()) - int(lowest)
        if spread.bit_length() + index_bits > 64:
            return _by_position(keys)[..., start : start + length]
        keys, key_bits = keys - lowest, spread.bit_length()
    word: type[np.unsignedinteger[Any]] = np.uint32 if key_bits + index_bits <= 32 else np.uint64
    words: Any = (keys.astype(word) << word(index_bits)) | np.arange(extent, dtype=word)
    end = start + length
    if length == extent:
        words.sort(axis=-1)
        return (words & word((1 << index_bits) - 1)).astype(np.int64)
    if end < extent:
        words.partition(end - 1, axis=-1)
    words = words[..., :end]
    if start:
        words.partition(start, axis=-1)
        words = words[..., start:]
    words = np.sort(words, axis=-1)
    return (words & word((1 << index_bits) - 1)).astype(np.int64)


def _lowest(keys: np.ndarray, length: int) -> np.ndarray:
    """Positions of the few lowest of each row: those below the last one's key, and the first of those equal to it."""
    rows = keys.reshape(-1, keys.shape[-1])
    last = np.partition(rows, length - 1, axis=-1)[:, length - 1 : length]
    chosen = rows <= last
    if np.count_nonzero(chosen) != length * len(rows):
        below = rows < last
        equal = rows == last
        missing = length - np.count_nonzero(below, axis=-1)
        chosen = below | (equal & (np.cumsum(equal, -1) <= missing[:, None]))
    positions = np.flatnonzero(chosen).reshape(-1, length) % rows.shape[1]
    order = np.argsort(np.take_along_axis(rows, positions, -1), axis=-1, kind="stable")
    return np.take_along_axis(positions, order, -1).astype(np.int64, copy=False).reshape(*keys.shape[:-1], length)


def _by_position(keys: np.ndarray) -> np.ndarray:
    order = np.argsort(keys, axis=-1)
    ordered = np.take_along_axis(keys, order, -1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        order = np.argsort(keys, axis=-1, kind="stable")
    return order.astype(np.int64, copy=False)
