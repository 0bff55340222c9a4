"""ConvSpec: one convolution, and what is computed of its results before they are stored.

    y[n, o, p] = body(sum over c, k of x'[n, c, p stride + k dilation - low] w[o, c, k], others[n, o, p] ...)

x' is x with step - 1 zeros between its elements along every axis of space, and zeros around it (`ir/convolution.py`).
Gradients are convolutions too, which other attributes and strides describe:

    of the input:   x is the gradient, w has its channel axes exchanged and is walked backwards (negative strides)
    of the weight:  x has its batch as channels, w is the gradient, the positions of the result are those of the kernel
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.epilogue import Body

Extents = tuple[int, ...]


@dataclass(frozen=True)
class ConvSpec:
    """One convolution over 1 to 3 axes of space; launch words are x, w, y, the others of the body.

    x, w, y: extents (N, C, *S), (O, C / groups, *K), (N, O, *P); *_strides: element strides, negative ones in w alone;
        y may have fewer images than x, whose last ones are for nothing then
    stride, low, dilation, step: one an axis of space; low may be negative
    body:    a pointwise computation on results, LOAD 0, and on others, LOAD k; None stores the sums
    others:  element strides of every other along the axes of y
    starts:  elements from the addresses of x, w, y and the others to their first; zeros where there are none
    tf32:    whether products of float32 may be rounded to TF32
    """

    dtype: DType
    x: Extents
    w: Extents
    y: Extents
    x_strides: Extents
    w_strides: Extents
    y_strides: Extents
    stride: Extents
    low: Extents
    dilation: Extents
    step: Extents
    groups: int = 1
    body: Body | None = None
    others: tuple[Extents, ...] = field(default=())
    starts: Extents = ()
    tf32: bool = False

    def __post_init__(self) -> None:
        rank = len(self.x) - 2
        given = [len(each) for each in (self.stride, self.low, self.dilation, self.step)]
        if not 1 <= rank <= 3 or len(self.w) != rank + 2 or len(self.y) != rank + 2 or given != [rank] * 4:
            raise ValueError(f"ConvSpec: {self.x}, {self.w}, {self.y} with {given} attributes an axis of space")
        if not self.starts:
            object.__setattr__(self, "starts", (0,) * (3 + len(self.others)))
        if self.x[1] != self.w[1] * self.groups or self.w[0] % self.groups or self.y[1] != self.w[0] or self.y[0] > self.x[0]:
            raise ValueError(f"ConvSpec: channels of {self.x}, {self.w}, {self.y} do not fit in {self.groups} groups")

    @property
    def rank(self) -> int:
        """Axes of space."""
        return len(self.x) - 2

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return math.prod(self.w[2:])

    @property
    def positions(self) -> int:
        """Positions of a result."""
        return math.prod(self.y[2:])

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.y) * self.w[1] * self.taps

    @property
    def bytes_moved(self) -> int:
        """Every element of the operands once."""
        elements = math.prod(self.x) + math.prod(self.w) + math.prod(self.y)
        elements += sum(math.prod(n for n, s in zip(self.y, other) if s) for other in self.others)
        return elements * self.dtype.itemsize


def without_zeros(spec: ConvSpec) -> list[ConvSpec]:
    """Convolutions that together write y and never meet a zero between elements of x; the spec itself where x has none
    or results have a stride.

    Results whose position has the remainder r modulo the step see every step-th tap alone, or one in step / gcd of it
    with the dilation. A part whose remainder no tap meets has a kernel of no positions: its sums are zero.
    """
    if set(spec.step) == {1} or set(spec.stride) != {1}:
        return [spec]
    parts = [spec]
    for axis in range(spec.rank):
        parts = [part for given in parts for part in _remainders(given, axis)]
    return parts


def _remainders(spec: ConvSpec, axis: int) -> list[ConvSpec]:
    """The parts of a convolution along one axis of space, all whose extents are at least 1."""
    step, low, dilation, kernel = spec.step[axis], spec.low[axis], spec.dilation[axis], spec.w[axis + 2]
    common, at = math.gcd(step, dilation), axis + 2
    parts = []
    for r in range(min(step, spec.y[at])):
        meets = [k for k in range(kernel) if (r + k * dilation - low) % step == 0]
        first = meets[0] if meets else 0
        of_results = [r * strides[at] for strides in (spec.y_strides, *spec.others)]
        moved = (0, first * spec.w_strides[at], *of_results)
        changed = replace(
            spec,
            w=_with(spec.w, at, len(meets)),
            y=_with(spec.y, at, -(-(spec.y[at] - r) // step)),
            w_strides=_with(spec.w_strides, at, spec.w_strides[at] * (step // common)),
            y_strides=_with(spec.y_strides, at, spec.y_strides[at] * step),
            others=tuple(_with(other, at, other[at] * step) for other in spec.others),
            starts=tuple(start + more for start, more in zip(spec.starts, moved)),
            low=_with(spec.low, axis, (low - r - first * dilation) // step),
            dilation=_with(spec.dilation, axis, dilation // common),
            step=_with(spec.step, axis, 1),
        )
        parts.append(changed)
    return parts


def _with(values: Extents, index: int, value: int) -> Extents:
    return (*values[:index], value, *values[index + 1 :])
