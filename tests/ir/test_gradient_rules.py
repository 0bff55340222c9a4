"""Every gradient rule against central differences in float64, first and second order, through the reference."""

import math
import zlib

import numpy as np
import pytest

from tensorsmith.core.dtypes import bfloat16, bool_, float32, float64, int64
from tensorsmith.ir import build as b
from tensorsmith.ir.convolution import convolution
from tensorsmith.ir.gradients import RULES, SOURCES, put, scan, scatter
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.ir.vjp import vjp
from tensorsmith.scalar.table import TABLE, Fn
from tensorsmith.targets.reference import interpret


def build(function, arrays):
    graph = Graph()
    dtypes = {"f": float64, "i": int64, "b": bool_}
    inputs = [graph.input(x.shape, dtypes[x.dtype.kind]) for x in arrays]
    graph.outputs = (function(*inputs),)
    return graph


def numeric(graph, arrays, cotangents, number, step=1e-6):
    """d(sum of cotangents times outputs)/d(input number) by central differences."""
    gradient = np.zeros_like(arrays[number])
    for position in np.ndindex(gradient.shape):
        sides = []
        for sign in (1, -1):
            moved = [x.copy() for x in arrays]
            moved[number][position] += sign * step
            outputs = interpret(graph, moved)
            sides.append(sum(float((c * y).sum()) for c, y in zip(cotangents, outputs) if c is not None))
        gradient[position] = (sides[0] - sides[1]) / (2 * step)
    return gradient


def backward_values(backward, arrays, outputs, cotangents):
    saved = [arrays[s.number] if s.kind == "input" else outputs[s.number] for s in backward.saved]
    return saved + [cotangents[i] for i in backward.grad_outputs]


def check(function, *arrays, orders=2, rtol=1e-6, atol=1e-7):
    """The derived gradient of each floating input equals the numeric one; then the same of the backward graph."""
    arrays = [np.asarray(x) for x in arrays]
    graph = build(function, arrays)
    generator = np.random.default_rng(5)
    for _ in range(orders):
        outputs = interpret(graph, arrays)
        cotangents = [generator.uniform(0.5, 1.5, y.shape) if y.dtype.kind == "f" else None for y in outputs]
        needs = tuple(x.dtype.kind == "f" for x in arrays)
        backward = vjp(graph, needs)
        values = backward_values(backward, arrays, outputs, cotangents)
        gradients = interpret(backward.graph, values)
        for number in range(len(arrays)):
            if not needs[number]:
                assert backward.results[number] is None
                continue
            expected = numeric(graph, arrays, cotangents, number)
            place = backward.results[number]
            if place is None:
                np.testing.assert_allclose(expected, 0, atol=atol)
            else:
                np.testing.assert_allclose(gradients[place], expected, rtol=rtol, atol=atol)
        if not backward.graph.outputs:
            return
        graph, arrays = backward.graph, values


DOMAIN = {  # where the argument has to stay for a finite, smooth function
    Fn.LOG: (0.3, 3), Fn.LOG2: (0.3, 3), Fn.LOG10: (0.3, 3), Fn.SQRT: (0.3, 3), Fn.RSQRT: (0.3, 3), Fn.POW: (0.3, 3),
    Fn.ASIN: (-0.8, 0.8), Fn.ACOS: (-0.8, 0.8), Fn.ATANH: (-0.8, 0.8), Fn.ERFINV: (-0.8, 0.8), Fn.ACOSH: (1.2, 3),
    Fn.LOG1P: (-0.5, 3), Fn.LGAMMA: (0.3, 4), Fn.DIGAMMA: (0.3, 4), Fn.RECIPROCAL: (0.4, 2), Fn.DIV: (0.4, 2),
    Fn.RELU: (0.3, 2), Fn.REMAINDER: (0.6, 0.95), Fn.FMOD: (0.6, 0.95), Fn.TAN: (-1, 1),
}  # fmt: skip
FLOATING = [fn for fn, row in TABLE.items() if row.differentiable and fn is not Fn.WHERE]


@pytest.mark.parametrize("fn", FLOATING, ids=lambda fn: fn.value)
def test_pointwise(fn):
    low, high = DOMAIN.get(fn, (-2, 2))
    generator = np.random.default_rng(zlib.crc32(fn.value.encode()))
    arrays = [generator.uniform(low, high, (5,)) for _ in range(TABLE[fn].arity)]
    if fn in (Fn.REMAINDER, Fn.FMOD):
        arrays[0] = arrays[0] + np.array([1, 2, 3, -4, -5.0])
    check(lambda *xs: b.map_(fn, *xs), *arrays, rtol=1e-5, atol=1e-6)


def test_a_runtime_scalar_beside_a_zero_dim_value_keeps_its_dtype():
    graph = Graph()
    x, exponent = graph.input((), float64), graph.input((), float64, param=True)
    graph.outputs = (graph.add(Primitive.MAP, (x, exponent), fn=Fn.POW),)
    backward = vjp(graph, (True, False))
    (gradient,) = interpret(backward.graph, [np.array(1.7), 3.1, np.array(1.0)])
    assert gradient == pytest.approx(3.1 * 1.7**2.1, rel=1e-14)
    # the reference does not round between floats, so it takes a look at the nodes
    assert {node.dtype for node in backward.graph if node.dtype.is_floating_point} == {float64}


def test_relu_of_a_negative_input():
    check(lambda x: b.map_(Fn.RELU, x), np.array([-2.0, -0.1, 0.4]), orders=1)


def test_where_selects_and_blocks_nan_of_the_side_not_taken():
    condition, x = np.array([True, False, True]), np.array([0.5, -1.0, 2.0])
    check(lambda c, x, y: b.where(c, x, y), condition, x, x[::-1].copy())
    graph = build(lambda c, x: b.where(c, b.map_(Fn.LOG, x), 0), [condition, x])
    backward = vjp(graph, (False, True))
    values = backward_values(backward, [condition, x], [None], [np.ones(3)])
    # log of the masked -1 is NaN; its gradient 0 * 1 / -1 is not
    np.testing.assert_array_equal(interpret(backward.graph, values)[0], [2.0, 0.0, 0.5])


def uniform(*shape, low=-2.0, high=2.0, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape)


def strided(x, shape, strides, offset):
    return x.graph.add(Primitive.AS_STRIDED, (x,), shape=shape, strides=strides, offset=offset)


def diagonal(x, offset, axis1, axis2):
    return x.graph.add(Primitive.DIAGONAL, (x,), offset=offset, axis1=axis1, axis2=axis2)


def unfold(x, axis, size, step):
    return x.graph.add(Primitive.UNFOLD, (x,), axis=axis, size=size, step=step)


VIEWS = {
    "reshape": (lambda x: b.reshape(x, (4, 3)), (3, 4)),
    "permute": (lambda x: b.permute(x, (2, 0, 1)), (2, 3, 4)),
    "expand": (lambda x: b.broadcast_to(x, (4, 2, 3)), (2, 1)),
    "slice": (lambda x: b.slice_(x, 1, 1, 2, 2), (2, 6)),
    "slice to the end": (lambda x: b.slice_(x, 0, 2, 3), (5, 2)),
    "slice of nothing": (lambda x: b.slice_(x, 0, 2, 0), (5, 2)),
    "flip": (lambda x: b.flip(x, (0, 2)), (2, 2, 3)),
    "diagonal": (lambda x: diagonal(x, 0, 0, 1), (3, 4)),
    "diagonal above": (lambda x: diagonal(x, 2, 2, 0), (4, 2, 3)),
    "diagonal below": (lambda x: diagonal(x, -1, 0, 2), (4, 2, 3)),
    "unfold": (lambda x: unfold(x, 0, 3, 1), (6, 2)),
    "unfold with gaps": (lambda x: unfold(x, 1, 2, 3), (2, 9)),
    "as_strided overlapping": (lambda x: strided(x, (3, 3), (2, 1), 1), (2, 4)),
    "as_strided with stride 0": (lambda x: strided(x, (3, 2), (0, 3), 0), (5,)),
    "again": (lambda x: x.graph.add(Primitive.AGAIN, (x,), part=1), (2, 3)),
    "pad": (lambda x: b.pad(x, (1, 0), (2, 1), (3, 1)), (2, 3)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    function, shape = VIEWS[name]
    check(lambda x: function(x) * function(x), uniform(*shape))


def test_concat():
    check(lambda x, y: b.concat([x * x, y, x], 1), uniform(2, 3), uniform(2, 1, seed=1))


@pytest.mark.parametrize(
    "x, w, attrs",
    [
        ((2, 4, 6), (6, 2, 3), ((2,), (1,), (2,), (2,), (1,), 2)),  # stride, low, high, dilation, step, groups
        ((1, 2, 3, 4), (2, 2, 2, 3), ((1, 2), (0, 1), (1, -1), (1, 1), (2, 3), 1)),
        ((2, 2, 5), (2, 1, 2), ((3,), (-1,), (0,), (1,), (1,), 2)),
        ((2, 1, 2), (3, 1, 2), ((1,), (2,), (3,), (2,), (2,), 1)),
    ],
)
def test_conv(x, w, attrs):
    check(lambda x, w: convolution(x, w, *attrs), uniform(*x), uniform(*w, seed=1))


def test_pair():
    check(lambda x, y: x.graph.add(Primitive.PAIR, (x * y, y)) * 2.0, uniform(2, 3), uniform(2, 3, seed=1))


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_reduce(kind, axis):
    check(lambda x: b.reduce(x, kind, (axis,)), uniform(2, 3, 4))
    check(lambda x: b.reduce(x, kind, (axis,), keepdim=True), uniform(1, 1, 1))


@pytest.mark.parametrize("zeros", [[], [1], [0, 3], [0, 1, 2, 3]])
def test_prod_with_zeros_to_third_order(zeros):
    x = uniform(4)
    x[zeros] = 0.0
    check(lambda x: b.reduce(x, "prod", (0,)), x, orders=3)
    check(lambda x: scan(x, "prod", 0), x, orders=3)


def test_max_shares_equally_among_ties():
    graph = build(lambda x: b.reduce(x, "max", (0,)), [np.zeros(4)])
    backward = vjp(graph, (True,))
    x = np.array([3.0, 1.0, 3.0, 3.0])
    values = backward_values(backward, [x], [np.array(3.0)], [np.array(6.0)])
    np.testing.assert_array_equal(interpret(backward.graph, values)[0], [2, 0, 2, 2])


def test_max_over_axes_apart_shares_among_all_ties():
    x = np.array([[[1.0, 1.0], [0, 0]], [[1.0, 0], [0, 0]]])
    graph = build(lambda x: b.reduce(x, "max", (0, 2)), [x])
    (out,) = interpret(graph, [x])
    np.testing.assert_array_equal(out, x.max((0, 2)))
    backward = vjp(graph, (True,))
    values = backward_values(backward, [x], [out], [np.array([6.0, 12.0])])
    np.testing.assert_array_equal(interpret(backward.graph, values)[0], [[[2, 2], [3, 3]], [[2, 0], [3, 3]]])
    kept = build(lambda x: b.reduce(x, "min", (0, 2), keepdim=True), [x])
    np.testing.assert_array_equal(interpret(kept, [x])[0], x.min((0, 2), keepdims=True))


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "logsumexp"])
@pytest.mark.parametrize("shape, axis", [((7,), 0), ((3, 4), 0), ((2, 5, 2), 1), ((2, 1), 1)])
def test_scan(kind, shape, axis):
    check(lambda x: scan(x, kind, axis), uniform(*shape))


def test_running_max_gives_the_gradient_to_the_last_holder():
    x = np.array([1.0, 3.0, 2.0, 3.0, math.nan, 5.0])
    backward = vjp(build(lambda x: scan(x, "max", 0), [x]), (True,))
    out = np.maximum.accumulate(x)
    values = backward_values(backward, [x], [out], [np.array([1.0, 2, 4, 8, 16, 32])])
    np.testing.assert_array_equal(interpret(backward.graph, values)[0], [1, 6, 0, 8, 48, 0])


def test_running_logsumexp_from_minus_infinity():
    x = np.array([-math.inf, -math.inf, 0.0, 800.0, -800.0])
    graph = build(lambda x: scan(x, "logsumexp", 0), [x])
    backward = vjp(graph, (True,))
    values = backward_values(backward, [x], interpret(graph, [x]), [np.ones(5)])
    np.testing.assert_allclose(interpret(backward.graph, values)[0], [0, 0, 1, 2, 0], atol=1e-12)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_matmul(batch):
    check(b.matmul, uniform(*batch, 3, 4), uniform(*batch, 4, 2, seed=1))


def test_matmul_of_broadcast_batches():
    check(b.matmul, uniform(2, 1, 2, 3), uniform(3, 3, 2, seed=1))


def put_(reduce, axis):
    return lambda base, index, src: put(base, index, src, axis, reduce)


def scatter_(reduce, axis):
    return lambda base, index, src: scatter(base, index, src, axis, reduce)


@pytest.mark.parametrize("axis", [0, 1])
def test_take_and_put(axis):
    x, repeated, distinct = uniform(4, 3), np.array([0, 2, 2]), np.array([2, 0])
    check(lambda x, i: x.graph.add(Primitive.TAKE, (x, i), axis=axis), x, repeated)
    check(put_("add", axis), x, repeated, uniform(*((3, 3) if axis == 0 else (4, 3)), seed=1))
    check(put_("set", axis), x, distinct, uniform(*((2, 3) if axis == 0 else (4, 2)), seed=1))


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_and_scatter(axis):
    x = uniform(4, 3)
    repeated = np.array([[0, 2, 1], [0, 1, 1]])
    distinct = np.array([[0, 2, 1], [3, 1, 2]]) if axis == 0 else np.array([[0, 2, 1], [2, 1, 0]])
    check(lambda x, i: x.graph.add(Primitive.GATHER, (x, i), axis=axis), x, repeated)
    check(scatter_("add", axis), x, repeated, uniform(2, 3, seed=1))
    check(scatter_("set", axis), x, distinct, uniform(2, 3, seed=1))


def test_cast_returns_to_the_dtype_of_the_input():
    graph = Graph()
    x = graph.input((3,), float32)
    y = graph.input((3,), bfloat16)
    graph.outputs = (b.cast(x, float64) * y,)
    backward = vjp(graph, (True, True))
    assert [node.dtype for node in backward.graph.outputs] == [float32, bfloat16]


def test_no_gradient_through_integers_and_argmax():
    graph = Graph()
    x = graph.input((3,), float32)
    graph.outputs = (b.cast(b.cast(x, int64), float32) * 2, b.reduce(x, "argmax", (0,)))
    assert vjp(graph, (True,)).results == (None,)


def test_library_routine_without_a_rule_is_named():
    graph = Graph()
    x = graph.input((3,), float64)
    graph.outputs = (graph.add(Primitive.LIBRARY, (x,), name="cholesky", shape=(3,), dtype=float64),)
    with pytest.raises(NotImplementedError, match="cholesky"):
        vjp(graph, (True,))


def test_every_primitive_has_a_rule_or_no_differentiable_input():
    assert set(RULES) | SOURCES == set(Primitive)
    assert not set(RULES) & SOURCES
