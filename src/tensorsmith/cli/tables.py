"""What the commands print: progress bars and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tensorsmith.runtime.profiler import Row


class _Speed(ProgressColumn):
    """Steps of the task a second."""

    def render(self, task: Task) -> Text:
        """The speed of the last seconds, of the whole once it is over."""
        speed = task.finished_speed or task.speed
        return Text("- images/s" if speed is None else f"{speed:,.0f} images/s")


def make_progress(console: Console, unit: str, speed: bool = False) -> Progress:
    """A bar with counts, time, and the fields `loss` and `accuracy` of its task; with `speed`, images a second."""
    accuracy = TextColumn(f"{'test' if speed else 'test accuracy'} {{task.fields[accuracy]}}")  # 80 columns are enough
    return Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=10 if speed else 20), MofNCompleteColumn(),
        _Speed() if speed else TextColumn(unit), TextColumn("loss {task.fields[loss]}"), accuracy, TimeElapsedColumn(),
        console=console,
    )  # fmt: skip


def confusion_table(counts: np.ndarray, classes: Sequence[str]) -> Table:
    """Rows are the true classes, columns what the model took them for."""
    table = Table(title="confusion: true class (row) taken for (column)", title_justify="left")
    table.add_column("")
    for name in classes:
        table.add_column(name, justify="right")
    table.add_column("right", justify="right")
    for row, name in enumerate(classes):
        cells = [f"[bold]{n}[/]" if row == column else str(n) if n else "." for column, n in enumerate(counts[row])]
        total = int(counts[row].sum())
        share = f"{counts[row, row] / total:.1%}" if total else "-"
        table.add_row(name, *cells, share)
    return table


def kernel_table(rows: Iterable[Row], title: str, most: int = 20) -> Table:
    """What the kernels did, the longest first."""
    ordered = sorted(rows, key=lambda row: -row.seconds)
    whole = sum(row.seconds for row in ordered) or 1.0
    table = Table(title=title, title_justify="left")
    table.add_column("kernel")
    for heading in ("calls", "time", "share", "GB/s", "GFLOP/s"):
        table.add_column(heading, justify="right")
    for row in ordered[:most]:
        table.add_row(row.name, f"{row.calls}", _time(row.seconds), f"{row.seconds / whole:.1%}", *_rates(row))
    if ordered[most:]:
        rest = Row("the others")
        for row in ordered[most:]:
            rest.calls += row.calls
            rest.seconds += row.seconds
            rest.bytes_moved += row.bytes_moved
            rest.flops += row.flops
        table.add_row(rest.name, f"{rest.calls}", _time(rest.seconds), f"{rest.seconds / whole:.1%}", *_rates(rest))
    return table


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _rates(row: Row) -> tuple[str, str]:
    seconds = row.seconds or 1e-9
    gigabytes, gigaflops = row.bytes_moved / seconds / 1e9, row.flops / seconds / 1e9
    return (f"{gigabytes:.1f}" if row.bytes_moved else "-", f"{gigaflops:.1f}" if row.flops else "-")
