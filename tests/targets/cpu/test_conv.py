"""Direct convolution kernels against the float64 reference: every vector width, any strides, guards around every result."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.core import dtypes
from tensorsmith.ir.convolution import convolution
from tensorsmith.ir.graph import Graph
from tensorsmith.targets.cpu.conv import ConvKernel, plan_conv, problem
from tensorsmith.targets.cpu.conv_blocks import WORDS
from tensorsmith.targets.cpu.machine import NAMES, Machine, machine, select
from tensorsmith.targets.reference import interpret

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
ISAS = list(NAMES[NAMES.index(machine().name) :])


def _machine(name: str) -> Machine:
    import llvmlite.binding as llvm

    return select(name, llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features())


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _strides(array: np.ndarray) -> list[int]:
    return [s // array.itemsize for s in array.strides]


def execute(kernel: ConvKernel, given: dict[str, np.ndarray], reverse: bool) -> None:
    """Run every chunk, on a workspace full of NaN patterns with a guard after it."""
    workspace = np.full(kernel.workspace_bytes + 128, 0xFF, np.uint8)
    start = -_address(workspace) % 64
    words = [_address(workspace) + start if name == "workspace" else _address(given[name]) for name in kernel.launch_order]
    block = (ctypes.c_int64 * (len(words) + 1 + len(kernel.constants)))(*words, 0, *kernel.constants)
    order = list(range(kernel.chunks))
    if reverse:
        order[kernel.leading :] = reversed(order[kernel.leading :])
    for chunk in order:
        _ENTRY(kernel.function_address)(ctypes.addressof(block), chunk, kernel.chunks, 0)
    assert (workspace[start + kernel.workspace_bytes :] == 0xFF).all(), "wrote past the workspace"


def reference(x: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    graph = Graph()
    nodes = [graph.input(a.shape, dtypes.float64) for a in (x, w)]
    graph.outputs = (convolution(*nodes, **attrs),)
    return interpret(graph, [x.astype("f8"), w.astype("f8")])[0]


def check(
    x: np.ndarray, w: np.ndarray, attrs: dict[str, Any], isa: str, bias: np.ndarray | None = None, relu: bool = False,
    reverse: bool = False,
) -> np.ndarray:  # fmt: skip
    """The kernel's result, which is the reference's; nothing around it is written."""
    rank = x.ndim - 2
    attrs = {"stride": (1,) * rank, "low": (0,) * rank, "dilation": (1,) * rank, "groups": 1, **attrs}
    attrs = {"high": attrs["low"], "step": (1,) * rank, **attrs}
    expected = reference(x, w, attrs)
    outer = np.full([n + 2 if i < 2 else n for i, n in enumerate(expected.shape[:-1])] + [expected.shape[-1] + 40], 7, x.dtype)
    y = outer[1:-1, 1:-1, ..., 20:-20]
    y[:] = np.nan
    described = problem(x.shape, w.shape, y.shape[2:], attrs, _strides(x), _strides(w)[0], _strides(y), x.itemsize)
    name = "_".join([*(["bias"] if bias is not None else []), *(["relu"] if relu else [])])
    kernel = plan_conv(dtypes.BY_NUMPY[x.dtype], described, name or None, _machine(isa))
    given = {"x": x, "w": w, "y": y, **({"bias": bias} if bias is not None else {})}
    execute(kernel, given, reverse)
    if bias is not None:
        expected = expected + bias.astype("f8").reshape(-1, *(1,) * rank)
    expected = np.maximum(expected, 0) if relu else expected
    result = y.copy()
    tolerance = 1e-12 if x.dtype == np.float64 else 1e-5
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * max(1.0, np.abs(expected).max(initial=0)))
    y[:] = 7
    assert (outer == 7).all(), "wrote outside the result"
    assert kernel.flops == 2 * expected.size * int(np.prod(w.shape[1:]))
    assert "tiles of output channels" in kernel.loops
    return result


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    rank = draw(st.integers(1, 3))
    number = lambda low, high: draw(st.integers(low, high))
    groups, inner, outer = number(1, 3), number(1, 4), draw(st.sampled_from([1, 2, 3, 5, 7, 13, 26]))
    kernel, stride, dilation = ([number(1, n) for _ in range(rank)] for n in (4, 3, 3))
    low, high = ([number(-1, 3) for _ in range(rank)] for _ in range(2))
    least = [(k - 1) * d + 1 - a - b for k, d, a, b in zip(kernel, dilation, low, high)]
    space = [max(n, 3) + number(0, 40 // rank**2) for n in least]
    dtype = draw(st.sampled_from(["float32", "float64"]))
    x, w = normal(number(1, 3), groups * inner, *space, dtype=dtype), normal(outer * groups, inner, *kernel, dtype=dtype)
    if draw(st.booleans()):  # channels last
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    attrs = {"stride": stride, "low": low, "high": high, "dilation": dilation, "groups": groups}
    return x, w, {name: tuple(v) if isinstance(v, list) else v for name, v in attrs.items()}


@settings(max_examples=80, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(ISAS), st.booleans(), st.booleans())
def test_any_problem(p: tuple[np.ndarray, np.ndarray, dict[str, Any]], isa: str, biased: bool, relu: bool):
    x, w, attrs = p
    check(x, w, attrs, isa, normal(w.shape[0], dtype=str(x.dtype)) if biased else None, relu)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels", range(1, 15))
def test_every_number_of_output_channels(isa: str, channels: int):
    check(normal(1, 3, 9, 11), normal(channels, 3, 3, 3), {"low": (1, 1)}, isa, normal(channels))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 64, 40, 33), (2, 16, 28, 28), (40, 8, 9, 9)])
def test_parts_of_images_in_any_order(isa: str, shape: tuple[int, ...]):
    x, w = normal(*shape), normal(20, shape[1], 3, 3)
    found = [check(x, w, {"low": (1, 1), "stride": (1, 2)}, isa, reverse=reverse) for reverse in (False, True)]
    assert np.array_equal(*found)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 96, 7, 7, 390), (1, 150, 14, 14, 70), (2, 40, 9, 9, 37)], ids=["49", "196 in parts", "small images"]
)
def test_few_positions_share_the_copy_of_x(isa: str, relu: bool, shape: tuple[int, ...]):
    *shape, out = shape
    x, w, b = normal(*shape), normal(out, shape[1], 3, 3), normal(out)
    attrs = {"stride": (1, 1), "low": (1, 1), "dilation": (1, 1), "groups": 1}
    y = np.empty((shape[0], out, *shape[2:]), np.float32)
    described = problem(x.shape, w.shape, shape[2:], attrs, _strides(x), _strides(w)[0], _strides(y), 4)
    kernel = plan_conv(dtypes.float32, described, "bias_relu", _machine(isa))
    if shape[0] == 1:
        assert kernel.leading > 1 and kernel.chunks >= kernel.leading + 5, "the work of one image falls into enough parts"
    found = [check(x, w, {"low": (1, 1)}, isa, b, relu, reverse) for reverse in (False, True)]
    assert np.array_equal(*found)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("positions", range(1, 5))
def test_positions_left_over_are_summed_along_channels_and_taps(isa: str, positions: int):
    """In several blocks of channels, in a last part of other size, for any number of output channels."""
    lanes = {"avx512": 16, "avx2": 8, "generic": 4}[isa]
    if positions > lanes // 4:
        positions = lanes // 4
    across = 3 * lanes + positions
    for channels, out in ((70, 6), (240, 13)):
        x, w = normal(1, channels, across), normal(out, channels, 3)
        attrs = {"stride": (1,), "low": (1,), "dilation": (1,), "groups": 1}
        y = np.empty((1, out, across), np.float32)
        described = problem(x.shape, w.shape, (across,), attrs, _strides(x), _strides(w)[0], _strides(y), 4)
        kernel = plan_conv(dtypes.float32, described, None, _machine(isa))
        assert kernel.constants[WORDS.index("left")] == positions
        check(x, w, {"low": (1,)}, isa)
        check(x, w, {"low": (1,)}, isa, normal(out), relu=True)
    x, w = normal(1, 90, 5 * positions + 3, 3 * lanes // 2), normal(9, 90, 3, 3)
    check(x, w, {"low": (1, 1)}, isa, normal(9), relu=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 70, 20, 26), (2, 240, 5, 5)], ids=["many positions", "few positions"])
def test_sums_are_kept_from_block_to_block_of_channels(isa: str, shape: tuple[int, ...]):
    x, w = normal(*shape), normal(21, shape[1], 3, 3)
    found = check(x, w, {"low": (1, 1)}, isa, normal(21), relu=True)
    described = problem(x.shape, w.shape, shape[2:], {"stride": (1, 1), "low": (1, 1), "dilation": (1, 1), "groups": 1},
                        _strides(x), _strides(w)[0], _strides(found), 4)  # fmt: skip
    kernel = plan_conv(dtypes.float32, described, "bias_relu", _machine(isa))
    assert kernel.constants[WORDS.index("channel_block")] < shape[1]


def test_long_sums_round_little():
    """Blocks of channels are summed by themselves: one running sum of 1152 products would be off by 1e-6."""
    x, w = normal(1, 128, 28, 28), normal(128, 128, 3, 3)
    found = ts.nn.functional.conv2d(ts.from_numpy(x), ts.from_numpy(w), stride=2, padding=1).numpy()
    exact = ts.nn.functional.conv2d(ts.from_numpy(x).double(), ts.from_numpy(w).double(), stride=2, padding=1).numpy()
    assert np.abs(found - exact).max() < 6e-7 * np.abs(exact).max()


def test_a_result_does_not_depend_on_what_lies_beside_it():
    x = normal(1, 4, 8, 8)
    x[0, :, 5:] = np.nan
    w = normal(5, 4, 3, 3)
    y = ts.nn.functional.conv2d(ts.from_numpy(x), ts.from_numpy(w)).numpy()
    assert np.isfinite(y[:, :, :3]).all() and np.isnan(y[:, :, 3:]).all()


@pytest.mark.parametrize("shape", [(2, 32, 40, 40), (1, 150, 14, 14)], ids=["parts of images", "one copy of x"])
def test_threads_do_not_change_a_bit(shape: tuple[int, ...]):
    x, w = ts.from_numpy(normal(*shape)), ts.from_numpy(normal(100, shape[1], 3, 3))
    before = ts.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            ts.set_num_threads(threads)
            found += [ts.nn.functional.conv2d(x, w, padding=1, stride=2).numpy() for _ in range(5)]
    finally:
        ts.set_num_threads(before)
    assert all(np.array_equal(found[0], each) for each in found)


def test_other_dtypes_are_refused():
    described = problem((1, 1, 4), (1, 1, 2), (3,), {"stride": (1,), "low": (0,), "dilation": (1,), "groups": 1},
                        (4, 4, 1), 2, (3, 3, 1), 2)  # fmt: skip
    with pytest.raises(NotImplementedError, match="float16"):
        plan_conv(dtypes.float16, described)


def test_small_images_are_parts_of_their_own_where_positions_between_them_are_no_results():
    x, w, attrs = (32, 16, 14, 14), (32, 16, 5, 5), {"stride": (1, 1), "low": (2, 2), "dilation": (1, 1), "groups": 1}
    described = problem(x, w, (14, 14), attrs, (3136, 196, 14, 1), 400, (6272, 196, 14, 1), 4)
    kernel = plan_conv(dtypes.float32, described)
    assert kernel.constants[WORDS.index("parts")] == 32
