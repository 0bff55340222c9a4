"""Batches in pinned memory, and copied ahead to a device; on the emulated device."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.data.device_batches import mapped
from tensorsmith.targets.cuda import allocator, copies


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


Pair = namedtuple("Pair", "a b")


class Box:
    def __init__(self, x):
        self.x = x

    def pin_memory(self):
        return Box(self.x.pin_memory())


def test_structures():
    doubled = mapped({"a": ts.ones(2), "b": [Pair(ts.ones(1), "text"), (3, ts.zeros(1))]}, lambda x: x * 2)
    assert doubled["a"].tolist() == [2, 2]
    assert doubled["b"][0].a.tolist() == [2]
    assert doubled["b"][0].b == "text"
    assert isinstance(doubled["b"][0], Pair)
    assert doubled["b"][1][0] == 3


@pytest.mark.parametrize("make", [
    lambda: ts.arange(12.0).reshape(3, 4), lambda: ts.arange(12.0).reshape(3, 4).t(), lambda: ts.arange(12)[::3],
    lambda: ts.ones(3, 1).expand(3, 2), lambda: ts.tensor(5), lambda: ts.ones(0, 3),
])  # fmt: skip
def test_pin_memory(make):
    x = make()
    pinned = x.pin_memory()
    assert not x.is_pinned()
    assert pinned.is_pinned() == bool(x.numel())
    assert (pinned.tolist(), pinned.dtype, pinned.device) == (x.tolist(), x.dtype, x.device)
    if x.numel():
        assert pinned.pin_memory() is pinned
        assert pinned.to("cuda", non_blocking=True).cpu().tolist() == x.tolist()
        assert pinned[..., None].is_pinned()
    back = ts.empty(x.shape, dtype=x.dtype, pin_memory=True)
    back.copy_(x.cuda(), non_blocking=True)
    ts.cuda.synchronize()
    assert back.tolist() == x.tolist()


def test_pin_memory_refuses_what_is_on_a_device():
    with pytest.raises(RuntimeError, match="cannot pin a tensor of cuda:0"):
        ts.ones(2, device="cuda").pin_memory()
    assert not ts.ones(2, device="cuda").is_pinned()
    with pytest.raises(RuntimeError, match="needs a tensor of a CUDA device"):
        ts.ones(2).record_stream(ts.cuda.current_stream())


def samples(count):
    return ts.data.TensorDataset(ts.arange(count * 3.0).reshape(count, 3), ts.arange(count))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_pins_its_batches(workers):
    plain = ts.data.DataLoader(samples(10), batch_size=4, num_workers=workers)
    loader = ts.data.DataLoader(samples(10), batch_size=4, num_workers=workers, pin_memory=True)
    for _ in range(2):
        count = 0
        for (x, y), (u, v) in zip(plain, loader):
            assert (u.is_pinned(), v.is_pinned(), x.is_pinned()) == (True, True, False)
            assert (u.tolist(), v.tolist()) == (x.tolist(), y.tolist())
            count += 1
        assert count == len(loader) == 3
    for _ in loader:  # left early
        break


def test_a_loader_asks_objects_to_pin_themselves():
    loader = ts.data.DataLoader([0, 1], collate_fn=lambda batch: Box(ts.tensor(batch)), pin_memory=True)
    assert all(box.x.is_pinned() for box in loader)


@pytest.mark.parametrize("pin", [False, True])
def test_prefetcher(pin):
    loader = ts.data.DataLoader(samples(50), batch_size=4, pin_memory=pin)
    ahead = ts.data.Prefetcher(loader, "cuda:1")
    assert len(ahead) == len(loader)
    for _ in range(2):
        found = [(x.device, (x * 2).cpu().tolist(), y.cpu().tolist()) for x, y in ahead]
        assert found == [(ts.device("cuda:1"), (x * 2).tolist(), y.tolist()) for x, y in loader]
    assert list(ts.data.Prefetcher([])) == []
    assert [x.tolist() for x in ts.data.Prefetcher([ts.ones(2)], "cpu")] == [[1, 1]]


def test_a_prefetched_batch_is_kept_while_the_computation_uses_it(monkeypatch):
    """Blocks of the copying stream go to the copies again only when the stream that computes is done with them."""
    size = 1 << 20
    waiting = []
    monkeypatch.setattr(allocator, "event_done", lambda event, index: waiting.append(event) or False)
    batches = iter(ts.data.Prefetcher([ts.ones(size) for _ in range(4)], "cuda"))
    places = set()
    for x in batches:
        places.add(x.ptr)
        del x
    assert len(places) == 4
    assert waiting


def test_a_tensor_used_on_another_stream(monkeypatch):
    done = False
    monkeypatch.setattr(allocator, "event_done", lambda event, index: done)
    x = ts.ones(1 << 19, device="cuda")
    place = x.ptr
    x.record_stream(ts.cuda.Stream())
    x[3:].record_stream(ts.cuda.Stream())
    del x
    y = ts.ones(1 << 19, device="cuda")
    assert y.ptr != place
    done = True
    assert any(ts.empty(1 << 19, device="cuda").ptr == place for _ in range(2) if allocator.collect_deferred(0) >= 0)


def test_streams_with_tensors():
    a = ts.arange(1000.0, device="cuda")
    side = ts.cuda.Stream()
    assert side.device == ts.device("cuda:0")
    side.wait_stream(ts.cuda.current_stream())
    with ts.cuda.stream(side):
        b = a * 2
        assert ts.cuda.current_stream() == side
    ts.cuda.current_stream().wait_stream(side)
    assert (b + a).cpu().numpy().tolist() == (3 * np.arange(1000.0)).tolist()
    with ts.cuda.device(1):
        assert ts.ones(1, device="cuda").device == ts.device("cuda:1")
    with ts.cuda.device_of(ts.ones(1, device="cuda:1")):
        assert ts.cuda.current_device() == 1
    assert ts.cuda.current_device() == 0


def test_sync_debug_raises_at_the_call():
    x, zero = ts.arange(5, device="cuda"), ts.zeros(5, dtype=ts.int64, device="cuda")
    ts.cuda.set_sync_debug(True)
    try:
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            x // zero
    finally:
        ts.cuda.set_sync_debug(False)
    y = x // zero
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        y.cpu()
    ts.cuda.synchronize()


def test_memory_functions_with_tensors():
    before = ts.cuda.memory_allocated()
    x = ts.empty(3 << 20, dtype=ts.uint8, device="cuda")
    assert ts.cuda.memory_allocated() - before == 3 << 20
    del x
    assert ts.cuda.memory_allocated() == before
    assert ts.cuda.max_memory_allocated() >= before + (3 << 20)
    ts.cuda.empty_cache()
    free, total = ts.cuda.mem_get_info()
    assert 0 < free <= total
    ts.cuda.set_per_process_memory_fraction(0.5)
    try:
        assert ts.cuda.get_per_process_memory_fraction() == pytest.approx(0.5)
        with pytest.raises(ts.cuda.OutOfMemoryError):
            ts.empty(total // 2 + (1 << 20), dtype=ts.uint8, device="cuda")
    finally:
        ts.cuda.set_per_process_memory_fraction(1.0)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        ts.cuda.set_per_process_memory_fraction(2)


def test_random_state():
    ts.cuda.manual_seed(3)
    a = ts.rand(5, device="cuda").cpu().tolist()
    state = ts.cuda.get_rng_state()
    b = ts.rand(5, device="cuda").cpu().tolist()
    ts.cuda.set_rng_state(state)
    assert ts.rand(5).tolist() == b
    ts.cuda.manual_seed_all(3)
    assert ts.rand(5).tolist() == a
    assert ts.cuda.initial_seed() == 3


@pytest.mark.parametrize("pinned_source", [False, True])
def test_large_copies(pinned_source):
    x = ts.randn(3 << 20)
    source = x.pin_memory() if pinned_source else x
    there = source.to("cuda", non_blocking=pinned_source)
    assert there.cpu().equal(x)
    assert copies.SMALL < x.nbytes
