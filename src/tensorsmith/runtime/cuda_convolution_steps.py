"""Steps of convolutions on CUDA: where operands and results lie, and what is computed of the results."""

from __future__ import annotations

from tensorsmith.ir.graph import Node
from tensorsmith.kernels.assemble import EpilogueAssembler, Read, assemble_epilogue
from tensorsmith.kernels.epilogue import COLUMN, WHOLE, Body
from tensorsmith.kernels.spec_conv import ConvSpec, Extents
from tensorsmith.passes.epilogues import results_place
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime.cuda_requests import lowered_request
from tensorsmith.runtime.requests import NoError, Request
from tensorsmith.targets.cuda.conv import lower_conv
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.precision import convolutions_allow_tf32


def conv_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """The step of a convolution with what it computes of its results."""
    spec, words = conv_spec(fusion, group)
    return [lowered_request(lower_conv(spec, properties), words, NoError("conv"))]


def conv_spec(fusion: Fusion, group: Group) -> tuple[ConvSpec, list[tuple[Node | None, int]]]:
    """A convolution as a spec, and the buffer and byte offset of each of its words."""
    anchor, root = group.anchor, group.roots[0]
    assert anchor is not None
    (x_node, x), (w_node, w) = (fusion.locate(operand) for operand in anchor.inputs)
    y = results_place(fusion, anchor, root) if group.absorbed else fusion.place(root)
    if y is None:
        raise NeedsBuffer(root)  # written contiguously, and copied from there
    body: Body | None = None
    reads: list[Read] = []
    others: list[Extents] = []
    if group.absorbed:
        body, reads = assemble_epilogue(fusion, group)
        channel = tuple(int(axis == 1) for axis in range(anchor.ndim))
        others = [y.strides if kind == WHOLE else channel if kind == COLUMN else (0,) * anchor.ndim for kind in body.kinds]
    elif root is not anchor:
        assembler = EpilogueAssembler(fusion, group)
        value, _ = assembler.root(root)
        others, reads = [operand.strides for operand in assembler.operands[1:]], assembler.reads[1:]
        body = Body(tuple(assembler.body), value, (COLUMN,) * len(others))
    attrs = anchor.attrs
    spec = ConvSpec(
        anchor.dtype, x.shape, w.shape, y.shape, x.strides, w.strides, y.strides, attrs["stride"], attrs["low"],
        attrs["dilation"], attrs["step"], attrs["groups"], body, tuple(others),
        (x.offset, w.offset, y.offset, *(read.offset for read in reads)), convolutions_allow_tf32(),
    )  # fmt: skip
    words: list[tuple[Node | None, int]] = [(node, 0) for node in (x_node, w_node, root, *(read.node for read in reads))]
    return spec, words
