"""Columns that several blocks share, on the emulated device against NumPy; the choice of stretches; the launch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tensorsmith.core.dtypes import bfloat16, float16, float32, float64
from tensorsmith.kernels.spec import KernelSpec
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.lower import lower

sys.path.append(str(Path(__file__).parent))
import fused_specs as specs  # noqa: E402
from cuda_compiles import compile_all  # noqa: E402
from test_cuda_schedules import check, values  # noqa: E402

FOUR = DeviceProperties(multiprocessors=4)
AMPERE = DeviceProperties("sm_80", 4, 163 * 1024, 164 * 1024)


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


def standard_columns(rows: int, columns: int, dtype) -> KernelSpec:
    """Columns less their means, over their deviations, and the means: two passes with REDUCEs."""
    b = specs.Body()
    x = b.load(0, dtype)
    share = b.const(1.0 / rows)
    mean = b.fn(Fn.MUL, b.reduce("sum", x), share)
    centred = b.fn(Fn.SUB, x, mean)
    variance = b.fn(Fn.MUL, b.reduce("sum", b.fn(Fn.MUL, centred, centred)), share)
    y = b.fn(Fn.MUL, centred, b.fn(Fn.RSQRT, b.fn(Fn.ADD, variance, b.const(1e-5))))
    whole = specs.dense(rows, columns)
    stores = [(dtype, whole, y), (float32, (0, 1), mean, True)]
    return b.spec("standard_columns", (rows, columns), 0, [(dtype, whole)], stores)


def walks(lowered) -> bool:
    return lowered.launches[-1].together


CASES = [
    lambda: specs.softmax((4000, 96), 0, float32), lambda: specs.softmax((4096, 128), 0, bfloat16),
    lambda: specs.softmax((3300, 200), 0, float16, log=True), lambda: specs.softmax((7000, 72), 0, float32),
    lambda: specs.softmax((3900, 150), 0, float32), lambda: specs.softmax((1900, 64), 0, float64),
    lambda: specs.softmax_gradient((2000, 104), 0, float32), lambda: specs.softmax_gradient((1990, 136), 0, bfloat16),
    lambda: standard_columns(4000, 104, float32), lambda: standard_columns(3500, 200, bfloat16),
]  # fmt: skip
NAMES = ["ragged", "whole", "log", "narrow", "pairs", "double", "gradient", "gradient of halves", "twice", "twice halves"]


@pytest.mark.parametrize("make", CASES, ids=NAMES)
def test_against_numpy(make):
    lowered = check(make(), properties=FOUR)
    assert walks(lowered)
    compile_all(lowered, ("sm_80", "sm_90a"))


def test_a_card_before_hopper():
    assert walks(check(specs.softmax((4000, 96), 0, float32), properties=AMPERE))
    assert not walks(lower(specs.softmax((4000, 96), 0, float32), DeviceProperties("sm_75", 4, 64 * 1024, 64 * 1024)))


def test_addresses_that_no_pack_can_have():
    assert walks(check(specs.softmax((4000, 96), 0, bfloat16), shift=1, properties=FOUR))


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_infinities_and_nan(dtype):
    x = values(dtype, 4000 * 128, 0).reshape(4000, 128)
    x[5:3000, 0] = -np.inf  # in some blocks nothing else
    x[:, 1] = -np.inf
    x[3999, 2], x[17, 3], x[2000, 4] = np.inf, np.nan, 3e4
    x[:, 5] = -3e4
    assert walks(check(specs.softmax((4000, 128), 0, dtype), inputs=[x.reshape(-1)], properties=FOUR))


@pytest.mark.parametrize("rows, columns, dtype, parts, groups", [
    (8192, 8192, float32, 16, 16), (8192, 8192, bfloat16, 16, 16), (65536, 1024, float32, 64, 4),
    (65536, 1024, bfloat16, 64, 4), (2000, 4096, float32, 4, 64),
])  # fmt: skip
def test_layouts_on_a_large_card(rows, columns, dtype, parts, groups):
    """A column is one group's; the groups fill the card; two blocks have room on a multiprocessor."""
    clear, launch = lower(specs.softmax((rows, columns), 0, dtype)).launches
    properties = DeviceProperties()
    assert launch.grid == (groups, parts, 1) and launch.together and not clear.together
    assert groups * parts <= 2 * properties.multiprocessors
    assert 2 * (launch.shared_bytes + 9 * 1024) <= properties.shared_bytes_a_multiprocessor
    assert "__launch_bounds__(256, 2)" in launch.source


@pytest.mark.parametrize("spec", [
    specs.softmax((1000, 8192), 0, float32), specs.softmax((8192, 64), 0, float32), specs.softmax((2**22, 64), 0, float32),
    specs.reduction("sum", (65536, 1024), 0, float32),
], ids=["short", "few columns", "too long", "one pass"])  # fmt: skip
def test_others_stay_as_they_are(spec):
    assert not any(launch.together for launch in lower(spec).launches)


def test_results_are_the_same_every_time():
    from emulator.run import run_lowered

    lowered = lower(specs.softmax((4000, 96), 0, float32), FOUR)
    found = []
    for _ in range(2):
        x, y = values(float32, 4000 * 96, 0), np.empty(4000 * 96, np.float32)
        assert run_lowered(lowered, [x, y]) == 0
        found.append(y)
    np.testing.assert_array_equal(*found)
