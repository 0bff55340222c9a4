"""Linear algebra: everything of the operator table under "linalg"."""

from tensorsmith import ops as _ops
from tensorsmith.ops.registry import namespace as _namespace

globals().update(_namespace("linalg"))
__all__ = sorted(_namespace("linalg"))
_ = _ops
