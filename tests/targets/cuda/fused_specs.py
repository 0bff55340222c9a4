"""Specs of fused kernels as the compiler makes them: activations, softmax, norms, statistics, reductions."""

from __future__ import annotations

import math

from tensorsmith.core.dtypes import DType, bool_, float32, float64, int64, uint32
from tensorsmith.kernels.joint import JointSpec
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn


class Body:
    """A body being written."""

    def __init__(self) -> None:
        self.instructions: list[Instr] = []

    def add(self, kind: Kind, dtype: DType, args: tuple[int, ...] = (), **fields) -> int:
        self.instructions.append(Instr(kind, dtype, args, **fields))
        return len(self.instructions) - 1

    def load(self, index: int, dtype: DType) -> int:
        """Operand `index`; halves as float32."""
        value = self.add(Kind.LOAD, dtype, index=index)
        return self.add(Kind.CAST, float32, (value,)) if dtype.is_half else value

    def const(self, value: float) -> int:
        return self.add(Kind.CONST, float32, value=value)

    def param(self, index: int) -> int:
        return self.add(Kind.PARAM, float32, index=index)

    def fn(self, fn: Fn, *args: int) -> int:
        return self.add(Kind.APPLY, self.instructions[args[-1]].dtype, args, fn=fn)

    def reduce(self, kind: str, value: int, dtype: DType | None = None) -> int:
        return self.add(Kind.REDUCE, dtype or self.instructions[value].dtype, (value,), reduction=kind)

    def as_(self, value: int, dtype: DType) -> int:
        return value if self.instructions[value].dtype is dtype else self.add(Kind.CAST, dtype, (value,))

    def spec(self, name, domain, axis, inputs, stores, params=(), outer=None) -> KernelSpec:
        """stores: (dtype, strides, value) at every point, or with True behind, for each row."""
        made = tuple(
            Store(Operand(dtype, strides), self.as_(value, dtype), *row) for dtype, strides, value, *row in stores
        )  # fmt: skip
        operands = tuple(Operand(dtype, strides) for dtype, strides in inputs)
        body = tuple(self.instructions)
        return KernelSpec(domain, axis, operands, body, made, params, name, outer_reduce_axis=outer)


def dense(*shape: int) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def without(shape: tuple[int, ...], *axes: int) -> tuple[int, ...]:
    """Strides of a contiguous tensor that has no such axes, 0 along them."""
    strides = dense(*(1 if axis in axes else n for axis, n in enumerate(shape)))
    return tuple(0 if axis in axes else s for axis, s in enumerate(strides))


def gelu(shape, dtype, strides=None, out=None) -> KernelSpec:
    """gelu(x * p0 + p1)."""
    b = Body()
    x = b.fn(Fn.ADD, b.fn(Fn.MUL, b.load(0, dtype), b.param(0)), b.param(1))
    erf = b.fn(Fn.ERF, b.fn(Fn.MUL, x, b.const(2**-0.5)))
    y = b.fn(Fn.MUL, b.fn(Fn.MUL, x, b.const(0.5)), b.fn(Fn.ADD, erf, b.const(1.0)))
    whole = dense(*shape)
    return b.spec("gelu", shape, None, [(dtype, strides or whole)], [(dtype, out or whole, y)], (float64, float64))


def multiply_add(shape, dtype, a, x, c, out=None) -> KernelSpec:
    """a * x + c with operands of these strides."""
    b = Body()
    y = b.fn(Fn.ADD, b.fn(Fn.MUL, b.load(0, dtype), b.load(1, dtype)), b.load(2, dtype))
    return b.spec("multiply_add", shape, None, [(dtype, a), (dtype, x), (dtype, c)], [(dtype, out or dense(*shape), y)])


def transposed(rows, columns, dtype) -> KernelSpec:
    """A copy of the transpose of a (columns, rows) matrix."""
    b = Body()
    x = b.add(Kind.LOAD, dtype, index=0)
    return b.spec("transposed", (rows, columns), None, [(dtype, (1, rows))], [(dtype, (columns, 1), x)])


def softmax(shape, axis, dtype, strides=None, out=None, log=False) -> KernelSpec:
    b = Body()
    x = b.load(0, dtype)
    shifted = b.fn(Fn.SUB, x, b.reduce("max", x))
    power = b.fn(Fn.EXP, shifted)
    total = b.reduce("sum", power)
    y = b.fn(Fn.SUB, shifted, b.fn(Fn.LOG, total)) if log else b.fn(Fn.DIV, power, total)
    whole = dense(*shape)
    return b.spec("softmax", shape, axis, [(dtype, strides or whole)], [(dtype, out or whole, y)])


def softmax_gradient(shape, axis, dtype) -> KernelSpec:
    """y * (dy - sum(y * dy))."""
    b = Body()
    y, dy = b.load(0, dtype), b.load(1, dtype)
    dx = b.fn(Fn.MUL, y, b.fn(Fn.SUB, dy, b.reduce("sum", b.fn(Fn.MUL, y, dy))))
    return b.spec("softmax_gradient", shape, axis, [(dtype, dense(*shape))] * 2, [(dtype, dense(*shape), dx)])


def layer_norm(rows, length, dtype) -> KernelSpec:
    """The normalised rows, their means and reciprocal deviations."""
    b = Body()
    x, weight, bias = (b.load(k, dtype) for k in range(3))
    share = b.const(1.0 / length)
    mean = b.fn(Fn.MUL, b.reduce("sum", x), share)
    centred = b.fn(Fn.SUB, x, mean)
    variance = b.fn(Fn.MUL, b.reduce("sum", b.fn(Fn.MUL, centred, centred)), share)
    scale = b.fn(Fn.RSQRT, b.fn(Fn.ADD, variance, b.const(1e-5)))
    y = b.fn(Fn.ADD, b.fn(Fn.MUL, b.fn(Fn.MUL, centred, scale), weight), bias)
    stores = [(dtype, (length, 1), y), (float32, (1, 0), mean, True), (float32, (1, 0), scale, True)]
    return b.spec("layer_norm", (rows, length), 1, [(dtype, (length, 1)), (dtype, (0, 1)), (dtype, (0, 1))], stores)


def layer_norm_gradient(rows, length, dtype) -> KernelSpec:
    """dx of x, dy, weight, mean, scale."""
    b = Body()
    x, dy, weight, mean, scale = (b.load(k, dtype if k < 3 else float32) for k in range(5))
    share = b.const(1.0 / length)
    normal = b.fn(Fn.MUL, b.fn(Fn.SUB, x, mean), scale)
    g = b.fn(Fn.MUL, dy, weight)
    first = b.fn(Fn.MUL, b.reduce("sum", g), share)
    second = b.fn(Fn.MUL, b.reduce("sum", b.fn(Fn.MUL, g, normal)), share)
    dx = b.fn(Fn.MUL, b.fn(Fn.SUB, b.fn(Fn.SUB, g, first), b.fn(Fn.MUL, normal, second)), scale)
    whole, row, column = (length, 1), (1, 0), (0, 1)
    inputs = [(dtype, whole), (dtype, whole), (dtype, column), (float32, row), (float32, row)]
    return b.spec("layer_norm_gradient", (rows, length), 1, inputs, [(dtype, whole, dx)])


def layer_norm_joint(rows, length, dtype, weighted=float32) -> JointSpec:
    """y and dx of x, dy, weight, with the sums over the rows of dy * h and dy."""
    b = Body()
    x, dy, weight = b.load(0, dtype), b.load(1, dtype), b.load(2, weighted)
    share = b.const(1.0 / length)
    centred = b.fn(Fn.SUB, x, b.fn(Fn.MUL, b.reduce("sum", x), share))
    variance = b.fn(Fn.MUL, b.reduce("sum", b.fn(Fn.MUL, centred, centred)), share)
    scale = b.fn(Fn.RSQRT, b.fn(Fn.ADD, variance, b.const(1e-5)))
    normal, g = b.fn(Fn.MUL, centred, scale), b.fn(Fn.MUL, dy, weight)
    first = b.fn(Fn.MUL, b.reduce("sum", g), share)
    second = b.fn(Fn.MUL, b.reduce("sum", b.fn(Fn.MUL, g, normal)), share)
    dx = b.fn(Fn.MUL, b.fn(Fn.SUB, b.fn(Fn.SUB, g, first), b.fn(Fn.MUL, normal, second)), scale)
    summed = ((b.fn(Fn.MUL, dy, normal), "sum"), (dy, "sum"))
    whole, column = (length, 1), (0, 1)
    inputs = [(dtype, whole), (dtype, whole), (weighted, column)]
    stores = [(dtype, whole, b.fn(Fn.MUL, normal, weight)), (dtype, whole, dx)]
    along = b.spec("layer_norm", (rows, length), 1, inputs, stores)
    ends, of = Body(), along.body[dy].dtype
    totals = [ends.reduce("sum", ends.load(k, of)) for k in range(2)]
    ends_spec = ends.spec(
        "sums", (1, length), 0, [(of, (length, 1))] * 2, [(weighted, column, total, True) for total in totals]
    )  # fmt: skip
    return JointSpec(along, summed, ends_spec)


def layer_norm_weights(rows, length, dtype) -> KernelSpec:
    """Gradients of weight and bias: sums over the rows of x, dy, mean, scale."""
    b = Body()
    x, dy, mean, scale = (b.load(k, dtype if k < 2 else float32) for k in range(4))
    normal = b.fn(Fn.MUL, b.fn(Fn.SUB, x, mean), scale)
    weight, bias = b.reduce("sum", b.fn(Fn.MUL, dy, normal)), b.reduce("sum", dy)
    inputs = [(dtype, (length, 1))] * 2 + [(float32, (1, 0))] * 2
    stores = [(dtype, (0, 1), weight, True), (dtype, (0, 1), bias, True)]
    return b.spec("layer_norm_weights", (rows, length), 0, inputs, stores)


def channel_statistics(shape, strides, dtype) -> KernelSpec:
    """Sums and sums of squares over axes 0 and 2."""
    b = Body()
    x = b.load(0, dtype)
    sums, squares = b.reduce("sum", x), b.reduce("sum", b.fn(Fn.MUL, x, x))
    stores = [(float32, (0, 1, 0), sums, True), (float32, (0, 1, 0), squares, True)]
    return b.spec("channel_statistics", shape, 2, [(dtype, strides)], stores, outer=0)


def reduction(kind, shape, axis, dtype, result=None, strides=None) -> KernelSpec:
    b = Body()
    x = b.load(0, dtype)
    place = kind.startswith("arg")
    result = result or (int64 if place else dtype)
    value = b.reduce(kind, x, int64 if place else None if result.is_half or dtype.is_half else result)
    return b.spec(kind, shape, axis, [(dtype, strides or dense(*shape))], [(result, without(shape, axis), value, True)])


def quotients(shape, axis) -> KernelSpec:
    """x over a value of every row; and the largest x."""
    b = Body()
    x, divisor = b.load(0, float32), b.load(1, float32)
    most, y = b.reduce("max", x), b.fn(Fn.DIV, x, divisor)
    row = without(shape, axis)
    stores = [(float32, dense(*shape), y), (float32, row, most, True)]
    return b.spec("quotients", shape, axis, [(float32, dense(*shape)), (float32, row)], stores)


def dropout(count, offset=0) -> KernelSpec:
    """x where the random bits of its place are below half of all, else 0."""
    b = Body()
    x = b.load(0, float32)
    key = b.add(Kind.PARAM, int64, index=0)
    place = b.add(Kind.INDEX, int64, index=0)
    if offset:
        place = b.fn(Fn.ADD, place, b.add(Kind.CONST, int64, value=offset))
    bits = b.add(Kind.RANDOM, uint32, (key, place))
    below = b.add(Kind.APPLY, bool_, (bits, b.add(Kind.CONST, uint32, value=1 << 31)), fn=Fn.LT)
    zero = b.const(0.0)
    y = b.add(Kind.APPLY, float32, (below, x, zero), fn=Fn.WHERE)
    return b.spec("dropout", (count,), None, [(float32, (1,))], [(float32, (1,), y)], (int64,))
