"""Average pooling, and powers of it: the mean (or the p-norm) of every window of the last axes.

The gradient of a window is spread over its taps in equal parts: the transposed window, which is a window of the gradients
(with stride - 1 zeros between them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.memory_format import format_of_image
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import type_name
from tensorsmith.ops.pooling_checks import pooling_numbers
from tensorsmith.ops.pooling_windows import (
    MOST_TAPS,
    Windows,
    along,
    count_of_taps,
    numbers,
    padded,
    taps_of,
    windows_of,
)
from tensorsmith.ops.registry import TABLE, need_tensor, public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _sums(x: Node, windows: Sequence[Windows]) -> Node:
    """The sum of every window of a padded value, tap by tap or one axis after the other."""
    first = x.ndim - len(windows)
    if count_of_taps(windows) <= MOST_TAPS:
        taps = taps_of(x, windows)
        result = taps[0][1]
        for _, tap in taps[1:]:
            result = result + tap
        return result
    if all(w.size == x.shape[axis] and w.dilation == 1 for axis, w in enumerate(windows, first)):
        return build.reduce(x, "sum", range(first, x.ndim), keepdim=True)
    for axis, w in enumerate(windows, first):
        stacked = w.stacked(x, axis)
        x = build.reduce(stacked, "sum", (stacked.ndim - 1,))
    return x


def _divided(value: Node, windows: Sequence[Windows], count_include_pad: bool, divisor: int | None) -> Node:
    """By how many elements each window has: the padding is counted or not, what ceil_mode adds beyond it never."""
    if divisor is not None:
        return _quotient(value, divisor)
    first, whole, varying = value.ndim - len(windows), 1, []
    for axis, w in enumerate(windows, first):
        edge = w.padding if count_include_pad else 0
        low, high = -edge, w.extent + edge
        starts = [i * w.stride - w.padding for i in range(w.count)]
        spans = {min(s + w.size, high) - max(s, low) for s in starts}
        if len(spans) == 1:
            whole *= spans.pop()
            continue
        start = w.starts(value.graph)
        end = start + w.size
        span = build.where(end > high, high, end) - build.where(start < low, low, start)
        varying.append(along(span, axis, value.ndim))
    if not varying:
        return _quotient(value, whole)
    count = math.prod(varying[1:], start=varying[0]) * whole
    return _quotient(value, build.cast(count, value.dtype))


def _quotient(value: Node, count: Node | int) -> Node:
    if value.dtype.kind == "f":
        return value / count
    # Integers are divided as in C++, towards zero.
    size = abs(count) if isinstance(count, int) else count
    sign = build.where(value < 0, -1, 1) * (-1 if isinstance(count, int) and count < 0 else 1)
    return value * build.where(value < 0, -1, 1) // size * sign


def _avg_pool(x: Node, count_include_pad: bool, divisor: int | None, **attrs: Any) -> Node:
    if x.dtype.kind != "f" and x.dtype.name != "int64":
        raise NotImplementedError(f"\"avg_pool{len(attrs['kernel'])}d\" not implemented for '{type_name(x.dtype)}'")
    windows = windows_of(x.shape, **attrs)
    total = _sums(padded(build.wide(x), windows, 0), windows)
    return build.cast(_divided(total, windows, count_include_pad, divisor), x.dtype)


def _transposed(grad: Node, windows: Sequence[Windows]) -> Node:
    """For every element the sum of the gradients of the windows it is in."""
    first = grad.ndim - len(windows)
    lead = grad.shape[:first]
    if all(w.size == w.stride and not w.padding and w.extent == w.count * w.size for w in windows):
        thin, wide = list(lead), list(lead)
        for w in windows:
            thin += [w.count, 1]
            wide += [w.count, w.size]
        spread = build.broadcast_to(build.reshape(grad, thin), wide)
        return build.reshape(spread, (*lead, *[w.extent for w in windows]))
    low, high, step, cut = [0] * first, [0] * first, [1] * first, []
    for w in windows:
        before, after = w.margins
        dilated = (w.count - 1) * w.stride + 1
        whole = w.extent + before + after  # with what lies beyond the last window, which gets zeros
        low.append(w.size - 1)
        high.append(whole - dilated)
        step.append(w.stride)
        cut.append(Windows(whole + w.size - 1, w.extent, w.size, 1, 0, 1))
    value = build.pad(grad, low, high, step)
    for axis, w in enumerate(windows, first):
        value = build.slice_(value, axis, w.padding, w.extent + w.size - 1)
    return _sums(value, cut)


def _avg_pool_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], count_include_pad: bool, divisor: int | None,
    **attrs: Any,
) -> list[Node]:  # fmt: skip
    x = inputs[0]
    windows = windows_of(x.shape, **attrs)
    share = _divided(build.wide(grads[0]), windows, count_include_pad, divisor)
    return [build.cast(_transposed(share, windows), x.dtype)]


AVG_POOL = Operator("avg_pool", _avg_pool, _avg_pool_gradient, keeps_format=format_of_image)


def average(
    name: str, rank: int, input: Tensor, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,  # noqa: A002
    count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    """Average pooling of the last `rank` axes, arguments checked."""
    if rank == 3 and modes.autocast is not None:
        (input,) = modes.autocast.operands("avg_pool", input)  # noqa: A001
    attrs = pooling_numbers(name, input, rank, kernel_size, stride, padding, 1, ceil_mode)
    if rank == 3 and input.dtype.is_half:
        raise NotImplementedError(f"\"{name}_out_frame\" not implemented for '{type_name(input.dtype)}'")
    extents = input.layout.shape[input.ndim - rank :]
    if rank == 3 and any(n < k for n, k in zip(extents, attrs["kernel"])):  # PyTorch does not count the padding here
        given, kernel = (" ".join(f"{s}: {n}" for s, n in zip("THW", each)) for each in (extents, attrs["kernel"]))
        raise RuntimeError(f"{name}: input image ({given}) smaller than kernel size ({kernel})")
    if divisor_override == 0:
        raise RuntimeError(f"{name}: divisor must be not zero")
    attrs |= {"count_include_pad": bool(count_include_pad), "divisor": divisor_override}
    return call(AVG_POOL, (input,), attrs)


_DOC = """The mean of every window of the last {rank} axes.

    input (N, C, {space}) or (C, {space}); every size L becomes floor((L + 2 padding - kernel_size) / stride) + 1, with
    ceil_mode rounded up, without windows that start in the padding on the right. stride: kernel_size where None.
    count_include_pad: whether the zeros of the padding count as elements.{divisor}
    dtypes: floating point and int64. Raises RuntimeError for windows that do not fit or padding above half a window.

    >>> ts.nn.functional.avg_pool{rank}d(ts.ones(1, {four}), 2).shape
    Size([1, {two}])
    """


@public("pooling", namespace="nn.functional", method=False)
def avg_pool1d(
    input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None,  # noqa: A002
    padding: int | Sequence[int] = 0, ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    return average("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


avg_pool1d.__doc__ = _DOC.format(rank=1, space="L", four=4, two=2, divisor="")
public("pooling", method=False)(avg_pool1d)


def _enter(rank: int) -> None:
    name = f"avg_pool{rank}d"

    def avg_pool(
        input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None,  # noqa: A002
        padding: int | Sequence[int] = 0, ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        return average(name, rank, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    avg_pool.__name__ = avg_pool.__qualname__ = name
    avg_pool.__doc__ = _DOC.format(
        rank=rank, space=", ".join("DHW"[3 - rank :]), four=", ".join(["4"] * rank), two=", ".join(["2"] * rank),
        divisor="\n    divisor_override: divides the sums in place of the number of elements.",
    )  # fmt: skip
    public("pooling", namespace="nn.functional", method=False, out=True)(avg_pool)


_enter(2)
_enter(3)


# --- powers ------------------------------------------------------------------------------------------------------------


def _enter_powers(rank: int) -> None:
    name = f"lp_pool{rank}d"

    def lp_pool(
        input: Tensor, norm_type: float, kernel_size: int | Sequence[int],  # noqa: A002
        stride: int | Sequence[int] | None = None, ceil_mode: bool = False,
    ) -> Tensor:  # fmt: skip
        need_tensor(name, input)
        if math.isinf(norm_type):
            pool, sizes = TABLE[f"nn.functional.max_pool{rank}d"].function, input.abs()
            return (
                pool(sizes, kernel_size, stride, 0, 1, ceil_mode)
                if norm_type > 0
                else -pool(-sizes, kernel_size, stride, 0, 1, ceil_mode)
            )
        taps = math.prod(numbers(name, "kernel_size", kernel_size, rank))
        mean = average(name, rank, input.pow(norm_type), kernel_size, stride, 0, ceil_mode, True, None)
        return (mean.sign() * mean.abs().relu()).mul(taps).pow(1.0 / norm_type)

    lp_pool.__name__ = lp_pool.__qualname__ = name
    lp_pool.__doc__ = f"""(sum of x**p)**(1/p) over every window of the last {rank} axes, p = norm_type.

    Shapes as for `avg_pool{rank}d` without padding; a window cut off by ceil_mode is scaled to its full size. norm_type of
    inf (-inf) is the largest (smallest) absolute value. Raises RuntimeError for windows that do not fit.

    >>> ts.nn.functional.{name}(ts.ones(1, {", ".join(["2"] * rank)}), 1, 2).flatten()
    tensor([{2**rank}.])
    """
    public("pooling", namespace="nn.functional", method=False)(lp_pool)


for _rank in (1, 2, 3):
    _enter_powers(_rank)
