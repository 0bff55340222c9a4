"""Large values that are computed again for the backward: which, and that nothing else changes."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.ir.verify import verify
from tensorsmith.passes.recompute import LEAST_BYTES, recompute
from tensorsmith.runtime.plan import build_plan
from tensorsmith.scalar import functions as f

SIDE = 768
assert SIDE * SIDE * 4 >= LEAST_BYTES


def places(graph: Graph) -> list[Strided]:
    return [Strided(n.shape, contiguous_strides(n.shape)) for n in graph.inputs]


def there_and_back(middle: Any, side: int = SIDE, layers: int = 4) -> Graph:
    """Products with pointwise values between, and then products that read all of those in the reverse order."""
    graph = Graph()
    x = graph.input((side, side), ts.float32)
    made: list[tuple[Node, Node]] = []
    for _ in range(layers):
        product = build.matmul(x, x)
        x = middle(product)
        made.append((product, x))
    for product, value in reversed(made):
        x = build.matmul(build.transpose(value, 0, 1), x * (product > 0))
    graph.outputs = (x,)
    return graph


def test_results_of_pointwise_functions_are_not_kept() -> None:
    graph = there_and_back(lambda product: f.relu(product) * 0.5)
    fired: Counter[str] = Counter()
    found = recompute(graph, fired)
    verify(found)
    assert fired == {f"mul float32[{SIDE}, {SIDE}] computed again, not kept": 3}  # the last one is needed at once
    before, after = (build_plan(g, places(g)).memory for g in (graph, found))
    assert before is not None and after is not None
    assert after.bound <= before.bound - 2 * 4 * SIDE * SIDE


@pytest.mark.parametrize(
    "middle, side",
    [
        (lambda product: f.relu(product), 256),  # small
        (lambda product: build.matmul(product, product), SIDE),
        (lambda product: product / build.reduce(product, "sum", (0,), keepdim=True), SIDE // 2),
        (lambda product: functools.reduce(lambda x, _: f.sin(x), range(20), product), SIDE),
    ],
)
def test_what_is_small_or_dear_is_kept(middle: Any, side: int) -> None:
    graph = there_and_back(middle, side)
    fired: Counter[str] = Counter()
    assert recompute(graph, fired) is graph
    assert not fired


def test_copies_have_the_same_bits() -> None:
    x = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    results = []
    for change in (False, True):
        graph = there_and_back(lambda product: f.relu(product) * 0.5)
        graph = recompute(graph, Counter()) if change else graph
        assert change == any(node.op is Primitive.AGAIN for node in graph.nodes)
        plan = build_plan(graph, places(graph))
        result = np.empty((SIDE, SIDE), np.float32)
        plan.run([x.ctypes.data, result.ctypes.data])
        results.append(result)
    np.testing.assert_array_equal(*results)


def test_what_is_computed_again_is_no_part_of_the_kernel_before() -> None:
    graph = Graph()
    x = graph.input((64, 64), ts.float32)
    first = f.exp(x) + 1
    product = build.matmul(first, first)
    again = f.exp(graph.add(Primitive.AGAIN, (x,), part=1)) + 1
    assert again is not first
    graph.outputs = (build.matmul(product, again),)
    plan = build_plan(graph, places(graph))
    assert [step.name for step in plan.steps] == ["add", "matmul", "add", "matmul"]


def test_a_training_step_holds_less_and_computes_the_same() -> None:
    x, labels = ts.randn(16, 3, 96, 96), ts.randint(0, 10, (16,))

    def train(**options: Any) -> tuple[list[float], Any]:
        ts.manual_seed(0)
        layers: list[ts.nn.Module] = []
        for channels, out in ((3, 8), (8, 8), (8, 8)):
            layers += [ts.nn.Conv2d(channels, out, 3, padding=1), ts.nn.BatchNorm2d(out), ts.nn.ReLU()]
        model = ts.nn.Sequential(*layers, ts.nn.AdaptiveAvgPool2d(1), ts.nn.Flatten(), ts.nn.Linear(8, 10))
        optimizer = ts.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        @ts.compile(**options)
        def step() -> ts.Tensor:
            optimizer.zero_grad()
            loss = ts.nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses = [step().item() for _ in range(3)]
        return losses, step.plans[0]

    (again, less), (kept, more) = train(), train(disable=("recompute",))
    assert again == pytest.approx(kept, rel=1e-5)  # sums of it may be by other kernels
    assert "computed again, not kept" in str(less.report) and "recompute" not in more.report.fired
    assert less.plan.memory.bound < 0.9 * more.plan.memory.bound
