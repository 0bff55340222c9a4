"""Complex graphs in CUDA C++: on pairs of real values they are kernels like others, which NVRTC compiles; no GPU is needed."""

import pytest
from cuda_compiles import quick_cubin

from tensorsmith.core.dtypes import complex64, complex128
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.kernels.assemble import assemble
from tensorsmith.passes.complex_pairs import lower_pairs
from tensorsmith.passes.fusion import fuse
from tensorsmith.scalar.complex_table import COMPLEX
from tensorsmith.scalar.fn import Fn
from tensorsmith.scalar.table import TABLE
from tensorsmith.targets.cuda.lower import lower

PARTS = 6  # graphs of some functions each


def kernels(graph):
    """The specs of a complex graph's fused kernels."""
    lowered = lower_pairs(graph)
    assert lowered is not None
    fusion = fuse(lowered, {n: Strided(n.shape, contiguous_strides(n.shape)) for n in lowered.inputs})
    return [assemble(fusion, group).spec for group in fusion.groups if group.anchor is None]


def check(graph):
    specs = kernels(graph)
    assert specs
    for spec in specs:
        for launch in lower(spec).launches:
            assert quick_cubin(launch.source, launch.name).startswith(b"\x7fELF")
    return specs


@pytest.mark.parametrize("dtype", [complex64, complex128], ids=lambda d: d.name)
@pytest.mark.parametrize("start", range(PARTS))
def test_all_functions_compile(start, dtype):
    graph = Graph()
    x, y = graph.input((1000,), dtype), graph.input((1000,), dtype)
    condition = build.map_(Fn.ISNAN, x)
    operands = {1: (x,), 2: (x, y), 3: (condition, x, y)}
    functions = list(COMPLEX)[start::PARTS]
    graph.outputs = tuple(graph.add(Primitive.MAP, operands[TABLE[fn].arity], fn=fn) for fn in functions)
    check(graph)


@pytest.mark.parametrize("dtype", [complex64, complex128], ids=lambda d: d.name)
def test_rows_and_moves_compile(dtype):
    graph = Graph()
    x = graph.input((40, 300), dtype)
    total = build.broadcast_to(build.reduce(build.map_(Fn.EXP, x), "sum", (1,), keepdim=True), x.shape)
    graph.outputs = (
        graph.add(Primitive.MAP, (x, total), fn=Fn.DIV), build.reduce(x, "sum", (0,)), build.permute(x, (1, 0)) * 2,
    )  # fmt: skip
    specs = check(graph)
    assert any(spec.reduce_axis is not None for spec in specs)
