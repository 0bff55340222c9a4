"""Factors that are one value a row, taken out of sums along the row where that makes passes fewer.

    sum(g * (x - m) * s), with s = rsqrt(sum((x - m)**2) / n)   ->   sum(g * (x - m)) * s

The first has to wait for s, the second is summed in the pass that s is made of. Results differ by rounding; a factor of 0 of
sums that are not finite gives NaN rather than 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorsmith.kernels.spec import Instr, KernelSpec, Kind
from tensorsmith.scalar.table import Fn

Summed = tuple[tuple[int, str], ...]


def factors_behind(spec: KernelSpec, summed: Summed = ()) -> tuple[KernelSpec, Summed]:
    """The kernel with fewer passes, and where the values of `summed` are now."""
    made = _Made(spec)
    place: list[int] = []  # where each value is now
    for instr in spec.body:
        args = tuple([place[a] for a in instr.args])
        if instr.kind is Kind.REDUCE and instr.reduction == "sum" and instr.dtype.kind == "f":
            rest, factors = made.without_factors(args[0])
            if made.depth[rest] < made.depth[args[0]]:
                value = made.emit(replace(instr, args=(rest,)))
                for factor in factors:
                    value = made.emit(Instr(Kind.APPLY, instr.dtype, (value, factor), fn=Fn.MUL))
                place.append(value)
                continue
        place.append(made.emit(replace(instr, args=args)))
    values = [place[store.value] for store in spec.stores] + [place[value] for value, _ in summed]
    body, at = _live(made.body, values)
    stores = tuple([replace(store, value=at[value]) for store, value in zip(spec.stores, values)])
    behind = zip(values[len(stores) :], summed)
    return replace(spec, body=body, stores=stores), tuple([(at[value], kind) for value, (_, kind) in behind])


class _Made:
    """A body being written, and what is known of its values."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.body: list[Instr] = []
        self.varies: list[bool] = []  # along the row
        self.depth: list[int] = []  # sums on the way to it
        self.known: dict[tuple[object, ...], int] = {}

    def emit(self, instr: Instr) -> int:
        key = (instr, repr(instr.value))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = len(self.body)
            self.body.append(instr)
            self.varies.append(self.moves(instr))
            self.depth.append(max([self.depth[a] for a in instr.args], default=0) + (instr.kind is Kind.REDUCE))
        return found

    def moves(self, instr: Instr) -> bool:
        if instr.kind is Kind.LOAD:
            return any(self.spec.inputs[instr.index].strides[axis] for axis in self.spec.reduce_axes)
        if instr.kind is Kind.INDEX:
            return instr.index in self.spec.reduce_axes
        return instr.kind is not Kind.REDUCE and any(self.varies[a] for a in instr.args)

    def without_factors(self, value: int) -> tuple[int, list[int]]:
        """A product without what is one value a row and has to be waited for, and that."""
        instr = self.body[value]
        if instr.kind is not Kind.APPLY or instr.fn is not Fn.MUL or not self.varies[value]:
            return value, []
        rest, factors = list[int](), list[int]()
        for a in instr.args:
            if not self.varies[a] and self.depth[a]:
                factors.append(a)
                continue
            part, more = self.without_factors(a)
            rest.append(part)
            factors += more
        if not factors:
            return value, []
        return (rest[0] if len(rest) == 1 else self.emit(replace(instr, args=tuple(rest)))), factors


def _live(body: Sequence[Instr], values: Sequence[int]) -> tuple[tuple[Instr, ...], dict[int, int]]:
    """The instructions that values are made of, and where each of those is then."""
    needed, waiting = set[int](), list(values)
    while waiting:
        current = waiting.pop()
        if current not in needed:
            needed.add(current)
            waiting += body[current].args
    place = {p: k for k, p in enumerate(sorted(needed))}
    return tuple([replace(body[p], args=tuple([place[a] for a in body[p].args])) for p in sorted(needed)]), place
