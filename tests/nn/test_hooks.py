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


def test_hooks_of_all_modules_run_before_a_modules_own():
    def run(lib):
        log = []
        every = lib.nn.modules.module
        net = lib.nn.Sequential(lib.nn.ReLU(), lib.nn.Tanh())
        net[1].register_forward_pre_hook(lambda module, args: log.append("own pre"))
        net[1].register_forward_hook(lambda module, args, out: log.append("own post"))
        net[1].register_full_backward_pre_hook(lambda module, grads: log.append("own backward pre"))
        net[1].register_full_backward_hook(lambda module, inputs, outputs: log.append("own backward"))

        def note(kind):
            return lambda module, *rest: log.append((kind, type(module).__name__, len(rest)))

        handles = [
            every.register_module_forward_pre_hook(note("pre")),
            every.register_module_forward_hook(note("post")),
            every.register_module_forward_hook(note("post with kwargs"), with_kwargs=True),
            every.register_module_full_backward_pre_hook(note("backward pre")),
            every.register_module_full_backward_hook(note("backward")),
        ]
        x = lib.tensor([-1.0, 2.0], requires_grad=True)
        try:
            net(x).sum().backward()
        finally:
            for handle in handles:
                handle.remove()
        log.append(x.grad.tolist())
        net(x).sum().backward()
        return log

    log = both(run)
    assert ("post with kwargs", "Sequential", 3) in log and log.index(("pre", "Tanh", 1)) + 1 == log.index("own pre")


def test_hooks_of_all_modules_replace():
    def run(lib):
        every = lib.nn.modules.module
        m = lib.nn.ReLU()
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        with (
            every.register_module_forward_pre_hook(lambda module, args: args[0] * 3),
            every.register_module_forward_hook(lambda module, args, out: out + 1),
            every.register_module_full_backward_pre_hook(lambda module, grads: (grads[0] * 5,)),
            every.register_module_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 7,)),
        ):
            y = m(x)
        y.sum().backward()
        return y.tolist(), x.grad.tolist(), m(x).tolist()

    assert both(run)[1] == [105.0, 105.0]


def test_hooks_of_all_modules_after_an_error():
    def run(lib):
        log = []
        every = lib.nn.modules.module

        class Wrong(lib.nn.Module):
            def forward(self, x):
                raise ValueError("no")

        def broken(module, args, out):
            raise KeyError("silenced")

        m = Wrong()
        m.register_forward_hook(lambda module, args, out: log.append("own"), always_call=True)
        with every.register_module_forward_hook(broken, always_call=True):
            with pytest.raises(ValueError), pytest.warns(UserWarning, match="silenced"):
                m(lib.ones(1))
        return log

    assert both(run) == ["own"]


@pytest.mark.filterwarnings("ignore:Using a non-full")
@pytest.mark.parametrize("everywhere", [False, True])
def test_backward_hooks_of_the_older_form(everywhere):
    def run(lib):
        log = []
        every = lib.nn.modules.module

        def hook(module, inputs, outputs):
            log.append((type(module).__name__, [g.tolist() for g in inputs], [g.tolist() for g in outputs]))

        def registers(module):
            if everywhere:
                return every.register_module_backward_hook, every.register_module_full_backward_hook
            return module.register_backward_hook, module.register_full_backward_hook

        for first in (0, 1):
            m = lib.nn.Sequential(lib.nn.ReLU())
            both = registers(m)
            x = lib.tensor([-1.0, 2.0], requires_grad=True)
            try:
                with both[first](hook):
                    with pytest.raises(RuntimeError, match="both regular backward hooks and full backward hooks"):
                        both[1 - first](hook)
                    (m(x) * 3).sum().backward()
            finally:
                if lib is torch:
                    every._global_is_full_backward_hook = None  # it stays set when the hook is gone
        return log

    assert len(both(run)) == (4 if everywhere else 2)


def test_hooks_on_registration_replace():
    def run(lib):
        log = []
        every = lib.nn.modules.module

        class Model(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = lib.nn.Parameter(lib.ones(2))
                self.register_parameter("bias", None)
                self.register_buffer("mean", lib.zeros(1))
                self.mean = lib.ones(1)
                self.act = lib.nn.ReLU()
                self.add_module("last", lib.nn.Tanh())
                self.last = None

        with (
            every.register_module_parameter_registration_hook(
                lambda module, name, p: log.append(name) or lib.nn.Parameter(p.detach() * 2)
            ),
            every.register_module_buffer_registration_hook(lambda module, name, b: log.append(name) or b + 1),
            every.register_module_module_registration_hook(lambda module, name, m: log.append((name, m is None))),
        ):
            model = Model()
        log += [model.weight.tolist(), model.mean.tolist(), Model().mean.tolist()]
        return log

    assert ("last", True) in both(run)


def test_every_name_of_common_hooks():
    names = [name for name in dir(torch.nn.modules.module) if name.startswith("register_module_")]
    assert len(names) == 8
    assert all(hasattr(ts.nn.modules.module, name) for name in names)
