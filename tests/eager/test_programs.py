"""Random programs of views, writes in place and gradients: every step does what PyTorch does.

A program is a list of small numbers; each step picks an operation and its tensors from what exists so far. After every step
the two libraries must agree on values, strides, versions, what requires a gradient and which class of error was raised, and
at the end on the gradients of all leaves. TENSORSMITH_FUZZ sets the number of programs.
"""

import os
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings, strategies as st

import tensorsmith as ts

PROGRAMS = int(os.environ.get("TENSORSMITH_FUZZ", "300"))
SHAPES = ((2, 3), (3,), (3, 2), (1, 3), (2, 2, 2), (4,), ())


def leaf(library, number, kind):
    """A float64 leaf: its shape follows from its number; kind 0 is not tracked."""
    shape = SHAPES[number % len(SHAPES)]
    count = int(np.prod(shape))
    array = (np.arange(count) * 0.25 - 0.5 + number).reshape(shape)
    return library.tensor(array.tolist(), dtype=library.float64, requires_grad=kind != 0)


def _slice(x, a, b):
    n = x.shape[0]
    start = a % (n + 1)
    return x[start : start + 1 + b % 2]


def _every_second(x, a, b):
    return x[..., a % 2 :: 2]


def _reshape(x, a, b):
    n = x.numel()
    options = [(-1,), (1, n), (n, 1)] + [(k, n // k) for k in (2, 3) if n and n % k == 0]
    return x.reshape(options[a % len(options)])


def _view(x, a, b):
    n = x.numel()
    options = [(n,), (1, n)] + [(k, n // k) for k in (2, 3) if n and n % k == 0]
    return x.view(options[a % len(options)])


def _expand(x, a, b):
    return x.expand(2 + a % 2, *x.shape) if b % 2 else x.unsqueeze(-1).expand(*x.shape, 2)


VIEWS = [
    lambda x, a, b: x.t(), _slice, _every_second, _reshape, _view, _expand,
    lambda x, a, b: x[a % 3], lambda x, a, b: x.unsqueeze(a % 3), lambda x, a, b: x.squeeze(),
    lambda x, a, b: x.transpose(0, -1), lambda x, a, b: x.detach(), lambda x, a, b: x.select(-1, a % 2),
    lambda x, a, b: x.narrow(0, a % 2, 1), lambda x, a, b: x.diagonal(), lambda x, a, b: x.flatten(),
    lambda x, a, b: x.unbind(0)[a % 2], lambda x, a, b: x.view_as(x), lambda x, a, b: x.expand_as(x),
]  # fmt: skip
WRITES = [
    lambda x, y, a: x.add_(y), lambda x, y, a: x.mul_(y), lambda x, y, a: x.copy_(y), lambda x, y, a: x.zero_(),
    lambda x, y, a: x.mul_(0.5), lambda x, y, a: x.add_(1.0), lambda x, y, a: x.fill_(0.25), lambda x, y, a: x.exp_(),
    lambda x, y, a: x.sub_(y, alpha=2.0), lambda x, y, a: x.__setitem__(a % 2, y),
    lambda x, y, a: x.__setitem__(slice(a % 2, None), 2.0), lambda x, y, a: x.clone().detach_(),
    lambda x, y, a: x.div_(y), lambda x, y, a: x.clamp_(-1.0, 0.75), lambda x, y, a: x.tanh_(),
]  # fmt: skip
FUNCTIONS = [
    lambda x, y, a: x * y, lambda x, y, a: x + y, lambda x, y, a: x.clone(), lambda x, y, a: x * 2.0,
    lambda x, y, a: x.tanh(), lambda x, y, a: x.sum(), lambda x, y, a: x.sum(0), lambda x, y, a: x - x * y,
    lambda x, y, a: x.exp(), lambda x, y, a: x.contiguous(), lambda x, y, a: x.detach().clone().requires_grad_(a % 2 == 0),
]  # fmt: skip
KINDS = [VIEWS, WRITES, FUNCTIONS]

number = st.integers(0, 11)
step = st.tuples(st.integers(0, 5), number, number, number, st.integers(0, 3), st.integers(0, 5))
program = st.tuples(st.lists(st.tuples(number, st.integers(0, 1)), min_size=2, max_size=3),
                    st.lists(step, min_size=3, max_size=10))  # fmt: skip


def undefined(tensors, instruction):
    """Whether a write reads memory that it writes, in an order that neither library promises."""
    x, y = tensors[instruction[2] % len(tensors)], tensors[instruction[3] % len(tensors)]
    shared = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    ordered = x.is_contiguous() and y.is_contiguous() and (x.numel() > 1 or x.shape == y.shape)
    return instruction[0] in (2, 3, 4) and shared and not ordered


def perform(library, tensors, instruction):
    """One step on one library's tensors: ("tensor", result), ("same", None) or ("error", class)."""
    kind, which, i, j, a, mode = instruction
    x, y = tensors[i % len(tensors)], tensors[j % len(tensors)]
    operations = KINDS[(0, 0, 1, 1, 1, 2)[kind]]
    operation = operations[which * 7 % len(operations) if kind % 2 else which % len(operations)]
    try:
        if mode == 0 and operations is not VIEWS:  # a view made without gradients is a case of its own
            with library.no_grad():
                result = operation(x, y, a)
        else:
            result = operation(x, a, j) if operations is VIEWS else operation(x, y, a)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        return "error", type(error), str(error)
    known = next((k for k, t in enumerate(tensors) if t is result), None)
    if result is None or known is not None:
        return "same", known, None
    tensors.append(result)
    return "new", len(tensors), None


def facts(x):
    """What a tensor looks like from outside."""
    strides = tuple(s for n, s in zip(x.shape, x.stride()) if n > 1)
    return (tuple(x.shape), strides if x.numel() else (), x.storage_offset() if x.numel() else 0, x.requires_grad,
            x.is_leaf, x._version, x._is_view())  # fmt: skip


def check(ours, theirs, where):
    for k, (a, b) in enumerate(zip(ours, theirs)):
        assert facts(a) == facts(b), f"{where}: tensor {k}: ours {facts(a)}, PyTorch's {facts(b)}"
        np.testing.assert_allclose(np.array(a.tolist()), np.array(b.tolist()), rtol=1e-9, atol=1e-12, err_msg=f"{where}: {k}")


def total(tensors):
    """A scalar that weighs every element of every tracked tensor differently."""
    result = None
    for k, x in enumerate(tensors):
        if x.requires_grad:
            term = (x * x * (0.5 + k)).sum() + x.sum() * (1.0 + k)
            result = term if result is None else result + term
    return result


def outcome(function):
    try:
        function()
    except (RuntimeError, NotImplementedError) as error:
        return type(error), str(error)
    return None, ""


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program)
def test_random_programs(drawn):
    leaves, steps = drawn
    ours = [leaf(ts, n, kind) for n, kind in leaves]
    theirs = [leaf(torch, n, kind) for n, kind in leaves]
    for position, instruction in enumerate(steps):
        where = f"step {position} {instruction}"
        if undefined(theirs, instruction):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a, b = perform(ts, ours, instruction), perform(torch, theirs, instruction)
        assert a[:2] == b[:2], f"{where}: ours {a}, PyTorch's {b}"
        check(ours, theirs, where)
    first = outcome(lambda: total(ours).backward() if total(ours) is not None else None)
    second = outcome(lambda: total(theirs).backward() if total(theirs) is not None else None)
    for unable in ("detached in-place", "refers to a single memory location", "moved into the graph interior"):
        assume(unable not in second[1])  # what PyTorch's backward cannot follow, and ours can
    assert first[0] == second[0], f"backward: ours {first}, PyTorch's {second}"
    for k, (a, b) in enumerate(zip(ours, theirs)):
        if not b.is_leaf or first[0] is not None:
            continue
        assert (a.grad is None) == (b.grad is None), f"gradient of {k}: ours {a.grad}, PyTorch's {b.grad}"
        if b.grad is not None:
            np.testing.assert_allclose(np.array(a.grad.tolist()), np.array(b.grad.tolist()), rtol=1e-9, atol=1e-10,
                                       err_msg=f"gradient of {k}")  # fmt: skip
