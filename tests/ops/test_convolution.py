"""Convolutions of every rank, in both directions, against PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parent))
from network_oracle import compare, same_error  # noqa: E402

OURS, THEIRS = ts.nn.functional, torch.nn.functional
NAMES = [f"conv{direction}{rank}d" for direction in ("", "_transpose") for rank in (1, 2, 3)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def both(name: str) -> tuple[Any, Any]:
    return getattr(OURS, name), getattr(THEIRS, name)


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, list[np.ndarray], dict[str, Any]]:
    """A convolution of any rank and direction whose result is not empty."""
    rank, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    number = lambda low, high: draw(st.integers(low, high))
    groups, into, out = number(1, 3), number(1, 3), number(1, 3)
    kernel = [number(1, 3) for _ in range(rank)]
    stride, dilation = [number(1, 3) for _ in range(rank)], [number(1, 2) for _ in range(rank)]
    padding = [number(0, 2) for _ in range(rank)]
    more = [number(0, max(s, d) - 1) for s, d in zip(stride, dilation)]
    if transposed:  # PyTorch's sum of the paddings must leave something
        padding = [min(p, ((k - 1) * d) // 2) for p, k, d in zip(padding, kernel, dilation)]
    least = [max(1, (k - 1) * d + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding)]
    space = [number(n, n + 3) if not transposed else number(1, 4) for n in least]
    x = normal(number(1, 3), into * groups, *space)
    w = normal(into * groups, out, *kernel) if transposed else normal(out * groups, into, *kernel)
    arrays = [x, w] + ([normal(out * groups)] if draw(st.booleans()) else [])
    attrs: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        attrs["output_padding"] = more
    if draw(st.booleans()):  # a view that is not contiguous
        arrays[0] = np.ascontiguousarray(np.moveaxis(arrays[0], 1, -1)).swapaxes(1, -1) if rank == 1 else arrays[0][..., ::1]
    return f"conv{'_transpose' if transposed else ''}{rank}d", arrays, attrs


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems())
def test_any_convolution(problem: tuple[str, list[np.ndarray], dict[str, Any]]):
    name, arrays, attrs = problem
    compare(*both(name), *arrays, **attrs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [0, None])
def test_empty_and_unbatched(name: str, batch: int | None):
    rank = int(name[-2])
    lead = () if batch is None else (batch,)
    compare(*both(name), normal(*lead, 4, *(5,) * rank), normal(4, 4, *(3,) * rank), normal(4), gradients=1, padding=1)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("kernel", [(3, 4), (1, 2)])
def test_named_paddings(padding: str, kernel: tuple[int, int]):
    compare(*both("conv2d"), normal(2, 3, 6, 7), normal(4, 3, *kernel), padding=padding, dilation=(1, 2))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_gradients_through_strides_with_weights_that_are_worth_a_copy(kernel, dtype):
    x, w = normal(2, 32, 8, 8), normal(64, 32, kernel, kernel) / 8
    tolerance = {"float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    g, found = normal(2, 64, 4, 4, seed=1), []
    for lib in (torch, ts):
        a, b = (ts.tensor(v).to(getattr(ts, dtype)) for v in (x, w))
        if lib is torch:  # float64, of what ours are rounded to
            a, b = (torch.tensor(t.double().numpy()) for t in (a, b))
        a, b = a.requires_grad_(), b.requires_grad_()
        y = lib.nn.functional.conv2d(a, b, None, 2, kernel // 2)
        y.backward(lib.tensor(g).to(y.dtype))
        found.append([t.detach().double().numpy() for t in (y, a.grad, b.grad)])
    for theirs, ours in zip(*found):
        assert abs(ours - theirs).max() <= tolerance * abs(theirs).max()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv_transpose2d"])
def test_dtypes(name: str, dtype: str):
    rank = int(name[-2])
    operands = normal(2, 8, *(9,) * rank), normal(8, 8, *(3,) * rank) / 8, normal(8)
    compare(*both(name), *operands, dtype=dtype, gradients=1, padding=1, tolerance={"float16": 8e-3}.get(dtype))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_whole_numbers(dtype: str):
    x, w = (np.random.default_rng(0).integers(0, 9, shape).astype(dtype) for shape in ((2, 3, 6, 6), (4, 3, 3, 3)))
    found = OURS.conv2d(ts.from_numpy(x), ts.from_numpy(w), padding=1).numpy()
    expected = THEIRS.conv2d(torch.from_numpy(x).long(), torch.from_numpy(w).long(), padding=1)
    assert np.array_equal(found, expected.numpy().astype(dtype))


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv_transpose2d"])
def test_complex_numbers(name: str):
    rank = int(name[-2])
    arrays = [normal(*shape) + 1j * normal(*shape, seed=1) for shape in ((2, 4, *(5,) * rank), (4, 2, *(3,) * rank), (4,))]
    arrays[1:] = arrays[1:] if name != "conv1d" else [arrays[1][:, :2], arrays[2]]
    groups = 2
    ours = [ts.from_numpy(a.copy()).requires_grad_() for a in arrays]
    theirs = [torch.from_numpy(a.copy()).requires_grad_() for a in arrays]
    mine, right = [f(*xs, groups=groups, stride=2, padding=1) for f, xs in zip(both(name), (ours, theirs))]
    np.testing.assert_allclose(mine.detach().numpy(), right.detach().numpy(), atol=1e-12)
    cotangent = normal(*right.shape) + 1j * normal(*right.shape, seed=2)
    mine.backward(ts.from_numpy(cotangent.copy()))
    right.backward(torch.from_numpy(cotangent))
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.resolve_conj().numpy(), atol=1e-11)


def test_channels_last_and_sliced_operands():
    x, w = normal(2, 9, 8, 6).transpose(0, 3, 1, 2), normal(5, 3, 3, 12)[..., ::4].transpose(0, 3, 1, 2)
    x, w = np.concatenate([x, x], 1)[:, ::4], w
    compare(*both("conv2d"), x, w, gradients=1, padding=1)


def test_parts_of_a_large_batch(monkeypatch: pytest.MonkeyPatch):
    from tensorsmith.passes import convolutions

    monkeypatch.setattr(convolutions, "LARGEST", 3 * 9 * 80 * 2)
    compare(*both("conv2d"), normal(5, 3, 10, 16), normal(7, 3, 3, 3), gradients=1, padding=(0, 1), stride=(1, 2))


@pytest.mark.parametrize("stride", [(2, 3), (4, 1)])
@pytest.mark.parametrize("dilation", [(1, 2), (2, 3)])
def test_no_zeros_are_written_between_elements(stride: tuple[int, int], dilation: tuple[int, int]):
    attrs = {"stride": stride, "dilation": dilation}
    compare(*both("conv_transpose2d"), normal(2, 4, 9, 7), normal(4, 3, 3, 2), gradients=1, groups=2, padding=1, **attrs)
    compare(*both("conv2d"), normal(2, 4, 21, 19), normal(6, 2, 3, 2), gradients=1, groups=2, padding=1, **attrs)


def test_large_convolutions_in_both_directions():
    for attrs in ({"padding": 1}, {"stride": 2, "padding": 1}, {"groups": 8}):
        x, w = normal(4, 16, 26, 30), normal(24, 16 // attrs.get("groups", 1), 3, 3)
        compare(*both("conv2d"), x, w, normal(24), dtype="float32", gradients=1, tolerance=1e-4, **attrs)


def test_arguments_given_as_lists_and_kept_calls():
    x, w = ts.ones(1, 1, 4, 4), ts.ones(1, 1, 3, 3)
    for _ in range(2):
        assert OURS.conv2d(x, w, stride=[1, 1], padding=(1, 1))[0, 0, 0].tolist() == [4, 6, 6, 4]
        assert OURS.conv2d(x, w, None, 2, 1)[0, 0, 0].tolist() == [4, 6]
        with pytest.raises(TypeError):
            OURS.conv2d(x, w, None, 2.0, 1)
        with pytest.raises(TypeError):
            OURS.conv2d(x, w, None, 1, True)


REFUSED: list[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = [
    ("conv2d", ((2, 3, 5, 5), (4, 2, 3, 3)), {}),
    ("conv2d", ((2, 3, 2, 2), (4, 3, 3, 3)), {}),
    ("conv2d", ((2, 3, 4, 4), (4, 3, 3, 3)), {"dilation": 2}),
    ("conv2d", ((2, 3, 5, 5), (4, 3, 3, 3)), {"padding": -1}),
    ("conv2d", ((2, 3, 5, 5), (4, 3, 3, 3)), {"stride": 0}),
    ("conv2d", ((2, 3, 5, 5), (4, 3, 3, 3)), {"dilation": 0}),
    ("conv2d", ((2, 3, 5, 5), (4, 3, 3, 3)), {"groups": 0}),
    ("conv2d", ((2, 4, 5, 5), (5, 2, 3, 3)), {"groups": 2}),
    ("conv2d", ((2, 4, 5, 5), (0, 4, 3, 3)), {}),
    ("conv2d", ((2, 4, 5, 5), (4, 4, 3, 3), (3,)), {}),
    ("conv2d", ((4, 5), (4, 4, 3, 3)), {}),
    ("conv1d", ((4, 5, 5, 5), (4, 4, 3)), {}),
    ("conv1d", ((1, 4, 5), (4, 4, 3, 3)), {}),
    ("conv2d", ((1, 4, 5, 5), (4, 4, 3, 3)), {"padding": "same", "stride": 2}),
    ("conv2d", ((1, 4, 5, 5), (4, 4, 3, 3)), {"padding": "full"}),
    ("conv2d", ((1, 4, 5, 5), (4, 4, 3, 3)), {"stride": (1, 2, 3)}),
    ("conv2d", ((1, 4, 0, 5), (4, 4, 3, 3)), {"padding": 2}),
    ("conv_transpose2d", ((2, 3, 5, 5), (4, 2, 3, 3)), {}),
    ("conv_transpose2d", ((2, 3, 5, 5), (3, 2, 3, 3), (3,)), {}),
    ("conv_transpose2d", ((2, 3, 5, 5), (3, 2, 3, 3)), {"groups": 2}),
    ("conv_transpose2d", ((2, 3, 5, 5), (3, 2, 3, 3)), {"padding": "same"}),
]


@pytest.mark.parametrize(("name", "shapes", "attrs"), REFUSED, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(REFUSED)])
def test_wrong_calls(name: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, Any]):
    ours, theirs = both(name)
    same_error(
        lambda: ours(*[ts.zeros(s) for s in shapes], **attrs), lambda: theirs(*[torch.zeros(s) for s in shapes], **attrs)
    )


def test_wrong_calls_that_name_more():
    x, w = ts.zeros(2, 3, 5, 5), ts.zeros(3, 2, 3, 3)
    with pytest.raises(RuntimeError, match=r"smaller than either stride or dilation.*\[2, 2\]"):
        OURS.conv_transpose2d(x, w, output_padding=2)
    with pytest.raises(RuntimeError, match=r"\(5 x 5\).*\(-13 x -13\)"):
        OURS.conv_transpose2d(x, w, padding=10)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Double"):
        OURS.conv2d(x, ts.zeros(4, 3, 3, 3, dtype=ts.float64))
    with pytest.raises(RuntimeError, match=r"Input type \(float\) and bias type \(double\)"):
        OURS.conv2d(x, ts.zeros(4, 3, 3, 3), ts.zeros(4, dtype=ts.float64))
    with pytest.raises(NotImplementedError, match="Bool"):
        OURS.conv2d(x > 0, ts.zeros(4, 3, 3, 3) > 0)
    with pytest.raises(TypeError, match="weight"):
        OURS.conv2d(x, [1.0])


@pytest.mark.parametrize("stride", [2, (1, 3), (3, 2)])
def test_single_channels_with_zeros_between_their_elements(stride: Any):
    attrs = {"stride": stride, "padding": 1, "groups": 3}
    compare(*both("conv_transpose2d"), normal(2, 3, 11, 13), normal(3, 2, 3, 3), **attrs)
    compare(*both("conv2d"), normal(2, 3, 21, 23), normal(6, 1, 3, 3), **attrs)
