"""Matrix products of every kind of shape: checked against float64, then timed beside PyTorch.

    python benchmarks/gemm.py [--only square,skinny] [--dtype float32,bfloat16] [--threads 2]

A product is wrong where its largest error is more than four times PyTorch's (and above some roundings of the largest value).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from timing import Report, compare, make_parser, selected

# Roundings of the largest value below which an error is never wrong.
ROUNDING = {"float32": 2e-6, "float64": 4e-15, "float16": 2e-3, "bfloat16": 1.6e-2}


def shapes() -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...], Callable[[Any], Any], Callable[[Any], Any]]]:
    """Name, stored shapes of both operands, and what is done to each before the product."""

    def same(x: Any) -> Any:
        return x

    def turned(x: Any) -> Any:
        return x.mT

    def columns(x: Any) -> Any:
        return x[..., ::2]

    for n in (16, 33, 64, 100, 128, 200, 256, 384, 500, 512, 768, 1024, 2048):
        yield f"square {n}", (n, n), (n, n), same, same
    for m in (1, 2, 4, 8, 16):
        for k, n in ((1024, 1024), (64, 4096), (4096, 64), (4096, 4096)):
            yield f"skinny rows {m}x{k}x{n}", (m, k), (k, n), same, same
            yield f"skinny rows {m}x{k}x{n} of w.T", (m, k), (n, k), same, turned
    for n in (1, 2, 4, 8, 16):
        for m, k in ((1024, 1024), (4096, 64), (64, 4096)):
            yield f"skinny columns {m}x{k}x{n}", (m, k), (k, n), same, same
    yield "tall 64x100000x64", (64, 100_000), (100_000, 64), same, same
    yield "tall 64x100000x64 of x.T", (100_000, 64), (100_000, 64), turned, same
    yield "tall 10x60000x784 of x.T", (60_000, 10), (60_000, 784), turned, same
    yield "outer 2000x8x2000", (2000, 8), (8, 2000), same, same
    yield "outer 2000x64x2000", (2000, 64), (64, 2000), same, same
    yield "long 60000x10x256", (60_000, 10), (10, 256), same, same
    yield "layer 128x768x3072", (128, 768), (768, 3072), same, same
    yield "layer 128x768x3072 of w.T", (128, 768), (3072, 768), same, turned
    yield "layer 64x784x256 of w.T", (64, 784), (256, 784), same, turned
    yield "batched 4096x16x16x16", (4096, 16, 16), (4096, 16, 16), same, same
    yield "batched 1000x8x8x8", (1000, 8, 8), (1000, 8, 8), same, same
    yield "batched heads 48x128x64x128", (48, 128, 64), (48, 64, 128), same, same
    yield "batched heads 48x128x64x128 of k.T", (48, 128, 64), (48, 128, 64), same, turned
    yield "batched rows 64x1x64x512", (64, 1, 64), (64, 64, 512), same, same
    for n in (100, 256, 512):
        yield f"transposed {n} x.T @ y", (n, n), (n, n), turned, same
        yield f"transposed {n} x @ y.T", (n, n), (n, n), same, turned
        yield f"transposed {n} x.T @ y.T", (n, n), (n, n), turned, turned
    yield "strided every second k 300", (300, 600), (300, 300), columns, same
    yield "strided every second column 300", (300, 300), (300, 600), same, columns


def error(result: np.ndarray, exact: np.ndarray) -> float:
    """The largest absolute difference in units of the largest exact value; infinite for another shape."""
    if result.shape != exact.shape:
        return float("inf")
    scale = max(float(np.abs(exact).max()), 1e-30)
    return float(np.abs(result.astype(np.float64) - exact).max()) / scale


def measure(report: Report, name: str, dtype: str, case: tuple, turns: int, threads: int) -> None:
    """Check one product and time it."""
    a_shape, b_shape, of_a, of_b = case
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in (a_shape, b_shape)]
    theirs = [torch.from_numpy(a).to(getattr(torch, dtype)) for a in arrays]
    ours = [ts.from_numpy(a).to(getattr(ts, dtype)) for a in arrays]
    x, y = of_a(theirs[0]), of_b(theirs[1])
    u, v = of_a(ours[0]), of_b(ours[1])
    with torch.no_grad(), ts.no_grad():
        exact = (x.double() @ y.double()).numpy()
        peer, own = error((x @ y).double().numpy(), exact), error((u @ v).double().numpy(), exact)
        label = name if dtype == "float32" else f"{name} {dtype}"
        if not own <= max(4 * peer, ROUNDING[dtype]):
            report.fail(label, f"error {own:.1e}, PyTorch's {peer:.1e}")
            return
        taken = compare({"torch": lambda: x @ y, "ours": lambda: u @ v}, turns, 0.005, threads)
    report.add(label, taken["torch"], taken["ours"], f"error {own:.0e} ({peer:.0e})")


def main() -> int:
    """Run the cases; 1 where one is wrong or slower than asked for."""
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", default="float32", help="float32 (default), float64, float16, bfloat16; several by commas")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ts.set_num_threads(options.threads)
    report = Report("gemm")
    cases = {name: tuple(case) for name, *case in shapes()}
    for dtype in options.dtype.split(","):
        for name in selected(cases, options.only):
            try:
                measure(report, name, dtype, cases[name], options.turns, options.threads)
            except Exception as problem:  # noqa: BLE001 - a case that does not run is a wrong one, not the end
                report.fail(name, f"{type(problem).__name__}: {problem}")
    return report.finish(options.floor, options.mean)


if __name__ == "__main__":
    sys.exit(main())
