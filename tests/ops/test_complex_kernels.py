"""Complex operators as kernels: accurate in norm over wide ranges, in place, compiled; no NumPy step where there is a row."""

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.runtime.requests import PythonStep

FUNCTIONS = {
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10, "sqrt": np.sqrt, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "reciprocal": lambda z: 1 / z,
    "rsqrt": lambda z: 1 / np.sqrt(z), "abs": np.abs, "angle": np.angle, "sgn": lambda z: z / np.abs(z),
    "square": lambda z: z * z,
}  # fmt: skip
DTYPES = {np.complex64: np.float32, np.complex128: np.float64}


def points(dtype, count=700):
    """Numbers of all sizes, near the unit circle, the branch points and the axes."""
    random = np.random.default_rng(0)
    limits = np.finfo(DTYPES[dtype])

    def signed(low, high):
        return np.where(random.random(count) < 0.5, -1, 1) * 10.0 ** random.uniform(low, high, count)

    wide = np.log10(float(limits.tiny)) + 1, np.log10(float(limits.max)) - 0.01
    found = [signed(*ends) + 1j * signed(*ends) for ends in ((-1, 1), (-8, 8), wide)]
    found.append((1 + signed(-8, -1)) * np.exp(1j * random.uniform(-np.pi, np.pi, count)))
    found += [centre + signed(-12, -1) + 1j * signed(-12, -1) for centre in (1, -1, 1j, -1j, 0)]
    found += [random.uniform(-4, 4, count) + 1j * signed(-30, -1), signed(-30, -1) + 1j * random.uniform(-4, 4, count)]
    return np.concatenate(found).astype(dtype)


def assert_near(found, exact, dtype, ulps=4):
    """Within so many units in the last place of the magnitude, wherever the exact value is a normal number."""
    limits = np.finfo(DTYPES[dtype])
    size = np.abs(exact)
    inside = (np.abs(exact.real) < limits.max) & (np.abs(exact.imag) < limits.max) & (size > 4 * limits.tiny)
    with np.errstate(all="ignore"):
        error = np.abs(found.astype(exact.dtype) - exact) / (size * limits.eps)
    worst = int(np.argmax(np.where(inside, np.nan_to_num(error, nan=np.inf), 0)))
    assert inside.sum() > 500 and (not inside[worst] or error[worst] <= ulps), (worst, found[worst], exact[worst])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(name, dtype):
    z = points(dtype)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](z.astype(np.complex128))
        if name == "expm1":  # NumPy's cancels
            x, y = z.real.astype(np.float64), z.imag.astype(np.float64)
            near = np.expm1(x) * np.cos(y) - 2 * np.sin(y / 2) ** 2 + 1j * np.exp(x) * np.sin(y)
            exact = np.where(np.abs(x) < 1, near, exact)
    found = getattr(ts, name)(ts.from_numpy(z)).numpy()
    assert_near(found, exact, dtype, 4 if dtype is np.complex64 else 6)  # the oracle of complex128 rounds too


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_accuracy_of_arithmetic(name, dtype):
    a, b = points(dtype), np.random.default_rng(1).permutation(points(dtype))
    with np.errstate(all="ignore"):
        exact = getattr(np, {"div": "divide", "sub": "subtract", "mul": "multiply"}.get(name, name))(
            a.astype(np.complex128), b.astype(np.complex128)
        )
    found = getattr(ts, name)(ts.from_numpy(a), ts.from_numpy(b)).numpy()
    if name == "mul":  # the textbook product overflows where a product of parts does
        small = np.maximum(np.abs(a), np.abs(b)) < np.sqrt(np.finfo(DTYPES[dtype]).max) / 2
        found, exact = found[small], exact[small]
    assert_near(found, exact, dtype, 6)


@pytest.mark.parametrize("dtype", [ts.complex64, ts.complex128])
def test_everyday_operators_run_as_kernels(dtype, monkeypatch):
    def refuse(step, words):
        raise AssertionError(f"{step.name} is a NumPy step")

    monkeypatch.setattr(PythonStep, "run", refuse)
    x, y = ts.randn(7, 7, dtype=dtype), ts.randn(7, 7, dtype=dtype)
    calls = {
        "mul": lambda: x * y, "number": lambda: x * (1 + 2j), "real": lambda: x + 1.5, "matmul": lambda: x @ y,
        "sum": lambda: x.sum(1), "mean": lambda: x.mean(), "cat": lambda: ts.cat([x, y]), "index": lambda: x[[1, 2]],
        "where": lambda: ts.where(x.abs() > 1, x, y), "eq": lambda: x == y, "cast": lambda: x.to(ts.complex64),
        "transposed": lambda: (x.T * y).contiguous(), "conj": lambda: x.conj(), "tanh": lambda: x.tanh(),
    }  # fmt: skip
    for call in calls.values():
        call()
    with pytest.raises(AssertionError, match="is a NumPy step"):
        x.cumprod(1)


def test_in_place_over_views_of_itself():
    z = points(np.complex64)[:1000]
    x = ts.from_numpy(z.copy())
    x.mul_(x)
    np.testing.assert_array_equal(x.numpy(), (ts.from_numpy(z) * ts.from_numpy(z)).numpy())
    y = ts.randn(40, 30, dtype=ts.complex128)
    expected = y.numpy().copy()
    y[::2, 1::3].mul_(2 + 1j)
    expected[::2, 1::3] *= 2 + 1j
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-14)
    y.conj_physical_()
    np.testing.assert_allclose(y.numpy(), expected.conj(), rtol=1e-14)


def test_compiled():
    def step(x, w, scale):
        h = (x @ w).tanh() * scale
        return (h / (1 + h.abs())).sum(0), h.prod(1)

    x, w = ts.randn(8, 5, dtype=ts.complex128), ts.randn(5, 6, dtype=ts.complex128)
    for ours, eager in zip(ts.compile(step)(x, w, 2 - 1j), step(x, w, 2 - 1j)):
        np.testing.assert_allclose(ours.numpy(), eager.numpy(), rtol=1e-12)


def test_a_compiled_step_updates_complex_parameters():
    w = ts.randn(6, 6, dtype=ts.complex128, requires_grad=True)
    x = ts.randn(6, 6, dtype=ts.complex128)

    def step(x):
        loss = (x @ w).abs().sum()
        loss.backward()
        with ts.no_grad():
            w.sub_(w.grad * 0.01)
        w.grad = None
        return loss

    start = w.detach().clone()
    losses = [float(step(x)) for _ in range(3)]
    after = w.detach().clone()
    with ts.no_grad():
        w.copy_(start)
    compiled = ts.compile(step)
    np.testing.assert_allclose([float(compiled(x)) for _ in range(3)], losses, rtol=1e-12)
    np.testing.assert_allclose(w.detach().numpy(), after.numpy(), rtol=1e-12)
    assert losses[2] < losses[0]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (16, 1), (2, 0, 3), (33, 65), (5, 7, 9)])
def test_shapes_and_layouts(shape):
    a = ts.randn(shape, dtype=ts.complex64)
    b = ts.randn(shape, dtype=ts.complex64)
    reversed_axes = tuple(range(len(shape)))[::-1]
    c = ts.randn(shape[::-1], dtype=ts.complex64).permute(reversed_axes)
    for x, y in ((a, b), (a, c), (c, c), (a, b[..., :1] if shape else b)):
        np.testing.assert_allclose((x * y).numpy(), x.numpy() * y.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(x.exp().numpy(), np.exp(x.numpy()), rtol=1e-5)
        assert (x * y).shape == x.shape
