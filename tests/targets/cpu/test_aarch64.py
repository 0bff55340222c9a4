"""Kernels for a machine of aarch64: the code generator takes their text, and the assembly uses NEON as planned.

The assembly is read, not run; what 32 registers of 16 bytes change in a plan runs on any CPU, and is checked too.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest
from test_gemm import close, multiply_on, operand

from tensorsmith.core import dtypes
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu import gemm_kernels, lower as lowering
from tensorsmith.targets.cpu.compiler import assembly
from tensorsmith.targets.cpu.gemm import plan_matmul
from tensorsmith.targets.cpu.machine import Machine, machine, select

NEON = select(None, "aarch64-unknown-linux-gnu", "neoverse-n1", {})
_unlike = itertools.count(NEON.level2)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch):
    """A machine of aarch64 that no other test uses, and the optimised assembly of each module compiled for it."""
    monkeypatch.setenv("TENSORSMITH_OPTIMISATION", "3")
    found: list[str] = []

    def compile_functions(text: str, names: list[str], on: Machine) -> list[int]:
        found.append(assembly(text, on))
        assert all(f"\n{name}:" in found[-1] for name in names)
        return [1] * len(names)  # nobody calls them

    monkeypatch.setattr(gemm_kernels, "compile_functions", compile_functions)
    monkeypatch.setattr(lowering, "compile_functions", compile_functions)
    return replace(NEON, level2=next(_unlike)), found


def calls(code: str) -> set[str]:
    """Functions that the assembly calls by name."""
    return set(re.findall(r"^\s+bl\s+(\w+)", code, re.MULTILINE))


def test_the_machine():
    assert (NEON.name, NEON.vector_bytes, NEON.registers, NEON.lanes(4)) == ("generic", 16, 32, 4)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16, dtypes.int32], ids=str)
def test_products(dtype, read):
    on, found = read
    methods = set()
    for M, N, K, tb in [(13, 66, 70, False), (1, 4096, 512, False), (2, 256, 300, True)]:
        strides = (0, 1, K) if tb else (0, N, 1)
        methods.add(plan_matmul(dtype, 1, M, N, K, (0, K, 1), strides, (0, N, 1), "bias_relu", machine=on).method)
    assert {"blocks", "dot"} <= methods
    code = "\n".join(found)
    assert calls(code) <= {"blocks", "dot", "stream"}
    lanes = {8: "2d"}.get(dtype.itemsize, "4s")
    assert re.search(rf"\b{'fmla' if dtype.kind == 'f' else 'mla'}\s+v\d+\.{lanes}", code)


def test_the_largest_tile_keeps_its_sums_in_registers(read):
    on, found = read
    plan_matmul(dtypes.float32, 1, 96, 96, 96, (0, 96, 1), (0, 96, 1), (0, 96, 1), machine=on)
    (tile,) = [code for code in found if "\ntile_12x2:" in code]
    inner = max(re.split(r"^\.L\w+:.*$", tile, flags=re.MULTILINE), key=lambda block: block.count("fmla"))
    assert inner.count("fmla") % 24 == 0 and inner.count("fmla") >= 24
    assert not re.search(r"\b(ldr|str|ldp|stp)\s+q\d+.*\[sp", inner)


def row(kind: str, axis: int, shape: tuple[int, int]) -> KernelSpec:
    """A reduction of exp(x) over one axis of a matrix."""
    body = (
        Instr(Kind.LOAD, dtypes.float32, index=0),
        Instr(Kind.APPLY, dtypes.float32, (0,), fn=Fn.EXP),
        Instr(Kind.REDUCE, dtypes.float32, (1,), reduction=kind),
    )
    kept = Operand(dtypes.float32, (1, 0) if axis == 1 else (0, 1))
    return KernelSpec(shape, axis, (Operand(dtypes.float32, (shape[1], 1)),), body, (Store(kept, 2, row=True),))


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("axis, shape", [(1, (40, 500)), (0, (500, 40)), (1, (400, 8))])
def test_reductions(kind, axis, shape, read):
    on, found = read
    kernel = lowering.lower(row(kind, axis, shape), on)
    assert kernel.schedule.startswith("row")
    (code,) = found
    assert not calls(code) and re.search(r"\b(fmla|fmul)\s+v\d+\.4s", code)


@pytest.mark.parametrize("fn", [Fn.EXP, Fn.TANH, Fn.SQRT, Fn.LOG], ids=lambda fn: fn.name)
def test_pointwise(fn, read):
    on, found = read
    for stored in (dtypes.float32, dtypes.bfloat16, dtypes.float16):
        flat = Operand(stored, (1,))
        body = (
            Instr(Kind.LOAD, stored, index=0),
            Instr(Kind.CAST, dtypes.float32, (0,)),
            Instr(Kind.APPLY, dtypes.float32, (1,), fn=fn),
            Instr(Kind.CAST, stored, (2,)),
        )
        body = body if stored is not dtypes.float32 else (body[0], replace(body[2], args=(0,)))
        kernel = lowering.lower(KernelSpec((1000,), None, (flat,), body, (Store(flat, len(body) - 1),)), on)
        assert kernel.schedule == "pointwise" and not calls(found[-1])
        assert re.search(r"\b(fsqrt|fmla|fmul)\s+v\d+\.4s", found[-1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32])
def test_tiles_of_32_registers_of_16_bytes_run(dtype):
    """The plan that 32 registers give, on this CPU's own 16-byte vectors."""
    here = select("generic", llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features())
    on = replace(here, registers=32, level2=machine().level2)
    rng = np.random.default_rng(3)
    for M, N, K in [(12, 8, 20), (36, 66, 70), (145, 31, 530)]:
        for ta, tb in itertools.product((False, True), repeat=2):
            a, b = operand(rng, 1, M, K, ta, dtype), operand(rng, 1, K, N, tb, dtype)
            result = multiply_on(on, a, b)
            if np.dtype(dtype).kind == "i":
                np.testing.assert_array_equal(result, a @ b)
            else:
                eps = {np.float32: 2e-7, np.float64: 4e-16, np.float16: 6e-4}[dtype]
                close(result, a.astype(np.float64) @ b.astype(np.float64), K if np.dtype(dtype).itemsize > 2 else 0, eps)
