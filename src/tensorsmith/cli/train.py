"""Train a perceptron on the digits that come with the package, or on MNIST-format files by path.

  tensorsmith train --data digits
  tensorsmith train --data /usr/share/datasets/fashion-mnist --epochs 5 --output fashion.safetensors
"""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `tensorsmith train`."""
    parser.add_argument(
        "--data", required=True, metavar="digits|PATH",
        help="the digits of the package, or a folder with train-images-idx3-ubyte, ... (plain or .gz)",
    )  # fmt: skip
    parser.add_argument("--epochs", type=int, default=None, help="default 30 for digits, else 5")
    parser.add_argument("--batch-size", type=int, default=None, help="default 64 for digits, else 128")
    parser.add_argument("--lr", type=float, default=None, help="first learning rate (default: adam 0.003, sgd 0.1)")
    parser.add_argument("--hidden", default="256,128", help="widths of the hidden layers (default %(default)s)")
    parser.add_argument("--dropout", type=float, default=0.1, help="of hidden values (default %(default)s)")
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam", help="default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and dropout (default %(default)s)")
    parser.add_argument("--output", metavar="FILE", default=None, help="save the trained model here")
    parser.add_argument("--threads", type=int, default=None, help="default: what this process may use")


def run(options: argparse.Namespace) -> int:
    """Train and print a line an epoch."""
    from tensorsmith.cli.interrupt import Interrupts

    hidden = checked(options)
    with Interrupts() as interrupts:
        return _train(options, hidden, interrupts.check)


def checked(options: argparse.Namespace) -> tuple[int, ...]:
    """The widths of the hidden layers; UsageError for options that make no sense."""
    from tensorsmith.cli.errors import UsageError

    for name in ("epochs", "batch_size", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: at least 1")
    if options.lr is not None and not 0 < options.lr < float("inf"):
        raise UsageError(f"--lr {options.lr}: a positive number")
    if not 0 <= options.dropout < 1:
        raise UsageError(f"--dropout {options.dropout}: a probability below 1")
    words = [word.strip() for word in options.hidden.split(",")] if options.hidden.strip() else []
    if not all(word.isdecimal() and 0 < int(word) <= 1 << 20 for word in words):
        raise UsageError(f"--hidden {options.hidden}: widths separated by commas, such as 256,128")
    return tuple(int(word) for word in words)


def _train(options: argparse.Namespace, hidden: tuple[int, ...], check: Callable[[], None]) -> int:
    from rich.console import Console

    from tensorsmith.cli.errors import UsageError
    from tensorsmith.cli.tables import make_progress
    from tensorsmith.cli.training import Settings, Training, check_output, load_parts, save_checkpoint
    from tensorsmith.targets.cpu.pool import get_num_threads, set_num_threads

    console = Console(highlight=False, soft_wrap=True)
    if options.output is not None:
        check_output(options.output)
    if options.threads is not None:
        try:
            set_num_threads(options.threads)
        except (ValueError, RuntimeError) as error:
            raise UsageError(f"--threads {options.threads}: {error}") from error
    train, test = load_parts(options.data)
    small = options.data == "digits"
    settings = Settings(
        epochs=options.epochs or (30 if small else 5),
        batch_size=options.batch_size or (64 if small else 128),
        lr=options.lr or {"adam": 3e-3, "sgd": 0.1}[options.optimizer],
        hidden=hidden,
        dropout=options.dropout,
        optimizer=options.optimizer,
        weight_decay=1e-2 if options.optimizer == "adam" else 1e-4,
        seed=options.seed,
    )
    training = Training(settings, train, test)
    sizes = "x".join(map(str, train.images.shape[2:]))
    console.print(
        f"{options.data}: {len(train)} images of {sizes} to train on, {len(test)} to test, "
        f"{len(train.classes)} classes; perceptron {training.model.extra_repr()}; {get_num_threads()} threads"
    )
    check()
    last = 0.0
    progress = make_progress(console, "images")
    with progress:
        bar = progress.add_task("epoch 1", total=len(train), loss="-", accuracy="-")

        def on_batch(seen: int, loss: float) -> None:
            check()
            progress.update(bar, completed=seen, loss=f"{loss:.4f}")

        try:
            for epoch in training.epochs(on_batch):
                last = epoch.accuracy
                progress.console.print(
                    f"epoch {epoch.number:3d}  loss {epoch.loss:.4f}  {epoch.images_per_second:9,.0f} images/s  "
                    f"test accuracy {epoch.accuracy:.4f}"
                )
                progress.update(bar, accuracy=f"{epoch.accuracy:.2%}")
                if epoch.number < settings.epochs:
                    progress.update(bar, description=f"epoch {epoch.number + 1}", completed=0)
        except FloatingPointError as error:
            raise UsageError(str(error)) from error
    check()
    if options.output is not None:
        save_checkpoint(training, options.output, last)
        console.print(f"saved {options.output}")
    return 0
