"""Models of `gpu.py`, each defined once: `nn` is `tensorsmith.nn` or `torch.nn`. And whole training steps of both libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tensorsmith as ts

Step = Callable[[], Any]


def resnet18(nn: Any, width: int = 64) -> Any:
    """ResNet-18 (He, Zhang, Ren, Sun, 2015) with a 3x3 convolution as stem, for images of 32x32 and ten classes."""

    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
            self.conv2, self.bn2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
            self.shortcut = nn.Identity()
            if stride != 1 or inside != outside:
                self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
            return (y + self.shortcut(x)).relu()

    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inside = width
    for number in range(4):
        outside = width << number
        layers += [Block(inside, outside, 1 if number == 0 else 2), Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


def gpt2(nn: Any, words: int, length: int, width: int, heads: int, layers: int) -> Any:
    """A decoder like GPT-2 (Radford and others, 2019), the scores' weight is that of the words."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            batch, places, _ = x.shape
            parts = self.qkv(self.norm1(x)).reshape(batch, places, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, places, width))
            return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
            self.layers = nn.Sequential(*(Layer() for _ in range(layers)))
            self.norm = nn.LayerNorm(width)
            for parameter in self.parameters():
                if parameter.ndim > 1:
                    nn.init.normal_(parameter, 0.0, 0.02)

        def forward(self, tokens: Any) -> Any:
            x = self.norm(self.layers(self.words(tokens) + self.places.weight))
            return nn.functional.linear(x, self.words.weight).reshape(-1, words)

    return Decoder()


def as_theirs(ours: Any, theirs: Any) -> Any:
    """Give our model PyTorch's weights, by memory; the model."""
    state = {name: ts.from_dlpack(value.detach().contiguous()).clone() for name, value in theirs.state_dict().items()}
    ours.load_state_dict(state)
    return ours


def step_of(lib: Any, model: Any, x: Any, y: Any, optimizer: Any, autocast: bool, device: str) -> Step:
    """One training step: zero_grad, forward under bfloat16 autocast if asked for, cross entropy, backward, step."""

    def loss_of() -> Any:
        return lib.nn.functional.cross_entropy(model(x).float(), y)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        if autocast:
            with lib.autocast(device, dtype=lib.bfloat16):
                loss = loss_of()
        else:
            loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def captured(step: Step, device: str) -> Step:
    """PyTorch's step as one CUDA graph; gives the loss, which a replay writes."""
    if device != "cuda":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Any:
        graph.replay()
        return loss

    return replay
