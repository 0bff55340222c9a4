"""Pooling against PyTorch: values, places and gradients over drawn windows, what is refused, empty batches, NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from network_oracle import TOLERANCE, assert_same, compare, pair, torch

import tensorsmith as ts
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it

TF = torch.nn.functional
RANDOM = np.random.default_rng(21)
NAN, INF = float("nan"), float("inf")


def distinct(*shape: int) -> np.ndarray:
    """Different values, so that every maximum is one element."""
    count = int(np.prod(shape))
    return (RANDOM.permutation(count).reshape(shape) - count / 2) / max(count, 1)


@st.composite
def windows(draw: Any, rank: int, dilated: bool, whole: bool = False) -> tuple[np.ndarray, dict[str, Any]]:
    """An input, maybe without a batch or with strides of its own, and windows that fit."""
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 2)) if dilated else 1 for _ in range(rank)]
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    # Every window has a tap that is no padding: PyTorch has no place for one of padding alone.
    least = [k if whole else max(d, (k - 1) * d + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding)]
    extents = [n + draw(st.integers(0, 5)) for n in least]
    lead = draw(st.sampled_from([(2,), (1, 3), (2, 2)]))
    x = distinct(*lead, *extents)
    if draw(st.booleans()):
        x = np.ascontiguousarray(x.swapaxes(0, -1)).swapaxes(0, -1)
    keywords = {
        "kernel_size": kernel, "stride": [draw(st.integers(1, 4)) for _ in range(rank)], "padding": padding,
        "ceil_mode": draw(st.booleans()),
    }  # fmt: skip
    return x, keywords | ({"dilation": dilation} if dilated else {})


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_pool(rank: int):
    ours, theirs = (getattr(each, f"max_pool{rank}d") for each in (F, TF))

    @settings(max_examples=25, deadline=None)
    @given(windows(rank, True))
    def check(drawn: tuple[np.ndarray, dict[str, Any]]) -> None:
        x, keywords = drawn
        compare(ours, theirs, x, gradients=2, **keywords)
        mine, expected = pair(x)
        places, right = ours(mine, **keywords, return_indices=True)[1], theirs(expected, **keywords, return_indices=True)[1]
        assert places.dtype is ts.int64
        np.testing.assert_array_equal(places.numpy(), right.numpy())

    check()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_avg_pool(rank: int):
    ours, theirs = (getattr(each, f"avg_pool{rank}d") for each in (F, TF))

    @settings(max_examples=25, deadline=None)
    @given(windows(rank, False, rank == 3), st.booleans(), st.sampled_from([None, 3, -2]))
    def check(drawn: tuple[np.ndarray, dict[str, Any]], count_include_pad: bool, divisor: int | None) -> None:
        x, keywords = drawn
        more = {} if rank == 1 else {"divisor_override": divisor}
        compare(ours, theirs, x, **keywords, count_include_pad=count_include_pad, **more)

    check()


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_adaptive(rank: int, size: int):
    x = distinct(2, 3, *(7, 6, 4)[3 - rank :])
    for kind in ("avg", "max"):
        compare(*(getattr(each, f"adaptive_{kind}_pool{rank}d") for each in (F, TF)), x, output_size=size)
    mine, expected = pair(x)
    found, right = (getattr(each, f"adaptive_max_pool{rank}d")(v, size, True)[1] for each, v in ((F, mine), (TF, expected)))
    np.testing.assert_array_equal(found.numpy(), right.numpy())


def test_adaptive_sizes_kept():
    x = distinct(2, 3, 5, 6)
    compare(F.adaptive_avg_pool2d, TF.adaptive_avg_pool2d, x, output_size=(None, 4))
    compare(F.adaptive_max_pool2d, TF.adaptive_max_pool2d, x, output_size=(2, None))
    assert F.adaptive_avg_pool2d(ts.ones(2, 3, 5, 6), 0).shape == (2, 3, 0, 0)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, INF, -INF])
def test_lp_pool(rank: int, order: float):
    x = np.abs(distinct(2, 3, *(5, 6, 4)[3 - rank :])) + 0.1
    for keywords in ({"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "ceil_mode": True}):
        compare(*(getattr(each, f"lp_pool{rank}d") for each in (F, TF)), x, norm_type=order, tolerance=1e-8, **keywords)


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_max_pool(rank: int):
    ours, theirs = (getattr(each, f"fractional_max_pool{rank}d") for each in (F, TF))
    x, samples = distinct(2, 3, *(7, 9, 8)[3 - rank :]), RANDOM.random((2, 3, rank))
    for size in (1, 3, 5):
        compare(
            lambda x, u, size=size: ours(x, 2, output_size=size, _random_samples=u),
            lambda x, u, size=size: theirs(x, 2, output_size=size, _random_samples=u),
            x, samples, track=[True, False],
        )  # fmt: skip
        (mine, expected), (u, v) = pair(x), pair(samples, track=False)
        found = ours(mine, 2, output_size=size, return_indices=True, _random_samples=u)[1]
        right = theirs(expected, 2, output_size=size, return_indices=True, _random_samples=v)[1]
        np.testing.assert_array_equal(found.numpy(), right.numpy())
    assert ours(ts.ones(1, 2, *[6] * rank), 2, output_ratio=0.5).shape == (1, 2, *[3] * rank)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_unpool_inverts(rank: int):
    x = np.abs(distinct(2, 3, *(4, 6, 8)[3 - rank :])) + 0.1
    mine, expected = pair(x)
    value, places = getattr(F, f"max_pool{rank}d")(mine, 2, return_indices=True)
    result = getattr(F, f"max_unpool{rank}d")(value, places, 2)
    value2, places2 = getattr(TF, f"max_pool{rank}d")(expected, 2, return_indices=True)
    assert_same(result, getattr(TF, f"max_unpool{rank}d")(value2, places2, 2), 1e-12, "unpooled")
    weight = ts.from_numpy(x)
    (result * weight).sum().backward()
    taken = x * (result.detach().numpy() != 0)
    np.testing.assert_allclose(mine.grad.numpy(), taken)


def test_unpooled_sizes():
    x, places = distinct(1, 2, 3), np.array([[[0, 3, 5], [1, 2, 4]]])
    compare(F.max_unpool1d, TF.max_unpool1d, x, places, kernel_size=2, output_size=(7,))
    with pytest.raises(ValueError, match="between 4 and 8"):
        F.max_unpool1d(ts.tensor(x), ts.tensor(places), 2, output_size=(9,))
    with pytest.raises(RuntimeError, match="invalid max index.*6.*size 6"):
        F.max_unpool1d(ts.tensor(x), ts.tensor(places + 1), 2)


def test_nan_and_infinities():
    x = np.array([[1.0, NAN, 2.0, NAN, NAN, 3.0, -INF, -INF, -INF, INF]])
    for keywords in ({"kernel_size": 2, "stride": 1}, {"kernel_size": 5, "stride": 2, "padding": 2}):
        mine, expected = pair(x)
        for found, right in zip(
            F.max_pool1d(mine, **keywords, return_indices=True), TF.max_pool1d(expected, **keywords, return_indices=True)
        ):
            np.testing.assert_array_equal(found.detach().numpy(), right.detach().numpy())
        compare(F.avg_pool1d, TF.avg_pool1d, x, gradients=0, **keywords)
    one_nan = x.copy()[:, :4]
    compare(F.adaptive_max_pool1d, TF.adaptive_max_pool1d, one_nan, gradients=1, output_size=3)


def test_a_window_of_padding_alone():
    value, place = F.max_pool1d(ts.ones(1, 1), 2, 1, 1, 2, return_indices=True)
    assert value.tolist() == [[-INF]] and place.tolist() == [[0]]


def test_ties_go_to_the_first_and_long_windows_agree_with_short_ones():
    x = np.round(RANDOM.random((2, 9, 11)) * 3)
    for kernel in ((3, 3), (5, 4), (9, 11)):
        mine, expected = pair(x)
        for found, right in zip(
            F.max_pool2d(mine, kernel, 1, 1, return_indices=True), TF.max_pool2d(expected, kernel, 1, 1, return_indices=True)
        ):
            np.testing.assert_array_equal(found.detach().numpy(), right.detach().numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_dtypes(dtype: str):
    x = distinct(2, 3, 8, 9)
    compare(F.max_pool2d, TF.max_pool2d, x, kernel_size=3, stride=2, padding=1, dtype=dtype, gradients=1)
    compare(F.avg_pool2d, TF.avg_pool2d, x, kernel_size=3, stride=2, padding=1, dtype=dtype, gradients=1)
    compare(F.adaptive_avg_pool2d, TF.adaptive_avg_pool2d, x, output_size=(3, 4), dtype=dtype, gradients=1)
    assert set(TOLERANCE) >= {dtype}


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "int8"])
def test_integers(dtype: str):
    x = RANDOM.integers(0, 100, (2, 6, 7)).astype(dtype)
    mine, expected = ts.from_numpy(x), torch.from_numpy(x)
    found, right = F.max_pool2d(mine, 3, 2, 1), TF.max_pool2d(expected, 3, 2, 1)
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found.numpy(), right.numpy())
    if dtype == "int64":
        x = x - 50
        found = F.avg_pool2d(ts.from_numpy(x), 3, 2, 1, count_include_pad=False)
        np.testing.assert_array_equal(found.numpy(), TF.avg_pool2d(torch.from_numpy(x), 3, 2, 1, count_include_pad=False))
    else:
        with pytest.raises(NotImplementedError, match="avg_pool2d"):
            F.avg_pool2d(mine, 2)


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"])
def test_no_samples(name: str):
    x = ts.ones(0, 3, 6, 6, requires_grad=True)
    result = getattr(F, name)(x, 2)
    assert result.shape == getattr(TF, name)(torch.ones(0, 3, 6, 6), 2).shape
    result.sum().backward()
    assert x.grad.shape == x.shape


WRONG = [
    ("max_pool2d", (1, 2, 6, 6), {"kernel_size": 0}, "0"),
    ("max_pool2d", (1, 2, 6, 6), {"kernel_size": 2, "stride": 0}, "stride should not be zero"),
    ("max_pool2d", (1, 2, 6, 6), {"kernel_size": 2, "padding": 2}, "at most half .* pad=2, kernel_size=2"),
    ("max_pool2d", (1, 2, 6, 6), {"kernel_size": 3, "padding": 2, "dilation": 2}, "half of kernel size"),
    ("avg_pool3d", (1, 1, 1, 1), {"kernel_size": (2, 1, 1), "padding": (1, 0, 0)}, "T: 1 H: 1 W: 1.*T: 2 H: 1 W: 1"),
    ("max_pool2d", (1, 2, 6, 6), {"kernel_size": 2, "padding": -1}, "pad: -1"),
    ("max_pool2d", (1, 2, 6, 6), {"kernel_size": 7}, r"\(2x6x6\).*\(2x0x0\).*too small"),
    ("max_pool2d", (1, 2, 6, 6), {"kernel_size": 2, "dilation": 0}, "dilation"),
    ("max_pool2d", (6, 6), {"kernel_size": 2}, r"\[6, 6\]"),
    ("max_pool2d", (1, 0, 6, 6), {"kernel_size": 2}, r"\[1, 0, 6, 6\]"),
    ("max_pool2d", (1, 2, 6, 6), {"kernel_size": (2, 2, 2)}, "two ints"),
    ("max_pool1d", (1, 2, 6), {"kernel_size": 7}, "too small"),
    ("max_pool3d", (1, 2, 6), {"kernel_size": 2}, r"\[1, 2, 6\]"),
    ("avg_pool1d", (1, 2, 6), {"kernel_size": 2, "padding": 2}, "at most half"),
    ("avg_pool2d", (1, 2, 6, 6), {"kernel_size": 2, "divisor_override": 0}, "divisor must be not zero"),
    ("avg_pool2d", (1, 2, 6, 6), {"kernel_size": 2, "stride": -1}, "-1"),
    ("adaptive_avg_pool2d", (1, 2, 6, 6), {"output_size": -1}, r"\{-1, -1\}"),
    ("adaptive_avg_pool2d", (1, 2, 6, 6), {"output_size": (1, 2, 3)}, r"\[1, 2, 3\]"),
    ("adaptive_avg_pool2d", (1, 2, 0, 6), {"output_size": 2}, r"\[1, 2, 0, 6\] with dimension 2"),
    ("adaptive_max_pool1d", (1, 2, 6, 6), {"output_size": 2}, r"\[1, 2, 6, 6\]"),
    ("fractional_max_pool2d", (1, 2, 6, 6), {"kernel_size": 2}, "output_size or an output_ratio"),
    ("fractional_max_pool2d", (1, 2, 6, 6), {"kernel_size": 2, "output_size": 6}, "height 2 too large .* 6"),
]


@pytest.mark.parametrize(("name", "shape", "keywords", "words"), WRONG)
def test_refused(name: str, shape: tuple[int, ...], keywords: dict[str, Any], words: str):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever PyTorch raises
        getattr(TF, name)(torch.ones(shape), **keywords)
    with pytest.raises(type(theirs.value), match=words):
        getattr(F, name)(ts.ones(*shape), **keywords)


def test_bool_and_complex_are_refused():
    for dtype in (ts.bool, ts.complex64):
        for name in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"):
            with pytest.raises(NotImplementedError, match="not implemented for"):
                getattr(F, name)(ts.ones(1, 2, 6, 6).to(dtype), 2)


def test_modules():
    x = distinct(2, 3, 6, 6)
    mine, expected = ts.from_numpy(x), torch.from_numpy(x)
    for name, arguments in (
        ("MaxPool2d", (2,)), ("MaxPool2d", ((2, 3), 2, 1)), ("AvgPool2d", (3, 2, 1)), ("AvgPool1d", (2,)), ("LPPool2d", (1, 2)),
        ("AdaptiveAvgPool2d", ((3, None),)), ("AdaptiveMaxPool2d", (2,)), ("MaxPool1d", (2,)), ("LPPool1d", (1, 2)),
        ("MaxPool3d", (2,)), ("AvgPool3d", (2,)), ("AdaptiveAvgPool1d", (4,)), ("AdaptiveMaxPool1d", (4,)),
        ("AdaptiveAvgPool3d", (2,)), ("AdaptiveMaxPool3d", (2,)), ("LPPool3d", (1, 2)),
    ):  # fmt: skip
        ours, theirs = getattr(ts.nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
        assert repr(ours) == repr(theirs)
        given, right = (mine[0], expected[0]) if "1d" in name else (mine, expected)
        assert_same(ours(given), theirs(right), 1e-10, name)
    value, places = ts.nn.MaxPool2d(2, return_indices=True)(mine)
    assert ts.nn.MaxUnpool2d(2)(value, places).shape == mine.shape
    assert repr(ts.nn.MaxUnpool2d(2, 3)) == repr(torch.nn.MaxUnpool2d(2, 3))
    assert ts.nn.FractionalMaxPool2d(2, output_ratio=0.5)(mine).shape == (2, 3, 3, 3)
    with pytest.raises(ValueError, match="output_size"):
        ts.nn.FractionalMaxPool2d(2, 3, 0.5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        ts.nn.FractionalMaxPool3d(2, output_ratio=1.5)
