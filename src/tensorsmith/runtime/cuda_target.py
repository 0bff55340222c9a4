"""The target of plans on a CUDA device: which lowering makes the launches of which primitive.

`STEPS` is the table of anchors, as `steps.py:ANCHOR_STEPS` is the CPU's; its functions also get the properties of the device.
What has no kernel and is computed by the reference on the CPU too (decompositions, rare special functions) is computed on the
host, between copies; a step's name says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorsmith.core.device import Device
from tensorsmith.core.dtypes import DType
from tensorsmith.ir.control import is_control
from tensorsmith.ir.graph import Graph, Primitive, touches_complex
from tensorsmith.kernels.assemble import Kernel, assemble
from tensorsmith.passes.epilogues import reshape_before_bias
from tensorsmith.passes.fusion import Fusion, Repeats
from tensorsmith.passes.half_attention import halve_attention
from tensorsmith.passes.images_last import images_last
from tensorsmith.passes.sums_over_rows import with_sums
from tensorsmith.passes.walk import Group
from tensorsmith.runtime.complex_steps import numpy_step
from tensorsmith.runtime.control_steps import control_steps
from tensorsmith.runtime.cuda_attention_steps import attention_steps
from tensorsmith.runtime.cuda_convolution_steps import conv_steps
from tensorsmith.runtime.cuda_graph import give_graphs
from tensorsmith.runtime.cuda_index_steps import INDEX_ROUTINES, INDEX_STEPS
from tensorsmith.runtime.cuda_joint_steps import joint_steps, why_apart
from tensorsmith.runtime.cuda_product_steps import matmul_steps
from tensorsmith.runtime.cuda_recurrent_steps import recurrent_steps
from tensorsmith.runtime.cuda_requests import ALIGN, lowered_request, on_host, planning_on
from tensorsmith.runtime.requests import Request
from tensorsmith.runtime.steps import numpy_library
from tensorsmith.runtime.target import Target
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda import copies, devices, memory, modules
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.lower import lower
from tensorsmith.targets.cuda.scalars import LIBRARY_CALLS

if TYPE_CHECKING:
    from tensorsmith.runtime.plan import Plan

Steps = Callable[[Fusion, Group, DeviceProperties], list[Request]]


def _host(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """A routine of the reference."""
    return [on_host(fusion, request, group.roots) for request in numpy_library(fusion, group)]


def _routine(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """A routine that has kernels by these, any other on the host."""
    return INDEX_ROUTINES.get(group.roots[0].attrs["name"], _host)(fusion, group, properties)


STEPS: dict[Primitive, Steps] = {
    Primitive.MATMUL: matmul_steps,
    Primitive.ATTENTION: attention_steps,
    Primitive.ATTENTION_GRADIENT: attention_steps,
    Primitive.CONV: conv_steps,
    Primitive.RECURRENT: recurrent_steps,
    Primitive.RECURRENT_GRADIENT: recurrent_steps,
    **INDEX_STEPS,
    Primitive.LIBRARY: _routine,
    Primitive.MAP: _host,  # scalar functions without a rendering
}


class CudaTarget(Target):
    """A CUDA device."""

    align = ALIGN
    checks_first = False
    keeps = False
    splits_reductions = False
    halves = True
    places = staticmethod(images_last)
    repeats = Repeats(most=12, function=4, read=1.25)  # dozens of operations take the time of one element of memory

    def __init__(self, device: Device) -> None:
        assert device.index is not None
        self.device = device
        self.index = device.index
        self.properties = devices.properties(device.index)

    @functools.cached_property
    def library(self) -> frozenset[Fn]:
        return LIBRARY_CALLS

    def lowered_graph(
        self, graph: Graph, apart: Collection[int], lasting: Collection[int], stamped: Collection[int], fusing: bool
    ) -> Graph:
        graph = halve_attention(graph)
        return reshape_before_bias(graph) if fusing else graph

    def groups(self, fusion: Fusion) -> list[Group]:
        if not fusion.fusing:
            return fusion.groups
        return with_sums(fusion, lambda fusion, group: why_apart(fusion, group, self.properties))

    def requests(self, fusion: Fusion, group: Group) -> list[Request]:
        with planning_on(self.index):
            anchor = group.anchor
            if group.parts:
                return joint_steps(fusion, group, self.properties)
            if anchor is None:
                return [self._fused(assemble(fusion, group))]
            if is_control(anchor) and not touches_complex(anchor):
                return control_steps(fusion, group, self.device)
            if fusion.is_numpy_step(anchor):
                return [on_host(fusion, numpy_step(fusion, group), group.roots)]
            steps = STEPS.get(anchor.op)
            if steps is None:
                raise NotImplementedError(f"{anchor.op.value} on a CUDA device has no kernel yet; compute it on the CPU")
            return steps(fusion, group, self.properties)

    def kernel_request(self, kernel: Kernel) -> Request:
        with planning_on(self.index):
            return self._fused(kernel)

    def _fused(self, kernel: Kernel) -> Request:
        return fused_request(kernel, self.properties)

    def prepare(self, requests: Sequence[Request]) -> None:
        """Compile what all these steps need, side by side."""
        launches = [launch for request in requests if request.lowered is not None for launch in request.lowered.launches]
        if len(launches) > 1:
            modules.compile_many({each.source: each.name for each in launches}.items(), self.properties.architecture)

    def finish(self, plan: Plan, accesses: Callable[[], Sequence[Any]]) -> None:
        give_graphs(plan, accesses)

    def allocate(self, nbytes: int) -> int:
        return memory.allocate(nbytes, self.index)

    def free_list(self, nbytes: int) -> list[int]:
        return memory.free_list(nbytes, self.index)

    def element(self, address: int, dtype: DType) -> Any:
        found = np.empty((), dtype.numpy)
        copies.copy_to_host(found.ctypes.data, address, found.nbytes, self.index)
        return found[()]

    def wait(self) -> None:
        copies.synchronize(self.index)


def fused_request(kernel: Kernel, properties: DeviceProperties) -> Request:
    """A fused kernel as a step on the device that is planned for."""
    words = [(r.node, r.offset * r.node.dtype.itemsize) for r in kernel.reads]
    words += [(node, offset * node.dtype.itemsize) for node, offset in kernel.writes]
    words += [(node, 0) for node in kernel.params]
    return lowered_request(lower(kernel.spec, properties), words, kernel=kernel)
