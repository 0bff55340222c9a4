"""LeNet: two convolutions with pooling, three linear layers."""

from __future__ import annotations

from tensorsmith import nn
from tensorsmith.tensor.tensor import Tensor


class LeNet(nn.Module):
    """conv 5x5 - relu - pool 2 - conv 5x5 - relu - pool 2 - linear 120 - relu - linear 84 - relu - linear.

    channels, size: of the images (height = width); classes: number of logits; widths: channels of the convolutions
    forward: (N, channels, size, size) -> (N, classes)
    The first convolution keeps the size; so does the second where the images have fewer than 20 pixels a side.
    Source: LeCun et al. (1998), with rectifiers, maxima and more channels. ValueError for images below 4x4.
    """

    def __init__(self, channels: int, size: int, classes: int, widths: tuple[int, int] = (16, 32)) -> None:
        super().__init__()
        if size < 4:
            raise ValueError(f"LeNet: images must be at least 4x4, got {size}x{size}")
        self.channels, self.size, self.classes, self.widths = channels, size, classes, tuple(widths)
        padding = 0 if size >= 20 else 2
        left = (size // 2 - 4 + 2 * padding) // 2
        first, second = widths
        self.features = nn.Sequential(
            nn.Conv2d(channels, first, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(second * left * left, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        return self.classifier(self.features(x))
