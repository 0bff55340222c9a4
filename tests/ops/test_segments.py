"""segment_reduce against PyTorch: values and gradients, empty runs, NaN, initial values, refusals."""

import numpy as np
import pytest
import torch

import tensorsmith as ts

DATA = np.array([[1.0, 2.0], [1.0, 0.0], [3.0, 5.0], [0.0, 7.0], [2.0, -4.0]], np.float32)
RUNS = {"all": [2, 1, 2], "an empty one": [2, 0, 3], "one": [5]}


def run(L, data, reduce, **given):
    x = L.tensor(data, requires_grad=True)
    result = L.segment_reduce(x, reduce, **given)
    weight = L.arange(1.0, 1.0 + result.numel()).reshape(result.shape)
    (grad,) = L.autograd.grad((result * weight).nan_to_num(0, 0, 0).sum(), x)
    return result.detach().numpy(), grad.numpy()


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 2])
@pytest.mark.parametrize("runs", RUNS)
def test_runs_of_the_first_axis(reduce, initial, runs):
    lengths = RUNS[runs]
    got = run(ts, DATA, reduce, lengths=ts.tensor(lengths), initial=initial)
    want = run(torch, DATA, reduce, lengths=torch.tensor(lengths), initial=initial)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    ends = [0, *np.cumsum(lengths).tolist()]
    np.testing.assert_array_equal(run(ts, DATA, reduce, offsets=ts.tensor(ends), initial=initial)[0], got[0])


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_runs_of_each_row(reduce):
    lengths = [[2, 0], [1, 1], [0, 2], [2, 0], [1, 1]]
    got = run(ts, DATA, reduce, lengths=ts.tensor(lengths), axis=1, initial=1)
    want = run(torch, DATA, reduce, lengths=torch.tensor(lengths), axis=1, initial=1)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_nan_is_an_extreme():
    found = ts.segment_reduce(ts.tensor([1.0, float("nan"), 3.0]), "max", lengths=ts.tensor([2, 1])).numpy()
    np.testing.assert_array_equal(found, [np.nan, 3])


@pytest.mark.parametrize("given", [
    {}, {"lengths": [2, 2]}, {"lengths": [3, -1, 3]}, {"indices": [0, 1]}, {"lengths": [2.0, 3.0]}, {"lengths": [5], "axis": 3},
])  # fmt: skip
def test_refusals(given):
    def call(L):
        keywords = {k: L.tensor(v) if isinstance(v, list) else v for k, v in given.items()}
        L.segment_reduce(L.tensor(DATA[:, 0]), "sum", **keywords)

    with pytest.raises((RuntimeError, NotImplementedError, IndexError)) as wanted:
        call(torch)
    with pytest.raises(type(wanted.value)):
        call(ts)
