"""One and two threads give the same bits, forward and backward, in every family of kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tensorsmith as ts
from tensorsmith.nn import functional as F
from tensorsmith.ops.creation import array_of


def drawn(*shape: int) -> ts.Tensor:
    return ts.randn(*shape, requires_grad=True)


def lstm() -> list[ts.Tensor]:
    layer, x = ts.nn.LSTM(24, 40, num_layers=2, bidirectional=True), drawn(9, 34, 24)
    y, (h, c) = layer(x)
    return [y, h, c, x, *layer.parameters()]


def batch_norm() -> list[ts.Tensor]:
    layer, x = ts.nn.BatchNorm2d(17), drawn(8, 17, 31, 29)
    return [layer(x), x, *layer.parameters(), layer.running_mean, layer.running_var]


def pointwise() -> list[ts.Tensor]:
    a, b = drawn(301, 1003), drawn(1003)
    return [(a * b + 1).sigmoid() - b.exp(), a.t().contiguous(), a, b]


def reduce() -> list[ts.Tensor]:
    x = drawn(303, 1001)
    return [x.sum(), x.sum(0), x.var(1), x.softmax(1), x.logsumexp(0), x.amax(0), x.argmax(), x]


def scan() -> list[ts.Tensor]:
    x, long = drawn(7, 40_001), drawn(300_007)
    return [x.cumsum(1), x.cumsum(0), long.cumsum(0), x.logcumsumexp(1), x.cummax(1)[0], x, long]


def gemm() -> list[ts.Tensor]:
    a, b, c, deep, tall = drawn(201, 307), drawn(307, 119), drawn(119), drawn(3, 50_001), drawn(50_001, 5)
    batched, other = drawn(9, 33, 65), drawn(9, 65, 31)
    return [F.relu(ts.addmm(c, a, b)), deep @ tall, a @ b[:, 0], batched @ other, a, b, c, deep, tall, batched, other]


def convolution(inputs: int, outputs: int, kernel: int, size: int, **how: int) -> Callable[[], list[ts.Tensor]]:
    def run() -> list[ts.Tensor]:
        x, b = drawn(2, inputs, size, size), drawn(outputs)
        w = drawn(outputs, inputs // how.get("groups", 1), kernel, kernel)
        return [F.conv2d(x, w, b, padding=kernel // 2, **how), x, w, b]

    return run


def attention() -> list[ts.Tensor]:
    q, k, v = drawn(2, 5, 131, 32), drawn(2, 5, 131, 32), drawn(2, 5, 131, 32)
    return [F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v]


def pooling() -> list[ts.Tensor]:
    x = drawn(4, 19, 45, 43)
    return [F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, (7, 5)), x]


def normalisation() -> list[ts.Tensor]:
    x, w, b = drawn(257, 18, 31), drawn(31), drawn(31)
    return [F.layer_norm(x, (31,), w, b), F.group_norm(x, 3), F.rms_norm(x, (31,), w), x, w, b]


def order() -> list[ts.Tensor]:
    x, long = drawn(57, 1501), drawn(200_003)
    return [*x.sort(1), *x.topk(20, 1), *long.sort(), *long.topk(50), *x.kthvalue(400, 1), x, long]


def places() -> list[ts.Tensor]:
    x, table = drawn(403, 301), drawn(91, 64)
    at, words = ts.randint(0, 301, (403, 301)), ts.randint(0, 91, (5003,))
    summed = ts.zeros(403, 301).scatter_add(1, at, x)
    return [
        x.gather(1, at),
        summed,
        F.embedding(words, table),
        x[words % 403],
        x.index_add(0, words % 403, x[words % 403]),
        x,
        table,
    ]


def random() -> list[ts.Tensor]:
    x = drawn(301, 1003)
    return [ts.rand(300_007), ts.randn(300_007), ts.randint(0, 1000, (300_007,)), ts.randperm(100_003), F.dropout(x, 0.3), x]


def optimiser() -> list[ts.Tensor]:
    kept = []
    for kind in (ts.optim.SGD, ts.optim.Adam, ts.optim.AdamW, ts.optim.RMSprop):
        parameters = [ts.nn.Parameter(ts.randn(n)) for n in (200_003, 3, 70_001)]
        optimizer = kind(parameters, lr=0.1)
        for _ in range(2):
            for p in parameters:
                p.grad = p.detach() * 3 + 1
            optimizer.step()
        kept += [p.detach() for p in parameters]
    return kept


FAMILIES: dict[str, Callable[[], list[ts.Tensor]]] = {
    "pointwise": pointwise,
    "reduce": reduce,
    "scan": scan,
    "gemm": gemm,
    "convolution direct": convolution(12, 20, 5, 37, stride=2),
    "convolution grouped": convolution(12, 20, 3, 37, groups=4),
    "convolution depthwise": convolution(24, 24, 3, 37, groups=24),
    "convolution Winograd": convolution(64, 64, 3, 30),
    "attention": attention,
    "pooling": pooling,
    "normalisation": normalisation,
    "batch norm": batch_norm,
    "sort and top-k": order,
    "gather and scatter": places,
    "random": random,
    "LSTM": lstm,
    "optimiser": optimiser,
}


def bits(family: Callable[[], list[ts.Tensor]], threads: int) -> list[bytes]:
    """The bytes of what a family computes, and of the gradients of its leaves."""
    before = ts.get_num_threads()
    ts.set_num_threads(threads)
    try:
        ts.manual_seed(3)
        found = family()
        losses = [(y * ts.randn(tuple(y.shape))).sum() for y in found if y.grad_fn is not None]
        if losses:
            sum(losses[1:], losses[0]).backward()
            found += [x.grad for x in found if x.is_leaf and x.requires_grad]
        return [array_of(x.detach()).tobytes() for x in found]
    finally:
        ts.set_num_threads(before)


@pytest.mark.parametrize("name", FAMILIES)
def test_one_and_two_threads_give_the_same_bits(name: str) -> None:
    one, two = bits(FAMILIES[name], 1), bits(FAMILIES[name], 2)
    assert [i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b] == []
