"""The verifier finds hand-broken graphs and names the node."""

import pytest

from tensorsmith.core.dtypes import float32, float64, int64
from tensorsmith.ir import build as b
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.ir.verify import VerificationError, verify
from tensorsmith.ir.vjp import vjp
from tensorsmith.scalar import functions as f


def example():
    graph = Graph()
    x, scalar = graph.input((2, 3), float32), graph.input((), float32, param=True)
    y = f.exp(x) * scalar + 1.0
    graph.outputs = (y, b.reduce(y, "argmax", (1,)), b.reshape(graph.iota(6), (2, 3)))
    return graph


def test_good_graphs_pass():
    graph = example()
    verify(graph)
    verify(vjp(graph, (True, False)).graph)


def broken(graph, node, **changes):
    """The graph with one node's fields overwritten in place."""
    for key, value in changes.items():
        setattr(node, key, value)
    return graph


def find(graph, op):
    return next(node for node in graph if node.op is op)


def test_wrong_shape_and_dtype():
    graph = example()
    exp = find(graph, Primitive.MAP)
    with pytest.raises(VerificationError, match=rf"node %{exp.index}: .*exp.* should be float32\[2, 3\]"):
        verify(broken(graph, exp, shape=(3, 2)))
    graph = example()
    reduced = find(graph, Primitive.REDUCE)
    with pytest.raises(VerificationError, match="argmax.* should be int64"):
        verify(broken(graph, reduced, dtype=float64))


def test_rule_refuses():
    graph = example()
    multiply = next(node for node in graph if node.op is Primitive.MAP and node.attrs["fn"] is f.Fn.MUL)
    with pytest.raises(VerificationError, match="mul.* is refused by the rule of its primitive: .*shapes"):
        verify(broken(graph, multiply, inputs=(multiply.inputs[0], graph.inputs[1])))


def test_order():
    graph = example()
    exp, last = find(graph, Primitive.MAP), graph.outputs[0]
    with pytest.raises(VerificationError, match=rf"node %{exp.index}: .* comes before its operand %{last.index}"):
        verify(broken(graph, exp, inputs=(last,)))
    graph = example()
    graph.nodes[2], graph.nodes[3] = graph.nodes[3], graph.nodes[2]
    with pytest.raises(VerificationError, match="node %3: .* is at position 2"):
        verify(graph)


def test_foreign_operands_and_outputs():
    graph, other = example(), example()
    exp = find(graph, Primitive.MAP)
    with pytest.raises(VerificationError, match=r"exp.* has operand %0, which is not in the graph"):
        verify(broken(graph, exp, inputs=(other.inputs[0],)))
    graph = example()
    graph.outputs = (other.outputs[0],)
    with pytest.raises(VerificationError, match="is output 0 but not in the graph"):
        verify(graph)
    graph = example()
    find(graph, Primitive.MAP).graph = other
    with pytest.raises(VerificationError, match="exp.* belongs to another graph"):
        verify(graph)


def test_missing_interning():
    graph = example()
    exp = find(graph, Primitive.MAP)
    twin = Node(graph, len(graph.nodes), exp.op, exp.inputs, dict(exp.attrs), exp.shape, exp.dtype)
    graph.nodes.append(twin)
    with pytest.raises(VerificationError, match=rf"node %{twin.index}: .*is the same as %{exp.index}"):
        verify(graph)


def test_inputs_and_outputs_missing():
    graph = example()
    graph.outputs = ()
    with pytest.raises(VerificationError, match="no output"):
        verify(graph)
    graph = example()
    graph.inputs.pop()
    with pytest.raises(VerificationError, match="node %1: .* is missing among the graph's inputs"):
        verify(graph)
    graph = example()
    graph.inputs.reverse()
    with pytest.raises(VerificationError, match="is listed as input 0"):
        verify(graph)
    graph = example()
    with pytest.raises(VerificationError, match="run-time scalar with axes"):
        verify(broken(graph, graph.inputs[1], shape=(1,)))


def test_constants_differ_by_bits():
    graph = Graph()
    zero, minus_zero = graph.constant(0.0, float32), graph.constant(-0.0, float32)
    assert zero is not minus_zero and graph.constant(float("nan"), float32) is graph.constant(float("nan"), float32)
    graph.outputs = (zero, minus_zero, graph.constant(0, int64))
    verify(graph)
