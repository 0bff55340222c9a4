"""linear_cross_entropy against PyTorch, at once and in chunks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import tensorsmith as ts
from tensorsmith.nn import (
    LinearCrossEntropyOptions,
    functional as F,  # noqa: N812 - as users import it
)

TF = torch.nn.functional
RANDOM = np.random.default_rng(2)
X, W, B = (RANDOM.standard_normal(shape) for shape in ((7, 4), (5, 4), (5,)))
LABELS, CLASS_WEIGHT = np.array([0, 4, 2, 2, 1, 3, 2]), np.array([0.5, 1.0, 2.0, 0.25, 1.5])


def run(lib, functional, x, w, target, options, bias=None, weight=None, dtype="float64", **keywords):
    kind = getattr(lib, dtype)
    leaves = [lib.tensor(a, dtype=kind, requires_grad=True) for a in (x, w, *(() if bias is None else (bias,)))]
    labels = lib.tensor(target) if target.dtype.kind == "i" else lib.tensor(target, dtype=kind)
    found = functional.linear_cross_entropy(
        *leaves[:2], labels, linear_bias=leaves[2] if bias is not None else None,
        weight=None if weight is None else lib.tensor(weight, dtype=kind), options=options, **keywords,
    )  # fmt: skip
    factor = lib.arange(1, 1 + found.numel(), dtype=kind).reshape(found.shape)
    grads = lib.autograd.grad((found * factor).sum(), leaves)
    return [t.detach().numpy() for t in (found, *grads)]


def compare(*args, options=None, tolerance=1e-10, **keywords):
    mine = None if options is None else LinearCrossEntropyOptions(**options)
    theirs = None if options is None else torch.nn.LinearCrossEntropyOptions(allow_retain_graph=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = run(torch, TF, *args, theirs, **keywords)
        found = run(ts, F, *args, mine, **keywords)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


OPTIONS = [None, {"batch_chunk_size": 2}, {"batch_chunk_size": 100}, {}, {"chunking_method": "aspect_ratio"}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("bias", "weight", "ignore_index"), [(None, None, None), (B, CLASS_WEIGHT, 2), (B, None, 0)])
def test_labels(options, reduction, bias, weight, ignore_index):
    keywords = {"reduction": reduction, "ignore_index": ignore_index, "bias": bias, "weight": weight}
    compare(X, W, LABELS, options=options, **keywords)
    compare(X[1], W, LABELS[1], options=options, **keywords)


def test_other_targets():
    compare(X, W, RANDOM.random((7, 5)), bias=B, weight=CLASS_WEIGHT)
    compare(X, W, LABELS, label_smoothing=0.3)
    places = RANDOM.standard_normal((5, 3, 2, 4))
    compare(X, places, RANDOM.integers(0, 5, (7, 3, 2)), bias=RANDOM.standard_normal((5, 3, 2)))
    compare(X, places, RANDOM.random((7, 5, 3, 2)))
    compare(X, places, RANDOM.integers(0, 5, (7, 3, 2)), options={})  # warns and runs at once


def test_half_precision():
    for dtype, tolerance in (("float32", 1e-5), ("float16", 2e-2)):
        compare(X, W, LABELS, options={"batch_chunk_size": 3}, dtype=dtype, tolerance=tolerance)


def test_derivatives_in_chunks():
    labels = ts.tensor(LABELS)
    leaves = [ts.tensor(a, requires_grad=True) for a in (X, W, B)]

    def loss(x, w, b):
        return F.linear_cross_entropy(x, w, labels, linear_bias=b, options=LinearCrossEntropyOptions(batch_chunk_size=3))

    assert ts.autograd.gradcheck(loss, leaves, check_forward_ad=True) and ts.autograd.gradgradcheck(loss, leaves)


def test_an_empty_batch():
    empty = ts.ones(0, 4), ts.tensor(W, dtype=ts.float32), ts.zeros(0, dtype=ts.int64)
    for options in (None, LinearCrossEntropyOptions(batch_chunk_size=2)):
        assert F.linear_cross_entropy(*empty, reduction="none", options=options).shape == (0,)
        assert F.linear_cross_entropy(*empty, reduction="sum", options=options).item() == 0
        assert np.isnan(F.linear_cross_entropy(*empty, options=options).item())


def test_a_label_out_of_range():
    for options in (None, LinearCrossEntropyOptions(batch_chunk_size=2)):
        with pytest.raises(IndexError, match="Target 5 is out of bounds"):
            F.linear_cross_entropy(ts.tensor(X), ts.tensor(W), ts.tensor([0, 1, 2, 5, 1, 1, 1]), options=options)


@pytest.mark.parametrize(
    ("x", "w", "target", "keywords"),
    [
        ((2, 3, 4), (5, 4), (2,), {}), ((2, 4), (4,), (2,), {}), ((2, 4), (5, 3), (2,), {}),
        ((2, 4), (5, 4), (2,), {"linear_bias": (4,)}), ((4,), (5, 2, 4), (2,), {}), ((2, 4), (5, 4), (3,), {}),
    ],
)  # fmt: skip
def test_refused_as_pytorch_does(x, w, target, keywords):
    def call(lib, functional, options):
        more = {k: lib.ones(v) for k, v in keywords.items()}
        functional.linear_cross_entropy(lib.ones(x), lib.ones(w), lib.zeros(target, dtype=lib.int64), options=options, **more)

    for options in (None, LinearCrossEntropyOptions()):
        with pytest.raises((RuntimeError, ValueError)) as wanted:
            call(torch, TF, None)
        with pytest.raises(type(wanted.value)):
            call(ts, F, options)


@pytest.mark.parametrize(
    "wrong",
    [{"acc_policy": "x"}, {"chunking_method": "x"}, {"chunking_method": "aspect_ratio:0"}, {"batch_chunk_size": 0},
     {"acc_dtype": ts.int64}],
)  # fmt: skip
def test_options_are_checked(wrong):
    with pytest.raises(ValueError):
        LinearCrossEntropyOptions(**wrong)


def test_sizes_that_contradict_each_other():
    options = LinearCrossEntropyOptions(batch_chunk_size=3, chunking_method="aspect_ratio")
    with pytest.raises(ValueError, match="different chunk sizes"):
        F.linear_cross_entropy(ts.tensor(X), ts.tensor(W), ts.tensor(LABELS), options=options)
