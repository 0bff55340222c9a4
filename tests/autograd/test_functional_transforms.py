"""Functional transforms against PyTorch."""

import numpy as np
import pytest
from torch_twin import outcome, twin

import tensorsmith as ts


def inputs(t):
    return t.tensor([0.5, -1.0, 2.0]), t.tensor([1.0, 3.0, -0.5])


def test_jacobian():
    def program(t, log):
        x, y = inputs(t)
        jacobian = t.autograd.functional.jacobian
        log(jacobian(lambda a: a.exp() * a, x))
        log(jacobian(lambda a, b: a * b, (x, y)))
        log(jacobian(lambda a, b: (a * b, (a + b).sum()), (x, y)))
        log(jacobian(lambda a, b: a * 2, (x, y)))

    twin(program)


def test_hessian():
    def program(t, log):
        x, y = inputs(t)
        hessian = t.autograd.functional.hessian
        log(hessian(lambda a: (a * a * a).sum(), x))
        log(hessian(lambda a, b: (a * b * a.exp()).sum(), (x, y)))

    twin(program)


def test_products():
    def program(t, log):
        x, y = inputs(t)
        f = t.autograd.functional
        v = t.tensor([1.0, 2.0, -1.0])
        log(f.vjp(lambda a: a.exp(), x, v))
        log(f.vjp(lambda a, b: (a * b).sum(), (x, y)))
        log(f.jvp(lambda a: a.exp() * a, x, v))
        log(f.jvp(lambda a, b: (a * b, a), (x, y), (v, v)))
        log(f.vhp(lambda a, b: (a * a * b).sum(), (x, y), (v, v)))
        log(f.hvp(lambda a, b: (a * a * b).sum(), (x, y), (v, v)))
        log(f.hvp(lambda a: (a * 3).sum(), x, v))

    twin(program)


def test_create_graph():
    def program(t, log):
        x, _ = inputs(t)
        x.requires_grad_()
        j = t.autograd.functional.jacobian(lambda a: a * a * a, x, create_graph=True)
        log(j.requires_grad)
        j.sum().backward()
        log(x.grad)

    twin(program)


def test_jacobian_in_forward_mode_and_batched():
    def program(t, log):
        x, y = inputs(t)
        jacobian = t.autograd.functional.jacobian
        for keywords in ({"vectorize": True}, {"vectorize": True, "strategy": "forward-mode"}):
            log(jacobian(lambda a: a.exp() * a, x, **keywords))
            log(jacobian(lambda a, b: (a * b, (a + b).sum(), t.ones(2)), (x, y), **keywords))
            log(jacobian(lambda a: (a[:2],), x, **keywords))
            log(jacobian(lambda a, b: a * 2, (x, y), **keywords))
            log(jacobian(lambda a: t.outer(a, a).softmax(1), x, **keywords))
        x.requires_grad_()
        found = jacobian(lambda a: a**3, x, create_graph=True, vectorize=True)
        log(found, *t.autograd.grad(found.sum(), x))

    twin(program)


def test_hessian_in_forward_mode_and_batched():
    def program(t, log):
        x, y = inputs(t)
        hessian = t.autograd.functional.hessian
        for strategy in ("reverse-mode", "forward-mode"):
            keywords = {"vectorize": True, "outer_jacobian_strategy": strategy}
            log(hessian(lambda a: (a**3).sum(), x, **keywords))
            log(hessian(lambda a, b: (a**3 * b.exp()).sum(), (x, y), **keywords))
            log(hessian(lambda a: (a * 3).sum(), x, **keywords))

    twin(program)


STRICT = {
    "jacobian, an input is not used": lambda f, x, y: f.jacobian(lambda a, b: a * 2, (x, y), strict=True),
    "jacobian, an output is detached": lambda f, x, y: f.jacobian(lambda a: a.detach(), x, strict=True),
    "jacobian, no graph": lambda f, x, y: f.jacobian(lambda a: a * 2, x, strict=True, create_graph=True),
    "vjp, an input is not used": lambda f, x, y: f.vjp(lambda a, b: a * 2, (x, y), x, strict=True),
    "vjp, no graph": lambda f, x, y: f.vjp(lambda a: a * 2, x, y, strict=True, create_graph=True),
    "jvp, an input is not used": lambda f, x, y: f.jvp(lambda a, b: a * 2, (x, y), (x, y), strict=True),
    "jvp, an output is detached": lambda f, x, y: f.jvp(lambda a: (a * 2, a.detach()), x, y, strict=True),
    "vhp, the gradient is constant": lambda f, x, y: f.vhp(lambda a, b: (a * 2 + b).sum(), (x, y), (x, y), strict=True),
    "vhp, one input is not used": lambda f, x, y: f.vhp(lambda a, b: (a * a).sum(), (x, y), (x, y), strict=True),
    "hvp, the gradient is constant": lambda f, x, y: f.hvp(lambda a: (a * 2).sum(), x, y, strict=True),
    "hvp": lambda f, x, y: f.hvp(lambda a, b: (a**3 * b**2).sum(), (x, y), (x, y), strict=True),
    "hvp of a sum": lambda f, x, y: f.hvp(lambda a, b: (a**3 + b**2).sum(), (x, y), (x, y), strict=True),
    "hessian, the gradient is constant": lambda f, x, y: f.hessian(lambda a: (a * 3).sum(), x, strict=True),
    "hessian": lambda f, x, y: f.hessian(lambda a: (a**4).sum(), x, strict=True),
}


@pytest.mark.parametrize("name", STRICT)
def test_strict_mode(name):
    """The same results or the same words."""
    twin(lambda t, log: log(outcome(lambda: STRICT[name](t.autograd.functional, *inputs(t)))))


REFUSED = {
    "forward mode one by one": lambda f, x, y: f.jacobian(lambda a: a * a, x, strategy="forward-mode"),
    "forward mode with a graph": lambda f, x, y: f.jacobian(
        lambda a: a * a, x, strategy="forward-mode", vectorize=True, create_graph=True
    ),
    "strict forward mode": lambda f, x, y: f.jacobian(
        lambda a: a * a, x, strategy="forward-mode", vectorize=True, strict=True
    ),
    "strict and batched": lambda f, x, y: f.jacobian(lambda a: a * a, x, vectorize=True, strict=True),
    "another strategy": lambda f, x, y: f.jacobian(lambda a: a * a, x, strategy="sideways"),
    "another strategy of a Hessian": lambda f, x, y: f.hessian(lambda a: a.sum(), x, outer_jacobian_strategy="sideways"),
    "a list": lambda f, x, y: f.jacobian(lambda a, b: a * b, [x, y]),
    "a number": lambda f, x, y: f.vjp(lambda a: 2.0, x),
    "no vector": lambda f, x, y: f.vjp(lambda a: a * 2, x),
    "no vector for a jvp": lambda f, x, y: f.jvp(lambda a: a * 2, x),
    "too few vectors": lambda f, x, y: f.jvp(lambda a, b: a * 2, (x, y), x),
    "too many vectors": lambda f, x, y: f.jvp(lambda a: a * 2, x, (x, y)),
    "a vector of another size": lambda f, x, y: f.jvp(lambda a: a * 2, x, y[:2]),
    "a vector of another size among several": lambda f, x, y: f.jvp(lambda a, b: a * b, (x, y), (x, y[:2])),
    "a Hessian of a vector": lambda f, x, y: f.hessian(lambda a: a**3, x),
    "a Hessian of a tuple": lambda f, x, y: f.hessian(lambda a: (a.sum(),), x),
    "hvp of a vector": lambda f, x, y: f.hvp(lambda a: a**3, x, y),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_pytorch_does(name):
    def program(t, log):
        error = outcome(lambda: REFUSED[name](t.autograd.functional, *inputs(t)))
        assert isinstance(error, Exception)
        log(type(error).__name__, str(error).removeprefix("torch.autograd.functional.")[:30].replace("torch", ""))

    twin(program)


@pytest.mark.parametrize("vectorize", [False, True])
def test_on_a_device(vectorize):
    import emulator

    emulator.activate()
    functional = ts.autograd.functional

    def f(x, y):
        return (x * y).sin(), x.sum() * 2, y.detach()

    def found(device):
        x, y = (ts.tensor(values, dtype=ts.float64, device=device) for values in ([0.5, -1.0], [2.0, 0.25]))
        first = functional.jacobian(lambda x, y: f(x, y)[:2], (x, y), vectorize=vectorize)
        second = functional.hessian(lambda x, y: f(x, y)[0].sum(), (x, y), vectorize=vectorize)
        product = functional.jvp(lambda x, y: f(x, y)[0], (x, y), (y, x))
        results = [*(t for row in (*first, *second) for t in row), *product]
        assert all(t.device.type == device for t in results)
        return [t.tolist() for t in results]

    for a, b in zip(found("cuda"), found("cpu")):
        np.testing.assert_allclose(a, b, rtol=1e-12)
