"""Layouts of kernels with reductions, timed on one GPU beside a copy: norms along rows, softmax over columns.

    python benchmarks/cuda_rows.py                 # some minutes
    python benchmarks/cuda_rows.py --only softmax
    python benchmarks/cuda_rows.py --rehearse      # on the emulated device, small: whether every layout runs and is right

    forward   `row_plan.VARIANT`: a row in registers as planned, a warp a row, blocks that stay, and ask for the next row ahead
    both      y, dx, dw, db in two kernels, and in one with what `rounds_plan.py` may hold in registers
    softmax   over columns: blocks that walk over stretches of columns (`walk_plan.py`), their width and what a thread holds

Every layout is checked against PyTorch before it is timed. A line is: what, microseconds, its share of the copy's rate (two
tensors are counted forward, five both ways), the largest error over the largest value, and the layout that was planned.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import tensorsmith as ts
from gpu_timing import measure
from tensorsmith.kernels.canonical import Canonical
from tensorsmith.runtime import cuda_joint_steps
from tensorsmith.targets.cuda import joint, lower, rounds_plan, row_plan, walk_plan
from tensorsmith.targets.cuda.kernel import DeviceProperties


@contextmanager
def changed(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Other constants of the planner; plans that were made before are forgotten, here and at the end."""
    before = [(where, name, getattr(where, name)) for where, name, _ in changes]

    def put(values: Any) -> None:
        for where, name, value in values:
            setattr(where, name, value)
        joint._found.cache_clear()

    put(changes)
    try:
        yield
    finally:
        put(before)


def with_lanes(lanes: int, ahead: bool) -> list[tuple[Any, str, Any]]:
    """Joint kernels of so many threads a row, the next row asked for ahead or not, with all registers that there are."""
    plan = rounds_plan.rounds_plan

    def planned(canonical: Canonical, properties: DeviceProperties) -> Any:
        return plan(canonical, properties, (ahead,))

    return [
        (rounds_plan, "MOST_HELD", 200), (rounds_plan, "FEWEST_THREADS", 1), (rounds_plan, "_lanes", lambda units: [lanes]),
        (joint, "rounds_plan", planned),
    ]  # fmt: skip


def layouts(rehearse: bool) -> Iterator[tuple[str, str, tuple[int, int], str, list[tuple[Any, str, Any]]]]:
    """Name, what is computed, shape, dtype, and the constants of every line."""
    small = (40, 256)
    for shape, dtype in (((65536, 1024), "bfloat16"), ((65536, 1024), "float32"), ((16384, 4096), "bfloat16")):
        shape = small if rehearse else shape
        for variant in ("held", "shared", "rounds", "ahead"):
            yield f"forward {variant}", "forward", shape, dtype, [(row_plan, "VARIANT", variant)]
        yield "both, two kernels", "both", shape, dtype, [(cuda_joint_steps, "refusal", lambda spec, properties: "timed apart")]
        yield "both, one kernel", "both", shape, dtype, []
        for lanes in (32, 64, 128, 256):
            for ahead in (False, True):
                what = f"both, {lanes} threads a row{', ahead' if ahead else ''}"
                yield what, "both", shape, dtype, with_lanes(lanes, ahead)
    for dtype in ("float32", "bfloat16"):
        for shape in ((8192, 8192), (65536, 1024)):
            shape = (4000, 96) if rehearse else shape
            stays = [(lower.walk_plan, "walk_plan", lambda canonical, properties: "timed apart")]
            yield "softmax, no walking blocks", "softmax", shape, dtype, stays
            yield "softmax", "softmax", shape, dtype, []
            for stretch in (32, 64, 128, 256):
                for share in (2, 8):
                    ways = [(walk_plan, "STRETCH_BYTES", (stretch,)), (walk_plan, "STATES_SHARE", share)]
                    yield f"softmax, {stretch} bytes a step, states 1/{share}", "softmax", shape, dtype, ways


def function(lib: Any, kind: str) -> Callable[..., tuple[Any, ...]]:
    """What is computed, in one of the two libraries."""

    def forward(x: Any, w: Any, b: Any, g: Any) -> tuple[Any, ...]:
        return (lib.nn.functional.layer_norm(x, (x.shape[-1],), w, b),)

    def both(x: Any, w: Any, b: Any, g: Any) -> tuple[Any, ...]:
        x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
        y = lib.nn.functional.layer_norm(x, (x.shape[-1],), w, b)
        return (y, *lib.autograd.grad(y, (x, w, b), g))

    def softmax(x: Any, w: Any, b: Any, g: Any) -> tuple[Any, ...]:
        return (lib.nn.functional.softmax(x, 0),)

    return {"forward": forward, "both": both, "softmax": softmax}[kind]


def operands(shape: tuple[int, int], dtype: str, rehearse: bool) -> list[tuple[Any, Any]]:
    """x, w, b and the gradient of y, in both libraries."""
    made = []
    for number, extents in enumerate([shape, shape[1:], shape[1:], shape]):
        torch.manual_seed(number)
        theirs = torch.randn(*extents, device="cpu" if rehearse else "cuda").to(getattr(torch, dtype))
        ours = ts.tensor(theirs.float().numpy()).to(getattr(ts, dtype)).to("cuda") if rehearse else ts.from_dlpack(theirs)
        made.append((ours, theirs))
    return made


def error(found: Any, wanted: Any) -> float:
    """The largest difference over the largest value."""
    worst = 0.0
    for ours, theirs in zip(found, wanted):
        a, b = torch.tensor(ours.detach().cpu().float().numpy()), theirs.detach().float().cpu()
        worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item())
    return worst


def main() -> int:
    """Time all layouts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that a line's beginning matches")
    parser.add_argument("--rehearse", action="store_true", help="on the emulated device, small, untimed")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    if options.rehearse:
        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        import emulator

        emulator.activate()

    def timed(lib: Any, call: Callable[[], Any]) -> float:
        return math.nan if options.rehearse else measure({"it": (lib, call)}, "cuda", options.turns, 4.0, False)["it"]

    copy = math.nan
    if not options.rehearse:
        a = torch.empty(1 << 28, device="cuda")
        b = torch.empty_like(a)
        copy = 2 * a.numel() * 4 / timed(torch, lambda: b.copy_(a)) / 1e6
        print(f"copy {copy:.0f} GB/s", flush=True)
    failed = 0
    for name, kind, shape, dtype, changes in layouts(options.rehearse):
        label = f"{name}, {shape} {dtype}"
        if not re.match(options.only, label):
            continue
        pairs = operands(shape, dtype, options.rehearse)
        mine, theirs = [ours for ours, _ in pairs], [other for _, other in pairs]
        with changed(*changes):
            run = ts.compile(function(ts, kind))
            wrong = error(run(*mine), function(torch, kind)(*theirs))
            ms = timed(ts, lambda run=run, mine=mine: run(*mine))
            text, _, _ = str(ts.explain(run, *mine).kernel()).partition("\ngradient, ")
            launches = "; ".join(re.findall(r"\((kernel_.*?), [\d,]+ bytes", text))
        moved = (5 if kind == "both" else 2) * pairs[0][1].numel() * pairs[0][1].element_size()
        good = wrong <= {"float32": 1e-4, "bfloat16": 2e-2}[dtype]
        failed += not good
        share = moved / ms / 1e6 / copy
        verdict = "" if good else " WRONG"
        print(f"{label:70s} {ms * 1e3:9.2f} us  {share:5.2f} of copy  error {wrong:.1e}{verdict}  {launches}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
