"""What a product computes of its results before they are stored: which values, and bit for bit as kernels of their own."""

import numpy as np
import pytest

import tensorsmith as ts

F = ts.nn.functional
X, W, B, R = ts.randn(50, 40), ts.randn(70, 40), ts.randn(70), ts.randn(50, 70)

# function of x, w, b, r -> names of the steps
ABSORBED = {
    "a bias and gelu": (lambda x, w, b, r: F.gelu(F.linear(x, w, b)), ["matmul_mul"]),
    "a residual": (lambda x, w, b, r: F.linear(x, w, b) + r, ["matmul_add"]),
    "relu6, whose operand is read four times": (lambda x, w, b, r: F.relu6(F.linear(x, w, b) * 3 + r), ["matmul_where"]),
    "the scale of a channel is a kernel of its own": (
        lambda x, w, b, r: (x @ w.T - b) * (b.abs() + 1e-5).rsqrt() + b, ["rsqrt", "matmul_add"],
    ),
    "a single number": (lambda x, w, b, r: (x @ w.T * b[3]).exp(), ["matmul_exp"]),
    "through a reshape": (lambda x, w, b, r: ((x @ w.T).reshape(5, 10, 70) + b).relu(), ["matmul_relu"]),
    "of more than two axes": (lambda x, w, b, r: F.gelu(F.linear(x.reshape(5, 10, 40), w, b)), ["matmul_mul"]),
    "of more than two axes, a residual and its norm": (
        lambda x, w, b, r: F.layer_norm(F.linear(x.reshape(5, 10, 40), w, b) + r.reshape(5, 10, 70), (70,)),
        ["matmul_add", "mul"],
    ),
    "heads apart: the bias before, as nothing else is computed": (
        lambda x, w, b, r: F.linear(x.reshape(5, 10, 40), w, b).reshape(5, 10, 7, 10).transpose(1, 2), ["matmul_bias"],
    ),
    "two products meet in the later one": (
        lambda x, w, b, r: F.silu(x @ w.T) * (r @ w @ w.T), ["matmul_mul", "matmul", "matmul_mul"],
    ),
    "few rows": (lambda x, w, b, r: F.silu(x[:2] @ w.T + b) + r[:2], ["matmul_add"]),
    "a vector": (lambda x, w, b, r: (w @ x[0]).exp() + b, ["matmul_add"]),
    "not what another reads too": (lambda x, w, b, r: (y := x @ w.T).exp() * y.sum(), ["matmul", "sum", "mul"]),
    "not an operand seen another way": (lambda x, w, b, r: (w @ x.T).exp() + r.T, ["matmul_exp", "add"]),
    "not results that would be written down the columns": (lambda x, w, b, r: (w @ x.T).T + r, ["matmul", "add"]),
    "not an operand that is computed": (lambda x, w, b, r: x @ w.T + r.exp(), ["matmul", "add"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ABSORBED)
def test_what_a_product_stores(name):
    function, steps = ABSORBED[name]
    with ts.no_grad():
        compiled = ts.compile(function)
        found, expected = compiled(X, W, B, R), function(X, W, B, R)
    assert sorted(step.name for step in compiled.plans[0].plan.steps) == sorted(steps)
    np.testing.assert_allclose(found.tolist(), expected.tolist(), rtol=1e-4, atol=1e-4)


def test_results_are_those_of_a_kernel_of_its_own():
    def function(x, w, b, r):
        return F.relu6((x @ w.T) * b + r)

    with ts.no_grad():
        found = ts.compile(function)(X, W, B, R)
        apart = ts.compile(function, disable="fusion")(X, W, B, R)
    assert np.array_equal(found.numpy(), apart.numpy())


def test_infinities_and_nan_come_through():
    def function(x, w, r):
        return (x @ w.T + r).relu()

    x, r = X.clone(), R.clone()
    x[3, 0], x[4, 1], r[5, 5] = float("nan"), float("inf"), float("nan")
    with ts.no_grad():
        found, expected = ts.compile(function)(x, W, r), function(x, W, r)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [ts.float16, ts.int32])
def test_other_dtypes_stay_kernels_of_their_own(dtype):
    x, r = (X * 3).to(dtype), (R * 3).to(dtype)
    compiled = ts.compile(lambda x, r: (x.T @ r).abs() + 1)
    compiled(x, r)
    assert [step.name for step in compiled.plans[0].plan.steps][0] == "matmul" and len(compiled.plans[0].plan.steps) == 2
