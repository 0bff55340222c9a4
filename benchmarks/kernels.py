"""Operators at real sizes: checked against float64, then timed beside PyTorch.

    python benchmarks/kernels.py [--only softmax,matmul] [--threads 2] [--seed 1]

A case is wrong where its largest error is more than four times PyTorch's (and above 2e-6 of the largest value).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from timing import Report, compare, make_parser, selected

Case = tuple[list[np.ndarray], Callable[..., Any]]


def cases(generator: np.random.Generator) -> Iterator[tuple[str, Callable[[], Case]]]:
    """name -> a maker of (arrays, function of the library and its tensors)."""

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, dtype=np.float32)

    def case(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], Case]:
        return lambda: ([normal(*shape) for shape in shapes], function)

    for size in (1 << 14, 1 << 20, 3_000_001):
        shape = (size,)
        yield f"gelu {size}", case(lambda lib, x: lib.nn.functional.gelu(x), shape)
        yield f"silu {size}", case(lambda lib, x: lib.nn.functional.silu(x), shape)
        yield f"tanh {size}", case(lambda lib, x: lib.tanh(x), shape)
        yield f"add {size}", case(lambda lib, x, y: x + y, shape, shape)
    yield "silu 64x196x768", case(lambda lib, x: lib.nn.functional.silu(x), (64, 196, 768))
    yield "add bias 4096x768", case(lambda lib, x, y: x + y, (4096, 768), (768,))
    yield "add column 1000x3001", case(lambda lib, x, y: x + y, (1000, 3001), (1000, 1))
    for rows, columns in ((200_000, 3), (60_000, 10), (5000, 33)):
        yield f"add bias {rows}x{columns}", case(lambda lib, x, y: x + y, (rows, columns), (columns,))
        yield f"mul column {rows}x{columns}", case(lambda lib, x, y: x * y, (rows, columns), (rows, 1))
    yield "square 200k", case(lambda lib, x: x**2, (200_000,))
    yield "power 2.5 200k", case(lambda lib, x: x.abs() ** 2.5, (200_000,))
    for name in ("fmod", "remainder", "atan2", "hypot"):
        yield f"{name} 200k", case(lambda lib, x, y, name=name: getattr(lib, name)(x, y), (200_000,), (200_000,))
    for name in ("erfc", "asinh", "expm1", "sin"):
        yield f"{name} 200k", case(lambda lib, x, name=name: getattr(lib, name)(x), (200_000,))
        yield f"{name} float64 200k", case(lambda lib, x, name=name: getattr(lib, name)(x.double()), (200_000,))
    yield "to bfloat16 and back 1M", case(lambda lib, x: x.to(lib.bfloat16).to(lib.float32), (1 << 20,))
    yield "to int32 1M", case(lambda lib, x: (x * 100).to(lib.int32), (1 << 20,))
    yield "flip 1000x1000", case(lambda lib, x: x.flip(1), (1000, 1000))
    yield "mul transposed 1500x1100", case(lambda lib, x, y: x * y.t(), (1500, 1100), (1100, 1500))
    yield "add every second column 2000x1000", case(lambda lib, x: x[:, ::2] + 1.0, (2000, 1000))
    for rows, columns in ((4096, 1000), (300, 20000), (100_000, 17), (60_000, 10), (200_000, 3), (30_000, 64)):
        shape, sizes = (rows, columns), f"{rows}x{columns}"
        yield f"sum {sizes}", case(lambda lib, x: x.sum(), shape)
        yield f"sum dim 0 {sizes}", case(lambda lib, x: x.sum(0), shape)
        yield f"mean dim 1 {sizes}", case(lambda lib, x: x.mean(1), shape)
        yield f"amax dim 1 {sizes}", case(lambda lib, x: x.amax(1), shape)
        yield f"argmax dim 1 {sizes}", case(lambda lib, x: x.argmax(1), shape)
        yield f"softmax {sizes}", case(lambda lib, x: lib.nn.functional.softmax(x, dim=-1), shape)
        yield f"softmax dim 0 {sizes}", case(lambda lib, x: lib.nn.functional.softmax(x, dim=0), shape)
        yield f"log_softmax {sizes}", case(lambda lib, x: lib.nn.functional.log_softmax(x, dim=-1), shape)
        yield f"layer_norm {sizes}", case(layer_norm, shape, (columns,), (columns,))

        def labelled(rows: int = rows, columns: int = columns) -> Case:
            arrays = [normal(rows, columns), generator.integers(0, columns, rows)]
            return arrays, lambda lib, x, t: lib.nn.functional.cross_entropy(x, t)

        yield f"cross_entropy {sizes}", labelled
    yield "sum all 4M", case(lambda lib, x: x.sum(), (1 << 22,))
    yield "sum dim 1 of 64x512x96", case(lambda lib, x: x.sum(1), (64, 512, 96))
    for size in (512, 1500, 2048):
        yield f"transpose copy {size}", case(lambda lib, x: x.t().contiguous(), (size, size))
    yield "permute copy 32x64x56x56", case(lambda lib, x: x.permute(0, 2, 3, 1).contiguous(), (32, 64, 56, 56))
    cubes = ((64, 64, 64), (256, 256, 256), (1024, 1024, 1024))
    for m, k, n in (*cubes, (777, 555, 333), (64, 784, 256), (2000, 64, 2000), (60_000, 10, 256), (16, 4096, 4096)):
        yield f"matmul {m}x{k}x{n}", case(lambda lib, x, y: x @ y, (m, k), (k, n))
    yield "matmul of transposed 600x700x500", case(lambda lib, x, y: x.t() @ y.t(), (700, 600), (500, 700))
    yield "batched matmul 1000x8x8x8", case(lambda lib, x, y: x @ y, (1000, 8, 8), (1000, 8, 8))
    yield "batched matmul 64x1x64x512", case(lambda lib, x, y: x @ y, (64, 1, 64), (64, 64, 512))
    yield "batched matmul 48x128x64x128", case(lambda lib, x, y: x @ y, (48, 128, 64), (48, 64, 128))
    yield "matmul vector 3000x3000", case(lambda lib, x, y: x @ y, (3000, 3000), (3000,))
    for m, k, n in ((1, 4096, 4096), (8, 4096, 4096), (3, 1000, 5000), (256, 768, 3072), (1000, 1000, 1)):
        yield f"linear {m}x{k}x{n}", case(linear, (m, k), (n, k), (n,))
    for name, x, w, attrs in CONVOLUTIONS:
        words = "".join(f" {key} {value}" for key, value in attrs.items())
        yield f"{name} {'x'.join(map(str, x))} {'x'.join(map(str, w))}{words}", case(
            lambda lib, x, w, name=name, attrs=attrs: getattr(lib.nn.functional, name)(x, w, **attrs), x, w
        )
    for count, width, batch in ((30522, 384, (32, 128)), (1000, 33, (7, 501)), (50_000, 768, (512,))):

        def looked_up(count: int = count, width: int = width, batch: tuple[int, ...] = batch) -> Case:
            arrays = [normal(count, width), generator.integers(0, count, batch)]
            return arrays, lambda lib, w, i: lib.nn.functional.embedding(i, w)

        yield f"embedding {'x'.join(map(str, batch))} of {count}x{width}", looked_up


CONVOLUTIONS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, int]], ...] = (
    ("conv2d", (1, 144, 56, 56), (144, 1, 3, 3), {"padding": 1, "groups": 144}),
    ("conv2d", (8, 512, 14, 14), (512, 1, 3, 3), {"padding": 1, "groups": 512}),
    ("conv2d", (1, 144, 56, 56), (144, 1, 3, 3), {"padding": 1, "groups": 144, "stride": 2}),
    ("conv2d", (1, 240, 28, 28), (240, 1, 5, 5), {"padding": 2, "groups": 240}),
    ("conv2d", (4, 32, 33, 33), (64, 1, 3, 3), {"padding": 1, "groups": 32}),
    ("conv2d", (1, 128, 28, 28), (128, 128, 3, 3), {"padding": 1, "stride": 2}),
    ("conv2d", (1, 64, 56, 56), (256, 64, 1, 1), {}),
    ("conv2d", (1, 256, 56, 56), (512, 256, 1, 1), {"stride": 2}),
    ("conv2d", (1, 3, 224, 224), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    ("conv2d", (32, 1, 28, 28), (6, 1, 5, 5), {"padding": 2}),
    ("conv2d", (32, 6, 14, 14), (16, 6, 5, 5), {}),
    ("conv2d", (1, 256, 56, 56), (256, 8, 3, 3), {"padding": 1, "groups": 32}),
    ("conv1d", (8, 64, 1000), (64, 64, 3), {"padding": 1}),
    ("conv3d", (2, 16, 16, 16, 16), (32, 16, 3, 3, 3), {"padding": 1}),
    ("conv_transpose2d", (8, 256, 8, 8), (256, 128, 4, 4), {"padding": 1, "stride": 2}),
)


def layer_norm(lib: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Layer norm over the last axis."""
    return lib.nn.functional.layer_norm(x, tuple(weight.shape), weight, bias)


def linear(lib: Any, x: Any, weight: Any, bias: Any) -> Any:
    """x W^T + b."""
    return lib.nn.functional.linear(x, weight, bias)


def error(result: np.ndarray, exact: np.ndarray) -> float:
    """The largest absolute difference in units of the largest exact value; infinite for another shape or kind."""
    if result.shape != exact.shape or result.dtype.kind != exact.dtype.kind:
        return float("inf")
    scale = max(float(np.abs(exact).max()), 1e-30)
    return float(np.abs(result.astype(np.float64) - exact).max()) / scale


def measure(report: Report, name: str, made: Case, turns: int, threads: int) -> None:
    """Check one case and time it."""
    arrays, function = made
    theirs, ours = [torch.from_numpy(a) for a in arrays], [ts.from_numpy(a) for a in arrays]
    exact = function(torch, *(x.double() if x.is_floating_point() else x for x in theirs)).numpy()

    def renew() -> None:
        floating = next(a for a in arrays if a.dtype == np.float32)
        floating.flat[:: max(floating.size // 499, 1)] *= np.float32(-1)

    with torch.no_grad(), ts.no_grad():
        peer_error = error(function(torch, *theirs).numpy(), exact)
        our_error = error(function(ts, *ours).numpy(), exact)
        if not our_error <= max(4 * peer_error, 2e-6):
            report.fail(name, f"error {our_error:.1e}, PyTorch's {peer_error:.1e}")
            return
        calls = {"torch": lambda: function(torch, *theirs), "ours": lambda: function(ts, *ours)}
        taken = compare(calls, turns, threads=threads, before_turn=renew)
    report.add(name, taken["torch"], taken["ours"], f"error {our_error:.0e} ({peer_error:.0e})")


def main() -> int:
    """Run the cases; 1 where one is wrong or slower than asked for."""
    parser = make_parser(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ts.set_num_threads(options.threads)
    report = Report("kernels")
    made = dict(cases(np.random.default_rng(options.seed)))
    for name in selected(made, options.only):
        try:
            measure(report, name, made[name](), options.turns, options.threads)
        except Exception as problem:  # noqa: BLE001 - a case that does not run is a wrong one, not the end
            report.fail(name, f"{type(problem).__name__}: {problem}")
    return report.finish(options.floor, options.mean)


if __name__ == "__main__":
    sys.exit(main())
