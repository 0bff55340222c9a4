"""Every scalar function has a CUDA expression for every dtype on which it has a meaning, and NVRTC accepts them."""

import math
import re

import numpy as np
import pytest
from cuda_compiles import quick_cubin

from tensorsmith.core import dtypes
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import TABLE, Fn, Typing
from tensorsmith.targets.cuda.lower import lower
from tensorsmith.targets.cuda.scalars import C_TYPES, LIBRARY_CALLS, RENDERINGS, cast_expression, literal

# PyTorch refuses these on bool too.
NOT_ON_BOOL = {Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD, Fn.POW, Fn.NEG, Fn.LEFT_SHIFT, Fn.RIGHT_SHIFT}


def has_meaning(fn: Fn, dtype: dtypes.DType) -> bool:
    typing = TABLE[fn].typing
    if dtype.kind == "b" and fn in NOT_ON_BOOL:
        return False
    return {Typing.FLOAT: dtype.kind == "f", Typing.INTEGER: dtype.kind in "biu"}.get(typing, True)


def all_functions(dtype: dtypes.DType) -> KernelSpec:
    """A kernel that computes every function with a meaning on `dtype`, each stored to an output of its own."""
    body = [Instr(Kind.LOAD, dtype, index=0), Instr(Kind.LOAD, dtype, index=1), Instr(Kind.LOAD, dtypes.bool_, index=2)]
    stores = []
    for fn in Fn:
        if has_meaning(fn, dtype):
            row = TABLE[fn]
            args = (2, 0, 1) if row.typing is Typing.SELECT else (0, 1)[: row.arity]
            result = dtypes.bool_ if row.typing is Typing.BOOL else dtype
            stores.append(Store(Operand(result, (1,)), len(body)))
            body.append(Instr(Kind.APPLY, result, args, fn=fn))
    inputs = tuple(Operand(d, (1,)) for d in (dtype, dtype, dtypes.bool_))
    return KernelSpec((1000,), None, inputs, tuple(body), tuple(stores), name="all_functions")


def test_the_table_is_complete():
    assert set(RENDERINGS) | LIBRARY_CALLS == set(Fn)
    assert not set(RENDERINGS) & LIBRARY_CALLS


@pytest.mark.parametrize("dtype", C_TYPES, ids=lambda d: d.name)
def test_all_functions_compile(dtype):
    spec = all_functions(dtype)
    assert len(spec.stores) > (20 if dtype.kind == "b" else 30)
    assert b"all_functions" in quick_cubin(lower(spec).launches[0].source)


def test_all_casts_compile():
    types = list(C_TYPES)
    body = [Instr(Kind.LOAD, d, index=i) for i, d in enumerate(types)]
    stores = []
    for i in range(len(types)):
        for target in types:
            stores.append(Store(Operand(target, (1,)), len(body)))
            body.append(Instr(Kind.CAST, target, (i,)))
    spec = KernelSpec((10,), None, tuple(Operand(d, (1,)) for d in types), tuple(body), tuple(stores), name="casts")
    assert b"casts" in quick_cubin(lower(spec).launches[0].source)


def test_casts_of_equal_types_are_nothing_and_narrow_ones_saturate():
    assert cast_expression(dtypes.int32, dtypes.int32, "x") == "x"
    assert cast_expression(dtypes.float32, dtypes.int8, "x") == "saturate<signed char, float>(x, (-128.0f), 128.0f)"


@pytest.mark.parametrize("value", [0.1, -1e-45, 3.4028234663852886e38, 1e39, -math.inf, -0.0, 2.0**-149])
def test_float_literals_are_exact(value):
    text = literal(dtypes.float32, value).strip("()")
    with np.errstate(over="ignore"):
        expected = np.float32(value)
    if math.isinf(expected):
        assert text == ("-" if expected < 0 else "") + "__int_as_float(0x7f800000"
    else:
        assert text.endswith("f")
        assert np.float32(float(text[:-1])).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [d for d in C_TYPES if d.kind in "iu"], ids=lambda d: d.name)
def test_integer_literals_are_exact(dtype):
    info = np.iinfo(dtype.numpy)
    for value in (info.min, -1 if info.min else 0, 0, 1, info.max):
        name, number = re.fullmatch(r"\(([a-z ]+)\)(-?\w+)", literal(dtype, int(value))).groups()
        assert name == C_TYPES[dtype]
        digits = number.rstrip("ul")
        assert np.array(int(digits, 0) & ((1 << 64) - 1), np.uint64).astype(dtype.numpy) == value
