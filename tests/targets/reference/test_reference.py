"""The reference interpreter against PyTorch in float64, and its own rules: rounding, wrap-around, casts, indices."""

import math

import numpy as np
import pytest
import torch
from philox_vectors import VECTORS

from tensorsmith.core.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint32,
)  # fmt: skip
from tensorsmith.ir import build as b
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.scalar.table import TABLE, Fn, Typing
from tensorsmith.targets.reference import interpret
from tensorsmith.targets.reference.primitives import PRIMITIVES
from tensorsmith.targets.reference.random import philox_block, random_bits
from tensorsmith.targets.reference.scalars import SCALARS


def run(function, *arrays, dtypes=None):
    kinds = {"f": float64, "i": int64, "b": bool_}
    arrays = [np.asarray(x) for x in arrays]
    graph = Graph()
    inputs = [graph.input(x.shape, dtypes[i] if dtypes else kinds[x.dtype.kind]) for i, x in enumerate(arrays)]
    graph.outputs = (function(*inputs),)
    return interpret(graph, arrays)[0]


def add(op, *inputs, **attrs):
    return inputs[0].graph.add(op, inputs, **attrs)


def test_every_scalar_function_and_primitive_has_a_reference():
    assert set(SCALARS) == set(Fn)
    assert set(PRIMITIVES) | {Primitive.INPUT} == set(Primitive)


POSITIVE = [0.0, 1.0, 0.5, 2.5, 0.3, 0.7, 3.0, 30.0, 1e4, math.inf]
EDGES = [math.nan, *POSITIVE, *(-x for x in POSITIVE)]
TORCH = {Fn.SOFTPLUS: lambda x: torch.logaddexp(x, torch.zeros_like(x)), Fn.WHERE: torch.where}
FLOAT_FUNCTIONS = [fn for fn, row in TABLE.items() if row.typing is not Typing.INTEGER and fn is not Fn.WHERE]


@pytest.mark.parametrize("fn", FLOAT_FUNCTIONS, ids=lambda fn: fn.value)
def test_scalar_function_equals_pytorch(fn):
    grid = np.meshgrid(*[EDGES] * TABLE[fn].arity)
    arrays = [g.reshape(-1) for g in grid]
    expected = TORCH.get(fn, getattr(torch, fn.value, None))(*map(torch.tensor, arrays)).numpy()
    computed = run(lambda *xs: b.map_(fn, *xs), *arrays)
    assert computed.dtype == expected.dtype
    np.testing.assert_allclose(computed, expected, rtol=1e-12, atol=1e-13)


INTEGERS = [0, 1, -1, 2, -3, 7, 63, 64, -128, 127, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63)]
EXACT = [
    Fn.ADD, Fn.SUB, Fn.MUL, Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD, Fn.POW, Fn.MINIMUM, Fn.MAXIMUM, Fn.NEG, Fn.ABS,
    Fn.SIGN, Fn.FLOOR, Fn.ROUND, Fn.EQ, Fn.LT, Fn.GE, Fn.BITWISE_AND, Fn.BITWISE_OR, Fn.BITWISE_XOR, Fn.BITWISE_NOT,
    Fn.LEFT_SHIFT, Fn.RIGHT_SHIFT, Fn.RELU,
]  # fmt: skip


@pytest.mark.parametrize("fn", EXACT, ids=lambda fn: fn.value)
@pytest.mark.parametrize("dtype", [uint8, int8, int32, int64], ids=lambda d: d.name)
def test_integers_are_exact_and_wrap_around(fn, dtype):
    values = np.unique(np.array(INTEGERS).astype(dtype.numpy))
    arrays = [g.reshape(-1) for g in np.meshgrid(*[values] * TABLE[fn].arity)]
    if fn in (Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD):
        # also without the one quotient that does not fit, which traps in PyTorch's C++
        keep = (arrays[1] != 0) & (arrays[1] != np.array(-1).astype(dtype.numpy))
        arrays = [x[keep] for x in arrays]
    if fn is Fn.POW:
        arrays[1] = np.abs(arrays[1]) % np.array(8, dtype.numpy)
    expected = getattr(torch, fn.value)(*map(torch.tensor, arrays)).numpy()
    computed = run(lambda *xs: b.map_(fn, *xs), *arrays, dtypes=[dtype] * len(arrays))
    assert computed.dtype == expected.dtype
    np.testing.assert_array_equal(computed, expected)


def test_integer_power_of_a_negative_exponent():
    x, y = np.array([0, 1, -1, -1, 2, -2]), np.array([-1, -5, -2, -3, -1, -1])
    np.testing.assert_array_equal(run(lambda x, y: b.map_(Fn.POW, x, y), x, y), [0, 1, 1, -1, 0, 0])


@pytest.mark.parametrize("fn", [Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD], ids=lambda fn: fn.value)
def test_integer_division_by_zero_is_an_error(fn):
    with pytest.raises(ZeroDivisionError):
        run(lambda x, y: b.map_(fn, x, y), np.array([1, 2]), np.array([1, 0]))


def test_float_to_integer_casts_saturate_and_nan_gives_zero():
    x = np.array([math.nan, math.inf, -math.inf, 1e30, -1e30, 2.7, -2.7, 255.5, 2.0**63, -(2.0**63)])
    for dtype in (uint8, int8, int16, int32, int64, uint32):
        low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        expected = [0 if v != v else low if v <= low else high if v >= high else int(v) for v in x]
        computed = run(lambda x, dtype=dtype: b.cast(x, dtype), x)
        assert computed.tolist() == expected and computed.dtype == dtype.numpy
    assert run(lambda x: b.cast(x, bool_), np.array([0.0, -0.0, math.nan, 0.1])).tolist() == [False, False, True, True]
    assert run(lambda x: b.cast(x, int8), np.array([300, -129])).tolist() == [44, 127]


def test_outputs_are_rounded_once_half_to_even():
    # In float32 steps the sum would stay 1; in float64 it is 1 + 2**-23 exactly.
    x = np.array([1.0, 2.0**-24, 2.0**-24], np.float32)
    assert run(lambda x: b.reduce(x, "sum", (0,)), x, dtypes=[float32]) == np.float32(1 + 2.0**-23)
    assert run(lambda x: b.cast(b.cast(x, float16), float64), np.array([1 / 3]))[0] == 1 / 3
    assert run(lambda x: b.cast(x, float16), np.array([2049.0, 2051.0])).tolist() == [2048, 2052]


def test_float64_to_bfloat16_rounds_once():
    # Just above the middle of 1 and 1 + 2**-7; float32 would round it to the middle, and then to even: down.
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.5e38, 1e300, -1e300, math.nan, 1e-45])
    computed = run(lambda x: b.cast(x, bfloat16), x).astype(np.float64)
    np.testing.assert_array_equal(computed, [1 + 2.0**-7, 1, 1 + 2.0**-6, math.inf, math.inf, -math.inf, math.nan, 0])


def test_nextafter_is_of_the_dtype():
    x = np.array([1.0, 0.0], np.float32)
    computed = run(lambda x: b.map_(Fn.NEXTAFTER, x, 2.0), x, dtypes=[float32])
    np.testing.assert_array_equal(computed, np.nextafter(x, np.float32(2)))


def test_reductions_and_scans_equal_pytorch():
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    x[0, 1, 2] = math.nan
    t = torch.tensor(x)
    for axis in range(3):
        for kind, function in {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin,
                               "argmax": torch.argmax, "argmin": torch.argmin}.items():  # fmt: skip
            computed = run(lambda x, kind=kind, axis=axis: b.reduce(x, kind, (axis,)), x)
            np.testing.assert_allclose(computed, function(t, axis).numpy(), rtol=1e-13)
        for kind, function in {"sum": torch.cumsum, "prod": torch.cumprod, "logsumexp": torch.logcumsumexp,
                               "max": lambda x, d: torch.cummax(x, d)[0], "min": lambda x, d: torch.cummin(x, d)[0],
                               }.items():  # fmt: skip
            computed = run(lambda x, kind=kind, axis=axis: add(Primitive.SCAN, x, kind=kind, axis=axis), x)
            np.testing.assert_allclose(computed, function(t, axis).numpy(), rtol=1e-13)


def test_argmax_takes_the_first_and_nan_before_all():
    x = np.array([[1.0, 3, 3], [math.nan, 5, math.nan]])
    assert run(lambda x: b.reduce(x, "argmax", (1,)), x).tolist() == [1, 0]
    assert run(lambda x: b.reduce(x, "argmin", (1,)), x).tolist() == [0, 0]
    with pytest.raises(IndexError, match="max over axis 0 with size 0"):
        run(lambda x: b.reduce(x, "max", (0,)), np.zeros((0, 2)))


def test_integer_sums_wrap_around():
    assert run(lambda x: b.reduce(x, "sum", (0,)), np.array([100, 100], np.int8), dtypes=[int8]) == -56


def strided(x, **attrs):
    return add(Primitive.AS_STRIDED, x, **attrs)


def test_views_equal_pytorch():
    x = np.arange(24.0).reshape(2, 3, 4)
    t = torch.tensor(x)
    cases = [
        (lambda x: b.reshape(x, (4, 6)), t.reshape(4, 6)),
        (lambda x: b.permute(x, (2, 0, 1)), t.permute(2, 0, 1)),
        (lambda x: b.broadcast_to(x, (5, 2, 3, 4)), t.expand(5, 2, 3, 4)),
        (lambda x: b.slice_(x, 2, 1, 2, 2), t[:, :, 1:4:2]),
        (lambda x: b.slice_(x, 2, 4, 0), t[:, :, 4:]),
        (lambda x: b.flip(x, (0, 2)), t.flip(0, 2)),
        (lambda x: add(Primitive.DIAGONAL, x, offset=1, axis1=0, axis2=2), t.diagonal(1, 0, 2)),
        (lambda x: add(Primitive.DIAGONAL, x, offset=-1, axis1=2, axis2=0), t.diagonal(-1, 2, 0)),
        (lambda x: add(Primitive.UNFOLD, x, axis=2, size=3, step=1), t.unfold(2, 3, 1)),
        (lambda x: add(Primitive.UNFOLD, x, axis=1, size=2, step=2), t.unfold(1, 2, 2)),
        (lambda x: strided(x, shape=(3, 2), strides=(2, 0), offset=3), t.as_strided([3, 2], [2, 0], 3)),
        (lambda x: add(Primitive.AGAIN, x, part=1), t),
        (lambda x: b.pad(x, (0, 1, 2), (1, 0, 3)), torch.nn.functional.pad(t, (2, 3, 1, 0, 0, 1))),
        (lambda x: b.concat([x, x], 1), torch.cat([t, t], 1)),
    ]
    for function, expected in cases:
        np.testing.assert_array_equal(run(function, x), expected.numpy())
    dilated = run(lambda x: b.pad(x, (1,), (0,), (3,)), np.array([1.0, 2, 3]))
    assert dilated.tolist() == [0, 1, 0, 0, 2, 0, 0, 3]
    assert run(lambda x: b.pad(x, (2,), (1,), (3,)), np.zeros(0)).shape == (3,)


def test_matmul_equals_pytorch():
    x, y = np.random.default_rng(0).normal(size=(2, 2, 3, 3))
    np.testing.assert_allclose(run(b.matmul, x, y), (torch.tensor(x) @ torch.tensor(y)).numpy(), rtol=1e-13)
    big = np.array([[2**62, 2**62], [1, 2]])
    np.testing.assert_array_equal(run(b.matmul, big, big), (torch.tensor(big) @ torch.tensor(big)).numpy())


def test_convolution_equals_pytorch():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, 9, 7)), rng.standard_normal((6, 2, 3, 2))
    attrs = {"stride": (2, 1), "low": (1, 0), "high": (1, 0), "dilation": (1, 3), "step": (1, 1), "groups": 2}
    expected = torch.conv2d(torch.tensor(x), torch.tensor(w), None, (2, 1), (1, 0), (1, 3), 2)
    np.testing.assert_allclose(run(lambda x, w: add(Primitive.CONV, x, w, **attrs), x, w), expected.numpy(), atol=1e-13)
    spread = np.zeros((2, 4, 10, 16))  # zeros between the elements, rows and columns cut
    spread[:, :, 1::2, ::3] = x[:, :, 1:6, :6]
    attrs |= {"stride": (1, 1), "low": (-1, 0), "high": (-6, -3), "dilation": (1, 1), "step": (2, 3)}
    found = run(lambda x, w: add(Primitive.CONV, x, w, **attrs), x, w)
    np.testing.assert_allclose(found, torch.conv2d(torch.tensor(spread), torch.tensor(w), groups=2).numpy(), atol=1e-13)


@pytest.mark.parametrize(
    "x, w, changed",
    [
        ((2, 3, 4), (4, 2, 3), {}), ((2, 4, 4), (3, 2, 3), {"groups": 2}), ((2, 4), (4, 4), {}),
        ((2, 4, 4), (4, 4, 3), {"stride": (0,)}), ((2, 4, 4), (4, 4, 3), {"low": (1, 1)}),
    ],
)  # fmt: skip
def test_a_convolution_that_does_not_fit_is_refused(x, w, changed):
    attrs = {name: (1,) for name in ("stride", "low", "high", "dilation", "step")} | {"groups": 1} | changed
    with pytest.raises(ValueError, match="conv: "):
        run(lambda x, w: add(Primitive.CONV, x, w, **attrs), np.zeros(x), np.zeros(w))


def test_indexing_equals_pytorch():
    x, src = np.arange(12.0).reshape(4, 3), -np.arange(1.0, 7.0).reshape(2, 3)
    rows, places = np.array([3, 0]), np.array([[1, 0, 3], [2, 2, 0]])
    t, s, r, p = map(torch.tensor, (x, src, rows, places))
    cases = [
        (Primitive.TAKE, (x, rows), {}, t.index_select(0, r)),
        (Primitive.GATHER, (x, places), {}, t.gather(0, p)),
        (Primitive.PUT, (x, rows, src), {"reduce": "set"}, t.index_copy(0, r, s)),
        (Primitive.PUT, (x, np.array([1, 1]), src), {"reduce": "add"}, t.index_add(0, torch.tensor([1, 1]), s)),
        (Primitive.SCATTER, (x, places, src), {"reduce": "set"}, t.scatter(0, p, s)),
        (Primitive.SCATTER, (x, places * 0, src), {"reduce": "add"}, t.scatter_add(0, p * 0, s)),
    ]
    for op, arrays, attrs, expected in cases:
        computed = run(lambda *xs, op=op, attrs=attrs: add(op, *xs, axis=0, **attrs), *arrays)
        np.testing.assert_array_equal(computed, expected.numpy())


@pytest.mark.parametrize("bad", [4, -1])
def test_an_index_out_of_range_is_named(bad):
    x, rows, places = np.zeros((4, 3)), np.array([0, bad]), np.array([[0, bad, 0]])
    message = rf"index {bad} is out of bounds for axis 0 with size 4"
    with pytest.raises(IndexError, match="take: " + message):
        run(lambda x, i: add(Primitive.TAKE, x, i, axis=0), x, rows)
    with pytest.raises(IndexError, match="gather: " + message):
        run(lambda x, i: add(Primitive.GATHER, x, i, axis=0), x, places)
    with pytest.raises(IndexError, match="put: " + message):
        run(lambda x, i, s: add(Primitive.PUT, x, i, s, axis=0, reduce="add"), x, rows, np.zeros((2, 3)))
    with pytest.raises(IndexError, match="scatter: " + message):
        run(lambda x, i, s: add(Primitive.SCATTER, x, i, s, axis=0, reduce="set"), x, places, np.zeros((1, 3)))
    with pytest.raises(IndexError, match="as_strided: index 12 is out of bounds for 12 elements"):
        run(lambda x: add(Primitive.AS_STRIDED, x, shape=(2,), strides=(12,), offset=0), x)


def test_argsort_is_stable_both_ways_with_nan_largest():
    x = np.array([[2.0, 1, 2, math.nan, 1, -math.inf]])
    for descending in (False, True):
        attrs = {"name": "argsort", "axis": 1, "descending": descending, "shape": x.shape, "dtype": int64}
        computed = run(lambda x, attrs=attrs: add(Primitive.LIBRARY, x, **attrs), x)
        expected = torch.argsort(torch.tensor(x), dim=1, descending=descending, stable=True)
        np.testing.assert_array_equal(computed, expected.numpy())


def test_a_missing_library_routine_is_named():
    with pytest.raises(NotImplementedError, match="cholesky"):
        run(lambda x: add(Primitive.LIBRARY, x, name="cholesky", shape=(1,), dtype=float64), np.zeros(1))


@pytest.mark.parametrize("counter, key, expected", VECTORS)
def test_philox_known_answers(counter, key, expected):
    def words(values):
        return tuple(np.array([value], np.uint64) for value in values)

    assert tuple(int(word[0]) for word in philox_block(words(counter), words(key))) == expected


def test_random_bits_take_the_words_of_a_block_in_turn():
    graph = Graph()
    key, counter = graph.input((6,), int64), graph.input((6,), int64)
    graph.outputs = (graph.add(Primitive.RANDOM, (key, counter)),)
    counters = np.array([0, 1, 2, 3, -1, 4])
    (bits,) = interpret(graph, [np.array([0, 0, 0, 0, 0, 0]), counters])
    assert bits.dtype == np.uint32
    assert bits[:4].tolist() == list(VECTORS[0][2])
    assert bits[5] == random_bits(np.array([0]), np.array([4]))[0] != bits[0]
    high = philox_block(*[tuple(np.array([w], np.uint64) for w in ws) for ws in ((2**32 - 1, 2**30 - 1, 0, 0), (0, 0))])
    assert bits[4] == high[3][0]


def test_constants_and_runtime_scalars_are_rounded_as_kernels_see_them():
    graph = Graph()
    x, scalar = graph.input((1,), float32), graph.input((), float32, param=True)
    graph.outputs = (b.cast(x + 0.1, float64), b.cast(x + scalar, float64))
    first, second = interpret(graph, [np.zeros(1, np.float32), 0.1])
    assert first[0] == second[0] == float(np.float32(0.1))


def test_arguments_are_checked():
    graph = Graph()
    graph.outputs = (graph.input((2,), float32),)
    with pytest.raises(ValueError, match="1 inputs, got 2"):
        interpret(graph, [np.zeros(2), np.zeros(2)])
    with pytest.raises(ValueError, match="input 0 has shape"):
        interpret(graph, [np.zeros(3)])
