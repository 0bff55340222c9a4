"""Objects as images: code that runs wherever it is put, and how it gets there.

LLVM's objects of kernels are simple: code and constants that refer to each other by distance, and names from outside. An
image holds them side by side with the distances filled in, and behind them, on pages that stay writable, one address for
each name from outside. Putting it into memory is a copy and these addresses, so thirty kernels take as long as JITLink
takes for one.

    code: text and constants of every object, stubs of calls outwards | slots: addresses | what starts as zeros | data

Images are made of 64-bit x86 ELF objects whose relocations are known here; `image_of` answers None for any other, which is
for JITLink.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorsmith.targets.cpu.machine import is_x86

ALIGN = 64  # of data
_PAGE = 4096
_MOST_BYTES = 1 << 28  # of a section
_HEADER = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _ADDENDS, _ZEROS = 2, 4, 8  # types of sections
_WRITABLE, _ALLOCATED = 1, 2  # flags of sections
_DISTANCE, _CALL = 2, 4  # relocations: R_X86_64_PC32, R_X86_64_PLT32
_OF_SLOT = frozenset({9, 41, 42})  # R_X86_64_GOTPCREL, GOTPCRELX, REX_GOTPCRELX
_STUB = 8  # bytes of a jump through a slot
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name type flags address offset size link info alignment entry
_SYMBOL = struct.Struct("<IBBHQQ")  # name info other section value size
_ADDEND = struct.Struct("<QQq")  # place, symbol and type, addend


class _Other(Exception):
    """What is in the object has no image."""


@dataclass
class Image:
    """Code that runs wherever it is put.

    slots:   what each slot holds: the address of a name from outside, or of a place in the image
    zeros:   bytes behind the slots
    data:    what lies behind those
    exports: for each object where its global symbols are
    """

    code: bytes
    slots: list[str | int]
    zeros: int
    exports: list[dict[str, int]]
    data: bytes = b""

    @property
    def data_at(self) -> int:
        """Where the data starts."""
        end = len(self.code) + 8 * len(self.slots) + self.zeros
        return end + -end % ALIGN


class _Relocation(NamedTuple):
    """A distance of four bytes to fill in at a place of a section."""

    section: int
    place: int
    symbol: int
    kind: int
    addend: int


@dataclass(eq=False)
class _Object:
    raw: bytes
    sections: list[tuple[int, ...]]
    symbols: list[tuple[str, int, int]] = field(default_factory=list)  # name ('' for its own), section, place in it
    places: dict[int, int] = field(default_factory=dict)  # of sections in the image

    def relocations(self) -> list[_Relocation]:
        """Those of what is loaded."""
        found = []
        for _, kind, _, _, offset, size, _, section, *_ in self.sections:
            if kind == _ADDENDS and section in self.places:
                length = self.sections[section][5]
                for place, which, addend in _ADDEND.iter_unpack(self.raw[offset : offset + size]):
                    if place + 4 > length:
                        raise ValueError("a relocation lies outside")
                    found.append(_Relocation(section, place, which >> 32, which & 0xFFFFFFFF, addend))
        return found

    def place_of(self, symbol: int) -> int:
        """Where a symbol of its own is in the image."""
        _, section, value = self.symbols[symbol]
        if section not in self.places:
            raise _Other
        return self.places[section] + value

    def target(self, symbol: int) -> _Target:
        """What a slot for a symbol holds."""
        name, section, _ = self.symbols[symbol]
        return (self, symbol) if section else name

    def exports(self) -> dict[str, int]:
        """Where its global symbols are in the image."""
        return {name: self.places[section] + value for name, section, value in self.symbols if name and section in self.places}


_Target = str | tuple[_Object, int]  # a name from outside, or a symbol of an object


@functools.cache
def images_run_here() -> bool:
    """Whether this process can run images: 64-bit x86 under Linux."""
    import platform

    return sys.platform.startswith("linux") and is_x86(platform.machine()) and ctypes.sizeof(ctypes.c_void_p) == 8


def image_of(objects: Sequence[bytes]) -> Image | None:
    """One image of several objects, whose names may be the same; None where one of them has none.

    Raises:
        ValueError: a file that is damaged.
    """
    try:
        return _assemble([_read(raw) for raw in objects])
    except _Other:
        return None
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"an object file is damaged: {error}") from None


def _read(raw: bytes) -> _Object:
    """The sections and symbols of an object."""
    if raw[:7] != _HEADER or struct.unpack_from("<HH", raw, 16) != (_RELOCATABLE, _X86_64):
        raise _Other
    (start,) = struct.unpack_from("<Q", raw, 40)
    size, count = struct.unpack_from("<HH", raw, 58)
    if size != _SECTION.size or start + size * count > len(raw):
        raise ValueError("its sections lie outside")
    found = _Object(raw, list(_SECTION.iter_unpack(raw[start : start + size * count])))
    for _, kind, flags, _, offset, size, link, _, alignment, _ in found.sections:
        if kind != _ZEROS and offset + size > len(raw):
            raise ValueError("a section lies outside")
        if alignment > _PAGE or size > _MOST_BYTES:
            raise ValueError("a section is too large")
        if flags & _ALLOCATED and flags & _WRITABLE and kind != _ZEROS and size:
            raise _Other  # variables with a first value
        if kind == _SYMBOLS:
            names = found.sections[link]
            for name, info, _, section, value, _ in _SYMBOL.iter_unpack(raw[offset : offset + size]):
                local = info >> 4 == 0
                found.symbols.append(("" if local else _text(raw, names[4] + name), section, value))
    return found


def _text(raw: bytes, at: int) -> str:
    return raw[at : raw.index(b"\0", at)].decode()


def _assemble(objects: Sequence[_Object]) -> Image:
    code = bytearray()
    for each in objects:
        for number, (_, kind, flags, _, offset, size, _, _, alignment, _) in enumerate(each.sections):
            if flags & _ALLOCATED and kind != _ZEROS:
                code += bytes(-len(code) % max(alignment, 16))
                each.places[number] = len(code)
                code += each.raw[offset : offset + size]
    stubs: dict[str, int] = {}
    slot_of: dict[_Target, int] = {}
    for each in objects:
        for relocation in each.relocations():
            name, section, _ = each.symbols[relocation.symbol]
            if relocation.kind in _OF_SLOT:
                slot_of.setdefault(each.target(relocation.symbol), len(slot_of))
            elif relocation.kind == _CALL and not section:
                slot_of.setdefault(name, len(slot_of))
                if name not in stubs:
                    code += bytes(-len(code) % _STUB)
                    stubs[name] = len(code)
                    code += bytes(_STUB)
            elif relocation.kind not in (_DISTANCE, _CALL) or not section:
                raise _Other  # data from outside may lie further away than a distance reaches
    code += bytes(-len(code) % _PAGE)
    slots_at = len(code)
    end = zeros_at = slots_at + 8 * len(slot_of)
    for each in objects:
        for number, (_, kind, flags, _, _, size, _, _, alignment, _) in enumerate(each.sections):
            if flags & _ALLOCATED and kind == _ZEROS:
                end += -end % max(alignment, 16)
                each.places[number] = end
                end += size
    for name, at in stubs.items():  # jmp *[rip + distance]
        code[at : at + 6] = b"\xff\x25" + struct.pack("<i", slots_at + 8 * slot_of[name] - at - 6)
    for each in objects:
        for relocation in each.relocations():
            name, section, _ = each.symbols[relocation.symbol]
            if relocation.kind in _OF_SLOT:
                target = slots_at + 8 * slot_of[each.target(relocation.symbol)]
            else:
                target = each.place_of(relocation.symbol) if section else stubs[name]
            at = each.places[relocation.section] + relocation.place
            struct.pack_into("<i", code, at, target + relocation.addend - at)
    slots = [key if isinstance(key, str) else key[0].place_of(key[1]) for key in slot_of]
    return Image(bytes(code), slots, end - zeros_at, [each.exports() for each in objects])


def load(image: Image, symbols: Mapping[str, int] | None = None) -> int:
    """Put an image into memory; the address at which it starts.

    Raises:
        LookupError: a name from outside that neither `symbols` nor the process has.
        OSError: the system gives no memory, or does not let it be executed.
    """
    given = symbols or {}
    length = image.data_at + len(image.data)
    memory = mmap.mmap(-1, max(length, _PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    addresses = [base + slot if isinstance(slot, int) else given.get(slot) or address_of(slot) for slot in image.slots]
    memory[: len(image.code)] = image.code
    struct.pack_into(f"<{len(addresses)}Q", memory, len(image.code), *addresses)
    memory[image.data_at : length] = image.data
    if _protect()(base, len(image.code), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "the system does not let compiled kernels be executed")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # code is never unloaded: recipes hold bare addresses
    return base


@functools.cache
def _protect() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


@functools.cache
def address_of(name: str) -> int:
    """Where the process has a name: libc, the Python C API. LookupError where it has none."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name))
    except ValueError:
        raise LookupError(f"the process has no symbol {name}") from None
