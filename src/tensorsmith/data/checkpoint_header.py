"""The header of a safetensors file, read without trust.

A file is 8 bytes (length n of the header, little-endian), n bytes of JSON, and the tensors' bytes. The JSON maps names
to {"dtype", "shape", "data_offsets"}; "__metadata__" maps strings to strings. Everything is checked against the size of
the file before anything is allocated: a file is loaded as a whole or refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType

LONGEST_HEADER = 100_000_000  # bytes; the same as the safetensors library's
MOST_AXES = 64

CODES: dict[str, DType] = {
    "BOOL": dtypes.bool_, "U8": dtypes.uint8, "I8": dtypes.int8, "U16": dtypes.uint16, "I16": dtypes.int16,
    "U32": dtypes.uint32, "I32": dtypes.int32, "U64": dtypes.uint64, "I64": dtypes.int64, "F16": dtypes.float16,
    "BF16": dtypes.bfloat16, "F32": dtypes.float32, "F64": dtypes.float64, "C64": dtypes.complex64,
}  # fmt: skip
CODE_OF: dict[DType, str] = {dtype: code for code, dtype in CODES.items()}


class CheckpointError(ValueError):
    """A file that cannot be loaded: names the file, what was found and what to do."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: where its bytes lie, counted from the end of the header."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    """What a header says: tensors in the order of their bytes, metadata, and where the bytes begin."""

    entries: tuple[Entry, ...]
    metadata: dict[str, str]
    data: int


def read_header(file: BinaryIO, size: int, where: str) -> Header:
    """The header of a file of `size` bytes. CheckpointError (naming `where`) for anything that is not right."""

    def fail(found: str, advice: str = "the file is damaged or was never complete; get or save it again") -> NoReturn:
        raise CheckpointError(f"{where}: {found}: {advice}")

    if size < 8:
        fail(f"the file has {size} bytes, a safetensors file at least 8")
    length = int.from_bytes(_exactly(file, 8, where), "little")
    if length > LONGEST_HEADER or length > size - 8:
        fail(
            f"the first 8 bytes announce a header of {length} bytes, the file has {size}",
            "this is no safetensors file, or it is cut off",
        )
    text = _exactly(file, length, where)
    if not text.startswith(b"{"):
        fail("the header does not begin with '{'", "this is no safetensors file")
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        fail("the header is nested too deeply")
    except ValueError as error:  # of the decoder, of JSON, of the hooks
        fail(f"the header is not valid JSON ({error})")
    if not isinstance(found, dict):
        fail("the header is no JSON object")
    metadata = found.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        fail("__metadata__ does not map strings to strings")
    entries = [_entry(name, value, fail) for name, value in found.items()]
    return Header(_in_order(entries, size - 8 - length, fail), metadata, 8 + length)


def _exactly(file: BinaryIO, count: int, where: str) -> bytes:
    read = file.read(count)
    if len(read) != count:
        raise CheckpointError(f"{where}: the file ended while it was read ({len(read)} of {count} bytes)")
    return read


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {_short(twice)} occurs twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _entry(name: str, value: Any, fail: Any) -> Entry:
    """One tensor's entry, its parts checked by themselves."""
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        fail(f"the entry of tensor {_short(name)} does not consist of dtype, shape and data_offsets")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or code not in CODES:
        fail(f"tensor {_short(name)} has dtype {_short(code)}", f"convert it to one of {', '.join(CODES)}")
    if not isinstance(shape, list) or not all(_is_count(n) for n in shape) or len(shape) > MOST_AXES:
        fail(f"tensor {_short(name)} has shape {_short(shape)}, not at most {MOST_AXES} non-negative integers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(n) for n in offsets):
        fail(f"tensor {_short(name)} has data_offsets {_short(offsets)}, not two non-negative integers")
    dtype = CODES[code]
    size, count = dtype.itemsize, dtype.itemsize
    for extent in shape:
        count *= extent
        size *= max(extent, 1)  # an extent of 0 must not hide one that no address could count
        if size >= 1 << 63:
            fail(f"tensor {_short(name)} has shape {_short(shape)}, larger than any memory")
    start, stop = offsets
    if stop - start != count:
        fail(
            f"tensor {_short(name)} of shape {_short(shape)} and dtype {code} needs {count} bytes, its data_offsets "
            f"[{start}, {stop}] give {stop - start}"
        )
    return Entry(name, dtype, tuple(shape), start, stop)


def _in_order(entries: Iterable[Entry], available: int, fail: Any) -> tuple[Entry, ...]:
    """The entries by position, after checking that they fill the data without gap or overlap."""
    ordered = sorted(entries, key=lambda entry: (entry.start, entry.stop))
    position = 0
    for entry in ordered:
        if entry.stop > available:
            fail(f"tensor {_short(entry.name)} ends at byte {entry.stop} of {available} bytes of data")
        if entry.start != position:
            what = "overlaps the tensor before it" if entry.start < position else "leaves a gap before it"
            fail(f"tensor {_short(entry.name)} begins at byte {entry.start}, not {position}: it {what}")
        position = entry.stop
    if position != available:
        fail(f"the file has {available} bytes of data, its tensors fill {position}")
    return tuple(ordered)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
