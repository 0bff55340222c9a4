"""Schedules of fused kernels on the emulated device against NumPy: shapes, strides, dtypes, registers, clusters, parts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from emulator.run import run_lowered
from tensorsmith.core.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from tensorsmith.kernels.spec import KernelSpec
from tensorsmith.targets.cuda import row_plan
from tensorsmith.targets.cuda.kernel import DeviceProperties, Lowered
from tensorsmith.targets.cuda.lower import lower

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "kernels")]
import fused_specs as specs  # noqa: E402
import spec_oracle  # noqa: E402

HOPPER = DeviceProperties(multiprocessors=8)


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


def values(dtype, count, seed):
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        return random.integers(0 if dtype.kind == "u" else -50, 50, count).astype(dtype.numpy)
    return (random.standard_normal(count) * 2).astype(dtype.numpy)


def check(
    spec: KernelSpec,
    scalars: tuple[int | float, ...] = (),
    shift: int = 0,
    properties: DeviceProperties = HOPPER,
    inputs: list[np.ndarray] | None = None,
    scale: float = 1.0,
) -> Lowered:
    """Run a spec on random inputs, outputs poisoned, and compare with NumPy in float64.

    shift: elements before the first one of every buffer, which then is not aligned; inputs: in place of random ones
    scale: size of the results' errors in units of rounding, of the largest result and each itself
    """
    lowered = lower(spec, properties)
    buffers, views = [], []
    for number, operand in enumerate([*spec.inputs, *(store.operand for store in spec.stores)]):
        assert min(operand.strides, default=0) >= 0
        count = 1 + sum((n - 1) * s for n, s in zip(spec.domain, operand.strides))
        buffer = values(operand.dtype, count + shift, number)[shift:]
        if inputs is not None and number < len(spec.inputs):
            buffer[:] = inputs[number]
        if number >= len(spec.inputs):
            buffer[:] = np.nan if operand.dtype.kind == "f" else 7
        buffers.append(buffer)
        views.append(spec_oracle.view(operand, buffer, 0, spec.domain))
    with np.errstate(all="ignore"):
        expected = spec_oracle.evaluate(spec, [view.copy() for view in views[: len(spec.inputs)]], list(scalars))
    assert run_lowered(lowered, buffers, scalars=list(scalars)) == 0
    for store, found, wanted in zip(spec.stores, views[len(spec.inputs) :], expected):
        if store.operand.dtype.kind != "f":
            np.testing.assert_array_equal(found, wanted)
            continue
        found = found.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        finite = np.abs(wanted[np.isfinite(wanted)])
        size = np.maximum(np.abs(wanted), finite.max(initial=0.0) / 16)
        limit = scale * {float64: 1e-14, float32: 2e-6, float16: 2e-3, bfloat16: 9e-3}[store.operand.dtype]
        with np.errstate(invalid="ignore"):
            wrong = ~((np.abs(found - wanted) <= limit * size) | (found == wanted) | np.isnan(wanted))
        assert not wrong.any(), f"{wrong.sum()} of {wrong.size}: {found[wrong][:4]} are not {wanted[wrong][:4]}"
    return lowered


# -------------------------------------------------------------------------------------------------------- pointwise


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("count", [1, 7, 1001, 4096, 100_000])
@pytest.mark.parametrize("shift", [0, 1])
def test_flat(count, shift, dtype):
    check(specs.gelu((count,), dtype), (1.25, 0.5), shift)


STRIDED = {
    "row bias": ((30, 64), (64, 1), (0, 1), (64, 1)),
    "column bias": ((30, 64), (64, 1), (1, 0), (64, 1)),
    "channel": ((3, 5, 48), (240, 48, 1), (0, 1, 0), (240, 48, 1)),
    "odd rows": ((9, 33), (33, 1), (0, 1), (33, 1)),
    "padded rows": ((9, 32), (36, 1), (40, 1), (33, 1)),
    "every second": ((500,), (2,), (1,), (3,)),
    "transposed": ((40, 56), (1, 40), (56, 1), (0, 0)),
    "four axes": ((2, 3, 4, 8), (1, 8, 50, 300), (0, 200, 8, 1), (96, 32, 8, 1)),
    "short inside": ((300, 3), (3, 1), (0, 1), (1, 0)),
}


@pytest.mark.parametrize("dtype", [float32, bfloat16, float64, int64, uint8], ids=str)
@pytest.mark.parametrize("case", STRIDED)
def test_strides(case, dtype):
    shape, *strides = STRIDED[case]
    check(specs.multiply_add(shape, dtype, *strides))


@pytest.mark.parametrize("count, offset", [(1000, 0), (1003, 2**34 - 3), (17, 1)])
def test_random_bits_are_those_of_the_processor(count, offset):
    check(specs.dropout(count, offset), (0x123456789ABCDEF,))


@pytest.mark.parametrize("shape", [(33, 65), (64, 64), (130, 7)])
@pytest.mark.parametrize("dtype", [float32, bfloat16, uint8, float64], ids=str)
def test_transposed_copies(shape, dtype):
    check(specs.transposed(*shape, dtype))


TURNED = {
    "sum with the transpose": ((96, 96), (96, 1), (1, 96), (0, 1)),
    "batches": ((3, 40, 72), (2880, 1, 40), (2880, 72, 1), (0, 0, 0)),
    "heads": ((2, 4, 32, 24), (3072, 768, 1, 32), (3072, 24, 96, 1), (1, 2000, 8, 64)),
    "channels last": ((2, 100, 48), (4800, 1, 100), (0, 0, 1), (4800, 48, 1)),
    "padded": ((40, 72), (1, 44), (72, 1), (1, 41)),
}  # fmt: skip


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype", [float32, bfloat16, float64], ids=str)
@pytest.mark.parametrize("case", TURNED)
def test_tiles(case, dtype, shift):
    shape, *strides = TURNED[case]
    lowered = check(specs.multiply_add(shape, dtype, *strides), shift=shift)
    assert "__shared__" in lowered.launches[0].source


# ------------------------------------------------------------------------------------------------------------- rows

SHAPES = [
    ((100, 10), 1), ((33, 1024), 1), ((7, 5001), 1), ((2, 20000), 1), ((2, 300_000), 1), ((1, 1), 1), ((5, 3), 1),
    ((600, 96), 0), ((5000, 40), 0), ((300, 70), 0), ((5, 300, 6), 1), ((9000, 32), 0), ((3, 1), 0), ((40, 2, 8, 6), 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("shape, axis", SHAPES, ids=str)
def test_softmax(shape, axis, dtype):
    check(specs.softmax(shape, axis, dtype))


@pytest.mark.parametrize("spec", [
    specs.softmax((50, 128), 1, float32, log=True), specs.softmax((50, 128), 1, float64),
    specs.softmax((50, 96), 1, bfloat16, strides=(100, 1)), specs.softmax((50, 96), 1, float32, strides=(1, 50)),
    specs.softmax((50, 96), 0, float32, strides=(1, 50), out=(1, 52)), specs.softmax((300, 40), 1, float16, (80, 2)),
    specs.softmax_gradient((65, 1000), 1, bfloat16), specs.softmax_gradient((1000, 65), 0, float32),
    specs.layer_norm(50, 128, float32), specs.layer_norm(50, 1024, bfloat16), specs.layer_norm(7, 99, float32),
    specs.layer_norm_gradient(50, 1024, float32), specs.layer_norm_gradient(20, 256, bfloat16),
    specs.layer_norm_weights(500, 64, float32), specs.layer_norm_weights(5000, 72, bfloat16),
], ids=lambda spec: f"{spec.name} {spec.domain} {spec.inputs[0]}")  # fmt: skip
def test_rows(spec):
    check(spec, scale=4)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(7, 5, 196), (7, 5, 11), (1, 3, 40), (70, 2, 100), (300, 3, 512)])
@pytest.mark.parametrize("last", [False, True])
def test_statistics_of_channels(shape, last, dtype):
    strides = (shape[1] * shape[2], 1, shape[1]) if last else specs.dense(*shape)
    check(specs.channel_statistics(shape, strides, dtype), scale=4)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("spec", [specs.softmax((9, 256), 1, bfloat16), specs.softmax((64, 96), 0, float32)],
                         ids=lambda spec: str(spec.domain))
def test_rows_that_start_anywhere(spec, shift):
    check(spec, shift=shift)


# ------------------------------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("kind, dtype, result", [
    ("sum", float32, float32), ("sum", bfloat16, bfloat16), ("sum", int32, int64), ("prod", float64, float64),
    ("max", float32, float32), ("min", uint8, uint8), ("max", bool_, bool_), ("argmax", float32, int64),
    ("argmin", bfloat16, int64), ("argmax", int32, int64), ("argmin", bool_, int64),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("shape, axis", [
    ((1, 30_001), 1), ((20, 5000), 1), ((3000, 20), 0), ((3, 401, 5), 1), ((4, 7), 1), ((70_000, 8), 0),
], ids=str)  # fmt: skip
def test_reductions(shape, axis, kind, dtype, result):
    check(specs.reduction(kind, shape, axis, dtype, result), scale=4)


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("shape, axis", [((3, 4000), 1), ((4000, 3), 0), ((1, 40_000), 1)])
def test_nan_wins_and_the_first_place_counts(shape, axis, kind):
    x = np.round(values(float32, int(np.prod(shape)), 1))  # many equal ones
    check(specs.reduction(kind, shape, axis, float32), inputs=[x])
    x[[len(x) // 2, len(x) // 3, len(x) - 1]] = np.nan
    check(specs.reduction(kind, shape, axis, float32), inputs=[x])


@pytest.mark.parametrize("shape, axis", [((1, 1_000_000), 1), ((200_000, 4), 0)])
def test_long_sums_are_accurate(shape, axis):
    x = np.full(int(np.prod(shape)), 0.1, np.float32)
    check(specs.reduction("sum", shape, axis, float32), inputs=[x], scale=0.5)


@pytest.mark.parametrize("axis", [0, 1])
def test_quotients_by_a_value_of_the_row_are_correctly_rounded(axis):
    random = np.random.default_rng(0)
    shape = (300, 64) if axis else (64, 300)
    exponents = lambda *size: np.ldexp(1.0, random.integers(-149, 128, size)) * random.choice([-1.0, 1.0], size)  # noqa: E731
    x = ((1 + random.random(shape)) * exponents(*shape)).astype(np.float32)
    x[random.random(shape) < 0.5] = (1 + random.random()) * random.standard_normal()
    x[random.random(shape) < 0.1] = random.choice([0.0, -0.0, np.inf, np.nan])
    d = ((1 + random.random(300)) * exponents(300)).astype(np.float32)
    d[::3] = 1 + random.random(100)
    d[[5, 6, 7, 8]] = [0.0, -0.0, np.inf, np.nan]
    divided = np.expand_dims(d, axis)
    with np.errstate(all="ignore"):
        x[:, ::5] = (x[:, ::5] * divided if axis else x[:, ::5] * divided[:, ::5]).astype(np.float32)  # near whole ones
        expected = x / divided
    found, most = np.full(shape, 7, np.float32), np.zeros(300, np.float32)
    assert run_lowered(lower(specs.quotients(shape, axis), HOPPER), [x, d, found, most]) == 0
    same = (found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))
    assert same.all(), f"{x[~same][:3]} over {np.broadcast_to(divided, shape)[~same][:3]}: {found[~same][:3]}"


# ------------------------------------------------------------------------------------------- ways to lay out one row


@pytest.mark.parametrize("spec", [
    specs.softmax((3, 900), 1, float32), specs.softmax((3, 2000), 1, bfloat16), specs.softmax((240, 32), 0, float32),
    specs.softmax((190, 32), 0, bfloat16), specs.layer_norm(3, 700, float32), specs.reduction("argmax", (3, 99), 1, float32),
], ids=lambda spec: f"{spec.name} {spec.domain} {spec.inputs[0]}")  # fmt: skip
def test_blocks_of_a_cluster_share_a_row(spec, monkeypatch):
    monkeypatch.setattr(row_plan, "LONGEST_BLOCK", 32)
    monkeypatch.setattr(row_plan, "LONGEST_COLUMNS_BLOCK", 32)
    monkeypatch.setattr(row_plan, "HELD_WORDS", 16)
    monkeypatch.setattr(row_plan, "HELD_COLUMNS", 16)
    lowered = check(spec, scale=4)
    assert len(lowered.launches) == 1 and (lowered.launches[0].cluster[1] > 1) == (spec.name != "argmax")


@pytest.mark.parametrize("axis", [0, 1])
def test_before_hopper_passes_are_launches(axis):
    ampere = DeviceProperties("sm_80", multiprocessors=8)
    spec = specs.softmax((2, 200_000) if axis else (200_000, 2), axis, float32)
    lowered = check(spec, properties=ampere)
    assert len(lowered.launches) == 2 and len(lowered.scratch) == 2  # maximum and sum in one pass


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("special", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("everywhere", [False, True])
def test_sums_that_are_rescaled_keep_what_is_not_finite(everywhere, special, axis):
    shape = (2, 50_000) if axis else (50_000, 2)
    x = values(float32, 100_000, 3)
    x[slice(None) if everywhere else slice(0, None, 7)] = special
    turing = DeviceProperties("sm_75", multiprocessors=4, threads=1024)
    check(specs.softmax(shape, axis, float32), inputs=[x], properties=turing)
    check(specs.softmax(shape, axis, float32, log=True), inputs=[x], properties=turing)
