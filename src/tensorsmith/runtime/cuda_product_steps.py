"""Steps of matrix products on CUDA: where operands and results lie, and what is computed of the results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tensorsmith.core import views
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Node
from tensorsmith.kernels.assemble import Read, assemble_epilogue
from tensorsmith.kernels.epilogue import COLUMN, WHOLE, Body
from tensorsmith.kernels.spec_gemm import GemmSpec, Strides
from tensorsmith.passes.epilogues import results_place
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime.cuda_requests import lowered_request, planned_index
from tensorsmith.runtime.requests import NoError, Request
from tensorsmith.targets.cuda.gemm import lower_gemm
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.precision import products_allow_tf32, products_are_tuned


def matmul_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """The step of a product with what it computes of its results."""
    spec, words = matmul_spec(fusion, group)
    choice = None
    if products_are_tuned():
        from tensorsmith.runtime.cuda_tuning import tuned_choice

        choice = tuned_choice(spec, properties, planned_index())
    return [lowered_request(lower_gemm(spec, properties, choice), words, NoError("matmul"))]


def matmul_spec(fusion: Fusion, group: Group) -> tuple[GemmSpec, list[tuple[Node | None, int]]]:
    """A product as a spec, and the buffer and byte offset of each of its words."""
    anchor, root = group.anchor, group.roots[0]
    assert anchor is not None
    *batch, M, K = anchor.inputs[0].shape
    N = anchor.inputs[1].shape[-1]
    (a_node, a), (b_node, b) = (fusion.locate(operand) for operand in anchor.inputs)
    place = results_place(fusion, anchor, root) if group.absorbed else fusion.place(root)
    results = None if place is None else views.reshape(place, (*batch, M, N))
    if results is None:
        raise NeedsBuffer(root)  # written contiguously, and copied from there
    body: Body | None = None
    reads: list[Read] = []
    if root is not anchor:
        body, reads = assemble_epilogue(fusion, group)
    for outer, inner in splits(batch):
        found = [_joined(seen, outer, inner) for seen in (a, b, results)]
        if None not in found:
            break
    else:
        raise NeedsBuffer(_first_without(anchor.inputs, (a, b), batch) or root)
    a_strides, b_strides, c_strides = (strides for strides in found if strides is not None)
    spec = GemmSpec(
        anchor.dtype, (outer, inner), M, N, K, a_strides, b_strides, c_strides, body,
        tuple(_beside(kind, c_strides) for kind in (body.kinds if body else ())), products_allow_tf32(),
    )  # fmt: skip
    size = anchor.dtype.itemsize
    words: list[tuple[Node | None, int]] = [
        (a_node, a.offset * size), (b_node, b.offset * size), (root, results.offset * size),
        *((read.node, read.offset * size) for read in reads),
    ]  # fmt: skip
    return spec, words


def splits(batch: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ways to see batch axes as two, as one of them first."""
    for axis in range(max(1, len(batch))):
        yield math.prod(batch[:axis]), math.prod(batch[axis:])


def _joined(seen: Strided, outer: int, inner: int) -> Strides | None:
    """Strides of matrices along two batch axes; None where axes do not join."""
    found = views.reshape(seen, (outer, inner, *seen.shape[-2:]))
    if found is None:
        return None
    strides = [0 if extent == 1 else stride for extent, stride in zip(found.shape, found.strides)]
    return strides[0], strides[1], found.strides[2], found.strides[3]


def _first_without(operands: Sequence[Node], places: Sequence[Strided], batch: Sequence[int]) -> Node | None:
    """The operand whose batch axes do not join to one."""
    for operand, seen in zip(operands, places):
        if _joined(seen, 1, math.prod(batch)) is None:
            return operand
    return None


def _beside(kind: str, results: Strides) -> Strides:
    """Strides of an operand beside results that lie so."""
    return results if kind == WHOLE else (0, 0, 0, 1) if kind == COLUMN else (0, 0, 0, 0)
