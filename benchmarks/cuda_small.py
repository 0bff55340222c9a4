"""A small run of every schedule on a CUDA device, results compared with the CPU's: for a checker of memory and races.

    compute-sanitizer --tool memcheck  --error-exitcode 3 python benchmarks/cuda_small.py
    compute-sanitizer --tool racecheck --error-exitcode 3 python benchmarks/cuda_small.py [--only REGEX]

Prints a line a case and exits 1 where a result is wrong. Sizes are such that every schedule has several blocks, rows that are
not whole vectors and, where it divides its work, several parts.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import tensorsmith as ts

F = ts.nn.functional
RNG = np.random.default_rng(0)
Case = tuple[str, Callable[..., Any], tuple[np.ndarray, ...], str, float]


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of the sum of squares of a result in all floating operands."""

    def run(*operands: Any) -> Any:
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in operands]
        result = function(*leaves)
        (result.float() ** 2).sum().backward()
        return (result.detach(), *(x.grad for x in leaves if x.requires_grad))

    return run


def cases() -> list[Case]:
    """Name, function, operands, dtype of the floating ones, tolerance relative to the largest value."""
    found: list[Case] = []

    def add(
        name: str, function: Callable[..., Any], *operands: np.ndarray, dtypes: str = "float32", tolerance: float = 2e-5
    ) -> None:
        for dtype in dtypes.split():
            found.append(
                (f"{name} {dtype}", function, operands, dtype, tolerance if dtype == "float32" else max(tolerance, 2e-2))
            )

    halves = "float32 bfloat16"
    a, b = values(70, 333), values(70, 333)
    add("pointwise", lambda a, b: F.gelu(a * 2 + b) * a[:, :1], a, b, dtypes=halves)
    add("pointwise, transposed", lambda a, b: (a.t() + 1, a.t() * b.t(), a[3:, 1::2] + b[3:, 1::2]), a, b, dtypes=halves)
    add("softmax", lambda a: (a.softmax(1), a.softmax(0), a.log_softmax(0)), a, dtypes=halves)
    add("softmax, long", lambda a: (a.softmax(1), a.t().softmax(0)), values(3, 70001))
    add("layer norm", gradients(lambda a, w: F.layer_norm(a, (333,), w)), a, values(333), dtypes=halves)
    add("reductions", lambda a: (a.sum(), a.sum(0), a.amax(1), a.var(0), a.argmax(1), a.argmin(0), a.prod(1)), a)
    add("sum of many", lambda a: a.sum(), values(300001))
    add(
        "batch norm",
        gradients(lambda x, w: (F.batch_norm(x, None, None, w, training=True) * x.detach()).tanh()),
        values(6, 9, 11, 10),
        values(9),
    )
    add("random", lambda a: F.dropout(a, 0.5), a)
    square = values(130, 130)
    add(
        "product",
        lambda a, b: (a @ b, a.t() @ b, a @ b.t(), F.linear(a, b, b[0]).relu()),
        square,
        values(130, 130),
        dtypes="float32 float64 bfloat16 float16",
        tolerance=2e-5,
    )
    add(
        "product, large",
        lambda a, b: (a @ b, F.gelu(F.linear(a, b))),
        values(256, 512),
        values(512, 512),
        dtypes="bfloat16 float32",
    )
    add("product, deep", lambda a, b: a @ b, values(32, 5000), values(5000, 40), dtypes=halves)
    add("product, batched", lambda a, b: a @ b, values(3, 2, 65, 64), values(3, 2, 64, 72), dtypes=halves)
    q, k, v = values(2, 2, 150, 64), values(2, 2, 150, 64), values(2, 2, 150, 64)
    add("attention", gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)), q, k, v, dtypes=halves)
    add(
        "attention, 128",
        gradients(F.scaled_dot_product_attention),
        *(values(1, 2, 200, 128) for _ in range(3)),
        dtypes="bfloat16",
    )
    x, w = values(4, 16, 12, 12), values(24, 16, 3, 3)
    add("convolution", gradients(lambda x, w: F.conv2d(x, w, padding=1)), x, w, dtypes=halves, tolerance=2e-3)
    add(
        "convolution, strides", gradients(lambda x, w: F.conv2d(x, w, stride=2, padding=1)), x, w, dtypes=halves, tolerance=2e-3
    )
    last = lambda x: x.contiguous(memory_format=ts.channels_last)  # noqa: E731
    wide, kernel = values(8, 64, 8, 8), values(64, 64, 3, 3)
    add(
        "convolution, channels last",
        gradients(lambda x, w: F.conv2d(last(x), last(w), padding=1)),
        wide,
        kernel,
        dtypes="bfloat16",
    )
    add("convolution, groups", gradients(lambda x, w: F.conv2d(x, w, groups=16)), x, values(16, 1, 3, 3), tolerance=2e-3)
    add("pooling", gradients(lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1)), x)
    rows, index = values(50, 33), RNG.integers(0, 50, 200)
    add("gather", lambda a, i: (a[i], a.gather(0, i[:40].reshape(40, 1).expand(40, 33)), F.embedding(i, a)), rows, index)
    add(
        "scatter",
        lambda a, i: (ts.zeros_like(a).index_add_(0, i, a[i]), ts.zeros_like(a).scatter_(0, i[:50, None].expand(50, 33), a)),
        rows,
        index,
    )
    add("scan", lambda a: (a.cumsum(0), a.cumsum(1), a.cummax(1)[0], a.logcumsumexp(1)), a)
    add("scan, long", lambda a: a.cumsum(0), values(100003), tolerance=1e-3)
    add("sort", lambda a: (*a.sort(1), *a.topk(7, 1), *a.kthvalue(5, 0)), a)
    add("sort, long", lambda a: (a.sort()[0], a.topk(100)[0]), values(100003))
    add("search", lambda a, b: ts.searchsorted(a.sort(1)[0], b), a, b)
    add("joined", lambda a, b: (ts.cat([a, b, a], 1), F.pad(a, (3, 2, 1, 4), value=2.0)), a, b)

    def recurrent(x: Any) -> Any:
        ts.manual_seed(0)
        layer = ts.nn.LSTM(20, 24).to(x.device)
        result, _ = layer(x)
        result.sum().backward()
        return result.detach(), layer.weight_hh_l0.grad

    add("recurrent", recurrent, values(5, 7, 20), tolerance=1e-4)

    def trained(x: Any) -> Any:
        ts.manual_seed(0)
        model = ts.nn.Sequential(ts.nn.Linear(333, 40), ts.nn.ReLU(), ts.nn.Linear(40, 10)).to(x.device)
        optimizer = ts.optim.AdamW(model.parameters(), 1e-2)

        @ts.compile
        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = model(x).logsumexp(1).mean()
            loss.backward()
            ts.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        return ts.stack([step(x).detach() for _ in range(4)])

    add("training as a graph", trained, a, tolerance=1e-4)
    return found


def difference(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest value; infinite where NaN or shape differ."""
    if isinstance(found, tuple | list):
        return max(difference(a, b) for a, b in zip(found, expected, strict=True))
    a, b = (np.asarray(x.detach().cpu().double().numpy()) for x in (found, expected))
    if a.shape != b.shape or np.isnan(a).any() != np.isnan(b).any():
        return float("inf")
    return float(np.abs(a - b).max(initial=0.0) / (np.abs(b).max(initial=0.0) + 1e-30))


def main() -> int:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that names cases")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    wrong = count = 0
    for name, function, operands, dtype, tolerance in cases():
        if not re.search(options.only, name):
            continue
        count += 1
        results = []
        for device in ("cpu", options.device):
            ts.manual_seed(1)
            given = [ts.tensor(x, device=device) for x in operands]
            given = [x.to(getattr(ts, dtype)) if x.is_floating_point() else x for x in given]
            results.append(function(*given))
        error = difference(results[1], results[0])
        wrong += not error <= tolerance
        print(f"{'ok   ' if error <= tolerance else 'WRONG'} {name}: {error:.2e}", flush=True)
    print(f"{count - wrong} of {count} right")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
