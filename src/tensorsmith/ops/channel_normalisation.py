"""Normalisation by channel: batch_norm, group_norm and instance_norm.

    y = (x - mean) / sqrt(variance + eps) * w_c + b_c         for channel c (axis 1)

mean and variance (of the population) are those of a channel over the batch (batch_norm), of a group of channels of one
sample (group_norm), or of one channel of one sample (instance_norm, which is group_norm with one channel a group). With
h the normalised values and a = g w, over the elements that share their statistics,

    dx = (a - mean a - h mean(a h)) / sqrt(variance + eps)        dw_c = sum of g h        db_c = sum of g

Half precision is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import compute_dtype
from tensorsmith.core.layout import is_contiguous
from tensorsmith.core.memory_format import format_of_first
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import need_floating, need_tensors
from tensorsmith.ops.creation import full
from tensorsmith.ops.registry import public
from tensorsmith.passes.reductions import FEW_ROWS, LONG
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor

_norm = public("normalisation", namespace="nn.functional", method=False)


def _sum(x: Node, axis: int) -> Node:
    return build.reduce(x, "sum", (axis,), keepdim=True)


def _mean(x: Node, axis: int) -> Node:
    return _sum(x, axis) / float(x.shape[axis])


def _of_channels(value: Node, shape: Sequence[int]) -> Node:
    """A value a channel, wide, in a shape that broadcasts to `shape`."""
    return build.reshape(build.wide(value), [n if i == 1 else 1 for i, n in enumerate(shape)])


def _per_channel(parameter: Node, x: Node) -> Node:
    """A value a channel, in a shape that broadcasts to x."""
    return _of_channels(parameter, x.shape)


def _split(parameters: Sequence[Node], has_weight: bool) -> tuple[Node | None, Node | None]:
    rest = list(parameters)
    weight = rest.pop(0) if has_weight else None
    return weight, rest[0] if rest else None


def _affine(x: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None:
        x = x * _per_channel(weight, x)
    return x + _per_channel(bias, x) if bias is not None else x


def _spatial(x: Node) -> Node:
    """x wide and as (batch, channels, everything else)."""
    return build.reshape(build.wide(x), (*x.shape[:2], math.prod(x.shape[2:])))


def _is_zero(grad: Node) -> bool:
    """Whether a gradient is the zeros that stand for none."""
    while grad.op in (Primitive.EXPAND, Primitive.RESHAPE):
        grad = grad.inputs[0]
    return grad.op is Primitive.CONST and grad.attrs["value"] == 0


def _of_statistics(deviation: Node, by_mean: Node, by_variance: Node | None, count: int) -> Node | None:
    """The gradient of the elements from gradients of their mean and variance; None where there are none."""
    parts = []
    if not _is_zero(by_mean):
        parts.append(build.broadcast_to(by_mean / float(count), deviation.shape))
    if by_variance is not None and not _is_zero(by_variance):
        parts.append(deviation * (by_variance * (2.0 / count)))
    return parts[0] + parts[1] if len(parts) == 2 else parts[0] if parts else None


# --- batch_norm --------------------------------------------------------------------------------------------------------


def _channels(x: Node, rows: int) -> tuple[Node, int, int]:
    """x wide and as (a, channels, b), or as (a, b, channels) with b `rows` points; the axis of channels and that of b."""
    if not rows:
        return _spatial(x), 1, 2
    last = build.permute(build.wide(x), [0, *range(2, x.ndim), 1])
    return build.reshape(last, (x.numel // x.shape[1] // rows, rows, x.shape[1])), 2, 1


def _batch_norm(
    x: Node, *parameters: Node, eps: float, has_weight: bool, one_kernel: bool = True, rows: int = 0
) -> tuple[Node, Node, Node]:
    """The result, and mean and variance of every channel.

    In one kernel, or by parts of a channel that kernels can divide: the statistics of every part first, then those of the
    parts joined (Chan, Golub, LeVeque, 1979).
    """
    values, _, inner = _channels(x, rows)
    if one_kernel:
        count = float(x.numel // x.shape[1])
        mean = _sum(_sum(values, inner), 0) / count
        deviation = values - mean
        variance = _sum(_sum(deviation * deviation, inner), 0) / count
    else:
        of_part = _mean(values, inner)
        deviation = values - of_part
        spread = _mean(deviation * deviation, inner)
        mean = _mean(of_part, 0)
        apart = of_part - mean
        variance = _mean(spread, 0) + _mean(apart * apart, 0)
    shape = values.shape if one_kernel else x.shape
    weight, bias = (None if p is None else _of_channels(p, shape) for p in _split(parameters, has_weight))
    scale = f.rsqrt(_of_channels(variance, shape) + eps)
    result = (build.reshape(values, shape) if one_kernel else build.wide(x)) - _of_channels(mean, shape)
    result = result * (scale if weight is None else scale * weight)
    if bias is not None:
        result = result + bias
    return (
        build.cast(build.reshape(result, x.shape), x.dtype),
        build.reshape(mean, (x.shape[1],)),
        build.reshape(variance, (x.shape[1],)),
    )


def _batch_norm_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], eps: float, has_weight: bool,
    one_kernel: bool = True, rows: int = 0,
) -> list[Node | None]:  # fmt: skip
    x, *parameters = inputs
    weight, bias = _split(parameters, has_weight)
    count = x.numel // x.shape[1]
    shape = (x.shape[0], x.shape[1], count // x.shape[0]) if one_kernel else x.shape
    values = build.reshape(build.wide(x), shape)
    mean, variance, by_mean, by_variance = (_of_channels(n, shape) for n in (*outputs[1:], *grads[1:]))
    scale = f.rsqrt(variance + eps)
    deviation = values - mean
    result = _of_statistics(deviation, by_mean, by_variance, count)
    by_parameter: list[Node | None] = [None, None]
    if not _is_zero(grads[0]):
        grad = build.reshape(build.wide(grads[0]), shape)
        if one_kernel:
            by_deviation, by_shift = _sum(_sum(grad * deviation, 2), 0), _sum(_sum(grad, 2), 0)
        else:
            parts, channels, inner = _channels(x, rows)
            of_grad, _, _ = _channels(grads[0], rows)
            from_mean = parts - build.reshape(mean, [n if i == channels else 1 for i, n in enumerate(parts.shape)])
            means = (_mean(_mean(part, inner), 0) for part in (of_grad * from_mean, of_grad))
            by_deviation, by_shift = (_of_channels(part, shape) * float(count) for part in means)
        by_parameter = [by_deviation * scale, by_shift]
        factor = scale if weight is None else scale * _of_channels(weight, shape)
        along = by_deviation * (scale * scale / float(count))
        main = (grad - by_shift / float(count) - deviation * along) * factor
        result = main if result is None else result + main
    found: list[Node | None] = [None if result is None else build.cast(build.reshape(result, x.shape), x.dtype)]
    for parameter, part in zip((weight, bias), by_parameter):
        if parameter is not None:
            found.append(None if part is None else build.cast(build.reshape(part, parameter.shape), parameter.dtype))
    return found


BATCH_NORM = Operator("batch_norm", _batch_norm, _batch_norm_gradient, keeps_format=format_of_first, gradient_keeps_format=True)

SMALL = 1 << 18  # elements that one kernel normalises, wherever they lie
LEAST_TOGETHER = 1024  # elements of a channel that lie together, from which one kernel is faster on more
MOST_ROWS = 128  # points of a part of a channel


def _division(shape: tuple[int, ...], strides: tuple[int, ...], device: Device) -> dict[str, Any]:
    """How the work on a batch falls into kernels.

    A kernel that takes whole channels is fastest where a channel's elements lie together, or all are in the cache. Where
    the channels lie side by side, or are few and long, or change every few elements, parts of them are summed first: rows
    of points, or what a channel has in one sample. Kernels of a CUDA device divide the work themselves.
    """
    if device is not CPU:
        return {"one_kernel": True, "rows": 0}
    channels, count = shape[1], math.prod(n for i, n in enumerate(shape) if i != 1)
    if channels * count > SMALL:
        if channels > 1 and lies_last(shape, strides):
            rows = next(n for n in range(min(MOST_ROWS, count), 0, -1) if count % n == 0)
            if rows >= MOST_ROWS // 4:
                return {"one_kernel": False, "rows": rows}
        elif count // shape[0] < LEAST_TOGETHER or (channels <= FEW_ROWS and count >= LONG):
            return {"one_kernel": False, "rows": 0}
    return {"one_kernel": True, "rows": 0}


def lies_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the channels of every point lie side by side, and the points in order, without gaps."""
    order = [0, *range(2, len(shape)), 1]
    return is_contiguous(tuple(shape[a] for a in order), tuple(strides[a] for a in order))


def _with_statistics(x: Node, mean: Node, variance: Node, *parameters: Node, eps: float, has_weight: bool) -> Node:
    values = build.wide(x)
    unit = (values - _per_channel(mean, x)) * f.rsqrt(_per_channel(variance, x) + eps)
    return build.cast(_affine(unit, *_split(parameters, has_weight)), x.dtype)


_evaluated = Operator("batch_norm_evaluation", _with_statistics, pointwise=True, node_name="NativeBatchNorm")


def _moved(running: Node, found: Node, momentum: Node, factor: Node) -> Node:
    """running + momentum (factor found - running)."""
    value = build.wide(running)
    return build.cast(value * (1.0 - momentum) + build.wide(found) * (momentum * factor), running.dtype)


_running = InplaceOperation(Operator("running_statistic", _moved, pointwise=True))


def _update(running: Tensor | None, found: Tensor, momentum: float, factor: float) -> None:
    if running is not None:
        with no_grad():
            _running(running, found.detach(), momentum, factor)


def _check_channels(input: Tensor, channels: int, **parameters: Tensor | None) -> None:  # noqa: A002
    for name, parameter in parameters.items():
        if parameter is None:
            continue
        need_tensors("batch_norm", **{name: parameter})
        if parameter.numel() != channels:
            raise RuntimeError(f"{name} should contain {channels} elements not {parameter.numel()}")


@_norm
def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,  # noqa: A002
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalisation of every channel over the batch (Ioffe, Szegedy, 2015).

    input (N, C, ...). While training the statistics are the batch's, and running_mean and running_var (C) move towards
    them by `momentum`, in place (the variance with n - 1); else the running statistics are used.
    Raises ValueError for a single value a channel while training, RuntimeError for sizes that do not fit.
    """
    need_tensors("batch_norm", input=input)
    shape = input.layout.shape
    count = math.prod(n for i, n in enumerate(shape) if i != 1)
    if training and count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")
    if training and eps <= 0.0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    if eps < 0.0:
        raise ValueError(f"batch_norm eps must be non-negative, but got {eps}")
    if not training:
        for name, given in (("running_mean", running_mean), ("running_var", running_var)):
            if given is None:
                raise RuntimeError(f"{name} must be defined in evaluation mode")
    channels = shape[1] if len(shape) > 1 else 0
    _check_channels(input, channels, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    need_floating("batch_norm", input.dtype)
    if len(shape) < 2:  # no channels, so no elements
        return input.clone()
    parameters = [p for p in (weight, bias) if p is not None]
    attrs = {"eps": float(eps), "has_weight": weight is not None}
    if not training:
        return call(_evaluated, (input, running_mean, running_var, *parameters), attrs)
    if not count:  # an empty batch has no statistics: whatever they are, nothing is normalised by them
        dtype = compute_dtype(input.dtype)
        place = input.device
        statistics = tuple([full((channels,), value, dtype=dtype, device=place) for value in (0.0, 1.0)])
        return call(_evaluated, (input, *statistics, *parameters), attrs)
    attrs |= _division(shape, input.layout.strides, input.layout.device)
    result, mean, variance = call(BATCH_NORM, (input, *parameters), attrs)
    _update(running_mean, mean, float(momentum), 1.0)
    _update(running_var, variance, float(momentum), count / max(count - 1, 1))
    return result


# --- group_norm and instance_norm -------------------------------------------------------------------------------------


def _grouped(x: Node, groups: int) -> Node:
    """x wide and as (batch, groups, channels of a group, everything else)."""
    return build.reshape(build.wide(x), (x.shape[0], groups, x.shape[1] // groups, math.prod(x.shape[2:])))


def _in_groups(parameter: Node, values: Node) -> Node:
    """A value a channel, in a shape that broadcasts to `_grouped` values."""
    return build.reshape(build.wide(parameter), (1, *values.shape[1:3], 1))


def _group_norm(
    x: Node, *parameters: Node, groups: int, eps: float, has_weight: bool, with_variance: bool = False
) -> tuple[Node, ...]:
    """The result, and mean, scale (1 / sqrt(variance + eps)) and, if asked for, variance of every group of every sample.

    The scale is what both kernels of the gradient read.
    """
    weight, bias = _split(parameters, has_weight)
    values = _grouped(x, groups)
    count = float(math.prod(values.shape[2:]))
    mean = _sum(_sum(values, 3), 2) / count
    deviation = values - mean
    variance = _sum(_sum(deviation * deviation, 3), 2) / count
    scale = f.rsqrt(variance + eps)
    result = deviation * (scale if weight is None else scale * _in_groups(weight, values))
    if bias is not None:
        result = result + _in_groups(bias, values)
    statistics = (mean, scale, variance) if with_variance else (mean, scale)
    rows = values.shape[:2]
    return build.cast(build.reshape(result, x.shape), x.dtype), *(build.reshape(n, rows) for n in statistics)


def _by_variance(scale: Node, by_scale: Node, by_variance: Node | None) -> Node | None:
    """The gradient of the variance from those of (variance + eps) ** -0.5 and of itself; None where there are none."""
    parts = [] if _is_zero(by_scale) else [by_scale * (scale * scale * scale) * -0.5]
    if by_variance is not None and not _is_zero(by_variance):
        parts.append(by_variance)
    return parts[0] + parts[1] if len(parts) == 2 else parts[0] if parts else None


def _group_norm_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], groups: int, eps: float, has_weight: bool,
    with_variance: bool = False,
) -> list[Node | None]:  # fmt: skip
    x, *parameters = inputs
    weight, bias = _split(parameters, has_weight)
    values = _grouped(x, groups)
    count = math.prod(values.shape[2:])
    one_a_group = (*values.shape[:2], 1, 1)
    mean, scale, by_mean, by_scale = (build.reshape(n, one_a_group) for n in (*outputs[1:3], *grads[1:3]))
    by_variance = _by_variance(scale, by_scale, build.reshape(grads[3], one_a_group) if with_variance else None)
    deviation = values - mean
    result = _of_statistics(deviation, by_mean, by_variance, count)
    by_parameter: list[Node | None] = [None, None]
    if not _is_zero(grads[0]):
        scaled = grad = _grouped(grads[0], groups)
        factor = scale
        alone = values.shape[2] == 1  # then a channel's sums are those of the row, and its weight comes after them
        if weight is not None and alone:
            factor = scale * _in_groups(weight, values)
        elif weight is not None:
            scaled = grad * _in_groups(weight, values)
        shift, along = (_sum(_sum(part, 3), 2) for part in (scaled, scaled * deviation))
        main = (scaled - shift / float(count) - deviation * (along * (scale * scale / float(count)))) * factor
        result = main if result is None else result + main
        if alone:
            by_parameter = [_sum(along * scale, 0), _sum(shift, 0)]
        else:
            by_parameter = [_sum(_sum(term, 3), 0) for term in (grad * (deviation * scale), grad)]
    found: list[Node | None] = [None if result is None else build.cast(build.reshape(result, x.shape), x.dtype)]
    for parameter, part in zip((weight, bias), by_parameter):
        if parameter is not None:
            found.append(None if part is None else build.cast(build.reshape(part, parameter.shape), parameter.dtype))
    return found


GROUP_NORM = Operator("group_norm", _group_norm, _group_norm_gradient, keeps_format=format_of_first, gradient_keeps_format=True)
INSTANCE_NORM = Operator(  # the same graph; autocast leaves it in the dtype of its input, as PyTorch does
    "instance_norm", _group_norm, _group_norm_gradient, keeps_format=format_of_first, gradient_keeps_format=True,
    node_name="GroupNormBackward0",
)  # fmt: skip


@_norm
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,  # noqa: A002
) -> Tensor:
    """Normalisation of groups of channels of every sample (Wu, He, 2018).

    input (N, C, ...), weight and bias (C). Raises RuntimeError if num_groups does not divide C or sizes do not fit,
    ValueError for a single value a group.
    """
    need_tensors("group_norm", input=input)
    shape = input.layout.shape
    if len(shape) < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {len(shape)}")
    if num_groups <= 0:
        raise RuntimeError(f"Expected num groups to be greater than 0, got {num_groups}")
    size = [shape[0] * shape[1] // num_groups, num_groups, *shape[2:]]
    if size[0] * math.prod(shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {size}")
    if shape[1] % num_groups:
        raise RuntimeError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of shape {list(shape)} "
            f"and num_groups={num_groups}"
        )
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and parameter.layout.shape != (shape[1],):
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, but got {name} of "
                f"shape {list(parameter.layout.shape)} and input of shape {list(shape)}"
            )
    need_floating("GroupNormKernelImpl", input.dtype)
    attrs = {"groups": num_groups, "eps": float(eps), "has_weight": weight is not None}
    result, *_ = call(GROUP_NORM, (input, *(p for p in (weight, bias) if p is not None)), attrs)
    return result


@_norm
def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,  # noqa: A002
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalisation of every channel of every sample (Ulyanov et al., 2016).

    input (N, C, ...). With use_input_stats=False the running statistics are used as they are. Otherwise they move, in
    place, towards the mean over the samples of the statistics found.
    Raises ValueError for a single spatial element, RuntimeError for sizes that do not fit.
    """
    need_tensors("instance_norm", input=input)
    shape = input.layout.shape
    count = math.prod(shape[2:])
    if use_input_stats and count == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {input.shape}")
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise RuntimeError("Expected running_mean and running_var to be defined when use_input_stats is false")
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if len(shape) < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {len(shape)}")
    _check_channels(input, shape[1], running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    need_floating("batch_norm", input.dtype)
    attrs: dict[str, Any] = {"groups": shape[1], "eps": float(eps), "has_weight": weight is not None}
    if running_var is not None:
        attrs["with_variance"] = True
    # The result is row-major in any case, as PyTorch's is.
    operands = (input.contiguous(), *(p for p in (weight, bias) if p is not None))
    result, mean, *rest = call(INSTANCE_NORM, operands, attrs)
    if running_mean is not None:
        _update(running_mean, mean.mean(0), float(momentum), 1.0)
    if running_var is not None:
        _update(running_var, rest[1].mean(0), float(momentum), count / max(count - 1, 1))
    return result


# --- local response normalisation -------------------------------------------------------------------------------------


def _local_response(x: Node, size: int, alpha: float, beta: float, k: float) -> Node:
    values = build.wide(x)
    low, high = size // 2, (size - 1) // 2
    ends = [low if i == 1 else 0 for i in range(x.ndim)], [high if i == 1 else 0 for i in range(x.ndim)]
    padded = build.pad(values * values, *ends)
    windows = x.graph.add(Primitive.UNFOLD, (padded,), axis=1, size=size, step=1)
    total = build.reduce(windows, "sum", (windows.ndim - 1,))
    return build.cast(values / f.pow(total * (alpha / size) + k, beta), x.dtype)


_local_response_operator = Operator("local_response_norm", _local_response)


@_norm
def local_response_norm(
    input: Tensor,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,  # noqa: A002
) -> Tensor:
    """x / (k + alpha times the mean of x**2 over `size` neighbouring channels)**beta (Krizhevsky et al., 2012).

    input (N, C, ...) of at least 3 axes, else ValueError.
    """
    need_tensors("local_response_norm", input=input)
    if input.ndim < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.ndim} dimensions)")
    if not input.numel():
        return input
    need_floating("avg_pool3d", input.dtype)
    attrs = {"size": size, "alpha": float(alpha), "beta": float(beta), "k": float(k)}
    return call(_local_response_operator, (input,), attrs)
