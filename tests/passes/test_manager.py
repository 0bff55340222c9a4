"""The pass manager: order, switches, the verifier between passes, the report."""

import pytest

from tensorsmith.core.dtypes import float32, float64
from tensorsmith.ir.graph import Graph
from tensorsmith.ir.verify import VerificationError
from tensorsmith.passes.manager import FAST_MATH, SIMPLIFY, Pass, run_passes
from tensorsmith.scalar import functions as f


def example():
    graph = Graph()
    x = graph.input((2,), float32)
    graph.outputs = (f.exp(x * 1.0) + 0.0,)
    return graph


def test_the_default_passes_report_what_fired():
    graph, report = run_passes(example(), debug=True)
    assert len(graph.nodes) == 6  # x, exp, and the zero that stays with its reshape and expand, and the sum
    assert dict(report.fired["simplify"]) == {"x * 1": 1}
    assert str(report) == "simplify: x * 1 ×1"


def test_unsafe_rules_are_a_pass_of_their_own():
    graph, report = run_passes(example(), [SIMPLIFY, FAST_MATH])
    assert len(graph.nodes) == 2
    assert report.fired["fast-math"]["x + 0"] == 1


def test_a_pass_is_switched_off_by_name():
    graph, report = run_passes(example(), disabled={"simplify"})
    assert report.fired == {} and str(graph) == str(example())
    with pytest.raises(ValueError, match="no pass named 'simplfy'; there are fast-math, simplify"):
        run_passes(example(), disabled={"simplfy"})


def test_the_verifier_names_the_pass_that_broke_the_graph():
    def run(graph, fired):
        graph.outputs[0].dtype = float64
        return graph

    with pytest.raises(VerificationError, match="after pass 'careless': .*should be float32"):
        run_passes(example(), [SIMPLIFY, Pass("careless", run)], debug=True)
    run_passes(example(), [Pass("careless", run)])  # not looked at unless debugging
