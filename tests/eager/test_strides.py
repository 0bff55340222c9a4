"""Elementwise results lie in memory as PyTorch's."""

import torch
from hypothesis import given, settings, strategies as st

from tensorsmith.core.dtypes import float32
from tensorsmith.core.layout import layout_of
from tensorsmith.eager.entries import elementwise_strides


@st.composite
def operands(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    tensors = []
    for _ in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(range(len(shape))))
        inverse = [order.index(i) for i in range(len(shape))]
        kept = [n if draw(st.booleans()) or draw(st.booleans()) else 1 for n in shape]
        x = torch.zeros([kept[i] for i in order]).permute(inverse)
        if draw(st.integers(0, 4)) == 0:
            x = x.reshape(x.shape)[tuple(slice(None) for _ in shape)]
        tensors.append(x)
    return tensors


@settings(max_examples=500, deadline=None)
@given(operands())
def test_strides_of_sums(tensors):
    total = tensors[0]
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    if len(tensors) == 1:
        expected = torch.exp(total)
    elif len(tensors) == 2:
        expected = tensors[0] + tensors[1]
    else:
        expected = torch.addcmul(*tensors) if tuple(tensors[0].shape) == tuple(shape) else torch.where(
            tensors[0] > 0, tensors[1], tensors[2])
    layouts = [layout_of(float32, tuple(t.shape), tuple(t.stride())) for t in tensors]
    assert elementwise_strides(tuple(shape), layouts) == tuple(expected.stride()), (
        [(tuple(t.shape), t.stride()) for t in tensors]
    )
