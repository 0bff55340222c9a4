"""Drawn programs compute the same with every pass on, with each off, and with all off.

`TENSORSMITH_FUZZ=2000` draws that many of each kind; without it a few. Two kinds:

exact   powers of two, zeros of both signs, NaN and infinities; operations whose results are exact in every order of computing:
        results are equal, NaN where NaN
smooth  drawn numbers and elementary functions, no operation that is discontinuous or ill-conditioned on computed values:
        results agree within 1e-11 (float64) or 1e-4 (float32) of the largest value on the way
"""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import tensorsmith as ts

EXAMPLES = int(os.environ.get("TENSORSMITH_FUZZ", "6"))
FEW = settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize=EXAMPLES < 50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
SHAPES = [(3, 4), (4,), (3, 1), (1, 4), ()]
FULL = (3, 4)


def fit(t):
    """Any value as one of the full shape."""
    return t if tuple(t.shape) == FULL else t.expand(FULL)


EXACT = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "mul": lambda a, b, c: a * b,
    "half": lambda a, b, c: a / 2,
    "neutral": lambda a, b, c: (a * 1 + 0) - 0.0,
    "negatives": lambda a, b, c: a.neg().neg() + -b,
    "maximum": lambda a, b, c: a.maximum(b),
    "relu": lambda a, b, c: a.relu(),
    "abs": lambda a, b, c: (-a).abs(),
    "where": lambda a, b, c: ts.where(c > 0, a, b),
    "sum": lambda a, b, c: fit(a).sum(0),
    "row sum": lambda a, b, c: fit(a).sum(1, keepdim=True),
    "max": lambda a, b, c: fit(a).amax(1, keepdim=True) + b,
    "turned": lambda a, b, c: fit(a).t().reshape(FULL),
    "slices": lambda a, b, c: ts.cat([fit(a)[1:], fit(b)[:1]], 0),
    "padded": lambda a, b, c: ts.nn.functional.pad(fit(a), (1, 2))[:, 1:5] + fit(b).flip(0),
    "contraction": lambda a, b, c: (fit(a)[:, :, None] * fit(b).t()[None]).sum(1)[:, :1] + a,
    "product": lambda a, b, c: (fit(a) @ fit(b).t()).sum(1, keepdim=True),
    "twice": lambda a, b, c: (a + b) * (b + a),
    "power": lambda a, b, c: a**2,
    "written": lambda a, b, c: fit(a).clone().t().add_(1).mul_(2).t(),
    "row written": lambda a, b, c: written(fit(a).clone(), b),
    "chosen": lambda a, b, c: fit(a)[ts.tensor([2, 0, 2])],
    "running": lambda a, b, c: fit(a).cumsum(1),
    "decided": lambda a, b, c: ts.cond(c.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (fit(a), fit(b))),
    "constants": lambda a, b, c: a + ts.full(FULL, 0.5) * 4,
}
SMOOTH = {
    **{name: EXACT[name] for name in EXACT if name not in ("max", "maximum", "relu", "abs")},
    "exp": lambda a, b, c: a.tanh().exp(),
    "divided": lambda a, b, c: a / (b * b + 1),
    "sigmoid": lambda a, b, c: a.sigmoid() * b,
    "softmax": lambda a, b, c: fit(a).softmax(1),
    "normed": lambda a, b, c: ts.nn.functional.layer_norm(fit(a) + c, (4,), eps=0.1),
    "mean": lambda a, b, c: fit(a).mean(0) - b,
    "variance": lambda a, b, c: fit(a).var(1, keepdim=True),
    "sin": lambda a, b, c: a.sin() + b.cos(),
}


def written(a, b):
    a[1] = fit(b)[0] * 2
    return a


PROGRAM = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=7)


def function_of(program, table, watch=None):
    """A program as a function: each step takes values made before; the last three are the result."""
    names = list(table)

    def function(*inputs):
        values = list(inputs)
        for operation, first, second in program:
            made = table[names[operation % len(names)]](
                values[first % len(values)], values[second % len(values)], inputs[first % len(inputs)]
            )
            values.append(made)
            if watch is not None:
                watch.append(made)
        return tuple(values[-3:])

    return function


def agree(found, expected, exact, tolerance, scale):
    for a, b in zip(found, expected):
        a, b = np.array(a.tolist()), np.array(b.tolist())
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def check(program, table, arrays, dtype, left_out, exact):
    """Every variant against the eager run."""
    tensors = [ts.tensor(a, dtype=dtype) for a in arrays]
    watched = list(tensors)
    expected = function_of(program, table, watched)(*tensors)
    scale = max([1.0, *(np.abs(np.nan_to_num(np.array(t.tolist()), posinf=0, neginf=0)).max(initial=0.0) for t in watched)])
    tolerance = 1e-11 if dtype is ts.float64 else 1e-4
    every = ts.passes.names()
    for disable in ((), every, (every[left_out % len(every)],)):
        compiled = ts.compile(function_of(program, table), disable=disable)
        agree(compiled(*tensors), expected, exact, tolerance, scale)


POOL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.0, float("nan"), float("inf"), -float("inf")]


def drawn(seed, values=None):
    random = np.random.default_rng(seed)
    return [values[random.integers(len(values), size=s)] if values is not None else random.normal(size=s) for s in SHAPES]


@FEW
@given(program=PROGRAM, seed=st.integers(0, 1 << 30), special=st.integers(0, 3), left_out=st.integers(0, 99))
def test_exact_programs(program, seed, special, left_out):
    values = np.array(POOL if special == 0 else POOL[:7])
    check(program, EXACT, drawn(seed, values), ts.float64, left_out, True)


@FEW
@given(program=PROGRAM, seed=st.integers(0, 1 << 30), single=st.booleans(), left_out=st.integers(0, 99))
def test_smooth_programs(program, seed, single, left_out):
    check(program, SMOOTH, drawn(seed), ts.float32 if single else ts.float64, left_out, False)


def test_a_wrong_rewrite_is_found():
    ts.passes.register("wrong", lambda node: node.inputs[0] + node.inputs[1] * 2, subject=ts.scalar.Fn.SUB)
    try:
        with pytest.raises(AssertionError):
            check([(1, 0, 1)], EXACT, drawn(0, np.array(POOL[2:7])), ts.float64, 0, True)
    finally:
        ts.passes.unregister("wrong")
