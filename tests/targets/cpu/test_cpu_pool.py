"""The thread pool: every chunk once, nested and concurrent callers, fork, resizing, exit."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from native_kernels import NESTED, TEXT, kernel

from tensorsmith.targets.cpu import pool
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.launch import RELEASE_GIL, Recipe, launch
from tensorsmith.targets.cpu.pool_text import STATE, linux_architectures, pool_text

threaded = pytest.mark.skipif(not pool.supported()[0], reason=pool.supported()[1] or "threads are supported")


@pytest.fixture(params=[2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """A number of threads; the former one comes back afterwards."""
    before = pool.get_num_threads()
    pool.set_num_threads(request.param)
    yield request.param
    pool.set_num_threads(before)


def words(count: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * max(1, count))()


@threaded
def test_every_chunk_runs_exactly_once(threads: int) -> None:
    generator = random.Random(0)
    marks, counts = words(3000), words(3000)
    recipes = {n: Recipe(kernel("mark"), n, 2) for n in [*range(0, 65), 1000, 3000]}
    expected = [0] * 3000
    for _ in range(6000):
        n = generator.choice([0, 1, 2, 3, 5, 8, 13, 64, generator.randrange(65)])
        if generator.random() < 0.01:
            n = generator.choice([1000, 3000])
        for i in range(n):
            expected[i] += 1
        assert launch(recipes[n].address, ctypes.addressof(marks), ctypes.addressof(counts)) is None
        if n:
            assert counts[0] == n and counts[n - 1] == n
    assert list(marks) == expected
    assert pool.worker_count() == threads - 1


@threaded
def test_sleeping_workers_wake(threads: int) -> None:
    counter = ctypes.c_int64(0)
    recipe = Recipe(kernel("slow"), 8, 1, [20_000])
    for pause in (0.0, 0.0002, 0.002, 0.01) * 5:
        time.sleep(pause)
        launch(recipe.address, ctypes.addressof(counter))
    assert counter.value == 8 * 20


@threaded
def test_two_threads_launch_at_once(threads: int) -> None:
    counters = [ctypes.c_int64(0) for _ in range(4)]
    recipes = [Recipe(kernel("slow"), n, 1, [300], RELEASE_GIL) for n in (2, 3, 7, 16)]

    def work(number: int) -> None:
        for _ in range(2000):
            launch(recipes[number].address, ctypes.addressof(counters[number]))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [counter.value for counter in counters] == [4000, 6000, 14000, 32000]


@threaded
def test_a_nested_job_runs_serially(threads: int) -> None:
    symbols = {"execute": pool.native_pool().execute, "count": kernel("count")}
    (nested,) = compile_functions(NESTED, ["nested"], symbols=symbols)
    counter = ctypes.c_int64(0)
    recipe = Recipe(nested, 6, 1, [5])
    for _ in range(300):
        launch(recipe.address, ctypes.addressof(counter))
    assert counter.value == 300 * 30


@threaded
def test_resizing_between_and_during_jobs() -> None:
    before = pool.get_num_threads()
    counter = ctypes.c_int64(0)
    recipe = Recipe(kernel("slow"), 9, 1, [2000], RELEASE_GIL)
    stop = threading.Event()
    launches = 0

    def work() -> None:
        nonlocal launches
        while not stop.is_set():
            launch(recipe.address, ctypes.addressof(counter))
            launches += 1

    caller = threading.Thread(target=work)
    caller.start()
    for n in (1, 3, 2, 5, 1, 4) * 3:
        pool.set_num_threads(n)
        assert pool.get_num_threads() == n
        time.sleep(0.003)
        assert pool.worker_count() <= n - 1
    stop.set()
    caller.join()
    pool.set_num_threads(before)
    assert launches > 0 and counter.value == 9 * launches


def test_set_num_threads_checks() -> None:
    for wrong in (2.0, "2", True, None):
        with pytest.raises(TypeError, match="set_num_threads"):
            pool.set_num_threads(wrong)  # type: ignore[arg-type]
    for wrong in (0, -1, 513):
        with pytest.raises(ValueError, match=str(wrong)):
            pool.set_num_threads(wrong)


def test_where_threads_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.sys, "platform", "darwin")
    assert not pool.supported()[0] and "darwin" in pool.supported()[1]
    assert pool.get_num_threads() == 1
    with pytest.raises(RuntimeError, match="darwin"):
        pool.set_num_threads(2)
    # The serial module, which is what runs there.
    execute, state = compile_functions(pool_text(None), ["execute", "pool_state"])
    marks, counts = words(9), words(9)
    arguments = (ctypes.c_int64 * 2)(ctypes.addressof(marks), ctypes.addressof(counts))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(execute)(kernel("mark"), arguments, 9)
    assert list(marks) == [1] * 9 and list(counts) == [9] * 9
    assert ctypes.c_int32.from_address(state + STATE.WORKERS).value == 0


def test_the_text_is_valid_for_every_architecture() -> None:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for architecture in linux_architectures():
        target = llvm.Target.from_triple(f"{architecture}-unknown-linux-gnu").create_target_machine(reloc="pic")
        code = target.emit_assembly(llvm.parse_assembly(pool_text(architecture)))
        assert "pool_worker" in code and ("pause" in code or "yield" in code)


@threaded
def test_fork_with_a_live_pool(threads: int) -> None:
    counter = ctypes.c_int64(0)
    recipe = Recipe(kernel("slow"), 16, 1, [500])
    launch(recipe.address, ctypes.addressof(counter))
    assert pool.worker_count() == threads - 1
    for _ in range(5):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                fresh = pool.worker_count() == 0
                for _ in range(50):
                    launch(recipe.address, ctypes.addressof(counter))
                new = compile_functions(TEXT + f"; {os.getpid()}", ["count"])[0]  # the compiler works in the child too
                another = Recipe(new, 16, 1)
                launch(another.address, ctypes.addressof(counter))
                if fresh and counter.value == 16 * 52 and pool.worker_count() == threads - 1:
                    code = 0
            finally:
                os._exit(code)
        assert _exit_code(child) == 0
        assert counter.value == 16  # the child counted in its own memory
    launch(recipe.address, ctypes.addressof(counter))
    assert counter.value == 32


@threaded
def test_fork_while_other_threads_launch_and_compile(threads: int) -> None:
    counter = ctypes.c_int64(0)
    recipe = Recipe(kernel("slow"), 8, 1, [20_000], RELEASE_GIL)
    stop = threading.Event()

    def launches() -> None:
        while not stop.is_set():
            launch(recipe.address, ctypes.addressof(counter))

    def compiles() -> None:
        n = 0
        while not stop.is_set():
            compile_functions(TEXT + f"; while forking {n}", ["empty"])
            n += 1

    others = [threading.Thread(target=launches), threading.Thread(target=compiles)]
    for thread in others:
        thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    mine = ctypes.c_int64(0)
                    launch(recipe.address, ctypes.addressof(mine))
                    new = compile_functions(TEXT + "; in the child", ["count"])[0]
                    another = Recipe(new, 5, 1)
                    launch(another.address, ctypes.addressof(mine))
                    code = 0 if mine.value == 13 else 2
                finally:
                    os._exit(code)
            assert _exit_code(child) == 0
    finally:
        stop.set()
        for thread in others:
            thread.join()


def _exit_code(child: int, seconds: float = 30.0) -> int:
    """The exit code of a child; one that hangs is killed and counts as -9."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


EXIT = """
import atexit, ctypes, os, sys, threading
sys.path.insert(0, {folder!r})
counter = ctypes.c_int64(0)
class Late:
    def __del__(self):
        launch(recipe.address, ctypes.addressof(counter))
        os.write(1, b"late %d\\n" % counter.value)
def after():  # registered before the pool's own handler, so it runs after the workers have gone
    launch(recipe.address, ctypes.addressof(counter))
    print("after", counter.value, pool.worker_count(), flush=True)
atexit.register(after)
from native_kernels import kernel
from tensorsmith.targets.cpu import pool
from tensorsmith.targets.cpu.launch import Recipe, launch
pool.set_num_threads(3)
recipe = Recipe(kernel("count"), 4, 1)
launch(recipe.address, ctypes.addressof(counter))
print("workers", pool.worker_count(), flush=True)
{last}
"""


@threaded
@pytest.mark.parametrize("last, code", [("", 0), ("sys.exit(3)", 3), ("late = Late()", 0), ("raise KeyError", 1)])
def test_the_process_ends_cleanly(last: str, code: int) -> None:
    script = EXIT.format(folder=os.path.dirname(__file__), last=last)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    expected = ["workers 2", "after 8 0"] + (["late 12"] if "Late" in last else [])
    assert done.stdout.split("\n")[:-1] == expected
    if code != 1:
        assert done.stderr == ""
