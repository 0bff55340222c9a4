"""Functional transforms against PyTorch."""

from torch_twin import twin


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
