"""LeNet and ResNet-20 trained on a CUDA device, beside the same training on the CPU: one loss curve.

    python benchmarks/cuda_curves.py [--device cuda] [--steps 60] [--batch 64] [--only lenet]

Both start from the same weights and see the same batches, eagerly and compiled. Prints both losses every few steps, images a
second, and exits 1 where a loss differs by more than `--tolerance` of the CPU's first loss. Float32; the two differ by the
order of their sums, which training amplifies, so curves are compared, not weights.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tensorsmith as ts
from tensorsmith.models.lenet import LeNet
from tensorsmith.models.resnet import ResNet20

Make = Callable[[], Any]
Batch = tuple[np.ndarray, np.ndarray]

# With these rates a weight that differs in its last bit moves no loss by more than a thousandth.
MODELS: dict[str, tuple[Make, tuple[int, ...], float]] = {
    "lenet": (lambda: LeNet(1, 28, 10), (1, 28, 28), 0.005),
    "resnet20": (lambda: ResNet20(3, 10), (3, 32, 32), 0.02),
}


def batches(shape: tuple[int, ...], count: int, batch: int) -> list[Batch]:
    """Ten classes, each a coarse pattern under noise: a loss that falls, and not to nothing."""
    rng = np.random.default_rng(0)
    channels, height, width = shape
    coarse = rng.standard_normal((10, channels, height // 4, width // 4)).astype(np.float32)
    patterns = coarse.repeat(4, 2).repeat(4, 3)
    found = []
    for _ in range(count):
        labels = rng.integers(0, 10, batch)
        found.append((patterns[labels] + 1.5 * rng.standard_normal((batch, *shape)).astype(np.float32), labels))
    return found


def train(make: Make, rate: float, data: list[Batch], device: str, compiled: bool) -> tuple[list[float], float]:
    """Losses of all steps, and images a second without the first two steps."""
    ts.manual_seed(0)
    model = make().to(device)
    optimizer = ts.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = ts.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = ts.compile(step) if compiled else step
    moved = [(ts.tensor(x, device=device), ts.tensor(y, device=device)) for x, y in data]
    losses, began = [], 0.0
    for number, (x, y) in enumerate(moved):
        if number == 2:
            losses = [float(loss) for loss in losses]
            began = time.perf_counter()
        losses.append(run(x, y).detach())
    losses = [float(loss) for loss in losses]
    return losses, (len(data) - 2) * len(data[0][1]) / (time.perf_counter() - began)


def main() -> int:
    """Train, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", choices=sorted(MODELS))
    parser.add_argument("--tolerance", type=float, default=0.02)
    options = parser.parse_args()
    wrong = 0
    for name, (make, shape, rate) in MODELS.items():
        if options.only not in (None, name):
            continue
        data = batches(shape, options.steps, options.batch)
        expected, speed = train(make, rate, data, "cpu", True)
        print(f"{name}: cpu compiled {speed:8.0f} images/s, loss {expected[0]:.4f} -> {np.mean(expected[-5:]):.4f}", flush=True)
        for compiled in (False, True):
            found, speed = train(make, rate, data, options.device, compiled)
            worst = max(abs(a - b) for a, b in zip(found, expected)) / expected[0]
            right = worst <= options.tolerance and np.mean(expected[-5:]) < 0.8 * expected[0]
            wrong += not right
            how = "compiled" if compiled else "eager"
            every = max(1, options.steps // 6)
            print(f"  {options.device} {how:8s} {speed:8.0f} images/s, worst difference {worst:.2%} {'' if right else 'WRONG'}")
            print("    " + "  ".join(f"{a:.4f}/{b:.4f}" for a, b in list(zip(found, expected))[::every]), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
