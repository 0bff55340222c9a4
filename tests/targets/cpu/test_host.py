"""What LLVM says about the machine is remembered, and LLVM not imported where nothing has to be compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import llvmlite.binding as llvm
import pytest

from tensorsmith.targets.cpu import compiler, host
from tensorsmith.targets.cpu.disk_cache import DiskCache
from tensorsmith.targets.cpu.image import images_run_here

PROGRAM = """
import sys
import tensorsmith as ts
x = ts.arange(6.0)
found = (x * 2 + 1).sum().item(), ts.compile(lambda x: x.softmax(0))(x).sum().item()
print(*found, "llvmlite" in sys.modules)
"""


@pytest.mark.skipif(not images_run_here() or host.cpu_identity() is None, reason="elsewhere LLVM is asked, and links")
def test_a_warm_process_does_not_load_the_code_generator(tmp_path):
    environment = dict(os.environ, TENSORSMITH_CACHE=str(tmp_path / "cache"))
    said = []
    for _ in range(2):
        out = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300)
        said.append(out.stdout.split())
    assert said[0][2:] == ["True"] and said[1][2:] == ["False"]
    assert said[0][:2] == said[1][:2] and float(said[0][0]) == 36.0


def test_the_answer_is_llvms_and_is_kept_for_one_cpu(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path)
    monkeypatch.setattr(compiler, "disk_cache", lambda: cache)
    asked = []
    original = host._asked
    monkeypatch.setattr(host, "_asked", lambda: asked.append(1) or original())
    monkeypatch.setattr(host, "cpu_identity", lambda: "one")
    first = host.host()
    assert (first.triple, first.cpu) == (llvm.get_default_triple(), llvm.get_host_cpu_name())
    assert host.host() == first and len(asked) == 1
    monkeypatch.setattr(host, "cpu_identity", lambda: "another")
    assert host.host() == first and len(asked) == 2
    for entry in cache.folder.iterdir():
        cache.store(entry.stem, b"[]")  # whole, but nothing that we wrote
    assert host.host() == first and len(asked) == 3
    monkeypatch.setattr(host, "cpu_identity", lambda: None)  # not Linux
    assert host.host() == first and len(asked) == 4


def test_the_identity_of_a_cpu(tmp_path):
    file = tmp_path / "cpuinfo"
    block = "processor\t: 0\nvendor_id\t: A\ncpu family\t: 6\nmodel\t\t: 1\nmodel name\t: B\nstepping\t: 2\n"
    block += "cpu MHz\t: {}\nflags\t: {}\n"
    file.write_text(block.format(2000, "fpu avx2") + "\n" + block.format(2000, "fpu"))
    first = host.cpu_identity(str(file))
    assert first is not None and "fpu avx2" in first
    file.write_text(block.format(3000, "fpu avx2") + "\n")
    assert host.cpu_identity(str(file)) == first  # its frequency is not
    file.write_text(block.format(3000, "fpu avx2 amx_tile") + "\n")
    assert host.cpu_identity(str(file)) not in (None, first)
    file.write_text("processor: 0\nmodel name: of another architecture\n")
    assert host.cpu_identity(str(file)) is None and host.cpu_identity(str(tmp_path / "none")) is None
