"""`forward_ad` against PyTorch: what carries a tangent, what loses it, how it lies in memory, and what is refused."""

import pytest
import torch
from torch_twin import outcome, twin

import tensorsmith as ts
from tensorsmith.autograd import forward_ad


def fw(t):
    return t.autograd.forward_ad


def given(t, requires_grad=False):
    """A tensor and a tangent."""
    return t.tensor([0.5, -1.0, 2.0], requires_grad=requires_grad), t.tensor([1.0, 0.25, -2.0])


def parts(t, x):
    return list(fw(t).unpack_dual(x))


OPERATIONS = {
    "arithmetic": lambda t, x: (x * x - 2.0) / (x + 5),
    "functions": lambda t, x: (x.exp() + x.sin()).tanh(),
    "power": lambda t, x: x**3,
    "flat": lambda t, x: x.floor(),
    "comparison": lambda t, x: x > 0,
    "index of the largest": lambda t, x: x.argmax(),
    "to integers": lambda t, x: x.long(),
    "clone": lambda t, x: x.clone(),
    "detach": lambda t, x: x.detach(),
    "data": lambda t, x: x.data,
    "zeros like it": lambda t, x: t.zeros_like(x),
    "where": lambda t, x: t.where(x > 0, x, x * x),
    "largest and where": lambda t, x: t.max(x, 0)[0],
    "sorted": lambda t, x: t.sort(x, descending=True)[0],
    "top": lambda t, x: t.topk(x, 2)[0],
    "running products": lambda t, x: x.cumprod(0),
    "running maximum": lambda t, x: t.cummax(x, 0)[0],
    "softmax": lambda t, x: t.softmax(x, 0),
    "logsumexp": lambda t, x: t.logsumexp(x, 0),
    "norm": lambda t, x: t.linalg.vector_norm(x),
    "deviation": lambda t, x: x.std(),
    "matrix product": lambda t, x: t.outer(x, x) @ x,
    "layer norm": lambda t, x: t.nn.functional.layer_norm(x, (3,)),
    "gather": lambda t, x: x[t.tensor([2, 0, 0])],
    "mask": lambda t, x: x[x > 0],
    "step": lambda t, x: x[::2],
    "join": lambda t, x: t.cat([x, t.ones(2), x * 2]),
    "as double": lambda t, x: x.double() * 2,
    "einsum": lambda t, x: t.einsum("i,j->ij", x, x),
    "expand": lambda t, x: x.expand(2, 3) * t.ones(2, 1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_tangents_of_operators(name):
    def program(t, log):
        x, tangent = given(t)
        with fw(t).dual_level():
            found = parts(t, OPERATIONS[name](t, fw(t).make_dual(x, tangent)))
            log(*[None if v is None else (v, list(v.shape), str(v.dtype)) for v in found])

    twin(program)


def test_a_dual_is_a_view_that_keeps_the_tangent():
    def program(t, log):
        x, tangent = given(t)
        with fw(t).dual_level() as level:
            dual = fw(t).make_dual(x, tangent)
            log(level, dual.data_ptr() == x.data_ptr(), dual._is_view(), dual._base is x)
            log(fw(t).unpack_dual(dual).tangent is tangent, fw(t).unpack_dual(x).tangent)
            column = t.ones(3, 2).t()
            log(fw(t).unpack_dual(fw(t).make_dual(column, t.ones(2, 3))).tangent.stride())
            y = dual * 2
        log(*parts(t, y), *parts(t, dual))

    twin(program)


def test_writes_move_the_tangent():
    def program(t, log):
        for write in (
            lambda d: d.mul_(3), lambda d: d.add_(d * d), lambda d: d.zero_(), lambda d: d.fill_(2.0), lambda d: d.exp_(),
            lambda d: d.copy_(t.ones(3)), lambda d: d[1:].mul_(4), lambda d: d.view(3, 1).sin_(), lambda d: d.clamp_(min=0.0),
        ):  # fmt: skip
            x, tangent = given(t)
            with fw(t).dual_level():
                dual = fw(t).make_dual(x, tangent)
                view = dual[:2]
                write(dual)
                log(*parts(t, dual), *parts(t, view), tangent)

    twin(program)


def test_writing_a_dual_into_a_tensor_makes_it_one():
    def program(t, log):
        x, tangent = given(t)
        with fw(t).dual_level():
            dual = fw(t).make_dual(x, tangent)
            target = t.zeros(3)
            target.copy_(dual)
            log(*parts(t, target))
            rows = t.zeros(2, 3)
            rows[0] = dual
            log(*parts(t, rows))
            rows = t.zeros(2, 3)
            view = rows[1]
            view.add_(dual)
            log(*parts(t, rows), *parts(t, view), *parts(t, rows[0]))

    twin(program)


def test_a_tensor_written_with_itself():
    """x *= x moves by 2 x t; PyTorch 2.13 reads the tangent again after writing it."""
    x, tangent = given(ts)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone(), tangent.clone())
        dual.mul_(dual)
        assert forward_ad.unpack_dual(dual).tangent.tolist() == (2 * x * tangent).tolist()


def test_values_can_be_read():
    def program(t, log):
        x, tangent = given(t)
        with fw(t).dual_level():
            dual = fw(t).make_dual(x, tangent)
            log(dual.tolist(), dual[0].item(), bool(dual.sum() > 0), dual.numpy().tolist())

    twin(program)


def test_grad_mode_does_not_matter():
    def program(t, log):
        x, tangent = given(t)
        with fw(t).dual_level(), t.no_grad():
            log(*parts(t, fw(t).make_dual(x, tangent) * 2))

    twin(program)


def test_forward_over_reverse():
    def program(t, log):
        x, tangent = given(t, True)
        with fw(t).dual_level():
            dual = fw(t).make_dual(x, tangent)
            log(dual.requires_grad, dual.is_leaf, dual.grad_fn is None)
            (gradient,) = t.autograd.grad((dual**3).sum(), x)
            log(*parts(t, gradient))
            ((dual.exp() * dual).sum()).backward()
            log(*parts(t, x.grad))

    twin(program)


def test_reverse_over_forward():
    def program(t, log):
        x, tangent = given(t, True)
        tangent.requires_grad_()
        with fw(t).dual_level():
            primal, moved = fw(t).unpack_dual((fw(t).make_dual(x, tangent) ** 3).sum())
        log(moved.requires_grad, *t.autograd.grad(moved, (x, tangent), retain_graph=True))
        log(*t.autograd.grad(primal, x))

    twin(program)


def test_mixed_third_derivative():
    def program(t, log):
        x, tangent = given(t, True)
        with fw(t).dual_level():
            dual = fw(t).make_dual(x, tangent)
            (gradient,) = t.autograd.grad((dual**4).sum(), x, create_graph=True)
            moved = fw(t).unpack_dual(gradient).tangent
            log(moved, *t.autograd.grad(moved.sum(), x))

    twin(program)


def test_modules():
    def program(t, log):
        layers = t.nn.Sequential(t.nn.Linear(3, 4), t.nn.Tanh(), t.nn.Linear(4, 2))
        with t.no_grad():
            for number, p in enumerate(layers.parameters()):
                p.copy_(t.arange(p.numel()).reshape(p.shape) * 0.05 - 0.1 * number)
        x, tangent = given(t)
        with fw(t).dual_level():
            y = layers(fw(t).make_dual(x, tangent))
            log(*parts(t, y))
            fw(t).unpack_dual(y).tangent.sum().backward()
        log(*[p.grad for p in layers.parameters()])

    twin(program)


def test_as_decorator():
    def program(t, log):
        @fw(t).dual_level()
        def derivative(f, x, tangent):
            return fw(t).unpack_dual(f(fw(t).make_dual(x, tangent))).tangent

        log(derivative(t.sin, *given(t)), derivative(t.cos, *given(t)))

    twin(program)


REFUSED = {
    "no level": lambda t, x, d: None,
    "shape": lambda t, x, d: fw(t).make_dual(x, t.ones(4)),
    "shape that would broadcast": lambda t, x, d: fw(t).make_dual(x, t.ones(1)),
    "integer primal": lambda t, x, d: fw(t).make_dual(x.long(), x),
    "integer tangent": lambda t, x, d: fw(t).make_dual(x, x.long()),
    "dual of a dual": lambda t, x, d: fw(t).make_dual(d, x),
    "a dual as tangent": lambda t, x, d: fw(t).make_dual(x, d),
    "nested": lambda t, x, d: fw(t).enter_dual_level(),
    "another level left": lambda t, x, d: fw(t).exit_dual_level(level=3),
    "dual of another level": lambda t, x, d: fw(t).make_dual(x, x, level=3),
    "unpacked at another level": lambda t, x, d: fw(t).unpack_dual(d, level=3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    errors = []
    for t in (ts, torch):
        x, tangent = given(t)
        if name == "no level":
            errors.append(outcome(lambda: fw(t).make_dual(x, tangent)))
            assert isinstance(outcome(lambda: fw(t).exit_dual_level()), RuntimeError)
            assert fw(t).unpack_dual(x).tangent is None
            continue
        with fw(t).dual_level():
            errors.append(outcome(lambda: REFUSED[name](t, x, fw(t).make_dual(x, tangent))))
            assert fw(t).unpack_dual(fw(t).make_dual(x, tangent) * 2).tangent is not None  # the level is still whole
    ours, theirs = errors
    assert isinstance(theirs, Exception) and type(ours) is type(theirs)
    assert str(ours)[:40] == str(theirs)[:40].replace("torch", "tensorsmith") or "level" in str(ours)


def test_the_hint_of_a_nested_level_names_what_nests():
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match=r"func\.jvp"):
        forward_ad.enter_dual_level()


def test_dual_prints_its_tangent():
    with forward_ad.dual_level():
        assert repr(forward_ad.make_dual(ts.ones(2), ts.zeros(2))) == "tensor([1., 1.], tangent=tensor([0., 0.]))"


def test_an_exception_leaves_the_level():
    with pytest.raises(ZeroDivisionError), forward_ad.dual_level():
        raise ZeroDivisionError
    assert forward_ad.unpack_dual(ts.ones(1)).tangent is None
    with forward_ad.dual_level() as level:
        assert level == 0


def test_duals_work_within_function_transforms():
    """Where PyTorch refuses to nest: a level of duals inside of vmap, grad and jvp."""

    def derivative(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, ts.ones_like(x)) ** 3).tangent

    x = ts.tensor([1.0, 2.0, 3.0])
    assert ts.func.vmap(derivative)(x).tolist() == (3 * x * x).tolist()
    assert ts.func.grad(lambda x: derivative(x).sum())(x).tolist() == (6 * x).tolist()
    assert ts.func.jvp(derivative, (x,), (ts.ones(3),))[1].tolist() == (6 * x).tolist()


def test_a_tangent_lies_as_its_primal_where_that_has_gaps():
    def program(t, log):
        base = t.arange(12.0)
        for x in (base[::2], base.reshape(3, 4)[:, 1:3], base.reshape(3, 4).t()[1:]):
            with fw(t).dual_level():
                dual = fw(t).make_dual(x, t.arange(x.numel() * 1.0).reshape(x.shape) + 1)
                log(fw(t).unpack_dual(dual).tangent.stride(), *parts(t, dual * dual))
                log(*parts(t, t.as_strided(dual, (2, 2), dual.stride()[-1:] * 2)))

    twin(program)


def test_quantiles_move_with_both_arguments():
    def program(t, log):
        x, q = t.tensor([0.3, 0.9, 2.0], dtype=t.float64), t.tensor([0.2, 0.7], dtype=t.float64)
        log(t.func.jvp(lambda x, q: t.quantile(x, q), (x, q), (x * 2, q + 1)))

    twin(program)


def test_a_view_beyond_the_tangent_is_refused():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(ts.arange(10.0)[5:], ts.ones(5))
        with pytest.raises(NotImplementedError, match="tangent lies otherwise in memory"):
            ts.as_strided(dual, (2,), (1,), 0)


def test_second_derivatives_after_the_level():
    def program(t, log):
        x, tangent = given(t, True)
        with fw(t).dual_level():
            y = (fw(t).make_dual(x, tangent).exp() * x).tanh()
        (gradient,) = t.autograd.grad(y.sum(), x, create_graph=True)
        log(gradient, *t.autograd.grad(gradient.sum(), x))

    twin(program)


def test_within_a_compiled_function():
    def derivative(x, tangent):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, tangent).exp() ** 2).tangent

    x, tangent = given(ts)
    assert ts.allclose(ts.compile(derivative)(x, tangent), derivative(x, tangent))
    push = lambda x, t: ts.func.jvp(lambda z: (z.sin() * z).cumsum(0), (x,), (t,))
    for found, expected in zip(ts.compile(push)(x, tangent), push(x, tangent)):
        assert ts.allclose(found, expected)
