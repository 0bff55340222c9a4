"""`ts.func` gives what `torch.func` gives: values, structures and error classes."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.func

import tensorsmith as ts


def tensors(lib: ModuleType, *shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    """float64 tensors of either library with the same values in (0.5, 1.5)."""
    random = np.random.default_rng(seed)
    return [lib.tensor((random.random(shape) + 0.5).tolist(), dtype=lib.float64) for shape in shapes]


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The leaves of a nest under their paths; tensors as arrays."""
    if isinstance(value, tuple | list):
        kind = type(value).__name__
        return {k: v for i, x in enumerate(value) for k, v in leaves(x, f"{path}.{kind}{i}").items()}
    if isinstance(value, dict):
        return {k: v for i, x in value.items() for k, v in leaves(x, f"{path}.{i}").items()}
    return {path: value.detach().numpy() if hasattr(value, "detach") else value}


def both(program: Callable[[ModuleType], Any]) -> None:
    """The program gives the same nest of values with either library, or an error of the same class."""
    try:
        expected = leaves(program(torch))
    except Exception as error:
        with pytest.raises(type(error)):
            program(ts)
        return
    found = leaves(program(ts))
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        if isinstance(value, np.ndarray):
            assert np.asarray(found[path]).shape == value.shape, path
            np.testing.assert_allclose(found[path], value, rtol=1e-12, atol=1e-12, err_msg=path)
        else:
            assert found[path] == value, path


def loss(lib: ModuleType) -> Callable[..., Any]:
    return lambda x, y: (lib.sin(x) * y).sum() + (x * x * y).mean()


PROGRAMS: dict[str, Callable[[ModuleType], Any]] = {
    "grad": lambda lib: lib.func.grad(loss(lib))(*tensors(lib, (3,), (3,))),
    "grad of both arguments": lambda lib: lib.func.grad(loss(lib), (0, 1))(*tensors(lib, (3,), (2, 3))),
    "grad of the last argument": lambda lib: lib.func.grad(loss(lib), -1)(*tensors(lib, (3,), (3,))),
    "grad of a tuple of one": lambda lib: lib.func.grad(loss(lib), (1,))(*tensors(lib, (3,), (3,))),
    "grad and value": lambda lib: lib.func.grad_and_value(loss(lib))(*tensors(lib, (3,), (3,))),
    "grad with aux": lambda lib: lib.func.grad(lambda x: ((x * x).sum(), {"a": x * 2}), has_aux=True)(
        *tensors(lib, (3,))
    ),
    "grad and value with aux": lambda lib: lib.func.grad_and_value(lambda x: ((x * x).sum(), [x]), has_aux=True)(
        *tensors(lib, (3,))
    ),
    "grad of a nest": lambda lib: lib.func.grad(lambda p: (p["w"] @ p["b"][0]).sum() + p["b"][1].sum())(
        {"w": tensors(lib, (2, 3))[0], "b": tensors(lib, (3,), (2,))}
    ),
    "grad with keywords": lambda lib: lib.func.grad(lambda x, *, k: (x * k).sum())(
        tensors(lib, (3,))[0], k=tensors(lib, (3,))[0]
    ),
    "grad of what is not used": lambda lib: lib.func.grad(lambda x, y: y.sum(), (0, 1))(*tensors(lib, (3,), (2,))),
    "grad of a constant": lambda lib: lib.func.grad(lambda x: lib.tensor(1.0))(*tensors(lib, (3,))),
    "third derivative": lambda lib: lib.func.grad(lib.func.grad(lib.func.grad(lambda x: x.sin() * x**3)))(
        *tensors(lib, ())
    ),
    "grad through detach": lambda lib: lib.func.grad(lib.func.grad(lambda x: x.detach() * x * x))(*tensors(lib, ())),
    "grad under no_grad": lambda lib: lib.no_grad()(lib.func.grad(lambda x: (x * x).sum()))(*tensors(lib, (3,))),
    "no_grad inside grad": lambda lib: lib.func.grad(lambda x: (x - lib.no_grad()(lambda: x.sin())()).sum())(
        *tensors(lib, (3,))
    ),
    "no_grad inside two grads": lambda lib: lib.func.grad(
        lambda x: lib.func.grad(lambda y: y * y * lib.no_grad()(lambda: y.sin())())(x)
    )(*tensors(lib, ())),
    "grad of views written in place": lambda lib: lib.func.grad(views_in_place(lib))(*tensors(lib, (4,))),
    "second derivative of views written in place": lambda lib: lib.func.jacrev(lib.func.grad(views_in_place(lib)))(
        *tensors(lib, (4,))
    ),
    "grad with a buffer": lambda lib: lib.func.grad(lambda x: fill_buffer(lib, x))(*tensors(lib, (4,))),
    "grad of max and indices": lambda lib: lib.func.grad(lambda x: x.max(1)[0].sum() + x[[0, 1], [1, 0]].prod())(
        *tensors(lib, (2, 3))
    ),
    "vjp": lambda lib: run_vjp(lib, lambda x, y: (x * y, (x.sum(), y)), (3,), (3,)),
    "vjp of one": lambda lib: run_vjp(lib, lambda x: x.exp(), (3,)),
    "vjp twice": lambda lib: lib.func.grad(
        lambda x: lib.func.vjp(lambda y: y**3, x)[1](lib.ones(3, dtype=lib.float64))[0].sum()
    )(*tensors(lib, (3,))),
    "vjp with aux": lambda lib: lib.func.vjp(lambda x: (x * 2, x + 1), tensors(lib, (3,))[0], has_aux=True)[2],
    "jacrev": lambda lib: lib.func.jacrev(lambda x, y: x[:, None] * y)(*tensors(lib, (2,), (3,))),
    "jacrev of both": lambda lib: lib.func.jacrev(lambda x, y: {"p": x[:, None] * y, "s": y.sum()}, (0, 1))(
        *tensors(lib, (2,), (3,))
    ),
    "jacrev in chunks": lambda lib: lib.func.jacrev(lambda x: lib.outer(x, x), chunk_size=2)(*tensors(lib, (3,))),
    "jacrev with aux": lambda lib: lib.func.jacrev(lambda x: (x**3, x.sum()), has_aux=True)(*tensors(lib, (3,))),
    "jacrev twice": lambda lib: lib.func.jacrev(lib.func.jacrev(lambda x: (x**3).sum() * x))(*tensors(lib, (3,))),
    "gradient per example": lambda lib: lib.func.vmap(lib.func.grad(loss(lib)), in_dims=(0, None))(
        *tensors(lib, (4, 3), (3,))
    ),
    "grad of a vmap": lambda lib: lib.func.grad(
        lambda w: lib.func.vmap(lambda x: (x * w).sum().tanh())(tensors(lib, (4, 3))[0]).sum()
    )(*tensors(lib, (3,))),
    "vmap of jacrev": lambda lib: lib.func.vmap(lib.func.jacrev(lambda x: x.sin().cumsum(0)))(*tensors(lib, (4, 3))),
    "grad of an int": lambda lib: lib.func.grad(lambda x: x.sum())(lib.tensor([1, 2])),
    "grad of no tensor": lambda lib: lib.func.grad(lambda x: x)(2.0),
    "grad of a vector": lambda lib: lib.func.grad(lambda x: x * 2)(*tensors(lib, (3,))),
    "grad that returns no tensor": lambda lib: lib.func.grad(lambda x: 3.0)(*tensors(lib, (3,))),
    "grad of too large an argnum": lambda lib: lib.func.grad(lambda x: x.sum(), 1)(*tensors(lib, (3,))),
    "grad of a float argnum": lambda lib: lib.func.grad(lambda x: x.sum(), 1.5)(*tensors(lib, (3,))),
    "aux that is none": lambda lib: lib.func.grad(lambda x: x.sum(), has_aux=True)(*tensors(lib, (3,))),
    "cotangents of another structure": lambda lib: lib.func.vjp(lambda x: (x, x), *tensors(lib, (3,)))[1](
        *tensors(lib, (3,))
    ),
    "backward inside grad": lambda lib: lib.func.grad(lambda x: (x.sum().backward(), x.sum())[1])(*tensors(lib, (3,))),
    "requires_grad_ inside grad": lambda lib: lib.func.grad(lambda x: (x * 1).requires_grad_().sum())(*tensors(lib, (3,))),
    "autograd.grad inside grad": lambda lib: lib.func.grad(lambda x: lib.autograd.grad(
        (x**3).sum(), x, create_graph=True)[0].sum())(*tensors(lib, (3,))),
    "views by strides": lambda lib: lib.func.grad(lambda x: lib.func.vmap(
        lambda y: y.as_strided((2, 2), (1, 2), 0).sin())(x).sum())(*tensors(lib, (3, 4))),
    "limits at special points": lambda lib: lib.func.vmap(lib.func.grad(
        lambda x: x.norm() + x.std(correction=0) + x.abs().sum() + x.prod() + x.cumprod(0).sum() + x.amax()))(
        lib.zeros(2, 3, dtype=lib.float64)),
    "limits at special points, from outside": lambda lib: lib.func.grad(lambda x: lib.func.vmap(
        lambda y: y.norm() + y.std(correction=0) + y.prod() + y.cumprod(0).sum())(x).sum())(
        lib.zeros(2, 3, dtype=lib.float64)),
    "laid out anew": lambda lib: lib.func.vmap(lib.func.grad(laid_out_anew))(*tensors(lib, (2, 3))),
    "saved tensor hooks around grad": lambda lib: saved_hooks(lib, lambda x: lib.func.grad(lambda y: y.sin())(x)),
    "saved tensor hooks inside grad": lambda lib: lib.func.grad(
        lambda x: saved_hooks(lib, lambda _: x.sin()))(*tensors(lib, ())),
    "saved tensor hooks around vmap": lambda lib: lib.func.vmap(
        lambda x: saved_hooks(lib, lambda _: x.sin()))(*tensors(lib, (3,))),
    "bytes as another dtype": lambda lib: lib.func.vmap(lambda x: (x.view(lib.int64), x.float().view(lib.int16)))(
        *tensors(lib, (4, 5))),
    "bytes as another dtype, inside grad": lambda lib: lib.func.grad(lambda x: (x * x.view(lib.int64).sign()).sum())(
        *tensors(lib, (4, 5))),
    "quantile": lambda lib: lib.func.vmap(lambda x: x.quantile(lib.tensor([0.3, 0.5], dtype=lib.float64)))(
        *tensors(lib, (4, 5))),
    "grad of quantile": lambda lib: lib.func.grad(lambda x: x.quantile(0.3))(*tensors(lib, (5,))),
    "gradient of mode": lambda lib: lib.func.vmap(lib.func.grad(lambda x: x.mode(0)[0]))(*tensors(lib, (4, 5))),
    "take_along_dim from the end": lambda lib: lib.func.vmap(lambda x: x.take_along_dim(lib.tensor([-1, 0]), 0))(
        *tensors(lib, (4, 5))),
    "cotangents of another shape": lambda lib: lib.func.vjp(lambda x: x, *tensors(lib, (3,)))[1](*tensors(lib, (2,))),
}


def views_in_place(lib: ModuleType) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        y = x * 2
        view = y[1:3]
        view.mul_(x[:2])
        y[0] = x[3] * x[0]
        view.add_(y[0])
        return (y * y).sum()

    return function


def laid_out_anew(x: Any) -> Any:
    y = (x * 2).unsqueeze_(0)
    y.t_()
    y.mul_(x[:, None])
    return (y.squeeze_(1) * x).sum()


def saved_hooks(lib: ModuleType, function: Callable) -> Any:
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        return function(*tensors(lib, ()))


def fill_buffer(lib: ModuleType, x: Any) -> Any:
    buffer = lib.zeros(4, dtype=lib.float64)
    buffer[1:] = x[1:] * x[0]
    return (buffer * x).sum()


def run_vjp(lib: ModuleType, function: Callable, *shapes: tuple[int, ...]) -> Any:
    value, pull = lib.func.vjp(function, *tensors(lib, *shapes))
    return value, pull(value), pull(value)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # theirs
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_torch(name: str):
    both(PROGRAMS[name])


def test_gradients_flow_to_leaves_outside():
    (x,) = tensors(ts, (3,))
    w = ts.ones(3, dtype=ts.float64, requires_grad=True)
    found = ts.func.grad(lambda x: (x * x * w).sum())(x)
    found.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * x.numpy())


def test_an_expanded_view_can_be_filled():
    def function(x: ts.Tensor) -> ts.Tensor:
        y = x * 2
        y[:1].expand(2).fill_(0.0)
        return (y * x).sum()

    assert ts.func.grad(function)(ts.tensor([1.0, 2.0, 3.0])).tolist() == [0, 8, 12]
    assert ts.vmap(ts.func.grad(function))(ts.ones(2, 3)).tolist() == [[0, 4, 4]] * 2


def test_wrappers_that_are_kept_become_plain_tensors():
    kept = []

    def function(x: ts.Tensor) -> ts.Tensor:
        kept.extend([x, x * 2])
        return x.sum()

    (x,) = tensors(ts, (3,))
    ts.func.grad(function)(x)
    assert [type(k) for k in kept] == [ts.Tensor, ts.Tensor]
    np.testing.assert_array_equal((kept[0] + kept[1]).numpy(), 3 * x.numpy())
    assert not kept[1].requires_grad


def test_levels_are_left_when_a_function_raises():
    def fails(x: ts.Tensor) -> ts.Tensor:
        raise KeyError("inside")

    with pytest.raises(KeyError):
        ts.func.grad(fails)(ts.ones(2))
    with pytest.raises(KeyError):
        ts.vmap(fails)(ts.ones(2))
    from tensorsmith.tensor.modes import modes

    assert modes.tracer is None and modes.grad


def test_a_compiled_function_can_hold_transforms():
    (x,) = tensors(ts, (3,))
    compiled = ts.compile(lambda x: ts.vmap(ts.func.grad(lambda a: a**3))(x))
    np.testing.assert_allclose(compiled(x).numpy(), 3 * x.numpy() ** 2)
    np.testing.assert_allclose(compiled(x * 2).numpy(), 12 * x.numpy() ** 2)


def test_a_compiled_function_inside_transforms_is_differentiated():
    (x,) = tensors(ts, (3,))
    compiled = ts.compile(lambda x: x.sin().sum())
    compiled(x)
    np.testing.assert_allclose(ts.func.grad(compiled)(x).numpy(), np.cos(x.numpy()))
