"""Entries of the table for tensors: pointwise functions, views, new tensors, reductions, products and indexing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.interop.torch.table import aten, entry, functional, ours, prims, pulled, same_names
from tensorsmith.ops.registry import namespace
from tensorsmith.tensor.tensor import Tensor

# --- pointwise -----------------------------------------------------------------------------------------------------------

same_names(
    "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac isfinite isinf "
    "isnan lgamma digamma log log10 log1p log2 logical_not neg reciprocal relu rsqrt sgn sigmoid sign signbit sin sinh sqrt "
    "square tan tanh trunc atan2 hypot maximum minimum logical_and logical_or logical_xor"
)  # fmt: skip
same_names("copysign", "Tensor Scalar")
same_names("round", "default decimals")
same_names("add sub mul div fmod remainder eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor", "Tensor Scalar")
same_names("pow", "Tensor_Tensor Tensor_Scalar Scalar")
same_names("div", "Tensor_mode Scalar_mode")
same_names("rsub", "Tensor Scalar")
same_names("clamp", "default Tensor")
same_names("clamp_min clamp_max", "default Tensor")
same_names("lerp", "Scalar Tensor")
same_names("addcmul addcdiv", "default")
same_names("where", "self ScalarOther ScalarSelf Scalar")
same_names("silu mish leaky_relu hardswish hardsigmoid hardtanh softplus celu relu6", where=functional)


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

same_names("permute unsqueeze squeeze t diagonal", "default")
same_names("squeeze", "dim dims")
same_names("transpose select unbind", "int")
same_names("split", "Tensor")
same_names("split_with_sizes flip roll", "default")
same_names("triu tril", "default")


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


same_names("select_scatter", "default")


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

same_names("argmax argmin cumsum logsumexp amax amin", "default")
same_names("any all", "default dim dims")
same_names("max min", "default dim")
same_names("prod", "default dim_int")


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


same_names("topk", "default")


@entry(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Tensor, order: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return namespace("linalg")["vector_norm"](x, order, tuple(dim) if dim else None, keepdim, dtype=dtype)


@entry(aten.sort.default)
def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return ours["sort"](x, dim, descending)


# --- products ------------------------------------------------------------------------------------------------------------

same_names("mm bmm addmm baddbmm mv dot", "default")


# --- indexing ------------------------------------------------------------------------------------------------------------

same_names("gather index_select scatter_add", "default")
same_names("masked_fill", "Scalar Tensor")


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
