"""Reader of IDX files, the format of MNIST and its look-alikes, plain or gzip-compressed.

    two zero bytes, one byte element type, one byte number of dimensions, a big-endian uint32 a dimension, the elements

The header is not believed: memory grows only with bytes that are really there.
Source: Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST database of handwritten digits.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

ELEMENT_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

# No deflate stream expands more than this (zlib's documentation: 1032 to 1).
_LARGEST_EXPANSION = 1032
_PIECE = 1 << 20


def load_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in one IDX file, in native byte order.

    path: a plain or gzip-compressed IDX file, told apart by content and not by name.
    Errors: FileNotFoundError; ValueError that names the file, what was found and what to do.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"load_idx: {path} is a folder; give one of its files, or the folder to find_idx_pair")
    if not path.exists():
        raise FileNotFoundError(f"load_idx: {path} does not exist; give the path of an IDX file (plain or .gz)")
    size = path.stat().st_size
    with open(path, "rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not compressed:
            return _read(file, path, size)
        try:
            with gzip.GzipFile(fileobj=file) as stream:
                return _read(stream, path, size * _LARGEST_EXPANSION)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"load_idx: {path} is a damaged gzip file ({error}); fetch or copy it again") from None


def _read(stream: BinaryIO | gzip.GzipFile, path: Path, available: int) -> np.ndarray:
    """Header and elements from a stream that can hold at most `available` bytes."""
    dtype, shape = _read_header(stream, path)
    header = 4 + 4 * len(shape)
    wanted = math.prod(shape) * dtype.itemsize  # Python integers: no overflow, whatever the header says
    if wanted > max(available - header, 0):
        raise ValueError(
            f"load_idx: the header of {path} claims shape {shape} of {dtype.itemsize}-byte elements, {wanted} bytes, "
            f"but at most {max(available - header, 0)} bytes follow; the file is cut short or not IDX: fetch it again"
        )
    data = bytearray()
    while len(data) <= wanted:  # one byte beyond shows that there is more than the header says
        piece = stream.read(min(_PIECE, wanted + 1 - len(data)))
        if not piece:
            break
        data += piece
    if len(data) != wanted:
        found = f"only {len(data)} bytes follow" if len(data) < wanted else "more bytes follow"
        raise ValueError(
            f"load_idx: the header of {path} claims shape {shape}, {wanted} bytes, but {found}; "
            "the file is damaged: fetch or copy it again"
        )
    array = np.frombuffer(data, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _read_header(stream: BinaryIO | gzip.GzipFile, path: Path) -> tuple[np.dtype, tuple[int, ...]]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in ELEMENT_TYPES:
        raise ValueError(
            f"load_idx: {path} is not an IDX file: it starts with {magic.hex(' ') or 'nothing'}, expected 00 00, "
            f"an element type ({', '.join(f'{code:02x}' for code in ELEMENT_TYPES)}) and the number of dimensions; "
            "give a file such as train-images-idx3-ubyte"
        )
    rank = magic[3]
    if rank > 64:
        raise ValueError(f"load_idx: {path} claims {rank} dimensions, at most 64 are possible; the file is damaged")
    extents = stream.read(4 * rank)
    if len(extents) < 4 * rank:
        raise ValueError(f"load_idx: {path} ends inside its header of {rank} dimensions; fetch or copy it again")
    return np.dtype(ELEMENT_TYPES[magic[2]]), tuple(int(extent) for extent in np.frombuffer(extents, ">u4"))


_NAME = re.compile(r"(?:.*-)?(train|t10k|test)-(images|labels)[-.]idx([0-9])-ubyte(?:\.gz)?")


def find_idx_pair(folder: str | os.PathLike[str], train: bool) -> tuple[Path, Path]:
    """The image file and the label file of one part of an MNIST-format data set.

    folder: holds files named as in MNIST, `train-images-idx3-ubyte`, `t10k-labels-idx1-ubyte.gz`, ...; a plain file
            goes before its .gz
    train:  the training part, else the test part (`t10k-` or `test-`)
    Errors: FileNotFoundError that names what is there; ValueError where several data sets lie in one folder.
    """
    folder = Path(folder)
    part = "train" if train else "t10k"
    wanted = f"{part}-images-idx3-ubyte and {part}-labels-idx1-ubyte (plain or .gz)"
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"find_idx_pair: {folder} {what}; give a folder that holds {wanted}")
    found: dict[str, dict[str, Path]] = {"images": {}, "labels": {}}
    names = sorted(entry.name for entry in folder.iterdir())
    for name in names:
        match = _NAME.fullmatch(name)
        if match and (match[1] == "train") == train:
            # Sorted, so a plain file comes before its compressed twin and stays.
            found[match[2]].setdefault(name.removesuffix(".gz"), folder / name)
    for kind, files in found.items():
        if not files:
            there = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "nothing"
            raise FileNotFoundError(f"find_idx_pair: no {kind} file in {folder}: expected {wanted}, found {there}")
        if len(files) > 1:
            raise ValueError(
                f"find_idx_pair: {folder} holds several {part} {kind} files ({', '.join(files)}); "
                "keep each data set in a folder of its own"
            )
    return next(iter(found["images"].values())), next(iter(found["labels"].values()))
