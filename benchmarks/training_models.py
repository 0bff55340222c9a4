"""Models for `training.py`, each defined once: `nn` is `tensorsmith.nn` or `torch.nn`, whose names are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WORDS, LENGTH, WIDTH, HEADS = 256, 128, 128, 4  # of the decoder


def perceptron(*widths: int, layer_norm: bool = False) -> Callable[[Any], Any]:
    """Linear layers with ReLU (or LayerNorm and GELU) between them."""

    def build(nn: Any) -> Any:
        layers: list[Any] = []
        for inside, outside in zip(widths, widths[1:-1]):
            layers.append(nn.Linear(inside, outside))
            layers += [nn.LayerNorm(outside), nn.GELU()] if layer_norm else [nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(*widths[-2:]))

    return build


def lenet(nn: Any) -> Any:
    """Like LeNet-5 (LeCun and others, 1998), with ReLU and max pooling, for images of 28x28."""
    layers: list[Any] = []
    for channels, out in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(channels, out, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 49, 120), nn.ReLU(), nn.Linear(120, 10))


def resnet(nn: Any) -> Any:
    """Residual blocks of 16 and 32 channels with batch norm, for images of 32x32 (He, Zhang, Ren, Sun, 2015, section 4.2)."""

    class Block(nn.Module):
        def __init__(self, channels: int, out: int) -> None:
            super().__init__()
            stride = 1 if channels == out else 2
            self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
            self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
            self.shortcut = nn.Identity()
            if stride != 1:
                self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
            return (y + self.shortcut(x)).relu()

    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [Block(16, 16), Block(16, 16), Block(16, 32), Block(32, 32)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def gpt(nn: Any) -> Any:
    """Two layers of a decoder (Radford and others, 2019), a score for every word at every place."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.norm1, self.norm2, self.gelu = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.GELU()

        def forward(self, x: Any) -> Any:
            batch = x.shape[0]
            parts = self.qkv(self.norm1(x)).reshape(batch, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, LENGTH, WIDTH))
            return x + self.narrow(self.gelu(self.wide(self.norm2(x))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.layers = nn.Sequential(Layer(), Layer())
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.norm(self.layers(self.words(tokens) + self.places.weight))).reshape(-1, WORDS)

    return Decoder()


@dataclass(frozen=True)
class Problem:
    """A model, the shape of its input and how it is trained; `words`: the input is words, one target for each."""

    build: Callable[[Any], Any]
    shape: tuple[int, ...]
    classes: int
    optimizer: str
    options: dict[str, float] = field(default_factory=dict)
    words: bool = False

    def batch(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A fresh input and its targets."""
        if self.words:
            x = generator.integers(0, self.classes, self.shape)
            return x, generator.integers(0, self.classes, x.size)
        x = generator.standard_normal(self.shape, dtype=np.float32)
        return x, generator.integers(0, self.classes, self.shape[0])


SGD, MOMENTUM, ADAM = {"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}, {"lr": 1e-3}
ADAMW = {"lr": 1e-3, "weight_decay": 0.01}
PROBLEMS = {
    "784-256-256-10 batch 64 sgd": Problem(perceptron(784, 256, 256, 10), (64, 784), 10, "SGD", MOMENTUM),
    "784-256-256-10 batch 64 adam": Problem(perceptron(784, 256, 256, 10), (64, 784), 10, "Adam", ADAM),
    "64-256-128-10 batch 64 adamw": Problem(perceptron(64, 256, 128, 10), (64, 64), 10, "AdamW", ADAMW),
    "784-512-10 batch 256 sgd": Problem(perceptron(784, 512, 10), (256, 784), 10, "SGD", SGD),
    "32-32-4 batch 8 sgd": Problem(perceptron(32, 32, 4), (8, 32), 4, "SGD", SGD),
    "300-400-300-7 batch 50 adamw, layer_norm": Problem(
        perceptron(300, 400, 300, 7, layer_norm=True), (50, 300), 7, "AdamW", ADAMW
    ),
    # Adam divides gradients by themselves: with its eps of 1e-8 those of 1e-8 are steps as large as any, and all rounding.
    "lenet batch 32 adam": Problem(lenet, (32, 1, 28, 28), 10, "Adam", {**ADAM, "eps": 1e-6}),
    "resnet batch 16 sgd": Problem(resnet, (16, 3, 32, 32), 10, "SGD", {"lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4}),
    "gpt batch 4 adamw": Problem(gpt, (4, LENGTH), WORDS, "AdamW", ADAMW, words=True),
}
