"""What the programs here share: their arguments, batches, and the lines they print."""

import argparse
import random
import time

import minitorch


def positive(text):
    """An argument that must be a whole number above zero."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def rate(text):
    """An argument that must be a number above zero."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def parser(description, epochs):
    """A parser with what every program takes."""
    made = argparse.ArgumentParser(description=description.split("\n")[0])
    made.add_argument("--epochs", type=positive, default=epochs, help=f"times over the data (default {epochs})")
    made.add_argument("--seed", type=int, default=0, help="of the data, the first weights and the order (default 0)")
    return made


def add_points(to, points, hidden=None, learning_rate=None):
    """Arguments of the programs that learn a set of points; without `hidden` and a rate nothing is learnt."""
    names = list(minitorch.datasets)
    to.add_argument("--dataset", choices=names, default="Simple", help="which points (default Simple)")
    to.add_argument("--points", type=positive, default=points, help=f"how many points (default {points})")
    if hidden is not None:
        to.add_argument("--hidden", type=positive, default=hidden, help=f"width of the hidden layers (default {hidden})")
        to.add_argument("--rate", type=rate, default=learning_rate, help=f"of learning (default {learning_rate})")


def batches(examples, size):
    """The examples in a new random order, `size` at a time."""
    order = list(range(len(examples)))
    random.shuffle(order)
    for start in range(0, len(order), size):
        yield [examples[i] for i in order[start : start + size]]


def probability_of_label(p, y):
    """The probability that a model which says p for 1 gives to the label y: p for 1, 1 - p for 0."""
    return p * y + (p - 1.0) * (y - 1.0)


class Progress:
    """Prints a line an epoch with the seconds it took, and the accuracy at the end.

    every: how many epochs lie between two lines (the first and the last are always printed)
    """

    def __init__(self, epochs, every=1):
        self.epochs, self.every = epochs, every
        self.begin = time.perf_counter()

    def epoch(self, number, loss, accuracy):
        """After epoch `number` (from 1): the mean loss of an example, the share of right answers."""
        seconds = time.perf_counter() - self.begin
        if number in (1, self.epochs) or number % self.every == 0:
            print(f"epoch {number:4d}  loss {loss:8.4f}  accuracy {accuracy:6.1%}  {seconds:7.4f} s", flush=True)
        if number == self.epochs:
            print(f"accuracy {accuracy:.3f}")
        self.begin = time.perf_counter()
