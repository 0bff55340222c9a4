"""One kernel over many tensors on CUDA, and the optimisers that run by it."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_compiles import compile_all

import tensorsmith as ts
from emulator.run import run_lowered
from tensorsmith.core import dtypes
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda import launcher
from tensorsmith.targets.cuda.many_tensors import lower_many, structure_of

SHAPES = [(3, 4), (70, 80), (5,), (), (1,), (100, 130), (7,), (9000,), (2, 3, 4)]


@pytest.fixture(scope="module")
def emulated():
    import emulator

    emulator.activate()


def scaled(count, dtype=dtypes.float32, stride=1, factor_stride=1):
    """x = x * f + p, in place."""
    wide = dtypes.float32 if dtype.is_half else dtype
    casts = dtype is not wide
    body = [Instr(Kind.LOAD, dtype, index=0), Instr(Kind.LOAD, wide, index=1), Instr(Kind.PARAM, wide, index=0)]
    x = 0
    if casts:
        body.append(Instr(Kind.CAST, wide, (0,)))
        x = 3
    body += [Instr(Kind.APPLY, wide, (x, 1), fn=Fn.MUL)]
    body += [Instr(Kind.APPLY, wide, (len(body) - 1, 2), fn=Fn.ADD)]
    if casts:
        body.append(Instr(Kind.CAST, dtype, (len(body) - 1,)))
    operands = (Operand(dtype, (stride,)), Operand(wide, (factor_stride,)))
    store = Store(Operand(dtype, (stride,)), len(body) - 1)
    return KernelSpec((count,), None, operands, tuple(body), (store,), (dtypes.float64,), "scaled")


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.float64])
@pytest.mark.parametrize("counts", [(5, 1000), (3, 1, 17, 4096, 4097, 20000) * 9])
def test_rows_of_any_length(emulated, dtype, counts):
    rng = np.random.default_rng(1)
    specs = [scaled(n, dtype, 1, 0 if n > 1 else 1) for n in counts]
    same = [k for k, spec in enumerate(specs) if structure_of(spec) == structure_of(specs[0])]
    specs, counts = [specs[k] for k in same], [counts[k] for k in same]
    rows = len(counts)
    xs = [rng.standard_normal(n).astype(dtype.numpy) for n in counts]
    wide = np.float64 if dtype is dtypes.float64 else np.float32
    factors = [rng.standard_normal(1).astype(wide) for _ in counts]
    want = [(x.astype(wide) * f + wide(0.5)).astype(dtype.numpy) for x, f in zip(xs, factors)]
    sources = [[row, rows + row, row, 2 * rows] for row in range(rows)]
    lowered = lower_many(specs, sources, 2 * rows + 1)
    assert len(lowered.launches) == -(-rows // 48)
    assert run_lowered(lowered, [*xs, *factors], [0.5]) == 0
    for x, expected in zip(xs, want):
        np.testing.assert_array_equal(x, expected)


def test_what_cannot_share_a_kernel():
    assert structure_of(scaled(9, stride=2)) is None
    assert structure_of(scaled(9)) == structure_of(scaled(5000)) is not None
    assert structure_of(scaled(9)) != structure_of(scaled(9, factor_stride=0))


def test_texts_compile():
    for dtype in (dtypes.float32, dtypes.float16):
        for rows in (2, 16, 40):
            sources = [[row, rows + row, row, 2 * rows] for row in range(rows)]
            compile_all(lower_many([scaled(900, dtype)] * rows, sources, 2 * rows + 1), ("sm_75", "sm_90a"))


@pytest.mark.parametrize("name,choices", [
    ("SGD", {"lr": 0.1, "momentum": 0.9}), ("AdamW", {"lr": 0.01, "amsgrad": True}), ("RMSprop", {}), ("Adagrad", {}),
])  # fmt: skip
def test_a_group_of_parameters_is_one_kernel(emulated, monkeypatch, name, choices):
    made, recipe = [], launcher.recipe
    monkeypatch.setattr(launcher, "recipe", lambda lowered, *rest: (made.append(lowered.name), recipe(lowered, *rest))[1])
    rng = np.random.default_rng(2)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    gradients = [[rng.standard_normal(shape).astype(np.float32) for shape in SHAPES] for _ in range(4)]
    found = []
    for device in ("cpu", "cuda"):
        parameters = [ts.nn.Parameter(ts.tensor(value).to(device)) for value in values]
        optimiser = getattr(ts.optim, name)(parameters, **choices)
        for step in gradients:
            for parameter, gradient in zip(parameters, step):
                parameter.grad = ts.tensor(gradient).to(device)
            ts.nn.utils.clip_grad_norm_(parameters, 50.0)
            optimiser.step()
        found.append([parameter.detach().cpu().numpy() for parameter in parameters])
    assert sum(each.endswith(f" x {len(SHAPES)}") for each in made) >= 1
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-6)
