"""How a view came about decides whether it may be written over: under no_grad, among several, before its base was tracked."""

import gc
import re

import pytest
from torch_twin import twin

import tensorsmith as ts


def flags(x):
    return x.requires_grad, x.is_leaf, x._is_view()


def error(function):
    """The class and the first words of what a call raises; None where it raises nothing."""
    try:
        function()
    except Exception as found:
        return f"{type(found).__name__}: " + re.sub(r"^\w+: ", "", str(found))[:70]
    return None


def test_a_view_made_without_gradients_is_tracked_but_leads_nowhere():
    def program(library, log):
        x = library.zeros(3, 2, requires_grad=True)
        with library.no_grad():
            v = x[0]
            w = v[1:]
        log(flags(v), flags(w), v.grad_fn is None)
        y = (v * 2).sum()
        log(flags(y), y.grad_fn.next_functions[0][0].next_functions)
        y.backward()
        log(x.grad is None, v.grad is None)
        log(error(lambda: v.backward(library.ones(2))))
        log(error(lambda: v.add_(1)), error(lambda: w.add_(1)))
        with library.no_grad():
            v.add_(1)
        log(x, error(lambda: v.grad_fn), v.requires_grad, error(lambda: v * 2), error(lambda: v.is_leaf))

    twin(program)


def test_such_a_view_asked_for_a_gradient_is_a_leaf():
    def program(library, log):
        x = library.zeros(3, 2, requires_grad=True)
        with library.no_grad():
            v = x[0]
        v.requires_grad_()
        (v * 3).sum().backward()
        log(flags(v), v.grad, x.grad is None)
        v.requires_grad_(False)
        log(flags(v))

    twin(program)


def test_its_views_and_its_base():
    def program(library, log):
        x = library.zeros(3, 2, requires_grad=True)
        base = x * 2
        with library.no_grad():
            v = base[0]
        w = v[1:]
        log(flags(v), flags(w), w.grad_fn.name())
        log(error(lambda: v.mul_(2)), error(lambda: w.mul_(2)))
        base.mul_(2)
        log(error(lambda: v.grad_fn), error(lambda: v + 1), error(lambda: w + 1))
        base.sum().backward()
        log(x.grad)

    twin(program)


def test_it_can_be_printed():
    x = ts.ones(2, requires_grad=True)
    with ts.no_grad():
        v = x[:1]
        v.mul_(2)
    assert repr(v) == "tensor([2.], grad_fn=<Invalid>)"


def test_views_follow_a_base_that_is_asked_for_a_gradient():
    def program(library, log):
        base = library.zeros(3, 2)
        v = base[0]
        with library.no_grad():
            w = base[1]
        base.requires_grad_()
        log(flags(v), flags(w), error(lambda: (v * 2).sum().backward()), base.grad is None)
        log(error(lambda: v.add_(1)), error(lambda: w.add_(1)))
        base.requires_grad_(False)
        log(flags(v), flags(w), error(lambda: w.add_(1)))

    twin(program)


WAYS = {
    "row": lambda t: t[1], "first row twice": lambda t: t[0][1:], "slice": lambda t: t[1:], "columns": lambda t: t[:, ::2],
    "view": lambda t: t.view(2, 6), "reshape": lambda t: t.reshape(12), "t": lambda t: t.t(),
    "select": lambda t: t.select(1, 0), "unfold": lambda t: t.unfold(0, 2, 1),
    "expand": lambda t: t.unsqueeze(0).expand(2, 4, 3), "diagonal": lambda t: t.diagonal(),
    "as_strided": lambda t: t.as_strided((2, 2), (3, 1)), "split": lambda t: t.split(2)[1], "unbind": lambda t: t.unbind(1)[2],
    "iter": lambda t: tuple(t)[0], "chunk": lambda t: t.chunk(2)[0], "narrow": lambda t: t.narrow(0, 1, 2),
    "view_as": lambda t: t.view_as(t), "real": lambda t: (t * 1j).real, "squeeze": lambda t: t[:1].squeeze(0),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_every_kind_of_view_follows_its_base(name):
    def program(library, log):
        for mode in (library.enable_grad(), library.no_grad(), library.inference_mode(False)):
            base = library.zeros(4, 3)
            with mode:
                v = WAYS[name](base)
            base = v._base
            base.requires_grad_()
            log(flags(v), flags(base))

    twin(program)


def test_no_views_are_searched_for_where_none_was_made(monkeypatch):
    base = ts.zeros(4, 3)
    seen = base.detach()  # shares the memory and is no view
    monkeypatch.setattr(gc, "get_referrers", lambda *objects: pytest.fail("searched all objects"))
    assert seen.requires_grad_().requires_grad and not base.requires_grad


def test_views_follow_a_base_that_was_written_with_a_tracked_value():
    def program(library, log):
        base = library.zeros(3, 2)
        v = base[0]
        with library.no_grad():
            w = base[1]
        t = library.ones(3, 2, requires_grad=True)
        base.add_(t)
        log(flags(v), error(lambda: w.grad_fn), error(lambda: w * 1), error(lambda: v.mul_(3)))
        base.sum().backward()
        log(t.grad)

    twin(program)


def test_an_untracked_view_made_without_gradients_takes_no_tracked_value():
    def program(library, log):
        base = library.zeros(3, 2)
        with library.no_grad():
            w = base[1]
        log(error(lambda: w.mul_(library.ones(2, requires_grad=True))), flags(base), flags(w))
        log(error(lambda: w.mul_(2)))

    twin(program)


PARTS = {
    "split": lambda t: t.split(1), "unbind": lambda t: t.unbind(0), "chunk": lambda t: t.chunk(2),
    "sizes": lambda t: t.split([1, 3]), "split_with_sizes": lambda t: t.split_with_sizes([2, 2]), "iter": tuple,
    "one of split": lambda t: t.split(4), "one of unbind": lambda t: t[:1].unbind(0), "one of chunk": lambda t: t.chunk(1),
    "columns": lambda t: t.unbind(1), "tensor_split": lambda t: t.tensor_split(2), "hsplit": lambda t: t.hsplit(2),
    "vsplit": lambda t: t.vsplit([1]), "dsplit": lambda t: t.reshape(2, 2, 2).dsplit(2),
    "tensor_split at": lambda t: t.tensor_split([1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_parts(name):
    """Parts that one operator made are not written; those of `tensor_split` are slices."""

    def program(library, log):
        x = library.arange(8.0).reshape(4, 2).requires_grad_()
        base = x * 1
        parts = PARTS[name](base)
        part = parts[0]
        log(len(parts), flags(part), part.grad_fn.name(), error(lambda: part.mul_(2)))
        inner = part[0]
        log(error(lambda: inner.mul_(2)), error(lambda: base.mul_(2)))
        log(error(lambda: part * 2), error(lambda: parts[-1] * 2), error(lambda: inner * 2))
        with library.no_grad():
            log(error(lambda: part.mul_(2)))
        log(error(lambda: part * 2), error(lambda: (base * base).sum().backward()), x.grad)

    twin(program)


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_what_is_not_tracked(name):
    def program(library, log):
        base = library.ones(4, 2)
        first = PARTS[name](base)[0]
        log(error(lambda: first.mul_(2)), base)
        t = library.full(first.shape, 3.0, requires_grad=True)
        log(error(lambda: first.mul_(t)), flags(first), flags(base))
        other = library.ones(4, 2)
        second = PARTS[name](other)[-1]
        other.mul_(library.ones(4, 2, requires_grad=True))
        log(error(lambda: second * 2))

    twin(program)


@pytest.mark.parametrize("name", ["split", "unbind", "tensor_split"])
def test_parts_of_a_leaf(name):
    def program(library, log):
        x = library.ones(4, 2, requires_grad=True)
        part = PARTS[name](x)[0]
        log(error(lambda: part.mul_(2)))
        with library.no_grad():
            part.mul_(2)
        log(x.detach(), error(lambda: part * 2), error(lambda: part.grad_fn), part.requires_grad)

    twin(program)


def test_parts_made_without_gradients():
    def program(library, log):
        base = library.ones(4, 2, requires_grad=True) * 1
        with library.no_grad():
            part, _ = base.split(2)
        log(flags(part), error(lambda: part.mul_(2)), error(lambda: part * 2))

    twin(program)


def test_unsafe_parts_are_no_views():
    def program(library, log):
        x = library.ones(4, requires_grad=True)
        base = x * 1
        first, second = base.unsafe_split(2)
        log(flags(first), error(lambda: first.mul_(3)), base, error(lambda: (first.sum() + second.sum()).backward()), x.grad)

    twin(program)


METHODS = {
    "unsqueeze_": (0,), "squeeze_": (), "transpose_": (0, 1), "t_": (), "swapaxes_": (0, 1), "swapdims_": (0, 1),
    "as_strided_": ((2,), (1,), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_tracked_tensor_laid_out_anew(name):
    """Its history is the view's, a view stays one of its base, and what was saved of it before is refused."""

    def program(library, log):
        arguments = METHODS[name]

        def fresh():
            x = library.arange(6.0, dtype=library.float64).reshape(2, 3).requires_grad_()
            return x, x * x

        x, b = fresh()
        log(error(lambda: getattr(x, name)(*arguments)))
        getattr(b, name)(*arguments)
        log(b.shape, b.stride(), b._version, flags(b))
        (b * b).sum().backward()
        log(x.grad)

        x, b = fresh()
        v = b.view(3, 2)
        getattr(v, name)(*arguments)
        log(v.shape, v.stride(), v._version, b._version, flags(v), b.grad_fn.name())
        v.mul_(2)
        (b * b).sum().backward()
        log(x.grad)

        x, b = fresh()
        v, saved = b.view(3, 2), b * b
        getattr(b, name)(*arguments)
        log(error(lambda: saved.sum().backward()), error(lambda: v * 2), v.grad_fn.name())

        x, b = fresh()
        v, kept = b.view(3, 2), []
        b.retain_grad()
        b.register_hook(kept.append)
        getattr(b, name)(*arguments)
        b.sum().backward()
        log(b.grad, kept)
        with library.no_grad():
            getattr(x, name)(*arguments)
        log(x.shape, x._version, flags(x))

    twin(program)


def test_detaching_a_base_leaves_its_views_their_history():
    def program(library, log):
        x = library.ones(4, 2, requires_grad=True)
        z = x * 2
        v = z[0]
        log(error(lambda: z[0].detach_()), error(lambda: z.detach_()), flags(z), flags(v), v.grad_fn.name())
        (v * 3).sum().backward()
        log(x.grad)
        z.add_(1)
        log(flags(v), v.grad_fn.name(), error(lambda: v.sum().backward()), x.grad)

    twin(program)


def test_a_view_asked_for_a_gradient_before_its_base():
    def program(library, log):
        base = library.ones(3)
        v = base[1:]
        v.requires_grad_()
        w = v[1:]
        log(flags(v), flags(w), error(lambda: v.mul_(2)), error(lambda: w.mul_(2)))
        (v * 3 + w).sum().backward()
        log(v.grad, base.grad is None)
        base.mul_(2)
        log(flags(v), flags(base), v.grad_fn is None)
        t = library.ones(3, requires_grad=True)
        base.mul_(t)
        log(flags(v), v.grad_fn.name())
        (v * 2).sum().backward()
        log(v.grad, t.grad)

    twin(program)


def test_views_that_a_function_returns():
    """Of its input or of what only it saw: neither is written over."""

    def program(library, log):
        class OfInput(library.autograd.Function):
            @staticmethod
            def forward(ctx, a):
                return a.view(-1)

            @staticmethod
            def backward(ctx, grad):
                return grad.view(2, 2)

        class OfItsOwn(library.autograd.Function):
            @staticmethod
            def forward(ctx, a):
                return (a * 2)[0]

            @staticmethod
            def backward(ctx, grad):
                return library.stack([grad, grad])

        x = library.ones(2, 2, requires_grad=True)
        for function in (OfInput, OfItsOwn):
            base = x * 1
            z = function.apply(base)
            log(flags(z), error(lambda: z.mul_(2)), error(lambda: base.mul_(2)), error(lambda: base * 2))
            z = function.apply(x * 1)
            z.sum().backward()
            log(x.grad)
            x.grad = None

    twin(program)
