"""Matrix multiplication kernels against float64, with guard areas around every result."""

import ctypes
import mmap
import re

import ml_dtypes
import numpy as np
import pytest

from tensorsmith.core import dtypes
from tensorsmith.targets.cpu import launch, pool
from tensorsmith.targets.cpu.gemm import MatmulKernel, packed_bytes, plan_matmul, plan_packing
from tensorsmith.targets.cpu.gemm_kernels import kernels
from tensorsmith.targets.cpu.machine import NAMES, Machine, machine, select
from tensorsmith.targets.cpu.recipe import Recipe

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)


def _machines() -> list[str]:
    """The instruction sets that this CPU runs."""
    return list(NAMES[NAMES.index(machine().name) :])


def _machine(name: str) -> Machine:
    import llvmlite.binding as llvm

    return select(name, llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features())


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _strides(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


def execute(kernel: MatmulKernel, a, b, c, bias=None, reverse: bool = False) -> None:
    """Run every chunk, on a workspace full of NaN patterns with a guard after it."""
    workspace = np.full(kernel.workspace_bytes + 128, 0xFF, np.uint8)
    start = -_address(workspace) % 64
    given = {"A": a, "B": b, "C": c, "bias": bias}
    words = [
        _address(workspace) + start if name == "workspace" else _address(given[name]) for name in kernel.launch_order
    ]
    words += [0, *kernel.constants]
    block = (ctypes.c_int64 * len(words))(*words)
    entry = _ENTRY(kernel.function_address)
    order = list(range(kernel.chunks))
    if reverse:
        order[kernel.leading :] = reversed(order[kernel.leading :])
    for chunk in order:
        entry(ctypes.addressof(block), chunk, kernel.chunks, 0)
    assert (workspace[start + kernel.workspace_bytes :] == 0xFF).all(), "wrote past the workspace"


def multiply(a, b, epilogue=None, bias=None, old=None, isa=None, reverse=False) -> np.ndarray:
    """C of the kernel for 3-D operands of any strides; checks that nothing around C is written."""
    return multiply_on(_machine(isa) if isa else None, a, b, epilogue, bias, old, reverse)


def multiply_on(on: Machine | None, a, b, epilogue=None, bias=None, old=None, reverse=False) -> np.ndarray:
    """The same on a machine of any kind that this CPU runs."""
    batch, M, K = a.shape
    N = b.shape[2]
    outer = np.full((batch, M + 2, N + 9), 7, a.dtype)
    c = outer[:, 1 : M + 1, 4 : N + 4]
    c[:] = np.nan if c.dtype.kind == "f" and old is None else 99 if old is None else old
    kernel = plan_matmul(
        dtypes.BY_NUMPY[a.dtype], batch, M, N, K, _strides(a), _strides(b), _strides(c), epilogue,
        old is not None, on,
    )  # fmt: skip
    assert kernel.flops == 2 * batch * M * N * K
    execute(kernel, a, b, c, bias, reverse)
    result = c.copy()
    c[:] = 7
    assert (outer == np.full(1, 7, a.dtype)).all(), "wrote outside C"
    return result


def operand(rng, batch, rows, columns, transposed, dtype=np.float32, pad=0) -> np.ndarray:
    """Random (batch, rows, columns), stored transposed if asked, with `pad` elements after every stored row."""
    shape = (batch, columns, rows) if transposed else (batch, rows, columns)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        full = rng.integers(info.min, info.max, (*shape[:2], shape[2] + pad), endpoint=True).astype(dtype)
    else:
        full = rng.standard_normal((*shape[:2], shape[2] + pad)).astype(dtype)
    view = full[:, :, : shape[2]]
    return view.transpose(0, 2, 1) if transposed else view


def close(result, expected, K, eps) -> None:
    scale = np.abs(expected).max(initial=1e-30)
    error = np.abs(result.astype(np.float64) - expected).max(initial=0.0)
    assert error <= eps * (4 + K**0.5) * scale, f"error {error} of {scale}"


SHAPES = [
    (1, 1, 1), (2, 2, 2), (1, 37, 70), (3, 16, 5), (5, 33, 17), (8, 100, 129), (9, 31, 64), (13, 17, 3),
    (29, 50, 515), (61, 97, 33), (145, 70, 530), (12, 32, 1), (1, 1030, 300), (7, 520, 260), (33, 1, 19),
    (600, 40, 140), (50, 130, 71), (13, 200, 9),
]  # fmt: skip


@pytest.mark.parametrize("isa", _machines())
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_float32_all_transpositions(isa, ta, tb):
    rng = np.random.default_rng(1)
    for M, N, K in SHAPES:
        for pad in (0, 3):
            a, b = operand(rng, 1, M, K, ta, pad=pad), operand(rng, 1, K, N, tb, pad=pad)
            close(multiply(a, b, isa=isa), a.astype(np.float64) @ b, K, 2e-7)


@pytest.mark.parametrize("isa", _machines())
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_other_floating_dtypes(isa, dtype):
    rng = np.random.default_rng(2)
    eps = {8: 4e-16}.get(np.dtype(dtype).itemsize) or (6e-4 if dtype is np.float16 else 5e-3)
    for M, N, K in [
        (1, 1, 1),
        (2, 3, 4),
        (5, 70, 33),
        (29, 50, 515),
        (14, 17, 40),
        (1, 300, 64),
        (40, 90, 2),
        (3, 40, 0),
        (17, 200, 37),
    ]:
        for ta in (False, True):
            for tb in (False, True):
                a, b = operand(rng, 2, M, K, ta, dtype, 1), operand(rng, 2, K, N, tb, dtype, 1)
                bias = rng.standard_normal(N).astype(dtype)
                expected = a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64)
                result = multiply(a, b, "bias_relu", bias, isa=isa)
                if dtype is np.float64:
                    close(result, np.maximum(expected, 0), K, eps)
                else:  # one rounding of a float32 sum, whatever K is
                    error = np.abs(result.astype(np.float64) - np.maximum(expected, 0)).max()
                    assert error <= eps * np.abs(expected).max()


@pytest.mark.parametrize("isa", _machines())
def test_half_rounding_is_to_even_and_keeps_special_values(isa):
    """1 x value through the kernel is the conversion itself: every float16, and bfloat16 products at ties."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(1, 256, 256)
    one = np.eye(256, dtype=np.float16).reshape(1, 256, 256)
    with np.errstate(invalid="ignore"):
        finite = np.where(np.isfinite(every), every, np.float16(0))
    assert (multiply(finite, one, isa=isa) == finite).all()
    special = np.array([[[np.inf], [-np.inf], [np.nan], [6e-8], [-0.5], [65504]]], np.float16)
    result = multiply(special, np.ones((1, 1, 1), np.float16), isa=isa)
    np.testing.assert_array_equal(result, special)
    rng = np.random.default_rng(3)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = rng.standard_normal((1, 64, 1)).astype(dtype)
        y = (rng.standard_normal((1, 1, 64)) * 10.0 ** rng.integers(-7, 5, 64)).astype(dtype)
        with np.errstate(over="ignore"):
            # A float32 product of halves is exact; a sum starts at +0, so a lone -0 becomes +0.
            exact = (x.astype(np.float32) * y.astype(np.float32) + np.float32(0)).astype(dtype)
        np.testing.assert_array_equal(multiply(x, y, isa=isa).view(np.uint16), exact.view(np.uint16))


@pytest.mark.parametrize("isa", _machines())
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.int8, np.uint8])
def test_integers_wrap(isa, dtype):
    rng = np.random.default_rng(4)
    for M, N, K in [(1, 1, 1), (3, 5, 7), (6, 70, 33), (9, 17, 300), (1, 40, 17), (15, 210, 35)]:
        for ta in (False, True):
            for tb in (False, True):
                a, b = operand(rng, 2, M, K, ta, dtype, 1), operand(rng, 2, K, N, tb, dtype, 2)
                with np.errstate(over="ignore"):
                    expected = np.matmul(a, b, dtype=dtype)
                np.testing.assert_array_equal(multiply(a, b, isa=isa), expected)


def test_unsigned_and_bool_are_told_apart():
    with pytest.raises(NotImplementedError, match="bool"):
        plan_matmul(dtypes.bool_, 1, 2, 2, 2, (4, 2, 1), (4, 2, 1), (4, 2, 1))
    a = np.full((1, 2, 2), 200, np.uint8)
    assert multiply(a, a)[0, 0, 0] == (200 * 200 * 2) % 256


@pytest.mark.parametrize("shape", [(1, 50, 90), (4, 4, 4), (7, 300, 300), (40, 70, 600), (13, 33, 0), (3, 5, 0)])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("epilogue", [None, "bias", "relu", "bias_relu"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_epilogues_and_accumulation(shape, tb, epilogue, accumulate):
    rng = np.random.default_rng(5)
    M, N, K = shape
    a, b = operand(rng, 1, M, K, False), operand(rng, 1, K, N, tb)
    bias = rng.standard_normal(N).astype(np.float32) if epilogue and "bias" in epilogue else None
    old = rng.standard_normal((1, M, N)).astype(np.float32) if accumulate else None
    expected = a.astype(np.float64) @ b
    expected = expected + (0 if bias is None else bias) + (0 if old is None else old)
    expected = np.maximum(expected, 0) if epilogue and "relu" in epilogue else expected
    close(multiply(a, b, epilogue, bias, old), expected, K, 2e-7)


def test_unknown_epilogue_is_named():
    with pytest.raises(NotImplementedError, match="bias_swish"):
        plan_matmul(dtypes.float32, 1, 2, 2, 2, (4, 2, 1), (4, 2, 1), (4, 2, 1), "bias_swish")


def test_batches_and_broadcast_batches():
    rng = np.random.default_rng(6)
    for M, N, K in [(3, 5, 7), (20, 40, 33), (1, 9, 300)]:
        for ta in (False, True):
            for tb in (False, True):
                a, b = operand(rng, 6, M, K, ta), operand(rng, 6, K, N, tb)
                wide_a, wide_b = np.broadcast_to(a[:1], a.shape), np.broadcast_to(b[:1], b.shape)
                for x, y in ((a, b), (wide_a, b), (a, wide_b), (wide_a, wide_b)):
                    close(multiply(x, y), x.astype(np.float64) @ y, K, 2e-7)


def test_a_batch_of_rows_times_one_matrix_is_one_multiplication():
    strides = (12 * 40, 40, 1), (0, 30, 1), (12 * 30, 30, 1)
    joined = plan_matmul(dtypes.float32, 5, 12, 30, 40, *strides)
    single = plan_matmul(dtypes.float32, 1, 60, 30, 40, (0, 40, 1), (0, 30, 1), (0, 30, 1))
    assert joined.constants == single.constants


def test_any_strides_of_a():
    rng = np.random.default_rng(7)
    a = rng.standard_normal((1, 40, 90)).astype(np.float32)[:, ::2, ::3]
    b = operand(rng, 1, 30, 45, False)
    close(multiply(a, b), a.astype(np.float64) @ b, 30, 2e-7)


def test_unusable_strides_are_named():
    with pytest.raises(NotImplementedError, match="unit stride in B"):
        plan_matmul(dtypes.float32, 1, 4, 4, 4, (16, 4, 1), (32, 8, 2), (16, 4, 1))
    with pytest.raises(NotImplementedError, match="rows of C"):
        plan_matmul(dtypes.float32, 1, 4, 4, 4, (16, 4, 1), (16, 4, 1), (16, 1, 4))
    with pytest.raises(NotImplementedError, match="float16"):
        plan_matmul(dtypes.float16, 1, 4, 4, 4, (32, 8, 2), (16, 4, 1), (16, 4, 1))


def test_empty_results_run_no_chunk():
    for batch, M, N, K in [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (2, 0, 0, 0)]:
        kernel = plan_matmul(dtypes.float32, batch, M, N, K, (M * K, K, 1), (K * N, N, 1), (M * N, N, 1))
        assert (kernel.chunks, kernel.workspace_bytes, kernel.flops) == (0, 0, 0)


def test_nan_and_infinity_propagate():
    for M, N, K, tb in [(4, 4, 4, False), (1, 300, 300, True), (2, 300, 300, False), (30, 50, 70, True)]:
        rng = np.random.default_rng(8)
        a, b = operand(rng, 1, M, K, False), operand(rng, 1, K, N, tb)
        a[0, 0, 1], b[0, 1, 0] = 0.0, np.inf  # 0 * inf
        a[0, M - 1, K - 1] = np.nan
        result = multiply(a, b, "relu")
        with np.errstate(invalid="ignore"):
            expected = a.astype(np.float64) @ b
        assert np.isnan(result[0, 0, 0]) and np.isnan(result[0, M - 1]).all()
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))


def test_aliasing_row_strides_and_several_chunks():
    """Shapes that copy A, pack B, block K and split rows and columns; any order of chunks gives the same bits."""
    rng = np.random.default_rng(9)
    for M, N, K, ta, tb in [
        (700, 300, 1024, False, False),
        (700, 300, 1100, True, True),
        (300, 1500, 600, True, False),
    ]:
        a, b = operand(rng, 1, M, K, ta), operand(rng, 1, K, N, tb)
        result = multiply(a, b)
        close(result, a.astype(np.float64) @ b, K, 2e-7)
        np.testing.assert_array_equal(result, multiply(a, b, reverse=True))
        plan = plan_matmul(dtypes.float32, 1, M, N, K, _strides(a), _strides(b), (M * N, N, 1))
        assert plan.chunks > 1 and plan.workspace_bytes > 0


def _guarded(values: np.ndarray) -> tuple[np.ndarray, mmap.mmap]:
    """A copy of the stored elements that ends exactly where an inaccessible page begins."""
    page = mmap.PAGESIZE
    pages = -(-values.nbytes // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base + pages * page), ctypes.c_size_t(page), 0) == 0
    flat = np.frombuffer(memory, values.dtype, values.size, pages * page - values.nbytes)
    flat[:] = values.ravel()
    return flat.reshape(values.shape), memory


@pytest.mark.parametrize("isa", _machines())
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int16])
def test_never_touches_memory_after_the_last_element(isa, dtype):
    rng = np.random.default_rng(10)
    for M, N, K in [(1, 1, 1), (3, 3, 3), (4, 37, 5), (2, 530, 300), (13, 17, 33), (33, 1, 30), (20, 70, 18)]:
        for ta in (False, True):
            for tb in (False, True):
                x, y = operand(rng, 1, M, K, ta, dtype), operand(rng, 1, K, N, tb, dtype)
                stored = [v.transpose(0, 2, 1) if t else v for v, t in ((x, ta), (y, tb))]
                (a, keep_a), (b, keep_b) = (_guarded(v) for v in stored)
                c, keep_c = _guarded(np.zeros((1, M, N), dtype))
                bias, keep_bias = _guarded(np.ones(N, dtype))
                a, b = a.transpose(0, 2, 1) if ta else a, b.transpose(0, 2, 1) if tb else b
                kernel = plan_matmul(
                    dtypes.BY_NUMPY[np.dtype(dtype)], 1, M, N, K, _strides(a), _strides(b), _strides(c), "bias",
                    machine=_machine(isa),
                )  # fmt: skip
                execute(kernel, a, b, c, bias)
                expected = x.astype(np.float64) @ y.astype(np.float64) + 1
                if np.dtype(dtype).kind == "f":
                    assert np.abs(c - expected).max() <= 3e-3 * np.abs(expected).max()
                else:
                    np.testing.assert_array_equal(c, (np.matmul(x, y, dtype=dtype) + np.ones(1, dtype)))
                del keep_a, keep_b, keep_c, keep_bias


def test_tiny_multiplications_need_no_workspace():
    for n in (2, 4):
        plain, transposed = (n * n, n, 1), (n * n, 1, n)
        for b in (plain, transposed):
            kernel = plan_matmul(dtypes.float32, 1, n, n, n, plain, b, plain)
            assert kernel.chunks == 1
            assert kernel.workspace_bytes == 0 or machine().name == "generic"


def test_loops_and_text_can_be_printed():
    kernel = plan_matmul(dtypes.float32, 1, 64, 64, 64, (0, 64, 1), (0, 64, 1), (0, 64, 1), "relu")
    assert "sums[" in kernel.loops and "for k in " in kernel.loops and "relu" in kernel.loops
    assert "define void @blocks" in kernel.text


@pytest.mark.parametrize("threads", [1, 2] if pool.supported()[0] else [1])
def test_through_the_launcher_on_any_number_of_threads(threads):
    rng = np.random.default_rng(11)
    before = pool.get_num_threads()
    pool.set_num_threads(threads)
    try:
        for M, N, K, tb in [
            (300, 520, 1024, False),
            (150, 600, 700, True),
            (2, 2000, 700, True),
            (3, 2100, 700, False),
        ]:
            a, b = operand(rng, 1, M, K, False), operand(rng, 1, K, N, tb)
            serial, c = multiply(a, b), np.full((1, M, N), np.nan, np.float32)
            kernel = plan_matmul(dtypes.float32, 1, M, N, K, _strides(a), _strides(b), _strides(c))
            assert kernel.chunks > 1
            if M != 150:  # whose rows are in one part or two
                assert (kernel.leading > 0) == (M == 300), "several parts of rows share one packing of B"
            workspace = np.empty(kernel.workspace_bytes + 64, np.uint8)
            given = {
                "A": _address(a),
                "B": _address(b),
                "C": _address(c),
                "workspace": (_address(workspace) + 63) & -64,
            }
            recipe = Recipe(kernel.function_address, kernel.chunks, len(kernel.launch_order), kernel.constants)
            assert launch.launch(recipe.address, *(given[name] for name in kernel.launch_order)) is None
            np.testing.assert_array_equal(c, serial)
    finally:
        pool.set_num_threads(before)


def test_rows_of_one_element_batches_are_joined():
    """A batch of row vectors times one matrix is one multiplication, whatever the row stride says."""
    rng = np.random.default_rng(12)
    a, b = operand(rng, 40, 1, 33, False, pad=5), operand(rng, 1, 33, 20, False)
    wide = np.broadcast_to(b, (40, 33, 20))
    close(multiply(a, wide), a.astype(np.float64) @ b, 33, 2e-7)
    plan = plan_matmul(dtypes.float32, 40, 1, 20, 33, (38, 7, 1), (0, 20, 1), (20, 3, 1))
    assert plan.constants == plan_matmul(dtypes.float32, 1, 40, 20, 33, (0, 38, 1), (0, 20, 1), (0, 20, 1)).constants


@pytest.mark.parametrize("isa", _machines())
@pytest.mark.parametrize("shape", [(1, 5, 3), (9, 64, 48), (37, 1, 33), (130, 700, 131), (300, 1100, 96)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_right_operand_that_was_packed_before(isa, shape, transposed, dtype):
    M, K, N = shape
    kind, on, rng = dtypes.float32 if dtype is np.float32 else dtypes.float64, _machine(isa), np.random.default_rng(0)
    b, bias = operand(rng, 1, K, N, transposed, dtype), rng.standard_normal(N).astype(dtype)
    room = packed_bytes(kind, K, N, on)
    packed, memory = _guarded(np.zeros(-(-room // 64) * 64 // b.itemsize, dtype))
    packing = plan_packing(kind, K, N, _strides(b)[1:], on)
    assert packing.workspace_bytes == 0
    words = [_address({"B": b, "packed": packed}[name]) for name in packing.launch_order]
    block = (ctypes.c_int64 * (len(words) + 1 + len(packing.constants)))(*words, 0, *packing.constants)
    for chunk in reversed(range(packing.chunks)):
        _ENTRY(packing.function_address)(ctypes.addressof(block), chunk, packing.chunks, 0)
    a = operand(rng, 1, M, K, False, dtype)
    c = np.full((M, N), np.nan, dtype)
    kernel = plan_matmul(
        kind, 1, M, N, K, _strides(a), (0, N, 1), (M * N, N, 1), epilogue="bias_relu", packed=True, machine=on
    )
    execute(kernel, a, packed, c, bias)
    close(c[None], np.maximum(a.astype(np.float64) @ b + bias, 0), K, np.finfo(dtype).eps)


def test_packing_for_a_batch_or_half_types_is_refused():
    for batch, kind in ((2, dtypes.float32), (1, dtypes.float16)):
        with pytest.raises(NotImplementedError, match="packed B"):
            plan_matmul(kind, batch, 16, 16, 16, (256, 16, 1), (256, 16, 1), (256, 16, 1), packed=True)


@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_where_registers_are_few_the_steps_of_a_tile_need_no_mask(isa):
    rows = kernels(dtypes.float32, _machine(isa)).max_rows
    text = kernels(dtypes.float32, _machine(isa)).tile(rows, 2, "", "consecutive").text
    steps = [block for block in re.split(r"\n(?=\w+:)", text) if block.count("fmuladd") + block.count("fmul ") >= 2 * rows]
    assert steps and not any("mask" in block for block in steps)
    assert "mask" in text or isa == "generic"  # of the last results
