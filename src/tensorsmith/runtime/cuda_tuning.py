"""Finding the fastest kernel of a product by measuring it: `ts.backends.cuda.matmul.tune`.

Candidates run in turn on memory of their own, several rounds, so that a clock that changes meets all of them; the one with
the least median time is kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack

from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.targets.cpu import launch as launching
from tensorsmith.targets.cpu.recipe import Recipe
from tensorsmith.targets.cuda import devices, driver, gemm_tuning, launcher, memory, modules, streams
from tensorsmith.targets.cuda.gemm import lower_gemm
from tensorsmith.targets.cuda.gemm_choice import Choice, candidates, is_worth_copying
from tensorsmith.targets.cuda.kernel import DeviceProperties, Lowered

ROUNDS = 5
LEAST_MILLISECONDS = 0.5  # of a measurement
MOST_LAUNCHES = 200


def tuned_choice(spec: GemmSpec, properties: DeviceProperties, index: int) -> Choice | None:
    """The fastest choice for a product, measured now if it is not known.

    None, for what the table says, where there is nothing to choose and while a stream is captured into a graph.
    """
    if spec.results == 0 or is_worth_copying(spec, properties):
        return None
    key = gemm_tuning.key_of(spec, devices.name(index))
    found = gemm_tuning.known(key)
    if found is None:
        capturing = driver.call("cuStreamIsCapturing", streams.current_stream(index).cuda_stream)
        if capturing != driver.bindings().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
            return None
        found = _fastest(spec, properties, index)
        gemm_tuning.keep(key, found)
    return found


def _fastest(spec: GemmSpec, properties: DeviceProperties, index: int) -> Choice:
    choices = candidates(spec, properties)
    lowered = [lower_gemm(spec, properties, choice) for choice in choices]
    modules.compile_many({each.source: each.name for one in lowered for each in one.launches}.items(), properties.architecture)
    with ExitStack() as stack:
        operands = [_block(stack, nbytes, index) for nbytes in operand_bytes(spec)]
        runs = []
        for one in lowered:
            words = [*operands, *(_block(stack, nbytes, index) for nbytes in one.scratch)]
            runs.append((launcher.recipe(one, index), words))
        times = _times(runs, lowered, index)
    return min(zip(choices, times), key=lambda each: each[1])[0]


def operand_bytes(spec: GemmSpec) -> list[int]:
    """Bytes that a product reaches from the address of every word."""
    extents = [(spec.M, spec.K), (spec.K, spec.N), (spec.M, spec.N), *[(spec.M, spec.N)] * len(spec.beside)]
    places = (spec.a, spec.b, spec.c, *spec.beside)
    return [
        (1 + sum((n - 1) * stride for n, stride in zip((*spec.batch, *shape), strides))) * spec.dtype.itemsize
        for shape, strides in zip(extents, places)
    ]


def _block(stack: ExitStack, nbytes: int, index: int) -> int:
    """Device memory until the stack ends."""
    address = memory.allocate(nbytes, index)
    stack.callback(memory.free_list(nbytes, index).append, address)
    return address


def _times(runs: Sequence[tuple[Recipe, list[int]]], lowered: Sequence[Lowered], index: int) -> list[float]:
    """Median milliseconds of every candidate."""
    counts = []
    for recipe, words in runs:
        _measured(recipe, words, 1, index)
        once = max(_measured(recipe, words, 1, index), 1e-3)
        counts.append(max(1, min(MOST_LAUNCHES, int(LEAST_MILLISECONDS / once))))
    rounds = [[_measured(*run, count, index) for run, count in zip(runs, counts)] for _ in range(ROUNDS)]
    return [statistics.median(each) for each in zip(*rounds)]


def _measured(recipe: Recipe, words: list[int], count: int, index: int) -> float:
    """Milliseconds of a launch, of `count` one after the other."""
    start, end = streams.Event(enable_timing=True), streams.Event(enable_timing=True)
    stream = streams.current_stream(index)
    start.record(stream)
    for _ in range(count):
        code = launching.launch(recipe.address, *words)
        if code is not None:
            raise launcher.failed(recipe, code)
    end.record(stream)
    end.synchronize()
    return start.elapsed_time(end) / count
