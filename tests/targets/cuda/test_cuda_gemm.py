"""Matrix products on CUDA: the texts compile for every architecture, and launches follow shapes and strides."""

from dataclasses import replace

import pytest
from cuda_compiles import ARCHITECTURES, compile_all

from tensorsmith.core.dtypes import DType, bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint8
from tensorsmith.kernels.epilogue import COLUMN, ONE, WHOLE, Body
from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.gemm import lower_gemm
from tensorsmith.targets.cuda.gemm_choice import Choice
from tensorsmith.targets.cuda.gemm_mma import MmaTile
from tensorsmith.targets.cuda.gemm_tiled import Tile
from tensorsmith.targets.cuda.gemm_wgmma import WgmmaTile
from tensorsmith.targets.cuda.kernel import DeviceProperties, Word


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
        spec = product(dtype, 33, 65, 17, batch=(2, 3), epilogue=epilogue)
        compile_all(lower_gemm(spec, DeviceProperties(arch)), (arch,))


CHOICES = {
    "wgmma": (bfloat16, Choice(WgmmaTile())),
    "wgmma, a tile a warpgroup": (float16, Choice(WgmmaTile(128, 128, 2, True, 4))),
    "wgmma, one consumer": (bfloat16, Choice(WgmmaTile(64, 64, 1, stages=8))),
    "wgmma, parts of K": (bfloat16, Choice(WgmmaTile(64, 128, 2, stages=6), 2, 512)),
    "mma": (bfloat16, Choice(MmaTile())),
    "mma, small": (float16, Choice(MmaTile(64, 64, 2, 2, 4), 2, 512)),
    "tiled": (float32, Choice(Tile())),
    "tiled, small": (float64, Choice(Tile(1, 1))),
    "tiled, parts of K in a cluster": (float32, Choice(Tile(1, 1, 4, 8, 32, 4), 4, 256)),
    "tiled, parts of K": (float32, Choice(Tile(), 2, 512)),
}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("dtype", "choice"), CHOICES.values(), ids=CHOICES.keys())
def test_every_kernel_compiles(dtype: DType, choice: Choice, layout: str):
    spec = product(dtype, 1024, 1024, 1024, left=layout[0], right=layout[1], epilogue=layout == "nt")
    tile = choice.tile
    hopper = isinstance(tile, WgmmaTile) or (isinstance(tile, Tile) and tile.parts > 1)
    lowest = "sm_90a" if hopper else "sm_80" if isinstance(tile, MmaTile) else "sm_75"
    compile_all(lower_gemm(spec, DeviceProperties(), choice), tuple(dict.fromkeys((lowest, "sm_90a"))))


@pytest.mark.parametrize("N", [256, 255])
@pytest.mark.parametrize(("dtype", "choice"), CHOICES.values(), ids=CHOICES.keys())
def test_every_kernel_adds_a_bias(dtype: DType, choice: Choice, N: int):
    body = gelu_of_sum(dtype)
    last = next(k for k, instr in enumerate(body.body) if instr.fn is Fn.ADD)
    bias = Body(body.body[: last + 1], last, (COLUMN,))
    spec = replace(product(dtype, 64, N, 1024, right="t"), body=bias, beside=((0, 0, 0, 1),))
    for tf32 in (False, True) if dtype is float32 else (False,):
        compile_all(lower_gemm(replace(spec, allow_tf32=tf32), DeviceProperties(), choice), ("sm_90a",))
        compile_all(lower_gemm(replace(spec, allow_tf32=tf32), DeviceProperties()), ("sm_90a",))


def test_tf32_compiles():
    for arch in ("sm_80", "sm_90a"):
        for size in (512, 1024):
            for epilogue in (False, True):
                spec = product(float32, size, size, size, epilogue=epilogue, allow_tf32=True)
                compile_all(lower_gemm(spec, DeviceProperties(arch)), (arch,))


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize(("M", "N", "K"), [(64, 256, 784), (256, 784, 64), (64, 10, 256), (2048, 512, 512)])
def test_bodies_with_one_operand_compile(dtype: DType, M: int, N: int, K: int):
    """As a relu's gradient has it: what is kept of the sums hangs on a value that lies as they do; or a bias."""
    for kind, strides in ((WHOLE, (0, 0, N, 1)), (COLUMN, (0, 0, 0, 1)), (ONE, (0, 0, 0, 0))):
        compute = float32 if dtype.is_half else dtype
        body = [Instr(Kind.LOAD, dtype, index=0), Instr(Kind.LOAD, dtype, index=1)]
        if compute is not dtype:
            body += [Instr(Kind.CAST, compute, (0,)), Instr(Kind.CAST, compute, (1,))]
        first = len(body) - 2
        body.append(Instr(Kind.APPLY, compute, (first, first + 1), fn=Fn.MUL))
        if compute is not dtype:
            body.append(Instr(Kind.CAST, dtype, (len(body) - 1,)))
        for allowed in {False, dtype is float32}:
            for right in "nt":
                plain = product(dtype, M, N, K, right=right, allow_tf32=allowed)
                made = Body(tuple(body), len(body) - 1, (kind,))
                spec = GemmSpec(dtype, (1, 1), M, N, K, plain.a, plain.b, plain.c, made, (strides,), allowed)
                for arch in ("sm_80", "sm_90a"):
                    compile_all(lower_gemm(spec, DeviceProperties(arch)), (arch,))


@pytest.mark.parametrize("size", [1, 10, 64, 784, 1024, 4096, 8192])
@pytest.mark.parametrize("dtype", [float32, float64, bfloat16], ids=lambda d: d.name)
def test_launches_fit_the_card(dtype: DType, size: int):
    for M, N, K in ((size, size, size), (64, size, 4096), (size, 33, 7)):
        for launch in lower_gemm(product(dtype, M, N, K), DeviceProperties()).launches:
            assert launch.shared_bytes <= DeviceProperties().shared_bytes
            assert 0 < launch.grid[0] < 2**31 and launch.block[0] <= 1024


def test_a_matrix_by_a_vector_fits_tensor_maps():
    for M, N in ((1, 4096), (4096, 1)):
        for right in "nt":
            lowered = lower_gemm(product(bfloat16, M, N, 4096, right=right), DeviceProperties())
            assert lowered.launches[0].name == "gemm_wgmma"


def test_halves_take_the_fastest_kernel_that_fits():
    aligned, ragged = product(bfloat16, 512, 512, 512), product(bfloat16, 500, 501, 503)
    names = [
        [launch.name for launch in lower_gemm(spec, DeviceProperties(arch)).launches]
        for spec in (aligned, ragged) for arch in ("sm_90a", "sm_80", "sm_75")
    ]  # fmt: skip
    assert [each[0] for each in names] == ["gemm_wgmma", "gemm_mma", "gemm_naive", "gemm_mma", "gemm_mma", "gemm_naive"]


def test_parts_of_k_are_added_in_a_second_launch():
    lowered = lower_gemm(product(float32, 64, 64, 8192), DeviceProperties("sm_80"))
    assert [launch.name for launch in lowered.launches] == ["gemm_tiled", "gemm_sum"]
    assert len(lowered.scratch) == 1 and lowered.scratch[0] % (64 * 64 * 4) == 0


def test_operands_that_fit_no_tensor_map_are_refused_by_that_kernel():
    with pytest.raises(ValueError, match="tensor map"):
        lower_gemm(product(bfloat16, 500, 501, 503), DeviceProperties(), Choice(WgmmaTile()))


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
