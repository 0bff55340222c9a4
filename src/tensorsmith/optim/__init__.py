"""Optimisers and learning-rate schedules with PyTorch's names."""

from tensorsmith.optim import lr_scheduler as lr_scheduler
from tensorsmith.optim.adam import Adam, AdamW
from tensorsmith.optim.optimizer import Optimizer
from tensorsmith.optim.sgd import SGD

__all__ = ["Adam", "AdamW", "Optimizer", "SGD", "lr_scheduler"]
