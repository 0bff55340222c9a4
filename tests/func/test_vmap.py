"""`ts.vmap` against `torch.func.vmap`: dims, nests, in place, randomness, errors."""

from __future__ import annotations

import collections
import copy
import pickle
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.func
from test_func_against_torch import both, tensors

import tensorsmith as ts

Point = collections.namedtuple("Point", ["x", "y"])


def mapped(lib: ModuleType, function: Any, *shapes: tuple[int, ...], **options: Any) -> Any:
    return lib.func.vmap(function, **options)(*tensors(lib, *shapes))


def in_place(name: str, *shapes: tuple[int, ...], **options: Any) -> Any:
    def program(lib: ModuleType) -> Any:
        given = tensors(lib, *shapes)
        result = lib.func.vmap(IN_PLACE[name], **options)(*given)
        return result, given

    return program


def _setitem(x: Any, y: Any) -> Any:
    x[1:] = y
    return x


def _view_and_base(x: Any, y: Any) -> Any:
    row = x[0]
    row.mul_(y)
    x.t()[1].add_(row.sum())
    return x, row * 2


IN_PLACE = {
    "add_": lambda x, y: x.add_(y),
    "number": lambda x: x.mul_(2.0).sin_(),
    "setitem": _setitem,
    "view": _view_and_base,
    "zero_": lambda x: (x * 1).zero_() + x,
    "broadcast": lambda x, y: x.add_(y[0]),
    "index_put": lambda x, y: x.index_put_((y.long(),), y),
    "copy": lambda x, y: x.copy_(y),
}

PROGRAMS = {
    "one": lambda lib: mapped(lib, lambda x: x.sum(0) * 2, (4, 3, 2)),
    "in_dims": lambda lib: mapped(lib, lambda x, y: x @ y, (3, 4), (3, 2), in_dims=(1, None)),
    "negative in_dims": lambda lib: mapped(lib, lambda x, y: x * y, (3, 4), (4, 3), in_dims=(-1, 0)),
    "out_dims": lambda lib: mapped(lib, lambda x: (x, x.sum()), (4, 3, 2), out_dims=(1, 0)),
    "negative out_dims": lambda lib: mapped(lib, lambda x: x, (4, 3, 2), out_dims=-1),
    "out_dims of a nest": lambda lib: mapped(lib, lambda x: {"a": x, "b": [x * 2, x[0]]}, (4, 3, 2),
                                             out_dims={"a": 2, "b": [1, 0]}),
    "out_dims of a tuple of one": lambda lib: mapped(lib, lambda x: x, (4, 3), out_dims=(1,)),
    "nests": lambda lib: lib.func.vmap(lambda p, q: {"s": p["a"] + p["b"][0] * q.x - q.y}, in_dims=({"a": 0, "b": [1]}, None))(
        {"a": tensors(lib, (4, 3))[0], "b": tensors(lib, (3, 4))}, Point(*tensors(lib, (3,), ()))
    ),
    "one dim for a nest": lambda lib: lib.func.vmap(lambda p: p.x * p.y)(Point(*tensors(lib, (4, 3), (4, 1)))),
    "a result that is no batch": lambda lib: mapped(lib, lambda x: lib.ones(2), (4, 3)),
    "a result without out_dim": lambda lib: mapped(lib, lambda x: (x, 3), (4, 3), out_dims=(0, None)),
    "keywords": lambda lib: lib.func.vmap(lambda x, k: x * k)(*tensors(lib, (4, 3)), k=tensors(lib, (3,))[0]),
    "nested": lambda lib: lib.func.vmap(lib.func.vmap(lambda x, y: x * y, (None, 0)), (0, None))(*tensors(lib, (4,), (3,))),
    "nested, both": lambda lib: lib.func.vmap(lib.func.vmap(lambda x: x.cumsum(0) @ x, 1, 1), 1)(*tensors(lib, (5, 4, 3))),
    "captured from an outer vmap": lambda lib: lib.func.vmap(
        lambda x: lib.func.vmap(lambda y: (x * y).sum())(tensors(lib, (5, 3))[0])
    )(*tensors(lib, (4, 3))),
    "chunks": lambda lib: mapped(lib, lambda x: x.exp(), (5, 3), chunk_size=2),
    "chunks of size one, dims": lambda lib: mapped(lib, lambda x, y: (x * y, x), (3, 4), (3,), in_dims=(1, None),
                                                   out_dims=(1, 0), chunk_size=1),
    "creation inside": lambda lib: mapped(lib, lambda x: lib.zeros_like(x) + lib.arange(3) + lib.full((3,), 2.0), (4, 3)),
    "zeros_like written": lambda lib: mapped(lib, lambda x: lib.zeros_like(x).add_(x), (4, 3)),
    "new_zeros written": lambda lib: mapped(lib, lambda x: x.new_zeros(3).add_(x), (4, 3)),
    "indices": lambda lib: lib.func.vmap(lambda x, i: (x[i], x.take_along_dim(i, 0), x.gather(0, i)))(
        tensors(lib, (4, 3))[0], lib.tensor([[0, 1], [2, 2], [1, 0], [0, 0]])
    ),
    "shared table": lambda lib: lib.func.vmap(lambda x, i: x[i], (None, 0))(
        tensors(lib, (4, 3))[0], lib.tensor([[0, 1], [2, 3], [1, 0]])
    ),
    "scatter": lambda lib: lib.func.vmap(lambda x, i: x.scatter_add(0, i, x * 2))(
        tensors(lib, (2, 3))[0], lib.tensor([[0, 0, 1], [2, 2, 2]])
    ),
    "sort": lambda lib: mapped(lib, lambda x: tuple(x.sort(0, descending=True)) + tuple(x.topk(2)), (4, 3)),
    "conditions": lambda lib: mapped(lib, lambda x: lib.where(x > 1, x, -x).clamp(-1.2, 1.2), (4, 3)),
    "size and shape": lambda lib: mapped(lib, lambda x: x.reshape(x.shape[1], x.size(0)) * x.ndim * len(x), (4, 3, 2)),
    "einsum": lambda lib: mapped(lib, lambda x, y: lib.einsum("ij,jk->ki", x, y), (4, 2, 3), (3, 5), in_dims=(0, None)),
    "softmax and loss": lambda lib: lib.func.vmap(lib.nn.functional.cross_entropy)(
        tensors(lib, (4, 5, 3))[0], lib.tensor([[0, 1, 2, 0, 1]] * 4)
    ),
    "unbind": lambda lib: mapped(lib, lambda x: sum(x.unbind(0)) + lib.stack(list(x)).sum(0), (4, 3, 2)),
    "in place": in_place("add_", (4, 3), (4, 3)),
    "in place with a number": in_place("number", (4, 3)),
    "in place, shared operand": in_place("add_", (4, 3), (3,), in_dims=(0, None)),
    "in place by assignment": in_place("setitem", (4, 3, 2), (4, 2)),
    "in place through views": in_place("view", (4, 3, 2), (4, 2)),
    "in place on another axis": in_place("view", (3, 2, 4), (4, 2), in_dims=(2, 0)),
    "in place zero": in_place("zero_", (4, 3)),
    "in place broadcast": in_place("broadcast", (4, 3, 2), (4, 1, 2)),
    "in place index_put": in_place("index_put", (4, 3), (4, 2)),
    "in place copy": in_place("copy", (4, 3), (4, 1)),
    "in place on a shared tensor": in_place("add_", (3,), (4, 3), in_dims=(None, 0)),
    "in place copy to a shared tensor": in_place("copy", (3,), (4, 3), in_dims=(None, 0)),
    "item": lambda lib: mapped(lib, lambda x: x.sum().item() * x, (4, 3)),
    "control flow": lambda lib: mapped(lib, lambda x: x if x.sum() > 0 else -x, (4, 3)),
    "nonzero": lambda lib: mapped(lib, lambda x: x.nonzero(), (4, 3)),
    "mask": lambda lib: mapped(lib, lambda x: x[x > 1], (4, 3)),
    "tolist": lambda lib: mapped(lib, lambda x: lib.tensor(x.tolist()), (4, 3)),
    "shapes that do not broadcast": lambda lib: mapped(lib, lambda x, y: x + y, (4, 3), (4, 2)),
    "no tensor": lambda lib: lib.func.vmap(lambda x: x)(3.0),
    "no arguments": lambda lib: lib.func.vmap(lambda: 3)(),
    "nothing mapped": lambda lib: mapped(lib, lambda x: x, (4, 3), in_dims=None),
    "nothing mapped in a tuple": lambda lib: mapped(lib, lambda x: x, (4, 3), in_dims=(None,)),
    "sizes differ": lambda lib: mapped(lib, lambda x, y: x, (4, 3), (3, 3)),
    "in_dim out of range": lambda lib: mapped(lib, lambda x: x, (4, 3), in_dims=2),
    "in_dim of a zero-dim tensor": lambda lib: mapped(lib, lambda x: x, ()),
    "in_dims of another structure": lambda lib: mapped(lib, lambda x: x, (4, 3), in_dims=(0, 0)),
    "in_dims that is a list": lambda lib: mapped(lib, lambda x: x, (4, 3), in_dims=[0]),
    "in_dims that is a float": lambda lib: mapped(lib, lambda x: x, (4, 3), in_dims=(1.0,)),
    "out_dims of another structure": lambda lib: mapped(lib, lambda x: x, (4, 3), out_dims=(0, 0)),
    "out_dim out of range": lambda lib: mapped(lib, lambda x: x, (4, 3), out_dims=3),
    "out_dim that is a float": lambda lib: mapped(lib, lambda x: x, (4, 3), out_dims=1.5),
    "out_dim None of a batch": lambda lib: mapped(lib, lambda x: x, (4, 3), out_dims=None),
    "a result that is no tensor": lambda lib: mapped(lib, lambda x: 3.0, (4, 3)),
    "wrong randomness": lambda lib: mapped(lib, lambda x: x, (4, 3), randomness="some"),
    "chunk size zero": lambda lib: mapped(lib, lambda x: x, (4, 3), chunk_size=0),
    "random numbers": lambda lib: mapped(lib, lambda x: x + lib.rand(3), (4, 3)),
    "random numbers in place": lambda lib: mapped(lib, lambda x: x.uniform_(), (4, 3)),
    "dropout": lambda lib: mapped(lib, lambda x: lib.nn.functional.dropout(x, 0.5), (4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_torch(name: str):
    both(PROGRAMS[name])


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: ts.rand(50),
        lambda x: ts.randn(50) + x,
        lambda x: ts.rand_like(x.expand(50)),
        lambda x: ts.nn.functional.dropout(ts.ones(50), 0.5) * x,
        lambda x: ts.randint(0, 1000, (50,)),
        lambda x: ts.bernoulli(ts.full((50,), 0.5)) + x * 0,
        lambda x: x.expand(50).clone().normal_(),
        lambda x: ts.randperm(50),
        lambda x: ts.multinomial(ts.ones(9), 50, replacement=True),
        lambda x: ts.multinomial(x.expand(50), 50),
    ],
    ids=["rand", "randn", "rand_like", "dropout", "randint", "bernoulli", "normal_", "randperm", "multinomial", "without"],
)
def test_randomness(draw: Any):
    x = ts.ones(6)
    different = ts.vmap(draw, randomness="different")(x)
    rows = {tuple(row) for row in different.tolist()}
    assert different.shape == (6, 50) and len(rows) == 6
    same = ts.vmap(draw, randomness="same")(x)
    assert same.shape == (6, 50) and len({tuple(row) for row in same.tolist()}) == 1


def test_different_numbers_at_two_levels():
    draw = ts.vmap(ts.vmap(lambda x: ts.rand(8), randomness="different"), randomness="different")
    found = draw(ts.ones(3, 4))
    assert len({tuple(row) for row in found.reshape(12, 8).tolist()}) == 12
    mixed = ts.vmap(ts.vmap(lambda x: ts.rand(8), randomness="same"), randomness="different")(ts.ones(3, 4))
    assert len({tuple(row) for row in mixed.reshape(12, 8).tolist()}) == 3
    with pytest.raises(RuntimeError, match="randomness error mode"):
        ts.vmap(ts.vmap(lambda x: ts.rand(8), randomness="different"))(ts.ones(3, 4))


def test_numbers_do_not_repeat_after_a_batch():
    ts.manual_seed(3)
    first = ts.vmap(lambda x: ts.rand(5), randomness="different")(ts.ones(4))
    assert not set(first.flatten().tolist()) & set(ts.rand(100).tolist())
    ts.manual_seed(3)
    assert ts.equal(ts.vmap(lambda x: ts.rand(5), randomness="different")(ts.ones(4)), first)


def test_the_hint_names_the_cure():
    with pytest.raises(RuntimeError, match=r"\.item\(\).*ts\.where"):
        ts.vmap(lambda x: x if x > 0 else -x)(ts.ones(3))
    with pytest.raises(RuntimeError, match="`self` not being vmapped"):
        ts.vmap(lambda x: ts.zeros(3).add_(x))(ts.ones(2, 3))


def test_a_wrapper_that_escapes_says_so():
    kept = []
    ts.vmap(lambda x: kept.append(x) or x)(ts.ones(3))
    for use in (lambda x: x + 1, lambda x: x.shape, lambda x: x[0], lambda x: ts.sin(x), repr):
        with pytest.raises(RuntimeError, match="after the vmap is over"):
            use(kept[0])


def test_writes_are_seen_by_the_backward():
    """A value saved for a backward and then written through a wrapper is noticed."""
    x = ts.ones(4, 3, requires_grad=True)
    y = x * 2
    z = (y * y).sum()
    ts.vmap(lambda row: row.mul_(2))(y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_in_place_with_gradients():
    gradients = []
    for lib in (ts, torch):
        x, w = (t.requires_grad_() for t in tensors(lib, (4, 3, 2), (2,)))
        y = x * 1
        lib.func.vmap(lambda row, w: row[1:].mul_(w * 3), (0, None))(y, w)
        (y * y).sum().backward()
        gradients.append((x.grad.numpy(), w.grad.numpy()))
    np.testing.assert_allclose(gradients[0][0], gradients[1][0])
    np.testing.assert_allclose(gradients[0][1], gradients[1][1])


def test_memory_is_not_given_up():
    for what in (lambda x: x.resize_(2), lambda x: ts.nn.Parameter(x), lambda x: copy.copy(x),
                 lambda x: setattr(x, "data", x), copy.deepcopy, ts.Tensor,
                 lambda x: ts.add(x, x, out=ts.ones_like(x)[:1])):  # fmt: skip
        with pytest.raises(NotImplementedError, match="inside a function transform"):
            ts.vmap(what)(ts.ones(2, 3))


def test_values_are_not_had_by_other_ways(tmp_path: Any):
    for what in (lambda x: ts.save({"x": x}, tmp_path / "x"), np.asarray, pickle.dumps, ts.tensor, lambda x: x.tolist(), int):
        with pytest.raises(RuntimeError, match="vmap: "):
            ts.vmap(lambda x: what(x.sum()))(ts.ones(2, 3))  # noqa: B023


def test_what_numpy_computes():
    x = ts.tensor(np.random.default_rng(1).integers(0, 4, (5, 3, 7)))
    for function in (lambda x: tuple(x.mode(-1)), lambda x: (ts.isin(x, ts.tensor([1, 3])),)):
        alone = [ts.stack(parts) for parts in zip(*[function(one) for one in x])]
        together = ts.vmap(function)(x)
        twice = ts.vmap(ts.vmap(function))(x)
        for a, b, c in zip(alone, together, twice, strict=True):
            assert ts.equal(a, b) and ts.equal(a, c)


def test_looking_inside():
    seen = []

    def look(x: ts.Tensor) -> ts.Tensor:
        seen.extend([ts.func.debug_unwrap(x), ts.func.debug_unwrap(x, recurse=False).shape, ts.func.debug_unwrap(outside)])
        return x.sum()

    outside = ts.ones(3)
    x = ts.rand(2, 3)
    ts.vmap(ts.func.grad(look))(x)
    assert ts.equal(seen[0], x) and seen[1] == (3,) and seen[2] is outside


def test_what_is_missing_says_so():
    with pytest.raises(AttributeError, match=r"functionalize.*ts\.compile"):
        ts.func.functionalize  # noqa: B018


def test_printing_says_what_it_is():
    seen = []
    ts.vmap(lambda x: seen.append(str(x)) or ts.func.grad(lambda y: seen.append(repr(y)) or y.sum())(x))(ts.ones(2, 3))
    assert seen[0].startswith("BatchedTensor(lvl=1, bdim=0, value=\n") and "tensor([[1., 1., 1.]," in seen[0]
    assert seen[1].startswith("GradTrackingTensor(lvl=2, value=\n") and "BatchedTensor(lvl=1" in seen[1]
