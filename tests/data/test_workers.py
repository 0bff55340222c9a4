"""Worker processes: the same batches, seeds, errors with their traceback, death, time-outs, iterable datasets."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith import data
from tensorsmith.data import shared_batches


class Squares(data.Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, index):
        return {"x": ts.full((2, 3), float(index * index)), "name": f"s{index}", "y": index}


class Faulty(data.Dataset):
    """Sample 5 raises, 7 kills its process, 9 takes long."""

    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == self.bad == 5:
            raise LookupError(f"no sample {index}")
        if index == self.bad == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.bad == 8:
            os._exit(3)
        if index == self.bad == 9:
            time.sleep(60)
        return index


class Draws(data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        info = data.get_worker_info()
        return ts.rand(1), np.random.rand(), info.id, info.seed


class Counting(data.IterableDataset):
    """0 ... size-1, in workers every worker's share."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        info = data.get_worker_info()
        return iter(range(self.size) if info is None else range(info.id, self.size, info.num_workers))


def flat(batches):
    return [(b["x"].tolist(), b["name"], b["y"].tolist()) for b in batches]


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_give_what_one_process_gives(context, persistent):
    passes = []
    for workers in (0, 2):
        ts.manual_seed(3)
        options = {"multiprocessing_context": context, "persistent_workers": persistent} if workers else {}
        loader = data.DataLoader(Squares(), 4, shuffle=True, num_workers=workers, **options)
        passes.append([flat(loader) for _ in range(2)])
    assert passes[0] == passes[1] and passes[0][0] != passes[0][1]


def test_dtypes_aliases_and_whole_structures_travel(tmp_path):
    x = ts.arange(6).reshape(2, 3)
    batch = [x.t(), x, x, ts.ones(3, dtype=ts.bfloat16), ts.zeros(0, 4), ts.tensor(1 + 2j), ts.tensor(True), {"a": (1, None)}]
    got = shared_batches.read(*shared_batches.write(batch, str(tmp_path), "b"))
    for a, b in zip(batch[:-1], got[:-1]):
        assert a.dtype is b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
    assert got[1] is got[2] and got[-1] == batch[-1] and list(tmp_path.iterdir()) == []
    view = got[3]
    del got
    gc.collect()
    assert view.add_(1).tolist() == [2.0] * 3


def test_an_exception_comes_with_its_traceback_and_the_next_pass_works():
    loader = data.DataLoader(Faulty(5), 2, num_workers=2, persistent_workers=True)
    for _ in range(2):
        found = []
        with pytest.raises(LookupError, match=r"(?s)Caught LookupError in DataLoader worker process 0.*no sample 5"):
            for batch in loader:
                found.append(batch.tolist())
        assert found == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("bad", "how"), [(7, "was killed by signal SIGKILL"), (8, "exit code 3")])
def test_a_worker_that_dies_is_named(bad, how):
    loader = data.DataLoader(Faulty(bad), 1, num_workers=2, persistent_workers=True)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"DataLoader worker {bad % 2} \(pid \d+\) .*{how}"):
        list(loader)
    assert time.monotonic() - start < 20
    loader.dataset.bad = None
    assert [batch.item() for batch in loader] == list(range(10))  # new workers


def test_time_out():
    loader = data.DataLoader(Faulty(9), 1, num_workers=1, timeout=0.5)
    with pytest.raises(RuntimeError, match="DataLoader timed out after 0.5 seconds"):
        list(loader)


def test_workers_are_seeded_and_passes_differ():
    ts.manual_seed(7)
    loader = data.DataLoader(Draws(), 2, num_workers=2)
    first, second = list(loader), list(loader)
    ts.manual_seed(7)
    again = list(data.DataLoader(Draws(), 2, num_workers=2, persistent_workers=True))
    for a, b in zip(first, again):
        assert [x.tolist() for x in a] == [x.tolist() for x in b]
    assert [b[2].tolist() for b in first] == [[0, 0], [1, 1], [0, 0], [1, 1]]
    assert first[1][3][0].item() == first[0][3][0].item() + 1
    draws = [x.item() for batch in first + second for x in batch[0].flatten()]
    assert len(set(draws)) == len(draws)
    assert data.get_worker_info() is None


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize(("size", "drop_last"), [(10, False), (11, True), (0, False)])
def test_iterable_datasets(workers, size, drop_last):
    loader = data.DataLoader(Counting(size), 2, num_workers=workers, drop_last=drop_last)
    for _ in range(2):
        batches = [batch.tolist() for batch in loader]
        if not drop_last:
            assert sorted(x for batch in batches for x in batch) == list(range(size))
        assert all(len(batch) == 2 for batch in batches) or not drop_last
    assert [x for x in data.DataLoader(Counting(3), None)] == [0, 1, 2]


def test_iterable_datasets_of_persistent_workers_start_again():
    loader = data.DataLoader(Counting(7), 2, num_workers=2, persistent_workers=True)
    passes = [[batch.tolist() for batch in loader] for _ in range(3)]
    assert passes[0] == passes[1] == passes[2] and sorted(sum(passes[0], [])) == list(range(7))
    with pytest.raises(TypeError):
        len(loader)
    assert list(Counting(2) + Counting(3)) == [0, 1, 0, 1, 2]


def test_a_pass_that_is_left_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_batches, "new_folder", lambda: tempfile.mkdtemp(dir=tmp_path))
    for persistent in (False, True):
        loader = data.DataLoader(Squares(), 2, num_workers=2, persistent_workers=persistent)
        for batch in loader:
            assert batch["y"].tolist() == [0, 1]
            break
        assert flat(loader)[0][2] == [0, 1]
        other = iter(loader)
        next(other)
        assert flat(loader)[1][2] == [2, 3]
        del loader, other, batch
        gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_init_order_and_kernels_in_workers():
    def init(worker):
        np.random.seed(worker)

    loader = data.DataLoader(Draws(), 4, num_workers=2, worker_init_fn=init)
    assert [batch[1][0].item() for batch in loader] == [np.random.RandomState(i).rand() for i in range(2)]
    unordered = data.DataLoader(Squares(), 4, num_workers=2, in_order=False)
    assert sorted(y for b in unordered for y in b["y"].tolist()) == list(range(23))
    big = ts.ones(500, 500)
    assert (big @ big).sum().item() == 500**3  # the threads of this process run before and after the fork
    heavy = data.DataLoader([1, 2, 3], 1, num_workers=2, collate_fn=lambda rows: (big @ big * rows[0]).sum())
    assert [x.item() for x in heavy] == [500**3, 2 * 500**3, 3 * 500**3]


def test_a_failing_init_function_is_named():
    def init(worker):
        raise OSError("no such disk")

    with pytest.raises(OSError, match=r"(?s)worker process 0.*no such disk"):
        list(data.DataLoader([1], num_workers=1, worker_init_fn=init))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_workers": -1}, "num_workers option should be non-negative"),
        ({"timeout": -1}, "timeout option should be non-negative"),
        ({"prefetch_factor": 2}, "prefetch_factor=2 option could only"),
        ({"persistent_workers": True}, "persistent_workers option needs"),
        ({"multiprocessing_context": "fork"}, "multi-process loading"),
    ],
)
def test_options_that_make_no_sense(options, text):
    with pytest.raises(ValueError, match=text):
        data.DataLoader([1], **options)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_iterable_datasets_decide_their_order(options):
    with pytest.raises(ValueError, match="DataLoader with IterableDataset: expected unspecified"):
        data.DataLoader(Counting(3), **options)
