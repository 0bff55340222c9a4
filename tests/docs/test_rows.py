"""Every row of the operator page has what a row needs: a sample that tests run, a stub, a sentence, dtypes that it takes."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

import pytest

from tensorsmith.core.dtypes import ALL
from tensorsmith.ops.registry import TABLE, Public
from tensorsmith.tensor.tensor import Tensor

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS.parent / "docs" / "generate"), str(TESTS / "ops")]
import harness  # noqa: E402

import taken  # noqa: E402
from anatomy import anatomy  # noqa: E402
from pages import _sentence  # noqa: E402

PACKAGE = TESTS.parent / "src" / "tensorsmith"
ROWS = {key: entry for key, entry in TABLE.items() if entry.family != "custom"}  # those are made by other tests
KEPT = taken.kept()


@functools.cache
def written(stub: str) -> set[str]:
    """The functions, members and imported names of a stub file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / stub).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            found.add(ast.unparse(node.target))
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def stub_of(entry: Public) -> str:
    """The stub file in which the function of an entry is written."""
    return f"{entry.namespace.replace('.', '/')}.pyi" if entry.namespace else "__init__.pyi"


def missing(key: str, entry: Public) -> list[str]:
    """What a row lacks."""
    found = []
    for operator in anatomy(entry).operators:
        try:
            harness.samples(operator)
        except LookupError as error:
            found.append(str(error))
    names = [entry.name, *entry.aliases]
    found += [f"{name} in {stub_of(entry)}" for name in names if name not in written(stub_of(entry))]
    if entry.method:
        bound = [n for name in names for n in (name, name + "_") if hasattr(Tensor, n)]
        found += [f"{name} in tensor.pyi" for name in (*names, *bound) if name not in written("tensor/tensor.pyi")]
    if not _sentence(entry).strip():
        found.append("a sentence that says what it does")
    if not KEPT.get(key):
        found.append("dtypes that it takes; run: python tests/ops/taken_dtypes.py --write --missing")
    return found


@pytest.mark.parametrize("key", ROWS)
def test_a_row_has_all_that_belongs_to_it(key):
    assert not missing(key, ROWS[key])


def test_what_a_row_lacks_is_seen():
    def undocumented(x):
        return x

    found = missing("nowhere", Public("nowhere", undocumented, "pointwise"))
    assert len(found) == 4 and "nowhere in __init__.pyi" in found and "nowhere in tensor.pyi" in found


def test_no_row_is_kept_of_an_operator_that_is_gone():
    assert set(KEPT) == set(ROWS)
    assert {name for names in KEPT.values() for name in names} == {dtype.name for dtype in ALL}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([dtype.name for dtype in ALL], "all"),
        (["float32", "float64"], "float32, float64"),
        (["bool", *taken.GROUPS["int"], "bfloat16", "float32", "float64"], "bool, int, float but float16"),
        (["complex64"], "complex64"),
        ([], "—"),
    ],
)
def test_dtypes_in_words(names, expected):
    assert taken.words(names) == expected
