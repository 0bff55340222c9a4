"""Views on strides, against PyTorch's views."""

import math

import torch
from hypothesis import given, settings, strategies as st

from tensorsmith.core import views
from tensorsmith.core.layout import contiguous_strides, is_contiguous, layout_of
from tensorsmith.core.views import Strided


@st.composite
def strided_tensors(draw):
    """A PyTorch tensor made of permutes, steps, expands and slices of a contiguous one."""
    shape = draw(st.lists(st.integers(0, 5), min_size=0, max_size=4))
    x = torch.zeros(shape)
    for _ in range(draw(st.integers(0, 3))):
        if not x.ndim:
            break
        axis = draw(st.integers(0, x.ndim - 1))
        kind = draw(st.sampled_from(["permute", "step", "expand", "narrow"]))
        if kind == "permute":
            x = x.permute(draw(st.permutations(range(x.ndim))))
        elif kind == "step":
            x = x[tuple(slice(None, None, 2) if i == axis else slice(None) for i in range(x.ndim))]
        elif kind == "expand":
            x = x.unsqueeze(axis).expand([*x.shape[:axis], 2, *x.shape[axis:]])
        elif x.shape[axis] > 1:
            x = x.narrow(axis, 1, x.shape[axis] - 1)
    return x


def strided(x):
    return Strided(tuple(x.shape), tuple(x.stride()), x.storage_offset())


@st.composite
def shapes_of(draw, numel):
    if numel == 0:
        return [0, *draw(st.lists(st.integers(1, 3), max_size=2))]
    shape, rest = [], numel
    while rest > 1 and draw(st.booleans()):
        divisor = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        shape.append(divisor)
        rest //= divisor
    shape.append(rest)
    return shape


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_reshape_finds_a_view_exactly_where_pytorch_does(data):
    x = data.draw(strided_tensors())
    shape = data.draw(shapes_of(x.numel()))
    try:
        expected = strided(x.view(shape))
    except RuntimeError:
        expected = None
    assert views.reshape(strided(x), shape) == expected


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_other_views_as_pytorch(data):
    x = data.draw(strided_tensors())
    if not x.ndim:
        return
    axes = data.draw(st.permutations(range(x.ndim)))
    assert views.permute(strided(x), axes) == strided(x.permute(axes))
    axis = data.draw(st.integers(0, x.ndim - 1))
    n = x.shape[axis]
    start, step = data.draw(st.integers(0, n)), data.draw(st.integers(1, 3))
    index = tuple(slice(start, None, step) if i == axis else slice(None) for i in range(x.ndim))
    expected = x[index]
    if expected.numel():
        assert views.slice_(strided(x), axis, start, expected.shape[axis], step) == strided(expected)
    if n:
        size = data.draw(st.integers(1, n))
        assert views.unfold(strided(x), axis, size, step) == strided(x.unfold(axis, size, step))
    if x.ndim > 1:
        a, b = axes[:2]
        offset = data.draw(st.integers(-2, 2))
        seen, found = strided(x.diagonal(offset, a, b)), views.diagonal(strided(x), offset, a, b)
        assert found.shape == seen.shape and (0 in seen.shape or found == seen)


@settings(max_examples=200, deadline=None)
@given(strided_tensors())
def test_contiguity_and_overlap(x):
    shape, strides = tuple(x.shape), tuple(x.stride())
    assert is_contiguous(shape, strides) == x.is_contiguous()
    assert layout_of_float(shape, strides).contiguous == x.is_contiguous()
    cells = positions(shape, strides)
    if not views.may_overlap_itself(Strided(shape, strides)):
        assert len(set(cells)) == len(cells)
    if views.covers_once(Strided(shape, strides)) and cells:
        assert sorted(cells) == list(range(len(cells)))
    assert views.extent(Strided(shape, strides)) == (max(cells) + 1 if cells else 0)


def positions(shape, strides):
    cells = [0] if 0 not in shape else []
    for n, s in zip(shape, strides):
        cells = [c + i * s for c in cells for i in range(n)]
    return cells


def layout_of_float(shape, strides):
    from tensorsmith.core.dtypes import float32

    return layout_of(float32, shape, strides)


def test_layouts_are_interned():
    from tensorsmith.core.dtypes import float32

    a = layout_of(float32, (2, 3))
    assert a is layout_of(float32, (2, 3), (3, 1))
    assert a is not a.with_tracking(True)
    assert a.with_tracking(True).with_tracking(False) is a
    assert a.nbytes == 24 and a.numel == math.prod(a.shape)
    assert contiguous_strides((2, 0, 3)) == tuple(torch.zeros(2, 0, 3).stride())
