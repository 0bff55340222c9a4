"""Losses over classes: cross_entropy and nll_loss.

With the class axis c, labels t and weights w,

    nll_loss_i      = -w_t x_t
    cross_entropy_i = w_t (logsumexp(x) - x_t)          for labels
                    = -sum_c w_c q_c log_softmax(x)_c   for probabilities q

A mean divides by the sum of the weights of the labels (by the number of rows for probabilities). Rows whose label is
`ignore_index` count for nothing. The forward pass picks x_t by its position and does the rest of a row in one kernel;
the backward pass computes the softmax again, in one kernel, so that nothing of the size of x is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.dtypes import DType, int32, int64, type_name
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import need_floating, need_tensors
from tensorsmith.ops.creation import array_of
from tensorsmith.ops.loss_reduction import finish, reduction_mode, share
from tensorsmith.ops.registry import public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

_loss = public("losses", namespace="nn.functional", method=False)


def _class_axis(x: Node) -> int:
    return 1 if x.ndim > 1 else 0


def _along_classes(weight: Node, x: Node) -> Node:
    """Class weights in the shape of the input."""
    axis = _class_axis(x)
    shape = [x.shape[axis] if i == axis else 1 for i in range(x.ndim)]
    return build.broadcast_to(build.reshape(weight, shape), x.shape)


class _Labels:
    """Labels in the shape of the rows of x: which are counted, their positions, their weights."""

    def __init__(self, x: Node, target: Node, weight: Node | None, ignore_index: int) -> None:
        self.axis = _class_axis(x)
        self.rows = tuple(1 if i == self.axis else n for i, n in enumerate(x.shape))
        self.labels = build.reshape(build.cast(target, int64), self.rows)
        self.classes = x.shape[self.axis]
        self.counted = f.ne(self.labels, ignore_index)
        self.weight = weight
        # An ignored label may lie outside the classes; its row reads class 0 and is then dropped.
        self.safe = build.where(self.counted, self.labels, 0)
        self.x = x

    def pick(self, x: Node) -> Node:
        """x at the label of each row."""
        return x.graph.add(Primitive.GATHER, (x, self.safe), axis=self.axis)

    def weights(self) -> Node | None:
        """The weight of each row's label; None for 1."""
        if self.weight is None:
            return None
        flat = build.reshape(self.safe, (self.safe.numel,))
        picked = self.weight.graph.add(Primitive.GATHER, (self.weight, flat), axis=0)
        return build.wide(build.reshape(picked, self.rows))

    def total(self, dtype: DType) -> Node:
        """Sum of the weights of the rows counted."""
        weights = self.weights()
        ones = build.cast(self.counted, dtype)
        return build.reduce(ones if weights is None else ones * weights, "sum")

    def is_label(self) -> Node:
        """Where the class is the row's label, in the shape of x."""
        graph, axis = self.x.graph, self.axis
        shape = [self.classes if i == axis else 1 for i in range(self.x.ndim)]
        # int32 has the width of float32, which is what most inputs are
        classes = build.cast(build.reshape(graph.iota(self.classes), shape), int32)
        labels = build.cast(self.labels, int32)
        return f.eq(build.broadcast_to(classes, self.x.shape), build.broadcast_to(labels, self.x.shape))

    def scaled(self, values: Node) -> Node:
        """Row values times the row's weight, 0 where ignored."""
        weights = self.weights()
        return build.where(self.counted, values if weights is None else values * weights, 0)

    def row_gradient(self, grad: Node, mode: str, dtype: DType) -> Node:
        """The gradient of each row's term from that of the loss; 0 where ignored."""
        grad = build.wide(grad)
        if mode == "none":
            rows = build.reshape(grad, self.rows)
        else:
            if mode == "mean":
                grad = grad / self.total(dtype)
            rows = build.broadcast_to(build.reshape(grad, (1,) * len(self.rows)), self.rows)
        return build.where(self.counted, rows, 0)


def _reduced(values: Node, labels: _Labels, target: Node, mode: str, dtype: DType) -> Node:
    if mode == "none":
        return build.cast(build.reshape(values, _result_shape(labels.x, target)), dtype)
    total = build.reduce(values, "sum")
    return build.cast(total / labels.total(values.dtype) if mode == "mean" else total, dtype)


def _result_shape(x: Node, target: Node) -> tuple[int, ...]:
    return () if x.ndim == 1 else target.shape


# --- nll_loss ---------------------------------------------------------------------------------------------------------


def _nll(x: Node, target: Node, *weight: Node, mode: str, ignore_index: int) -> Node:
    need_floating("nll_loss_out_frame", x.dtype)
    labels = _Labels(x, target, weight[0] if weight else None, ignore_index)
    return _reduced(labels.scaled(-build.wide(labels.pick(x))), labels, target, mode, x.dtype)


def _nll_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], mode: str, ignore_index: int
) -> list[Node | None]:
    x, target, *weight = inputs
    labels = _Labels(x, target, weight[0] if weight else None, ignore_index)
    grad = labels.row_gradient(grads[0], mode, build.wide(x).dtype)
    weights = labels.weights()
    rows = -(grad if weights is None else grad * weights)
    return [build.cast(build.where(labels.is_label(), build.broadcast_to(rows, x.shape), 0), x.dtype)] + [None] * (
        len(inputs) - 1
    )


_nll_operator = Operator("nll_loss", _nll, _nll_gradient)


# --- cross entropy with labels ----------------------------------------------------------------------------------------


def _cross_entropy(x: Node, target: Node, *weight: Node, mode: str, ignore_index: int, smoothing: float) -> Node:
    need_floating("log_softmax_lastdim_kernel_impl" if x.ndim < 3 else "log_softmax_kernel_impl", x.dtype)
    labels = _Labels(x, target, weight[0] if weight else None, ignore_index)
    axis, picked, rows = (labels.axis,), build.wide(labels.pick(x)), build.wide(x)
    highest = build.reduce(rows, "max", axis, keepdim=True)
    shifted = rows - highest
    log_sum = f.log(build.reduce(f.exp(shifted), "sum", axis, keepdim=True))
    values = labels.scaled((1.0 - smoothing) * (log_sum + (highest - picked)))
    if smoothing:
        if weight:
            each = _along_classes(build.wide(weight[0]), rows)
            spread = log_sum * build.reduce(each, "sum", axis, keepdim=True)
            spread = spread - build.reduce(each * shifted, "sum", axis, keepdim=True)
        else:
            spread = log_sum * float(labels.classes) - build.reduce(shifted, "sum", axis, keepdim=True)
        values = values + build.where(labels.counted, spread * (smoothing / labels.classes), 0)
    return _reduced(values, labels, target, mode, x.dtype)


def _softmax(x: Node, axis: int) -> Node:
    exponentials = f.exp(x - build.reduce(x, "max", (axis,), keepdim=True))
    return exponentials / build.reduce(exponentials, "sum", (axis,), keepdim=True)


def _cross_entropy_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], mode: str, ignore_index: int,
    smoothing: float,
) -> list[Node | None]:  # fmt: skip
    x, target, *weight = inputs
    labels = _Labels(x, target, weight[0] if weight else None, ignore_index)
    rows = build.wide(x)
    grad = labels.row_gradient(grads[0], mode, rows.dtype)
    weights = labels.weights()
    by_label = grad if weights is None else grad * weights
    by_label = by_label * (1.0 - smoothing) if smoothing else by_label
    by_softmax = by_label
    if smoothing:
        spread = grad * (smoothing / labels.classes)
        if weight:
            each = _along_classes(build.wide(weight[0]), rows)
            by_softmax = by_softmax + spread * build.reduce(each, "sum", (labels.axis,), keepdim=True)
            spread = each * spread
        else:
            by_softmax = by_softmax + spread * float(labels.classes)
    result = _softmax(rows, labels.axis) * by_softmax
    result = result - build.where(labels.is_label(), build.broadcast_to(by_label, x.shape), 0)
    if smoothing:
        result = result - spread
    return [build.cast(result, x.dtype)] + [None] * (len(inputs) - 1)


CROSS_ENTROPY = Operator("cross_entropy", _cross_entropy, _cross_entropy_gradient)


# --- cross entropy with probabilities ---------------------------------------------------------------------------------


def _mixed(target: Node, smoothing: float, classes: int) -> Node:
    return target * (1.0 - smoothing) + smoothing / classes if smoothing else target


def _prob_parts(inputs: Sequence[Node], smoothing: float) -> tuple[Node, Node, int]:
    """The input, and the probabilities after smoothing times the class weights, both wide; the class axis."""
    x, target, *weight = inputs
    axis = _class_axis(x)
    dtype = build.promote([x, target, *weight])
    rows = build.wide(build.cast(x, dtype))
    mixed = _mixed(build.wide(build.cast(target, dtype)), smoothing, x.shape[axis])
    if weight:
        mixed = mixed * _along_classes(build.wide(build.cast(weight[0], dtype)), x)
    return rows, mixed, axis


def _prob_cross_entropy(x: Node, target: Node, *weight: Node, mode: str, smoothing: float) -> Node:
    need_floating("log_softmax_lastdim_kernel_impl" if x.ndim < 3 else "log_softmax_kernel_impl", x.dtype)
    rows, mixed, axis = _prob_parts((x, target, *weight), smoothing)
    shifted = rows - build.reduce(rows, "max", (axis,), keepdim=True)
    log_sum = f.log(build.reduce(f.exp(shifted), "sum", (axis,), keepdim=True))
    values = build.reduce(mixed * (log_sum - shifted), "sum", (axis,))
    return finish(values, mode, build.promote([x, target, *weight]))


def _prob_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], mode: str, smoothing: float
) -> list[Node | None]:
    x, target, *weight = inputs
    rows, mixed, axis = _prob_parts(inputs, smoothing)
    kept = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    grad = build.wide(grads[0])
    count = math.prod(kept)
    shaped = build.reshape(grad, kept if mode == "none" else (1,) * x.ndim)
    grad = build.broadcast_to(share(shaped, mode, kept, count), x.shape)
    by_input = grad * (_softmax(rows, axis) * build.reduce(mixed, "sum", (axis,), keepdim=True) - mixed)
    shifted = rows - build.reduce(rows, "max", (axis,), keepdim=True)
    log_sum = f.log(build.reduce(f.exp(shifted), "sum", (axis,), keepdim=True))
    terms = grad * (log_sum - shifted)
    by_target = terms * (1.0 - smoothing)
    parts: list[Node | None] = [build.cast(by_input, x.dtype)]
    if weight:
        by_target = by_target * _along_classes(build.wide(build.cast(weight[0], rows.dtype)), x)
        mixed = _mixed(build.wide(build.cast(target, rows.dtype)), smoothing, x.shape[axis])
        by_weight = build.reduce(terms * mixed, "sum", [i for i in range(x.ndim) if i != axis])
        parts += [build.cast(by_target, target.dtype), build.cast(by_weight, weight[0].dtype)]
    else:
        parts.append(build.cast(by_target, target.dtype))
    return parts


_prob_operator = Operator(
    "cross_entropy_of_probabilities", _prob_cross_entropy, _prob_gradient, node_name="CrossEntropy"
)


# --- what users call --------------------------------------------------------------------------------------------------


def check_labels(shape: tuple[int, ...], dtype: DType, target: Tensor, weight: Tensor | None) -> None:
    """Whether labels and class weights fit an input of this shape and dtype, with PyTorch's errors."""
    labels = target.layout.shape
    if not shape:
        raise ValueError(f"Expected 1 or more dimensions (got {len(shape)})")
    if len(shape) != 1 and shape[0] != (labels[0] if labels else 1):
        raise ValueError(
            f"Expected input batch_size ({shape[0]}) to match target batch_size ({labels[0] if labels else 1})."
        )
    if len(shape) <= 2:
        if len(labels) > 1:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        if len(shape) == 1 and math.prod(labels) != 1:
            raise ValueError(f"Expected input batch_size (1) to match target batch_size ({labels[0]}).")
        if len(shape) == 2 and not labels:
            raise RuntimeError(f"size mismatch (got input: {list(shape)}, target: {list(labels)})")
    else:
        if len(labels) != len(shape) - 1:
            raise RuntimeError(
                f"only batches of spatial targets supported (3D tensors) but got targets of dimension: {len(labels)}"
            )
        if labels != (shape[0], *shape[2:]):
            if len(shape) == 4:
                raise RuntimeError(f"size mismatch (got input: {list(shape)} , target: {list(labels)}")
            raise RuntimeError(f"Expected target size {[shape[0], *shape[2:]]}, got {list(labels)}")
    if target.dtype.name not in ("int64", "uint8"):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {type_name(target.dtype)}")
    classes = shape[1] if len(shape) > 1 else shape[0]
    if weight is not None:
        if weight.layout.shape != (classes,):
            raise RuntimeError(
                f"weight tensor should be defined either for all {classes} classes or no classes but got weight tensor "
                f"of shape: {list(weight.layout.shape)}"
            )
        if weight.dtype is not dtype:
            raise RuntimeError(f"expected scalar type {type_name(dtype)} but found {type_name(weight.dtype)}")


def _no_weight_gradient(weight: Tensor | None) -> None:
    if weight is not None and weight.layout.tracked:
        raise RuntimeError("the derivative for 'weight' is not implemented")


def _with_range_check(run: Callable[..., Tensor], operands: Sequence[Tensor], ignore_index: int) -> Tensor:
    """Run; a label out of range is named in PyTorch's words."""
    try:
        return run(*operands)
    except IndexError:
        classes = operands[0].layout.shape[1 if operands[0].ndim > 1 else 0]
        for label in array_of(operands[1]).reshape(-1).tolist():
            if label != ignore_index and not 0 <= label < classes:
                raise IndexError(f"Target {label} is out of bounds.") from None
        raise


@_loss
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,  # noqa: A002
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The cross entropy of softmax(input) with labels or with probabilities.

    input: (C), (N, C) or (N, C, d1, ...). target: int64 labels without the class axis, or probabilities in the shape of
    the input. weight (C). label_smoothing mixes the target with the uniform distribution. Half precision is computed in
    float32. Raises IndexError for a label out of range, ValueError and RuntimeError for shapes and dtypes that do not
    fit.
    """
    if weight is None and size_average is None and reduce is None:
        attrs = ("mode", reduction), ("ignore_index", ignore_index), ("smoothing", label_smoothing)
        try:
            entry = FAST.get((CROSS_ENTROPY, input.layout, target.layout, *attrs))
        except AttributeError:
            need_tensors("cross_entropy", input=input, target=target)
            raise
        if entry is not None:
            return _with_range_check(entry, (input, target), ignore_index)
    if modes.autocast is not None:
        input, target, weight = modes.autocast.operands("cross_entropy", input, target, weight)  # noqa: A001
    need_tensors("cross_entropy", input=input, target=target)
    mode = reduction_mode(reduction, size_average, reduce)
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    smoothing = float(label_smoothing)
    operands = (input, target) if weight is None else (input, target, weight)
    if input.layout.shape == target.layout.shape:
        if not target.dtype.is_floating_point:
            raise RuntimeError(
                f"Expected floating point type for target with class probabilities, got {type_name(target.dtype)}"
            )
        if ignore_index >= 0:
            raise RuntimeError("ignore_index is not supported for floating point target")
        return call(_prob_operator, operands, {"mode": mode, "smoothing": smoothing})
    _no_weight_gradient(weight)
    need_floating("log_softmax_lastdim_kernel_impl" if input.ndim < 3 else "log_softmax_kernel_impl", input.dtype)
    check_labels(input.layout.shape, input.dtype, target, weight)
    attributes: dict[str, Any] = {"mode": mode, "ignore_index": ignore_index, "smoothing": smoothing}
    return _with_range_check(lambda *xs: call(CROSS_ENTROPY, xs, attributes), operands, ignore_index)


@_loss
def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,  # noqa: A002
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-w_t x_t: the loss of log-probabilities x (C), (N, C) or (N, C, d1, ...) at labels t.

    Shapes, weight, ignore_index and errors as in `cross_entropy` with labels.
    """
    if weight is None and size_average is None and reduce is None:
        try:
            entry = FAST.get(
                (_nll_operator, input.layout, target.layout, ("mode", reduction), ("ignore_index", ignore_index))
            )
        except AttributeError:
            need_tensors("nll_loss", input=input, target=target)
            raise
        if entry is not None:
            return _with_range_check(entry, (input, target), ignore_index)
    if modes.autocast is not None:
        input, target, weight = modes.autocast.operands("nll_loss", input, target, weight)  # noqa: A001
    need_tensors("nll_loss", input=input, target=target)
    mode = reduction_mode(reduction, size_average, reduce)
    _no_weight_gradient(weight)
    check_labels(input.layout.shape, input.dtype, target, weight)
    operands = (input, target) if weight is None else (input, target, weight)
    attributes: dict[str, Any] = {"mode": mode, "ignore_index": ignore_index}
    return _with_range_check(lambda *xs: call(_nll_operator, xs, attributes), operands, ignore_index)
