"""`backward` and `grad` against PyTorch: values, accumulation, restriction to inputs, messages."""

import pytest
from torch_twin import outcome, twin


def leaves(t):
    x = t.tensor([1.0, 2.0, -0.5], requires_grad=True)
    y = t.tensor([3.0, 0.5, 2.0], requires_grad=True)
    return x, y


def test_values_and_accumulation():
    def program(t, log):
        x, y = leaves(t)
        for _ in range(3):
            ((x * y).exp() + x).sum().backward()
            log(x.grad, y.grad)
        log(x.is_leaf, (x * y).is_leaf, x.grad.requires_grad, x.grad_fn)

    twin(program)


def test_one_tensor_used_many_times():
    def program(t, log):
        x, _ = leaves(t)
        a = x * x
        b = a + x
        c = a * b * x + a
        (c * c + b).sum().backward()
        log(x.grad)

    twin(program)


def test_outputs_with_gradients():
    def program(t, log):
        x, y = leaves(t)
        a, b = x * y, x + y
        t.autograd.backward([a, b.sum()], [t.tensor([1.0, 2.0, 3.0]), None])
        log(x.grad, y.grad)
        t.autograd.backward((x * y).sum(), t.tensor(2.0))
        log(x.grad, y.grad)
        (x * 2).backward(t.tensor([1.0, -1.0, 0.5]))
        log(x.grad)

    twin(program)


def test_leaf_as_output():
    def program(t, log):
        x = t.tensor(2.0, requires_grad=True)
        x.backward()
        log(x.grad)
        log(t.autograd.grad(x, x))

    twin(program)


def test_grad_of_leaves_and_others():
    def program(t, log):
        x, y = leaves(t)
        a = x * y
        b = a.exp()
        loss = (b * x).sum()
        log(t.autograd.grad(loss, [x, a, b, y], retain_graph=True))
        log(t.autograd.grad(loss, a, retain_graph=True))
        log(t.autograd.grad([loss, a], [y, x], [t.tensor(3.0), t.tensor([1.0, 0.0, 2.0])], retain_graph=True))
        log(t.autograd.grad(loss, [x, x], retain_graph=True))
        log(t.autograd.grad(loss, loss))
        log(x.grad, y.grad)

    twin(program)


def test_only_what_leads_to_the_inputs_runs():
    def program(t, log):
        x, y = leaves(t)
        a, b = x.exp(), y.exp()
        a.register_hook(lambda g: log("a"))
        b.register_hook(lambda g: log("b"))
        log(t.autograd.grad((a * b).sum(), x, retain_graph=True))
        (a * 2 + b).sum().backward(inputs=[x])
        log(x.grad, y.grad)

    twin(program)


def test_backward_into_inputs_that_are_no_leaves():
    def program(t, log):
        x, y = leaves(t)
        a = x * y
        (a * a).sum().backward(inputs=[a, y])
        log(a.grad, y.grad, x.grad)
        (x * 2).sum().backward(inputs=x)
        log(x.grad)

    twin(program)


def test_unused_inputs():
    def program(t, log):
        x, y = leaves(t)
        log(outcome(lambda: t.autograd.grad((x * 2).sum(), [x, y])))
        log(t.autograd.grad((x * 2).sum(), [x, y], allow_unused=True))
        log(t.autograd.grad((x * 2).sum(), [x, y], materialize_grads=True))
        log(outcome(lambda: t.autograd.grad((x * 2).sum(), [y], allow_unused=False, materialize_grads=True)))

    twin(program)


def test_messages():
    def program(t, log):
        x, _ = leaves(t)
        constant = t.tensor([1.0])
        log(outcome(lambda: (x * 2).backward()))
        log(outcome(lambda: constant.backward()))
        log(outcome(lambda: t.autograd.backward([(x * 2).sum(), constant])))
        log(outcome(lambda: t.autograd.backward([x * 2], [t.ones(2)])))
        log(outcome(lambda: (x * 2).sum().backward(inputs=[])))
        log(outcome(lambda: t.autograd.grad((x * 2).sum(), [])))
        log(outcome(lambda: t.autograd.grad((x * 2).sum(), [constant])))
        log(outcome(lambda: t.autograd.grad(x * 2, [x], grad_outputs=[3])))

    twin(program)


def test_second_backward_through_a_freed_graph():
    def program(t, log):
        x, _ = leaves(t)
        loss = (x * x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        log(x.grad)
        error = outcome(loss.backward)
        log(type(error).__name__, str(error)[:60])

    twin(program)


def test_saved_tensor_written_in_place():
    def program(t, log):
        x, y = leaves(t)
        a = x * 2
        loss = (a * y).sum()
        a.mul_(3)
        error = outcome(loss.backward)
        log(type(error).__name__, str(error).split(", which")[0])

    twin(program)


def test_double_backward():
    def program(t, log):
        x, y = leaves(t)
        (g,) = t.autograd.grad((x.exp() * y * x).sum(), x, create_graph=True)
        log(g, g.requires_grad)
        (h,) = t.autograd.grad((g * g).sum(), x, create_graph=True)
        log(h)
        h.sum().backward()
        log(x.grad, y.grad)

    twin(program)


def test_create_graph_in_backward():
    def program(t, log):
        x, _ = leaves(t)
        (x * x * x).sum().backward(create_graph=True)
        log(x.grad, x.grad.requires_grad)
        kept = x.grad
        kept.sum().backward()
        log(x.grad, x.grad is kept)

    twin(program)


def test_gradient_is_not_shared_between_leaves():
    def program(t, log):
        x, y = leaves(t)
        (x + y).backward(t.tensor([1.0, 2.0, 3.0]))
        x.grad.mul_(10)
        log(x.grad, y.grad)

    twin(program)


def test_given_gradient_is_not_taken_over():
    def program(t, log):
        x, _ = leaves(t)
        given = t.tensor([1.0, 2.0, 3.0])
        x.backward(given)
        x.grad.mul_(2)
        log(given, x.grad)

    twin(program)


def test_gradient_has_the_strides_of_the_leaf():
    def program(t, log):
        x = t.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).t().requires_grad_()
        x.sum().backward()
        log(x.grad, x.grad.stride(), x.stride())
        y = t.tensor([1.0, 2.0]).requires_grad_()
        y.sum().backward()
        log(y.grad, y.grad.stride())

    twin(program)


def test_second_gradient_is_added_in_place():
    def program(t, log):
        x, _ = leaves(t)
        (x * 2).sum().backward()
        kept = x.grad
        (x * 3).sum().backward()
        log(kept, x.grad is kept)

    twin(program)


def test_no_grad():
    def program(t, log):
        x, _ = leaves(t)
        with t.no_grad():
            log((x * 2).requires_grad)
            with t.enable_grad():
                log((x * 2).requires_grad)
        log((x * 2).requires_grad)
        log(outcome(lambda: (x.detach() * 2).sum().backward()))

    twin(program)


def test_retained_gradients():
    def program(t, log):
        x, _ = leaves(t)
        a = x * 2
        log(a.retains_grad)
        a.retain_grad()
        a.retain_grad()
        x.retain_grad()
        log(a.retains_grad, x.retains_grad)
        loss = (a * a).sum()
        loss.backward(retain_graph=True)
        log(a.grad)
        loss.backward()
        log(a.grad, x.grad)
        log(outcome(lambda: t.tensor([1.0]).retain_grad()))

    twin(program)


def test_requires_grad_and_grad_setters():
    def program(t, log):
        x, _ = leaves(t)
        log(outcome(lambda: t.tensor([1]).requires_grad_()))
        log(outcome(lambda: (x * 2).requires_grad_(False)))
        log(outcome(lambda: setattr(x, "grad", 3)))
        log(outcome(lambda: setattr(x, "grad", x)))
        log(outcome(lambda: setattr(x, "grad", t.ones(2))))
        x.grad = t.ones(3)
        (x * 2).sum().backward()
        log(x.grad)
        x.grad = None
        log(x.grad)
        x.requires_grad = False
        log((x * 2).requires_grad)
        a = t.tensor([1.0], requires_grad=True) * 2
        a.detach_()
        log(a.is_leaf, a.requires_grad)

    twin(program)


def test_names_of_the_graph():
    def program(t, log):
        x, _ = leaves(t)
        node = (x * 2.0).grad_fn
        following = node.next_functions
        log(node.name(), type(following[0][0]).__name__, following[0][1])
        node.metadata["mine"] = 3
        log(node.metadata)
        log(following[0][0].variable is x)

    twin(program)


def test_gradient_edges():
    def program(t, log):
        x, _ = leaves(t)
        a = x * 2
        loss = (a * a).sum()
        edge = t.autograd.graph.get_gradient_edge(a)
        log(edge.output_nr, t.autograd.grad(loss, edge, retain_graph=True))
        log(t.autograd.grad(t.autograd.graph.get_gradient_edge(loss), x, t.tensor(1.0)))

    twin(program)


@pytest.mark.parametrize("keyword", [{"only_inputs": False}])
def test_what_is_missing_says_so(keyword):
    import tensorsmith as ts

    x = ts.tensor([1.0], requires_grad=True)
    with pytest.raises(NotImplementedError, match=next(iter(keyword))):
        ts.autograd.grad((x * 2).sum(), x, **keyword)
