"""The graph: immutable, interned nodes in pure SSA over a closed set of primitives.

A `Graph` is what one operator, or one compiled function, computes. Nodes are made through `Graph.add`, which infers
shape and dtype by the primitive's rule (`ir/rules.py`) and returns the existing node where the same one was made
before. There is no assignment: an in-place operator is a graph whose output is written over its input by the plan.

Shapes are concrete: kernels compiled from them are not (their extents are run-time arguments), so one kernel serves all
sizes while every graph is easy to read.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tensorsmith.core.dtypes import DType, bool_, complex128, float64, int64
from tensorsmith.scalar.functions import Operators
from tensorsmith.scalar.table import Fn


class Primitive(enum.Enum):
    """Everything a graph is made of. A group shares its lowering; MAP stands for every row of the scalar table."""

    # values without tensor inputs
    INPUT = "input"  # a tensor argument, or with param=True a run-time scalar
    CONST = "const"  # a zero-dim constant: value
    IOTA = "iota"  # int64 0, 1, ..., extent-1: extent
    RANDOM = "random"  # uint32 bits (Philox4x32-10) of key (zero-dim int64 input) at each int64 counter
    # pointwise
    MAP = "map"  # scalar function fn of inputs of equal shape
    CAST = "cast"  # to dtype
    # between complex numbers and pairs of real ones: the same memory under another dtype
    AS_REAL = "as_real"  # complex (...) as real (..., 2)
    AS_COMPLEX = "as_complex"  # real (..., 2) as complex (...)
    # views
    RESHAPE = "reshape"  # shape
    PERMUTE = "permute"  # axes
    EXPAND = "expand"  # extent-1 axes repeated: shape (same rank)
    SLICE = "slice"  # axis, start, length, step >= 1
    FLIP = "flip"  # axes
    DIAGONAL = "diagonal"  # offset, axis1, axis2: the diagonal moves to the last axis
    UNFOLD = "unfold"  # axis, size, step: windows move to a new last axis
    AS_STRIDED = "as_strided"  # shape, strides, offset of a contiguous value
    AGAIN = "again"  # the value as it is, for what is computed again of it and is not what was made before: part
    # composition of buffers
    PAD = "pad"  # zeros (or value) around: low, high (per axis), and between elements: step (per axis)
    CONCAT = "concat"  # inputs joined along axis
    PAIR = "pair"  # two inputs of equal shape side by side on a new last axis: how complex values lie in memory
    # reductions along one axis, which stays with extent 1
    REDUCE = "reduce"  # kind: sum prod max min argmax argmin
    SCAN = "scan"  # kind: sum prod max min logsumexp, argmax argmin (where it was met last), along axis, inclusive
    # contraction
    MATMUL = "matmul"  # (..., M, K) @ (..., K, N) with equal batch axes
    CONV = "conv"  # x (N, C, *S) with w (O, C / groups, *K): stride, low, high, dilation, step, groups (`ir/convolution.py`)
    # with winograd=m in place of w the weights of F(m, 3) (`passes/winograd.py`), in graphs that are planned
    # softmax(q k^T scale + mask) v without its scores, and its gradient: inputs and attributes in `ir/attention.py`
    ATTENTION = "attention"
    ATTENTION_GRADIENT = "attention_gradient"
    # a recurrent layer over all steps of a sequence, and its gradient: `ir/recurrent.py`
    RECURRENT = "recurrent"
    RECURRENT_GRADIENT = "recurrent_gradient"
    # indexing; an index out of range is an error of the run
    TAKE = "take"  # whole slices of x along axis, at a 1-D index
    GATHER = "gather"  # out[..., i, ...] = x[..., index[..., i, ...], ...] along axis
    SCATTER = "scatter"  # base with src written at index along axis (the inverse of GATHER); reduce: set add
    PUT = "put"  # base with slices src written along axis at a 1-D index (the inverse of TAKE); reduce: set add
    # everything else
    LIBRARY = "library"  # a routine by name (`targets/reference/library.py`), by NumPy where there is no kernel

    # Members are singletons: hashing by identity spares a Python call in every table look-up.
    __hash__ = object.__hash__


VIEWS = frozenset(
    {
        Primitive.RESHAPE, Primitive.PERMUTE, Primitive.EXPAND, Primitive.SLICE, Primitive.FLIP, Primitive.DIAGONAL,
        Primitive.UNFOLD, Primitive.AS_STRIDED, Primitive.AGAIN,
    }
)  # fmt: skip


class Node(Operators):
    """One value of a graph. Compare nodes with `is`: `==` builds a comparison, as each operator builds its node."""

    __slots__ = ("graph", "index", "op", "inputs", "attrs", "shape", "dtype", "weak", "key")

    def __init__(
        self, graph: Graph, index: int, op: Primitive, inputs: tuple[Node, ...], attrs: dict[str, Any],
        shape: tuple[int, ...], dtype: DType, key: tuple = (),
    ) -> None:  # fmt: skip
        self.graph = graph
        self.index = index
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.shape = shape
        self.dtype = dtype
        self.key = key  # the attributes as something that can be hashed
        # A run-time scalar, or computed from such and constants alone: it promotes as a Python number does.
        self.weak: bool = bool(attrs["param"]) if op is Primitive.INPUT else _follows_scalars(op, inputs, dtype)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(f"the value of %{self.index} is not known while a graph is built; compare nodes with `is`")

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    takes_complex = True  # Python's complex numbers as operands

    def _apply_(self, fn: Fn, *args: Any) -> Node:
        from tensorsmith.ir.build import map_  # the promotion and broadcasting of operands live with the builders

        return map_(fn, *args)

    def __repr__(self) -> str:
        return f"%{self.index}: {self.dtype.name}{list(self.shape)} = {format_node(self)}"


def _follows_scalars(op: Primitive, inputs: tuple[Node, ...], dtype: DType) -> bool:
    if op is not Primitive.MAP and not (op is Primitive.CAST and dtype in (float64, int64, complex128)):
        return False
    some = False
    for x in inputs:
        if x.weak:
            some = True
        elif x.op is not Primitive.CONST:
            return False
    return some


def constant_key(value: bool | int | float | complex) -> tuple:
    """What makes two constants the same: type and bit pattern (-0.0 is not 0.0, nan is nan)."""
    if isinstance(value, complex):
        return "c", struct.pack("<dd", value.real, value.imag)
    if isinstance(value, float):
        return "f", struct.pack("<d", value)
    return type(value).__name__, value


class Graph:
    """A program in SSA: `inputs`, interned `nodes` in topological order, `outputs`."""

    def __init__(self, interning: bool = True) -> None:
        self.interning = interning  # whether what is computed twice is one node (constants and views always are)
        self.nodes: list[Node] = []
        self.inputs: list[Node] = []
        self.outputs: tuple[Node, ...] = ()
        self._interned: dict[tuple, Node] = {}
        self._live: tuple[int, tuple[Node, ...], list[Node]] | None = None  # the live nodes of so many, for these outputs

    def empty(self) -> Graph:
        """A graph without nodes that interns as this one does."""
        return Graph(self.interning)

    def input(self, shape: Sequence[int], dtype: DType, param: bool = False) -> Node:
        """A new argument: a tensor, or with `param` a run-time scalar (shape () then)."""
        attrs = {"number": len(self.inputs), "param": param}
        node = Node(self, len(self.nodes), Primitive.INPUT, (), attrs, tuple(shape), dtype)
        self.nodes.append(node)
        self.inputs.append(node)
        return node

    def constant(self, value: bool | int | float | complex, dtype: DType) -> Node:
        """A zero-dim constant."""
        if dtype.is_complex:
            value = complex(value)
        elif isinstance(value, complex):
            raise TypeError(f"a constant of {dtype.name} cannot be the complex number {value}")
        elif dtype.kind in "iu":
            value = int(value)
        else:
            value = bool(value) if dtype is bool_ else float(value)
        return self._intern(Primitive.CONST, (), {"value": value}, (), dtype, (constant_key(value), dtype))

    def iota(self, extent: int) -> Node:
        """int64 vector 0, 1, ..., extent - 1."""
        return self._intern(Primitive.IOTA, (), {"extent": extent}, (extent,), int64, (extent,))

    def add(self, op: Primitive, inputs: Iterable[Node], **attrs: Any) -> Node:
        """The node of this primitive, inputs and attributes; shape and dtype by `ir/rules.py`."""
        operands = tuple(inputs)
        for operand in operands:
            if operand.graph is not self:
                raise ValueError(f"{op.value}: operand %{operand.index} belongs to another graph")
        shape, dtype = _rules()[op](operands, attrs)
        key = tuple(attrs.items() if len(attrs) < 2 else sorted(attrs.items(), key=_name))
        return self._intern(op, operands, attrs, shape, dtype, key)

    def _intern(
        self, op: Primitive, inputs: tuple[Node, ...], attrs: dict[str, Any], shape: tuple[int, ...], dtype: DType,
        key: tuple,
    ) -> Node:  # fmt: skip
        full_key = (op, tuple([node.index for node in inputs]), key)
        found = self._interned.get(full_key)
        if found is None:
            found = Node(self, len(self.nodes), op, inputs, attrs, shape, dtype, key)
            self.nodes.append(found)
            if self.interning or op is Primitive.CONST or op is Primitive.IOTA or op in VIEWS:
                self._interned[full_key] = found
        return found

    def with_outputs(self, outputs: Sequence[Node]) -> Graph:
        """The same nodes with other outputs."""
        result = self.empty()
        result.nodes, result.inputs, result._interned = self.nodes, self.inputs, self._interned
        result.outputs = tuple(outputs)
        return result

    def cut_back(self, nodes: int, inputs: int) -> None:
        """Forget what was added after the first so many nodes and inputs."""
        del self.nodes[nodes:], self.inputs[inputs:]
        self._interned = {key: node for key, node in self._interned.items() if node.index < nodes}

    def live_nodes(self) -> list[Node]:
        """Nodes the outputs depend on, in topological order. The list belongs to the graph."""
        known = self._live
        if known is not None and known[0] == len(self.nodes) and known[1] is self.outputs:
            return known[2]
        needed = [False] * len(self.nodes)
        for node in self.outputs:
            needed[node.index] = True
        for node in reversed(self.nodes):
            if needed[node.index]:
                for operand in node.inputs:
                    needed[operand.index] = True
        found = [node for node in self.nodes if needed[node.index]]
        self._live = len(self.nodes), self.outputs, found
        return found

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __str__(self) -> str:
        return format_graph(self)


def _name(item: tuple[str, Any]) -> str:
    return item[0]


@functools.cache
def _rules() -> Any:
    """The shape and dtype rules, which are written on nodes."""
    from tensorsmith.ir.rules import RULES

    return RULES


def copy_into(
    target: Graph, source: Graph, arguments: Sequence[Node], override: Callable[[Node], Node | None] | None = None
) -> dict[Node, Node]:
    """Replay the live nodes of `source` in `target` with its inputs replaced by `arguments`; the map old -> new.

    `override(node)` may supply a node of the target for a node of the source (a saved value, say).
    """
    mapping: dict[Node, Node] = {}
    for node in source.live_nodes():
        replaced = override(node) if override is not None else None
        if replaced is not None:
            mapping[node] = replaced
        elif node.op is Primitive.INPUT:
            mapping[node] = arguments[node.attrs["number"]]
        else:
            mapping[node] = replay(target, node, [mapping[operand] for operand in node.inputs])
    return mapping


def replay(target: Graph, node: Node, operands: Sequence[Node]) -> Node:
    """The node of `target` that does what `node` does, on `operands`."""
    for operand, before in zip(operands, node.inputs, strict=True):
        if operand.graph is not target or operand.dtype is not before.dtype or operand.shape != before.shape:
            return target.add(node.op, operands, **node.attrs)
    return target._intern(node.op, tuple(operands), node.attrs, node.shape, node.dtype, node.key)


def touches_complex(node: Node) -> bool:
    """Whether a node makes complex numbers or is made of some."""
    return node.dtype.is_complex or any(operand.dtype.is_complex for operand in node.inputs)


def rewritten(graph: Graph, rewrite: Callable[[Node, list[Node]], Node | None]) -> Graph:
    """A graph with the same inputs, in which each live node is what `rewrite(node, its new operands)` gives; None keeps it."""
    result = graph.empty()
    mapping = {node: result.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs}
    for node in graph.live_nodes():
        if node.op is Primitive.INPUT:
            continue
        operands = [mapping[operand] for operand in node.inputs]
        found = rewrite(node, operands)
        mapping[node] = replay(result, node, operands) if found is None else found
    result.outputs = tuple(mapping[node] for node in graph.outputs)
    return result


def base_of(node: Node) -> Node:
    """The value under a chain of views."""
    while node.op in VIEWS:
        node = node.inputs[0]
    return node


def format_node(node: Node) -> str:
    """One node as a call, operands by number."""
    args = [f"%{operand.index}" for operand in node.inputs]
    name = node.op.value
    attrs = dict(node.attrs)
    if node.op is Primitive.MAP:
        name = attrs.pop("fn").name.lower()
    if node.op is Primitive.INPUT:
        attrs = {"param": attrs["number"]} if attrs["param"] else {"number": attrs["number"]}
    args += [f"{key}={value.name if isinstance(value, DType) else value!r}" for key, value in attrs.items()]
    return f"{name}({', '.join(args)})"


def format_graph(graph: Graph) -> str:
    """The graph as text, one node a line in topological order."""
    lines = [repr(node) for node in graph.live_nodes()]
    lines.append("return " + ", ".join(f"%{node.index}" for node in graph.outputs))
    return "\n".join(lines)
