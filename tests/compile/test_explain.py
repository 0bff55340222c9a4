"""`ts.explain`: what is shown is what runs."""

from __future__ import annotations

import pytest

import tensorsmith as ts
from tensorsmith.compile.explain import LEVELS
from tensorsmith.runtime.plan import build_plan


def test_a_function_of_numbers_needs_no_arguments():
    def bump(x, width):
        return ts.scalar.exp(-x * x / width) if x > -1 else 0.0

    found = ts.explain(bump)
    assert found.variables == ("x", "width")
    assert "df/dx" in found.scalar() and "d2f/dx dwidth" in found.scalar()
    assert found.forward.inputs[0].shape == (1 << 20,)
    assert len(found.forward_steps) == 1


def test_one_operator_shows_its_own_gradient_rule():
    found = ts.explain(ts.softmax, ts.ones(4, 7), dim=1)
    assert found.names == ("input",)
    assert found.backward is not None
    assert [saved.kind for saved in found.backward.saved] == ["output"]
    assert "not a function of single numbers" in found.scalar()


def test_a_function_of_tensors_is_traced_with_what_it_captures():
    weight = ts.ones(7, 3, requires_grad=True)
    found = ts.explain(lambda x: (x @ weight).exp().sum(), ts.ones(4, 7))
    assert found.names == ("x", "weight")
    assert found.backward is not None and all(result is not None for result in found.backward.results)
    assert weight.grad is None


def test_explaining_changes_nothing():
    x = ts.ones(5)
    version = x._version
    text = str(ts.explain(lambda x: x.mul_(2).add_(1), x))
    assert "mul" in text
    assert x.tolist() == [1.0] * 5 and x._version == version


def test_the_steps_are_those_of_the_plan():
    found = ts.explain(lambda x: ts.softmax((x * 2).exp(), dim=-1) @ x.t(), ts.ones(16, 24))
    plan = build_plan(found.forward, found.inputs)
    assert [step.title.split(" ")[0] for step in found.forward_steps] == [step.name for step in plan.steps]


def test_elementwise_functions_show_their_expression():
    @ts.elementwise
    def cubic_explained(x):
        return x * x * x - 2 * x

    with_tensor = ts.explain(cubic_explained, ts.ones(3, 4))
    assert "f = x * x * x - 2 * x" in with_tensor.scalar()
    assert "float32[3, 4]" in with_tensor.graph()
    assert "f = x * x * x - 2 * x" in ts.explain(cubic_explained).scalar()


def test_every_level_has_text_and_others_are_refused():
    found = ts.explain(lambda x: x.exp().sum(1), ts.ones(8, 8))
    for level in LEVELS:
        assert found.text([level]).count(f"=== {level} ") == 1
    assert "define void" in found.llvm() and "__global__" in found.cuda()
    with pytest.raises(ValueError, match="no level 'bytecode'"):
        found.text(["bytecode"])


def test_what_has_no_gradient_says_so():
    found = ts.explain(lambda x: x.argmax(1), ts.ones(8, 8))
    assert found.backward is None
    assert "not a floating-point number" in found.graph()


def test_numbers_as_arguments_are_refused():
    with pytest.raises(TypeError, match="give f tensors, or no arguments"):

        def f(x):
            return x

        ts.explain(f, 1.0)


def test_complex_numbers_are_shown_as_pairs():
    x = ts.randn(4, 6, dtype=ts.complex64)
    explanation = ts.explain(lambda x: ts.cumprod(x * x, 0) * (2 - 1j), x)
    assert "complex64[4, 6] = mul" in explanation.graph()
    assert "float32 strides" in explanation.kernel() and "by the reference in NumPy" in str(explanation)
    assert "shufflevector" in explanation.llvm()
