"""The backend that `torch.compile` calls: AOTAutograd with our compiler for the graphs it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends import registry
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from tensorsmith.interop.torch.operators import OPERATORS
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
    """PyTorch's decompositions to the core of ATen, but for what the table has as a whole."""
    return {target: rule for target, rule in core_aten_decompositions().items() if target not in OPERATORS}


_backend = aot_autograd(
    fw_compiler=_compiler(training=True), inference_compiler=_compiler(training=False), decompositions=_decompositions,
    partition_fn=min_cut_rematerialization_partition,
)  # fmt: skip


def tensorsmith_backend(module: GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """`torch.compile(model, backend="tensorsmith")`: run Dynamo's graph, and its gradient, on plans of ours."""
    return _backend(module, examples, **options)  # type: ignore[no-any-return]


if "tensorsmith" not in registry._COMPILER_FNS:  # PyTorch has it already where the entry point was loaded
    registry.register_backend(tensorsmith_backend, name="tensorsmith")
