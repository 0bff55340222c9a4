"""Computations on half-precision values as computations in float32: what targets compile never computes on halves."""

from __future__ import annotations

from dataclasses import replace

from tensorsmith.core.dtypes import compute_dtype
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind

_COMPUTES = (Kind.APPLY, Kind.REDUCE)


def widened(spec: KernelSpec) -> KernelSpec:
    """The kernel with every APPLY and REDUCE on halves computed in float32 and rounded once, to the dtype it had.

    A spec without one, and that is every spec of `kernels/assemble.py`, is returned as it is.
    """
    body = spec.body
    if not any(instr.dtype.is_half for instr in body) or not any(_on_halves(body, instr) for instr in body):
        return spec
    made: list[Instr] = []
    place: list[int] = []  # where the value of an instruction is now
    wide: dict[int, int] = {}  # where a half value is as float32

    def add(instr: Instr) -> int:
        made.append(instr)
        return len(made) - 1

    def in_compute_dtype(old: int) -> int:
        computed = compute_dtype(body[old].dtype)
        if computed is body[old].dtype:
            return place[old]
        if old not in wide:
            wide[old] = add(Instr(Kind.CAST, computed, (place[old],)))
        return wide[old]

    for instr in body:
        if not _on_halves(body, instr):
            place.append(add(replace(instr, args=tuple(place[a] for a in instr.args))))
            continue
        args = tuple(in_compute_dtype(a) for a in instr.args)
        value = add(replace(instr, args=args, dtype=compute_dtype(instr.dtype)))
        place.append(add(Instr(Kind.CAST, instr.dtype, (value,))) if instr.dtype.is_half else value)
    stores = tuple(replace(store, value=place[store.value]) for store in spec.stores)
    return replace(spec, body=tuple(made), stores=stores)


def _on_halves(body: tuple[Instr, ...], instr: Instr) -> bool:
    return instr.kind in _COMPUTES and (instr.dtype.is_half or any(body[a].dtype.is_half for a in instr.args))
