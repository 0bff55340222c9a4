"""Into how many chunks a kernel's work falls: a function of its shape and body, never of the number of threads."""

from __future__ import annotations

import math

from tensorsmith.kernels.canonical import Structure
from tensorsmith.targets.cpu.body import instruction_cost

CHUNK_NANOSECONDS = 16_000.0  # work worth a chunk of its own
SERIAL_NANOSECONDS = 20_000.0  # below this, one chunk
ENOUGH_CHUNKS = 64  # more parts would not spread the work any better


def chunk_count(nanoseconds: float) -> int:
    """Into how many parts that much work falls; depends on nothing but the estimate."""
    if nanoseconds < SERIAL_NANOSECONDS:
        return 1
    return min(ENOUGH_CHUNKS, math.ceil(nanoseconds / CHUNK_NANOSECONDS))


def point_nanoseconds(structure: Structure) -> float:
    """Estimated time of one point: its bytes at 20 GB/s, its instructions at 16 lanes and 2 a nanosecond."""
    size = sum(d.itemsize for d in structure.inputs) + sum(d.itemsize for d in structure.outputs)
    return max(0.05 * size, sum(instruction_cost(i) for i in structure.body) / 32)
