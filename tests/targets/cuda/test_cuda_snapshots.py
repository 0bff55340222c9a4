"""The kept texts of some kernels (snapshots/*.cu), so that a change of any is seen; `pytest --approve` writes them anew.

And NVRTC compiles kernels of every schedule for cards before, at and behind the steps that matter.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tensorsmith.core.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from tensorsmith.kernels.joint import JointSpec
from tensorsmith.kernels.spec import KernelSpec
from tensorsmith.targets.cuda.joint import lower_joint
from tensorsmith.targets.cuda.kernel import DeviceProperties, Lowered
from tensorsmith.targets.cuda.lower import lower

sys.path.append(str(Path(__file__).parent))
import fused_specs as specs  # noqa: E402
from cuda_compiles import compile_all  # noqa: E402

FOLDER = Path(__file__).parent / "snapshots"

KEPT = {
    "gelu_flat_bfloat16": specs.gelu((1 << 24,), bfloat16),
    "multiply_add_three_axes": specs.multiply_add((3, 5, 48), float32, (240, 48, 1), (0, 1, 0), (1, 9, 27)),
    "transposed_float32": specs.transposed(4096, 4096, float32),
    "dropout": specs.dropout(1 << 20, 5),
    "softmax_rows_in_warps": specs.softmax((65536, 1024), 1, bfloat16),
    "softmax_rows_in_blocks": specs.softmax((8192, 8192), 1, float32),
    "softmax_columns_in_clusters": specs.softmax((2000, 4096), 0, bfloat16),
    "softmax_columns_walking": specs.softmax((8192, 8192), 0, float32),
    "softmax_columns_in_parts": specs.softmax((2**20, 128), 0, float32),
    "layer_norm": specs.layer_norm(65536, 1024, bfloat16),
    "layer_norm_in_rounds": specs.layer_norm_joint(65536, 1024, bfloat16, bfloat16),
    "layer_norm_weights": specs.layer_norm_weights(65536, 1024, bfloat16),
    "sum_of_everything": specs.reduction("sum", (1, 1 << 28), 1, float32),
    "argmax_columns": specs.reduction("argmax", (1000, 64), 0, float32),
    "channel_statistics": specs.channel_statistics((32, 64, 196), specs.dense(32, 64, 196), float32),
}


def lowered_of(spec: KernelSpec | JointSpec, properties: DeviceProperties) -> Lowered:
    return lower_joint(spec, properties) if isinstance(spec, JointSpec) else lower(spec, properties)


def kept_text(spec: KernelSpec | JointSpec) -> str:
    """All launches of a spec on an H200."""
    lowered = lowered_of(spec, DeviceProperties())
    parts = []
    for launch in lowered.launches:
        parts.append(f"// grid {launch.grid} block {launch.block} cluster {launch.cluster}\n\n{launch.source}")
    domain = spec.rows.domain if isinstance(spec, JointSpec) else spec.domain
    return f"// {spec.name} over {domain}, scratch {lowered.scratch}\n" + "\n".join(parts)


@pytest.mark.parametrize("name", KEPT)
def test_kept_texts(name: str, request: pytest.FixtureRequest):
    path, text = FOLDER / f"{name}.cu", kept_text(KEPT[name])
    if request.config.getoption("--approve"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, f"{path.name} has changed; approve it by pytest {Path(__file__).name} --approve"


def test_no_kept_text_is_left_over():
    assert {path.stem for path in FOLDER.iterdir()} == set(KEPT)


DEVICES = [DeviceProperties(), DeviceProperties("sm_80", 108), DeviceProperties("sm_75", 40, threads=1024)]
SWEEP = [
    *KEPT.values(), specs.layer_norm_joint(5000, 100, float32), specs.layer_norm_joint(9000, 770, float16, float16),
    specs.gelu((1001,), float16), specs.multiply_add((30, 64), int64, (64, 1), (0, 1), (1, 0)),
    specs.multiply_add((2, 100, 48), uint8, (4800, 1, 100), (0, 0, 1), (4800, 48, 1)), specs.transposed(100, 200, float64),
    specs.softmax((33, 100), 1, float64), specs.softmax((40, 2, 8, 6), 1, float16),
    specs.softmax_gradient((65, 1000), 1, float32), specs.layer_norm_gradient(50, 1024, bfloat16),
    specs.softmax((3, 70_000), 1, float16, log=True),
    specs.reduction("max", (1, 10**6), 1, bool_), specs.reduction("sum", (10**6, 6), 0, int32, int64),
    specs.reduction("argmin", (10**6, 6), 0, bfloat16), specs.reduction("prod", (30, 40, 50), 1, float64),
]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.architecture)
@pytest.mark.parametrize("spec", SWEEP, ids=lambda spec: f"{spec.name} {getattr(spec, 'domain', '')}")
def test_kernels_compile(spec: KernelSpec | JointSpec, device: DeviceProperties):
    compile_all(lowered_of(spec, device), (device.architecture,))
