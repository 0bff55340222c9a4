"""Graph to graph. `ts.passes` is this room: `names()` of what can be switched, `register` for rewrites of your own."""

from tensorsmith.passes.manager import Difference, Report, names
from tensorsmith.passes.registry import register, registered, unregister

__all__ = ["Difference", "Report", "names", "register", "registered", "unregister"]
