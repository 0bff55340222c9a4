"""Named properties of the schedules: NaN rules, in-place use, tiles, long sums, random bits, shared kernels."""

from __future__ import annotations

import numpy as np
import pytest
from spec_runner import check, extent_of, machines, run, spec_oracle

from tensorsmith.core import dtypes
from tensorsmith.kernels.canonical import canonicalize
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu.lower import compiled_kernels, lower
from tensorsmith.targets.cpu.passes import plan_passes

MACHINES = machines()
EACH_MACHINE = pytest.mark.parametrize("on", MACHINES, ids=lambda m: m.name)
f32 = dtypes.float32


def load(index: int = 0, dtype=f32) -> Instr:
    return Instr(Kind.LOAD, dtype, index=index)


def apply(fn: Fn, *args: int, dtype=f32) -> Instr:
    return Instr(Kind.APPLY, dtype, args, fn=fn)


def reduce(kind: str, arg: int, dtype=f32) -> Instr:
    return Instr(Kind.REDUCE, dtype, (arg,), reduction=kind)


def contiguous(*shape: int) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[k + 1 :])) for k in range(len(shape)))


def softmax(rows: int, columns: int, axis: int) -> KernelSpec:
    strides = (columns, 1)
    body = (load(), reduce("max", 0), apply(Fn.SUB, 0, 1), apply(Fn.EXP, 2), reduce("sum", 3), apply(Fn.DIV, 3, 4))
    operand = Operand(f32, strides)
    return KernelSpec((rows, columns), axis, (operand,), body, (Store(operand, 5),), name="softmax")


def layer_norm(rows: int, columns: int) -> KernelSpec:
    """Two passes: mean, then centred variance; weight and bias along the row."""
    body = (
        load(), reduce("sum", 0), Instr(Kind.CONST, f32, value=1 / columns), apply(Fn.MUL, 1, 2), apply(Fn.SUB, 0, 3),
        apply(Fn.MUL, 4, 4), reduce("sum", 5), apply(Fn.MUL, 6, 2), Instr(Kind.CONST, f32, value=1e-5),
        apply(Fn.ADD, 7, 8),
        apply(Fn.RSQRT, 9), apply(Fn.MUL, 4, 10), load(1), apply(Fn.MUL, 11, 12),
    )  # fmt: skip
    x, weight = Operand(f32, (columns, 1)), Operand(f32, (0, 1))
    stores = (Store(x, 13), Store(Operand(f32, (1, 0)), 3, row=True))
    return KernelSpec((rows, columns), 1, (x, weight), body, stores, name="layer_norm")


@EACH_MACHINE
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 1), (3, 10), (40, 33), (130, 300), (9, 1200), (1200, 9)])
def test_softmax(shape, axis, on):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 5
    check(softmax(*shape, axis), [x.ravel()], on=on, tolerance=5e-7)


def test_softmax_keeps_its_exponentials():
    """The exponential is computed in one pass only: the third pass reads it back from the output."""
    assert plan_passes(canonicalize(softmax(8, 1000, 1)).structure).stash == (3, 0, 1)
    assert plan_passes(canonicalize(layer_norm(8, 1000)).structure).stash is None


@EACH_MACHINE
@pytest.mark.parametrize("dtype", [f32, dtypes.float64, dtypes.bfloat16, dtypes.uint8, dtypes.int64], ids=str)
@pytest.mark.parametrize("shape", [(8, 2), (100, 3), (33, 16), (70, 17), (20, 40), (130, 64)])
def test_short_rows(shape, dtype, on):
    """Rows shorter than vectors, rows left over, groups of columns that overlap; an output along the row and two per row."""
    rows, columns = shape
    compute = f32 if dtype is dtypes.bfloat16 else dtype
    body = [load(0, dtype)]
    if compute is not dtype:
        body.append(Instr(Kind.CAST, compute, (0,)))
    x = len(body) - 1
    body += [
        reduce("max", x, compute), apply(Fn.SUB, x + 1, x, dtype=compute), reduce("sum", x + 2, compute),
        reduce("argmin", x, dtypes.int64),
    ]  # fmt: skip
    dense, row = Operand(dtype, (columns, 1)), (1, 0)
    outputs = [Store(Operand(compute, (columns, 1)), x + 2), Store(Operand(compute, row), x + 3, row=True),
               Store(Operand(dtypes.int64, row), x + 4, row=True)]  # fmt: skip
    spec = KernelSpec(shape, 1, (dense,), tuple(body), tuple(outputs), name="short_rows")
    values = np.random.default_rng(3).integers(0, 9, rows * columns)
    if columns <= 40:
        assert lower(spec, on).schedule == "row short"
    check(spec, [values.astype(dtype.numpy)], on=on)
    check(spec, [values.astype(dtype.numpy)], on=on, at_end=False)


@EACH_MACHINE
@pytest.mark.parametrize("dtype", [f32, dtypes.float64, dtypes.bfloat16, dtypes.bool_], ids=str)
@pytest.mark.parametrize("shape", [(64, 3), (3000, 3), (200, 17), (2, 100, 24), (70, 200)])
def test_narrow_rows(shape, dtype, on):
    """A bias that repeats and a column that is spread, over rows of few elements."""
    outer = (0,) * (len(shape) - 2)
    dense, bias = Operand(dtype, contiguous(*shape)), Operand(dtype, (*outer, 0, 1))
    column = Operand(dtype, (*contiguous(*shape[:-1]), 0) if shape[-1] <= 24 else (0,) * len(shape))
    body = (load(0, dtype), load(1, dtype), load(2, dtype), apply(Fn.MAXIMUM, 0, 1, dtype=dtype),
            apply(Fn.MINIMUM, 3, 2, dtype=dtype))  # fmt: skip
    spec = KernelSpec(shape, None, (dense, bias, column), body, (Store(dense, 4),), name="narrow")
    assert lower(spec, on).schedule == "narrow"
    generator = np.random.default_rng(4)
    fill = [generator.integers(0, 9, extent_of(o, shape)[0]).astype(dtype.numpy) for o in spec.inputs]
    check(spec, fill, on=on)
    check(spec, fill, on=on, at_end=False)


@EACH_MACHINE
@pytest.mark.parametrize("shape", [(1, 5), (7, 100), (64, 768)])
def test_layer_norm_with_a_row_output(shape, on):
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal(shape).astype(np.float32) + 3, rng.standard_normal(shape[1]).astype(np.float32)
    check(layer_norm(*shape), [x.ravel(), w], on=on, tolerance=2e-6)


def channel_norm(shape: tuple[int, ...], strides: tuple[int, ...]) -> KernelSpec:
    """Mean and spread of every channel (axis 1) over axes 0 and 2, a weight per sample, and the deviations."""
    count = shape[0] * shape[2]
    body = (
        load(), load(1), apply(Fn.MUL, 0, 1), reduce("sum", 2), Instr(Kind.CONST, f32, value=1 / count), apply(Fn.MUL, 3, 4),
        apply(Fn.SUB, 2, 5), apply(Fn.MUL, 6, 6), reduce("sum", 7), reduce("max", 6), apply(Fn.MUL, 6, 9),
    )  # fmt: skip
    x, row = Operand(f32, strides), Operand(f32, (0, 1, 0))
    stores = (Store(x, 10), Store(row, 8, row=True), Store(row, 9, row=True))
    return KernelSpec(shape, 2, (x, Operand(f32, (1, 0, 0))), body, stores, name="channels", outer_reduce_axis=0)


@EACH_MACHINE
@pytest.mark.parametrize("shape", [(1, 3, 40), (5, 1, 7), (3, 4, 1), (4, 6, 49), (3, 5, 1500), (70, 2, 100)])
@pytest.mark.parametrize("last", [False, True])
def test_rows_over_two_axes(shape, last, on):
    """Slabs of consecutive elements, slabs of columns, and what is one axis after all."""
    n, c, m = shape
    spec = channel_norm(shape, (m * c, 1, c) if last else (m * c, m, 1))
    generator = np.random.default_rng(5)
    x, w = generator.standard_normal(n * c * m), generator.uniform(0.5, 2, n)
    check(spec, [x.astype(np.float32), w.astype(np.float32)], on=on, tolerance=2e-5)
    if n > 1 and m > 1 and c > 1:
        assert lower(spec, on).schedule == ("row outer" if last else "row inner")


def test_two_reduced_axes_that_every_operand_walks_as_one_are_one():
    x, row = Operand(f32, (24, 8, 1)), Operand(f32, (0, 1, 0))
    for strides, extents in (((8, 96, 1), (4 * 8, 1)), ((96, 8, 1), (8, 4))):
        spec = KernelSpec((4, 3, 8), 2, (Operand(f32, strides),), (load(), reduce("sum", 0)), (Store(row, 1, row=True),),
                          outer_reduce_axis=0)  # fmt: skip
        canonical = canonicalize(spec)
        assert (canonical.reduce_extent, canonical.slab_extent) == extents
    positions = (load(), reduce("argmax", 0, dtypes.int64))
    with pytest.raises(NotImplementedError, match="argmax and argmin over two axes"):
        canonicalize(KernelSpec((4, 3, 8), 2, (x,), positions, (Store(Operand(dtypes.int64, (0, 1, 0)), 1, row=True),),
                                outer_reduce_axis=0))  # fmt: skip


@EACH_MACHINE
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(7, 50), (50, 7), (90, 90)])
def test_nan_wins_and_first_position_counts(shape, axis, on):
    rng = np.random.default_rng(2)
    x = rng.integers(-3, 4, shape).astype(np.float32)
    x[rng.random(shape) < 0.02] = np.nan
    x[0, 0] = x[-1, -1] = np.inf
    body = (
        load(),
        *(reduce(k, 0) for k in ("max", "min")),
        *(reduce(k, 0, dtypes.int64) for k in ("argmax", "argmin")),
    )
    strides = (0, 1) if axis == 0 else (1, 0)
    stores = tuple(Store(Operand(body[k].dtype, strides), k, row=True) for k in range(1, 5))
    spec = KernelSpec(shape, axis, (Operand(f32, (shape[1], 1)),), body, stores, name="extremes")
    found = check(spec, [x.ravel()], on=on)
    for got, function in zip(found, (np.max, np.min, np.argmax, np.argmin)):
        np.testing.assert_array_equal(got.take(0, axis), function(x, axis=axis))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
def test_constant_rows_give_position_zero(value, axis):
    for dtype, fill in ((f32, value), (dtypes.int8, -128), (dtypes.int64, 2**63 - 1)):
        body = (load(dtype=dtype), reduce("argmax", 0, dtypes.int64), reduce("argmin", 0, dtypes.int64))
        strides = (0, 1) if axis == 0 else (1, 0)
        stores = tuple(Store(Operand(dtypes.int64, strides), k, row=True) for k in (1, 2))
        spec = KernelSpec((37, 41), axis, (Operand(dtype, (41, 1)),), body, stores)
        for got in check(spec, [np.full(37 * 41, fill, dtype.numpy)]):
            assert (got == 0).all()


@EACH_MACHINE
@pytest.mark.parametrize("shape,axis", [((1, 300_000), 1), ((20_000, 20), 0)])
def test_long_sums_are_accurate(shape, axis, on):
    x = np.random.default_rng(3).random(shape).astype(np.float32)
    strides = (0, 1) if axis == 0 else (1, 0)
    spec = KernelSpec(shape, axis, (Operand(f32, (shape[1], 1)),), (load(), reduce("sum", 0)),
                      (Store(Operand(f32, strides), 1, row=True),), name="sum")  # fmt: skip
    check(spec, [x.ravel()], on=on, tolerance=1e-6)


@pytest.mark.parametrize("spec", [softmax(33, 70, 1), softmax(33, 70, 0), softmax(300, 600, 0)], ids=str)
def test_outputs_may_be_inputs(spec):
    x = np.random.default_rng(4).standard_normal(spec.domain).astype(np.float32)
    y = np.empty_like(x)
    lowered = lower(spec)
    assert run(lowered, x.ctypes.data, y.ctypes.data) is None
    assert run(lowered, x.ctypes.data, x.ctypes.data) is None
    np.testing.assert_array_equal(x, y)


def test_pointwise_in_place():
    add = (load(0), load(1), apply(Fn.ADD, 0, 1))
    for domain, second in (((1000,), (1,)), ((30, 70), (0, 1)), ((30, 70), (1, 30))):
        dense = contiguous(*domain)
        spec = KernelSpec(
            domain, None, (Operand(f32, dense), Operand(f32, second)), add, (Store(Operand(f32, dense), 2),)
        )
        x = np.random.default_rng(5).standard_normal(domain).astype(np.float32)
        y = np.random.default_rng(6).standard_normal(domain).astype(np.float32)
        expected = x + np.lib.stride_tricks.as_strided(y, domain, tuple(4 * s for s in second))
        assert run(lower(spec), x.ctypes.data, y.ctypes.data, x.ctypes.data) is None
        np.testing.assert_array_equal(x, expected)


@EACH_MACHINE
@pytest.mark.parametrize("dtype", [f32, dtypes.float64, dtypes.bfloat16, dtypes.uint8, dtypes.bool_], ids=str)
@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (33, 65), (130, 67), (3, 20, 50)])
def test_transposed_copies(shape, dtype, on):
    strides = contiguous(*shape[:-2], shape[-1], shape[-2])
    strides = (*strides[:-2], 1, shape[-2])
    source = Operand(dtype, strides)
    spec = KernelSpec(
        shape, None, (source,), (load(dtype=dtype),), (Store(Operand(dtype, contiguous(*shape)), 0),), name="t"
    )
    assert lower(spec, on).schedule == "tiled"
    x = np.random.default_rng(7).integers(0, 2 if dtype.kind == "b" else 120, int(np.prod(shape))).astype(dtype.numpy)
    check(spec, [x], on=on)


@EACH_MACHINE
@pytest.mark.parametrize("shape", [(50, 3), (6, 200, 2), (33, 7)])
def test_short_innermost_axes_are_walked_along_a_long_one(shape, on):
    strides = (*contiguous(*shape[:-2], shape[-1], shape[-2])[:-2], 1, shape[-2])
    body = (load(), load(1), apply(Fn.SUB, 0, 1))
    operands = (Operand(f32, strides), Operand(f32, (0,) * (len(shape) - 1) + (1,)))
    spec = KernelSpec(shape, None, operands, body, (Store(Operand(f32, contiguous(*shape)), 2),), name="short")
    rng = np.random.default_rng(10)
    check(spec, [rng.standard_normal(int(np.prod(shape))).astype(np.float32) for _ in range(2)], on=on)


@EACH_MACHINE
def test_products_and_sums_are_not_contracted(on):
    rng = np.random.default_rng(11)
    a, b, c = (rng.standard_normal(1000).astype(np.float32) for _ in range(3))
    operand = Operand(f32, (1,))
    body = (load(0), load(1), load(2), apply(Fn.MUL, 0, 1), apply(Fn.ADD, 3, 2))
    spec = KernelSpec((1000,), None, (operand,) * 3, body, (Store(operand, 4),), name="product_sum")
    out = np.empty(1000, np.float32)
    assert run(lower(spec, on), a.ctypes.data, b.ctypes.data, c.ctypes.data, out.ctypes.data) is None
    np.testing.assert_array_equal(out, a * b + c)


@EACH_MACHINE
@pytest.mark.parametrize("axis", [0, 1])
def test_any_all_and_counts_of_bool(axis, on):
    shape, boolean = (70, 90), dtypes.bool_
    x = np.random.default_rng(12).random(shape) < 0.02
    strides = (0, 1) if axis == 0 else (1, 0)
    body = (load(dtype=boolean), reduce("max", 0, boolean), reduce("min", 0, boolean), reduce("sum", 0, dtypes.int64))
    stores = tuple(Store(Operand(body[k].dtype, strides), k, row=True) for k in (1, 2, 3))
    spec = KernelSpec(shape, axis, (Operand(boolean, (90, 1)),), body, stores, name="truths")
    lowered = lower(spec, on)
    results = [np.empty(90 if axis == 0 else 70, body[k].dtype.numpy) for k in (1, 2, 3)]
    assert run(lowered, x.ctypes.data, *(r.ctypes.data for r in results)) is None
    for got, want in zip(results, (x.any(axis), x.all(axis), x.sum(axis))):
        np.testing.assert_array_equal(got, want)


def test_tiled_addition_with_broadcast_and_coordinates():
    shape = (50, 90)
    body = (
        load(0), load(1), load(2), Instr(Kind.INDEX, dtypes.int64, index=0), Instr(Kind.CAST, f32, (3,)),
        apply(Fn.ADD, 0, 1), apply(Fn.ADD, 5, 2), apply(Fn.ADD, 6, 4),
    )  # fmt: skip
    operands = (Operand(f32, (1, 50)), Operand(f32, (90, 1)), Operand(f32, (1, 0)))
    spec = KernelSpec(shape, None, operands, body, (Store(Operand(f32, (90, 1)), 7),), name="mixed")
    assert lower(spec).schedule == "tiled"
    rng = np.random.default_rng(8)
    check(spec, [rng.standard_normal(4500).astype(np.float32) for _ in range(3)])


@EACH_MACHINE
@pytest.mark.parametrize("key", [0, 1, 0x123456789ABCDEF, -1])
def test_random_bits_are_philox(key, on):
    body = (
        Instr(Kind.PARAM, dtypes.int64, index=0), Instr(Kind.INDEX, dtypes.int64, index=0),
        Instr(Kind.PARAM, dtypes.int64, index=1), apply(Fn.ADD, 1, 2, dtype=dtypes.int64),
        Instr(Kind.RANDOM, dtypes.uint32, (0, 3)),
    )  # fmt: skip
    spec = KernelSpec((101,), None, (), body, (Store(Operand(dtypes.uint32, (1,)), 4),), (dtypes.int64,) * 2, "bits")
    start = 2**34 - 50
    (got,) = check(spec, [], [key, start], on=on)
    np.testing.assert_array_equal(got, spec_oracle.philox_reference(key, np.arange(101) + start))


def test_philox_reference_is_the_published_one():
    """Known answers of the Random123 distribution for philox4x32-10 with a zero counter and key."""
    expected = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert spec_oracle.philox_reference(0, np.arange(4)).tolist() == expected


def test_parameters_are_converted():
    body = (
        load(),
        Instr(Kind.PARAM, f32, index=0),
        Instr(Kind.PARAM, f32, index=1),
        apply(Fn.MUL, 0, 1),
        apply(Fn.ADD, 3, 2),
    )
    operand = Operand(f32, (1,))
    spec = KernelSpec((19,), None, (operand,), body, (Store(operand, 4),), (dtypes.float64, dtypes.int64), "axpb")
    check(spec, [np.arange(19, dtype=np.float32)], [0.5, 3])


def test_zeros_of_either_sign_have_kernels_of_their_own():
    def filled(value: float) -> np.ndarray:
        body = (Instr(Kind.CONST, f32, value=value),)
        out = np.ones(5, np.float32)
        run(lower(KernelSpec((5,), None, (), body, (Store(Operand(f32, (1,)), 0),), name="filled")), out.ctypes.data)
        return np.signbit(out)

    assert not filled(0.0).any() and filled(-0.0).all() and not filled(0.0).any()


def test_other_sizes_and_ranks_share_kernels():
    def bias(*shape: int) -> KernelSpec:
        dense = Operand(f32, contiguous(*shape))
        row = Operand(f32, (0,) * (len(shape) - 1) + (1,))
        body = (load(0), load(1), apply(Fn.SUB, 1, 0))
        return KernelSpec(shape, None, (dense, row), body, (Store(dense, 2),), name="bias")

    for shape in ((4, 5), (100, 5)):  # few rows, and many narrow ones, which have schedules of their own
        lower(bias(*shape))
        lower(softmax(*shape, 1))
        lower(softmax(*shape, 0))
    before = compiled_kernels()
    for shape in ((6, 7), (3, 4, 5), (2, 3, 4, 5, 6), (4096, 768)):
        lower(bias(*shape))
    for rows, columns in ((100, 3000), (3000, 7), (500, 40)):
        lower(softmax(rows, columns, 1))
    lower(softmax(100, 3000, 0))
    assert compiled_kernels() == before


def test_chunks_depend_on_the_shape_only_and_do_not_change_results():
    spec = softmax(2000, 500, 1)
    lowered = lower(spec)
    assert lowered.chunks > 1 and lower(softmax(20, 500, 1)).chunks == 1
    x = np.random.default_rng(9).standard_normal(spec.domain).astype(np.float32)
    check(spec, [x.ravel()], tolerance=5e-7)


def test_loop_structure_and_text_can_be_printed():
    lowered = lower(softmax(5, 100, 1))
    assert "pass 3" in lowered.loops and "define void @kernel_" in lowered.text
    assert lowered.bytes_moved == 2 * 5 * 100 * 4 and lowered.flops == 5 * 100 * 5


@EACH_MACHINE
def test_means_over_other_counts_find_their_kernels(on):
    def mean(rows: int, columns: int) -> None:
        body = (load(), reduce("sum", 0), Instr(Kind.CONST, f32, value=float(columns)), apply(Fn.DIV, 1, 2))
        dense, row = Operand(f32, contiguous(rows, columns)), Operand(f32, (1, 0))
        spec = KernelSpec((rows, columns), 1, (dense,), body, (Store(row, 3, True),), name="mean")
        check(spec, [np.random.default_rng(columns).standard_normal(rows * columns).astype(np.float32)], on=on, tolerance=1e-5)

    mean(100, 3001)
    before = compiled_kernels()
    mean(100, 2777)
    mean(50, 12544)
    assert compiled_kernels() == before
