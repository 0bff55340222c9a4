"""Factors of a row taken out of sums: fewer passes, the same values."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from tensorsmith.core.dtypes import float32
from tensorsmith.kernels.canonical import canonicalize
from tensorsmith.kernels.factors import factors_behind
from tensorsmith.kernels.levels import find_levels
from tensorsmith.kernels.spec import KernelSpec, Operand, Store
from tensorsmith.scalar.table import Fn

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "targets" / "cuda")]
import fused_specs as specs  # noqa: E402
import spec_oracle  # noqa: E402


def passes(spec: KernelSpec) -> int:
    return find_levels(canonicalize(spec).structure).count


def same_values(before: KernelSpec, after: KernelSpec) -> None:
    random = np.random.default_rng(0)
    inputs = []
    for operand in before.inputs:
        count = 1 + sum((n - 1) * s for n, s in zip(before.domain, operand.strides))
        buffer = random.standard_normal(count).astype(operand.dtype.numpy)
        inputs.append(spec_oracle.view(operand, buffer, 0, before.domain))
    for old, new in zip(spec_oracle.evaluate(before, inputs, []), spec_oracle.evaluate(after, inputs, [])):
        np.testing.assert_allclose(old, new, rtol=1e-9, atol=1e-9)


def test_the_gradient_of_a_norm_has_a_pass_less():
    joint = specs.layer_norm_joint(6, 40, float32)
    after, summed = factors_behind(joint.rows, joint.summed)
    assert (passes(joint.rows), passes(after)) == (4, 3)
    same_values(joint.rows, after)
    for (old, kind), (new, same) in zip(joint.summed, summed):
        assert kind == same and joint.rows.body[old].fn is after.body[new].fn
        place = Operand(float32, specs.dense(6, 40))
        same_values(replace(joint.rows, stores=(Store(place, old),)), replace(after, stores=(Store(place, new),)))


def test_sums_that_wait_anyway_stay():
    shape = (6, 40)
    gradient = specs.softmax_gradient(shape, 1, float32)
    for spec in (specs.softmax(shape, 1, float32), specs.layer_norm(*shape, float32), gradient):
        after, _ = factors_behind(spec)
        assert passes(after) == passes(spec)
        same_values(spec, after)


def test_only_products_have_factors():
    b = specs.Body()
    x = b.load(0, float32)
    total = b.reduce("sum", x)
    added, largest = b.reduce("sum", b.fn(Fn.ADD, x, total)), b.reduce("max", b.fn(Fn.MUL, x, total))
    scaled = b.reduce("sum", b.fn(Fn.MUL, total, b.fn(Fn.MUL, x, total)))
    stores = [(float32, (1, 0), value, True) for value in (added, largest, scaled)]
    spec = b.spec("sums", (6, 40), 1, [(float32, (40, 1))], stores)
    after, _ = factors_behind(spec)
    same_values(spec, after)
    reduced = [instr for instr in after.body if instr.reduction]
    assert [instr.reduction for instr in reduced] == ["sum", "sum", "max"]  # the last is the first, times total twice
