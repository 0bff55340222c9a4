"""`ts.func.jvp`, `jacfwd`, `hessian`, `linearize` give what PyTorch's give, nested with each other and with grad and vmap."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.func
from test_func_against_torch import both, tensors

import tensorsmith as ts


def f(lib: ModuleType) -> Callable[..., Any]:
    return lambda x: (lib.sin(x) * x).cumsum(0)


def scalar(lib: ModuleType) -> Callable[..., Any]:
    return lambda x: (lib.exp(x * 0.5) * lib.sin(x)).sum()


def two(lib: ModuleType) -> tuple[Any, Any]:
    x, y = tensors(lib, (3,), (3,))
    return x, y


def pushed(lib: ModuleType, function: Callable[..., Any], *shapes: tuple[int, ...], **keywords: Any) -> Any:
    primals, tangents = tensors(lib, *shapes), tensors(lib, *shapes, seed=1)
    return lib.func.jvp(function, tuple(primals), tuple(tangents), **keywords)


PROGRAMS: dict[str, Callable[[ModuleType], Any]] = {
    "jvp": lambda lib: pushed(lib, f(lib), (3,)),
    "jvp of two arguments": lambda lib: pushed(lib, lambda x, y: x * y + x, (3,), (2, 3)),
    "jvp of a nest": lambda lib: lib.func.jvp(
        lambda d: {"a": d["x"][0] * 2, "b": (d["x"][1],)},
        ({"x": tensors(lib, (2,), (3,))},), ({"x": tensors(lib, (2,), (3,), seed=1)},),
    ),
    "jvp with aux": lambda lib: pushed(lib, lambda x: (x * x, x + 1), (3,), has_aux=True),
    "jvp of a constant": lambda lib: pushed(lib, lambda x: lib.ones(2), (3,)),
    "jvp of integers": lambda lib: pushed(lib, lambda x: (x > 1, x * 2), (3,)),
    "strict": lambda lib: pushed(lib, lambda x: lib.ones(2), (3,), strict=True),
    "aux missing": lambda lib: pushed(lib, lambda x: x, (3,), has_aux=True),
    "primals are no tuple": lambda lib: lib.func.jvp(lib.sin, two(lib)[0], two(lib)[1]),
    "structures differ": lambda lib: lib.func.jvp(lib.sin, (two(lib)[0],), two(lib)),
    "shapes differ": lambda lib: lib.func.jvp(lib.sin, (lib.ones(3),), (lib.ones(4),)),
    "no tensor": lambda lib: lib.func.jvp(lambda x: x, (2.0,), (2.0,)),
    "nothing": lambda lib: lib.func.jvp(lambda: 1, (), ()),
    "integers": lambda lib: lib.func.jvp(lambda x: x, (lib.ones(2).long(),), (lib.ones(2),)),
    "results are no tensors": lambda lib: pushed(lib, lambda x: 2.0, (3,)),
    "empty result": lambda lib: pushed(lib, lambda x: (), (3,)),
    "in place": lambda lib: pushed(lib, lambda x: x.clone().mul_(x).add_(1), (3,)),
    "in place on a view": lambda lib: pushed(lib, lambda x: _third_squared(x), (3,)),
    "written into something new": lambda lib: pushed(lib, lambda x: _two_rows(lib, x), (3,)),
    "jacfwd": lambda lib: lib.func.jacfwd(f(lib))(two(lib)[0]),
    "jacfwd of two": lambda lib: lib.func.jacfwd(lambda x, y: (x * y, (x + y).sum()), (0, 1))(*two(lib)),
    "jacfwd of the second": lambda lib: lib.func.jacfwd(lambda x, y: lib.outer(x, y), 1)(*two(lib)),
    "jacfwd of a dict": lambda lib: lib.func.jacfwd(lambda d: {"y": d["a"] * d["b"]})(dict(zip("ab", two(lib)))),
    "jacfwd with aux": lambda lib: lib.func.jacfwd(lambda x: (x * x, {"kept": x + 1}), has_aux=True)(two(lib)[0]),
    "jacfwd of a constant": lambda lib: lib.func.jacfwd(lambda x: lib.ones(2))(two(lib)[0]),
    "jacfwd of a matrix": lambda lib: lib.func.jacfwd(lambda x: lib.tanh(x) @ x.T)(*tensors(lib, (2, 3))),
    "jacfwd, wrong argument": lambda lib: lib.func.jacfwd(f(lib), 3)(two(lib)[0]),
    "jacfwd of random numbers": lambda lib: lib.func.jacfwd(lambda x: x + lib.rand(3))(two(lib)[0]),
    "jacfwd of the same random numbers": lambda lib: lib.func.jacfwd(lambda x: x * x + 0 * lib.rand(3), randomness="same")(
        two(lib)[0].float()
    ).sum()
    * 0,
    "hessian": lambda lib: lib.func.hessian(scalar(lib))(two(lib)[0]),
    "hessian of two": lambda lib: lib.func.hessian(lambda x, y: (x * x * y).sum(), (0, 1))(*two(lib)),
    "hessian of a vector": lambda lib: lib.func.hessian(f(lib))(two(lib)[0]),
    "jacrev of jacfwd": lambda lib: lib.func.jacrev(lib.func.jacfwd(scalar(lib)))(two(lib)[0]),
    "jacfwd of jacfwd": lambda lib: lib.func.jacfwd(lib.func.jacfwd(scalar(lib)))(two(lib)[0]),
    "Hessian-vector product": lambda lib: lib.func.jvp(lib.func.grad(scalar(lib)), two(lib)[:1], two(lib)[1:]),
    "gradient of a derivative": lambda lib: lib.func.grad(
        lambda x: lib.func.jvp(scalar(lib), (x,), (two(lib)[1],))[1]
    )(two(lib)[0]),
    "jvp of jvp": lambda lib: lib.func.jvp(
        lambda x: lib.func.jvp(f(lib), (x,), (two(lib)[1],)), two(lib)[:1], two(lib)[1:]
    ),
    "no confusion of perturbations": lambda lib: lib.func.jvp(
        lambda x: x * lib.func.jvp(lambda y: x + y, (lib.tensor(1.0),), (lib.tensor(1.0),))[1],
        (lib.tensor(1.0),), (lib.tensor(1.0),),
    ),
    "vmap of jvp": lambda lib: lib.func.vmap(lambda x, t: lib.func.jvp(f(lib), (x,), (t,)))(*tensors(lib, (4, 3), (4, 3))),
    "vmap of jvp over tangents": lambda lib: lib.func.vmap(
        lambda t: lib.func.jvp(f(lib), (two(lib)[0],), (t,)), out_dims=(None, 0)
    )(lib.eye(3).double()),
    "jvp of vmap": lambda lib: pushed(lib, lib.func.vmap(f(lib)), (4, 3)),
    "vmap of jacfwd": lambda lib: lib.func.vmap(lib.func.jacfwd(f(lib)))(*tensors(lib, (4, 3))),
    "vmap of hessian": lambda lib: lib.func.vmap(lib.func.hessian(scalar(lib)))(*tensors(lib, (4, 3))),
    "third derivative": lambda lib: lib.func.jacfwd(lib.func.hessian(scalar(lib)))(two(lib)[0]),
    "linearize": lambda lib: _linear(lib, f(lib), (two(lib)[0],), (two(lib)[1],)),
    "linearize, several": lambda lib: _linear(lib, lambda x, y: {"p": x * y, "s": lib.sin(x)}, two(lib), two(lib)[::-1]),
    "linearize, structure": lambda lib: _linear(lib, f(lib), (two(lib)[0],), two(lib)),
    "linearize, shape": lambda lib: _linear(lib, f(lib), (two(lib)[0],), (lib.ones(4).double(),)),
    "linearize, dtype": lambda lib: _linear(lib, f(lib), (two(lib)[0],), (lib.ones(3),)),
}  # fmt: skip


def _linear(lib: ModuleType, function: Callable[..., Any], primals: tuple, tangents: tuple) -> Any:
    value, push = lib.func.linearize(function, *primals)
    return value, push(*tangents), push(*tangents)


def _third_squared(x: Any) -> Any:
    y = x * 2
    y[2:].mul_(y[2:].clone())
    return y


def _two_rows(lib: ModuleType, x: Any) -> Any:
    rows = lib.zeros(2, 3, dtype=lib.float64)
    rows[1] = x * x
    return rows


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_pytorch(name):
    both(PROGRAMS[name])


def test_jacfwd_of_the_last_argument():
    """PyTorch 2.13 gives zeros for argnums=-1."""
    x, y = two(ts)
    assert ts.allclose(ts.func.jacfwd(lambda x, y: x * y * y, -1)(x, y), ts.diag(2 * x * y))


def test_a_dual_that_is_kept_becomes_its_primal():
    kept = []
    ts.func.jvp(lambda x: kept.append(x * 2) or x, (ts.ones(2),), (ts.ones(2),))
    assert kept[0].tolist() == [2.0, 2.0] and (kept[0] + 1).tolist() == [3.0, 3.0]


def test_reverse_mode_outside_goes_through():
    def program(lib):
        x = lib.tensor([0.5, 2.0], dtype=lib.float64, requires_grad=True)
        t = lib.tensor([1.0, -1.0], dtype=lib.float64, requires_grad=True)
        value, moved = lib.func.jvp(lambda x: (x**3).sum(), (x,), (t,))
        return lib.autograd.grad(value + moved, (x, t))

    both(program)


def test_hessian_vector_products_of_a_network():
    def program(lib):
        layers = lib.nn.Sequential(lib.nn.Linear(3, 5), lib.nn.Tanh(), lib.nn.Linear(5, 1)).double()
        names, values = zip(*[(n, p.detach()) for n, p in layers.named_parameters()])
        with lib.no_grad():
            values = [(lib.arange(v.numel()).double().reshape(v.shape) * 0.07).sin() for v in values]
        data = tensors(lib, (4, 3))[0]

        def loss(*given):
            return (lib.func.functional_call(layers, dict(zip(names, given)), (data,)) ** 2).mean()

        vectors = tuple((v * 3 + 1).cos() for v in values)
        by_forward = lib.func.jvp(lib.func.grad(loss, tuple(range(len(values)))), tuple(values), vectors)[1]
        return tuple(by_forward), lib.autograd.functional.hvp(loss, tuple(values), vectors)[1]

    both(program)
    ours = program(ts)
    for a, b in zip(*ours):
        assert ts.allclose(a, b)


def test_linearize_runs_the_function_once():
    runs = []

    def function(x):
        runs.append(1)
        return ts.exp(x) * x

    x = ts.tensor([1.0, 2.0])
    value, push = ts.func.linearize(function, x)
    assert ts.allclose(push(ts.ones(2)), (1 + x) * ts.exp(x))
    assert ts.allclose(push(2 * ts.ones(2)), 2 * (1 + x) * ts.exp(x))
    assert len(runs) == 1 and ts.allclose(value, ts.exp(x) * x)


def test_torch_is_the_second_oracle():
    """The comparison itself: it fails where values differ."""
    with pytest.raises(AssertionError):
        both(lambda lib: pushed(lib, lambda x: x * (2 if lib is torch else 3), (3,)))


def test_a_mask_picks_of_a_dual_on_a_device():
    import emulator

    emulator.activate()
    x = ts.tensor([1.0, -2.0, 3.0], device="cuda")
    value, tangent = ts.func.jvp(lambda x: x[x > 0] * 2, (x,), (ts.ones_like(x),))
    assert value.tolist() == [2.0, 6.0] and tangent.tolist() == [2.0, 2.0] and tangent.device.type == "cuda"
