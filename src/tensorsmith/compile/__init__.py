"""Whole functions as one program: `ts.compile`; decisions and loops in them: `ts.cond`, `ts.while_loop`; what became of them:
`ts.explain`.
"""

from tensorsmith.compile.compiled import BreakWarning, RecompileWarning, compile
from tensorsmith.compile.control import cond, while_loop
from tensorsmith.compile.explain import Explanation, explain

__all__ = ["BreakWarning", "Explanation", "RecompileWarning", "compile", "cond", "explain", "while_loop"]
