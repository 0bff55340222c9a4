"""`x[...]` and `x[...] = v` against PyTorch: every kind of index, gradients, histories, errors that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from both_libraries import agree, normal, refuse
from hypothesis import assume, given, settings, strategies as st

import tensorsmith as ts

ARRAY = normal(2, 3, 4)
MASK = np.random.default_rng(5).random((2, 3, 4)) > 0.5


class T:
    """An array that becomes a tensor of the library."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)


INDICES: dict[str, Any] = {
    "int": 0,
    "negative int": -1,
    "slice": slice(1, None),
    "slice with step": slice(None, None, 2),
    "empty slice": slice(5, None),
    "new axis": None,
    "ellipsis": Ellipsis,
    "ints": (0, 1),
    "column": (slice(None), 1),
    "last": (Ellipsis, -1),
    "mixed basic": (None, 0, None, slice(1, 3)),
    "tensor": T([0, 1, 1]),
    "tensor of two axes": T([[0, 1], [1, -1]]),
    "zero-dim tensor": T(1),
    "empty tensor": T(np.zeros(0, np.int64)),
    "tensor on the second axis": (slice(None), T([2, 0])),
    "two tensors": (T([0, 1]), T([1, 2])),
    "tensors apart": (T([0, 1]), slice(None), T([1, 2])),
    "tensors beside": (slice(None), T([0, 1]), T([1, 2])),
    "tensors around a new axis": (T([0, 1]), None, T([1, 2])),
    "int and tensor": (0, slice(None), T([1, 2])),
    "int, tensor, slice": (0, T([1, 2]), slice(None, None, 2)),
    "tensor and int": (T([0, 1]), 0),
    "broadcast tensors": (Ellipsis, T([1]), None, T([[1], [2]])),
    "int32": T(np.array([1, 0], np.int32)),
    "mask": T(MASK),
    "mask of trailing axes": (slice(None), T(MASK[0])),
    "mask of one axis": (slice(None), T(MASK[0, :, 0])),
    "mask of leading axis": T(MASK[:, 0, 0]),
    "True": True,
    "False": False,
    "True and int": (True, 0),
    "list": [0, 1],
    "lists": ([0, 1], [1, 2]),
    "nested lists": (slice(None), [[0], [1]], [1, 2]),
    "array": np.array([1, 0]),
    "NumPy int": np.int64(1),
}


def built(index: Any, L: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(built(i, L) for i in index)
    return L.from_numpy(index.values.copy()) if isinstance(index, T) else index


@pytest.mark.parametrize("permuted", [False, True], ids=["contiguous", "permuted"])
@pytest.mark.parametrize("name", INDICES)
def test_reading(name: str, permuted: bool) -> None:
    array = np.ascontiguousarray(ARRAY.transpose(1, 0, 2)) if permuted else ARRAY
    strides = not (permuted and name in ("True", "False"))

    def read(L: Any, x: Any) -> Any:
        return (x.permute(1, 0, 2) if permuted else x)[built(INDICES[name], L)]

    for _ in range(2):  # the second call finds its entry
        agree(read, array, strides=strides, views=True)
        agree(lambda L, x: read(L, x.detach()), array, gradient=False, strides=strides)


UNIQUE = [n for n in INDICES if n not in ("tensor", "tensor of two axes")]


@pytest.mark.parametrize("name", UNIQUE)
def test_writing(name: str) -> None:
    shape = np.empty((2, 3, 4))[built_numpy(INDICES[name])].shape

    def write(L: Any, x: Any, value: Any) -> Any:
        y = x * 1
        y[built(INDICES[name], L)] = value
        return y

    agree(write, ARRAY, 3.5)
    agree(write, ARRAY, normal(*shape, seed=1))
    agree(lambda L, x: write(L, x.detach(), 1), ARRAY.astype(np.int64), gradient=False)


def built_numpy(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(built_numpy(i) for i in index)
    return index.values if isinstance(index, T) else index


def test_writing_into_a_part_of_a_part() -> None:
    def write(L: Any, x: Any, v: Any) -> Any:
        y = x * 2
        y[0][1:, ::2] = v
        y[1, 0] *= 3
        return y

    agree(write, ARRAY, normal(2, 2))


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put(accumulate: bool) -> None:
    indices = (np.array([1, 0]), np.array([2, 2]))
    if accumulate:
        indices = (np.array([1, 1]), np.array([2, 2]))
    agree(lambda L, x, i, j, v: x.index_put((i, j), v, accumulate), ARRAY, *indices, normal(2, 4))
    agree(lambda L, x, i, j, v: (x * 1).index_put_((i, j), v, accumulate=accumulate), ARRAY, *indices, normal(2, 4))


REFUSED = {
    "int too large": lambda L: L.ones(2, 3)[2],
    "tensor too large": lambda L: L.ones(2, 3)[L.tensor([0, 7])],
    "tensor too small": lambda L: L.ones(2, 3)[:, L.tensor([0, -4])],
    "second of two tensors": lambda L: L.ones(2, 3)[L.tensor([0, 1]), L.tensor([0, 5])],
    "negative step": lambda L: L.ones(4)[::-1],
    "too many": lambda L: L.ones(2, 3)[0, 0, 0],
    "mask of another shape": lambda L: L.ones(2, 3)[L.tensor([True])],
    "float tensor": lambda L: L.ones(2, 3)[L.tensor([0.5])],
    "shapes of tensors": lambda L: L.ones(2, 3)[L.tensor([0, 1]), L.tensor([0, 1, 2])],
    "a string": lambda L: L.ones(2, 3)["a"],
    "value of another shape": lambda L: L.ones(2, 3).__setitem__(0, L.ones(7)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_pytorchs_class(name: str) -> None:
    refuse(REFUSED[name])


def test_errors_name_index_axis_and_size() -> None:
    x = ts.ones(2, 3)
    for index in (2, ts.tensor([0, 2]), (ts.tensor([0]), ts.tensor([5]))):
        with pytest.raises(IndexError, match=r"index (2|5) is out of bounds for dimension [01] with size [23]"):
            x[index]


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.__setitem__(ts.tensor([0, 9]), 1.0),
        lambda x: x.__setitem__((0, ts.tensor([0, 9])), ts.ones(2)),
        lambda x: x.index_put_((ts.tensor([3]),), ts.ones(3), accumulate=True),
        lambda x: x.index_add_(0, ts.tensor([0, 2]), ts.ones(2, 3)),
        lambda x: x.scatter_(1, ts.tensor([[0, 3]]), 5.0),
        lambda x: x.__setitem__(0, ts.ones(7)),
    ],
)
def test_a_failed_write_changes_nothing(write: Any) -> None:
    x = ts.zeros(2, 3)
    with pytest.raises((IndexError, RuntimeError)):
        write(x)
    assert x._version == 0 and not x.any().item()


def test_true_is_not_one() -> None:
    x = ts.tensor(ARRAY)
    assert x[1].shape == (3, 4) and x[True].shape == (1, 2, 3, 4) and x[1].shape == (3, 4)
    assert x[1, 0].shape == (4,) and x[True, 0].shape == (1, 3, 4)


BOUND = st.none() | st.integers(-4, 4)
SLICE = st.builds(slice, BOUND, BOUND, st.none() | st.integers(1, 3))
POSITIONS = st.lists(st.integers(-3, 2), min_size=1, max_size=3).map(T)
PART = st.one_of(st.integers(-3, 2), st.none(), st.just(Ellipsis), SLICE, POSITIONS, st.booleans())


@given(st.lists(PART, min_size=1, max_size=4).map(tuple))
@settings(max_examples=150, deadline=None)
def test_any_index(index: tuple[Any, ...]) -> None:
    assume(index.count(Ellipsis) < 2)
    agree(lambda L, x: x[built(index, L)], normal(3, 3, 3), strides=False)


def test_a_second_ellipsis_is_taken_where_nothing_follows_it():
    x = ts.arange(6).reshape(2, 3)
    assert x[..., ...].tolist() == x.tolist() and x[0, ..., ...].tolist() == [0, 1, 2]
    assert x[..., None, ...].shape == (2, 3, 1) and x[0, ..., 1, ...].item() == 1
    for index in [(0, ..., ..., 0), (..., ..., 0), (..., ..., None, 0)]:
        if index == (0, ..., ..., 0):  # nothing is left to skip
            assert x[index].item() == 0
            continue
        with pytest.raises(IndexError, match="ellipsis"):
            x[index]
