"""Attention: `scaled_dot_product_attention`.

It is one kernel that never holds the scores, forward and backward (`ir/attention.py`), with dropout too: random bits are made
from a weight's place, again in the backward pass. Where an extent is zero, and where everything is dropped, it is made of its
parts: two products around the weights of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorsmith.core.dtypes import bool_, int64, type_name
from tensorsmith.core.shapes import broadcast_shapes
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.attention import attention, gradient
from tensorsmith.ir.dropout import streams, whole_groups
from tensorsmith.ir.graph import Node
from tensorsmith.ops.attention_backends import takes_one_kernel
from tensorsmith.ops.dropout import dropout
from tensorsmith.ops.joining import repeat_interleave
from tensorsmith.ops.matmul import matmul
from tensorsmith.ops.random import draw
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.ops.softmax import softmax_node
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _weights(scores: Node, *masks: Node, causal: bool) -> Node:
    """Softmax of the scores along the last axis, without what the masks hide; a row that is hidden wholly gives zeros."""
    graph = scores.graph
    for mask in masks:
        if mask.dtype is bool_:
            scores = build.where(mask, scores, -math.inf)
        else:
            scores = scores + build.cast(mask, scores.dtype)
    if causal:
        rows, columns = scores.shape[-2:]
        row, column = (build.reshape(graph.iota(n), shape) for n, shape in ((rows, (rows, 1)), (columns, (1, columns))))
        scores = build.where(f.ge(build.cast(row, int64), build.cast(column, int64)), scores, -math.inf)
    if not scores.numel:
        return scores
    axis = scores.ndim - 1
    hidden = f.eq(build.reduce(scores, "max", (axis,), keepdim=True), -math.inf)
    # The scores of such a row are made zero first: the softmax of -inf alone has no gradient that a zero could stop.
    return build.where(hidden, 0.0, softmax_node(build.where(hidden, 0.0, scores), axis))


weights_operator = Operator("attention_weights", _weights)


def _operands(q: Node, k: Node, v: Node, others: Sequence[Node], dropout: float) -> list[Node]:
    """Wide, with the same leading axes; of dropout's key and offset the streams of the batches."""
    masks = others[:-2] if dropout else others
    shapes = [x.shape[:-2] for x in (q, k, v, *masks)]
    lead = shapes[0]
    for shape in shapes[1:]:
        lead = broadcast_shapes(lead, shape)
    found = [build.broadcast_to(build.wide(x), (*lead, *x.shape[-2:])) for x in (q, k, v)]
    rows, keys = q.shape[-2], k.shape[-2]
    for mask in masks:
        mask = mask if mask.dtype is bool_ else build.cast(mask, found[0].dtype)
        found.append(build.broadcast_to(mask, (*lead, rows, keys)))
    if dropout:
        found.append(streams(others[-2], others[-1], lead, rows, keys))
    return found


def _fused(
    q: Node, k: Node, v: Node, *others: Node, causal: bool, scale: float, beside: bool, dropout: float = 0.0
) -> tuple[Node, Node]:
    wide_q, wide_k, wide_v, *rest = _operands(q, k, v, others, dropout)
    out, lse = attention(wide_q, wide_k, wide_v, rest, causal, scale, beside, dropout)
    return build.cast(out, q.dtype), lse


def _fused_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], causal: bool, scale: float,
    beside: bool, dropout: float = 0.0,
) -> list[Node | None]:  # fmt: skip
    q, k, v, *others = inputs
    out, lse = outputs
    operands = _operands(q, k, v, others, dropout)
    wide, grad = build.cast(out, lse.dtype), build.cast(grads[0], lse.dtype)
    found = gradient(operands, wide, lse, (grad, grads[1]), causal, scale, beside, dropout)
    return [*found[: len(inputs) - 2], None, None] if dropout else found


fused_operator = Operator(
    "scaled_dot_product_attention", _fused, _fused_gradient, node_name="ScaledDotProductAttentionBackward0"
)


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, causal: bool) -> None:
    name = "scaled_dot_product_attention"
    tensors = {"query": query, "key": key, "value": value}
    for position, (argument, tensor) in enumerate(tensors.items()):
        need_tensor(name, tensor, argument, position + 1)
    if len({t.dtype for t in tensors.values()}) > 1:
        found = " ".join(f"{argument}.dtype: {tensor.dtype.name}" for argument, tensor in tensors.items())
        raise RuntimeError(f"{name}: Expected query, key, and value to have the same dtype, but got {found} instead.")
    if any(t.ndim < 2 for t in tensors.values()):
        found = " ".join(f"{argument}.dim: {tensor.ndim}" for argument, tensor in tensors.items())
        raise RuntimeError(f"{name}: Expected query, key, and value to all be at least 2 dimensional, but got {found} instead.")
    if query.dtype.kind != "f":
        error = NotImplementedError if query.dtype.is_complex else RuntimeError
        raise error(f"{name}: expected scalar type Float but found {type_name(query.dtype)}")
    if mask is not None:
        need_tensor(name, mask, "attn_mask", 4)
        if causal:
            raise RuntimeError(f"{name}: Explicit attn_mask should not be set when is_causal=True")
        if mask.dtype is not bool_ and mask.dtype.kind != "f":
            raise RuntimeError(
                f"{name}: Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
                f"{mask.dtype.name} and query.dtype: {query.dtype.name} instead."
            )
    if not 0.0 <= dropout_p <= 1.0:
        raise RuntimeError(f"{name}: dropout probability has to be between 0 and 1, but got {dropout_p}")


def _fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the kernel's results have the shape of the operands; a mask may add axes, and broadcast queries."""
    q, k, v = (t.layout.shape for t in (query, key, value))
    if q[-1] != k[-1] or k[-2] != v[-2]:
        return False
    lead = [q[:-2], k[:-2], v[:-2]]
    if mask is not None:
        shape = (1, 1, *mask.layout.shape)
        if any(n not in (1, m) for n, m in zip(shape[-2:], (q[-2], k[-2]))):
            return False
        lead.append(mask.layout.shape[:-2])
    try:
        for each in lead[1:]:
            lead[0] = broadcast_shapes(lead[0], each)
    except RuntimeError:
        return False
    return lead[0] == broadcast_shapes(q[:-2], broadcast_shapes(k[:-2], v[:-2]))


def _check_sizes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """RuntimeError for sizes that do not fit, by the names of the operands."""
    name = "scaled_dot_product_attention"
    q, k, v = (t.layout.shape for t in (query, key, value))
    if q[-1] != k[-1]:
        raise RuntimeError(f"{name}: query has {q[-1]} features and key {k[-1]}, of shapes {list(q)} and {list(k)}")
    if k[-2] != v[-2]:
        raise RuntimeError(f"{name}: there are {k[-2]} keys and {v[-2]} values, of shapes {list(k)} and {list(v)}")
    scores: tuple[int, ...] = (q[-2], k[-2])
    try:
        scores = (*broadcast_shapes(q[:-2], broadcast_shapes(k[:-2], v[:-2])), *scores)
    except RuntimeError as error:
        raise RuntimeError(f"{name}: {error} (the leading axes of {list(q)}, {list(k)} and {list(v)})") from None
    if mask is not None:
        try:
            fits = broadcast_shapes(scores, mask.layout.shape)[-2:] == scores[-2:]
        except RuntimeError:
            fits = False
        if not fits:
            raise RuntimeError(
                f"{name}: attn_mask of shape {list(mask.layout.shape)} does not broadcast to the scores {list(scores)}: "
                f"(..., {q[-2]} queries, {k[-2]} keys)"
            )


def _weight_words(query: Tensor, key: Tensor, *others: Tensor) -> int:
    """How many random words the weights take."""
    lead = query.layout.shape[:-2]
    for each in (key, *others):
        lead = broadcast_shapes(lead, each.layout.shape[:-2])
    return math.prod(lead) * query.layout.shape[-2] * whole_groups(key.layout.shape[-2])


@public("attention", namespace="nn.functional", method=False)
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(query keyᵀ · scale + mask) value: every query takes a weighted mean of the values.

    query: (..., L, E); key: (..., S, E); value: (..., S, F), leading axes broadcast; the result: (..., L, F)
    attn_mask: bool, true where a key takes part, or a number that is added to the scores; broadcast to (..., L, S)
    dropout_p: weights are dropped with this probability, always (there is no `training` here)
    is_causal: query i sees keys 0 to i only
    scale: 1 / sqrt(E) where it is not given
    enable_gqa: heads (axis -3) of key and value are repeated to the number of the query's heads

    One kernel, forward and backward, whose memory grows with L and S but not with L S.
    A query whose keys are all masked gets zeros, as do its gradients. RuntimeError for dtypes or sizes that do not fit, and
    for a mask given together with is_causal.

        >>> q = ts.ones(1, 2, 4)
        >>> ts.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).shape
        tensorsmith.Size([1, 2, 4])
    """
    if modes.autocast is not None:
        query, key, value, attn_mask = modes.autocast.operands("scaled_dot_product_attention", query, key, value, attn_mask)
    _check(query, key, value, attn_mask, dropout_p, is_causal)
    if enable_gqa:
        heads = [t.layout.shape[-3] if t.ndim > 2 else 1 for t in (query, key, value)]
        if any(n == 0 or heads[0] % n for n in heads[1:]):
            raise RuntimeError(
                "scaled_dot_product_attention: Number of heads in key and value must divide the number of heads in query, but "
                f"got {heads[1]} and {heads[2]} for {heads[0]}"
            )
        if query.ndim > 2:
            key, value = (repeat_interleave(t, heads[0] // n, -3) for t, n in ((key, heads[1]), (value, heads[2])))
    width = query.layout.shape[-1]
    factor = scale if scale is not None else 1.0 / math.sqrt(width) if width else 1.0
    fits = _fits(query, key, value, attn_mask)
    if not fits:
        _check_sizes(query, key, value, attn_mask)
    filled = query.numel() and key.numel() and value.numel()
    if takes_one_kernel(bool(fits and filled and dropout_p < 1.0)):
        given = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
        if dropout_p:
            given += draw(_weight_words(*given))
        strides = query.layout.strides
        beside = query.ndim == 4 and strides[1] < strides[2]  # the result lies as the query does
        attrs = {"causal": bool(is_causal), "scale": float(factor), "beside": beside, "dropout": float(dropout_p)}
        return fused_operator(*given, **attrs)[0]  # type: ignore[no-any-return]
    scores = matmul(query * factor, key.transpose(-2, -1))
    masks = () if attn_mask is None else (attn_mask,)
    weights = weights_operator(scores, *masks, causal=bool(is_causal))
    return matmul(dropout(weights, dropout_p) if dropout_p else weights, value)
