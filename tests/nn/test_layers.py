"""Layers with PyTorch's weights: same text, same state, same results and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts

X = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
N = np.array([[0, 2, 1], [4, 4, 3]])
SIGNS = np.where(np.random.default_rng(1).random((4, 6)) < 0.5, -1, 1).astype("float32")
PROBABILITIES = (1 / (1 + np.exp(-X))).astype("float32")

LAYERS = [
    ("Identity", (), {}, X),
    ("Linear", (6, 3), {}, X),
    ("Linear", (6, 3), {"bias": False}, X),
    ("Flatten", (), {}, X.reshape(2, 2, 3, 2)),
    ("Flatten", (0, 1), {}, X.reshape(2, 2, 3, 2)),
    ("Unflatten", (1, (2, -1)), {}, X),
    ("LayerNorm", (6,), {}, X),
    ("LayerNorm", ((2, 3),), {"eps": 1e-2}, X.reshape(4, 2, 3)),
    ("LayerNorm", (6,), {"elementwise_affine": False}, X),
    ("LayerNorm", (6,), {"bias": False}, X),
    ("RMSNorm", (6,), {}, X),
    ("RMSNorm", (6,), {"eps": 1e-2}, X),
    ("Embedding", (5, 3), {}, N),
    ("Embedding", (5, 3), {"padding_idx": -1}, N),
    ("PReLU", (), {}, X),
    ("PReLU", (6,), {"init": 0.5}, X),
    ("Dropout", (), {"p": 0.0}, X),
    ("Dropout1d", (), {"p": 0.0}, X.reshape(2, 2, 6)),
    ("AlphaDropout", (), {"p": 0.0}, X),
    *[
        (name, (), {}, X)
        for name in (
            "ReLU", "ReLU6", "Hardtanh", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid", "Tanh",
            "Softplus", "Softshrink", "Hardshrink", "Tanhshrink", "Softsign", "Hardsigmoid", "Hardswish", "LogSigmoid",
            "GLU",
        )
    ],
    ("GELU", (), {"approximate": "tanh"}, X),
    ("Softplus", (2.0, 1.0), {}, X),
    ("Hardtanh", (-0.5, 0.25), {}, X),
    ("LeakyReLU", (0.3,), {}, X),
    ("ELU", (0.5,), {}, X),
    ("Threshold", (0.1, 20.0), {}, X),
    ("Softmax", (1,), {}, X),
    ("LogSoftmax", (0,), {}, X),
    ("Softmin", (1,), {}, X),
    ("Softmax2d", (), {}, X.reshape(2, 3, 2, 2)),
    ("RReLU", (0.25, 0.25), {}, X),
]  # fmt: skip


def check(name, args, options, inputs, targets=()):
    theirs = getattr(torch.nn, name)(*args, **options)
    ours = getattr(ts.nn, name)(*args, **options)
    assert repr(ours) == repr(theirs)
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict({key: ts.tensor(value.numpy()) for key, value in state.items()})
    results = []
    for lib, layer in ((torch, theirs), (ts, ours)):
        x = lib.tensor(inputs)
        if inputs.dtype.kind == "f":
            x.requires_grad_(True)
        y = layer(x, *(lib.tensor(t) for t in targets))
        (y * lib.arange(y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward() if y.requires_grad else None
        grads = [x.grad, *(p.grad for p in layer.parameters())]
        results.append([y.detach().numpy(), *(g.numpy() for g in grads if g is not None)])
    assert len(results[0]) == len(results[1])
    for a, b in zip(results[1], results[0]):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("name", "args", "options", "x"), LAYERS, ids=lambda v: v if isinstance(v, str) else "")
def test_layer(name, args, options, x):
    check(name, args, options, x)


@pytest.mark.parametrize("name", ["ReLU", "ELU", "Hardtanh", "SiLU", "LeakyReLU", "Threshold"])
def test_in_place(name):
    args = (0.1, 2.0) if name == "Threshold" else ()
    assert repr(getattr(ts.nn, name)(*args, inplace=True)) == repr(getattr(torch.nn, name)(*args, inplace=True))
    x = ts.tensor(X)
    y = getattr(ts.nn, name)(*args, inplace=True)(x)
    assert y is x
    np.testing.assert_allclose(x.numpy(), getattr(torch.nn, name)(*args)(torch.tensor(X)).numpy(), rtol=1e-5, atol=1e-6)


def test_bilinear():
    theirs, ours = torch.nn.Bilinear(6, 3, 2), ts.nn.Bilinear(6, 3, 2)
    assert repr(ours) == repr(theirs)
    ours.load_state_dict({key: ts.tensor(value.numpy()) for key, value in theirs.state_dict().items()})
    expected = theirs(torch.tensor(X), torch.tensor(X[:, :3])).detach().numpy()
    np.testing.assert_allclose(ours(ts.tensor(X), ts.tensor(X[:, :3])).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


LOSSES = [
    *[
        (name, options, X, (X[::-1].copy(),))
        for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "KLDivLoss")
        for options in ({}, {"reduction": "sum"}, {"reduction": "none"})
        if not (name == "KLDivLoss" and options)
    ],
    ("SmoothL1Loss", {"beta": 0.5}, X, (X[::-1].copy(),)),
    ("HuberLoss", {"delta": 0.5}, X, (X[::-1].copy(),)),
    ("KLDivLoss", {"reduction": "batchmean", "log_target": True}, X, (X[::-1].copy(),)),
    ("BCELoss", {}, PROBABILITIES, (PROBABILITIES[::-1].copy(),)),
    ("BCEWithLogitsLoss", {}, X, (PROBABILITIES,)),
    ("CrossEntropyLoss", {}, X, (np.array([0, 5, 2, 2]),)),
    ("CrossEntropyLoss", {"label_smoothing": 0.1, "ignore_index": 2}, X, (np.array([0, 5, 2, 2]),)),
    ("CrossEntropyLoss", {"reduction": "none"}, X, (np.array([0, 5, 2, 2]),)),
    ("NLLLoss", {}, np.log(PROBABILITIES), (np.array([0, 5, 2, 2]),)),
    ("SoftMarginLoss", {}, X, (SIGNS,)),
    ("HingeEmbeddingLoss", {}, X, (SIGNS,)),
    ("HingeEmbeddingLoss", {"margin": 0.5, "reduction": "sum"}, X, (SIGNS,)),
    ("MarginRankingLoss", {}, X[:, 0].copy(), (X[:, 1].copy(), SIGNS[:, 0].copy())),
    ("MarginRankingLoss", {"margin": 0.3, "reduction": "none"}, X[:, 0].copy(), (X[:, 1].copy(), SIGNS[:, 0].copy())),
    ("CosineEmbeddingLoss", {"margin": 0.1}, X, (X[::-1].copy(), SIGNS[:, 0].copy())),
    ("MultiMarginLoss", {}, X, (np.array([0, 5, 2, 2]),)),
    ("MultiMarginLoss", {"p": 2, "margin": 0.5}, X, (np.array([0, 5, 2, 2]),)),
    ("MultiLabelMarginLoss", {}, X, (np.array([[0, 5, -1, 0, 0, 0], [1, -1, 0, 0, 0, 0], [3, 2, 1, -1, 0, 0], [-1] * 6]),)),
    ("MultiLabelSoftMarginLoss", {}, X, ((SIGNS + 1) / 2,)),
    ("TripletMarginLoss", {}, X, (X[::-1].copy(), X + 0.5)),
    ("TripletMarginLoss", {"p": 1.0, "swap": True, "margin": 2.0}, X, (X[::-1].copy(), X + 0.5)),
    ("TripletMarginWithDistanceLoss", {"margin": 2.0}, X, (X[::-1].copy(), X + 0.5)),
    ("PoissonNLLLoss", {}, X, (PROBABILITIES * 4,)),
    ("PoissonNLLLoss", {"full": True, "log_input": False}, PROBABILITIES, (PROBABILITIES[::-1] * 4,)),
    ("GaussianNLLLoss", {}, X, (X[::-1].copy(), PROBABILITIES)),
    ("GaussianNLLLoss", {"full": True, "reduction": "sum"}, X, (X[::-1].copy(), PROBABILITIES)),
    ("CosineSimilarity", {}, X, (X[::-1].copy(),)),
    ("CosineSimilarity", {"dim": 0, "eps": 1e-2}, X, (X[::-1].copy(),)),
    ("PairwiseDistance", {}, X, (X[::-1].copy(),)),
    ("PairwiseDistance", {"p": 1.0, "keepdim": True}, X, (X[::-1].copy(),)),
]


@pytest.mark.filterwarnings("ignore:reduction:UserWarning")
@pytest.mark.parametrize(("name", "options", "x", "targets"), LOSSES)
def test_loss(name, options, x, targets):
    if name == "KLDivLoss" and "log_target" not in options:
        targets = (np.abs(targets[0]) + 0.1,)
    check(name, (), options, x, targets)


def test_weights_of_losses_are_buffers():
    weight = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 1.0], dtype="float32")
    ours = ts.nn.CrossEntropyLoss(weight=ts.tensor(weight))
    theirs = torch.nn.CrossEntropyLoss(weight=torch.tensor(weight))
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight"]
    y = np.array([0, 5, 2, 2])
    expected = theirs(torch.tensor(X), torch.tensor(y)).item()
    assert ours(ts.tensor(X), ts.tensor(y)).item() == pytest.approx(expected, rel=1e-5)
    assert ts.nn.MSELoss(size_average=False).reduction == "sum" and ts.nn.MSELoss(reduce=False).reduction == "none"


def test_dropout_only_while_training():
    layer = ts.nn.Dropout(0.5)
    ts.manual_seed(0)
    x = ts.ones(1000)
    values, counts = np.unique(layer(x).numpy(), return_counts=True)
    assert values.tolist() == [0.0, 2.0] and 400 < counts[0] < 600
    assert layer.eval()(x) is x
    assert repr(ts.nn.Dropout(0.3, inplace=True)) == repr(torch.nn.Dropout(0.3, inplace=True))
    with pytest.raises(ValueError, match="between 0 and 1"):
        ts.nn.Dropout(1.5)


def test_embedding_options():
    table = ts.nn.Embedding(5, 3, padding_idx=1)
    assert table.weight[1].tolist() == [0.0] * 3
    frozen = ts.nn.Embedding.from_pretrained(ts.ones(4, 2))
    assert not frozen.weight.requires_grad and frozen(ts.tensor([3])).tolist() == [[1.0, 1.0]]
    with pytest.raises(AssertionError, match="Padding_idx"):
        ts.nn.Embedding(5, 3, padding_idx=7)
    with pytest.raises(NotImplementedError, match="sparse"):
        ts.nn.Embedding(5, 3, sparse=True)


def train(lib, optimizer, options):
    nn = lib.nn
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5))
    rng = np.random.default_rng(3)
    state = {k: (rng.standard_normal(tuple(v.shape)) * 0.3).astype("float32") for k, v in model.state_dict().items()}
    model.load_state_dict({k: lib.tensor(v) for k, v in state.items()})
    x = lib.tensor(rng.standard_normal((32, 6)).astype("float32"))
    y = lib.tensor(rng.integers(0, 5, 32))
    loss_function = nn.CrossEntropyLoss()
    opt = getattr(lib.optim, optimizer)(model.parameters(), **options)
    losses = []
    for _ in range(15):
        opt.zero_grad()
        loss = loss_function(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        ("Adam", {"lr": 0.02, "amsgrad": True}),
        ("AdamW", {"lr": 0.02, "weight_decay": 0.1}),
    ],
)
def test_training_follows_pytorch(optimizer, options):
    ours, theirs = train(ts, optimizer, options), train(torch, optimizer, options)
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert ours[-1] < ours[0] * 0.8


def test_older_names_of_limits():
    for lib in (ts, torch):
        with pytest.warns(FutureWarning, match="`max_value` is deprecated"):
            layer = lib.nn.Hardtanh(max_value=0.5)
        assert layer(lib.ones(1)).item() == 0.5
        with pytest.raises(AssertionError):
            lib.nn.Hardtanh(1.0, 1.0)
