"""Train a perceptron, LeNet or ResNet-20 on digits, Fashion-MNIST, MNIST-format files or folders of images.

  tensorsmith train --data digits
  tensorsmith train --model lenet --data fashion-mnist --epochs 5
  tensorsmith train --model lenet --data fashion-mnist --epochs 5 --resume

  tensorsmith train --model resnet20 --data fashion-mnist --compile

After every epoch the whole state goes to a checkpoint, from which --resume continues to the same numbers, and the log
beside it: a CSV file, at the end a PNG of the curves.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

NAMES = {"mlp": "perceptron", "lenet": "LeNet with", "resnet20": "ResNet-20 with"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `tensorsmith train`."""
    parser.add_argument(
        "--data", required=True, metavar="digits|fashion-mnist|PATH",
        help="the digits of the package, Debian's Fashion-MNIST, or a folder with train-images-idx3-ubyte, ... (or .gz) "
        "or with images in train/CLASS and test/CLASS",
    )  # fmt: skip
    parser.add_argument("--model", choices=("mlp", "lenet", "resnet20"), default="mlp", help="default %(default)s")
    parser.add_argument("--epochs", type=int, default=None, help="default 30 for digits, else 5")
    parser.add_argument("--batch-size", type=int, default=None, help="default 64 for digits, else 128")
    parser.add_argument("--lr", type=float, default=None, help="first learning rate (default: adam 0.003, sgd 0.1)")
    parser.add_argument("--hidden", default="256,128", help="widths of the hidden layers of mlp (default %(default)s)")
    parser.add_argument("--dropout", type=float, default=0.1, help="of hidden values of mlp (default %(default)s)")
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam", help="default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and dropout (default %(default)s)")
    parser.add_argument(
        "--output", metavar="FILE", default=None, help="the checkpoint (default tensorsmith-MODEL-DATA.safetensors)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument(
        "--compile", action="store_true", help="run training steps and judgements as compiled programs; resume with it too"
    )
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

    from tensorsmith.cli.curves import draw_curves, write_log
    from tensorsmith.cli.errors import UsageError
    from tensorsmith.cli.tables import make_progress
    from tensorsmith.cli.training import Settings, Training, check_output, load_parts, resume, save_checkpoint
    from tensorsmith.targets.cpu.pool import get_num_threads, set_num_threads

    console = Console(highlight=False, soft_wrap=True)
    output = options.output or f"tensorsmith-{options.model}-{os.path.basename(os.path.abspath(options.data))}.safetensors"
    check_output(output)
    if options.threads is not None:
        try:
            set_num_threads(options.threads)
        except (ValueError, RuntimeError) as error:
            raise UsageError(f"--threads {options.threads}: {error}") from error
    train, test = load_parts(options.data)
    small = options.data == "digits"
    settings = Settings(
        model=options.model,
        epochs=options.epochs or (30 if small else 5),
        batch_size=options.batch_size or (64 if small else 128),
        lr=options.lr or {"adam": 3e-3, "sgd": 0.1}[options.optimizer],
        hidden=hidden,
        dropout=options.dropout,
        optimizer=options.optimizer,
        weight_decay=1e-2 if options.optimizer == "adam" else 1e-4,
        seed=options.seed,
    )
    training = Training(settings, train, test, options.compile)
    if options.resume:
        resume(training, output)
    sizes = "x".join(map(str, train.images.shape[2:]))
    count = sum(p.numel() for p in training.model.parameters())
    text = training.model.extra_repr() if options.model == "mlp" else f"{count:,} parameters"
    console.print(
        f"{options.data}: {len(train)} images of {sizes} to train on, {len(test)} to test, "
        f"{len(train.classes)} classes; {NAMES[options.model]} {text}; {get_num_threads()} threads"
    )
    done = len(training.log)
    if done:
        console.print(f"resumed {output} after epoch {done} of {settings.epochs}")
    if done >= settings.epochs:
        console.print(f"{output} has all of its {done} epochs; give more --epochs to go on")
        return 0
    check()
    log, curves = Path(output).with_suffix(".csv"), Path(output).with_suffix(".png")
    progress = make_progress(console, "images", speed=True)
    with progress:
        last = f"{training.log[-1]['test_accuracy']:.2%}" if done else "-"
        bar = progress.add_task(f"epoch {done + 1}", total=len(train), loss="-", accuracy=last)

        def on_batch(seen: int, loss: float) -> None:
            check()
            progress.update(bar, completed=seen, loss=f"{loss:.4f}")

        try:
            for epoch in training.epochs(on_batch):
                progress.console.print(
                    f"epoch {epoch.number:3d}  loss {epoch.loss:.4f}  {epoch.images_per_second:9,.0f} images/s  "
                    f"test accuracy {epoch.accuracy:.4f}"
                )
                save_checkpoint(training, output, epoch.accuracy)
                write_log(training.log, log)
                progress.update(bar, accuracy=f"{epoch.accuracy:.2%}")
                if epoch.number < settings.epochs:
                    progress.update(bar, description=f"epoch {epoch.number + 1}", completed=0)
                check()
        except FloatingPointError as error:
            raise UsageError(str(error)) from error
    problem = draw_curves(training.log, curves)
    console.print(f"saved {output}, {log}" + ("" if problem else f", {curves}"))
    if problem:
        console.print(problem, markup=False)
    return 0
