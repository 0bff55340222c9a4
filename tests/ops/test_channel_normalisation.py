"""batch_norm, group_norm and instance_norm against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from network_oracle import compare, numbers, same_error, torch

import tensorsmith as ts
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it

TF = torch.nn.functional
RANDOM = np.random.default_rng(10)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 2), (2, 1, 3, 2, 2), (1, 4, 7)])
@pytest.mark.parametrize("parameters", [0, 1, 2])
def test_batch_norm_while_training(shape: tuple[int, ...], parameters: int):
    operands = [normal(*shape) * 2 + 1, *(normal(shape[1]) for _ in range(parameters))]
    compare(
        lambda x, *p: F.batch_norm(x, None, None, *p, training=True),
        lambda x, *p: TF.batch_norm(x, None, None, *p, training=True),
        *operands,
        tolerance=1e-9,
    )


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 2)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_running_statistics(shape: tuple[int, ...], dtype: str):
    x, mean, variance = normal(*shape), normal(4), RANDOM.uniform(0.5, 2, 4)
    mine = [ts.tensor(a, dtype=getattr(ts, dtype)) for a in (x, mean, variance)]
    theirs = [torch.tensor(a, dtype=getattr(torch, dtype)) for a in (x, mean, variance)]
    for _ in range(2):
        y, expected = (
            F.batch_norm(*mine, training=True, momentum=0.3),
            TF.batch_norm(*theirs, training=True, momentum=0.3),
        )
        for a, b in zip((y, *mine), (expected, *theirs)):
            np.testing.assert_allclose(numbers(a), numbers(b), rtol=1e-5 if dtype == "float32" else 1e-11, atol=1e-5)
    assert mine[1]._version == 2


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 2)])
def test_batch_norm_in_evaluation(shape: tuple[int, ...]):
    operands = [normal(*shape), normal(4), RANDOM.uniform(0.5, 2, 4), normal(4), normal(4)]
    compare(F.batch_norm, TF.batch_norm, *operands, track=[True, False, False, True, True])
    compare(F.batch_norm, TF.batch_norm, *operands[:3], track=[True, False, False])


@pytest.mark.parametrize(("shape", "groups"), [((3, 4), 2), ((3, 4, 5), 2), ((3, 4, 5), 4), ((2, 6, 3, 2), 3), ((2, 4, 3), 1)])
@pytest.mark.parametrize("parameters", [0, 1, 2])
def test_group_norm(shape: tuple[int, ...], groups: int, parameters: int):
    operands = [normal(*shape) * 2 + 1, *(normal(shape[1]) for _ in range(parameters))]
    compare(lambda x, *p: F.group_norm(x, groups, *p), lambda x, *p: TF.group_norm(x, groups, *p), *operands, tolerance=1e-9)


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 4, 3, 2)])
@pytest.mark.parametrize("parameters", [False, True])
def test_instance_norm(shape: tuple[int, ...], parameters: bool):
    operands = [normal(*shape), *((normal(4), normal(4)) if parameters else ())]
    compare(
        lambda x, *p: F.instance_norm(x, None, None, *p),
        lambda x, *p: TF.instance_norm(x, None, None, *p),
        *operands,
        tolerance=1e-9,
    )


def test_instance_norm_with_running_statistics():
    x, mean, variance = normal(3, 4, 5), normal(4), RANDOM.uniform(0.5, 2, 4)
    mine, theirs = (
        [ts.tensor(a, dtype=ts.float64) for a in (x, mean, variance)],
        [torch.tensor(a) for a in (x, mean, variance)],
    )
    for flag in (True, False):
        y, expected = F.instance_norm(*mine, use_input_stats=flag), TF.instance_norm(*theirs, use_input_stats=flag)
        for a, b in zip((y, *mine), (expected, *theirs)):
            np.testing.assert_allclose(numbers(a), numbers(b), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype: str):
    x, w, b = normal(8, 6, 10), normal(6), normal(6)
    tolerance = {"float32": 5e-5, "float16": 1e-2, "bfloat16": 6e-2}[dtype]
    compare(lambda *p: F.group_norm(p[0], 3, *p[1:]), lambda *p: TF.group_norm(p[0], 3, *p[1:]), x, w, b, dtype=dtype,
            gradients=1, tolerance=tolerance)  # fmt: skip
    compare(lambda *p: F.batch_norm(p[0], None, None, *p[1:], training=True),
            lambda *p: TF.batch_norm(p[0], None, None, *p[1:], training=True), x, w, b, dtype=dtype, gradients=1,
            tolerance=tolerance)  # fmt: skip


def test_refused_as_pytorch_does():
    x, other = ts.zeros(2, 4, 3), torch.zeros(2, 4, 3)
    same_error(lambda: F.batch_norm(x, None, None), lambda: TF.batch_norm(other, None, None))
    same_error(lambda: F.batch_norm(x, ts.zeros(3), ts.zeros(4)), lambda: TF.batch_norm(other, torch.zeros(3), torch.zeros(4)))
    same_error(
        lambda: F.batch_norm(x, None, None, training=True, eps=0.0),
        lambda: TF.batch_norm(other, None, None, training=True, eps=0.0),
    )
    same_error(lambda: F.group_norm(x, 3), lambda: TF.group_norm(other, 3))
    same_error(lambda: F.group_norm(x, 2, ts.ones(3)), lambda: TF.group_norm(other, 2, torch.ones(3)))
    same_error(lambda: F.group_norm(ts.ones(4), 2), lambda: TF.group_norm(torch.ones(4), 2))
    same_error(lambda: F.group_norm(ts.ones(1, 4), 4), lambda: TF.group_norm(torch.ones(1, 4), 4))
    same_error(lambda: F.instance_norm(x, use_input_stats=False), lambda: TF.instance_norm(other, use_input_stats=False))
    with pytest.raises(ValueError, match="more than 1 value per channel when training"):
        F.batch_norm(ts.zeros(1, 4), None, None, training=True)
    with pytest.raises(ValueError, match="more than 1 spatial element when training"):
        F.instance_norm(ts.zeros(2, 4, 1))


# What may be lost in one result, as a part of the largest value: float32 a few roundings, halves one of their own.
ROUNDING = {"float64": 1e-12, "float32": 4e-6, "float16": 3e-3, "bfloat16": 2e-2}


def in_format(array: np.ndarray, last: bool) -> np.ndarray:
    """The same values, channels last in memory if asked for."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1) if last else array


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_normalisation_by_channel(data: st.DataObject):
    """Results and gradients against float64, result and strides against PyTorch, over shapes, formats and dtypes."""
    kind = data.draw(st.sampled_from(["batch", "group", "instance"]))
    rank = data.draw(st.integers(3 if kind == "instance" else 2, 5))
    groups = data.draw(st.integers(1, 3))
    channels = groups * data.draw(st.integers(1, 40 if rank == 2 else 7))
    long = st.integers(2, 130) if rank <= 3 else st.integers(2, 9)
    shape = (data.draw(st.integers(2, 9)), channels, *(data.draw(long) for _ in range(rank - 2)))
    dtype = data.draw(st.sampled_from(list(ROUNDING)))
    last = data.draw(st.booleans()) and rank == 4
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    x, g = (in_format(random.standard_normal(shape) * 2 + 1, last) for _ in range(2))
    w, b = random.uniform(0.5, 1.5, channels), random.standard_normal(channels)

    def call(functions, x, w, b):
        if kind == "batch":
            return functions.batch_norm(x, None, None, w, b, training=True)
        return functions.instance_norm(x, None, None, w, b) if kind == "instance" else functions.group_norm(x, groups, w, b)

    def run(library, functions, dtype):
        operands = [library.tensor(np.ascontiguousarray(a)).to(getattr(library, dtype)) for a in (x, w, b)]
        grad = library.tensor(np.ascontiguousarray(g)).to(getattr(library, dtype))
        if last:
            operands[0], grad = (t.contiguous(memory_format=library.channels_last) for t in (operands[0], grad))
        rounded = [t.detach().requires_grad_() for t in operands]
        y = call(functions, *rounded)
        y.backward(grad)
        return y, [numbers(t) for t in (y, *(t.grad for t in rounded))], [numbers(t) for t in (*rounded, grad)]

    y, found, operands = run(ts, F, dtype)
    theirs, _, _ = run(torch, TF, dtype)
    assert tuple(y.stride()) == tuple(theirs.stride()) or 1 in shape
    exact = [torch.tensor(a, requires_grad=True) for a in operands[:3]]
    expected = call(TF, *exact)
    expected.backward(torch.tensor(operands[3]))
    # Roundings count against the terms a result is made of, which may cancel: values over the smallest spread of those that
    # share statistics, and sums of gradients.
    x, w, _, g = (np.abs(a) for a in operands)
    together = {"batch": np.moveaxis(operands[0], 1, 0).reshape(channels, -1),
                "group": operands[0].reshape(shape[0] * groups, -1),
                "instance": operands[0].reshape(shape[0] * channels, -1)}[kind]  # fmt: skip
    spread = np.sqrt(together.var(axis=1).min() + 1e-5)
    unit = x.max() / spread
    sizes = [w.max() * unit, g.max() * w.max() / spread * unit, g.sum() / 100 * unit, g.sum() / 100]
    for mine, reference, size in zip(found, (expected, *(t.grad for t in exact)), sizes):
        wanted = numbers(reference)
        bound = ROUNDING[dtype] * max(1.0, float(np.abs(wanted).max()), float(size))
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("form", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("shape", [(20, 300, 7, 7), (4, 3, 160, 150), (7, 48, 32, 32)])
def test_large_batches_whose_work_is_divided(shape: tuple[int, ...], form: str):
    operands = [RANDOM.standard_normal(shape) + 3, RANDOM.uniform(0.5, 1.5, shape[1]), normal(shape[1])]
    results = []
    for library, functions, dtype in ((ts, F, ts.float32), (torch, TF, torch.float64)):
        x, w, b = (library.tensor(a, dtype=dtype) for a in operands)
        x = x.contiguous(memory_format=getattr(library, form)).requires_grad_()
        w.requires_grad_()
        mean, variance = library.zeros(shape[1], dtype=dtype), library.ones(shape[1], dtype=dtype)
        y = functions.batch_norm(x, mean, variance, w, b, training=True)
        (y * y * y).mean().backward()
        assert x.grad.stride() == x.stride() == y.stride()
        results.append([numbers(t) for t in (y, mean, variance, x.grad, w.grad)])
    for mine, exact in zip(*results):
        np.testing.assert_allclose(mine, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


def test_gradients_against_differences():
    x, w, b = (ts.tensor(normal(*s), requires_grad=True) for s in ((2, 4, 3), (4,), (4,)))
    for call in (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
    ):
        assert ts.autograd.gradcheck(call, (x, w, b))


def test_results_do_not_depend_on_threads():
    x = ts.tensor(RANDOM.standard_normal((12, 20, 40, 35)), dtype=ts.float32)
    found = []
    for threads in (1, 2):
        before = ts.get_num_threads()
        ts.set_num_threads(threads)
        try:
            leaf = x.detach().requires_grad_()
            y = F.batch_norm(leaf, None, None, training=True)
            (y * y).sum().backward()
            found.append((y.detach().numpy().copy(), leaf.grad.numpy().copy()))
        finally:
            ts.set_num_threads(before)
    assert all(np.array_equal(a, b) for a, b in zip(*found))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 4, 3, 2), (1, 3, 2, 2, 2)])
def test_local_response_norm(size: int, shape: tuple[int, ...]):
    compare(F.local_response_norm, TF.local_response_norm, normal(*shape), size=size, alpha=0.5, k=0.7)


def test_local_response_norm_needs_three_axes():
    with pytest.raises(ValueError, match="Expected 3D or higher"):
        F.local_response_norm(ts.zeros(2, 3), 2)
