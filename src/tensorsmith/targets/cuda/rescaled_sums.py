"""Sums of exp(x - max x) in the pass that finds the maximum, for rows that are read again in every pass.

    m, s = -inf, 0;  for every x:  n = max(m, x);  s = s * exp(m - n) + exp(x - n);  m = n

(Milakov & Gimelshein 2018.) States of parts are joined alike. So a softmax reads its row twice instead of three times.
"""

from __future__ import annotations

from dataclasses import replace

from tensorsmith.kernels.canonical import Structure
from tensorsmith.kernels.levels import Levels
from tensorsmith.kernels.spec import Kind
from tensorsmith.scalar.table import Fn


def rescaled_sums(structure: Structure, levels: Levels) -> tuple[Levels, dict[int, int]]:
    """Levels in which such sums are taken with their maxima, and which sum goes with a maximum."""
    found: dict[int, int] = {}
    reduces = list(levels.reduces)
    for number in range(len(reduces) - 1):
        pairs = {_maximum(structure, p): p for p in reduces[number + 1]}
        if pairs and len(pairs) == len(reduces[number + 1]) and all(m in reduces[number] for m in pairs):
            found |= {m: p for m, p in pairs.items() if m is not None}
            reduces[number + 1] = ()
    return (replace(levels, reduces=tuple(reduces)), found) if found else (levels, {})


def _maximum(structure: Structure, position: int) -> int | None:
    """The REDUCE m of a sum of exp(x - m) where m is the maximum of the same x."""
    body = structure.body
    total = body[position]
    power = body[total.args[0]]
    if total.reduction != "sum" or power.kind is not Kind.APPLY or power.fn is not Fn.EXP or total.dtype is not power.dtype:
        return None
    difference = body[power.args[0]]
    if difference.kind is not Kind.APPLY or difference.fn is not Fn.SUB:
        return None
    x, m = difference.args
    largest = body[m]
    if largest.kind is Kind.REDUCE and largest.reduction == "max" and largest.args == (x,) and largest.dtype is total.dtype:
        return m
    return None
