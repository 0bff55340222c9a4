"""The passes of a row kernel on the CPU: its levels (`kernels/levels.py`) and the values worth keeping between them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tensorsmith.kernels.canonical import Structure
from tensorsmith.kernels.levels import Levels, find_levels
from tensorsmith.kernels.spec import Kind
from tensorsmith.targets.cpu.body import cone, instruction_cost

_STASH_COST = 20  # a value of at least this many instructions is kept rather than computed again


@dataclass(frozen=True)
class Passes(Levels):
    """The levels of a body and its stash.

    stash: an instruction whose value is kept in an output between its first pass and the last one, as (instruction,
    output, pass that computes it), or None.
    """

    stash: tuple[int, int, int] | None


@functools.lru_cache(maxsize=1024)
def plan_passes(structure: Structure) -> Passes:
    """Split a body into passes along the reduce axis."""
    levels = find_levels(structure)
    return Passes(levels.varies, levels.depth, levels.reduces, _find_stash(structure, levels))


def roots_of_pass(structure: Structure, passes: Levels, number: int) -> list[int]:
    """The instructions that pass `number` (from 0) must have at every point."""
    roots = [structure.body[r].args[0] for r in passes.reduces[number]]
    if number == passes.count - 1:
        roots += structure.values_along
    return roots


def _find_stash(structure: Structure, passes: Levels) -> tuple[int, int, int] | None:
    """An expensive value of an early pass that the later passes need instead of any load (softmax: exp(x - max)).

    With it kept in an output, the later passes read no operand that the output may alias.
    """
    body = structure.body
    fixed = {p for p, moving in enumerate(passes.varies) if not moving}
    for number in range(passes.count - 1):
        early = cone(body, roots_of_pass(structure, passes, number), fixed)
        later = [r for later in range(number + 1, passes.count) for r in roots_of_pass(structure, passes, later)]
        for position in early:
            if sum(instruction_cost(body[p]) for p in cone(body, [position], fixed)) < _STASH_COST:
                continue
            needed = cone(body, later, fixed | {position})
            if position not in cone(body, later, fixed) or any(body[p].kind is Kind.LOAD for p in needed):
                continue
            for output, (dtype, is_row) in enumerate(zip(structure.outputs, structure.rows)):
                if not is_row and dtype is body[position].dtype and dtype.kind != "b":
                    return position, output, number
    return None


@functools.lru_cache(maxsize=1024)
def kept_value(structure: Structure, passes: Passes) -> tuple[int, int] | None:
    """(instruction, pass) of an expensive value that a pass computes and a later one needs (softmax: exp), or None."""
    body = structure.body
    fixed = {p for p, moving in enumerate(passes.varies) if not moving}
    for number in range(passes.count - 1):
        early = cone(body, roots_of_pass(structure, passes, number), fixed)
        later = [r for n in range(number + 1, passes.count) for r in roots_of_pass(structure, passes, n)]
        wanted = cone(body, later, fixed)
        for position in early:
            cost = sum(instruction_cost(body[p]) for p in cone(body, [position], fixed))
            if cost >= _STASH_COST and position in wanted:
                return position, number
    return None
