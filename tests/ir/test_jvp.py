"""jvp: every rule against differences and against vjp, what is saved, what has no tangent, overrides."""

import math
import zlib

import numpy as np
import pytest

from tensorsmith.core.dtypes import bool_, float32, float64, int64
from tensorsmith.ir import build as b
from tensorsmith.ir.convolution import convolution
from tensorsmith.ir.gradients import SOURCES, put, scan, scatter
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.ir.jvp import RULES, jvp
from tensorsmith.ir.vjp import Saved, vjp
from tensorsmith.scalar import functions as f
from tensorsmith.scalar.table import TABLE, Fn
from tensorsmith.targets.reference import interpret

_DTYPES = {"f": float64, "i": int64, "b": bool_}


def graph_of(function, arrays):
    graph = Graph()
    inputs = [graph.input(x.shape, _DTYPES[x.dtype.kind]) for x in arrays]
    outputs = function(*inputs)
    graph.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return graph


def pushed(forward, arrays, outputs, tangents):
    """The tangents of the outputs, None where there is none."""
    values = [arrays[s.number] if s.kind == "input" else outputs[s.number] for s in forward.saved]
    found = interpret(forward.graph, values + [tangents[i] for i in forward.tangents])
    return [None if place is None else found[place] for place in forward.results]


def check(function, *arrays, step=1e-6):
    """Tangents are the difference quotients along them, from results and without them; <u, J v> is <J^T u, v>."""
    arrays = [np.asarray(x) for x in arrays]
    graph = graph_of(function, arrays)
    random = np.random.default_rng(zlib.crc32(str(graph).encode()))
    outputs = interpret(graph, arrays)
    moves = tuple(x.dtype.kind == "f" for x in arrays)
    tangents = [random.uniform(-1, 1, x.shape) if moved else None for x, moved in zip(arrays, moves)]
    sides = []
    for sign in (1, -1):
        sides.append(interpret(graph, [x if t is None else x + sign * step * t for x, t in zip(arrays, tangents)]))
    expected = [(up - down) / (2 * step) if up.dtype.kind == "f" else None for up, down in zip(*sides)]
    for from_outputs in (True, False):
        forward = jvp(graph, moves, None, from_outputs)
        found = pushed(forward, arrays, outputs, tangents)
        assert from_outputs or all(s.kind == "input" for s in forward.saved)
        for a, e in zip(found, expected, strict=True):
            assert (a is None) == (e is None)
            if e is not None:
                np.testing.assert_allclose(a, e, rtol=1e-6, atol=1e-7)
    backward = vjp(graph, moves)
    cotangents = [None if e is None else random.uniform(-1, 1, e.shape) for e in expected]
    values = [arrays[s.number] if s.kind == "input" else outputs[s.number] for s in backward.saved]
    gradients = interpret(backward.graph, values + [cotangents[i] for i in backward.grad_outputs])
    forwards = sum(float((u * t).sum()) for u, t in zip(cotangents, found) if u is not None)
    backwards = sum(float((tangents[i] * gradients[p]).sum()) for i, p in enumerate(backward.results) if p is not None)
    assert math.isclose(forwards, backwards, rel_tol=1e-9, abs_tol=1e-9)


_DOMAIN = {  # where the arguments have to stay for a smooth function
    Fn.ASIN: (-0.8, 0.8), Fn.ACOS: (-0.8, 0.8), Fn.ATANH: (-0.8, 0.8), Fn.ERFINV: (-0.8, 0.8), Fn.ACOSH: (1.2, 3),
    Fn.REMAINDER: (0.6, 0.95), Fn.FMOD: (0.6, 0.95), Fn.TAN: (-1, 1),
}  # fmt: skip
_FLOATING = [fn for fn, row in TABLE.items() if row.differentiable and fn not in (Fn.WHERE, Fn.NEXTAFTER)]


def _array(*shape, low=0.43, high=2.03):
    return np.random.default_rng(math.prod(shape) + len(shape)).permutation(
        np.linspace(low, high, math.prod(shape))
    ).reshape(shape)  # fmt: skip


@pytest.mark.parametrize("fn", _FLOATING, ids=lambda fn: fn.value)
def test_scalar_functions(fn):
    low, high = _DOMAIN.get(fn, (0.4, 2.0))
    arrays = [np.random.default_rng(i).uniform(low, high, (3, 4)) for i in range(TABLE[fn].arity)]
    check(lambda *xs: b.map_(fn, *xs), *arrays)


X, INDEX = _array(3, 4), np.array([[0, 2, 1, 0], [2, 2, 1, 0]])
CASES = {
    "where": (lambda c, x, y: b.where(c, x, y), X > 1, X, X + 1),
    "cast": (lambda x: b.cast(b.cast(x, float64), int64) + x, X),
    "reshape": (lambda x: b.reshape(x, (2, 6)), X),
    "permute": (lambda x: b.permute(x, (1, 0)), X),
    "expand": (lambda x: b.broadcast_to(x, (2, 3, 4)), X),
    "slice": (lambda x: b.slice_(x, 1, 1, 2, 2), X),
    "flip": (lambda x: b.flip(x, (0,)), X),
    "diagonal": (lambda x: x.graph.add(Primitive.DIAGONAL, (x,), offset=1, axis1=0, axis2=1), X),
    "unfold": (lambda x: x.graph.add(Primitive.UNFOLD, (x,), axis=1, size=2, step=1), X),
    "as_strided": (lambda x: x.graph.add(Primitive.AS_STRIDED, (x,), shape=(2, 3), strides=(1, 2), offset=1), X),
    "again": (lambda x: x.graph.add(Primitive.AGAIN, (x,), part=1), X),
    "pad": (lambda x: b.pad(x, (1, 0), (0, 2), (2, 1)), X),
    "concat": (lambda x, y, c: b.concat([x, b.cast(c, float64), y], 0), X, X + 1, X > 1),
    "pair": (lambda x, c: x.graph.add(Primitive.PAIR, (x, b.cast(c, float64))), X, X > 1),
    "take": (lambda x, i: x.graph.add(Primitive.TAKE, (x, i), axis=1), X, np.array([3, 0, 0])),
    "gather": (lambda x, i: x.graph.add(Primitive.GATHER, (x, i), axis=0), X, INDEX),
    "scatter": (lambda x, i, s: scatter(x, i, s, 0, "add"), X, INDEX, _array(2, 4)),
    "scatter, set": (lambda x, i, s: scatter(x, i, s, 0, "set"), X, np.array([[0, 2, 1, 0]]), _array(1, 4)),
    "put": (lambda x, i, s: put(x, i, s, 1, "set"), X, np.array([3, 0]), _array(3, 2)),
    "put, add": (lambda x, i, s: put(x, i, s, 1, "add"), X, np.array([3, 3]), _array(3, 2)),
    "matmul": (lambda x, y: b.matmul(x, y), X, _array(4, 2)),
    "matmul, one side": (lambda x: b.matmul(x, b.full(x.graph, (4, 2), 0.5, float64)), X),
    "conv": (lambda x, y: convolution(x, y, (2,), (1,), (-1,), (2,), (3,), 2), _array(2, 4, 5), _array(6, 2, 3)),
    "conv, one side": (lambda y: convolution(b.full(y.graph, (1, 2, 5), 0.5, float64), y, *[(1,)] * 5, 1), _array(3, 2, 2)),
    "matmul, square": (lambda x: b.matmul(x, b.permute(x, (1, 0))), X),
    **{f"reduce {kind}": (lambda x, kind=kind: b.reduce(x, kind, (1,)), X) for kind in ("sum", "prod", "max", "min")},
    **{
        f"scan {kind}, axis {axis}": (lambda x, kind=kind, axis=axis: scan(x, kind, axis), X)
        for kind in ("sum", "prod", "max", "min", "logsumexp")
        for axis in (0, 1)
    },
    "argmax": (lambda x: (b.reduce(x, "argmax", (1,)), f.exp(x)), X),
    "a composition": (lambda x, y: (f.exp(b.reduce(x * y, "sum", (1,))), b.reduce(f.sin(x), "max")), X, X + 1),
}


@pytest.mark.parametrize("name", CASES)
def test_rules(name):
    function, *arrays = CASES[name]
    check(function, *arrays)


def test_every_primitive_has_a_rule_or_is_a_source():
    assert set(RULES) | SOURCES == set(Primitive)
    assert not set(RULES) & SOURCES


def test_products_with_zeros():
    for x in ([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]],):
        check(lambda x: b.reduce(x, "prod", (1,)), x)
        check(lambda x: scan(x, "prod", 1), x)


def test_ties_share_a_tangent_as_they_share_a_gradient():
    x, tangent = np.array([3.0, 3.0, 1.0]), np.array([1.0, 5.0, 100.0])
    graph = graph_of(lambda x: (b.reduce(x, "max", (0,)), f.maximum(x, b.flip(x, (0,)))), [x])
    found = pushed(jvp(graph, (True,)), [x], interpret(graph, [x]), [tangent])
    assert found[0] == 3.0
    assert found[1].tolist() == [1.0, 5.0, 1.0]


def test_running_minimum_takes_the_last_of_equals():
    x, tangent = np.array([3.0, 1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0, 4.0])
    graph = graph_of(lambda x: scan(x, "min", 0), [x])
    assert pushed(jvp(graph, (True,)), [x], interpret(graph, [x]), [tangent])[0].tolist() == [1.0, 2.0, 3.0, 3.0]


def test_logsumexp_of_nothing_yet():
    x = np.array([-math.inf, -math.inf, 1.0, 2.0])
    graph = graph_of(lambda x: scan(x, "logsumexp", 0), [x])
    found = pushed(jvp(graph, (True,)), [x], interpret(graph, [x]), [np.ones(4)])[0]
    assert np.isfinite(found[2:]).all() and found[3] == pytest.approx(1.0)


def test_what_is_saved():
    def saved(function, moves):
        return jvp(graph_of(function, [X, X]), moves).saved

    assert saved(lambda x, y: f.exp(x), (True, False)) == (Saved("output", 0),)
    assert saved(lambda x, y: b.permute(f.tanh(x), (1, 0)), (True, False)) == (Saved("output", 0),)
    assert saved(lambda x, y: x * y, (True, False)) == (Saved("input", 1),)
    assert saved(lambda x, y: x + y, (True, True)) == ()


def test_an_output_has_a_tangent_only_where_it_depends():
    graph = graph_of(lambda x, y: (f.exp(x), f.exp(y), f.lt(x, y), f.floor(x), x), [X, X])
    forward = jvp(graph, (True, False))
    assert [place is not None for place in forward.results] == [True, False, False, True, True]
    assert jvp(graph, (False, False)).results == (None,) * 5
    flat = pushed(forward, [X, X], interpret(graph, [X, X]), [np.ones_like(X)])
    assert not flat[3].any() and flat[4].all()


def test_an_operator_with_its_own_gradient_moves_by_the_transpose():
    def own(inputs, outputs, grads):
        (x,), (grad,) = inputs, grads
        return [grad * 3.0 * x]

    graph = graph_of(f.exp, [X])
    found = pushed(jvp(graph, (True,), own), [X], interpret(graph, [X]), [np.full_like(X, 2.0)])
    np.testing.assert_allclose(found[0], 6.0 * X)


def test_half_precision_keeps_its_dtype():
    graph = Graph()
    x = graph.input((3,), float32)
    graph.outputs = (b.reduce(x, "max"), x * 2.5, f.pow(x, 3))
    assert [node.dtype for node in jvp(graph, (True,)).graph.outputs] == [float32] * 3


def test_a_routine_without_a_rule_is_named():
    graph = Graph()
    x = graph.input((3,), float64)
    attrs = {"name": "searchsorted", "shape": (3,), "dtype": float64}
    graph.outputs = (graph.add(Primitive.LIBRARY, (x,), **attrs),)
    with pytest.raises(NotImplementedError, match="searchsorted"):
        jvp(graph, (True,))
