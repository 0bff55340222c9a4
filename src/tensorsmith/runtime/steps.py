"""Steps of a plan: how each kind of group becomes a native launch or a library call.

`ANCHOR_STEPS` is the table of anchors. Each entry returns requests: what to launch, on which buffers (None stands for the
step's scratch space), with how much scratch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tensorsmith.core import views
from tensorsmith.core.dtypes import DType
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.recurrent import states_of
from tensorsmith.kernels.assemble import assemble_copy, assemble_fill
from tensorsmith.kernels.errors import FIRST_POINT
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime.convolution_steps import conv_steps, conv_weight, max_pool, winograd_weight
from tensorsmith.runtime.index_specs import Words, index_spec, part_of, rank_spec, scan_spec, search_spec
from tensorsmith.runtime.product_steps import matmul_steps, packed_right
from tensorsmith.runtime.requests import (
    LONG_WORK,
    KernelStep,
    NoError,
    PythonStep,
    Request,
    Step,
    array_at,
    kernel_request,
)
from tensorsmith.targets.cpu.recipe import RELEASE_GIL, Recipe

if TYPE_CHECKING:
    from tensorsmith.targets.cpu.lower import LoweredKernel


def _pad(fusion: Fusion, group: Group) -> list[Request]:
    root = group.roots[0]
    source = root.inputs[0]
    place = fusion.place(root)
    requests = [kernel_request(assemble_fill(root, place, root.attrs.get("value", False if root.dtype.kind == "b" else 0)))]
    if source.numel:
        inner = part_of(place, root.attrs["low"], root.attrs["step"], source.shape)
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
            inner = part_of(place, low, (1,) * root.ndim, source.shape)
            requests.append(kernel_request(assemble_copy(fusion, source, group, inner)))
        start += source.shape[axis]
    return requests


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


def _launched(name: str, lowered: LoweredKernel, words: Words, error: Callable[[int, Sequence[int]], Exception]) -> Request:
    """A lowered kernel as a step."""
    flags = RELEASE_GIL if lowered.bytes_moved >= LONG_WORK else 0
    recipe = Recipe(lowered.function_address, lowered.chunks, len(words), lowered.constants, flags)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(name, recipe, sources, lowered.bytes_moved, lowered.flops, error, lowered)

    return Request(words, step, lowered.workspace_bytes)


def _indexing(fusion: Fusion, group: Group) -> list[Request]:
    """TAKE, GATHER, PUT and SCATTER as index kernels."""
    root = group.roots[0]
    requests = []
    if root.op in (Primitive.PUT, Primitive.SCATTER):
        requests.append(kernel_request(assemble_copy(fusion, root.inputs[0], group, fusion.place(root))))
    spec, words, index = index_spec(fusion, group)
    if math.prod(spec.domain) == 0:
        return requests
    from tensorsmith.targets.cpu.gather import lower_index

    (given,) = spec.indices
    of_pairs = root.attrs.get("of_pairs", False)
    error = OutOfBounds(spec.name, index._replace(offset=0), given.operand.dtype, given.size, of_pairs)
    return [*requests, _launched(spec.name, lower_index(spec), words, error)]


def _scan(fusion: Fusion, group: Group) -> list[Request]:
    """A running sum, product or extreme as a kernel of its own; complex ones by the reference."""
    root = group.roots[0]
    if root.inputs[0].dtype.is_complex or not root.numel:
        return numpy_library(fusion, group)
    spec, words = scan_spec(fusion, group)
    from tensorsmith.targets.cpu.scan import lower_scan

    name = f"scan {spec.kind}"
    return [_launched(name, lower_scan(spec), words, NoError(name))]


def _ranks(fusion: Fusion, group: Group) -> list[Request]:
    """Positions of the elements of some ranks."""
    spec, words = rank_spec(fusion, group)
    from tensorsmith.targets.cpu.ranks import lower_ranks

    return [_launched("ranks", lower_ranks(spec), [*words, (None, 0)], NoError("ranks"))]


def _search(fusion: Fusion, group: Group) -> list[Request]:
    """Places of values in sorted sequences, both of one dtype."""
    spec, words = search_spec(fusion, group)
    from tensorsmith.targets.cpu.search import lower_search

    return [_launched("search", lower_search(spec), words, NoError("search"))]


LIBRARY_KERNELS: dict[str, Callable[[Fusion, Group], list[Request]]] = {
    "argsort": _ranks, "searchsorted": _search, "conv_weight": conv_weight, "winograd_weight": winograd_weight,
    "max_pool": max_pool,
    "packed_right": packed_right,
}  # fmt: skip


def _library_or_kernel(fusion: Fusion, group: Group) -> list[Request]:
    """A routine that has a kernel by it, any other by its reference."""
    return LIBRARY_KERNELS.get(group.roots[0].attrs["name"], numpy_library)(fusion, group)


def numpy_library(fusion: Fusion, group: Group) -> list[Request]:
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
    words: list[tuple[Node | None, int]] = [(node, seen.offset * node.dtype.itemsize) for node, seen in located.values()]
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
    words: list[tuple[Node | None, int]] = [(node, seen.offset * node.dtype.itemsize) for node, seen in located.values()]
    words += [(anchor, fusion.place(anchor).offset * anchor.dtype.itemsize), (None, 0)]
    recipe = Recipe(lowered.function_address, lowered.chunks, len(words), lowered.constants, RELEASE_GIL)
    recipe.keep = table
    name = f"{mode}{'_gradient' if backward else ''}"

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(name, recipe, sources, lowered.bytes_moved, lowered.flops, NoError(name), lowered)

    return [Request(words, step, lowered.workspace_bytes)]


ANCHOR_STEPS: dict[Primitive, Callable[[Fusion, Group], list[Request]]] = {
    Primitive.MATMUL: matmul_steps,
    Primitive.CONV: conv_steps,
    Primitive.PAD: _pad,
    Primitive.CONCAT: _concat,
    Primitive.LIBRARY: _library_or_kernel,
    Primitive.MAP: numpy_library,  # scalar functions without a rendering
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
