"""What a CUDA device can do at most, and how long the steps of a plan take there.

Bandwidth is that of our own kernel for x + y over three arrays that no cache holds, 12 bytes an element; the peak is that of
independent float32 multiply-adds in registers on all multiprocessors (tensor cores do more). Times are the device's own,
between events around a step that is launched some times in a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.device import Device
from tensorsmith.core.dtypes import float32
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Graph
from tensorsmith.runtime.plan import Plan, build_plan
from tensorsmith.runtime.requests import KernelStep
from tensorsmith.runtime.roof import Roof
from tensorsmith.runtime.target import target_of
from tensorsmith.targets.cpu import launch as launching
from tensorsmith.targets.cuda import copies, devices, launcher
from tensorsmith.targets.cuda.kernel import Launch, Lowered, Word
from tensorsmith.targets.cuda.streams import Event

ELEMENTS = 32 << 20
CHAINS = 8
ROUNDS = 4096  # of the loop of multiply-adds
IN_A_ROW = 5

_roofs: dict[Device, Roof] = {}


def device_roof(device: Device) -> Roof:
    """The roof of a device: measured once in a process."""
    found = _roofs.get(device)
    if found is None:
        assert device.index is not None
        name = f"{devices.name(device.index)} ({device})"
        found = _roofs[device] = Roof(_bandwidth(device), _peak(device.index), 0, (), name)
    return found


def step_seconds(plan: Plan, words: Sequence[int | float]) -> list[float]:
    """Seconds of every step of a plan on the device, launched over what one run left in memory."""
    target = plan.target
    workspace = target.allocate(max(plan.workspace_bytes, 1))
    whole = [*words, workspace]
    try:
        return [_seconds(plan, number, whole) for number in range(len(plan.steps))]
    finally:
        target.wait()
        target.free_list(max(plan.workspace_bytes, 1)).append(workspace)


def _seconds(plan: Plan, number: int, words: Sequence[int | float]) -> float:
    step = plan.steps[number]
    if not isinstance(step, KernelStep):
        return timed(lambda: step.run(words), 1)
    given = [words[w] + o if o else words[w] for w, o in step.sources]

    def run() -> None:
        code = launching.launch(step.recipe.address, *given)
        if code is not None:
            plan.fail(number, code, words)

    return timed(run, IN_A_ROW)


def timed(run: Callable[[], Any], count: int) -> float:
    """Seconds that the device takes for one of some runs in a row, the first one left out."""
    run()
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    start.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def _bandwidth(device: Device) -> float:
    graph = Graph()
    x, y = (graph.input((ELEMENTS,), float32) for _ in range(2))
    graph.outputs = (x + y,)
    plan = build_plan(graph, [Strided((ELEMENTS,), (1,))] * 2, device=device)
    target = target_of(device)
    addresses = [target.allocate(4 * ELEMENTS) for _ in range(3)]
    assert device.index is not None
    for address in addresses:
        copies.fill_zero(address, 4 * ELEMENTS, device.index)
    try:
        return 12 * ELEMENTS / min(timed(lambda: plan.run(addresses), IN_A_ROW) for _ in range(3))
    finally:
        target.wait()
        target.free_list(4 * ELEMENTS).extend(addresses)


_PEAK = f"""
extern "C" __global__ void __launch_bounds__(256) roof(float* out) {{
    float a[{CHAINS}];
    const float x = 0.5f + 1e-9f * threadIdx.x;
    for (int k = 0; k < {CHAINS}; k++) a[k] = x + k;
    for (int i = 0; i < {ROUNDS}; i++) {{
        #pragma unroll
        for (int k = 0; k < {CHAINS}; k++) a[k] = __fmaf_rn(a[k], x, x);
    }}
    float total = 0.0f;
    for (int k = 0; k < {CHAINS}; k++) total += a[k];
    if (total == 12345.0f) *out = total;  // never: it keeps the loop
}}
"""


def _peak(index: int) -> float:
    blocks = 8 * devices.properties(index).multiprocessors
    launch = Launch(_PEAK, "roof", (blocks, 1, 1), (256, 1, 1), (Word(0),))
    recipe = launcher.recipe(Lowered("roof", (launch,), 1), index)
    target = target_of(Device("cuda", index))
    address = target.allocate(4)

    def run() -> None:
        code = launching.launch(recipe.address, address)
        if code is not None:
            raise launcher.failed(recipe, code)

    best = math.inf
    for _ in range(3):
        best = min(best, timed(run, 2))
    target.free_list(4).append(address)
    return 2.0 * CHAINS * ROUNDS * 256 * blocks / best
