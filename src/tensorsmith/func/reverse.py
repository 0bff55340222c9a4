"""Reverse mode: `vjp`, `grad`, `grad_and_value`, `jacrev`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd import engine
from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.autograd.node import Edge
from tensorsmith.func.grad_level import GradLevel
from tensorsmith.func.trees import flatten, unflatten
from tensorsmith.func.vmap import vmap as map_examples
from tensorsmith.ops.creation import eye, zeros
from tensorsmith.ops.joining import cat
from tensorsmith.ops.splitting import split
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

Argnums = int | tuple[int, ...]


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple:
    """(func(*primals), vjp_fn): vjp_fn takes cotangents shaped as the results and returns v^T J, one nest per primal.

    has_aux: func returns (results, aux), and aux comes back as a third value, untouched by differentiation.
    Raises RuntimeError where func returns something other than tensors, or cotangents do not fit the results.

    >>> x = ts.tensor([1.0, 2.0])
    >>> y, pull = ts.func.vjp(lambda x: x**2, x)
    >>> pull(ts.ones(2))
    (tensor([2., 4.]),)
    """
    return _vjp("vjp", func, primals, has_aux)


def _vjp(name: str, func: Callable, primals: tuple, has_aux: bool) -> tuple:
    leaves, spec = flatten(primals)
    with GradLevel() as level:
        tracked = [_tracked(level, leaf) for leaf in leaves]
        edges = [level.edge(leaf) for leaf in tracked]
        results = func(*unflatten(tracked, spec))
        results, aux = _without_aux(f"{name}(f, *primals): output of function f", results, has_aux)
        outputs, out_spec = flatten(results)
        if not outputs:
            raise RuntimeError(
                f"{name}(f, *primals): Expected f to be a function that has non-empty output, got output = {results}"
            )
        for output in outputs:
            if not isinstance(output, Tensor):
                raise RuntimeError(
                    f"{name}(f, *primals): Expected f(*primals) to return only tensors, got unsupported type {type(output)}"
                )
        roots = [level.edge(output) for output in outputs]
        plain = [level.lower(output) for output in outputs]
        aux = _lowered(level, aux)

    def vjp_fn(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        given, given_spec = flatten(cotangents)
        if given_spec != out_spec:
            raise RuntimeError(
                "Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function. "
                f"cotangents: {given_spec}, primal output: {out_spec}"
            )
        for number, (seed, output) in enumerate(zip(given, plain)):
            _check_seed(number, seed, output)
        create = modes.grad if create_graph is None else create_graph
        return unflatten(_pull(roots, given, edges, leaves, retain_graph, create), spec)

    values = unflatten(plain, out_spec)
    return (values, vjp_fn, aux) if has_aux else (values, vjp_fn)


def _check_seed(number: int, seed: Any, output: Tensor) -> None:
    if not isinstance(seed, Tensor):
        raise TypeError(f"vjp: cotangents are tensors, got {type(seed).__name__}")
    if seed.layout.shape != output.layout.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{number}] has a shape of {seed.shape} and output[{number}] has a shape of "
            f"{output.shape}."
        )


def _tracked(level: GradLevel, leaf: Any) -> Tensor:
    if not isinstance(leaf, Tensor):
        raise ValueError(f"Thing passed to transform API must be Tensor, got {type(leaf)}")
    if leaf.layout.dtype.kind not in "fc":
        raise RuntimeError("only Tensors of floating point and complex dtype can require gradients")
    return level.track(leaf)


def _without_aux(what: str, results: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return results, None
    if not (isinstance(results, tuple) and len(results) == 2):
        raise RuntimeError(f"{what} should be a tuple: (output, aux) if has_aux is True")
    return results


def _lowered(level: GradLevel, value: Any) -> Any:
    leaves, spec = flatten(value)
    return unflatten([level.lower(leaf) for leaf in leaves], spec)


def _pull(
    roots: Sequence[Edge | None], seeds: Sequence[Tensor], edges: Sequence[Edge | None], leaves: Sequence[Tensor],
    keep_graph: bool, create_graph: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients that arrive at `edges` from seeds at `roots`; zeros like `leaves` where none does."""
    captures: engine.Captures = {}
    for place, edge in enumerate(edges):
        if edge is not None:
            captures.setdefault(edge[0], []).append((edge[1], place))
    starts = [(*root, seed) for root, seed in zip(roots, seeds) if root is not None]
    found: list[Tensor | None] = [None] * len(leaves)
    if starts and captures:
        needed = engine.nodes_towards([node for node, _, _ in starts], captures)
        engine.run_towards(starts, keep_graph, create_graph, needed, captures, found)
    return [_zeros(leaf) if grad is None else grad for grad, leaf in zip(found, leaves)]


def _zeros(leaf: Tensor) -> Tensor:
    return arithmetic.zeros(leaf.layout.with_tracking(False))


def _chosen(argnums: Argnums, args: tuple) -> tuple[int, ...]:
    """The numbers of the arguments to differentiate for, from 0."""
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(numbers, tuple) or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        raise RuntimeError(f"argnum must be int or Tuple[int], got {argnums!r}")
    if not numbers:
        raise RuntimeError("argnums: expected at least one argument to differentiate for, got an empty tuple")
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise RuntimeError(f"Got argnum={number}, but only {len(args)} positional inputs")
    found = tuple(n % len(args) for n in numbers)
    if len(set(found)) != len(found):
        raise RuntimeError(f"argnums elements must be unique, got {argnums!r}")
    return found


def grad_and_value(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """A function that returns (gradient, value) of a scalar function; with has_aux, (gradient, (value, aux)).

    Arguments and errors as `grad`'s.

    >>> ts.func.grad_and_value(lambda x: (x**2).sum())(ts.tensor([1.0, 3.0]))
    (tensor([2., 6.]), tensor(10.))
    """

    @functools.wraps(func)
    def differentiated(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        numbers = _chosen(argnums, args)
        leaves, spec = flatten(tuple([args[n] for n in numbers]))
        with GradLevel() as level:
            tracked = [_tracked(level, leaf) for leaf in leaves]
            edges = [level.edge(leaf) for leaf in tracked]
            given = list(args)
            for number, value in zip(numbers, unflatten(tracked, spec)):
                given[number] = value
            result = func(*given, **kwargs)
            output, aux = _without_aux("grad_and_value(f)(*args): output of function f", result, has_aux)
            _check_scalar(output)
            root = level.edge(output)
            found = []
            if root is not None:
                seed = arithmetic.ones_like(output.detach())
                level.pulling = True
                found = _pull([root], [seed], edges, leaves, False, True)
            gradients = [level.lower(g) for g in found] or [_zeros(leaf) for leaf in leaves]
            value, aux = level.lower(output), _lowered(level, aux)
        packed = unflatten(gradients, spec)
        if isinstance(argnums, int):
            packed = packed[0]
        return packed, (value, aux) if has_aux else value

    return differentiated


def _check_scalar(output: Any) -> None:
    if not isinstance(output, Tensor):
        raise RuntimeError(f"grad_and_value(f)(*args): Expected f(*args) to return a tensor, got {type(output)}")
    if output.ndim:
        raise RuntimeError(
            "grad_and_value(f)(*args): Expected f(*args) to return a scalar tensor, got tensor with "
            f"{output.ndim} dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
        )
    if output.layout.dtype.kind == "c":
        raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {output.layout.dtype}")


def grad(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of a scalar function with respect to argument number `argnums`.

    func:    returns a zero-dim tensor; with has_aux a tuple (tensor, aux), and aux is returned beside the gradient
    argnums: which argument, a nest of tensors; or a tuple of several, which gives a tuple of gradients

    Transforms nest: `grad(grad(f))` is the second derivative, `vmap(grad(f))` has one gradient per example. Raises
    RuntimeError where func does not return a scalar, or an argument is not of a floating dtype.

    >>> ts.func.grad(ts.sin)(ts.tensor(0.0))
    tensor(1.)
    >>> ts.func.grad(ts.func.grad(lambda x: x**3))(ts.tensor(2.0))
    tensor(12.)
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return differentiated


def jacrev(
    func: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable[..., Any]:
    """A function that returns the Jacobian of `func`, one vector-Jacobian product per element of the results, batched.

    For every tensor of the results and every tensor of the argument a tensor of the one's shape followed by the other's, in
    the results' nest of the argument's nest. chunk_size: how many products at once (all by default).

    >>> ts.func.jacrev(ts.sin)(ts.zeros(2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError("jacrev: `chunk_size` should be greater than 0.")

    @functools.wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        numbers = _chosen(argnums, args)

        def partial(*chosen: Any) -> Any:
            given = list(args)
            for number, value in zip(numbers, chosen):
                given[number] = value
            return func(*given, **kwargs)

        primals = tuple([args[n] for n in numbers])
        outputs, pull, *aux = _vjp("jacrev", partial, primals, has_aux)
        flat, out_spec = flatten(outputs)
        basis = unflatten(_basis(flat), out_spec)
        rows, spec = flatten(map_examples(pull, chunk_size=chunk_size)(basis))
        sizes = [output.numel() for output in flat]
        blocks = [
            [part.reshape(*output.shape, *part.shape[1:]) for part, output in zip(split(row, sizes, 0), flat)] for row in rows
        ]
        found = []
        for number in range(len(flat)):
            nest = unflatten([each[number] for each in blocks], spec)
            found.append(nest[0] if isinstance(argnums, int) else nest)
        packed = unflatten(found, out_spec)
        return (packed, aux[0]) if has_aux else packed

    return jacobian


def _basis(outputs: Sequence[Tensor]) -> list[Tensor]:
    """For every tensor the unit vectors of all of them: (total number of elements, *its shape)."""
    sizes = [output.numel() for output in outputs]
    total, before = sum(sizes), 0
    found = []
    for output, size in zip(outputs, sizes):
        kind: dict[str, Any] = {"dtype": output.layout.dtype, "device": output.layout.device}
        rows = [zeros(before, size, **kind), eye(size, **kind), zeros(total - before - size, size, **kind)]
        found.append(cat(rows, 0).reshape(total, *output.layout.shape))
        before += size
    return found


__all__ = ["grad", "grad_and_value", "jacrev", "vjp"]
