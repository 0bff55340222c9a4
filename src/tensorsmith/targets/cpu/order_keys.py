"""Values as signed integers of the same order, and the words that are sorted: a key with the position it stands at."""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu.body import memory_element
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.vector import Lanes

POSITION_BITS = 32  # of a packed word


def key_element(dtype: DType) -> str:
    """The LLVM type of keys."""
    return "i64" if dtype.itemsize == 8 else "i32"


def keys_of(lanes: Lanes, dtype: DType, descending: bool, pointer: str, mask: str | None = None) -> str:
    """Keys of consecutive values: the lowest has rank 0. NaN is the largest value, and -0.0 equals 0.0."""
    element = memory_element(dtype)
    value = lanes.load(element, pointer, mask)
    bits = 8 * dtype.itemsize
    integer, last = f"i{bits}", (1 << (bits - 1)) - 1
    if dtype.kind == "f":
        value = _ordered_floats(lanes, dtype, value, integer, last)
    elif dtype.kind == "u":
        value = lanes.op("xor", integer, value, lanes.constant(integer, last + 1))
    if descending:
        value = lanes.op("xor", integer, value, lanes.constant(integer, -1))
    return lanes.convert("sext", integer, key_element(dtype), value)


def _ordered_floats(lanes: Lanes, dtype: DType, value: str, integer: str, last: int) -> str:
    """The bits of positive numbers are in order already; those of negative ones are turned round."""
    magnitude = lanes.constant(integer, last)
    if dtype.is_half:
        absolute = lanes.op("and", integer, value, magnitude)
        nan = lanes.compare("sgt", integer, absolute, lanes.constant(integer, 0x7C00 if dtype is dtypes.float16 else 0x7F80))
        zero = lanes.compare("eq", integer, absolute, lanes.constant(integer, 0))
        bits = lanes.select(zero, integer, lanes.constant(integer, 0), value)
    else:
        element = memory_element(dtype)
        nan = lanes.compare("uno", element, value, value)
        bits = lanes.bits(element, lanes.op("fadd", element, value, lanes.constant(element, 0.0)))
    negative = lanes.op("ashr", integer, bits, lanes.constant(integer, 8 * dtype.itemsize - 1))
    turned = lanes.op("xor", integer, bits, lanes.op("and", integer, negative, magnitude))
    return lanes.select(nan, integer, magnitude, turned)


@dataclass(frozen=True)
class Words:
    """How a key and its position lie in memory: packed into 64 bits, or where the key needs them all, side by side."""

    packed: bool

    @property
    def size(self) -> int:
        """Bytes of a word."""
        return 8 if self.packed else 16

    @property
    def name(self) -> str:
        """For symbols."""
        return "packed" if self.packed else "pairs"

    def kind(self) -> str:
        """The LLVM type of one word in a register."""
        return "i64" if self.packed else "<2 x i64>"

    def key(self, f: Function, word: str) -> str:
        """What is compared, as unsigned after the least has been subtracted: of a packed word all of it."""
        return word if self.packed else f.value(f"extractelement <2 x i64> {word}, i64 0")

    def store_vector(self, lanes: Lanes, element: str, keys: str, first: Value, pointer: str) -> None:
        """The words of a vector of keys that stand at `first`, `first` + 1, ..."""
        positions = lanes.op("add", "i64", lanes.splat("i64", str(first)), lanes.iota("i64"))
        if self.packed:
            wide = lanes.convert("sext", element, "i64", keys)
            moved = lanes.op("shl", "i64", wide, lanes.constant("i64", POSITION_BITS))
            lanes.store("i64", lanes.op("or", "i64", moved, positions), pointer)
        else:
            lanes.store_pairs("i64", keys, positions, pointer)

    def store_one(self, f: Function, element: str, key: str, position: Value, pointer: str) -> None:
        """The word of one key."""
        if self.packed:
            wide = f.value(f"sext {element} {key} to i64")
            moved = f.value(f"shl i64 {wide}, {POSITION_BITS}")
            f.store(f.value(f"or i64 {moved}, {position}"), "i64", pointer, 8)
        else:
            f.store(key, "i64", pointer, 8)
            f.store(position, "i64", f.offset(pointer, 8), 8)

    def position(self, f: Function, pointer: str) -> str:
        """The position of the word at an address."""
        if self.packed:
            return f.value(f"and i64 {f.load('i64', pointer, 8)}, {(1 << POSITION_BITS) - 1}")
        return f.load("i64", f.offset(pointer, 8), 8)
