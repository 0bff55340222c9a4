"""Hooks of optimisers around `state_dict` and `load_state_dict`: their order, and what they may replace."""

import pickle

import pytest
import torch

import tensorsmith as ts


@pytest.mark.parametrize("library", [ts, torch], ids=["ours", "PyTorch's"])
def test_order_and_replacement(library):
    p = library.nn.Parameter(library.ones(2))
    optimizer = library.optim.SGD([p], lr=0.1)
    order = []

    def saved(opt, state):
        order.append("saved")
        return {**state, "extra": 1}

    def loading(opt, state):
        order.append(("loading", "extra" in state))
        state["param_groups"][0]["lr"] = 0.5
        return None

    optimizer.register_state_dict_pre_hook(lambda opt: order.append("saving"))
    optimizer.register_state_dict_post_hook(saved)
    optimizer.register_load_state_dict_pre_hook(loading)
    optimizer.register_load_state_dict_post_hook(lambda opt: order.append(("loaded", opt.param_groups[0]["lr"])))
    first = optimizer.register_load_state_dict_pre_hook(lambda opt, state: order.append("first"), prepend=True)
    state = optimizer.state_dict()
    assert state["extra"] == 1
    optimizer.load_state_dict(state)
    first.remove()
    optimizer.load_state_dict(state)
    assert order == [
        "saving", "saved", "first", ("loading", True), ("loaded", 0.5), ("loading", True), ("loaded", 0.5),
    ]  # fmt: skip


def _note(opt):
    opt.noted = True


def test_hooks_are_pickled_with_the_optimiser():
    optimizer = ts.optim.SGD([ts.nn.Parameter(ts.ones(2))], lr=0.1)
    optimizer.register_state_dict_pre_hook(_note)
    copy = pickle.loads(pickle.dumps(optimizer))
    copy.state_dict()
    assert copy.noted and not hasattr(optimizer, "noted")
