"""A convolutional network reads handwritten digits (module 4).

    python -m tensorsmith.minitorch examples/minitorch/digits.py --epochs 8
    python -m tensorsmith.minitorch examples/minitorch/digits.py --data FOLDER

FOLDER holds MNIST, Fashion-MNIST or another set in IDX files (train-images-idx3-ubyte ..., plain or .gz). Without it the
1797 digits of 8x8 pixels that come with tensorsmith are read.
"""

import random
from collections import namedtuple

import minitorch
from points import Linear, weights
from tensorsmith.data import Digits, find_idx_pair, load_idx
from training import Progress, batches, parser, positive, rate

BACKEND = minitorch.TensorBackend(minitorch.FastOps)

Image = namedtuple("Image", "pixels label")


class Convolution(minitorch.Module):
    """3x3, as large as its input, and ReLU: (batch, inputs, height, width) -> (batch, outputs, height, width)"""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weights = weights(outputs, inputs, 3, 3, backend=BACKEND)
        self.bias = minitorch.Parameter(minitorch.zeros((outputs, 1, 1), backend=BACKEND))

    def forward(self, x):
        return (minitorch.conv2d(x, self.weights.value) + self.bias.value).relu()


class Network(minitorch.Module):
    """Two convolutions, pooling, two linear layers with dropout between: log probabilities (batch, classes)"""

    def __init__(self, height, width, classes):
        super().__init__()
        side = 2 if height * width < 400 else 4
        if height % side or width % side:
            raise ValueError(f"images of {height}x{width} pixels cannot be pooled in tiles of {side}x{side}")
        self.tile = (side, side)
        self.features = 16 * (height // side) * (width // side)
        self.first = Convolution(1, 8)
        self.second = Convolution(8, 16)
        self.hidden = Linear(self.features, 64, BACKEND)
        self.last = Linear(64, classes, BACKEND)

    def forward(self, x):
        h = self.second(self.first(x))
        h = minitorch.maxpool2d(h, self.tile).view(x.shape[0], self.features)
        h = self.hidden(h).relu()
        h = minitorch.dropout(h, 0.25, ignore=not self.training)
        return minitorch.logsoftmax(self.last(h), 1)


def images_of(folder, train):
    """The images of one part as nested lists from 0 to 1."""
    if folder is None:
        part = Digits(train=train)
        pixels, labels = part.images.numpy().squeeze(1), part.labels.numpy()
    else:
        files = find_idx_pair(folder, train)
        pixels, labels = load_idx(files[0]) / 255.0, load_idx(files[1])
        if pixels.ndim != 3 or labels.shape != pixels.shape[:1]:
            raise ValueError(f"{folder}: images {pixels.shape} and labels {labels.shape} are not N images and N labels")
    return [Image(image, int(label)) for image, label in zip(pixels, labels)]


def as_tensors(batch, classes):
    """Pixels (batch, 1, height, width), and for each image a row with a one in the place of its class."""
    pixels = minitorch.tensor([[image.pixels] for image in batch], backend=BACKEND)
    rows = [[float(c == image.label) for c in range(classes)] for image in batch]
    return pixels, minitorch.tensor(rows, backend=BACKEND)


def right_answers(log_probabilities, batch):
    """How many of a batch the largest probability names."""
    said = log_probabilities.to_numpy().argmax(1)
    return sum(int(c) == image.label for c, image in zip(said, batch))


def accuracy(network, images, size=100):
    """The share of right answers, without dropout."""
    network.eval()
    parts = [images[i : i + size] for i in range(0, len(images), size)]
    right = [right_answers(network(as_tensors(part, 1)[0]), part) for part in parts]
    network.train()
    return sum(right) / len(images)


def main():
    """Train and print."""
    arguments = parser(__doc__, epochs=5)
    arguments.add_argument("--data", metavar="FOLDER", help="of IDX files (default: the digits of tensorsmith)")
    arguments.add_argument("--images", type=positive, help="train on so many only")
    arguments.add_argument("--batch", type=positive, default=16, help="images a step (default 16)")
    arguments.add_argument("--rate", type=rate, default=0.2, help="of learning (default 0.2)")
    given = arguments.parse_args()
    random.seed(given.seed)
    try:
        images, held_back = images_of(given.data, train=True), images_of(given.data, train=False)
        if given.images is not None:
            images = random.sample(images, min(given.images, len(images)))
        if not images or not held_back:
            raise ValueError(f"{given.data}: there are no images")
        classes = 1 + max(image.label for image in images + held_back)
        network = Network(*images[0].pixels.shape, classes)
    except (OSError, ValueError) as error:
        arguments.error(str(error))
    optimizer = minitorch.SGD(network.parameters(), given.rate)
    progress = Progress(given.epochs)
    for epoch in range(1, given.epochs + 1):
        total = 0.0
        for batch in batches(images, given.batch):
            optimizer.zero_grad()
            x, labels = as_tensors(batch, classes)
            loss = -(network(x) * labels).sum()
            (loss / len(batch)).backward()
            optimizer.step()
            total += loss.item()
        progress.epoch(epoch, total / len(images), accuracy(network, held_back))


if __name__ == "__main__":
    main()
