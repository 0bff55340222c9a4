"""`memory_format=`: strides, errors and gradients are PyTorch's."""

from __future__ import annotations

import pytest

import tensorsmith as ts

torch = pytest.importorskip("torch")


def outcome(library, call):
    """Shape, strides, dtype and values of a call, or the class of its error."""
    last, last3d = library.channels_last, library.channels_last_3d
    x = library.arange(24).reshape(1, 2, 3, 4)
    try:
        found = call(library, x, last, last3d)
    except Exception as error:
        return type(error)
    if not isinstance(found, library.Tensor):
        return found
    return tuple(found.shape), found.stride(), str(found.dtype).split(".")[-1], found.is_contiguous()


CALLS = {
    "contiguous": lambda t, x, last, d: x.contiguous(memory_format=last),
    "contiguous, 3 axes": lambda t, x, last, d: x[0].contiguous(memory_format=last),
    "contiguous, preserve": lambda t, x, last, d: x.contiguous(memory_format=t.preserve_format),
    "contiguous, preserve, transposed": lambda t, x, last, d: x.mT.contiguous(memory_format=t.preserve_format),
    "contiguous, a word": lambda t, x, last, d: x.contiguous(memory_format="channels_last"),
    "contiguous of one that is": lambda t, x, last, d: x.contiguous(memory_format=last).contiguous(memory_format=last),
    "back": lambda t, x, last, d: x.contiguous(memory_format=last).contiguous(),
    "is_contiguous": lambda t, x, last, d: x.is_contiguous(memory_format=last),
    "is_contiguous of one that is": lambda t, x, last, d: x.to(memory_format=last).is_contiguous(memory_format=last),
    "is_contiguous, 3 axes": lambda t, x, last, d: x[0].is_contiguous(memory_format=last),
    "is_contiguous, preserve": lambda t, x, last, d: x.is_contiguous(memory_format=t.preserve_format),
    "is_contiguous, one pixel": lambda t, x, last, d: t.zeros(2, 3, 1, 1).is_contiguous(memory_format=last),
    "is_contiguous, a word": lambda t, x, last, d: x.is_contiguous(memory_format="channels_last"),
    "to": lambda t, x, last, d: x.to(memory_format=last),
    "to with a dtype": lambda t, x, last, d: x.to(t.float32, memory_format=last),
    "to, 3 axes": lambda t, x, last, d: x[0].to(memory_format=last),
    "to, one pixel": lambda t, x, last, d: t.zeros(2, 3, 1, 1).to(memory_format=last),
    "to, one channel": lambda t, x, last, d: t.zeros(2, 1, 3, 1).to(memory_format=last),
    "to contiguous_format of a transposed one": lambda t, x, last, d: x.mT.to(memory_format=t.contiguous_format),
    "to, 5 axes": lambda t, x, last, d: x[None].to(memory_format=d),
    "to, 5 axes of the other": lambda t, x, last, d: x[None].to(memory_format=last),
    "clone": lambda t, x, last, d: x.clone(memory_format=last),
    "clone keeps": lambda t, x, last, d: x.to(memory_format=last).clone(),
    "clone, contiguous_format": lambda t, x, last, d: x.mT.clone(memory_format=t.contiguous_format),
    "float": lambda t, x, last, d: x.float(memory_format=last),
    "type": lambda t, x, last, d: x.type(t.int32, memory_format=last),
    "cpu": lambda t, x, last, d: x.cpu(memory_format=last),
    "empty": lambda t, x, last, d: t.empty(1, 2, 3, 4, memory_format=last),
    "empty, 3 axes": lambda t, x, last, d: t.empty(2, 3, 4, memory_format=last),
    "empty, preserve": lambda t, x, last, d: t.empty(2, 3, 4, memory_format=t.preserve_format),
    "empty, other rank": lambda t, x, last, d: t.empty(1, 2, 3, 4, memory_format=d),
    "zeros_like": lambda t, x, last, d: t.zeros_like(x, memory_format=last),
    "zeros_like keeps": lambda t, x, last, d: t.zeros_like(x.to(memory_format=last)),
    "zeros_like, contiguous_format": lambda t, x, last, d: t.zeros_like(x.mT, memory_format=t.contiguous_format),
    "full_like": lambda t, x, last, d: t.full_like(x, 2, memory_format=last),
    "rand_like": lambda t, x, last, d: t.rand_like(x.float(), memory_format=last),
    "rand_like keeps": lambda t, x, last, d: t.rand_like(x.float().to(memory_format=last)),
    "randint_like keeps": lambda t, x, last, d: t.randint_like(x.mT, 0, 9),
    "resize_": lambda t, x, last, d: t.arange(24).resize_(2, 2, 2, 3, memory_format=last),
    "resize_, 3 axes": lambda t, x, last, d: t.arange(24).resize_(2, 2, 6, memory_format=last),
    "a module": lambda t, x, last, d: t.nn.ParameterList([t.nn.Parameter(x.float())]).to(memory_format=last)[0].detach(),
    "add keeps": lambda t, x, last, d: x.to(memory_format=last) + 1,
}


@pytest.mark.parametrize("name", CALLS)
def test_as_pytorch(name):
    found, wanted = outcome(ts, CALLS[name]), outcome(torch, CALLS[name])
    if isinstance(wanted, type):
        assert isinstance(found, type) and issubclass(found, wanted), (found, wanted)
    else:
        assert found == wanted


def test_values_and_gradients_pass_through():
    x = ts.arange(24.0).reshape(1, 2, 3, 4).requires_grad_()
    y = x.contiguous(memory_format=ts.channels_last)
    assert y.tolist() == x.tolist() and not y._is_view() and y._version == 0
    (y * y).sum().backward()
    assert x.grad.tolist() == (2 * x).tolist()
    assert x.detach().to(ts.float64, memory_format=ts.channels_last).tolist() == x.tolist()


def test_nothing_is_copied_where_it_lies_so_already():
    x = ts.zeros(1, 2, 3, 4, dtype=ts.float32)
    y = x.to(memory_format=ts.channels_last)
    assert y.to(memory_format=ts.channels_last) is y and y.contiguous(memory_format=ts.channels_last) is y
    assert x.to(memory_format=ts.contiguous_format) is x


def test_in_compiled_functions_and_under_vmap():
    x = ts.arange(48.0).reshape(2, 1, 2, 3, 4)
    plain = lambda x: x.contiguous(memory_format=ts.channels_last) * 2
    assert ts.compile(plain)(x[0]).tolist() == plain(x[0]).tolist()
    assert ts.vmap(plain)(x).tolist() == (x * 2).tolist()


def test_formats_have_pytorchs_names():
    for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"):
        assert repr(getattr(ts, name)) == f"tensorsmith.{name}" and isinstance(getattr(ts, name), ts.memory_format)
