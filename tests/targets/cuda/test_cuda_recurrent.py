"""Recurrent layers and their gradients on CUDA against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_compiles import compile_all

from emulator.run import run_lowered
from tensorsmith.core import dtypes
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.ir.recurrent import GATES, flat_size, results, states_of
from tensorsmith.targets.cuda.recurrent import RecurrentSpec, lower_recurrent, operand_names
from tensorsmith.targets.reference.recurrent import recurrent as reference

RUNS = {"padded": ((5, 9),), "packed": ((2, 9), (1, 4), (3, 1))}


@pytest.fixture(scope="module")
def emulated():
    import emulator

    emulator.activate()


def shapes_of(mode, backward, one_more, runs, hidden):
    rows, batch, gates = sum(n * count for n, count in runs), runs[0][1], GATES[mode]
    kept = (flat_size(results(mode, True, rows, batch, hidden)),)
    known = {"gates": (rows, gates * hidden), "w": (gates * hidden, hidden), "bias": (gates * hidden,), "grad": (rows, hidden),
             "kept": kept, "grad_kept": kept}  # fmt: skip
    return {name: known.get(name, (batch, hidden)) for name in operand_names(mode, backward, one_more)}


@pytest.mark.parametrize("mode", list(GATES))
def test_all_kernels_compile(mode):
    for backward in (False, True):
        for one_more in (False, True):
            shapes = shapes_of(mode, backward, one_more, RUNS["packed"], 8)
            operands = {name: Strided(shape, (shape[-1], 1)[-len(shape) :], 0) for name, shape in shapes.items()}
            for dtype in (dtypes.float32, dtypes.float64):
                more = {"grad_kept": one_more} if backward else {"bias": one_more, "keep": one_more}
                spec = RecurrentSpec(dtype, mode, backward, RUNS["packed"], False, 8, **more)
                lowered = lower_recurrent(spec, operands)
                assert len({launch.source for launch in lowered.launches}) == (3 if backward else 1)
                compile_all(lowered, ("sm_90a",))


@pytest.mark.parametrize("mode", list(GATES))
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("runs", list(RUNS.values()), ids=list(RUNS))
@pytest.mark.parametrize("dtype,reverse,one_more", [(dtypes.float32, False, False), (dtypes.float64, True, True)])
def test_against_the_reference(emulated, mode, backward, runs, dtype, reverse, one_more):
    rng = np.random.default_rng(17)
    hidden = 37
    shapes = shapes_of(mode, backward, one_more, runs, hidden)
    arrays = {name: rng.standard_normal(shape) * 0.3 for name, shape in shapes.items()}
    graph = Graph()
    if backward:  # what was kept is what a run of the layer kept
        forward = shapes_of(mode, False, False, runs, hidden)
        given = {name: arrays.get(name, rng.standard_normal(shape) * 0.3) for name, shape in forward.items()}
        nodes = [graph.input(shape, dtypes.float64) for shape in forward.values()]
        kept = graph.add(Primitive.RECURRENT, nodes, mode=mode, runs=runs, reverse=reverse, keep=True)
        arrays["kept"] = reference(kept, list(given.values()))
    nodes = [graph.input(shape, dtypes.float64) for shape in shapes.values()]
    op = Primitive.RECURRENT_GRADIENT if backward else Primitive.RECURRENT
    keep = one_more
    attrs = {"mode": mode, "runs": runs, "reverse": reverse} | ({} if backward else {"keep": keep})
    node = graph.add(op, nodes, **attrs)
    arrays = {name: array.astype(dtype.numpy) for name, array in arrays.items()}
    want = reference(node, [array.astype(np.float64) for array in arrays.values()])
    wide = {name: np.zeros((n.shape[0], n.shape[1] + 3), n.dtype) for name, n in arrays.items() if n.ndim == 2}
    for name, memory in wide.items():  # rows lie apart
        memory[:, : arrays[name].shape[1]] = arrays[name]
        arrays[name] = memory[:, : arrays[name].shape[1]]
    operands = {n: Strided(a.shape, tuple(s // a.itemsize for s in a.strides), 0) for n, a in arrays.items()}
    more = {"grad_kept": one_more} if backward else {"bias": one_more, "keep": keep}
    spec = RecurrentSpec(dtype, mode, backward, runs, reverse, hidden, **more)
    result = np.full(node.shape, np.nan, dtype.numpy)
    assert run_lowered(lower_recurrent(spec, operands), [*arrays.values(), result]) == 0
    tolerance = 2e-6 if dtype is dtypes.float32 else 1e-13
    np.testing.assert_allclose(result, want, rtol=tolerance, atol=tolerance * 10)


def test_states_of_every_mode_have_their_operands():
    for mode in GATES:
        assert len(operand_names(mode, False, False)) == 2 + states_of(mode)
        assert len(operand_names(mode, True, True)) == 4 + 2 * states_of(mode)
