"""Canonical forms: dropped and merged axes, order of axes, stride classes, coordinates."""

from __future__ import annotations

from tensorsmith.core import dtypes
from tensorsmith.kernels.canonical import canonicalize, numbers_apart
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn

f32 = dtypes.float32


def spec(domain, inputs, output, reduce_axis=None, extra=(), row=False) -> KernelSpec:
    body = [Instr(Kind.LOAD, f32, index=k) for k in range(len(inputs))]
    body += extra
    stores = (Store(Operand(f32, output), len(body) - 1, row),)
    return KernelSpec(domain, reduce_axis, tuple(Operand(f32, s) for s in inputs), tuple(body), stores)


def test_contiguous_operands_are_one_axis():
    c = canonicalize(spec((2, 3, 4), [(12, 4, 1)], (12, 4, 1)))
    assert c.extents == (24,) and c.structure.inner == (1, 1) and not c.structure.outer


def test_size_one_axes_are_dropped_and_their_strides_do_not_matter():
    a = canonicalize(spec((1, 5, 1), [(99, 1, 7)], (0, 1, 3)))
    b = canonicalize(spec((5,), [(1,)], (1,)))
    assert a == b


def test_a_lone_point_is_the_contiguous_kernel():
    assert canonicalize(spec((1, 1), [(0, 0)], (5, 2))).structure == canonicalize(spec((9,), [(1,)], (1,))).structure
    assert canonicalize(spec((), [()], ())).extents == (1,)


def test_broadcasting_stops_merging_where_it_must():
    c = canonicalize(spec((2, 3, 4), [(12, 4, 1), (0, 0, 1)], (12, 4, 1)))
    assert c.extents == (6, 4) and c.structure.inner == (1, 1, 1) and c.strides[1] == (0, 1)
    c = canonicalize(spec((2, 3, 4), [(12, 4, 1), (1, 0, 0)], (12, 4, 1)))
    assert c.extents == (2, 12) and c.structure.inner == (1, 0, 1)


def test_axes_follow_the_output():
    c = canonicalize(spec((3, 4), [(4, 1)], (1, 3)))
    assert c.extents == (4, 3) and c.strides == ((1, 4), (3, 1)) and c.structure.inner == (2, 1)
    c = canonicalize(spec((3, 4), [(1, 3)], (1, 3)))
    assert c.extents == (12,)


def test_extents_and_rank_are_not_part_of_the_structure():
    a = canonicalize(spec((5, 6), [(6, 1), (0, 1)], (6, 1)))
    b = canonicalize(spec((2, 3, 7, 9), [(189, 63, 9, 1), (21, 0, 0, 1)], (189, 63, 9, 1)))
    assert a.structure == b.structure and hash(a.structure) == hash(b.structure)


def test_the_reduce_axis_is_kept_apart():
    body = (Instr(Kind.REDUCE, f32, (0,), reduction="sum"),)
    c = canonicalize(spec((2, 3, 4), [(12, 4, 1)], (4, 0, 1), 1, body, row=True))
    assert c.extents == (2, 4) and c.reduce_extent == 3 and c.reduce_strides == (4, 0)
    assert c.structure.along == (2, 0)
    c = canonicalize(spec((2, 3, 4), [(12, 4, 1)], (3, 1, 0), 2, body, row=True))
    assert c.extents == (6,) and c.structure.along == (1, 0)


def test_coordinates_pin_their_axis_only():
    body = (
        Instr(Kind.INDEX, dtypes.int64, index=2),
        Instr(Kind.CAST, f32, (1,)),
        Instr(Kind.APPLY, f32, (0, 2), fn=Fn.ADD),
    )
    c = canonicalize(spec((2, 3, 4), [(12, 4, 1)], (12, 4, 1), extra=body))
    assert c.extents == (6, 4) and c.structure.coordinates == 1
    assert c.strides == ((4, 1), (0, 1), (4, 1))  # input, coordinate, output
    body = (Instr(Kind.INDEX, dtypes.int64, index=0), Instr(Kind.CAST, f32, (1,)))
    c = canonicalize(spec((4, 3), [(1, 4)], (1, 4), extra=body))
    assert c.extents == (3, 4) and c.strides[1] == (0, 1)


def test_long_factors_are_numbers_of_the_launch():
    def scaled(value, fn=Fn.DIV):
        body = (
            Instr(Kind.LOAD, f32), Instr(Kind.CONST, f32, value=value), Instr(Kind.APPLY, f32, (0, 1), fn=fn)
        )  # fmt: skip
        store = Store(Operand(f32, (1,)), 2)
        return canonicalize(KernelSpec((5,), None, (Operand(f32, (1,)),), body, (store,))).structure

    means = [numbers_apart(scaled(n)) for n in (12544.0, 50175.0)]
    assert means[0][0] == means[1][0] and [numbers for _, numbers in means] == [(12544.0,), (50175.0,)]
    assert numbers_apart(scaled(0.1, Fn.MUL))[1] == (0.1,)
    for value, fn in ((0.5, Fn.DIV), (3.0, Fn.MUL), (0.0, Fn.MUL), (float("inf"), Fn.MUL), (12544.5, Fn.ADD)):
        assert numbers_apart(scaled(value, fn)) == (scaled(value, fn), ())
