"""Functions of neural networks: everything of the operator table under "nn.functional"."""

from tensorsmith import ops as _ops
from tensorsmith.ops.registry import namespace as _namespace

globals().update(_namespace("nn.functional"))
__all__ = sorted(_namespace("nn.functional"))
_ = _ops
