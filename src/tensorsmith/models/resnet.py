"""ResNet-20 for small images, as on CIFAR-10."""

from __future__ import annotations

from typing import Any

from tensorsmith import nn
from tensorsmith.nn import functional as F
from tensorsmith.tensor.tensor import Tensor


class BasicBlock(nn.Module):
    """y = relu(bn(conv(relu(bn(conv(x))))) + shortcut(x)), 3x3 convolutions.

    The shortcut is x, or with a stride every stride-th pixel with zeros for the new channels (option A of the paper).
    forward: (N, inside, H, W) -> (N, outside, H / stride, W / stride), rounded up
    """

    def __init__(self, inside: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.stride, self.more = stride, outside - inside

    def forward(self, x: Any) -> Tensor:
        """The block's output."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride != 1 or self.more:
            before = self.more // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.more - before))
        return F.relu(y + x)


class ResNet20(nn.Module):
    """A 3x3 convolution, nine residual blocks of 16, 32 and 64 channels, the mean over pixels, a linear layer.

    channels: of the images; classes: number of logits. forward: (N, channels, H, W) -> (N, classes)
    Source: He, Zhang, Ren, Sun (2016), section 4.2. Convolutions start with Kaiming's normal distribution.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.channels, self.classes = channels, classes
        self.conv = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        blocks, inside = [], 16
        for outside, stride in ((16, 1), (32, 2), (64, 2)):
            for number in range(3):
                blocks.append(BasicBlock(inside, outside, stride if number == 0 else 1))
                inside = outside
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Any) -> Tensor:
        """Logits of a batch."""
        y: Any = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.linear(y.mean((2, 3)))
