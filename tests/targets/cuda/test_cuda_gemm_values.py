"""Matrix products on the emulated device against NumPy: every kernel, layout, ragged sizes, batches, bodies, parts of K."""

import itertools
import math
import zlib

import numpy as np
import pytest
from test_cuda_gemm import product

from emulator.run import run_lowered
from tensorsmith.core.dtypes import DType, bfloat16, float16, float32, float64, int8, int32, int64, uint8
from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.targets.cuda import gemm_choice
from tensorsmith.targets.cuda.gemm import lower_gemm
from tensorsmith.targets.cuda.gemm_choice import Choice
from tensorsmith.targets.cuda.gemm_mma import MmaTile
from tensorsmith.targets.cuda.gemm_tiled import Tile
from tensorsmith.targets.cuda.gemm_wgmma import WgmmaTile
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties

TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 4e-3, "float16": 5e-4}
LAYOUTS = list(itertools.product("nt", "nt"))
erf = np.vectorize(math.erf)


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


def check(
    dtype: DType, M: int, N: int, K: int, choice: Choice | None, *, batch=(1, 1), left="n", right="n", epilogue=False,
    allow_tf32=False, shift=0, by_columns=False, arch="sm_80",
) -> None:  # fmt: skip
    """shift: elements by which operands lie off an aligned address; by_columns: C is written column by column."""
    rng = np.random.default_rng(zlib.crc32(f"{dtype} {M} {N} {K} {left} {right}".encode()))

    def place(*shape: int) -> np.ndarray:
        return np.zeros(math.prod(shape) + shift, dtype.numpy)[shift:].reshape(shape)

    def make(*shape: int) -> np.ndarray:
        made = place(*shape)
        made[...] = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 100, shape)
        return made

    def exact(array: np.ndarray) -> np.ndarray:
        return array.astype(np.float64 if dtype.kind == "f" else np.int64)

    spec = product(dtype, M, N, K, batch=batch, left=left, right=right, epilogue=epilogue, allow_tf32=allow_tf32)
    a = make(*batch, M, K) if left == "n" else make(*batch, K, M).swapaxes(2, 3)
    b = make(*batch, K, N) if right == "n" else make(*batch, N, K).swapaxes(2, 3)
    c = place(*batch, N, M).swapaxes(2, 3) if by_columns else place(*batch, M, N)
    arrays = [a, b, c]
    expected = exact(a) @ exact(b)
    if epilogue:
        beside = [make(N), make(*batch, M, N), make(1)]
        x = expected + exact(beside[0])
        expected = 0.5 * x * (1 + erf(x / math.sqrt(2))) + exact(beside[1]) * exact(beside[2])
        arrays += beside
    if by_columns:
        spec = GemmSpec(dtype, batch, M, N, K, spec.a, spec.b, (*spec.c[:2], 1, M), spec.body, spec.beside, allow_tf32)
    lowered = lower_gemm(spec, DeviceProperties(arch, multiprocessors=3), choice)
    assert run_lowered(lowered, arrays) == 0
    if dtype.kind != "f":
        assert np.array_equal(c, expected.astype(dtype.numpy))
        return
    error = np.abs(exact(c) - expected).max() / max(np.abs(expected).max(), 1e-30)
    assert error < (1e-3 if allow_tf32 else TOLERANCE[dtype.name])


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16, float16, int8, uint8, int32, int64], ids=lambda d: d.name)
def test_the_simple_kernel(dtype: DType):
    check(dtype, 33, 20, 17, Choice(None), batch=(2, 3), left="t", epilogue=dtype.kind == "f")
    check(dtype, 9, 20, 17, Choice(None), by_columns=True, right="t")


@pytest.mark.parametrize(("left", "right"), LAYOUTS)
@pytest.mark.parametrize("tile", [Tile(2, 2), Tile(1, 1)], ids=["large", "small"])
def test_tiles_of_ordinary_arithmetic(tile: Tile, left: str, right: str):
    check(float32, 133, 140, 37, Choice(tile), batch=(1, 2), left=left, right=right, epilogue=tile.down == 1)
    check(float32, 68, 72, 20, Choice(tile), left=left, right=right, epilogue=True, shift=1)
    check(float64, 70, 61, 33, Choice(tile), batch=(2, 1), left=left, right=right, epilogue=tile.down == 2)


@pytest.mark.parametrize("dtype", [int32, int64], ids=lambda d: d.name)
def test_tiles_of_integers(dtype: DType):
    check(dtype, 70, 61, 33, Choice(Tile()))


@pytest.mark.parametrize(("left", "right"), LAYOUTS)
def test_tf32(left: str, right: str):
    check(float32, 140, 132, 68, Choice(Tile()), left=left, right=right, epilogue=True, allow_tf32=True)
    parts = Choice(Tile(parts=2), 2, 48)
    check(float32, 70, 132, 68, parts, left=left, right=right, epilogue=True, allow_tf32=True, arch="sm_90a")


@pytest.mark.parametrize(("left", "right"), LAYOUTS)
@pytest.mark.parametrize("tile", [MmaTile(), MmaTile(64, 64, 2, 2, 4)], ids=["large", "small"])
def test_halves_by_warps(tile: MmaTile, left: str, right: str):
    check(bfloat16, 136, 144, 72, Choice(tile), batch=(1, 2), left=left, right=right, epilogue=tile.rows == 64)
    check(float16, 133, 71, 45, Choice(tile), batch=(2, 1), left=left, right=right, epilogue=tile.rows == 128)
    check(bfloat16, 72, 80, 40, Choice(tile), left=left, right=right, epilogue=True, shift=1)


@pytest.mark.parametrize(
    ("dtype", "choice", "arch"),
    [
        (float32, Choice(Tile(1, 1), 3, 48), "sm_80"),
        (float64, Choice(Tile(), 2, 64), "sm_80"),
        (bfloat16, Choice(MmaTile(64, 64, 2, 2, 4), 2, 64), "sm_80"),
        (float16, Choice(WgmmaTile(64, 64, 1, stages=3), 2, 64), "sm_90a"),
    ],
    ids=["float32", "float64", "bfloat16", "float16"],
)
def test_parts_of_k(dtype: DType, choice: Choice, arch: str):
    check(dtype, 70, 64, 128, choice, epilogue=True, arch=arch)
    check(dtype, 72, 56, 104, choice, batch=(2, 2), right="t", epilogue=True, by_columns=True, arch=arch)


def test_no_k_gives_the_body_of_zeros():
    for dtype in (float32, bfloat16):
        check(dtype, 20, 30, 0, None, epilogue=True)


HOPPER = {
    "64x64": WgmmaTile(64, 64, 1, stages=3),
    "128x128": WgmmaTile(64, 128, 2, stages=3),
    "128x256": WgmmaTile(64, 256, 2, stages=2),
    "256x128": WgmmaTile(128, 128, 2, stages=2),
    "alternating": WgmmaTile(128, 128, 2, True, 3),
}


@pytest.mark.parametrize(("left", "right"), LAYOUTS)
@pytest.mark.parametrize("tile", HOPPER.values(), ids=HOPPER.keys())
def test_warpgroups(tile: WgmmaTile, left: str, right: str):
    check(bfloat16, 200, 328, 136, Choice(tile), left=left, right=right, arch="sm_90a")
    check(float16, 72, 136, 200, Choice(tile), batch=(2, 2), left=left, right=right, epilogue=True, arch="sm_90a")


def test_warpgroups_where_results_fit_no_tensor_map():
    tile = HOPPER["128x128"]
    for M, N in ((72, 134), (71, 133)):
        check(bfloat16, M, N, 128, Choice(tile), right="t", epilogue=True, arch="sm_90a")


def test_warpgroups_find_operands_off_an_aligned_address():
    check(bfloat16, 72, 136, 128, Choice(HOPPER["128x128"]), epilogue=True, shift=1, arch="sm_90a")


@pytest.mark.parametrize(
    ("dtype", "tile"),
    [
        (float32, Tile(1, 1, 4, 8, 32, 2)), (float32, Tile(1, 1, 4, 8, 32, 8)), (float32, Tile(2, 2, 3, parts=2)),
        (float64, Tile(1, 1, 4, 16, 16, 4)), (int32, Tile(1, 1, 4, 8, 32, 4)),
    ],
    ids=["2", "8", "large", "float64", "int32"],
)  # fmt: skip
@pytest.mark.parametrize(("left", "right"), LAYOUTS)
def test_parts_of_k_in_a_cluster(dtype: DType, tile: Tile, left: str, right: str):
    depth = -(-200 // tile.parts // tile.depth) * tile.depth
    body = dtype.kind == "f"
    check(dtype, 70, 44, 200, Choice(tile, tile.parts, depth), left=left, right=right, epilogue=body, arch="sm_90a")
    if left != right:
        check(dtype, 35, 61, 133, Choice(tile, tile.parts, depth), batch=(2, 2), left=left, right=right, arch="sm_90a")


@pytest.mark.parametrize("tile", [HOPPER["64x64"], HOPPER["alternating"]], ids=["64x64", "alternating"])
def test_tf32_by_warpgroups(tile: WgmmaTile):
    check(float32, 72, 136, 100, Choice(tile), right="t", epilogue=True, allow_tf32=True, arch="sm_90a")
    check(float32, 71, 133, 64, Choice(tile), batch=(2, 2), right="t", allow_tf32=True, arch="sm_90a")
    check(float32, 71, 132, 200, Choice(tile, 2, 128), right="t", allow_tf32=True, arch="sm_90a")


@pytest.mark.parametrize(("left", "right"), LAYOUTS)
def test_operands_that_fit_no_tensor_map_are_copied(left: str, right: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gemm_choice, "LEAST_FLOPS_COPIED", 1)
    for table, step in (("WGMMA", 64), ("WGMMA_TF32", 32)):  # a tile for the shared memory of the emulated device
        monkeypatch.setattr(gemm_choice, table, (gemm_choice.Row(HOPPER["64x64"], 64, 64, step, 300, 700, 3400),))
    check(bfloat16, 71, 93, 135, None, left=left, right=right, epilogue=True, arch="sm_90a")
    check(float16, 96, 75, 72, None, batch=(2, 2), left=left, right=right, arch="sm_90a", by_columns=left == right)
    check(float32, 72, 93, 132, None, left=left, right=right, allow_tf32=True, arch="sm_90a")


@pytest.mark.parametrize("M", [1, 5])
def test_batches_that_share_b_are_rows(M: int):
    spec = product(float32, M, 60, 20, batch=(2, 3), epilogue=True)
    shared = GemmSpec(float32, (2, 3), M, 60, 20, spec.a, (0, 0, 60, 1), spec.c, spec.body, spec.beside)
    sizes = lower_gemm(shared, DeviceProperties()).launches[0].arguments[-1]
    assert isinstance(sizes, Constant) and sizes.words[0] == 6 * M
    rng = np.random.default_rng(3)
    a, b, whole = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, M, 20), (20, 60), (2, 3, M, 60)))
    column, one, c = rng.standard_normal(60).astype(np.float32), np.ones(1, np.float32), np.zeros((2, 3, M, 60), np.float32)
    assert run_lowered(lower_gemm(shared, DeviceProperties("sm_80")), [a, b, c, column, whole, one]) == 0
    x = a.astype(np.float64) @ b + column
    assert np.abs(c - (0.5 * x * (1 + erf(x / math.sqrt(2))) + whole)).max() < 1e-4


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda d: d.name)
def test_one_row_column_or_step(dtype: DType):
    for M, N, K in ((1, 72, 40), (72, 1, 40), (72, 40, 1), (1, 1, 40)):
        for left, right in LAYOUTS:
            check(dtype, M, N, K, None, left=left, right=right, epilogue=True)
