"""one_hot: classes as rows of one 1."""

import pytest

import tensorsmith as ts

one_hot = ts.nn.functional.one_hot


def test_values():
    assert one_hot(ts.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    wide = one_hot(ts.tensor([[1], [0]]), 4)
    assert wide.dtype is ts.int64 and wide.tolist() == [[[0, 1, 0, 0]], [[1, 0, 0, 0]]]
    assert one_hot(ts.tensor(1)).tolist() == [0, 1]
    assert one_hot(ts.empty(0, dtype=ts.int64), 3).shape == (0, 3)
    assert ts.compile(lambda x: one_hot(x, 3))(ts.tensor([1])).tolist() == [[0, 1, 0]]


@pytest.mark.parametrize(("classes", "count", "message"), [
    (ts.tensor([1.0]), -1, "LongTensor"), (ts.tensor([-1]), 3, "non-negative, got -1"), (ts.tensor([3]), 3, "smaller than"),
    (ts.empty(0, dtype=ts.int64), -1, "empty tensor"), (ts.tensor([0]), 0, "positive"),
])  # fmt: skip
def test_errors(classes, count, message):
    with pytest.raises(RuntimeError, match=message):
        one_hot(classes, count)
