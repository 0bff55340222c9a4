"""Activation functions against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from network_oracle import compare, pair, same_error, torch

import tensorsmith as ts
from tensorsmith.autograd.backward import grad
from tensorsmith.eager.entries import plan_for
from tensorsmith.eager.operator import operators
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it

TF = torch.nn.functional
RANDOM = np.random.default_rng(2)

CASES = [
    ("relu", {}), ("relu6", {}), ("hardtanh", {}), ("hardtanh", {"min_val": -0.5, "max_val": 2.0}), ("leaky_relu", {}),
    ("leaky_relu", {"negative_slope": 0.2}), ("leaky_relu", {"negative_slope": -0.5}), ("elu", {}),
    ("elu", {"alpha": 0.3}),
    ("selu", {}), ("celu", {}), ("celu", {"alpha": 2.5}), ("celu", {"alpha": -2.0}), ("gelu", {}),
    ("gelu", {"approximate": "tanh"}), ("silu", {}), ("mish", {}), ("softplus", {}),
    ("softplus", {"beta": 3.0, "threshold": 2.0}),
    ("softsign", {}), ("hardsigmoid", {}), ("hardswish", {}), ("logsigmoid", {}), ("tanhshrink", {}),
    ("hardshrink", {}), ("hardshrink", {"lambd": 0.1}), ("softshrink", {}), ("softshrink", {"lambd": 1.5}),
    ("sigmoid", {}), ("tanh", {}),
    ("threshold", {"threshold": 0.1, "value": 20.0}), ("threshold", {"threshold": 0.1, "value": -2.0}),
]  # fmt: skip
NAMES = [f"{name}-{'-'.join(map(str, keywords.values()))}" for name, keywords in CASES]
WRITES = (
    "relu",
    "relu6",
    "hardtanh",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "silu",
    "mish",
    "hardsigmoid",
    "hardswish",
    "threshold",
)

# PyTorch divides by 6 in float32 where it differentiates hardsigmoid, and cannot differentiate that again.
LOOSE = {"hardsigmoid": 1e-7}
ONCE = {"hardsigmoid": 1}

# Ties and corners, and far out.
POINTS = np.array([-1e4, -100, -20, -6, -3, -2.5, -1, -0.5, -0.1, -0.0, 0.0, 0.1, 0.5, 1, 2, 3, 6, 7, 20, 21, 100, 1e4])


@pytest.mark.parametrize(("name", "keywords"), CASES, ids=NAMES)
def test_values_and_gradients(name: str, keywords: dict):
    compare(getattr(F, name), getattr(TF, name), RANDOM.standard_normal((3, 37)) * 3, tolerance=LOOSE.get(name),
            gradients=ONCE.get(name, 2), **keywords)  # fmt: skip


@pytest.mark.parametrize(("name", "keywords"), CASES, ids=NAMES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_at_corners_and_far_out(name: str, keywords: dict, dtype: str):
    compare(
        getattr(F, name),
        getattr(TF, name),
        POINTS,
        dtype=dtype,
        gradients=1,
        tolerance=LOOSE.get(name) if dtype == "float64" else None,
        **keywords,
    )


@pytest.mark.parametrize(("name", "keywords"), CASES, ids=NAMES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(name: str, keywords: dict, dtype: str):
    compare(getattr(F, name), getattr(TF, name), RANDOM.standard_normal(100) * 2, dtype=dtype, gradients=1, **keywords)


@pytest.mark.parametrize(("name", "keywords"), CASES, ids=NAMES)
def test_other_layouts_keep_their_order(name: str, keywords: dict):
    for array in (
        RANDOM.standard_normal((4, 6)).T,
        RANDOM.standard_normal((8, 10))[::2, ::3],
        np.zeros((0, 3)),
        np.array(1.5),
    ):
        ours, theirs = pair(array)
        mine, expected = getattr(F, name)(ours, **keywords), getattr(TF, name)(theirs, **keywords)
        if array.size:
            assert tuple(mine.stride()) == tuple(expected.stride())
        compare(getattr(F, name), getattr(TF, name), array, tolerance=LOOSE.get(name),
                gradients=ONCE.get(name, 2), **keywords)  # fmt: skip


def test_nan_stays():
    for name, keywords in CASES:
        mine = getattr(F, name)(ts.tensor([float("nan"), 1.0]), **keywords)
        expected = getattr(TF, name)(torch.tensor([float("nan"), 1.0]), **keywords)
        assert np.isnan(mine.numpy()).tolist() == torch.isnan(expected).tolist(), name


@pytest.mark.parametrize("name", WRITES)
def test_in_place(name: str):
    keywords = {"threshold": 0.1, "value": -2.0} if name == "threshold" else {}
    array = RANDOM.standard_normal((3, 5)) * 3
    ours, theirs = pair(array.copy())
    mine, expected = ours * 1.0, theirs * 1.0
    written = getattr(F, name)(mine, inplace=True, **keywords)
    assert written is mine
    wanted = getattr(TF, name)(expected, inplace=True, **keywords)
    np.testing.assert_allclose(mine.detach().numpy(), wanted.detach().numpy(), rtol=1e-12)
    (found,) = grad([mine * 2.0], [ours], [ts.ones(3, 5, dtype=ts.float64)])
    (right,) = torch.autograd.grad((wanted * 2.0).sum(), theirs)
    np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", WRITES)
def test_a_leaf_is_not_written(name: str):
    keywords = {"threshold": 0.1, "value": -2.0} if name == "threshold" else {}
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        getattr(F, name)(ts.zeros(3, requires_grad=True), inplace=True, **keywords)


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "elu", "hardswish", "softplus", "softshrink"])
def test_each_way_is_one_kernel(name: str):
    operator = operators()[name]
    layout = ts.zeros(64, 32).layout
    attrs = {
        "gelu": {"approximate": "none"},
        "softplus": {"beta": 2.0, "threshold": 20.0},
        "softshrink": {"lambd": 0.5},
    }.get(name, {})
    if name == "elu":
        attrs = {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}
    program = operator.program([layout], attrs)
    assert len(plan_for(operator, program, [layout]).steps) == 1
    backward = program.backward((True,), (True,))
    kinds = [layout] * (len(backward.saved) + 1)
    assert len(plan_for(backward, backward.program(kinds, {}), kinds).steps) == 1


@pytest.mark.parametrize("shape", [(4, 6), (2, 4, 8), (6,)])
def test_glu(shape: tuple[int, ...]):
    array = RANDOM.standard_normal(shape)
    for dim in range(-len(shape), len(shape)):
        if shape[dim] % 2 == 0:
            compare(F.glu, TF.glu, array, dim=dim)
    compare(F.glu, TF.glu, array, dtype="float16", gradients=1)


@pytest.mark.parametrize(("shape", "weights"), [((5,), 1), ((2, 3), 3), ((2, 3, 4), 3), ((2, 3), 1), ((), 1), ((0, 3), 3)])
def test_prelu(shape: tuple[int, ...], weights: int):
    compare(F.prelu, TF.prelu, RANDOM.standard_normal(shape), RANDOM.standard_normal(weights))


def test_integers():
    values = np.arange(-3, 9)
    for name in ("relu", "relu6", "hardtanh", "softsign", "tanhshrink", "sigmoid", "tanh"):
        compare(getattr(F, name), getattr(TF, name), values, tolerance=1e-6)
    compare(F.threshold, TF.threshold, values, threshold=2, value=7)


REFUSED = [
    *((name, np.arange(3), {}) for name in (
        "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "hardsigmoid", "hardswish",
        "logsigmoid", "hardshrink", "softshrink")),
    ("glu", np.arange(4), {}),
    *((name, np.zeros(3, bool), {}) for name in ("relu", "relu6", "softsign", "gelu")),
    ("glu", np.zeros(5), {}), ("glu", np.array(1.0), {}), ("glu", np.zeros(4), {"dim": 1}),
    ("hardtanh", np.zeros(3), {"min_val": 1.0, "max_val": 0.0}),
    ("celu", np.zeros(3), {"alpha": 0.0}),
    ("gelu", np.zeros(3), {"approximate": "exact"}),
    ("softshrink", np.zeros(3, np.float32), {"lambd": -1.0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "array", "keywords"), REFUSED)
def test_refused_as_pytorch_does(name: str, array: np.ndarray, keywords: dict):
    ours, theirs = pair(array, track=False)
    same_error(lambda: getattr(F, name)(ours, **keywords), lambda: getattr(TF, name)(theirs, **keywords))


def test_what_is_no_tensor_is_named():
    for name in ("relu", "gelu", "elu", "softplus", "glu"):
        with pytest.raises(TypeError, match="must be Tensor, not float"):
            getattr(F, name)(1.0)
    with pytest.raises(RuntimeError, match="parameter numbers = 2 and channel"):
        F.prelu(ts.zeros(4, 3), ts.zeros(2))


def test_rrelu():
    compare(F.rrelu, TF.rrelu, RANDOM.standard_normal((3, 5)), lower=0.1, upper=0.5)
    x = ts.tensor(-np.ones((100, 100)), dtype=ts.float64, requires_grad=True)
    y = F.rrelu(x, 0.1, 0.5, training=True)
    slopes = -y.detach().numpy()
    assert slopes.min() >= 0.1 and slopes.max() < 0.5 and abs(slopes.mean() - 0.3) < 0.01
    (found,) = grad([y], [x], [ts.ones(100, 100, dtype=ts.float64)])
    np.testing.assert_allclose(found.numpy(), slopes, rtol=1e-12)
    positive = ts.ones(5)
    assert F.rrelu(positive, training=True).tolist() == [1.0] * 5
    written = ts.tensor([-1.0, 2.0])
    assert F.rrelu(written, training=True, inplace=True) is written and -0.34 < written.tolist()[0] < -0.12
    same_error(lambda: F.rrelu(positive, 0.5, 0.2), lambda: TF.rrelu(torch.ones(5), 0.5, 0.2))


@pytest.mark.parametrize("name", ["relu", "elu", "selu", "celu", "leaky_relu", "hardtanh"])
def test_names_with_an_underscore_write_over_the_input(name: str):
    x = ts.tensor([-2.0, 0.5, 3.0])
    expected = getattr(F, name)(x).tolist()
    assert getattr(F, name + "_")(x) is x
    assert x.tolist() == expected


def test_names_outside_nn_functional():
    x = ts.tensor([-2.0, 0.2, 3.0])
    for name in ("selu", "celu", "hardshrink"):
        assert getattr(ts, name)(x).tolist() == getattr(F, name)(x).tolist()
    assert x.hardshrink(1.0).tolist() == [-2.0, 0.0, 3.0]
    assert ts.threshold(x, 0.5, 9.0).tolist() == [9.0, 9.0, 3.0]
    assert x.prelu(ts.tensor([0.5])).tolist() == ts.prelu(x, ts.tensor([0.5])).tolist() == F.prelu(x, ts.tensor([0.5])).tolist()
