"""Convolution and transposed convolution over one, two and three axes of space.

    conv:            y[n, o, p] = b[o] + sum over c, k of x[n, c, p stride + k dilation - padding] w[o, c, k]
    conv_transpose:  y[n, o, q] = b[o] + sum of x[n, c, p] w[c, o, k] over all p, k with q = p stride + k dilation - padding

x is zero outside its extents. With groups, output channels of group g see the input channels of group g alone; groups =
channels is a depthwise convolution. The transposed convolution is the transpose of the linear map that the convolution is:
the convolution, with the kernel turned, of x with stride - 1 zeros between its elements.

Both are one primitive (`ir/convolution.py`), whose gradients are that primitive again. A complex convolution is four real
ones. Extents: conv (S + 2 padding - dilation (K - 1) - 1) // stride + 1; conv_transpose (S - 1) stride - 2 padding +
dilation (K - 1) + output_padding + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import bool_, type_name
from tensorsmith.core.memory_format import format_of_any
from tensorsmith.eager.dispatch import FAST, call, remember
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.convolution import convolution as convolve, turned
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import c_name, need_tensors
from tensorsmith.ops.raw_keys import as_int, as_ints
from tensorsmith.ops.registry import public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

Extents = tuple[int, ...]


def _linear_map(x: Node, w: Node, **attrs: Any) -> Node:
    """The convolution without its bias, of real or complex operands."""
    if not x.dtype.is_complex:
        return convolve(x, w, **attrs)
    (a, b), (c, d) = [[build.part(value, number) for number in (0, 1)] for value in (x, w)]
    real = convolve(a, c, **attrs) - convolve(b, d, **attrs)
    return build.make_complex(real, convolve(a, d, **attrs) + convolve(b, c, **attrs))


def _plus_bias(y: Node, bias: Sequence[Node], batched: bool) -> Node:
    for b in bias:
        y = y + build.reshape(b, (b.numel, *(1,) * (y.ndim - 2)))
    return y if batched else build.reshape(y, y.shape[1:])


def _conv(
    x: Node, weight: Node, *bias: Node, stride: Extents, padding: tuple[Extents, Extents], dilation: Extents, groups: int
) -> Node:
    batched = x.ndim == weight.ndim
    x = x if batched else build.reshape(x, (1, *x.shape))
    low, high = padding
    y = _linear_map(
        x, weight, stride=stride, low=low, high=high, dilation=dilation, step=(1,) * len(stride), groups=groups
    )
    return _plus_bias(y, bias, batched)


def _conv_transpose(
    x: Node, weight: Node, *bias: Node, stride: Extents, padding: Extents, output_padding: Extents, dilation: Extents,
    groups: int,
) -> Node:  # fmt: skip
    batched = x.ndim == weight.ndim
    x = x if batched else build.reshape(x, (1, *x.shape))
    reach = [(k - 1) * d - p for k, d, p in zip(weight.shape[2:], dilation, padding)]
    high = [n + more for n, more in zip(reach, output_padding)]
    y = _linear_map(
        x, turned(weight, groups), stride=(1,) * len(stride), low=reach, high=high, dilation=dilation, step=stride,
        groups=groups,
    )  # fmt: skip
    return _plus_bias(y, bias, batched)


CONVOLUTION = Operator("convolution", _conv, keeps_format=format_of_any)
CONV_TRANSPOSE = Operator("conv_transpose", _conv_transpose, node_name="Convolution", keeps_format=format_of_any)


# ------------------------------------------------------------------------------------------------------------- arguments


def _per_axis(name: str, value: Any, argument: str, rank: int) -> Extents:
    values = as_ints(name, value, argument)
    if len(values) not in (1, rank):
        raise RuntimeError(
            f"expected {argument} to be a single integer value or a list of {rank} values to match the convolution "
            f"dimensions, but got {argument}={list(values)}"
        )
    return values * rank if len(values) == 1 else values


def _check_dtypes(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if bias is not None and bias.dtype is not x.dtype:
        raise RuntimeError(f"Input type ({c_name(x.dtype)}) and bias type ({c_name(bias.dtype)}) should be the same")
    if weight.dtype is not x.dtype:
        raise RuntimeError(f"expected scalar type {type_name(x.dtype)} but found {type_name(weight.dtype)}")
    if x.dtype is bool_:
        raise NotImplementedError(f"\"convolution\" not implemented for '{type_name(x.dtype)}'")


def _check_shapes(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, rank: int, groups: int, transposed: bool,
    numbers: dict[str, Extents],
) -> None:  # fmt: skip
    """What both directions refuse, in PyTorch's words and order."""
    shape, kernel = list(x.layout.shape), list(weight.layout.shape)
    if len(shape) not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"Expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input to {name}, but got input of size: {shape}"
        )
    for argument, least, word in (
        ("padding", 0, "negative"), ("output_padding", 0, "negative"), ("stride", 1, "non-positive"),
        ("dilation", 1, "non-positive"),
    ):  # fmt: skip
        if min(numbers.get(argument, (1,))) < least:
            raise RuntimeError(f"{word} {argument} is not supported: {name}() got {argument}={list(numbers[argument])}")
    if groups < 1:
        raise RuntimeError(f"non-positive groups is not supported: {name}() got groups={groups}")
    shape = shape if len(shape) == rank + 2 else [1, *shape]
    if len(kernel) != len(shape):
        raise RuntimeError(
            f"Expected {len(kernel)}-dimensional input for {len(kernel)}-dimensional weight {kernel}, but got "
            f"{len(shape)}-dimensional input of size {shape} instead"
        )
    if kernel[0] < groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, but got weight of size "
            f"{kernel} instead"
        )
    if kernel[0] % groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got weight of size "
            f"[{kernel}] instead"
        )
    channels = kernel[0] if transposed else kernel[1] * groups
    if shape[1] != channels:
        raise RuntimeError(
            f"Given {'transposed=1' if transposed else f'groups={groups}'}, weight of size {kernel}, expected "
            f"input{shape} to have {channels} channels, but got {shape[1]} channels instead"
        )
    out = kernel[1] * groups if transposed else kernel[0]
    if bias is not None and bias.layout.shape != (out,):
        raise RuntimeError(
            f"Given {'transposed=1, ' if transposed else ''}weight of size {kernel}, expected bias to be 1-dimensional with "
            f"{out} elements, but got bias of size {list(bias.layout.shape)} instead"
        )
    if 0 in kernel[2:]:
        raise RuntimeError(f"{name}(): a kernel of size zero: weight of size {kernel}")
    if 0 in shape[2:]:
        raise RuntimeError(f"Only zero batch or zero channel inputs are supported, but got input shape: {shape}")


def _sizes(extents: Sequence[int]) -> str:
    return f"({' x '.join(map(str, extents))})"


def _check_kernel(x: Tensor, kernel: Extents, padding: tuple[Extents, Extents], dilation: Extents) -> None:
    space = x.layout.shape[-len(kernel) :]
    padded = [n + low + high for n, low, high in zip(space, *padding)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    if any(k > n for k, n in zip(spans, padded)):
        raise RuntimeError(
            f"Calculated padded input size per channel: {_sizes(padded)}. Kernel size: {_sizes(spans)}. Kernel size can't be "
            "greater than actual input size"
        )


def _hashable(value: Any) -> Any:
    return tuple(value) if value.__class__ is list else value


def _run(
    operator: Operator, name: str, rank: int, operands: tuple[Any, ...], raw: tuple[Any, ...],
) -> Tensor:  # fmt: skip
    """Look the call up by its raw arguments; where it is new, check and normalise them."""
    x, weight, bias = operands
    given = (x, weight) if bias is None else operands
    key = (operator, name, *[getattr(value, "layout", None) for value in given], *[_hashable(value) for value in raw])
    try:
        entry = FAST.get(key) if modes.tracer is None else None
    except TypeError:
        entry = None
    if entry is not None and all([value.__class__ is not bool and value.__class__ is not float for value in raw]):
        return entry(*given)
    need_tensors(name, input=x, weight=weight)
    if bias is not None:
        need_tensors(name, input=x, weight=weight, bias=bias)
    if modes.autocast is not None:
        x, weight, bias = modes.autocast.operands(operator.name, x, weight, bias)
        given = (x, weight) if bias is None else (x, weight, bias)
    attrs = (_transposed_attrs if operator is CONV_TRANSPOSE else _attrs)(name, x, weight, bias, rank, *raw)
    result = call(operator, given, attrs)
    if modes.tracer is None:
        entry = FAST.get((operator, *[value.layout for value in given], *attrs.items()))
        if entry is not None:
            try:
                remember(key, entry)
            except TypeError:  # an argument that cannot be part of a key: it is normalised anew each time
                pass
    return result


def _attrs(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, rank: int, stride: Any, padding: Any, dilation: Any,
    groups: Any,
) -> dict[str, Any]:  # fmt: skip
    steps, spaced = _per_axis(name, stride, "stride", rank), _per_axis(name, dilation, "dilation", rank)
    count = as_int(name, groups, "groups")
    kernel = weight.layout.shape[2:]
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise RuntimeError(f"Invalid padding string: '{padding}'")
        if padding == "same" and any(n != 1 for n in steps):
            raise RuntimeError("padding='same' is not supported for strided convolutions")
        total = [(k - 1) * d if padding == "same" else 0 for k, d in zip(kernel, spaced)]
        sides = tuple(n // 2 for n in total), tuple(n - n // 2 for n in total)
    else:
        sides = (_per_axis(name, padding, "padding", rank),) * 2
    numbers = {"stride": steps, "padding": sides[0], "dilation": spaced}
    _check_shapes(name, x, weight, bias, rank, count, False, numbers)
    _check_kernel(x, kernel, sides, spaced)
    _check_dtypes(x, weight, bias)
    return {"stride": steps, "padding": sides, "dilation": spaced, "groups": count}


def _transposed_attrs(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, rank: int, stride: Any, padding: Any, output_padding: Any,
    groups: Any, dilation: Any,
) -> dict[str, Any]:  # fmt: skip
    given = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    if isinstance(padding, str):
        raise TypeError(f"{name}(): argument 'padding' must be tuple of ints, not str")
    numbers = {argument: _per_axis(name, value, argument, rank) for argument, value in given.items()}
    count = as_int(name, groups, "groups")
    _check_shapes(name, x, weight, bias, rank, count, True, numbers)
    for more, step, spaced in zip(numbers["output_padding"], numbers["stride"], numbers["dilation"]):
        if more >= step and more >= spaced:
            raise RuntimeError(
                "output padding must be smaller than either stride or dilation, but got output_padding: "
                f"{list(numbers['output_padding'])} stride: {list(numbers['stride'])} dilation: {list(numbers['dilation'])}"
            )
    space, kernel = x.layout.shape[-rank:], weight.layout.shape[2:]
    each = zip(space, kernel, *(numbers[argument] for argument in given))
    made = [(n - 1) * step - 2 * around + spaced * (k - 1) + more + 1 for n, k, step, around, more, spaced in each]
    if min(made) < 1:
        raise RuntimeError(
            f"Given input size per channel: {_sizes(space)}. Calculated output size per channel: {_sizes(made)}. Output size "
            "is too small"
        )
    _check_dtypes(x, weight, bias)
    return {**numbers, "groups": count}


# ------------------------------------------------------------------------------------------------------------- functions

_function = public("convolution", namespace="nn.functional", method=False)
_root = public("convolution", method=False)


@_function
def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,  # noqa: A002
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """y[n, o, p] = b[o] + sum over c, k of x[n, c, p stride + k dilation - padding] w[o, c, k].

    input (N, C, L) or (C, L), weight (O, C / groups, K), bias (O): result (N, O, M) with
    M = (L + 2 padding - dilation (K - 1) - 1) // stride + 1. All of one dtype, any but bool.
    padding: a number, "valid" (none) or "same" (M = L; the extra zero of an even kernel is at the end).
    Raises RuntimeError where shapes, channels or dtypes do not fit, and for a kernel larger than the padded input.

    >>> ts.nn.functional.conv1d(ts.tensor([[1., 2., 3., 4.]]), ts.tensor([[[1., -1.]]]))
    tensor([[-1., -1., -1.]])
    """
    return _run(CONVOLUTION, "conv1d", 1, (input, weight, bias), (stride, padding, dilation, groups))


@_function
def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,  # noqa: A002
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """y[n, o, p] = b[o] + sum over c, k of x[n, c, p stride + k dilation - padding] w[o, c, k], p and k of two axes.

    input (N, C, H, W) or (C, H, W), weight (O, C / groups, R, S), bias (O): result (N, O, H', W') with
    H' = (H + 2 padding - dilation (R - 1) - 1) // stride + 1. All of one dtype, any but bool.
    stride, padding, dilation: a number or one per axis; padding also "valid" and "same" (see `conv1d`).
    Raises RuntimeError where shapes, channels or dtypes do not fit, and for a kernel larger than the padded input.

    >>> ts.nn.functional.conv2d(ts.ones(1, 1, 3, 3), ts.ones(1, 1, 2, 2), padding=1)[0, 0, 0]
    tensor([1., 2., 2., 1.])
    """
    return _run(CONVOLUTION, "conv2d", 2, (input, weight, bias), (stride, padding, dilation, groups))


@_function
def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,  # noqa: A002
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """y[n, o, p] = b[o] + sum over c, k of x[n, c, p stride + k dilation - padding] w[o, c, k], p and k of three axes.

    input (N, C, D, H, W) or (C, D, H, W), weight (O, C / groups, Q, R, S), bias (O). As `conv2d`.

    >>> ts.nn.functional.conv3d(ts.ones(1, 2, 3, 3, 3), ts.ones(4, 2, 2, 2, 2)).shape
    tensorsmith.Size([1, 4, 2, 2, 2])
    """
    return _run(CONVOLUTION, "conv3d", 3, (input, weight, bias), (stride, padding, dilation, groups))


@_function
def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,  # noqa: A002
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """y[n, o, q] = b[o] + sum of x[n, c, p] w[c, o, k] over all p, k with q = p stride + k dilation - padding.

    input (N, C, L) or (C, L), weight (C, O / groups, K), bias (O): result (N, O, M) with
    M = (L - 1) stride - 2 padding + dilation (K - 1) + output_padding + 1.
    Raises RuntimeError where shapes, channels or dtypes do not fit, for an output_padding that is smaller than neither
    stride nor dilation, and where nothing would be left.

    >>> ts.nn.functional.conv_transpose1d(ts.tensor([[1., 2.]]), ts.tensor([[[1., 1.]]]), stride=2)
    tensor([[1., 1., 2., 2.]])
    """
    return _run(
        CONV_TRANSPOSE, "conv_transpose1d", 1, (input, weight, bias), (stride, padding, output_padding, groups, dilation)
    )


@_function
def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,  # noqa: A002
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """y[n, o, q] = b[o] + sum of x[n, c, p] w[c, o, k] over all p, k with q = p stride + k dilation - padding.

    input (N, C, H, W) or (C, H, W), weight (C, O / groups, R, S), bias (O). As `conv_transpose1d`, on two axes.

    >>> ts.nn.functional.conv_transpose2d(ts.ones(1, 1, 2, 2), ts.ones(1, 1, 2, 2))[0, 0, 1]
    tensor([2., 4., 2.])
    """
    return _run(
        CONV_TRANSPOSE, "conv_transpose2d", 2, (input, weight, bias), (stride, padding, output_padding, groups, dilation)
    )


@_function
def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,  # noqa: A002
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """y[n, o, q] = b[o] + sum of x[n, c, p] w[c, o, k] over all p, k with q = p stride + k dilation - padding.

    input (N, C, D, H, W) or (C, D, H, W), weight (C, O / groups, Q, R, S), bias (O). As `conv_transpose1d`, on three axes.

    >>> ts.nn.functional.conv_transpose3d(ts.ones(1, 1, 2, 2, 2), ts.ones(1, 3, 2, 2, 2), stride=2).shape
    tensorsmith.Size([1, 3, 4, 4, 4])
    """
    return _run(
        CONV_TRANSPOSE, "conv_transpose3d", 3, (input, weight, bias), (stride, padding, output_padding, groups, dilation)
    )


for _each in (conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d):
    _root(_each)
