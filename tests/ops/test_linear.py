"""linear and bilinear against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from network_oracle import compare, same_error, torch

import tensorsmith as ts
from tensorsmith.eager.entries import plan_for
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it
from tensorsmith.ops.linear import LINEAR

RANDOM = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 1, 3, 5), (0, 5), (1, 5), (300, 5)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(shape: tuple[int, ...], bias: bool):
    operands = [normal(*shape), normal(4, 5), *([normal(4)] if bias else [])]
    compare(F.linear, torch.nn.functional.linear, *operands)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_linear_dtypes(dtype: str):
    compare(F.linear, torch.nn.functional.linear, normal(7, 33), normal(9, 33), normal(9), dtype=dtype, gradients=1)


def test_linear_of_transposed_and_sliced_operands():
    x, w = normal(5, 6).T, normal(8, 10)[::2, ::2]
    compare(F.linear, torch.nn.functional.linear, x, w, normal(8)[::2])
    compare(F.linear, torch.nn.functional.linear, np.broadcast_to(normal(5), (3, 5)).copy(), normal(5, 4).T)


def test_linear_with_a_vector_as_weight():
    compare(F.linear, torch.nn.functional.linear, normal(3, 5), normal(5))
    compare(F.linear, torch.nn.functional.linear, normal(5), normal(5))


def test_linear_without_features():
    compare(F.linear, torch.nn.functional.linear, normal(3, 0), normal(4, 0), normal(4))
    compare(F.linear, torch.nn.functional.linear, normal(3, 5), normal(0, 5), normal(0))


def test_linear_is_one_step_and_copies_nothing():
    kinds = [ts.zeros(*s).layout for s in ((32, 16), (8, 16), (8,))]
    program = LINEAR.program(kinds, {})
    assert [step.name for step in plan_for(LINEAR, program, kinds).steps] == ["matmul_bias"]
    backward = program.backward((True, True, True), (True,))
    given = [kinds[w.number] for w in backward.saved] + [ts.zeros(32, 8).layout]
    plan = plan_for(backward, backward.program(given, {}), given)
    assert sorted(step.name for step in plan.steps) == ["matmul", "matmul", "sum"]


@pytest.mark.parametrize(
    "shapes",
    [((5,), (2, 4)), ((1, 5), (2, 4)), ((1, 5), (2, 5), (3,)), ((1, 5), (5, 5), (2, 5)), ((), (2, 5)), ((5,), (4,))],
)
def test_linear_refuses_shapes_that_do_not_contract(shapes: tuple):
    if shapes in [((5,), (4,)), ((1, 5), (5, 5), (2, 5))]:
        with pytest.raises(RuntimeError, match="size mismatch|expanded size"):
            F.linear(*(ts.zeros(*s) for s in shapes))
        return
    same_error(
        lambda: F.linear(*(ts.zeros(s) for s in shapes)),
        lambda: torch.nn.functional.linear(*(torch.zeros(s) for s in shapes)),
    )


def test_linear_refuses_mixed_dtypes():
    same_error(
        lambda: F.linear(ts.zeros(1, 5), ts.zeros(2, 5, dtype=ts.float64)),
        lambda: torch.nn.functional.linear(torch.zeros(1, 5), torch.zeros(2, 5, dtype=torch.float64)),
    )
    same_error(
        lambda: F.linear(ts.zeros(1, 5), ts.zeros(2, 5), ts.zeros(2, dtype=ts.float64)),
        lambda: torch.nn.functional.linear(torch.zeros(1, 5), torch.zeros(2, 5), torch.zeros(2, dtype=torch.float64)),
    )
    with pytest.raises(TypeError, match="argument 'weight'"):
        F.linear(ts.zeros(1, 5), [1.0])


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_bilinear(lead: tuple[int, ...]):
    operands = [normal(*lead, 4), normal(*lead, 5), normal(2, 4, 5), normal(2)]
    compare(F.bilinear, torch.nn.functional.bilinear, *operands)
    compare(F.bilinear, torch.nn.functional.bilinear, *operands[:3])


def test_bilinear_refuses_shapes_that_do_not_fit():
    with pytest.raises(RuntimeError, match="input1 size does not match"):
        F.bilinear(ts.zeros(3, 4), ts.zeros(3, 5), ts.zeros(2, 3, 5))
    with pytest.raises(RuntimeError, match="batch dimensions"):
        F.bilinear(ts.zeros(3, 4), ts.zeros(2, 5), ts.zeros(2, 4, 5))
