"""Steps of two fused kernels, one along rows and one of sums over them, that read what both need once."""

from __future__ import annotations

from tensorsmith.ir.graph import Node
from tensorsmith.kernels.assemble import Kernel, assemble
from tensorsmith.kernels.joint import JointKernel, join
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime.cuda_requests import lowered_request
from tensorsmith.runtime.requests import Request
from tensorsmith.targets.cuda.joint import lower_joint, refusal
from tensorsmith.targets.cuda.kernel import DeviceProperties


def _joined(fusion: Fusion, group: Group) -> JointKernel | None:
    rows, sums = (assemble(fusion, part) for part in group.parts)
    return join(rows, sums, set(group.roots))


def why_apart(fusion: Fusion, group: Group, properties: DeviceProperties) -> str:
    """Why the two kernels of a group are two steps; "" where one step serves both."""
    try:
        joint = _joined(fusion, group)
    except NeedsBuffer:
        return "one of them reads what does not lie as its strides"  # planning starts again, with a copy
    return refusal(joint.spec, properties) if joint is not None else "the sums are not plain ones of values of its points"


def joint_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """The step of a group of two kernels."""
    joint = _joined(fusion, group)
    assert joint is not None
    words = [*_words(joint.rows), *_words(joint.ends)]
    return [lowered_request(lower_joint(joint.spec, properties), words, kernel=joint)]


def _words(kernel: Kernel) -> list[tuple[Node | None, int]]:
    words: list[tuple[Node | None, int]] = [(r.node, r.offset * r.node.dtype.itemsize) for r in kernel.reads]
    words += [(node, offset * node.dtype.itemsize) for node, offset in kernel.writes]
    return words + [(node, 0) for node in kernel.params]
