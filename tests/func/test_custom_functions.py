"""Custom autograd Functions under transforms, as in `torch.func`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
import torch.func
from test_func_against_torch import both, tensors

import tensorsmith as ts


def cube(lib: ModuleType, **members: Any) -> Any:
    """A cube whose gradient is twice the true one, so that it shows whose gradient was used."""

    def forward(x: Any) -> Any:
        return x**3

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        (x,) = inputs
        ctx.save_for_backward(x, output)

    def backward(ctx: Any, grad: Any) -> Any:
        x, output = ctx.saved_tensors
        return grad * 6 * output / x

    members = {"forward": forward, "setup_context": setup_context, "backward": backward} | members
    return type("Cube", (lib.autograd.Function,), {
        name: staticmethod(value) if callable(value) else value for name, value in members.items()
    })  # fmt: skip


def scaled(lib: ModuleType) -> Any:
    """x * w + k of two tensors and a number, with two outputs of which one has no gradient."""

    class Scaled(lib.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any, w: Any, k: float) -> Any:
            return x * w + k, x > 1

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            x, w, _ = inputs
            ctx.save_for_backward(x, w)
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx: Any, grad: Any, _: Any) -> Any:
            x, w = ctx.saved_tensors
            return grad * w * 2, (grad * x * 3).sum_to_size(*w.shape), None

    return Scaled


def batch_rule(lib: ModuleType) -> Any:
    def vmap(info: Any, in_dims: Any, x: Any) -> Any:
        assert in_dims == (0,) and info.batch_size == 4 and info.randomness == "error"
        return x.movedim(0, -1) ** 3 * 10, -1

    return cube(lib, vmap=vmap)


def old_style(lib: ModuleType) -> Any:
    class Old(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    return Old


PROGRAMS = {
    "grad": lambda lib: lib.func.grad(lambda x: cube(lib).apply(x).sum())(*tensors(lib, (3,))),
    "grad twice": lambda lib: lib.func.grad(lib.func.grad(lambda x: cube(lib).apply(x)))(*tensors(lib, ())),
    "jacrev of jacrev": lambda lib: lib.func.jacrev(
        lib.func.jacrev(lambda x: cube(lib, generate_vmap_rule=True).apply(x) * x.sum())
    )(*tensors(lib, (2,))),
    "generated": lambda lib: lib.func.vmap(cube(lib, generate_vmap_rule=True).apply)(*tensors(lib, (4, 3))),
    "generated, at another axis": lambda lib: lib.func.vmap(cube(lib, generate_vmap_rule=True).apply, 1, 1)(
        *tensors(lib, (4, 3))
    ),
    "gradient per example": lambda lib: lib.func.vmap(
        lib.func.grad(lambda x: cube(lib, generate_vmap_rule=True).apply(x).sum())
    )(*tensors(lib, (4, 3))),
    "grad of vmap": lambda lib: lib.func.grad(
        lambda x: lib.func.vmap(cube(lib, generate_vmap_rule=True).apply)(x).sum()
    )(*tensors(lib, (4, 3))),
    "several arguments": lambda lib: lib.func.vmap(scaled(lib).apply, (0, None, None))(*tensors(lib, (4, 3), (3,)), 1.5),
    "grad of several arguments": lambda lib: lib.func.grad(
        lambda x, w: lib.func.vmap(scaled(lib).apply, (0, None, None))(x, w, 1.5)[0].sin().sum(), (0, 1)
    )(*tensors(lib, (4, 3), (3,))),
    "per example of several arguments": lambda lib: lib.func.vmap(
        lib.func.grad(lambda x, w: scaled(lib).apply(x, w, 1.5)[0].sin().sum(), (0, 1)), (0, None)
    )(*tensors(lib, (4, 3), (3,))),
    "vmap twice": lambda lib: lib.func.vmap(lib.func.vmap(cube(lib, generate_vmap_rule=True).apply))(*tensors(lib, (2, 4, 3))),
    "rule of its own": lambda lib: lib.func.vmap(batch_rule(lib).apply)(*tensors(lib, (4, 3))),
    "no rule": lambda lib: lib.func.vmap(cube(lib).apply)(*tensors(lib, (4, 3))),
    "two rules": lambda lib: lib.func.vmap(cube(lib, generate_vmap_rule=True, vmap=lambda *a: None).apply)(
        *tensors(lib, (4, 3))
    ),
    "old style under grad": lambda lib: lib.func.grad(lambda x: old_style(lib).apply(x).sum())(*tensors(lib, (3,))),
    "old style under vmap": lambda lib: lib.func.vmap(old_style(lib).apply)(*tensors(lib, (3,))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_torch(name: str):
    both(PROGRAMS[name])


def test_backward_through_a_mapped_function():
    gradients = []
    for lib in (ts, torch):
        x = tensors(lib, (4, 3))[0].requires_grad_()
        w = tensors(lib, (3,))[0].requires_grad_()
        lib.func.vmap(scaled(lib).apply, (0, None, None))(x, w, 0.5)[0].sum().backward()
        gradients.append((x.grad.flatten().tolist(), w.grad.tolist()))
    assert gradients[0][0] == pytest.approx(gradients[1][0])
    assert gradients[0][1] == pytest.approx(gradients[1][1])
