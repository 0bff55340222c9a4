"""What nodes show of what they saved, and older names of autograd."""

import pytest
from torch_twin import outcome, twin

import tensorsmith as ts

CALLS = {
    "product": lambda L, x, w: x * w,
    "a number": lambda L, x, w: x / 2 * w,
    "exp": lambda L, x, w: x.exp(),
    "softmax": lambda L, x, w: x.softmax(0),
    "power": lambda L, x, w: x**w,
    "mm": lambda L, x, w: x.mm(w),
    "where": lambda L, x, w: L.where(x > 1, x, w),
    "lerp": lambda L, x, w: L.lerp(x, w, w),
    "sum": lambda L, x, w: x.sum(),
}
NAMES = ("self", "other", "result", "exponent", "mat2", "condition", "weight", "end")


@pytest.mark.parametrize("name", CALLS)
def test_saved_values_by_pytorchs_names(name):
    def program(L, log):
        x = L.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        w = L.tensor([[2.0, 0.5], [1.0, 1.5]], requires_grad=True)
        node = CALLS[name](L, x, w).grad_fn
        saved = [each for each in NAMES if hasattr(node, f"_saved_{each}")]
        for each in saved:
            log(each, getattr(node, f"_saved_{each}"), f"_saved_{each}" in dir(node))
        log(saved)

    twin(program)


def test_saved_values_are_the_tensors_and_go_with_the_graph():
    def program(L, log):
        x = L.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        log(y.grad_fn._saved_self is x)
        z = y.exp()
        log(z.grad_fn._saved_result.grad_fn is z.grad_fn)
        z.sum().backward()
        log(type(outcome(lambda: z.grad_fn._saved_result)).__name__)
        z = x.exp()
        with L.no_grad():
            z.add_(1)
        log(type(outcome(lambda: z.grad_fn._saved_result)).__name__)
        log(type(outcome(lambda: z.grad_fn._saved_nothing)).__name__)

    twin(program)


def test_the_error_names_what_is_there():
    node = (ts.ones(2, requires_grad=True) * ts.ones(2)).grad_fn
    with pytest.raises(AttributeError, match=r"MulBackward0.*_saved_nothing.*it saved _saved_other"):
        getattr(node, "_saved_nothing")  # noqa: B009


def test_variable():
    def program(L, log):
        Variable = L.autograd.Variable
        x = L.tensor([1.0, 2.0], requires_grad=True) * 2
        v = Variable(x)
        log(v, v.requires_grad, v.is_leaf, v._is_view(), isinstance(v, Variable), isinstance(3, Variable))
        v = Variable(x, requires_grad=True)
        (v * v).sum().backward()
        log(v.grad)
        v.data.add_(1)
        log(x)
        log(type(outcome(lambda: Variable(3))).__name__)
        log(type(outcome(lambda: Variable(L.ones(2, dtype=L.int64), requires_grad=True))).__name__)
        with pytest.warns(UserWarning, match="volatile was removed"):
            Variable(x, volatile=True)

    twin(program)


def test_multithreading_is_accepted():
    def program(L, log):
        enabled = L.autograd.is_multithreading_enabled
        log(enabled())
        with L.autograd.set_multithreading_enabled(False):
            log(enabled())
            x = L.ones(2, requires_grad=True)
            x.sum().backward()
            log(x.grad)
        log(enabled())

    twin(program)


def test_inference_tensors_are_ordinary():
    with ts.inference_mode():
        x = ts.ones(2)
        view = x[:1]
    assert not x.is_inference() and not ts.is_inference(view)
    w = ts.ones(2, requires_grad=True)
    (w * x).sum().backward()
    x.add_(1)
    assert x.tolist() == [2.0, 2.0] and w.grad.tolist() == [1.0, 1.0]


def test_a_graph_that_leads_to_nobody_may_be_walked_again():
    """A view made under no_grad says that it requires gradients, and has nobody to give them to."""

    def program(L, log):
        x = L.ones(2, requires_grad=True)
        with L.no_grad():
            view = x.expand(3, 2)
        y = view - view * view
        y.sum().backward()
        y.sum().backward()
        log(x.grad, view.grad)

    twin(program)


@pytest.mark.parametrize("separate", [False, True])
def test_keywords_of_a_custom_function(separate):
    def program(L, log):
        class Scale(L.autograd.Function):
            @staticmethod
            def backward(ctx, g):
                log(ctx.needs_input_grad)
                return g * 2, None

            if separate:

                @staticmethod
                def forward(x, k):
                    return x * k

                @staticmethod
                def setup_context(ctx, inputs, output):
                    log(len(inputs))
            else:

                @staticmethod
                def forward(ctx, x, k):
                    return x * k

        x = L.ones(2, requires_grad=True)
        for args, keywords in (((x, 3), {}), ((x,), {"k": 4}), ((), {"x": x, "k": 5}), ((), {"k": 5, "x": x})):
            y = Scale.apply(*args, **keywords)
            y.sum().backward()
            log(y, x.grad)
        for args, keywords in (((x,), {"nothing": 1}), ((), {"k": 1}), ((x, 1), {"k": 1})):
            log(type(outcome(lambda: Scale.apply(*args, **keywords))).__name__)  # noqa: B023

    twin(program)


