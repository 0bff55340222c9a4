"""A graph in MLIR's generic textual form: `builtin.module`, one `func.func`, one operation a line.

Operations that mean exactly what StableHLO's of the same name mean are written as those; the others are of the dialect
`tensorsmith`, with this graph's attributes, and `tensorsmith.reduce` and its like keep the reduced axis at extent 1. Any MLIR
parser reads the text with unregistered dialects allowed: `mlir-opt --allow-unregistered-dialect`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import DType, bool_
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.scalar.table import Fn

# Operations on equal shapes and one dtype whose definition is StableHLO's.
STABLEHLO: dict[Fn, str] = {
    Fn.ADD: "add", Fn.SUB: "subtract", Fn.MUL: "multiply", Fn.DIV: "divide", Fn.NEG: "negate", Fn.ABS: "abs",
    Fn.EXP: "exponential", Fn.EXPM1: "exponential_minus_one", Fn.LOG: "log", Fn.LOG1P: "log_plus_one", Fn.SQRT: "sqrt",
    Fn.RSQRT: "rsqrt", Fn.TANH: "tanh", Fn.SIN: "sine", Fn.COS: "cosine", Fn.FLOOR: "floor", Fn.CEIL: "ceil",
    Fn.MAXIMUM: "maximum", Fn.MINIMUM: "minimum", Fn.SIGMOID: "logistic", Fn.WHERE: "select",
}  # fmt: skip


def mlir(graph: Graph, names: Sequence[str] = (), function: str = "main") -> str:
    """The graph as a module of one function. names: of the arguments, kept as an attribute."""
    arguments = ", ".join(f"%arg{n.attrs['number']}: {_type(n)}" for n in graph.inputs)
    results = ", ".join(map(_type, graph.outputs))
    inputs = ", ".join(map(_type, graph.inputs))
    lines = ['"builtin.module"() ({', '  "func.func"() ({', f"  ^bb0({arguments}):"]
    lines += [f"    {_operation(node)}" for node in graph.live_nodes() if node.op is not Primitive.INPUT]
    lines.append(f'    "func.return"({", ".join(map(_name, graph.outputs))}) : ({results}) -> ()')
    attributes = {"function_type": f"({inputs}) -> ({results})", "sym_name": json.dumps(function)}
    if names:
        attributes["tensorsmith.arguments"] = "[" + ", ".join(map(json.dumps, names)) + "]"
    lines.append(f"  }}) {{{', '.join(f'{key} = {value}' for key, value in attributes.items())}}} : () -> ()")
    return "\n".join([*lines, "}) : () -> ()"]) + "\n"


def _name(node: Node) -> str:
    return f"%arg{node.attrs['number']}" if node.op is Primitive.INPUT else f"%{node.index}"


def _element(dtype: DType) -> str:
    """MLIR's name of an element type: signless integers, as StableHLO writes signed ones; ui8 for uint8."""
    if dtype is bool_:
        return "i1"
    bits = dtype.itemsize * 8
    if dtype.is_complex:
        return f"complex<f{bits // 2}>"
    if dtype.name == "bfloat16":
        return "bf16"
    return {"f": "f", "u": "ui", "i": "i"}[dtype.kind] + str(bits)


def _type(node: Node) -> str:
    return "tensor<" + "".join(f"{extent}x" for extent in node.shape) + _element(node.dtype) + ">"


def _operation(node: Node) -> str:
    name, attributes = _meaning(node)
    operands = ", ".join(map(_name, node.inputs))
    types = ", ".join(map(_type, node.inputs))
    written = " {" + ", ".join(f"{key} = {value}" for key, value in attributes.items()) + "}" if attributes else ""
    return f'{_name(node)} = "{name}"({operands}){written} : ({types}) -> {_type(node)}'


def _meaning(node: Node) -> tuple[str, dict[str, str]]:
    """The name of the operation and its attributes."""
    attrs = dict(node.attrs)
    if node.op is Primitive.MAP:
        fn = attrs.pop("fn")
        plain = all(operand.dtype is node.dtype for operand in node.inputs) or fn is Fn.WHERE
        takes = node.dtype.kind == "f" or (fn in _ON_INTEGERS and node.dtype is not bool_)
        if fn in STABLEHLO and plain and not attrs and takes:
            return f"stablehlo.{STABLEHLO[fn]}", {}
        return f"tensorsmith.{fn.name.lower()}", {key: _attribute(value) for key, value in attrs.items()}
    if node.op is Primitive.CONST:
        return "stablehlo.constant", {"value": f"dense<{_literal(attrs['value'], node.dtype)}> : {_type(node)}"}
    if node.op is Primitive.IOTA:
        return "stablehlo.iota", {"iota_dimension": "0 : i64"}
    if node.op is Primitive.RESHAPE:
        return "stablehlo.reshape", {}
    if node.op is Primitive.PERMUTE:
        return "stablehlo.transpose", {"permutation": _integers(attrs["axes"])}
    if node.op is Primitive.FLIP:
        return "stablehlo.reverse", {"dimensions": _integers(attrs["axes"])}
    if node.op is Primitive.CONCAT:
        return "stablehlo.concatenate", {"dimension": f"{attrs['axis']} : i64"}
    if node.op is Primitive.EXPAND:
        return "stablehlo.broadcast_in_dim", {"broadcast_dimensions": _integers(range(node.ndim))}
    return f"tensorsmith.{node.op.value}", {key: _attribute(value) for key, value in attrs.items()}


_ON_INTEGERS = frozenset({Fn.ADD, Fn.SUB, Fn.MUL, Fn.NEG, Fn.ABS, Fn.MAXIMUM, Fn.MINIMUM, Fn.WHERE})


def _integers(values: Sequence[int]) -> str:
    listed = ", ".join(map(str, values))
    return f"array<i64: {listed}>" if listed else "array<i64>"


def _float(value: float, bits: int = 64) -> str:
    """A float literal: decimal where it is finite, the bit pattern otherwise."""
    if math.isfinite(value):
        text = repr(float(value))
        mantissa, exponent, power = text.partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{exponent}{power}"
    form = {16: "<e", 32: "<f", 64: "<d"}[bits]
    return "0x" + struct.pack(form, value)[::-1].hex().upper()


def _literal(value: Any, dtype: DType) -> str:
    if dtype.is_complex:
        bits = dtype.itemsize * 4
        return f"({_float(value.real, bits)}, {_float(value.imag, bits)})"
    if dtype.kind == "f":
        if dtype.name == "bfloat16" and not math.isfinite(value):
            return "0x" + struct.pack("<f", value)[::-1].hex().upper()[:4]
        return _float(value, dtype.itemsize * 8)
    return ("true" if value else "false") if dtype is bool_ else str(value)


def _attribute(value: Any) -> str:
    """Any attribute of a node in MLIR's syntax."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float):
        return f"{_float(value)} : f64"
    if isinstance(value, tuple | list):
        if all(isinstance(x, int) and not isinstance(x, bool) for x in value):
            return _integers(value)
        return "[" + ", ".join(map(_attribute, value)) + "]"
    if isinstance(value, DType):
        return _element(value)
    return json.dumps(value.name.lower() if isinstance(value, Fn | Primitive) else str(value))
