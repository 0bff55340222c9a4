"""Devices, memory, copies, streams, errors and kernels' launches, on the emulated device."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


from tensorsmith.targets.cpu.launch import launch  # noqa: E402
from tensorsmith.targets.cuda import (  # noqa: E402
    allocator,
    copies,
    devices,
    driver,
    driver_memory,
    launcher,
    memory,
    memory_report,
    modules,
    pinned,
)
from tensorsmith.targets.cuda.kernel import Constant, ErrorWord, Launch, Lowered, Word  # noqa: E402
from tensorsmith.targets.cuda.streams import Event, ExternalStream, Stream, StreamContext, current_stream  # noqa: E402

MB = 1 << 20


@pytest.fixture(autouse=True)
def clean():
    yield
    allocator.empty_cache()
    assert allocator.current_stream(0) == 0


def take(nbytes, index=0):
    return memory.allocate(nbytes, index), memory.free_list(nbytes, index)


SIZES = [0, 1, 511, 512, 513, 4096, 4097, 5000, 65537, 256 << 10, (256 << 10) + 1, MB, MB + 1, 5 * MB]


@pytest.mark.parametrize("nbytes", SIZES)
def test_blocks_hold_what_is_asked(nbytes):
    address, free = take(nbytes)
    size = allocator.size_class(nbytes)
    assert nbytes <= size <= max(512, nbytes * 1.25 + 512)
    assert (address % 512, size % 512) == (0, 0)
    copies.fill_zero(address, size, 0)
    free.append(address)
    assert memory.allocate(nbytes, 0) == address
    free.append(address)


def test_blocks_do_not_overlap():
    rng = np.random.default_rng(3)
    held = []
    for nbytes in rng.integers(1, 600_000, 60).tolist():
        address, free = take(nbytes)
        held.append((address, allocator.size_class(nbytes), free))
    order = sorted(held, key=lambda block: block[0])
    assert all(a + size <= b for (a, size, _), (b, _, _) in zip(order, order[1:]))
    for address, _, free in held:
        free.append(address)


def test_books():
    before, taken = memory_report.allocated(0), memory_report.reserved(0)
    memory_report.reset_peaks(0)
    small, small_free = take(1000)
    large, large_free = take(3 * MB)
    assert memory_report.allocated(0) - before == 1024 + 3 * MB
    assert memory_report.reserved(0) - taken in (3 * MB, 5 * MB)
    small_free.append(small)
    large_free.append(large)
    assert memory_report.allocated(0) == before
    assert memory_report.most_allocated(0) >= before + 3 * MB
    assert memory_report.reserved(0) - taken in (3 * MB, 5 * MB)
    assert allocator.empty_cache(0) == 3 * MB
    assert memory_report.most_reserved(0) >= taken + 3 * MB
    memory_report.reset_peaks(0)
    assert memory_report.most_allocated(0) == memory_report.allocated(0)
    assert "in use by tensors" in memory_report.summary(0)
    stats = memory_report.statistics(0)
    assert stats["allocated_bytes.all.current"] == before
    assert stats["reserved_bytes.all.current"] == memory_report.reserved(0)


def test_out_of_memory_says_what_there_is():
    free, total = driver_memory.information(0)
    held, held_free = take(total // 2)
    idle, idle_free = take(total // 4)
    idle_free.append(idle)
    other, other_free = take(total // 3)  # needs what lies idle
    with pytest.raises(memory.OutOfMemoryError, match="out of memory on cuda:0") as caught:
        memory.allocate(total // 2 + 5, 0)
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert (error.asked, error.total) == (total // 2 + 5, total)
    assert error.allocated >= total // 2 + total // 3
    assert error.largest < total // 4
    assert f"{allocator.readable(error.asked)}" in str(error)
    held_free.append(held)
    again, again_free = take(total // 2 + 5)
    other_free.append(other)
    again_free.append(again)


def test_a_cap():
    allocator.set_cap(memory_report.reserved(0) + 10 * MB, 0)
    try:
        block, free = take(8 * MB)
        with pytest.raises(memory.OutOfMemoryError, match="set_per_process_memory_fraction"):
            memory.allocate(4 * MB, 0)
        free.append(block)
        other, other_free = take(9 * MB)
        other_free.append(other)
    finally:
        allocator.set_cap(None, 0)


def test_blocks_belong_to_streams():
    place = memory.current_list(2 * MB, 0)
    before = place.free
    block, free = take(2 * MB)
    side = Stream(0)
    with StreamContext(side):
        assert place.free is memory.free_list(2 * MB, 0) is not before
        free.append(block)  # still the default stream's
        other, other_free = take(2 * MB)
        assert other != block
        other_free.append(other)
    assert place.free is before
    assert memory.allocate(2 * MB, 0) == block
    with StreamContext(side):
        assert memory.allocate(2 * MB, 0) == other
        other_free.append(other)
    free.append(block)


def test_recorded_streams_hold_a_block(monkeypatch):
    block, free = take(2 * MB)
    side = Stream(0)
    stand_in = memory.record_stream(free, 0, side.cuda_stream)
    assert memory.record_stream(stand_in, 0, side.cuda_stream) is stand_in
    done = False
    monkeypatch.setattr(allocator, "event_done", lambda event, index: done)
    stand_in.append(block)
    other = memory.allocate(2 * MB, 0)
    assert other != block
    done = True
    assert memory.allocate(2 * MB, 0) == block
    free.append(block)
    free.append(other)


def test_private_pools():
    with memory.private_pool(0) as pool:
        block, free = take(1000)
        free.append(block)
        assert memory.allocate(1000, 0) == block
    outside, outside_free = take(1000)
    assert outside_free is not free
    free.append(block)
    with memory.private_pool(0, pool):
        assert memory.allocate(1000, 0) == block
    taken = memory_report.reserved(0)
    pool.release()
    assert memory_report.reserved(0) == taken
    free.append(block)
    assert memory_report.reserved(0) == taken - 1024
    with pytest.raises(ValueError, match="was released"), memory.private_pool(0, pool):
        pass
    outside_free.append(outside)


def test_a_users_allocator():
    calls = []

    def allocate(nbytes, device, stream):
        calls.append(("allocate", nbytes, device, stream))
        return 0 if nbytes > 100 * MB else int(driver.call("cuMemAlloc", nbytes))

    def free(address, nbytes, device, stream):
        calls.append(("free", nbytes, device, stream))
        driver.call("cuMemFree", address)

    memory.set_allocator(allocate, free)
    try:
        block, blocks = take(7 * MB)
        blocks.append(block)
        with pytest.raises(memory.OutOfMemoryError):
            memory.allocate(101 * MB, 0)
    finally:
        memory.set_allocator(None, None)
    assert calls[:2] == [("allocate", 7 * MB, 0, 0), ("allocate", 104 * MB, 0, 0)]
    assert ("free", 7 * MB, 0, 0) in calls
    with pytest.raises(TypeError, match="needs both"):
        memory.set_allocator(allocate, None)


@pytest.mark.parametrize("nbytes", [1, 100, copies.SMALL, copies.SMALL + 1, 5 * MB + 3, 83 * MB + 1])
@pytest.mark.parametrize("kind", ["pageable", "pinned"])
def test_copies(nbytes, kind):
    content = np.random.default_rng(nbytes).integers(0, 255, nbytes, np.uint8)
    if kind == "pinned":
        source, back = pinned.allocate(nbytes), pinned.allocate(nbytes)
        ctypes.memmove(source, content.ctypes.data, nbytes)
    else:
        landed = np.zeros_like(content)
        source, back = content.ctypes.data, landed.ctypes.data
    block, free = take(nbytes)
    other, other_free = take(nbytes, 1)
    third, third_free = take(nbytes)
    copies.copy_to_device(block, source, nbytes, 0, blocking=False)
    copies.copy_on_device(other, 1, block, 0, nbytes)
    copies.copy_on_device(third, 0, other, 1, nbytes)
    copies.copy_on_device(block, 0, third, 0, nbytes)
    copies.copy_to_host(back, block, nbytes, 0)
    assert ctypes.string_at(back, nbytes) == content.tobytes()
    if kind == "pinned":
        assert pinned.is_pinned(source, nbytes)
        assert not pinned.is_pinned(content.ctypes.data)
        pinned.free_list(nbytes).append(source)
        pinned.free_list(nbytes).append(back)
    for list_, address in ((free, block), (other_free, other), (third_free, third)):
        list_.append(address)


def test_many_small_copies():
    """More than the ring of pinned memory holds, from several threads, on several devices."""
    from concurrent.futures import ThreadPoolExecutor

    def work(seed):
        rng = np.random.default_rng(seed)
        index = seed % 2
        for nbytes in rng.integers(1, copies.SMALL, 40).tolist():
            content = rng.integers(0, 255, nbytes, np.uint8)
            block, free = take(nbytes, index)
            sent = content.copy()
            copies.copy_to_device(block, sent.ctypes.data, nbytes, index)
            sent[:] = 0
            landed = np.zeros_like(content)
            copies.copy_to_host(landed.ctypes.data, block, nbytes, index)
            free.append(block)
            assert np.array_equal(landed, content)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(6)))


def test_pinned_blocks_wait_for_their_copies(monkeypatch):
    nbytes = 70_000
    source = pinned.allocate(nbytes)
    block, free = take(nbytes)
    done = False
    monkeypatch.setattr(allocator, "event_done", lambda event, index: done)
    copies.copy_to_device(block, source + 100, 1000, 0, blocking=False)
    pinned.free_list(nbytes).append(source)
    other = pinned.allocate(nbytes)
    assert other != source
    done = True
    assert pinned.allocate(nbytes) == source
    for address in (source, other):
        pinned.free_list(nbytes).append(address)
    free.append(block)
    assert pinned.empty_cache() > 0
    assert not pinned.is_pinned(source)


def test_waiting_can_be_reported():
    block, free = take(100)
    host = np.zeros(100, np.uint8)
    copies.set_wait_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchronizing"):
            copies.copy_to_host(host.ctypes.data, block, 100, 0)
        copies.set_wait_mode(2)
        with pytest.raises(RuntimeError, match="synchronizing"):
            copies.copy_to_host(host.ctypes.data, block, 100, 0)
    finally:
        copies.set_wait_mode(0)
    with pytest.raises(ValueError, match="default, warn, error"):
        copies.set_wait_mode("loud")
    free.append(block)


def test_streams_and_events():
    first, second = Stream(0), Stream(0, priority=-1)
    assert first != second
    assert first == Stream.of_handle(first.cuda_stream, 0)
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    assert start.query()
    with StreamContext(first):
        assert current_stream() == first
        start.record()
        second.wait_stream(first)
        second.wait_event(start)
        end.record()
    end.synchronize()
    first.synchronize()
    assert first.query()
    assert start.elapsed_time(end) >= 0
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(Event())
    other = Stream(1)
    with StreamContext(other):
        assert devices.current_device() == 1
        with pytest.raises(ValueError, match="event is of cuda:0"):
            start.record()
    assert devices.current_device() == 0
    assert ExternalStream(first) == first
    assert len({Stream(0).cuda_stream for _ in range(70)}) <= 32
    with StreamContext(None):
        assert current_stream().cuda_stream == 0


ADD = """extern "C" __global__ void add(const float* a, const float* b, float* c, const long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}"""
FAIL = 'extern "C" __global__ void fail(long long* error, long long code) { if (code) *error = code; }'


def failing(exception=IndexError):
    lowered = Lowered("take", (Launch(FAIL, "fail", (1, 1, 1), (1, 1, 1), (ErrorWord(), Word(0))),), 1)
    return launcher.recipe(lowered, 0, lambda code: exception(f"code {code}"))


@pytest.mark.parametrize("index", [0, 1])
def test_a_kernel_runs_on_its_device(index):
    n = 1000
    a, b = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    blocks = [take(4 * n, index) for _ in range(3)]
    addresses = [address for address, _ in blocks]
    for address, array in zip(addresses, (a, b)):
        copies.copy_to_device(address, array.ctypes.data, array.nbytes, index)
    arguments = (Word(0), Word(1), Word(2), Constant((n,)))
    recipe = launcher.recipe(Lowered("add", (Launch(ADD, "add", (4, 1, 1), (256, 1, 1), arguments),), 3), index)
    assert launch(recipe.address, *addresses) is None
    c = np.zeros(n, np.float32)
    copies.copy_to_host(c.ctypes.data, addresses[2], c.nbytes, index)
    assert np.array_equal(c, a + b)
    for address, free in blocks:
        free.append(address)


def test_kernels_report_where_the_host_waits():
    recipe, other = failing(), failing(ZeroDivisionError)
    assert launch(recipe.address, 0) is None
    copies.synchronize(0)
    assert launch(recipe.address, 5) is None
    assert launch(other.address, 6) is None
    with pytest.raises((IndexError, ZeroDivisionError), match="code [56]"):
        copies.synchronize(0)
    copies.synchronize(0)  # told once
    launch(recipe.address, 7)
    with pytest.raises(IndexError, match="code 7"):
        current_stream(0).synchronize()


def test_debugging_raises_at_the_launch():
    recipe = failing()
    devices.set_debug(True)
    try:
        assert devices.debug()
        code = launch(recipe.address, 9)
    finally:
        devices.set_debug(False)
    assert str(launcher.failed(recipe, code)) == "code 9"
    copies.synchronize(0)


def test_error_words_are_used_again():
    words = set()
    for _ in range(1200):
        recipe = failing()
        words.add(recipe.keep.slot.host)
        del recipe
        copies.synchronize(0)
    assert len(words) < 1100


def test_a_launch_that_the_driver_refuses():
    lowered = Lowered("big", (Launch(FAIL, "fail", (1, 1, 1), (2048, 1, 1), (ErrorWord(), Word(0))),), 1)
    recipe = launcher.recipe(lowered, 0)
    error = launcher.failed(recipe, launch(recipe.address, 0))
    assert isinstance(error, driver.CudaError)
    assert "kernel fail of big" in str(error)


def test_modules_are_kept():
    source = ADD.replace("add", "add_once")
    before = modules.statistics.loaded
    first = modules.function(source, "add_once", 0)
    assert modules.function(source, "add_once", 0, 100_000) == first
    assert modules.statistics.loaded == before + 1
    modules.function(source, "add_once", 1)
    assert modules.statistics.loaded == before + 2
    texts = [(ADD.replace("add", f"many{i}"), f"many{i}") for i in range(3)]
    modules.compile_many(texts, devices.properties(0).architecture)
    compiled = modules.statistics.compiled + modules.statistics.from_disk
    for source, name in texts:
        modules.function(source, name, 0)
    assert modules.statistics.compiled + modules.statistics.from_disk == compiled


def test_devices_that_are_not_there():
    with pytest.raises(ValueError, match="no CUDA device 9: this machine has devices 0 to 1"):
        devices.set_device(9)
    with pytest.raises(ValueError, match="no CUDA device"):
        memory.allocate(10, 7)


def program(text: str, **environment: str) -> str:
    """What a program prints that runs on the emulated device."""
    text = "import sys; sys.path.insert(0, sys.argv[1]); import emulator; emulator.activate()\n" + text
    done = subprocess.run(
        [sys.executable, "-c", text, str(TESTS)], capture_output=True, text=True, timeout=120, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_device_gets_a_context_when_it_is_used():
    text = """
import tensorsmith as ts
from tensorsmith.targets.cuda import devices
assert not ts.cuda.is_initialized()
assert ts.cuda.device_count() == 2 and ts.cuda.get_device_properties(0).multi_processor_count == 4
assert devices.used() == []
ts.ones(3, device="cuda:1").sum().item()
x = ts.ones(1 << 20)
x.to("cuda:1").cpu()
x.pin_memory().to("cuda:1", non_blocking=True)
ts.cuda.Stream(device=1).synchronize()
ts.cuda.synchronize("cuda:1")
ts.cuda.mem_get_info(1)
ts.cuda.empty_cache()
print(devices.used())
"""
    assert program(text).strip() == "[1]"


def test_a_forked_child_is_told():
    text = """
import os, tensorsmith as ts
x = ts.ones(3, device="cuda")
child = os.fork()
if not child:
    try:
        x + 1
        x.cpu()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
assert (x + 1).tolist() == [2, 2, 2]
"""
    assert "before this process was forked" in program(text)


def test_the_doctor_launches_a_kernel_on_every_device():
    text = """
from tensorsmith.cli.doctor import _gpus
for finding in _gpus():
    print(finding.verdict, finding.text)
"""
    lines = program(text).splitlines()
    assert [line[:10] for line in lines] == ["OK cuda:0 ", "OK cuda:1 "]
    assert "GiB free" in lines[0]


def test_without_a_driver_the_error_says_what_is_missing():
    text = """
import tensorsmith as ts
for ask in (ts.cuda.init, lambda: ts.ones(1, device="cuda"), ts.cuda.synchronize, ts.ones(1).pin_memory):
    try:
        ask()
    except ts.cuda.CudaUnavailableError as error:
        print(str(error)[:60])
assert not ts.cuda.is_available() and ts.cuda.device_count() == 0 and ts.cuda.memory_allocated() == 0
assert (ts.ones(2) + 1).tolist() == [2, 2]
"""
    hidden = "CUDA_VISIBLE_DEVICES"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, env=os.environ | {hidden: ""}
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all("NVIDIA's" in line for line in lines)


def test_threads_never_share_a_block():
    from concurrent.futures import ThreadPoolExecutor

    held: set[int] = set()
    faults: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for nbytes in rng.choice([700, 5000, 70_000, 2 * MB], 400).tolist():
            address, free = take(nbytes)
            if address in held:
                faults.append(address)
            held.add(address)
            held.discard(address)
            free.append(address)

    before = memory_report.allocated(0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert not faults
    assert memory_report.allocated(0) == before
