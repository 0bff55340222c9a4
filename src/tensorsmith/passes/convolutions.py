"""Convolutions that no kernel takes, as matrix products: what they see of x is copied once, and multiplied by the weights.

    y[n] (O, P) = w (O, C K) @ columns[n] (C K, P)            each group of channels by itself

P are the positions of the result, K those of the kernel. Two things decide how the copy lies:

* few positions, or a batch that shares little work: the batch becomes further columns of one product;
* kernels larger than the result, as in the gradient of a weight: the columns lie transposed, so that the copy runs along
  the longer of the two.

A 1x1 kernel of stride 1 copies nothing. A convolution that would copy more than `LARGEST` runs in parts of the batch. Zeros
between the elements of x are never written: see `interleaved`.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from tensorsmith.core.dtypes import float32, float64
from tensorsmith.ir import build
from tensorsmith.ir.convolution import convolution, windows
from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, rewritten
from tensorsmith.passes.lasting import made_of_lasting
from tensorsmith.passes.winograd import transformed_weight, winograd_outputs

FEW_POSITIONS = 128  # of a result, up to which the batch becomes columns
FEWEST_POSITIONS = 16  # of a result, from which vectors of positions are filled
MOST_TAPS = 1024
MOST_SINGLE_TAPS = 64  # of single channels, whose kernels are written out
MOST_RESULTS = 4  # of a single channel; more share its loads better in the general kernel
# Positions and images that a weight is summed over, from which slabs beat one product, by output channels of a group.
LEAST_DEPTH = {1: 16, 64: 128}
LEAST_DEPTH_OF_MANY = 1024
LEAST_WEIGHT = 1 << 10  # elements of a weight that is worth a copy of its own kind
LARGEST = 1 << 24  # elements of a copy


def lower_convolutions(graph: Graph, lasting: Collection[int] = (), stamped: Collection[int] = ()) -> Graph:
    """The same graph with the convolutions that are not `is_direct` as products; the graph itself where there is none.

    lasting: numbers of inputs that seldom change from run to run, whose transforms are worth keeping beside a copy of them.
    stamped: those of inputs of which all that is made is kept (`passes/lasting.py`).
    """
    if not any(node.op is Primitive.CONV for node in graph.live_nodes()):
        return graph
    free = made_of_lasting(graph, stamped) if stamped else {}

    def lower(node: Node, given: list[Node]) -> Node | None:
        if node.op is not Primitive.CONV:
            return None
        return _lowered(node, given[0], given[1], lasting, bool(free.get(node.inputs[1])))

    return rewritten(graph, lower)


def _lowered(node: Node, x: Node, w: Node, lasting: Collection[int] = (), prepared: bool = False) -> Node:
    if node.attrs.get("channels_last"):
        return x.graph.add(Primitive.CONV, (x, w), **node.attrs)
    if not node.numel or not w.numel or not x.numel:
        return build.full(x.graph, node.shape, 0, node.dtype)
    if is_depthwise(node) and is_direct(node) and not is_weight_gradient(node):
        return x.graph.add(Primitive.CONV, (x, w), **node.attrs)
    if set(node.attrs["step"]) != {1} and set(node.attrs["stride"]) == {1}:
        return interleaved(node, x, w)
    if is_direct(node):
        x = build.pad(x, (0,) * x.ndim, (0,) * x.ndim, (1, 1, *node.attrs["step"]))
        attrs = {**node.attrs, "step": (1,) * (x.ndim - 2)}
        kept = w.op is Primitive.INPUT and w.attrs["number"] in lasting
        outputs = winograd_outputs(node, "prepared" if prepared else "compared" if kept else "")
        if outputs:
            return x.graph.add(Primitive.CONV, (x, transformed_weight(w, outputs, kept)), winograd=outputs, **attrs)
        return x.graph.add(Primitive.CONV, (x, w if is_weight_gradient(node) else contiguous_weight(w)), **attrs)
    copied = x.shape[1] * math.prod(w.shape[2:]) * math.prod(node.shape[2:])  # per example
    at_once = max(1, LARGEST // copied)
    if at_once >= x.shape[0]:
        return as_product(node, x, w)
    starts = range(0, x.shape[0], at_once)
    parts = [build.slice_(x, 0, start, min(at_once, x.shape[0] - start)) for start in starts]
    return build.concat([as_product(node, part, w) for part in parts], 0)


def contiguous_weight(w: Node) -> Node:
    """Weights that are seen turned or in part, copied by a kernel of their own, because the convolution reads them in a row.

    That kernel moves float32 and float64; half types are products, which copy for themselves.
    """
    if w.op not in VIEWS or w.numel < LEAST_WEIGHT or w.dtype not in (float32, float64):
        return w
    return w.graph.add(Primitive.LIBRARY, (w,), name="conv_weight", shape=w.shape, dtype=w.dtype)


def interleaved(node: Node, x: Node, w: Node) -> Node:
    """A convolution of x with zeros between its elements, without the zeros.

    Along an axis of step s the results of each remainder modulo s see every s-th tap alone: s convolutions of x itself with
    parts of the kernel, whose results take turns.
    """
    attrs, rank = node.attrs, node.ndim - 2
    count = [-(-n // s) for n, s in zip(node.shape[2:], attrs["step"])]  # of every remainder; the last ones may be cut

    def part(axis: int, remainders: tuple[int, ...]) -> Node:
        if axis == rank:
            return _of_remainder(node, x, w, count, remainders)
        s = attrs["step"][axis]
        parts = [part(axis + 1, (*remainders, r)) for r in range(s)]
        apart = [build.reshape(y, (*y.shape[: axis + 3], 1, *y.shape[axis + 3 :])) for y in parts]
        joined = build.concat(apart, axis + 3)
        return build.reshape(joined, (*joined.shape[: axis + 2], count[axis] * s, *joined.shape[axis + 4 :]))

    y = part(0, ())
    for axis, n in enumerate(node.shape[2:], 2):
        y = build.slice_(y, axis, 0, n)
    return y


def _of_remainder(node: Node, x: Node, w: Node, count: list[int], remainders: tuple[int, ...]) -> Node:
    """The results at positions with the given remainders modulo the step, `count` an axis."""
    attrs = node.attrs
    low, high, dilation = [], [], []
    each = zip(remainders, attrs["step"], attrs["low"], attrs["dilation"], x.shape[2:], count)
    for axis, (r, step, before, spaced, n, m) in enumerate(each, 2):
        meets = [k for k in range(w.shape[axis]) if (r + k * spaced - before) % step == 0]
        if not meets:
            return build.full(x.graph, (x.shape[0], w.shape[0], *count), 0, x.dtype)
        common = math.gcd(step, spaced)
        w = build.slice_(w, axis, meets[0], len(meets), step // common)
        low.append((before - r - meets[0] * spaced) // step)
        dilation.append(spaced // common)
        high.append(m + (len(meets) - 1) * dilation[-1] - n - low[-1])
    ones, w = (1,) * len(count), contiguous_weight(w)
    found = convolution(x, w, ones, low, high, dilation, ones, attrs["groups"])
    return _lowered(found, x, w)


def is_direct(node: Node) -> bool:
    """Whether a kernel of its own computes it: float32 or float64, and results larger than the kernel."""
    x, w = node.inputs
    attrs, rank = node.attrs, node.ndim - 2
    kernel, space = math.prod(w.shape[2:]), math.prod(node.shape[2:])
    if not node.dtype.is_floating_point or node.dtype.is_half or rank > 3:
        return False
    if kernel == 1 and set(attrs["stride"] + attrs["step"]) == {1} and not any(attrs["low"] + attrs["high"]):
        return attrs["groups"] == x.shape[1]  # else one product, without a copy
    if is_weight_gradient(node):
        return space <= MOST_TAPS
    return space > FEWEST_POSITIONS and kernel <= space and kernel <= MOST_TAPS


def is_depthwise(node: Node) -> bool:
    """Whether the kernel of single channels computes it, where one `is_direct`: one channel to a group, few results of it."""
    attrs, w = node.attrs, node.inputs[1].shape
    few = w[1] == 1 and w[0] <= MOST_RESULTS * attrs["groups"] and math.prod(w[2:]) <= MOST_SINGLE_TAPS
    return few and node.ndim <= 4 and {1} in (set(attrs["step"]), set(attrs["stride"]))


def is_weight_gradient(node: Node) -> bool:
    """Whether kernels are larger than results, as where the gradient of a weight is computed."""
    if "winograd" in node.attrs:
        return False
    kernel, space = math.prod(node.inputs[1].shape[2:]), math.prod(node.shape[2:])
    outer = node.inputs[1].shape[0] // node.attrs["groups"]
    least = next((depth for most, depth in LEAST_DEPTH.items() if outer <= most), LEAST_DEPTH_OF_MANY)
    return kernel * node.inputs[1].shape[1] >= least and 1 < space < kernel and set(node.attrs["step"]) == {1}


def as_product(node: Node, x: Node, w: Node) -> Node:
    """A convolution, or the part of its batch that x is, as one matrix product."""
    attrs, groups = node.attrs, node.attrs["groups"]
    rank = x.ndim - 2
    batch, (out, inner, *kernel), space = x.shape[0], w.shape, node.shape[2:]
    positions, depth = math.prod(space), inner * math.prod(kernel)
    seen = windows(x, kernel, attrs)
    seen = build.reshape(seen, (batch, groups, inner, *space, *kernel))
    rows = build.reshape(w, (groups, out // groups, depth))
    of_space, of_kernel = range(3, 3 + rank), range(3 + rank, 3 + 2 * rank)
    folded = batch > 1 and positions <= FEW_POSITIONS
    transposed = math.prod(kernel) > positions
    if folded and transposed:
        columns = build.permute(seen, (1, 0, *of_space, 2, *of_kernel))
        columns = build.transpose(build.reshape(columns, (groups, batch * positions, depth)), 1, 2)
    elif folded:
        columns = build.reshape(build.permute(seen, (1, 2, *of_kernel, 0, *of_space)), (groups, depth, batch * positions))
    elif transposed:
        columns = build.permute(seen, (0, 1, *of_space, 2, *of_kernel))
        columns = build.transpose(build.reshape(columns, (batch, groups, positions, depth)), 2, 3)
    else:
        columns = build.permute(seen, (0, 1, 2, *of_kernel, *of_space))
        columns = build.reshape(columns, (batch, groups, depth, positions))
    product = build.matmul(rows, columns)
    if folded:
        product = build.permute(build.reshape(product, (out, batch, *space)), (1, 0, *range(2, rank + 2)))
    return build.reshape(product, (batch, out, *space))
