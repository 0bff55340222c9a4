"""The tuner of products: what it measures, what it keeps, and that the switch changes the choice alone."""

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import bfloat16, float32
from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.targets.cuda import devices, gemm_tuning
from tensorsmith.targets.cuda.gemm import lower_gemm
from tensorsmith.targets.cuda.gemm_choice import Choice, candidates, choose
from tensorsmith.targets.cuda.gemm_tiled import Tile
from tensorsmith.targets.cuda.gemm_wgmma import WgmmaTile
from tensorsmith.targets.cuda.kernel import DeviceProperties


def product(M: int, N: int, K: int, dtype=float32) -> GemmSpec:
    return GemmSpec(dtype, (1, 1), M, N, K, (0, 0, K, 1), (0, 0, N, 1), (0, 0, N, 1))


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch, tmp_path):
    import emulator

    emulator.activate()
    monkeypatch.setattr(gemm_tuning, "_known", {})
    kept: dict[str, bytes] = {}

    class Cache:
        load = staticmethod(kept.get)
        store = staticmethod(kept.__setitem__)

    monkeypatch.setattr(gemm_tuning, "disk_cache", lambda: Cache)
    ts.backends.cuda.matmul.tune = True
    yield kept
    ts.backends.cuda.matmul.tune = False


@pytest.mark.parametrize("choice", [Choice(None), Choice(Tile(1, 1, 4, 8, 32, 4), 4, 64), Choice(WgmmaTile(group=16), 2, 512)])
def test_choices_are_kept_as_text(choice: Choice):
    assert gemm_tuning.unpacked(gemm_tuning.packed(choice)) == choice


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("size", [16, 200, 4096])
def test_candidates_begin_with_what_the_table_says_and_can_all_be_lowered(dtype, size: int):
    spec, properties = product(size, size, size, dtype), DeviceProperties()
    found = candidates(spec, properties)
    assert found[0] == choose(spec, properties) or choose(spec, properties) == Choice(None)
    assert len(set(found)) == len(found) > 1
    for choice in found:
        assert lower_gemm(spec, properties, choice).launches


def test_keys_tell_shapes_and_layouts_apart():
    specs = [product(64, 64, 64), product(64, 64, 65), product(64, 64, 64, bfloat16)]
    specs.append(GemmSpec(float32, (1, 1), 64, 64, 64, (0, 0, 1, 64), (0, 0, 64, 1), (0, 0, 64, 1)))
    assert len({gemm_tuning.key_of(spec, device) for spec in specs for device in ("a", "b")}) == 8


def test_a_new_shape_is_measured_once(tuning, monkeypatch: pytest.MonkeyPatch):
    from tensorsmith.runtime import cuda_tuning

    measured: list[int] = []

    def times(runs, lowered, index):
        measured.append(len(runs))
        return [float(len(runs) - k) for k in range(len(runs))]  # the last is the fastest

    monkeypatch.setattr(cuda_tuning, "_times", times)
    x, w = np.random.default_rng(0).standard_normal((2, 48, 48)).astype(np.float32)
    for _ in range(2):
        result = ts.compile(lambda a, b: a @ b)(ts.tensor(x).to("cuda"), ts.tensor(w).to("cuda"))
        np.testing.assert_allclose(result.cpu().numpy(), x @ w, rtol=1e-4, atol=1e-4)
    assert len(measured) == 1 and measured[0] > 1
    properties = devices.properties(0)
    assert [gemm_tuning.unpacked(entry) for entry in tuning.values()] == [candidates(product(48, 48, 48), properties)[-1]]


def test_times_are_of_the_device(tuning):
    x = ts.randn(40, 40).to("cuda")
    np.testing.assert_allclose((x @ x).cpu().numpy(), x.cpu().numpy() @ x.cpu().numpy(), rtol=1e-4, atol=1e-4)
    assert len(tuning) == 1
