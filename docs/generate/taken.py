"""The column of dtypes in docs/operators.md, from what `python tests/ops/taken_dtypes.py --write` measured."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

KEPT = Path(__file__).with_name("taken_dtypes.json")

# Dtypes that are mostly taken together, as the page calls them.
GROUPS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "int": ("uint8", "int8", "int16", "int32", "int64"),
    "uint": ("uint16", "uint32", "uint64"),
    "float": ("float16", "bfloat16", "float32", "float64"),
    "complex": ("complex64", "complex128"),
}


def kept() -> dict[str, list[str]]:
    """The names of the dtypes that were taken, by the operator's key in the table."""
    return {key: names.split() for key, names in json.loads(KEPT.read_text(encoding="utf-8")).items()}


def words(names: Collection[str]) -> str:
    """Dtypes in few words: "all", "int, float", "float but float16", or "—" for none."""
    found: list[str] = []
    whole = 0
    for group, members in GROUPS.items():
        absent = [name for name in members if name not in names]
        if not absent:
            found.append(group)
            whole += 1
        elif len(absent) == 1 and len(members) > 2:
            found.append(f"{group} but {absent[0]}")
        else:
            found += [name for name in members if name in names]
    return "all" if whole == len(GROUPS) else ", ".join(found) or "—"


__all__ = ["GROUPS", "kept", "words"]
