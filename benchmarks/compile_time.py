"""What compiling costs: first calls of ResNet-18's forward and of its training step, in new processes.

    python benchmarks/compile_time.py [--only step] [--require] [--peer inductor]

Each measurement is a process of its own, with an empty cache folder ("cold") or with that of the process before ("warm");
the import is not counted, everything else is, until calls are steady. `compile` is what the first calls spend outside of
running the plan: tracing, planning, code generation, loading. `beside` is what else they take longer than a steady call:
memory that is touched for the first time, weights that are brought into the order their kernels want.

`processor` is the time that this thread had a processor: on a machine that is not idle it says more.

--require: exit code 1 where compiling takes longer than --cold-forward, --cold-step or --warm seconds.
--peer inductor: `torch.compile` on the same model, cold and warm, which takes minutes and needs a C++ compiler; `beside` is not
told apart there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

CALLS = 6  # of which the last ones are steady
CASES = ("forward", "step")


def call_of(lib: Any, case: str) -> Any:
    """The compiled call that is timed."""
    from inference_models import MODELS

    lib.manual_seed(0)
    model = MODELS["resnet18"](lib.nn)
    images = np.random.default_rng(0).standard_normal((2, 3, 224, 224), dtype=np.float32)
    x = lib.from_numpy(images[:1] if case == "forward" else images)
    if case == "forward":
        compiled = lib.compile(model.eval())

        def forward() -> Any:
            with lib.no_grad():
                return compiled(x)

        return forward
    labels = lib.tensor([1, 2])
    optimizer = lib.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss_of(x: Any, labels: Any) -> Any:
        return lib.nn.functional.cross_entropy(model(x), labels)

    whole = lib.__name__ == "tensorsmith"
    of_batch = loss_of if whole else lib.compile(loss_of)  # PyTorch's compiler leaves a function at `backward()`
    update = optimizer.step if whole else lib.compile(optimizer.step)

    def step(x: Any, labels: Any) -> Any:
        optimizer.zero_grad()
        loss = of_batch(x, labels)
        loss.backward()
        update()
        return loss.detach()

    run = lib.compile(step) if whole else step
    return lambda: run(x, labels)


def child(case: str, peer: bool) -> None:
    """Print the figures of a row: compiling on the clock and of the processor, beside, a steady call, two counts."""
    running = [0.0, 0.0]  # seconds in plans: on the clock, of the processor
    if peer:
        import torch as lib
    else:
        import tensorsmith as lib
        from tensorsmith.runtime.plan import Plan

        original = Plan.run

        def timed(self: Plan, *args: Any) -> None:
            start = now()
            try:
                original(self, *args)
            finally:
                running[:] = [before + b - a for before, a, b in zip(running, start, now())]

        Plan.run = timed  # type: ignore[method-assign]
    call = call_of(lib, case)
    before = kernels(peer)
    taken, run = [], []
    for _ in range(CALLS):
        ran, start = list(running), now()
        call()
        taken.append([b - a for a, b in zip(start, now())])
        run.append([b - a for a, b in zip(ran, running)])
    early = CALLS // 2
    figures = []
    for clock in (0, 1):
        times, within = ([pair[clock] for pair in pairs] for pairs in (taken, run))
        steady = min(times)
        first = sum(t - steady for t in times[:early])
        around = min(t - r for t, r in zip(times, within))  # what a steady call does around its plan
        compiling = first if peer else sum(t - r - around for t, r in zip(times[:early], within))
        figures.append((compiling, first - compiling, steady))
    (compiling, beside, steady), (processor, *_) = figures
    print("RESULT", compiling, processor, beside, steady, *(b - a for a, b in zip(before, kernels(peer))))


def now() -> tuple[float, float]:
    """Seconds on the clock, and of the processor for this thread."""
    return time.perf_counter(), time.thread_time()


def kernels(peer: bool) -> tuple[int, int]:
    if peer:
        return 0, 0
    from tensorsmith.targets.cpu.compiler import statistics

    found = statistics()
    return found.compiled, found.loaded


def measure(case: str, folder: str, threads: int, peer: bool) -> list[float]:
    """One new process over a cache folder."""
    environment = dict(
        os.environ, TENSORSMITH_CACHE=folder, TORCHINDUCTOR_CACHE_DIR=folder, TENSORSMITH_NUM_THREADS=str(threads),
        OMP_NUM_THREADS=str(threads),
    )  # fmt: skip
    command = [sys.executable, __file__, "--child", case, *(["--peer", "inductor"] if peer else [])]
    out = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in out.stdout.splitlines() if line.startswith("RESULT")]
    if not lines:
        raise SystemExit(f"{case} failed:\n{out.stdout}{out.stderr}")
    return [float(value) for value in lines[0].split()[1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="warm processes, of which the fastest counts")
    parser.add_argument("--peer", choices=["inductor"])
    parser.add_argument("--require", action="store_true")
    parser.add_argument("--cold-forward", type=float, default=1.0)
    parser.add_argument("--cold-step", type=float, default=3.0)
    parser.add_argument("--warm", type=float, default=0.1)
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.peer is not None)
        return 0
    late = False
    print("who       case      cache   compile  (processor)    beside    steady   kernels compiled, objects loaded")
    for case in CASES if args.only is None else (args.only,):
        for peer in (False, True) if args.peer else (False,):
            with tempfile.TemporaryDirectory() as folder:
                rows = {"cold": measure(case, folder, args.threads, peer)}
                warm = [measure(case, folder, args.threads, peer) for _ in range(args.repeats)]
                rows["warm"] = min(warm)
            for cache, (compiling, processor, beside, steady, *counts) in rows.items():
                most = args.warm if cache == "warm" else args.cold_forward if case == "forward" else args.cold_step
                over = not peer and compiling > most
                late = late or over
                made = "" if peer else "{:6.0f} {:6.0f}".format(*counts)
                print(
                    f"{'inductor' if peer else 'ours':9} {case:9} {cache:5} {compiling:8.3f} s {processor:9.3f} s "
                    f"{beside:8.3f} s {steady:7.3f} s  {made}{f'   over {most} s' if over else ''}"
                )
    return 1 if args.require and late else 0


if __name__ == "__main__":
    sys.exit(main())
