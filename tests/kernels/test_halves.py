"""Computations on halves written out in float32."""

from __future__ import annotations

import pytest

from tensorsmith.core.dtypes import DType, bfloat16, bool_, float16, float32, int64
from tensorsmith.kernels.halves import widened
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn


def spec_of(dtype: DType, *body: Instr, store: int | None = None) -> KernelSpec:
    x = Operand(dtype, (6, 1))
    last = len(body) - 1 if store is None else store
    stores = (Store(Operand(body[last].dtype, (1, 0)), last, row=True),)
    return KernelSpec((4, 6), 1, (x,), body, stores)


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_functions_and_reductions_of_halves_compute_in_float32(dtype):
    spec = spec_of(
        dtype,
        Instr(Kind.LOAD, dtype),
        Instr(Kind.APPLY, dtype, (0, 0), fn=Fn.MUL),
        Instr(Kind.APPLY, bool_, (1, 0), fn=Fn.LT),
        Instr(Kind.REDUCE, dtype, (1,), reduction="sum"),
    )
    wide = widened(spec)
    assert [(i.kind.value, i.dtype, i.args) for i in wide.body] == [
        ("load", dtype, ()),
        ("cast", float32, (0,)),
        ("apply", float32, (1, 1)),
        ("cast", dtype, (2,)),  # rounded here, as the spec says
        ("cast", float32, (3,)),
        ("apply", bool_, (4, 1)),  # every value is widened once
        ("reduce", float32, (4,)),
        ("cast", dtype, (6,)),
    ]
    assert wide.stores[0].value == 7 and wide.stores[0].operand == spec.stores[0].operand
    assert widened(wide) is wide


def test_positions_keep_their_dtype():
    spec = spec_of(float16, Instr(Kind.LOAD, float16), Instr(Kind.REDUCE, int64, (0,), reduction="argmax"))
    assert [i.dtype for i in widened(spec).body] == [float16, float32, int64]


def test_other_specs_are_returned_as_they_are():
    plain = spec_of(float32, Instr(Kind.LOAD, float32), Instr(Kind.REDUCE, float32, (0,), reduction="sum"))
    moved = spec_of(
        float16,
        Instr(Kind.LOAD, float16),
        Instr(Kind.CAST, float32, (0,)),
        Instr(Kind.REDUCE, float32, (1,), reduction="max"),
        Instr(Kind.CAST, float16, (2,)),
    )
    assert widened(plain) is plain and widened(moved) is moved
