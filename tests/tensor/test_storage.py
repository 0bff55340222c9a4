"""A storage's stamp: it differs after every write, and there is none while others may write unnoticed."""

import ctypes
import gc

import numpy as np

import tensorsmith as ts
from tensorsmith.autograd.memory import as_array


def stamp_of(x: ts.Tensor) -> object | None:
    return x.storage.stamp()


def test_every_write_in_place_changes_the_stamp():
    x = ts.ones(3)
    seen = [stamp_of(x)]
    assert seen[0] is not None and stamp_of(x) == seen[0] and stamp_of(x.detach()) == seen[0]
    for write in (lambda: x.add_(1), lambda: x[0:1].zero_(), lambda: x.detach().mul_(2), lambda: ts.nn.init.normal_(x)):
        write()
        seen.append(stamp_of(x))
    assert len(set(seen)) == len(seen)


def test_memory_of_another_storage_has_another_stamp():
    x, y = ts.ones(3), ts.ones(3)
    before = stamp_of(x)
    x.data = y
    assert stamp_of(x) != before
    del y
    x.data = ts.ones(3)
    gc.collect()
    assert stamp_of(x) != before


def test_no_stamp_while_numpy_sees_the_memory():
    for door in (lambda x: x.numpy(), np.asarray, lambda x: x[1:].numpy(), lambda x: x.numpy()[::2], lambda x: x.numpy().T):
        x = ts.ones(3, device="cpu")
        before = stamp_of(x)
        array = door(x)
        assert stamp_of(x) is None
        array[0] = 5
        del array
        gc.collect()
        after = stamp_of(x)
        assert after is not None and after != before and stamp_of(x) == after


def test_no_stamp_while_a_check_disturbs_the_memory():
    x = ts.ones(3, device="cpu")
    before = stamp_of(x)
    array = as_array(x)[1:]
    assert stamp_of(x) is None
    array[0] = 5
    del array
    gc.collect()
    assert stamp_of(x) not in (None, before)


def test_no_stamp_for_memory_that_was_taken_in(tmp_path):
    array = np.ones(3, np.float32)
    assert stamp_of(ts.from_numpy(array)) is None and stamp_of(ts.as_tensor(array)) is None
    mapped = np.memmap(tmp_path / "weights", np.float32, "w+", shape=(3,))
    assert stamp_of(ts.from_numpy(mapped)) is None
    assert stamp_of(ts.tensor(array)) is not None and stamp_of(ts.from_numpy(array).clone()) is not None


def test_no_stamp_while_data_shares_the_memory():
    x = ts.ones(3)
    before = stamp_of(x)
    alias = x.data
    assert stamp_of(x) is None and stamp_of(alias) is None
    alias.add_(1)
    further = alias.data  # keeps the alias
    del alias
    gc.collect()
    assert stamp_of(x) is None
    del further
    gc.collect()
    assert stamp_of(x) not in (None, before)


def test_no_stamp_after_the_address_was_asked_for():
    for address in (lambda x: x.data_ptr(), lambda x: x.data.data_ptr()):
        x = ts.ones(3, device="cpu")
        ctypes.c_float.from_address(address(x)).value = 7.0
        gc.collect()
        assert stamp_of(x) is None
