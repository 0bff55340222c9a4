"""KernelSpec: what one fused kernel computes, before any target has seen it.

A kernel walks a rectangular *domain*. Every operand is addressed by one element stride per domain axis. A straight-line
body in SSA form computes scalars at each point; one domain axis, `reduce_axis`, may be reduced, or two (the statistics of
a channel are over batch and space), and values behind a REDUCE are constant along them. With no REDUCE the spec is a
pointwise kernel, with one and only row outputs a reduction, with several, or with outputs along what is reduced, a row
kernel (softmax, layer norm).

    softmax over axis 1 of (N, C):      %0 = load x
                                        %1 = reduce max %0
                                        %2 = apply sub %0 %1
                                        %3 = apply exp %2
                                        %4 = reduce sum %3
                                        %5 = apply div %3 %4
                                        store y <- %5

Scalar functions and reductions compute in float32 where values are halves (float16, bfloat16). The specs that
`kernels/assemble.py` makes say so with CASTs: none of their APPLYs and REDUCEs is on halves. In a spec made by hand one may
be; it stands for the same computation, rounded once, and `kernels/halves.py` writes that out before a target sees it.

Extents and strides here are concrete. Targets compile the *structure* (`kernels/canonical.py`) and pass them at run time.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.scalar.table import Fn


class Kind(enum.Enum):
    """What one instruction of a kernel body does."""

    LOAD = "load"  # value of operand `index` at the current point
    CONST = "const"  # the constant `value` (Python bool, int or float) in `dtype`
    PARAM = "param"  # run-time scalar number `index`, given at launch, converted to `dtype`
    INDEX = "index"  # the int64 coordinate along domain axis `index`
    APPLY = "apply"  # scalar function `fn` of `args`; all arguments have the function's compute dtype
    CAST = "cast"  # `args[0]` converted to `dtype`
    REDUCE = "reduce"  # `reduction` of `args[0]` along what is reduced: sum prod max min argmax argmin
    RANDOM = "random"  # 32 random bits (uint32): Philox4x32-10 of (key = PARAM args[0], counter = int64 args[1])


@dataclass(frozen=True)
class Instr:
    """One SSA instruction; `args` are positions of earlier instructions of the same body."""

    kind: Kind
    dtype: DType
    args: tuple[int, ...] = ()
    fn: Fn | None = None
    index: int = 0
    value: bool | int | float | None = None
    reduction: str = ""
    sign: bool = False  # of a constant zero: kernels are kept under their body, where -0.0 would equal 0.0

    def __post_init__(self) -> None:
        if self.value == 0 and isinstance(self.value, float) and math.copysign(1.0, self.value) < 0:
            object.__setattr__(self, "sign", True)


@dataclass(frozen=True)
class Operand:
    """One tensor argument: element type and element stride per domain axis (0 = broadcast; may be negative for loads)."""

    dtype: DType
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Store:
    """Write the value of instruction `value` to `operand`; its strides along reduced axes are 0 for row outputs."""

    operand: Operand
    value: int
    row: bool = False  # True: written once per row, after the last pass (the value does not vary along the reduce axis)


@dataclass(frozen=True)
class KernelSpec:
    """One kernel: launch words are the addresses of inputs, then of outputs, then the run-time scalars.

    domain:      extents, all >= 1 (zero-size work is answered before a kernel is asked for)
    reduce_axis: the reduced domain axis, or None for a pointwise kernel
    outer_reduce_axis: a second reduced axis, or None; a row is then all points along both
    inputs, stores, params: operands read, operands written, dtypes of run-time scalars
    pairs: (a, b) where operand b (inputs are counted first, then stores) is always the element behind that of operand a:
        the parts of complex numbers. A target may read or write both at once.
    """

    domain: tuple[int, ...]
    reduce_axis: int | None
    inputs: tuple[Operand, ...]
    body: tuple[Instr, ...]
    stores: tuple[Store, ...]
    params: tuple[DType, ...] = ()
    name: str = "kernel"
    pairs: tuple[tuple[int, int], ...] = ()
    outer_reduce_axis: int | None = None

    @property
    def reduce_axes(self) -> tuple[int, ...]:
        """The reduced axes, none, one or two."""
        return tuple(axis for axis in (self.outer_reduce_axis, self.reduce_axis) if axis is not None)

    def __str__(self) -> str:
        return format_spec(self)


def format_spec(spec: KernelSpec) -> str:
    """The kernel as text: domain, operands and one line an instruction."""
    axes = " x ".join(f"{extent}{'*' if axis in spec.reduce_axes else ''}" for axis, extent in enumerate(spec.domain))
    lines = [f"kernel {spec.name} over {axes or 'one point'}" + (" (* reduced)" if spec.reduce_axes else "")]
    lines += [f"  in{i}: {operand.dtype.name} strides {operand.strides}" for i, operand in enumerate(spec.inputs)]
    for position, instr in enumerate(spec.body):
        args = " ".join(f"%{a}" for a in instr.args)
        detail = {
            Kind.LOAD: f"in{instr.index}",
            Kind.CONST: repr(instr.value),
            Kind.PARAM: f"p{instr.index}",
            Kind.INDEX: f"axis {instr.index}",
            Kind.APPLY: f"{instr.fn.name.lower() if instr.fn else ''} {args}",
            Kind.CAST: args,
            Kind.REDUCE: f"{instr.reduction} {args}",
            Kind.RANDOM: args,
        }[instr.kind]
        lines.append(f"  %{position}: {instr.dtype.name} = {instr.kind.value} {detail}")
    for i, store in enumerate(spec.stores):
        where = "per row" if store.row else "per point"
        lines.append(f"  out{i}: {store.operand.dtype.name} strides {store.operand.strides} {where} <- %{store.value}")
    return "\n".join(lines)
