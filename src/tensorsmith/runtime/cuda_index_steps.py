"""Steps of the irregular primitives on CUDA: padding and joining, gathers and scatters, scans, ranks, searches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.kernels.assemble import Kernel, assemble_copy, assemble_fill
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group
from tensorsmith.runtime.cuda_requests import lowered_request
from tensorsmith.runtime.index_specs import IndexPosition, index_spec, part_of, rank_spec, scan_spec, search_spec
from tensorsmith.runtime.requests import Request
from tensorsmith.targets.cuda.gather import lower_index
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.lower import lower
from tensorsmith.targets.cuda.ranks import lower_ranks
from tensorsmith.targets.cuda.scan import lower_scan
from tensorsmith.targets.cuda.scatter_add import lower_scatter_reduce
from tensorsmith.targets.cuda.search import lower_search


def _kernel(kernel: Kernel, properties: DeviceProperties) -> Request:
    words: list[tuple[Node | None, int]] = [(r.node, r.offset * r.node.dtype.itemsize) for r in kernel.reads]
    words += [(node, offset * node.dtype.itemsize) for node, offset in kernel.writes]
    words += [(node, 0) for node in kernel.params]
    return lowered_request(lower(kernel.spec, properties), words, kernel=kernel)


def pad_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """PAD: the value everywhere, then the operand over it."""
    root = group.roots[0]
    source, place = root.inputs[0], fusion.place(root)
    value = root.attrs.get("value", False if root.dtype.kind == "b" else 0)
    requests = [_kernel(assemble_fill(root, place, value), properties)]
    if source.numel:
        inner = part_of(place, root.attrs["low"], root.attrs["step"], source.shape)
        requests.append(_kernel(assemble_copy(fusion, source, group, inner), properties))
    return requests


def concat_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """CONCAT: every operand to its part of the result."""
    root = group.roots[0]
    place, axis = fusion.place(root), root.attrs["axis"]
    requests, start = [], 0
    for source in root.inputs:
        if source.numel:
            low = [start if i == axis else 0 for i in range(root.ndim)]
            inner = part_of(place, low, (1,) * root.ndim, source.shape)
            requests.append(_kernel(assemble_copy(fusion, source, group, inner), properties))
        start += source.shape[axis]
    return requests


def index_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """TAKE, GATHER, PUT and SCATTER as index kernels."""
    root = group.roots[0]
    requests = []
    if root.op in (Primitive.PUT, Primitive.SCATTER):
        requests.append(_kernel(assemble_copy(fusion, root.inputs[0], group, fusion.place(root)), properties))
    spec, words, index = index_spec(fusion, group)
    if math.prod(spec.domain) == 0:
        return requests
    size = spec.indices[0].size
    error = IndexPosition(root.op.value, index._replace(offset=0), size, root.attrs.get("of_pairs", False))
    return [*requests, lowered_request(lower_index(spec, properties), words, error)]


def scan_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """A running sum, product or extreme."""
    spec, words = scan_spec(fusion, group)
    return [lowered_request(lower_scan(spec, properties), words)]


def rank_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """The LIBRARY routine "argsort": positions of the elements of some ranks."""
    spec, words = rank_spec(fusion, group)
    return [lowered_request(lower_ranks(spec, properties), words)]


def search_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """The LIBRARY routine "searchsorted": places of values in sorted sequences."""
    spec, words = search_spec(fusion, group)
    return [lowered_request(lower_search(spec, properties), words)]


INDEX_STEPS: dict[Primitive, Callable[[Fusion, Group, DeviceProperties], list[Request]]] = {
    Primitive.PAD: pad_steps,
    Primitive.CONCAT: concat_steps,
    Primitive.TAKE: index_steps,
    Primitive.GATHER: index_steps,
    Primitive.PUT: index_steps,
    Primitive.SCATTER: index_steps,
    Primitive.SCAN: scan_steps,
}


def scatter_reduce_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """The LIBRARY routine "scatter_reduce": products and extremes at places that points share."""
    root = group.roots[0]
    requests = [_kernel(assemble_copy(fusion, root.inputs[0], group, fusion.place(root)), properties)]
    spec, words, index = index_spec(fusion, group)
    if math.prod(spec.domain) == 0:
        return requests
    spec = replace(spec, mode="scatter_add", name="scatter_reduce")
    lowered = lower_scatter_reduce(spec, root.attrs["reduce"], root.attrs["include_self"], properties)
    error = IndexPosition("scatter_reduce", index._replace(offset=0), spec.indices[0].size)
    return [*requests, lowered_request(lowered, words, error)]


# Routines of LIBRARY that have kernels.
INDEX_ROUTINES: dict[str, Callable[[Fusion, Group, DeviceProperties], list[Request]]] = {
    "argsort": rank_steps,
    "scatter_reduce": scatter_reduce_steps,
    "searchsorted": search_steps,
}
