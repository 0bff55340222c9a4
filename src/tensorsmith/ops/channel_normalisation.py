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

from tensorsmith.core.memory_format import format_of_first
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import need_floating, need_tensors
from tensorsmith.ops.registry import public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor

_norm = public("normalisation", namespace="nn.functional", method=False)


def _sum(x: Node, axis: int) -> Node:
    return build.reduce(x, "sum", (axis,), keepdim=True)


def _mean(x: Node, axis: int) -> Node:
    return _sum(x, axis) / float(x.shape[axis])


def _per_channel(parameter: Node, x: Node) -> Node:
    """A value a channel, in a shape that broadcasts to x."""
    return build.reshape(build.wide(parameter), [n if i == 1 else 1 for i, n in enumerate(x.shape)])


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


def _of_statistics(deviation: Node, by_mean: Node, by_variance: Node, count: int) -> Node | None:
    """The gradient of the elements from gradients of their mean and variance; None where there are none."""
    parts = []
    if not _is_zero(by_mean):
        parts.append(build.broadcast_to(by_mean / float(count), deviation.shape))
    if not _is_zero(by_variance):
        parts.append(deviation * (by_variance * (2.0 / count)))
    return parts[0] + parts[1] if len(parts) == 2 else parts[0] if parts else None


# --- batch_norm --------------------------------------------------------------------------------------------------------


def _batch_norm(x: Node, *parameters: Node, eps: float, has_weight: bool) -> tuple[Node, Node, Node]:
    """The result, and mean and variance of every channel.

    Statistics of every row of a channel first, then those of the rows joined (Chan, Golub, LeVeque, 1979).
    """
    values = _spatial(x)
    inner = _mean(values, 2)
    deviation = values - inner
    spread = _mean(deviation * deviation, 2)
    mean = _mean(inner, 0)
    apart = inner - mean
    variance = _mean(spread, 0) + _mean(apart * apart, 0)
    result = _affine((values - mean) * f.rsqrt(variance + eps), *_split(parameters, has_weight))
    return (
        build.cast(build.reshape(result, x.shape), x.dtype),
        build.reshape(mean, (x.shape[1],)),
        build.reshape(variance, (x.shape[1],)),
    )


def _batch_norm_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], eps: float, has_weight: bool
) -> list[Node | None]:
    x, *parameters = inputs
    weight, bias = _split(parameters, has_weight)
    values = _spatial(x)
    one_a_channel = (1, x.shape[1], 1)
    mean, variance, by_mean, by_variance = (build.reshape(n, one_a_channel) for n in (*outputs[1:], *grads[1:]))
    count = values.shape[0] * values.shape[2]
    scale = f.rsqrt(variance + eps)
    deviation = values - mean
    result = _of_statistics(deviation, by_mean, by_variance, count)
    by_parameter: list[Node | None] = [None, None]
    if not _is_zero(grads[0]):
        grad = _spatial(grads[0])
        by_scale = _sum(_sum(grad * deviation, 2), 0) * scale
        by_shift = _sum(_sum(grad, 2), 0)
        by_parameter = [by_scale, by_shift]
        factor = scale if weight is None else scale * _per_channel(weight, values)
        main = (grad - by_shift / float(count) - deviation * (by_scale * scale / float(count))) * factor
        result = main if result is None else result + main
    parts: list[Node | None] = [None if result is None else build.cast(build.reshape(result, x.shape), x.dtype)]
    for parameter, part in zip((weight, bias), by_parameter):
        if parameter is not None:
            parts.append(None if part is None else build.cast(build.reshape(part, parameter.shape), parameter.dtype))
    return parts


BATCH_NORM = Operator("batch_norm", _batch_norm, _batch_norm_gradient, keeps_format=format_of_first)


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
    result, mean, variance = call(BATCH_NORM, (input, *parameters), attrs)
    _update(running_mean, mean, float(momentum), 1.0)
    _update(running_var, variance, float(momentum), count / max(count - 1, 1))
    return result


# --- group_norm and instance_norm -------------------------------------------------------------------------------------


def _grouped(x: Node, groups: int) -> Node:
    """x wide and as (batch, groups, elements of a group)."""
    return build.reshape(build.wide(x), (x.shape[0], groups, math.prod(x.shape[1:]) // groups))


def _in_groups(parameter: Node, values: Node) -> Node:
    """A value a channel, in a shape that broadcasts to (batch, groups, elements of a group)."""
    _, groups, size = values.shape
    channels = parameter.numel // groups
    each = build.reshape(build.wide(parameter), (1, groups, channels, 1))
    return build.reshape(build.broadcast_to(each, (1, groups, channels, size // channels)), (1, groups, size))


def _group_norm(x: Node, *parameters: Node, groups: int, eps: float, has_weight: bool) -> tuple[Node, ...]:
    """The result, and mean and variance of every group of every sample."""
    weight, bias = _split(parameters, has_weight)
    values = _grouped(x, groups)
    factor, shift = (None if p is None else _in_groups(p, values) for p in (weight, bias))
    mean = _mean(values, 2)
    deviation = values - mean
    variance = _mean(deviation * deviation, 2)
    result = deviation * f.rsqrt(variance + eps)
    if factor is not None:
        result = result * factor
    if shift is not None:
        result = result + shift
    rows = values.shape[:2]
    return (
        build.cast(build.reshape(result, x.shape), x.dtype),
        build.reshape(mean, rows),
        build.reshape(variance, rows),
    )


def _group_norm_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], groups: int, eps: float, has_weight: bool
) -> list[Node | None]:
    x, *parameters = inputs
    weight, bias = _split(parameters, has_weight)
    values = _grouped(x, groups)
    one_a_group = (*values.shape[:2], 1)
    mean, variance, by_mean, by_variance = (build.reshape(n, one_a_group) for n in (*outputs[1:], *grads[1:]))
    scale = f.rsqrt(variance + eps)
    deviation = values - mean
    result = _of_statistics(deviation, by_mean, by_variance, values.shape[2])
    terms: list[Node | None] = [None, None]
    if not _is_zero(grads[0]):
        grad = _grouped(grads[0], groups)
        unit = deviation * scale
        terms = [grad * unit, grad]
        scaled = grad if weight is None else grad * _in_groups(weight, values)
        main = (scaled - _mean(scaled, 2) - unit * _mean(scaled * unit, 2)) * scale
        result = main if result is None else result + main
    parts: list[Node | None] = [None if result is None else build.cast(build.reshape(result, x.shape), x.dtype)]
    for parameter, term in zip((weight, bias), terms):
        if parameter is not None and term is not None:
            each = build.reshape(term, (x.shape[0], groups, x.shape[1] // groups, math.prod(x.shape[2:])))
            part = build.reduce(_sum(each, 3), "sum", (0,))
            parts.append(build.cast(build.reshape(part, parameter.shape), parameter.dtype))
        elif parameter is not None:
            parts.append(None)
    return parts


GROUP_NORM = Operator("group_norm", _group_norm, _group_norm_gradient, keeps_format=format_of_first)


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
    result, _, _ = call(GROUP_NORM, (input, *(p for p in (weight, bias) if p is not None)), attrs)
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
    attrs = {"groups": shape[1], "eps": float(eps), "has_weight": weight is not None}
    # The result is row-major in any case, as PyTorch's is.
    operands = (input.contiguous(), *(p for p in (weight, bias) if p is not None))
    result, mean, variance = call(GROUP_NORM, operands, attrs)
    if running_mean is not None:
        _update(running_mean, mean.mean(0), float(momentum), 1.0)
    if running_var is not None:
        _update(running_var, variance.mean(0), float(momentum), count / max(count - 1, 1))
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
