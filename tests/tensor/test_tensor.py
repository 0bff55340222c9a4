"""What a tensor is: layout, identity, copies, `data`, and its place in Python."""

import copy
import gc
import pickle
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorsmith as ts

sys.path.append(str(Path(__file__).parents[1] / "autograd"))
from torch_twin import outcome, twin  # noqa: E402


def test_shapes_strides_and_sizes():
    def run(L, log):
        for x in (L.zeros(2, 3), L.zeros(2, 3).t(), L.zeros(()), L.zeros(0, 4), L.zeros(1, 3).expand(2, 3), L.zeros(4)[1::2]):
            log(list(x.shape), list(x.stride()), x.dim(), x.ndim, x.numel(), x.nelement(), x.is_contiguous(),
                x.storage_offset(), x.element_size(), x.nbytes, x.size() == x.shape, x.is_floating_point(),
                x.is_complex(), x.is_signed(), x.itemsize)  # fmt: skip
            log([x.size(d) for d in range(-x.dim(), x.dim())], [x.stride(d) for d in range(x.dim())])
        x = L.zeros(2, 3)
        log(repr(x.shape), x.shape.numel(), list(x.shape[1:]), list(x.shape + (4,)))
        log(x.shape == (2, 3), hash(x.shape) == hash((2, 3)))
        log(str(x.device), x.device == L.device("cpu"), x.is_cuda, x.is_cpu, len(x))
        for call in (lambda: x.size(2), lambda: L.zeros(()).size(0), lambda: len(L.zeros(())), lambda: L.device("tpu")):
            log(type(outcome(call)).__name__)

    twin(run)


def test_truth_numbers_and_iteration():
    def run(L, log):
        for x in (L.tensor(2), L.tensor([1.5]), L.tensor(True), L.tensor([[0.0]])):
            log(bool(x), float(x), int(x), x.item())
        for call in (lambda: bool(L.zeros(2)), lambda: bool(L.zeros(0)), lambda: float(L.zeros(2)), lambda: int(L.zeros(0)),
                     lambda: L.zeros(3).item(), lambda: range(L.tensor(1.5)), lambda: [1, 2][L.tensor([0, 1])],
                     lambda: list(L.tensor(1.0)), lambda: {L.zeros(1): 1}[L.zeros(1)]):  # fmt: skip
            log(type(outcome(call)).__name__)
        log([5, 6, 7][L.tensor(1)], [r.tolist() for r in L.arange(6).reshape(2, 3)], 2 in L.arange(3), 7 in L.arange(3))

    twin(run)


def test_views_know_their_base():
    x = ts.zeros(3, 4)
    v = x[1:].t()[2]
    assert v._is_view() and v._base is x and x._base is None and not x.clone()._is_view()
    reference = weakref.ref(x)
    storage = x.data_ptr()
    del x
    assert reference() is not None and v._base.data_ptr() == storage  # a view keeps its base
    v.fill_(3.0)
    assert v._base[1:, 2].tolist() == [3.0, 3.0]
    del v
    gc.collect()
    assert reference() is None


def test_graphs_are_freed_when_the_last_tensor_goes():
    x = ts.ones(3, requires_grad=True)
    y = (x * 2).exp()
    node = weakref.ref(y.grad_fn)
    z = y.sum()
    del y
    assert node() is not None
    del z
    assert node() is None


def test_data():
    def run(L, log):
        x = L.ones(3, requires_grad=True)
        y = x * x
        x.data.mul_(2.0)  # not noticed by autograd
        y.sum().backward()
        log(x, x.grad, x._version, x.data.requires_grad, x.data.is_leaf)
        x.data = L.zeros(5)
        log(x, x.requires_grad, x.is_leaf, list(x.shape), x._version)
        w = L.ones(3, requires_grad=True)
        w.data = L.zeros(5)
        (w * 3).sum().backward()
        log(w.grad)
        x.data = L.ones(2, dtype=L.float64)
        log(str(x.dtype).split(".")[-1], (x * 2))
        log(type(outcome(lambda: setattr(x, "data", L.ones(2, dtype=L.int64)))).__name__, x)
        b = L.zeros(4)
        v = b[1:3]
        v.data = L.ones(2)
        v.add_(1.0)
        log(b, v, v._version)

    twin(run)


def test_a_compiled_or_remembered_call_sees_new_data():
    x = ts.ones(3)
    (x * 2.0).sum()
    x.data = ts.ones(4, dtype=ts.float64) * 3
    assert (x * 2.0).sum().item() == 24.0 and (x * 2.0).dtype is ts.float64
    double = ts.compile(lambda: x * 2)
    assert double().tolist() == [6.0] * 4
    x.data = ts.ones(2)
    assert double().tolist() == [2.0] * 2


def test_copies():
    def run(L, log):
        x = L.arange(6.0).reshape(2, 3).t().requires_grad_()
        (x * x).sum().backward()
        y = copy.deepcopy(x)
        log(y, y.grad, y.requires_grad, y.is_leaf, list(y.stride()), y.grad is x.grad)
        pair = copy.deepcopy([x, x, x.detach()[0]])
        log(pair[0] is pair[1], pair[2])
        with L.no_grad():
            pair[0].add_(1.0)
        log(pair[2], x)
        log(type(outcome(lambda: copy.deepcopy(x * 2))).__name__)
        z = copy.copy(x)
        with L.no_grad():
            z.zero_()
        log(x, z.requires_grad)

    twin(run)


def test_deepcopy_of_a_tensor_that_calls_remember():
    x = ts.rand(3, 4)
    expected = (x * 2).tolist()
    y = copy.deepcopy(x)
    x.zero_()
    assert (y * 2).tolist() == expected and (x * 2).sum().item() == 0


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool"])
def test_pickle(name):
    x = ts.tensor([[1, 0], [0, 1]], dtype=getattr(ts, name)).t()
    y = pickle.loads(pickle.dumps(x))
    assert y.tolist() == x.tolist() and y.dtype is x.dtype and not y.requires_grad
    with pytest.raises(RuntimeError, match="graph"):
        pickle.dumps(ts.ones(2, requires_grad=True) * 2)


def test_conversions():
    def run(L, log):
        x = L.tensor([[-1.7, 0.0, 300.5], [1.0, 2.0, 3.0]])
        for name in ("float64", "float16", "bfloat16", "int64", "int32", "bool"):
            dtype = getattr(L, name)
            log(x.to(dtype).double(), str(x.to(dtype).dtype).split(".")[-1], x.to(x.dtype) is x, x.to("cpu") is x)
        log(x.to(x.dtype, copy=True) is x, x.type_as(L.ones(1, dtype=L.int32)), x.double().dtype == L.float64)
        log(x.t().to(L.float64).stride(), x.cpu() is x, x.contiguous() is x, x.t().contiguous().stride())

    twin(run)


def test_no_grad_and_its_kin():
    def run(L, log):
        x = L.ones(2, requires_grad=True)
        with L.no_grad():
            log((x * 2).requires_grad, L.is_grad_enabled())
            with L.enable_grad():
                log((x * 2).requires_grad)
            log(L.is_grad_enabled())

        @L.no_grad()
        def f():
            return (x * 2).requires_grad

        log(f(), L.is_grad_enabled())
        with L.set_grad_enabled(False):
            log((x * 2).requires_grad)
        log((x * 2).requires_grad)

        @L.no_grad()
        def numbers():
            yield L.is_grad_enabled()
            yield L.is_grad_enabled()

        log([(k, L.is_grad_enabled()) for k in numbers()])

    twin(run)


def test_numpy_on_the_left():
    x = ts.tensor([1.0, 2.0])
    found = np.array([3.0, 4.0], np.float32) * x
    assert isinstance(found, ts.Tensor) and found.tolist() == [3.0, 8.0]
    assert (np.float32(2) + x).tolist() == [3.0, 4.0]
    assert (x > np.array([1.5, 1.5])).tolist() == [False, True]
    assert isinstance(torch.ones(1).sum().item() + x, ts.Tensor)
