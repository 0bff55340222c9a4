"""A state that is loaded lies where its optimiser needs it: counts on the host, the rest beside the parameters."""

import copy
import pickle

import numpy as np
import pytest

import tensorsmith as ts


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


@pytest.mark.parametrize("name", ["Adam", "NAdam", "SGD"])
@pytest.mark.parametrize("saved, used", [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
def test_training_goes_on_with_a_state_of_another_device(name, saved, used):
    options = {"lr": 0.1, **({"momentum": 0.9} if name == "SGD" else {})}

    def moved(value, device):
        if isinstance(value, ts.Tensor):
            return value.to(device)
        return {k: moved(v, device) for k, v in value.items()} if isinstance(value, dict) else value

    def run(param, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            (param * param).sum().backward()
            optimizer.step()

    whole = ts.nn.Parameter(ts.tensor([1.0, -2.0, 3.0], device="cpu"))
    optimizer = getattr(ts.optim, name)([whole], **options)
    run(whole, optimizer, 2)
    param = ts.nn.Parameter(whole.detach().clone().to(used))
    resumed = getattr(ts.optim, name)([param], **options)
    state = optimizer.state_dict()
    resumed.load_state_dict({**state, "state": {k: moved(v, saved) for k, v in state["state"].items()}})
    run(whole, optimizer, 2)
    run(param, resumed, 2)
    np.testing.assert_allclose(param.detach().cpu().numpy(), whole.detach().numpy(), rtol=1e-6)
    devices = {key: value.device.type for key, value in resumed.state[param].items() if isinstance(value, ts.Tensor)}
    assert all(device == ("cpu" if key in ("step", "mu_product") else used) for key, device in devices.items()), devices


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["Adam", "NAdam", "ASGD"])
def test_counters_that_somebody_moved_to_the_device_are_counted_on_the_host(name, compiled):
    params = [ts.nn.Parameter(ts.tensor([1.0, -2.0, 3.0], device="cuda")) for _ in range(2)]
    optimizers = [getattr(ts.optim, name)([p], lr=0.1) for p in params]

    def step(param, optimizer):
        optimizer.zero_grad()
        (param * param).sum().backward()
        optimizer.step()

    for param, optimizer in zip(params, optimizers):
        step(param, optimizer)
    state = optimizers[1].state[params[1]]
    state.update({k: v.to("cuda") for k, v in state.items() if isinstance(v, ts.Tensor)})
    for param, optimizer in zip(params, optimizers):
        go_on = ts.compile(step) if compiled else step
        for _ in range(2):
            go_on(param, optimizer)
    assert params[1].tolist() == params[0].tolist()
    counter = optimizers[1].state[params[1]]["step"]
    assert counter.device.type == "cpu" and counter.item() == 3.0


def test_a_pickled_optimiser_goes_on_where_it_was():
    param = ts.nn.Parameter(ts.ones(2, device="cuda:1"))
    optimizer = ts.optim.Adam([param], lr=0.1)
    (param * param).sum().backward()
    optimizer.step()
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        (found,) = other.param_groups[0]["params"]
        assert str(found.device) == str(other.state[found]["exp_avg"].device) == "cuda:1"
        assert other.state[found]["step"].device.type == "cpu" and found.tolist() == param.tolist()
        (found * found).sum().backward()
        other.step()
        assert other.state[found]["step"].item() == 2.0
