"""softmax, log_softmax and softmin against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from network_oracle import compare, numbers, same_error, torch

import tensorsmith as ts
from tensorsmith.eager.entries import plan_for
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it
from tensorsmith.ops.softmax import LOG_SOFTMAX, SOFTMAX

TF = torch.nn.functional
RANDOM = np.random.default_rng(3)
NAMES = ("softmax", "log_softmax", "softmin")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4), (1, 1), (0, 3), (3, 0), (2, 33, 5), ()])
def test_values_and_gradients(name: str, shape: tuple[int, ...]):
    array = np.asarray(RANDOM.standard_normal(shape) * 4)
    for dim in range(-max(len(shape), 1), max(len(shape), 1)):
        compare(getattr(F, name), getattr(TF, name), array, dim=dim)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dim", [0, 1])
def test_dtypes(name: str, dtype: str, dim: int):
    compare(getattr(F, name), getattr(TF, name), RANDOM.standard_normal((40, 130)) * 4, dtype=dtype, dim=dim, gradients=1)


def test_other_layouts():
    for array in (
        RANDOM.standard_normal((6, 5)).T,
        RANDOM.standard_normal((6, 10, 4))[::2, ::3],
        RANDOM.standard_normal((4, 5, 6)).transpose(2, 0, 1),
    ):
        for dim in range(array.ndim):
            for name in NAMES:
                compare(getattr(F, name), getattr(TF, name), array, dim=dim)


@pytest.mark.parametrize("name", NAMES)
def test_another_dtype_is_computed_in(name: str):
    array = RANDOM.standard_normal((3, 5)).astype(np.float32)
    for ours, theirs in ((ts.float64, torch.float64), (ts.float16, torch.float16)):
        mine = getattr(F, name)(ts.tensor(array), dim=1, dtype=ours)
        expected = getattr(TF, name)(torch.tensor(array), dim=1, dtype=theirs)
        assert mine.dtype is ours
        np.testing.assert_allclose(
            numbers(mine),
            numbers(expected),
            rtol=2e-3 if ours is ts.float16 else 1e-12,
            atol=1e-3 if ours is ts.float16 else 0,
        )
    whole = getattr(F, name)(ts.tensor([1, 2, 3]), dim=0, dtype=ts.float32)
    np.testing.assert_allclose(
        numbers(whole), numbers(getattr(TF, name)(torch.tensor([1, 2, 3]), dim=0, dtype=torch.float32)), rtol=1e-6
    )


def test_without_an_axis():
    for shape in ((), (4,), (3, 4), (2, 3, 4), (2, 2, 3, 2)):
        array = np.asarray(RANDOM.standard_normal(shape))
        with pytest.warns(UserWarning):
            expected = TF.softmax(torch.tensor(array))
        np.testing.assert_allclose(numbers(F.softmax(ts.tensor(array, dtype=ts.float64))), expected.numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_infinities_and_nan(name: str):
    inf = float("inf")
    rows = np.array(
        [[-inf, -inf, -inf], [-inf, 0, 1], [inf, 0, 1], [float("nan"), 0, 1], [1e4, -1e4, 0], [3e38, -3e38, 0]],
        np.float32,
    )
    for dim in (0, 1):
        mine, expected = getattr(F, name)(ts.tensor(rows), dim=dim), getattr(TF, name)(torch.tensor(rows), dim=dim)
        np.testing.assert_allclose(mine.numpy(), expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("operator", [SOFTMAX, LOG_SOFTMAX])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [ts.float32, ts.float16])
def test_each_way_is_one_kernel(operator, dim: int, dtype):
    layout = ts.zeros(64, 32, dtype=dtype).layout
    program = operator.program([layout], {"dim": dim, "dtype": None})
    assert len(plan_for(operator, program, [layout]).steps) == 1
    backward = program.backward((True,), (True,))
    assert [w.kind for w in backward.saved] == ["output"]
    plan = plan_for(backward, backward.program([layout, layout], {}), [layout, layout])
    assert len(plan.steps) == 1 and plan.workspace_bytes == 0


def test_functions_and_methods():
    x = ts.tensor([[1.0, 2.0], [3.0, 5.0]])
    for function in (ts.softmax, ts.log_softmax):
        np.testing.assert_array_equal(function(x, 1).numpy(), getattr(x, function.__name__)(1).numpy())
        np.testing.assert_array_equal(function(x, dim=-1).numpy(), getattr(F, function.__name__)(x, dim=1).numpy())


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_refused_as_pytorch_does(name: str):
    ours, theirs = getattr(F, name), getattr(TF, name)
    same_error(lambda: ours(ts.tensor([1, 2]), dim=0), lambda: theirs(torch.tensor([1, 2]), dim=0))
    same_error(lambda: ours(ts.zeros(2), dim=1), lambda: theirs(torch.zeros(2), dim=1))
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        ours([1.0], dim=0)
