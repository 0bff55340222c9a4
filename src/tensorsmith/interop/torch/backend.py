"""The backend that `torch.compile` calls: AOTAutograd with our compiler for the graphs it makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends import registry
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from tensorsmith.interop.torch.operators import OPERATORS, aten
from tensorsmith.interop.torch.partition import compiled


def _compiler(training: bool) -> Callable[[GraphModule, Sequence[Any]], Callable[[list[Any]], Sequence[Any]]]:
    def compile_graph(module: GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
        context = torch._guards.TracingContext.try_get()
        metadata = context.fw_metadata if context is not None else None
        lasting = frozenset(metadata.static_input_indices) if metadata is not None and not training else frozenset()
        program = compiled(module, examples, lasting, training)

        def run(arguments: list[Any]) -> Sequence[Any]:
            return program(*arguments)  # type: ignore[no-any-return]

        run._boxed_call = True  # type: ignore[attr-defined] # it takes its arguments as one list
        return run

    return compile_graph


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions to the core of ATen, but for what the table has as a whole, and random numbers apart."""
    core = {target: rule for target, rule in core_aten_decompositions().items() if target not in OPERATORS}
    return core | RANDOM


# Random numbers are PyTorch's, from its generator in its order. Drawn into memory that depends on no value of the graph, they
# come before a program, and do not cut it in two.


def _drawn(x: torch.Tensor, draw: Callable[[list[Any]], torch.Tensor]) -> torch.Tensor:
    """Random numbers in the order in which x lies in memory, which is PyTorch's."""
    order = sorted(range(x.dim()), key=lambda axis: x.stride()[axis], reverse=True)
    drawn = draw([x.shape[axis] for axis in order])
    return drawn.permute([order.index(axis) for axis in range(x.dim())])


def _dropout(x: torch.Tensor, p: float, train: bool | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)

    def draw(shape: list[Any]) -> torch.Tensor:
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return aten.bernoulli.p(torch.empty_strided(shape, strides, dtype=torch.bool, device=x.device), 1 - p)  # type: ignore[no-any-return]

    mask = _drawn(x, draw)
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


def _uniform_like(x: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return _drawn(x, lambda shape: torch.rand(shape, dtype=dtype or x.dtype, device=x.device))


def _normal_like(x: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    if not x.is_contiguous():  # PyTorch draws other numbers then
        return NotImplemented
    return torch.randn(x.shape, dtype=dtype or x.dtype, device=x.device)


RANDOM: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _dropout, aten.rand_like.default: _uniform_like, aten.randn_like.default: _normal_like,
}  # fmt: skip


_backend = aot_autograd(
    fw_compiler=_compiler(training=True), inference_compiler=_compiler(training=False), decompositions=_decompositions,
    partition_fn=min_cut_rematerialization_partition,
)  # fmt: skip


def tensorsmith_backend(module: GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """`torch.compile(model, backend="tensorsmith")`: run Dynamo's graph, and its gradient, on plans of ours."""
    return _backend(module, examples, **options)  # type: ignore[no-any-return]


if "tensorsmith" not in registry._COMPILER_FNS:  # PyTorch has it already where the entry point was loaded
    registry.register_backend(tensorsmith_backend, name="tensorsmith")
