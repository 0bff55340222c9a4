"""The course's program for module 3 (a network 2-H-H-1 on points of the plane) on the course layer, beside PyTorch.

    python benchmarks/minitorch.py [--hidden 100] [--points 50]

Both train the same network from the same weights on the same shuffled batches of 10, in float64, an epoch a turn, written
as a user of each writes it: the course layer as MiniTorch's `project/run_fast_tensor.py`, PyTorch with `torch.optim.SGD`.
Losses and weights must agree before anything is timed. Start-up is measured in processes of their own: CPU seconds from
the start of Python to the end of the first epoch, with an empty and with a warm kernel cache, the modules' bytecode there.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from tensorsmith import minitorch
from timing import compare, make_parser

BATCH = 10
RATE = 0.05
BACKEND = minitorch.TensorBackend(minitorch.FastOps)


class Linear(minitorch.Module):
    """x W + b"""

    def __init__(self, weight: np.ndarray, bias: np.ndarray) -> None:
        super().__init__()
        self.weights = minitorch.Parameter(minitorch.tensor(weight.tolist(), backend=BACKEND))
        self.bias = minitorch.Parameter(minitorch.tensor(bias.tolist(), backend=BACKEND))

    def forward(self, x: minitorch.Tensor) -> minitorch.Tensor:
        batch, width = x.shape
        return x.view(batch, width) @ self.weights.value + self.bias.value


class Network(minitorch.Module):
    """Three layers, ReLU between them, a sigmoid last."""

    def __init__(self, weights: list[tuple[np.ndarray, np.ndarray]]) -> None:
        super().__init__()
        self.layer1, self.layer2, self.layer3 = (Linear(w, b) for w, b in weights)

    def forward(self, x: minitorch.Tensor) -> minitorch.Tensor:
        h = self.layer1.forward(x).relu()
        h = self.layer2.forward(h).relu()
        return self.layer3.forward(h).sigmoid()


def first_weights(hidden: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and biases of the three layers."""
    rng = np.random.default_rng(0)
    sizes = ((2, hidden), (hidden, hidden), (hidden, 1))
    return [(rng.random(size) - 0.5, np.full(size[1], 0.1)) for size in sizes]


def batches(data: Any, seed: int) -> list[tuple[Any, Any]]:
    """The points of an epoch in batches, shuffled."""
    pairs = list(zip(data.X, data.y))
    random.Random(seed).shuffle(pairs)
    return [tuple(zip(*pairs[i : i + BATCH])) for i in range(0, len(pairs), BATCH)]  # type: ignore[misc]


class Course:
    """The program as MiniTorch has it."""

    def __init__(self, weights: list[tuple[np.ndarray, np.ndarray]]) -> None:
        self.model = Network(weights)
        self.optimizer = minitorch.SGD(self.model.parameters(), RATE)

    def epoch(self, data: Any, seed: int) -> float:
        """Train once over the data; the last loss."""
        total = 0.0
        for points, labels in batches(data, seed):
            self.optimizer.zero_grad()
            X = minitorch.tensor(points, backend=BACKEND)
            y = minitorch.tensor(labels, backend=BACKEND)
            out = self.model.forward(X).view(y.shape[0])
            prob = (out * y) + (out - 1.0) * (y - 1.0)
            loss = -prob.log()
            (loss / y.shape[0]).sum().view(1).backward()
            total = float(loss.sum().view(1)[0])
            self.optimizer.step()
        return total

    def weights(self) -> list[np.ndarray]:
        """The parameters as arrays."""
        return [p.value.to_numpy() for p in self.model.parameters()]


class Peer:
    """The same in PyTorch."""

    def __init__(self, weights: list[tuple[np.ndarray, np.ndarray]]) -> None:
        self.parameters = [torch.tensor(a, requires_grad=True) for pair in weights for a in pair]
        self.optimizer = torch.optim.SGD(self.parameters, lr=RATE)

    def epoch(self, data: Any, seed: int) -> float:
        """Train once over the data; the last loss."""
        total = 0.0
        w1, b1, w2, b2, w3, b3 = self.parameters
        for points, labels in batches(data, seed):
            self.optimizer.zero_grad()
            X = torch.tensor(points, dtype=torch.float64)
            y = torch.tensor(labels, dtype=torch.float64)
            h = (X @ w1 + b1).relu()
            h = (h @ w2 + b2).relu()
            out = (h @ w3 + b3).sigmoid().view(y.shape[0])
            prob = (out * y) + (out - 1.0) * (y - 1.0)
            loss = -(prob + minitorch.operators.EPS).log()
            (loss / y.shape[0]).sum().backward()
            total = float(loss.detach().sum())
            self.optimizer.step()
        return total

    def weights(self) -> list[np.ndarray]:
        """The parameters as arrays."""
        return [p.detach().numpy() for p in self.parameters]



def start_up(cache: str, bytecode: str, hidden: int, points: int) -> float:
    """CPU seconds that a new process takes to the end of its first epoch."""
    source = Path(__file__).read_text(encoding="utf-8").replace("import torch\n", "torch = None\n", 1)
    program = source.split("\nclass Peer")[0].replace("from timing import compare, make_parser\n", "")
    program += f'\nCourse(first_weights({hidden})).epoch(minitorch.datasets["Split"]({points}), 0)\n'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"TENSORSMITH_CACHE": cache, "PYTHONPYCACHEPREFIX": bytecode}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Check, time, print."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("--hidden", type=int, default=100, help="width of the network")
    parser.add_argument("--points", type=int, default=50, help="points of the data set")
    arguments = parser.parse_args()
    ts.set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    random.seed(1)
    data = minitorch.datasets["Split"](arguments.points)

    ours, theirs = Course(first_weights(arguments.hidden)), Peer(first_weights(arguments.hidden))
    for seed in range(20):
        a, b = ours.epoch(data, seed), theirs.epoch(data, seed)
        np.testing.assert_allclose(a, b, rtol=1e-6)
    for x, y in zip(ours.weights(), theirs.weights()):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9)

    seconds = compare(
        {"torch": lambda: theirs.epoch(data, 0), "ours": lambda: ours.epoch(data, 0)}, threads=arguments.threads
    )
    ratio = seconds["torch"] / seconds["ours"]
    print(f"epoch: torch {seconds['torch'] * 1e3:.2f} ms   ours {seconds['ours'] * 1e3:.2f} ms   ratio {ratio:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        caches = ["other", *["kernels"] * 4]  # the first process writes the bytecode
        _, empty, *warm = (
            start_up(f"{folder}/{cache}", f"{folder}/bytecode", arguments.hidden, arguments.points) for cache in caches
        )
    print(f"start to the end of the first epoch: {empty:.2f} s with an empty kernel cache, {min(warm):.2f} s with a warm one")


if __name__ == "__main__":
    main()
