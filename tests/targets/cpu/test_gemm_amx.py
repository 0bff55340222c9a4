"""bfloat16 products by the matrix unit: its code on every CPU, its results where the CPU has one."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from test_gemm import multiply_on, operand

from tensorsmith.core import dtypes
from tensorsmith.targets.cpu import gemm_kernels
from tensorsmith.targets.cpu.compiler import assembly
from tensorsmith.targets.cpu.gemm import plan_matmul
from tensorsmith.targets.cpu.gemm_pairs import uses_tiles
from tensorsmith.targets.cpu.machine import Machine, machine

SAPPHIRE_RAPIDS = Machine(
    "avx512", "sapphirerapids", "+avx512f,+avx512vl,+avx512bw,+avx512dq,+amx-tile,+amx-bf16,-prefer-256-bit", 64, 32,
    "x86_64-unknown-linux-gnu", 2 << 20,
)  # fmt: skip
needs_unit = pytest.mark.skipif(not machine().has("amx-bf16"), reason="runs the matrix unit, which this CPU lacks")


def test_who_uses_the_unit():
    assert uses_tiles(dtypes.bfloat16, SAPPHIRE_RAPIDS)
    without = replace(SAPPHIRE_RAPIDS, features=SAPPHIRE_RAPIDS.features.replace("+amx", "-amx"))
    narrow = replace(SAPPHIRE_RAPIDS, name="avx2", vector_bytes=32, registers=16)
    others = [(dtypes.bfloat16, without), (dtypes.bfloat16, narrow), (dtypes.float16, SAPPHIRE_RAPIDS)]
    assert not any(uses_tiles(dtype, on) for dtype, on in others)


def test_a_step_of_k_is_four_products_on_registers(monkeypatch):
    monkeypatch.setenv("TENSORSMITH_OPTIMISATION", "3")
    found: list[str] = []

    def compile_functions(text: str, names: list[str], on: Machine) -> list[int]:
        found.append(assembly(text, on))
        return [1] * len(names)  # nobody calls them

    monkeypatch.setattr(gemm_kernels, "compile_functions", compile_functions)
    kernel = plan_matmul(dtypes.bfloat16, 1, 32, 64, 96, (0, 96, 1), (0, 64, 1), (0, 64, 1), machine=SAPPHIRE_RAPIDS)
    assert kernel.method == "blocks" and not any("pack_left" in piece.text for piece in kernel.pieces)  # A in place
    (tile,) = (code for code in found if "\ntile_32x2:" in code)
    (loop,) = (part for part in re.split(r"^\.L\w+:", tile, flags=re.MULTILINE) if "tdpbf16ps" in part)
    assert (loop.count("tdpbf16ps"), loop.count("tileloadd"), loop.count("tilestored")) == (4, 4, 0)
    odd = plan_matmul(dtypes.bfloat16, 1, 32, 64, 95, (0, 95, 1), (0, 64, 1), (0, 64, 1), machine=SAPPHIRE_RAPIDS)
    assert any("pack_left" in piece.text for piece in odd.pieces)


@needs_unit
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_products(ta, tb):
    rng = np.random.default_rng(1)
    shapes = [
        (1, 1, 1), (5, 70, 33), (13, 40, 0), (29, 50, 515), (14, 17, 40), (1, 300, 65), (40, 90, 2), (60, 33, 256),
        (33, 64, 31), (32, 16, 32), (17, 31, 96), (200, 130, 64), (900, 100, 70),
    ]  # fmt: skip
    for (M, N, K), pad in itertools.product(shapes, [0, 1, 3]):
        a = operand(rng, 2, M, K, ta, ml_dtypes.bfloat16, pad)
        b = operand(rng, 2, K, N, tb, ml_dtypes.bfloat16, pad)
        bias = rng.standard_normal(N).astype(ml_dtypes.bfloat16)
        old = rng.standard_normal((2, M, N)).astype(ml_dtypes.bfloat16) if pad == 1 else None
        result = multiply_on(None, a, b, "bias_relu", bias, old)
        exact = a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64)
        exact = np.maximum(exact + (0 if old is None else old.astype(np.float64)), 0)
        # One rounding of a sum in float32.
        np.testing.assert_allclose(result.astype(np.float64), exact, rtol=2**-8, atol=1e-6 * (1 + K))
        again = multiply_on(None, a, b, "bias_relu", bias, old, reverse=True)
        np.testing.assert_array_equal(again.view(np.uint16), result.view(np.uint16))


@needs_unit
def test_what_lies_after_a_row_does_not_count():
    for ta, tb in itertools.product((False, True), repeat=2):
        a, b = (np.full((1, 38, 38), np.nan, ml_dtypes.bfloat16)[:, :37, :37] for _ in range(2))
        a[:], b[:] = 2, 3
        result = multiply_on(None, a.mT if ta else a, b.mT if tb else b)
        np.testing.assert_array_equal(result, np.full((1, 37, 37), 37 * 6).astype(ml_dtypes.bfloat16))
