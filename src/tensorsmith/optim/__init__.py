"""Optimisers and learning-rate schedules with PyTorch's names."""

import sys as _sys
import typing as _typing

from tensorsmith.core.missing import missing as _missing
from tensorsmith.optim import lr_scheduler as lr_scheduler
from tensorsmith.optim.adam import Adam, AdamW
from tensorsmith.optim.optimizer import Optimizer
from tensorsmith.optim.sgd import SGD

__all__ = ["Adam", "AdamW", "Optimizer", "SGD", "lr_scheduler"]

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _missing(_sys.modules[__name__], name)
