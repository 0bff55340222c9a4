"""A graph as Python source in terms of the builders: what one reads, and what one can run to get the graph back.

For people at a prompt, and for the tests, which compare graphs by this text. Nothing that executes calls it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.scalar.table import TABLE, Fn, Typing

OPERATORS: dict[Fn, str] = {Fn.ADD: "+", Fn.SUB: "-", Fn.MUL: "*", Fn.DIV: "/", Fn.POW: "**"}
COMPARISONS: dict[Fn, str] = {Fn.LT: "<", Fn.LE: "<=", Fn.GT: ">", Fn.GE: ">=", Fn.EQ: "==", Fn.NE: "!="}
LOGICAL = frozenset({Fn.LOGICAL_AND, Fn.LOGICAL_OR, Fn.LOGICAL_XOR, Fn.LOGICAL_NOT})


def as_python(graph: Graph, name: str) -> str:
    """Source of a function `name(graph, x0, x1, ...)` that builds this graph's nodes and returns the tuple of outputs.

    x0, x1, ... are nodes of the shapes and dtypes of the inputs, which the docstring lists.
    """
    names = {node: f"v{node.index}" for node in graph.nodes}
    names |= {node: f"x{number}" for number, node in enumerate(graph.inputs)}
    needed = set(graph.outputs)
    lines = []
    for node in reversed(graph.live_nodes()):  # backwards, so that constants written as numbers get no line
        if node.op is not Primitive.INPUT and node in needed:
            written = _numbers(node)
            needed.update(operand for operand in node.inputs if operand not in written)
            lines.append(f"    {names[node]} = {_expression(node, names | written)}\n")
    arguments = "".join(f", {names[node]}" for node in graph.inputs)
    described = ", ".join(f"{names[node]} {node.dtype.name}{list(node.shape)}" for node in graph.inputs)
    outputs = "".join(f"{names[node]}, " for node in graph.outputs).rstrip()
    header = f'def {name}(graph{arguments}):\n    """{described or "no inputs"}"""\n'
    body = "".join(reversed(lines)) + f"    return ({outputs})\n"
    return _imports(body) + header + body


def _numbers(node: Node) -> dict[Node, str]:
    """The operands of a pointwise node that are written as numbers.

    Constants, where promotion gives them back their dtype: beside a node that has it and is no run-time scalar.
    """
    if node.op is not Primitive.MAP:
        return {}
    operands = node.inputs[1:] if TABLE[node.attrs["fn"]].typing is Typing.SELECT else node.inputs
    constants = {operand: _number(operand) for operand in operands}
    written = {operand: text for operand, text in constants.items() if text is not None}
    anchored = any(x not in written and not (x.op is Primitive.INPUT and x.attrs["param"]) for x in operands)
    return written if anchored else {}


def _number(node: Node) -> str | None:
    """The text of a constant, or of one spread as `broadcast_to` spreads it; None for any other node."""
    if node.op is Primitive.EXPAND:
        node = node.inputs[0]
    if node.op is Primitive.RESHAPE:
        if any(extent != 1 for extent in node.shape):
            return None
        node = node.inputs[0]
    return _text(node.attrs["value"]) if node.op is Primitive.CONST and not node.dtype.is_complex else None


def _expression(node: Node, names: dict[Node, str]) -> str:
    """The right side of the node's line."""
    operands = [names[operand] for operand in node.inputs]
    if node.op is Primitive.CONST:
        return f"graph.constant({_text(node.attrs['value'])}, {_text(node.dtype)})"
    if node.op is Primitive.IOTA:
        return f"graph.iota({node.attrs['extent']})"
    builder = BUILDERS.get(node.op)
    text = builder(node, operands) if builder is not None else None
    if text is not None:
        return text
    attrs = "".join(f", {key}={_text(value)}" for key, value in node.attrs.items())
    return f"graph.add(Primitive.{node.op.name}, [{', '.join(operands)}]{attrs})"


def _map(node: Node, operands: list[str]) -> str | None:
    fn = node.attrs["fn"]
    kinds = "b" if fn in LOGICAL else "fc" if TABLE[fn].typing is Typing.FLOAT else "buifc"
    if node.inputs[0].dtype.kind not in kinds:
        return None  # the builder would cast
    if fn is Fn.NEG:
        return f"-{operands[0]}"
    if fn in OPERATORS:
        return f"{operands[0]} {OPERATORS[fn]} {operands[1]}"
    if fn in COMPARISONS and operands[0].isidentifier():  # Python turns `0 < x` into `x > 0`
        return f"{operands[0]} {COMPARISONS[fn]} {operands[1]}"
    return f"f.{fn.value}({', '.join(operands)})"


def _text(value: Any) -> str:
    if isinstance(value, DType):
        return "bool_" if value.name == "bool" else value.name
    if isinstance(value, (Fn, Primitive)):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, complex):
        return f"complex({_text(value.real)}, {_text(value.imag)})"
    if isinstance(value, float):
        if math.isnan(value):
            return "math.nan"
        if math.isinf(value):
            return "math.inf" if value > 0 else "-math.inf"
        return f"({value!r})" if str(value).startswith("-") else repr(value)
    return f"({value!r})" if type(value) is int and value < 0 else repr(value)


def _reshape(node: Node, operands: list[str]) -> str | None:
    x = node.inputs[0]
    return None if x.op is Primitive.RESHAPE or x.shape == node.shape else f"reshape({operands[0]}, {node.shape})"


def _permute(node: Node, operands: list[str]) -> str | None:
    axes = tuple(node.attrs["axes"])
    if node.inputs[0].op is Primitive.PERMUTE or axes == tuple(range(node.ndim)):
        return None
    return f"permute({operands[0]}, {axes})"


def _expand(node: Node, operands: list[str]) -> str | None:
    return None if node.shape == node.inputs[0].shape else f"broadcast_to({operands[0]}, {node.shape})"


def _slice(node: Node, operands: list[str]) -> str | None:
    axis, start, length, step = (node.attrs[key] for key in ("axis", "start", "length", "step"))
    if start == 0 and length == node.inputs[0].shape[axis] and step == 1:
        return None
    return f"slice_({operands[0]}, axis={axis}, start={start}, length={length}, step={step})"


def _flip(node: Node, operands: list[str]) -> str | None:
    axes = tuple(node.attrs["axes"])
    return f"flip({operands[0]}, {axes})" if axes and list(axes) == sorted(axes) else None


def _pad(node: Node, operands: list[str]) -> str | None:
    low, high, step = (tuple(node.attrs[key]) for key in ("low", "high", "step"))
    if not any(low) and not any(high) and all(s == 1 for s in step):
        return None
    value = node.attrs.get("value", 0)
    around = f", value={_text(value)}" if value else ""
    return f"pad({operands[0]}, low={low}, high={high}, step={step}{around})"


def _concat(node: Node, operands: list[str]) -> str | None:
    return f"concat([{', '.join(operands)}], {node.attrs['axis']})" if len(operands) > 1 else None


def _cast(node: Node, operands: list[str]) -> str | None:
    x = node.inputs[0]
    plain = x.op is not Primitive.CONST and x.dtype is not node.dtype
    return f"cast({operands[0]}, {_text(node.dtype)})" if plain else None


BUILDERS: dict[Primitive, Callable[[Node, list[str]], str | None]] = {
    Primitive.MAP: _map,
    Primitive.RESHAPE: _reshape,
    Primitive.PERMUTE: _permute,
    Primitive.EXPAND: _expand,
    Primitive.SLICE: _slice,
    Primitive.FLIP: _flip,
    Primitive.PAD: _pad,
    Primitive.CONCAT: _concat,
    Primitive.CAST: _cast,
    Primitive.REDUCE: lambda node, x: f'reduce({x[0]}, "{node.attrs["kind"]}", ({node.attrs["axis"]},), keepdim=True)',
    Primitive.MATMUL: lambda node, x: f"matmul({x[0]}, {x[1]})",
}

BUILDER_NAMES = frozenset(
    {"broadcast_to", "cast", "concat", "flip", "matmul", "pad", "permute", "reduce", "reshape", "slice_"}
)


def _imports(source: str) -> str:
    """The import lines the source needs, by the words in it."""
    words = set(re.findall(r"\w+", source))
    lines = ["import math"] if "math" in words else []
    if used := sorted(word for word in words if isinstance(getattr(dtypes, word, None), DType)):
        lines.append(f"from tensorsmith.core.dtypes import {', '.join(used)}")
    if used := sorted(words & BUILDER_NAMES):
        lines.append(f"from tensorsmith.ir.build import {', '.join(used)}")
    if "Primitive" in words:
        lines.append("from tensorsmith.ir.graph import Primitive")
    if "f" in words:
        lines.append("from tensorsmith.scalar import functions as f")
    if "Fn" in words:
        lines.append("from tensorsmith.scalar.table import Fn")
    return "\n".join(lines) + "\n\n\n" if lines else ""
