"""The float-unsafe table: rewrites that change last bits, or results at NaN, infinities, zeros and at the ends of the range.

They are one pass, "unsafe-algebra", which is off unless a function asks for it: `ts.compile(f, enable="unsafe-algebra")`.
"""

from __future__ import annotations

from tensorsmith.ir.build import full, map_
from tensorsmith.ir.constants import constant_value
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.passes.rewrites import Rewrite, Rule, cancel, fold, is_map, is_number, over_one_element
from tensorsmith.scalar.table import Fn


def neutral_zero(node: Node) -> Node | None:
    a, b = node.inputs
    return a if constant_value(b) == 0 else b if constant_value(a) == 0 and node.attrs["fn"] is Fn.ADD else None


def times_zero(node: Node) -> Node | None:
    return next((operand for operand in node.inputs if constant_value(operand) == 0), None)


def equal_operands(value: int) -> Rewrite:
    """x - x, x / x."""

    def rewrite(node: Node) -> Node | None:
        a, b = node.inputs
        return full(node.graph, node.shape, value, node.dtype) if a is b else None

    return rewrite


def divide_by_constant(node: Node) -> Node | None:
    a, b = node.inputs
    value = constant_value(b)
    if not isinstance(value, float) or value == 0.0:
        return None
    return map_(Fn.MUL, a, full(node.graph, node.shape, 1.0 / value, node.dtype))


def reassociate(node: Node) -> Node | None:
    """(x op c) op d is x op (c op d) for constants c, d."""
    inner, outer = node.inputs
    if constant_value(inner) is not None:
        inner, outer = outer, inner
    if constant_value(outer) is None or not is_map(inner, node.attrs["fn"]):
        return None
    x, constant = inner.inputs
    if constant_value(x) is not None:
        x, constant = constant, x
    if constant_value(constant) is None or constant_value(x) is not None:
        return None
    folded = fold(map_(node.attrs["fn"], constant, outer))
    return None if folded is None else map_(node.attrs["fn"], x, folded)


def half_power(node: Node) -> Node | None:
    x, exponent = node.inputs
    if is_number(exponent, 0.5):
        return map_(Fn.SQRT, x)
    return map_(Fn.RECIPROCAL, x) if is_number(exponent, -1.0) and node.dtype.is_floating_point else None


def minus_constant(node: Node) -> Node | None:
    """x - c is x + -c, which the rules of sums know."""
    a, b = node.inputs
    value = constant_value(b)
    if node.dtype.kind != "f" or value is None or constant_value(a) is not None:
        return None
    return map_(Fn.ADD, a, full(node.graph, node.shape, -value, node.dtype))


def common_factor(node: Node) -> Node | None:
    """a * b + a * c is a * (b + c), and so with minus."""
    left, right = node.inputs
    if not (is_map(left, Fn.MUL) and is_map(right, Fn.MUL)):
        return None
    for i, a in enumerate(left.inputs):
        for k, other in enumerate(right.inputs):
            if a is other:
                return map_(Fn.MUL, a, map_(node.attrs["fn"], left.inputs[1 - i], right.inputs[1 - k]))
    return None


def product_of_powers(node: Node) -> Node | None:
    """exp a * exp b is exp(a + b)."""
    a, b = node.inputs
    return map_(Fn.EXP, a.inputs[0] + b.inputs[0]) if is_map(a, Fn.EXP) and is_map(b, Fn.EXP) and a is not b else None


def square_of_root(node: Node) -> Node | None:
    a, b = node.inputs
    return a.inputs[0] if a is b and is_map(a, Fn.SQRT) else None


def reciprocal_of_root(node: Node) -> Node | None:
    """1 / sqrt x is rsqrt x."""
    a, b = node.inputs
    return map_(Fn.RSQRT, b.inputs[0]) if is_number(a, 1.0) and is_map(b, Fn.SQRT) else None


def log_of_more_than_one(node: Node) -> Node | None:
    """log(1 + x) is log1p x, which is nearer to the truth."""
    x = node.inputs[0]
    if not is_map(x, Fn.ADD):
        return None
    a, b = x.inputs
    return map_(Fn.LOG1P, a) if is_number(b, 1.0) else map_(Fn.LOG1P, b) if is_number(a, 1.0) else None


def negative_difference(node: Node) -> Node | None:
    """-(a - b) is b - a, but for the sign of zero."""
    x = node.inputs[0]
    return x.inputs[1] - x.inputs[0] if is_map(x, Fn.SUB) else None


UNSAFE: tuple[Rule, ...] = (
    Rule("x + 0", Fn.ADD, neutral_zero),
    Rule("x - 0 of either sign", Fn.SUB, neutral_zero),
    Rule("sum one element", Primitive.REDUCE, lambda node: over_one_element(node, sums=True)),
    Rule("sum one element", Primitive.SCAN, lambda node: over_one_element(node, sums=True)),
    Rule("x * 0", Fn.MUL, times_zero),
    Rule("x - x", Fn.SUB, equal_operands(0)),
    Rule("x / x", Fn.DIV, equal_operands(1)),
    Rule("x / c", Fn.DIV, divide_by_constant),
    Rule("(x * c) * d", Fn.MUL, reassociate),
    Rule("(x + c) + d", Fn.ADD, reassociate),
    Rule("x ** 0.5, x ** -1", Fn.POW, half_power),
    Rule("log exp x", Fn.LOG, cancel(Fn.LOG, Fn.EXP)),
    Rule("exp log x", Fn.EXP, cancel(Fn.EXP, Fn.LOG)),
    Rule("x - c", Fn.SUB, minus_constant),
    Rule("a * b + a * c", Fn.ADD, common_factor),
    Rule("a * b - a * c", Fn.SUB, common_factor),
    Rule("exp a * exp b", Fn.MUL, product_of_powers),
    Rule("sqrt x * sqrt x", Fn.MUL, square_of_root),
    Rule("1 / sqrt x", Fn.DIV, reciprocal_of_root),
    Rule("log(1 + x)", Fn.LOG, log_of_more_than_one),
    Rule("-(a - b)", Fn.NEG, negative_difference),
)
