"""The gradient of a compiled function is autograd's: where it stops, whose rule it follows, and that hooks run once."""

import numpy as np
import pytest

import tensorsmith as ts


class Straight(ts.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * 5


W = ts.tensor([1.5, -2.0], requires_grad=True)


def detached(x):
    return (W * x + W.detach() * x.exp()).sum()


def without_grad(x):
    with ts.no_grad():
        scale = W.abs().max()
    return W / scale * x


def custom(x):
    return (Straight.apply(W * x) * x, (W * 2).sum())


def view_and_detached_view(x):
    row = (W * x).reshape(1, 2)
    return row[0, 1] * row.detach()[0, 0] + row.sum()


def in_place(x):
    y = W * x
    y[0] = y[1] * 3
    y.mul_(x)
    return y


@pytest.mark.parametrize("function", [detached, without_grad, custom, view_and_detached_view, in_place])
def test_gradients_are_those_of_eager_execution(function):
    compiled = ts.compile(function)
    for k in range(2):
        found = []
        for call in (function, compiled):
            x = ts.tensor([0.7 + k, 3.0], requires_grad=True)
            W.grad = None
            out = call(x)
            parts = out if isinstance(out, tuple) else (out,)
            sum(((i + 2) * part).sum() for i, part in enumerate(parts)).backward()
            found.append((W.grad.tolist(), x.grad.tolist()))
        np.testing.assert_allclose(*found, rtol=1e-6)


def test_only_some_results_have_a_gradient():
    compiled = ts.compile(custom)
    for index in (0, 1):
        found = []
        for call in (custom, compiled):
            W.grad = None
            call(ts.ones(2))[index].sum().backward()
            found.append(W.grad.tolist())
        assert found[0] == found[1]


def test_hooks_run_once_and_second_derivatives_where_nothing_stops():
    w, seen = ts.ones(2, requires_grad=True), []
    w.register_hook(lambda g: seen.append(g.tolist()) or g * 2)
    compiled = ts.compile(lambda x: (w * x).sum())
    for k in range(2):
        w.grad = None
        compiled(ts.full((2,), 3.0)).backward()
        assert w.grad.tolist() == [6.0] * 2 and len(seen) == k + 1
    cubed = ts.compile(lambda x: (x * x * x).sum())
    x = ts.tensor([2.0], requires_grad=True)
    (g,) = ts.autograd.grad(cubed(x), x, create_graph=True)
    (h,) = ts.autograd.grad(g.sum(), x)
    assert (g.item(), h.item()) == (12.0, 12.0)
    with pytest.raises(NotImplementedError, match="second derivative of a compiled function that uses detach"):
        ts.autograd.grad(ts.compile(detached)(x.expand(2)), W, create_graph=True)


def test_a_tracked_tensor_that_is_written_and_returned_is_refused():
    h = W * 1
    with pytest.raises(NotImplementedError, match=r"writes over a tensor that is tracked by autograd \(input \d, shape"):
        ts.compile(lambda x: h.mul_(x) * 2)(ts.ones(2))


def test_a_result_whose_history_was_freed_inside_is_returned():
    def freed(x):
        y = x * 1
        y[1:].mul_(x[1:])
        return y, ts.autograd.grad(y.sum(), x)[0]

    x = ts.tensor([1.0, 3.0], requires_grad=True)
    y, gradient = ts.compile(freed)(x)
    assert (y.tolist(), gradient.tolist()) == ([1.0, 9.0], [1.0, 6.0])
