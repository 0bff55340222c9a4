"""Expressions: interning, constants by bits, evaluation, differentiation without leaks, text, copies."""

import copy
import gc
import math
import pickle
import struct

import pytest
from hypothesis import given, strategies as st

from tensorsmith import scalar
from tensorsmith.scalar import constant, derivative, evaluate, expression, variable

X, Y = variable(0), variable(1)


def test_equal_structure_is_the_same_object():
    assert scalar.exp(X) * Y + 1 is scalar.exp(variable(0)) * variable(1) + 1
    assert (X + Y) is not (Y + X)
    assert copy.deepcopy(X + Y) is X + Y and copy.copy(X) is X
    assert pickle.loads(pickle.dumps(scalar.where(X > 1, X * 2.0, -0.0))) is scalar.where(X > 1, X * 2.0, -0.0)


def test_constants_are_told_apart_by_type_and_bits():
    other_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    values = [True, 1, 1.0, False, 0, 0.0, -0.0, math.nan, other_nan, math.inf]
    assert len({id(node) for node in [constant(value) for value in values]}) == len(values)
    assert constant(math.nan) is constant(math.nan)
    with pytest.raises(TypeError, match="expected bool, int or float, got str"):
        constant("1")


def test_nodes_die_when_nobody_holds_them():
    gc.collect()
    before = len(expression._interned)
    node = scalar.exp(X * 123.456)
    assert len(expression._interned) == before + 3
    del node
    gc.collect()
    assert len(expression._interned) == before


def test_an_expression_is_immutable_and_has_no_truth_value():
    with pytest.raises(AttributeError, match="immutable"):
        X.index = 3
    with pytest.raises(TypeError, match="no truth value"):
        bool(X > 0)
    with pytest.raises(TypeError, match="made by variable"):
        expression.Expr()


def test_one_hundred_thousand_nodes_without_recursion():
    node = X
    for _ in range(100_000):
        node = node * 1.0 + Y
    assert evaluate(node, [1.0, 0.5]) == 50_001.0
    assert evaluate(derivative(node, 1), [1.0, 0.5]) == 100_000.0
    assert len(node.__reduce__()[1][0]) == 200_003
    del node


def test_missing_arguments_are_named():
    with pytest.raises(IndexError, match=r"uses input 1, but got 1 argument"):
        evaluate(X + Y, [1.0])
    assert expression.arity(X + Y) == 2 and expression.arity(constant(1.0)) == 0


def test_the_nan_of_the_side_not_taken_never_leaks():
    safe_log = scalar.where(X > 0, scalar.log(X), 0.0)
    assert evaluate(derivative(safe_log, 0), [-1.0]) == 0.0
    assert evaluate(derivative(safe_log, 0), [0.0]) == 0.0
    root = scalar.where(X > 0, scalar.sqrt(X), X)
    once = derivative(root, 0)
    assert evaluate(once, [0.0]) == 1.0 and evaluate(derivative(once, 0), [0.0]) == 0.0
    nested = scalar.where(X > 0, scalar.where(X > 1, scalar.sqrt(X - 1), X), scalar.log(-X))
    assert evaluate(derivative(nested, 0), [0.5]) == 1.0


def test_simplifications_keep_float_results():
    assert derivative(X * 3.0 + 2.0, 0) is constant(3.0)
    assert derivative(X * Y, 0) is Y
    assert derivative(X, 1) is constant(0.0)
    assert derivative(scalar.floor(X), 0) is constant(0.0)
    assert str(derivative(X**2, 0)) == "2 * x"
    # 0 * y is not dropped: y may be inf or NaN.
    assert math.isnan(evaluate(derivative(X * (Y * 0.0), 0), [1.0, math.inf]))


def test_printing():
    assert str((X + Y) * 2 - -X) == "(x + y) * 2 - -x"
    assert str(X - (Y - 1)) == "x - (y - 1)" and str((X - Y) - 1) == "x - y - 1"
    assert str((X**Y) ** 2) == "(x ** y) ** 2" and str((-X) ** 2) == "(-x) ** 2" and str(-(X**2)) == "-x ** 2"
    assert str((X < Y) & (X > 1)) == "(x < y) & (x > 1)"
    assert str(X * -1.0) == "x * -1.0" and str(constant(math.inf) + X) == "float('inf') + x"
    assert str(variable(5)) == "x5"
    shared = X + Y
    assert str(shared * shared) == "t0 = x + y\nt0 * t0"


def run_as_python(text, x, y):
    namespace = {**{name: getattr(scalar, name) for name in scalar.__all__}, "x": x, "y": y}
    *statements, last = text.splitlines()
    exec("\n".join(statements), namespace)
    return eval(last, namespace)


numbers = st.sampled_from([0.5, -1.5, 2, 3.0, -0.25])
expressions = st.recursive(
    st.one_of(st.just(X), st.just(Y), numbers.map(constant)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from([scalar.add, scalar.sub, scalar.mul, scalar.maximum]), inner, inner).map(
            lambda made: made[0](made[1], made[2])
        ),
        st.tuples(st.sampled_from([scalar.neg, scalar.sigmoid, scalar.sin, scalar.abs]), inner).map(
            lambda made: made[0](made[1])
        ),
        st.tuples(inner, inner, inner).map(lambda made: scalar.where(made[0] < made[1], made[1], made[2])),
    ),
    max_leaves=12,
)


@given(expressions, st.sampled_from([0.3, -1.2]), st.sampled_from([0.9, -2.3]))
def test_the_text_is_python_that_computes_the_same(expr, x, y):
    assert run_as_python(str(expr), x, y) == evaluate(expr, [x, y])


@given(expressions, st.sampled_from([0.3, -1.2]), st.sampled_from([0.9, -2.3]))
def test_forward_backward_and_expression_derivatives_agree(expr, x, y):
    ours = [float(evaluate(derivative(expr, index), [x, y])) for index in range(2)]
    assert ours == pytest.approx(scalar.gradients(lambda *args: evaluate(expr, args), [x, y]), rel=1e-9, abs=1e-12)
    forward = [scalar.forward_derivative(lambda *args: evaluate(expr, args), index)(x, y) for index in range(2)]
    assert ours == pytest.approx(forward, rel=1e-9, abs=1e-12)
