"""sdpa_kernel: the same values by both ways, PyTorch's refusals, and the way that held before comes back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts
from tensorsmith.nn.attention import SDPBackend, sdpa_kernel

VALUES = np.random.default_rng(0).standard_normal((2, 3, 5, 8)).astype(np.float32)


def attend(lib, **options):
    q = lib.tensor(VALUES)
    return lib.nn.functional.scaled_dot_product_attention(q, q * 0.5, q + 1, **options)




def test_names_are_pytorchs():
    theirs = torch.nn.attention.SDPBackend.__members__
    assert {name: int(value) for name, value in theirs.items()} == {each.name: int(each) for each in SDPBackend}


def test_each_way_gives_the_same_and_leaves_its_own_trace():
    expected, nodes = attend(torch).numpy(), {}
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        q = ts.tensor(VALUES, requires_grad=True)
        with sdpa_kernel(backend) as given:
            assert given == {}
            found = ts.nn.functional.scaled_dot_product_attention(q, q * 0.5, q + 1)
        nodes[backend] = type(found.grad_fn).__name__ + found.grad_fn.name()
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    assert nodes[SDPBackend.MATH] != nodes[SDPBackend.FLASH_ATTENTION]
    q = ts.tensor(VALUES, requires_grad=True)

    def node(backends, priority=False):
        with sdpa_kernel(backends, priority):
            found = ts.nn.functional.scaled_dot_product_attention(q, q, q)
        return type(found.grad_fn).__name__ + found.grad_fn.name()

    both = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    assert node(both) == nodes[SDPBackend.FLASH_ATTENTION]
    assert node(both, True) == nodes[SDPBackend.MATH]
    assert node([SDPBackend.CUDNN_ATTENTION, *both[::-1]], True) == nodes[SDPBackend.FLASH_ATTENTION]


@pytest.mark.parametrize("names", [["EFFICIENT_ATTENTION"], ["CUDNN_ATTENTION", "OVERRIDEABLE"], ["ERROR"], []])
def test_what_cannot_be_chosen_is_refused_at_the_call(names):
    for lib in (ts, torch):
        choice = [getattr(lib.nn.attention.SDPBackend, name) for name in names]
        with lib.nn.attention.sdpa_kernel(choice), pytest.raises(RuntimeError, match="No viable backend"):
            attend(lib)
        attend(lib)  # as before


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_kernel_drops_weights_but_not_all():
    """PyTorch's kernel on the CPU has no dropout; neither has its dropout of everything."""
    for lib in (ts, torch):
        attention = lib.nn.attention
        one_kernel = attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION)
        with one_kernel, pytest.raises(RuntimeError, match="No (viable|available)"):
            attend(lib, dropout_p=1.0)
        with attention.sdpa_kernel(attention.SDPBackend.MATH):
            attend(lib, dropout_p=0.5)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        attend(ts, dropout_p=0.5)


def test_ways_nest_and_come_back_after_an_error():
    with sdpa_kernel(SDPBackend.MATH):
        with pytest.raises(ZeroDivisionError), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            raise ZeroDivisionError
        attend(ts)
    for lib in (ts, torch):
        with pytest.raises(AssertionError, match="instance of SDPBackend"), lib.nn.attention.sdpa_kernel("math"):
            pass
