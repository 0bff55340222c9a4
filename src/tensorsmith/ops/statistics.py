"""Statistics and differences along axes, composed of other operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import type_name, uint8
from tensorsmith.core.shapes import normalise_axis
from tensorsmith.ops.complex_numbers import complex, imag, real  # noqa: A004 - PyTorch's name
from tensorsmith.ops.creation import copy_array
from tensorsmith.ops.device_copies import beside_input
from tensorsmith.ops.index_steps import from_host, host
from tensorsmith.ops.joining import cat
from tensorsmith.ops.moments import norm, vector_norm_of
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.ops.sorting import sort
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

# --- differences and areas --------------------------------------------------------------------------------------------


@public("statistics", kind="composite", out=True)
def diff(
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,  # noqa: A002
) -> Tensor:
    """Differences of neighbours along an axis, n times."""
    if not need_tensor("diff", input).ndim:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    axis = normalise_axis(dim, input.ndim)
    if n == 0:
        return input.clone()
    parts = [x for x in (prepend, input, append) if x is not None]
    x = cat(parts, axis) if len(parts) > 1 else input
    for _ in range(min(n, x.layout.shape[axis])):
        extent = x.layout.shape[axis]
        later, earlier = x.narrow(axis, 1, max(extent - 1, 0)), x.narrow(axis, 0, max(extent - 1, 0))
        x = later != earlier if x.dtype.kind == "b" else later - earlier
    return x


def _spacings(x: Tensor | None, dx: float, extent: int, axis: int, y: Tensor) -> Any:
    if x is None:
        return dx
    if x.ndim == 1 and y.ndim != 1:
        if x.layout.shape[0] != extent:
            raise RuntimeError(
                f"There must be one `x` value for each sample point: got {x.layout.shape[0]} for {extent}"
            )
        x = x.reshape(tuple(extent if i == axis else 1 for i in range(y.ndim)))
    last = normalise_axis(axis - y.ndim, x.ndim) if x.ndim >= y.ndim - axis else axis
    return diff(x, dim=last)


def _areas(y: Tensor, x: Tensor | None, dx: float, dim: int) -> Tensor:
    if y.dtype.kind == "b" or (x is not None and x.dtype.kind == "b"):
        raise RuntimeError("trapezoid: received a bool input for `x` or `y`, but bool is not supported")
    axis = normalise_axis(dim, y.ndim)
    if "b" in (y.dtype.kind, x.dtype.kind if x is not None else ""):
        raise RuntimeError("trapezoid: received a bool input, but bool is not supported")
    extent = y.layout.shape[axis]
    left, right = y.narrow(axis, 0, extent - 1), y.narrow(axis, 1, extent - 1)
    return (left + right) * _spacings(x, dx, extent, axis, y) / 2.0


@public("statistics", method=False, kind="composite", aliases=("trapz",))
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The area under samples by the trapezoidal rule, at points x or at distance dx."""
    axis = normalise_axis(dim, need_tensor("trapezoid", y, "y").ndim)
    if y.layout.shape[axis] == 0:
        return y.sum(axis)
    return _areas(y, x, dx, dim).sum(dim)


@public("statistics", method=False, kind="composite")
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The running area under samples by the trapezoidal rule."""
    return _areas(need_tensor("cumulative_trapezoid", y, "y"), x, dx, dim).cumsum(dim)


# --- moments of rows --------------------------------------------------------------------------------------------------


@public("statistics", kind="composite")
def cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,  # noqa: A002
) -> Tensor:
    """The covariance matrix of variables in rows and observations in columns."""
    if need_tensor("cov", input).ndim > 2:
        raise RuntimeError(
            f"cov(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions"
        )
    rows = input.reshape((1, -1)) if input.ndim < 2 else input
    count = rows.layout.shape[1]
    weights = None
    for which, w in (("fweights", fweights), ("aweights", aweights)):
        if w is not None:
            if which == "fweights" and w.dtype.kind not in "iu":
                raise RuntimeError(
                    f"cov(): expected fweights to have integral dtype but got fweights with {type_name(w.dtype)} dtype"
                )
            if w.layout.numel and host(w.detach(), "cov").min() < 0:
                raise RuntimeError(f"cov(): {which} cannot be negative")
            if w.layout.numel != count:
                raise RuntimeError(
                    f"cov(): expected {which} to have the same numel as there are observations in the input but got "
                    f"{w.layout.numel} != {count}"
                )
            weights = w if weights is None else weights * w
    total: Any = count if weights is None else weights.sum()
    if weights is None:
        average = rows.mean(1, keepdim=True) if rows.dtype.kind in "fc" else rows.sum(1, keepdim=True) / count
    else:
        average = (rows * weights).sum(1, keepdim=True) / total
    if weights is None:
        norm_factor: Any = max(count - correction, 0)
    elif aweights is None or correction == 0:
        norm_factor = (total - correction).clamp(min=0)
    else:
        norm_factor = (total - correction * (weights * aweights).sum() / total).clamp(min=0)
    around = rows - average
    other = around if weights is None else around * weights
    found = (around @ other.to(around.dtype).mH) / norm_factor
    return found.squeeze()


@public("statistics", kind="composite")
def corrcoef(input: Tensor) -> Tensor:  # noqa: A002
    """The matrix of correlation coefficients of variables in rows."""
    if need_tensor("corrcoef", input).ndim > 2:
        raise RuntimeError(
            f"corrcoef(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions"
        )
    c = cov(input)
    if not c.ndim:
        return c / c
    deviation = real(c.diagonal()).sqrt()
    found = c / deviation.unsqueeze(1) / deviation.unsqueeze(0)
    return complex(real(found).clamp(-1, 1), imag(found).clamp(-1, 1)) if found.is_complex() else found.clamp(-1, 1)


# --- quantiles --------------------------------------------------------------------------------------------------------

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantiles(name: str, skip_nan: bool) -> None:
    def function(
        input: Tensor,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",  # noqa: A002
    ) -> Tensor:
        x = need_tensor(name, input)
        if modes.autocast is not None:
            x, q = modes.autocast.operands(name, x, q)
        if x.dtype.name not in ("float32", "float64"):
            raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
        if interpolation not in _INTERPOLATIONS:
            raise RuntimeError(
                f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, but got {interpolation}"
            )
        if not x.layout.numel:
            raise RuntimeError(f"{name}() input tensor must be non-empty")
        wanted = host(q, name) if isinstance(q, Tensor) else np.asarray(float(q))
        if wanted.ndim > 1:
            raise RuntimeError(f"{name}() q must be a scalar or 1D tensor")
        if ((wanted < 0) | (wanted > 1)).any():
            raise RuntimeError(f"{name}() q values must be in the range [0, 1]")
        flat = x.reshape((-1,)) if dim is None else x
        axis = 0 if dim is None else normalise_axis(dim, x.ndim)
        if not flat.ndim:
            flat = flat.reshape((1,))
        rows = sort(flat, axis).values.transpose(axis, -1)
        size = rows.layout.shape[-1]

        def ranks(values: np.ndarray) -> np.ndarray:
            nan = np.isnan(values).sum(-1, keepdims=True)
            if skip_nan:
                return _rounded(wanted.reshape(-1) * np.maximum(size - nan - 1, 0), interpolation)
            # NaN sorts last, and the quantile of a row with NaN is NaN
            return _rounded(np.where(nan > 0, size - 1, wanted.reshape(-1) * (size - 1) + 0.0 * nan), interpolation)

        def scale(values: np.ndarray) -> np.ndarray:
            nan = np.isnan(values).sum(-1, keepdims=True)
            return np.maximum(size - nan - 1, 0) if skip_nan else np.where(nan > 0, 0, size - 1)

        def computed(function: Callable[[np.ndarray], np.ndarray], dtype: Any) -> Tensor:
            return from_host(rows.detach(), name, lambda values: function(values).astype(dtype))

        low = computed(lambda values: np.floor(ranks(values)), np.int64)
        high = computed(lambda values: np.ceil(ranks(values)), np.int64)
        below, above = rows.gather(-1, low), rows.gather(-1, high)
        if interpolation == "midpoint":
            found = (below + above) / 2
        else:
            weight = computed(lambda values: ranks(values) - np.floor(ranks(values)), x.dtype.numpy)
            if interpolation == "linear" and isinstance(q, Tensor) and (q.layout.tracked or q.layout.level is not None):
                weight = weight + (q - q.detach()) * computed(scale, x.dtype.numpy)
            found = below.lerp(above, weight)
        return _placed(found, x, axis, dim, keepdim, wanted.ndim == 0)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"Quantiles q of all elements or along an axis{', without NaN' if skip_nan else '; NaN where there is one'}."
    )
    public("statistics", kind="composite", out=True)(function)


def _rounded(ranks: np.ndarray, interpolation: str) -> np.ndarray:
    if interpolation == "lower":
        return np.floor(ranks)
    if interpolation == "higher":
        return np.ceil(ranks)
    return np.round(ranks) if interpolation == "nearest" else ranks


def _placed(found: Tensor, x: Tensor, axis: int, dim: int | None, keepdim: bool, scalar: bool) -> Tensor:
    """Quantiles, which stand last, moved to the front, and the reduced axis given back or dropped."""
    if dim is None:
        found = found.reshape((*(1,) * x.ndim, -1)) if keepdim else found
        front = found.movedim(-1, 0)
        return front.squeeze(0) if scalar else front
    whole = found.transpose(axis, -1) if x.ndim else found
    if scalar:
        return whole if keepdim and x.ndim else whole.squeeze(axis if x.ndim else 0)
    front = whole.unsqueeze(0).transpose(0, axis + 1) if x.ndim else whole
    return front if keepdim or not x.ndim else front.squeeze(axis + 1)


_quantiles("quantile", False)
_quantiles("nanquantile", True)

# --- distances --------------------------------------------------------------------------------------------------------


@public("statistics", kind="composite")
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:  # noqa: A002
    """The p-norm of the difference."""
    need_tensor("dist", input)
    return norm(input - need_tensor("dist", other, "other", 2), p)


@public("statistics", kind="composite", out=True)
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:  # noqa: A002
    """Slices of an axis whose p-norm is above maxnorm scaled down to it."""
    if need_tensor("renorm", input).ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions")
    axis = normalise_axis(dim, input.ndim)
    if p <= 0:
        raise RuntimeError("renorm: non-positive norm not supported")
    if maxnorm < 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    others = [i for i in range(input.ndim) if i != axis]
    size = vector_norm_of(input, float(p), others, True, None)
    factor = (maxnorm / (size + 1e-7)).masked_fill(size <= maxnorm, 1.0)
    return input * factor


# --- counting ---------------------------------------------------------------------------------------------------------


@public("statistics", kind="library", differentiable=False, out=True)
@beside_input
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:  # noqa: A002
    """How many elements fall into each of `bins` equal intervals from min to max (of the values, where both are equal)."""
    if need_tensor("histc", input).dtype.kind != "f":
        raise NotImplementedError(f"\"histogram_cpu\" not implemented for '{type_name(input.dtype)}'")
    values = host(input, "histc")
    if bins <= 0:
        raise RuntimeError(f"bins must be > 0, but got {bins}")
    low, high = float(min), float(max)
    if low == high and values.size:
        low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError("max must be larger than min")
    inside = values[(values >= low) & (values <= high)].astype(np.float64)
    place = np.minimum(((inside - low) / (high - low) * bins).astype(np.int64), bins - 1)
    return copy_array(np.bincount(place, minlength=bins).astype(input.dtype.numpy))


def _gradient(input: Tensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> list[Tensor]:  # noqa: A002
    """Estimates of the derivative along axes by central differences, one tensor an axis."""
    x = need_tensor("gradient", input)
    axes = (
        range(x.ndim) if dim is None else [normalise_axis(d, x.ndim) for d in ([dim] if isinstance(dim, int) else dim)]
    )
    axes = list(axes)
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"gradient: a dim appears multiple times in the list of dims {axes}")
    if x.dtype is uint8:
        raise RuntimeError("gradient does not support uint8 input")
    given = spacing if isinstance(spacing, list | tuple) else [spacing] * len(axes)
    if len(given) != len(axes):
        raise RuntimeError(
            f"gradient expected spacing to be unspecified, a scalar, or a list of length {len(axes)}, but got a list of "
            f"length {len(given)}"
        )
    if edge_order not in (1, 2):
        raise RuntimeError("gradient only supports edge_order=1 and edge_order=2.")
    results = []
    for axis, step in zip(axes, given):
        extent = x.layout.shape[axis]
        if extent < edge_order + 1:
            raise RuntimeError("gradient expected each dimension size to be at least edge_order+1")
        results.append(_derivative(x, axis, extent, step, edge_order))
    return results


public("statistics", name="gradient", method=False, kind="composite")(_gradient)


def _derivative(x: Tensor, axis: int, extent: int, step: Any, edge_order: int) -> Tensor:
    def at(start: int, length: int) -> Tensor:
        return x.narrow(axis, start, length)

    shape = tuple(-1 if i == axis else 1 for i in range(x.ndim))
    before: Any
    after: Any
    first: Any
    last: Any
    second: Any
    next_to_last: Any
    if isinstance(step, Tensor):
        gaps = diff(step, dim=0)
        before, after = gaps.narrow(0, 0, extent - 2).reshape(shape), gaps.narrow(0, 1, extent - 2).reshape(shape)
        first, last = gaps[0], gaps[extent - 2]
        second, next_to_last = (gaps[1], gaps[extent - 3]) if extent > 2 else (first, last)
    else:
        h: Any = 1.0 if step is None else step
        before = after = first = last = second = next_to_last = h
    inner = (
        at(2, extent - 2) * (before / (after * (before + after)))
        + at(1, extent - 2) * ((after - before) / (before * after))
        - at(0, extent - 2) * (after / (before * (before + after)))
    )
    if edge_order == 1:
        low, high = (at(1, 1) - at(0, 1)) / first, (at(extent - 1, 1) - at(extent - 2, 1)) / last
    else:
        low = _edge(at(0, 1), at(1, 1), at(2, 1), first, second)
        high = -_edge(at(extent - 1, 1), at(extent - 2, 1), at(extent - 3, 1), last, next_to_last)
    return cat([low, inner, high], axis)


def _edge(a: Tensor, b: Tensor, c: Tensor, near: Any, far: Any) -> Tensor:
    """The one-sided derivative of second order at a, from b at distance near and c beyond at distance far."""
    return (
        a * (-(2.0 * near + far) / (near * (near + far)))
        + b * ((near + far) / (near * far))
        - c * (near / (far * (near + far)))
    )
