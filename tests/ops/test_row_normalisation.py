"""layer_norm, rms_norm and batch_norm against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from network_oracle import compare, pair, same_error, torch

import tensorsmith as ts
from tensorsmith.eager.entries import plan_for
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it
from tensorsmith.ops.row_normalisation import NORM

TF = torch.nn.functional
RANDOM = np.random.default_rng(6)
SHAPES = [
    ((5,), 1),
    ((3, 7), 1),
    ((3, 7), 2),
    ((2, 3, 4), 1),
    ((2, 3, 4), 2),
    ((2, 3, 4), 3),
    ((1, 9), 1),
    ((6, 1), 1),
    ((0, 5), 1),
    ((9, 200), 1),
]


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("parameters", [0, 1, 2])
def test_layer_norm(shape: tuple[int, ...], axes: int, parameters: int):
    inner = shape[len(shape) - axes :]
    operands = [normal(*shape) * 3 + 2, *(normal(*inner) for _ in range(parameters))]
    compare(lambda x, *p: F.layer_norm(x, inner, *p), lambda x, *p: TF.layer_norm(x, inner, *p), *operands, tolerance=1e-9)


def test_layer_norm_with_bias_only():
    x, b = normal(3, 5), normal(5)
    compare(lambda x, b: F.layer_norm(x, (5,), None, b, 0.1), lambda x, b: TF.layer_norm(x, (5,), None, b, 0.1), x, b,
            gradients=1)  # fmt: skip


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("eps", [None, 0.1])
def test_rms_norm(shape: tuple[int, ...], axes: int, eps: float | None):
    inner = shape[len(shape) - axes :]
    for operands in ([normal(*shape)], [normal(*shape), normal(*inner)]):
        compare(lambda x, *p: F.rms_norm(x, inner, *p, eps=eps), lambda x, *p: TF.rms_norm(x, inner, *p, eps=eps),
                *operands, tolerance=1e-9)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype: str):
    x, w, b = normal(30, 170) * 2 + 1, normal(170), normal(170)
    tolerance = {"float32": 5e-5, "float16": 1e-2, "bfloat16": 5e-2}[dtype]
    compare(lambda *xs: F.layer_norm(xs[0], (170,), *xs[1:]), lambda *xs: TF.layer_norm(xs[0], (170,), *xs[1:]),
            x, w, b, dtype=dtype, gradients=1, tolerance=tolerance)  # fmt: skip
    compare(lambda x, w: F.rms_norm(x, (170,), w), lambda x, w: TF.rms_norm(x, (170,), w), x, w,
            dtype=dtype, gradients=1, tolerance=tolerance)  # fmt: skip


def test_half_precision_with_float32_parameters():
    x, w = normal(4, 8).astype(np.float32), np.ones(8, np.float32)
    mine = F.layer_norm(ts.tensor(x).to(ts.bfloat16), (8,), ts.tensor(w), ts.tensor(w))
    expected = TF.layer_norm(torch.tensor(x).bfloat16(), (8,), torch.tensor(w), torch.tensor(w))
    assert mine.dtype is ts.bfloat16
    np.testing.assert_allclose(mine.to(ts.float32).numpy(), expected.float().numpy(), rtol=2e-2, atol=2e-2)


def test_other_layouts():
    for x in (normal(5, 4).T, normal(8, 10)[::2, ::2], normal(3, 4, 5).transpose(1, 2, 0)):
        inner = x.shape[-1:]
        compare(lambda x, w: F.layer_norm(x, inner, w), lambda x, w: TF.layer_norm(x, inner, w), x, normal(*inner))  # noqa: B023


def test_a_mean_far_from_zero_keeps_the_variance():
    x = normal(4, 64).astype(np.float32) + np.float32(1e4)
    compare(lambda x: F.layer_norm(x, (64,)), lambda x: TF.layer_norm(x, (64,)), x.astype(float))
    exact = (x.astype(float) - x.astype(float).mean(1, keepdims=True)) / x.astype(float).std(1, keepdims=True)
    np.testing.assert_allclose(F.layer_norm(ts.tensor(x), (64,)).numpy(), exact, atol=2e-3)


@pytest.mark.parametrize("dtype", [ts.float32, ts.float16])
def test_one_kernel_forward_and_two_backward(dtype):
    kinds = [ts.zeros(32, 64, dtype=dtype).layout, *[ts.zeros(64, dtype=dtype).layout] * 2]
    attrs = {"axes": 1, "eps": 1e-5, "centred": True, "has_weight": True}
    program = NORM.program(kinds, attrs)
    assert len(plan_for(NORM, program, kinds).steps) == 1
    backward = program.backward((True, True, True), (True,))
    given = [kinds[w.number] for w in backward.saved] + [kinds[0]]
    assert len(plan_for(backward, backward.program(given, {}), given).steps) == 2


X = np.zeros(5, np.float32)
REFUSED = [
    (X, (3,), ()), (X, (5,), (np.ones(4, np.float32),)), (X.astype(np.int64), (5,), ()), (X, (), ()),
    (X, (5,), (np.ones(5),)), (X, (2, 5), ()),
]  # fmt: skip


@pytest.mark.parametrize(("x", "shape", "parameters"), REFUSED)
def test_refused_as_pytorch_does(x: np.ndarray, shape: tuple, parameters: tuple):
    ours, theirs = pair(x, track=False)
    pairs = [pair(p, track=False) for p in parameters]
    same_error(
        lambda: F.layer_norm(ours, shape, *(p[0] for p in pairs)),
        lambda: TF.layer_norm(theirs, shape, *(p[1] for p in pairs)),
    )
    if x.dtype == np.float32 and shape in [(3,), ()]:
        same_error(lambda: F.rms_norm(ours, shape), lambda: TF.rms_norm(theirs, shape))
