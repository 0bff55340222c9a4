"""The network of `scalar.py` on tensors, and its training: `tensor.py` and `fast_tensor.py` differ in the backend only."""

import random

import minitorch
from training import Progress, batches, probability_of_label

BATCH = 10


def weights(*shape, backend):
    """A parameter of random numbers about 0, smaller the more of them are summed."""
    inputs = 1
    for extent in shape[:-1] if len(shape) == 2 else shape[1:]:
        inputs *= extent
    return minitorch.Parameter((minitorch.rand(shape, backend=backend) - 0.5) * (12.0 / inputs) ** 0.5)


class Linear(minitorch.Module):
    """x W + b: x (batch, inputs) -> (batch, outputs)"""

    def __init__(self, inputs, outputs, backend):
        super().__init__()
        self.weights = weights(inputs, outputs, backend=backend)
        self.bias = minitorch.Parameter(minitorch.zeros((outputs,), backend=backend))

    def forward(self, x):
        return x @ self.weights.value + self.bias.value


class Network(minitorch.Module):
    """Three layers, ReLU between them, a sigmoid last: (batch, 2) -> (batch,)"""

    def __init__(self, hidden, backend):
        super().__init__()
        self.first = Linear(2, hidden, backend)
        self.second = Linear(hidden, hidden, backend)
        self.last = Linear(hidden, 1, backend)

    def forward(self, x):
        h = self.first(x).relu()
        h = self.second(h).relu()
        return self.last(h).sigmoid().view(x.shape[0])


def train(data, network, rate, epochs, backend):
    """Steps over batches of ten points; a line every ten epochs."""
    examples = list(zip(data.X, data.y))
    optimizer = minitorch.SGD(network.parameters(), rate)
    progress = Progress(epochs, every=10)
    for epoch in range(1, epochs + 1):
        total, right = 0.0, 0
        for batch in batches(examples, BATCH):
            optimizer.zero_grad()
            x = minitorch.tensor([point for point, _ in batch], backend=backend)
            y = minitorch.tensor([label for _, label in batch], backend=backend)
            p = network(x)
            loss = -probability_of_label(p, y).log().sum()
            (loss / len(batch)).backward()
            optimizer.step()
            total += loss.item()
            right += sum((said > 0.5) == (label == 1) for said, (_, label) in zip(p.to_numpy(), batch))
        progress.epoch(epoch, total / len(examples), right / len(examples))


def run(arguments, backend):
    """A program: make the data and the network that its arguments ask for, and train."""
    given = arguments.parse_args()
    random.seed(given.seed)
    data = minitorch.datasets[given.dataset](given.points)
    if not data.X:
        arguments.error(f"--points {given.points}: {given.dataset} needs at least 2")
    train(data, Network(given.hidden, backend), given.rate, given.epochs, backend)
