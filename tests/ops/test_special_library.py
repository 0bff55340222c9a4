"""Special functions: PyTorch in float32, and in float64 the identities that bind them, which PyTorch's Bessel misses."""

import math

import numpy as np
import pytest
import torch

import tensorsmith as ts

ONE = [
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "erfcx", "i0e", "i1", "i1e", "log_ndtr",
    "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1", "ndtri",
    "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0",
]  # fmt: skip
TWO = [
    *[f"{prefix}chebyshev_polynomial_{kind}" for prefix in ("", "shifted_") for kind in "tuvw"], "hermite_polynomial_h",
    "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p", "gammainc", "gammaincc", "zeta",
]  # fmt: skip
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.0, 5.0, 8.0, math.inf, -math.inf, math.nan]


def ours(name: str, *arrays: np.ndarray) -> np.ndarray:
    return getattr(ts.special, name)(*[ts.from_numpy(a.copy()) for a in arrays]).numpy()


def theirs(name: str, *arrays: np.ndarray) -> np.ndarray:
    return getattr(torch.special, name)(*[torch.from_numpy(a.copy()) for a in arrays]).numpy()


# Where PyTorch has NaN at infinity: the limits, at inf and -inf.
LIMITS = {
    "bessel_j0": (0, 0), "bessel_j1": (0, 0), "bessel_y0": (0, math.nan), "bessel_y1": (0, math.nan),
    "i1": (math.inf, -math.inf), "modified_bessel_i0": (math.inf, math.inf),
    "modified_bessel_i1": (math.inf, -math.inf),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name):
    np.testing.assert_array_equal(ours(name, np.array([math.inf, -math.inf])), LIMITS[name])


@pytest.mark.parametrize("name", ONE)
def test_of_one_argument(name):
    rng = np.random.default_rng(0)
    at = SPECIAL if name not in LIMITS else [v for v in SPECIAL if not math.isinf(v)]
    x = np.concatenate([at, rng.uniform(-12, 12, 200), rng.uniform(0, 1, 50)]).astype(np.float32)
    np.testing.assert_allclose(ours(name, x), theirs(name, x), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", TWO)
def test_of_two_arguments(name):
    rng = np.random.default_rng(1)
    x = np.concatenate([np.repeat(SPECIAL[:9], 11), rng.uniform(-2, 2, 200)])
    n = np.concatenate([np.tile(np.arange(-1.0, 10.0), 9), rng.integers(0, 20, 200)])
    if name in ("gammainc", "gammaincc", "zeta"):
        n = np.concatenate([n[:99], rng.uniform(0, 30, 200)])
        x = np.concatenate([x[:99], rng.uniform(0, 30, 200)])
    got, wanted = ours(name, x, n), theirs(name, x, n)
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9 * np.nanmax(np.abs(wanted[np.isfinite(wanted)])))


def test_wronskians():
    x = np.linspace(0.05, 40, 400)
    between = ours("bessel_j1", x) * ours("bessel_y0", x) - ours("bessel_j0", x) * ours("bessel_y1", x)
    np.testing.assert_allclose(between, 2 / (math.pi * x), rtol=1e-12)
    modified = ours("i0e", x) * ours("scaled_modified_bessel_k1", x) + ours("i1e", x) * ours("scaled_modified_bessel_k0", x)
    np.testing.assert_allclose(modified, 1 / x, rtol=4e-15)
    both = ours("modified_bessel_i0", x) * np.exp(-x)
    np.testing.assert_allclose(both, ours("i0e", x), rtol=4e-15)


def test_airy_satisfies_its_equation():
    x, step = np.linspace(-8, 4, 97), 1e-3
    second = (ours("airy_ai", x + step) - 2 * ours("airy_ai", x) + ours("airy_ai", x - step)) / step**2
    np.testing.assert_allclose(second, x * ours("airy_ai", x), atol=3e-5)


def test_normal_distribution():
    x = np.linspace(-8, 5, 131)
    np.testing.assert_allclose(ours("ndtri", ours("ndtr", x)), x, rtol=2e-9, atol=1e-12)
    low, high = x[x <= 0], x[x > 0]
    np.testing.assert_allclose(ours("log_ndtr", low), np.log(ours("ndtr", low)), rtol=1e-12)
    np.testing.assert_allclose(ours("log_ndtr", high), np.log1p(-ours("ndtr", -high)), rtol=1e-12)
    np.testing.assert_allclose(ours("erfcx", x), np.exp(x * x) * ours("erfc", x), rtol=2e-14)
    assert ours("log_ndtr", np.array([-1e5]))[0] == pytest.approx(-5e9)


def test_zeta_and_incomplete_gamma():
    values = ours("zeta", np.array([2.0, 4.0, 1.0, 0.5, 3.0]), np.array([1.0, 1.0, 2.0, 2.0, -1.0]))
    np.testing.assert_allclose(values, [math.pi**2 / 6, math.pi**4 / 90, math.inf, math.nan, math.inf], rtol=1e-15)
    rng = np.random.default_rng(2)
    a = 10.0 ** rng.uniform(-2, 6, 500)
    x = a * (1 + rng.uniform(-3, 3, 500) / np.sqrt(a + 10))
    p, q = ours("gammainc", a, x), ours("gammaincc", a, x)
    np.testing.assert_allclose(p + q, 1, rtol=1e-15)
    step = np.exp(a * np.log(x) - x - np.array([math.lgamma(v) for v in a + 1]))  # P(a) - P(a + 1)
    np.testing.assert_allclose(p - ours("gammainc", a + 1, x), step, rtol=1e-7, atol=1e-15)
    far = np.array([0.1, 1, 10, 100.0])
    np.testing.assert_allclose(ours("gammaincc", np.ones(4), far), np.exp(-far), rtol=3e-15)


def test_gradients_that_do_not_exist():
    a, x = ts.tensor(2.0, requires_grad=True), ts.tensor(1.0, requires_grad=True)
    with pytest.raises(NotImplementedError, match="the derivative for 'igamma: input' is not implemented"):
        ts.igamma(a, x).backward()
    with pytest.raises(NotImplementedError, match="zeta"):
        ts.special.zeta(a, x).backward()
    (by_x,) = ts.autograd.grad(ts.igamma(a.detach(), x), x)
    assert by_x.item() == pytest.approx(math.exp(-1))
    assert not ts.special.bessel_j0(a).requires_grad
    assert not ts.special.hermite_polynomial_h(a, 3).requires_grad


def test_dtypes():
    assert ts.special.airy_ai(ts.tensor([1, 2])).dtype is ts.float32
    assert ts.special.i0e(ts.tensor([1.0]).half()).dtype is ts.float16
    for name in ("airy_ai", "ndtri"):
        with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
            getattr(ts.special, name)(ts.tensor([1.0]).half())
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        ts.igamma(ts.tensor([1]), ts.tensor([1]))
    assert ts.special.entr(ts.tensor([0.5]).half()).dtype is ts.float16


def test_batches():
    rows = ts.linspace(0.1, 0.9, 5).reshape(5, 1)
    for name in ("erfcx", "log_ndtr", "ndtri", "i0e", "bessel_j0"):
        function = getattr(ts.special, name)
        np.testing.assert_allclose(ts.func.vmap(function)(rows).numpy(), function(rows).numpy())
    matrices = ts.tensor(np.random.default_rng(0).standard_normal((3, 4, 2)))
    np.testing.assert_allclose(ts.func.vmap(ts.linalg.svdvals)(matrices).numpy(), ts.linalg.svdvals(matrices).numpy())
