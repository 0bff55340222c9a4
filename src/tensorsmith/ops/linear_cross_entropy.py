"""linear_cross_entropy: a linear layer and the cross entropy of its results as one loss.

    loss = cross_entropy(x W^T + b, target)

With options the rows of x go through in chunks, each one operator that keeps nothing but its operands: the logits of one
chunk are in memory at a time, in the forward and in the backward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorsmith.core.dtypes import DType, bfloat16, float16, float32, float64, int64
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import need_tensors
from tensorsmith.ops.class_losses import CROSS_ENTROPY, check_labels, cross_entropy
from tensorsmith.ops.creation import array_of
from tensorsmith.ops.joining import cat
from tensorsmith.ops.linear import LINEAR, linear
from tensorsmith.ops.loss_reduction import MODES
from tensorsmith.ops.registry import public
from tensorsmith.tensor.tensor import Tensor

_POLICIES = ("auto", "accurate", "balanced", "compact")


@dataclass
class LinearCrossEntropyOptions:
    """How `linear_cross_entropy` goes through its rows in chunks.

    batch_chunk_size: rows a chunk (all where None and chunking_method is None)
    chunking_method:  "aspect_ratio:n": as many rows as make the logits of a chunk as large as the input, divided by n;
                      "auto" is n = 2
    allow_retain_graph, acc_policy, acc_dtype: PyTorch's; a graph may always be kept here, and half precision is always
                      computed in float32
    Raises ValueError for anything else.
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: DType | None = None

    def __post_init__(self) -> None:
        if self.acc_policy not in _POLICIES:
            raise ValueError(f"invalid acc_policy: {self.acc_policy!r}")
        if self.chunking_method not in (None, "auto"):
            name, colon, factor = self.chunking_method.partition(":")
            if name != "aspect_ratio" or (colon and not (factor.isdigit() and int(factor) > 0)):
                raise ValueError(f"invalid chunking_method: {self.chunking_method!r}")
        size = self.batch_chunk_size
        if size is not None and not (isinstance(size, int) and size > 0):
            raise ValueError(f"batch_chunk_size must be positive int or None, got {size!r}")
        if self.acc_dtype not in (None, float16, bfloat16, float32, float64):
            raise ValueError(f"acc_dtype must be a floating-point dtype or None, got {self.acc_dtype!r}")


def _rows_a_chunk(options: Any, rows: int, features: int, classes: int) -> int:
    method = options.chunking_method
    given = options.batch_chunk_size
    if method == "auto":
        method = "aspect_ratio:2" if given is None else None
    if method is None:
        return max(1, rows if given is None else min(given, rows))
    factor = int(method.partition(":")[2] or 1)
    wanted = -(-rows // max(1, -(-classes // max(features, 1))))
    found = min((1 << max(wanted - 1, 0).bit_length()) // factor, rows)
    if given is not None and min(given, rows) != found:
        raise ValueError(
            f"batch_chunk_size (={given}) and chunking_method ('{method}') give different chunk sizes ({given} vs {found}); "
            "pass only one."
        )
    return max(1, found)


def _chunk(x: Node, weight: Node, target: Node, *rest: Node, mode: str, ignore_index: int, has_bias: bool) -> Any:
    bias, factors = (rest[:1], rest[1:]) if has_bias else ((), rest)
    logits = LINEAR.build(x, weight, *bias)
    return CROSS_ENTROPY.build(logits, target, *factors, mode=mode, ignore_index=ignore_index, smoothing=0.0)


def _chunk_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], mode: str, ignore_index: int, has_bias: bool
) -> list[Node | None]:
    x, weight, target, *rest = inputs
    bias, factors = (rest[:1], rest[1:]) if has_bias else ([], rest)
    logits = LINEAR.build(x, weight, *bias)
    attrs = {"mode": mode, "ignore_index": ignore_index, "smoothing": 0.0}
    by_logits = CROSS_ENTROPY.override(attrs)([logits, target, *factors], outputs, grads)[0]
    by_x, by_weight, *by_bias = LINEAR.override({})([x, weight, *bias], [logits], [by_logits])
    return [by_x, by_weight, None, *by_bias, *[None] * len(factors)]


CHUNK = Operator("linear_cross_entropy", _chunk, _chunk_gradient)


def _total(target: Tensor, weight: Tensor | None, ignore_index: int, dtype: DType) -> Tensor:
    """The sum of the weights of the labels that count."""
    kept = target != ignore_index
    if weight is None:
        return kept.sum().to(dtype)
    return (weight.index_select(0, target.masked_fill(~kept, 0)) * kept).sum()


def _in_chunks(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, class_weight: Tensor | None, mode: str,
    ignore_index: int, rows: int,
) -> Tensor:  # fmt: skip
    rest = [each for each in (bias, class_weight) if each is not None]
    attrs = {"mode": "none" if mode == "none" else "sum", "ignore_index": ignore_index, "has_bias": bias is not None}
    found = []
    for start in range(0, max(x.layout.shape[0], 1), rows):
        labels = target[start : start + rows]
        try:
            found.append(call(CHUNK, (x[start : start + rows], weight, labels, *rest), attrs))
        except IndexError:
            for label in array_of(labels).tolist():
                if label != ignore_index and not 0 <= label < weight.layout.shape[0]:
                    raise IndexError(f"Target {label} is out of bounds.") from None
            raise
    if mode == "none":
        return cat(found)
    total = found[0]
    for part in found[1:]:
        total = total + part
    return total / _total(target, class_weight, ignore_index, x.dtype) if mode == "mean" else total


@public("losses", namespace="nn.functional", method=False, kind="composite")
def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,  # noqa: A002
    weight: Tensor | None = None, reduction: str = "mean", ignore_index: int | None = None,
    label_smoothing: float = 0.0, options: LinearCrossEntropyOptions | None = None,
) -> Tensor:  # fmt: skip
    """cross_entropy(linear(input, linear_weight, linear_bias), target).

    input (N, in) or (in); linear_weight (C, in), or (C, d1, ..., in) for a loss at (N, d1, ...); linear_bias like it
    without its last axis; target labels (N, d1, ...) or probabilities (N, C, d1, ...); weight (C).
    ignore_index: -100 where None, and only for labels. options: a `LinearCrossEntropyOptions`, with which the rows go
    through in chunks, so that the logits of all are never in memory (labels without smoothing and further axes only; else
    a warning, and at once).
    Raises RuntimeError for shapes that do not fit, IndexError for a label out of range.

    >>> x, w = ts.tensor([[1.0, 0.0]]), ts.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> ts.nn.functional.linear_cross_entropy(x, w, ts.tensor([1]))
    tensor(0.6931)
    """
    need_tensors("linear_cross_entropy", input=input, linear_weight=linear_weight, target=target)
    if input.ndim not in (1, 2):
        raise RuntimeError(f"expected input with dimensionality 1 or 2, got {input.ndim}")
    if linear_weight.ndim < 2:
        raise RuntimeError(f"expected linear_weight with dimensionality at least 2, got {linear_weight.ndim}")
    (*batch, features), (classes, *places, of_weight) = input.layout.shape, linear_weight.layout.shape
    if features != of_weight:
        raise RuntimeError(
            "expected equal input and linear_weight last dimensions (in_features), "
            f"got {features} and {of_weight}, respectively"
        )
    if linear_bias is not None and linear_bias.layout.shape != (classes, *places):
        raise RuntimeError(f"expected linear_bias shape {(classes, *places)}, got {linear_bias.layout.shape}")
    if places and not batch:
        raise RuntimeError(
            f"K-dimensional loss defined by linear_weight shape {linear_weight.layout.shape} requires batched input, "
            f"(N, {features}), got unbatched input with shape {input.layout.shape}"
        )
    shape = (*batch, classes, *places)
    if target.layout.shape == shape and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    ignored = -100 if ignore_index is None else ignore_index
    if options is not None:
        if places or reduction not in MODES or label_smoothing != 0.0 or target.dtype is not int64:
            warnings.warn(
                "linear_cross_entropy: ``options`` ignored; chunked path needs reduction in {'mean','sum','none'}, "
                "label_smoothing == 0, target.dtype == int64, out_features == (). Got "
                f"reduction={reduction!r}, label_smoothing={label_smoothing}, target.dtype={target.dtype}, "
                f"out_features={tuple(places)}.",
                stacklevel=2,
            )
        else:
            x, labels = (input, target) if batch else (input.unsqueeze(0), target.unsqueeze(0))
            check_labels(shape if batch else (1, classes), input.dtype, labels, weight)
            rows = _rows_a_chunk(options, x.layout.shape[0], features, classes)
            found = _in_chunks(x, linear_weight, labels, linear_bias, weight, reduction, ignored, rows)
            return found if batch or reduction != "none" else found.squeeze(0)
    matrix = linear_weight.reshape(-1, features) if places else linear_weight
    bias = linear_bias.reshape(-1) if places and linear_bias is not None else linear_bias
    logits = linear(input, matrix, bias)
    return cross_entropy(
        logits.reshape(shape) if places else logits, target, weight=weight, ignore_index=ignored, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip
