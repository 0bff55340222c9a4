"""Kernels from random specs against the NumPy oracle: ranks, strides, broadcasting, dtypes, reductions, machines."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from spec_runner import check, extent_of, machines

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn

MACHINES = machines()
DTYPES = [
    dtypes.bool_, dtypes.uint8, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64, dtypes.float16, dtypes.bfloat16,
    dtypes.float32, dtypes.float64,
]  # fmt: skip
COMPUTE = [dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64, dtypes.int8, dtypes.uint8]


def values_of(dtype: DType, count: int, seed: int) -> np.ndarray:
    """Small whole and half numbers, so that float sums are nearly exact and casts between kinds are defined."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.kind == "f":
        return (rng.integers(-16, 17, count) / 4).astype(dtype.numpy)
    return rng.integers(0 if dtype.kind == "u" else -9, 10, count).astype(dtype.numpy)


@st.composite
def strides_for(draw, domain, may_broadcast, may_reverse):
    """Dense strides of a random axis order, with padding, broadcast axes and reversed axes as allowed."""
    order = draw(st.permutations(range(len(domain))))
    step = draw(st.sampled_from([1, 1, 1, 2]))
    strides = [0] * len(domain)
    for axis in order:
        if may_broadcast and draw(st.integers(0, 4)) == 0:
            continue
        strides[axis] = -step if may_reverse and draw(st.integers(0, 9)) == 0 else step
        step = step * domain[axis] + draw(st.sampled_from([0, 0, 0, 3]))
    return tuple(strides)


@st.composite
def domains(draw, least=0):
    rank = draw(st.integers(least, 5))
    most = {0: 1, 1: 200, 2: 70, 3: 17, 4: 9, 5: 5}[rank]
    return tuple(draw(st.integers(1, most)) for _ in range(rank))


def cast_to(body: list[Instr], position: int, target: DType) -> int:
    if body[position].dtype is target:
        return position
    body.append(Instr(Kind.CAST, target, (position,)))
    return len(body) - 1


@st.composite
def pointwise_specs(draw):
    domain = draw(domains())
    compute = draw(st.sampled_from(COMPUTE))
    inputs, body = [], []
    for k in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(DTYPES))
        inputs.append(Operand(dtype, draw(strides_for(domain, True, True))))
        body.append(Instr(Kind.LOAD, dtype, index=k))
    work = [cast_to(body, k, compute) for k in range(len(inputs))]
    if domain and draw(st.booleans()):
        body.append(Instr(Kind.INDEX, dtypes.int64, index=draw(st.integers(0, len(domain) - 1))))
        work.append(cast_to(body, len(body) - 1, compute))
    total = work[0]
    for other in work[1:]:
        fn = draw(st.sampled_from([Fn.ADD, Fn.SUB, Fn.MUL, Fn.MAXIMUM, Fn.MINIMUM]))
        body.append(Instr(Kind.APPLY, compute, (total, other), fn=fn))
        total = len(body) - 1
    body.append(Instr(Kind.CONST, compute, value=2))
    body.append(Instr(Kind.APPLY, dtypes.bool_, (total, len(body) - 1), fn=Fn.GT))
    truth = len(body) - 1
    stores = []
    for _ in range(draw(st.integers(1, 2))):
        dtype = draw(st.sampled_from(DTYPES))
        source = truth if draw(st.booleans()) else total
        value = cast_to(body, source, dtype)
        stores.append(Store(Operand(dtype, draw(strides_for(domain, False, False))), value))
    return KernelSpec(domain, None, tuple(inputs), tuple(body), tuple(stores), name="random_points")


@st.composite
def row_specs(draw):
    domain = draw(domains(least=1))
    axis = draw(st.integers(0, len(domain) - 1))
    compute = draw(
        st.sampled_from([dtypes.float32, dtypes.float32, dtypes.float64, dtypes.int64, dtypes.int32, dtypes.uint8])
    )
    inputs, body = [], []
    for k in range(draw(st.integers(1, 2))):
        dtype = draw(st.sampled_from(DTYPES))
        inputs.append(Operand(dtype, draw(strides_for(domain, True, True))))
        body.append(Instr(Kind.LOAD, dtype, index=k))
    work = [cast_to(body, k, compute) for k in range(len(inputs))]
    kinds = ["sum", "max", "min", "argmax", "argmin"] + ([] if compute.kind == "f" else ["prod"])
    results = []
    current = work[0]
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(kinds))
        positional = kind.startswith("arg")
        body.append(Instr(Kind.REDUCE, dtypes.int64 if positional else compute, (current,), reduction=kind))
        results.append(len(body) - 1)
        if not positional and draw(st.booleans()):
            body.append(Instr(Kind.APPLY, compute, (draw(st.sampled_from(work)), len(body) - 1), fn=Fn.MAXIMUM))
            current = len(body) - 1
    stores = []
    row_strides = list(draw(strides_for(tuple(1 if a == axis else n for a, n in enumerate(domain)), False, False)))
    row_strides[axis] = 0
    for value in results:
        stores.append(Store(Operand(body[value].dtype, tuple(row_strides)), value, row=True))
    if draw(st.booleans()):
        body.append(Instr(Kind.APPLY, compute, (current, work[-1]), fn=Fn.SUB))
        stores.append(Store(Operand(compute, draw(strides_for(domain, False, False))), len(body) - 1))
    return KernelSpec(domain, axis, tuple(inputs), tuple(body), tuple(stores), name="random_rows")


def run_spec(spec: KernelSpec, seed: int) -> None:
    fill = [values_of(o.dtype, extent_of(o, spec.domain)[0], seed + k) for k, o in enumerate(spec.inputs)]
    check(spec, fill, on=MACHINES[seed % len(MACHINES)], at_end=seed % 2 == 0, tolerance=1e-5)


@settings(max_examples=60, deadline=None)
@given(pointwise_specs(), st.integers(0, 2**20))
def test_random_pointwise_specs(spec, seed):
    run_spec(spec, seed)


@settings(max_examples=60, deadline=None)
@given(row_specs(), st.integers(0, 2**20))
def test_random_row_specs(spec, seed):
    run_spec(spec, seed)
