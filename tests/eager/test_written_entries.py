"""Entries written out: calls of a few launches into one result go past the general closure, recorded or not."""

from __future__ import annotations

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.eager.dispatch import FAST
from tensorsmith.ops.arranging import flip_operator
from tensorsmith.ops.joining import cat_operator, stack_operator


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("join", "operator"), [(ts.cat, cat_operator), (ts.stack, stack_operator)])
def test_joined_tensors(join, operator, count):
    arrays = [np.arange(3.0) + 10 * k for k in range(count)]
    given = [ts.tensor(a) for a in arrays]
    expected = (np.concatenate if join is ts.cat else np.stack)(arrays)
    for _ in range(2):
        np.testing.assert_array_equal(join(given).numpy(), expected)
    entry = FAST[(operator, *[x.layout for x in given], ("axis", 0))]
    assert entry.source.count("launch(") == count
    tracked = [x.clone().requires_grad_() for x in given]
    for _ in range(2):
        y = join(tracked)
        np.testing.assert_array_equal(y.detach().numpy(), expected)
    (y * ts.tensor(expected)).sum().backward()
    for x, a in zip(tracked, arrays):
        np.testing.assert_array_equal(x.grad.numpy(), a)


def test_axes_as_they_are_given():
    x = ts.tensor([[1.0, 2.0], [3.0, 4.0]])
    for axes in (0, (0, 1), -1, [1]):
        for _ in range(2):
            np.testing.assert_array_equal(ts.flip(x, axes).numpy(), np.flip(x.numpy(), axes))
    assert (flip_operator, x.layout, (0, 1)) in FAST
    for wrong in (True, 1.0):
        with pytest.raises(TypeError):
            ts.flip(x, wrong)


def test_gathering_again_checks_positions_again():
    x = ts.tensor([1.0, 2.0, 3.0])
    for index in ([2, 0], [1, 1]):
        np.testing.assert_array_equal(ts.gather(x, 0, ts.tensor(index)).numpy(), x.numpy()[index])
    with pytest.raises(RuntimeError, match="gather.*3"):
        ts.gather(x, 0, ts.tensor([0, 3]))
