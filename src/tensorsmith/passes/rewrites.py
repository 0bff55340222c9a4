"""The table of local rewrites: each looks at one node and returns a better one that means the same, or None.

They keep every result, NaN, infinities and signed zeros included; where a kernel only approximates (constants folded through
an elementary function, x ** 2) they give the correctly rounded value. What does not is in `unsafe_rewrites.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tensorsmith.core.dtypes import compute_dtype, finfo, uint64
from tensorsmith.ir.build import broadcast_to, cast, flip, full, map_, permute, reshape, slice_, where
from tensorsmith.ir.constants import cast_value, constant_of, constant_value, holds, in_dtype
from tensorsmith.ir.contributions import Placed, axis_of_part, joined
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.scalar.table import TABLE, Fn

Rewrite = Callable[[Node], Node | None]


@dataclass(frozen=True)
class Rule:
    """A named rewrite of nodes of one primitive, or of one scalar function."""

    name: str
    subject: Primitive | Fn | None  # None: nodes of any kind
    rewrite: Rewrite


# ---------------------------------------------------------------------------------------------------------- constants


def fold(node: Node) -> Node | None:
    """A scalar function of constants, computed by the scalar table in the node's dtype."""
    fn = node.attrs["fn"]
    if node.dtype.is_complex or node.dtype is uint64 or fn is Fn.NEXTAFTER:  # nextafter depends on the dtype
        return None
    values = [constant_value(operand) for operand in node.inputs]
    if any(value is None for value in values):
        return None
    try:
        value = TABLE[fn].value(*values)
    except ZeroDivisionError:  # an error of the run
        return None
    return full(node.graph, node.shape, in_dtype(value, node.dtype), node.dtype)


def fold_cast(node: Node) -> Node | None:
    x = node.inputs[0]
    value = constant_value(x)
    if value is None or node.dtype.is_complex:
        return None
    return full(node.graph, node.shape, cast_value(value, x.dtype, node.dtype), node.dtype)


def view_of_constant(node: Node) -> Node | None:
    """A view of a broadcast constant is the constant broadcast to the view's shape."""
    constant = constant_of(node.inputs[0])
    return None if constant is None else broadcast_to(constant, node.shape)


# ------------------------------------------------------------------------------------------------------------ algebra


def is_number(node: Node, value: float) -> bool:
    """Whether every element is this number; 0.0 and -0.0 are different."""
    found = constant_value(node)
    return found is not None and found == value and math.copysign(1, found) == math.copysign(1, value)


def is_map(node: Node, fn: Fn) -> bool:
    return node.op is Primitive.MAP and node.attrs["fn"] is fn


def neutral(left: float | None, right: float | None) -> Rewrite:
    """x where the left or the right operand is its neutral element."""

    def rewrite(node: Node) -> Node | None:
        a, b = node.inputs
        if right is not None and is_number(b, right):
            return a
        return b if left is not None and is_number(a, left) else None

    return rewrite


def neutral_of_integers(node: Node) -> Node | None:
    """x + 0, which for floats would turn -0.0 into 0.0."""
    a, b = node.inputs
    if node.dtype.kind not in "iu":
        return None
    return a if is_number(b, 0) else b if is_number(a, 0) else None


def cancel(fn: Fn, inner: Fn) -> Rewrite:
    """fn(inner(x)) is x."""

    def rewrite(node: Node) -> Node | None:
        x = node.inputs[0]
        return x.inputs[0] if is_map(x, inner) and x.inputs[0].dtype is node.dtype else None

    return rewrite


def absolute_of_negative(node: Node) -> Node | None:
    x = node.inputs[0]
    return map_(Fn.ABS, x.inputs[0]) if is_map(x, Fn.NEG) and node.dtype.is_signed else None


def idempotent(node: Node) -> Node | None:
    x = node.inputs[0]
    return x if is_map(x, node.attrs["fn"]) else None


def add_of_negative(node: Node) -> Node | None:
    a, b = node.inputs
    if is_map(b, Fn.NEG):
        return a - b.inputs[0]
    return b - a.inputs[0] if is_map(a, Fn.NEG) else None


def sub_of_negative(node: Node) -> Node | None:
    a, b = node.inputs
    return a + b.inputs[0] if is_map(b, Fn.NEG) else None


def both_negative(node: Node) -> Node | None:
    a, b = node.inputs
    if is_map(a, Fn.NEG) and is_map(b, Fn.NEG):
        return map_(node.attrs["fn"], a.inputs[0], b.inputs[0])
    return None


def times_minus_one(node: Node) -> Node | None:
    a, b = node.inputs
    if not node.dtype.is_signed:
        return None
    return -a if is_number(b, -1) else -b if is_number(a, -1) else None


def divide_by_power_of_two(node: Node) -> Node | None:
    """The reciprocal of a power of two is exact, and a multiplication is many times quicker."""
    a, b = node.inputs
    value = constant_value(b)
    if not isinstance(value, float) or not math.isfinite(value) or abs(math.frexp(value)[0]) != 0.5:
        return None
    inverse = 1.0 / value
    smallest = finfo(compute_dtype(node.dtype)).smallest_normal
    if abs(value) < smallest or abs(inverse) < smallest:
        return None
    return map_(Fn.MUL, a, full(node.graph, node.shape, inverse, node.dtype))


def small_power(node: Node) -> Node | None:
    x, exponent = node.inputs
    if is_number(exponent, 1):
        return x
    if is_number(exponent, 2):
        return x * x
    if is_number(exponent, 0):
        return full(node.graph, node.shape, 1, node.dtype)  # 1 for NaN too, as pow says
    return None


def same_operands(value: int | None = None) -> Rewrite:
    """What an operation gives for one operand twice: that operand, or a number where the dtype is exact."""

    def rewrite(node: Node) -> Node | None:
        a, b = node.inputs
        if a is not b:
            return None
        if value is None:
            return a
        return None if a.dtype.kind not in "iub" else full(node.graph, node.shape, value, node.dtype)

    return rewrite


def times_zero_of_integers(node: Node) -> Node | None:
    """x * 0, which for floats would lose NaN, infinities and signs."""
    if node.dtype.kind not in "iu":
        return None
    return next((operand for operand in node.inputs if is_number(operand, 0)), None)


def decided_where(node: Node) -> Node | None:
    condition, a, b = node.inputs
    if a is b:
        return a
    value = constant_value(condition)
    return None if value is None else a if value else b


def where_of_not(node: Node) -> Node | None:
    condition, a, b = node.inputs
    negated = is_map(condition, Fn.LOGICAL_NOT) or is_map(condition, Fn.BITWISE_NOT)
    return where(condition.inputs[0], b, a) if negated and condition.inputs[0].dtype.kind == "b" else None


def where_of_where(node: Node) -> Node | None:
    """An inner choice by the same condition is made already."""
    condition, a, b = node.inputs
    left = a.inputs[1] if is_map(a, Fn.WHERE) and a.inputs[0] is condition else a
    right = b.inputs[2] if is_map(b, Fn.WHERE) and b.inputs[0] is condition else b
    return where(condition, left, right) if left is not a or right is not b else None


def where_of_truths(node: Node) -> Node | None:
    """where(c, True, False) is c."""
    condition, a, b = node.inputs
    if node.dtype.kind != "b" or condition.dtype.kind != "b":
        return None
    return condition if is_number(a, True) and is_number(b, False) else None


def absorbing(value: bool) -> Rewrite:
    """and with False, or with True."""

    def rewrite(node: Node) -> Node | None:
        return next((operand for operand in node.inputs if is_number(operand, value)), None)

    return rewrite


# -------------------------------------------------------------------------------------------------------------- casts


def cast_of_cast(node: Node) -> Node | None:
    """The cast in the middle goes where it loses nothing."""
    middle = node.inputs[0]
    if node.dtype is middle.dtype:
        return middle
    if middle.op is not Primitive.CAST or not holds(middle.dtype, middle.inputs[0].dtype):
        return None
    source = middle.inputs[0].dtype
    if middle.dtype.kind == "f" and source.kind in "iu" and node.dtype.kind in "iu" and not holds(node.dtype, source):
        return None  # the float saturates where the integer wraps around
    return cast(middle.inputs[0], node.dtype)


# -------------------------------------------------------------------------------------------------------------- views


def same_shape(node: Node) -> Node | None:
    x = node.inputs[0]
    return x if x.shape == node.shape else None


def reshape_of_reshape(node: Node) -> Node | None:
    x = node.inputs[0]
    return reshape(x.inputs[0], node.shape) if x.op is Primitive.RESHAPE else None


def permute_less(node: Node) -> Node | None:
    x, axes = node.inputs[0], node.attrs["axes"]
    if x.op is Primitive.PERMUTE:
        return permute(x.inputs[0], [x.attrs["axes"][axis] for axis in axes])
    moved = [axis for axis in axes if x.shape[axis] != 1]
    return reshape(x, node.shape) if moved == sorted(moved) else None  # only axes of extent 1 move


def expand_of_expand(node: Node) -> Node | None:
    x = node.inputs[0]
    return x.graph.add(Primitive.EXPAND, x.inputs, shape=node.shape) if x.op is Primitive.EXPAND else None


def slice_of_slice(node: Node) -> Node | None:
    x, axis = node.inputs[0], node.attrs["axis"]
    if x.op is not Primitive.SLICE or x.attrs["axis"] != axis:
        return None
    start = x.attrs["start"] + node.attrs["start"] * x.attrs["step"]
    return slice_(x.inputs[0], axis, start, node.attrs["length"], node.attrs["step"] * x.attrs["step"])


def slice_of_pad(node: Node) -> Node | None:
    """Cutting off exactly what was padded on this axis."""
    x, axis = node.inputs[0], node.attrs["axis"]
    if x.op is not Primitive.PAD or x.inputs[0].shape[axis] != node.shape[axis]:
        return None
    low, high, step = (list(x.attrs[key]) for key in ("low", "high", "step"))
    if node.attrs["start"] != low[axis] or node.attrs["step"] != step[axis]:
        return None
    low[axis], high[axis], step[axis] = 0, 0, 1
    attrs = {**x.attrs, "low": tuple(low), "high": tuple(high), "step": tuple(step)}
    return x.graph.add(Primitive.PAD, x.inputs, **attrs)


def sum_of_parts(node: Node) -> Node | None:
    """Two values between zeros, along one axis and apart, are joined rather than added: the gradients of a value's slices.

    Each part is still added to a zero, because -0 + 0 is 0.
    """
    axis = axis_of_part(node.inputs[0])
    if axis is None or axis_of_part(node.inputs[1]) != axis:
        return None
    row = sorted((Placed(x.attrs["low"][axis], x.inputs[0]) for x in node.inputs), key=lambda placed: placed.start)
    if row[0].end(axis) > row[1].start:
        return None
    return joined([Placed(start, _plus_zero(part)) for start, part in row], axis, node)


def _plus_zero(x: Node) -> Node:
    """x + 0, once; of joined values each by itself."""
    if x.op is Primitive.CONCAT:
        return x.graph.add(Primitive.CONCAT, [_plus_zero(part) for part in x.inputs], **x.attrs)
    added = x.op is Primitive.MAP and x.attrs["fn"] is Fn.ADD and constant_value(x.inputs[1]) == 0
    if added or constant_value(x) == 0 or x.dtype.kind != "f":
        return x
    return map_(Fn.ADD, x, full(x.graph, x.shape, 0, x.dtype))


def pick_of_cast(node: Node) -> Node | None:
    """A few elements of a converted value are picked first and converted then: the whole is not written for their sake."""
    x = node.inputs[0]
    if x.op is not Primitive.CAST or node.numel >= x.numel:
        return None
    return cast(node.graph.add(node.op, (x.inputs[0], *node.inputs[1:]), **node.attrs), node.dtype)


def slice_of_concat(node: Node) -> Node | None:
    """A slice within one of the joined values."""
    x, axis, start, length = node.inputs[0], *(node.attrs[key] for key in ("axis", "start", "length"))
    if x.op is not Primitive.CONCAT or x.attrs["axis"] != axis or not length:
        return None
    end, first = start + (length - 1) * node.attrs["step"], 0
    for part in x.inputs:
        if first <= start and end < first + part.shape[axis]:
            return slice_(part, axis, start - first, length, node.attrs["step"])
        first += part.shape[axis]
    return None


def flip_less(node: Node) -> Node | None:
    x, axes = node.inputs[0], node.attrs["axes"]
    if x.op is Primitive.FLIP:
        return flip(x.inputs[0], sorted(set(axes) ^ set(x.attrs["axes"])))
    moving = tuple(axis for axis in axes if x.shape[axis] > 1)
    return flip(x, moving) if moving != tuple(axes) else None


def single_part(node: Node) -> Node | None:
    """A concatenation of one value, or of one value and empty ones."""
    axis = node.attrs["axis"]
    parts = [part for part in node.inputs if part.shape[axis]]
    if len(parts) == len(node.inputs) > 1 or not parts:
        return None
    return parts[0] if len(parts) == 1 else node.graph.add(Primitive.CONCAT, parts, axis=axis)


def concat_of_concat(node: Node) -> Node | None:
    """What is joined on the same axis is joined at once."""
    axis = node.attrs["axis"]

    def inner(part: Node) -> bool:
        return part.op is Primitive.CONCAT and part.attrs["axis"] == axis

    if not any(map(inner, node.inputs)):
        return None
    parts = [each for part in node.inputs for each in (part.inputs if inner(part) else (part,))]
    return node.graph.add(Primitive.CONCAT, parts, axis=axis)


def concat_of_slices(node: Node) -> Node | None:
    """Slices that follow each other in one value, joined again, are one slice."""
    axis, parts = node.attrs["axis"], node.inputs
    first = parts[0]
    if any(part.op is not Primitive.SLICE or part.attrs["axis"] != axis for part in parts):
        return None
    start = first.attrs["start"]
    for part in parts:
        if part.inputs[0] is not first.inputs[0] or part.attrs["start"] != start or part.attrs["step"] != 1:
            return None
        start += part.attrs["length"]
    return slice_(first.inputs[0], axis, first.attrs["start"], node.shape[axis])


def over_one_element(node: Node, sums: bool = False) -> Node | None:
    """Reducing or scanning an axis of extent 1; a sum of floats starts from 0.0, which -0.0 does not survive."""
    x, kind = node.inputs[0], node.attrs["kind"]
    if x.shape[node.attrs["axis"]] != 1 or (kind in ("sum", "logsumexp") and node.dtype.kind in "fc" and not sums):
        return None
    return full(node.graph, node.shape, 0, node.dtype) if kind.startswith("arg") else x


_BITS = (Fn.BITWISE_AND, Fn.BITWISE_OR)
_VIEWS = (Primitive.RESHAPE, Primitive.PERMUTE, Primitive.EXPAND, Primitive.SLICE, Primitive.FLIP)

FOLD: tuple[Rule, ...] = (
    *(Rule("fold", fn, fold) for fn in Fn),
    Rule("fold cast", Primitive.CAST, fold_cast),
    *(Rule("view of constant", op, view_of_constant) for op in _VIEWS),
)

ALGEBRA: tuple[Rule, ...] = (
    Rule("x + -0", Fn.ADD, neutral(-0.0, -0.0)),
    Rule("x + 0 of integers", Fn.ADD, neutral_of_integers),
    Rule("x - 0", Fn.SUB, neutral(None, 0.0)),
    Rule("x * 0 of integers", Fn.MUL, times_zero_of_integers),
    Rule("x * 1", Fn.MUL, neutral(1, 1)),
    Rule("x * -1", Fn.MUL, times_minus_one),
    Rule("x / 2**k", Fn.DIV, divide_by_power_of_two),
    Rule("x ** small", Fn.POW, small_power),
    Rule("--x", Fn.NEG, cancel(Fn.NEG, Fn.NEG)),
    Rule("not not x", Fn.LOGICAL_NOT, cancel(Fn.LOGICAL_NOT, Fn.LOGICAL_NOT)),
    Rule("~~x", Fn.BITWISE_NOT, cancel(Fn.BITWISE_NOT, Fn.BITWISE_NOT)),
    Rule("a + -b", Fn.ADD, add_of_negative),
    Rule("sum of parts", Fn.ADD, sum_of_parts),
    Rule("a - -b", Fn.SUB, sub_of_negative),
    Rule("-a * -b", Fn.MUL, both_negative),
    Rule("-a / -b", Fn.DIV, both_negative),
    Rule("|-x|", Fn.ABS, absolute_of_negative),
    *(Rule("f(x, x)", fn, same_operands()) for fn in (Fn.MAXIMUM, Fn.MINIMUM, *_BITS)),
    *(Rule("x op x of integers", fn, same_operands(0)) for fn in (Fn.SUB, Fn.BITWISE_XOR, Fn.NE, Fn.LT, Fn.GT)),
    *(Rule("x op x of integers", fn, same_operands(1)) for fn in (Fn.EQ, Fn.LE, Fn.GE)),
    *(Rule("x op 0 of bits", fn, neutral(0, 0)) for fn in (Fn.BITWISE_OR, Fn.BITWISE_XOR)),
    *(Rule("x op 0 of bits", fn, neutral(None, 0)) for fn in (Fn.LEFT_SHIFT, Fn.RIGHT_SHIFT)),
    Rule("x & 0", Fn.BITWISE_AND, absorbing(False)),
    *(Rule("f(f(x))", fn, idempotent) for fn in (Fn.ABS, Fn.RELU, Fn.FLOOR, Fn.CEIL, Fn.TRUNC, Fn.ROUND)),
    Rule("where decided", Fn.WHERE, decided_where),
    Rule("where not", Fn.WHERE, where_of_not),
    Rule("where of where", Fn.WHERE, where_of_where),
    Rule("where True else False", Fn.WHERE, where_of_truths),
    Rule("x and True", Fn.LOGICAL_AND, neutral(True, True)),
    Rule("x and False", Fn.LOGICAL_AND, absorbing(False)),
    Rule("x or False", Fn.LOGICAL_OR, neutral(False, False)),
    Rule("x or True", Fn.LOGICAL_OR, absorbing(True)),
    Rule("cast of cast", Primitive.CAST, cast_of_cast),
)

VIEW_RULES: tuple[Rule, ...] = (
    *(Rule("same shape", op, same_shape) for op in (Primitive.RESHAPE, Primitive.EXPAND, Primitive.SLICE)),
    Rule("reshape of reshape", Primitive.RESHAPE, reshape_of_reshape),
    Rule("permute less", Primitive.PERMUTE, permute_less),
    Rule("expand of expand", Primitive.EXPAND, expand_of_expand),
    Rule("slice of slice", Primitive.SLICE, slice_of_slice),
    Rule("slice of pad", Primitive.SLICE, slice_of_pad),
    Rule("slice of concat", Primitive.SLICE, slice_of_concat),
    *(Rule("pick of cast", op, pick_of_cast) for op in (Primitive.GATHER, Primitive.TAKE)),
    Rule("flip less", Primitive.FLIP, flip_less),
    Rule("pad of nothing", Primitive.PAD, same_shape),
    Rule("concat of one", Primitive.CONCAT, single_part),
    Rule("concat of concat", Primitive.CONCAT, concat_of_concat),
    Rule("concat of slices", Primitive.CONCAT, concat_of_slices),
    Rule("reduce one element", Primitive.REDUCE, over_one_element),
    Rule("scan one element", Primitive.SCAN, over_one_element),
)

SAFE = (*FOLD, *ALGEBRA, *VIEW_RULES)
