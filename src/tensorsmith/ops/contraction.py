"""Contractions by name: einsum, tensordot, inner, kron, cross and chains of products, all by the batched matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import type_name
from tensorsmith.core.shapes import broadcast_shapes, normalise_axis
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.matmul import check_dtype, matmul
from tensorsmith.ops.raw_keys import as_ints
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

# --- einsum -----------------------------------------------------------------------------------------------------------
# A term is a list of labels, one an axis; letters are labels, and so are the axes that "..." stands for.

Labels = list[Any]


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Labels of every operand and of the result."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise RuntimeError(
            f"einsum(): {'more' if len(ranks) > len(terms) else 'fewer'} operands were provided than specified in the equation"
        )
    widest = 0
    for term, rank in zip(terms, ranks):
        letters = term.replace("...", "", 1)
        if not all(c.isalpha() for c in letters):
            raise RuntimeError(f"einsum(): invalid subscript given at term '{term}', subscripts must be in [a-zA-Z]")
        if "..." in term:
            if len(letters) > rank:
                raise RuntimeError(
                    f"einsum(): the number of subscripts in the equation ({len(letters)}) is more than the number of "
                    f"dimensions ({rank}) for an operand"
                )
            widest = max(widest, rank - len(letters))
        elif len(letters) != rank:
            raise RuntimeError(
                f"einsum(): the number of subscripts in the equation ({len(letters)}) does not match the number of dimensions "
                f"({rank}) for an operand and no ellipsis was given"
            )

    def labels(term: str, extra: int) -> Labels:
        before, dots, after = term.partition("...")
        return [*before, *(range(widest - extra, widest) if dots else ()), *after]

    operands = [labels(term, rank - len(term.replace("...", "", 1))) for term, rank in zip(terms, ranks)]
    if arrow:
        result = labels(right, widest)
        if len(set(result)) != len(result):
            raise RuntimeError(f"einsum(): output subscript appears more than once in the output '{right}'")
        known = {label for term in operands for label in term} | set(range(widest))
        for label in result:
            if label not in known:
                raise RuntimeError(
                    f"einsum(): output subscript {label} does not appear in the equation for any input operand"
                )
    else:
        every = [label for term in operands for label in term]
        result = [*range(widest), *sorted(c for c in set(every) if isinstance(c, str) and every.count(c) == 1)]
    return operands, result


def _diagonals(x: Node, labels: Labels) -> tuple[Node, Labels]:
    """A label that stands twice in a term takes the diagonal of its axes."""
    from tensorsmith.ir.graph import Primitive

    while len(set(labels)) != len(labels):
        label = next(c for c in labels if labels.count(c) > 1)
        a = labels.index(label)
        b = labels.index(label, a + 1)
        if x.shape[a] != x.shape[b]:
            raise RuntimeError(
                f"einsum(): subscript {label} is repeated for an operand but the sizes don't match, {x.shape[b]} != "
                f"{x.shape[a]}"
            )
        x = x.graph.add(Primitive.DIAGONAL, (x,), offset=0, axis1=a, axis2=b)
        labels = [c for i, c in enumerate(labels) if i not in (a, b)] + [label]
    return x, labels


def _summed(x: Node, labels: Labels, keep: set[Any]) -> tuple[Node, Labels]:
    """Without the axes that nobody needs any more."""
    axes = [i for i, c in enumerate(labels) if c not in keep]
    return (build.reduce(x, "sum", axes), [c for c in labels if c in keep]) if axes else (x, labels)


def _contract(a: Node, of_a: Labels, b: Node, of_b: Labels, keep: set[Any]) -> tuple[Node, Labels]:
    """Two operands to one: shared labels that are kept are batch, shared ones that are not are summed."""
    a, of_a = _summed(a, of_a, keep | set(of_b))
    b, of_b = _summed(b, of_b, keep | set(of_a))
    extent = {c: n for c, n in zip(of_a, a.shape)}
    other = {c: n for c, n in zip(of_b, b.shape)}
    # A label of extent 1 on one side broadcasts: there it is no label of that side at all.
    a, of_a = _drop_ones(a, of_a, {c for c in of_a if extent[c] == 1 and other.get(c, 1) != 1})
    b, of_b = _drop_ones(b, of_b, {c for c in of_b if other[c] == 1 and extent.get(c, 1) != 1})
    sizes = {**dict(zip(of_b, b.shape)), **dict(zip(of_a, a.shape))}
    batch = [c for c in of_a if c in of_b and c in keep]
    inner = [c for c in of_a if c in of_b and c not in keep]
    rows = [c for c in of_a if c not in of_b]
    columns = [c for c in of_b if c not in of_a]

    def arranged(x: Node, labels: Labels, *groups: Labels) -> Node:
        x = build.permute(x, [labels.index(c) for group in groups for c in group])
        return build.reshape(x, [*(sizes[c] for c in groups[0]), *(math.prod(sizes[c] for c in g) for g in groups[1:])])

    kept_a, kept_b = [c for c in rows if c in keep], [c for c in columns if c in keep]
    left, right = arranged(a, of_a, batch, rows, inner), arranged(b, of_b, batch, inner, columns)
    found = build.matmul(left, right) if inner or rows or columns else left * right
    result = [*batch, *rows, *columns]
    return _summed(build.reshape(found, [sizes[c] for c in result]), result, set(batch) | set(kept_a) | set(kept_b))


def _drop_ones(x: Node, labels: Labels, gone: set[Any]) -> tuple[Node, Labels]:
    keep = [i for i, c in enumerate(labels) if c not in gone]
    return build.reshape(x, [x.shape[i] for i in keep]), [labels[i] for i in keep]


def _einsum(*operands: Node, equation: str) -> Node:
    terms, result = _parse(equation, [x.ndim for x in operands])
    sizes: dict[Any, int] = {}
    for x, labels in zip(operands, terms):
        for label, n in zip(labels, x.shape):
            if sizes.setdefault(label, n) != n and n != 1:
                if sizes[label] != 1:
                    raise RuntimeError(
                        f"einsum(): subscript {label} has size {n} for operand which does not broadcast with previously seen "
                        f"size {sizes[label]}"
                    )
                sizes[label] = n
    current, labels = _diagonals(operands[0], terms[0])
    for i, (x, term) in enumerate(zip(operands[1:], terms[1:]), start=1):
        x, term = _diagonals(x, term)
        keep = set(result) | {c for later in terms[i + 1 :] for c in later}
        current, labels = _contract(current, labels, x, term, keep)
    current, labels = _summed(current, labels, set(result))
    missing = [c for c in result if c not in labels]
    current = build.reshape(current, (*current.shape, *(1 for _ in missing)))
    labels = [*labels, *missing]
    current = build.permute(current, [labels.index(c) for c in result])
    return build.broadcast_to(current, [sizes.get(c, 1) for c in result])


einsum_operator = Operator("einsum", _einsum, shares=True)


@public("matmul", method=False)
def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sums of products by Einstein's convention: `einsum("bij,bjk->bik", a, b)`, with "..." for axes that broadcast.

    Also `einsum(a, [0, 1], b, [1, 2], [0, 2])`. Operands are contracted from left to right.
    """
    if not isinstance(equation, str):
        equation, operands = _from_sublists((equation, *operands))
    elif len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not operands:
        raise ValueError("einsum(): must provide at least one operand")
    if modes.autocast is not None:
        operands = modes.autocast.operands("einsum", *operands)
    for i, x in enumerate(operands):
        need_tensor("einsum", x, "operands", i + 1)
        check_dtype("einsum", operands[0], x)
    return einsum_operator(*operands, equation=equation.replace(" ", ""))


def _from_sublists(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

    def term(labels: Sequence[Any]) -> str:
        return "".join("..." if c is Ellipsis else letters[c] for c in labels)

    count = len(arguments) // 2
    equation = ",".join(term(arguments[2 * i + 1]) for i in range(count))
    if len(arguments) % 2:
        equation += "->" + term(arguments[-1])
    return equation, tuple(arguments[0 : 2 * count : 2])


# --- tensordot, inner, kron -------------------------------------------------------------------------------------------


def _tensordot(a: Node, b: Node, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> Node:
    rows = [i for i in range(a.ndim) if i not in of_a]
    columns = [i for i in range(b.ndim) if i not in of_b]
    inner = math.prod(a.shape[i] for i in of_a)
    left = build.reshape(build.permute(a, [*rows, *of_a]), (math.prod(a.shape[i] for i in rows), inner))
    right = build.reshape(build.permute(b, [*of_b, *columns]), (inner, math.prod(b.shape[i] for i in columns)))
    return build.reshape(build.matmul(left, right), [*(a.shape[i] for i in rows), *(b.shape[i] for i in columns)])


tensordot_operator = Operator("tensordot", _tensordot)


@public("matmul", method=False, out=True)
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Products summed over `dims` last axes of a and first of b, or over the two lists of axes given."""
    need_tensor("tensordot", a, "a")
    need_tensor("tensordot", b, "b", 2)
    if modes.autocast is not None:
        a, b = modes.autocast.operands("tensordot", a, b)
    check_dtype("tensordot", a, b)
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if dims < 0:
            raise RuntimeError(f"tensordot expects dims >= 0, but got dims={dims}")
        if dims > min(a.ndim, b.ndim):
            raise RuntimeError(f"tensordot expects dims < ndim_a or ndim_b, but got dims={dims}")
        of_a, of_b = tuple(range(a.ndim - dims, a.ndim)), tuple(range(dims))
    else:
        first, second = dims
        of_a = tuple(normalise_axis(i, a.ndim) for i in as_ints("tensordot", first, "dims"))
        of_b = tuple(normalise_axis(i, b.ndim) for i in as_ints("tensordot", second, "dims"))
    if len(of_a) != len(of_b):
        raise RuntimeError(f"both dimension lists should have same length, got {list(of_a)} and {list(of_b)}")
    for i, j in zip(of_a, of_b):  # an extent of 1 on one side stands for any: the other side is summed
        if a.layout.shape[i] == 1 and b.layout.shape[j] != 1:
            b = b.sum(j, keepdim=True)
        elif b.layout.shape[j] == 1 and a.layout.shape[i] != 1:
            a = a.sum(i, keepdim=True)
        if a.layout.shape[i] != b.layout.shape[j]:
            raise RuntimeError(
                f"contracted dimensions need to match, but first has size {a.layout.shape[i]} in dim {i} and second has size "
                f"{b.layout.shape[j]} in dim {j}"
            )
    return tensordot_operator(a, b, of_a=of_a, of_b=of_b)


@public("matmul", out=True)
def inner(input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    """Products summed over the last axes of both."""
    need_tensor("inner", input)
    need_tensor("inner", other, "other", 2)
    if not input.ndim or not other.ndim:
        return input * other
    if input.layout.shape[-1] != other.layout.shape[-1]:
        raise RuntimeError(
            f"inner() the last dimension must match on both input tensors but got shapes {list(input.layout.shape)} and "
            f"{list(other.layout.shape)}"
        )
    return tensordot(input, other, ([-1], [-1]))


def _kron(a: Node, b: Node) -> Node:
    rank = max(a.ndim, b.ndim)
    of_a, of_b = (1,) * (rank - a.ndim) + a.shape, (1,) * (rank - b.ndim) + b.shape
    left = build.reshape(a, [n for m in of_a for n in (m, 1)])
    right = build.reshape(b, [n for m in of_b for n in (1, m)])
    return build.reshape(left * right, [m * n for m, n in zip(of_a, of_b)])


kron_operator = Operator("kron", _kron)


@public("matmul", out=True)
def kron(input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    """The Kronecker product."""
    return kron_operator(need_tensor("kron", input), need_tensor("kron", other, "other", 2))


# --- cross, trace, chains, vector norms -------------------------------------------------------------------------------


def _cross(a: Node, b: Node, axis: int) -> Node:
    shape = broadcast_shapes(a.shape, b.shape)
    a, b = build.broadcast_to(a, shape), build.broadcast_to(b, shape)

    def rolled(x: Node, by: int) -> Node:
        return build.concat([build.slice_(x, axis, by, 3 - by), build.slice_(x, axis, 0, by)], axis)

    return rolled(a, 1) * rolled(b, 2) - rolled(a, 2) * rolled(b, 1)


cross_operator = Operator("linalg_cross", _cross)


def _linalg_cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:  # noqa: A002
    """The vector product of 3-vectors along an axis."""
    need_tensor("cross", input)
    need_tensor("cross", other, "other", 2)
    if input.ndim != other.ndim:
        raise RuntimeError(
            f"linalg.cross: inputs must have the same number of dimensions. Got {input.ndim} and {other.ndim}"
        )
    if modes.autocast is not None:
        input, other = modes.autocast.operands("linalg_cross", input, other)
    axis = normalise_axis(dim, input.ndim)
    if other.dtype is not input.dtype:
        raise RuntimeError(
            f"linalg.cross: expected scalar type {type_name(input.dtype)} but found {type_name(other.dtype)}"
        )
    if input.layout.shape[axis] != 3 or other.layout.shape[axis] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got {input.layout.shape[axis]} and "
            f"{other.layout.shape[axis]}"
        )
    return cross_operator(input, other, axis=axis)


public("matmul", name="cross", namespace="linalg", method=False, out=True)(_linalg_cross)


@public("matmul", out=True)
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:  # noqa: A002
    """The vector product of 3-vectors along `dim` (the first axis of extent 3 by default)."""
    need_tensor("cross", input)
    if dim is None:
        dim = next((i for i, n in enumerate(input.layout.shape) if n == 3), None)
        if dim is None:
            raise RuntimeError("no dimension of size 3 in input")
    return _linalg_cross(input, other, dim=dim)


@public("matmul")
def trace(input: Tensor) -> Tensor:  # noqa: A002
    """The sum of the diagonal of a matrix."""
    if need_tensor("trace", input).ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input.ndim}")
    if input.dtype.kind == "b":
        raise NotImplementedError("\"trace\" not implemented for 'Bool'")
    if modes.autocast is not None:
        (input,) = modes.autocast.operands("trace", input)  # noqa: A001
        return input.diagonal().sum(dtype=input.dtype if input.dtype.kind == "f" else None)
    return input.diagonal().sum()


@public("matmul", method=False, aliases=())
def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices, bracketed for the least work."""
    return _multi_dot(matrices)


def _multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices (the first and last may be vectors), bracketed for the least work."""
    tensors = tuple(tensors)
    if modes.autocast is not None:
        tensors = modes.autocast.operands("linalg.multi_dot", *tensors)
    if len(tensors) == 1:
        return tensors[0]
    if len(tensors) < 1:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {len(tensors)}")
    sizes = [1 if tensors[0].ndim == 1 else tensors[0].layout.shape[0]]
    sizes += [x.layout.shape[0] if x.ndim == 1 and i == 0 else x.layout.shape[-1] for i, x in enumerate(tensors)]
    if tensors[-1].ndim == 1:
        sizes[-1] = 1
    count = len(tensors)
    best: dict[tuple[int, int], tuple[int, int]] = {(i, i): (0, i) for i in range(count)}
    for width in range(1, count):
        for i in range(count - width):
            j = i + width
            best[i, j] = min(
                (best[i, k][0] + best[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )

    def joined(i: int, j: int) -> Tensor:
        return tensors[i] if i == j else matmul(joined(i, best[i, j][1]), joined(best[i, j][1] + 1, j))

    return joined(0, count - 1)


public("matmul", name="multi_dot", namespace="linalg", method=False, out=True)(_multi_dot)
