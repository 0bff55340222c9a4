"""Random programs of complex operators, views and writes: PyTorch's values, dtypes, strides and gradients."""

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

import tensorsmith as ts


def _written(y, write):
    y = y.clone()
    write(y)
    return y


# Each step makes a complex matrix from the last one, y; L is either library, w a complex and r a real matrix beside it.
STEPS = {
    "times w": lambda L, y, w, r: y * w if y.shape == w.shape else y * 2,
    "plus r": lambda L, y, w, r: y + r if y.shape == r.shape else y - 1,
    "over r": lambda L, y, w, r: y / (r * r + 1) if y.shape == r.shape else 1 / (y + 9),
    "times a number": lambda L, y, w, r: y * (0.5 - 0.25j),
    "transposed": lambda L, y, w, r: y.t(),
    "conj": lambda L, y, w, r: y.conj_physical(),
    "exp": lambda L, y, w, r: L.exp(y * 0.2),
    "tanh": lambda L, y, w, r: L.tanh(y),
    "sqrt": lambda L, y, w, r: L.sqrt(y + 3),
    "reshaped": lambda L, y, w, r: y.reshape(y.shape[1], y.shape[0]),
    "product": lambda L, y, w, r: y @ y.t() * 0.1,
    "joined": lambda L, y, w, r: L.cat([y, y * 1j], 1)[:, 1 : y.shape[1] + 1],
    "sum": lambda L, y, w, r: y.sum(0, keepdim=True) + y,
    "prod": lambda L, y, w, r: (y * 0.5).prod(1, keepdim=True) + y,
    "mean": lambda L, y, w, r: y.mean(1, keepdim=True) * y,
    "parts": lambda L, y, w, r: L.complex(y.real * 0.5, y.imag),
    "magnitude": lambda L, y, w, r: y * 0.3 / (y.abs() + 1),
    "where": lambda L, y, w, r: L.where(y.real > 0, y, y * 0.5),
    "running sum": lambda L, y, w, r: L.cumsum(y, 1) * 0.5,
    "as real": lambda L, y, w, r: L.view_as_complex(L.view_as_real(y).contiguous() * 0.7),
    "write": lambda L, y, w, r: _written(y, lambda y: y.mul_(1 + 0.5j)),
    "write a row": lambda L, y, w, r: _written(y, lambda y: y[0].mul_(0.5)),
    "write columns": lambda L, y, w, r: _written(y, lambda y: y[:, ::2].add_(1 - 2j)),
    "write a part": lambda L, y, w, r: _written(y, lambda y: y.imag.mul_(0.5)),
}


def _run(library, of_numpy, arrays, steps):
    x, w, r = (of_numpy(array.copy()).requires_grad_() for array in arrays)
    values = [x * 1.0]
    for step in steps:
        values.append(STEPS[step](library, values[-1], w, r))
    (values[-1].abs() + values[-1].real * 0.3).sum().backward()
    return [value.detach() for value in values], [leaf.grad for leaf in (x, w, r)]


@settings(max_examples=120, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=7),
    dtype=st.sampled_from([np.complex64, np.complex128]),
    seed=st.integers(0, 1000),
)
def test_programs(shape, steps, dtype, seed):
    random = np.random.default_rng(seed)
    complexes = [(random.normal(size=shape) + 1j * random.normal(size=shape)).astype(dtype) for _ in range(2)]
    arrays = [*complexes, random.normal(size=shape).astype(complexes[0].real.dtype)]
    ours, our_gradients = _run(ts, ts.from_numpy, arrays, steps)
    theirs, their_gradients = _run(torch, torch.from_numpy, arrays, steps)
    tolerance = 1e-3 if dtype is np.complex64 else 1e-9
    for a, b in zip([*ours, *our_gradients], [*theirs, *their_gradients]):
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert str(a.dtype).split(".")[-1] == str(b.dtype).split(".")[-1]
        scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance * scale)
    for a, b in zip(ours, theirs):
        if 1 not in a.shape:
            assert tuple(a.stride()) == b.stride()
