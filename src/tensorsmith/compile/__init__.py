"""Whole functions as one program: `ts.compile`, and what became of them: `ts.explain`."""

from tensorsmith.compile.compiled import compile
from tensorsmith.compile.explain import Explanation, explain

__all__ = ["Explanation", "compile", "explain"]
