"""Operands side by side (the parts of complex numbers): read and written in whole vectors, bit for bit as one by one."""

from dataclasses import replace

import numpy as np
import pytest
from spec_runner import Guarded, machines, run

from tensorsmith.core.dtypes import float32, float64
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu.lower import lower


def product(domain, strides, dtype) -> KernelSpec:
    """(x + iy)**2, both parts of one buffer read, both of another written."""
    operand = Operand(dtype, strides)
    body = (
        Instr(Kind.LOAD, dtype, index=0), Instr(Kind.LOAD, dtype, index=1), Instr(Kind.APPLY, dtype, (0, 0), fn=Fn.MUL),
        Instr(Kind.APPLY, dtype, (1, 1), fn=Fn.MUL), Instr(Kind.APPLY, dtype, (2, 3), fn=Fn.SUB),
        Instr(Kind.APPLY, dtype, (0, 1), fn=Fn.MUL), Instr(Kind.APPLY, dtype, (5, 5), fn=Fn.ADD),
    )  # fmt: skip
    stores = (Store(operand, 4), Store(operand, 6))
    return KernelSpec(domain, None, (operand, operand), body, stores, name="square", pairs=((0, 1), (2, 3)))


def sums(domain, strides, axis, dtype) -> KernelSpec:
    """The sums of both parts along one axis of a matrix, written as pairs."""
    operand = Operand(dtype, strides)
    target = Operand(dtype, tuple(0 if a == axis else 2 for a in range(2)))
    body = (
        Instr(Kind.LOAD, dtype, index=0), Instr(Kind.LOAD, dtype, index=1), Instr(Kind.REDUCE, dtype, (0,), reduction="sum"),
        Instr(Kind.REDUCE, dtype, (1,), reduction="sum"),
    )  # fmt: skip
    stores = (Store(target, 2, row=True), Store(target, 3, row=True))
    return KernelSpec(domain, axis, (operand, operand), body, stores, name="sums", pairs=((0, 1), (2, 3)))


def results(spec, values, outputs, machine, in_place=False, at_end=True):
    """The outputs' buffer after a run with both inputs in one guarded buffer and both outputs in another."""
    dtype = spec.inputs[0].dtype
    source = Guarded(dtype, len(values), at_end)
    source.array[:] = values
    target = source if in_place else Guarded(dtype, outputs, at_end)
    if not in_place:
        target.array[:] = 0
    words = [source.address, source.address + dtype.itemsize, target.address, target.address + dtype.itemsize]
    assert run(lower(spec, machine), *words) is None
    found = target.array.copy()
    for buffer in {source, target}:
        buffer.release()
    return found


def values_of(count, dtype):
    return np.random.default_rng(0).normal(size=count).astype(dtype.numpy)


@pytest.mark.parametrize("machine", machines(), ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 15, 16, 17, 33, 64, 1000])
def test_pointwise(n, in_place, dtype, machine):
    spec, values = product((n,), (2,), dtype), values_of(2 * n, dtype)
    together = results(spec, values, 2 * n, machine, in_place)
    apart = results(replace(spec, pairs=()), values, 2 * n, machine, in_place)
    np.testing.assert_array_equal(together, apart)
    z = values[0::2].astype(np.float64) + 1j * values[1::2].astype(np.float64)
    np.testing.assert_allclose(together[0::2] + 1j * together[1::2], z * z, rtol=1e-5, atol=1e-6)


def test_whole_vectors_are_read():
    spec, every_second = product((100,), (2,), float64), "<i32 0, i32 2"
    assert every_second in lower(spec).text and every_second not in lower(replace(spec, pairs=())).text


def test_the_rest_of_a_row_is_read_in_vectors_too():
    spec = product((14,), (2,), float32)
    assert "masked.gather" not in lower(spec).text and "masked.gather" in lower(replace(spec, pairs=())).text


@pytest.mark.parametrize("machine", machines(), ids=lambda m: m.name)
@pytest.mark.parametrize("domain, strides", [((5, 37), (74, 2)), ((37, 5), (2, 74)), ((3, 4), (20, 2)), ((4, 40), (6, 24))])
def test_pointwise_with_outer_axes(domain, strides, machine):
    count = 2 + sum((n - 1) * s for n, s in zip(domain, strides))
    spec, values = product(domain, strides, float32), values_of(count, float32)
    together = results(spec, values, count, machine)
    np.testing.assert_array_equal(together, results(replace(spec, pairs=()), values, count, machine))


@pytest.mark.parametrize("machine", machines(), ids=lambda m: m.name)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("domain", [(9, 300), (300, 9), (70, 70), (2, 5), (1, 33)])
def test_rows(domain, axis, machine):
    spec, values = sums(domain, (2 * domain[1], 2), axis, float32), values_of(2 * domain[0] * domain[1], float32)
    rows = domain[1 - axis]
    found = results(spec, values, 2 * rows, machine)
    expected = values.reshape(*domain, 2).astype(np.float64).sum(axis).reshape(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
