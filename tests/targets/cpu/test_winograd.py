"""Winograd's convolution against the float64 reference: every vector width, any strides, guards, and its error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.core import dtypes
from tensorsmith.ir.winograd import FORMS
from tensorsmith.targets.cpu import pool
from tensorsmith.targets.cpu.winograd import WORDS
from tensorsmith.targets.cpu.winograd_plan import plan_weight, plan_winograd, product_tiles

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2]))
from test_conv import ISAS, _machine, _strides, execute, normal, reference  # noqa: E402

import winograd_errors  # noqa: E402

ERRORS = {2: 2e-5, 4: 1e-4}  # of the sums of these tests, for results of size 1


def weights(w: np.ndarray, outputs: int, isa: str) -> np.ndarray:
    """U, with guards behind it that nothing was written to."""
    size = FORMS[outputs].products * w.shape[0] * w.shape[1]
    u = np.full(size + 64, 7, np.float32)
    execute(plan_weight(dtypes.float32, outputs, w.shape, _strides(w), machine=_machine(isa)), {"w": w, "u": u}, False)
    assert (u[size:] == 7).all()
    return u[:size]


def check(
    x: np.ndarray, w: np.ndarray, low: tuple[int, int], high: tuple[int, int], isa: str, outputs: int,
    bias: np.ndarray | None = None, relu: bool = False, reverse: bool = False,
) -> np.ndarray:  # fmt: skip
    """The kernel's result, which is the reference's; nothing around it is written."""
    attrs: dict[str, Any] = {name: (1, 1) for name in ("stride", "dilation", "step")} | {"groups": 1}
    expected = reference(x, w, attrs | {"low": low, "high": high})
    batch, out, height, width = expected.shape
    outer = np.full((batch + 2, out + 2, height, width + 40), 7, np.float32)
    y = outer[1:-1, 1:-1, :, 20:-20]
    y[:] = np.nan
    name = "_".join([*(["bias"] if bias is not None else []), *(["relu"] if relu else [])])
    kernel = plan_winograd(
        dtypes.float32, outputs, x.shape, y.shape, low, _strides(x), _strides(y), name or None, _machine(isa)
    )
    given = {"x": x, "w": weights(w, outputs, isa), "y": y, **({"bias": bias} if bias is not None else {})}
    execute(kernel, given, reverse)
    if bias is not None:
        expected = expected + bias.astype("f8").reshape(-1, 1, 1)
    expected = np.maximum(expected, 0) if relu else expected
    result = y.copy()
    np.testing.assert_allclose(result, expected, rtol=ERRORS[outputs], atol=ERRORS[outputs] * max(1.0, np.abs(expected).max()))
    y[:] = 7
    assert (outer == 7).all(), "wrote outside the result"
    return result


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, ...]:
    number = lambda low, high: draw(st.integers(low, high))
    low, high = (number(-1, 2), number(-1, 2)), (number(-1, 2), number(-1, 2))
    space = [max(2, 3 - a - b) + number(0, 45) for a, b in zip(low, high)]
    x, w = normal(number(1, 3), number(1, 6), *space), normal(draw(st.sampled_from([1, 3, 12, 13, 26])), 1, 3, 3)
    w = normal(w.shape[0], x.shape[1], 3, 3)
    if draw(st.booleans()):
        x = np.ascontiguousarray(np.swapaxes(x, 0, 1)).swapaxes(0, 1)
    if draw(st.booleans()):
        w = np.moveaxis(np.ascontiguousarray(np.moveaxis(w, 1, -1)), -1, 1)[:, :, ::-1, ::-1]
    return x, w, low, high


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(ISAS), st.sampled_from([2, 4]), st.booleans(), st.booleans())
def test_any_problem(p: tuple[Any, ...], isa: str, outputs: int, biased: bool, relu: bool):
    check(*p, isa, outputs, normal(p[1].shape[0]) if biased else None, relu)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("outputs", FORMS)
@pytest.mark.parametrize("shape", [(13, 5), (3, 2), (1, 1)])
def test_weights_lie_as_tiles_read_them(isa: str, outputs: int, shape: tuple[int, int]):
    w = normal(*shape, 3, 3)
    matrix = FORMS[outputs].kernel_matrix()
    expected = np.einsum("ai,ocij,bj->aboc", matrix, w.astype("f8"), matrix).reshape(-1, *shape)
    tiles, base, extra = product_tiles(shape[0], _machine(isa))
    rows = [base + (number < extra) for number in range(tiles)]
    parts = np.split(expected, np.cumsum(rows)[:-1], axis=1)
    packed = np.concatenate([part.transpose(0, 2, 1).reshape(len(expected), -1) for part in parts], 1)
    np.testing.assert_allclose(weights(w, outputs, isa), packed.ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("outputs", FORMS)
def test_forms_multiply_polynomials(outputs: int):
    form = FORMS[outputs]
    rng = np.random.default_rng(0)
    d, g = rng.standard_normal(form.side), rng.standard_normal(3)
    found = form.output_matrix() @ ((form.kernel_matrix() @ g) * (form.input_matrix() @ d))
    np.testing.assert_allclose(found, np.correlate(d, g), rtol=1e-12)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("outputs", FORMS)
def test_parts_in_any_order(isa: str, outputs: int):
    x, w = normal(2, 32, 40, 37), normal(30, 32, 3, 3)
    found = [check(x, w, (1, 1), (1, 1), isa, outputs, reverse=reverse) for reverse in (False, True)]
    assert np.array_equal(*found)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("outputs", FORMS)
@pytest.mark.parametrize("shape", [(1, 100, 17, 14, 110), (1, 96, 20, 26, 100)])
def test_few_tiles_share_the_transform_of_x(isa: str, outputs: int, shape: tuple[int, ...]):
    batch, channels, height, width, out = shape
    x, w = normal(batch, channels, height, width), normal(out, channels, 3, 3)
    strides = _strides(x)
    kernel = plan_winograd(
        dtypes.float32, outputs, x.shape, (batch, out, height, width), (1, 1), strides, strides, None, _machine(isa)
    )
    assert kernel.leading > 1 and kernel.chunks >= kernel.leading + 8, "the work of one image falls into enough parts"
    found = [check(x, w, (1, 1), (1, 1), isa, outputs, normal(out), True, reverse) for reverse in (False, True)]
    assert np.array_equal(*found)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("out", [5, 60, 111])
@pytest.mark.parametrize(("space", "batch"), [((14, 14), 1), ((10, 34), 1), ((6, 6), 2), ((2, 2), 1)])
def test_tiles_left_over_after_whole_vectors(isa: str, out: int, space: tuple[int, int], batch: int):
    """One tile and several, in a block with others and alone, for tiles of one or two numbers of output channels."""
    x, w = normal(batch, 100, *space), normal(out, 100, 3, 3)
    shape = (batch, out, *space)
    kernel = plan_winograd(
        dtypes.float32, 2, x.shape, shape, (1, 1), _strides(x), _strides(np.empty(shape, "f4")), None, _machine(isa)
    )
    lanes = {"avx512": 16, "avx2": 8, "generic": 4}[isa]
    left = batch * (space[0] // 2) * (space[1] // 2) % lanes
    assert kernel.constants[WORDS.index("left")] == (left if left <= lanes // 4 else 0)
    check(x, w, (1, 1), (1, 1), isa, 2, normal(out), relu=True)


@pytest.mark.skipif(not pool.supported()[0], reason="kernels run on one thread here")
def test_results_do_not_depend_on_the_number_of_threads():
    x, w = ts.from_numpy(normal(1, 128, 14, 14)), ts.from_numpy(normal(256, 128, 3, 3))
    before, found = ts.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            ts.set_num_threads(threads)
            found += [ts.nn.functional.conv2d(x, w, padding=1).numpy() for _ in range(5)]
    finally:
        ts.set_num_threads(before)
    assert all(np.array_equal(found[0], each) for each in found)


def test_long_sums_round_little():
    x, w = np.maximum(normal(1, 256, 14, 14), 0), normal(256, 256, 3, 3) / 48
    ours = ts.nn.functional.conv2d(ts.from_numpy(x), ts.from_numpy(w), padding=1).numpy()
    ones = {name: (1, 1) for name in ("stride", "dilation", "step", "low", "high")}
    expected = reference(x, w, ones | {"groups": 1})
    error = np.sqrt(((ours - expected) ** 2).mean() / (expected**2).mean())
    assert error < 3.2e-7  # in one sum over all channels 4.3e-7


@pytest.mark.parametrize("mode", winograd_errors.BOUNDS)
def test_errors_are_within_the_bounds_of_the_numerics_page(mode: str):
    form, bound = winograd_errors.BOUNDS[mode]
    assert winograd_errors.row(mode, form, bound) in winograd_errors.PAGE.read_text(encoding="utf-8")
    most, _ = winograd_errors.measured(mode)
    assert most < bound
    assert mode != "fast" or most > 2e-6  # it is the fast form


def test_the_error_with_a_bias():
    x, w, b = normal(1, 64, 56, 56), normal(64, 64, 3, 3) / 24, normal(64)
    ours = ts.nn.functional.conv2d(*map(ts.from_numpy, (x, w, b)), padding=1).numpy()
    ones = {name: (1, 1) for name in ("stride", "dilation", "step", "low", "high")}
    expected = reference(x, w, ones | {"groups": 1}) + b.astype("f8").reshape(-1, 1, 1)
    assert np.abs(ours - expected).max() < 8e-6  # for results of unit variance


def test_the_rule_is_fixed_and_gradients_follow():
    from tensorsmith.ir.convolution import convolution
    from tensorsmith.ir.graph import Graph
    from tensorsmith.passes.winograd import winograd_outputs

    def taken(x: tuple[int, ...], w: tuple[int, ...], dtype: Any = dtypes.float32, **changed: Any) -> int:
        graph = Graph()
        attrs = {name: (1, 1) for name in ("stride", "low", "high", "dilation", "step")} | {"groups": 1} | changed
        return winograd_outputs(convolution(graph.input(x, dtype), graph.input(w, dtype), **attrs))

    large, kernels = (1, 64, 28, 28), (64, 64, 3, 3)
    assert taken(large, kernels) == 2
    assert not taken(large, kernels, dtypes.float64)
    assert not taken(large, kernels, stride=(2, 1))
    assert not taken(large, kernels, dilation=(1, 2))
    assert not taken(large, (64, 32, 3, 3), groups=2)
    assert not taken((1, 4, 28, 28), (64, 4, 3, 3)) and not taken((1, 64, 8, 8), kernels)
    assert taken((16, 16, 32, 32), (16, 16, 3, 3)) == 2
    assert taken((1, 256, 14, 14), (256, 256, 3, 3)) and taken((8, 512, 7, 7), (512, 512, 3, 3))
    before = ts.backends.cpu.winograd
    try:
        ts.backends.cpu.winograd = "off"
        assert taken(large, kernels) == 0
        ts.backends.cpu.winograd = "fast"
        assert taken(large, kernels) == 4
    finally:
        ts.backends.cpu.winograd = before
    torch = pytest.importorskip("torch")
    x, w = normal(2, 48, 30, 27), normal(56, 48, 3, 3) / 17
    ours, theirs = ([lib.from_numpy(a.copy()).requires_grad_() for a in (x, w)] for lib in (ts, torch))
    for lib, leaves in ((ts, ours), (torch, theirs)):
        y = lib.nn.functional.conv2d(*leaves, padding=1)
        (y * y).sum().backward()
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4, atol=2e-5 * float(b.grad.abs().max()))


@pytest.fixture
def fast():
    before = ts.backends.cpu.winograd
    ts.backends.cpu.winograd = "fast"
    yield
    ts.backends.cpu.winograd = before


def test_the_setting_reaches_kept_plans_and_compiled_functions(fast: None):
    x, w = (ts.from_numpy(a) for a in (normal(1, 64, 28, 28), normal(64, 64, 3, 3) / 24))
    eager = lambda: ts.nn.functional.conv2d(x, w, padding=1).numpy()
    compiled = ts.compile(lambda: ts.nn.functional.conv2d(x, w, padding=1))
    results = {}
    for mode in ("off", "default", "fast", "off"):
        ts.backends.cpu.winograd = mode
        assert ts.backends.cpu.winograd == mode
        found = eager()
        assert np.array_equal(found, compiled().numpy())
        assert np.array_equal(results.setdefault(mode, found), found)
    assert not np.array_equal(results["fast"], results["default"]) and not np.array_equal(results["default"], results["off"])


def test_what_is_no_setting_is_refused():
    before = ts.backends.cpu.winograd
    for wrong in ("slow", None, True, ["fast"]):
        with pytest.raises(ValueError, match="'off', 'default', 'fast'"):
            ts.backends.cpu.winograd = wrong
    with pytest.raises(AttributeError, match="no setting 'winogard'"):
        ts.backends.cpu.winogard = "fast"
    assert ts.backends.cpu.winograd == before
    assert ts.backends.cpu.get_cpu_capability() in ("AVX512", "AVX2", "DEFAULT")


def test_kept_weights_follow_every_write():
    from threading import Thread

    conv = ts.nn.Conv2d(64, 64, 3, padding=1, bias=False)
    x = ts.from_numpy(normal(1, 64, 28, 28))
    compiled = ts.compile(conv)
    array = conv.weight.detach().numpy()

    def step() -> None:
        (conv(x) ** 2).sum().backward()
        ts.optim.SGD(conv.parameters(), lr=1e-4).step()

    def alias() -> None:
        array[63, 63, 2, 2] += 1

    def write() -> None:
        with ts.no_grad():
            conv.weight[0].mul_(2)

    writes = [
        step, alias, write, lambda: conv.weight.data.mul_(0.5), lambda: conv.weight.data.__setitem__(5, float("nan")),
        lambda: conv.load_state_dict({"weight": ts.from_numpy(normal(64, 64, 3, 3))}),
        lambda: setattr(conv.weight, "data", ts.from_numpy(normal(64, 64, 3, 3))),
    ]  # fmt: skip

    def check() -> None:
        with ts.no_grad():
            for _ in range(2):
                np.testing.assert_array_equal(compiled(x).numpy(), conv(x).numpy())

    check()
    (known,) = compiled.plans
    assert known.plan.compared is not None
    for change in writes:
        change()
        check()
    found: list[np.ndarray] = []

    def run() -> None:
        with ts.no_grad():
            found.extend(compiled(x).numpy() for _ in range(5))

    threads = [Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with ts.no_grad():
        expected = conv(x).numpy()
    assert len(found) == 10 and all(np.array_equal(each, expected) for each in found)
