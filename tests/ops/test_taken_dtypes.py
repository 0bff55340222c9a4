"""The dtypes on the operator page are those that calls take: measured again for some operators of every family."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parent))
from taken_dtypes import KEPT, TABLE, taken  # noqa: E402

sys.path.append(str(KEPT.parent))
from taken import kept  # noqa: E402

EACH = 12  # every so many rows of a family are measured
FAMILIES = itertools.groupby(sorted(kept(), key=lambda key: (TABLE[key].family, key)), key=lambda key: TABLE[key].family)
CHOSEN = [key for _, keys in FAMILIES for key in list(keys)[::EACH]]


@pytest.mark.parametrize("key", CHOSEN)
def test_kept_dtypes_are_those_that_are_taken(key):
    assert taken(TABLE[key]) == kept()[key], "run: python tests/ops/taken_dtypes.py --write; python docs/generate"


def test_a_refused_dtype_is_not_taken():
    assert "bool" not in taken(TABLE["floor"]) and "complex64" not in taken(TABLE["amax"])
    assert "float16" not in taken(TABLE["linalg.svdvals"])
