"""`autograd.graph`: nodes and edges, hooks over several tensors, what is saved and how."""

import re

import pytest
import torch
from torch_twin import twin

import tensorsmith as ts


def error(function):
    """The class and the first words of what a call raises; None where it raises nothing."""
    try:
        function()
    except Exception as found:
        return f"{type(found).__name__}: " + re.sub(r"^\w+: ", "", str(found))[:60]
    return None


def test_nodes_and_their_hooks():
    def program(library, log):
        x = library.ones(2, requires_grad=True)
        y = x * 2
        z = (y + x).sum()
        log(z.grad_fn.name(), [node.name() for node, _ in z.grad_fn.next_functions])
        z.grad_fn.metadata["note"] = 1
        log(z.grad_fn.metadata, isinstance(z.grad_fn, library.autograd.graph.Node))
        log(z.grad_fn.next_functions[0][0].next_functions[0][0] is y.grad_fn)
        leaf = y.grad_fn.next_functions[0][0]
        log(leaf.variable is x, leaf.next_functions)
        order = []
        leaf.register_prehook(lambda grads: order.append(("before", grads)))
        leaf.register_hook(lambda inputs, outputs: order.append(("after", inputs, outputs)))
        z.backward()
        log(order)

    twin(program)


NAMES = {
    "x[0]": lambda x: x[0], "x[:1]": lambda x: x[:1], "x[None]": lambda x: x[None], "x[1:, 0]": lambda x: x[1:, 0],
    "split": lambda x: x.split(1)[0], "sizes": lambda x: x.split([1, 1])[0], "unbind": lambda x: x.unbind()[0],
    "t": lambda x: x.t(), "expand": lambda x: x[None].expand(3, 2, 2), "view": lambda x: x.view(-1), "add": lambda x: x + 1,
    "diagonal": lambda x: x.diagonal(), "as_strided": lambda x: x.as_strided((2,), (1,)), "unfold": lambda x: x.unfold(0, 1, 1),
    "exp": lambda x: x.exp(), "sum": lambda x: x.sum(), "clone": lambda x: x.clone(),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_nodes(name):
    twin(lambda library, log: log(NAMES[name](library.ones(2, 2, requires_grad=True)).grad_fn.name()))


def test_gradient_edges():
    def program(library, log):
        x = library.ones(2, requires_grad=True)
        y = x * 2
        edge = library.autograd.graph.get_gradient_edge(y)
        z = (y * y).sum()
        log(edge.node is y.grad_fn, edge.output_nr)
        log(library.autograd.grad(z, edge, retain_graph=True), library.autograd.grad(z, [x, edge], retain_graph=True))
        library.autograd.backward(edge, grad_tensors=library.ones(2), inputs=[x], retain_graph=True)
        log(x.grad, library.autograd.grad(z, library.autograd.graph.get_gradient_edge(x)))
        log(error(lambda: library.autograd.graph.get_gradient_edge(library.ones(2))))

    twin(program)


def test_counting_versions():
    def program(library, log):
        count = library.autograd.graph.increment_version
        y = library.ones(2, requires_grad=True).exp()
        count(y)
        log(y._version, error(lambda: y.sum().backward()))
        pair = library.ones(2), library.ones(2)
        count(pair)
        log([t._version for t in pair])

    twin(program)


def test_a_hook_for_several_tensors():
    def program(library, log):
        a, b, c = (library.ones(2, requires_grad=True) for _ in range(3))
        inner = b * 1
        register, seen = library.autograd.graph.register_multi_grad_hook, []
        handle = register((a, inner, c), lambda grads: seen.append([g is not None for g in grads]))
        (a.sum() + inner.sum()).backward(retain_graph=True)
        log(seen)
        c.sum().backward()
        (a * inner * c).sum().backward(retain_graph=True)
        log(seen)
        log(library.autograd.grad((a * inner).sum(), inner, retain_graph=True), seen)
        handle.remove()
        (a * c).sum().backward()
        log(seen)
        first = []
        with register((a, c), lambda grad: first.append(grad * 1), mode="any"):
            (a * 2 + c * 3).sum().backward()
        (a + c).sum().backward()
        log(len(first), error(lambda: register((a,), print, mode="some")))

    twin(program)


def test_several_tensors_of_which_one_failed_before():
    a, b = ts.ones(2, requires_grad=True), ts.ones(2, requires_grad=True)
    seen = []
    ts.autograd.graph.register_multi_grad_hook((a, b), lambda grads: seen.append(len(grads)))
    middle = b * 2
    middle.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (a.sum() + middle.sum()).backward()
    (a + b).sum().backward()
    assert seen == [2]
    with pytest.raises(RuntimeError, match="must require"):
        ts.autograd.graph.register_multi_grad_hook((a, ts.ones(2)), print)


def test_saved_tensor_hooks():
    def program(library, log):
        graph, x, order = library.autograd.graph, library.ones(3, requires_grad=True), []

        def pack(t):
            order.append("pack")
            return t.detach() * 1

        def unpack(t):
            order.append("unpack")
            return t

        with graph.saved_tensors_hooks(pack, unpack):
            y = (x * x).exp().sum()
        y.backward()
        log(order, x.grad)

        def refused():
            with graph.saved_tensors_hooks(pack, unpack):
                x * x

        with graph.disable_saved_tensors_hooks("not here"):
            log(error(refused), error(lambda: x * x))
        refused()
        with graph.saved_tensors_hooks(pack, unpack):
            log(error(lambda: graph.disable_saved_tensors_hooks("none may be active").__enter__()))
        log(order)

        with graph.saved_tensors_hooks(lambda t: order.append("outer") or t, lambda t: t):
            with graph.saved_tensors_hooks(lambda t: order.append("inner") or t, lambda t: t):
                x * x
            x * x
        log(order)

        with graph.saved_tensors_hooks(lambda t: t.add_(1), lambda t: t):
            log(error(lambda: (x * 1).exp()))
        with graph.saved_tensors_hooks(lambda t: t, lambda t: 1):
            y = (x * x).sum()
        log(error(y.backward))

    twin(program)


def test_saving_copies():
    x = ts.ones(3, requires_grad=True)
    with ts.autograd.graph.save_on_cpu():
        middle = x * 1
        y = (middle * middle).sum()
    middle.detach().mul_(100)  # PyTorch's keeps no copy of what is on the CPU: the gradient is wrong there
    y.backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_batches_of_gradients():
    def program(library, log):
        x = library.arange(3.0, dtype=library.float64).requires_grad_()
        z = library.ones(2, dtype=library.float64, requires_grad=True)
        grad = library.autograd.grad
        eye = library.eye(3, dtype=library.float64)
        log(grad(x * x, x, grad_outputs=eye, is_grads_batched=True))
        log(grad([x * x, x.sum()], [x], [eye, library.ones(3, dtype=library.float64)], is_grads_batched=True))
        log(grad(x * x, [x, z], grad_outputs=eye, is_grads_batched=True, allow_unused=True))
        (first,) = grad(x**3, x, grad_outputs=eye, is_grads_batched=True, create_graph=True)
        log(first.requires_grad, grad(first.sum(), x))
        y = x * x
        grad(y, x, grad_outputs=eye, is_grads_batched=True)
        log(error(lambda: grad(y, x, grad_outputs=eye, is_grads_batched=True)))

    twin(program)


def test_nothing_to_differentiate():
    def program(library, log):
        x = library.ones(2, requires_grad=True)
        log(error(lambda: library.autograd.grad([], [x])), error(lambda: library.autograd.grad((x * x).sum(), [])))
        log(error(lambda: library.autograd.backward((x * x).sum(), inputs=[])))

    twin(program)


SECOND_CALLS = {
    "add": lambda x: x + 1, "sub": lambda x: x - x, "clone": lambda x: x.clone(), "sum": lambda x: x.sum(),
    "view": lambda x: x[0],
    "cat": lambda x: x.new_ones(1) * 0 + x.sum(), "mul": lambda x: x * x, "exp": lambda x: x.exp(), "number": lambda x: x * 2,
    "cumsum": lambda x: x.cumsum(0), "flip": lambda x: x.flip(0), "softmax": lambda x: x.softmax(0), "mean": lambda x: x.mean(),
    "matmul": lambda x: x @ x, "floor": lambda x: x.floor(), "cast": lambda x: x.double(), "max": lambda x: x.max(),
}  # fmt: skip


@pytest.mark.parametrize("name", SECOND_CALLS)
def test_a_second_backward_is_refused_only_where_something_was_saved(name):
    def program(library, log):
        x = library.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        y = SECOND_CALLS[name](x)
        y.backward(library.ones_like(y))
        log(error(lambda: y.backward(library.ones_like(y))))

    twin(program)


def test_inference_mode_is_a_mode_of_the_thread():
    def program(library, log):
        x = library.ones(2, requires_grad=True)
        with library.inference_mode():
            log(library.is_inference_mode_enabled(), library.is_grad_enabled(), (x * 2).requires_grad)
            with library.inference_mode(False):
                log(library.is_inference_mode_enabled(), library.is_grad_enabled())
            v = x[:1]
        log(library.is_inference_mode_enabled(), v.requires_grad, error(lambda: v.add_(1)))

        @library.inference_mode()
        def inside():
            return library.is_inference_mode_enabled()

        log(inside(), library.is_inference_mode_enabled())

    twin(program)


def test_there_is_nothing_of_pytorch_here_that_lies():
    """Every public name of ours under autograd.graph is PyTorch's."""
    for name in ts.autograd.graph.__all__:
        assert name == "RemovableHandle" or hasattr(torch.autograd.graph, name), name
