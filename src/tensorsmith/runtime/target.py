"""Target: what planning asks of the machine that a plan is for, and where its memory comes from.

`target_of(device)` gives the CPU's, or that of a CUDA device (`cuda_target.py`). A plan is made the same way for both: the same
fusion decides what becomes memory; the target says how a group becomes launches, and which graphs its steps take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType
from tensorsmith.core.views import Strided
from tensorsmith.ir.control import is_control
from tensorsmith.ir.graph import Graph, touches_complex
from tensorsmith.kernels.assemble import Kernel
from tensorsmith.passes.convolutions import lower_convolutions
from tensorsmith.passes.epilogues import reshape_before_bias
from tensorsmith.passes.fusion import Fusion, Places, Repeats
from tensorsmith.passes.lasting import pack_products
from tensorsmith.passes.pooling import lower_pooling
from tensorsmith.passes.products import split_products
from tensorsmith.passes.rows_apart import rows_apart
from tensorsmith.passes.walk import Group
from tensorsmith.runtime.arena import ALIGN
from tensorsmith.runtime.complex_steps import numpy_step
from tensorsmith.runtime.control_steps import control_steps
from tensorsmith.runtime.requests import Request, array_at, fused_step, kernel_request
from tensorsmith.runtime.steps import ANCHOR_STEPS
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu.memory import allocate, free_list

if TYPE_CHECKING:
    from tensorsmith.runtime.plan import Plan


class Target:
    """The CPU, and what others replace.

    device:       where the buffers of a plan are
    align:        bytes to whose multiples temporaries are placed
    checks_first: whether steps that may fail can be asked before anything is written; where launches are not waited for,
        an error is seen after what follows has run
    places:       which values in memory lie otherwise than row after row
    halves:       whether products of float16 and bfloat16 compute something of their results before they store them
    splits_reductions: whether a long reduction is several steps; where kernels divide it themselves, it is not
    repeats:      what kernels compute again rather than read, beside a few simple operations
    keeps:        whether values of inputs that seldom change are kept from run to run
    """

    device: Device = CPU
    align = ALIGN
    checks_first = True
    keeps = True
    splits_reductions = True
    halves = False
    places: Places = staticmethod(rows_apart)
    repeats: Repeats | None = None

    @functools.cached_property
    def library(self) -> frozenset[Fn]:
        """Scalar functions that kernels do not compute in place."""
        from tensorsmith.targets.cpu.scalars import LIBRARY_CALLS

        return LIBRARY_CALLS

    def lowered_graph(
        self, graph: Graph, apart: Collection[int], lasting: Collection[int], stamped: Collection[int], fusing: bool
    ) -> Graph:
        """The graph in the primitives that this target's steps take; apart: inputs whose rows do not lie as rows."""
        graph = split_products(lower_convolutions(lower_pooling(graph, apart), lasting, stamped))
        return pack_products(reshape_before_bias(graph) if fusing else graph, stamped)

    def groups(self, fusion: Fusion) -> list[Group]:
        """The groups of a fusion, some of them joined where this target has a step for both."""
        return fusion.groups

    def requests(self, fusion: Fusion, group: Group) -> list[Request]:
        """The steps of a group before their buffers have addresses."""
        if group.anchor is None:
            return [fused_step(fusion, group)]
        if is_control(group.anchor) and not touches_complex(group.anchor):
            return control_steps(fusion, group)
        if fusion.is_numpy_step(group.anchor):
            return [numpy_step(fusion, group)]
        return ANCHOR_STEPS[group.anchor.op](fusion, group)

    def kernel_request(self, kernel: Kernel) -> Request:
        """A fused kernel as a step."""
        return kernel_request(kernel)

    def prepare(self, requests: Sequence[Request]) -> None:
        """Do for many steps together what they would do one after the other when they are made."""

    def finish(self, plan: Plan, accesses: Callable[[], Sequence[Any]]) -> None:
        """Prepare how a plan that was made is run; accesses: gives what each of its steps reads and writes."""

    def allocate(self, nbytes: int) -> int:
        """The address of new memory."""
        return allocate(nbytes)

    def free_list(self, nbytes: int) -> list[int]:
        """The list that takes such an address back."""
        return free_list(nbytes)

    def element(self, address: int, dtype: DType) -> Any:
        """The first element at an address, once everything launched so far that writes it is done."""
        return array_at(address, Strided((), ()), dtype)[()]

    def wait(self) -> None:
        """Return when everything launched so far is done."""


@functools.cache
def target_of(device: Device) -> Target:
    """The target of a device's plans. CudaUnavailableError where that is missing."""
    if device is CPU:
        return Target()
    from tensorsmith.runtime.cuda_target import CudaTarget

    return CudaTarget(device)
