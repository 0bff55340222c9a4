"""The training that `demo` and `train` share: a classifier of images, an epoch at a time.

The learning rate follows half a cosine from its first value to 0 over all steps: large steps first, fine ones last.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from tensorsmith.cli.errors import UsageError
from tensorsmith.compile import compile
from tensorsmith.data import DataLoader, Images
from tensorsmith.models import MLP, LeNet, ResNet20
from tensorsmith.nn import functional as F
from tensorsmith.ops.random import get_rng_state, manual_seed, set_rng_state
from tensorsmith.optim import SGD, AdamW, Optimizer
from tensorsmith.optim.lr_scheduler import LambdaLR
from tensorsmith.tensor.modes import no_grad

EVALUATION_BATCH = 1000
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
OnBatch = Callable[[int, float], None]  # images so far, loss of the batch


@dataclass(frozen=True)
class Settings:
    """What a training is made of."""

    epochs: int
    batch_size: int = 64
    model: str = "mlp"
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
    accuracy: float  # on the test part
    train_accuracy: float  # of the guesses during training
    learning_rate: float  # at the end


@dataclass
class Training:
    """A model under training on a training part, judged on a test part.

    compiled: whether steps and judgements run as programs (`ts.compile`). It is no setting: a training may go on the other way,
        with sums that round otherwise.
    """

    settings: Settings
    train: Images
    test: Images
    compiled: bool = False
    model: Any = field(init=False)
    optimizer: Optimizer = field(init=False)
    log: list[dict[str, Any]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        manual_seed(self.settings.seed)
        self.model = self.new_model()
        parameters = list(self.model.parameters())
        if self.settings.optimizer == "sgd":
            self.optimizer = SGD(parameters, lr=self.settings.lr, momentum=0.9, weight_decay=self.settings.weight_decay)
        else:
            self.optimizer = AdamW(parameters, lr=self.settings.lr, weight_decay=self.settings.weight_decay)
        self.run_step: Callable[[Any, Any], tuple[Any, Any]] = compile(self.step) if self.compiled else self.step
        self.judged = compile(self.model) if self.compiled else self.model
        self.loader: Any = DataLoader(self.train, batch_size=self.settings.batch_size, shuffle=True)
        steps = self.settings.epochs * len(self.loader)
        self.schedule = LambdaLR(self.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(step / steps, 1.0))))

    def new_model(self) -> Any:
        """A fresh model of this training's shape. Raises UsageError where the images do not suit it."""
        s, (channels, height, width), classes = self.settings, self.train.images.shape[1:], len(self.train.classes)
        if s.model == "resnet20":
            return ResNet20(channels, classes)
        if s.model == "lenet":
            if height != width or height < 4:
                raise UsageError(f"--model lenet: needs square images of at least 4x4, got {height}x{width}")
            return LeNet(channels, height, classes)
        return MLP(channels * height * width, s.hidden, classes, s.dropout, s.input_dropout)

    def step(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """One training step; the loss and how many guesses were right, as tensors."""
        self.optimizer.zero_grad()
        logits = self.model(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        self.optimizer.step()
        return loss, (logits.detach().argmax(1) == labels).sum()

    def epochs(self, on_batch: OnBatch) -> Iterator[Epoch]:
        """Train, epoch by epoch. `on_batch` may raise to stop.

        Raises FloatingPointError where the loss is no longer a number.
        """
        for number in range(len(self.log) + 1, self.settings.epochs + 1):
            self.model.train()
            total, right, seen = 0.0, 0, 0
            start = time.perf_counter()
            for images, labels in self.loader:
                found, hits = self.run_step(images, labels)
                loss = found.item()
                self.schedule.step()
                if not math.isfinite(loss):
                    raise FloatingPointError(
                        f"the loss became {loss} in epoch {number}: use a smaller learning rate than {self.settings.lr}"
                    )
                seen += len(labels)
                total += loss * len(labels)
                right += hits.item()
                on_batch(seen, loss)
            seconds = time.perf_counter() - start
            accuracy = float(np.trace(confusion(self.judged, self.test)) / len(self.test))
            rate = float(self.schedule.get_last_lr()[0])
            epoch = Epoch(number, total / seen, seen / seconds, accuracy, right / seen, rate)
            self.log.append(
                {
                    "epoch": number, "loss": epoch.loss, "train_accuracy": epoch.train_accuracy,
                    "test_accuracy": accuracy, "images_per_second": epoch.images_per_second, "learning_rate": rate,
                }
            )  # fmt: skip
            yield epoch

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the training depends on: weights, optimiser, schedule, random numbers, log."""
        settings = asdict(self.settings)
        settings["hidden"] = list(settings["hidden"])
        if isinstance(self.model, MLP):
            settings["features"] = self.model.features
        return {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(), "random": get_rng_state(), "log": self.log,
            "settings": {**settings, "classes": self.model.classes},
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a `state_dict` was taken; `epochs` may differ, another setting raises ValueError naming it."""
        for each in fields(self.settings):
            own, saved = getattr(self.settings, each.name), state["settings"][each.name]
            if each.name != "epochs" and own != (tuple(saved) if isinstance(saved, list) else saved):
                raise ValueError(f"it was trained with {each.name} {saved}, not {own}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.log = [dict(row) for row in state["log"]]
        set_rng_state(state["random"])


def confusion(model: Any, images: Images) -> np.ndarray:
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
    """Training and test part of `digits`, of Fashion-MNIST, of a folder with MNIST-format files, or with images in
    train/CLASS and test/CLASS.

    Raises UsageError naming the path.
    """
    from tensorsmith.data import Digits, IdxImages

    if source == "digits":
        return Digits(train=True), Digits(train=False)
    if source == "fashion-mnist":
        if not os.path.isdir(FASHION_MNIST):
            raise UsageError(
                f"--data fashion-mnist: {FASHION_MNIST} does not exist; install Debian's package dataset-fashion-mnist, "
                "or give the folder that holds its files"
            )
        source = FASHION_MNIST
    folders = [Path(source) / "train", Path(source) / "test"]
    try:
        if all(folder.is_dir() for folder in folders):
            train, test = _pictures(folders[0]), _pictures(folders[1])
            if train.classes != test.classes:
                raise ValueError(f"the classes of train are {train.classes}, of test {test.classes}")
        else:
            train, test = IdxImages(source, train=True), IdxImages(source, train=False)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"--data {source}: {_without_function_name(str(error))}") from error
    if train.images.shape[1:] != test.images.shape[1:]:
        sizes = "x".join(map(str, train.images.shape[2:])), "x".join(map(str, test.images.shape[2:]))
        raise UsageError(f"--data {source}: training images are {sizes[0]}, test images {sizes[1]}")
    if len(test.classes) > len(train.classes):
        counts = len(test.classes), len(train.classes)
        raise UsageError(f"--data {source}: the test part has {counts[0]} classes, the training part {counts[1]}")
    return train, test


def _pictures(folder: Path) -> Images:
    """All images of a folder with a folder a class, which must be of one size. Raises ValueError, OSError."""
    from tensorsmith.data import ImageFolder

    files = ImageFolder(folder)
    pixels = []
    for number, (path, _) in enumerate(files.samples):
        pixels.append(np.array(files[number][0]))
        if pixels[-1].shape != pixels[0].shape:
            sizes = ["x".join(map(str, p.shape[:2])) for p in (pixels[-1], pixels[0])]
            raise ValueError(f"{path} is {sizes[0]}, {files.samples[0][0]} {sizes[1]}; images must be of one size")
    return Images(np.stack(pixels), np.array(files.targets), 255.0, files.classes)


def _without_function_name(message: str) -> str:
    """A library's message without the function that it names first."""
    head, colon, rest = message.partition(": ")
    return rest if colon and head.isidentifier() else message


def check_output(path: str) -> None:
    """Refuse, before any work, an output file that cannot be written."""
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"--output {path}: the folder {folder} does not exist; create it first")
    if target.is_dir():
        raise UsageError(f"--output {path} is a folder; name a file in it")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--output {path}: the folder {folder} cannot be written to")


def save_checkpoint(training: Training, path: str, accuracy: float) -> None:
    """The whole state of a training in one file, whole or not at all. Raises UsageError naming the file."""
    from tensorsmith.data.serialization import save

    state = {**training.state_dict(), "accuracy": accuracy}
    try:
        save(state, path)
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written: {error.strerror or error}") from error


def resume(training: Training, path: str) -> None:
    """Take over a checkpoint. Raises UsageError naming the file and what does not fit."""
    from tensorsmith.data.serialization import load

    if not os.path.isfile(path):
        raise UsageError(f"--resume: there is no checkpoint {path}; train without --resume, or name it with --output")
    try:
        training.load_state_dict(load(path))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UsageError(f"--resume: {path} does not fit: {error}") from error
