"""One registration gives everything: a scalar function in Python, and a composite operator."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorsmith as ts
from tensorsmith.autograd import gradcheck, gradgradcheck
from tensorsmith.core.views import Strided
from tensorsmith.eager import operator as operator_module
from tensorsmith.eager.operator import Operator, operators
from tensorsmith.ir import build
from tensorsmith.kernels.assemble import assemble
from tensorsmith.ops.creation import array_of
from tensorsmith.ops.registry import TABLE, public
from tensorsmith.passes.fusion import fuse
from tensorsmith.scalar import functions as f
from tensorsmith.scalar.lift import LiftError
from tensorsmith.targets.cpu.compiler import statistics
from tensorsmith.targets.cuda.compile import compile_cubin
from tensorsmith.targets.cuda.lower import lower
from tensorsmith.targets.reference import interpret

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "docs" / "generate")]
import harness  # noqa: E402

from pages import operators_page  # noqa: E402

ELF = b"\x7fELF"


@pytest.fixture
def registered():
    """Forget what a test registers, so that other tests see the package as it is."""
    tables = [(table, dict(table)) for table in (TABLE, operator_module._ALL)]
    attributes = set(vars(ts.Tensor))
    yield
    for table, kept in tables:
        table.clear()
        table.update(kept)
    for name in set(vars(ts.Tensor)) - attributes:
        delattr(ts.Tensor, name)


def cuda_sources(operator, layouts, attrs):
    """CUDA text of every kernel of an operator's graph and of its gradient's."""
    program = operator.program(layouts, attrs)
    backward = program.backward(tuple(True for _ in layouts), (True,) * len(program.graph.outputs))
    found = []
    for graph in (program.graph, backward.backward.graph):
        fusion = fuse(graph, {n: Strided(n.shape, ts.zeros(*n.shape).stride()) for n in graph.inputs})
        found += [launch for group in fusion.groups for launch in lower(assemble(fusion, group).spec).launches]
    return found


def check_everything(name, call, operator, layouts, attrs):
    """Eager values against the reference, gradients against differences, kernels, CUDA text, documentation."""
    assert operators()[name] is operator
    random = np.random.default_rng(0)
    arrays = [random.uniform(0.2, 0.9, layout.shape).astype(np.float32) for layout in layouts]
    before = statistics().linked
    result = call(*(ts.from_numpy(a) for a in arrays))
    assert statistics().linked > before  # a kernel of its own
    (expected,) = interpret(operator.program(layouts, attrs).graph, arrays)
    np.testing.assert_allclose(array_of(result), expected, rtol=3e-6)
    doubles = [ts.tensor(a, dtype=ts.float64).requires_grad_() for a in arrays]
    assert gradcheck(call, doubles) and gradgradcheck(call, doubles)
    rendered = cuda_sources(operator, layouts, attrs)
    assert len(rendered) >= 2
    for kernel in rendered:
        assert compile_cubin(kernel.source, kernel.name).startswith(ELF)
    page = operators_page([entry for entry in TABLE.values() if entry.name == name])
    assert f"`ts.{name}`" in page
    compiled = ts.compile(lambda *xs: call(*xs).sum())
    assert compiled(*(ts.from_numpy(a) for a in arrays)).item() == pytest.approx(float(expected.sum()), rel=1e-5)


def test_a_scalar_function_in_a_single_registration(registered):
    @ts.elementwise
    def wobble(x, y):
        """x tanh(y) + e**-x."""
        return x * ts.scalar.tanh(y) + ts.scalar.exp(-x)

    layouts = [ts.zeros(3, 5).layout, ts.zeros(3, 5).layout]
    check_everything("wobble", wobble, wobble.operator, layouts, {})
    assert TABLE["wobble"].function is wobble
    harness.check_against_reference(wobble.operator, harness.Sample((harness.MATRIX,) * 2), ts.bfloat16, "transposed")


def test_a_composite_in_a_single_registration(registered):
    soft_distance = Operator(
        "soft_distance",
        lambda x, y, axis: build.reduce(f.softplus((x - y) * (x - y)), "sum", (axis,))
        / build.reduce(f.exp(x), "sum", (axis,)),
    )

    @public("custom", name="soft_distance")
    def call(x, y, dim=1):
        """sum softplus((x - y)**2) / sum e**x along an axis."""
        return soft_distance(x, y, axis=dim)

    layouts = [ts.zeros(3, 5).layout, ts.zeros(3, 5).layout]
    check_everything("soft_distance", call, soft_distance, layouts, {"axis": 1})
    x = ts.rand(3, 5)
    assert x.soft_distance(x, dim=0).shape == (5,)


# --- lifting on tensors -------------------------------------------------------------------------------------------------


def test_branches_numbers_and_broadcasting(registered):
    @ts.elementwise
    def leaky(x, slope=0.1):
        return x if x > 0 else x * slope

    @ts.elementwise(name="clip_between", arity=3)
    def clip(x, low, high):
        return min(max(x, low), high)

    x = ts.tensor([-2.0, -0.0, 0.5, 3.0], requires_grad=True)
    np.testing.assert_allclose(leaky(x).tolist(), [-0.2, 0.0, 0.5, 3.0], rtol=1e-6)
    leaky(x).sum().backward()
    np.testing.assert_allclose(x.grad.tolist(), [0.1, 0.1, 1.0, 1.0], rtol=1e-6)
    assert clip(x, -1.0, 1).tolist() == [-1.0, 0.0, 0.5, 1.0]
    assert clip(ts.ones(2, 1), ts.zeros(3), 0.5).shape == (2, 3)
    assert clip(2, 0, 1).tolist() == 1


def test_the_side_that_is_not_taken_leaks_nothing(registered):
    @ts.elementwise
    def safe_log(x):
        return ts.scalar.log(x) if x > 1 else 0.0 * x

    x = ts.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    y = safe_log(x)
    y.sum().backward()
    np.testing.assert_allclose(y.tolist(), [0, 0, np.log(2)], atol=1e-7)
    assert x.grad.tolist() == [0.0, 0.0, 0.5]


def test_agreement_with_pytorch_over_placements(registered):
    @ts.elementwise
    def swish(x):
        return x * ts.scalar.sigmoid(x)

    random = np.random.default_rng(0)
    for shape in [(), (0, 3), (7,), (3, 4), (2, 3, 5), (70_001,)]:
        for placement in harness.PLACEMENTS:
            array = harness.placed(random.standard_normal(shape), placement)
            expected = torch.nn.functional.silu(torch.from_numpy(np.ascontiguousarray(array).reshape(shape)))
            np.testing.assert_allclose(array_of(swish(harness.as_tensor(array))), expected.numpy(), rtol=1e-12, atol=1e-12)


def test_what_cannot_be_lifted_or_called(registered):
    with pytest.raises(LiftError, match=r"test_elementwise\.py"):

        @ts.elementwise
        def loops(x):
            while x > 0:
                x = x - 1
            return x

    @ts.elementwise
    def double(x):
        return x * 2

    with pytest.raises(TypeError, match="double.*argument 1.*str"):
        double("text")
    assert "double" in repr(double) and double.__name__ == "double"
