"""What docs/numerics.md promises, on every dtype: precision of sums, NaN, zeros' signs, wrapping, threads.

PyTorch is the oracle where it is consistent. It gives `maximum(0, -0)` the sign of either, by the element's place in a vector,
and so on for other ties of zeros; there ours has a rule of its own, which is tested here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import ALL, DType, iinfo
from tensorsmith.ops.creation import array_of

torch = pytest.importorskip("torch")

NAN, INF = math.nan, math.inf
FLOATS = ("float16", "bfloat16", "float32", "float64")
HALVES = FLOATS[:2]
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
COUNTS = (1, 3, 17, 40)  # a lone element, less than a vector, a vector and a rest
Function = Callable[..., Any]


def tensor(L: Any, values: Any, dtype: str) -> Any:
    return L.tensor(values, dtype=getattr(L, dtype))


def parts(result: Any) -> list[np.ndarray]:
    """The results as arrays: floating ones in float64, which holds every value and sign."""
    results = result if isinstance(result, tuple) else (result,)
    wide = [x.double() if x.is_floating_point() else x for x in results]
    return [x.detach().numpy() for x in wide]


def same(function: Function, dtype: str, *values: Any) -> None:
    """Both libraries give the same values with the same signs of zero, NaN at the same places."""
    ours, theirs = (function(L, *(tensor(L, v, dtype) for v in values)) for L in (ts, torch))
    for a, b in zip(parts(ours), parts(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a, b)
        if a.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(a) & (a == a), np.signbit(b) & (b == b))


# --- precision of sums ------------------------------------------------------------------------------------------------

SUMS: dict[str, Function] = {
    "sum": lambda x: x.sum(), "sum of rows": lambda x: x.reshape(3, -1).sum(1),
    "sum of columns": lambda x: x.reshape(-1, 3).sum(0),
    "mean": lambda x: x.mean(), "mean of columns": lambda x: x.reshape(-1, 3).mean(0), "nansum": lambda x: x.nansum(),
    "norm": lambda x: x.norm(), "norm of order 1": lambda x: ts.norm(x, 1), "norm of order 3": lambda x: ts.norm(x, 3.0),
    "logsumexp": lambda x: x.logsumexp(0), "dot": lambda x: x.dot(x), "var": lambda x: x.var(), "std": lambda x: x.std(),
    "softmax": lambda x: x.softmax(0), "log_softmax": lambda x: x.log_softmax(0), "prod": lambda x: (x / x).prod(),
    "cumsum": lambda x: x.cumsum(0)[-1], "logcumsumexp": lambda x: x.logcumsumexp(0)[-1],
    "trapezoid": lambda x: ts.trapezoid(x),
    "matmul": lambda x: x.reshape(1, -1) @ x.reshape(-1, 1), "layer_norm": lambda x: ts.nn.functional.layer_norm(x, x.shape),
    "dist": lambda x: ts.dist(x, x * 0.5),
}  # fmt: skip


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", SUMS)
def test_halves_are_added_in_float32(name: str, half: str) -> None:
    x = (ts.arange(9000) % 7 * 0.125 + 0.5).to(getattr(ts, half)).requires_grad_()
    wide = x.detach().double().requires_grad_()
    found, wanted = SUMS[name](x), SUMS[name](wide)
    assert found.dtype is x.dtype
    unit = ts.finfo(x.dtype).eps
    np.testing.assert_allclose(parts(found)[0], parts(wanted)[0], rtol=2 * unit, atol=1e-7)
    weights = (ts.arange(found.numel()) % 3 - 1 if found.numel() > 1 else ts.tensor(1)).reshape(found.shape)
    (gradient,), (true,) = (ts.autograd.grad((y * weights).sum(), v) for y, v in ((found, x), (wanted, wide)))
    scale = float(true.abs().max())
    np.testing.assert_allclose(parts(gradient)[0], parts(true)[0], rtol=4 * unit, atol=4 * unit * scale + 6e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4000,), (41, 301), (301, 41), (5, 3)])
def test_variance_far_from_zero_takes_two_passes(shape: tuple[int, ...], dtype: str) -> None:
    unit = float(ts.finfo(getattr(ts, dtype)).eps)
    offset = 2.0**15 if dtype == "float32" else 2.0**44
    step = offset * 256 * unit  # everything is exact in the dtype; sums of squares would leave no digit of the variance
    pattern = (np.arange(math.prod(shape)) % 5).reshape(shape).astype(np.float64)
    x = tensor(ts, offset + pattern * step, dtype)
    for axis in (*range(len(shape)), None):
        for name, power in (("var", 2), ("std", 1)):
            wanted = getattr(pattern, name)(axis=axis, ddof=1) * step**power
            found = parts(getattr(x, name)(axis))[0]
            np.testing.assert_allclose(found, wanted, rtol=4e-3)  # the square of the mean's rounding
            assert (found > 0).any()
    np.testing.assert_allclose(parts(ts.var_mean(x)[0])[0], pattern.var(ddof=1) * step**2, rtol=4e-3)


@pytest.mark.parametrize("half", HALVES)
def test_logsumexp_in_half_precision(half: str) -> None:
    for values in ([6e4, 6e4, 5e4], [1e3] * 40, [-6e4, -6e4, -6e4], [-INF, 0.0, 1.0], [-INF, -INF, -INF], [INF, 1.0, -INF]):
        x, wide = tensor(ts, values, half).requires_grad_(), tensor(torch, values, half).double().requires_grad_()
        y, true = x.logsumexp(0), wide.logsumexp(0)
        y.backward()
        true.backward()
        np.testing.assert_array_equal(parts(y)[0], parts(true.to(getattr(torch, half)))[0])
        # Over -inf alone PyTorch's gradient is NaN.
        true = torch.zeros_like(wide) if set(values) == {-INF} else wide.grad.to(getattr(torch, half))
        np.testing.assert_array_equal(parts(x.grad)[0], parts(true)[0])


# --- NaN and infinity -------------------------------------------------------------------------------------------------

PASSES_NAN: dict[str, Function] = {
    "max": lambda L, x: x.max(), "min": lambda L, x: x.min(), "max along": lambda L, x: tuple(x.max(0)),
    "min along": lambda L, x: tuple(x.min(0)), "argmax": lambda L, x: x.argmax(), "argmin": lambda L, x: x.argmin(0),
    "amax": lambda L, x: x.amax(0), "amin": lambda L, x: x.amin(), "aminmax": lambda L, x: tuple(x.aminmax()),
    "maximum": lambda L, x: L.maximum(x, x.flip(0)), "minimum": lambda L, x: L.minimum(x, x.flip(0)),
    "fmax": lambda L, x: L.fmax(x, x.flip(0)), "fmin": lambda L, x: L.fmin(x, x.flip(0)), "clamp": lambda L, x: x.clamp(0.5, 2),
    "clamp by tensors": lambda L, x: x.clamp(x.flip(0), x), "clamp by NaN": lambda L, x: x.clamp(min=NAN),
    "cummax": lambda L, x: tuple(x.cummax(0)), "cummin": lambda L, x: tuple(x.cummin(0)), "median": lambda L, x: x.median(),
    "median along": lambda L, x: x.median(0)[0], "nanmedian": lambda L, x: x.nanmedian(), "relu": lambda L, x: x.relu(),
    "sort": lambda L, x: x.sort(stable=True)[0], "sort down": lambda L, x: x.sort(descending=True, stable=True)[0],
    "topk": lambda L, x: x.topk(2)[0] if len(x) > 1 else x, "kthvalue": lambda L, x: x.kthvalue(1)[0],
    "sign": lambda L, x: x.sign(),
    "unique": lambda L, x: x.unique(), "isin": lambda L, x: L.isin(x, x), "bool": lambda L, x: x.bool(),
    "eq": lambda L, x: x == x, "lt": lambda L, x: x < x, "isclose": lambda L, x: L.isclose(x, x), "any": lambda L, x: x.any(),
    "argsort": lambda L, x: x.argsort(stable=True), "nan_to_num": lambda L, x: x.nan_to_num(), "sum": lambda L, x: x.sum(),
    "nansum": lambda L, x: x.nansum(), "prod": lambda L, x: x.prod(), "count_nonzero": lambda L, x: x.count_nonzero(),
    "hardtanh": lambda L, x: L.nn.functional.hardtanh(x), "leaky_relu": lambda L, x: L.nn.functional.leaky_relu(x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", PASSES_NAN)
def test_nan_goes_where_pytorch_lets_it(name: str, dtype: str) -> None:
    for values, count in itertools.product(([NAN], [1.0, NAN, 3.0], [NAN, -1.0], [2.0, -INF, NAN, INF]), COUNTS):
        same(PASSES_NAN[name], dtype, values * count)


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_of_minus_infinity_alone_is_nan(dtype: str) -> None:
    for count in COUNTS:
        for name in ("softmax", "log_softmax", "logsumexp", "logcumsumexp"):
            same(lambda L, x, name=name: getattr(x, name)(-1), dtype, [[-INF] * count, [-INF] * count])


@pytest.mark.parametrize("dtype", FLOATS)
def test_gelu_and_erf_reach_their_limits(dtype: str) -> None:
    far = [-6e4, -100.0, -20.0, -10.0, 10.0, 20.0, 6e4]
    for count in (1, 5):
        x = tensor(ts, far * count, dtype)
        assert parts(ts.erf(x))[0].tolist() == ([-1.0] * 4 + [1.0] * 3) * count
        np.testing.assert_array_equal(parts(ts.nn.functional.gelu(x))[0], np.maximum(parts(x)[0], 0))


# --- zeros and subnormal numbers --------------------------------------------------------------------------------------

SIGNS: dict[str, Function] = {
    "relu": lambda L, x: x.relu(), "relu_": lambda L, x: x.clone().relu_(), "relu6": lambda L, x: L.nn.functional.relu6(x),
    "hardtanh": lambda L, x: L.nn.functional.hardtanh(x, 0.0, 1.0), "clamp": lambda L, x: x.clamp(min=0),
    "clamp both": lambda L, x: x.clamp(0, 1), "leaky_relu": lambda L, x: L.nn.functional.leaky_relu(x),
    "round": lambda L, x: x.round(),
    "trunc": lambda L, x: x.trunc(), "ceil": lambda L, x: x.ceil(), "floor": lambda L, x: x.floor(),
    "frac": lambda L, x: x.frac(),
    "neg": lambda L, x: -x, "from zero": lambda L, x: 0 - x, "sqrt": lambda L, x: x.sqrt(), "rsqrt": lambda L, x: x.rsqrt(),
    "reciprocal": lambda L, x: x.reciprocal(), "abs": lambda L, x: x.abs(), "sign": lambda L, x: x.sign(),
    "sin": lambda L, x: x.sin(),
    "fmod": lambda L, x: L.fmod(x, 3.0), "remainder": lambda L, x: L.remainder(x, 3.0),
    "remainder of -3": lambda L, x: x % -3.0,
    "floor_divide": lambda L, x: x // 3.0, "square": lambda L, x: x**2, "cube": lambda L, x: x**3,
    "tanh": lambda L, x: x.tanh(),
    "sum": lambda L, x: x.sum(), "cumsum": lambda L, x: x.cumsum(0), "prod": lambda L, x: x.prod(), "mul": lambda L, x: x * 0,
    "cummax": lambda L, x: tuple(x.cummax(0)), "cummin": lambda L, x: tuple(x.cummin(0)), "expm1": lambda L, x: x.expm1(),
    "log1p": lambda L, x: x.log1p(), "asinh": lambda L, x: x.asinh(), "erf": lambda L, x: x.erf(),
    "atan2": lambda L, x: L.atan2(x, x),
    "copysign": lambda L, x: L.copysign(L.ones_like(x), x), "nextafter": lambda L, x: L.nextafter(x, L.zeros_like(x)),
    "where": lambda L, x: L.where(x == 0, x, x), "heaviside": lambda L, x: L.heaviside(x, x),
    "signbit": lambda L, x: x.signbit(),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", SIGNS)
def test_signs_of_zero(name: str, dtype: str) -> None:
    for count in COUNTS[1:]:
        same(SIGNS[name], dtype, [-0.0] * count)
        same(SIGNS[name], dtype, [0.0, -0.0] * count)
        if name not in ("sin", "tanh", "expm1", "log1p", "asinh", "erf", "rsqrt", "reciprocal", "atan2", "leaky_relu", "frac"):
            same(SIGNS[name], dtype, [-0.0, -3.0, 0.0, 3.0, -0.25, 0.25] * count)


@pytest.mark.parametrize("dtype", FLOATS)
def test_of_zeros_the_larger_is_the_positive_one(dtype: str) -> None:
    for count in COUNTS:
        x, y = tensor(ts, [0.0, -0.0, 0.0, -0.0] * count, dtype), tensor(ts, [0.0, 0.0, -0.0, -0.0] * count, dtype)
        assert np.signbit(parts(ts.maximum(x, y))[0]).tolist() == [False, False, False, True] * count
        assert np.signbit(parts(ts.minimum(x, y))[0]).tolist() == [False, True, True, True] * count


@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_sums_to_positive_zero(dtype: str) -> None:
    for function in (lambda L, x: x.sum(), lambda L, x: x.nansum(), lambda L, x: x.reshape(3, 0).sum(1), lambda L, x: x.prod()):
        same(function, dtype, [])


@pytest.mark.parametrize("dtype", FLOATS)
def test_subnormal_numbers_are_kept(dtype: str) -> None:
    smallest = torch.finfo(getattr(torch, dtype)).smallest_normal * torch.finfo(getattr(torch, dtype)).eps
    for count in COUNTS:
        x = tensor(ts, [smallest, -smallest, 3 * smallest] * count, dtype)
        scaled = np.array([1, -1, 3] * count)
        for result, times in ((x * 1, 1), (x + x, 2), (x - 0, 1), (x.abs() * x.sign(), 1), (x.clone(), 1), (ts.stack([x]), 1)):
            np.testing.assert_array_equal(parts(result)[0].reshape(-1), times * scaled * smallest)
        assert parts(x.sum())[0] == 3 * count * smallest and parts(x.max())[0] == 3 * smallest
        assert parts(x.to(ts.float64))[0].tolist() == (scaled * smallest).tolist()


@pytest.mark.parametrize("dtype", FLOATS)
def test_neighbours_are_those_of_the_dtype(dtype: str) -> None:
    info = torch.finfo(getattr(torch, dtype))
    tiny = info.smallest_normal
    given = [0.0, -0.0, 1.0, -1.0, info.max, -info.max, INF, -INF, NAN, tiny, -tiny, tiny * info.eps, 1 + info.eps, 2.5]
    pairs = list(itertools.product(given, given))
    same(lambda L, x, y: L.nextafter(x, y), dtype, [a for a, _ in pairs], [b for _, b in pairs])


# --- remainders and rounding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_remainders_of_huge_quotients_are_exact(dtype: str) -> None:
    info = torch.finfo(getattr(torch, dtype))
    low, high = (math.log2(v) for v in (info.smallest_normal, info.max))
    generator = np.random.default_rng(5)
    a, b = (2 ** generator.uniform(low, high, 2000) * generator.choice([-1, 1], 2000) for _ in range(2))
    x, y = tensor(ts, a, dtype), tensor(ts, b, dtype)
    a, b = parts(x)[0], parts(y)[0]
    np.testing.assert_array_equal(parts(ts.fmod(x, y))[0], np.fmod(a, b))
    modulo = np.array([m if m == 0 or (m < 0) == (d < 0) else m + d for m, d in zip(np.fmod(a, b), b)])
    np.testing.assert_array_equal(parts(ts.remainder(x, y))[0], parts(tensor(ts, modulo, dtype))[0])


@pytest.mark.parametrize("dtype", FLOATS)
def test_halves_round_to_even(dtype: str) -> None:
    given = [0.5, 1.5, 2.5, -0.5, -1.5, 25.0, 35.0, -25.0, 0.125, 0.375, 250.0, 1.25, NAN, INF, -0.0]
    for decimals in (-2, -1, 0, 1, 2):
        if dtype in HALVES and decimals:
            x = tensor(ts, given, dtype)
            true = torch.round(tensor(torch, given, dtype).float(), decimals=decimals).to(getattr(torch, dtype))
            np.testing.assert_array_equal(parts(ts.round(x, decimals=decimals))[0], parts(true)[0])
        else:
            same(lambda L, x, d=decimals: L.round(x, decimals=d), dtype, given * 3)


# --- integers ---------------------------------------------------------------------------------------------------------


def corners(dtype: DType) -> list[int]:
    limits = iinfo(dtype)
    near = (limits.min, limits.min + 1, limits.max, limits.max - 1, limits.max // 2, 0, 1, 2, 3, 7, -1, -2, -3)
    return sorted({v for v in near if limits.min <= v <= limits.max})


def wrapped(value: int, dtype: DType) -> int:
    limits = iinfo(dtype)
    return (value - limits.min) % (1 << limits.bits) + limits.min


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_around(dtype: str) -> None:
    kind = getattr(ts, dtype)
    given = corners(kind)
    a, b = zip(*itertools.product(given, given))
    x, y = tensor(ts, a, dtype), tensor(ts, b, dtype)
    for function in (lambda p, q: p + q, lambda p, q: p - q, lambda p, q: p * q):
        assert function(x, y).tolist() == [wrapped(function(p, q), kind) for p, q in zip(a, b)]
    z = tensor(ts, given, dtype)
    assert (-z).tolist() == [wrapped(-v, kind) for v in given] and (z * z * z).tolist() == [wrapped(v**3, kind) for v in given]
    assert z.abs().tolist() == [wrapped(abs(v), kind) for v in given]
    assert z.square().tolist() == [wrapped(v * v, kind) for v in given]
    assert z.sum(dtype=kind).item() == z.cumsum(0, dtype=kind)[-1].item() == wrapped(sum(given), kind)
    odd = tensor(ts, [v for v in given if v % 2], dtype)
    assert odd.prod(dtype=kind).item() == wrapped(math.prod(v for v in given if v % 2), kind)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_powers_wrap_around(dtype: str) -> None:
    kind = getattr(ts, dtype)
    given, exponents = corners(kind), [0, 1, 2, 3, 5, 31, 64, 65]
    a, b = zip(*itertools.product(given, exponents))
    assert (tensor(ts, a, dtype) ** tensor(ts, b, dtype)).tolist() == [wrapped(p**q, kind) for p, q in zip(a, b)]
    for q in exponents:
        assert (tensor(ts, given, dtype) ** q).tolist() == [wrapped(p**q, kind) for p in given]
    if dtype in SIGNED:
        same(lambda L, x: x ** L.tensor(-1, dtype=x.dtype), dtype, [v for v in given if v])
        for library in (ts, torch):
            with pytest.raises(RuntimeError, match="negative integer powers|Integers to negative"):
                tensor(library, given, dtype) ** -1


@pytest.mark.parametrize("dtype", [*SIGNED, "uint8"])
def test_shifts_by_more_than_the_width(dtype: str) -> None:
    kind = getattr(ts, dtype)
    bits = iinfo(kind).bits
    counts = [c for c in (0, 1, bits - 1, bits, bits + 1, 100, -1, -bits) if iinfo(kind).min <= c]
    for x, n in ((corners(kind), c) for c in counts):
        same(lambda L, v, n=n: v << n, dtype, x)
        same(lambda L, v, n=n: v >> n, dtype, x)
    a, b = zip(*itertools.product(corners(kind), counts))
    same(lambda L, x, y: L.bitwise_left_shift(x, y), dtype, a, b)
    same(lambda L, x, y: L.bitwise_right_shift(x, y), dtype, a, b)


@pytest.mark.parametrize("dtype", [*SIGNED, "uint8"])
def test_integer_division_rounds_down(dtype: str) -> None:
    kind = getattr(ts, dtype)
    pairs = [(p, q) for p, q in itertools.product(corners(kind), repeat=2) if q and not (p == iinfo(kind).min and q == -1)]
    a, b = zip(*pairs)
    x, y = tensor(ts, a, dtype), tensor(ts, b, dtype)
    assert (x // y).tolist() == [p // q for p, q in pairs] and (x % y).tolist() == [p % q for p, q in pairs]
    assert ts.fmod(x, y).tolist() == [abs(p) % abs(q) * (-1 if p < 0 else 1) for p, q in pairs]


# --- any number of threads --------------------------------------------------------------------------------------------

DIVIDED: dict[str, Function] = {
    "sum": lambda x: x.sum(), "sum of rows": lambda x: x.reshape(7, -1).sum(1),
    "sum of columns": lambda x: x.reshape(-1, 7).sum(0),
    "prod": lambda x: x.prod(), "max": lambda x: x.max(), "argmax": lambda x: x.argmax(), "cumsum": lambda x: x.cumsum(0),
    "mul": lambda x: x * x + x, "matmul": lambda x: x[: 630 * 200].reshape(200, 630) @ x[: 630 * 90].reshape(630, 90),
    "sort": lambda x: x.sort(stable=True)[0],
    "index_add": lambda x: ts.zeros(9, dtype=x.dtype).index_add(0, ts.arange(len(x)) % 9, x),
}  # fmt: skip
FLOATING: dict[str, Function] = {
    "mean": lambda x: x.mean(), "var": lambda x: x.var(), "norm": lambda x: x.norm(), "softmax": lambda x: x.softmax(0),
    "logsumexp": lambda x: x.reshape(7, -1).logsumexp(0), "exp": lambda x: x.exp(), "gradient": lambda x: _gradient(x),
}  # fmt: skip


def _gradient(x: Any) -> Any:
    leaf = x.detach().requires_grad_()
    (leaf.softmax(0) * leaf).sum().backward()
    return leaf.grad


@pytest.mark.parametrize("dtype", [d for d in ALL if d.kind != "b"], ids=lambda d: d.name)
def test_one_thread_or_two_give_the_same_bits(dtype: DType) -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal(7 * 40_000)
    if dtype.kind in "iu":
        x = ts.from_numpy((values * 50).astype(np.int64)).to(dtype)
    else:
        x = ts.from_numpy(values).to(dtype)
    functions = DIVIDED | (FLOATING if dtype.kind == "f" else {})
    if dtype.kind == "c":
        ordering = ("max", "argmax", "sort", "index_add")
        functions = {name: function for name, function in functions.items() if name not in ordering}
        x = x + x.flip(0) * 1j
    before = ts.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            ts.set_num_threads(threads)
            results.append({name: array_of(function(x)).tobytes() for name, function in functions.items()})
    finally:
        ts.set_num_threads(before)
    different = [name for name in functions if results[0][name] != results[1][name]]
    assert not different
