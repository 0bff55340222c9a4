"""`ts.explain(function, *args)`: one computation at every level, from the scalar expression to machine-near text.

    scalar    the expression and its derivatives          (where the computation is a function of single numbers)
    graph     the IR graph, and the graph of its gradient
    passes    which rewrites fired, and what was made fit for kernels
    fusion    which values each kernel computes, and why the others have memory of their own
    kernel    the steps of the plan: what was fused, as KernelSpec, or the anchor that stands alone
    loops     the loop structure of each kernel
    llvm      the LLVM text of each kernel
    cuda      the CUDA C++ text of each kernel (no GPU needed)
    time      every step run and timed: GB/s, GFLOP/s, and how near it is to this machine's roof

`mlir()` is the graph in MLIR's textual form, `html(path)` a page with the graph drawn. With `TENSORSMITH_DEBUG=1` to `5` a
program says what became of it when it is compiled (`announce`).

What is shown is what runs: the same program, gradient rule, fusion and kernels that eager execution and `ts.compile`
use.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorsmith.compile.explained import ExplainedPlan, ExplainedStep, explained_plan, prepared
from tensorsmith.compile.mlir import mlir
from tensorsmith.compile.nest import flatten
from tensorsmith.compile.page import page
from tensorsmith.compile.source_lines import Line, carried, users_line
from tensorsmith.compile.specialisation import Specialisation, specialise
from tensorsmith.compile.timed import TimedStep, table, timed_steps
from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType, float32
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.eager.operator import Operation, Program
from tensorsmith.ir.build import full
from tensorsmith.ir.graph import Graph, Node
from tensorsmith.ir.vjp import BackwardGraph, vjp
from tensorsmith.ops.elementwise import Elementwise
from tensorsmith.passes.manager import off, optimise
from tensorsmith.runtime.roof import Roof
from tensorsmith.scalar.expression import Expr, arity, derivative, evaluate, input_name, to_text
from tensorsmith.scalar.lift import lift
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

LEVELS = ("scalar", "graph", "passes", "fusion", "kernel", "loops", "llvm", "cuda", "time")
DEFAULT_LEVELS = LEVELS[:-2]
DEBUG_LEVELS = (("passes", "fusion"), ("graph",), ("kernel", "loops"), ("llvm",))  # what TENSORSMITH_DEBUG=2, 3, 4, 5 add
MOST_TITLED = 8  # operands that a title names
DEFAULT_POINTS = 1 << 20  # elements that an elementwise function is explained over, where no arguments say it


@dataclass
class Explanation:
    """A computation seen at every level; `str` is all of it but CUDA and times, `text(levels)` chooses.

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
    traced: bool = False  # a function that `ts.compile` would simplify first; not the program of one operator
    lines: dict[Node, Line] = field(default_factory=dict)  # of the program, for values of `forward`
    operands: list[Any] | None = None  # what it was called with, for the times
    left_out: frozenset[str] = field(default_factory=off)  # passes that do not run
    device: Device = CPU  # that its plans are for

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

    def passes(self) -> str:
        """The rewrites that fired on the traced graph, and what the planner's own passes changed."""
        graph, said = self.optimised
        return "\n".join([said, *prepared(graph)])

    def fusion(self) -> str:
        """The groups that became kernels, and why values between them lie in memory."""
        return self._parts(lambda plan: plan.text())

    def time(self) -> str:
        """Every step, run and timed, beside the machine's roof (`runtime/roof.py`)."""
        return self._parts(lambda plan: table(self.times(plan), self._roof()) if plan.plan.steps else "nothing to run")

    def times(self, plan: ExplainedPlan | None = None) -> list[TimedStep]:
        """The steps of the forward plan (or the gradient's) with the medians of their times."""
        if plan is None or plan is self.forward_plan:
            return timed_steps(self.forward_plan.plan, self.optimised[0], self.inputs, self.operands)
        assert self.backward is not None
        return timed_steps(plan.plan, self.backward.graph, self._backward_places, None)

    def _roof(self) -> Roof | None:
        """The roof of the device; the CPU's is looked up where it is compared with."""
        if self.device is CPU:
            return None
        from tensorsmith.runtime.device_roof import device_roof

        return device_roof(self.device)

    def mlir(self) -> str:
        """The graph in MLIR's generic form (`compile/mlir.py`)."""
        return mlir(self.forward, self.names)

    def html(self, path: str | os.PathLike[str], levels: Iterable[str] = DEFAULT_LEVELS) -> None:
        """Write one self-contained page with the graph drawn, kernels coloured, and the levels as text."""
        lines = carried(self.lines, self.forward, self.forward_plan.plan.graph)
        texts = {level: getattr(self, level)() for level in _checked(levels)}
        Path(path).write_text(page(self.title, self.forward_plan, lines, self.names, texts), encoding="utf-8")

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
        for level in _checked(levels):
            parts += ["", f"=== {level} " + "=" * (72 - len(level)), getattr(self, level)()]
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    # --- steps ------------------------------------------------------------------------------------------------------

    @cached_property
    def optimised(self) -> tuple[Graph, str]:
        """The graph that is planned, and the passes that made it."""
        if not self.traced:
            return self.forward, "an operator's own program is left as it is"
        graph, report = optimise(self.forward, self.left_out)
        return graph, str(report)

    @cached_property
    def forward_plan(self) -> ExplainedPlan:
        """The plan of the computation."""
        return explained_plan(self.optimised[0], self.inputs, self.left_out, self.device)

    @cached_property
    def _backward_places(self) -> list[Strided | None]:
        assert self.backward is not None
        places: list[Strided | None] = []
        for node, saved in zip(self.backward.graph.inputs, self.backward.saved):
            places.append(self.inputs[saved.number] if saved.kind == "input" else _contiguous(node))
        return places + [_contiguous(node) for node in self.backward.graph.inputs[len(self.backward.saved) :]]

    @cached_property
    def backward_plan(self) -> ExplainedPlan | None:
        """The plan of the gradient; None where there is none."""
        if self.backward is None:
            return None
        return explained_plan(self.backward.graph, self._backward_places, device=self.device)

    @property
    def forward_steps(self) -> list[ExplainedStep]:
        """The steps of the forward plan."""
        return self.forward_plan.steps

    @property
    def backward_steps(self) -> list[ExplainedStep]:
        """The steps of the gradient's plan; empty where there is no gradient."""
        return self.backward_plan.steps if self.backward_plan is not None else []

    def _parts(self, show: Callable[[ExplainedPlan], str]) -> str:
        parts = [("forward", self.forward_plan), ("gradient", self.backward_plan)]
        return "\n\n".join(f"{name}:\n{show(plan)}" for name, plan in parts if plan is not None)

    def _steps(self, show: Callable[[ExplainedStep], str]) -> str:
        """Every step with its text; a text that was shown before is referred to."""
        lines: list[str] = []
        before: dict[str, str] = {}
        for part, steps in (("forward", self.forward_steps), ("gradient", self.backward_steps)):
            if part == "gradient" and self.backward is None:
                continue
            if not steps:
                lines += [f"{part}: nothing to run, the results are views", ""]
            for number, step in enumerate(steps, 1):
                shown = show(step)
                if shown.count("\n") > 1:
                    first = before.setdefault(shown, f"{part}, step {number}")
                    shown = shown if first == f"{part}, step {number}" else f"(the same as of {first})"
                lines += [f"{part}, step {number} of {len(steps)}: {step.title}", *([shown] if shown else []), ""]
        return "\n".join(lines).rstrip()


def _checked(levels: Iterable[str]) -> list[str]:
    found = list(levels)
    for level in found:
        if level not in LEVELS:
            raise ValueError(f"explain: there is no level {level!r}; levels are {', '.join(LEVELS)}")
    return found


def announce(
    name: str, graph: Graph, inputs: list[Strided | None], left_out: frozenset[str], device: Device = CPU
) -> None:
    """Say on stderr what became of a program, as much as TENSORSMITH_DEBUG asks for: 1 one line, up to 5 its LLVM text too."""
    asked = os.environ.get("TENSORSMITH_DEBUG", "")
    level = int(asked) if asked.isdecimal() else 0
    if not level:
        return
    names = tuple(f"input {number}" for number in range(len(graph.inputs)))
    title = _titled(name, names, graph.inputs)
    found = Explanation(title, names, graph, inputs, None, traced=True, left_out=left_out, device=device)
    steps = found.forward_steps
    said = f"tensorsmith: compiled {name}: {len(graph.live_nodes())} values, {len(steps)} steps"
    levels = [each for group in DEBUG_LEVELS[: level - 1] for each in group]
    print(found.text(levels).replace(title, said, 1) if levels else said, file=sys.stderr)


def _value_last(line: str) -> str:
    """Text of an expression with named parts, as indented lines below its head."""
    if "\n" not in line:
        return line
    head, _, rest = line.partition(" = ")
    return f"{head}:\n" + "\n".join("  " + part for part in rest.split("\n"))


def _contiguous(node: Node) -> Strided | None:
    return None if node.attrs.get("param") else Strided(node.shape, contiguous_strides(node.shape))


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
    traced = specialise(name, listener, tensors, nest)
    graph = traced.tracer.graph
    places: list[Strided | None] = []
    names: list[str] = []
    given = _argument_names(function, args, len(tensors))
    captured = _captured_names(function)
    for number, source in enumerate(traced.tracer.sources):
        layout = source.layout
        places.append(Strided(layout.shape, layout.strides) if layout is not None else None)
        if source.argument >= 0:
            names.append(given[source.argument])
        else:
            names.append(
                captured.get(id(source.tensor), f"captured {number}") if source.tensor is not None else f"host number {number}"
            )
    rule = None
    program = listener.alone()
    if program is not None and not traced.updates and _same_inputs(program.graph, graph):
        graph = program.graph  # one operator: its own program and gradient rule
        rule = program.operation.override(program.attrs)
    why = _without_gradient(traced)
    backward, why = (None, why) if why else _gradient(graph, rule)
    expression = function.expression if isinstance(function, Elementwise) else None
    variables = tuple(names[: arity(expression)]) if expression is not None else ()
    title = _titled(name, names, graph.inputs)
    operands = [
        source.tensor if source.tensor is not None else source.ask() if source.ask is not None else tensors[source.argument]
        for source in traced.tracer.sources
    ]
    alone = graph is not traced.tracer.graph
    lines = {} if alone else listener.lines
    return Explanation(
        title, tuple(names), graph, places, backward, why, expression, variables, not alone, lines, operands,
        device=traced.tracer.device or CPU,
    )  # fmt: skip


def _without_gradient(traced: Specialisation) -> str:
    """Why a function is not differentiated; "" where it is, or where nothing says that it is for gradients at all."""
    if traced.grads or traced.updates:
        return "the function changes state: what it does about gradients is part of it"
    if any(source.tracked for source in traced.tracer.sources) and not any(traced.tracked):
        return "no result requires a gradient"
    return ""


class _Listener:
    """A function that notes which operators are called while it is traced."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.programs: list[Program] = []
        self.others = 0
        self.lines: dict[Node, Line] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tracer = modes.tracer
        call, call_inplace, graph = tracer.call, tracer.call_inplace, tracer.graph

        def noted(run: Callable[..., Any], *given: Any) -> Any:
            line, before = users_line(), len(graph.nodes)
            result = run(*given)
            if line is not None:
                self.lines.update((node, line) for node in graph.nodes[before:])
            return result

        def heard(operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
            if all(isinstance(x, Tensor) for x in operands):
                self.programs.append(operation.program(tracer.kinds(operands), attrs))
            else:
                self.others += 1
            return noted(call, operation, operands, attrs)

        def heard_inplace(operation: Any, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
            self.others += 1
            return noted(call_inplace, operation, operands, attrs)

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


def _captured_names(function: Callable[..., Any]) -> dict[int, str]:
    """Names for the tensors that a function captures, by identity: variables, parameters of modules, states of optimisers."""
    owner = getattr(function, "__self__", None)
    variables = {} if owner is None else {"self": owner}
    try:
        found = inspect.getclosurevars(inspect.unwrap(getattr(function, "__func__", function)))
        variables |= {**found.globals, **found.nonlocals}
    except TypeError:  # no Python function: a module, an operator
        variables["self"] = function
    names: dict[int, str] = {}
    for name, value in variables.items():
        prefix = "" if name == "self" else f"{name}."
        if isinstance(value, Tensor):
            names.setdefault(id(value), name)
        for kind in ("named_parameters", "named_buffers"):
            if callable(listed := getattr(value, kind, None)) and not isinstance(value, type):
                names.update((id(tensor), f"{prefix}{path}") for path, tensor in listed())
    for name, value in variables.items():
        states = getattr(value, "state", None)
        for owner, state in states.items() if isinstance(states, dict) else ():
            if isinstance(state, dict):
                of = names.get(id(owner), "a parameter")
                names.update((id(t), f"{name}: {key} of {of}") for key, t in state.items() if isinstance(t, Tensor))
    return names


def _titled(text: str, names: Sequence[str], nodes: Sequence[Node]) -> str:
    """A title with the first operands; what the others are is in the graph."""
    shown = [f"{name}: {node.dtype.name}{list(node.shape)}" for name, node in zip(names, nodes)]
    if len(shown) > MOST_TITLED:
        shown[MOST_TITLED - 1 :] = [f"and {len(shown) - MOST_TITLED + 1} more"]
    return f"{text}   with   {', '.join(shown)}"


__all__ = ["DEFAULT_LEVELS", "LEVELS", "Explanation", "announce", "explain", "explain_expression"]
