"""state_dict and load_state_dict: PyTorch's words, and nothing changed where it fails."""

from __future__ import annotations

import pytest
import torch

import tensorsmith as ts


def model(lib):
    nn = lib.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.LayerNorm(3)
            self.rest = nn.Sequential(nn.ReLU(), nn.LayerNorm(2))
            self.register_buffer("steps", lib.zeros(1))

    return Net()


def change(lib, state, changes):
    state = dict(state)
    for key, value in changes.items():
        if value is None:
            del state[key]
        else:
            state[key] = lib.ones(value) if isinstance(value, tuple) else value
    return state


CASES = {
    "missing": {"first.weight": None},
    "unexpected": {"x": (1,), "rest.7.weight": (2,)},
    "shape": {"rest.1.weight": (5,), "steps": (1, 1)},
    "all": {"first.weight": None, "y.z": (1,), "steps": (2,)},
    "no tensor": {"steps": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_a_failing_load_says_what_pytorch_says_and_changes_nothing(case):
    messages = []
    for lib in (torch, ts):
        net = model(lib)
        with pytest.raises(RuntimeError) as caught:
            net.load_state_dict(change(lib, net.state_dict(), {**CASES[case]}))
        messages.append(str(caught.value))
    expected = messages[0].replace("torch", "tensorsmith").replace(" or Tensor-like object", "")
    found = messages[1].replace("tensorsmith.Tensor or", "tensorsmith.Tensor or")
    # PyTorch puts unexpected keys after missing ones and errors in the order of the modules.
    assert found == expected

    net = model(ts)
    state = {k: ts.full(v.shape, 5.0) for k, v in net.state_dict().items()}
    before = {k: v.tolist() for k, v in net.state_dict().items()}
    with pytest.raises(RuntimeError):
        net.load_state_dict(change(ts, state, CASES[case]))
    assert {k: v.tolist() for k, v in net.state_dict().items()} == before


def test_values_are_copied_into_the_same_parameters():
    net = model(ts)
    weight = net.first.weight
    state = {k: ts.full(v.shape, 5.0, dtype=ts.float64) for k, v in net.state_dict().items()}
    result = net.load_state_dict(state)
    assert str(result) == "<All keys matched successfully>"
    assert net.first.weight is weight and weight.tolist() == [5.0] * 3 and weight.dtype is ts.float32
    assert weight.requires_grad and weight.is_leaf


def test_not_strict():
    net = model(ts)
    missing, unexpected = net.load_state_dict({"first.weight": ts.full((3,), 2.0), "zzz": ts.ones(1)}, strict=False)
    assert missing == ["steps", "first.bias", "rest.1.weight", "rest.1.bias"] and unexpected == ["zzz"]
    assert net.first.weight.tolist() == [2.0] * 3


def test_assign_takes_the_tensors():
    net = model(ts)
    state = {k: ts.full(v.shape, 5.0, dtype=ts.float64) for k, v in net.state_dict().items()}
    net.load_state_dict(state, assign=True)
    assert net.first.weight.dtype is ts.float64
    assert isinstance(net.first.weight, ts.nn.Parameter) and net.first.weight.requires_grad
    assert net.first.weight.data_ptr() == state["first.weight"].data_ptr()
    assert net.steps is state["steps"]


def test_not_a_mapping():
    with pytest.raises(TypeError, match="Expected state_dict to be dict-like"):
        model(ts).load_state_dict([1])


def test_extra_state_and_hooks():
    def run(lib):
        log = []

        class Counting(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.count = 3

            def get_extra_state(self):
                return {"count": self.count}

            def set_extra_state(self, state):
                self.count = state["count"]

        net = lib.nn.Sequential(Counting(), lib.nn.ReLU())
        net.register_state_dict_pre_hook(lambda module, prefix, keep_vars: log.append(("pre", prefix, keep_vars)))
        net.register_state_dict_post_hook(lambda module, state, prefix, meta: log.append(("post", sorted(state))))
        net.register_load_state_dict_pre_hook(lambda module, state, *rest: log.append(("load", sorted(state))))
        net.register_load_state_dict_post_hook(lambda module, keys: log.append(("loaded", list(keys.missing_keys))))
        state = net.state_dict()
        net[0].count = 0
        net.load_state_dict(state)
        return log, net[0].count

    assert run(ts) == run(torch)


def test_post_hook_may_forgive_missing_keys():
    net = model(ts)
    net.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())
    net.load_state_dict({"steps": ts.ones(1)})
    assert net.steps.tolist() == [1.0]
