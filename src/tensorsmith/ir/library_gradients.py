"""The gradient rules of library routines, by name: the part of the table in `gradients.py` that is about LIBRARY nodes.

A rule is called as there: `rule(node, output, grad)` gives one gradient or None per input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorsmith.ir.build import broadcast_to, cast, concat, conj, map_, matmul, reshape, slice_, transpose, where
from tensorsmith.ir.control import cond_gradient, while_loop_gradient
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.scalar.table import Fn

Rule = Callable[[Node, Node, Node], Sequence[Node | None]]


def _routine(name: str, operands: Sequence[Node], like: Node, **attrs: object) -> Node:
    """A library routine whose result has the shape and dtype of `like`."""
    return like.graph.add(Primitive.LIBRARY, operands, name=name, shape=like.shape, dtype=like.dtype, **attrs)


def _unknown(grad: Node, what: str) -> Node:
    """A gradient that raises NotImplementedError when, and only when, it is computed."""
    return _routine("no_derivative", (grad,), grad, what=what)


def _need_real(node: Node) -> None:
    if node.inputs[0].dtype.is_complex:
        raise NotImplementedError("singular values: the second derivative for complex matrices is not implemented")


# --- matrices ---------------------------------------------------------------------------------------------------------


def _singular_values(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return [_routine("singular_values_pull", (node.inputs[0], grad), node.inputs[0])]


def _singular_values_pull(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    _need_real(node)
    x, g = node.inputs
    return [_routine("singular_values_pull_again", (x, g, grad), x), _routine("singular_diagonal", (x, grad), g)]


def _nearest_isometry(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return [_routine("nearest_isometry_pull", (node.inputs[0], grad), node.inputs[0])]


def _turned(x: Node) -> Node:
    """The conjugate transpose of matrices."""
    return transpose(conj(x), x.ndim - 2, x.ndim - 1)


def _solve(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    of_b = _routine("solve", (_turned(node.inputs[0]), grad), grad)
    return [-matmul(of_b, _turned(output)), of_b]


def _exp_moved(x: Node, change: Node) -> Node:
    """The derivative of exp at x along `change`: a block of exp [[x, change], [0, x]]."""
    rows, columns, size = x.ndim - 2, x.ndim - 1, x.shape[-1]
    zeros = broadcast_to(x.graph.constant(0, x.dtype), x.shape)
    whole = concat([concat([x, change], columns), concat([zeros, x], columns)], rows)
    return slice_(slice_(_routine("matrix_exp", (whole,), whole), rows, 0, size), columns, size, size)


def _matrix_exp(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return [_exp_moved(_turned(node.inputs[0]), grad)]


# --- several values meeting at one place ------------------------------------------------------------------------------


def _scatter_reduced(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    if node.attrs["reduce"] != "prod" or not node.attrs["include_self"]:
        raise NotImplementedError(f"scatter_reduce: the gradient of {node.attrs['reduce']!r} in a second derivative")
    base, positions, source = node.inputs
    of_base, of_source = products_of_the_others(base, positions, source, node.attrs["axis"])
    gathered = grad.graph.add(Primitive.GATHER, (grad, positions), axis=node.attrs["axis"])
    return [grad * conj(of_base), None, gathered * conj(of_source)]


def products_of_the_others(start: Node, positions: Node, source: Node, axis: int) -> tuple[Node, Node]:
    """The product of the others, of what starts at each place and of each source.

    All divided by the own factor; where zeros meet they are counted, and the rest is multiplied.
    """
    zero_start, zero_source = map_(Fn.EQ, start, 0), map_(Fn.EQ, source, 0)
    own_start, own_source = where(zero_start, 1, start), where(zero_source, 1, source)
    rest = start.graph.add(
        Primitive.LIBRARY, (own_start, positions, own_source), name="scatter_reduce", axis=axis, reduce="prod",
        include_self=True, shape=start.shape, dtype=start.dtype,
    )  # fmt: skip
    zeros_at = cast(zero_start, start.dtype)
    counted = (zeros_at, positions, cast(zero_source, start.dtype))
    count = start.graph.add(Primitive.SCATTER, counted, axis=axis, reduce="add")

    def others(own: Node, is_zero: Node, product_of: Node, zeros_of: Node) -> Node:
        left = zeros_of - cast(is_zero, start.dtype)
        return where(map_(Fn.EQ, left, 0), product_of / own, 0)

    def gathered(value: Node) -> Node:
        return value.graph.add(Primitive.GATHER, (value, positions), axis=axis)

    return (
        others(own_start, zero_start, rest, count),
        others(own_source, zero_source, gathered(rest), gathered(count)),
    )


# --- alignments -------------------------------------------------------------------------------------------------------


def _ctc_loss(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    x, *rest = node.inputs
    expected = _routine("ctc_expected", node.inputs, x, blank=node.attrs["blank"], zero_infinity=node.attrs["zero_infinity"])
    return [-(broadcast_to(reshape(grad, (1, x.shape[1], 1)), x.shape) * expected), *[None] * len(rest)]


def _ctc_expected(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    attrs = {name: node.attrs[name] for name in ("blank", "zero_infinity")}
    return [_routine("ctc_expected_moved", (*node.inputs, grad), node.inputs[0], **attrs), None, None, None]


# --- special functions ------------------------------------------------------------------------------------------------


def _zeta(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    x, q = node.inputs
    return [_unknown(grad, "zeta"), grad * -x * _routine("zeta", (x + 1, q), x)]


def _incomplete_gamma(name: str, sign: float) -> Rule:
    def rule(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
        a, x = node.inputs
        density = map_(Fn.EXP, (a - 1) * map_(Fn.LOG, x) - x - map_(Fn.LGAMMA, a))
        return [_unknown(grad, f"{name}: input"), grad * density * sign]

    return rule


def _flat(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    """Of functions that have no gradient here, as in PyTorch."""
    return [None] * len(node.inputs)


# Their public functions give results that do not require gradients.
UNDIFFERENTIATED = (
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1",
    "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
    "spherical_bessel_j0", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
    *[f"{prefix}chebyshev_polynomial_{kind}" for prefix in ("", "shifted_") for kind in "tuvw"],
)  # fmt: skip


def _second_of_a_loop(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    raise NotImplementedError(
        "while_loop: second derivatives through a loop of a compiled function are not implemented; use a Python loop where "
        "the number of rounds is known"
    )


LIBRARY_RULES: dict[str, Rule] = {
    "cond": lambda node, output, grad: cond_gradient(node, grad),
    "while_loop": lambda node, output, grad: while_loop_gradient(node, grad),
    "while_loop_gradient": _second_of_a_loop,
    "ctc_expected": _ctc_expected,
    "ctc_loss": _ctc_loss,
    "igamma": _incomplete_gamma("igamma", 1.0),
    "igammac": _incomplete_gamma("igammac", -1.0),
    "matrix_exp": _matrix_exp,
    "nearest_isometry": _nearest_isometry,
    "scatter_reduce": _scatter_reduced,
    "singular_values": _singular_values,
    "singular_values_pull": _singular_values_pull,
    "solve": _solve,
    "zeta": _zeta,
    **dict.fromkeys(UNDIFFERENTIATED, _flat),
}

# Routines of element by element: what one multiplies a gradient by is also what it multiplies a tangent by.
POINTWISE = frozenset({"gcd", "lcm", "igamma", "igammac", "zeta", *UNDIFFERENTIATED})


# Routines with a tangent rule of their own; that of another is the transpose of its gradient rule (`jvp.py`).
WITH_TANGENT = POINTWISE | {"matrix_exp", "singular_values", "solve"}


def tangent(node: Node, output: Node, tangents: Sequence[Node | None]) -> Node | None:
    """The tangent of the result of a routine of `WITH_TANGENT` from those of its inputs; None where it does not move."""
    name = node.attrs["name"]
    if name == "singular_values":
        assert tangents[0] is not None
        return _routine("singular_diagonal", (node.inputs[0], tangents[0]), output)
    if name == "matrix_exp":
        assert tangents[0] is not None
        return _exp_moved(node.inputs[0], tangents[0])
    if name == "solve":  # dX = A^-1 (dB - dA X)
        of_a, of_b = tangents
        moved = of_b if of_a is None else -matmul(of_a, output) if of_b is None else of_b - matmul(of_a, output)
        assert moved is not None
        return _routine("solve", (node.inputs[0], moved), output)
    total: Node | None = None
    for number, given in enumerate(tangents):
        part = LIBRARY_RULES[name](node, output, given)[number] if given is not None else None
        if part is not None:
            total = part if total is None else total + part
    return total
