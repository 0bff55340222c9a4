"""`Function` against PyTorch, and the errors of wrong ones."""

import gc
import weakref

import numpy as np
import pytest
from torch_twin import outcome, twin

import tensorsmith as ts


def leaf(t):
    return t.tensor([1.0, 2.0], requires_grad=True)


def make(t, forward, backward=None, **more):
    body = {"forward": staticmethod(forward), **{k: staticmethod(v) for k, v in more.items()}}
    if backward is not None:
        body["backward"] = staticmethod(backward)
    return type("Mine", (t.autograd.Function,), body)


def test_save_and_double_backward():
    def program(t, log):
        def forward(ctx, x, power, y):
            ctx.save_for_backward(x, y)
            ctx.power = power
            log(ctx.needs_input_grad)
            return x**power * y

        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            log(ctx.power)
            return grad * y * ctx.power * x ** (ctx.power - 1), None, grad * x**ctx.power

        cube = make(t, forward, backward)
        a, b = leaf(t), t.tensor([0.5, 3.0])
        out = cube.apply(a, 3, b)
        log(out, out.requires_grad, out.grad_fn.name(), type(out.grad_fn).__name__)
        (g,) = t.autograd.grad(out.sum(), a, create_graph=True)
        g.sum().backward()
        log(g, a.grad, b.grad)

    twin(program)


def test_several_outputs_and_materialized_gradients():
    def program(t, log):
        x = leaf(t)

        def backward(ctx, g, h):
            log(g, h)
            return g if h is None else g + 2 * h

        both = make(t, lambda ctx, a: (a * 1, a * 2), backward)
        both.apply(x)[0].sum().backward()
        both.apply(x)[1].sum().backward()
        log(x.grad)

        def forward(ctx, a):
            ctx.set_materialize_grads(False)
            return a * 1, a * 2

        bare = make(t, forward, backward)
        bare.apply(x)[0].sum().backward()
        log(x.grad)

    twin(program)


def test_saved_output_and_none():
    def program(t, log):
        def forward(ctx, x):
            result = x.exp()
            ctx.save_for_backward(result, None)
            return result

        def backward(ctx, g):
            result, nothing = ctx.saved_tensors
            log(nothing, result.requires_grad)
            return g * result

        x = leaf(t)
        y = make(t, forward, backward).apply(x)
        (g,) = t.autograd.grad(y.sum(), x, create_graph=True)
        g.sum().backward()
        log(x.grad)

    twin(program)


def test_setup_context_and_keywords():
    def program(t, log):
        def setup(ctx, inputs, output):
            log(len(inputs), inputs[1], output)
            ctx.scale = inputs[1]

        scale = make(t, lambda x, by=5: x * by, lambda ctx, g: (g * ctx.scale, None), setup_context=setup)
        x = leaf(t)
        scale.apply(x).sum().backward()
        scale.apply(x, 2).sum().backward()
        log(x.grad)

    twin(program)


def test_non_differentiable_outputs():
    def program(t, log):
        def forward(ctx, x):
            a, b = x * 2, x * 3
            ctx.mark_non_differentiable(b)
            return a, b

        def backward(ctx, g, h):
            log(g, h)
            return g

        x = leaf(t)
        a, b = make(t, forward, backward).apply(x)
        log(a.requires_grad, b.requires_grad)
        a.sum().backward()
        log(x.grad)

    twin(program)


def test_dirty_inputs():
    def program(t, log):
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        double = make(t, forward, lambda ctx, g: g * 2)
        x = leaf(t)
        a = x * 1
        b = double.apply(a)
        log(a is b, a._version > 0, a.grad_fn.name())
        (b * b).sum().backward()
        log(x.grad)
        log(outcome(lambda: double.apply(x)))

        def forgets(ctx, x):
            ctx.mark_dirty(x)
            return x * 1

        log(outcome(lambda: make(t, forgets, lambda ctx, g: g).apply(x * 1)))

    twin(program)


def test_writing_through_numpy_is_counted():
    class Negate(ts.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            from tensorsmith.autograd.memory import as_array

            np.negative(as_array(x), out=as_array(x))
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return -g

    x = leaf(ts)
    a = x * 1
    square = a * a
    Negate.apply(a)
    assert a._version > 0 and a.tolist() == [-1.0, -2.0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


def test_input_returned_as_it_is():
    def program(t, log):
        same = make(t, lambda ctx, x: x, lambda ctx, g: g * 3)
        x = leaf(t)
        y = same.apply(x)
        log(y is x, y._is_view(), y.requires_grad, x.grad_fn, y.data_ptr() == x.data_ptr())
        y.sum().backward()
        log(x.grad)
        log(same.apply(x.detach()).requires_grad)

    twin(program)


def test_writing_to_a_returned_view_is_refused():
    x = leaf(ts)

    class Same(ts.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 3

    a = x * 1
    y = Same.apply(a)
    a.mul_(2)
    with pytest.raises(RuntimeError, match="Output 0 of Same is a view and its base or another view of its base"):
        y.sum()


def test_no_grad_and_constant_inputs():
    def program(t, log):
        double = make(t, lambda ctx, x: x * 2, lambda ctx, g: g * 2)
        x = leaf(t)
        with t.no_grad():
            log(double.apply(x).requires_grad)
        log(double.apply(x.detach()).requires_grad)
        log(outcome(lambda: double.apply(x, 3)) is not None)

    twin(program)


def test_results_that_are_no_tensors():
    def program(t, log):
        x = leaf(t)
        log(make(t, lambda ctx, x: 3, lambda ctx, g: g).apply(x))
        out, number = make(t, lambda ctx, x: (x * 2, "word"), lambda ctx, g, none: (log(none), g)[1]).apply(x)
        log(number)
        out.sum().backward()
        log(x.grad)

    twin(program)


def test_gradients_are_summed_to_the_inputs_shape_and_cast():
    def program(t, log):
        def forward(ctx, a, b):
            return a + b

        x = t.tensor([1.0, 2.0], requires_grad=True)
        y = t.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        make(t, forward, lambda ctx, g: (g, g)).apply(x, y).sum().backward()
        log(x.grad, y.grad)
        make(t, lambda ctx, a: a * 1, lambda ctx, g: g.double()).apply(x).sum().backward()
        log(x.grad, str(x.grad.dtype))

    twin(program)


def test_messages_of_wrong_backwards():
    def program(t, log):
        x = leaf(t)

        def run(backward, *args, forward=lambda ctx, *a: a[0] * 1):
            return outcome(lambda: make(t, forward, backward).apply(*args).sum().backward())

        log(run(lambda ctx, g: g, x, x))
        log(run(lambda ctx, g: (g, g), x))
        log(run(lambda ctx, g: (g, None, None), x))
        log(run(lambda ctx, g: t.ones(3), x))
        log(run(lambda ctx, g: 3, x))
        log(run(lambda ctx, g: (g, g), x, 4))
        log(run(None, x))
        error = run(lambda ctx, g: g, x, forward=lambda ctx, a: ctx.save_for_backward(3))
        log(error)

    twin(program)


def test_backward_and_vjp_are_one():
    def program(t, log):
        x = leaf(t)
        make(t, lambda ctx, a: a * 2, vjp=lambda ctx, g: g * 2).apply(x).sum().backward()
        log(x.grad)
        both = make(t, lambda ctx, a: a * 2, lambda ctx, g: g, vjp=lambda ctx, g: g)
        log(outcome(lambda: both.apply(x).sum().backward()))

    twin(program)


def test_freed_saved_tensors():
    def program(t, log):
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        out = make(t, forward, lambda ctx, g: g * 2 * ctx.saved_tensors[0]).apply(leaf(t)).sum()
        out.backward()
        error = outcome(out.backward)
        log(type(error).__name__, str(error)[:60])

    twin(program)


def test_once_differentiable():
    def program(t, log):
        once = t.autograd.function.once_differentiable
        double = make(t, lambda ctx, x: x * 2, once(lambda ctx, g: g * 2))
        x = leaf(t)
        (g,) = t.autograd.grad((double.apply(x) * x).sum(), x, create_graph=True)
        log(g, outcome(lambda: g.sum().backward()))

    twin(program)


def test_missing_gradients_flow_on():
    def program(t, log):
        nothing = make(t, lambda ctx, x: x * 2, lambda ctx, g: None)
        below = make(t, lambda ctx, x: x * 2, lambda ctx, g: (log("below", g), g)[1])
        x = leaf(t)
        x.register_hook(lambda g: log("hook", g))
        x.register_post_accumulate_grad_hook(lambda x: log("post"))
        nothing.apply(x * 1).sum().backward()
        log(x.grad)
        nothing.apply(below.apply(x)).sum().backward()
        log(x.grad)
        log(t.autograd.grad(nothing.apply(x).sum(), x, allow_unused=True))

    twin(program)


def test_reentrant_backward():
    def program(t, log):
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            inner = x.detach().requires_grad_()
            with t.enable_grad():
                y = inner * inner
            y.backward(g)
            return inner.grad

        x = leaf(t)
        make(t, forward, backward).apply(x).sum().backward()
        log(x.grad)

    twin(program)


def test_instances_are_refused():
    def program(t, log):
        double = make(t, lambda ctx, x: x * 2, lambda ctx, g: g * 2)
        error = outcome(lambda: double()(leaf(t)))
        log(type(error).__name__, str(error)[:120])

    twin(program)


class Exponential(ts.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[1]


def test_outputs_are_freed_without_the_collector():
    gc.disable()
    try:
        y = Exponential.apply(leaf(ts))
        node, tensor = weakref.ref(y.grad_fn), weakref.ref(y)
        del y
        assert tensor() is None and node() is None
    finally:
        gc.enable()


def test_an_output_kept_on_the_context_is_collected():
    class Keeps(ts.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mine = x * 2
            return ctx.mine

        @staticmethod
        def backward(ctx, g):
            return g * 2

    y = Keeps.apply(leaf(ts))
    tensor = weakref.ref(y)
    del y
    gc.collect()
    assert tensor() is None
