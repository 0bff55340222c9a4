"""Operators: what is called eagerly, recorded by autograd and inlined by `compile`.

An `Operator` is a name and a function that builds its graph from nodes. For given operand shapes and dtypes the graph is a
`Program`; a program knows its gradient, which is an operator again (`BackwardOperator`), so that double backward is the
same step twice.

    softmax = Operator("softmax", lambda x, dim: ..., vjp=...)
    y = softmax(x, dim=1)                                           # key -> plan -> launch -> record

Operands are tensors and Python numbers (run-time scalars: their values are not part of any key). Attributes are static.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensorsmith.core.dtypes import DType, complex128, float64, get_default_dtype, of_python_scalar, type_name
from tensorsmith.core.layout import Layout
from tensorsmith.core.memory_format import MemoryFormat
from tensorsmith.core.shapes import is_broadcast_error
from tensorsmith.core.views import Strided
from tensorsmith.eager.devices import without_device
from tensorsmith.ir.build import promote
from tensorsmith.ir.graph import Graph, Node, Primitive, base_of
from tensorsmith.ir.jvp import ForwardGraph, jvp
from tensorsmith.ir.vjp import BackwardGraph, Saved, vjp
from tensorsmith.passes.simplify import simplify

Kind = Layout | type  # what a key holds of an operand: a tensor's layout, or the class of a Python number
Build = Callable[..., Node | Sequence[Node]]
# vjp(inputs, outputs, grads, **attrs) -> gradient or None per input
Override = Callable[..., Sequence[Node | None]]

KeepsFormat = Callable[[Sequence[Layout]], MemoryFormat]

_ALL: dict[str, Operator] = {}


class Program:
    """The graph of an operator for operands of given shapes and dtypes, and its gradients by need."""

    __slots__ = ("operation", "graph", "attrs", "backwards", "forwards", "batches", "name")

    def __init__(self, operation: Any, graph: Graph, attrs: dict[str, Any], name: str) -> None:
        self.operation = operation
        self.graph = graph
        self.attrs = attrs
        self.name = name
        self.backwards: dict[tuple, BackwardOperator] = {}
        self.forwards: dict[tuple, ForwardOperator] = {}
        self.batches: dict[tuple, Any] = {}  # by flags and extent: the same for many examples (`batched.py`)

    def backward(self, needs: tuple[bool, ...], grads: tuple[bool, ...]) -> BackwardOperator:
        """The operator that computes gradients of the inputs in `needs` from those of the outputs in `grads`."""
        found = self.backwards.get((needs, grads))
        if found is None:
            derived = vjp(self.graph, needs, grads, self.operation.override(self.attrs))
            found = BackwardOperator(self, replace(derived, graph=self.simplified(derived.graph)))
            self.backwards[needs, grads] = found
        return found

    def simplified(self, graph: Graph) -> Graph:
        """The graph of a gradient as it is planned."""
        return simplify(graph)

    def forward(self, has_tangent: tuple[bool, ...], from_outputs: bool = True) -> ForwardOperator:
        """The operator that computes tangents of the outputs from those of the inputs in `has_tangent`."""
        found = self.forwards.get((has_tangent, from_outputs))
        if found is None:
            override = None if self.operation.derived_tangent else self.operation.override(self.attrs)
            derived = jvp(self.graph, has_tangent, override, from_outputs)
            found = ForwardOperator(self, replace(derived, graph=simplify(derived.graph)))
            self.forwards[has_tangent, from_outputs] = found
        return found


class Operation:
    """What the dispatcher needs of anything that can be called."""

    name: str
    pointwise = False  # outputs take the operands' memory order
    keeps_format: KeepsFormat | None = None  # which memory format outputs take from the operands
    fresh = False  # outputs never share memory with an operand (a copy is the point)
    gradient_keeps_format = False  # the gradient of the first operand takes that operand's memory format
    orders: Mapping[int, int] = {}  # outputs that take the memory format of an operand, and its number
    derived_tangent = False  # tangents follow the graph, even where the gradient has a rule of its own

    def program(self, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Program:
        """The graph for operands of these kinds."""
        raise NotImplementedError

    def override(self, attrs: dict[str, Any]) -> Any:
        """The operator's own gradient rule, if it has one."""
        return None

    def places(self, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Strided | Sequence[Strided] | None:
        """Where the outputs lie in the memory of the first operand, for an operator that only makes views."""
        return None

    def view_dtype(self, dtype: DType) -> DType:
        """The dtype under which such views show the operand's memory."""
        return dtype

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        """Run on tensors and Python numbers: `dispatch.call`, which is put here when that module is loaded."""
        raise NotImplementedError("operations run once tensorsmith.eager.dispatch is imported")

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


class Operator(Operation):
    """A named operator.

    build(*nodes, **attrs): its graph: one node or a tuple of nodes from the operands' nodes.
    vjp(inputs, outputs, grads, **attrs): its own gradient rule; derived from the graph where absent.
    pointwise: results are laid out as PyTorch lays out elementwise results (the operands' order of axes).
    keeps_format(layouts of tensors): the memory format of results, which then are dense (`core/memory_format.py`).
    geometry(operand, **attrs): of a view operator, where its results lie in the operand's memory: one `Strided`, several, or
        None where the graph is to say it.
        The graph says the same to gradients and tracing; strides of extent-1 axes are PyTorch's only here.
    derived_tangent: the tangent follows the graph; otherwise it is the transpose of `vjp`, where that is given.
    view_dtype(dtype): of a view operator that shows the memory under another dtype (the parts of complex numbers), in whose
        elements its geometry counts.
    gradient_keeps_format: the gradient of the first operand takes the memory format of that operand, where it is saved.
    shares: results may be views of operands, without a geometry of their own; otherwise a result that the graph gives as
        a view of an operand (the sum of a zero-dim tensor) is copied.
    """

    def __init__(
        self, name: str, build: Build, vjp: Override | None = None, *, pointwise: bool = False, fresh: bool = False,
        node_name: str | None = None, geometry: Callable[..., Strided | Sequence[Strided] | None] | None = None,
        shares: bool = False, derived_tangent: bool = False, view_dtype: Callable[[DType], DType] | None = None,
        keeps_format: KeepsFormat | None = None, gradient_keeps_format: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.shares = shares or geometry is not None
        self.geometry = geometry
        if view_dtype is not None:
            self.view_dtype = view_dtype  # type: ignore[method-assign, assignment]
        self.build = build
        self.vjp = vjp
        self.pointwise = pointwise
        self.fresh = fresh
        self.keeps_format = keeps_format
        self.derived_tangent = derived_tangent
        self.gradient_keeps_format = gradient_keeps_format
        self.node_name = (node_name or "".join(part.capitalize() for part in name.split("_"))) + "Backward0"
        self.refuses = ""  # kinds of dtype it is not for: `ops/refused_dtypes.py`
        self._programs: dict[tuple, Program] = {}
        _ALL[name] = self

    def program(self, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Program:
        attrs = without_device(attrs)
        key = program_key(kinds, attrs)
        found = self._programs.get(key)
        if found is None:
            graph = Graph()
            nodes = [_argument(graph, kind) for kind in kinds]
            if self.refuses:
                self._check_dtype(nodes)
            try:
                outputs = self.build(*nodes, **attrs) if nodes else self.build(graph, **attrs)
            except RuntimeError as error:
                if is_broadcast_error(error):
                    raise RuntimeError(f"{error} (in {self.name})") from None
                raise
            graph.outputs = (outputs,) if isinstance(outputs, Node) else tuple(outputs)
            if not self.shares:
                graph.outputs = tuple([_copied(node) for node in graph.outputs])
            found = Program(self, graph, attrs, self.node_name)
            if len(self._programs) >= 4096:
                self._programs.clear()
            self._programs[key] = found
        return found

    def _check_dtype(self, nodes: Sequence[Node]) -> None:
        dtype = promote(nodes) if self.pointwise else nodes[0].dtype
        if dtype.kind in self.refuses:
            raise NotImplementedError(
                f"\"{self.name}_cpu\" not implemented for '{type_name(dtype)}'; convert the operands first"
            )

    def places(self, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Strided | Sequence[Strided] | None:
        if self.geometry is None or not isinstance(kinds[0], Layout):
            return None
        return self.geometry(Strided(kinds[0].shape, kinds[0].strides), **attrs)

    def recorded_name(self, attrs: dict[str, Any]) -> str:
        """The name of the node of a call with these attributes."""
        return self.node_name

    def override(self, attrs: dict[str, Any]) -> Any:
        if self.vjp is None:
            return None
        rule = self.vjp
        return lambda inputs, outputs, grads: rule(inputs, outputs, grads, **attrs)


def program_key(kinds: Sequence[Kind], attrs: dict[str, Any]) -> tuple:
    """What a graph depends on: shapes and dtypes, classes of numbers, attributes, the default dtype."""
    return (get_default_dtype(), *((k.shape, k.dtype) if isinstance(k, Layout) else k for k in kinds), *attrs.items())


def _argument(graph: Graph, kind: Kind) -> Node:
    if isinstance(kind, Layout):
        return graph.input(kind.shape, kind.dtype)
    return graph.input((), scalar_dtype(kind), param=True)


def _copied(node: Node) -> Node:
    """The node, or a copy of it where it is no more than a view of an operand."""
    return node.graph.add(Primitive.CAST, (node,), dtype=node.dtype) if base_of(node).op is Primitive.INPUT else node


def scalar_dtype(kind: type) -> DType:
    """dtype in which a run-time scalar is handed over: a Python float is a double, whatever dtype it promotes to.

    A complex number is two doubles.
    """
    return float64 if kind is float else complex128 if kind is complex else of_python_scalar(kind(0))


class BackwardOperator(Operation):
    """The gradient of a program; operands are the saved values and then the gradients that exist."""

    def __init__(self, forward: Program, backward: BackwardGraph) -> None:
        self.name = forward.operation.name + "_backward"
        self.backward = backward
        self.saved = backward.saved
        self.results = backward.results
        self.grad_outputs = backward.grad_outputs
        self.computes = bool(backward.graph.outputs)
        first = Saved("input", 0)
        if forward.operation.gradient_keeps_format and backward.results[0] is not None and first in backward.saved:
            self.orders = {backward.results[0]: backward.saved.index(first)}
        self._program = Program(self, backward.graph, {}, forward.name + "Backward")

    def program(self, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Program:
        return self._program


class ForwardOperator(Operation):
    """The tangents of a program; operands are the saved values and then the tangents that are used."""

    def __init__(self, primal: Program, forward: ForwardGraph) -> None:
        self.name = primal.operation.name + "_tangent"
        self.pointwise = primal.operation.pointwise
        self.forward = forward
        self.saved = forward.saved
        self.tangents = forward.tangents
        self.results = forward.results
        self.computes = bool(forward.graph.outputs)
        # Never a view of what is given: a dual that is written in place writes its tangent in place.
        forward.graph.outputs = tuple([_copied(node) for node in forward.graph.outputs])
        self._program = Program(self, forward.graph, {}, self.name.capitalize() + "Backward0")

    def program(self, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Program:
        return self._program


def operators() -> dict[str, Operator]:
    """Every named operator."""
    return dict(_ALL)
