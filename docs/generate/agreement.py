"""The section of docs/operators.md on the entries of PyTorch's operator database that do not pass, and why.

The entries are those that `python tests/conformance_dtypes.py DTYPE REPORT` keeps; the reasons stand here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[2] / "tests" / "conformance_dtypes.json"

# (dtypes, entries, why): regular expressions on the whole name; the first that fits an entry is its reason.
REASONS: list[tuple[str, str, str]] = [
    (".*", "chalf", "There is no complex32; `chalf()` raises NotImplementedError."),
    (".*", "as_strided_scatter", "PyTorch's gradient passes on to what was written over and fails PyTorch's own gradcheck; "
     "ours passes it."),
    (".*", "logcumsumexp", "Our gradient is PyTorch's in float64; PyTorch's float32 gradient loses digits."),
    ("complex.*", "renorm", "PyTorch's gradient of complex numbers is NaN."),
    (".*", "sort|argsort|msort|topk|kthvalue|mode|median|nanmedian",
     "Which of several equal elements comes first is open where no stable order is asked for."),
]  # fmt: skip


def reason(dtype: str, entry: str) -> str:
    """Why an entry does not pass; "" where nobody has said it."""
    name = entry.partition("/")[0]
    for dtypes, names, why in REASONS:
        if re.fullmatch(dtypes, dtype) and re.fullmatch(names, name):
            return why
    return ""


def kept() -> dict[str, Any]:
    """What is kept, by dtype."""
    return json.loads(KEPT.read_text(encoding="utf-8"))


def section(figures: dict[str, Any] | None = None) -> list[str]:
    """The lines of the section."""
    figures = kept() if figures is None else figures
    lines = [
        "## Entries of PyTorch's database that do not pass",
        "",
        "How many entries of PyTorch's operator database pass in each dtype, and to which tolerance, stands in "
        "[numerics.md](numerics.md#agreement-with-pytorchs-operator-database). These do not "
        f"({', '.join(figures)}):",
        "",
        "| dtype | entries | samples that pass | reason |",
        "|---|---|---|---|",
    ]
    for dtype, found in figures.items():
        for why, names in _by_reason(dtype, found["failing"]).items():
            shown = [f"`{name}`" for name in names]
            counts = [_counts(found["failing"][name]) for name in names] if len(names) < 4 else []
            lines.append(f"| {dtype} | {', '.join(shown)} | {'; '.join(counts) or '—'} | {why} |")
    return [*lines, ""]


def _by_reason(dtype: str, entries: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in entries:
        found.setdefault(reason(dtype, entry), []).append(entry)
    return found


def _counts(found: dict[str, Any]) -> str:
    kinds = {kind: found[kind] for kind in ("forward", "gradient")}
    return ", ".join(f"{kind} {passed} of {total}" for kind, (passed, total) in kinds.items() if passed < total)


__all__ = ["kept", "reason", "section"]
