"""`ts.cond` and `ts.while_loop`: eagerly, compiled, and their gradients."""

import os

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.compile.tracer import TraceError

DEVICE = os.environ["TENSORSMITH_TEST_DEVICE"].removesuffix("-emulated")
W = ts.tensor([[0.5, -1.0], [2.0, 0.25]], device=DEVICE, requires_grad=True)


def decide(x, y):
    """Two results, of which one is an operand as it is; a captured parameter in one branch."""
    return ts.cond(x.sum() > 0, lambda x, y: (x @ W, y), lambda x, y: (x.exp() - y.sum(), x * y), (x, y))


def as_a_dict(x, y):
    found = ts.cond((x > y).all(), lambda d: {"a": d["x"] * 2, "b": d["n"] + 1}, lambda d: {"a": d["x"], "b": d["n"]},
                    ({"x": x, "n": ts.tensor([1, 2])},))  # fmt: skip
    return found["a"] * y, found["b"]


def nested(x, y):
    inner = lambda x: ts.cond(x[0, 0] > 1, lambda x: x * 3, lambda x: x / 2, (x,))  # noqa: E731
    return ts.cond(y.sum() > 0, inner, lambda x: -inner(x), (x,)) + y.t()


def same_value_twice(x, y):
    return ts.cond(x.sum() > 0, lambda x: (x, x, x[0]), lambda x: (x * 2, ts.zeros(2, 2), x.t()[1]), (x,))


INPUTS = [
    (x.to(DEVICE), y.to(DEVICE)) for x, y in [
        (ts.tensor([[1.0, 2.0], [3.0, 4.0]]), ts.tensor([[0.5, 0.5], [-1.0, 0.5]])),
        (ts.tensor([[-1.0, 2.0], [-3.0, 0.0]]), ts.tensor([[-2.0, 1.0], [0.5, -3.0]])),
        (ts.tensor([[9.0, 2.0], [0.0, -4.0]]).t(), ts.tensor([[1.0, 0.5, 0.0], [1.0, 0.5, 0.0]])[:, :2]),
    ]
]


@pytest.mark.parametrize("function", [decide, as_a_dict, nested, same_value_twice])
def test_cond_compiled_is_cond_eagerly(function):
    compiled = ts.compile(function, verify=True)
    for x, y in INPUTS:
        found = []
        for call in (function, compiled):
            x, y = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
            W.grad = None
            out = call(x, y)
            out = out if isinstance(out, tuple) else (out,)
            loss = sum((t.sin() * (k + 1)).sum() for k, t in enumerate(out) if t.is_floating_point())
            loss.backward()
            grads = [None if t is None else t.tolist() for t in (x.grad, y.grad)]
            grads = [[[0.0] * 2] * 2 if g is None else g for g in grads]  # a compiled function's gradient is zero there
            found.append(([t.tolist() for t in out], grads, W.grad.tolist() if W.grad is not None else [[0.0] * 2] * 2))
        for eager, ours in zip(*found):
            for a, b in zip(eager, ours):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert len(compiled.plans) <= 2


def test_only_the_branch_that_is_taken_runs_and_results_are_one_step():
    x, index = ts.ones(3), ts.tensor([7])
    compiled = ts.compile(lambda x, i, p: ts.cond(p, lambda x: (x[i], x * 2), lambda x: (x[:1], x), (x,)))
    assert [t.tolist() for t in compiled(x, index, ts.tensor(False))] == [[1.0], [1.0] * 3]
    with pytest.raises(IndexError):
        compiled(x, index, ts.tensor(True))
    assert [step.name for step in compiled.plans[0].plan.steps].count("cond") == 1


def test_a_training_step_with_a_decision():
    def make():
        ts.manual_seed(0)
        model = ts.nn.Linear(2, 2)
        optimizer = ts.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            y = model(x)
            loss = ts.cond(y.sum() > 0.2, lambda y: y.pow(2).sum(), lambda y: (y - 1).abs().sum(), (y,))
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    eager, compiled = make(), ts.compile(make())
    losses = [(eager(x).item(), compiled(x).item()) for x, _ in INPUTS * 2]
    np.testing.assert_allclose(*zip(*losses), rtol=1e-5)


def test_no_gradient_leaks_from_the_other_branch():
    x = ts.tensor([0.0, 4.0], requires_grad=True)
    ts.compile(lambda x: ts.cond(x.sum() < 0, lambda x: x.sqrt().sum(), lambda x: (x * 2).sum(), (x,)))(x).backward()
    assert x.grad.tolist() == [2.0, 2.0]


def count_down(i, x, scale):
    return ts.while_loop(lambda i, x, s: i > 0, lambda i, x, s: (i - 1, x * s + i), (i, x), (scale,))


def fibonacci(n, x, scale):
    limit = n * 3
    a, b, _ = ts.while_loop(lambda a, b, x: b < limit, lambda a, b, x: (b, a + b, x.t() + scale), (n * 0, n * 0 + 1, x))
    return a * 1, b


def newton(i, x, scale):
    found = ts.while_loop(lambda y: (y * y - x).abs().max() > 1e-4, lambda y: [(y + x / y) / 2], [x])
    return found[0], scale


@pytest.mark.parametrize("function", [count_down, fibonacci, newton])
def test_while_loop_compiled_is_while_loop_eagerly(function):
    compiled = ts.compile(function, verify=True)
    for rounds in (4, 0, 9, 1):
        arguments = ts.tensor(rounds), ts.tensor([[1.0, 2.0], [3.0, 0.5]]), ts.full((2, 2), 1.5)
        for a, b in zip(compiled(*arguments), function(*arguments)):
            assert a.dtype is b.dtype
            np.testing.assert_allclose(a.tolist(), b.tolist(), rtol=1e-5)
    assert len(compiled.plans) == 1


def power(x, n, w):
    """A counter, two floating values of which one is returned twice, and a captured parameter."""
    _, y, total = ts.while_loop(
        lambda i, y, total: i < n, lambda i, y, total: (i + 1, (y @ W).tanh() * w, total + y.sum(0)), (n * 0, x, x[0] * 0)
    )
    return y, total


def halved(x, n, w):
    """How many rounds there are depends on the values, and what is carried swaps places."""
    found = ts.while_loop(lambda a, b, w: a.sum() > 0.1, lambda a, b, w: [b / 2, a * w], [x * x, x.abs()], [w.exp() / 4])
    return found[0] * found[1] + found[0]


def in_a_branch(x, n, w):
    def loop(x):
        return ts.while_loop(lambda y: y.sum() < 50, lambda y: (y * 2,), (x * x * W,))[0]

    return ts.cond(x.sum() > 0, loop, lambda x: x * W, (x,))


@pytest.mark.parametrize("function", [power, halved, in_a_branch])
@pytest.mark.parametrize("dtype", [ts.float32, ts.float64], ids=["float32", "float64"])
def test_gradients_of_a_compiled_loop_are_those_of_the_eager_one(function, dtype):
    compiled = ts.compile(function, verify=True)
    for rounds in (3, 0, 1, 6):
        found = []
        for call in (function, compiled):
            x = ts.tensor([[0.9, 0.3], [-0.2, 0.7]], dtype=dtype, requires_grad=True)
            w = ts.tensor([1.5, 0.5], dtype=dtype, requires_grad=True)
            W.grad = None
            given = (x, w) if function is halved else (x.to(W.dtype), w.to(W.dtype))
            out = call(given[0], ts.tensor(rounds), given[1])
            out = out if isinstance(out, tuple) else (out,)
            sum((t.sin() * (k + 1)).sum() for k, t in enumerate(out)).backward()
            zeros = lambda t: ts.zeros_like(t).tolist() if t.grad is None else t.grad.tolist()  # noqa: E731
            found.append([*(t.tolist() for t in out), zeros(x), zeros(w), zeros(W)])
        for eager, ours in zip(*found):
            np.testing.assert_allclose(eager, ours, rtol=2e-5, atol=1e-6)


def test_gradients_of_a_loop_of_complex_numbers():
    def function(z, c):
        return ts.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * z + c), (ts.tensor(0), z))[1].abs().sum()

    found = []
    for call in (function, ts.compile(function)):
        z, c = (ts.tensor(v, requires_grad=True) for v in ([0.3 + 0.2j, -0.1j], [0.1 - 0.4j, 0.2 + 0j]))
        call(z, c).backward()
        found.append((z.grad.tolist(), c.grad.tolist()))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_training_step_with_a_loop():
    def make():
        ts.manual_seed(0)
        model = ts.nn.Linear(2, 2)
        optimizer = ts.optim.Adam(model.parameters(), lr=0.05)

        def step(x):
            optimizer.zero_grad()
            y = ts.while_loop(lambda y: y.abs().max() < 2, lambda y: (model(y).tanh() + y * 1.5,), (model(x),))[0]
            loss = (y - 1).pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    eager, compiled = make(), ts.compile(make())
    losses = [(eager(x).item(), compiled(x).item()) for x, _ in INPUTS * 3]
    np.testing.assert_allclose(*zip(*losses), rtol=1e-4)


def test_second_derivatives_of_a_loop_are_refused():
    def function(x):
        return ts.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * x), (ts.tensor(0), x))[1]

    x = ts.tensor([1.5], requires_grad=True)
    with pytest.raises(NotImplementedError, match="second derivatives through a loop of a compiled function"):
        (g,) = ts.autograd.grad(ts.compile(function)(x).sum(), x, create_graph=True)
        ts.autograd.grad(g.sum(), x)


@pytest.mark.parametrize("dtype", [ts.float16, ts.bfloat16, ts.float64, ts.int32, ts.complex64])
def test_other_dtypes(dtype):
    def function(p, x):
        y = ts.cond(p, lambda x: x * 2, lambda x: x + 1, (x,))
        return ts.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2 - 1), (ts.tensor(0), y))

    compiled = ts.compile(function)
    for p in (True, False):
        arguments = ts.tensor(p), ts.tensor([1, -2, 3]).to(dtype)
        for a, b in zip(compiled(*arguments), function(*arguments)):
            assert a.dtype is b.dtype and a.tolist() == b.tolist()


@pytest.mark.parametrize("compile_it", [False, True], ids=["eager", "compiled"])
def test_what_is_refused(compile_it):
    def call(function, *args):
        return (ts.compile(function) if compile_it else function)(*args)

    x, true = ts.ones(2), ts.tensor(True)
    for function, problem in (
        (lambda: ts.cond(x > 0, abs, abs, (x,)), r"bool or single-element tensor, but got shape \(2,\)"),
        (lambda: ts.cond(1, abs, abs, (x,)), "pred to be bool or tensor, but got int"),
        (lambda: ts.cond(true, abs, 3, (x,)), "both branches to be callable"),
        (lambda: ts.cond(true, abs, abs, x), "operands to be a tuple or list"),
        (lambda: ts.while_loop(lambda x: true, lambda x: x[:1], (x,)), r"like the carried ones, float32\[2\], but returns"),
        (lambda: ts.while_loop(lambda x: x, lambda x: x, (x,)), "bool"),
        (lambda: ts.while_loop(abs, abs, (2,)), "carried_inputs to be a tuple or list of tensors"),
        (lambda: ts.while_loop(abs, abs, ()), "nothing to carry"),
    ):
        with pytest.raises(RuntimeError, match=problem):
            call(function)


def test_what_only_a_compiled_branch_refuses():
    x, true, kept = ts.ones(2), ts.tensor(True), ts.zeros(2)
    for branch, error, problem in (
        (lambda x: x[:1], RuntimeError, r"different kinds: float32\[1\] and float32\[2\]"),
        (lambda x: {"a": x * 1}, RuntimeError, "different containers"),
        (lambda x: x.add_(1), TraceError, "writes over an operand or a captured tensor"),
        (lambda x: kept.copy_(x) * 1, TraceError, "writes over an operand or a captured tensor"),
        (lambda x: x + ts.rand(2), NotImplementedError, "random numbers, optimisers"),
    ):
        with pytest.raises(error, match=problem):
            ts.compile(lambda p, x, b=branch: ts.cond(p, b, lambda x: x * 2, (x,)))(true, x)
    assert kept.tolist() == [0.0, 0.0] and x.tolist() == [1.0, 1.0]
    with pytest.raises(NotImplementedError, match="inside of a function transform"):
        ts.vmap(lambda p, x: ts.cond(p, abs, abs, (x,)))(ts.tensor([True, False]), ts.ones(2, 2))
