"""Special functions: everything of the operator table under "special"."""

from tensorsmith import ops as _ops  # noqa: F401 - importing it binds the operators
from tensorsmith.ops.registry import namespace as _namespace

globals().update(_namespace("special"))
__all__ = sorted(_namespace("special"))
