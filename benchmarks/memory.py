"""Peak memory of a training step: ResNet-18 on images of 224x224, compiled here, beside PyTorch's eager step.

    python benchmarks/memory.py [--batch 2,8,16] [--require 1.0] [--steps]

Each figure is of a process of its own, in MiB. The process makes the model and SGD with momentum and takes some steps, so that
everything exists that lasts; then it drops the gradients and gives back what its allocator holds idle, which is the resting
state: weights, momenta, one batch. From there two more steps run (the second meets the gradients of the first), and the figure
is by how much the most memory that the process held in them (the kernel's VmHWM, set back before) rose over the resting state:
activations, gradients, scratch space of kernels and what fragments, in both libraries alike. Beside it stands what PyTorch's
allocator gave out at most (its profiler's account, without what oneDNN asks of the system itself), and our plan's account.

The ratio is PyTorch's peak over ours, from the medians of `--processes` runs; `--require` makes it a condition at every batch.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
from typing import Any

import numpy as np

from inference_models import resnet18

MIB = 1 << 20


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))


def rise(step: Any, rest: Any) -> float:
    """By how much the peak of two steps is above what the process holds at rest, in MiB."""
    gc.collect()
    rest()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is what is held now
    before = status("VmRSS")
    step()
    step()
    return (status("VmHWM") - before) / MIB


def make_step(lib: Any, batch: int) -> tuple[Any, Any]:
    """step() -> loss, and the optimiser."""
    model = resnet18(lib.nn)
    optimizer = lib.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = np.random.default_rng(0)
    images = lib.from_numpy(generator.standard_normal((batch, 3, 224, 224), dtype=np.float32))
    labels = lib.from_numpy(generator.integers(0, 1000, batch))

    def step(images: Any, labels: Any) -> Any:
        optimizer.zero_grad()
        loss = lib.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = step if lib.__name__ == "torch" else lib.compile(step)
    return lambda: compiled(images, labels), (optimizer, compiled)


def of_torch(batch: int, steps: int) -> dict[str, float]:
    """Figures of PyTorch, in this process."""
    import torch

    torch.set_num_threads(1)
    step, (optimizer, _) = make_step(torch, batch)
    for _ in range(steps):
        step()
    found = {"peak": rise(step, optimizer.zero_grad)}
    optimizer.zero_grad()
    gc.collect()
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    alive = most = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    found["account"] = most / MIB
    return found


def of_tensorsmith(batch: int, steps: int) -> dict[str, float]:
    """Figures of ours, in this process."""
    import tensorsmith as ts
    from tensorsmith.targets.cpu.memory import empty_cache

    ts.set_num_threads(1)
    step, (optimizer, compiled) = make_step(ts, batch)
    for _ in range(steps):
        step()

    def rest() -> None:
        optimizer.zero_grad()
        empty_cache()

    found = {"peak": rise(step, rest)}
    used = max(compiled.plans, key=lambda each: each.runs)
    memory = used.plan.memory
    found |= {"account": memory.peak / MIB, "arena": memory.temporaries / MIB, "bound": memory.bound / MIB}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="2,8,16")
    parser.add_argument("--processes", type=int, default=3, help="processes a figure is the median of")
    parser.add_argument("--steps", type=int, default=4, help="steps before the one that is measured")
    parser.add_argument("--require", type=float, default=0.0, help="least ratio at every batch")
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "BATCH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measure = of_torch if given.one[0] == "torch" else of_tensorsmith
        print(json.dumps(measure(int(given.one[1]), given.steps)))
        return 0
    print(f"{'batch':>5} {'torch':>8} {'(account)':>10} {'ours':>8} {'(arena)':>9} {'(bound)':>9} {'ratio':>7}")
    worst = float("inf")
    for batch in given.batch.split(","):
        median: dict[str, dict[str, float]] = {}
        for library in ("torch", "tensorsmith"):
            command = [sys.executable, __file__, "--one", library, batch, "--steps", str(given.steps)]
            runs = [
                json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])
                for _ in range(given.processes)
            ]
            median[library] = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        torch, ours = median["torch"], median["tensorsmith"]
        ratio = torch["peak"] / ours["peak"]
        worst = min(worst, ratio)
        print(
            f"{batch:>5} {torch['peak']:>8.1f} {torch['account']:>10.1f} {ours['peak']:>8.1f} {ours['arena']:>9.1f} "
            f"{ours['bound']:>9.1f} {ratio:>7.2f}",
            flush=True,
        )
    print(f"worst ratio: {worst:.2f}")
    return int(worst < given.require)


if __name__ == "__main__":
    sys.exit(main())
