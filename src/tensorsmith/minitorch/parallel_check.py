"""What the compiler made of a map, zip, reduce or matrix product: vectorised, parallel, fused, hoisted, and why not.

    python -m tensorsmith.minitorch parallel_check

Everything is read off the kernel's own records (the plan, its specification, its loops, its LLVM text).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.compile.explained import ExplainedStep, explain_steps
from tensorsmith.core.dtypes import float64
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir.build import matmul, reduce
from tensorsmith.ir.graph import Graph, Node
from tensorsmith.minitorch.lifting import Lifted, graph_of, reduction_of
from tensorsmith.scalar.expression import Expr, topological


class Diagnosed:
    """A lifted function that can say what became of it: call it, then `parallel_diagnostics`."""

    def __init__(self, call: Callable[..., None], kind: str, lifted: Lifted | None) -> None:
        self.call = call
        self.kind = kind
        self.lifted = lifted
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, *arguments: Any) -> None:
        self.shapes = [tuple(map(int, shape)) for shape in arguments[4::3]]
        self.call(*arguments)

    def parallel_diagnostics(self, level: int = 1) -> str:
        """The report on the last call's shapes; level 2 adds the kernel's specification, 3 its loops, 4 its LLVM text.

        Raises RuntimeError before the first call.
        """
        if not self.shapes:
            raise RuntimeError(f"parallel_diagnostics: call the {self.kind} first; kernels are made for what they are given")
        return diagnose(self.kind, self.lifted, self.shapes, level)


def diagnose(kind: str, lifted: Lifted | None, shapes: Sequence[tuple[int, ...]], level: int = 1) -> str:
    """The report on one lifted function for operands of these shapes."""
    of = f" of {lifted.name}" if lifted is not None else ""
    lines = [f"{kind}{of} over {' and '.join(map(str, shapes))}"]
    graph, note = _graph(kind, lifted, shapes)
    lines += [f"  {note}"] if note else []
    places: list[Strided | None] = [Strided(n.shape, contiguous_strides(n.shape)) for n in graph.inputs]
    steps = explain_steps(graph, places)
    if not steps:
        return "\n".join([*lines, "  nothing to run: the result is the operand itself"])
    for number, step in enumerate(steps, 1):
        lines.append(f"  kernel {number} of {len(steps)}: {step.title}")
        lines += [f"    {line}" for line in _facts(step, lifted)]
        for least, text in ((2, step.spec), (3, step.loops), (4, step.llvm)):
            if level >= least and text is not None:
                lines += [f"      {line}" for line in str(text).rstrip().split("\n")]
    return "\n".join(lines)


def _graph(kind: str, lifted: Lifted | None, shapes: Sequence[tuple[int, ...]]) -> tuple[Graph, str]:
    """The graph of the call, and a sentence where it stands for more than one."""
    if lifted is None:
        graph = Graph()
        a, b = (graph.input(shape, float64) for shape in shapes[:2])
        graph.outputs = (matmul(a, b),)
        return graph, ""
    if kind != "reduce":
        return graph_of(lifted, shapes), ""
    shape = shapes[0]
    name = reduction_of(lifted)
    if name is None:
        step = (1, *shape[1:])
        return graph_of(lifted, [step, step]), (
            f"{lifted.name} is none of the engine's reductions: folded in {shape[0]} steps of this kernel (along dimension 0)"
        )
    graph = Graph()
    graph.outputs = (_reduced(graph.input(shape, float64), name),)
    return graph, f"recognised as the engine's {name} (shown along dimension 0)"


def _reduced(node: Node, name: str) -> Node:
    return reduce(node, {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}[name], (0,))


def _facts(step: ExplainedStep, lifted: Lifted | None) -> list[str]:
    """Vectorised, parallel, fused, hoisted: a line each."""
    llvm = step.llvm or ""
    lanes = max((int(n) for n in re.findall(r"<(\d+) x double>", llvm)), default=0)
    facts = [f"vectorised: {lanes} numbers an instruction" if lanes else "vectorised: no, the step is a library call"]
    found = re.search(r"(\d+) chunks?", step.title)
    chunks = int(found.group(1)) if found else 1
    if chunks > 1:
        facts.append(f"parallel: {chunks} chunks, taken by as many threads as there are (the split never depends on them)")
    else:
        facts.append("parallel: no, the work is one chunk: less than a second thread would cost to wake")
    if lifted is not None:
        applied = [node for node in topological(lifted.expression) if node.fn is not None]
        facts.append(
            f"fused: {len(applied)} functions in one pass over memory" if len(applied) > 1 else "fused: nothing to fuse"
        )
        facts.append(f"hoisted: {_hoisted(applied)}")
    return facts


def _hoisted(applied: Sequence[Expr]) -> str:
    """Constants of an expression: they are kept in registers outside the loop."""
    constants = {float(arg.value) for node in applied for arg in node.args if arg.value is not None}
    if not constants:
        return "nothing, every value changes from element to element"
    return "the constants " + ", ".join(str(c) for c in sorted(constants)) + ", once before the loop"


def report(size: int = 1 << 20) -> str:
    """The report on a map, a zip, a reduce and a matrix product of ordinary size."""
    from tensorsmith.minitorch import operators

    side = 256
    return "\n\n".join(
        (
            diagnose("map", Lifted(operators.sigmoid, 1), [(size,)], 3),
            diagnose("zip", Lifted(operators.relu_back, 2), [(size,), (size,)], 3),
            diagnose("reduce", Lifted(operators.add, 2), [(side, side)], 3),
            diagnose("matrix multiply", None, [(side, side), (side, side)], 3),
        )
    )
