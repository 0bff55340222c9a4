"""Steps of recurrent layers and their gradients on CUDA."""

from __future__ import annotations

from tensorsmith.ir.graph import Primitive
from tensorsmith.ir.recurrent import states_of
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime.cuda_requests import lowered_request
from tensorsmith.runtime.index_specs import words_of
from tensorsmith.runtime.requests import Request
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.recurrent import RecurrentSpec, lower_recurrent, operand_names


def recurrent_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """All steps of a layer, or of its gradient, as one step of the plan."""
    anchor = group.anchor
    assert anchor is not None
    mode, backward = anchor.attrs["mode"], anchor.op is Primitive.RECURRENT_GRADIENT
    one_more = len(anchor.inputs) > (3 + 2 * states_of(mode) if backward else 2 + states_of(mode))
    names = operand_names(mode, backward, one_more)
    located = {name: fusion.locate(operand) for name, operand in zip(names, anchor.inputs)}
    for (_, seen), operand in zip(located.values(), anchor.inputs):
        if seen.strides[-1] != 1 and seen.shape[-1] > 1:
            raise NeedsBuffer(operand)
    spec = RecurrentSpec(
        anchor.dtype, mode, backward, anchor.attrs["runs"], anchor.attrs["reverse"], located["w"][1].shape[1],
        anchor.attrs.get("keep", True), one_more and not backward, one_more and backward,
    )  # fmt: skip
    lowered = lower_recurrent(spec, {name: seen for name, (_, seen) in located.items()}, properties)
    return [lowered_request(lowered, words_of(*located.values(), (anchor, fusion.place(anchor))))]
