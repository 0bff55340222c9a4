"""Recipes and plans: the native arrays that describe launches.

A recipe is an array of 64-bit words::

    [function, chunks, P, W, flags, arguments[0..W)]

``P`` words are given at each launch; ``arguments[P]`` is replaced by the address of the launch's error word; the words
after it are constants (extents, byte strides, ...).  The kernel's arguments are a private copy of ``arguments``, so a
recipe is never written and several threads may launch it.

A plan runs several recipes in one call::

    [steps, P, slots, widest W, flags, most chunks, slot values[slots],
     then for each step: recipe address, sources[P of the recipe]]

A source is ``offset << 16 | index``: word ``index`` of the table (the P words given, then the slot values) plus
``offset`` (signed, bytes).
"""

from __future__ import annotations

import array
import enum
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from tensorsmith.targets.cpu.pool_text import MOST_CHUNKS

RELEASE_GIL = 1  # bit of the flags


class RecipeWord(enum.IntEnum):
    """Where the words of a recipe are; ARGUMENTS is the first of the rest."""

    FUNCTION = 0
    CHUNKS = 1
    GIVEN = 2
    WIDTH = 3
    FLAGS = 4
    ARGUMENTS = 5


class PlanWord(enum.IntEnum):
    """Where the words of a plan are; SLOT_VALUES is the first of the rest."""

    STEPS = 0
    GIVEN = 1
    SLOTS = 2
    WIDTH = 3
    FLAGS = 4
    CHUNKS = 5
    SLOT_VALUES = 6


RECIPE_HEADER = int(RecipeWord.ARGUMENTS)
PLAN_HEADER = int(PlanWord.SLOT_VALUES)
SOURCE_BITS = 16  # of a source that name its word
ERROR_BITS = 32  # of what `launch_many` returns that hold the code
MOST_WORDS = 4096  # a launch copies its words to the C stack
_MOST_TABLE = 1 << SOURCE_BITS


class Recipe:
    """One launchable call of a kernel: function, number of chunks, constants.

    ``address`` is valid while the object lives: keep the recipe, not only its address.

    Args:
        function_address: ``void fn(i64* arguments, i32 chunk, i32 chunks, i32 worker)``.
        chunks: into how many independent parts the work falls (a function of shape and kernel only).
        launch_words: how many words each launch gives.
        constants: the words after the error word; Python floats are stored as the bits of a double.
        flags: ``RELEASE_GIL`` to let other Python threads run meanwhile.

    Raises:
        ValueError: an argument outside its range.
    """

    __slots__ = ("_words", "address", "chunks", "launch_words", "flags", "keep")

    def __init__(
        self,
        function_address: int,
        chunks: int,
        launch_words: int,
        constants: Sequence[int | float] = (),
        flags: int = 0,
    ) -> None:
        width = launch_words + 1 + len(constants)
        if function_address <= 0:
            raise ValueError(f"a recipe needs a function, got address {function_address}")
        if not 0 <= chunks <= MOST_CHUNKS:
            raise ValueError(f"a recipe has between 0 and {MOST_CHUNKS} chunks, got {chunks}")
        if launch_words < 0 or width > MOST_WORDS:
            raise ValueError(f"a recipe has at most {MOST_WORDS} words, got {width} ({launch_words} launch words)")
        words = [function_address, chunks, launch_words, width, flags, *[0] * (launch_words + 1)]
        words += [_bits(value) for value in constants]
        words += [0] * (-width % 4)  # launches copy four words at a time
        self._words = array.array("q", words)
        self.address: int = self._words.buffer_info()[0]
        self.chunks = chunks
        self.launch_words = launch_words
        self.flags = flags
        self.keep: object = None  # whatever must live as long as the recipe (packed weights, ...)

    @property
    def function(self) -> int:
        """The address of the kernel's function."""
        return self._words[RecipeWord.FUNCTION]

    @property
    def width(self) -> int:
        """Number of argument words."""
        return self._words[RecipeWord.WIDTH]

    @property
    def constants(self) -> tuple[int, ...]:
        """The constant words."""
        start = RECIPE_HEADER + self.launch_words + 1
        return tuple(self._words[start : RECIPE_HEADER + self.width])

    def __repr__(self) -> str:
        return (
            f"Recipe(function={self._words[RecipeWord.FUNCTION]:#x}, chunks={self.chunks}, launch_words={self.launch_words}, "
            f"constants={list(self.constants)})"
        )


@dataclass(frozen=True, slots=True)
class Given:
    """A source: word ``index`` of those given to ``launch_many``, plus ``offset`` bytes."""

    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """A source: slot ``index`` of the plan (a temporary's base address, or a constant), plus ``offset`` bytes."""

    index: int
    offset: int = 0


class NativePlan:
    """Several launches in one native call; it stops at the first error.

    ``address`` is valid while the object lives, which keeps the recipes alive too.

    Args:
        steps: recipes with one source for each of their launch words, in the order they run.
        words: how many words each call gives.
        slots: addresses of temporaries, or constant words; :meth:`set_slot` changes them between calls.
        flags: ``RELEASE_GIL`` to let other Python threads run meanwhile (then no two threads may run one plan whose
            slots are temporaries).

    Raises:
        ValueError: a source that names no word, or a number of sources that is not the recipe's.
    """

    __slots__ = ("_words", "address", "steps", "words", "_lock", "_slot_count")

    def __init__(
        self,
        steps: Sequence[tuple[Recipe, Sequence[Given | Slot]]],
        words: int,
        slots: Sequence[int | float] = (),
        flags: int = 0,
    ) -> None:
        if words < 0 or words + len(slots) > min(_MOST_TABLE, MOST_WORDS):
            raise ValueError(f"a plan has at most {MOST_WORDS} words and slots, got {words} and {len(slots)}")
        body: list[int] = []
        for number, (recipe, sources) in enumerate(steps):
            if len(sources) != recipe.launch_words:
                raise ValueError(
                    f"step {number} of the plan gives {len(sources)} words to a recipe of {recipe.launch_words}"
                )
            body.append(recipe.address)
            body += [_source(number, source, words, len(slots)) for source in sources]
        widest = max((recipe.width for recipe, _ in steps), default=0)
        most_chunks = max((recipe.chunks for recipe, _ in steps), default=0)
        header = [len(steps), words, len(slots), widest, flags, most_chunks]
        self._words = array.array("q", [*header, *map(_bits, slots), *body])
        self.address: int = self._words.buffer_info()[0]
        self.steps = tuple(recipe for recipe, _ in steps)  # the recipes live as long as the plan
        self.words = words
        self._slot_count = len(slots)
        self._lock = threading.Lock()

    @property
    def slots(self) -> tuple[int, ...]:
        """The slot values."""
        return tuple(self._words[PLAN_HEADER : PLAN_HEADER + self._slot_count])

    def set_slot(self, index: int, value: int | float) -> None:
        """Change one slot (a workspace that moved); not while the plan runs in another thread."""
        if not 0 <= index < self._slot_count:
            raise IndexError(f"the plan has {self._slot_count} slots, got index {index}")
        self._words[PLAN_HEADER + index] = _bits(value)


def encode_error(step: int, code: int) -> int:
    """What ``launch_many`` returns for error ``code`` (1 .. 2**32 - 1) of step ``step``."""
    return step << ERROR_BITS | (code & (1 << ERROR_BITS) - 1)


def decode_error(value: int) -> tuple[int, int]:
    """(step, code) of a value that ``launch_many`` returned; codes are signed, of 32 bits."""
    code = value & (1 << ERROR_BITS) - 1
    return value >> ERROR_BITS, code - (1 << ERROR_BITS) if code >= 1 << ERROR_BITS - 1 else code


def _source(step: int, source: Given | Slot, words: int, slots: int) -> int:
    count = slots if isinstance(source, Slot) else words
    kind = "slots" if isinstance(source, Slot) else "words"
    if not 0 <= source.index < count:
        raise ValueError(f"step {step} of the plan names {source}, but there are {count} {kind}")
    if not -(1 << 47) <= source.offset < 1 << 47:
        raise ValueError(f"step {step} of the plan has an offset of {source.offset} bytes")
    return source.offset << SOURCE_BITS | (source.index + (words if isinstance(source, Slot) else 0))


def _bits(value: int | float) -> int:
    """The word of a Python number: an int in two's complement (unsigned 64-bit values too), a float as its bits."""
    if isinstance(value, float):
        return int.from_bytes(array.array("d", [value]).tobytes(), sys.byteorder, signed=True)
    if (1 << 63) <= value < (1 << 64):
        return value - (1 << 64)
    return value
