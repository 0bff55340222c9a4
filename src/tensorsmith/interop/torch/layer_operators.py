"""Entries of the table for layers: softmax, normalisation, convolution, pooling and attention, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import compute_dtype
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.interop.torch.table import OPERATORS, aten, entry, functional, ours, pulled
from tensorsmith.ir import build
from tensorsmith.ir.attention import gradient as attention_gradient
from tensorsmith.ir.graph import Node
from tensorsmith.ops.attention import fused_operator as attention_operator
from tensorsmith.ops.channel_normalisation import BATCH_NORM
from tensorsmith.tensor.tensor import Tensor

# --- softmax and normalisation -------------------------------------------------------------------------------------------


@entry(aten._softmax.default)
def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return ours["softmax"](x, dim)


@entry(aten._log_softmax.default)
def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return ours["log_softmax"](x, dim)


def _wide(x: Tensor) -> Tensor:
    """Halves as float32: statistics are computed there."""
    return x.to(compute_dtype(x.dtype))


@entry(aten.native_layer_norm.default)
def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    values = _wide(x)
    mean = ours["mean"](values, axes, True)
    deviation = values - mean
    scale = ours["rsqrt"](ours["mean"](deviation * deviation, axes, True) + eps)
    result = deviation * scale
    if weight is not None:
        result = result * _wide(weight)
    if bias is not None:
        result = result + _wide(bias)
    return result.to(x.dtype), mean.to(x.dtype), scale.to(x.dtype)


@entry(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None,
    mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    outer = x.ndim - len(shape)
    axes, rows = tuple(range(outer, x.ndim)), tuple(range(outer))
    g, normal = _wide(grad), (_wide(x) - _wide(mean)) * _wide(scale)
    weighted = g if weight is None else g * _wide(weight)
    to_x = weighted - ours["mean"](weighted, axes, True) - normal * ours["mean"](weighted * normal, axes, True)

    def over_rows(value: Tensor) -> Tensor:
        return ours["sum"](value, rows) if rows else value

    return (
        (to_x * _wide(scale)).to(x.dtype) if mask[0] else None,
        over_rows(g * normal).to(x.dtype) if mask[1] and weight is not None else None,
        over_rows(g).to(x.dtype) if mask[2] and bias is not None else None,
    )


def _of_channels(value: Tensor, x: Tensor) -> Tensor:
    return _wide(value).reshape((1, -1) + (1,) * (x.ndim - 2))


@entry(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_evaluated(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    result = functional["batch_norm"](x, mean, var, weight, bias, False, momentum, eps)
    none = ours["zeros"]((0,), dtype=x.dtype)
    return result, none, none


@entry(aten._native_batch_norm_legit_functional.default)
def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    if not training:
        return *_batch_norm_evaluated(x, weight, bias, running_mean, running_var, momentum, eps), running_mean, running_var
    result, mean, variance = _with_statistics(x, weight, bias, eps)
    count = x.numel() // x.shape[1]
    moved = running_mean * (1 - momentum) + mean.to(running_mean.dtype) * momentum
    spread = running_var * (1 - momentum) + variance.to(running_var.dtype) * (momentum * count / max(count - 1, 1))
    return result, mean, ours["rsqrt"](variance + eps), moved, spread


@entry(aten._native_batch_norm_legit.no_stats)
def _batch_norm_without_running(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    result, mean, variance = _with_statistics(x, weight, bias, eps)
    return result, mean, ours["rsqrt"](variance + eps)


def _with_statistics(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    if not x.numel():
        raise NotImplementedError("batch_norm of an empty batch")
    parameters = [p for p in (weight, bias) if p is not None]
    return call(BATCH_NORM, (x, *parameters), {"eps": float(eps), "has_weight": weight is not None})


@entry(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    mean: Tensor | None, scale: Tensor | None, training: bool, eps: float, mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if not training:
        assert running_mean is not None and running_var is not None
        mean, scale = running_mean, ours["rsqrt"](_wide(running_var) + eps)
    assert mean is not None and scale is not None
    axes = (0, *range(2, x.ndim))
    g, deviation, scale = _wide(grad), _wide(x) - _of_channels(mean, x), _of_channels(scale, x)
    total, along = ours["sum"](g, axes, True), ours["sum"](g * deviation, axes, True)
    result = g
    if training:
        count = float(x.numel() // x.shape[1])
        result = g - total / count - deviation * (along * (scale * scale / count))
    result = result * (scale if weight is None else scale * _of_channels(weight, x))
    return (
        result.to(x.dtype) if mask[0] else None,
        (along * scale).reshape((-1,)).to(x.dtype) if mask[1] else None,
        total.reshape((-1,)).to(x.dtype) if mask[2] else None,
    )


@entry(aten.native_group_norm.default)
def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, space: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    values = _wide(x).reshape((batch, groups, channels // groups * space))
    mean = ours["mean"](values, (2,), True)
    variance = ours["mean"]((values - mean) * (values - mean), (2,), True)
    statistics = (mean.reshape((batch, groups)).to(x.dtype), ours["rsqrt"](variance + eps).reshape((batch, groups)).to(x.dtype))
    return functional["group_norm"](x, groups, weight, bias, eps), *statistics


# --- convolution and pooling ---------------------------------------------------------------------------------------------


def _convolve(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    rank = w.ndim - 2
    if transposed:
        function = functional[f"conv_transpose{rank}d"]
        return function(x, w, bias, tuple(stride), tuple(padding), tuple(output_padding), groups, tuple(dilation))
    return functional[f"conv{rank}d"](x, w, bias, tuple(stride), tuple(padding), tuple(dilation), groups)


OPERATORS[aten.convolution.default] = _convolve


@entry(aten.convolution_backward.default)
def _convolution_backward(
    grad: Tensor, x: Tensor, w: Tensor, bias_sizes: Sequence[int] | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    wanted = [i for i in (0, 1) if mask[i]]

    def of_wanted(*given: Tensor) -> Tensor:
        operands = [x, w]
        for i, value in zip(wanted, given):
            operands[i] = value
        return _convolve(operands[0], operands[1], None, stride, padding, dilation, transposed, output_padding, groups)

    found: list[Tensor | None] = [None, None, None]
    if wanted:
        for i, value in zip(wanted, pulled(of_wanted, [(x, w)[i] for i in wanted], grad)):
            found[i] = value
    if mask[2]:
        found[2] = ours["sum"](grad, (0, *range(2, grad.ndim)))
    return tuple(found)


def _tuple(value: Sequence[int]) -> tuple[int, ...] | None:
    return tuple(value) or None


@entry(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    function = functional[f"max_pool{len(kernel)}d"]
    return function(x, tuple(kernel), _tuple(stride), tuple(padding), tuple(dilation), ceil_mode, True)


@entry(aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(
    grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient goes to the places that the forward chose."""
    lead, plane = tuple(x.shape[:-2]), x.shape[-2] * x.shape[-1]
    zeros = ours["zeros"]((*lead, plane), dtype=grad.dtype)
    flat = (*lead, grad.shape[-2] * grad.shape[-1])
    return ours["scatter_add"](zeros, -1, indices.reshape(flat), grad.reshape(flat)).reshape(tuple(x.shape))


def _average(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    function = functional[f"avg_pool{len(kernel)}d"]
    return function(x, tuple(kernel), _tuple(stride), tuple(padding), ceil_mode, count_include_pad, divisor_override)


OPERATORS[aten.avg_pool2d.default] = OPERATORS[aten.avg_pool3d.default] = _average


@entry(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def _average_backward(grad: Tensor, x: Tensor, *numbers: Any) -> Tensor:
    return pulled(lambda given: _average(given, *numbers), [x], grad)[0]


@entry(aten._adaptive_avg_pool2d.default)
def _adaptive_average(x: Tensor, size: Sequence[int]) -> Tensor:
    return functional["adaptive_avg_pool2d"](x, tuple(size))


@entry(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_average_backward(grad: Tensor, x: Tensor) -> Tensor:
    return pulled(lambda given: _adaptive_average(given, tuple(grad.shape[-2:])), [x], grad)[0]


# --- attention -----------------------------------------------------------------------------------------------------------


def _pulled_attention(
    q: Node, k: Node, v: Node, out: Node, lse: Node, grad: Node, *mask: Node, causal: bool, scale: float
) -> tuple[Node, ...]:
    lead = (*q.shape[:-1], k.shape[-2])
    masks = [build.broadcast_to(m if m.dtype.kind == "b" else build.cast(m, q.dtype), lead) for m in mask]
    found = attention_gradient([q, k, v, *masks], out, lse, (grad, None), causal, scale, True)
    return tuple(node for node in found[:3] if node is not None)


_attention_gradient = Operator("torch.attention_gradient", _pulled_attention)


def _checked_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float, scale: float | None) -> float:
    if dropout:
        raise NotImplementedError("attention with dropout")
    if q.dtype.is_half or q.ndim != 4 or tuple(q.shape[:2]) != tuple(k.shape[:2]) or not (q.numel() and k.numel()):
        raise NotImplementedError("attention over half types, empty extents or other ranks than 4")
    return float(scale) if scale is not None else 1.0 / math.sqrt(q.shape[-1])


@entry(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:  # fmt: skip
    factor = _checked_attention(q, k, v, dropout, scale)
    given = (q, k, v) if attn_mask is None else (q, k, v, attn_mask)
    return call(attention_operator, given, {"causal": bool(causal), "scale": factor, "beside": True})


@entry(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dropout: float, causal: bool,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    factor = _checked_attention(q, k, v, dropout, scale)
    given = (q, k, v, out, lse, grad) if attn_mask is None else (q, k, v, out, lse, grad, attn_mask)
    return call(_attention_gradient, given, {"causal": bool(causal), "scale": factor})


@entry(aten._transformer_encoder_layer_fwd.default)
def _encoder_layer(
    x: Tensor, width: int, heads: int, w_qkv: Tensor, b_qkv: Tensor, w_out: Tensor, b_out: Tensor, use_gelu: bool,
    norm_first: bool, eps: float, scale1: Tensor, shift1: Tensor, scale2: Tensor, shift2: Tensor, w1: Tensor, b1: Tensor,
    w2: Tensor, b2: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """`nn.TransformerEncoderLayer` without gradients, which PyTorch calls as one operator."""
    if mask is not None or x.ndim != 3:
        raise NotImplementedError("an encoder layer with a mask")
    linear, norm = functional["linear"], functional["layer_norm"]

    def attended(x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = linear(x, w_qkv, b_qkv).reshape((batch, length, 3, heads, width // heads))
        q, k, v = (parts[:, :, i].transpose(1, 2) for i in range(3))
        found = functional["scaled_dot_product_attention"](q, k, v)
        return linear(found.transpose(1, 2).reshape((batch, length, width)), w_out, b_out)

    def widened(x: Tensor) -> Tensor:
        inner = linear(x, w1, b1)
        return linear(functional["gelu"](inner) if use_gelu else ours["relu"](inner), w2, b2)

    if norm_first:
        x = x + attended(norm(x, (width,), scale1, shift1, eps))
        return x + widened(norm(x, (width,), scale2, shift2, eps))
    x = norm(x + attended(x), (width,), scale1, shift1, eps)
    return norm(x + widened(x), (width,), scale2, shift2, eps)
