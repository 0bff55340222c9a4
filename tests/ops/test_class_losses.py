"""cross_entropy and nll_loss against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from network_oracle import compare, numbers, pair, same_error, torch

import tensorsmith as ts
from tensorsmith.eager.entries import plan_for
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it
from tensorsmith.ops import class_losses

TF = torch.nn.functional
RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_numbers():
    """Every test draws the same numbers, whatever ran before it."""
    RANDOM.bit_generator.state = np.random.default_rng(5).bit_generator.state


MODES = ("mean", "sum", "none")
SHAPES = [(5,), (4, 5), (3, 5, 2), (2, 5, 3, 2), (2, 3, 2, 2, 2), (1, 1), (7, 130)]


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


def labels_for(shape: tuple[int, ...], ignored: int | None = None) -> np.ndarray:
    classes = shape[1] if len(shape) > 1 else shape[0]
    labels = np.asarray(RANDOM.integers(0, classes, (shape[0], *shape[2:]) if len(shape) > 1 else ()))
    if ignored is not None and labels.size > 1:
        labels.reshape(-1)[::2] = ignored
    return labels


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_labels(shape: tuple[int, ...], mode: str, smoothing: float):
    for ignored in (None, -100, 0):
        keywords = {} if ignored is None else {"ignore_index": ignored}
        labels = labels_for(shape, ignored)
        compare(
            F.cross_entropy,
            TF.cross_entropy,
            normal(*shape),
            labels,
            reduction=mode,
            label_smoothing=smoothing,
            **keywords,
        )
        if not smoothing:
            compare(F.nll_loss, TF.nll_loss, normal(*shape), labels, reduction=mode, **keywords)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_labels_with_class_weights(shape: tuple[int, ...], mode: str, smoothing: float):
    classes = shape[1] if len(shape) > 1 else shape[0]
    weight, labels = RANDOM.uniform(0.1, 2, classes), labels_for(shape, -100)

    def ours(x, t, w):
        return F.cross_entropy(x, t, w, reduction=mode, label_smoothing=smoothing)

    def theirs(x, t, w):
        return TF.cross_entropy(x, t, w, reduction=mode, label_smoothing=smoothing)

    compare(ours, theirs, normal(*shape), labels, weight, track=[True, False, False])
    if not smoothing:
        compare(
            lambda x, t, w: F.nll_loss(x, t, w, reduction=mode),
            lambda x, t, w: TF.nll_loss(x, t, w, reduction=mode),
            normal(*shape), labels, weight, track=[True, False, False],
        )  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_probabilities(shape: tuple[int, ...], mode: str, smoothing: float):
    classes = shape[1] if len(shape) > 1 else shape[0]
    target, weight = RANDOM.uniform(0, 1, shape), RANDOM.uniform(0.1, 2, classes)
    compare(F.cross_entropy, TF.cross_entropy, normal(*shape), target, reduction=mode, label_smoothing=smoothing)
    compare(
        lambda x, t, w: F.cross_entropy(x, t, w, reduction=mode, label_smoothing=smoothing),
        lambda x, t, w: TF.cross_entropy(x, t, w, reduction=mode, label_smoothing=smoothing),
        normal(*shape), target, weight, track=[True, True, False],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype: str):
    x, labels = normal(30, 70) * 4, RANDOM.integers(0, 70, 30)
    for mode in MODES:
        compare(F.cross_entropy, TF.cross_entropy, x, labels, dtype=dtype, gradients=1, reduction=mode)
        compare(F.nll_loss, TF.nll_loss, x, labels, dtype=dtype, gradients=1, reduction=mode)
        compare(F.cross_entropy, TF.cross_entropy, x, labels.astype(np.uint8), dtype=dtype, gradients=1, reduction=mode)
        compare(F.cross_entropy, TF.cross_entropy, x, RANDOM.dirichlet(np.ones(70), 30), dtype=dtype, gradients=1,
                reduction=mode)  # fmt: skip


def test_other_layouts():
    labels = RANDOM.integers(0, 5, 8)[::2]
    for x in (normal(5, 4).T, normal(8, 10)[::2, ::2]):
        compare(F.cross_entropy, TF.cross_entropy, x, labels)
        compare(F.nll_loss, TF.nll_loss, x, labels)
    compare(F.cross_entropy, TF.cross_entropy, normal(2, 3, 4, 5).transpose(0, 3, 1, 2), RANDOM.integers(0, 5, (2, 3, 4)))


def test_far_out():
    x = np.array([[1e4, -1e4, 0.0], [-1e4, 0.0, 1e4], [0, 0, 0]])
    for dtype in ("float32", "float64"):
        compare(F.cross_entropy, TF.cross_entropy, x, np.array([1, 2, 0]), dtype=dtype, reduction="none", gradients=1)


def test_nothing_counted():
    for shape in ((3, 5), (0, 5)):
        labels = np.full(shape[0], -100)
        for mode in MODES:
            mine = F.cross_entropy(ts.zeros(*shape), ts.tensor(labels), reduction=mode)
            expected = TF.cross_entropy(torch.zeros(shape), torch.tensor(labels), reduction=mode)
            np.testing.assert_array_equal(numbers(mine), numbers(expected))


@pytest.mark.parametrize("mode", MODES)
def test_few_kernels(mode: str):
    kinds = [ts.zeros(64, 32).layout, ts.zeros(64, dtype=ts.int64).layout]
    operator = class_losses.CROSS_ENTROPY
    program = operator.program(kinds, {"mode": mode, "ignore_index": -100, "smoothing": 0.0})
    names = [step.name for step in plan_for(operator, program, kinds).steps]
    assert len(names) == (3 if mode == "none" else 4), names  # label, its value, the rows, the end
    backward = program.backward((True, False), (True,))
    given = [kinds[w.number] for w in backward.saved] + [ts.zeros(64).layout if mode == "none" else ts.tensor(0.0).layout]
    plan = plan_for(backward, backward.program(given, {}), given)
    assert len(plan.steps) == (2 if mode == "mean" else 1)  # the count of labels, the rows


X = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
REFUSED = [
    ((X, [0, 5, 1]), {}), ((X, [0, -1, 1]), {}), ((X, [0, 1]), {}), ((X, [0.0, 1.0, 2.0]), {}),
    ((X, np.array([0, 1, 2], np.int32)), {}), ((X, np.array([True, False, True])), {}), ((X, np.zeros((3, 4))), {}),
    ((X, np.zeros((3, 5), np.int64)), {}), ((X, np.zeros((3, 5), np.float32)), {"ignore_index": 3}),
    ((X, [0, 1, 2]), {"label_smoothing": 1.5}), ((X, [0, 1, 2]), {"reduction": "other"}),
    ((X.astype(np.int64), [0, 1, 2]), {}), ((np.zeros((2, 5, 3)), np.zeros((2, 4), np.int64)), {}),
    ((np.zeros((2, 5, 3, 1)), np.zeros((2, 4, 1), np.int64)), {}), ((X, [0, 1, 2], np.ones(4, np.float32)), {}),
    ((X, [0, 1, 2], np.ones(5)), {}), ((X, [0, -100, 7]), {}),
]  # fmt: skip


@pytest.mark.parametrize(("operands", "keywords"), REFUSED)
def test_refused_as_pytorch_does(operands: tuple, keywords: dict):
    pairs = [pair(np.asarray(a), track=False) for a in operands]
    ours, theirs = [p[0] for p in pairs], [p[1] for p in pairs]
    same_error(lambda: F.cross_entropy(*ours, **keywords), lambda: TF.cross_entropy(*theirs, **keywords))


@pytest.mark.parametrize("labels", [[0, 5, 1], [0, -1, 1], [0, 1], [0.0, 1.0, 2.0]])
def test_nll_loss_refuses(labels: list):
    same_error(
        lambda: F.nll_loss(ts.tensor(X), ts.tensor(labels)),
        lambda: TF.nll_loss(torch.tensor(X), torch.tensor(labels)),
    )


def test_nll_loss_refuses_no_classes():
    same_error(lambda: F.nll_loss(ts.tensor(1.0), ts.tensor(0)), lambda: TF.nll_loss(torch.tensor(1.0), torch.tensor(0)))


def test_a_label_out_of_range_changes_nothing_and_later_calls_work():
    x = ts.tensor(X, requires_grad=True)
    for _ in range(2):
        with pytest.raises(IndexError, match="Target 9 is out of bounds"):
            F.cross_entropy(x, ts.tensor([0, 9, 1]))
        assert np.isfinite(F.cross_entropy(x, ts.tensor([0, 4, 1])).item())


def test_a_weight_with_gradient_is_refused():
    with pytest.raises(RuntimeError, match="derivative for 'weight' is not implemented"):
        F.cross_entropy(ts.tensor(X), ts.tensor([0, 1, 2]), ts.ones(5, requires_grad=True))
    with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
        F.binary_cross_entropy(ts.rand(3), ts.rand(3), ts.ones(3, requires_grad=True))
