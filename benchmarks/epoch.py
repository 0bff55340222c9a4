"""An epoch of LeNet on Fashion-MNIST as `tensorsmith train` runs it, beside the same training in PyTorch.

    python benchmarks/epoch.py [--only eager] [--data FOLDER] [--batches 100]

Ours is `tensorsmith.cli.training.Training`: loader, step, guesses counted, schedule of the learning rate; once with eager
steps and once with compiled ones. PyTorch's takes the same batches in the same order by indexing whole tensors, which is the
quickest way to load that it has, and trains the same model from the same weights with the same optimiser and schedule.
The trainings take turns, a block of batches at a time. An epoch's time is the median of a batch times their number.
What is wrong: losses of the first batches that differ, or mean losses of the epoch that do.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from tensorsmith.cli.errors import UsageError
from tensorsmith.cli.training import FASHION_MNIST, Settings, Training, load_parts
from timing import Report, make_parser, selected

FIRST = 5  # batches whose losses must agree one by one
MODES = ("eager", "compiled")


class Order:
    """A sampler of batches in a fixed order."""

    def __init__(self, batches: Sequence[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Ours:
    """The training of the command `train`, over a given order of the images."""

    def __init__(self, settings: Settings, parts: tuple[Any, Any], batches: Sequence[list[int]], compiled: bool) -> None:
        self.training = Training(settings, *parts)
        self.loaded = iter(ts.data.DataLoader(parts[0], batch_sampler=Order(batches)))
        self.step = ts.compile(self.training.step) if compiled else self.training.step

    def run(self, count: int) -> list[float]:
        """Train on the next batches; their losses."""
        losses = []
        for _ in range(count):
            images, labels = next(self.loaded)
            loss, right = self.step(images, labels)
            losses.append(loss.item())
            right.item()
            self.training.schedule.step()
        return losses


class Theirs:
    """The same training in PyTorch."""

    def __init__(self, ours: Training, batches: Sequence[list[int]]) -> None:
        nn = torch.nn
        convolutions = [m for m in ours.model.modules() if isinstance(m, ts.nn.Conv2d)]
        linears = [m for m in ours.model.modules() if isinstance(m, ts.nn.Linear)]
        layers: list[Any] = []
        for each in convolutions:
            shape = each.in_channels, each.out_channels, each.kernel_size
            layers += [nn.Conv2d(*shape, padding=each.padding), nn.ReLU(), nn.MaxPool2d(2)]
        layers.append(nn.Flatten())
        for each in linears:
            layers += [nn.Linear(each.in_features, each.out_features), nn.ReLU()]
        self.model = nn.Sequential(*layers[:-1])
        values = [torch.from_numpy(value.detach().numpy().copy()) for value in ours.model.parameters()]
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), values, strict=True):
                parameter.copy_(value)
        settings = ours.settings
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, ours.schedule.lr_lambdas[0])
        self.images = torch.from_numpy(ours.train.images.numpy())
        self.labels = torch.from_numpy(ours.train.labels.numpy())
        self.batches = iter(batches)

    def run(self, count: int) -> list[float]:
        """Train on the next batches; their losses."""
        losses = []
        for _ in range(count):
            chosen = torch.tensor(next(self.batches))
            images, labels = self.images[chosen], self.labels[chosen]
            self.optimizer.zero_grad()
            logits = self.model(images)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            loss.backward()
            self.optimizer.step()
            (logits.detach().argmax(1) == labels).sum().item()
            losses.append(loss.item())
            self.schedule.step()
        return losses


def main() -> int:
    """Run the trainings in turn; 1 where one is wrong or slower than asked for."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", default=FASHION_MNIST, metavar="FOLDER", help="MNIST-format files (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="default %(default)s")
    parser.add_argument("--batches", type=int, default=None, help="a part of the epoch: so many batches (default: all)")
    parser.add_argument("--block", type=int, default=10, help="batches of one turn (default %(default)s)")
    options = parser.parse_args()
    try:
        parts = load_parts(options.data)
    except UsageError as error:
        print(
            f"{error}\nIt needs the four files of Fashion-MNIST, train-images-idx3-ubyte.gz and so on: install Debian's "
            "package dataset-fashion-mnist, or name the folder that holds them with --data.",
            file=sys.stderr,
        )
        return 2
    torch.set_num_threads(options.threads)
    ts.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    settings = Settings(epochs=1, batch_size=options.batch_size, model="lenet")
    size = len(parts[0])
    order = np.random.default_rng(0).permutation(size).tolist()
    batches = [order[start : start + options.batch_size] for start in range(0, size, options.batch_size)]
    whole = len(batches)
    del batches[options.batches or whole :]
    modes = selected(MODES, options.only)
    ours = {mode: Ours(settings, parts, batches, mode == "compiled") for mode in modes}
    if not ours:
        print(f"--only {options.only}: choose from {', '.join(MODES)}", file=sys.stderr)
        return 2
    trainings: dict[str, Any] = {"torch": Theirs(ours[modes[0]].training, batches), **ours}
    losses: dict[str, list[float]] = {name: [] for name in trainings}
    times: dict[str, list[float]] = {name: [] for name in trainings}
    for turn, first in enumerate(range(0, len(batches), options.block)):
        count = min(options.block, len(batches) - first)
        for name in list(trainings) if turn % 2 == 0 else list(reversed(trainings)):
            start = clock()
            losses[name] += trainings[name].run(count)
            if first:  # the first block compiles and warms up
                times[name].append((clock() - start) / count)
    report = Report("epoch")
    for mode in modes:
        name = f"lenet {mode}, epoch of {whole} batches"
        expected, found = losses["torch"], losses[mode]
        if not np.allclose(found[:FIRST], expected[:FIRST], rtol=2e-3):
            report.fail(name, f"losses {found[:FIRST]} instead of {expected[:FIRST]}")
        elif not np.isclose(np.mean(found), np.mean(expected), rtol=0.05):
            report.fail(name, f"mean loss {np.mean(found):.4f} instead of {np.mean(expected):.4f}")
        elif not times[mode]:
            report.fail(name, "too few batches for a second block")
        else:
            taken = {key: statistics.median(times[key]) * whole for key in ("torch", mode)}
            report.add(name, taken["torch"], taken[mode], f"mean loss {np.mean(found):.3f} and {np.mean(expected):.3f}")
    return report.finish(options.floor, options.mean)


if __name__ == "__main__":
    sys.exit(main())
