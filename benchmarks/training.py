"""Training steps of perceptrons, eager and compiled, beside PyTorch's eager ones: the same weights, data and optimiser.

    python benchmarks/training.py [--only sgd] [--mode eager]
    python benchmarks/training.py --data /usr/share/datasets/fashion-mnist --threads 2     # an epoch of each as well

Before anything is timed, losses over some steps on fresh batches and all weights after them must agree.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from timing import Report, compare, make_parser, selected

STEPS = 5


@dataclass(frozen=True)
class Problem:
    """A perceptron and how it is trained."""

    widths: tuple[int, ...]
    batch: int
    optimizer: str
    options: dict[str, float] = field(default_factory=dict)
    layer_norm: bool = False

    def model(self, lib: Any) -> Any:
        """Linear layers with ReLU (or LayerNorm and GELU) between them."""
        layers: list[Any] = []
        for inside, outside in zip(self.widths, self.widths[1:-1]):
            layers.append(lib.nn.Linear(inside, outside))
            layers += [lib.nn.LayerNorm(outside), lib.nn.GELU()] if self.layer_norm else [lib.nn.ReLU()]
        return lib.nn.Sequential(*layers, lib.nn.Linear(*self.widths[-2:]))


PROBLEMS = {
    "784-256-256-10 batch 64 sgd": Problem((784, 256, 256, 10), 64, "SGD", {"lr": 0.1, "momentum": 0.9}),
    "784-256-256-10 batch 64 adam": Problem((784, 256, 256, 10), 64, "Adam", {"lr": 1e-3}),
    "64-256-128-10 batch 64 adamw": Problem((64, 256, 128, 10), 64, "AdamW", {"lr": 1e-3, "weight_decay": 0.01}),
    "784-512-10 batch 256 sgd": Problem((784, 512, 10), 256, "SGD", {"lr": 0.1}),
    "32-32-4 batch 8 sgd": Problem((32, 32, 4), 8, "SGD", {"lr": 0.1}),
    "300-400-300-7 batch 50 adamw, layer_norm": Problem((300, 400, 300, 7), 50, "AdamW", {"lr": 1e-3}, True),
}


def make_step(lib: Any, problem: Problem, weights: dict[str, np.ndarray] | None, compiled: bool) -> tuple[Any, Any]:
    """step(x, y) -> loss, and the model it trains."""
    model = problem.model(lib)
    if weights is not None:
        model.load_state_dict({name: lib.from_numpy(value.copy()) for name, value in weights.items()})
    optimizer = getattr(lib.optim, problem.optimizer)(model.parameters(), **problem.options)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = lib.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return (lib.compile(step) if compiled else step), model


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """The state as arrays of its own."""
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def disagreement(problem: Problem, their_step: Any, our_step: Any, their_model: Any, our_model: Any) -> str:
    """What differs after some steps on fresh batches; '' where nothing does."""
    generator = np.random.default_rng(7)
    for number in range(STEPS):
        x = generator.standard_normal((problem.batch, problem.widths[0]), dtype=np.float32)
        y = generator.integers(0, problem.widths[-1], problem.batch)
        expected = their_step(torch.from_numpy(x), torch.from_numpy(y)).item()
        found = our_step(ts.from_numpy(x), ts.from_numpy(y)).item()
        if not np.isclose(found, expected, rtol=1e-3):
            return f"step {number + 1}: loss {found} instead of {expected}"
    theirs, ours = arrays_of(their_model), arrays_of(our_model)
    for name, value in theirs.items():
        if not np.allclose(ours[name], value, rtol=0, atol=2e-3 * max(float(np.abs(value).max()), 1e-3)):
            return f"{name} differs after {STEPS} steps"
    return ""


def measure(report: Report, name: str, problem: Problem, mode: str, turns: int, threads: int) -> None:
    """Check one problem in one mode and time its step."""
    their_step, their_model = make_step(torch, problem, None, False)
    our_step, our_model = make_step(ts, problem, arrays_of(their_model), mode == "compiled")
    problem_found = disagreement(problem, their_step, our_step, their_model, our_model)
    if problem_found:
        report.fail(f"{name} {mode}", problem_found)
        return
    generator = np.random.default_rng(8)
    x = generator.standard_normal((problem.batch, problem.widths[0]), dtype=np.float32)
    y = generator.integers(0, problem.widths[-1], problem.batch)
    given = {"torch": (torch.from_numpy(x), torch.from_numpy(y)), "ours": (ts.from_numpy(x), ts.from_numpy(y))}
    calls = {"torch": lambda: their_step(*given["torch"]), "ours": lambda: our_step(*given["ours"])}
    taken = compare(calls, turns, threads=threads)
    report.add(f"{name} {mode}", taken["torch"], taken["ours"])


def epochs(report: Report, path: str, threads: int, count: int = 3) -> None:
    """Epochs of MNIST-format files in turn: ours as a user writes it, PyTorch's with its tensors indexed by batch."""
    from tensorsmith.data import DataLoader, IdxImages

    clock: Callable[[], float] = time.process_time if threads == 1 else time.perf_counter
    data = IdxImages(path, train=True)
    batch, features = 128, int(np.prod(data.images.shape[1:]))
    problem = Problem((features, 256, 128, len(data.classes)), batch, "Adam", {"lr": 1e-3})
    their_step, their_model = make_step(torch, problem, None, False)
    our_step, _ = make_step(ts, problem, arrays_of(their_model), False)
    images = torch.from_numpy(data.images.numpy().reshape(len(data), features))
    labels = torch.from_numpy(data.labels.numpy())
    loader = DataLoader(data, batch_size=batch, shuffle=True)

    def their_epoch() -> float:
        order = torch.randperm(len(images)).split(batch)
        return float(np.mean([their_step(images[chosen], labels[chosen]).item() for chosen in order]))

    def our_epoch() -> float:
        return float(np.mean([our_step(x.reshape(len(y), features), y).item() for x, y in loader]))

    times: dict[str, list[float]] = {"torch": [], "ours": []}
    for number in range(count):
        for name, epoch in (("torch", their_epoch), ("ours", our_epoch)):
            start = clock()
            loss = epoch()
            times[name].append(clock() - start)
            print(f"  epoch {number + 1} {name:5s} {times[name][-1]:6.2f} s  loss {loss:.4f}", flush=True)
    report.add(f"epoch of {len(data)} images, batch {batch}", min(times["torch"]), min(times["ours"]))


def main() -> int:
    """Run the cases; 1 where one is wrong or slower than asked for."""
    parser = make_parser(__doc__)
    parser.add_argument("--mode", choices=("eager", "compiled", "both"), default="both")
    parser.add_argument("--data", default=None, metavar="PATH", help="a folder of MNIST-format files: epochs as well")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    ts.set_num_threads(options.threads)
    report = Report("training")
    for name in selected(PROBLEMS, options.only):
        for mode in ("eager", "compiled") if options.mode == "both" else (options.mode,):
            try:
                measure(report, name, PROBLEMS[name], mode, options.turns, options.threads)
            except Exception as error:  # noqa: BLE001 - a case that does not run is a wrong one, not the end
                report.fail(f"{name} {mode}", f"{type(error).__name__}: {error}")
    if options.data is not None:
        epochs(report, options.data, options.threads)
    return report.finish(options.floor, options.mean)


if __name__ == "__main__":
    sys.exit(main())
