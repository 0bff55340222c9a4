"""Functions of neural networks: everything of the operator table under "nn.functional"."""

import sys as _sys
import typing as _typing

from tensorsmith import ops as _ops  # noqa: F401 - importing it binds the operators
from tensorsmith.core.missing import missing as _missing
from tensorsmith.ops.registry import namespace as _namespace

globals().update(_namespace("nn.functional"))
__all__ = sorted(_namespace("nn.functional"))
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _missing(_sys.modules[__name__], name)
