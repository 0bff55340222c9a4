"""Losses of margins, pairs and triplets, and likelihoods of other distributions.

Each is one formula with a sum or mean, in one kernel where it has no picked label; gradients are derived.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import get_default_dtype, int64, type_name
from tensorsmith.core.shapes import broadcast_shapes
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import HALF, need_floating, need_tensors, refuse
from tensorsmith.ops.creation import array_of
from tensorsmith.ops.distances import pairwise_distance
from tensorsmith.ops.loss_reduction import finish, reduction_mode
from tensorsmith.ops.pointwise import check_dtypes
from tensorsmith.ops.registry import public
from tensorsmith.scalar import composites, functions as f
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

_loss = public("losses", namespace="nn.functional", method=False)


def _broadcast(*nodes: Node) -> list[Node]:
    """The operands in their promoted dtype, half precision widened, with one shape."""
    dtype = build.promote(nodes)
    shape = broadcast_shapes(*(n.shape for n in nodes))
    return [build.broadcast_to(build.wide(build.cast(n, dtype)), shape) for n in nodes]


def _at_least_zero(x: Node) -> Node:
    return composites.clamp(x, min=0.0)


def _terms(name: str, formula: Callable[..., Node], first: Fn | None = None) -> Operator:
    """A loss from the formula of its terms. `first` is done on the operands as they are, and may refuse their dtype."""

    def build_loss(*operands: Node, mode: str, **attrs: Any) -> Node:
        if first is not None:
            check_dtypes(first, operands[:1] if first is Fn.NEG else operands[:2])
        terms = formula(*_broadcast(*operands), **attrs)
        dtype = build.promote(operands)
        if dtype.kind in "iub":
            if first is not Fn.NEG:
                dtype = terms.dtype  # a margin makes floats of integers
            elif mode == "mean":
                raise RuntimeError(
                    f"{name}: mean(): could not infer output dtype. Input dtype must be either a floating point or complex "
                    f"dtype. Got: {type_name(dtype)}"
                )
        return finish(terms, mode, dtype)

    return Operator(name, build_loss)


def _run(
    operator: Operator, operands: dict[str, Tensor], modes_given: tuple[str, bool | None, bool | None], **attrs: Any
) -> Tensor:
    need_tensors(operator.name, **operands)
    return call(operator, tuple(operands.values()), {"mode": reduction_mode(*modes_given), **attrs})


_soft_margin = _terms("soft_margin_loss", lambda x, y: f.softplus(-(x * y)))


@_loss
def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,  # noqa: A002
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """log(1 + e**(-x y)) with targets 1 and -1."""
    return _run(_soft_margin, {"input": input, "target": target}, (reduction, size_average, reduce))


_ranking = _terms("margin_ranking_loss", lambda a, b, y, margin: _at_least_zero((b - a) * y + margin), Fn.SUB)


@_loss
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """max(0, -y (x1 - x2) + margin). RuntimeError where the operands differ in their number of axes."""
    operands = {"input1": input1, "input2": input2, "target": target}
    need_tensors("margin_ranking_loss", **operands)
    if not input1.ndim == input2.ndim == target.ndim:
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.shape}, input2: {input2.shape}, target: {target.shape} "
        )
    return _run(_ranking, operands, (reduction, size_average, reduce), margin=float(margin))


def _hinge(x: Node, target: Node, margin: float) -> Node:
    apart = build.where(f.ne(target, 1), _at_least_zero(margin - x), 0)
    return apart + build.where(f.ne(target, -1), x, 0)


_hinge_operator = _terms("hinge_embedding_loss", _hinge, Fn.NEG)


@_loss
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: bool | None = None,  # noqa: A002
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """x where the target is 1, max(0, margin - x) where it is -1."""
    operands = {"input": input, "target": target}
    return _run(_hinge_operator, operands, (reduction, size_average, reduce), margin=float(margin))


def _cosine(a: Node, b: Node, target: Node, mode: str, margin: float) -> Node:
    dtype = build.promote([a, b])
    dtype = dtype if dtype.kind in "fc" else get_default_dtype()
    first, second = _broadcast(a, b)
    axis = (target.ndim,)
    sizes = [build.reduce(n * n, "sum", axis) + 1e-12 for n in (first, second)]
    cosine = build.reduce(first * second, "sum", axis) * f.rsqrt(sizes[0] * sizes[1])
    labels = build.broadcast_to(target, cosine.shape)
    together = build.where(f.eq(labels, 1), 1.0 - cosine, 0)
    return finish(together + build.where(f.eq(labels, -1), _at_least_zero(cosine - margin), 0), mode, dtype)


_cosine_operator = Operator("cosine_embedding_loss", _cosine)


@_loss
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """1 - cos(x1, x2) where the target is 1, max(0, cos(x1, x2) - margin) where it is -1.

    input1 and input2 (N, D) with target (N), or (D) with a zero-dim target; RuntimeError for other shapes.
    """
    operands = {"input1": input1, "input2": input2, "target": target}
    need_tensors("cosine_embedding_loss", **operands)
    if target.ndim > 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if not input1.ndim == input2.ndim == target.ndim + 1:
        raise RuntimeError(
            f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found inputs with sizes "
            f"{list(input1.layout.shape)} and {list(input2.layout.shape)}."
        )
    return _run(_cosine_operator, operands, (reduction, size_average, reduce), margin=float(margin))


_triplet = _terms("triplet_margin_loss", lambda near, far, margin: _at_least_zero(near - far + margin))


@_loss
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """max(0, |a - p| - |a - n| + margin) in the p-norm; with swap the smaller of |a - n| and |p - n| counts.

    Raises ValueError for a margin that is not positive.
    """
    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=lambda a, b: pairwise_distance(a, b, p, eps), margin=margin,
        swap=swap, reduction=reduction_mode(reduction, size_average, reduce),
    )  # fmt: skip


@_loss
def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0, swap: bool = False,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`triplet_margin_loss` with another distance, by default `pairwise_distance`."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    need_tensors("triplet_margin_loss", anchor=anchor, positive=positive, negative=negative)
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: "
            f"anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        )
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return _run(_triplet, {"near": near, "far": far}, (reduction, None, None), margin=float(margin))


# --- likelihoods --------------------------------------------------------------------------------------------------------


def _poisson(x: Node, target: Node, log_input: bool, full: bool, eps: float) -> Node:
    loss = f.exp(x) - target * x if log_input else x - target * f.log(x + eps)
    if full:  # Stirling's approximation of log(target!)
        large = f.gt(target, 1)
        t = build.where(large, target, 1)
        loss = loss + build.where(large, t * f.log(t) - t + 0.5 * f.log(t * (2.0 * math.pi)), 0)
    return loss


_poisson_operator = _terms("poisson_nll_loss", _poisson, Fn.SUB)


@_loss
def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False,  # noqa: A002
    size_average: bool | None = None, eps: float = 1e-8, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """e**x - t x for the logarithm x of the rate, x - t log(x + eps) for the rate; full adds Stirling's log(t!)."""
    operands = {"input": input, "target": target}
    attrs = {"log_input": bool(log_input), "full": bool(full), "eps": float(eps)}
    return _run(_poisson_operator, operands, (reduction, size_average, reduce), **attrs)


def _gaussian(x: Node, target: Node, var: Node, full: bool, eps: float) -> Node:
    # As in PyTorch the bound changes the value of a variance but not its derivative, which is that of the bounded one.
    difference = x - target
    loss = (f.log(var) + difference * difference / var) * 0.5
    return loss + 0.5 * math.log(2.0 * math.pi) if full else loss


def _bounded(var: Node, eps: float) -> Node:
    return f.maximum(var, build.cast(eps, var.dtype, var.graph))


_gaussian_operator = _terms("gaussian_nll_loss", _gaussian)
_bounded_operator = Operator(
    "bounded_variance", _bounded, lambda inputs, outputs, grads, eps: [grads[0]], pointwise=True, node_name="Clone"
)


@_loss
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",  # noqa: A002
) -> Tensor:
    """(log v + (x - t)**2 / v) / 2 with v = max(var, eps); full adds log(2 pi) / 2.

    var: a number, or a tensor of the shape of the input, or without its last axis, or with one extent of 1.
    Raises ValueError for a negative variance, another shape or an unknown reduction.
    """
    need_tensors("gaussian_nll_loss", input=input, target=target)
    if isinstance(var, int | float):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = input.detach() * 0 + var
    need_tensors("gaussian_nll_loss", var=var)
    if modes.tracer is None and (array_of(var) < 0).any():
        raise ValueError("var has negative entry/entries")
    shape, own = input.layout.shape, var.layout.shape
    if own != shape:
        if shape[:-1] == own:
            var = var.unsqueeze(-1)
        elif len(own) != len(shape) or sum(b for a, b in zip(shape, own) if a != b) != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    bounded = call(_bounded_operator, (var,), {"eps": float(eps)})
    operands = {"input": input, "target": target, "var": bounded}
    return _run(_gaussian_operator, operands, (reduction, None, None), full=bool(full), eps=float(eps))


# --- several labels -----------------------------------------------------------------------------------------------------


def _multilabel(x: Node, target: Node, *weight: Node, mode: str) -> Node:
    dtype = build.promote([x, target, *weight])
    z, t, *factors = _broadcast(x, target, *weight)
    terms = (1.0 - t) * z + f.softplus(-z)
    if factors:
        terms = terms * factors[0]
    last = terms.ndim - 1
    return finish(build.reduce(terms, "sum", (last,)) / float(terms.shape[last]), mode, dtype)


_multilabel_operator = Operator("multilabel_soft_margin_loss", _multilabel)


@_loss
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,  # noqa: A002
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The mean over the classes (last axis) of binary cross entropies with logits, times the class weights."""
    operands = {"input": input, "target": target} | ({} if weight is None else {"weight": weight})
    return _run(_multilabel_operator, operands, (reduction, size_average, reduce))


def _matrix(x: Node) -> Node:
    """(classes) or a single value as one row."""
    return x if x.ndim == 2 else build.reshape(x, (1, x.numel))


def _multi_margin(x: Node, target: Node, *weight: Node, mode: str, p: int, margin: float) -> Node:
    need_floating("multi_margin_loss_cpu", x.dtype)
    refuse("multi_margin_loss_cpu_kernel", x.dtype, "", HALF)
    rows = build.wide(_matrix(x))
    count, classes = rows.shape
    labels = build.reshape(build.cast(target, int64), (count, 1))
    graph = x.graph
    own = graph.add(Primitive.GATHER, (rows, labels), axis=1)
    short = _at_least_zero(rows - own + margin)
    terms = short * short if p == 2 else short
    if weight:
        picked = graph.add(Primitive.GATHER, (weight[0], build.reshape(labels, (count,))), axis=0)
        terms = terms * build.reshape(build.wide(picked), (count, 1))
    other = f.ne(build.reshape(graph.iota(classes), (1, classes)), labels)
    values = build.reduce(build.where(other, terms, 0), "sum", (1,)) / float(classes)
    return finish(build.reshape(values, target.shape), mode, x.dtype)


_multi_margin_operator = Operator("multi_margin_loss", _multi_margin)


@_loss
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,  # noqa: A002
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The mean over the classes other than t of w_t max(0, margin - x_t + x_c)**p.

    input (N, C) or (C), target (N) or zero-dim, p 1 or 2, weight (C).
    Raises ValueError for another p, RuntimeError for shapes that do not fit, IndexError for a label out of range.
    """
    operands = {"input": input, "target": target}
    need_tensors("multi_margin_loss", **operands)
    mode = reduction_mode(reduction, size_average, reduce)
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    shape = input.layout.shape
    if len(shape) > 2 or not math.prod(shape[1:]):
        raise RuntimeError(
            f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(shape)}"
        )
    rows = shape[0] if len(shape) == 2 else 1
    if target.ndim > 1 or target.numel() != rows:
        raise RuntimeError(f"inconsistent target size, expected {rows} but got {list(target.layout.shape)}")
    if weight is not None and weight.ndim != 1:
        raise ValueError("weight must be one-dimensional")
    if target.dtype is not int64:
        raise RuntimeError(f"expected scalar type Long but found {type_name(target.dtype)}")
    if weight is not None:
        classes = shape[-1] if shape else 1
        if weight.layout.shape != (classes,):
            raise RuntimeError(f"inconsistent weight size, expected {classes} but got {list(weight.layout.shape)}")
        operands["weight"] = weight
    attrs = {"mode": mode, "p": int(p), "margin": float(margin)}
    try:
        return call(_multi_margin_operator, tuple(operands.values()), attrs)
    except IndexError as error:
        raise RuntimeError(f"multi_margin_loss: target out of range: {error}") from None


def _multilabel_margin(x: Node, target: Node, mode: str) -> Node:
    need_floating("multilabel_margin_loss_forward_out_frame", x.dtype)
    refuse("multilabel_margin_loss_forward_out_frame", x.dtype, "", HALF)
    rows, labels = build.wide(_matrix(x)), _matrix(build.cast(target, int64))
    graph, (count, classes) = x.graph, rows.shape
    listed = build.cast(f.ge(labels, 0), int64)
    listed = f.ne(graph.add(Primitive.SCAN, (listed,), kind="min", axis=1), 0)  # up to the first negative label
    labels = build.where(listed, labels, 0)
    each_class = build.reshape(graph.iota(classes), (1, 1, classes))
    column = build.reshape(labels, (count, classes, 1))
    counted = build.reshape(listed, (count, classes, 1))
    hit = f.logical_and(f.eq(each_class, column), counted)
    is_label = build.reduce(build.cast(hit, int64), "max", (1,), keepdim=True)
    own = build.reshape(graph.add(Primitive.GATHER, (rows, labels), axis=1), (count, classes, 1))
    short = _at_least_zero(build.reshape(rows, (count, 1, classes)) - own + 1.0)
    terms = build.where(f.logical_and(counted, f.eq(is_label, 0)), short, 0)
    values = build.reduce(terms, "sum", (1, 2)) / float(classes)
    return finish(build.reshape(values, target.shape[:-1]), mode, x.dtype)


_multilabel_margin_operator = Operator("multilabel_margin_loss", _multilabel_margin)


@_loss
def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,  # noqa: A002
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The sum over labels t and other classes c of max(0, 1 - x_t + x_c), divided by the number of classes.

    input and target (N, C) or (C); a row of the target lists labels, up to the first that is negative.
    Raises RuntimeError for shapes or dtypes that do not fit, IndexError for a label out of range.
    """
    operands = {"input": input, "target": target}
    need_tensors("multilabel_margin_loss", **operands)
    mode = reduction_mode(reduction, size_average, reduce)
    shape = input.layout.shape
    if len(shape) > 2 or not math.prod(shape[1:]):
        raise RuntimeError(
            f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(shape)}"
        )
    if target.layout.shape != shape:
        raise RuntimeError(f"inconsistent target size: {list(target.layout.shape)} for input of size: {list(shape)}")
    if target.dtype is not int64:
        raise RuntimeError(f"expected scalar type Long but found {type_name(target.dtype)}")
    try:
        return call(_multilabel_margin_operator, (input, target), {"mode": mode})
    except IndexError:
        raise IndexError("multilabel_margin_loss: a label of the target is out of range") from None
