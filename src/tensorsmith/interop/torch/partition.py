"""Which operators of an FX graph run here, and what becomes of the rest.

A graph whose operators are all in the table is one program. Otherwise the largest parts that can run here become programs,
and PyTorch runs what lies between them: a warning names those operators once, `left_to_torch()` counts them.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node as FxNode
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils._pytree import tree_leaves

from tensorsmith.interop.torch.operators import OPERATORS, aten
from tensorsmith.interop.torch.program import DTYPES, SIZES, Program, Refused

_left: Counter[str] = Counter()
ONSIZES = (operator, math, torch)  # modules whose functions graphs call on sizes


class TensorsmithWarning(UserWarning):
    """Part of a program runs in PyTorch."""


def left_to_torch() -> dict[str, int]:
    """How many calls of which ATen operators were left to PyTorch in the graphs compiled so far."""
    return dict(_left)


def is_ours(tensor: Any) -> bool:
    """Whether a (fake) tensor is one that plans can read: dense strides on the CPU, of a dtype that exists here."""
    return bool(
        tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.dtype in DTYPES
        and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_quantized
    )  # fmt: skip


class Support(OperatorSupportBase):
    """What the table has, less the nodes that tracing refused."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: FxNode) -> bool:
        """Whether a call is in the table, and its operands and results are tensors of ours or sizes."""
        if node.op != "call_function" or node.name in self.refused:
            return False
        tensors = [
            value for each in (node, *node.all_input_nodes) for value in tree_leaves(each.meta.get("val"))
            if isinstance(value, torch.Tensor)
        ]  # fmt: skip
        if not all(map(is_ours, tensors)):
            return False
        target = node.target
        if target in OPERATORS or target in SIZES or target is operator.getitem:
            return True
        return not tensors and getattr(target, "__module__", "") in ("_operator", "math", "torch")


def compiled(module: GraphModule, examples: Sequence[Any], lasting: frozenset[int], training: bool) -> Any:
    """A callable in place of the graph. examples: (fake) tensors and sizes like those it will be called with."""
    support = Support()
    while True:
        calls = [node for node in module.graph.nodes if node.op == "call_function"]
        left = [node for node in calls if not support.is_node_supported({}, node)]
        if not left:
            program = Program(module, lasting, training)
            if all(_is_known(example) for example in examples):
                try:
                    program.trace(examples)
                except Refused as refused:
                    support.refused[refused.node.name] = str(refused)
                    continue
            return program
        _report(left, support)
        if len(left) == len(calls):
            return module
        return _parts(module, support, training)


def _is_known(example: Any) -> bool:
    """Whether PyTorch knows the sizes of an example: those that depend on values it does not."""
    sizes = (*example.shape, *example.stride()) if isinstance(example, torch.Tensor) else (example,)
    return all(not isinstance(n, torch.SymInt) or n.node.has_hint() for n in sizes)


def _parts(module: GraphModule, support: Support, training: bool) -> GraphModule:
    """The graph with its supported parts as programs."""
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    partitions = [p for p in partitioner.propose_partitions() if any(n.target is not operator.getitem for n in p.nodes)]
    order = list(module.graph.nodes)
    split = partitioner.fuse_partitions(partitions)
    _draw_first(split, order)
    for name, part in list(split.named_children()):
        if isinstance(part, GraphModule) and name.startswith("fused_"):
            setattr(split, name, _Part(part, training))
    split.recompile()
    return split


def _draw_first(split: GraphModule, order: Sequence[FxNode]) -> None:
    """Random numbers that depend on nothing are drawn first, in the order of the program: the generator's is theirs."""
    ready = {node for node in split.graph.nodes if node.op in ("placeholder", "get_attr")}
    at = next((node for node in reversed(split.graph.nodes) if node.op == "placeholder"), None)
    for node in order:
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if not (random or node.target is aten.empty_strided.default):
            continue
        if node.graph is not split.graph or not ready.issuperset(node.all_input_nodes):
            continue
        if at is not None:
            at.append(node)
        ready.add(node)
        at = node


class _Part(torch.nn.Module):
    """A program where a graph calls a module. A call that tracing refuses is found when it is first run."""

    def __init__(self, part: GraphModule, training: bool) -> None:
        super().__init__()
        (output,) = [node for node in part.graph.nodes if node.op == "output"]
        self.single = not isinstance(output.args[0], tuple | list)
        self.program: Any = None
        self.part, self.training_graph = part, training

    def forward(self, *arguments: Any) -> Any:
        """Run the program; a part of one result gives it alone."""
        if self.program is None:
            self.program = compiled(self.part, arguments, frozenset(), self.training_graph)
        found = self.program(*arguments)
        return found[0] if self.single and isinstance(found, tuple) else found


def _report(left: Sequence[FxNode], support: Support) -> None:
    names = Counter(str(node.target) for node in left if node.target is not aten.empty_strided.default)  # memory to draw into
    new = [name for name in names if name not in _left]
    _left.update(names)
    if new:
        reasons = [f"{name}" for name in sorted(new)]
        reasons += [f"({reason})" for node in left if (reason := support.refused.get(node.name))]
        warnings.warn(f"tensorsmith: left to PyTorch: {', '.join(reasons)}", TensorsmithWarning, stacklevel=2)
