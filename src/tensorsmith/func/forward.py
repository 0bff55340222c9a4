"""Forward mode: `jvp`, `jacfwd`, `hessian`, `linearize`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.func.dual_level import DualLevel
from tensorsmith.func.reverse import Argnums, _basis, _chosen, _without_aux, jacrev, vjp
from tensorsmith.func.trees import flatten, map_leaves, unflatten
from tensorsmith.func.vmap import vmap as map_examples
from tensorsmith.ops.splitting import split
from tensorsmith.tensor.tensor import Tensor

_JVP = "jvp(f, primals, tangents)"


def jvp(
    func: Callable[..., Any], primals: tuple, tangents: tuple, *, strict: bool = False, has_aux: bool = False
) -> tuple[Any, ...]:
    """(func(*primals), J t): the value of a function and its derivative along tangents, in one run.

    primals, tangents: tuples of nests of tensors of equal structure and shapes
    strict:            RuntimeError where a result does not depend on the primals; otherwise its tangent is zero
    has_aux:           func returns (results, aux), and aux comes back as a third value

    Raises RuntimeError where the structures or shapes differ, or something is no tensor.

    >>> ts.func.jvp(ts.sin, (ts.tensor(0.0),), (ts.tensor(2.0),))
    (tensor(0.), tensor(2.))
    """
    return _pushed(func, primals, tangents, None, strict, has_aux)


def _pushed(
    func: Callable[..., Any], primals: tuple, tangents: Any, argnums: Argnums | None, strict: bool, has_aux: bool
) -> tuple[Any, ...]:
    if not isinstance(primals, tuple):
        raise RuntimeError(f"{_JVP}: Expected primals to be a tuple. E.g. it should be valid to call f(*primals).")
    numbers = range(len(primals)) if argnums is None else _chosen(argnums, primals)
    moving = tuple([primals[n] for n in numbers])
    leaves, spec = flatten(moving)
    given, given_spec = flatten(tangents)
    if spec != given_spec:
        raise RuntimeError(
            f"{_JVP}: Expected primals and tangents to have the same python structure. For example, if primals is a tuple "
            f"of 3 tensors, tangents also must be. Got primals with structure {spec} and tangents with structure {given_spec}"
        )
    _check_tensors(leaves, "primals")
    _check_tensors(given, "tangents")
    with DualLevel() as level:
        duals = [level.make(primal, tangent) for primal, tangent in zip(leaves, given)]
        arguments = list(primals)
        for number, value in zip(numbers, unflatten(duals, spec)):
            arguments[number] = value
        results, aux = _without_aux(f"{_JVP}: output of function f", func(*arguments), has_aux)
        outputs, out_spec = flatten(results)
        _check_outputs(results, outputs)
        values, moved = zip(*[_parts(level, output, strict) for output in outputs])
        if has_aux:
            aux_leaves, aux_spec = flatten(aux)
            aux = unflatten([level.lower(leaf) for leaf in aux_leaves], aux_spec)
    packed = unflatten(values, out_spec), unflatten(moved, out_spec)
    return (*packed, aux) if has_aux else packed


def _check_tensors(leaves: Sequence[Any], what: str) -> None:
    if not leaves:
        raise RuntimeError(f"{_JVP}: Expected {what} to contain at least one Tensor.")
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise RuntimeError(f"{_JVP}: Expected {what} to contain only Tensors, got unsupported type {type(leaf)}")


def _check_outputs(results: Any, outputs: Sequence[Any]) -> None:
    if not outputs:
        raise RuntimeError(f"{_JVP}: Expected f to be a function that has non-empty output, got output = {results}")
    for output in outputs:
        if not isinstance(output, Tensor):
            raise RuntimeError(f"{_JVP}: Expected f(*primals) to return only tensors, got unsupported type {type(output)}")


def _parts(level: DualLevel, output: Tensor, strict: bool) -> tuple[Tensor, Tensor]:
    """Primal and tangent of a result, a tangent of zeros where it does not depend on what moves."""
    primal, tangent = level.parts(output)
    if tangent is None:
        if strict:
            raise RuntimeError(
                "jvp(f, primals, tangents, strict=True): The output of f is independent of the inputs. This is not allowed "
                "with strict=True."
            )
        tangent = arithmetic.zeros(primal.layout.with_tracking(False))
    return primal, tangent


def jacfwd(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Callable[..., Any]:
    """A function that returns the Jacobian of `func`, one Jacobian-vector product per element of the argument, batched.

    For every tensor of the results and every tensor of the argument a tensor of the one's shape followed by the other's, as
    `jacrev`'s; the better choice where there are more results than arguments. randomness: as `vmap`'s.

    >>> ts.func.jacfwd(ts.sin)(ts.zeros(2))
    tensor([[1., 0.],
            [0., 1.]])
    """

    @functools.wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        numbers = _chosen(argnums, args)
        leaves, spec = flatten(tuple([args[n] for n in numbers]))
        _check_real("jacfwd", leaves, "inputs")
        kept: dict[str, Any] = {}

        def pushed(basis: Any) -> Any:
            found = _pushed(functools.partial(func, **kwargs), args, basis, numbers, False, has_aux)
            outputs, kept["spec"] = flatten(found[0])
            _check_real("jacfwd", outputs, "outputs")
            kept["shapes"] = [output.shape for output in outputs]
            return (found[1], found[2]) if has_aux else (found[1], ())

        basis = unflatten(_basis(leaves), spec)
        columns, aux = map_examples(pushed, randomness=randomness)(basis)
        aux = map_leaves(lambda each: each[0], aux)
        sizes = [leaf.numel() for leaf in leaves]
        found = []
        for column, shape in zip(flatten(columns)[0], kept["shapes"]):
            turned = column.permute(*range(1, column.ndim), 0)
            blocks = [part.reshape(*shape, *leaf.shape) for part, leaf in zip(split(turned, sizes, -1), leaves)]
            nest = unflatten(blocks, spec)
            found.append(nest[0] if isinstance(argnums, int) else nest)
        packed = unflatten(found, kept["spec"])
        return (packed, aux) if has_aux else packed

    return jacobian


def _check_real(name: str, leaves: Sequence[Any], what: str) -> None:
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.layout.dtype.kind == "c":
            raise RuntimeError(
                f"{name}: Expected all {what} to be real but received complex tensor at flattened input idx: {number}"
            )


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """A function that returns the Hessian of `func`: the forward-mode Jacobian of its reverse-mode Jacobian.

    >>> ts.func.hessian(lambda x: (x**3).sum())(ts.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(func(*primals), jvp_fn): jvp_fn takes tangents shaped as the primals and returns J t.

    The function runs once; jvp_fn is the transpose of its vector-Jacobian product, and may be called any number of times.
    Raises RuntimeError where tangents do not fit the primals.

    >>> y, push = ts.func.linearize(ts.sin, ts.tensor(0.0))
    >>> push(ts.tensor(3.0))
    tensor(3.)
    """
    leaves, spec = flatten(primals)
    value, pull = vjp(func, *primals)
    outputs, out_spec = flatten(value)
    anywhere = unflatten([arithmetic.zeros(output.layout.with_tracking(False)) for output in outputs], out_spec)
    push = vjp(lambda cotangents: pull(cotangents, create_graph=True), anywhere)[1]

    def jvp_fn(*tangents: Any) -> Any:
        given, given_spec = flatten(tangents)
        if given_spec != spec:
            raise RuntimeError(f"Expected the tangents {given_spec} to have the same argspec as the primals {spec}")
        for number, (tangent, primal) in enumerate(zip(given, leaves)):
            for what in ("shape", "dtype"):
                if getattr(tangent, what) != getattr(primal, what):
                    raise RuntimeError(
                        f"tangent:{number} with {what} {getattr(tangent, what)} in flattened pytree doesn't match the {what} "
                        f"{getattr(primal, what)} of the corresponding primal."
                    )
        return push(tangents)[0]

    return value, jvp_fn


__all__ = ["hessian", "jacfwd", "jvp", "linearize"]
