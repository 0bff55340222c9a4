"""`ts.explain(function, *args)`: one computation at every level, from the scalar expression to machine-near text.

    scalar    the expression and its derivatives          (where the computation is a function of single numbers)
    graph     the IR graph, and the graph of its gradient
    kernel    the steps of the plan: what was fused, as KernelSpec, or the anchor that stands alone
    loops     the loop structure of each kernel
    llvm      the LLVM text of each kernel
    cuda      the CUDA C++ text of each kernel (no GPU needed)

What is shown is what runs: the same program, gradient rule, fusion and kernels that eager execution and `ts.compile`
use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tensorsmith.compile.compiled import Specialisation, flatten
from tensorsmith.core.dtypes import DType, float32
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.eager.operator import Operation, Program
from tensorsmith.ir.build import full
from tensorsmith.ir.graph import Graph, Node
from tensorsmith.ir.vjp import BackwardGraph, vjp
from tensorsmith.kernels.spec import KernelSpec
from tensorsmith.ops.elementwise import Elementwise
from tensorsmith.passes.fusion import fuse
from tensorsmith.runtime.plan import build_plan, requests_of
from tensorsmith.runtime.steps import KernelStep, Request
from tensorsmith.scalar.expression import Expr, arity, derivative, evaluate, input_name, to_text
from tensorsmith.scalar.lift import lift
from tensorsmith.targets.cpu.scalars import LIBRARY_CALLS
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

LEVELS = ("scalar", "graph", "kernel", "loops", "llvm", "cuda")
DEFAULT_LEVELS = LEVELS[:-1]
DEFAULT_POINTS = 1 << 20  # elements that an elementwise function is explained over, where no arguments say it


@dataclass(frozen=True)
class ExplainedStep:
    """One step of a plan. spec, loops and llvm are None where the step has none (a library call, a matrix product).

    nodes: what an anchor computes, as nodes of the graph
    """

    title: str
    nodes: str
    spec: KernelSpec | None
    loops: str | None
    llvm: str | None

    @property
    def cuda(self) -> str:
        """The CUDA C++ text, or why there is none."""
        if self.spec is None:
            return "(only fused kernels have a CUDA rendering so far)"
        from tensorsmith.targets.cuda.render import render

        try:
            return render(self.spec).source.rstrip()
        except NotImplementedError as missing:
            return f"(no CUDA rendering: {missing})"


@dataclass
class Explanation:
    """A computation seen at every level; `str` is all of it but CUDA, `text(levels)` chooses.

    names: of the inputs of `forward`; inputs: where they lie (None for run-time scalars)
    expression: the scalar expression, where the computation is elementwise; backward: None where nothing has a gradient
    """

    title: str
    names: tuple[str, ...]
    forward: Graph
    inputs: list[Strided | None]
    backward: BackwardGraph | None
    no_gradient: str = ""
    expression: Expr | None = None
    variables: tuple[str, ...] = field(default=())

    # --- levels -----------------------------------------------------------------------------------------------------

    def scalar(self) -> str:
        """The scalar expression, its derivative in every input, and the second derivatives."""
        if self.expression is None:
            return "(not a function of single numbers: it mixes elements of its operands, see the graph)"

        def name(index: int) -> str:
            return self.variables[index] if index < len(self.variables) else input_name(index)

        lines = ["f = " + to_text(self.expression, name)]
        for i, variable in enumerate(self.variables):
            first = derivative(self.expression, i)
            lines += ["", f"df/d{variable} = " + to_text(first, name)]
            for j in range(i, len(self.variables)):
                second = to_text(derivative(first, j), name)
                under = f"d{variable}2" if i == j else f"d{variable} d{self.variables[j]}"
                lines += ["", f"d2f/{under} = {second}"]
        return "\n".join(_value_last(line) for line in lines)

    def graph(self) -> str:
        """The IR graph and the graph of its gradient."""
        lines = [f"{' '.join(f'%{n.index} is {name}' for n, name in zip(self.forward.inputs, self.names))}".strip()]
        lines += [str(self.forward), "", "gradient:"]
        if self.backward is None:
            return "\n".join([*lines, f"({self.no_gradient or 'no input has a gradient'})"])
        saved = [(s.kind, self.names[s.number] if s.kind == "input" else s.number) for s in self.backward.saved]
        given = [f"saved {kind} {which}" for kind, which in saved]
        given += [f"the gradient of output {i}" for i in self.backward.grad_outputs]
        lines.append(", ".join(f"%{n.index} is {what}" for n, what in zip(self.backward.graph.inputs, given)))
        lines.append(str(self.backward.graph))
        for name, result in zip(self.names, self.backward.results):
            if result is not None:
                lines.append(f"gradient of {name}: %{self.backward.graph.outputs[result].index}")
        return "\n".join(lines)

    def kernel(self) -> str:
        """What was fused: every step with its KernelSpec."""
        return self._steps(lambda step: str(step.spec) if step.spec is not None else step.nodes)

    def loops(self) -> str:
        """The loop structure of every kernel."""
        return self._steps(lambda step: step.loops or "(a library call has no loops of ours)")

    def llvm(self) -> str:
        """The LLVM text of every kernel."""
        return self._steps(lambda step: (step.llvm or "(a library call has no LLVM text)").rstrip())

    def cuda(self) -> str:
        """The CUDA C++ text of every kernel."""
        return self._steps(lambda step: step.cuda)

    def text(self, levels: Iterable[str] = DEFAULT_LEVELS) -> str:
        """The chosen levels with headings. Raises ValueError for a level that does not exist."""
        parts = [self.title]
        for level in levels:
            if level not in LEVELS:
                raise ValueError(f"explain: there is no level {level!r}; levels are {', '.join(LEVELS)}")
            parts += ["", f"=== {level} " + "=" * (72 - len(level)), getattr(self, level)()]
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    # --- steps ------------------------------------------------------------------------------------------------------

    @cached_property
    def forward_steps(self) -> list[ExplainedStep]:
        """The steps of the forward plan."""
        return explain_steps(self.forward, self.inputs)

    @cached_property
    def backward_steps(self) -> list[ExplainedStep]:
        """The steps of the gradient's plan; empty where there is no gradient."""
        if self.backward is None:
            return []
        places: list[Strided | None] = []
        for node, saved in zip(self.backward.graph.inputs, self.backward.saved):
            places.append(self.inputs[saved.number] if saved.kind == "input" else _contiguous(node))
        places += [_contiguous(node) for node in self.backward.graph.inputs[len(self.backward.saved) :]]
        return explain_steps(self.backward.graph, places)

    def _steps(self, show: Callable[[ExplainedStep], str]) -> str:
        lines: list[str] = []
        for part, steps in (("forward", self.forward_steps), ("gradient", self.backward_steps)):
            if part == "gradient" and self.backward is None:
                continue
            if not steps:
                lines += [f"{part}: nothing to run, the results are views", ""]
            for number, step in enumerate(steps, 1):
                shown = show(step)
                lines += [f"{part}, step {number} of {len(steps)}: {step.title}", *([shown] if shown else []), ""]
        return "\n".join(lines).rstrip()


def _value_last(line: str) -> str:
    """Text of an expression with named parts, as indented lines below its head."""
    if "\n" not in line:
        return line
    head, _, rest = line.partition(" = ")
    return f"{head}:\n" + "\n".join("  " + part for part in rest.split("\n"))


def _contiguous(node: Node) -> Strided | None:
    return None if node.attrs.get("param") else Strided(node.shape, contiguous_strides(node.shape))


def explain_steps(graph: Graph, inputs: Sequence[Strided | None]) -> list[ExplainedStep]:
    """The steps of the plan that runs a graph over inputs that lie as given."""
    plan = build_plan(graph, inputs)
    settled = plan.graph
    placed = {node: seen for node, seen in zip(settled.inputs, plan.places) if seen is not None}
    fusion = fuse(settled, placed, {}, LIBRARY_CALLS)
    steps: list[ExplainedStep] = []
    for group in fusion.groups:
        if all(node.numel == 0 for node in group.roots):
            continue
        anchor = group.anchor
        requests = requests_of(fusion, group)
        nodes = [] if anchor is None else [anchor, *(root for root in group.roots if root is not anchor)]
        steps += [_explained(request, "\n".join(f"  {node!r}" for node in nodes)) for request in requests]
    return steps


def _explained(request: Request, nodes: str) -> ExplainedStep:
    step = request.step([(0, 0)] * len(request.words))
    if not isinstance(step, KernelStep):
        return ExplainedStep(f"{step.name}, by the reference in NumPy", nodes, None, None, None)
    lowered = step.kernel
    schedule = getattr(lowered, "schedule", None) or getattr(lowered, "method", None)
    facts = [
        *([f"schedule {schedule}"] if schedule else []),
        f"{step.recipe.chunks} chunk{'s' if step.recipe.chunks != 1 else ''}",
        f"{step.bytes_moved:,} bytes",
        f"{step.flops:,} operations",
    ]
    spec = request.kernel.spec if request.kernel is not None else None
    loops, llvm = getattr(lowered, "loops", None), getattr(lowered, "text", None)
    return ExplainedStep(f"{step.name} ({', '.join(facts)})", nodes, spec, loops, llvm)


# --------------------------------------------------------------------------------------------------- what is explained


def explain(function: Callable[..., Any] | Operation | Expr, *args: Any, **kwargs: Any) -> Explanation:
    """Every level of a computation; print it, or take one level: `ts.explain(...).llvm()`.

    >>> ts.explain(ts.softmax, x, dim=-1)                    # an operator, or any function of tensors
    >>> ts.explain(lambda x: x * ts.scalar.sigmoid(x))       # without arguments: a function of single numbers

    With tensors the function is traced over their shapes and dtypes, not run. A function of single numbers is explained
    over 2**20 float32 elements. Raises TraceError for what cannot be traced, LiftError for what has no expression.
    """
    if isinstance(function, Expr):
        return explain_expression(function)
    name = getattr(function, "__name__", None) or getattr(function, "name", None) or type(function).__name__
    tensors, nest = flatten((args, kwargs))
    if not tensors:
        if args:
            raise TypeError(f"explain: give {name} tensors, or no arguments at all for a function of single numbers")
        parameters = _parameter_names(function)
        expression = function.expression if isinstance(function, Elementwise) else lift(function)
        return explain_expression(expression, parameters[: max(arity(expression), 1)], title=name)
    return _explain_traced(function, str(name), tensors, nest, args)


def explain_expression(
    expression: Expr,
    variables: Sequence[str] | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
    dtypes: Sequence[DType] | None = None,
    title: str | None = None,
) -> Explanation:
    """Every level of a scalar expression mapped over tensors (1-D float32 ones by default; shapes broadcast)."""
    count = arity(expression)
    if not count:
        raise ValueError(f"explain: {to_text(expression)} has no variable; write an expression of x, such as x * x")
    variables = tuple(variables or (input_name(i) for i in range(count)))
    shapes = shapes or [(DEFAULT_POINTS,)] * count
    dtypes = dtypes or [float32] * count
    graph = Graph()
    nodes = [graph.input(tuple(shape), dtype) for shape, dtype in zip(shapes, dtypes)]
    result = evaluate(expression, nodes)
    if not isinstance(result, Node):
        result = full(graph, nodes[0].shape, result, nodes[0].dtype)
    graph.outputs = (result,)

    def rule(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node | None]:
        # As `ops/elementwise.py` has it: the whole expression is differentiated at once, so that the side not taken of
        # a `where` never leaks a NaN.
        return [grads[0] * evaluate(derivative(expression, i), inputs) for i in range(count)]

    backward, why = _gradient(graph, rule)
    text = title or to_text(expression, lambda i: variables[i])
    return Explanation(
        _titled(text, variables, nodes), tuple(variables), graph, [_contiguous(n) for n in nodes], backward, why,
        expression, tuple(variables),
    )  # fmt: skip


def _gradient(graph: Graph, rule: Any) -> tuple[BackwardGraph | None, str]:
    needs = tuple(node.dtype.is_floating_point and not node.attrs["param"] for node in graph.inputs)
    grads = tuple(node.dtype.is_floating_point for node in graph.outputs)
    if not any(grads):
        return None, "the result is not a floating-point number"
    try:
        backward = vjp(graph, needs, grads, rule)
    except NotImplementedError as missing:
        return None, f"not implemented: {missing}"
    return (backward, "") if backward.graph.outputs else (None, "no input has a gradient")


def _explain_traced(
    function: Callable[..., Any], name: str, tensors: list[Tensor], nest: Any, args: tuple[Any, ...]
) -> Explanation:
    listener = _Listener(function)
    traced = Specialisation(name, listener, tensors, nest)
    graph = traced.tracer.graph
    places: list[Strided | None] = []
    names: list[str] = []
    given = iter(_argument_names(function, args, len(tensors)))
    for number, source in enumerate(traced.tracer.sources):
        layout = source.layout
        places.append(Strided(layout.shape, layout.strides) if layout is not None else None)
        if source.tensor is None and source.ask is None:
            names.append(next(given))
        else:
            names.append(f"captured {number - len(tensors)}" if source.tensor is not None else f"host number {number}")
    rule = None
    program = listener.alone()
    if program is not None and not traced.updates and _same_inputs(program.graph, graph):
        graph = program.graph  # one operator: its own program and gradient rule
        rule = program.operation.override(program.attrs)
    backward, why = _gradient(graph, rule)
    expression = function.expression if isinstance(function, Elementwise) else None
    variables = tuple(names[: arity(expression)]) if expression is not None else ()
    title = _titled(name, names, graph.inputs)
    return Explanation(title, tuple(names), graph, places, backward, why, expression, variables)


class _Listener:
    """A function that notes which operators are called while it is traced."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.programs: list[Program] = []
        self.others = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tracer = modes.tracer
        call, call_inplace = tracer.call, tracer.call_inplace

        def heard(operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
            if all(isinstance(x, Tensor) for x in operands):
                self.programs.append(operation.program(tracer.kinds(operands), attrs))
            else:
                self.others += 1
            return call(operation, operands, attrs)

        def heard_inplace(operation: Any, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
            self.others += 1
            return call_inplace(operation, operands, attrs)

        tracer.call, tracer.call_inplace = heard, heard_inplace
        try:
            return self.function(*args, **kwargs)
        finally:
            tracer.call, tracer.call_inplace = call, call_inplace

    def alone(self) -> Program | None:
        """The program of the only operator that was called."""
        return self.programs[0] if len(self.programs) == 1 and not self.others else None


def _same_inputs(a: Graph, b: Graph) -> bool:
    """Whether an operator's program takes what the traced function takes, in the same order."""
    kinds = [[(n.shape, n.dtype) for n in graph.inputs] for graph in (a, b)]
    return kinds[0] == kinds[1] and str(a) == str(b)


def _parameter_names(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]


def _argument_names(function: Any, args: tuple[Any, ...], count: int) -> list[str]:
    """Names for the tensors among the arguments: those of the parameters where each is a tensor itself."""
    known = _parameter_names(function)
    names = [name for name, value in zip(known, args) if isinstance(value, Tensor)]
    return names if len(names) == count else [f"argument {i}" for i in range(count)]


def _titled(text: str, names: Sequence[str], nodes: Sequence[Node]) -> str:
    operands = ", ".join(f"{name}: {node.dtype.name}{list(node.shape)}" for name, node in zip(names, nodes))
    return f"{text}   with   {operands}"


__all__ = ["LEVELS", "Explanation", "explain", "explain_expression"]
