"""Casts between every pair of real dtypes: NaN, infinities, values out of range, halves to even, subnormals."""

from __future__ import annotations

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import ALL, DType, iinfo
from tensorsmith.ops.creation import array_of

torch = pytest.importorskip("torch")

REAL = [d for d in ALL if d.kind != "c"]
FLOATS = [
    0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.9, 127.0, 128.0, 255.0, 256.0, 300.0, -129.0, 65504.0, 65519.0, 65520.0, 2.0**31,
    -(2.0**31), 2.0**32, 2.0**53, 2.0**63, -(2.0**63), 2.0**64, 1e30, -1e30, 3.4e38, 1e300, np.inf, -np.inf, np.nan, 1e-40,
    1e-45, 5.96e-8, 2.98e-8, 1.00048828125, 1.00390625, 1.01171875, -1.0, -0.99,
]  # fmt: skip
WHOLE = [0, 1, 2, 127, 128, 255, 256, 2049, 2051, 257, 259, 65535, 16777217, 16777219, 2**31 - 1, 2**31, 2**32, 2**53 + 1,
         2**63 - 1, 2**63, 2**63 + 1025, 2**64 - 1, -1, -128, -129, -(2**31), -(2**63)]  # fmt: skip


def values(dtype: DType) -> np.ndarray:
    if dtype.kind in "fb":
        with np.errstate(all="ignore"):
            return np.array(FLOATS if dtype.kind == "f" else [0, 1]).astype(dtype.numpy)
    return np.array([v for v in WHOLE if iinfo(dtype).min <= v <= iinfo(dtype).max], dtype.numpy)


def integer(value: float, dtype: DType) -> int:
    """By our rule: floats saturate and NaN is 0, integers keep their low bits."""
    limits = iinfo(dtype)
    if isinstance(value, float):
        return 0 if value != value else int(min(max(value, float(limits.min)), limits.max + 1.0) if abs(value) < np.inf else
                                            limits.max if value > 0 else limits.min)  # fmt: skip
    low = int(value) & ((1 << limits.bits) - 1)
    return low - (1 << limits.bits) if low > limits.max else low


@pytest.mark.parametrize("source", REAL, ids=lambda d: d.name)
def test_every_pair(source: DType) -> None:
    given = values(source)
    x = ts.from_numpy(given.copy())
    theirs = torch.from_numpy(given.view(np.int16)).view(torch.bfloat16) if source is ts.bfloat16 else torch.from_numpy(given)
    for target in REAL:
        if target.kind in "iu":
            limits = iinfo(target)
            wanted = np.array([min(integer(v, target), limits.max) for v in given.tolist()], target.numpy)
        else:
            found = theirs.to(getattr(torch, target.name))
            wanted = found.view(torch.int16).numpy().view(target.numpy) if target is ts.bfloat16 else found.numpy()
        written = ts.zeros(len(given), dtype=target).copy_(x)
        for ours in (array_of(x.to(target)), array_of(written)):
            bits = f"u{target.itemsize}"
            same = (ours.view(bits) == wanted.view(bits)) | ((ours != ours) & (wanted != wanted))
            assert same.all(), (target, given[~same], ours[~same], wanted[~same])
