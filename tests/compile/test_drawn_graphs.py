"""Drawn programs compute the same with every pass on, with each off, with drawn ones off, and with all off; and as PyTorch.

`TENSORSMITH_FUZZ=2000` draws that many of each kind; without it a few. Kinds (`drawn_operations.py` holds the operations):

exact     float64 powers of two, zeros of both signs, NaN and infinities: results are equal bit for bit, signs of zeros included
smooth    drawn numbers: results agree within 1e-11 (float64) or 1e-4 (float32) of the largest value on the way. Passes may add
          up in another order and round a product once less, which is some units of the last place (1e-16, 1e-7) for each of
          at most seven operations over at most 33 elements, each of which grows an error at most as it grows its values
integers  int64, int32 and uint8, equal
gradients of exact and of smooth programs, taken inside the compiled function or outside

Arguments may share memory and be written: what is in them afterwards is compared too. Some rooms are empty.
"""

import os
import warnings

import numpy as np
import pytest
import torch
from drawn_operations import EXACT, INTEGERS, NO_GRADIENT, NOT_EMPTY, NOT_EMPTY_INTEGERS, NOT_EMPTY_SMOOTH, SMOOTH, Room
from hypothesis import HealthCheck, assume, given, settings, strategies as st

import tensorsmith as ts

EXAMPLES = int(os.environ.get("TENSORSMITH_FUZZ", "6"))
FEW = settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize=EXAMPLES < 50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)  # fmt: skip
FULL = [(3, 4), (3, 4), (2, 1), (1, 5), (17, 33), (0, 3), (2, 0)]
POOL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.0, float("nan"), float("inf"), -float("inf")]
LEAST = 1e-300  # tells a tolerance of nothing, signs of zeros apart, from one of bit for bit
LARGEST = 2.0**20  # of an exact value: sums of larger and smaller ones round

STEP = st.tuples(st.integers(0, 999), st.integers(0, 99), st.integers(0, 99))
PROGRAM = st.lists(STEP, min_size=1, max_size=7)
SEED = st.integers(0, 1 << 30)
ROOM = st.sampled_from(FULL)
WAY = st.sampled_from(["inside", "outside"])


def operations(full, table, not_empty, but=()):
    """The names of what a program in a room of this shape may be made of."""
    return {name: op for name, op in {**table, **(not_empty if 0 not in full else {})}.items() if name not in but}


def function_of(room, program, table, watch=None):
    """A program as a function: each step takes values made before; the last three are the result."""
    steps = list(table.values())

    def function(*inputs):
        values = list(inputs)
        for operation, first, second in program:
            a, b = values[first % len(values)], values[second % len(values)]
            values.append(steps[operation % len(steps)](room, a, b, inputs[first % len(inputs)]))
        if watch is not None:
            watch.extend(values)
        return tuple(values[-3:])

    return function


def with_gradients(function, m):
    """The results of a function and the gradients of their weighted sum in its arguments."""

    def both(*inputs):
        results = function(*inputs)
        total = sum((t * 2.0**-i).sum() for i, t in enumerate(results))
        return *results, *m.autograd.grad(total, inputs, allow_unused=True)

    return both


def drawn(full, seed, values=None):
    """Arrays of a room's full shape, a row, a column, a flat row and a single number."""
    random = np.random.default_rng(seed)
    shapes = [full, full[1:], (full[0], 1), (1, full[1]), ()]
    return [values[random.integers(len(values), size=s)] if values is not None else random.normal(size=s) for s in shapes]


def arguments(m, arrays, dtype, shared=False, requires_grad=False):
    """New tensors; shared: the second is the last row of the first."""
    made = [m.tensor(a.tolist(), dtype=dtype).reshape(a.shape) for a in arrays]
    if shared and arrays[0].shape[0]:
        made[1] = made[0][-1]
    return [t.requires_grad_() for t in made] if requires_grad else made


def as_arrays(results):
    return [None if t is None else np.array(t.detach().tolist()).reshape(tuple(t.shape)) for t in results]


def agree(found, expected, tolerance, said):
    """Whether results agree within a tolerance; 0: bit for bit, signs of zeros included."""
    assert len(found) == len(expected), said
    for number, (a, b) in enumerate(zip(found, expected)):
        if a is None or b is None:
            assert a is b, f"{said}: value {number} is {a}, expected {b}"
            continue
        assert a.shape == b.shape, f"{said}: value {number} has shape {a.shape}, expected {b.shape}"
        if tolerance == 0:
            np.testing.assert_array_equal(a, b, err_msg=f"{said}: value {number}")
            kept = ~np.isnan(a)
            np.testing.assert_array_equal(np.signbit(a)[kept], np.signbit(b)[kept], err_msg=f"{said}: signs of value {number}")
        else:
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance, err_msg=f"{said}: value {number}")


def left_out(number):
    """Passes that are left out: none, all, one of them, and those a number draws."""
    every = ts.passes.names()
    return ((), every, (every[number % len(every)],), tuple(name for i, name in enumerate(every) if number >> i & 1))


def check(full, program, table, arrays, kind, number, tolerance=0.0, shared=False, gradients="", enable=()):
    """Every variant against the eager run, and that against PyTorch.

    kind: the name of the dtype; gradients: "inside" the compiled function, "outside" of it, or none
    """
    names = list(table)
    said = f"{full} {kind} {[(names[o % len(names)], i, j) for o, i, j in program]} {gradients}"
    wanted = {}
    for m in (torch, ts):
        watch: list = []
        function = function_of(Room(m, full), program, table, watch)
        watched = arguments(m, arrays, getattr(m, kind), shared, bool(gradients))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = (with_gradients(function, m) if gradients else function)(*watched)
        wanted[m] = as_arrays((*results, *watched))
        if m is torch:
            scale = max([1.0, *(float(v.detach().double().abs().nan_to_num(0, 0, 0).max()) for v in watch if v.numel())])
            scale = max([scale, *(float(np.abs(v).max()) for v in wanted[m] if v is not None and v.size and tolerance)])
            if scale > LARGEST and kind in ("float64", "float32"):
                assume(False)
    agree(wanted[ts], wanted[torch], tolerance * scale or LEAST, said + " as PyTorch")
    for disable in left_out(number):
        given = arguments(ts, arrays, getattr(ts, kind), shared, bool(gradients))
        function = function_of(Room(ts, full), program, table)
        options = {"disable": disable, "enable": enable}
        if gradients == "outside":
            compiled = ts.compile(function, **options)
            results = with_gradients(compiled, ts)(*given)
        else:
            compiled = ts.compile(with_gradients(function, ts) if gradients else function, **options)
            results = compiled(*given)
        agree(as_arrays((*results, *given)), wanted[ts], tolerance * scale, f"{said}, without {disable}")


@FEW
@given(room=ROOM, program=PROGRAM, seed=SEED, special=st.integers(0, 3), number=SEED, shared=st.booleans())
def test_exact_programs(room, program, seed, special, number, shared):
    values = np.array(POOL if special == 0 else POOL[:7])
    check(room, program, operations(room, EXACT, NOT_EMPTY), drawn(room, seed, values), "float64", number, shared=shared)


@FEW
@given(room=ROOM, program=PROGRAM, seed=SEED, single=st.booleans(), number=SEED, shared=st.booleans())
def test_smooth_programs(room, program, seed, single, number, shared):
    kind, tolerance = ("float32", 1e-4) if single else ("float64", 1e-11)
    table = operations(room, SMOOTH, NOT_EMPTY_SMOOTH)
    check(room, program, table, drawn(room, seed), kind, number, tolerance, shared)


@FEW
@given(room=ROOM, program=PROGRAM, seed=SEED, number=SEED)
def test_unsafe_algebra_changes_finite_results_little(room, program, seed, number):
    table = operations(room, SMOOTH, NOT_EMPTY_SMOOTH)
    check(room, program, table, drawn(room, seed), "float64", number, 1e-10, enable="unsafe-algebra")


@FEW
@given(room=ROOM, program=PROGRAM, seed=SEED, number=SEED, kind=st.sampled_from(["int64", "int32", "uint8"]))
def test_programs_of_integers(room, program, seed, number, kind):
    values = np.array([0, 1, 2, 3, 5, 7, 100, 255] + ([-1, -2, -100] if kind != "uint8" else []))
    check(room, program, operations(room, INTEGERS, NOT_EMPTY_INTEGERS), drawn(room, seed, values), kind, number)


@FEW
@given(room=ROOM, program=PROGRAM, seed=SEED, special=st.integers(0, 3), number=SEED, way=WAY)
def test_gradients_of_exact_programs(room, program, seed, special, number, way):
    values = np.array(POOL if special == 0 else POOL[:7])
    table = operations(room, EXACT, {}, NO_GRADIENT)
    check(room, program, table, drawn(room, seed, values), "float64", number, gradients=way)


@FEW
@given(room=ROOM, program=PROGRAM, seed=SEED, single=st.booleans(), number=SEED, way=WAY)
def test_gradients_of_smooth_programs(room, program, seed, single, number, way):
    kind, tolerance = ("float32", 1e-4) if single else ("float64", 1e-11)
    table = operations(room, SMOOTH, NOT_EMPTY_SMOOTH, NO_GRADIENT - {"running"})
    check(room, program, table, drawn(room, seed), kind, number, tolerance, gradients=way)


def test_a_wrong_rewrite_is_found():
    ts.passes.register("wrong", lambda node: node.inputs[0] + node.inputs[1] * 2, subject=ts.scalar.Fn.SUB)
    try:
        with pytest.raises(AssertionError):
            check((3, 4), [(1, 0, 1)], EXACT, drawn((3, 4), 0, np.array(POOL[2:7])), "float64", 0)
    finally:
        ts.passes.unregister("wrong")
