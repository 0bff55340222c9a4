"""The table: what each ATen operator is here, as a function of traced tensors.

Functions take the operator's arguments in ATen's order, with dtypes of ours (`program.py` converts them) and without
`device`, `layout`, `pin_memory` and `memory_format`, which say where and how, never what. Signatures and meaning are those
of PyTorch's `native_functions.yaml` and `torch/_decomp`. An entry raises NotImplementedError for arguments that it does not
take; such a call stays in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorsmith.autograd import grad as gradients
from tensorsmith.core.dtypes import DType, compute_dtype
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.attention import gradient as attention_gradient
from tensorsmith.ir.graph import Node
from tensorsmith.ops.attention import fused_operator as attention_operator
from tensorsmith.ops.channel_normalisation import BATCH_NORM
from tensorsmith.ops.registry import namespace
from tensorsmith.tensor.modes import enable_grad
from tensorsmith.tensor.tensor import Tensor

aten = torch.ops.aten
prims = torch.ops.prims
OPERATORS: dict[Any, Callable[..., Any]] = {}
ours = namespace("")
functional = namespace("nn.functional")


def entry(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function for some overloads of an operator."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            OPERATORS[target] = function
        return function

    return enter


def _same_names(names: str, overloads: str = "default", where: dict[str, Callable[..., Any]] = ours) -> None:
    """Operators that have the same name and arguments here."""
    for name in names.split():
        for overload in overloads.split():
            OPERATORS[getattr(getattr(aten, name), overload)] = where[name]


def pulled(function: Callable[..., Tensor], operands: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a function of tensors, by the rules of its operators; what only the forward needed is dead code."""
    with enable_grad():
        leaves = [x.detach().requires_grad_() for x in operands]
        return gradients(function(*leaves), leaves, grad)  # type: ignore[return-value] # every operand has one


# --- pointwise -----------------------------------------------------------------------------------------------------------

_same_names(
    "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac isfinite isinf "
    "isnan lgamma digamma log log10 log1p log2 logical_not neg reciprocal relu rsqrt sgn sigmoid sign signbit sin sinh sqrt "
    "square tan tanh trunc atan2 hypot maximum minimum logical_and logical_or logical_xor"
)  # fmt: skip
_same_names("copysign", "Tensor Scalar")
_same_names("round", "default decimals")
_same_names("add sub mul div fmod remainder eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor", "Tensor Scalar")
_same_names("pow", "Tensor_Tensor Tensor_Scalar Scalar")
_same_names("div", "Tensor_mode Scalar_mode")
_same_names("rsub", "Tensor Scalar")
_same_names("clamp", "default Tensor")
_same_names("clamp_min clamp_max", "default Tensor")
_same_names("lerp", "Scalar Tensor")
_same_names("addcmul addcdiv", "default")
_same_names("where", "self ScalarOther ScalarSelf Scalar")
_same_names("silu mish leaky_relu hardswish hardsigmoid hardtanh softplus celu relu6", where=functional)


@entry(aten.gelu.default)
def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return functional["gelu"](x, approximate=approximate)


@entry(aten.elu.default)
def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    if scale != 1.0 or input_scale != 1.0:
        raise NotImplementedError("elu with scales")
    return functional["elu"](x, alpha)


@entry(prims.convert_element_type.default)
def _converted(x: Tensor, dtype: DType) -> Tensor:
    return x.to(dtype)


@entry(aten._to_copy.default)
def _to_copy(x: Tensor, dtype: DType | None = None, non_blocking: bool = False) -> Tensor:
    return x.clone() if dtype is None or dtype is x.dtype else x.to(dtype)


@entry(aten.clone.default, aten.lift_fresh_copy.default, aten.contiguous.default)
def _clone(x: Tensor) -> Tensor:
    return x.clone()


@entry(aten.detach.default, aten.alias.default)
def _alias(x: Tensor) -> Tensor:
    return x


@entry(aten.copy.default)
def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(x.dtype).expand(x.shape)


# --- views ---------------------------------------------------------------------------------------------------------------

_same_names("permute unsqueeze squeeze t diagonal", "default")
_same_names("squeeze", "dim dims")
_same_names("transpose select unbind", "int")
_same_names("split", "Tensor")
_same_names("split_with_sizes flip roll", "default")
_same_names("triu tril", "default")


@entry(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(x: Tensor, shape: Sequence[int]) -> Tensor:
    return ours["reshape"](x, tuple(shape))


@entry(aten.expand.default)
def _expand(x: Tensor, shape: Sequence[int], implicit: bool = False) -> Tensor:
    return x.expand(tuple(shape))


def _range(x: Tensor, dim: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Start and end of a slice as Python's slices have them."""
    return slice(start, end).indices(x.shape[dim])[:2]


@entry(aten.slice.Tensor)
def _slice(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


@entry(aten.slice_scatter.default)
def _slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    low, high = _range(x, dim, start, end)
    return ours["slice_scatter"](x, source, dim, low, max(high, low), step)


_same_names("select_scatter", "default")


@entry(aten.repeat.default)
def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    return x.repeat(*repeats)


@entry(aten.cat.default)
def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return ours["cat"](list(tensors), dim)


@entry(aten.stack.default)
def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return ours["stack"](list(tensors), dim)


@entry(aten.constant_pad_nd.default)
def _constant_pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    return functional["pad"](x, tuple(pad), "constant", value)


# --- new tensors ---------------------------------------------------------------------------------------------------------


@entry(aten.full.default)
def _full(shape: Sequence[int], value: float, dtype: DType | None = None) -> Tensor:
    return ours["full"](tuple(shape), value, dtype=dtype)


@entry(aten.full_like.default)
def _full_like(x: Tensor, value: float, dtype: DType | None = None) -> Tensor:
    return ours["full"](tuple(x.shape), value, dtype=dtype or x.dtype)


@entry(aten.zeros.default, aten.empty.memory_format)
def _zeros(shape: Sequence[int], dtype: DType | None = None) -> Tensor:
    return ours["zeros"](tuple(shape), dtype=dtype)


@entry(aten.ones.default)
def _ones(shape: Sequence[int], dtype: DType | None = None) -> Tensor:
    return ours["ones"](tuple(shape), dtype=dtype)


@entry(aten.zeros_like.default, aten.empty_like.default)
def _zeros_like(x: Tensor, dtype: DType | None = None) -> Tensor:
    return ours["zeros"](tuple(x.shape), dtype=dtype or x.dtype)


@entry(aten.ones_like.default)
def _ones_like(x: Tensor, dtype: DType | None = None) -> Tensor:
    return ours["ones"](tuple(x.shape), dtype=dtype or x.dtype)


@entry(aten.scalar_tensor.default)
def _scalar_tensor(value: float, dtype: DType | None = None) -> Tensor:
    return ours["full"]((), value, dtype=dtype)


@entry(aten.arange.start_step)
def _arange(start: float, end: float, step: float = 1, dtype: DType | None = None) -> Tensor:
    return ours["arange"](start, end, step, dtype=dtype)


@entry(prims.iota.default)
def _iota(length: int, start: int, step: int, dtype: DType, requires_grad: bool = False) -> Tensor:
    return ours["arange"](start, start + length * step, step, dtype=dtype)


# --- reductions and scans ------------------------------------------------------------------------------------------------

_same_names("argmax argmin cumsum logsumexp amax amin", "default")
_same_names("any all", "default dim dims")
_same_names("max min", "default dim")
_same_names("prod", "default dim_int")


@entry(aten.sum.dim_IntList, aten.sum.default)
def _sum(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    return ours["sum"](x, tuple(dim) if dim else None, keepdim, dtype=dtype)


@entry(aten.mean.dim, aten.mean.default)
def _mean(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    return ours["mean"](x, tuple(dim) if dim else None, keepdim, dtype=dtype)


@entry(aten.var.correction)
def _var(x: Tensor, dim: Sequence[int] | None = None, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return ours["var"](x, tuple(dim) if dim else None, keepdim=keepdim, correction=1 if correction is None else correction)


@entry(aten.var_mean.correction)
def _var_mean(x: Tensor, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _var(x, dim, correction, keepdim), _mean(x, dim, keepdim)


_same_names("topk", "default")


@entry(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Tensor, order: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return namespace("linalg")["vector_norm"](x, order, tuple(dim) if dim else None, keepdim, dtype=dtype)


@entry(aten.sort.default)
def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return ours["sort"](x, dim, descending)


# --- products ------------------------------------------------------------------------------------------------------------

_same_names("mm bmm addmm baddbmm mv dot", "default")


# --- indexing ------------------------------------------------------------------------------------------------------------

_same_names("gather index_select scatter_add", "default")
_same_names("masked_fill", "Scalar Tensor")


@entry(aten.scatter.src, aten.scatter.value)
def _scatter(x: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    return ours["scatter"](x, dim, index, source)


@entry(aten.index.Tensor)
def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    if any(index is not None and index.dtype.kind == "b" for index in indices):
        raise NotImplementedError("the shape of a result that depends on values")
    return x[tuple(slice(None) if index is None else index for index in indices)]


@entry(aten.index_put.default)
def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    if any(index is not None and index.dtype.kind == "b" for index in indices):
        return _masked_put(x, indices, values, accumulate)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    given = [index for index in indices if index is not None]
    if axes == list(range(len(axes))):
        return ours["index_put"](x, tuple(given), values, accumulate)
    # Indexed axes in front, and their extents in front of those of the values: in place of the axes where those are adjacent.
    places = ours["broadcast_tensors"](*given)[0].shape
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    before = [axis for axis in kept if axis < axes[0]] if adjacent else []
    shape = [x.shape[axis] for axis in before], list(places), [x.shape[axis] for axis in kept[len(before) :]]
    values = values.expand(tuple(n for part in shape for n in part))
    start, count = len(before), len(places)
    values = values.permute(tuple([*range(start, start + count), *range(start), *range(start + count, values.ndim)]))
    order = [*axes, *kept]
    written = ours["index_put"](x.permute(tuple(order)), tuple(given), values, accumulate)
    return written.permute(tuple(order.index(axis) for axis in range(x.ndim)))


def _masked_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> Tensor:
    """One value where a mask of the first axes is true: how many places that are does not matter."""
    mask = indices[0]
    if len(indices) != 1 or mask is None or values.numel() != 1:
        raise NotImplementedError("index_put with a mask, but for one mask of the first axes and one value")
    mask = mask.reshape((*mask.shape, *(1,) * (x.ndim - mask.ndim)))
    value = values.reshape(())
    return ours["where"](mask, x + value if accumulate else value.to(x.dtype), x)


@entry(aten.embedding.default)
def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, by_frequency: bool = False, sparse: bool = False
) -> Tensor:
    if sparse:
        raise NotImplementedError("sparse gradients")
    return functional["embedding"](indices, weight)


@entry(aten.embedding_dense_backward.default)
def _embedding_backward(grad: Tensor, indices: Tensor, rows: int, padding_idx: int, by_frequency: bool) -> Tensor:
    if by_frequency:
        raise NotImplementedError("embedding_dense_backward with scale_grad_by_freq")
    weight = ours["zeros"]((rows, grad.shape[-1]), dtype=grad.dtype)
    padding = None if padding_idx < 0 else padding_idx
    return pulled(lambda w: functional["embedding"](indices, w, padding), [weight], grad)[0]


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
