"""`gradcheck` finds wrong gradients, passes right ones, and names unusable inputs."""

import warnings

import pytest
import torch
from torch_twin import outcome, twin

import tensorsmith as ts
from tensorsmith.autograd import GradcheckError, gradcheck, gradgradcheck


def double(*values):
    return ts.tensor(values, dtype=ts.float64, requires_grad=True)


class WrongFirst(ts.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class WrongSecond(ts.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * 2 * ctx.saved_tensors[0].detach()


def test_right_gradients():
    a, b = double(0.5, 1.5), double(2.0, -1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradcheck(lambda x, y: ((x * y).exp(), x + 3.0), (a, b))
        assert gradcheck(lambda x, n: x * n, (a, 2.0))
        assert gradgradcheck(lambda x, y: ((x * y).exp(), x * x * x), (a, b))
        assert gradgradcheck(lambda x: x.exp(), a, gen_non_contig_grad_outputs=True)
    assert a.tolist() == [0.5, 1.5] and a._version == 0 and a.grad is None


def test_wrong_gradients():
    x = double(1.0, 2.0)
    with pytest.raises(GradcheckError, match="Jacobian mismatch for output 0 with respect to input 0"):
        gradcheck(WrongFirst.apply, x)
    assert gradcheck(WrongFirst.apply, x, raise_exception=False) is False
    assert gradcheck(WrongSecond.apply, x)
    with pytest.raises(GradcheckError):
        gradgradcheck(WrongSecond.apply, x)
    with pytest.raises(GradcheckError, match="expected to be zero"):
        gradcheck(lambda x: x.detach() * 2, x)
    assert gradcheck(lambda x: ts.tensor([1.0]), x)


def test_input_with_strides():
    x = ts.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=ts.float64).t().requires_grad_()
    assert gradcheck(lambda x: x * x, x)


def test_nondeterministic_backward():
    class Drifts(ts.autograd.Function):
        runs = 0

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            Drifts.runs += 1
            return g * (2 + 1e-9 * Drifts.runs)

    with pytest.raises(GradcheckError, match="not reentrant"):
        gradcheck(Drifts.apply, double(1.0))
    assert gradcheck(Drifts.apply, double(1.0), nondet_tol=1e-6)


def test_backward_that_fails_on_missing_gradients():
    class Demands(ts.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    with pytest.raises(GradcheckError, match="undefined output grads"):
        gradcheck(Demands.apply, double(1.0))
    assert gradcheck(Demands.apply, double(1.0), check_undefined_grad=False)


def test_single_precision_warns_naming_the_input():
    x, y = double(1.0), ts.tensor([1.0], requires_grad=True)
    with pytest.warns(UserWarning, match="Input #1 requires gradient and is not a double precision floating point"):
        gradcheck(lambda x, y: x + y, (x, y), eps=1e-2, atol=1e-2)


def test_unusable_inputs():
    def program(t, log):
        check = t.autograd.gradcheck
        log(outcome(lambda: check(lambda a: a * 2, (t.tensor([1.0], dtype=t.float64),))))
        spread = t.tensor([1.0], dtype=t.float64).expand(3).requires_grad_()
        log(outcome(lambda: check(lambda a: a * 2, (spread,))))

    twin(program)


class WrongTangent(ts.autograd.Function):
    """x**2 whose derivatives may be given wrongly."""

    backward_factor, forward_factor = 2, 3

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return WrongTangent.backward_factor * ctx.saved_tensors[0] * grad

    @staticmethod
    def jvp(ctx, tangent):
        return WrongTangent.forward_factor * ctx.saved_tensors[0] * tangent


def test_forward_mode_is_checked():
    assert gradcheck(WrongTangent.apply, double(1.0, 2.0))
    with pytest.raises(GradcheckError, match="computed with forward mode mismatch for output 0"):
        gradcheck(WrongTangent.apply, double(1.0, 2.0), check_forward_ad=True)
    assert not gradcheck(
        WrongTangent.apply, double(1.0), check_forward_ad=True, check_backward_ad=False, raise_exception=False
    )


def test_all_modes_of_a_right_function():
    def function(x, w):
        return (w @ x).tanh(), (w * x).cumsum(0), x.argmax()

    w = ts.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.5]], dtype=ts.float64, requires_grad=True)
    given = (double(0.3, 0.7, 1.1), w)
    assert gradcheck(function, given, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(function, given, check_fwd_over_rev=True, check_batched_grad=True)
    assert gradgradcheck(function, given, check_fwd_over_rev=True, check_rev_over_rev=False, check_undefined_grad=False)


def test_forward_mode_of_complex_functions():
    z = ts.tensor([0.5 + 1.0j, -1.0 + 0.3j], dtype=ts.complex128, requires_grad=True)
    functions = (lambda z: z * z.exp(), lambda z: z.abs(), lambda z: z.conj() * z.real, lambda z: ts.view_as_real(z).cumsum(0))
    for function in functions:
        assert gradcheck(function, (z,), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
        assert gradgradcheck(function, (z,), check_fwd_over_rev=True)
    assert gradcheck(lambda x: x + 1j * x * x, double(1.0, 2.0), check_forward_ad=True)


class NotForBatches(ts.autograd.Function):
    """Its backward asks for values, which vmap does not have."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 if grad.sum().item() < 1e9 else grad


def test_batched_gradients_are_checked():
    assert gradcheck(NotForBatches.apply, double(1.0, 2.0))
    with pytest.raises(GradcheckError, match="While computing batched gradients"):
        gradcheck(NotForBatches.apply, double(1.0, 2.0), check_batched_grad=True)


def test_checks_of_nothing_are_refused():
    def program(t, log):
        x = t.tensor([1.0], dtype=t.float64, requires_grad=True)
        for keywords in (
            {"check_backward_ad": False},
            {"check_backward_ad": False, "check_forward_ad": True, "check_batched_grad": True},
            {"check_batched_forward_grad": True},
        ):
            log(outcome(lambda keywords=keywords: t.autograd.gradcheck(lambda a: a * 2, (x,), **keywords)))
        second = t.autograd.gradgradcheck
        log(outcome(lambda: second(lambda a: a * 2, (x,), check_rev_over_rev=False, check_undefined_grad=False)))

    twin(program)


def test_agrees_with_pytorch_on_a_kink():
    values = [0.0, 1.0]
    ours = outcome(lambda: gradcheck(lambda x: x.abs(), double(*values)))
    theirs = outcome(
        lambda: torch.autograd.gradcheck(torch.abs, torch.tensor(values, dtype=torch.float64, requires_grad=True))
    )
    assert ours is True and theirs is True


def test_single_precision_parameters_are_named():
    class Scale:
        def __init__(self, dtype):
            self.weight = ts.tensor([2.0], dtype=dtype, requires_grad=True)

        def named_parameters(self):
            return [("weight", self.weight)]

        def __call__(self, x):
            return x * self.weight.double()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradcheck(Scale(ts.float64), double(1.0))
    with pytest.warns(UserWarning, match="Parameter 'weight' of Scale is float32"):
        gradcheck(Scale(ts.float32), double(1.0))
    module = Scale(ts.float64)
    assert gradcheck(lambda x, weight: x * weight, (double(1.0), module.weight))


@pytest.fixture(scope="module")
def emulated():
    import emulator

    emulator.activate()


@pytest.mark.usefixtures("emulated")
class TestOnADevice:
    @pytest.mark.parametrize("device", ["cuda", "cuda:1"])
    def test_right_gradients_of_every_kind(self, device):
        x = ts.randn(2, 3, dtype=ts.float64, device=device, requires_grad=True)
        y = ts.randn(3, 2, dtype=ts.float64, device=device).t().requires_grad_()
        before = x.tolist(), y.tolist()

        def f(x, y):
            return (x * y).sin(), x.sum(0)

        checks = {"check_batched_grad": True, "check_grad_dtypes": True}
        assert gradcheck(f, (x, y), check_forward_ad=True, check_batched_forward_grad=True, **checks)
        assert gradgradcheck(f, (x, y), gen_non_contig_grad_outputs=True, check_fwd_over_rev=True, **checks)
        assert (x.tolist(), y.tolist()) == before
        z = ts.randn(2, dtype=ts.complex128, device=device, requires_grad=True)
        assert gradcheck(lambda z: z * z.conj(), z) and gradgradcheck(lambda z: (z * z.conj()).real, z)

    @pytest.mark.parametrize("f, check", [(WrongFirst.apply, gradcheck), (WrongSecond.apply, gradgradcheck)])
    def test_wrong_gradients(self, f, check):
        x = ts.tensor([0.5, 1.5], dtype=ts.float64, device="cuda", requires_grad=True)
        with pytest.raises(GradcheckError):
            check(f, (x,))
        assert check(f, (x,), raise_exception=False) is False
