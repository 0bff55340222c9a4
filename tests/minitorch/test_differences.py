"""MiniTorch's habits that are kept, its faults that are not copied, and what mistakes are told."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from tensorsmith import minitorch as mt
from tensorsmith.minitorch import operators

FAST = mt.TensorBackend(mt.FastOps)


# ------------------------------------------------------------------------------------------------------ habits, kept


def test_log_adds_a_millionth():
    assert operators.log(0.0) == math.log(1e-6)
    assert mt.Scalar(0.0).log().data == math.log(1e-6)
    assert mt.tensor([0.0]).log()[0] == mt.tensor([0.0], FAST).log()[0] == math.log(1e-6)
    assert operators.log_back(0.0, 1.0) == 1e6


def test_is_close_is_absolute():
    assert operators.is_close(1e9, 1e9 + 0.009) == 1.0 and operators.is_close(1e-9, 0.011) == 0.0
    assert operators.is_close(float("nan"), float("nan")) == 0.0


def test_comparisons_are_numbers():
    assert (mt.Scalar(1.0) < 2.0).data == 1.0 and operators.eq(1.0, 2.0) == 0.0
    assert (mt.tensor([1.0, 3.0]) > 2.0).to_numpy().tolist() == [0.0, 1.0]


def test_negative_indices_are_outside():
    with pytest.raises(mt.IndexingError, match=r"index \(-1,\): negative"):
        mt.tensor([1.0])[-1]
    with pytest.raises(mt.IndexingError, match=r"index \(50, 2\) is out of range for shape \(2, 3\)"):
        mt.zeros((2, 3))[50, 2]


def test_reductions_keep_their_dimension_and_everything_is_of_shape_1():
    t = mt.zeros((2, 3))
    assert t.sum(1).shape == (2, 1) and t.sum().shape == (1,) and mt.max(t, 0).shape == (1, 3)


def test_argmax_marks_every_largest_and_max_shares_the_gradient_out_whole():
    t = mt.tensor([[1.0, 2.0, 2.0]])
    assert mt.argmax(t, 1).to_numpy().tolist() == [[0.0, 1.0, 1.0]]
    t.requires_grad_(True)
    mt.max(t, 1).view(1).backward()
    assert t.grad.to_numpy().tolist() == [[0.0, 1.0, 1.0]]


def test_dropout_scales_nothing():
    t = mt.tensor([[1.0] * 100])
    kept = mt.dropout(t, 0.5).to_numpy()
    assert set(kept.reshape(-1)) == {0.0, 1.0}
    assert mt.dropout(t, 1.0, ignore=True) is t


def test_contiguous_and_to_numpy_copy():
    t = mt.tensor([1.0, 2.0])
    copy = t.contiguous()
    copy[0] = 5.0
    t.to_numpy()[0] = 7.0
    assert t[0] == 1.0


def test_storage_is_shared_with_the_array_it_was_made_of_and_with_views():
    array = np.array([1.0, 2.0, 3.0, 4.0])
    for backend in (mt.SimpleBackend, FAST):
        t = mt.Tensor.make(array, (2, 2), backend=backend)
        t.permute(1, 0)[0, 1] = 30.0
        assert array[2] == 30.0 and (t + 0.0)[1, 0] == 30.0
        t._tensor._storage[:] = [1.0, 2.0, 3.0, 4.0]
        assert (t + 0.0).to_numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_step_clears_gradients():
    p = mt.Parameter(mt.Scalar(1.0))
    p.value.backward(2.0)
    mt.SGD([p], 0.5).step()
    assert p.value.data == 0.0 and p.value.derivative is None


# ------------------------------------------------------------------------------------------------ faults, not copied


def test_a_view_of_a_permuted_gradient_takes_its_elements_not_its_storage():
    for backend in (mt.SimpleBackend, FAST):
        a = mt.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], backend, requires_grad=True)
        weight = mt.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], backend)
        (a.view(2, 3).permute(1, 0) * weight).sum().backward()
        assert a.grad.to_numpy().tolist() == [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]


def test_not_equal_is_the_opposite_of_equal():
    assert (mt.Scalar(1.0) != 2.0).data == 1.0 and (mt.Scalar(1.0) != 1.0).data == 0.0
    assert (mt.tensor([1.0, 2.0]) != mt.tensor([1.0, 3.0])).to_numpy().tolist() == [0.0, 1.0]


def test_requires_grad_is_turned_off_too_and_makes_a_leaf_of_a_result():
    a = mt.tensor([1.0], requires_grad=True)
    b = a * 2.0
    b.requires_grad_(True)
    assert b.is_leaf()
    (b * 3.0).backward()
    assert b.grad[0] == 3.0 and a.grad is None
    a.requires_grad_(False)
    assert not a.requires_grad() and a.is_constant()
    assert not mt.tensor([1.0]).requires_grad() and mt.tensor([1.0])._tensor.dims == 1


def test_numbers_subtract_and_divide_from_the_left():
    assert (1.0 - mt.Scalar(3.0)).data == -2.0 and (1.0 - mt.tensor([3.0]))[0] == -2.0
    assert (6.0 / mt.tensor([3.0]))[0] == 2.0 and (mt.tensor([3.0]) / 0)[0] == math.inf


def test_mode_follows_train_and_eval():
    module = mt.Module()
    module.eval()
    assert module.mode == "eval" and not module.training
    module.train()
    assert module.mode == "train"


def test_gradients_of_several_leaves_do_not_share_memory():
    a, b = mt.tensor([1.0], requires_grad=True), mt.tensor([1.0], requires_grad=True)
    (a + b).backward()
    a.grad[0] = 9.0
    assert b.grad[0] == 1.0


def test_a_history_deeper_than_python_s_recursion():
    x = mt.Scalar(1.0)
    y = x
    for _ in range(20_000):
        y = y + 0.0
    y.backward()
    assert x.derivative == 1.0


# --------------------------------------------------------------------------------------------------- what one is told


class Wrong(mt.ScalarFunction):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * a * a

    @staticmethod
    def backward(ctx, d_output):
        (a,) = ctx.saved_values
        return d_output * 2.0 * a


def test_a_wrong_derivative_is_found_at_its_line():
    line = Wrong.backward.__code__.co_firstlineno
    with pytest.raises(AssertionError) as caught:
        mt.derivative_check(lambda x: Wrong.apply(x) * 4.0 + x, mt.Scalar(3.0))
    text = str(caught.value)
    assert "backward gave 25.0, the central difference is 109.0" in text
    assert f"Wrong.backward ({__file__}:{line})" in text and "returned 6.0" in text and "is 27.0" in text


class WrongTensor(mt.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx, grad_output):
        (a,) = ctx.saved_values
        return grad_output * a


@pytest.mark.parametrize("backend", [mt.SimpleBackend, FAST])
def test_a_wrong_gradient_is_found_at_its_line(backend):
    line = WrongTensor.backward.__code__.co_firstlineno
    with pytest.raises(AssertionError) as caught:
        mt.grad_check(lambda x: WrongTensor.apply(x + 1.0).relu(), mt.tensor([[1.0, 2.0]], backend))
    assert f"WrongTensor.backward ({__file__}:{line})" in str(caught.value)
    assert "central difference" in str(caught.value)


class Turned(mt.Function):
    @staticmethod
    def forward(ctx, order, a):
        return a.permute(*order) * 1.0

    @staticmethod
    def backward(ctx, grad_output):
        return 0.0, grad_output  # the right numbers at the wrong elements


def test_a_gradient_at_the_wrong_elements_is_found_at_its_line():
    weight = mt.tensor([[1.0, 20.0], [300.0, 4000.0]])
    with pytest.raises(AssertionError) as caught:
        mt.grad_check(lambda x: Turned.apply((1, 0), x) * weight, mt.tensor([[1.0, 2.0], [3.0, 4.0]]))
    line = Turned.backward.__code__.co_firstlineno
    assert f"Turned.backward ({__file__}:{line}): input 1" in str(caught.value) and "of numbers from" in str(caught.value)


def function(of, forward, backward):
    return type("Given", (of,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def test_functions_that_give_back_the_wrong_thing():
    given = function(mt.ScalarFunction, lambda ctx, a: 3, lambda ctx, d: d)
    with pytest.raises(TypeError, match=r"Given.forward must return a float, got int 3 \(.*test_differences"):
        given.apply(1.0)
    given = function(mt.ScalarFunction, lambda ctx, a, b: a + b, lambda ctx, d: d)
    with pytest.raises(ValueError, match=r"Given.backward returned 1 derivatives for 2 inputs \(.*test_differences"):
        given.apply(mt.Scalar(1.0), 2.0).backward()
    a = mt.tensor([[1.0, 2.0]], requires_grad=True)
    given = function(mt.Function, lambda ctx, a: 3.0, lambda ctx, d: d)
    with pytest.raises(TypeError, match="Given.forward must return a Tensor, got float"):
        given.apply(a)
    given = function(mt.Function, lambda ctx, a: a + 0.0, lambda ctx, d: mt.zeros((3,)))
    with pytest.raises(RuntimeError, match=r"Given.backward: .* of an input of shape \(1, 2\) .*got shape \(3,\) \(.*test_d"):
        given.apply(a).sum().backward()
    given = function(mt.Function, lambda ctx, a, b: a + b, lambda ctx, d: d)
    with pytest.raises(ValueError, match="Given.backward returned 1 gradients for 2 inputs"):
        given.apply(a, a).sum().backward()


def test_shapes_that_do_not_fit_are_named():
    for backend in (mt.SimpleBackend, FAST):
        a, b = mt.zeros((2, 3), backend), mt.zeros((4,), backend)
        with pytest.raises(mt.IndexingError, match=r"\(2, 3\) and \(4,\) do not broadcast: 3 and 4 in dimension -1"):
            a + b
        with pytest.raises(mt.IndexingError, match=r"\(2, 3\) and \(2, 3\) do not fit"):
            a @ a
        with pytest.raises(mt.IndexingError, match=r"dimension 2 is not one of shape \(2, 3\)"):
            a.sum(2)
        with pytest.raises(mt.IndexingError, match=r"strides \(1, 3\) is not contiguous; call contiguous"):
            a.permute(1, 0).view(6)
        with pytest.raises(mt.IndexingError, match=r"shape \(2, 3\) has 6 numbers, shape \(5,\) 5"):
            a.view(5)
        with pytest.raises(mt.IndexingError, match=r"permute: \(0, 0\) does not name each dimension"):
            a.permute(0, 0)
        with pytest.raises(mt.IndexingError, match="same in_channels"):
            mt.conv2d(mt.zeros((1, 2, 3, 3), backend), mt.zeros((1, 3, 2, 2), backend))
        with pytest.raises(mt.IndexingError, match="divisible by the kernel"):
            mt.avgpool2d(mt.zeros((1, 1, 3, 4), backend), (2, 2))
        with pytest.raises(ValueError, match=r"shape \(2, 3\) needs grad_output"):
            a.backward()
        with pytest.raises(mt.IndexingError, match=r"index \(slice\(.*\), 0\): whole numbers only"):
            a[:, 0]
    with pytest.raises(mt.IndexingError, match="same length"):
        mt.tensor([[1.0], [1.0, 2.0]])
    with pytest.raises(mt.IndexingError, match="needs 6 numbers, got storage of shape"):
        mt.TensorData([1.0], (2, 3))
    with pytest.raises(mt.IndexingError, match="reach past"):
        mt.TensorData([1.0] * 6, (2, 3), (6, 1))


def test_what_is_no_number_shape_or_parameter_is_named():
    for given in ("abc", None, ["a", "b"], [None, 1.0]):
        with pytest.raises(TypeError, match="tensor: needs a number or nested lists of numbers, got"):
            mt.tensor(given)
    assert mt.tensor([10**30, True]).to_numpy().tolist() == [1e30, 1.0]
    with pytest.raises(TypeError, match=r"zeros: the shape is a tuple of whole numbers such as \(2, 3\), got 3"):
        mt.zeros(3)
    with pytest.raises(TypeError, match="rand: the shape is a tuple of whole numbers"):
        mt.rand((2, 2.5))
    with pytest.raises(TypeError, match="SGD: needs parameters, such as model.parameters"):
        mt.SGD(mt.zeros((2,)))


def test_modules_are_told_what_is_missing():
    class Net(mt.Module):
        def __init__(self):
            self.layer = mt.Parameter(1.0)

    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) before you assign .*'layer'"):
        Net()
    with pytest.raises(AttributeError, match="Module has no attribute, parameter or module 'wieghts'"):
        mt.Module().wieghts  # noqa: B018
    with pytest.raises(NotImplementedError, match=r"Module has no forward\(\)"):
        mt.Module()()


def test_the_gpu_s_names_say_what_they_need():
    t = mt.tensor([1.0])
    for call in (
        lambda: mt.CudaOps.map(operators.neg)(t),
        lambda: mt.CudaOps.zip(operators.add)(t, t),
        lambda: mt.CudaOps.reduce(operators.add)(t, 0),
        lambda: mt.CudaOps.matrix_multiply(t, t),
        lambda: mt.sum_practice(t),
        lambda: mt.mm_practice(t, t),
        lambda: t._type_(mt.TensorBackend(mt.CudaOps)),
    ):
        with pytest.raises(NotImplementedError, match="GPU"):
            call()


# --------------------------------------------------------------------------------------------------------- the runner


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "tensorsmith.minitorch", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120
    )


def test_programs_and_tests_run_with_minitorch_meaning_this_layer(tmp_path):
    (tmp_path / "helper.py").write_text("WORD = 'beside it'\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, numba, minitorch, minitorch.fast_ops, helper\n"
        "from minitorch.operators import mul\n"
        "from numba import njit, prange\n"
        "@njit(parallel=True)\n"
        "def twice(x):\n"
        "    return 2 * x\n"
        "t = minitorch.FastOps.map(twice)(minitorch.tensor([2.0]))\n"
        "print(t[0], mul(2, 3), sys.argv[1:], helper.WORD, numba.cuda.is_available() in (True, False), __name__)\n"
    )
    done = run(str(program), "--flag", cwd=tmp_path)
    assert done.stdout == "4.0 6 ['--flag'] beside it True __main__\n", done.stderr
    (tmp_path / "test_it.py").write_text("import minitorch\n\ndef test_it():\n    assert minitorch.Scalar(2.0).data == 2.0\n")
    done = run("pytest", "-q", "test_it.py", cwd=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_program_that_is_not_there(capsys):
    from tensorsmith.minitorch.__main__ import main

    assert main(["nowhere.py"]) == 2 and "there is no file nowhere.py" in capsys.readouterr().err
    assert main([]) == 2 and main(["--help"]) == 0
