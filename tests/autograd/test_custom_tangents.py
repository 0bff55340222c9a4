"""`Function.jvp` and `save_for_forward` against PyTorch, by forward_ad and by ts.func.jvp."""

import pytest
import torch
from torch_twin import outcome, twin

import tensorsmith as ts


def fw(t):
    return t.autograd.forward_ad


def given(t):
    return t.tensor([0.5, -1.0, 2.0]), t.tensor([1.0, 0.25, -2.0])


def pushed(t, function, *arguments):
    """Primals and tangents of the results for a dual as first argument."""
    x, tangent = given(t)
    with fw(t).dual_level():
        results = function.apply(fw(t).make_dual(x, tangent), *arguments)
        return [list(fw(t).unpack_dual(y)) for y in (results if isinstance(results, tuple) else (results,))]


def product(t):
    class Product(t.autograd.Function):
        seen: list = []

        @staticmethod
        def forward(ctx, x, y, factor):
            Product.seen.append(fw(t).unpack_dual(x).tangent)
            ctx.save_for_forward(x, y)
            ctx.save_for_backward(x, y)
            ctx.factor = factor
            return x * y * factor, x.argmax()

        @staticmethod
        def backward(ctx, grad, _):
            x, y = ctx.saved_tensors
            return grad * y * ctx.factor, grad * x * ctx.factor, None

        @staticmethod
        def jvp(ctx, a, b, c):
            x, y = ctx.saved_tensors
            Product.seen.append((a, b, c, fw(t).unpack_dual(x).tangent))
            return (a * y + x * b) * ctx.factor, None

    return Product


def test_what_jvp_is_given():
    def program(t, log):
        function = product(t)
        log(*pushed(t, function, t.tensor([2.0, 3.0, 4.0]), 2.0), *function.seen)

    twin(program)


def test_second_derivatives():
    def program(t, log):
        function = product(t)
        x, tangent = given(t)
        x.requires_grad_()
        y = t.tensor([2.0, 3.0, 4.0], requires_grad=True)
        with fw(t).dual_level():
            z = function.apply(fw(t).make_dual(x, tangent), y, 2.0)[0]
            gradients = t.autograd.grad((z * z).sum(), (x, y), retain_graph=True)
            log(*[list(fw(t).unpack_dual(g)) for g in gradients])
            moved = fw(t).unpack_dual(z).tangent
        log(*t.autograd.grad((moved * moved).sum(), (x, y)))

    twin(program)


def separate(t, materialize=True):
    class Separate(t.autograd.Function):
        seen: list = []

        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs, output)
            ctx.save_for_backward(*inputs)
            ctx.set_materialize_grads(materialize)

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return grad * y, grad * x

        @staticmethod
        def jvp(ctx, a, b):
            x, y, z = ctx.saved_tensors
            Separate.seen.append((a, b, z))
            return (0 if a is None else a * y) + (0 if b is None else x * b)

    return Separate


def test_with_a_separate_context():
    def program(t, log):
        for materialize in (True, False):
            function = separate(t, materialize)
            log(*pushed(t, function, t.tensor([2.0, 3.0, 4.0])), *function.seen)

    twin(program)


def test_under_transforms():
    def program(t, log):
        function = separate(t).apply
        x, tangent = given(t)
        y = t.tensor([2.0, 3.0, 4.0])
        f = t.func
        log(f.jvp(lambda x: function(x, y.sin()), (x,), (tangent,)))
        log(f.grad(lambda x: f.jvp(lambda z: function(z, z), (x,), (tangent,))[1].sum())(x))
        log(f.jvp(f.grad(lambda x: function(x, x * x).sum()), (x,), (tangent,)))
        log(f.jacfwd(lambda x: function(x, x), randomness="same")(x) if t is ts else 2 * t.diag(x))

    twin(program)


def test_a_batched_function_is_pushed_forward():
    class Product(ts.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y, power):
            return x**power * y, x + y

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, y, ctx.power = inputs
            ctx.save_for_forward(x, y)

        @staticmethod
        def jvp(ctx, a, b, c):
            x, y = ctx.saved_tensors
            return ctx.power * x ** (ctx.power - 1) * y * a + x**ctx.power * b, a + b

    x, t = given(ts)
    y, u = ts.tensor([2.0, 3.0, 4.0]), ts.tensor([1.0, 0.0, -1.0])
    expected = ts.func.jvp(lambda x, y: (x**3 * y, x + y), (x, y), (t, u))[1]
    each = lambda x, y: Product.apply(x, y, 3)
    by_rows = ts.func.jvp(ts.vmap(each), (x, y), (t, u))[1]
    of_rows = ts.vmap(lambda x, y, t, u: ts.func.jvp(each, (x, y), (t, u))[1])(x, y, t, u)
    for found in (by_rows, of_rows):
        assert all(ts.allclose(a, b) for a, b in zip(found, expected))
    shared = ts.func.jvp(ts.vmap(each, in_dims=(0, None)), (x, y[0]), (t, u[0]))[1]
    expected = ts.func.jvp(lambda x, y: (x**3 * y, x + y), (x, y[0]), (t, u[0]))[1]
    assert all(ts.allclose(a, b) for a, b in zip(shared, expected))


def test_nested_jvp():
    """d/dx of 2 x^2 t along t; PyTorch 2.13 gives zeros."""
    function = separate(ts).apply
    x, t = given(ts)
    inner = lambda x: ts.func.jvp(lambda z: function(z, z * x), (x,), (t,))[1]
    assert ts.allclose(ts.func.jvp(inner, (x,), (t,))[1], 4 * x * t * t)


def test_results_that_are_views_and_writes():
    def program(t, log):
        class Row(t.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.view(1, -1)

            @staticmethod
            def jvp(ctx, tangent):
                return tangent.view(1, -1)

        class Twice(t.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                x.mul_(2)
                return x

            @staticmethod
            def jvp(ctx, tangent):
                return tangent.mul_(2)

        log(*pushed(t, Row), *pushed(t, Twice))

    twin(program)


def with_jvp(t, jvp, write=False, view=False):
    class Wrong(t.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if write:
                ctx.mark_dirty(x)
                return x.mul_(2)
            return x.view(-1) if view else x * 2

    if jvp is not None:
        Wrong.jvp = staticmethod(jvp)
    return Wrong


WRONG = {
    "no jvp": lambda t: with_jvp(t, None),
    "two tangents of one result": lambda t: with_jvp(t, lambda ctx, v: (v, v)),
    "a number": lambda t: with_jvp(t, lambda ctx, v: 2.0),
    "another shape": lambda t: with_jvp(t, lambda ctx, v: v[:1]),
    "written, but the tangent is new": lambda t: with_jvp(t, lambda ctx, v: v * 2, write=True),
    "a view, but the tangent is not": lambda t: with_jvp(t, lambda ctx, v: v.clone(), view=True),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused_as_pytorch_does(name):
    ours, theirs = (outcome(lambda t=t: pushed(t, WRONG[name](t))) for t in (ts, torch))
    assert isinstance(theirs, Exception) and type(ours) is type(theirs)
    assert str(ours)[-30:] == str(theirs)[-30:] or str(theirs)[:40] in str(ours) or "invalid number" in str(ours)


def test_what_is_saved_for_forward_goes_when_jvp_has_run():
    class Square(ts.autograd.Function):
        contexts: list = []

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_forward(x)
            Square.contexts.append(ctx)
            return x * x

        @staticmethod
        def jvp(ctx, tangent):
            return 2 * ctx.saved_tensors[0] * tangent

    assert pushed(ts, Square)[0][1].tolist() == [1.0, -0.5, -8.0]
    Square.apply(ts.ones(3))
    assert [context.for_forward for context in Square.contexts] == [None, None]


def test_only_tensors_are_saved():
    def program(t, log):
        class Saves(t.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_forward(x, 2.0)
                return x

        log(outcome(lambda: Saves.apply(t.ones(2))))

    twin(program)
