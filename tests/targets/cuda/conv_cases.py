"""Convolutions and their gradients as specs with arrays, and what they should be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir import convolution
from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive
from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.passes.walk import NeedsBuffer, apply_chain
from tensorsmith.targets.reference.primitives import PRIMITIVES

KINDS = ("forward", "input", "weight")


def channels_last(shape):
    """Strides of (N, C, *S) with the channels innermost."""
    order = [0, *range(2, len(shape)), 1]
    inner = contiguous_strides([shape[axis] for axis in order])
    return tuple(inner[order.index(axis)] for axis in range(len(shape)))


LAYOUTS = {"nchw": contiguous_strides, "nhwc": channels_last}


@dataclass
class Problem:
    """A spec, the memory of its words x, w, y, what y should be, and how y lies."""

    spec: ConvSpec
    arrays: list[np.ndarray]
    wanted: np.ndarray

    @property
    def found(self) -> np.ndarray:
        memory = self.arrays[2][self.spec.starts[2] :]
        size = memory.itemsize
        return np.lib.stride_tricks.as_strided(memory, self.spec.y, [s * size for s in self.spec.y_strides]).astype(np.float64)

    @property
    def error(self) -> float:
        """The largest difference, relative to the largest value; NaN where anything was not written."""
        return float(np.abs(self.found - self.wanted).max() / max(np.abs(self.wanted).max(), 1e-30))


def problem(
    kind: str, dtype: DType, x, w, stride=1, padding=0, dilation=1, groups=1, layout="nchw", out=None, seed=0, **more
) -> Problem:  # fmt: skip
    """The convolution of x and w, or its gradient in x ("input") or w ("weight"), with operands of random numbers.

    out: the layout of the result, if it is another; more: further fields of the spec
    """
    node, inputs, place = _written(kind, dtype, x, w, (stride, padding, dilation), groups, layout, out)
    rng = np.random.default_rng(seed)
    places, memory, values = {}, {}, {}
    for each in inputs:
        shape, strides = each.shape, LAYOUTS[layout](each.shape)
        places[each] = Strided(shape, strides)
        numbers = rng.standard_normal(shape) if dtype.is_floating_point else rng.integers(-5, 6, shape)
        memory[each] = _laid_out(numbers.astype(np.float32).astype(dtype.numpy), strides)
        values[each] = _seen(memory[each], places[each]).astype(np.float64)
    (x_node, x_at), (w_node, w_at) = (_located(operand, places, memory, values, dtype) for operand in node.inputs)
    result = np.zeros(math.prod(node.shape), dtype.numpy)
    result.view(np.uint8)[:] = 0xFF  # NaN, or -1
    spec = _spec(node, x_at, w_at, place, **more)
    return Problem(spec, [memory[x_node], memory[w_node], result], _value(node, values))


def spec_only(kind, dtype, x, w, stride=1, padding=0, dilation=1, groups=1, layout="nchw", out=None, **more) -> ConvSpec:
    """The spec of a problem whose operands are views of its inputs."""
    node, inputs, place = _written(kind, dtype, x, w, (stride, padding, dilation), groups, layout, out)
    places = {each: Strided(each.shape, LAYOUTS[layout](each.shape)) for each in inputs}
    (_, x_at), (_, w_at) = (_located(operand, places, {}, {}, dtype) for operand in node.inputs)
    return _spec(node, x_at, w_at, place, **more)


def _written(kind, dtype, x, w, numbers, groups, layout, out) -> tuple[Node, list[Node], Strided]:
    """The node of a convolution, the inputs of its graph, and where its result lies."""
    rank = len(x) - 2
    stride, padding, dilation = numbers
    each = {"stride": stride, "low": padding, "high": padding, "dilation": dilation, "step": 1}
    attrs = {name: (value,) * rank if isinstance(value, int) else tuple(value) for name, value in each.items()}
    attrs["groups"] = groups
    y = convolution.result_shape(x, w, attrs)
    graph = Graph()
    inputs = [graph.input(shape, dtype) for shape in {"forward": (x, w), "input": (y, w), "weight": (y, x)}[kind]]
    if kind == "forward":
        names = ("stride", "low", "high", "dilation", "step", "groups")
        node = convolution.convolution(*inputs, *(attrs[name] for name in names))
    elif kind == "input":
        node = convolution.of_input(x[2:], *inputs, attrs)
    else:
        node = convolution.of_weight(w[2:], *inputs, attrs)
    place = Strided(node.shape, LAYOUTS[out or layout](node.shape))
    while node.op is not Primitive.CONV:
        assert node.op is Primitive.PERMUTE, "the gradient of a weight is a permuted convolution"
        axes = node.attrs["axes"]
        node, found = node.inputs[0], place.strides
        place = Strided(node.shape, tuple(found[axes.index(axis)] for axis in range(node.ndim)))
    return node, inputs, place


def _spec(node: Node, x: Strided, w: Strided, y: Strided, **more) -> ConvSpec:
    spec = ConvSpec(
        node.dtype, x.shape, w.shape, node.shape, x.strides, w.strides, y.strides,
        *(node.attrs[name] for name in ("stride", "low", "dilation", "step", "groups")), **more,
    )  # fmt: skip
    return replace(spec, starts=(x.offset, w.offset, *spec.starts[2:]))


def _laid_out(array: np.ndarray, strides) -> np.ndarray:
    memory = np.empty(array.size, array.dtype)
    np.lib.stride_tricks.as_strided(memory, array.shape, [s * array.itemsize for s in strides])[...] = array
    return memory


def _seen(memory: np.ndarray, at: Strided) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(memory[at.offset :], at.shape, [s * memory.itemsize for s in at.strides])


def _located(node: Node, places, memory, values, dtype: DType) -> tuple[Node, Strided]:
    """The memory under views, and how they see it; what strides cannot say is copied, as a plan does."""
    while True:
        base, chain = node, []
        while base.op in VIEWS and base not in places:
            chain.append(base)
            base = base.inputs[0]
        try:
            return base, apply_chain(places[base], tuple(reversed(chain)))
        except NeedsBuffer as need:
            copied = need.node
            places[copied] = Strided(copied.shape, contiguous_strides(copied.shape))
            memory[copied] = np.ascontiguousarray(_value(copied, values)).reshape(-1).astype(dtype.numpy)


def _value(node: Node, values) -> np.ndarray:
    if node not in values:
        values[node] = PRIMITIVES[node.op](node, [_value(operand, values) for operand in node.inputs])
    return values[node]
