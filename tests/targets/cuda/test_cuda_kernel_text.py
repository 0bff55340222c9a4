"""The text of fused kernels: what it depends on, that NVRTC compiles it, what is refused; no GPU is needed."""

import pytest
from cuda_compiles import quick_cubin

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64, uint32
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.compile import CudaCompileError, CudaUnavailableError, compile_cubin, compiler_version
from tensorsmith.targets.cuda.device_functions import FUNCTIONS, with_dependencies
from tensorsmith.targets.cuda.kernel import Launch
from tensorsmith.targets.cuda.lower import MAX_AXES, lower

ELF = b"\x7fELF"


def render(spec: KernelSpec) -> Launch:
    """The only launch of a spec."""
    (launch,) = lower(spec).launches
    return launch


def gelu(domain=(1000,), x_strides=(1,), y_strides=(1,), dtype=float32) -> KernelSpec:
    """x / 2 * (1 + erf(x / sqrt 2)) * p, with a run-time scalar p."""
    body = [Instr(Kind.LOAD, dtype, index=0)]
    if dtype is not float32:
        body.append(Instr(Kind.CAST, float32, (0,)))
    x = len(body) - 1
    for instr in (
        Instr(Kind.CONST, float32, value=2**-0.5),
        Instr(Kind.APPLY, float32, (x, x + 1), fn=Fn.MUL),
        Instr(Kind.APPLY, float32, (x + 2,), fn=Fn.ERF),
        Instr(Kind.CONST, float32, value=1.0),
        Instr(Kind.APPLY, float32, (x + 3, x + 4), fn=Fn.ADD),
        Instr(Kind.CONST, float32, value=0.5),
        Instr(Kind.APPLY, float32, (x, x + 6), fn=Fn.MUL),
        Instr(Kind.APPLY, float32, (x + 7, x + 5), fn=Fn.MUL),
        Instr(Kind.PARAM, float32, index=0),
        Instr(Kind.APPLY, float32, (x + 8, x + 9), fn=Fn.MUL),
        Instr(Kind.CAST, dtype, (x + 10,)),
    ):
        body.append(instr)
    store = Store(Operand(dtype, y_strides), len(body) - 1)
    return KernelSpec(domain, None, (Operand(dtype, x_strides),), tuple(body), (store,), (float64,), "gelu")


def softmax(rows: int, length: int, dtype=float32, strides: tuple[int, int] | None = None) -> KernelSpec:
    """exp(x - max) / sum along the second axis."""
    strides = strides or (length, 1)
    body = [Instr(Kind.LOAD, dtype, index=0)]
    if dtype is not float32:
        body.append(Instr(Kind.CAST, float32, (0,)))
    x = len(body) - 1
    body += [
        Instr(Kind.REDUCE, float32, (x,), reduction="max"),
        Instr(Kind.APPLY, float32, (x, x + 1), fn=Fn.SUB),
        Instr(Kind.APPLY, float32, (x + 2,), fn=Fn.EXP),
        Instr(Kind.REDUCE, float32, (x + 3,), reduction="sum"),
        Instr(Kind.APPLY, float32, (x + 3, x + 4), fn=Fn.DIV),
        Instr(Kind.CAST, dtype, (x + 5,)),
    ]
    operand = Operand(dtype, strides)
    return KernelSpec((rows, length), 1, (operand,), tuple(body), (Store(operand, len(body) - 1),), name="softmax")


def reduction(kind: str, dtype, result, rows=6, length=2000) -> KernelSpec:
    body = (Instr(Kind.LOAD, dtype, index=0), Instr(Kind.REDUCE, result, (0,), reduction=kind))
    store = Store(Operand(result, (1, 0)), 1, row=True)
    return KernelSpec((rows, length), 1, (Operand(dtype, (length, 1)),), body, (store,), name=f"{kind}_{dtype.name}")


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize(
    "domain, x, y",
    [((1000,), (1,), (1,)), ((), (), ()), ((30, 40), (1, 30), (40, 1)), ((2, 3, 4), (0, 4, 1), (12, 4, 1))],
    ids=["flat", "point", "transposed", "broadcast"],
)
def test_pointwise(domain, x, y, dtype):
    rendered = render(gelu(domain, x, y, dtype))
    assert "#include" not in rendered.source
    assert ("erff(" in rendered.source) == (dtype is not bfloat16)
    assert compile_cubin(rendered.source, rendered.name).startswith(ELF)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("length, threads", [(1, 1), (1024, 32), (40_000, 512)])
def test_rows(length, threads, dtype):
    rendered = render(softmax(100, length, dtype))
    assert rendered.block[0] == threads
    assert ("__shared__" in rendered.source) == (threads > 32)
    assert rendered.source.count("load_pack(x0[n]") == 1  # the row stays in registers
    assert compile_cubin(rendered.source, rendered.name).startswith(ELF)


@pytest.mark.parametrize("length", [10, 2000])
@pytest.mark.parametrize(
    "kind, dtype, result",
    [("sum", int32, int64), ("prod", float64, float64), ("max", bool_, bool_), ("min", dtypes.uint8, dtypes.uint8),
     ("argmax", float32, int64), ("argmin", bfloat16, int64), ("argmax", bool_, int64)],
)  # fmt: skip
def test_reductions(kind, dtype, result, length):
    rendered = render(reduction(kind, dtype, result, length=length))
    assert compile_cubin(rendered.source, rendered.name).startswith(ELF)


def test_random_bits_and_coordinates():
    body = (
        Instr(Kind.PARAM, int64, index=0),
        Instr(Kind.INDEX, int64, index=1),
        Instr(Kind.RANDOM, uint32, (0, 1)),
    )
    store = Store(Operand(uint32, (10, 1)), 2)
    rendered = render(KernelSpec((5, 10), None, (), body, (store,), (int64,), "random"))
    assert "philox_block(" in rendered.source
    assert compile_cubin(rendered.source, rendered.name).startswith(ELF)


@pytest.mark.parametrize("name", ["max", "exp", "float", "where mean_1", "", "2d"])
def test_a_kernel_may_be_called_anything(name):
    spec = gelu()
    rendered = render(KernelSpec(spec.domain, None, spec.inputs, spec.body, spec.stores, spec.params, name))
    assert rendered.name.encode() in compile_cubin(rendered.source, rendered.name)


def test_the_text_depends_on_structure_only():
    assert render(softmax(8, 100)).source == render(softmax(20, 100)).source
    assert render(gelu((1000,))).source == render(gelu((5001,))).source
    transposed = render(gelu((30, 40), (1, 32), (40, 1)))
    assert transposed.source == render(gelu((48, 64), (1, 52), (64, 1))).source
    assert render(gelu()).source != render(gelu((1000,), (2,), (1,))).source
    assert render(softmax(8, 100)).arguments != render(softmax(16, 100)).arguments


def test_compiling_is_deterministic_and_the_version_is_known():
    source = render(gelu()).source
    assert compile_cubin(source) == compile_cubin(source)
    assert compiler_version() >= (12, 0)


def test_arithmetic_is_not_contracted():
    body = tuple(Instr(Kind.LOAD, float32, index=i) for i in range(3)) + (
        Instr(Kind.APPLY, float32, (0, 1), fn=Fn.MUL),
        Instr(Kind.APPLY, float32, (3, 2), fn=Fn.ADD),
    )
    operand = Operand(float32, (1,))
    spec = KernelSpec((8,), None, (operand,) * 3, body, (Store(operand, 4),), name="multiply_add")
    source = render(spec).source
    fused = source.replace("v3 + v2", "fmaf(v0, v1, v2)")
    assert fused != source
    assert compile_cubin(source, "same") != compile_cubin(fused, "same")


def test_a_refused_kernel_is_named_with_its_log():
    with pytest.raises(CudaCompileError, match="kernel broken does not compile") as caught:
        compile_cubin("__global__ void k() {\n    x = 1;\n}", "broken")
    assert 'identifier "x" is undefined' in caught.value.log
    assert "   2      x = 1;" in str(caught.value)
    with pytest.raises(CudaCompileError, match="sm_1"):
        compile_cubin("", "old", arch="sm_1")


def test_absence_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CudaUnavailableError, match=r"pip install 'tensorsmith\[cuda\]'"):
        compile_cubin("")


def test_what_has_no_rendering_is_named():
    complex_operand = Operand(dtypes.complex64, (1,))
    load = (Instr(Kind.LOAD, dtypes.complex64, index=0),)
    with pytest.raises(NotImplementedError, match="complex64"):
        render(KernelSpec((4,), None, (complex_operand,), load, (Store(complex_operand, 0),)))
    domain = (2,) * (MAX_AXES + 1)
    gaps = tuple(3**axis for axis in range(len(domain)))
    with pytest.raises(NotImplementedError, match=f"{MAX_AXES + 1} axes"):
        render(gelu(domain, gaps, gaps))


def test_device_functions_stand_after_what_they_call():
    assert with_dependencies("no call") == ""
    for name in FUNCTIONS:
        text = with_dependencies(f"{name}(x)")
        assert text.index(FUNCTIONS[name]) == len(text) - len(FUNCTIONS[name])


WRONG = ["x = 1;", 'asm("no.such.instruction;");', "__shared__ int more[60000]; more[out[1]] = 1; out[2] = more[out[3]];"]


@pytest.mark.parametrize("line", WRONG)
def test_hardly_optimised_texts_are_refused_as_well(line):
    text = 'extern "C" __global__ void k(int* out) {\n    ERROR\n    out[0] = 1;\n}'
    assert quick_cubin(text.replace("ERROR", ""))
    with pytest.raises(CudaCompileError):
        quick_cubin(text.replace("ERROR", line))
