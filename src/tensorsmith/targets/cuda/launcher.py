"""A lowered step as a recipe: one native function fills in the arguments and gives all launches to the driver.

`recipe(lowered, index)` compiles what is new, loads it and lays out the table that the function of `launcher_text.py` reads.
The recipe is launched, and put into plans, like those of the CPU; its words are the addresses of operands, the run-time
scalars and the addresses of scratch buffers. It runs on the stream that is current then, and returns without waiting.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Callable
from typing import Any

from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.recipe import Recipe
from tensorsmith.targets.cuda import devices, driver, modules
from tensorsmith.targets.cuda.errors import ErrorSlot
from tensorsmith.targets.cuda.kernel import Constant, ErrorWord, Launch, Lowered, TensorMap, Word
from tensorsmith.targets.cuda.launcher_text import (
    DRIVER_CODE,
    LAUNCH_BITS,
    LAUNCH_WORDS,
    MAP_WORDS,
    WRAPPERS,
    Header,
    Map,
    launcher_text,
)

_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_ATTRIBUTE_BYTES = 72  # of a CUlaunchAttribute
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes -> CUtensorMapSwizzle
_ALIGNMENT = 64


class LaunchTable:
    """What the native function reads: kept alive by the recipe.

    lowered: what it launches; functions: the handle of each launch's kernel; address: of the table
    """

    def __init__(self, lowered: Lowered, index: int, failure: Callable[[int], Exception] | None) -> None:
        self.lowered = lowered
        self.index = index
        self.given = lowered.words + len(lowered.scratch)
        device = devices.use(index)
        launches = [launch for launch in lowered.launches if all(launch.grid)]  # an empty grid is no launch
        architecture = devices.properties(index).architecture
        modules.compile_many({launch.source: launch.name for launch in launches}.items(), architecture)
        self.launches = tuple(launches)
        self.functions = tuple(
            modules.function(launch.source, launch.name, index, launch.shared_bytes) for launch in launches
        )
        fallible = any(isinstance(argument, ErrorWord) for launch in launches for argument in launch.arguments)
        self.slot = ErrorSlot(index, lowered.name, failure) if fallible else None
        self._lay_out(device.cell)

    def __del__(self) -> None:
        slot = getattr(self, "slot", None)
        if slot is not None and sys is not None and not sys.is_finalizing():  # modules go before objects at exit
            slot.retire()

    def exception(self, code: int) -> Exception:
        """What the code of a launch means: an error of the driver, or what the kernel reported while debugging."""
        if code <= DRIVER_CODE:
            number, status = divmod(DRIVER_CODE - code, 1 << LAUNCH_BITS)
            name = self.launches[number].name if number < len(self.launches) else self.lowered.name
            return driver.CudaError(f"kernel {name} of {self.lowered.name}", status)
        if self.slot is not None:
            return self.slot.exception(code)
        return RuntimeError(f"the kernel {self.lowered.name} reports error {code}")

    def _lay_out(self, cell: int) -> None:
        maps: list[TensorMap] = []
        body: list[_Part] = []
        for launch, function in zip(self.launches, self.functions):
            body += self._launch_words(launch, function, maps)
        size = 8 * (len(Header) + len(body))
        first_map = (size + _ALIGNMENT - 1) & -_ALIGNMENT
        end = first_map + 8 * MAP_WORDS * len(maps)
        pieces: list[bytes] = []
        words: list[int] = []
        behind = sum(len(part) for part in body if isinstance(part, bytes))
        self._buffer = ctypes.create_string_buffer(end + behind + _ALIGNMENT)
        self.address = (ctypes.addressof(self._buffer) + _ALIGNMENT - 1) & -_ALIGNMENT
        for part in body:
            if isinstance(part, bytes):  # lies behind the maps; the word is its address
                words.append(self.address + end + sum(map(len, pieces)))
                pieces.append(part)
            elif isinstance(part, TensorMap):
                words.append(self.address + first_map + 8 * MAP_WORDS * maps.index(part))
            else:
                words.append(part)
        header = [0] * len(Header)
        header[Header.CELL] = cell
        header[Header.LAUNCHES] = len(self.launches)
        header[Header.MAPS] = len(maps)
        header[Header.FIRST_MAP] = self.address + first_map
        header[Header.ERROR_WORD] = self.slot.host if self.slot is not None else 0
        header[Header.MOST_PARAMETERS] = max((len(launch.arguments) for launch in self.launches), default=0) or 1
        content = struct.pack(f"<{len(header) + len(words)}Q", *header, *words)
        content = content.ljust(first_map, b"\0") + b"".join(map(_map_record, maps)) + b"".join(pieces)
        ctypes.memmove(self.address, content, len(content))

    def _launch_words(self, launch: Launch, function: int, maps: list[TensorMap]) -> list[_Part]:
        attributes, count = b"", 0
        for kind, value in ((_CLUSTER_DIMENSION, launch.cluster), (_COOPERATIVE, (int(launch.together),))):
            if value not in ((1, 1, 1), (0,)):
                attributes += struct.pack(f"<2I{len(value)}I", kind, 0, *value).ljust(_ATTRIBUTE_BYTES, b"\0")
                count += 1
        geometry = struct.pack("<8I", *launch.grid, *launch.block, launch.shared_bytes, len(launch.arguments))
        words: list[_Part] = [function, *struct.unpack("<4Q", geometry), 0, attributes or 0, count]
        assert len(words) == LAUNCH_WORDS
        for argument in launch.arguments:
            if isinstance(argument, Word):
                if not 0 <= argument.index < self.given:
                    raise ValueError(f"{launch.name} takes word {argument.index}, but a run gives {self.given}")
                words.append(2 * argument.index + 1)
            elif isinstance(argument, Constant):
                words.append(b"".join(map(_packed, argument.words)))
            elif isinstance(argument, ErrorWord):
                assert self.slot is not None
                words.append(struct.pack("<Q", self.slot.device))
            else:
                if argument not in maps:
                    maps.append(argument)
                words.append(argument)
        return words


_Part = int | bytes | TensorMap


def recipe(lowered: Lowered, index: int, failure: Callable[[int], Exception] | None = None, flags: int = 0) -> Recipe:
    """The recipe of a lowered step on a device; `recipe.keep` is its `LaunchTable`.

    failure: the code that a kernel wrote to its error word -> the exception
    flags:   as of `Recipe`
    A launch whose code is not None failed: `failed(recipe, code)` is the exception.
    Errors: CudaError, CudaUnavailableError, CudaCompileError.
    """
    table = LaunchTable(lowered, index, failure)
    made = Recipe(_function(table.given), 1, table.given, (table.address,), flags)
    made.keep = table
    return made


def failed(recipe: Recipe, code: int) -> Exception:
    """The exception for the code that a launch of a recipe returned."""
    table: Any = recipe.keep
    exception: Exception = table.exception(code)
    return exception


def _function(given: int) -> int:
    """The native function for a number of given words."""
    return _functions(given // WRAPPERS * WRAPPERS)[given % WRAPPERS]


@functools.cache
def _functions(first: int) -> list[int]:
    return compile_functions(launcher_text(first), [f"launch_cuda_{given}" for given in range(first, first + WRAPPERS)])


def _packed(word: int | float) -> bytes:
    return struct.pack("<Q", word & (1 << 64) - 1) if isinstance(word, int) else struct.pack("<d", word)


def _map_record(tensor_map: TensorMap) -> bytes:
    """The record of a tensor map that has not been encoded yet."""
    rank = len(tensor_map.shape)
    if not 1 <= rank <= 5 or len(tensor_map.box) != rank or len(tensor_map.strides) != rank - 1:
        raise ValueError(f"a tensor map has 1 to 5 axes, as many extents of its box and one stride less, got {tensor_map}")
    words = [0] * MAP_WORDS
    words[Map.WORD] = tensor_map.index
    words[Map.OFFSET] = tensor_map.offset
    words[Map.DTYPE] = int(getattr(driver.bindings().CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{tensor_map.dtype}"))
    words[Map.RANK] = rank
    words[Map.SWIZZLE] = _SWIZZLES[tensor_map.swizzle]
    words[Map.MASK] = (1 << 64) - 16 if tensor_map.tested else (1 << 64) - 1
    words[Map.SHAPE : Map.SHAPE + rank] = tensor_map.shape
    words[Map.STRIDES : Map.STRIDES + rank - 1] = tensor_map.strides
    for place, numbers in ((Map.BOX, tensor_map.box), (Map.STEPS, (1,) * rank)):
        words[place : place + 3] = struct.unpack("<3Q", struct.pack("<6I", *numbers, *[0] * (6 - rank)))
    return struct.pack(f"<{MAP_WORDS}Q", *words)
