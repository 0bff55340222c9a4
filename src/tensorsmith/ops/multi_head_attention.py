"""`multi_head_attention_forward`: projections to heads, attention in each, and a projection back."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from tensorsmith.core.dtypes import DType, bool_
from tensorsmith.ops.attention import scaled_dot_product_attention
from tensorsmith.ops.creation import zeros
from tensorsmith.ops.dropout import dropout
from tensorsmith.ops.joining import cat
from tensorsmith.ops.linear import linear
from tensorsmith.ops.matmul import bmm
from tensorsmith.ops.padding import pad
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.ops.selecting import where
from tensorsmith.ops.softmax import softmax
from tensorsmith.tensor.tensor import Tensor


def added_mask(mask: Tensor | None, name: str, dtype: DType, beside: DType | None = None, other: str = "") -> Tensor | None:
    """A mask as numbers that are added to the scores: -inf where a bool mask is true.

    beside, other: dtype and name of a mask that is to be of the same kind; a warning where it is not.
    Raises AssertionError for a dtype that is neither bool nor floating.
    """
    if mask is None:
        return None
    if mask.dtype is not bool_ and not mask.dtype.is_floating_point:
        raise AssertionError(f"only bool and floating types of {name} are supported")
    if beside is not None and mask.dtype is not beside:
        warnings.warn(
            f"Support for mismatched {name} and {other} is deprecated. Use same type for both instead.", stacklevel=3
        )
    if mask.dtype is not bool_:
        return mask
    return where(mask, zeros((), dtype=dtype, device=mask.device) - math.inf, zeros((), dtype=dtype, device=mask.device))


def _is_batched(
    query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, mask: Tensor | None, heads: int
) -> bool:
    """Whether there is an axis of the batch; AssertionError for axes that are not consistent."""
    if query.ndim not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {query.ndim}-D query tensor"
        )
    axes = query.ndim
    kind = f"For {'batched' if axes == 3 else 'unbatched'} ({axes}-D) `query`, expected "
    if key.ndim != axes or value.ndim != axes:
        raise AssertionError(
            f"{kind}`key` and `value` to be {axes}-D but found {key.ndim}-D and {value.ndim}-D tensors respectively"
        )
    if padding is not None and padding.ndim != axes - 1:
        raise AssertionError(
            f"{kind}`key_padding_mask` to be `None` or {axes - 1}-D but found {padding.ndim}-D tensor instead"
        )
    if mask is not None and mask.ndim not in (2, 3):
        raise AssertionError(f"{kind}`attn_mask` to be `None`, 2-D or 3-D but found {mask.ndim}-D tensor instead")
    if mask is not None and mask.ndim == 3 and axes == 2:
        expected = (heads, query.shape[0], key.shape[0])
        if tuple(mask.shape) != expected:
            raise AssertionError(f"Expected `attn_mask` shape to be {expected} but got {mask.shape}")
    return axes == 3


def _projected(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor | None, separate: Sequence[Tensor | None] | None,
    bias: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Queries, keys and values: one product for those that are made of the same tensor and of one weight."""
    biases = [None] * 3 if bias is None else list(bias.chunk(3))
    if separate is not None:
        for name, each in zip("qkv", separate):
            if each is None:
                raise AssertionError(f"use_separate_proj_weight is True but {name}_proj_weight is None")
        return [linear(x, w, b) for x, w, b in zip((query, key, value), separate, biases)]  # type: ignore[arg-type]
    if weight is None:
        raise AssertionError("use_separate_proj_weight is False but in_proj_weight is None")
    width = query.shape[-1]
    if query is key and key is value:
        return list(linear(query, weight, bias).split(width, -1))
    if key is value:
        first, rest = weight.split([width, 2 * width])
        first_bias, rest_bias = (None, None) if bias is None else bias.split([width, 2 * width])
        return [linear(query, first, first_bias), *linear(key, rest, rest_bias).split(width, -1)]
    return [linear(x, w, b) for x, w, b in zip((query, key, value), weight.chunk(3), biases)]


def _check_static(name: str, given: Tensor, batches: int, width: int) -> Tensor:
    for axis, expected in ((0, batches), (2, width)):
        if given.shape[axis] != expected:
            raise AssertionError(f"expecting {name}.size({axis}) of {expected}, but got {given.shape[axis]}")
    return given


@public("attention", namespace="nn.functional", method=False, kind="composite")
def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True,
    key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None, static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention in `num_heads` heads: `nn.MultiheadAttention` as a function. The result, and the weights if wanted.

    query (L, N, E), key and value (S, N, .), or without the axis of the batch; the result: (L, N, E)
    in_proj_weight (3 E, E): the three projections in one; with `use_separate_proj_weight` q_, k_ and v_proj_weight instead
    bias_k, bias_v (1, 1, E): a key and a value behind the others; add_zero_attn: another one, of zeros
    key_padding_mask (N, S): keys to leave out (bool: true), or numbers added to their scores
    attn_mask (L, S) or (N num_heads, L, S): the same for every query
    static_k, static_v (N num_heads, S, E / num_heads): instead of the projected keys and values
    is_causal: says that `attn_mask` is the causal one, which then need not be read
    The weights are (N, L, S), the mean of the heads, or with average_attn_weights=False (N, num_heads, L, S).

    AssertionError and RuntimeError as PyTorch's, for shapes and masks that do not fit.

        >>> x, w = ts.ones(3, 1, 4), ts.ones(12, 4)
        >>> y, weights = ts.nn.functional.multi_head_attention_forward(
        ...     x, x, x, 4, 2, w, None, None, None, False, 0.0, ts.ones(4, 4), None)
        >>> y.shape, weights.shape
        (tensorsmith.Size([3, 1, 4]), tensorsmith.Size([1, 3, 3]))
    """
    name = "multi_head_attention_forward"
    for position, (argument, each) in enumerate({"query": query, "key": key, "value": value}.items(), 1):
        need_tensor(name, each, argument, position)
    batched = _is_batched(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        same = key is query, value is key
        query = query.unsqueeze(1)
        key = query if same[0] else key.unsqueeze(1)
        value = key if same[1] else value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, batch, width = query.shape
    keys = key.shape[0]
    beside = None if attn_mask is None else attn_mask.dtype
    key_padding_mask = added_mask(key_padding_mask, "key_padding_mask", query.dtype, beside, "attn_mask")
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
            "`generate_square_subsequent_mask` to create this mask."
        )
    if is_causal and key_padding_mask is None and not need_weights:
        attn_mask = None  # attention makes it itself
    else:
        attn_mask = added_mask(attn_mask, "attn_mask", query.dtype)
        is_causal = False
    if width != embed_dim_to_check:
        raise AssertionError(f"was expecting embedding dimension of {embed_dim_to_check}, but got {width}")
    head = width // num_heads
    if head * num_heads != width:
        raise AssertionError(f"embed_dim {width} not divisible by num_heads {num_heads}")
    if use_separate_proj_weight:
        if key.shape[:2] != value.shape[:2]:
            raise AssertionError(f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}")
    elif key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    q, k, v = _projected(query, key, value, in_proj_weight, separate, in_proj_bias)
    if attn_mask is not None:
        axes = attn_mask.ndim
        fits = (length, keys) if axes == 2 else (batch * num_heads, length, keys)
        if tuple(attn_mask.shape) != fits:
            raise RuntimeError(f"The shape of the {axes}D attn_mask is {attn_mask.shape}, but should be {fits}.")
        attn_mask = attn_mask.unsqueeze(0) if axes == 2 else attn_mask

    def longer(mask: Tensor | None) -> Tensor | None:
        return None if mask is None else pad(mask, (0, 1))

    if bias_k is not None and bias_v is not None:
        for what, static in (("key", static_k), ("value", static_v)):
            if static is not None:
                raise AssertionError(f"bias cannot be added to static {what}.")
        k = cat([k, bias_k.repeat(1, batch, 1)])
        v = cat([v, bias_v.repeat(1, batch, 1)])
        attn_mask, key_padding_mask = longer(attn_mask), longer(key_padding_mask)
    elif bias_k is not None or bias_v is not None:
        there, absent = ("bias_k", "bias_v") if bias_v is None else ("bias_v", "bias_k")
        raise AssertionError(f"{there} is set but {absent} is None")

    def heads(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], batch * num_heads, head).transpose(0, 1)

    q = heads(q)
    k = heads(k) if static_k is None else _check_static("static_k", static_k, batch * num_heads, head)
    v = heads(v) if static_v is None else _check_static("static_v", static_v, batch * num_heads, head)
    if add_zero_attn:
        k, v = (cat([x, zeros(batch * num_heads, 1, head, dtype=x.dtype, device=x.device)], 1) for x in (k, v))
        attn_mask, key_padding_mask = longer(attn_mask), longer(key_padding_mask)
    keys = k.shape[1]
    if key_padding_mask is not None:
        for axis, expected in ((0, batch), (1, keys)):
            if key_padding_mask.shape[axis] != expected:
                raise AssertionError(
                    f"Expected key_padded_mask.shape[{axis}] to be {expected}, but got {key_padding_mask.shape[axis]}"
                )
        spread = key_padding_mask.reshape(batch, 1, 1, keys).expand(-1, num_heads, -1, -1)
        spread = spread.reshape(batch * num_heads, 1, keys)
        attn_mask = spread if attn_mask is None else attn_mask + spread
    if not training:
        dropout_p = 0.0
    weights = None
    if need_weights:
        scores = bmm(q * math.sqrt(1.0 / head) if head else q, k.transpose(-2, -1))
        weights = softmax(scores if attn_mask is None else attn_mask + scores, -1)
        weights = dropout(weights, dropout_p) if dropout_p > 0.0 else weights
        found = bmm(weights, v)
    else:
        if attn_mask is not None:
            once = attn_mask.shape[0] == 1
            attn_mask = attn_mask.unsqueeze(0) if once else attn_mask.reshape(batch, num_heads, -1, keys)
        q, k, v = (x.reshape(batch, num_heads, x.shape[1], head) for x in (q, k, v))
        found = scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal)
        found = found.reshape(batch * num_heads, length, head)
    rows = found.transpose(0, 1).reshape(length * batch, width)
    result = linear(rows, out_proj_weight, out_proj_bias)
    result = result.reshape(length, batch, result.shape[1])
    if weights is not None:
        weights = weights.reshape(batch, num_heads, length, keys)
        weights = weights.mean(1) if average_attn_weights else weights
    if not batched:
        result = result.squeeze(1)
        weights = None if weights is None else weights.squeeze(0)
    return result, weights
