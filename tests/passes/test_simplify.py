"""Every rewrite: what it does, that it changes no value, and that nothing else fires."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tensorsmith.core.dtypes import (
    ALL,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from tensorsmith.ir import build as b
from tensorsmith.ir.constants import cast_value, holds
from tensorsmith.ir.emit import as_python
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.ir.verify import verify
from tensorsmith.passes.rewrites import SAFE
from tensorsmith.passes.simplify import simplify
from tensorsmith.passes.unsafe_rewrites import UNSAFE
from tensorsmith.scalar import functions as f
from tensorsmith.scalar.table import TABLE, Fn, Typing
from tensorsmith.targets.reference import interpret

F, I, U, B = float32, int32, uint8, bool_


def graph_of(function, dtype, shape=(2, 3)):
    graph = Graph()
    graph.outputs = (function(graph.input(shape, dtype)),)
    return graph


def concat_of(x, *others):
    return b.concat([x, *others], 1)


def picked(x):
    """One element of every row."""
    return x.graph.add(Primitive.GATHER, (x, b.full(x.graph, (2, 1), 1, int64)), axis=1)


def add(op, x, **attrs):
    return x.graph.add(op, (x,), **attrs)


def constant(x, value):
    """A constant beside x that the builders do not fold."""
    return b.full(x.graph, x.shape, value, x.dtype)


# rule -> (dtype, before, after); the right sides are built by hand
CASES = {
    "fold": (F, lambda x: x * f.exp(constant(x, 1.0)), lambda x: x * float(np.float32(math.e))),
    "fold cast": (F, lambda x: x * b.cast(b.full(x.graph, (2, 3), 3, int64), F), lambda x: x * 3.0),
    "view of constant": (F, lambda x: x * b.flip(constant(x, 2.0), (1,)), lambda x: x * 2.0),
    "x + -0": (F, lambda x: x + -0.0, lambda x: x),
    "x + 0 of integers": (I, lambda x: 0 + (x + 0), lambda x: x),
    "x - 0": (F, lambda x: x - 0.0, lambda x: x),
    "x * 1": (F, lambda x: 1.0 * (x * 1.0), lambda x: x),
    "x * -1": (F, lambda x: x * -1.0, lambda x: -x),
    "x / 2**k": (F, lambda x: x / -8.0 / 1.0, lambda x: x * -0.125),
    "x ** small": (F, lambda x: x**2.0, lambda x: x * x),
    "--x": (F, lambda x: f.neg(-x), lambda x: x),
    "not not x": (B, lambda x: f.logical_not(f.logical_not(x)), lambda x: x),
    "~~x": (I, lambda x: ~~x, lambda x: x),
    "a + -b": (F, lambda x: -x + f.exp(x), lambda x: f.exp(x) - x),
    "sum of parts": (
        F,
        lambda x: b.pad(f.exp(x), (0, 2), (0, 4)) + b.pad(x, (0, 5), (0, 1)),
        lambda x: b.pad(b.concat([f.exp(x) + 0.0, x + 0.0], 1), (0, 2), (0, 1)),
    ),
    "a - -b": (F, lambda x: f.exp(x) - -x, lambda x: f.exp(x) + x),
    "-a * -b": (F, lambda x: -x * -f.exp(x), lambda x: x * f.exp(x)),
    "-a / -b": (F, lambda x: -x / -f.exp(x), lambda x: x / f.exp(x)),
    "|-x|": (F, lambda x: f.abs(-x), lambda x: f.abs(x)),
    "x * 0 of integers": (I, lambda x: x * 0, lambda x: constant(x, 0)),
    "f(x, x)": (F, lambda x: f.maximum(x, x), lambda x: x),
    "x op x of integers": (I, lambda x: x - x, lambda x: constant(x, 0)),
    "x op 0 of bits": (I, lambda x: (0 | x) ^ (x >> 0), lambda x: constant(x, 0)),
    "x & 0": (I, lambda x: x & 0, lambda x: constant(x, 0)),
    "f(f(x))": (F, lambda x: f.relu(f.relu(x)), lambda x: f.relu(x)),
    "where decided": (F, lambda x: b.where(b.full(x.graph, (2, 3), True, B), x, 0.0), lambda x: x),
    "where not": (F, lambda x: b.where(f.logical_not(x > 0), x, 0.0), lambda x: b.where(x > 0, 0.0, x)),
    "where of where": (
        F,
        lambda x: b.where(x > 0, b.where(x > 0, x, 1.0), b.where(x > 0, 2.0, -x)),
        lambda x: b.where(x > 0, x, -x),
    ),
    "where True else False": (B, lambda x: b.where(x, constant(x, True), constant(x, False)), lambda x: x),
    "x and True": (B, lambda x: f.logical_and(x, True), lambda x: x),
    "x and False": (B, lambda x: f.logical_and(x, False), lambda x: constant(x, False)),
    "x or False": (B, lambda x: f.logical_or(False, x), lambda x: x),
    "x or True": (B, lambda x: f.logical_or(x, True), lambda x: constant(x, True)),
    "cast of cast": (F, lambda x: b.cast(b.cast(x, float64), float32), lambda x: x),
    "same shape": (F, lambda x: add(Primitive.SLICE, x, axis=0, start=0, length=2, step=1), lambda x: x),
    "reshape of reshape": (
        F,
        lambda x: add(Primitive.RESHAPE, b.reshape(x, (6,)), shape=(3, 2)),
        lambda x: b.reshape(x, (3, 2)),
    ),
    "permute less": (F, lambda x: add(Primitive.PERMUTE, b.permute(x, (1, 0)), axes=(1, 0)), lambda x: x),
    "expand of expand": (
        F,
        lambda x: add(Primitive.EXPAND, b.broadcast_to(b.reshape(x, (1, 6, 1)), (4, 6, 1)), shape=(4, 6, 5)),
        lambda x: b.broadcast_to(b.reshape(x, (1, 6, 1)), (4, 6, 5)),
    ),
    "slice of slice": (
        F,
        lambda x: b.slice_(b.slice_(b.concat([x, x, x], 1), 1, 1, 4, 2), 1, 1, 2, 2),
        lambda x: b.slice_(b.concat([x, x, x], 1), 1, 3, 2, 4),
    ),
    "slice of pad": (F, lambda x: b.slice_(b.pad(x, (0, 2), (0, 1), (1, 2)), 1, 2, 3, 2), lambda x: x),
    "slice of concat": (F, lambda x: b.slice_(b.concat([x, -x], 1), 1, 4, 2), lambda x: b.slice_(-x, 1, 1, 2)),
    "pick of cast": (F, lambda x: picked(b.cast(x, float64)), lambda x: b.cast(picked(x), float64)),
    "flip less": (F, lambda x: b.flip(b.flip(x, (0, 1)), (1,)), lambda x: b.flip(x, (0,))),
    "pad of nothing": (F, lambda x: add(Primitive.PAD, x, low=(0, 0), high=(0, 0), step=(1, 1)), lambda x: x),
    "concat of one": (F, lambda x: b.concat([b.slice_(x, 1, 0, 0), x], 1), lambda x: x),
    "concat of concat": (F, lambda x: b.concat([b.concat([x, -x], 1), x], 1), lambda x: b.concat([x, -x, x], 1)),
    "concat of slices": (F, lambda x: b.concat([b.slice_(x, 1, 0, 1), b.slice_(x, 1, 1, 2)], 1), lambda x: x),
    "reduce one element": (
        F,
        lambda x: b.reduce(b.reshape(x, (2, 1, 3)), "max", (1,), keepdim=True),
        lambda x: b.reshape(x, (2, 1, 3)),
    ),
    "scan one element": (
        F,
        lambda x: add(Primitive.SCAN, b.reshape(x, (2, 1, 3)), kind="prod", axis=1),
        lambda x: b.reshape(x, (2, 1, 3)),
    ),
    "x + 0": (F, lambda x: x + 0.0, lambda x: x),
    "x - 0 of either sign": (F, lambda x: x - -0.0, lambda x: x),
    "sum one element": (
        F,
        lambda x: b.reduce(b.reshape(x, (6, 1)), "sum", (1,)),
        lambda x: b.reshape(x, (6,)),
    ),
    "x * 0": (F, lambda x: x * 0.0, lambda x: constant(x, 0.0)),
    "x - x": (F, lambda x: x - x, lambda x: constant(x, 0.0)),
    "x / x": (F, lambda x: x / x, lambda x: constant(x, 1.0)),
    "x / c": (F, lambda x: x / 3.0, lambda x: x * (1 / 3)),
    "(x * c) * d": (F, lambda x: (x * 3.0) * 5.0, lambda x: x * 15.0),
    "(x + c) + d": (F, lambda x: 5.0 + (x + 3.0), lambda x: x + 8.0),
    "x ** 0.5, x ** -1": (F, lambda x: x**0.5, lambda x: f.sqrt(x)),
    "log exp x": (F, lambda x: f.log(f.exp(x)), lambda x: x),
    "exp log x": (F, lambda x: f.exp(f.log(x)), lambda x: x),
    "x - c": (F, lambda x: (x - 3.0) - 5.0, lambda x: x + -8.0),
    "a * b + a * c": (F, lambda x: x * f.sin(x) + f.cos(x) * x, lambda x: x * (f.sin(x) + f.cos(x))),
    "a * b - a * c": (F, lambda x: x * f.sin(x) - x * f.cos(x), lambda x: x * (f.sin(x) - f.cos(x))),
    "exp a * exp b": (F, lambda x: f.exp(x) * f.exp(f.sin(x)), lambda x: f.exp(x + f.sin(x))),
    "sqrt x * sqrt x": (F, lambda x: f.sqrt(x) * f.sqrt(x), lambda x: x),
    "1 / sqrt x": (F, lambda x: 1.0 / f.sqrt(x), lambda x: f.rsqrt(x)),
    "log(1 + x)": (F, lambda x: f.log(1.0 + x), lambda x: f.log1p(x)),
    "-(a - b)": (F, lambda x: f.neg(x - f.sin(x)), lambda x: f.sin(x) - x),
}


def printed(graph):
    """Source of the graph with constants as kernels see them; equal for equal graphs made in the same order."""
    return as_python(simplify(graph), "graph").split("def ")[1]


def values_for(dtype, shape):
    special = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 3e38, 1e-45, -7.25, 1e4]
    count = math.prod(shape)
    if dtype.kind == "f":
        return [np.resize(np.roll(special, -i), count).reshape(shape).astype(dtype.numpy) for i in range(len(special))]
    whole = [0, 1, 2, 127, 128, 255, -1, -128, 2**31 - 1, -(2**31), 7]
    return [np.resize(np.roll(whole, -i), count).reshape(shape).astype(dtype.numpy) for i in range(len(whole))]


def assert_same_values(left, right, dtype, shape):
    for x in values_for(dtype, shape):
        for first, second in zip(interpret(left, [x]), interpret(right, [x]), strict=True):
            np.testing.assert_array_equal(first, second)
            if first.dtype.kind == "f":
                zeros = first == 0
                np.testing.assert_array_equal(np.signbit(first[zeros]), np.signbit(second[zeros]))


@pytest.mark.parametrize("rule", CASES)
def test_rule(rule):
    dtype, before, after = CASES[rule]
    unsafe = rule in {r.name for r in UNSAFE}
    fired: Counter[str] = Counter()
    given_graph, expected = graph_of(before, dtype), graph_of(after, dtype)
    result = simplify(given_graph, unsafe=unsafe, fired=fired)
    verify(result)
    assert fired[rule] > 0
    assert printed(result) == printed(expected)
    if unsafe:
        assert simplify(given_graph).outputs[0].op is not Primitive.INPUT  # not unless it is asked for
    else:
        assert_same_values(given_graph, result, dtype, (2, 3))


def test_every_rule_has_a_case():
    assert set(CASES) == {rule.name for rule in (*SAFE, *UNSAFE)}


UNCHANGED = [
    (F, lambda x: b.pad(x, (0, 2), (0, 1)) + b.pad(x, (0, 0), (0, 3))),  # the two meet
    (F, lambda x: b.pad(x, (0, 3), (0, 0)) + b.pad(b.slice_(b.concat([x, -x], 1), 0, 0, 1), (1, 0), (0, 0))),  # two axes
    (F, lambda x: x + 0.0),
    (F, lambda x: x - -0.0),
    (F, lambda x: x * 0.0),
    (F, lambda x: x - x),
    (F, lambda x: x / 3.0),
    (F, lambda x: x / 2.0**-149),
    (F, lambda x: x / math.inf),
    (F, lambda x: x**0.5),
    (F, lambda x: b.cast(b.cast(x, float16), float32)),
    (U, lambda x: f.abs(-x)),
    (int8, lambda x: b.cast(b.cast(x, float32), uint8)),
    (int16, lambda x: b.cast(b.cast(x, int8), int16)),
    (I, lambda x: f.floor_divide(x, constant(x, 0))),
    (F, lambda x: b.slice_(b.concat([x, -x], 1), 1, 2, 2)),
    (F, lambda x: b.slice_(b.pad(x, (0, 2), (0, 1)), 1, 1, 3)),
    (F, lambda x: b.permute(x, (1, 0))),
    (F, lambda x: b.where(x == x, x, 0.0)),
    (F, lambda x: b.concat([b.slice_(x, 1, 1, 2), b.slice_(x, 1, 0, 1)], 1)),
    (F, lambda x: b.concat([b.concat([x, -x], 0), b.concat([x, x], 0)], 1)),
    (F, lambda x: f.neg(x - f.sin(x))),
    (I, lambda x: b.where(b.cast(f.bitwise_not(x), B), x, 0)),
]


@pytest.mark.parametrize("number", range(len(UNCHANGED)))
def test_what_would_change_a_value_stays(number):
    dtype, function = UNCHANGED[number]
    fired: Counter[str] = Counter()
    simplify(graph_of(function, dtype), fired=fired)
    assert not fired


def test_an_integer_division_by_zero_is_left_to_the_run():
    graph = Graph()
    graph.outputs = (f.floor_divide(graph.constant(1, int64), graph.constant(0, int64)),)
    with pytest.raises(ZeroDivisionError):
        interpret(simplify(graph), [])


@pytest.mark.parametrize("fn", [fn for fn in Fn if fn is not Fn.NEXTAFTER], ids=lambda fn: fn.value)
@pytest.mark.parametrize("dtype", [float32, int8, uint8, bool_], ids=lambda d: d.name)
def test_folding_agrees_with_the_reference(fn, dtype):
    typing = TABLE[fn].typing
    allowed = {Typing.FLOAT: "f", Typing.INTEGER: "iub"}.get(typing, "fiub")
    if dtype.kind not in allowed:
        dtype = float32 if typing is Typing.FLOAT else int8
    if fn in (Fn.NEG, Fn.SUB, Fn.LEFT_SHIFT, Fn.RIGHT_SHIFT, Fn.ABS, Fn.POW) and dtype is bool_:
        dtype = int8  # not defined on bool
    pool = {"f": [0.3, -0.7, 2.0, math.nan, -math.inf], "i": [5, -3, 1, -128], "u": [5, 3, 255], "b": [True, False]}
    for first in pool[dtype.kind]:
        for second in pool[dtype.kind]:
            if not second and fn in (Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD):
                continue
            graph = Graph()
            operands = [graph.constant(v, dtype) for v in (first, second)][: TABLE[fn].arity]
            if typing is Typing.SELECT:
                operands = [graph.constant(first == second, bool_), *operands[:2]]
            graph.outputs = (b.map_(fn, *operands),)
            folded = simplify(graph)
            assert [node.op for node in folded] == [Primitive.CONST]
            np.testing.assert_allclose(interpret(folded, [])[0], interpret(graph, [])[0], rtol=2e-7)


def test_casts_of_constants_saturate_and_round():
    assert cast_value(math.nan, float32, int8) == 0
    assert [cast_value(v, float32, uint8) for v in (-1.5, 300.0, math.inf, 7.9)] == [0, 255, 255, 7]
    assert cast_value(300, int32, uint8) == 44 and cast_value(200, uint8, int8) == -56
    assert cast_value(0.1, float32, float64) == float(np.float32(0.1))
    graph = Graph()
    assert b.cast(graph.constant(math.inf, float32), int8).attrs["value"] == 127


@pytest.mark.parametrize("source", [d for d in ALL if d.kind != "c"], ids=lambda d: d.name)
def test_holds_means_that_the_way_back_is_exact(source):
    if source.kind == "f":
        with np.errstate(over="ignore"):
            samples = np.array([1 / 3, -65504, 1e30, 6e-8, 1e-40, 257, math.inf]).astype(source.numpy)
    elif source.kind == "b":
        samples = np.array([False, True])
    else:
        limits = np.iinfo(source.numpy)
        samples = np.array([limits.min, limits.max, limits.max // 3, 1], dtype=source.numpy)
    for target in ALL:
        if target.kind != "c" and holds(target, source):
            with np.errstate(all="ignore"):
                there = samples.astype(target.numpy)
            np.testing.assert_array_equal(there.astype(source.numpy), samples)
            if target.kind != "b":
                assert [float(v) for v in there] == [float(v) for v in samples]


UNARY = [f.neg, f.abs, f.relu, f.floor, lambda x: b.cast(b.cast(x, float64), float32), lambda x: b.flip(x, (1,)),
         lambda x: b.permute(b.permute(x, (1, 0)), (1, 0)), lambda x: b.reshape(b.reshape(x, (9,)), (3, 3)),
         lambda x: b.slice_(b.pad(x, (0, 1), (2, 0)), 0, 0, 3) if x.ndim == 2 else x,
         lambda x: b.slice_(b.concat([x, x], 0), 0, 3, 3)]  # fmt: skip
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, math.inf, math.nan])
BINARY = ["add", "sub", "mul", "div"]
STEPS = st.one_of(
    st.tuples(st.just("unary"), st.integers(0, len(UNARY) - 1)),
    st.tuples(st.just("number"), st.sampled_from([*BINARY, "maximum", "pow"]), NUMBERS, st.booleans()),
    st.tuples(st.just("pair"), st.sampled_from(BINARY), st.integers(0, 20)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=8))
def test_random_graphs_keep_their_values(steps):
    graph = Graph()
    values = [graph.input((3, 3), float32)]
    for step in steps:
        x = values[-1]
        if step[0] == "unary":
            x = UNARY[step[1]](x)
            if x.shape != (3, 3):
                x = b.slice_(x, 1, 0, 3)
        elif step[0] == "number":
            x = getattr(f, step[1])(*((step[2], x) if step[3] else (x, step[2])))
        else:
            x = getattr(f, step[1])(x, values[step[2] % len(values)])
        values.append(x)
    graph.outputs = (values[-1], values[len(values) // 2])
    result = simplify(graph)
    verify(result)
    assert_same_values(graph, result, float32, (3, 3))


def test_dead_code_goes_and_inputs_stay():
    graph = Graph()
    x, y = graph.input((2,), float32), graph.input((2,), float32)
    f.exp(x)
    graph.outputs = (-y,)
    result = simplify(graph)
    assert len(result.nodes) == 3 and len(result.inputs) == 2
    assert result.outputs[0].inputs[0] is result.inputs[1]


def test_a_long_chain_does_not_recurse():
    graph = Graph()
    value = graph.input((2,), float32)
    for _ in range(5_000):
        value = f.sin(f.neg(-value))
    graph.outputs = (value,)
    assert len(simplify(graph).nodes) == 5_001
