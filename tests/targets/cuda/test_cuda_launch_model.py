"""The geometry of launches in pure Python: limits of the device, widths of indices, every element covered exactly once."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from tensorsmith.core.dtypes import bfloat16, float32, float64, int64, uint8
from tensorsmith.kernels.canonical import Canonical, canonicalize
from tensorsmith.kernels.spec import KernelSpec
from tensorsmith.targets.cuda import pointwise, row_plan, transpose
from tensorsmith.targets.cuda.index_plan import magic
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties, Launch, Word
from tensorsmith.targets.cuda.lower import lower

sys.path.append(str(Path(__file__).parent))
import fused_specs as specs  # noqa: E402

DEVICES = [DeviceProperties(), DeviceProperties("sm_80", 108), DeviceProperties("sm_75", 40, threads=1024)]
BYTES = {"unsigned char": 1, "signed char": 1, "bool": 1, "unsigned short": 2, "short": 2, "int": 4, "unsigned int": 4,
         "float": 4, "double": 8, "long long": 8, "unsigned long long": 8}  # fmt: skip
MOST_BLOCKS = (2**31 - 1, 65535, 65535)


@st.composite
def shapes(draw, rank):
    return tuple(draw(st.lists(st.sampled_from([1, 2, 3, 8, 13, 32, 96, 100, 257, 1024]), min_size=rank, max_size=rank)))


@st.composite
def strided(draw, shape):
    """Strides of a permuted, broadcast or padded tensor of this shape."""
    order = draw(st.permutations(range(len(shape))))
    strides, size = [0] * len(shape), 1
    for axis in order:
        if draw(st.integers(0, 4)) == 0:
            continue  # broadcast
        strides[axis] = size
        size *= shape[axis]
        size += draw(st.sampled_from([0, 0, 0, 1, 4])) if shape[axis] > 1 else 0
    return tuple(strides)


DTYPES = st.sampled_from([float32, bfloat16, float64, int64, uint8])


@st.composite
def pointwise_specs(draw):
    shape = draw(shapes(draw(st.integers(1, 4))))
    return specs.multiply_add(shape, draw(DTYPES), *(draw(strided(shape)) for _ in range(3)))


@st.composite
def row_specs(draw):
    shape = draw(shapes(draw(st.integers(2, 4))))
    axis = draw(st.integers(0, len(shape) - 1))
    kind = draw(st.sampled_from(["softmax", "sum", "argmax", "gradient", "long"]))
    dtype = draw(st.sampled_from([float32, bfloat16]))
    if kind == "softmax":
        return specs.softmax(shape, axis, dtype, strides=draw(strided(shape)))
    if kind == "gradient":
        return specs.softmax_gradient(shape, axis, dtype)
    if kind == "long":
        return specs.softmax((draw(st.integers(1, 5)), draw(st.integers(30_000, 5_000_000))), draw(st.integers(0, 1)), dtype)
    return specs.reduction(kind, shape, axis, dtype)


def static_bytes(launch: Launch) -> int:
    """Shared memory that a kernel's text declares."""
    found = re.findall(r"__shared__ (?:alignas\(16\) )?([\w ]+) \w+\[(\d+)\];", launch.source)
    assert len(found) == launch.source.count("__shared__") - launch.source.count("extern __shared__")
    return sum(-(-BYTES[kind] * int(count) // 16) * 16 for kind, count in found)


def check_limits(spec: KernelSpec, device: DeviceProperties) -> None:
    lowered = lower(spec, device)
    assert all(size > 0 for size in lowered.scratch)
    for launch in lowered.launches:
        assert all(1 <= blocks <= most for blocks, most in zip(launch.grid, MOST_BLOCKS))
        if launch.name.endswith("_clear"):  # of counts in the last scratch buffer, a thread each
            assert launch.grid[0] * 256 * 4 >= lowered.scratch[-1] > (launch.grid[0] - 1) * 256 * 4
            continue
        threads = math.prod(launch.block)
        assert 32 <= threads <= 1024 and threads % 32 == 0  # shuffles count on whole warps
        bounds = re.search(rf"__launch_bounds__\({threads}(?:, (\d+))?\)", launch.source)
        assert bounds and int(bounds.group(1) or 1) * threads <= device.threads
        assert static_bytes(launch) <= 48 << 10 and (launch.shared_bytes == 0 or launch.together)
        if launch.together:  # all blocks at once
            blocks = int(bounds.group(1))
            assert math.prod(launch.grid) <= blocks * device.multiprocessors
            assert blocks * (launch.shared_bytes + static_bytes(launch) + 1024) <= device.shared_bytes_a_multiprocessor
        assert math.prod(launch.cluster) <= 8 and all(g % c == 0 for g, c in zip(launch.grid, launch.cluster))
        assert launch.cluster == (1, 1, 1) or device.capability >= (9, 0)
        given = [a.index for a in launch.arguments if isinstance(a, Word)]
        assert given == list(range(lowered.words + len(lowered.scratch)))
        assert sum(8 * len(a.words) if isinstance(a, Constant) else 8 for a in launch.arguments) <= 4096
        check_index_width(canonicalize(spec), launch)


def check_index_width(canonical: Canonical, launch: Launch) -> None:
    """Ints where every offset and number fits, and only there."""
    largest = 0
    for k, strides in enumerate(canonical.strides):
        reach = sum((n - 1) * abs(s) for n, s in zip(canonical.extents, strides))
        if canonical.reduce_extent:
            reach += (canonical.reduce_extent - 1) * abs(canonical.reduce_strides[k])
        largest = max(largest, reach)
    if "typedef int Index;" in launch.source:
        assert largest < 2**31 and math.prod(launch.grid[:1]) * math.prod(launch.block[:1]) < 2**32


@settings(max_examples=150, deadline=None)
@given(pointwise_specs(), st.sampled_from(DEVICES))
def test_limits_of_pointwise_kernels(spec, device):
    check_limits(spec, device)


@settings(max_examples=150, deadline=None)
@given(row_specs(), st.sampled_from(DEVICES))
def test_limits_of_rows(spec, device):
    check_limits(spec, device)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.architecture)
@pytest.mark.parametrize("spec", [
    specs.gelu((2**31 + 5,), float32), specs.multiply_add((70_000, 70_000), float32, (70_000, 1), (0, 1), (1, 70_000)),
    specs.softmax((2**20, 4096), 1, bfloat16), specs.softmax((4096, 2**20), 0, float32), specs.layer_norm(2**22, 768, bfloat16),
    specs.reduction("sum", (1, 2**33), 1, float32), specs.reduction("argmax", (2**16, 2**16), 0, float32),
    specs.transposed(2**16, 2**16, uint8),
    specs.multiply_add((1024,) * 4, float32, (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 1)),
], ids=lambda spec: f"{spec.name} {spec.domain}")  # fmt: skip
def test_more_than_an_int_counts(spec, device):
    check_limits(spec, device)
    launches = [launch for launch in lower(spec, device).launches if not launch.name.endswith("_clear")]
    assert all("typedef long long Index;" in launch.source for launch in launches)


# --------------------------------------------------------------------------------------------------------- coverage


@settings(max_examples=200, deadline=None)
@given(pointwise_specs(), st.sampled_from(DEVICES))
def test_every_point_is_computed_once(spec, device):
    canonical = canonicalize(spec)
    tile = pointwise.choose(canonical, device)
    points = math.prod(canonical.extents)
    assume(points < 10**6)
    assert len(canonical.extents) == 1 or canonical.extents[-1] % tile.width == 0  # packs stay in their row
    packs = np.arange(pointwise.grid(canonical, tile) * tile.block * tile.unroll)  # block, u, thread: each number once
    count = np.clip(points - packs * tile.width, 0, tile.width)
    assert count.sum() == points
    for k, strides in enumerate(canonical.strides):
        if canonical.structure.inner[k] == 1 and not canonical.structure.is_coordinate(k):
            assert all(stride % tile.width == 0 for stride in strides[:-1])  # as aligned as the first element


@settings(max_examples=200, deadline=None)
@given(row_specs(), st.sampled_from(DEVICES))
def test_every_element_of_a_row_is_read_once_in_a_pass(spec, device):
    canonical = canonicalize(spec)
    found = row_plan.plan(canonical, device)
    along = bool(canonical.structure.values_along)
    for tile in found.tiles:
        blocks = found.grid(tile, along)
        assert blocks[0] * tile.across >= found.points > (blocks[0] - 1) * tile.across
        width = tile.width if tile.inner else 1
        assert found.units * width == canonical.reduce_extent * canonical.slab_extent
        assert tile.lanes & (tile.lanes - 1) == 0 and (tile.lanes <= 32 or tile.across == 1 or not tile.inner)
        if tile is found.tiles[-1] and tile.stage is not None and not along:
            continue  # joins what the parts left, reads no element
        seen = np.zeros(found.units, np.int64)
        for part in range(found.parts):
            begin, end = part * found.chunk, min((part + 1) * found.chunk, found.units)
            assert begin < found.units or tile.resident
            base = np.arange(begin, end, tile.lanes * tile.unroll) if not tile.resident else np.array([begin])
            q = base[:, None] + np.arange(tile.lanes * tile.unroll)
            q = q[q < end]
            if tile.exact:
                assert len(q) == max(len(base), 1) * tile.lanes * tile.unroll
            np.add.at(seen, q, 1)
        assert (seen == 1).all()


@settings(max_examples=100, deadline=None)
@given(shapes(3), st.permutations(range(3)), st.sampled_from([float32, bfloat16, uint8, float64]))
def test_every_point_is_in_one_tile(shape, order, dtype):
    moved = tuple(specs.dense(*(shape[axis] for axis in order))[order.index(axis)] for axis in range(3))
    canonical = canonicalize(specs.multiply_add(shape, dtype, moved, specs.dense(*shape), (0, 0, 0)))
    axis = transpose.tile_axis(canonical)
    if axis is None:
        return
    turned = transpose.turned(canonical, axis)
    tile = transpose.choose(turned)
    assert tile is not None
    assert tile.packs * tile.width * transpose.BLOCK == tile.side**2
    *outer, along, inner = turned.extents
    covered = math.prod(outer) * math.ceil(along / tile.side) * math.ceil(inner / tile.side)
    assert transpose.grid(turned, tile) == covered


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1))
def test_division_by_multiplication(n, d):
    word = magic(d)
    multiplier, shift = word & 0xFFFFFFFF, word >> 32
    assert word < 2**63 and (((n * multiplier) >> 32) + n) >> shift == n // d
