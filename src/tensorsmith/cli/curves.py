"""The record of a training: a CSV file, and where matplotlib is installed a PNG of the curves."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLUMNS = ("epoch", "loss", "train_accuracy", "test_accuracy", "images_per_second", "learning_rate")


def write_log(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """All epochs so far as CSV, a line each, under a line of names."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def draw_curves(rows: Sequence[dict[str, Any]], path: Path) -> str | None:
    """Loss and accuracies over the epochs as PNG; without matplotlib, what to do about it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return f"no curves in {path}: matplotlib is not installed; pip install 'tensorsmith[plot]' (the CSV has the numbers)"
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs = [row["epoch"] for row in rows]
    left.plot(epochs, [row["loss"] for row in rows], marker=".")
    left.set(xlabel="epoch", ylabel="training loss")
    for name in ("train_accuracy", "test_accuracy"):
        right.plot(epochs, [row[name] for row in rows], marker=".", label=name.replace("_", " "))
    right.set(xlabel="epoch", ylabel="accuracy")
    right.legend()
    figure.savefig(path, dpi=120)
    return None
