"""Elementwise losses against PyTorch."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from network_oracle import compare, pair, same_error, torch

import tensorsmith as ts
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it

TF = torch.nn.functional
RANDOM = np.random.default_rng(4)
MODES = ("mean", "sum", "none")

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size", "ignore:reduction. .mean. divides")


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape))


def chance(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.uniform(0.01, 0.99, shape))


REGRESSION = [
    ("mse_loss", {}), ("l1_loss", {}), ("smooth_l1_loss", {}), ("smooth_l1_loss", {"beta": 0.3}),
    ("smooth_l1_loss", {"beta": 0.0}), ("huber_loss", {}), ("huber_loss", {"delta": 0.4}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keywords"), REGRESSION)
@pytest.mark.parametrize("mode", MODES)
def test_regression(name: str, keywords: dict, mode: str):
    ours, theirs = getattr(F, name), getattr(TF, name)
    for shape in ((3, 5), (), (2, 3, 4), (1,), (0, 3)):
        compare(ours, theirs, normal(*shape), normal(*shape), reduction=mode, **keywords)
    compare(ours, theirs, normal(3, 5), normal(5), reduction=mode, **keywords)
    compare(ours, theirs, normal(5, 3).T, normal(3, 10)[:, ::2], reduction=mode, **keywords)
    if "beta" not in keywords and name != "smooth_l1_loss":
        compare(ours, theirs, normal(3, 5), normal(3, 5), reduction=mode, weight=None, **keywords)
        compare(
            lambda x, y, w: ours(x, y, reduction=mode, weight=w, **keywords),
            lambda x, y, w: theirs(x, y, reduction=mode, weight=w, **keywords),
            normal(3, 5), normal(3, 5), chance(3, 5), track=[True, True, False],
        )  # fmt: skip


@pytest.mark.parametrize(("name", "keywords"), REGRESSION)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_regression_dtypes(name: str, keywords: dict, dtype: str):
    x, y = normal(40, 50), normal(40, 50)
    for mode in MODES:
        compare(getattr(F, name), getattr(TF, name), x, y, dtype=dtype, gradients=1, reduction=mode, **keywords)


@pytest.mark.parametrize(("name", "keywords"), REGRESSION)
def test_regression_where_the_formula_changes(name: str, keywords: dict):
    x = np.array([0.0, 1.0, -1.0, 0.3, -0.3, 0.4, -0.4, 5.0])
    compare(getattr(F, name), getattr(TF, name), x, np.zeros(8), gradients=1, reduction="none", **keywords)


def test_large_sums_of_half_precision_do_not_overflow_on_the_way():
    x = np.full((300, 300), 2.0)
    compare(F.mse_loss, TF.mse_loss, x, np.zeros((300, 300)), dtype="float16", gradients=1)


@pytest.mark.parametrize("mode", [*MODES, "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div(mode: str, log_target: bool):
    for shape in ((3, 5), (), (2, 3, 4)):
        target = normal(*shape) if log_target else chance(*shape)
        compare(F.kl_div, TF.kl_div, normal(*shape), target, reduction=mode, log_target=log_target)
    target = normal(5) if log_target else chance(5)
    compare(F.kl_div, TF.kl_div, normal(3, 5), target, reduction=mode, log_target=log_target, gradients=1)


def test_kl_div_of_zeros():
    target = np.array([0.0, 0.25, 0.75])
    compare(F.kl_div, TF.kl_div, normal(3), target, reduction="sum", track=[True, False])


@pytest.mark.parametrize("mode", MODES)
def test_binary_cross_entropy(mode: str):
    for shape in ((3, 5), (), (2, 3, 4), (0,)):
        compare(F.binary_cross_entropy, TF.binary_cross_entropy, chance(*shape), chance(*shape), reduction=mode, gradients=1)
        compare(F.binary_cross_entropy, TF.binary_cross_entropy, chance(*shape), chance(*shape), reduction=mode,
                track=[True, False])  # fmt: skip
    for weight in (chance(3, 5), chance(5), chance(3, 1)):
        compare(
            lambda x, y, w: F.binary_cross_entropy(x, y, w, reduction=mode),
            lambda x, y, w: TF.binary_cross_entropy(x, y, w, reduction=mode),
            chance(3, 5), chance(3, 5), weight, track=[True, True, False], gradients=1,
        )  # fmt: skip


def test_binary_cross_entropy_is_bounded():
    x, y = np.array([0.0, 1.0, 0.0, 1.0, 1e-30]), np.array([1.0, 0.0, 0.0, 1.0, 0.5])
    compare(F.binary_cross_entropy, TF.binary_cross_entropy, x, y, reduction="none", track=[True, False], gradients=1,
            tolerance=1e-8)  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_with_logits(mode: str):
    for shape in ((3, 5), (), (2, 3, 4), (0,)):
        compare(F.binary_cross_entropy_with_logits, TF.binary_cross_entropy_with_logits, np.asarray(normal(*shape) * 4),
                chance(*shape), reduction=mode)  # fmt: skip
    for weight, positive in (
        (chance(3, 5), None),
        (None, chance(5)),
        (chance(5), chance(3, 5) * 3),
        (chance(3, 1), chance(1)),
    ):
        given = [a for a in (weight, positive) if a is not None]

        def call(function, x, y, *rest):
            w = rest[0] if weight is not None else None  # noqa: B023
            p = rest[-1] if positive is not None else None  # noqa: B023
            return function(x, y, weight=w, pos_weight=p, reduction=mode)

        compare(
            lambda *xs: call(F.binary_cross_entropy_with_logits, *xs),  # noqa: B023
            lambda *xs: call(TF.binary_cross_entropy_with_logits, *xs),  # noqa: B023
            normal(3, 5) * 4, chance(3, 5), *given, track=[True, True, *[False] * len(given)],
        )  # fmt: skip


def test_with_logits_far_out():
    x, y = np.array([-1e4, 1e4, -1e4, 1e4, 0.0]), np.array([0.0, 1.0, 1.0, 0.0, 0.5])
    for dtype in ("float32", "float64"):
        compare(F.binary_cross_entropy_with_logits, TF.binary_cross_entropy_with_logits, x, y, dtype=dtype,
                reduction="none", gradients=1)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_binary_dtypes(dtype: str):
    x, y = chance(40, 50), chance(40, 50)
    for name in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"):
        compare(getattr(F, name), getattr(TF, name), x, y, dtype=dtype, gradients=1, track=[True, False])


def test_older_arguments():
    x, y = ts.tensor([1.0, 2.0]), ts.tensor([3.0, 5.0])
    with pytest.warns(UserWarning, match="reduction='sum'"):
        assert F.mse_loss(x, y, size_average=False).item() == 13.0
    with pytest.warns(UserWarning, match="reduction='none'"):
        assert F.mse_loss(x, y, reduce=False).tolist() == [4.0, 9.0]


def test_sizes_that_differ_warn():
    with pytest.warns(UserWarning, match="Using a target size"):
        F.mse_loss(ts.zeros(3, 2), ts.zeros(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.mse_loss(ts.zeros(3, 2), ts.zeros(3, 2))


X, INTEGERS = np.linspace(0.1, 0.9, 15, dtype=np.float32).reshape(3, 5), np.ones((3, 5), np.int64)
REFUSED = [
    ("mse_loss", X, np.zeros(4, np.float32), {}), ("mse_loss", INTEGERS, INTEGERS, {}),
    ("mse_loss", X, X, {"reduction": "other"}), ("l1_loss", INTEGERS, INTEGERS, {}),
    ("smooth_l1_loss", INTEGERS, INTEGERS, {}), ("smooth_l1_loss", X, X, {"beta": -1.0}),
    ("huber_loss", INTEGERS, INTEGERS, {}), ("huber_loss", X, X, {"delta": 0.0}),
    ("binary_cross_entropy", X + 1, X, {}), ("binary_cross_entropy", X * np.float32(np.nan), X, {}),
    ("binary_cross_entropy", X, X[0], {}), ("binary_cross_entropy", X, X.astype(float), {}),
    ("binary_cross_entropy", INTEGERS, INTEGERS, {}), ("binary_cross_entropy", X + 1, X, {"reduction": "none"}),
    ("binary_cross_entropy_with_logits", X, X[0], {}), ("binary_cross_entropy_with_logits", INTEGERS, INTEGERS, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x", "y", "keywords"), REFUSED)
def test_refused_as_pytorch_does(name: str, x: np.ndarray, y: np.ndarray, keywords: dict):
    (ours, theirs), (mine, other) = pair(x, track=False), pair(y, track=False)

    def run() -> None:
        try:
            getattr(F, name)(ours, mine, **keywords)
        except Exception as error:  # shapes print with our name for Size
            raise type(error)(str(error).replace("tensorsmith.Size", "torch.Size")) from error

    same_error(run, lambda: getattr(TF, name)(theirs, other, **keywords))


def test_a_weight_of_another_shape_is_refused():
    for name in ("mse_loss", "l1_loss", "huber_loss"):
        with pytest.raises(ValueError, match="Weights and input must have the same size"):
            getattr(F, name)(ts.zeros(3, 5), ts.zeros(3, 5), weight=ts.zeros(5))
