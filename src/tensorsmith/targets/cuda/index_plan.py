"""How a kernel finds its elements: the width of indices, of packs, and division of a number into coordinates.

A kernel's points (or rows) are numbered over the kept axes, the innermost fastest, in packs of `width` neighbours along
the innermost one. Numbers, coordinates and offsets (in elements) are int where all fit, else long long; ints are divided by
multiplication with a magic number of the launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorsmith.targets.cuda.kernel import DeviceProperties

PACK_BYTES = 16  # the longest access of one thread
LARGEST_PACK_BYTES = 32  # of the widest of several operands: two accesses
_NARROW = 1 << 31


def magic(divisor: int) -> int:
    """The word by which `divide` of `memory_functions.py` divides a number below 2**31: multiplier, and shift above it."""
    shift = (divisor - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - divisor) // divisor + 1) | shift << 32


def division_words(divisors: Iterable[int], narrow: bool) -> list[int]:
    """What the kernel divides by: magic numbers for ints, the divisors themselves for long long."""
    return [magic(d) if narrow else d for d in divisors]


def reach(extents: Sequence[int], strides: Sequence[int]) -> int:
    """The largest distance of an element from the first."""
    return sum(abs(stride) * (extent - 1) for extent, stride in zip(extents, strides))


def fits_int(*values: int) -> bool:
    """Whether all values, and sums of a few of them that kernels make on the way, are ints."""
    return all(value < _NARROW for value in values)


def pack_width(itemsizes: Sequence[int], divides: Iterable[int]) -> int:
    """Elements of a pack: 16 bytes of the narrowest operand, at most 32 of the widest, and a divisor of all of `divides`.

    itemsizes: of the operands that are walked with stride 1; without any a pack is one element.
    """
    if not itemsizes:
        return 1
    width = max(1, min(PACK_BYTES // min(itemsizes), LARGEST_PACK_BYTES // max(itemsizes)))
    for value in divides:
        while value % width:
            width //= 2
    return width


def coordinate_lines(number: str, rank: int, operands: Iterable[int], inner: Sequence[int], store: str) -> list[str]:
    """Lines that make the offsets of operands from a pack's number.

    rank: kept axes; inner: each operand's class along the innermost; store: how operand k's offset is written, "o{k}"
    The struct `sizes` has `divisors[axis]`, `extents[axis]` (of packs along the innermost) and `steps[operand][axis]`.
    """
    lines, rest = [], number
    for axis in range(rank - 1, 0, -1):
        lines.append(f"const Index n{axis} = divide({rest}, sizes.divisors[{axis}]);")
        lines.append(f"const Index c{axis} = {rest} - n{axis} * (Index)sizes.extents[{axis}];")
        rest = f"n{axis}"
    coordinates = [rest, *(f"c{axis}" for axis in range(1, rank))]
    for k in operands:
        axes = [axis for axis in range(rank) if axis < rank - 1 or inner[k]]
        terms = [f"{coordinates[axis]} * (Index)sizes.steps[{k}][{axis}]" for axis in axes]
        lines.append(f"{store.format(k=k)} = {' + '.join(terms) or '0'};")
    return lines


def is_small(threads: int, properties: DeviceProperties) -> bool:
    """Whether so many threads leave the card's multiprocessors half empty."""
    return threads < properties.multiprocessors * properties.threads // 2
