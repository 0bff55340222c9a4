"""The training that `demo` and `train` share: a perceptron on images, an epoch at a time.

The learning rate follows half a cosine from its first value to 0 over all steps: large steps first, fine ones last.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorsmith.cli.errors import UsageError
from tensorsmith.data import DataLoader, Images
from tensorsmith.models import MLP
from tensorsmith.nn import functional as F
from tensorsmith.ops.random import manual_seed
from tensorsmith.optim import SGD, AdamW, Optimizer
from tensorsmith.optim.lr_scheduler import LambdaLR
from tensorsmith.tensor.modes import no_grad

EVALUATION_BATCH = 1000
OnBatch = Callable[[int, float], None]  # images so far, loss of the batch


@dataclass(frozen=True)
class Settings:
    """What a training is made of."""

    epochs: int
    batch_size: int = 64
    lr: float = 3e-3
    hidden: tuple[int, ...] = (256, 128)
    dropout: float = 0.0
    input_dropout: float = 0.0
    optimizer: str = "adam"
    weight_decay: float = 1e-2
    seed: int = 0


@dataclass
class Epoch:
    """What one epoch gave."""

    number: int
    loss: float
    images_per_second: float
    accuracy: float


@dataclass
class Training:
    """A model under training on a training part, judged on a test part."""

    settings: Settings
    train: Images
    test: Images
    model: MLP = field(init=False)
    optimizer: Optimizer = field(init=False)

    def __post_init__(self) -> None:
        manual_seed(self.settings.seed)
        self.model = self.new_model()
        parameters = list(self.model.parameters())
        if self.settings.optimizer == "sgd":
            self.optimizer = SGD(parameters, lr=self.settings.lr, momentum=0.9, weight_decay=self.settings.weight_decay)
        else:
            self.optimizer = AdamW(parameters, lr=self.settings.lr, weight_decay=self.settings.weight_decay)
        self.loader: Any = DataLoader(self.train, batch_size=self.settings.batch_size, shuffle=True)
        steps = self.settings.epochs * len(self.loader)
        self.schedule = LambdaLR(self.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(step / steps, 1.0))))

    def new_model(self) -> MLP:
        """A fresh model of this training's shape."""
        features = math.prod(self.train.images.shape[1:])
        s = self.settings
        return MLP(features, s.hidden, len(self.train.classes), s.dropout, s.input_dropout)

    def step(self, images: Any, labels: Any) -> Any:
        """One training step; the loss."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def epochs(self, on_batch: OnBatch) -> Iterator[Epoch]:
        """Train, epoch by epoch. `on_batch` may raise to stop.

        Raises FloatingPointError where the loss is no longer a number.
        """
        for number in range(1, self.settings.epochs + 1):
            self.model.train()
            total, seen = 0.0, 0
            start = time.perf_counter()
            for images, labels in self.loader:
                loss = self.step(images, labels).item()
                self.schedule.step()
                if not math.isfinite(loss):
                    raise FloatingPointError(
                        f"the loss became {loss} in epoch {number}: use a smaller learning rate than {self.settings.lr}"
                    )
                seen += len(labels)
                total += loss * len(labels)
                on_batch(seen, loss)
            seconds = time.perf_counter() - start
            accuracy = float(np.trace(confusion(self.model, self.test)) / len(self.test))
            yield Epoch(number, total / seen, seen / seconds, accuracy)


def confusion(model: MLP, images: Images) -> np.ndarray:
    """How often a label (row) was taken for a class (column): int64 (classes, classes)."""
    classes = model.classes
    counts = np.zeros((classes, classes), np.int64)
    model.eval()
    loader: Any = DataLoader(images, batch_size=EVALUATION_BATCH)
    with no_grad():
        for batch, labels in loader:
            guesses = model(batch).argmax(1).numpy()
            np.add.at(counts, (labels.numpy(), guesses), 1)
    return counts


def load_parts(source: str) -> tuple[Images, Images]:
    """Training and test part of `digits` or of a folder with MNIST-format files. Raises UsageError naming the path."""
    from tensorsmith.data import Digits, IdxImages

    if source == "digits":
        return Digits(train=True), Digits(train=False)
    try:
        train, test = IdxImages(source, train=True), IdxImages(source, train=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"--data {source}: {_without_function_name(str(error))}") from error
    if train.images.shape[1:] != test.images.shape[1:]:
        sizes = "x".join(map(str, train.images.shape[2:])), "x".join(map(str, test.images.shape[2:]))
        raise UsageError(f"--data {source}: training images are {sizes[0]}, test images {sizes[1]}")
    if len(test.classes) > len(train.classes):
        counts = len(test.classes), len(train.classes)
        raise UsageError(f"--data {source}: the test part has {counts[0]} classes, the training part {counts[1]}")
    return train, test


def _without_function_name(message: str) -> str:
    """A library's message without the function that it names first."""
    head, colon, rest = message.partition(": ")
    return rest if colon and head.isidentifier() else message


def check_output(path: str) -> None:
    """Refuse, before any work, an output file that cannot be written."""
    import os
    from pathlib import Path

    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"--output {path}: the folder {folder} does not exist; create it first")
    if target.is_dir():
        raise UsageError(f"--output {path} is a folder; name a file in it")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--output {path}: the folder {folder} cannot be written to")


def save_checkpoint(training: Training, path: str, accuracy: float) -> None:
    """Model, optimiser and settings in one file, whole or not at all. Raises UsageError naming the file."""
    from tensorsmith.data.serialization import save

    s = training.settings
    state = {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "settings": {"features": training.model.features, "hidden": list(s.hidden), "classes": training.model.classes},
        "accuracy": accuracy,
    }
    try:
        save(state, path)
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written: {error.strerror or error}") from error
