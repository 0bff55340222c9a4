"""Steps of a plan: how each kind of group becomes a native launch or a library call.

`ANCHOR_STEPS` is the table of anchors. Each entry returns requests: what to launch, on which buffers (None stands for the
step's scratch space), with how much scratch.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorsmith.core import views
from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir.convolution import lies_last
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.recurrent import states_of
from tensorsmith.kernels.assemble import Kernel, Read, assemble, assemble_copy, assemble_epilogue, assemble_fill
from tensorsmith.kernels.epilogue import EXTRAS
from tensorsmith.kernels.errors import FIRST_POINT, ZERO_DIVISION
from tensorsmith.kernels.spec import Operand
from tensorsmith.kernels.spec_index import IndexOperand, IndexSpec
from tensorsmith.kernels.spec_order import RankSpec, SearchSpec
from tensorsmith.kernels.spec_scan import ScanSpec
from tensorsmith.passes.convolutions import is_depthwise, is_weight_gradient
from tensorsmith.passes.epilogues import results_place
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu.pool import get_num_threads
from tensorsmith.targets.cpu.recipe import RELEASE_GIL, Recipe

LONG_WORK = 1 << 18  # bytes moved from which other Python threads may run meanwhile


@dataclass
class KernelStep:
    """A native launch: recipe, and for each launch word (word number, byte offset)."""

    name: str
    recipe: Recipe
    sources: list[tuple[int, int]]
    bytes_moved: int
    flops: int
    error: Callable[[int, Sequence[int]], Exception]  # from the error code and the launch's addresses
    kernel: Any = None

    def describe(self) -> str:
        spec = getattr(self.kernel, "spec", None)
        return f"{self.name}: {self.recipe.chunks} chunks, {self.bytes_moved} bytes, {self.flops} flops" + (
            "\n" + str(spec) if spec is not None else ""
        )


@dataclass
class PythonStep:
    """A library call on arrays over the buffers."""

    name: str
    sources: list[tuple[int, int]]
    call: Callable[[Sequence[Any]], None]
    bytes_moved: int = 0
    flops: int = 0

    def run(self, words: Sequence[int | float]) -> None:
        self.call([words[w] + o for w, o in self.sources])

    def describe(self) -> str:
        return f"{self.name}: library call"


Step = KernelStep | PythonStep


@dataclass
class Request:
    """A step before its buffers have addresses."""

    words: list[tuple[Node | None, int]]  # buffer and byte offset
    step: Callable[[list[tuple[int, int]]], Step]
    scratch_bytes: int = 0
    kernel: Any = None  # the assembled Kernel of a fused step
    untouched: int = 0  # bytes at the end of the scratch space that are for more workers than there are


@dataclass(frozen=True)
class NoError:
    """The exception for kernels that report only an integer division by zero. Files of plans hold it by its fields."""

    name: str

    def __call__(self, code: int, addresses: Sequence[int]) -> Exception:
        if code == ZERO_DIVISION:
            return RuntimeError(f"ZeroDivisionError: {self.name}: integer division or modulo by zero")
        return RuntimeError(f"{self.name}: kernel error {code}")


def kernel_request(kernel: Kernel) -> Request:
    """A lowered KernelSpec as a step."""
    from tensorsmith.targets.cpu.lower import lower  # the code generator loads when the first kernel is asked for

    lowered = lower(kernel.spec)
    spec = kernel.spec
    words: list[tuple[Node | None, int]] = [(r.node, r.offset * r.node.dtype.itemsize) for r in kernel.reads]
    words += [(node, offset * node.dtype.itemsize) for node, offset in kernel.writes]
    words += [(node, 0) for node in kernel.params]
    if lowered.workspace_bytes:
        words.append((None, 0))
    flags = RELEASE_GIL if lowered.bytes_moved >= LONG_WORK else 0
    recipe = Recipe(lowered.function_address, lowered.chunks, len(words), lowered.constants, flags)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(
            spec.name, recipe, sources, lowered.bytes_moved, lowered.flops, NoError(spec.name), lowered
        )

    return Request(words, step, lowered.workspace_bytes, kernel)


def fused_step(fusion: Fusion, group: Group) -> Request:
    """The step of a fused kernel."""
    return kernel_request(assemble(fusion, group))


def _matmul(fusion: Fusion, group: Group) -> list[Request]:
    anchor = group.anchor
    assert anchor is not None
    root = group.roots[0]
    located = [fusion.locate(operand) for operand in anchor.inputs]
    *batch_shape, M, K = anchor.inputs[0].shape
    N = anchor.inputs[1].shape[-1]
    batch = int(np.prod(batch_shape, dtype=np.int64)) if batch_shape else 1
    flat = []
    for operand, (_, seen) in zip(anchor.inputs, located):
        joined = views.reshape(seen, (batch, *seen.shape[-2:]))
        if joined is None:
            raise NeedsBuffer(operand)
        flat.append(joined)
    a, b = flat
    packed = anchor.attrs.get("packed", False)
    if not (b.strides[1] == 1 or b.strides[2] == 1 or K == 1 or N == 1):
        raise NeedsBuffer(anchor.inputs[1])
    if root.dtype.itemsize < 4 and root.dtype.kind == "f" and not (a.strides[1] == 1 or a.strides[2] == 1):
        raise NeedsBuffer(anchor.inputs[0])
    results = results_place(fusion, anchor, root) if group.absorbed else fusion.place(root)
    c = None if results is None else views.reshape(results, (batch, M, N))
    if c is None or (c.strides[2] != 1 and N > 1):
        raise NeedsBuffer(root)  # written contiguously, and copied from there
    names = [*(["bias"] if group.bias is not None else []), *(["relu"] if group.activation is Fn.RELU else [])]
    from tensorsmith.targets.cpu.gemm import plan_matmul

    body, beside = assemble_epilogue(fusion, group) if group.absorbed else (None, [])
    kernel = plan_matmul(
        anchor.dtype, batch, M, N, K, a.strides, b.strides, c.strides, epilogue=body or "_".join(names) or None,
        packed=packed,
    )
    size = anchor.dtype.itemsize
    where: dict[str, tuple[Node | None, int]] = {
        "A": (located[0][0], a.offset * size),
        "B": (located[1][0], b.offset * size),
        "C": (root, c.offset * size),
        "workspace": (None, 0),
    }
    if group.bias is not None:
        node, seen = fusion.locate(group.bias)
        where["bias"] = (node, seen.offset * size)
    if body is not None:
        where |= extra_words(where["C"], beside)
        names.append(absorbed_name(group))
    words = [where[name] for name in kernel.launch_order]
    bytes_moved = size * (batch * (M * K + K * N + M * N) + sum(read.node.numel for read in beside))
    long = kernel.flops > 1 << 22
    recipe = Recipe(kernel.function_address, kernel.chunks, len(words), kernel.constants, RELEASE_GIL if long else 0)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(
            "_".join(["matmul", *names]), recipe, sources, bytes_moved, kernel.flops, NoError("matmul"), kernel
        )

    return [Request(words, step, kernel.workspace_bytes)]


def extra_words(results: tuple[Node | None, int], beside: Sequence[Read]) -> dict[str, tuple[Node | None, int]]:
    """The launch words of an epilogue's body: the results again, and the operands beside them."""
    places = [(read.node, read.offset * read.node.dtype.itemsize) for read in beside]
    return dict(zip(EXTRAS, [results, *places, *[results] * len(EXTRAS)]))


def absorbed_name(group: Group) -> str:
    """The last function that a product computes of its results."""
    return str(group.roots[0].attrs["fn"].name.lower())


def _packed_right(fusion: Fusion, group: Group) -> list[Request]:
    """The right operand of products, in the panels that they read."""
    from tensorsmith.targets.cpu.gemm import plan_packing

    root = group.roots[0]
    node, b = fusion.locate(root.inputs[0])
    if 1 not in b.strides:
        raise NeedsBuffer(root.inputs[0])
    K, N = root.shape
    kernel = plan_packing(root.dtype, K, N, b.strides)
    size, name = root.dtype.itemsize, "packed_right"
    where: dict[str, tuple[Node | None, int]] = {"B": (node, b.offset * size), "packed": (root, 0)}
    words = [where[word] for word in kernel.launch_order]
    recipe = Recipe(kernel.function_address, kernel.chunks, len(words), kernel.constants, RELEASE_GIL)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(name, recipe, sources, 2 * size * root.numel, 0, NoError(name), kernel)

    return [Request(words, step)]


def buffer_bytes(node: Node, place: Strided) -> int:
    """Memory of a value that lies as given, or as only a kernel knows."""
    if node.op is Primitive.LIBRARY and node.attrs["name"] == "packed_right":
        from tensorsmith.targets.cpu.gemm import packed_bytes

        K, N = node.shape
        return packed_bytes(node.dtype, K, N)
    return views.extent(place) * node.dtype.itemsize


def _conv(fusion: Fusion, group: Group) -> list[Request]:
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
        described = problem(
            x.shape, w.shape, y.shape[2:], anchor.attrs, x.strides, w.strides[0], y.strides, size, not single
        )
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


def _winograd_weight(fusion: Fusion, group: Group) -> list[Request]:
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


def _conv_weight(fusion: Fusion, group: Group) -> list[Request]:
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


def _max_pool(fusion: Fusion, group: Group) -> list[Request]:
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


def _part(root_place: Strided, low: Sequence[int], step: Sequence[int], shape: Sequence[int]) -> Strided:
    """The region of a buffer that starts at `low` and advances by `step`."""
    offset = root_place.offset + sum(l * s for l, s in zip(low, root_place.strides))
    strides = tuple(s * k for s, k in zip(root_place.strides, step))
    return Strided(tuple(shape), strides, offset)


def _pad(fusion: Fusion, group: Group) -> list[Request]:
    root = group.roots[0]
    source = root.inputs[0]
    place = fusion.place(root)
    requests = [kernel_request(assemble_fill(root, place, root.attrs.get("value", False if root.dtype.kind == "b" else 0)))]
    if source.numel:
        inner = _part(place, root.attrs["low"], root.attrs["step"], source.shape)
        requests.append(kernel_request(assemble_copy(fusion, source, group, inner)))
    return requests


def _concat(fusion: Fusion, group: Group) -> list[Request]:
    root = group.roots[0]
    place = fusion.place(root)
    axis = root.attrs["axis"]
    requests = []
    start = 0
    for source in root.inputs:
        if source.numel:
            low = [start if i == axis else 0 for i in range(root.ndim)]
            inner = _part(place, low, (1,) * root.ndim, source.shape)
            requests.append(kernel_request(assemble_copy(fusion, source, group, inner)))
        start += source.shape[axis]
    return requests


def array_at(address: int, seen: Strided, dtype: Any) -> np.ndarray:
    """A NumPy array over memory of ours (valid while the buffer lives)."""
    itemsize = dtype.itemsize
    if 0 in seen.shape:
        return np.empty(seen.shape, dtype.numpy)
    extent = 1 + sum((n - 1) * max(s, 0) for n, s in zip(seen.shape, seen.strides))
    raw = (ctypes.c_char * (extent * itemsize)).from_address(address)
    flat = np.frombuffer(raw, dtype=dtype.numpy)
    return np.lib.stride_tricks.as_strided(flat, seen.shape, [s * itemsize for s in seen.strides])


@dataclass(frozen=True)
class OutOfBounds:
    """The IndexError of a gather or scatter: which index, where it stands, what is allowed."""

    name: str
    index: Strided
    dtype: DType
    size: int
    of_pairs: bool = False

    def __call__(self, code: int, addresses: Sequence[int]) -> Exception:
        index = self.index
        varying = tuple(n if stride else 1 for n, stride in zip(index.shape, index.strides))  # what the kernel counts
        position = np.unravel_index(code - FIRST_POINT, varying) if varying else ()
        value = array_at(addresses[1], index, self.dtype)[position]
        position = position[:-1] if self.of_pairs else position
        where = f" at position {[int(i) for i in position]}" if position else ""
        return IndexError(f"{self.name}: index {value}{where} is out of bounds for dimension with size {self.size}")


def _indexing(fusion: Fusion, group: Group) -> list[Request]:
    """TAKE, GATHER, PUT and SCATTER as index kernels."""
    root = group.roots[0]
    axis = root.attrs["axis"]
    reads = root.op in (Primitive.TAKE, Primitive.GATHER)
    if reads:
        (table_node, table), (index_node, index) = (fusion.locate(x) for x in root.inputs)
        other_node, other = root, fusion.place(root)
    else:
        (index_node, index), (other_node, other) = (fusion.locate(x) for x in root.inputs[1:])
        table_node, table = root, fusion.place(root)
    domain = other.shape
    step, size = (table.strides[axis], table.shape[axis]) if table.shape else (1, 1)
    if root.op in (Primitive.TAKE, Primitive.PUT):  # a one-axis index walks the axis, whole slices move
        index_strides = tuple(index.strides[0] if i == axis else 0 for i in range(len(domain)))
    else:
        index_strides = index.strides
    table_strides = tuple(0 if i == axis else s for i, s in enumerate(table.strides))
    mode = "gather" if reads else ("scatter_add" if root.attrs["reduce"] == "add" else "scatter")
    requests = []
    if not reads:
        requests.append(kernel_request(assemble_copy(fusion, root.inputs[0], group, fusion.place(root))))
    if math.prod(domain) == 0:
        return requests
    spec = IndexSpec(
        mode,
        domain,
        Operand(table_node.dtype, table_strides),
        (IndexOperand(Operand(index_node.dtype, index_strides), step, size),),
        Operand(other_node.dtype, other.strides),
        name=root.op.value,
    )
    from tensorsmith.targets.cpu.gather import lower_index

    lowered = lower_index(spec)
    words: list[tuple[Node | None, int]] = [
        (node, seen.offset * node.dtype.itemsize)
        for node, seen in ((table_node, table), (index_node, index), (other_node, other))
    ]
    flags = RELEASE_GIL if lowered.bytes_moved >= LONG_WORK else 0
    recipe = Recipe(lowered.function_address, lowered.chunks, len(words), lowered.constants, flags)
    error = OutOfBounds(root.op.value, index._replace(offset=0), index_node.dtype, size, root.attrs.get("of_pairs", False))

    def step_of(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(root.op.value, recipe, sources, lowered.bytes_moved, lowered.flops, error, lowered)

    requests.append(Request(words, step_of))
    return requests


def _scan(fusion: Fusion, group: Group) -> list[Request]:
    """A running sum, product or extreme as a kernel of its own; complex ones by the reference."""
    root = group.roots[0]
    node, seen = fusion.locate(root.inputs[0])
    if node.dtype.is_complex or not root.numel:
        return _library(fusion, group)
    place = fusion.place(root)
    spec = ScanSpec(root.attrs["kind"], root.shape, root.attrs["axis"], node.dtype, seen.strides, place.strides)
    from tensorsmith.targets.cpu.scan import lower_scan

    lowered = lower_scan(spec)
    places = ((node, seen), (root, place))
    words: list[tuple[Node | None, int]] = [(each, at.offset * each.dtype.itemsize) for each, at in places]
    flags = RELEASE_GIL if lowered.bytes_moved >= LONG_WORK else 0
    recipe = Recipe(lowered.function_address, lowered.chunks, len(words), lowered.constants, flags)

    def step(sources: list[tuple[int, int]]) -> Step:
        name = f"scan {spec.kind}"
        return KernelStep(name, recipe, sources, lowered.bytes_moved, lowered.flops, NoError(name), lowered)

    return [Request(words, step)]


def _ranks(fusion: Fusion, group: Group) -> list[Request]:
    """Positions of the elements of some ranks."""
    root = group.roots[0]
    operand, attrs = root.inputs[0], root.attrs
    node, seen = fusion.locate(operand)
    place, axis = fusion.place(root), attrs["axis"]
    extent = operand.shape[axis]
    spec = RankSpec(
        node.dtype, attrs["descending"], seen.shape, axis, attrs.get("start", 0), attrs.get("length", extent), seen.strides,
        place.strides,
    )  # fmt: skip
    from tensorsmith.targets.cpu.ranks import lower_ranks

    lowered = lower_ranks(spec)
    size = node.dtype.itemsize
    words: list[tuple[Node | None, int]] = [(node, seen.offset * size), (root, place.offset * root.dtype.itemsize), (None, 0)]
    recipe = Recipe(
        lowered.function_address, lowered.chunks, len(words), lowered.constants,
        RELEASE_GIL if lowered.bytes_moved >= LONG_WORK else 0,
    )  # fmt: skip

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep("ranks", recipe, sources, lowered.bytes_moved, lowered.flops, NoError("ranks"), lowered)

    return [Request(words, step, lowered.workspace_bytes)]


def _search(fusion: Fusion, group: Group) -> list[Request]:
    """Places of values in sorted sequences, both of one dtype."""
    root = group.roots[0]
    (sequence_node, sequence), (values_node, values) = (fusion.locate(operand) for operand in root.inputs)
    place, extent = fusion.place(root), sequence.shape[-1]
    if extent > 1 and sequence.strides[-1] != 1:
        raise NeedsBuffer(root.inputs[0])
    rows = (0,) * len(values.shape) if len(sequence.shape) == 1 else (*sequence.strides[:-1], 0)
    spec = SearchSpec(values_node.dtype, root.attrs["right"], extent, values.shape, rows, values.strides, place.strides)
    from tensorsmith.targets.cpu.search import lower_search

    lowered = lower_search(spec)
    places = ((sequence_node, sequence), (values_node, values), (root, place))
    words: list[tuple[Node | None, int]] = [(node, seen.offset * node.dtype.itemsize) for node, seen in places]
    flags = RELEASE_GIL if lowered.bytes_moved >= LONG_WORK else 0
    recipe = Recipe(lowered.function_address, lowered.chunks, len(words), lowered.constants, flags)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep("search", recipe, sources, lowered.bytes_moved, lowered.flops, NoError("search"), lowered)

    return [Request(words, step)]


LIBRARY_KERNELS: dict[str, Callable[[Fusion, Group], list[Request]]] = {
    "argsort": _ranks, "searchsorted": _search, "conv_weight": _conv_weight, "winograd_weight": _winograd_weight,
    "max_pool": _max_pool,
    "packed_right": _packed_right,
}  # fmt: skip


def _library_or_kernel(fusion: Fusion, group: Group) -> list[Request]:
    """A routine that has a kernel by it, any other by its reference."""
    return LIBRARY_KERNELS.get(group.roots[0].attrs["name"], _library)(fusion, group)


def _library(fusion: Fusion, group: Group) -> list[Request]:
    """A primitive without a native kernel, by its reference: floating-point values are computed in float64 and rounded."""
    from tensorsmith.targets.reference.library import EXACT
    from tensorsmith.targets.reference.primitives import PRIMITIVES
    from tensorsmith.targets.reference.representation import rounded, widen

    root = group.roots[0]
    as_they_are = root.op in (Primitive.TAKE, Primitive.GATHER) or root.attrs.get("reduce") == "set"
    as_they_are = as_they_are or root.attrs.get("name") in EXACT
    compute = PRIMITIVES[root.op]
    located = [fusion.locate(operand) for operand in root.inputs]
    place = fusion.place(root)

    def call(addresses: Sequence[int]) -> None:
        arrays = [array_at(p, seen, node.dtype) for p, (node, seen) in zip(addresses, located)]
        if not as_they_are:
            arrays = [widen(array, operand.dtype) for array, operand in zip(arrays, root.inputs)]
        with np.errstate(all="ignore"):
            array_at(addresses[-1], place, root.dtype)[...] = rounded(compute(root, arrays), root.dtype)

    def step(sources: list[tuple[int, int]]) -> Step:
        return PythonStep(str(root.attrs.get("name", root.op.value)), sources, call)

    words: list[tuple[Node | None, int]] = [(node, seen.offset * node.dtype.itemsize) for node, seen in located]
    words.append((root, place.offset * root.dtype.itemsize))
    return [Request(words, step)]


def _attention(fusion: Fusion, group: Group) -> list[Request]:
    """Attention and its gradient, as kernels of their own."""
    anchor = group.anchor
    assert anchor is not None
    backward = anchor.op is Primitive.ATTENTION_GRADIENT
    dropout = anchor.attrs["dropout"]
    names = ["q", "k", "v", *(("g", "lse", "delta") if backward else ())]
    names += ["mask"] * (len(anchor.inputs) - len(names) - bool(dropout)) + ["streams"] * bool(dropout)
    queries, _, values = anchor.inputs[:3]
    *lead, length, width = queries.shape
    outer, inner = (math.prod(lead[:-1]), lead[-1]) if lead else (1, 1)
    located, places = {}, {}
    for name, operand in zip(names, anchor.inputs):
        located[name] = node, seen = fusion.locate(operand)
        shape = (*operand.shape, 1) if name in ("lse", "delta", "streams") else operand.shape
        flat = views.reshape(seen._replace(shape=shape, strides=(*seen.strides, 1)[: len(shape)]), (outer, inner, *shape[-2:]))
        along = 1 if flat is None or flat.shape[3] == 1 else flat.strides[3]
        free = name in ("lse", "delta", "streams") or (name == "q" and not backward)
        if flat is None or not (free or along == 1 or (name == "mask" and along == 0)):
            raise NeedsBuffer(operand)
        places[name] = flat
    from tensorsmith.targets.cpu.attention import AttentionSizes, AttentionStructure, mask_kind, plan_attention

    mask = places.get("mask")
    kind = mask_kind(anchor.inputs[names.index("mask")].dtype) if mask is not None else ""
    spread = mask is not None and mask.shape[3] > 1 and mask.strides[3] == 0
    structure = AttentionStructure(anchor.dtype, anchor.attrs["causal"], kind, spread, backward, dropout > 0)
    sizes = AttentionSizes(outer, inner, length, anchor.inputs[1].shape[-2], width, values.shape[-1])
    lowered = plan_attention(structure, sizes, anchor.attrs["scale"], places, anchor.attrs["beside"], dropout)
    words: list[tuple[Node | None, int]] = [
        (node, seen.offset * node.dtype.itemsize) for node, seen in located.values()
    ]
    words += [(anchor, fusion.place(anchor).offset * anchor.dtype.itemsize), (None, 0)]
    recipe = Recipe(lowered.function_address, lowered.chunks, len(words), lowered.constants, RELEASE_GIL)
    name = anchor.op.value

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(name, recipe, sources, lowered.bytes_moved, lowered.flops, NoError(name), lowered)

    return [Request(words, step, lowered.workspace_bytes)]


def _recurrent(fusion: Fusion, group: Group) -> list[Request]:
    """A recurrent layer and its gradient, as kernels of their own."""
    anchor = group.anchor
    assert anchor is not None
    from tensorsmith.targets.cpu import recurrent, recurrent_backward, recurrent_forward

    mode, backward = anchor.attrs["mode"], anchor.op is Primitive.RECURRENT_GRADIENT
    one_more = len(anchor.inputs) > (3 + 2 * states_of(mode) if backward else 2 + states_of(mode))
    structure = recurrent.RecurrentStructure(
        anchor.dtype, mode, backward, anchor.attrs.get("keep", True), one_more and not backward, one_more and backward
    )
    names = (recurrent_backward if backward else recurrent_forward).launch_words(structure)
    located = {name: fusion.locate(operand) for name, operand in zip(names, anchor.inputs)}
    for (_, seen), operand in zip(located.values(), anchor.inputs):
        if seen.strides[-1] != 1 and seen.shape[-1] > 1:
            raise NeedsBuffer(operand)
    sizes = recurrent.LayerSizes(anchor.attrs["runs"], anchor.attrs["reverse"], located["w"][1].shape[1])
    lowered, table = recurrent.plan_recurrent(structure, sizes, {name: seen for name, (_, seen) in located.items()})
    words: list[tuple[Node | None, int]] = [
        (node, seen.offset * node.dtype.itemsize) for node, seen in located.values()
    ]
    words += [(anchor, fusion.place(anchor).offset * anchor.dtype.itemsize), (None, 0)]
    recipe = Recipe(lowered.function_address, lowered.chunks, len(words), lowered.constants, RELEASE_GIL)
    recipe.keep = table
    name = f"{mode}{'_gradient' if backward else ''}"

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(name, recipe, sources, lowered.bytes_moved, lowered.flops, NoError(name), lowered)

    return [Request(words, step, lowered.workspace_bytes)]


ANCHOR_STEPS: dict[Primitive, Callable[[Fusion, Group], list[Request]]] = {
    Primitive.MATMUL: _matmul,
    Primitive.CONV: _conv,
    Primitive.PAD: _pad,
    Primitive.CONCAT: _concat,
    Primitive.LIBRARY: _library_or_kernel,
    Primitive.MAP: _library,  # scalar functions without a rendering
    Primitive.SCAN: _scan,
    Primitive.ATTENTION: _attention,
    Primitive.ATTENTION_GRADIENT: _attention,
    Primitive.RECURRENT: _recurrent,
    Primitive.RECURRENT_GRADIENT: _recurrent,
    Primitive.TAKE: _indexing,
    Primitive.GATHER: _indexing,
    Primitive.SCATTER: _indexing,
    Primitive.PUT: _indexing,
}
