"""The reference target: the IR in NumPy. It says what is right; it is never fast."""

from tensorsmith.targets.reference.interpret import interpret

__all__ = ["interpret"]
