"""Levels: what varies along the reduce axis, and which reductions share a pass."""

from __future__ import annotations

from tensorsmith.core.dtypes import float32, int64
from tensorsmith.kernels.canonical import canonicalize
from tensorsmith.kernels.levels import find_levels
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn


def levels_of(body: tuple[Instr, ...], inputs: tuple[Operand, ...], stores: tuple[Store, ...]):
    return find_levels(canonicalize(KernelSpec((4, 6), 1, inputs, body, stores)).structure)


def test_softmax_has_two_reductions_and_a_pass_that_only_writes():
    body = (
        Instr(Kind.LOAD, float32),
        Instr(Kind.REDUCE, float32, (0,), reduction="max"),
        Instr(Kind.APPLY, float32, (0, 1), fn=Fn.SUB),
        Instr(Kind.APPLY, float32, (2,), fn=Fn.EXP),
        Instr(Kind.REDUCE, float32, (3,), reduction="sum"),
        Instr(Kind.APPLY, float32, (3, 4), fn=Fn.DIV),
    )
    x = Operand(float32, (6, 1))
    levels = levels_of(body, (x,), (Store(x, 5),))
    assert levels.varies == (True, False, True, True, False, True)
    assert levels.depth == (0, 1, 1, 1, 2, 2)
    assert levels.reduces == ((1,), (4,), ()) and levels.count == 3


def test_independent_reductions_share_a_pass_and_row_outputs_need_none():
    body = (
        Instr(Kind.LOAD, float32),
        Instr(Kind.REDUCE, float32, (0,), reduction="max"),
        Instr(Kind.REDUCE, float32, (0,), reduction="min"),
        Instr(Kind.APPLY, float32, (1, 2), fn=Fn.SUB),
    )
    levels = levels_of(body, (Operand(float32, (6, 1)),), (Store(Operand(float32, (1, 0)), 3, row=True),))
    assert levels.reduces == ((1, 2),)
    assert levels.depth[3] == 1 and not levels.varies[3]


def test_coordinates_and_broadcast_loads_vary_with_their_axis():
    body = (
        Instr(Kind.LOAD, float32),  # one value a row
        Instr(Kind.INDEX, int64, index=0),
        Instr(Kind.INDEX, int64, index=1),
        Instr(Kind.REDUCE, int64, (2,), reduction="sum"),
        Instr(Kind.APPLY, int64, (1, 3), fn=Fn.ADD),
    )
    stores = (Store(Operand(int64, (1, 0)), 4, row=True), Store(Operand(float32, (6, 1)), 0))
    assert levels_of(body, (Operand(float32, (1, 0)),), stores).varies == (False, False, True, False, False)


def test_the_order_of_operands_is_inputs_coordinates_outputs():
    body = (Instr(Kind.LOAD, float32), Instr(Kind.INDEX, int64, index=1), Instr(Kind.CAST, float32, (1,)),
            Instr(Kind.APPLY, float32, (0, 2), fn=Fn.ADD))  # fmt: skip
    x = Operand(float32, (6, 1))
    structure = canonicalize(KernelSpec((4, 6), None, (x,), body, (Store(x, 3), Store(Operand(int64, (6, 1)), 1)))).structure
    assert (structure.first_coordinate, structure.first_output, structure.operand_count) == (1, 2, 4)
    assert structure.operand_dtypes == (float32, int64, float32, int64)
    assert structure.operand_sizes == (4, 1, 4, 8)
    assert [structure.is_coordinate(k) for k in range(4)] == [False, True, False, False]
