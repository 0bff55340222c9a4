"""Schedules of the learning rate: `scheduler.step()` after every epoch (or batch) sets the groups' lr.

Most rates follow from the one before, so schedules can be combined and a rate changed by hand is respected, as in
PyTorch; `step(epoch)` uses the closed form where there is one.
"""

from tensorsmith.optim.lr_scheduler.base import LambdaLR, LRScheduler, MultiplicativeLR
from tensorsmith.optim.lr_scheduler.by_epoch import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from tensorsmith.optim.lr_scheduler.combined import ChainedScheduler, SequentialLR
from tensorsmith.optim.lr_scheduler.cycles import CyclicLR, OneCycleLR
from tensorsmith.optim.lr_scheduler.plateau import ReduceLROnPlateau

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR",
    "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR",
    "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip
