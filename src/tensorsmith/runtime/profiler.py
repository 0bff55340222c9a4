"""What the kernels did: calls, seconds, bytes and floating-point operations by kernel name, while `active`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

clock = time.perf_counter
active = False


@dataclass
class Row:
    """Totals of one kernel name."""

    name: str
    calls: int = 0
    seconds: float = 0.0
    bytes_moved: int = 0
    flops: int = 0


_rows: dict[str, Row] = {}
# Called when profiling begins and ends: what launches kernels without asking `active` forgets its short cuts.
when_switched: list[Callable[[], object]] = []


def record(name: str, seconds: float, bytes_moved: int, flops: int) -> None:
    """Add one call."""
    row = _rows.get(name)
    if row is None:
        row = _rows[name] = Row(name)
    row.calls += 1
    row.seconds += seconds
    row.bytes_moved += bytes_moved
    row.flops += flops


@contextmanager
def profile() -> Iterator[dict[str, Row]]:
    """Collect while the block runs: `with profile() as rows: ...`; rows by kernel name."""
    global active, _rows
    before, active, _rows = (active, _rows), True, {}
    _switched()
    try:
        yield _rows
    finally:
        active, _rows = before
        _switched()


def _switched() -> None:
    for call in when_switched:
        call()
