"""Models that the commands and examples train."""

from tensorsmith.models.mlp import MLP

__all__ = ["MLP"]
