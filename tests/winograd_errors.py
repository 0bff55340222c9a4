"""The errors of 3x3 convolutions against float64 in docs/numerics.md: `python tests/winograd_errors.py` rewrites the table.

Bounds hold on every machine (a test holds them); what was measured may differ in its last digit with the width of vectors.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import tensorsmith as ts

PAGE = Path(__file__).parents[1] / "docs" / "numerics.md"
# The setting, the form's name, and the bound of its largest error: 64 channels, results of unit variance.
BOUNDS = {"off": ("direct", 8e-6), "default": ("F(2x2, 3x3)", 8e-6), "fast": ("F(4x4, 3x3)", 3e-5)}


def measured(mode: str, seed: int = 0) -> tuple[float, float]:
    """The largest error and the root of the mean square of one convolution of 64 channels at 56x56."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((1, 64, 56, 56), dtype=np.float32)
    w = generator.standard_normal((64, 64, 3, 3), dtype=np.float32) / np.float32(24)
    padded = np.pad(x[0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    exact = np.tensordot(w.astype(np.float64), windows, ((1, 2, 3), (0, 3, 4)))
    before = ts.backends.cpu.winograd
    ts.backends.cpu.winograd = mode
    try:
        found = ts.nn.functional.conv2d(ts.from_numpy(x), ts.from_numpy(w), padding=1).numpy()[0]
    finally:
        ts.backends.cpu.winograd = before
    error = found - exact
    return float(np.abs(error).max()), float(np.sqrt((error**2).mean()))


def table() -> str:
    """The table of the page."""
    lines = ["| `ts.backends.cpu.winograd` | form | bound | largest | root mean square |", "| --- | --- | --- | --- | --- |"]
    for mode, (form, bound) in BOUNDS.items():
        most, mean = np.max([measured(mode, seed) for seed in range(3)], axis=0)
        lines.append(f"{row(mode, form, bound)} {most:.1e} | {mean:.1e} |")
    return "\n".join(lines)


def row(mode: str, form: str, bound: float) -> str:
    """What a row of the table begins with."""
    return f'| `"{mode}"` | {form} | {bound:.0e} |'


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    page, places = re.subn(r"\| `ts\.backends\.cpu\.winograd` \|.*\n(?:\|.*\n)+", lambda _: table() + "\n", page)
    assert places == 1, "docs/numerics.md has one table of these errors"
    PAGE.write_text(page, encoding="utf-8")
