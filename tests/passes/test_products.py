"""Deep matrix products in parts: when, into which, and what they give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.core.dtypes import DType, bfloat16, float32, float64, int32
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.passes.products import DEPTH, FEWEST, part_depth, split_products


def product(M: int, K: int, N: int, dtype: DType = float32) -> Graph:
    graph = Graph()
    a, b = graph.input((M, K), dtype), graph.input((K, N), dtype)
    graph.outputs = [build.matmul(a, b)]
    return graph


def shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [node.shape for node in graph.live_nodes() if node.op is Primitive.MATMUL]


def test_few_long_sums_become_a_batch_of_products() -> None:
    split = split_products(product(64, 100_000, 32))
    assert shapes(split) == [(25, 64, 32)] and split.outputs[0].shape == (64, 32)
    assert shapes(split_products(product(1, 1 << 20, 1, float64))) == [((1 << 20) // DEPTH, 1, 1)]
    prime = 100_003
    assert sorted(shapes(split_products(product(3, prime, 5)))) == [(3, 5), (prime // DEPTH, 3, 5)]


@pytest.mark.parametrize(
    "graph",
    [product(64, FEWEST * DEPTH - 1, 64), product(1024, 100_000, 1024), product(64, 100_000, 64, bfloat16),
     product(8, 100_000, 8, int32), product(0, 100_000, 8)],
    ids=["shallow", "many results", "half", "integers", "empty"],
)  # fmt: skip
def test_others_stay_whole(graph: Graph) -> None:
    assert split_products(graph) is graph


@given(st.integers(FEWEST * DEPTH, 1 << 30))
@settings(max_examples=50, deadline=None)
def test_parts_are_near_the_depth(K: int) -> None:
    depth = part_depth(K)
    assert DEPTH // 2 < depth < 2 * DEPTH and (depth == DEPTH or K % depth == 0)


@pytest.mark.parametrize("K", [40_000, 40_009])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_deep_products_are_exact_to_some_roundings_and_the_same_on_two_threads(
    turned: tuple[bool, bool], bias: bool, K: int
) -> None:
    generator = np.random.default_rng(0)
    M, N = 5, 7
    a = generator.standard_normal((K, M) if turned[0] else (M, K), dtype=np.float32)
    b = generator.standard_normal((N, K) if turned[1] else (K, N), dtype=np.float32)
    c = generator.standard_normal(N, dtype=np.float32)
    x, y = ts.from_numpy(a), ts.from_numpy(b)
    u, v = (a.T if turned[0] else a), (b.T if turned[1] else b)
    before, results = ts.get_num_threads(), []
    for threads in (1, 2):
        ts.set_num_threads(threads)
        try:
            found = (x.t() if turned[0] else x) @ (y.t() if turned[1] else y)
            results.append((found + ts.from_numpy(c) if bias else found).numpy())
        finally:
            ts.set_num_threads(before)
    assert results[0].tobytes() == results[1].tobytes()
    exact = u.astype(np.float64) @ v + (c if bias else 0)
    assert results[0].shape == (M, N)
    assert np.abs(results[0] - exact).max() <= 1e-6 * np.abs(exact).max()
