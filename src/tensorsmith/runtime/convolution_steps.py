"""Steps of convolutions, of what is made of their weights, and of max pooling."""

from __future__ import annotations

import math

from tensorsmith.core import views
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir.convolution import lies_last
from tensorsmith.ir.graph import Node
from tensorsmith.kernels.assemble import assemble_epilogue
from tensorsmith.passes.convolutions import is_depthwise, is_weight_gradient
from tensorsmith.passes.epilogues import results_place
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime.product_steps import absorbed_name, extra_words
from tensorsmith.runtime.requests import (
    KernelStep,
    NoError,
    Request,
    Step,
)
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu.pool import get_num_threads
from tensorsmith.targets.cpu.recipe import RELEASE_GIL, Recipe


def conv_steps(fusion: Fusion, group: Group) -> list[Request]:
    """The direct convolution; what it does not take was written as a product (`passes/convolutions.py`)."""
    anchor, root = group.anchor, group.roots[0]
    assert anchor is not None
    if lies_last(anchor):
        return [_depthwise_last(fusion, group, anchor)]
    from tensorsmith.targets.cpu.conv import plan_conv, problem
    from tensorsmith.targets.cpu.depthwise_plan import plan_depthwise
    from tensorsmith.targets.cpu.winograd_plan import plan_winograd

    (x_node, x), (w_node, w) = (fusion.locate(operand) for operand in anchor.inputs)
    y = fusion.place(root)
    outputs = anchor.attrs.get("winograd")
    if is_weight_gradient(anchor) and group.bias is None and group.activation is None:
        return [_conv_dot(anchor, (x_node, x), (w_node, w), (root, y))]
    if w.strides[1:] != contiguous_strides(w.shape)[1:]:
        raise NeedsBuffer(anchor.inputs[1])
    if outputs and x.strides[-1] != 1 and x.shape[-1] > 1:
        raise NeedsBuffer(anchor.inputs[0])
    if y.strides[-1] != 1 and y.shape[-1] > 1:
        raise NeedsBuffer(root)  # written contiguously, and copied from there
    names = [*(["bias"] if group.bias is not None else []), *(["relu"] if group.activation is Fn.RELU else [])]
    size = anchor.dtype.itemsize
    if outputs:
        low = anchor.attrs["low"]
        kernel = plan_winograd(anchor.dtype, outputs, x.shape, y.shape, low, x.strides, y.strides, "_".join(names) or None)
        names.insert(0, f"winograd{outputs}")
    else:
        single = is_depthwise(anchor)
        described = problem(x.shape, w.shape, y.shape[2:], anchor.attrs, x.strides, w.strides[0], y.strides, size, not single)
        epilogue = "_".join(names) or None
        if single:
            across, along = (1, 1, *anchor.attrs["step"])[-2:]
            kernel = plan_depthwise(anchor.dtype, described, epilogue, spread=(across, along))
        else:
            kernel = plan_conv(anchor.dtype, described, epilogue)
        names[:0] = ["depthwise"] if single else []
    where: dict[str, tuple[Node | None, int]] = {
        "x": (x_node, x.offset * size), "w": (w_node, w.offset * size), "y": (root, y.offset * size), "workspace": (None, 0),
    }  # fmt: skip
    if group.bias is not None:
        node, seen = fusion.locate(group.bias)
        where["bias"] = (node, seen.offset * size)
    words = [where[name] for name in kernel.launch_order]
    bytes_moved = size * sum(node.numel for node in (*anchor.inputs, anchor))
    flags = RELEASE_GIL if kernel.flops > 1 << 22 else 0
    recipe = Recipe(kernel.function_address, kernel.chunks, len(words), kernel.constants, flags)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep("_".join(["conv", *names]), recipe, sources, bytes_moved, kernel.flops, NoError("conv"), kernel)

    untouched = kernel.workspace_bytes - kernel.touched(get_num_threads())
    return [Request(words, step, kernel.workspace_bytes, untouched=untouched)]


def _depthwise_last(fusion: Fusion, group: Group, anchor: Node) -> Request:
    """A convolution of single channels that lie last, and what is computed of its results."""
    from tensorsmith.targets.cpu.depthwise_last import Taps
    from tensorsmith.targets.cpu.depthwise_last_plan import plan_depthwise_last

    root, attrs, size = group.roots[0], anchor.attrs, anchor.dtype.itemsize
    (x_node, x), (w_node, w) = (fusion.locate(operand) for operand in anchor.inputs)
    y = results_place(fusion, anchor, root) if group.absorbed else fusion.place(root)
    if x.strides[1] != 1 and x.shape[1] > 1:
        raise NeedsBuffer(anchor.inputs[0], last=True)
    if y is None or (y.strides[1] != 1 and y.shape[1] > 1):
        raise NeedsBuffer(root)  # written with channels last, and copied from there
    channels, _, across, along = w.shape
    if w.strides != (1, *w.strides[1:2], along * channels, channels):
        raise NeedsBuffer(anchor.inputs[1])
    taps = Taps((across, along), attrs["stride"], attrs["dilation"])
    body, beside = assemble_epilogue(fusion, group) if group.absorbed else ("", [])
    kernel = plan_depthwise_last(anchor.dtype, x, y, channels, taps, attrs["low"], body)
    where: dict[str, tuple[Node | None, int]] = {
        "x": (x_node, x.offset * size), "w": (w_node, w.offset * size), "y": (root, y.offset * size),
    }  # fmt: skip
    name = "conv_depthwise"
    if group.absorbed:
        where |= extra_words(where["y"], beside)
        name = f"{name}_{absorbed_name(group)}"
    words = [where[each] for each in kernel.launch_order]
    bytes_moved = size * sum(node.numel for node in (*anchor.inputs, anchor, *(read.node for read in beside)))
    recipe = Recipe(
        kernel.function_address, kernel.chunks, len(words), kernel.constants, RELEASE_GIL if kernel.flops > 1 << 22 else 0
    )

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(name, recipe, sources, bytes_moved, kernel.flops, NoError(name), kernel)

    return Request(words, step)


def winograd_weight(fusion: Fusion, group: Group) -> list[Request]:
    """The weights of a Winograd convolution."""
    from tensorsmith.targets.cpu.winograd_plan import plan_weight

    root = group.roots[0]
    node, w = fusion.locate(root.inputs[0])
    if root.attrs["kept"] and w.strides[1:] != contiguous_strides(w.shape)[1:]:
        raise NeedsBuffer(root.inputs[0])
    kernel = plan_weight(root.dtype, root.attrs["outputs"], w.shape, w.strides, root.attrs["kept"])
    size = root.dtype.itemsize
    words: list[tuple[Node | None, int]] = [(node, w.offset * size), (root, fusion.place(root).offset * size)]
    recipe = Recipe(kernel.function_address, kernel.chunks, len(words), kernel.constants, 0)
    bytes_moved = size * (root.inputs[0].numel + root.numel)
    name = "winograd_weight"

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(name, recipe, sources, bytes_moved, kernel.flops, NoError(name), kernel)

    return [Request(words, step)]


def conv_weight(fusion: Fusion, group: Group) -> list[Request]:
    """The weights of a convolution, contiguous."""
    from tensorsmith.targets.cpu.conv_weight import plan_conv_weight

    root = group.roots[0]
    node, w = fusion.locate(root.inputs[0])
    size, name = root.dtype.itemsize, "conv_weight"
    kernel = plan_conv_weight(root.dtype, w.shape, w.strides)
    words: list[tuple[Node | None, int]] = [(node, w.offset * size), (root, fusion.place(root).offset * size)]
    recipe = Recipe(kernel.function_address, kernel.chunks, len(words), kernel.constants, 0)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(name, recipe, sources, 2 * size * root.numel, 0, NoError(name), kernel)

    return [Request(words, step)]


def max_pool(fusion: Fusion, group: Group) -> list[Request]:
    """Max pooling over the last two axes (`passes/pooling.py`)."""
    from tensorsmith.targets.cpu.pooling import plan_max_pool

    root = group.roots[0]
    node, x = fusion.locate(root.inputs[0])
    place = fusion.place(root)
    if x.strides[-1] != 1 and x.shape[-1] > 1:
        raise NeedsBuffer(root.inputs[0])
    if place.strides[-1] != 1 and place.shape[-1] > 1:
        raise NeedsBuffer(root)
    *lead, _, _ = x.shape
    outer, inner = (math.prod(lead[:-1]), lead[-1])
    x4, y4 = (views.reshape(seen, (outer, inner, *seen.shape[-2:])) for seen in (x, place))
    if x4 is None or y4 is None:
        raise NeedsBuffer(root.inputs[0] if x4 is None else root)
    kernel = plan_max_pool(root.dtype, x4.shape, y4.shape, root.attrs, x4.strides, y4.strides)
    size = root.dtype.itemsize
    words: list[tuple[Node | None, int]] = [(node, x.offset * size), (root, place.offset * size), (None, 0)]
    recipe = Recipe(kernel.function_address, kernel.chunks, len(words), kernel.constants, 0)
    bytes_moved = size * (root.inputs[0].numel + root.numel)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep("max_pool", recipe, sources, bytes_moved, kernel.flops, NoError("max_pool"), kernel)

    return [Request(words, step, kernel.workspace_bytes)]


def _conv_dot(anchor: Node, *places: tuple[Node, Strided]) -> Request:
    """A convolution whose kernels are larger than its results."""
    from tensorsmith.targets.cpu.conv_planes_plan import plan_weight_gradient

    x, w, y = (seen for _, seen in places)
    size, lie = anchor.dtype.itemsize, (x.strides, w.strides, y.strides)
    kernel = plan_weight_gradient(anchor.dtype, x.shape, w.shape, anchor.shape[2:], anchor.attrs, *lie)
    words: list[tuple[Node | None, int]] = [(node, seen.offset * size) for node, seen in places]
    words.append((None, 0))
    bytes_moved = size * (anchor.inputs[0].numel + anchor.inputs[1].numel + anchor.numel)
    flags = RELEASE_GIL if kernel.flops > 1 << 22 else 0
    recipe = Recipe(kernel.function_address, kernel.chunks, len(words), kernel.constants, flags)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep("conv_dot", recipe, sources, bytes_moved, kernel.flops, NoError("conv_dot"), kernel)

    return Request(words, step, kernel.workspace_bytes)
