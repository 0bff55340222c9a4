"""The disk cache under corruption, kills, other processes and missing or foreign folders."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tensorsmith.targets.cpu import disk_cache
from tensorsmith.targets.cpu.disk_cache import _HEADER, DiskCache

# Compiles kernels f0, f1, ... through the cache named by the environment and checks what they return.
SCRIPT = """
import ctypes, sys
from tensorsmith.targets.cpu.compiler import compile_functions, statistics
for i in range(int(sys.argv[1])):
    address, = compile_functions(f"define i32 @f{i}() {{\\n ret i32 {i}\\n}}", [f"f{i}"])
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == i
print(statistics().compiled, statistics().loaded)
"""


def start(count: int, **environment: str) -> subprocess.Popen[str]:
    settings = {k: v for k, v in os.environ.items() if k not in ("TENSORSMITH_CACHE", "XDG_CACHE_HOME")}
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(count)]
    return subprocess.Popen(
        command, env=settings | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, int]:
    """(compiled, loaded) of a process that must have succeeded."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    compiled, loaded = out.split()
    return int(compiled), int(loaded)


def objects(root: Path) -> list[Path]:
    """The entries that are kernels: what LLVM says about the machine lies there too, as a list in JSON."""
    found = sorted((root / "objects").glob("*.object"))
    return [path for path in found if path.read_bytes()[_HEADER : _HEADER + 1] != b"["]


def test_store_and_load(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "new" / "cache")
    payload = os.urandom(5000)
    assert cache.load("k") is None
    assert cache.store("k", payload)
    assert cache.store("empty", b"")
    assert cache.load("k") == payload
    assert cache.load("empty") == b""
    assert DiskCache(tmp_path / "new" / "cache").load("k") == payload
    folder = tmp_path / "new" / "cache" / "objects"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "k.object").stat().st_mode) == 0o600


def test_every_damaged_entry_is_noticed_and_removed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    payload = bytes(range(200))
    cache.store("k", payload)
    path = cache.path("k")
    assert path is not None
    whole = path.read_bytes()
    damaged = [whole[:n] for n in range(len(whole))]  # truncated anywhere
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]  # one bit flipped
    damaged += [whole + b"\0", os.urandom(300)]
    for entry in damaged:
        path.write_bytes(entry)
        assert cache.load("k") is None
        assert not path.exists()
    path.write_bytes(whole)
    assert cache.load("k") == payload


def test_processes_rebuild_damaged_entries(tmp_path: Path) -> None:
    assert finish(start(4, TENSORSMITH_CACHE=str(tmp_path))) == (4, 0)
    assert finish(start(4, TENSORSMITH_CACHE=str(tmp_path))) == (0, 4)
    one, two, *_ = objects(tmp_path)
    one.write_bytes(one.read_bytes()[:-9])
    two.write_bytes(b"")
    assert finish(start(4, TENSORSMITH_CACHE=str(tmp_path))) == (2, 2)
    assert finish(start(4, TENSORSMITH_CACHE=str(tmp_path))) == (0, 4)


def test_an_intact_entry_that_is_not_an_object_is_rebuilt(tmp_path: Path) -> None:
    finish(start(1, TENSORSMITH_CACHE=str(tmp_path)))
    (path,) = objects(tmp_path)
    DiskCache(tmp_path).store(path.stem, b"not an object file")
    assert finish(start(1, TENSORSMITH_CACHE=str(tmp_path))) == (1, 1)
    assert finish(start(1, TENSORSMITH_CACHE=str(tmp_path))) == (0, 1)


def test_two_processes_share_an_empty_cache(tmp_path: Path) -> None:
    processes = [start(30, TENSORSMITH_CACHE=str(tmp_path / "c")) for _ in range(3)]
    for process in processes:
        compiled, loaded = finish(process)
        assert compiled + loaded == 30
    assert len(objects(tmp_path / "c")) == 30
    assert not list((tmp_path / "c" / "objects").glob("*.partial"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are Unix")
def test_killed_at_any_moment_the_cache_stays_usable(tmp_path: Path) -> None:
    generator = random.Random(1)
    payloads = {f"key{i}": random.Random(i).randbytes(200_000) for i in range(4)}
    killed = 0
    for _ in range(60):
        child = os.fork()
        if child == 0:
            cache = DiskCache(tmp_path)
            while True:
                for key, payload in payloads.items():
                    cache.store(key, payload)
        time.sleep(generator.uniform(0.0, 0.012))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        for path in objects(tmp_path):  # a reader sees a whole entry or none
            assert DiskCache(tmp_path).load(path.stem) == payloads[path.stem]
            assert path.exists()
    assert killed == 60
    assert objects(tmp_path)
    # What the dead left behind goes once it is old.
    cache = DiskCache(tmp_path)
    left = list((tmp_path / "objects").glob("*.partial"))
    cache.sweep()
    assert list((tmp_path / "objects").glob("*.partial")) == left
    for path in left:
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    cache.sweep()
    assert not list((tmp_path / "objects").glob("*.partial"))
    assert all(cache.load(key) == payload for key, payload in payloads.items() if cache.path(key) in objects(tmp_path))


def test_killed_compiler_process(tmp_path: Path) -> None:
    for delay in (0.15, 0.25, 0.35):
        process = start(400, TENSORSMITH_CACHE=str(tmp_path))
        time.sleep(delay)
        process.kill()
        process.communicate()
    compiled, loaded = finish(start(40, TENSORSMITH_CACHE=str(tmp_path)))
    assert compiled + loaded == 40


def test_no_home_and_unwritable_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a home that is a file: nothing can be made in it, not even by root")
    assert finish(start(2, HOME=str(tmp_path / "file"))) == (2, 0)
    assert finish(start(2, HOME="/proc/self")) == (2, 0)
    assert finish(start(2, TENSORSMITH_CACHE="off", HOME=str(tmp_path / "file"))) == (2, 0)


def test_read_only_cache_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskCache(tmp_path).store("k", b"payload")

    def refuse(*arguments: object, **more: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(disk_cache.tempfile, "mkstemp", refuse)
    cache = DiskCache(tmp_path)
    assert cache.load("k") == b"payload"
    assert cache.store("other", b"x") is False
    assert cache.load("other") is None


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_cache.os, "replace", full)
    assert DiskCache(tmp_path).store("k", b"x" * 1000) is False
    assert list((tmp_path / "objects").iterdir()) == []


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskCache(tmp_path).store("k", b"machine code of somebody else")
    owner = os.geteuid()
    monkeypatch.setattr(disk_cache.os, "geteuid", lambda: owner + 1)
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        cache = DiskCache(tmp_path)
    assert cache.folder is None
    assert cache.load("k") is None
    assert not cache.store("j", b"")


def test_loose_permissions_are_tightened(tmp_path: Path) -> None:
    DiskCache(tmp_path)
    (tmp_path / "objects").chmod(0o777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DiskCache(tmp_path)
    assert stat.S_IMODE((tmp_path / "objects").stat().st_mode) == 0o700
    tmp_path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="every user"):
        assert DiskCache(tmp_path).folder is None


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, capacity=10_000)
    for i in range(12):
        cache.store(f"k{i:02}", bytes(1000))
        path = cache.path(f"k{i:02}")
        assert path is not None
        os.utime(path, (1e9 + i, 1e9 + i))
    assert cache.load("k00") is not None  # its time stamp is old, so reading renews it
    cache.sweep()
    kept = {path.stem for path in objects(tmp_path)}
    assert "k00" in kept and "k11" in kept and "k01" not in kept
    assert sum(path.stat().st_size for path in objects(tmp_path)) <= 8000


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("TENSORSMITH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert disk_cache.default_root()[0] == "/home/someone/.cache/tensorsmith"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert disk_cache.default_root()[0] == "/home/someone/.cache/tensorsmith"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert disk_cache.default_root()[0] == "/x/tensorsmith"
    monkeypatch.setenv("TENSORSMITH_CACHE", "/y")
    assert disk_cache.default_root()[0] == "/y"
    monkeypatch.setenv("TENSORSMITH_CACHE", "off")
    assert disk_cache.default_root()[0] is None
    monkeypatch.delenv("TENSORSMITH_CACHE")
    monkeypatch.setenv("TENSORSMITH_CACHE_BYTES", "much")
    with pytest.raises(ValueError, match="TENSORSMITH_CACHE_BYTES"):
        disk_cache.open_default()
