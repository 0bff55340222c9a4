"""Models for `inference.py`, each defined once: `nn` is `tensorsmith.nn` or `torch.nn`, whose names are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WIDTH, HEADS, LAYERS = 768, 12, 6  # of the encoder, with a sequence of 128 tokens
TOKENS, WORDS = 128, 30522


def resnet18(nn: Any) -> Any:
    """Deep residual learning for image recognition (He, Zhang, Ren, Sun, 2015): 18 layers, images of 224x224."""

    class Block(nn.Module):
        def __init__(self, channels: int, out: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
            self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
            self.relu = nn.ReLU()
            self.shortcut = nn.Identity()
            if stride != 1 or channels != out:
                self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + self.shortcut(x))

    widths = (64, 64, 128, 256, 512)
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for i, (channels, out) in enumerate(zip(widths, widths[1:])):
        layers += [Block(channels, out, 1 if i == 0 else 2), Block(out, out, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def mobilenet(nn: Any) -> Any:
    """MobileNetV2 (Sandler and others, 2018): inverted residuals with depthwise convolutions, images of 224x224."""

    def convolution(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
        conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(out), nn.ReLU6()]

    class Inverted(nn.Module):
        def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
            super().__init__()
            inner = channels * expansion
            layers = convolution(channels, inner, 1) if expansion != 1 else []
            layers += convolution(inner, inner, 3, stride, inner)
            self.layers = nn.Sequential(*layers, *convolution(inner, out, 1)[:2])
            self.residual = stride == 1 and channels == out

        def forward(self, x: Any) -> Any:
            return x + self.layers(x) if self.residual else self.layers(x)

    layers, channels = convolution(3, 32, 3, 2), 32
    for expansion, out, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            layers.append(Inverted(channels, out, stride if number == 0 else 1, expansion))
            channels = out
    layers += convolution(channels, 1280, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def _encoder_layer(nn: Any, width: int, heads: int, norm_first: bool) -> Any:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norm1, self.norm2, self.gelu = nn.LayerNorm(width), nn.LayerNorm(width), nn.GELU()

        def attended(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.qkv(x).reshape(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
            return self.out(y.transpose(1, 2).reshape(batch, length, width))

        def forward(self, x: Any) -> Any:
            if norm_first:
                x = x + self.attended(self.norm1(x))
                return x + self.narrow(self.gelu(self.wide(self.norm2(x))))
            x = self.norm1(x + self.attended(x))
            return self.norm2(x + self.narrow(self.gelu(self.wide(x))))

    return Layer()


def encoder(nn: Any) -> Any:
    """Like BERT (Devlin and others, 2018), with 6 layers of width 768 over 128 tokens."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
            self.norm = nn.LayerNorm(WIDTH)
            self.layers = nn.Sequential(*(_encoder_layer(nn, WIDTH, HEADS, False) for _ in range(LAYERS)))

        def forward(self, tokens: Any) -> Any:
            return self.layers(self.norm(self.words(tokens) + self.places.weight))

    return Encoder()


def vit(nn: Any) -> Any:
    """ViT-S/16 (Dosovitskiy and others, 2020): 12 layers of width 384 over 196 patches of an image of 224x224."""
    width = 384

    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.places = nn.Conv2d(3, width, 16, 16), nn.Embedding(196, width)
            self.layers = nn.Sequential(*(_encoder_layer(nn, width, 6, True) for _ in range(12)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2) + self.places.weight
            return self.head(self.norm(self.layers(x)).mean(1))

    return Vision()


MODELS: dict[str, Callable[[Any], Any]] = {"resnet18": resnet18, "mobilenet_v2": mobilenet, "encoder_6": encoder, "vit_s": vit}
