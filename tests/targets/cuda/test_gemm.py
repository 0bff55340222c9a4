"""Matrix products on CUDA: the texts compile for every architecture, and launches follow shapes and strides."""

import pytest

from tensorsmith.core.dtypes import DType, bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint8
from tensorsmith.kernels.epilogue import COLUMN, ONE, WHOLE, Body
from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.compile import compile_cubin
from tensorsmith.targets.cuda.gemm import lower_gemm
from tensorsmith.targets.cuda.kernel import DeviceProperties, Word

ELF = b"\x7fELF"
ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")


def gelu_of_sum(dtype: DType) -> Body:
    """gelu(result + column) + whole * one, as a fused kernel's body."""
    compute = float32 if dtype.is_half else dtype
    body: list[Instr] = []

    def add(kind: Kind, dtype: DType, *args: int, **fields: object) -> int:
        body.append(Instr(kind, dtype, args, **fields))  # type: ignore[arg-type]
        return len(body) - 1

    def load(index: int) -> int:
        value = add(Kind.LOAD, dtype, index=index)
        return add(Kind.CAST, compute, value) if compute is not dtype else value

    def apply(fn: Fn, *args: int) -> int:
        return add(Kind.APPLY, compute, *args, fn=fn)

    x = apply(Fn.ADD, load(0), load(1))
    inner = apply(Fn.ERF, apply(Fn.MUL, x, add(Kind.CONST, compute, value=2**-0.5)))
    half = apply(Fn.MUL, x, add(Kind.CONST, compute, value=0.5))
    gelu = apply(Fn.MUL, half, apply(Fn.ADD, inner, add(Kind.CONST, compute, value=1.0)))
    value = apply(Fn.ADD, gelu, apply(Fn.MUL, load(2), load(3)))
    if compute is not dtype:
        value = add(Kind.CAST, dtype, value)
    return Body(tuple(body), value, (COLUMN, WHOLE, ONE))


def product(
    dtype: DType, M: int, N: int, K: int, *, batch=(1, 1), left="n", right="n", epilogue=False, allow_tf32=False
) -> GemmSpec:
    """A contiguous product; left and right: "n" as they are written, "t" transposed."""
    inner, outer = batch[1] > 1, batch[0] > 1
    a = (M * K * batch[1] * outer, M * K * inner, *((K, 1) if left == "n" else (1, M)))
    b = (K * N * batch[1] * outer, K * N * inner, *((N, 1) if right == "n" else (1, K)))
    c = (M * N * batch[1] * outer, M * N * inner, N, 1)
    body = gelu_of_sum(dtype) if epilogue else None
    beside = ((0, 0, 0, 1), c, (0, 0, 0, 0)) if epilogue else ()
    return GemmSpec(dtype, batch, M, N, K, a, b, c, body, beside, allow_tf32)


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16, int8, uint8, int32, int64], ids=lambda d: d.name)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_dtype_compiles(dtype: DType, arch: str):
    for epilogue in (False, True) if dtype.kind == "f" else (False,):
        lowered = lower_gemm(product(dtype, 33, 65, 17, batch=(2, 3), epilogue=epilogue), DeviceProperties(arch))
        for launch in lowered.launches:
            assert compile_cubin(launch.source, launch.name, arch)[:4] == ELF


def test_bool_has_no_products():
    with pytest.raises(NotImplementedError, match="multiplication of bool"):
        lower_gemm(product(bool_, 3, 4, 5), DeviceProperties())


def test_nothing_to_compute_is_no_launch():
    assert lower_gemm(product(float32, 0, 4, 5), DeviceProperties()).launches == ()


def test_results_by_columns_exchange_the_operands():
    spec = product(float32, 20, 30, 40)
    spec = GemmSpec(float32, (1, 1), 20, 30, 40, spec.a, spec.b, (0, 0, 1, 20))
    lowered = lower_gemm(spec, DeviceProperties())
    assert [a.index for a in lowered.launches[0].arguments if isinstance(a, Word)] == [1, 0, 2]


def test_bytes_and_operations():
    spec = product(float32, 20, 30, 40, batch=(2, 3))
    assert spec.flops == 2 * 6 * 20 * 30 * 40
    assert spec.bytes_moved == 4 * 6 * (20 * 40 + 40 * 30 + 20 * 30)
