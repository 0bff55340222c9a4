"""A convolutional network tells which of two labels a sentence has (module 4).

    python -m tensorsmith.minitorch examples/minitorch/sentences.py
    python -m tensorsmith.minitorch examples/minitorch/sentences.py --text FILE --vectors glove.6B.50d.txt

FILE has an example a line, label and sentence with a tab between; there are two labels. A word is a vector: read from a
text file in GloVe's format (the word and its numbers, a word a line), or random. Convolutions see a few words that follow
each other, and the strongest answer anywhere in the sentence counts.
"""

import random
from pathlib import Path

import minitorch
from points import Linear, weights
from training import Progress, batches, parser, positive, probability_of_label, rate

BACKEND = minitorch.TensorBackend(minitorch.FastOps)
SHIPPED = Path(__file__).parent / "sentences.txt"


def read_examples(path):
    """([words], 0 or 1) of every line, and the two labels in order."""
    read = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        label, tab, sentence = line.partition("\t")
        if not tab or not sentence.split():
            raise ValueError(f"{path}, line {number}: needs a label, a tab and a sentence, got {line[:60]!r}")
        read.append((sentence.lower().split(), label.strip()))
    labels = sorted({label for _, label in read})
    if len(labels) != 2:
        raise ValueError(f"{path}: needs two labels, found {len(labels)} ({', '.join(labels[:5])})")
    return [(words, labels.index(label)) for words, label in read], labels


def number_at(path, line, word, text):
    """A number of a word's vector."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{path}, line {line}: {word!r} has a value that is no number: {text!r}") from None


def read_vectors(path, words):
    """The vectors of the words that a file in GloVe's format knows."""
    vectors, width = {}, None
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            word, *numbers = line.rstrip().split(" ")
            width = len(numbers) if width is None else width
            if not numbers or len(numbers) != width:
                raise ValueError(f"{path}, line {number}: {word!r} has {len(numbers)} numbers, the first word {width}")
            if word in words:
                vectors[word] = [number_at(path, number, word, x) for x in numbers]
    if not vectors:
        raise ValueError(f"{path}: none of the {len(words)} words of the text has a vector there")
    return vectors, width


def random_vectors(words, width):
    """A vector of numbers from a normal distribution for every word."""
    return {word: [random.gauss(0.0, 0.5) for _ in range(width)] for word in sorted(words)}, width


class Look(minitorch.Module):
    """Convolution over so many words, ReLU, the maximum over the sentence: (batch, width, length) -> (batch, features)"""

    def __init__(self, words, width, features):
        super().__init__()
        self.weights = weights(features, width, words, backend=BACKEND)
        self.bias = minitorch.Parameter(minitorch.zeros((features, 1), backend=BACKEND))

    def forward(self, x):
        h = (minitorch.conv1d(x, self.weights.value) + self.bias.value).relu()
        return minitorch.max(h, 2).view(h.shape[0], h.shape[1])


class Network(minitorch.Module):
    """Looks at one, two and three words; the probability of the second label: (batch, width, length) -> (batch,)"""

    def __init__(self, width, features):
        super().__init__()
        self.one, self.two, self.three = (Look(words, width, features) for words in (1, 2, 3))
        self.last = Linear(features, 1, BACKEND)

    def forward(self, x):
        h = self.one(x) + self.two(x) + self.three(x)
        h = minitorch.dropout(h, 0.25, ignore=not self.training)
        return self.last(h).sigmoid().view(x.shape[0])


def as_tensor(batch, vectors, width, length):
    """(batch, width, length): words without a vector, and what a sentence lacks in length, are zeros."""
    nothing = [0.0] * width
    rows = [[vectors.get(word, nothing) for word in words[:length]] + [nothing] * (length - len(words)) for words, _ in batch]
    return minitorch.tensor(rows, backend=BACKEND).permute(0, 2, 1).contiguous()


def accuracy(network, examples, *reading):
    """The share of right answers, without dropout."""
    network.eval()
    said = network(as_tensor(examples, *reading)).to_numpy()
    network.train()
    return sum((p > 0.5) == (label == 1) for p, (_, label) in zip(said, examples)) / len(examples)


def main():
    """Train on four fifths of the sentences, and print the accuracy on the rest."""
    arguments = parser(__doc__, epochs=20)
    arguments.add_argument("--text", default=SHIPPED, metavar="FILE", help="labelled sentences (default: sentences.txt here)")
    arguments.add_argument("--vectors", metavar="FILE", help="word vectors in GloVe's format (default: random ones)")
    arguments.add_argument("--width", type=positive, default=32, help="numbers of a random vector (default 32)")
    arguments.add_argument("--features", type=positive, default=32, help="answers of every convolution (default 32)")
    arguments.add_argument("--rate", type=rate, default=0.2, help="of learning (default 0.2)")
    given = arguments.parse_args()
    random.seed(given.seed)
    try:
        examples, labels = read_examples(given.text)
        words = {word for sentence, _ in examples for word in sentence}
        vectors, width = read_vectors(given.vectors, words) if given.vectors else random_vectors(words, given.width)
        if len(examples) < 10:
            raise ValueError(f"{given.text}: needs at least 10 sentences, found {len(examples)}")
    except (OSError, ValueError) as error:
        arguments.error(str(error))
    random.shuffle(examples)
    train, held_back = examples[len(examples) // 5 :], examples[: len(examples) // 5]
    length = max(len(sentence) for sentence, _ in examples)
    print(f"{len(examples)} sentences, labels {labels[0]} and {labels[1]}; {len(vectors)} of {len(words)} words have a vector")
    network = Network(width, given.features)
    optimizer = minitorch.SGD(network.parameters(), given.rate)
    progress = Progress(given.epochs)
    for epoch in range(1, given.epochs + 1):
        total = 0.0
        for batch in batches(train, 10):
            optimizer.zero_grad()
            p = network(as_tensor(batch, vectors, width, length))
            y = minitorch.tensor([label for _, label in batch], backend=BACKEND)
            loss = -probability_of_label(p, y).log().sum()
            (loss / len(batch)).backward()
            optimizer.step()
            total += loss.item()
        progress.epoch(epoch, total / len(train), accuracy(network, held_back, vectors, width, length))


if __name__ == "__main__":
    main()
