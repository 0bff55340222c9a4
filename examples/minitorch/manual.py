"""A linear unit whose weights you set by hand (module 0).

    python -m tensorsmith.minitorch examples/minitorch/manual.py --dataset Diag --weights -4 -4 --bias 2
    python -m tensorsmith.minitorch examples/minitorch/manual.py --weights 0 0 --epochs 20

The unit says 1 with probability sigmoid(w1 x1 + w2 x2 + b). By default its weights are right for the data set Simple.
Epochs after the first move the weights along a derivative that is derived by hand too: that of the loss -log p(y) with
respect to w1 x1 + w2 x2 + b is sigmoid(..) - y. Module 1 derives such things by itself.
"""

import math
import random

import minitorch
from minitorch import operators
from training import Progress, add_points, parser, probability_of_label, rate


class Unit(minitorch.Module):
    """sigmoid(w1 x1 + w2 x2 + b), on numbers"""

    def __init__(self, weights, bias):
        super().__init__()
        self.first = minitorch.Parameter(weights[0])
        self.second = minitorch.Parameter(weights[1])
        self.bias = minitorch.Parameter(bias)

    def forward(self, point):
        x1, x2 = point
        return operators.sigmoid(self.first.value * x1 + self.second.value * x2 + self.bias.value)

    def move(self, points, labels, step):
        """Against the mean derivative of the loss over all points."""
        errors = [self(x) - y for x, y in zip(points, labels)]
        along = {
            self.first: [e * x1 for e, (x1, _) in zip(errors, points)],
            self.second: [e * x2 for e, (_, x2) in zip(errors, points)],
            self.bias: errors,
        }
        for parameter, derivatives in along.items():
            parameter.update(parameter.value - step * operators.sum(derivatives) / len(points))


def main():
    """Measure the weights given, and move them where more epochs are asked for."""
    arguments = parser(__doc__, epochs=1)
    add_points(arguments, points=50)
    arguments.add_argument("--weights", type=float, nargs=2, default=(-10.0, 0.0), metavar=("W1", "W2"))
    arguments.add_argument("--bias", type=float, default=5.0)
    arguments.add_argument("--rate", type=rate, default=5.0, help="step of an epoch after the first (default 5)")
    given = arguments.parse_args()
    random.seed(given.seed)
    data = minitorch.datasets[given.dataset](given.points)
    if not data.N or not data.X:
        arguments.error(f"--points {given.points}: {given.dataset} needs at least 2")
    unit = Unit(given.weights, given.bias)
    progress = Progress(given.epochs)
    for epoch in range(1, given.epochs + 1):
        if epoch > 1:
            unit.move(data.X, data.y, given.rate)
        said = [unit(x) for x in data.X]
        losses = [-math.log(max(probability_of_label(p, y), 1e-300)) for p, y in zip(said, data.y)]
        right = [(p > 0.5) == (y == 1) for p, y in zip(said, data.y)]
        progress.epoch(epoch, sum(losses) / len(losses), sum(right) / len(right))


if __name__ == "__main__":
    main()
