"""Checkpoints in a compiled step: they hold less memory, and compute, draw and update what they do eagerly."""

from __future__ import annotations

from typing import Any

import pytest

import tensorsmith as ts
from tensorsmith.ir.graph import Primitive
from tensorsmith.utils.checkpoint import checkpoint

WIDTH, LAYERS = 16, 5


def train(kind: str, compiled: bool, dropout: float = 0.4) -> tuple[list[float], list[list[float]], Any]:
    """Losses of some steps, all parameters and buffers after them, and the step."""
    ts.manual_seed(1)
    blocks = ts.nn.ModuleList()
    for _ in range(LAYERS):
        wide, narrow = ts.nn.Linear(WIDTH, 4 * WIDTH), ts.nn.Linear(4 * WIDTH, WIDTH, bias=False)
        blocks.append(ts.nn.Sequential(wide, ts.nn.GELU(), ts.nn.Dropout(dropout), narrow, ts.nn.BatchNorm1d(WIDTH)))
    blocks.double()
    optimizer = ts.optim.Adam(blocks.parameters(), lr=0.01)

    def block(layer: Any, h: ts.Tensor) -> ts.Tensor:
        if kind == "nested":
            return checkpoint(lambda h: checkpoint(layer, h, use_reentrant=False) * 2, h, use_reentrant=False)
        factor = 2 if kind.startswith("nested") else 1
        return (layer(h) if kind.endswith("none") else checkpoint(layer, h, use_reentrant=kind == "reentrant")) * factor

    def step(x: ts.Tensor) -> ts.Tensor:
        optimizer.zero_grad()
        h = x.clone().requires_grad_()
        for layer in blocks:
            h = block(layer, h)
        loss = (h - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = ts.compile(step) if compiled else step
    x = ts.randn(256, WIDTH, dtype=ts.float64)
    losses = [run(x).item() for _ in range(3)]
    state = [t.detach().double().flatten().tolist() for t in (*blocks.parameters(), *blocks.buffers())]
    return losses, state, run


@pytest.mark.parametrize("kind", ["hooks", "reentrant", "nested"])
def test_a_compiled_checkpoint_is_the_eager_one(kind: str) -> None:
    losses, state, _ = train(kind, False)
    found, after, _ = train(kind, True)
    assert found == pytest.approx(losses, rel=1e-9)
    for one, other in zip(state, after):
        assert other == pytest.approx(one, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("kind", ["hooks", "reentrant"])
def test_it_draws_what_it_drew(kind: str) -> None:
    assert train(kind, True)[0] == pytest.approx(train("none", True)[0], rel=1e-9)


@pytest.mark.parametrize("kind", ["hooks", "reentrant"])
def test_a_compiled_checkpoint_holds_less(kind: str) -> None:
    plan = train(kind, True)[2].plans[0].plan
    kept = train("none", True)[2].plans[0].plan
    assert plan.memory.bound < 0.55 * kept.memory.bound
    matmuls = [sum(node.op is Primitive.MATMUL for node in p.graph.live_nodes()) for p in (plan, kept)]
    assert matmuls[0] > matmuls[1]


def test_without_keeping_the_random_state_it_draws_anew() -> None:
    ts.manual_seed(0)
    x = ts.ones(1000, requires_grad=True)

    @ts.compile
    def step() -> tuple[ts.Tensor, ts.Tensor]:
        x.grad = None
        y = checkpoint(lambda x: ts.nn.functional.dropout(x * 1.0) * x, x, use_reentrant=False, preserve_rng_state=False)
        y.sum().backward()
        return y.detach(), x.grad

    y, grad = step()
    assert ((y > 0) != (grad > 2)).any()
