"""Optimisers and learning-rate schedules with PyTorch's names, and Lion."""

import sys as _sys
import typing as _typing

from tensorsmith.core.missing import missing as _missing
from tensorsmith.optim import lr_scheduler as lr_scheduler, swa_utils as swa_utils
from tensorsmith.optim.adafactor import Adafactor
from tensorsmith.optim.adam import Adam, AdamW
from tensorsmith.optim.adam_kin import Adamax, Lion, NAdam, RAdam
from tensorsmith.optim.asgd_rprop import ASGD, Rprop
from tensorsmith.optim.averages import Adadelta, Adagrad, RMSprop
from tensorsmith.optim.lbfgs import LBFGS
from tensorsmith.optim.muon import Muon
from tensorsmith.optim.optimizer import Optimizer
from tensorsmith.optim.sgd import SGD
from tensorsmith.optim.sparse_adam import SparseAdam

__all__ = [
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Lion", "Muon", "NAdam", "Optimizer",
    "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam", "lr_scheduler", "swa_utils",
]  # fmt: skip

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _missing(_sys.modules[__name__], name)
