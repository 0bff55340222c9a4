"""What the kernels of attention compute, on the emulated device, against the formulas in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from emulator.run import emulated_properties, run_lowered
from tensorsmith.core.dtypes import DType, bfloat16, bool_, float16, float32, float64, int64
from tensorsmith.core.views import Strided
from tensorsmith.ir.attention import PARTS, part_weights
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.targets.cuda.attention import lower_attention
from tensorsmith.targets.cuda.attention_spec import BACKWARD, FORWARD, AttentionSpec
from tensorsmith.targets.reference.interpret import interpret

TOLERANCE = {float64: 1e-12, float32: 3e-6, float16: 3e-3, bfloat16: 2e-2}


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


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
    turned: bool = False, hidden_row: bool = False, aligned: bool = False,
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
    spec = AttentionSpec(
        dtype, backward, causal, scale, *lead, L, S, E, F, seen, mask, dropout, beside, graph.outputs[0].dtype, aligned
    )
    got = np.full(want.shape, np.nan, want.dtype)
    assert run_lowered(lower_attention(spec, emulated_properties()), [*given.values(), got]) == 0
    a, b = (numbers_of(each, dtype, 0 if backward else math.prod(lead) * L) for each in (got, want))
    assert np.abs(a - b).max() <= TOLERANCE[dtype] * np.abs(b).max()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16], ids=lambda dtype: dtype.name)
def test_every_dtype(dtype: DType, causal: bool, backward: bool) -> None:
    agrees(dtype, backward, causal, L=70)


@pytest.mark.parametrize("backward", [False, True])
def test_masks_and_dropout(backward: bool) -> None:
    agrees(float32, backward, mask=bool_, beside=True)
    agrees(float32, backward, mask=float32, dropout=0.3, S=130, causal=True)
    agrees(bfloat16, backward, mask=bool_, dropout=0.5, beside=True)
    agrees(float64, backward, mask=float64, dropout=0.1)


def test_a_row_that_sees_nothing_is_zero() -> None:
    agrees(float32, False, mask=bool_, hidden_row=True)
    agrees(float16, False, mask=bool_, hidden_row=True)


@pytest.mark.parametrize("backward", [False, True])
def test_sizes(backward: bool) -> None:
    agrees(float32, backward, L=1, S=1, E=1, F=1)
    agrees(float32, backward, L=3, S=150, E=70, F=9)
    agrees(float32, backward, L=65, S=2, E=9, F=200, lead=(2, 1))
    agrees(float64, backward, L=33, S=65, E=70, F=100, causal=True)


@pytest.mark.parametrize("backward", [False, True])
def test_columns_far_apart_and_negative_scales(backward: bool) -> None:
    agrees(float32, backward, turned=True, scale=-0.3)
    agrees(bfloat16, backward, turned=True, scale=0.0)
