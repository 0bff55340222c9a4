"""Hooks of modules, in PyTorch's order and with PyTorch's arguments."""

from __future__ import annotations

import copy

import pytest
import torch

import tensorsmith as ts


def both(run):
    results = [run(torch), run(ts)]
    assert results[1] == results[0]
    return results[1]


def test_order_and_replacement():
    def run(lib):
        log = []
        m = lib.nn.ReLU()
        m.register_forward_pre_hook(lambda module, args: log.append("pre") or (args[0] + 1,))
        m.register_forward_pre_hook(lambda module, args: log.append("first"), prepend=True)
        m.register_forward_hook(lambda module, args, out: log.append(("post", args[0].tolist())) or out * 10)
        handle = m.register_forward_hook(lambda module, args, out: log.append("last"))
        log.append(m(lib.tensor([-3.0, 2.0])).tolist())
        handle.remove()
        log.append(m(lib.tensor([1.0])).tolist())
        return log

    assert "last" in both(run)


def test_keyword_arguments_and_always_call():
    def run(lib):
        log = []

        class Add(lib.nn.Module):
            def forward(self, x, y=0):
                if y < 0:
                    raise ValueError("negative")
                return x + y

        m = Add()
        m.register_forward_pre_hook(lambda module, args, kwargs: (args, {"y": kwargs["y"] + 1}), with_kwargs=True)
        m.register_forward_hook(lambda module, args, kwargs, out: log.append(sorted(kwargs)), with_kwargs=True)
        m.register_forward_hook(lambda module, args, out: log.append(out is None), always_call=True)
        log.append(m(lib.ones(1), y=3).tolist())
        with pytest.raises(ValueError):
            m(lib.ones(1), y=-5)
        return log

    both(run)


def test_backward_hooks_see_and_replace_gradients():
    def run(lib):
        log = []

        class Both(lib.nn.Module):
            def forward(self, x, y, number):
                return x * y, x + y

        m = Both()
        m.register_full_backward_pre_hook(lambda module, grads: log.append([g.tolist() for g in grads]))
        m.register_full_backward_hook(
            lambda module, inputs, outputs: (
                log.append([[g if g is None else g.tolist() for g in grads] for grads in (inputs, outputs)])
                or (inputs[0] * 2, inputs[1], None)
            )
        )
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        y = lib.tensor([3.0, 4.0], requires_grad=True)
        a, b = m(x, y, 5)
        (a + b * 2).sum().backward()
        log += [x.grad.tolist(), y.grad.tolist()]
        return log

    log = both(run)
    assert len(log) == 4


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_backward_hook_where_no_input_needs_a_gradient():
    def run(lib):
        log = []
        m = lib.nn.LayerNorm(2)
        m.register_full_backward_hook(lambda module, inputs, outputs: log.append((inputs, outputs[0].tolist())))
        m(lib.tensor([[1.0, 2.0]])).sum().backward()
        return log, m.bias.grad.tolist()

    both(run)


def test_hooks_survive_deepcopy():
    m = ts.nn.ReLU()
    m.register_forward_hook(lambda module, args, out: out + 1)
    assert copy.deepcopy(m)(ts.zeros(1)).tolist() == [1.0]
