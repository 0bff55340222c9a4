"""Norms on the emulated device: gradients against PyTorch, of which those of rows and of weights are one step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts
from tensorsmith.runtime import plan as plans

TYPES = {ts.float32: (torch.float32, 1e-5), ts.bfloat16: (torch.bfloat16, 2e-2), ts.float16: (torch.float16, 3e-3)}


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


@pytest.fixture
def steps(monkeypatch):
    """Names of the steps of every plan that is built."""
    found: list[list[str]] = []
    build = plans._Builder.build

    def noted(builder):
        plan = build(builder)
        found.append([step.name for step in plan.steps])
        return plan

    monkeypatch.setattr(plans._Builder, "build", noted)
    return found


def operand(shape, dtype, seed):
    values = torch.tensor(np.random.default_rng(seed).standard_normal(shape)).to(TYPES[dtype][0])
    return ts.tensor(values.float().numpy()).to(dtype).to("cuda"), values.double()


def gradients(lib, kind, operands, grad):
    """The results and gradients of a norm of x with such parameters."""
    operands = {name: value.detach().requires_grad_() for name, value in operands.items()}
    functional, x = lib.nn.functional, operands["x"]
    shape = (x.shape[-1],)
    if kind == "layer":
        y = functional.layer_norm(x, shape, operands.get("weight"), operands.get("bias"))
    else:
        y = functional.rms_norm(x, shape, operands.get("weight"), 1e-5)
    return (y, *lib.autograd.grad(y, tuple(operands.values()), grad))


def compare(kind, shape, dtype, names, compiled, weights=None, lay=lambda x: x):
    pairs = {"x": operand(shape, dtype, 0)}
    pairs |= {name: operand(shape[-1:], weights or dtype, number) for number, name in enumerate(names, 1)}
    pairs["x"] = lay(pairs["x"][0]), pairs["x"][1]
    grad, peer = operand(shape, dtype, 9)

    def run(*given):
        return gradients(ts, kind, dict(zip(pairs, given[:-1])), given[-1])

    found = (ts.compile(run) if compiled else run)(*(mine for mine, _ in pairs.values()), grad)
    wanted = gradients(torch, kind, {name: peer for name, (_, peer) in pairs.items()}, peer)
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted):
        theirs = theirs.detach().numpy()
        mine = mine.detach().to("cpu").to(ts.float64).numpy()
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=TYPES[dtype][1] * max(np.abs(theirs).max(initial=0), 1e-3))


def joined(steps) -> bool:
    return any("_with_" in name for names in steps for name in names)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind, names", [("layer", ("weight", "bias")), ("layer", ("weight",)), ("rms", ("weight",))], ids=str)
@pytest.mark.parametrize("shape, dtype, together", [
    ((64, 96), ts.float32, True), ((37, 1000), ts.bfloat16, True), ((41, 1024), ts.float16, True),
    ((6, 7, 30), ts.float32, True),
    ((129, 7), ts.bfloat16, True), ((20, 4096), ts.bfloat16, True),
    ((1, 64), ts.float32, False), ((0, 16), ts.float32, False),
    ((17, 20_000), ts.float32, False), ((50, 1), ts.float32, False), ((50, 1), ts.bfloat16, False),
], ids=str)  # fmt: skip
def test_gradients_in_one_step(shape, dtype, together, kind, names, compiled, steps):
    compare(kind, shape, dtype, names, compiled)
    assert joined(steps) == together


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("names", [(), ("bias",), ("weight", "bias")], ids=str)
def test_parameters_of_another_dtype_or_none(names, compiled, steps):
    compare("layer", (40, 256), ts.bfloat16, names, compiled, weights=ts.float32)
    assert joined(steps) == bool(names)


LAYS = {
    "every second row": lambda x: ts.cat([x, x], 1).reshape(2 * x.shape[0], x.shape[1])[::2],
    "every second element": lambda x: ts.stack([x, x], -1)[..., 0],
    "columns": lambda x: x.t().contiguous().t(),
    "odd address": lambda x: ts.cat([x[0, :1], x.reshape(-1)])[1:].reshape(x.shape),
}


@pytest.mark.parametrize("lay", LAYS)
@pytest.mark.parametrize("dtype", [ts.float32, ts.bfloat16], ids=str)
def test_rows_that_lie_otherwise(lay, dtype):
    for compiled in (False, True):
        compare("layer", (40, 96), dtype, ("weight", "bias"), compiled, lay=LAYS[lay])


def test_a_run_repeats_its_sums_exactly():
    (x, _), (w, _), (g, _) = operand((300, 96), ts.float32, 0), operand((96,), ts.float32, 1), operand((300, 96), ts.float32, 2)
    run = ts.compile(lambda x, w, g: gradients(ts, "rms", {"x": x, "weight": w}, g))
    first = [result.to("cpu").numpy() for result in run(x, w, g)[1:]]
    for _ in range(3):
        for before, now in zip(first, run(x, w, g)[1:]):
            np.testing.assert_array_equal(before, now.to("cpu").numpy())


def test_explain_shows_the_step_and_why_there_are_two():
    def run(x, w, g):
        return gradients(ts, "rms", {"x": x, "weight": w}, g)

    for rows, text in ((64, "_with_"), (2, "no part of the kernel along these rows: the rows are too few")):
        x, w, g = (operand(shape, ts.float32, 0)[0] for shape in ((rows, 96), (96,), (rows, 96)))
        assert text in ts.explain(run, x, w, g).fusion()
