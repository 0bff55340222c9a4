"""Writes in place: versions, refusals, histories of views, `out=`. The same lines run with both libraries."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorsmith as ts

sys.path.append(str(Path(__file__).parents[1] / "autograd"))
from torch_twin import outcome, twin  # noqa: E402


def leaf(L, *shape):
    count = int(np.prod(shape))
    return L.tensor((np.arange(count) / 4 - 1).reshape(shape).tolist(), requires_grad=True)


# --- versions and refusals ----------------------------------------------------------------------------------------------


def test_versions_are_shared_by_all_views():
    def program(L, log):
        x = L.zeros(3, 4)
        v, w, d = x[1], x.t(), x.detach()
        x.add_(1.0)
        v.mul_(2.0)
        w.copy_(L.ones(4, 3))
        d[0] = 3.0
        x[0, 1:3] = 5.0
        x.zero_()
        x.copy_(x)
        log([t._version for t in (x, v, w, d)], x)
        y = x.data
        y.add_(1.0)
        log(x._version, y._version, x)
        with L.no_grad():
            x.sub_(1.0)
        log(x._version, L.ones(2).add(1)._version, (x + 1)._version)

    twin(program)


def test_refused_writes_change_nothing():
    def program(L, log):
        x = leaf(L, 3, 4)
        e = L.ones(3, 1).expand(3, 4)
        u = L.arange(12.0).reshape(3, 4)
        i = L.arange(4)
        for call in (
            lambda: x.add_(1.0), lambda: x[0].mul_(2.0), lambda: x.t().zero_(), lambda: x.__setitem__(0, 1.0),
            lambda: e.add_(1.0), lambda: e.copy_(u), lambda: e.exp_(), lambda: u[1:].add_(u[:-1]),
            lambda: u[:, 1:].copy_(u[:, :-1].clone().expand(2, 3, 3)), lambda: u.add_(L.ones(2, 3, 4)), lambda: i.add_(1.5),
            lambda: i.mul_(L.ones(4)), lambda: i.div_(2), lambda: u[:, 0].add_(L.ones(5)), lambda: u.clamp_(),
            lambda: L.ones(2, dtype=L.bool).sub_(True), lambda: u.copy_(L.ones(7)),
        ):  # fmt: skip
            error = outcome(call)
            assert isinstance(error, Exception), error
            log(type(error).__name__, [t._version for t in (x, e, u, i)], u, i, x)

    twin(program)


def test_messages_of_refused_writes():
    x = ts.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="add_: a leaf Variable that requires grad"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        x[0].add_(1)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        ts.ones(1).expand(3).add_(1)
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
        y = ts.ones(4)
        y[1:].copy_(y[:-1])
    with pytest.raises(RuntimeError, match=r"add_.*Float.*Long"):
        ts.arange(3).add_(0.5)
    with pytest.raises(RuntimeError, match=r"\[3\].*\[2, 3\]"):
        ts.ones(3).add_(ts.ones(2, 3))


def test_the_same_memory_may_be_read_and_written():
    def program(L, log):
        x = L.arange(6.0).reshape(2, 3)
        x.add_(x)
        log(x)
        x.mul_(x[:, :])
        log(x)
        x.sub_(x.detach())
        log(x, x._version)
        y = L.arange(9.0).reshape(3, 3)
        log(type(outcome(lambda: y.add_(y.t()))).__name__, y)

    twin(program)


def test_fills_of_expanded_tensors():
    def program(L, log):
        x = L.ones(3, 1)
        x.expand(3, 4).zero_()
        log(x, x._version)
        x.expand(2, 3, 4).fill_(2.5)
        log(x, x._version)

    twin(program)


def test_every_placement_of_source_and_target():
    random = np.random.default_rng(0)
    for shape in [(3, 4), (2, 3, 4), (5,), (1, 4), (0, 3)]:
        for _ in range(6):
            order = random.permutation(len(shape))
            base = random.random([shape[i] * 2 for i in order])
            view = [slice(None, None, 2)] * len(shape)
            inverse = [list(order).index(i) for i in range(len(shape))]
            source_shape = [n if random.random() < 0.7 else 1 for n in shape]
            source = random.random(source_shape)
            results = []
            for L in (ts, torch):
                whole = L.tensor(base.tolist()) if base.size else L.zeros(*base.shape)
                target = whole.permute(*inverse)[tuple(view)]
                target.copy_(L.tensor(source.tolist()).reshape(*source_shape))
                target.mul_(L.tensor(source.tolist()).reshape(*source_shape)).add_(1.5)
                results.append(np.array(whole.tolist()))
            np.testing.assert_allclose(*results, rtol=1e-6)


# --- histories ----------------------------------------------------------------------------------------------------------


def gradients(program):
    """`program(L, x, y)` gives a scalar; the gradients of both leaves, by both libraries."""

    def run(L, log):
        x, y = leaf(L, 3, 4), leaf(L, 4)
        program(L, x, y).backward()
        log(x.grad, y.grad)

    twin(run)


PROGRAMS = {
    "a slice": lambda L, b, y: b[1].mul_(y),
    "a column": lambda L, b, y: b[:, 2].mul_(3.0),
    "a transpose": lambda L, b, y: b.t().mul_(y.unsqueeze(1)),
    "nested views": lambda L, b, y: b.t()[1:3].t()[0].add_(y[:2]),
    "a copy": lambda L, b, y: b[0].copy_(y),
    "a broadcast copy": lambda L, b, y: b[1:].copy_(y),
    "a fill": lambda L, b, y: b[:, ::2].fill_(0.5),
    "zeros": lambda L, b, y: b[0].zero_(),
    "an assignment": lambda L, b, y: b.__setitem__((slice(None), 1), y[:3]),
    "a diagonal": lambda L, b, y: b.diagonal().mul_(y[:3]),
    "a reshape": lambda L, b, y: b.view(2, 6)[1].mul_(2.0),
    "a saved result": lambda L, b, y: b[1].exp_(),
    "squares": lambda L, b, y: b[0].mul_(b[0].clone()),
    "twice": lambda L, b, y: b[0].mul_(y).add_(y),
    "two views": lambda L, b, y: (b[0].mul_(y), b[:, 0].mul_(y[:3])),
    "a clamp": lambda L, b, y: b[1:].clamp_(-0.5, 0.5),
    "a whole tensor": lambda L, b, y: b.tanh_(),
    "a new axis": lambda L, b, y: b.unsqueeze(0)[0, 1].mul_(y),
}


@pytest.mark.parametrize("write", list(PROGRAMS.values()), ids=list(PROGRAMS))
@pytest.mark.parametrize("view_before", [False, True], ids=["", "view before"])
def test_gradients_through_writes(write, view_before):
    def program(L, x, y):
        b = x * 1.5
        seen = b[1:, :3] if view_before else None
        write(L, b, y)
        total = (b * b).sum()
        if seen is not None:
            total = total + (seen * 2.0).sum() + seen[0].exp().sum()
        return total

    gradients(program)


@pytest.mark.parametrize("write", list(PROGRAMS.values()), ids=list(PROGRAMS))
def test_a_constant_becomes_tracked_by_a_write(write):
    def run(L, log):
        y = leaf(L, 4)
        b = L.ones(3, 4)
        seen, later = b[1:, :3], None
        write(L, b, y)
        later = b.t()
        log(b.requires_grad, seen.requires_grad, later.requires_grad, b._version)
        if b.requires_grad:
            ((b * b).sum() + (seen * 2.0).sum() + (later * b.t()).sum()).backward()
            log(y.grad)

    twin(run)


def test_views_of_an_untracked_base_follow_it():
    def run(L, log):
        base, a = L.zeros(2, 2), L.ones(1, 2, requires_grad=True)
        v, w, n = base[0], base[0:1], base.detach()
        w.copy_(a)
        log(v.requires_grad, w.requires_grad, base.requires_grad, n.requires_grad, v.is_leaf, w.is_leaf)
        (v * 3.0).sum().backward()
        log(a.grad)
        whole, b = L.zeros(4), L.ones(4, requires_grad=True)
        part = whole[1:3]
        whole.copy_(b * 2.0)
        log(part.requires_grad)
        (part * part).sum().backward()
        log(b.grad)

    twin(run)


def test_what_was_saved_before_a_write():
    def run(L, log):
        x = leaf(L, 3)
        for write in (lambda y: y.add_(1.0), lambda y: y[0:1].mul_(2.0), lambda y: y.zero_()):
            for use in (lambda y: y * y, lambda y: y.exp(), lambda y: y + 1.0, lambda y: y.tanh().sum()):
                y = x * 2.0
                z = use(y)
                write(y)
                error = outcome(lambda z=z: z.sum().backward())
                log(type(error).__name__ if isinstance(error, Exception) else None)
        constant = L.ones(3)
        constant.mul_(x)  # saves what it is about to overwrite
        constant.sum().backward()
        log(x.grad)

    twin(run)


def test_missing_and_zero_gradients():
    def run(L, log):
        x = leaf(L, 3)
        y = x * 2.0
        y.zero_()
        y.sum().backward()
        log(x.grad)  # zeros, not None
        z = x.detach().clone().requires_grad_()
        w = z * 1.0
        w.copy_(L.ones(3))
        (w * x).sum().backward()
        log(z.grad, x.grad)

    twin(run)


def test_hooks_and_retained_gradients_move_with_the_history():
    def run(L, log):
        x = leaf(L, 3)
        y = x * 2.0
        y.retain_grad()
        y.register_hook(lambda g: log("old", g))
        y.mul_(3.0)
        y.register_hook(lambda g: log("new", g))
        (y * y).sum().backward()
        log(y.grad, x.grad)

    twin(run)


def test_second_derivatives_through_writes():
    def run(L, log):
        x, y = leaf(L, 3, 4), leaf(L, 4)
        b = x * x
        b[1].mul_(y)
        b.t()[2].copy_(y[:3] * y[:3])
        (gx, gy) = L.autograd.grad((b * b).sum(), (x, y), create_graph=True)
        (gx.sum() + (gy * gy).sum()).backward()
        log(x.grad, y.grad)

    twin(run)


def test_detach_in_place():
    def run(L, log):
        x = leaf(L, 3)
        y = x * 2.0
        y.detach_()
        log(y.requires_grad, y.is_leaf)
        log(type(outcome(lambda: (x * 2.0)[0:1].detach_())).__name__, type(outcome(lambda: L.ones(3)[0:1].detach_())).__name__)
        z = x * 3.0
        w = z.sum()
        x.detach_()
        w.backward()
        log(x.grad)

    twin(run)


# --- out= ---------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_out():
    def run(L, log):
        a = L.arange(6.0).reshape(2, 3)
        for make in (lambda: L.zeros(2, 3), lambda: L.zeros(3, 2).t(), lambda: L.zeros(0), lambda: L.zeros(4),
                     lambda: L.zeros(2, 3, dtype=L.float64), lambda: L.zeros(2, 6)[:, ::2]):  # fmt: skip
            for call in (lambda o: L.add(a, 1.0, out=o), lambda o: L.exp(a, out=o), lambda o: L.mul(a, a, out=o)):
                o = make()
                found = outcome(lambda o=o, call=call: call(o))
                log(found is o, o, list(o.shape), o._version > 0)
        for call in (lambda: L.add(a, 1.5, out=L.zeros(2, 3, dtype=L.int64)), lambda: L.exp(leaf(L, 2), out=L.zeros(2)),
                     lambda: L.exp(a, out=L.zeros(2, 3, requires_grad=True)), lambda: L.exp(a, out=3)):  # fmt: skip
            log(type(outcome(call)).__name__)

    twin(run)
