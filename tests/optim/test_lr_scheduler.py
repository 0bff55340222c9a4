"""Schedules epoch by epoch with PyTorch's."""

from __future__ import annotations

import math

import pytest
import torch

import tensorsmith as ts

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")  # these tests step schedules alone

SCHEDULES = [
    ("StepLR", {"step_size": 3, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 2, 5], "gamma": 0.5}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 4}),
    ("LinearLR", {"start_factor": 0.2, "end_factor": 0.8, "total_iters": 5}),
    ("CosineAnnealingLR", {"T_max": 4, "eta_min": 0.01}),
    ("LambdaLR", {"lr_lambda": lambda epoch: 0.95**epoch}),
    ("LambdaLR", {"lr_lambda": [lambda epoch: 0.9**epoch, lambda epoch: 1 / (1 + epoch)]}),
]


def optimizer(lib):
    params = [lib.nn.Parameter(lib.ones(1)) for _ in range(2)]
    return lib.optim.SGD([{"params": [params[0]]}, {"params": [params[1]], "lr": 0.3}], lr=1.0)


def rates(opt):
    return [group["lr"] for group in opt.param_groups]


@pytest.mark.parametrize(("name", "options"), SCHEDULES)
def test_rates(name, options):
    found = {}
    for lib in (ts, torch):
        opt = optimizer(lib)
        schedule = getattr(lib.optim.lr_scheduler, name)(opt, **options)
        found[lib] = [rates(opt)]
        for epoch in range(14):
            if epoch == 7:
                opt.param_groups[0]["lr"] = 0.123  # a rate changed by hand
            schedule.step()
            found[lib].append(rates(opt))
            assert schedule.get_last_lr() == rates(opt)
    for ours, theirs in zip(found[ts], found[torch]):
        assert ours == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(("name", "options"), SCHEDULES)
def test_a_resumed_schedule_goes_on(name, options, tmp_path):
    if name == "LambdaLR":
        options = {"lr_lambda": lambda epoch: 0.95**epoch}
    opt = optimizer(ts)
    schedule = getattr(ts.optim.lr_scheduler, name)(opt, **options)
    for _ in range(4):
        schedule.step()
    ts.save({"opt": opt.state_dict(), "schedule": schedule.state_dict()}, tmp_path / "s.safetensors")
    loaded = ts.load(tmp_path / "s.safetensors")
    other = optimizer(ts)
    resumed = getattr(ts.optim.lr_scheduler, name)(other, **options)
    other.load_state_dict(loaded["opt"])
    resumed.load_state_dict(loaded["schedule"])
    for _ in range(6):
        schedule.step()
        resumed.step()
        assert rates(other) == rates(opt)


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 1, "factor": 0.5},
        {"patience": 0, "mode": "max", "cooldown": 2},
        {"patience": 1, "threshold": 0.3, "threshold_mode": "abs", "min_lr": [0.5, 0.01], "factor": 0.2},
    ],
)
def test_plateau(options):
    losses = [1.0, 0.9, 0.95, 0.91, 0.9, 0.9, 0.5, 0.6, math.nan, 0.6, 0.61, 0.3, 0.3, 0.3, 0.3]
    found = {}
    for lib in (ts, torch):
        opt = optimizer(lib)
        schedule = lib.optim.lr_scheduler.ReduceLROnPlateau(opt, **options)
        found[lib] = []
        for loss in losses:
            schedule.step(lib.tensor(loss))
            found[lib].append(rates(opt))
    for ours, theirs in zip(found[ts], found[torch]):
        assert ours == pytest.approx(theirs, rel=1e-12)


def test_refusals():
    opt = optimizer(ts)
    with pytest.raises(TypeError, match="is not an Optimizer"):
        ts.optim.lr_scheduler.StepLR(3, 1)
    with pytest.raises(ValueError, match="Expected 2 lr_lambdas"):
        ts.optim.lr_scheduler.LambdaLR(opt, [lambda e: 1.0])
    with pytest.raises(KeyError, match="initial_lr"):
        ts.optim.lr_scheduler.StepLR(opt, 1, last_epoch=3)


def test_tensor_rates_are_filled():
    p = ts.nn.Parameter(ts.ones(1))
    rate = ts.tensor(1.0)
    opt = ts.optim.SGD([p], lr=rate)
    ts.optim.lr_scheduler.ExponentialLR(opt, 0.5).step()
    assert opt.param_groups[0]["lr"] is rate and rate.item() == 0.5
