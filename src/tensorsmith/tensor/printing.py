"""Tensors as text, in PyTorch's format.

One width serves all elements: integers print plainly, floats with `precision` digits, in scientific notation where their
magnitudes differ by more than a thousand or leave [1e-4, 1e8]. Beyond `threshold` elements only the edges are shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorsmith.core.device import CPU
from tensorsmith.core.dtypes import bool_, complex_dtype, get_default_dtype, int64
from tensorsmith.tensor.host_values import values_at
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor, refuse_value


@dataclass
class PrintOptions:
    """What `set_printoptions` sets."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


options = PrintOptions()
_PROFILES: dict[str, tuple[int, float, int, int]] = {
    "default": (4, 1000, 3, 80), "short": (2, 1000, 2, 80), "full": (4, math.inf, 3, 80),
}  # fmt: skip


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
    linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """Set how tensors print: digits, elements before summarising, elements at the edges, columns, notation.

    profile: "default", "short" or "full" sets all four numbers first. sci_mode: None chooses by the values.
    """
    if profile is not None:
        if profile not in _PROFILES:
            raise ValueError(f"set_printoptions: profile must be one of {sorted(_PROFILES)}, got {profile!r}")
        options.precision, options.threshold, options.edgeitems, options.linewidth = _PROFILES[profile]
    options.precision = options.precision if precision is None else precision
    options.threshold = options.threshold if threshold is None else threshold
    options.edgeitems = options.edgeitems if edgeitems is None else edgeitems
    options.linewidth = options.linewidth if linewidth is None else linewidth
    options.sci_mode = sci_mode


class Formatter:
    """The common width and notation of some values."""

    def __init__(self, values: np.ndarray) -> None:
        self.floating = values.dtype.kind == "f"
        self.integers = True
        self.scientific = False
        self.width = 1
        flat = values.reshape(-1)
        if not self.floating:
            self.width = max((len(str(v)) for v in flat.tolist()), default=1)
            return
        finite = flat[np.isfinite(flat) & (flat != 0)]
        if not finite.size:
            return
        size = np.abs(finite)
        smallest, largest = float(size.min()), float(size.max())
        self.integers = bool(np.all(finite == np.ceil(finite)))
        self.scientific = largest / smallest > 1000.0 or largest > 1.0e8 or (not self.integers and smallest < 1.0e-4)
        if options.sci_mode is not None:
            self.scientific = options.sci_mode
        if self.scientific:
            widths = [len(f"{v:.{options.precision}e}") for v in finite.tolist()]
        elif self.integers:
            widths = [len(f"{v:.0f}") + 1 for v in finite.tolist()]
        else:
            widths = [len(f"{v:.{options.precision}f}") for v in finite.tolist()]
        self.width = max(1, *widths)

    def __call__(self, value: Any) -> str:
        if not self.floating:
            text = str(value)
        elif self.scientific:
            text = f"{value:{self.width}.{options.precision}e}"
        elif self.integers:
            text = f"{value:.0f}" + ("." if math.isfinite(value) else "")
        else:
            text = f"{value:.{options.precision}f}"
        return text.rjust(self.width)


class ComplexFormatter:
    """Two formatters, one for each part."""

    def __init__(self, values: np.ndarray) -> None:
        self.real, self.imaginary = Formatter(values.real), Formatter(values.imag)
        self.width = self.real.width + self.imaginary.width + 1

    def __call__(self, value: complex) -> str:
        imaginary = self.imaginary(value.imag).lstrip() + "j"
        return self.real(value.real) + ("" if imaginary[0] == "-" else "+") + imaginary


def _edges(values: np.ndarray) -> np.ndarray:
    """The elements that a summary shows."""
    keep = options.edgeitems
    for axis in range(values.ndim):
        if values.shape[axis] > 2 * keep:
            ends = np.concatenate([np.arange(keep), np.arange(values.shape[axis] - keep, values.shape[axis])])
            values = np.take(values, ends.astype(np.int64), axis)
    return values


def _lines(values: np.ndarray, indent: int, summarise: bool, fmt: Formatter | ComplexFormatter) -> str:
    if not values.ndim:
        return fmt(values.item())
    keep = options.edgeitems
    short = summarise and len(values) > 2 * keep
    if values.ndim == 1:
        per_line = max(1, (options.linewidth - indent) // (fmt.width + 2))
        if summarise and not keep:
            parts = ["..."]
        elif short:
            parts = [*map(fmt, values[:keep].tolist()), " ...", *map(fmt, values[-keep:].tolist())]
        else:
            parts = [fmt(v) for v in values.tolist()]
        lines = [", ".join(parts[i : i + per_line]) for i in range(0, len(parts), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    rows = [*range(keep), None, *range(len(values) - keep, len(values))] if short else [*range(len(values))]
    texts = ["..." if i is None else _lines(values[i], indent + 1, summarise, fmt) for i in rows]
    return "[" + ("," + "\n" * (values.ndim - 1) + " " * (indent + 1)).join(texts) + "]"


def _with_suffixes(text: str, suffixes: list[str], indent: int) -> str:
    parts = [text]
    length = len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        if length + len(suffix) + 2 > options.linewidth:
            parts.append(",\n" + " " * indent + suffix)
            length = indent + len(suffix)
        else:
            parts.append(", " + suffix)
            length += len(suffix) + 2
    return "".join(parts) + ")"


def values_of(x: Tensor) -> np.ndarray:
    """The values as NumPy prints them: half types as float32."""
    if x.storage.traced:
        refuse_value(x, "text of its values")
    values = values_at(x)
    return values.astype(np.float32) if x.layout.dtype.is_half else values


def format_tensor(x: Tensor, prefix: str = "tensor(") -> str:
    """The text of a tensor: values, then size, dtype, and where its gradient comes from, as far as they are not the usual."""
    if x.layout.level is not None:  # a function transform's wrapper
        return x.layout.level.text(x)
    if x.storage.traced or (modes.tracer is not None and modes.tracer.hides(x)):
        return f"{prefix}..., size={tuple(x.layout.shape)}, dtype={x.layout.dtype!r})"
    dtype, suffixes = x.layout.dtype, []
    if x.layout.device is not CPU:
        suffixes.append(f"device='{x.layout.device}'")
    default = get_default_dtype()
    if x.layout.numel == 0:
        if x.ndim != 1:
            suffixes.append(f"size={tuple(x.layout.shape)}")
        if dtype is not default:
            suffixes.append(f"dtype={dtype!r}")
        text = "[]"
    else:
        if dtype not in (default, complex_dtype(default), int64, bool_):
            suffixes.append(f"dtype={dtype!r}")
        values = values_of(x)
        summarise = x.layout.numel > options.threshold
        formatter = ComplexFormatter if dtype.is_complex else Formatter
        text = _lines(values, len(prefix), summarise, formatter(_edges(values) if summarise else values))
    try:
        node = x.grad_fn if x.layout.tracked else None  # type: ignore[attr-defined]
        name = node.name() if node is not None else None
    except RuntimeError:  # a view whose history may not be asked for
        name = "Invalid"
    if name is not None:
        suffixes.append(f"grad_fn=<{name}>")
    elif x.layout.tracked:
        suffixes.append("requires_grad=True")
    return _with_suffixes(prefix + text, suffixes, len(prefix))


def with_suffix(text: str, suffix: str, indent: int = 7) -> str:
    """A tensor's text with one more entry before its closing bracket."""
    return _with_suffixes(text[:-1], [suffix], indent)


def _repr(self: Tensor) -> str:
    return format_tensor(self)


def _str(self: Tensor) -> str:
    if modes.tracer is not None and self.storage.traced:
        refuse_value(self, "str()")
    return format_tensor(self)


def _format(self: Tensor, specification: str) -> str:
    """As its number for a zero-dim tensor, so that f"{loss:.3f}" works; as its text otherwise."""
    if self.storage.traced:
        refuse_value(self, "format()")
    if not self.ndim and not self.layout.tracked:
        return format(values_of(self).item(), specification)
    if not self.ndim and specification:
        return format(values_of(self).item(), specification)
    return object.__format__(self, specification)


Tensor.__repr__ = _repr  # type: ignore[method-assign]
Tensor.__str__ = _str  # type: ignore[method-assign]
Tensor.__format__ = _format  # type: ignore[method-assign]
