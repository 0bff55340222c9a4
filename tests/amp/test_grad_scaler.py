"""`GradScaler` beside PyTorch's: the same scales, steps and weights, over steps whose gradients overflow now and then."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import tensorsmith as ts


def made(lib, **options):
    rng = np.random.default_rng(3)
    weights = [lib.nn.Parameter(lib.tensor(rng.standard_normal(s).astype("float32"))) for s in ((3, 4), (5,), ())]
    return weights, lib.optim.SGD(weights, lr=0.1, momentum=0.9), lib.amp.GradScaler("cpu", **options)


@pytest.mark.parametrize("numbers", [
    {"init_scale": 1024.0, "growth_interval": 3}, {"init_scale": 3.0e38, "growth_interval": 1},
    {"init_scale": 7.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 2},
])  # fmt: skip
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("host_knows", [False, True])
def test_fifty_drawn_steps(numbers, by_hand, host_knows):
    runs = []
    for lib in (torch, ts):
        weights, optimizer, scaler = made(lib, **numbers)
        rng = np.random.default_rng(11)
        record = []
        for _ in range(50):
            optimizer.zero_grad()
            loss = scaler.scale(sum((w * w).sum() for w in weights))
            scale = scaler.get_scale()
            for w in weights:
                grad = rng.standard_normal(tuple(w.shape)).astype("float32")
                w.grad = lib.tensor(np.asarray(grad * np.float32(scale), dtype="float32"))
            kind = rng.integers(0, 6)
            if kind < 2:  # an infinity or a NaN in one place
                spoilt = weights[rng.integers(0, 3)]
                spoilt.grad = spoilt.grad + (float("inf") if kind else float("nan"))
            if by_hand:
                scaler.unscale_(optimizer)
                lib.nn.utils.clip_grad_norm_(weights, 1.0) if kind >= 2 else None
            scaler.step(optimizer)
            if lib is ts and not host_knows:  # as where an optimiser looks at `found_inf` itself: the device reckons
                scaler._known = None
            scaler.update()
            assert lib is torch or (scaler._scale.item(), scaler._growth_tracker.item()) == (
                scaler.get_scale(), scaler._get_growth_tracker()
            )  # fmt: skip
            record.append((float(loss.detach()), scaler.get_scale(), scaler._get_growth_tracker()))
        runs.append((record, [w.detach().numpy().copy() for w in weights], scaler.state_dict()))
    (theirs, their_weights, their_state), (ours, our_weights, our_state) = runs
    assert [r[1:] for r in ours] == [r[1:] for r in theirs]
    np.testing.assert_allclose([r[0] for r in ours], [r[0] for r in theirs], rtol=1e-5)
    for a, b in zip(our_weights, their_weights):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert our_state == their_state


def test_gradients_are_scaled_back_bit_for_bit():
    found = []
    for lib in (torch, ts):
        weights, optimizer, scaler = made(lib, init_scale=3.7)
        rng = np.random.default_rng(5)
        scaler.scale(lib.tensor(1.0))
        for w, dtype in zip(weights, ("float32", "float32", "float32")):
            w.grad = lib.tensor(rng.standard_normal(tuple(w.shape)).astype(dtype))
        scaler.unscale_(optimizer)
        found.append([w.grad.numpy().copy() for w in weights])
    for theirs, ours in zip(*found):
        np.testing.assert_array_equal(ours, theirs)


def test_two_optimizers_and_nests_of_losses():
    found = []
    for lib in (torch, ts):
        a, b = (lib.nn.Parameter(lib.ones(3)) for _ in range(2))
        first, second = lib.optim.SGD([a], lr=1.0), lib.optim.Adam([b], lr=1.0)
        scaler = lib.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        losses = scaler.scale([a.sum(), (b.sum(), lib.tensor(2.0))])
        assert isinstance(losses, list) and isinstance(losses[1], tuple) and losses[1][1].item() == 8.0
        losses[0].backward()
        losses[1][0].backward()
        b.grad[1] = float("inf")
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        found.append((a.detach().numpy().copy(), b.detach().numpy().copy(), scaler.get_scale()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2] == 2.0  # one of the two overflowed


def test_errors():
    weights, optimizer, scaler = made(ts)
    with pytest.raises(AssertionError, match="Attempted unscale_ but _scale is None"):
        scaler.unscale_(optimizer)
    scaler.scale(ts.tensor(1.0))
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)
    scaler.update(8.0)
    for w in weights:
        w.grad = ts.ones_like(w)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called on this optimizer"):
        scaler.unscale_(optimizer)
    with pytest.raises(AssertionError, match="may only be pickled at the beginning"):
        pickle.dumps(scaler)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="step\\(\\) has already been called"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="being called after step"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="Closure use"):
        scaler.step(optimizer, closure=lambda: 0)
    scaler.update()
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()
    half = ts.nn.Parameter(ts.ones(2).half())
    half.grad = ts.ones(2).half()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(ts.optim.SGD([half], lr=0.1))
    with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
        scaler.scale(3)
    with pytest.raises(AssertionError, match="growth factor"):
        ts.amp.GradScaler("cpu", growth_factor=1.0)
    with pytest.raises(AssertionError, match="backoff factor"):
        ts.amp.GradScaler("cpu", backoff_factor=1.0)
    with pytest.raises(AssertionError, match="1-element"):
        scaler.update(ts.ones(2))


def test_a_scale_that_is_given():
    _, _, scaler = made(ts)
    scaler.scale(ts.tensor(1.0))
    scaler.update(3.0)
    assert scaler.get_scale() == 3.0
    given = ts.tensor([5.0])
    scaler.update(given)
    given.fill_(1.0)
    assert scaler.get_scale() == 5.0


def test_state_goes_into_another_scaler_and_through_pickle():
    weights, optimizer, scaler = made(ts, init_scale=64.0, growth_interval=5)
    scaler.scale(sum(w.sum() for w in weights)).backward()
    scaler.step(optimizer)
    scaler.update()
    state = scaler.state_dict()
    assert state["_growth_tracker"] == 1 and state["scale"] == 64.0
    fresh, used = ts.amp.GradScaler("cpu"), ts.amp.GradScaler("cpu")
    used.scale(ts.tensor(1.0))
    for other in (fresh, used, pickle.loads(pickle.dumps(scaler))):
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert other.scale(ts.tensor(0.5)).item() == 32.0
    with pytest.raises(RuntimeError, match="source state dict is empty"):
        fresh.load_state_dict({})


def test_not_enabled():
    weights, optimizer, scaler = made(ts, enabled=False)
    loss = sum(w.sum() for w in weights)
    assert scaler.scale(loss) is loss and scaler.get_scale() == 1.0 and scaler.state_dict() == {}
    loss.backward()
    before = weights[1].detach().numpy().copy()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    scaler.load_state_dict({})
    assert not scaler.is_enabled() and (weights[1].detach().numpy() != before).all()


def test_an_optimiser_that_scales_back_itself():
    class Own(ts.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure=None):
            seen.append((self.grad_scale.item(), self.found_inf.item()))

    seen = []
    weight = ts.nn.Parameter(ts.ones(2))
    optimizer, scaler = Own([weight], lr=1.0), ts.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert seen == [(4.0, 0.0)] and not hasattr(optimizer, "grad_scale")
    np.testing.assert_array_equal(weight.grad.numpy(), [4.0, 4.0])


def test_half_precision_training_with_overflow_goes_on():
    """A network whose float16 gradients overflow at the first scale learns nevertheless."""
    ts.manual_seed(0)
    model = ts.nn.Sequential(ts.nn.Linear(8, 16), ts.nn.ReLU(), ts.nn.Linear(16, 1))
    optimizer, scaler = ts.optim.SGD(model.parameters(), lr=0.05), ts.amp.GradScaler("cpu", init_scale=2.0**24)
    x, y = ts.randn(32, 8), ts.randn(32, 1)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with ts.autocast("cpu", dtype=ts.float16):
            loss = ts.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert scaler.get_scale() < 2.0**24 and np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]
