"""The pass manager: order, switches, the verifier between passes, the report, rewrites of the user."""

import os
import subprocess
import sys

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import float32, float64
from tensorsmith.ir.graph import Graph
from tensorsmith.ir.verify import VerificationError
from tensorsmith.passes.manager import OFF_BY_DEFAULT, Pass, optimise, run_passes
from tensorsmith.passes.simplify import RewriteError
from tensorsmith.scalar import functions as f
from tensorsmith.scalar.fn import Fn


def example():
    graph = Graph()
    x = graph.input((2,), float32)
    graph.outputs = (f.exp(x * 1.0) + 0.0,)
    return graph


def test_the_default_passes_report_what_fired():
    graph, report = optimise(example(), debug=True)
    assert len(graph.nodes) == 6  # x, exp, and the zero that stays with its reshape and expand, and the sum
    assert report.fired["algebra"] == {"x * 1": 1} and not report.fired["fold"]
    assert "algebra: x * 1 ×1" in str(report) and "views: nothing to do" in str(report)


def test_unsafe_rules_run_where_they_are_asked_for():
    graph, report = optimise(example(), ())
    assert len(graph.nodes) == 2
    assert report.fired["unsafe-algebra"]["x + 0"] == 1


def test_a_pass_is_switched_off_by_name():
    graph, report = optimise(example(), {"algebra", *OFF_BY_DEFAULT})
    assert "algebra" not in report.fired and str(graph) == str(example())
    with pytest.raises(ValueError, match="no pass named 'algebre'; there are algebra, "):
        ts.compile(len, disable=("algebre",))
    command = "import tensorsmith as ts; c = ts.compile(lambda x: x * 1); c(ts.ones(2)); print(c.plans[0].report)"
    environment = {**os.environ, "TENSORSMITH_DISABLE_PASSES": "algebra, cse", "PYTHONPATH": ":".join(sys.path)}
    printed = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True).stdout
    assert "views: " in printed and "algebra" not in printed and "cse" not in printed


def test_the_verifier_names_the_pass_that_broke_the_graph():
    def run(graph, fired):
        graph.outputs[0].dtype = float64
        return graph

    with pytest.raises(VerificationError, match="after pass 'careless': .*should be float32"):
        run_passes(example(), [Pass("careless", run)], debug=True)
    run_passes(example(), [Pass("careless", run)])  # not looked at unless debugging


def test_without_cse_what_is_computed_twice_is_two_nodes():
    def function(x, y):
        return (x + y).exp() * (y + x).exp()

    counts = []
    for disable in ((), ("cse",)):
        compiled = ts.compile(function, disable=disable)
        assert compiled(ts.zeros(3), ts.zeros(3)).tolist() == [1.0] * 3
        plan = compiled.plans[0]
        counts.append(len([n for n in plan.plan.graph.live_nodes() if n.op.value == "map"]))
        assert ("cse" in plan.report.fired) is not disable or not disable
    assert counts == [3, 5]


@pytest.fixture
def registered():
    names = []

    def register(name, *args, **kwargs):
        ts.passes.register(name, *args, **kwargs)
        names.append(name)

    yield register
    for name in names:
        ts.passes.unregister(name)


def test_a_rewrite_of_the_user_is_applied_reported_and_switched(registered):
    def function(x):
        return (1 + x.exp()).log() * 2

    compiled = ts.compile(function)
    x = ts.tensor([0.5, 800.0])
    assert np.isinf(compiled(x).tolist()[1])
    stable = lambda x: f.maximum(x, 0.0) + f.log1p(f.exp(-f.abs(x)))  # noqa: E731
    registered("softplus", pattern=lambda x: f.log(1 + f.exp(x)), rewrite=stable)
    np.testing.assert_allclose(compiled(x).tolist(), [2 * np.log1p(np.exp(0.5)), 1600.0], rtol=1e-6)
    assert compiled.plans[0].report.fired["softplus"]["softplus"] == 1
    assert np.isinf(ts.compile(function, disable="softplus")(x).tolist()[1])
    assert "softplus" in ts.passes.names()
    with pytest.raises(ValueError, match="a pass named 'softplus' already"):
        ts.passes.register("softplus", lambda node: None)
    with pytest.raises(KeyError, match="no registered rewrite named 'other'"):
        ts.passes.unregister("other")


@pytest.mark.parametrize(("rewrite", "problem"), [
    (lambda node: f.exp(node), "applies for ever"), (lambda node: 3, "gives 3, which is no value"),
    (lambda node: node.graph.constant(1.0, float32), "has to keep shape and dtype"),
], ids=["endless", "no value", "another shape"])  # fmt: skip
def test_rewrites_of_the_user_are_checked(registered, rewrite, problem):
    registered("mine", rewrite, subject=Fn.EXP)
    with pytest.raises(RewriteError, match=f"rewrite 'mine' .*{problem}"):
        ts.compile(lambda x: x.exp())(ts.ones(2))
    with pytest.raises(TypeError, match="no scalar function of its variables"):
        ts.passes.register("none", pattern=lambda x: 2, rewrite=lambda x: x)


def test_verify_names_the_pass_and_the_line_of_the_first_value_that_differs(registered):
    registered("wrong", pattern=lambda x: f.tanh(x), rewrite=lambda x: f.sin(x))

    def function(x):
        y = x.exp() + 1
        y = y.tanh()  # the line
        return y * 2

    with pytest.raises(ts.passes.Difference, match=r"(?s)first value.*tanh.*y = y.tanh\(\)  # the line.*pass 'wrong'"):
        ts.compile(function, verify=True)(ts.ones(3))
    x = ts.ones(3)
    assert ts.compile(function, verify=True, disable="wrong")(x).tolist() == function(x).tolist()
