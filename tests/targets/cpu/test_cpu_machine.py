"""The choice of an instruction set and the count of processors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorsmith.targets.cpu import machine as machine_module, processors
from tensorsmith.targets.cpu.compiler import assembly
from tensorsmith.targets.cpu.machine import is_x86, level2_bytes, machine, select

X86 = "x86_64-unknown-linux-gnu"
AVX2 = dict.fromkeys(["avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt"], True)
AVX512 = AVX2 | dict.fromkeys(["avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd", "avx512bf16"], True)


@pytest.mark.parametrize(
    "features, requested, name, vector_bytes, registers",
    [
        (AVX512, None, "avx512", 64, 32),
        (AVX2, None, "avx2", 32, 16),
        ({}, None, "generic", 16, 16),
        (AVX512, "avx2", "avx2", 32, 16),
        (AVX512, "generic", "generic", 16, 16),
        (AVX2 | {"avx512f": True}, None, "avx2", 32, 16),  # an AVX-512 without the parts that kernels rely on
    ],
)
def test_select(features: dict[str, bool], requested: str | None, name: str, vector_bytes: int, registers: int) -> None:
    chosen = select(requested, X86, "znver4", features)
    assert (chosen.name, chosen.vector_bytes, chosen.registers) == (name, vector_bytes, registers)
    assert chosen.lanes(4) == vector_bytes // 4
    assert chosen.has("avx512bf16") == (name == "avx512")
    assert chosen.has("fma") == (name != "generic")


@pytest.mark.skipif(not is_x86(machine().triple), reason="x86-64's registers")
@pytest.mark.parametrize("requested, register", [("avx512", "zmm"), ("avx2", "ymm"), ("generic", "xmm")])
def test_a_narrower_set_contains_no_wider_instruction(requested: str, register: str) -> None:
    text = """
define void @f(ptr %p) {
  %x = load <16 x float>, ptr %p
  %y = fadd <16 x float> %x, %x
  store <16 x float> %y, ptr %p
  ret void
}
"""
    code = assembly(text, select(requested, machine().triple, "znver4", AVX512))
    assert [r for r in ("xmm", "ymm", "zmm") if r in code] == [register]


def test_what_the_cpu_lacks_is_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match="avx512f"):
        select("avx512", X86, "haswell", AVX2)
    with pytest.raises(RuntimeError, match="x86-64"):
        select("avx2", "aarch64-unknown-linux-gnu", "neoverse-n1", {})
    with pytest.raises(ValueError, match="sse9"):
        select("sse9", X86, "haswell", AVX2)
    assert select(None, "aarch64-unknown-linux-gnu", "neoverse-n1", {}).registers == 32


def test_the_environment_overrides() -> None:
    script = "from tensorsmith.targets.cpu.machine import machine; print(machine().name)"
    environment = os.environ | {"TENSORSMITH_ISA": "generic"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "generic"
    assert machine() is machine()


@pytest.mark.parametrize("allowed", [True, False])
def test_the_matrix_unit_is_used_where_the_system_allows_it(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    features = AVX512 | dict.fromkeys(["amx-tile", "amx-bf16"], True)
    found = select(None, X86, "sapphirerapids", features)
    monkeypatch.setattr(machine_module, "select", lambda *_: found)
    monkeypatch.setattr(machine_module, "_allow_tiles", lambda: allowed)
    assert [machine.__wrapped__().has(feature) for feature in ("amx-tile", "amx-bf16")] == [allowed] * 2
    assert machine.__wrapped__().has("avx512bf16")


def test_importing_the_modules_does_not_import_llvmlite() -> None:
    script = (
        "import sys, tensorsmith.targets.cpu.machine, tensorsmith.targets.cpu.compiler, tensorsmith.targets.cpu.launch,"
        "tensorsmith.targets.cpu.memory, tensorsmith.targets.cpu.pool; print('llvmlite' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def _write(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def test_control_group_quota_version_2(tmp_path: Path) -> None:
    proc, root = tmp_path / "cgroup", tmp_path / "fs"
    _write(proc, "0::/outer/inner\n")
    _write(root / "outer/inner/cpu.max", "max 100000\n")
    assert processors.control_group_quota(str(proc), str(root)) is None
    _write(root / "outer/cpu.max", "250000 100000\n")  # an outer level counts too
    assert processors.control_group_quota(str(proc), str(root)) == 2.5


def test_control_group_quota_version_1(tmp_path: Path) -> None:
    proc, root = tmp_path / "cgroup", tmp_path / "fs"
    _write(proc, "5:memory:/a\n4:cpu,cpuacct:/docker/x\n")
    _write(root / "cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    _write(root / "cpu,cpuacct/docker/x/cpu.cfs_quota_us", "150000\n")
    _write(root / "cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n")
    assert processors.control_group_quota(str(proc), str(root)) == 1.5
    assert processors.control_group_quota(str(tmp_path / "absent"), str(root)) is None


def test_default_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    count = processors.default_threads.__wrapped__
    monkeypatch.delenv("TENSORSMITH_NUM_THREADS", raising=False)
    monkeypatch.setattr(processors, "affinity_count", lambda: 8)
    monkeypatch.setattr(processors, "control_group_quota", lambda: 3.9)
    assert count() == 3
    monkeypatch.setattr(processors, "control_group_quota", lambda: 0.5)
    assert count() == 1
    monkeypatch.setenv("TENSORSMITH_NUM_THREADS", "5")
    assert count() == 5
    monkeypatch.setenv("TENSORSMITH_NUM_THREADS", "none")
    with pytest.raises(ValueError, match="TENSORSMITH_NUM_THREADS"):
        count()


def test_the_second_level_cache_is_read_from_linux(tmp_path):
    for index, (level, size) in enumerate((("1", "32K"), ("2", "1M"), ("3", "32768K"))):
        place = tmp_path / f"index{index}"
        place.mkdir()
        (place / "level").write_text(level + "\n")
        (place / "size").write_text(size + "\n")
    assert level2_bytes(str(tmp_path)) == 1 << 20
    (tmp_path / "index1" / "size").write_text("unknown")
    assert level2_bytes(str(tmp_path)) is None and level2_bytes(str(tmp_path / "missing")) is None
