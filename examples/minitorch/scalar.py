"""A network of Scalars learns a set of points of the plane (module 1).

    python -m tensorsmith.minitorch examples/minitorch/scalar.py --dataset Xor --hidden 6 --epochs 300

Three layers 2-H-H-1, every weight a Scalar. One point after the other goes through the network, `backward()` adds to the
derivatives, and a step is made after every ten points.
"""

import random

import minitorch
from training import Progress, add_points, batches, parser, probability_of_label

BATCH = 10


class Neuron(minitorch.Module):
    """w1 x1 + .. + wn xn + b"""

    def __init__(self, inputs):
        super().__init__()
        self.weights = [
            self.add_parameter(f"weight{i}", minitorch.Scalar(2.0 * (random.random() - 0.5))) for i in range(inputs)
        ]
        self.bias = self.add_parameter("bias", minitorch.Scalar(0.1))

    def forward(self, xs):
        out = self.bias.value
        for weight, x in zip(self.weights, xs):
            out = out + weight.value * x
        return out


class Layer(minitorch.Module):
    """Neurons side by side, which see the same inputs."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.neurons = []
        for i in range(outputs):
            neuron = Neuron(inputs)
            setattr(self, f"neuron{i}", neuron)  # a module in an attribute is found by parameters()
            self.neurons.append(neuron)

    def forward(self, xs):
        return [neuron(xs) for neuron in self.neurons]


class Network(minitorch.Module):
    """Three layers, ReLU between them, a sigmoid last."""

    def __init__(self, hidden):
        super().__init__()
        self.first = Layer(2, hidden)
        self.second = Layer(hidden, hidden)
        self.last = Layer(hidden, 1)

    def forward(self, point):
        h = [x.relu() for x in self.first(point)]
        h = [x.relu() for x in self.second(h)]
        return self.last(h)[0].sigmoid()


def main():
    """Train and print."""
    arguments = parser(__doc__, epochs=200)
    add_points(arguments, points=50, hidden=4, learning_rate=0.5)
    given = arguments.parse_args()
    random.seed(given.seed)
    data = minitorch.datasets[given.dataset](given.points)
    examples = list(zip(data.X, data.y))
    if not examples:
        arguments.error(f"--points {given.points}: {given.dataset} needs at least 2")
    network = Network(given.hidden)
    optimizer = minitorch.SGD(network.parameters(), given.rate)
    progress = Progress(given.epochs, every=10)
    for epoch in range(1, given.epochs + 1):
        total, right = 0.0, 0
        for batch in batches(examples, BATCH):
            optimizer.zero_grad()
            for (x1, x2), y in batch:
                p = network((minitorch.Scalar(x1), minitorch.Scalar(x2)))
                loss = -probability_of_label(p, y).log()
                (loss / len(batch)).backward()
                total += loss.data
                right += (p.data > 0.5) == (y == 1)
            optimizer.step()
        progress.epoch(epoch, total / len(examples), right / len(examples))


if __name__ == "__main__":
    main()
