"""Kernels along rows with sums over them, in rounds, on the emulated device against NumPy, and the variants of rows alone."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.run import run_lowered
from tensorsmith.core.dtypes import bfloat16, float16, float32, float64
from tensorsmith.kernels.joint import JointSpec
from tensorsmith.kernels.spec import Operand, Store
from tensorsmith.targets.cuda import row_plan
from tensorsmith.targets.cuda.joint import lower_joint, refusal
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.lower import lower

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "kernels")]
import fused_specs as specs  # noqa: E402
import spec_oracle  # noqa: E402
from cuda_compiles import compile_all  # noqa: E402
from test_cuda_schedules import check, values  # noqa: E402

DEVICES = [DeviceProperties(multiprocessors=4), DeviceProperties("sm_75", 6, threads=1024)]
LIMITS = {float32: 2e-6, float16: 2e-3, bfloat16: 9e-3}


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


def expected(spec: JointSpec, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What a joint kernel stores along the rows, then its sums, in float64."""
    rows = spec.rows
    whole = specs.dense(*rows.domain)
    more = tuple(Store(Operand(rows.body[value].dtype, whole), value) for value, _ in spec.summed)
    views = [spec_oracle.view(operand, array, 0, rows.domain) for operand, array in zip(rows.inputs, inputs)]
    found = spec_oracle.evaluate(replace(rows, stores=(*rows.stores, *more)), views, [])
    count = len(rows.stores)
    return [*found[:count], *(values.astype(np.float64).sum(0) for values in found[count:])]


def run(spec: JointSpec, properties: DeviceProperties, shift: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Results and what they should be; shift: elements before the first one of every buffer."""
    rows, length = spec.rows.domain
    inputs = []
    for number, operand in enumerate(spec.rows.inputs):
        count = rows * length if operand.strides[0] else length
        inputs.append(values(operand.dtype, count + shift, number)[shift:])
    outputs = [np.full(rows * length + shift, np.nan, s.operand.dtype.numpy)[shift:] for s in spec.rows.stores]
    sums = [np.full(length, np.nan, s.operand.dtype.numpy) for s in spec.ends.stores]
    assert run_lowered(lower_joint(spec, properties), [*inputs, *outputs, *sums]) == 0
    return [*(y.reshape(rows, length) for y in outputs), *sums], expected(spec, inputs)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.architecture)
@pytest.mark.parametrize("shape", [(64, 1024), (37, 1000), (129, 7), (70, 33), (24, 4096), (2000, 6), (301, 64)], ids=str)
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
def test_rows_and_sums(shape, dtype, device):
    spec = specs.layer_norm_joint(*shape, dtype)
    for found, wanted in zip(*run(spec, device)):
        found = found.astype(np.float64)
        size = np.maximum(np.abs(wanted), np.abs(wanted).max() / 4)
        assert (np.abs(found - wanted) <= 2 * LIMITS[dtype] * size).all()


def test_addresses_that_no_pack_can_have():
    for found, wanted in zip(*run(specs.layer_norm_joint(40, 96, bfloat16), DEVICES[0], shift=1)):
        np.testing.assert_allclose(found.astype(np.float64), wanted, atol=9e-3 * np.abs(wanted).max())


def test_results_are_the_same_every_time(monkeypatch):
    spec = specs.layer_norm_joint(200, 96, float32)
    first, _ = run(spec, DEVICES[0])
    for _ in range(2):
        for before, now in zip(first, run(spec, DEVICES[0])[0]):
            np.testing.assert_array_equal(before, now)


@pytest.mark.parametrize("device", [DeviceProperties(), *DEVICES], ids=lambda device: str(device.multiprocessors))
@pytest.mark.parametrize("rows", [20_000, 65_536, 3_000_000, 2**31])
@pytest.mark.parametrize("length", [7, 768, 1024, 8192])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_limits(dtype, length, rows, device):
    """Every row has one block, no state takes in too many values, and a multiprocessor has room for the blocks."""
    lowered = lower_joint(specs.layer_norm_joint(rows, length, dtype), device)
    first, last = lowered.launches
    lanes, across, _ = first.block
    blocks = first.grid[0]
    turns = math.ceil(rows / (blocks * across))
    assert turns <= row_plan.LONGEST_CHAIN and lowered.scratch == (blocks * length * 4,) * 2
    assert blocks * across * turns >= rows and (blocks - 1) * across < rows
    assert math.ceil(blocks / last.block[1]) <= row_plan.LONGEST_CHAIN or rows == 2**31
    assert lanes * across <= 512 and last.block[0] * last.block[1] <= 512
    assert ("typedef long long Index" in first.source) == (rows * length >= 2**31)


@pytest.mark.parametrize("spec, why", [
    (specs.layer_norm_joint(100, 1024, bfloat16), "too few"), (specs.layer_norm_joint(65536, 1, float32), "no single axis"),
    (specs.layer_norm_joint(65536, 40_000, float32), "too long"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_two_kernels_where_one_does_not_serve(spec, why):
    assert why in refusal(spec, DeviceProperties())
    with pytest.raises(NotImplementedError, match=why):
        lower_joint(spec)


def test_words_and_bytes():
    lowered = lower_joint(specs.layer_norm_joint(65536, 1024, bfloat16, bfloat16))
    assert lowered.words == 3 + 2 + 2
    assert lowered.bytes_moved == 4 * 65536 * 1024 * 2 + 3 * 1024 * 2


@pytest.mark.parametrize("way", ["shared", "rounds", "ahead"])
@pytest.mark.parametrize("make", [
    lambda: specs.layer_norm(100, 1000, bfloat16), lambda: specs.layer_norm(65, 96, float32),
    lambda: specs.softmax((70, 1000), 1, float16), lambda: specs.layer_norm_gradient(41, 1024, bfloat16),
    lambda: specs.softmax_gradient((65, 1000), 1, float32), lambda: specs.softmax((500, 33), 1, bfloat16, log=True),
    lambda: specs.softmax((40, 2000), 1, float64),
], ids=["layer norm", "short", "softmax", "gradient", "softmax gradient", "odd", "double"])  # fmt: skip
def test_variants_of_rows_alone(make, way, monkeypatch):
    monkeypatch.setattr(row_plan, "VARIANT", way)
    lowered = check(make(), properties=DEVICES[0])
    assert ("first += stride" in lowered.launches[0].source) == (way != "shared")
    compile_all(lowered, ("sm_80",))


def test_rows_alone_are_as_before_without_a_variant():
    assert "first += stride" not in lower(specs.layer_norm(65536, 1024, bfloat16)).launches[0].source
