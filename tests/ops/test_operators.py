"""All operators of the package: eager execution against the reference, and gradients against differences."""

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.autograd import gradcheck, gradgradcheck
from tensorsmith.eager.operator import operators
from tensorsmith.scalar.table import TABLE

sys.path.append(str(Path(__file__).parent))
import harness  # noqa: E402

FLOATS = (ts.float32, ts.float64, ts.float16, ts.bfloat16)
REFUSALS = (RuntimeError, TypeError, NotImplementedError, ValueError)
ELEMENTARY = {row.name for row in TABLE.values()}
NAMES = sorted(operators())


@pytest.mark.parametrize("name", NAMES)
def test_against_the_reference(name):
    operator = operators()[name]
    accepted = 0
    for sample in harness.samples(operator):
        for placement in harness.PLACEMENTS:
            harness.check_against_reference(operator, sample, ts.float32, placement, zlib.crc32(name.encode()))
        # Arithmetic on bool is refused by the public functions already; moves and scalar functions take it.
        bools = (ts.bool,) if name in ELEMENTARY or operator.geometry is not None else ()
        for dtype in (ts.float64, ts.float16, ts.bfloat16, ts.int64, ts.int32, ts.uint8, *bools):
            try:
                harness.program_of(operator, [
                    harness.as_tensor(x) if isinstance(x, np.ndarray) else x
                    for x in harness.arrays(sample, dtype, harness.BASIC, np.random.default_rng(0))
                ], sample.attrs)  # fmt: skip
            except REFUSALS:
                continue  # refused when the graph is built: such a call is an error, checked with the operator's family
            accepted += 1
            harness.check_against_reference(operator, sample, dtype)
    assert accepted


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    operator = operators()[name]
    for sample in harness.samples(operator):
        given = harness.arrays(sample, ts.float64, harness.BASIC, np.random.default_rng(1))
        operands = [ts.tensor(x) if isinstance(x, np.ndarray) else x for x in given]
        needs = [x for i, x in enumerate(operands) if isinstance(x, ts.Tensor) and x.dtype in (ts.float64, ts.complex128)
                 and i not in sample.fixed]  # fmt: skip
        for x in needs:
            x.requires_grad_()
        if not needs:
            continue
        call = lambda *xs, operator=operator, sample=sample: operator(*xs, **sample.attrs)
        assert gradcheck(call, operands, atol=1e-5)
        results = call(*operands)
        if any(r.requires_grad for r in (results if isinstance(results, tuple | list) else [results])):
            assert gradgradcheck(call, operands, atol=1e-4)
