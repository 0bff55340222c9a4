"""Whole functions as one program: `ts.compile`."""

from tensorsmith.compile.compiled import compile

__all__ = ["compile"]
