"""Attention's kernels on the emulated device against the formulas in float64.

As a program: `attention_values.py NAME` runs a case of HOPPER, for which the device has to be emulated as one of sm_90a from
the start of the process.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from emulator.run import emulated_properties, run_lowered  # noqa: E402
from tensorsmith.core.dtypes import DType, bfloat16, bool_, float16, float32, float64, int64
from tensorsmith.core.views import Strided
from tensorsmith.ir.attention import PARTS, part_weights
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.targets.cuda.attention import lower_attention
from tensorsmith.targets.cuda.attention_spec import BACKWARD, FORWARD, AttentionSpec
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.reference.interpret import interpret

TOLERANCE = {float64: 1e-12, float32: 3e-6, float16: 3e-3, bfloat16: 2e-2}


def strided(array: np.ndarray) -> Strided:
    """Where the elements of an array lie, an axis of one element anywhere."""
    strides = tuple(0 if n == 1 else s // array.itemsize for n, s in zip(array.shape, array.strides))
    return Strided(array.shape, strides, 0)


def numbers_of(flat: np.ndarray, dtype: DType, rows: int) -> np.ndarray:
    """Results in float64, the parts of `rows` log-sum-exps added up: which parts are taken is open."""
    flat = flat.astype(np.float64)
    if not dtype.is_half or not rows:
        return flat
    out, parts = np.split(flat, [len(flat) - PARTS * rows])
    return np.concatenate([out, part_weights(dtype) @ parts.reshape(PARTS, rows)])


def agrees(
    dtype: DType, backward: bool, causal: bool = False, lead: tuple[int, int] = (1, 2), L: int = 40, S: int = 50, E: int = 24,
    F: int = 24, mask: DType | None = None, dropout: float = 0.0, beside: bool = False, scale: float | None = None,
    turned: bool = False, hidden_row: bool = False, hopper: bool = False,
) -> None:  # fmt: skip
    """Run the kernel on random operands, keys and values `turned` or not, and compare all its results."""
    generator = np.random.default_rng(0)
    numbers = float64 if dtype is float64 else float32
    scale = 1 / math.sqrt(E) if scale is None else scale
    shapes = {"q": (L, E), "k": (S, E), "v": (S, F), "g": (L, F), "lse": (L,), "delta": (L,)}
    names = BACKWARD if backward else FORWARD
    graph, given = Graph(), {}
    for name in names:
        kind = numbers if name in ("lse", "delta") else dtype
        drawn = generator.standard_normal((*lead, *shapes[name])).astype(kind.numpy)
        if turned and name in "kv":
            drawn = np.ascontiguousarray(drawn.swapaxes(-1, -2)).swapaxes(-1, -2)
        given[name] = drawn
    if mask is bool_:
        given["mask"] = generator.random((*lead, L, S)) < 0.7
        given["mask"][..., 0, :] &= not hidden_row
    elif mask is not None:
        given["mask"] = generator.standard_normal((*lead, L, S)).astype(numbers.numpy)
        given["mask"][..., 3] = -np.inf
    if dropout:
        given["streams"] = generator.integers(0, 1 << 40, (*lead, 2)) // 4 * 4
    if backward:
        given["lse"] += 4  # weights as they are, about
    dtypes = {"lse": numbers, "delta": numbers, "mask": mask, "streams": int64}
    nodes = [graph.input(array.shape, dtypes.get(name, dtype)) for name, array in given.items()]
    op = Primitive.ATTENTION_GRADIENT if backward else Primitive.ATTENTION
    graph.outputs = [graph.add(op, nodes, causal=causal, scale=scale, beside=beside, dropout=dropout)]
    (want,) = interpret(graph, list(given.values()))
    seen = tuple(
        (name, strided(array[..., None] if name in ("lse", "delta", "streams") else array)) for name, array in given.items()
    )
    spec = AttentionSpec(dtype, backward, causal, scale, *lead, L, S, E, F, seen, mask, dropout, beside, graph.outputs[0].dtype)
    got = np.full(want.shape, np.nan, want.dtype)
    # What is not for Hopper runs on its cards too.
    properties = DeviceProperties() if hopper else replace(emulated_properties(), architecture="sm_80")
    lowered = lower_attention(spec, properties)
    assert any("hopper" in launch.name for launch in lowered.launches) == hopper
    assert run_lowered(lowered, [*given.values(), got]) == 0
    a, b = (numbers_of(each, dtype, 0 if backward else math.prod(lead) * L) for each in (got, want))
    assert np.abs(a - b).max() <= TOLERANCE[dtype] * np.abs(b).max()


# Cases that run on sm_90a, forward and backward.
HOPPER = {
    "128 columns": {"dtype": bfloat16, "L": 200, "S": 270, "E": 128, "F": 128},
    "128 columns, causal": {"dtype": bfloat16, "L": 200, "S": 270, "E": 128, "F": 128, "causal": True},
    "64 columns": {"dtype": float16, "L": 300, "S": 200, "E": 64, "F": 64, "beside": True},
    "64 columns, causal": {"dtype": float16, "L": 300, "S": 200, "E": 64, "F": 64, "causal": True},
    "bool mask and dropout": {
        "dtype": bfloat16, "L": 70, "S": 130, "E": 80, "F": 24, "mask": bool_, "dropout": 0.3, "beside": True
    },
    "mask of numbers": {"dtype": float16, "L": 150, "S": 140, "E": 64, "F": 64, "mask": float32, "scale": -0.1, "causal": True},
    "dropout": {"dtype": float16, "L": 70, "S": 200, "E": 40, "F": 128, "dropout": 0.5},
    "256 columns": {"dtype": bfloat16, "lead": (1, 1), "L": 70, "S": 130, "E": 256, "F": 192, "causal": True},
    "large scores": {"dtype": float16, "L": 130, "S": 900, "E": 64, "F": 40, "scale": 2.0, "causal": True},
    "hidden row": {"dtype": bfloat16, "mask": bool_, "hidden_row": True},
}  # fmt: skip
# Their log-sum-exps are far from those that are drawn for the backward pass.
FORWARD_ONLY = ("large scores", "hidden row")


if __name__ == "__main__":
    import emulator

    emulator.activate()
    case = HOPPER[sys.argv[1]]
    for backward in (False, True):
        if not (backward and sys.argv[1] in FORWARD_ONLY):
            agrees(backward=backward, hopper=True, **case)
