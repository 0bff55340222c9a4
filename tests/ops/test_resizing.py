"""Resizing, grids, blocks and shuffles against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from network_oracle import assert_same, compare, same_error, torch

import tensorsmith as ts
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it
from tensorsmith.ops.resizing import nearest_places

TF = torch.nn.functional
RANDOM = np.random.default_rng(22)
RANKS = {"linear": (1,), "bilinear": (2,), "bicubic": (2,), "trilinear": (3,)}
NEAREST = ("nearest", "nearest-exact", "area")


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


@pytest.mark.parametrize("mode", [*NEAREST, *RANKS])
def test_interpolate(mode: str):
    @settings(max_examples=25, deadline=None)
    @given(st.data())
    def check(data: Any) -> None:
        rank = data.draw(st.sampled_from(RANKS.get(mode, (1, 2, 3))))
        x = normal(data.draw(st.integers(1, 2)), 2, *[data.draw(st.integers(1, 6)) for _ in range(rank)])
        keywords: dict[str, Any] = {"mode": mode}
        if data.draw(st.booleans()):
            keywords["size"] = [data.draw(st.integers(1, 9)) for _ in range(rank)]
        else:
            keywords["scale_factor"] = [data.draw(st.sampled_from([1.0, 1.3, 2.0, 2.6, 3.0])) for _ in range(rank)]
            # Where a factor leaves or doubles an extent, PyTorch's gradient (and a layout) forgets the factor.
            forgets = any(int(n * f) in (n, 2 * n) for n, f in zip(x.shape[2:], keywords["scale_factor"]))
            keywords["recompute_scale_factor"] = (mode == "nearest" and forgets) or data.draw(st.booleans())
        if mode not in NEAREST:
            keywords["align_corners"] = data.draw(st.booleans())
        compare(F.interpolate, TF.interpolate, x, tolerance=1e-6 if mode in NEAREST else 1e-9, **keywords)

    check()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
def test_antialias(mode: str, corners: bool):
    x = normal(2, 3, 9, 11)
    for size in ((4, 5), (3, 16), (9, 2), (1, 1)):
        compare(
            F.interpolate, TF.interpolate, x, size=size, mode=mode, align_corners=corners, antialias=True, gradients=1,
            tolerance=1e-8,
        )  # fmt: skip
    compare(F.interpolate, TF.interpolate, x, scale_factor=0.4, mode=mode, antialias=True, gradients=1, tolerance=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_nearest_places_at_every_scale(dtype: str):
    """The products of places and scales are rounded as PyTorch rounds them."""
    for extent in (2, 3, 5, 7, 41, 100):
        values = np.arange(float(extent))[None, None]
        ours, theirs = ts.tensor(values, dtype=getattr(ts, dtype)), torch.tensor(values, dtype=getattr(torch, dtype))
        for count in (*range(1, 60), 123, 410, 1000):
            for exact in (False, True):
                found = nearest_places(extent, count, None, exact, ours.dtype)
                right = TF.interpolate(theirs, size=count, mode="nearest-exact" if exact else "nearest")
                np.testing.assert_array_equal(found, right[0, 0].long().numpy())
        for keywords in ({"size": 23}, {"size": 123}, {"scale_factor": 1.3}, {"scale_factor": 2.6}):
            for mode in ("nearest", "nearest-exact"):
                assert_same(F.interpolate(ours, **keywords, mode=mode), TF.interpolate(theirs, **keywords, mode=mode), 0, mode)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_dtypes(dtype: str):
    x = normal(2, 3, 5, 6)
    for mode in ("nearest", "bilinear", "bicubic"):
        compare(F.interpolate, TF.interpolate, x, scale_factor=1.7, mode=mode, dtype=dtype, gradients=1, tolerance=None)


def test_bytes():
    x = RANDOM.integers(0, 256, (1, 2, 3, 4)).astype(np.uint8)
    found = F.interpolate(ts.from_numpy(x), size=(5, 9))
    np.testing.assert_array_equal(found.numpy(), TF.interpolate(torch.from_numpy(x), size=(5, 9)).numpy())
    for mode in ("linear", "trilinear"):
        with pytest.raises(NotImplementedError, match="Byte"):
            F.interpolate(ts.from_numpy(x[:, :, 0] if mode == "linear" else x[..., None]), size=5, mode=mode)


WRONG = [
    ((1, 2, 6, 6), {}, "either size or scale_factor"),
    ((1, 2, 6, 6), {"size": 2, "scale_factor": 2}, "only one of"),
    ((1, 2, 6, 6), {"size": (2, 2, 2)}, "same number of spatial dimensions"),
    ((1, 2, 6, 6), {"size": (2.5, 2)}, "float"),
    ((1, 2, 6, 6), {"size": 0}, r"\(H: 6, W: 6\) output \(H: 0, W: 0\)"),
    ((1, 0, 6, 6), {"size": 2}, r"\[1, 0, 6, 6\]"),
    ((6, 6), {"size": 2}, "got 2D"),
    ((1, 2, 6, 6), {"size": 2, "mode": "linear"}, "Got 4D input, but linear mode needs 3D input"),
    ((1, 2, 6, 6), {"size": 2, "align_corners": True}, "align_corners"),
    ((1, 2, 6), {"size": 2, "antialias": True}, "Anti-alias"),
    ((1, 2, 6, 6), {"size": 2, "mode": "cubic"}, "cubic"),
    ((1, 2, 6, 6), {"size": 2, "recompute_scale_factor": True}, "recompute_scale_factor"),
]


@pytest.mark.parametrize(("shape", "keywords", "words"), WRONG)
def test_refused_sizes(shape: tuple[int, ...], keywords: dict[str, Any], words: str):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever PyTorch raises
        TF.interpolate(torch.ones(shape), **keywords)
    with pytest.raises(type(theirs.value), match=words):
        F.interpolate(ts.ones(*shape), **keywords)


def test_former_names_warn():
    x = normal(1, 2, 3, 4)
    for name in ("upsample", "upsample_nearest", "upsample_bilinear"):
        with pytest.warns(UserWarning, match=name):
            found = getattr(F, name)(ts.tensor(x), scale_factor=2)
        with pytest.warns(UserWarning, match=name):
            right = getattr(TF, name)(torch.tensor(x), scale_factor=2)
        assert_same(found, right, 1e-12, name)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str, corners: bool):
    for shape, points in (((2, 3, 4, 5), (2, 3, 6, 2)), ((1, 2, 1, 1), (1, 4, 4, 2)), ((2, 1, 3, 4, 2), (2, 3, 2, 2, 3))):
        if mode == "bicubic" and len(shape) == 5:
            continue
        x, grid = normal(*shape), RANDOM.uniform(-2.3, 2.3, points)
        keywords = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        gradients = 2 if mode == "bilinear" and len(shape) == 4 and padding == "zeros" else 1
        compare(F.grid_sample, TF.grid_sample, x, grid, gradients=gradients, **keywords)


def test_grids_that_do_not_fit():
    x = (1, 2, 6, 6)
    for shape, points, keywords, words in (
        (x, (1, 2, 2, 3), {}, r"size 2 in last dimension.*\[1, 2, 2, 3\]"), (x, (2, 2, 2, 2), {}, "same batch size"),
        (x, (1, 2, 2), {}, "same number of dimensions"), ((1, 2, 0, 6), (1, 2, 2, 2), {}, "dimension 2 being empty"),
        ((1, 2, 2, 2, 2), (1, 2, 2, 2, 3), {"mode": "bicubic"}, "only supports 4D"), (x, (1, 2, 2, 2), {"mode": "zz"}, "zz"),
        (x, (1, 2, 2, 2), {"padding_mode": "zz"}, "zz"),
    ):  # fmt: skip
        with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever PyTorch raises
            TF.grid_sample(torch.ones(shape), torch.ones(points), align_corners=False, **keywords)
        with pytest.raises(type(theirs.value), match=words):
            F.grid_sample(ts.ones(*shape), ts.ones(*points), align_corners=False, **keywords)
    assert F.grid_sample(ts.ones(0, 2, 3, 3), ts.ones(0, 2, 2, 2), align_corners=False).shape == (0, 2, 2, 2)


@pytest.mark.parametrize("corners", [False, True])
def test_affine_grid(corners: bool):
    compare(F.affine_grid, TF.affine_grid, normal(2, 2, 3), size=(2, 1, 3, 4), align_corners=corners)
    compare(F.affine_grid, TF.affine_grid, normal(2, 3, 4), size=(2, 1, 2, 3, 4), align_corners=corners)
    for theta, size in (((1, 3, 3), (1, 1, 2, 2)), ((1, 2, 3), (1, 1, 2)), ((1, 2, 3), (1, 1, 0, 2))):
        with pytest.raises((ValueError, NotImplementedError)) as right:
            TF.affine_grid(torch.ones(theta), list(size), corners)
        with pytest.raises(type(right.value), match=str(list(size)).replace("[", r"\[").replace("]", r"\]")):
            F.affine_grid(ts.ones(*theta), list(size), corners)


@st.composite
def blocks(draw: Any) -> tuple[list[int], dict[str, list[int]]]:
    """Sizes of an image, and blocks that fit in it."""
    attrs = {
        "kernel_size": [draw(st.integers(1, 3)) for _ in range(2)], "dilation": [draw(st.integers(1, 2)) for _ in range(2)],
        "padding": [draw(st.integers(0, 2)) for _ in range(2)], "stride": [draw(st.integers(1, 3)) for _ in range(2)],
    }  # fmt: skip
    reach = [(k - 1) * d + 1 - 2 * p for k, d, p in zip(attrs["kernel_size"], attrs["dilation"], attrs["padding"])]
    return [max(1, r) + draw(st.integers(0, 4)) for r in reach], attrs


@settings(max_examples=40, deadline=None)
@given(blocks(), st.sampled_from([(), (2,), (0,)]))
def test_unfold_and_fold(drawn: tuple[list[int], dict[str, list[int]]], batch: tuple[int, ...]):
    extents, attrs = drawn
    compare(F.unfold, TF.unfold, normal(*batch, 2, *extents), **attrs)
    columns = TF.unfold(torch.ones(*batch, 2, *extents), **attrs)
    compare(F.fold, TF.fold, normal(*columns.shape), output_size=extents, **attrs)


def test_blocks_that_do_not_fit():
    for name, shape, arguments in (
        ("unfold", (1, 2, 6, 6), (7,)), ("unfold", (1, 2, 6, 6), (0,)), ("unfold", (1, 2, 6, 6), (2, 0)),
        ("unfold", (1, 2, 6, 6), (2, 1, -1)), ("unfold", (1, 0, 6, 6), (2,)), ("unfold", (1, 2, 6, 6), ((2, 2, 2),)),
        ("fold", (1, 5, 4), (3, 2)), ("fold", (1, 4, 5), (3, 2)), ("fold", (4,), (3, 2)), ("fold", (1, 4, 4), (1, 2)),
    ):  # fmt: skip
        with pytest.raises(RuntimeError):
            getattr(TF, name)(torch.ones(shape), *arguments)
        with pytest.raises(RuntimeError, match="greater than zero|at least one|non-negative|expected|Expected|equals to 2"):
            getattr(F, name)(ts.ones(*shape), *arguments)


def test_shuffles():
    compare(F.pixel_shuffle, TF.pixel_shuffle, normal(2, 8, 3, 2), upscale_factor=2)
    compare(F.pixel_unshuffle, TF.pixel_unshuffle, normal(2, 2, 6, 4), downscale_factor=2)
    compare(F.channel_shuffle, TF.channel_shuffle, normal(2, 6, 3, 2), groups=3)
    for name, shape, number in (
        ("pixel_shuffle", (1, 2, 6, 6), 2), ("pixel_shuffle", (1, 2, 6, 6), 0), ("pixel_shuffle", (6, 6), 2),
        ("pixel_unshuffle", (1, 2, 6, 6), 4), ("pixel_unshuffle", (1, 2, 6, 6), -1), ("channel_shuffle", (1, 2, 6, 6), 3),
        ("channel_shuffle", (1, 2, 6, 6), 0), ("channel_shuffle", (6, 6), 1),
    ):  # fmt: skip
        same_error(
            lambda name=name, shape=shape, number=number: getattr(F, name)(ts.ones(*shape), number),
            lambda name=name, shape=shape, number=number: getattr(TF, name)(torch.ones(shape), number),
        )


def test_padding_modes():
    x = normal(2, 3, 5, 6)
    for mode in ("reflect", "replicate", "circular"):
        for widths in ((1, 2, 3, 4), (2, -1, -2, 3), (-3, 2, 0, 0), (-2, -2, 1, 1)):
            compare(F.pad, TF.pad, x, pad=widths, mode=mode)
    compare(F.pad, TF.pad, normal(4, 4)[None], pad=(-4, 3), mode="replicate")
    assert F.pad(ts.ones(0, 3, 4), (1, 2), "reflect").shape == (0, 3, 7)


def test_modules():
    x = normal(2, 4, 4, 6)
    mine, expected = ts.from_numpy(x), torch.from_numpy(x)
    names = [(f"{kind}Pad2d", ((1, 2, 3, 1),)) for kind in ("Reflection", "Replication", "Circular", "Zero")]
    names += [("ConstantPad2d", (1, 2.5)), ("ReflectionPad1d", (1,)), ("ReplicationPad3d", (1,)), ("ZeroPad1d", (2,))]
    names += [("CircularPad1d", ((1, 2),)), ("PixelShuffle", (2,)), ("PixelUnshuffle", (2,)), ("ChannelShuffle", (2,))]
    names += [("Unfold", (2,)), ("UpsamplingNearest2d", (3,)), ("UpsamplingBilinear2d", ((5, 7),)), ("Upsample", (5,))]
    for name, arguments in names:
        ours, theirs = getattr(ts.nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
        assert repr(ours) == repr(theirs)
        given, right = (mine[0], expected[0]) if "1d" in name else (mine, expected)
        assert_same(ours(given), theirs(right), 1e-10, name)
    assert repr(ts.nn.Fold(3, 2)) == repr(torch.nn.Fold(3, 2))
    assert ts.nn.Fold((3, 3), 2)(ts.ones(1, 4, 4)).shape == (1, 1, 3, 3)
    scaled = ts.nn.Upsample(scale_factor=2, mode="bilinear")
    assert repr(scaled) == repr(torch.nn.Upsample(scale_factor=2, mode="bilinear"))
    assert scaled(mine).shape == (2, 4, 8, 12)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("size", "how"), [
    ((8, 4), {}), ((3, 20), {"align_corners": True}), ((3, 20), {"antialias": True}), ((5, 13), {}),
    (None, {"scale_factor": (1.7, 0.6)}),
])  # fmt: skip
def test_bytes_are_rounded_as_pytorch_rounds_them(mode, size, how):
    """In fixed point, axis by axis, whose results differ from rounded ones of floats; few channels and many."""
    rng = np.random.default_rng(5)
    for channels in (3, 5):
        x = np.where(rng.random((2, channels, 5, 7)) < 0.5, rng.integers(0, 2, (2, channels, 5, 7)) * 255, 128).astype(np.uint8)
        found = [L.nn.functional.interpolate(L.from_numpy(x), size, mode=mode, **how) for L in (ts, torch)]
        assert found[0].dtype is ts.uint8
        np.testing.assert_array_equal(*(y.numpy() for y in found))
