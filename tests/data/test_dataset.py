"""Datasets, samplers and the loader behave as PyTorch's, sample by sample."""

import collections

import numpy as np
import pytest
import torch
import torch.utils.data

import tensorsmith as ts
from tensorsmith import data


def listed(value):
    """Nested Python lists of a batch of either library."""
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [listed(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


ROWS = np.arange(22, dtype=np.float32).reshape(11, 2)
LABELS = np.arange(11)


@pytest.mark.parametrize("batch_size", [1, 3, 4, 11, 20, None])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_in_order(batch_size, drop_last):
    if batch_size is None and drop_last:
        pytest.raises(ValueError, data.DataLoader, [1], batch_size=None, drop_last=True).match("drop_last")
        return
    ours = data.DataLoader(data.TensorDataset(ts.tensor(ROWS), ts.tensor(LABELS)), batch_size, drop_last=drop_last)
    theirs = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.tensor(ROWS), torch.tensor(LABELS)), batch_size, drop_last=drop_last
    )
    assert len(ours) == len(theirs)
    assert [listed(batch) for batch in ours] == [listed(batch) for batch in theirs]


def test_shuffled_passes_visit_everything_in_new_orders():
    loader = data.DataLoader(data.TensorDataset(ts.tensor(LABELS)), batch_size=4, shuffle=True)
    passes = [[label for (batch,) in loader for label in batch.tolist()] for _ in range(4)]
    assert all(sorted(order) == LABELS.tolist() for order in passes)
    assert len({tuple(order) for order in passes}) > 1


def test_a_generator_repeats_the_order():
    def order(seed):
        generator = ts.Generator().manual_seed(seed)
        return [batch.tolist() for batch in data.DataLoader(LABELS, batch_size=3, shuffle=True, generator=generator)]

    assert order(1) == order(1)
    assert order(1) != order(2)


@pytest.mark.parametrize("indices", [[0, 1, 2], [5, 6], [3, 1, 4, 1], [2], [10, 0]])
def test_a_batch_of_rows_is_what_collating_gives(indices):
    dataset = data.TensorDataset(ts.tensor(ROWS), ts.tensor(LABELS))
    fast = dataset.batch(indices)
    slow = data.default_collate([dataset[i] for i in indices])
    assert [(x.dtype, tuple(x.shape)) for x in fast] == [(x.dtype, tuple(x.shape)) for x in slow]
    assert listed(fast) == listed(slow)


def test_a_batch_is_a_copy():
    rows = ts.tensor(ROWS)
    for sampler in ([0, 1, 2], [2, 0, 1]):
        (batch,) = next(iter(data.DataLoader(data.TensorDataset(rows), batch_size=3, sampler=sampler)))
        batch.fill_(-1.0)
    assert listed(rows) == ROWS.tolist()


def test_an_overridden_sample_is_respected():
    class Doubled(data.TensorDataset):
        def __getitem__(self, index):
            return 2 * self.tensors[0][index]

    dataset = Doubled(ts.tensor(LABELS))
    expected = [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 20]]
    assert [batch.tolist() for batch in data.DataLoader(dataset, batch_size=4)] == expected
    assert [batch.tolist() for batch in data.DataLoader(data.Subset(dataset, range(11)), batch_size=4)] == expected


def test_getitems_is_called_where_it_exists():
    class Many(data.Dataset):
        def __len__(self):
            return 5

        def __getitems__(self, indices):
            return [10 * i for i in indices]

    assert [batch.tolist() for batch in data.DataLoader(Many(), batch_size=3)] == [[0, 10, 20], [30, 40]]


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "samples",
    [
        [1, 2, 3],
        [1.5, 2.5],
        [True, False],
        ["a", "b"],
        [b"a", b"b"],
        [(1, 2.0, "x"), (3, 4.0, "y")],
        [[1, [2, 3]], [4, [5, 6]]],
        [{"a": 1, "b": (2, "s")}, {"a": 3, "b": (4, "t")}],
        [Point(1, 2.0), Point(3, 4.0)],
        [np.float32(1), np.float32(2)],
        [np.int64(3)],
        [np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)],
        [np.array(1), np.array(2)],
    ],
    ids=str,
)
def test_collating_is_pytorchs(samples):
    ours, theirs = data.default_collate(samples), torch.utils.data.default_collate(samples)
    assert type(ours).__name__ == type(theirs).__name__
    assert listed(ours) == listed(theirs)
    flat_ours, flat_theirs = [list(v.values()) if isinstance(v, dict) else v for v in (ours, theirs)]
    if not isinstance(flat_ours, list | tuple):
        flat_ours, flat_theirs = [flat_ours], [flat_theirs]
    for mine, reference in zip(flat_ours, flat_theirs):
        if isinstance(reference, torch.Tensor):
            assert str(mine.dtype).split(".")[-1] == str(reference.dtype).split(".")[-1]
            assert tuple(mine.shape) == tuple(reference.shape)


def test_collating_tensors_stacks_them():
    batch = data.default_collate([ts.tensor([1.0, 2.0]), ts.tensor([3.0, 4.0])])
    assert batch.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert data.default_collate([(ts.tensor(1.0), 2), (ts.tensor(3.0), 4)])[0].tolist() == [1.0, 3.0]


def test_what_cannot_be_collated_is_named():
    with pytest.raises(TypeError, match="found object.*collate_fn"):
        data.default_collate([object()])
    with pytest.raises(TypeError, match="dtype <U1"):
        data.default_collate([np.array(["a"])])
    with pytest.raises(ValueError, match=r"as many items, got \[1, 2\]"):
        data.default_collate([[1], [1, 2]])
    with pytest.raises(ValueError, match="no samples"):
        data.default_collate([])
    with pytest.raises(RuntimeError):
        data.default_collate([ts.tensor([1.0]), ts.tensor([1.0, 2.0])])


def test_collate_fn_sampler_and_batch_sampler():
    numbers = [10 * i for i in range(6)]
    assert list(data.DataLoader(numbers, batch_size=4, collate_fn=tuple)) == [(0, 10, 20, 30), (40, 50)]
    assert list(data.DataLoader(numbers, batch_size=2, sampler=[5, 0, 3], collate_fn=list)) == [[50, 0], [30]]
    by_batch = data.DataLoader(numbers, batch_sampler=[[0, 5], [1]], collate_fn=list)
    assert list(by_batch) == [[0, 50], [10]] and len(by_batch) == 2


def test_arguments_that_exclude_each_other():
    if not ts.cuda.is_available():
        with pytest.warns(UserWarning, match="no accelerator is found"):
            data.DataLoader([1], pin_memory=True)
    with pytest.raises(ValueError, match="sampler and shuffle"):
        data.DataLoader([1], shuffle=True, sampler=[0])
    with pytest.raises(ValueError, match="batch_sampler excludes"):
        data.DataLoader([1], batch_size=2, batch_sampler=[[0]])
    with pytest.raises(ValueError, match="batch_size should be a positive integer, got 0"):
        data.DataLoader([1], batch_size=0)
    with pytest.raises(ValueError, match="num_samples should be a positive integer"):
        data.RandomSampler([1], num_samples=0)


def test_random_sampler():
    assert sorted(data.RandomSampler(range(9))) == list(range(9))
    longer = list(data.RandomSampler(range(4), num_samples=10))
    assert len(longer) == 10 and sorted(longer[:4]) == sorted(longer[4:8]) == [0, 1, 2, 3]
    drawn = list(data.RandomSampler(range(3), replacement=True, num_samples=50))
    assert len(drawn) == 50 and set(drawn) == {0, 1, 2}
    assert sorted(data.SubsetRandomSampler([7, 8, 9])) == [7, 8, 9]


@pytest.mark.parametrize("lengths", [[3, 8], [11], [0.5, 0.5], [0.2, 0.3, 0.5], [5, 5, 1]])
def test_random_split(lengths):
    parts = data.random_split(range(11), lengths)
    reference = torch.utils.data.random_split(range(11), lengths)
    assert [len(part) for part in parts] == [len(part) for part in reference]
    assert sorted(index for part in parts for index in part) == list(range(11))


def test_random_split_of_wrong_lengths():
    with pytest.raises(ValueError, match=r"\[3, 4\] sum to 7, neither to the dataset's 11"):
        data.random_split(range(11), [3, 4])
    with pytest.raises(ValueError, match="negative"):
        data.random_split(range(11), [12, -1])


def test_joined_datasets():
    joined = data.TensorDataset(ts.tensor([1, 2])) + data.TensorDataset(ts.tensor([3, 4, 5]))
    assert len(joined) == 5
    assert [joined[i][0].item() for i in (0, 1, 2, 4, -1, -5)] == [1, 2, 3, 5, 5, 1]
    with pytest.raises(IndexError, match="index 5 is out of range for 5"):
        joined[5]
    with pytest.raises(ValueError):
        data.ConcatDataset([])


def test_tensor_datasets_need_equal_first_extents():
    with pytest.raises(AssertionError, match=r"Size mismatch.*\[2, 3\]"):
        data.TensorDataset(ts.zeros(2), ts.zeros(3))
    with pytest.raises(ValueError, match="zero-dimensional"):
        data.TensorDataset(ts.tensor(1.0))
    with pytest.raises(ValueError, match="at least one"):
        data.TensorDataset()


def test_missing_methods_are_named():
    class Empty(data.Dataset):
        pass

    with pytest.raises(NotImplementedError, match="Empty.__getitem__"):
        Empty()[0]
    with pytest.raises(NotImplementedError, match="Empty.__len__"):
        len(Empty())


def test_stacked_datasets():
    a, b = data.TensorDataset(ts.arange(4)), [10, 11, 12, 13]
    rows = data.StackDataset(a, b)
    assert len(rows) == 4 and rows[2][1] == 12 and rows[2][0][0].item() == 2
    named = data.StackDataset(x=b, y=b)
    assert named[1] == {"x": 11, "y": 11} and named.__getitems__([0, 3]) == [{"x": 10, "y": 10}, {"x": 13, "y": 13}]
    assert [batch["x"].tolist() for batch in data.DataLoader(named, 3)] == [[10, 11, 12], [13]]
    with pytest.raises(ValueError, match=r"size mismatch between datasets, their lengths are \[4, 3\]"):
        data.StackDataset(b, [1, 2, 3])
    with pytest.raises(ValueError, match="at least one"):
        data.StackDataset()


def test_weighted_samples():
    g = ts.Generator().manual_seed(0)
    drawn = list(data.WeightedRandomSampler([0.0, 3.0, 1.0], 4000, generator=g))
    assert drawn.count(0) == 0 and 0.7 < drawn.count(1) / 4000 < 0.8
    assert sorted(data.WeightedRandomSampler([1.0, 2.0, 3.0], 3, replacement=False)) == [0, 1, 2]
    with pytest.raises(ValueError, match="num_samples=0"):
        data.WeightedRandomSampler([1.0], 0)
    with pytest.raises(ValueError, match="1d sequence"):
        data.WeightedRandomSampler(ts.ones(2, 2), 1)


@pytest.mark.parametrize(("size", "drop_last"), [(10, False), (10, True), (2, False), (9, False)])
def test_shares_of_several_processes(size, drop_last):
    from torch.utils.data import DistributedSampler

    for shuffle in (False, True):
        shares = []
        for rank in range(3):
            sampler = data.DistributedSampler(range(size), 3, rank, shuffle=shuffle, drop_last=drop_last)
            sampler.set_epoch(1)
            shares.append(list(sampler))
            theirs = DistributedSampler(range(size), 3, rank, shuffle=False, drop_last=drop_last)
            assert len(sampler) == len(theirs) == len(shares[-1])
            if not shuffle:
                assert shares[-1] == list(theirs)
        seen = {x for share in shares for x in share}
        assert seen <= set(range(size)) and (drop_last or len(seen) == size)
    with pytest.raises(ValueError, match="Invalid rank 3"):
        data.DistributedSampler(range(3), 3, 3)


def test_pytorchs_address_of_data():
    from tensorsmith.utils import data as address

    assert address.__all__ and all(getattr(address, name) is getattr(data, name) for name in address.__all__)
    assert set(address.__all__) <= set(torch.utils.data.__all__)
