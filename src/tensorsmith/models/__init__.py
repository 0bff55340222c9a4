"""Models that the commands and examples train."""

from tensorsmith.models.lenet import LeNet
from tensorsmith.models.mlp import MLP
from tensorsmith.models.resnet import ResNet20

__all__ = ["MLP", "LeNet", "ResNet20"]
