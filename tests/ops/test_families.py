"""The table of families in `tensorsmith.ops` says where every operator is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from tensorsmith import ops
from tensorsmith.ops.registry import TABLE

FILES = {path.stem for path in Path(ops.__file__).parent.glob("*.py")} - {"__init__"}


def written() -> tuple[dict[str, set[str]], set[str]]:
    """The files named in each row of the families, and the files of no family."""
    families, others = (inspect.getdoc(ops) or "").split("Files of no family:")
    whole = re.sub(r"\n {8,}", " ", families)  # a row may have two lines
    rows = [line.split(maxsplit=1) for line in whole.splitlines() if line.startswith("    ")]
    alone = {line.split()[0] for line in others.splitlines() if line.startswith("    ")}
    words = {family: text.replace(",", " ").replace(";", " ").replace(":", " ").split() for family, text in rows}
    return {family: FILES & set(found) for family, found in words.items()}, alone


def test_every_file_stands_in_the_table():
    families, alone = written()
    assert set().union(*families.values()) | alone == FILES


def test_every_operator_is_in_a_file_of_its_family():
    families, _ = written()
    entries = [entry for entry in TABLE.values() if entry.family != "custom"]
    assert {entry.family for entry in entries} == set(families) - {"custom"}
    for entry in entries:
        file = inspect.unwrap(entry.function).__module__.rpartition(".")[2]
        again = entry.namespace and file == "pointwise"  # nn.functional.sigmoid is ts.sigmoid
        assert again or file in families[entry.family], f"{entry.name} of {entry.family} is in {file}"
