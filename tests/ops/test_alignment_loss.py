"""ctc_loss against PyTorch behind log_softmax, against its definition, and its derivatives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it

TF = torch.nn.functional
RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((7, 3, 4))
ROWS, FLAT = [[1, 1, 2], [2, 3, 0], [1, 0, 0]], [1, 1, 2, 2, 3]


def loss(lib, functional, x, targets, frames, lengths, **options):
    return functional.ctc_loss(
        x.log_softmax(-1), lib.tensor(targets), lib.tensor(frames), lib.tensor(lengths), **options
    )


def compare(x, *args, dtype="float64", tolerance=1e-9, **options):
    a, b = ts.tensor(x, dtype=getattr(ts, dtype)), torch.tensor(x, dtype=getattr(torch, dtype))
    a.requires_grad_(True), b.requires_grad_(True)
    found, wanted = loss(ts, F, a, *args, **options), loss(torch, TF, b, *args, **options)
    assert found.shape == tuple(wanted.shape) and found.dtype.name == dtype
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=tolerance)
    found.sum().backward(), wanted.sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=tolerance * 10, atol=tolerance)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize(("targets", "lengths"), [(ROWS, [3, 2, 0]), (ROWS, [3, 2, 3]), (FLAT, [3, 2, 0])])
def test_pytorch(reduction, zero_infinity, targets, lengths):
    frames = [7, 5, 2]  # too few for three labels: infinite
    compare(X, targets, frames, lengths, reduction=reduction, zero_infinity=zero_infinity)
    compare(X, targets, frames, lengths, reduction=reduction, zero_infinity=True, dtype="float32", tolerance=1e-5)


def test_one_example_and_another_blank():
    compare(X[:, 0], [1, 0, 0], 7, 3, blank=3)
    compare(X[:, 0], [1, 0, 0], 7, 3, blank=3, reduction="none")


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(2, 5), st.lists(st.integers(0, 4), max_size=4), st.integers(0, 2**31))
def test_random_shapes(frames, classes, labels, seed):
    labels = [1 + label % (classes - 1) for label in labels]
    x = np.random.default_rng(seed).standard_normal((frames, 1, classes)) * 3
    compare(x, [labels] if labels else np.zeros((1, 0), np.int64), [frames], [len(labels)], zero_infinity=True)


def test_the_sum_over_all_alignments():
    x = np.log(RANDOM.dirichlet(np.ones(3), 5))
    labels, total = [2, 2, 1], 0.0
    for path in itertools.product(range(3), repeat=5):
        spelled = [c for c, _ in itertools.groupby(path)]
        if [c for c in spelled if c] == labels:
            total += np.exp(sum(x[t, c] for t, c in enumerate(path)))
    found = F.ctc_loss(ts.tensor(x), ts.tensor(labels), ts.tensor(5), ts.tensor(3), reduction="sum")
    assert found.item() == pytest.approx(-np.log(total), rel=1e-12)


def test_derivatives_in_every_direction():
    x = ts.tensor(X).log_softmax(2).detach().requires_grad_(True)

    def losses(x):
        return loss(ts, F, x, ROWS, [7, 5, 6], [3, 2, 0], reduction="none")

    assert ts.autograd.gradcheck(losses, (x,), check_forward_ad=True, check_batched_grad=True)
    assert ts.autograd.gradgradcheck(losses, (x,))
    # By log_probs itself, too: without log_softmax behind it PyTorch's gradient has exp(log_probs) added.
    (found,) = ts.autograd.grad(
        F.ctc_loss(x, ts.tensor(ROWS), [7, 5, 6], [3, 2, 0], reduction="sum"), x
    )
    np.testing.assert_allclose(found.numpy()[:5].sum(2), -1, rtol=1e-12, err_msg="one class a frame is expected")
    assert not found.numpy()[5:, 1].any(), "frames that do not count"


def test_compiled():
    x = ts.tensor(X)
    step = ts.compile(lambda x: loss(ts, F, x, ROWS, [7, 5, 6], [3, 2, 0]))
    assert step(x).item() == pytest.approx(loss(ts, F, x, ROWS, [7, 5, 6], [3, 2, 0]).item(), rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": [8, 5, 5]}, "at most 7, but got value 8"),
        ({"frames": [-1, 5, 5]}, "at least 0, but got value -1"),
        ({"lengths": [4, 1, 1]}, "size at least 4 at dimension 1, but got size 3"),
        ({"lengths": [1, 1]}, "target_lengths must be of size batch_size"),
        ({"targets": [[5, 1, 1], [1, 1, 1], [1, 1, 1]]}, "label 5 is out of range for 4 classes"),
        ({"targets": FLAT[:3]}, "targets hold 3 labels, but target_lengths sum to 6"),
        ({"targets": [[1.0, 2, 3]] * 3}, "argument #2 'targets'"),
        ({"targets": [[1, 2, 3]] * 2}, "targets must have shape"),
        ({"blank": 4}, "blank must be in label range"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    args = {"targets": ROWS, "frames": [7, 5, 6], "lengths": [3, 2, 1], **change}
    options = {k: args.pop(k) for k in ("blank",) if k in args}
    with pytest.raises(RuntimeError, match=message):
        loss(ts, F, ts.tensor(X), *args.values(), **options)


def test_half_precision_is_refused_as_by_pytorch():
    with pytest.raises(NotImplementedError, match="\"ctc_loss_cpu\" not implemented for 'Half'"):
        loss(ts, F, ts.tensor(X, dtype=ts.float16), ROWS, [7, 5, 6], [3, 2, 0])


def test_the_layer():
    layer = ts.nn.CTCLoss(blank=3, reduction="sum", zero_infinity=True)
    assert repr(layer) == repr(torch.nn.CTCLoss())
    x = ts.tensor(X).log_softmax(2)
    args = ts.tensor([[1, 1, 2]] * 3), (7, 7, 2), (3, 3, 3)
    expected = F.ctc_loss(x, *args, blank=3, reduction="sum", zero_infinity=True)
    assert layer(x, *args).item() == expected.item() != float("inf")


def test_labels_and_lengths_may_be_on_the_cpu():
    import emulator

    emulator.activate()
    x = ts.randn(5, 2, 4, device="cpu").log_softmax(2)
    targets, lengths, labels = ts.tensor([[1, 2], [3, 1]], device="cpu"), ts.tensor([5, 4], device="cpu"), [2, 1]
    wanted = F.ctc_loss(x, targets, lengths, labels).item()
    compiled = ts.compile(lambda x, targets: F.ctc_loss(x, targets, [5, 4], labels))
    for found in (
        F.ctc_loss(x.cuda(), targets, lengths, labels), F.ctc_loss(x.cuda(), targets.cuda(), lengths.cuda(), labels),
        compiled(x.cuda(), targets.cuda()),
    ):  # fmt: skip
        assert found.device.type == "cuda" and found.item() == pytest.approx(wanted, rel=1e-5)
