"""SparseAdam, which this package cannot have before it has sparse tensors."""

from __future__ import annotations

from typing import Any

from tensorsmith.optim.optimizer import Optimizer


class SparseAdam(Optimizer):
    """Adam for sparse gradients: refused with NotImplementedError, since gradients are dense here; use Adam."""

    def __init__(self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, maximize: bool = False):
        raise NotImplementedError("SparseAdam: sparse tensors are not implemented, every gradient is dense; use Adam")
