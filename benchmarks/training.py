"""Training steps of whole models, eager and compiled, beside PyTorch: the same weights, data and optimiser.

    python benchmarks/training.py [--only sgd] [--mode eager]
    python benchmarks/training.py --only lenet,resnet,gpt --mode compiled --peer inductor  # beside torch.compile
    python benchmarks/training.py --data /usr/share/datasets/fashion-mnist --threads 2     # an epoch of each as well

Before anything is timed, losses over some steps on fresh batches and all weights after them must agree with PyTorch's eager
ones. The peer is that step, or the one whose loss and whose optimiser are compiled by `torch.compile`, which needs a C++
compiler and rounds as it likes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from timing import Report, compare, make_parser, selected
from training_models import ADAM, PROBLEMS, Problem, perceptron

STEPS = 5


def make_step(lib: Any, problem: Problem, weights: dict[str, np.ndarray] | None, compiled: bool) -> tuple[Any, Any]:
    """step(x, y) -> loss, and the model it trains.

    Ours is compiled whole. PyTorch's compiler leaves a function at `backward()`, so its parts are compiled: the loss, whose
    gradient is compiled with it, and the optimiser's step.
    """
    model = problem.build(lib.nn)
    if weights is not None:
        model.load_state_dict({name: lib.from_numpy(value.copy()) for name, value in weights.items()})
    optimizer = getattr(lib.optim, problem.optimizer)(model.parameters(), **problem.options)

    def loss_of(x: Any, y: Any) -> Any:
        return lib.nn.functional.cross_entropy(model(x), y)

    update = optimizer.step
    if compiled and lib is torch:
        torch._dynamo.reset()  # so that this problem's graphs do not count as recompilations of the last one's
        loss_of, update = torch.compile(loss_of), torch.compile(update)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        update()
        return loss

    return (lib.compile(step) if compiled and lib is ts else step), model


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """The state as arrays of its own."""
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def disagreement(problem: Problem, their_step: Any, our_step: Any, their_model: Any, our_model: Any) -> str:
    """What differs after some steps on fresh batches; '' where nothing does."""
    generator = np.random.default_rng(7)
    for number in range(STEPS):
        x, y = problem.batch(generator)
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
    x, y = problem.batch(np.random.default_rng(8))
    if report.peer == "inductor":
        their_step, _ = make_step(torch, problem, arrays_of(their_model), True)
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
    classes = len(data.classes)
    problem = Problem(perceptron(features, 256, 128, classes), (batch, features), classes, "Adam", ADAM)
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
    parser.add_argument("--peer", choices=("eager", "inductor"), default="eager", help="PyTorch eager or torch.compile")
    parser.add_argument("--data", default=None, metavar="PATH", help="a folder of MNIST-format files: epochs as well")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    ts.set_num_threads(options.threads)
    peers = {"eager": "torch", "inductor": "inductor"}
    report = Report("training", peers[options.peer])
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
