"""Train a classifier on the handwritten digits that come with the package.

Prints the test accuracy, a table of confusions, the accuracy of a fresh model with the saved weights, which is the
same, and what the kernels did (calls, time, GB/s, GFLOP/s).
"""

from __future__ import annotations

import argparse

PROFILED_BATCHES = 20
REQUIRED_ACCURACY = 0.97


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `tensorsmith demo`."""
    parser.add_argument(
        "--output", default="tensorsmith-demo.safetensors", metavar="PATH",
        help="where the checkpoint goes (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--epochs", type=int, default=30, help="passes over the training images (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and dropout (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Train, show, save, reload; 1 if the reloaded model differs or the default training misses its accuracy."""
    from tensorsmith.cli.errors import UsageError
    from tensorsmith.cli.interrupt import Interrupts

    if options.epochs < 1:
        raise UsageError(f"--epochs {options.epochs}: at least 1")
    with Interrupts() as interrupts:
        return _demo(options, interrupts.check)


def _demo(options: argparse.Namespace, check: object) -> int:
    import time
    from itertools import islice

    import numpy as np
    from rich.console import Console

    from tensorsmith.cli.errors import UsageError
    from tensorsmith.cli.tables import confusion_table, kernel_table, make_progress
    from tensorsmith.cli.training import Settings, Training, check_output, confusion, load_parts, save_checkpoint
    from tensorsmith.data.serialization import load
    from tensorsmith.runtime.profiler import profile
    from tensorsmith.targets.cpu.compiler import statistics
    from tensorsmith.targets.cpu.machine import machine
    from tensorsmith.targets.cpu.pool import get_num_threads

    assert callable(check)
    check_output(options.output)
    console = Console(highlight=False, soft_wrap=True)
    train, test = load_parts("digits")
    settings = Settings(options.epochs, dropout=0.3, input_dropout=0.1, seed=options.seed)
    training = Training(settings, train, test)
    count = sum(p.numel() for p in training.model.parameters())
    console.print(
        f"digits: {len(train)} images of 8x8 to train on, {len(test)} to test; perceptron "
        f"{training.model.extra_repr()}, {count} parameters; {machine().name}, {get_num_threads()} threads"
    )
    check()
    start = time.perf_counter()
    progress = make_progress(console, "epochs")
    with progress:
        bar = progress.add_task("training", total=options.epochs, loss="-", accuracy="-")

        def on_batch(seen: int, loss: float) -> None:
            check()
            progress.update(bar, loss=f"{loss:.4f}")

        try:
            for epoch in training.epochs(on_batch):
                progress.update(bar, completed=epoch.number, loss=f"{epoch.loss:.4f}", accuracy=f"{epoch.accuracy:.2%}")
        except FloatingPointError as error:
            raise UsageError(str(error)) from error
    seconds = time.perf_counter() - start
    check()

    counts = confusion(training.model, test)
    accuracy = float(np.trace(counts) / len(test))
    console.print(f"\n{confusion_summary(accuracy, len(test))} after {options.epochs} epochs in {seconds:.1f} s")
    console.print(confusion_table(counts, test.classes))
    check()

    save_checkpoint(training, options.output, accuracy)
    fresh = training.new_model()
    fresh.load_state_dict(load(options.output)["model"])
    again = confusion(fresh, test)
    same = bool((again == counts).all())
    verdict = "the same" if same else "NOT the same"
    reloaded = float(np.trace(again) / len(test))
    console.print(f"saved {options.output}; reloaded into a fresh model: test accuracy {reloaded:.2%}, {verdict}\n")
    check()

    # Only now: timing every kernel slows a step, and the trained weights are saved.
    training.model.train()
    with profile() as found:
        for images, labels in islice(training.loader, PROFILED_BATCHES):
            check()
            training.step(images, labels)
    title = f"what the kernels did in {PROFILED_BATCHES} further training steps"
    console.print(kernel_table(found.rows.values(), title))
    made = statistics()
    console.print(
        f"machine code: {made.compiled} objects compiled in {made.compile_ms / 1e3:.2f} s, {made.loaded} from the cache"
    )
    if not same:
        return 1
    default = options.epochs >= 30
    if default and accuracy < REQUIRED_ACCURACY:
        console.print(f"the accuracy is below {REQUIRED_ACCURACY:.0%}")
        return 1
    return 0


def confusion_summary(accuracy: float, count: int) -> str:
    """The accuracy in words."""
    return f"test accuracy {accuracy:.4f} ({round(accuracy * count)} of {count})"
