"""`ts.utils.checkpoint`: see `nn/checkpointing.py`."""

from tensorsmith.nn.checkpointing import (
    CheckpointError,
    checkpoint,
    checkpoint_sequential,
    noop_context_fn,
    set_checkpoint_early_stop,
)

__all__ = ["CheckpointError", "checkpoint", "checkpoint_sequential", "noop_context_fn", "set_checkpoint_early_stop"]
