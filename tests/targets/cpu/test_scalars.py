"""Every scalar function as a kernel against float64, with its bound in units in the last place stated here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from spec_runner import check, machines, run

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import TABLE, Fn
from tensorsmith.targets.cpu.lower import lower
from tensorsmith.targets.cpu.scalars import LIBRARY_CALLS, RENDERINGS

MACHINES = machines()

# float32 bounds in ulp with fused multiply-add; (function, bound, ranges of the dense grid, reference).
UNARY = [
    (Fn.EXP, 1.5, [(-104, 89), (-1e-3, 1e-3)], torch.exp),
    (Fn.EXP2, 1.5, [(-150, 128.5), (-1e-3, 1e-3)], torch.exp2),
    (Fn.EXPM1, 2.0, [(-20, 89), (-1, 1), (-1e-4, 1e-4)], torch.expm1),
    (Fn.LOG, 1.5, [(1e-45, 1e-38), (1e-6, 3), (0.9, 1.1), (1, 1e30)], torch.log),
    (Fn.LOG1P, 1.5, [(-0.999999, 3), (-1e-3, 1e-3), (0, 1e20)], torch.log1p),
    (Fn.LOG2, 1.5, [(1e-45, 1e-38), (1e-6, 3), (0.9, 1.1), (1, 1e30)], torch.log2),
    (Fn.LOG10, 2.0, [(1e-45, 1e-38), (1e-6, 3), (0.9, 1.1), (1, 1e30)], torch.log10),
    (Fn.TANH, 2.0, [(-10, 10), (-1, 1), (-1e-3, 1e-3)], torch.tanh),
    (Fn.SIGMOID, 2.5, [(-104, 104), (-3, 3)], torch.sigmoid),
    (Fn.SOFTPLUS, 2.0, [(-104, 104), (-3, 3)], lambda x: torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs()))),
    (Fn.ERF, 2.0, [(-4.5, 4.5), (-1, 1), (-1e-3, 1e-3)], torch.erf),
    (Fn.ERFC, 0.6, [(-4, 10)], torch.erfc),
    (Fn.SIN, 1.5, [(-10, 10), (-1e5, 1e5), (1e10, 1e13)], torch.sin),
    (Fn.COS, 1.5, [(-10, 10), (-1e5, 1e5), (1e10, 1e13)], torch.cos),
    (Fn.TAN, 3.0, [(-10, 10), (-1e5, 1e5)], torch.tan),
    (Fn.ASIN, 2.5, [(-1, 1), (-1e-3, 1e-3)], torch.asin),
    (Fn.ACOS, 2.0, [(-1, 1), (0.999, 1)], torch.acos),
    (Fn.ATAN, 2.0, [(-10, 10), (-1e6, 1e6), (-1e-3, 1e-3)], torch.atan),
    (Fn.SINH, 2.5, [(-89.4, 89.4), (-1.5, 1.5), (-1e-3, 1e-3)], torch.sinh),
    (Fn.COSH, 2.5, [(-89.4, 89.4), (-1.5, 1.5)], torch.cosh),
    (Fn.ASINH, 0.6, [(-1e6, 1e6), (-1, 1)], torch.asinh),
    (Fn.ACOSH, 0.6, [(1, 1e6), (1, 1.01)], torch.acosh),
    (Fn.ATANH, 2.5, [(-1, 1), (-1e-3, 1e-3)], torch.atanh),
    (Fn.LGAMMA, 1.0, [(0.1, 100)], torch.lgamma),
    (Fn.SQRT, 0.51, [(0, 1e30), (0, 1)], torch.sqrt),
    (Fn.RSQRT, 1.5, [(1e-30, 1e30), (0.1, 1)], torch.rsqrt),
    (Fn.RECIPROCAL, 0.51, [(-1e30, 1e30), (0.1, 1)], torch.reciprocal),
]
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38]


def spec_of(fn: Fn, dtype: DType, n: int, arity: int = 1, result: DType | None = None) -> KernelSpec:
    operand = Operand(dtype, (1,))
    loads = [Instr(Kind.LOAD, dtype, index=k) for k in range(arity)]
    out = result or dtype
    apply = Instr(Kind.APPLY, out, tuple(range(arity)), fn=fn)
    return KernelSpec((n,), None, (operand,) * arity, (*loads, apply), (Store(Operand(out, (1,)), arity),), name=fn.value)


def apply_kernel(fn: Fn, on, *arrays: np.ndarray, result: DType | None = None) -> np.ndarray:
    dtype = dtypes.BY_NUMPY[arrays[0].dtype]
    out = np.empty(arrays[0].shape, (result or dtype).numpy)
    spec = spec_of(fn, dtype, arrays[0].size, len(arrays), result)
    code = run(lower(spec, on), *(a.ctypes.data for a in arrays), out.ctypes.data)
    assert code is None
    return out


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance from the exact value in units in the last place of the exact value (denormals count as such)."""
    kind = got.dtype
    with np.errstate(all="ignore"):
        rounded = np.abs(exact.astype(kind))
        unit = np.maximum(np.spacing(rounded).astype(np.float64), float(np.finfo(kind).smallest_subnormal))
        error = np.abs(got.astype(np.float64) - exact) / unit
    same = (got == exact.astype(kind)) | (np.isnan(got) & np.isnan(exact))
    return np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf))


def grid(ranges, dtype=np.float32) -> np.ndarray:
    rng = np.random.default_rng(1)
    parts = [np.linspace(low, high, 20011) for low, high in ranges]
    parts += [rng.uniform(low, high, 5000) for low, high in ranges]
    return np.concatenate(parts).astype(dtype)


def test_every_function_is_rendered_or_listed():
    assert set(RENDERINGS) | LIBRARY_CALLS == set(Fn)
    assert not set(RENDERINGS) & LIBRARY_CALLS
    assert LIBRARY_CALLS <= {Fn.ERFINV, Fn.DIGAMMA}
    assert set(TABLE) == set(Fn)


@pytest.mark.parametrize("on", MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize("fn,bound,ranges,reference", UNARY, ids=lambda v: v.value if isinstance(v, Fn) else "")
def test_unary_float32(fn, bound, ranges, reference, on):
    x = np.concatenate([grid(ranges), np.array(EDGES, np.float32)])
    exact = reference(torch.from_numpy(x.astype(np.float64))).numpy()
    error = ulps(apply_kernel(fn, on, x), exact)
    # Without fused multiply-adds the range reductions lose up to an ulp.
    allowed = bound if on.name != "generic" else bound + 1.5
    worst = int(np.argmax(error))
    assert error[worst] <= allowed, f"{fn.value}({x[worst]!r}) is {error[worst]:.2f} ulp off"
