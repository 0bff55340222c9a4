"""Every schedule with PyTorch's, its closed form, its state, combinations of schedules, averages of models."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch

import tensorsmith as ts

SCHEDULES = {
    "StepLR": {"step_size": 3, "gamma": 0.5},
    "MultiStepLR": {"milestones": [2, 2, 5], "gamma": 0.5},
    "ExponentialLR": {"gamma": 0.9},
    "ConstantLR": {"factor": 0.25, "total_iters": 4},
    "LinearLR": {"start_factor": 0.2, "end_factor": 0.8, "total_iters": 5},
    "PolynomialLR": {"total_iters": 9, "power": 2.0},
    "CosineAnnealingLR": {"T_max": 4, "eta_min": 0.01},
    "CosineAnnealingWarmRestarts": {"T_0": 3, "T_mult": 2, "eta_min": 0.01},
    "LambdaLR": {"lr_lambda": lambda epoch: 0.95**epoch},
    "MultiplicativeLR": {"lr_lambda": [lambda epoch: 0.9, lambda epoch: 1 / (1 + epoch)]},
    "CyclicLR": {"base_lr": [0.1, 0.2], "max_lr": 1.0, "step_size_up": 3, "step_size_down": 4},
    "CyclicLR triangular2": {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 3, "mode": "triangular2"},
    "CyclicLR exp_range": {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2, "mode": "exp_range", "gamma": 0.9},
    "CyclicLR own": {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2, "scale_fn": lambda x: 1 / x},
    "CyclicLR plain": {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2, "cycle_momentum": False},
    "OneCycleLR": {"max_lr": 2.0, "total_steps": 20},
    "OneCycleLR linear": {"max_lr": [2.0, 1.0], "epochs": 5, "steps_per_epoch": 4, "anneal_strategy": "linear"},
    "OneCycleLR three": {"max_lr": 2.0, "total_steps": 20, "three_phase": True, "pct_start": 0.4, "div_factor": 5.0},
}
SWA = {
    "SWALR": {"swa_lr": 0.05, "anneal_epochs": 5},
    "SWALR linear": {"swa_lr": [0.05, 0.5], "anneal_epochs": 3, "anneal_strategy": "linear"},
    "SWALR at once": {"swa_lr": 0.05, "anneal_epochs": 0},
}
ALL = {**SCHEDULES, **SWA}
LIBRARIES = (ts, torch)


def optimizer(lib, kind="SGD"):
    params = [lib.nn.Parameter(lib.ones(1)) for _ in range(2)]
    options = {"momentum": 0.5} if kind == "SGD" else {}
    return getattr(lib.optim, kind)([{"params": [params[0]]}, {"params": [params[1]], "lr": 0.3}], lr=1.0, **options)


def make(lib, name, opt):
    place = lib.optim.swa_utils if name in SWA else lib.optim.lr_scheduler
    return getattr(place, name.split()[0])(opt, **copy.copy(ALL[name]))


def settings(opt):
    return [value for group in opt.param_groups for value in (group["lr"], group.get("momentum", group.get("betas")))]


def flat(values):
    return [x for value in values for x in (value if isinstance(value, tuple) else (value,))]


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", ALL)
def test_rates_momenta_and_state(name, kind):
    found, states, groups = [], [], []
    for lib in LIBRARIES:
        opt = optimizer(lib, kind)
        schedule = make(lib, name, opt)
        seen = [flat(settings(opt))]
        for _ in range(20):
            opt.step()
            schedule.step()
            seen.append(flat(settings(opt)))
            assert schedule.get_last_lr() == [group["lr"] for group in opt.param_groups]
        found.append(seen)
        states.append(schedule.state_dict())
        groups.append([sorted(group) for group in opt.param_groups])
    np.testing.assert_allclose(*found, rtol=1e-12, atol=1e-15)
    assert groups[0] == groups[1]
    assert states[0].keys() == {key for key in states[1] if key != "_scale_fn_ref"}
    for key, value in states[1].items():
        if isinstance(value, int | float):
            assert states[0][key] == pytest.approx(value, rel=1e-12)
        elif isinstance(value, str) or key in ("_schedule_phases", "milestones", "lr_lambdas"):
            assert states[0][key] == value


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "MultiplicativeLR"])  # the one without
def test_a_given_epoch_is_the_closed_form(name):
    found = []
    for lib in LIBRARIES:
        opt = optimizer(lib)
        schedule = make(lib, name, opt)
        seen = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for epoch in (4, 1, 0, 7):
                schedule.step(epoch)
                seen.append([group["lr"] for group in opt.param_groups])
        found.append(seen)
    np.testing.assert_allclose(*found, rtol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_pytorchs_state_is_continued(name):
    theirs, ours = optimizer(torch), optimizer(ts)
    a = make(torch, name, theirs)
    for _ in range(5):
        theirs.step()
        a.step()
    b = make(ts, name, ours)
    ours.load_state_dict({"state": {}, "param_groups": copy.deepcopy(theirs.state_dict()["param_groups"])})
    b.load_state_dict(a.state_dict())
    for _ in range(8):
        a.step()
        b.step()
        np.testing.assert_allclose(flat(settings(ours)), flat(settings(theirs)), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ALL)
def test_a_saved_schedule_goes_on(name, tmp_path):
    opt = optimizer(ts)
    schedule = make(ts, name, opt)
    opt.step()
    for _ in range(4):
        schedule.step()
    ts.save({"opt": opt.state_dict(), "schedule": schedule.state_dict()}, tmp_path / "s.safetensors")
    loaded = ts.load(tmp_path / "s.safetensors")
    other = optimizer(ts)
    resumed = make(ts, name, other)
    other.load_state_dict(loaded["opt"])
    resumed.load_state_dict(loaded["schedule"])
    for _ in range(6):
        schedule.step()
        resumed.step()
        assert settings(other) == settings(opt)


def sequential(lib, opt):
    s = lib.optim.lr_scheduler
    parts = [s.LinearLR(opt, 0.1, total_iters=3), s.CosineAnnealingLR(opt, 5), s.ExponentialLR(opt, 0.9)]
    return s.SequentialLR(opt, parts, [3, 8])


def chained(lib, opt):
    s = lib.optim.lr_scheduler
    return s.ChainedScheduler([s.ConstantLR(opt, 0.1, 2), s.ExponentialLR(opt, 0.9)], optimizer=opt)


def nested(lib, opt):
    s = lib.optim.lr_scheduler
    inner = s.SequentialLR(opt, [s.ConstantLR(opt, 0.5, 2), s.StepLR(opt, 2, 0.5)], [2])
    return s.SequentialLR(opt, [inner, s.ExponentialLR(opt, 0.5)], [6])


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("build", [sequential, chained, nested])
def test_combined_schedules(build):
    found, kept = [], []
    for lib in LIBRARIES:
        opt = optimizer(lib)
        schedule = build(lib, opt)
        seen = [settings(opt)]
        for epoch in range(12):
            if epoch == 6:
                kept.append(schedule.state_dict())
                fresh = build(lib, opt)
                fresh.load_state_dict(kept[-1])
                for group, rate in zip(opt.param_groups, seen[-1][::2]):
                    group["lr"] = rate
                schedule = fresh
            schedule.step()
            seen.append(settings(opt))
        found.append(seen)
    np.testing.assert_allclose(*found, rtol=1e-12)
    assert kept[0].keys() == kept[1].keys()


def test_the_order_of_steps_is_watched():
    opt = optimizer(ts)
    schedule = ts.optim.lr_scheduler.StepLR(opt, 2)
    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\)` before `optimizer.step"):
        schedule.step()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda lib, opt: lib.optim.lr_scheduler.StepLR(3, 2),
        lambda lib, opt: lib.optim.lr_scheduler.ConstantLR(opt, 2.0),
        lambda lib, opt: lib.optim.lr_scheduler.LinearLR(opt, 0.0),
        lambda lib, opt: lib.optim.lr_scheduler.LambdaLR(opt, [abs]),
        lambda lib, opt: lib.optim.lr_scheduler.MultiplicativeLR(opt, [1, 2]),
        lambda lib, opt: lib.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 0),
        lambda lib, opt: lib.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 3, 0.5),
        lambda lib, opt: lib.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 3).step(-1),
        lambda lib, opt: lib.optim.lr_scheduler.CyclicLR(opt, 0.1, 1.0, mode="square"),
        lambda lib, opt: lib.optim.lr_scheduler.CyclicLR(opt, [0.1], 1.0),
        lambda lib, opt: lib.optim.lr_scheduler.OneCycleLR(opt, 0.1),
        lambda lib, opt: lib.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=-3),
        lambda lib, opt: lib.optim.lr_scheduler.OneCycleLR(opt, 0.1, 10, pct_start=2.0),
        lambda lib, opt: lib.optim.lr_scheduler.OneCycleLR(opt, 0.1, 10, anneal_strategy="x"),
        lambda lib, opt: [lib.optim.lr_scheduler.OneCycleLR(opt, 0.1, 3).step() for _ in range(1)]
        and [s.step() for s in [lib.optim.lr_scheduler.OneCycleLR(opt, 0.1, 3)] * 5],
        lambda lib, opt: lib.optim.lr_scheduler.SequentialLR(opt, [], []),
        lambda lib, opt: lib.optim.lr_scheduler.SequentialLR(opt, [lib.optim.lr_scheduler.StepLR(opt, 2)], [1]),
        lambda lib, opt: lib.optim.lr_scheduler.ChainedScheduler([lib.optim.lr_scheduler.ReduceLROnPlateau(opt)]),
        lambda lib, opt: lib.optim.lr_scheduler.ChainedScheduler([3], optimizer=opt),
        lambda lib, opt: lib.optim.swa_utils.SWALR(opt, 0.1, anneal_epochs=-1),
        lambda lib, opt: lib.optim.swa_utils.get_ema_avg_fn(2.0),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_refusals_are_pytorchs(wrong):
    said = []
    for lib in LIBRARIES:
        with pytest.raises((ValueError, TypeError)) as caught:
            wrong(lib, optimizer(lib))
        said.append((caught.type, str(caught.value)[:60]))
    assert said[0] == said[1]


@pytest.mark.parametrize("way", ["swa", "swa_avg_fn", "ema", "ema_avg_fn", "buffers"])
def test_averaged_models(way):
    found = []
    for lib in LIBRARIES:
        u = lib.optim.swa_utils
        options = {
            "swa": {}, "swa_avg_fn": {"avg_fn": u.get_swa_avg_fn()}, "ema": {"multi_avg_fn": u.get_ema_multi_avg_fn(0.8)},
            "ema_avg_fn": {"avg_fn": u.get_ema_avg_fn(0.8)}, "buffers": {"use_buffers": True},
        }[way]  # fmt: skip
        model = lib.nn.BatchNorm1d(3).double()
        average = u.AveragedModel(model, **options)
        rng = np.random.default_rng(0)
        for number in range(6):
            with lib.no_grad():
                model.weight.copy_(lib.tensor(rng.standard_normal(3)))
                model.running_mean.copy_(lib.tensor(rng.standard_normal(3)))
                model.num_batches_tracked.fill_(number)
            average.update_parameters(model)
        state = average.state_dict()
        found.append({key: value.double().numpy() for key, value in state.items()})
    assert found[0].keys() == found[1].keys()
    for key, value in found[1].items():
        np.testing.assert_allclose(found[0][key], value, rtol=1e-12)


def test_statistics_of_batch_norm_are_computed_anew():
    found = []
    for lib in LIBRARIES:
        model = lib.nn.Sequential(lib.nn.BatchNorm1d(3)).double()
        rng = np.random.default_rng(0)
        batches = [(lib.tensor(rng.standard_normal((5, 3))), 1) for _ in range(4)]
        model.eval()
        lib.optim.swa_utils.update_bn(batches, model)
        assert not model.training and model[0].momentum == 0.1
        found.append([model[0].running_mean.numpy(), model[0].running_var.numpy()])
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_only_one_way_of_averaging():
    with pytest.raises(AssertionError, match="Only one of avg_fn"):
        ts.optim.swa_utils.AveragedModel(ts.nn.Linear(1, 1), avg_fn=max, multi_avg_fn=max)
