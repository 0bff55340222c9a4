"""The tangents of all operators of the package: against their gradients, and a rule of an operator's own against its graph."""

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.eager.operator import operators
from tensorsmith.ir.jvp import jvp
from tensorsmith.ops.creation import array_of
from tensorsmith.targets.reference import interpret

sys.path.append(str(Path(__file__).parent))
import harness  # noqa: E402

NAMES = harness.names()
# A gradient that is no transpose on purpose: embedding's padding row moves, but does not learn; the weights of a loss
# move it, but have no gradient; random draws have none.
OWN = {
    "bernoulli",
    "binary_cross_entropy",
    "cauchy",
    "embedding",
    "exponential",
    "geometric",
    "log_normal",
    "normal",
    "uniform",
}
# Their NumPy routines have no rule, or one for sums and products only: the gradient of the operator itself gives the tangent.
UNRULED = {"embedding_bag_max", "frexp", "scatter_reduce", "segment_reduce"}


def _direction(random, x):
    """A tangent of a float64 or complex128 operand."""
    if not isinstance(x, np.ndarray) or x.dtype not in (np.float64, np.complex128):
        return None
    moved = random.standard_normal(x.shape)
    return moved + 1j * random.standard_normal(x.shape) if x.dtype == np.complex128 else moved


def _product(a, b):
    """The inner product over the real numbers: of complex values, the parts'."""
    return float((np.conj(a) * b).real.sum())


def _call(operator, sample):
    """Program, operands, results (arrays), and a tangent for each float64 operand."""
    random = np.random.default_rng(zlib.crc32(operator.name.encode()))
    given = harness.arrays(sample, ts.float64, harness.BASIC, random)
    operands = [harness.as_tensor(x) if isinstance(x, np.ndarray) else x for x in given]
    program = harness.program_of(operator, operands, sample.attrs)
    tangents = [None if i in sample.fixed else _direction(random, x) for i, x in enumerate(given)]
    return program, given, interpret(program.graph, given), tangents


def _saved(saved, given, outputs):
    return [given[s.number] if s.kind == "input" else outputs[s.number] for s in saved]


def _run(operation, arrays):
    """The operation by kernels, on arrays."""
    found = operation(*[harness.as_tensor(np.array(x)) if isinstance(x, np.ndarray | np.generic) else x for x in arrays])
    return [array_of(x).copy() for x in (found if isinstance(found, tuple | list) else [found])]


@pytest.mark.parametrize("name", [name for name in NAMES if not operators()[name].derived_tangent])
def test_tangent_is_the_transpose_of_the_gradient(name):
    operator = operators()[name]
    for sample in harness.samples(operator):
        program, given, outputs, tangents = _call(operator, sample)
        moves = tuple(t is not None for t in tangents)
        differentiable = tuple(node.dtype.kind in "fc" for node in program.graph.outputs)
        if not any(moves) or not any(differentiable):
            continue
        random = np.random.default_rng(2)
        cotangents = [_direction(random, y.astype(np.promote_types(y.dtype, np.float64))) if d else None
                      for y, d in zip(outputs, differentiable)]  # fmt: skip
        cotangents = [None if c is None else c.astype(y.dtype) for c, y in zip(cotangents, outputs)]
        backward = program.backward(moves, differentiable)
        grads = [cotangents[i] for i in backward.grad_outputs]
        gradients = _run(backward, _saved(backward.saved, given, outputs) + grads) if backward.computes else []
        expected = sum(_product(tangents[i], gradients[p]) for i, p in enumerate(backward.results) if p is not None)
        for from_outputs in (True, False):
            forward = program.forward(moves, from_outputs)
            assert from_outputs or all(s.kind == "input" for s in forward.saved)
            pushed = [tangents[i] for i in forward.tangents]
            found = _run(forward, _saved(forward.saved, given, outputs) + pushed) if forward.computes else []
            total = 0.0
            for cotangent, output, place in zip(cotangents, outputs, forward.results):
                if place is not None:
                    assert found[place].shape == output.shape and found[place].dtype == output.dtype
                    total += _product(cotangent, found[place])
            single = any(node.dtype is ts.float32 for node in program.graph.outputs)
            np.testing.assert_allclose(total, expected, rtol=1e-5 if single else 1e-8, atol=1e-6 if single else 1e-8)


@pytest.mark.parametrize("name", [n for n in NAMES if operators()[n].vjp is not None and n not in OWN | UNRULED])
def test_tangent_of_an_own_rule_is_that_of_the_graph(name):
    operator = operators()[name]
    for sample in harness.samples(operator):
        program, given, outputs, tangents = _call(operator, sample)
        moves = tuple(t is not None for t in tangents)
        own, derived = program.forward(moves).forward, jvp(program.graph, moves)
        found = [
            interpret(which.graph, _saved(which.saved, given, outputs) + [tangents[i] for i in which.tangents])
            for which in (own, derived)
        ]
        for a, b in zip(own.results, derived.results, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                np.testing.assert_allclose(found[0][a], found[1][b], rtol=1e-9, atol=1e-9)


def test_embedding_of_a_padding_row():
    weight, tangent = ts.ones(3, 2), ts.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    operator = operators()["embedding"]
    index = ts.tensor([0, 2])
    forward = operator.program([index.layout, weight.layout], {"padding": 0, "by_frequency": False}).forward((False, True))
    assert forward(index, tangent).tolist() == [[1.0, 2.0], [5.0, 6.0]]
