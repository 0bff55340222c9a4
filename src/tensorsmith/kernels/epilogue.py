"""Body: what a product or convolution computes of its results before it stores them."""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.kernels.spec import Instr
from tensorsmith.passes.epilogues import COLUMN, MOST_OPERANDS, ONE, WHOLE

__all__ = ["COLUMN", "EXTRAS", "ONE", "WHOLE", "Body"]

EXTRAS = tuple(f"extra_{k}" for k in range(MOST_OPERANDS + 1))  # launch words: the results again, then the operands



@dataclass(frozen=True)
class Body:
    """A pointwise computation on results: LOAD 0 is the result, LOAD k the operand of kind kinds[k - 1].

    All values in memory have the dtype of the results. `value` is the instruction that is stored.
    """

    body: tuple[Instr, ...]
    value: int
    kinds: tuple[str, ...]
