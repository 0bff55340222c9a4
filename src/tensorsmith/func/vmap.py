"""`vmap`: a function of one example, called for a whole batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.func.trees import Spec, broadcast, flatten, unflatten
from tensorsmith.func.vmap_level import VmapLevel
from tensorsmith.ops.joining import cat
from tensorsmith.ops.splitting import tensor_split
from tensorsmith.ops.transposing import movedim
from tensorsmith.ops.views import expand, unsqueeze
from tensorsmith.tensor.tensor import Tensor

Dims = Any  # int, None, or a nest of them


def vmap(
    func: Callable[..., Any], in_dims: Dims = 0, out_dims: Dims = 0, randomness: str = "error", *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """`func`, which is written for one example, as a function of batches: each operator in it runs once for all examples.

    in_dims:    the axis of each argument that counts examples; None where all examples get the same. An int for all
                arguments, or a tuple (with nests for arguments that are nests)
    out_dims:   where that axis stands in each result
    randomness: "error" refuses random numbers, "different" draws for each example, "same" gives all the same
    chunk_size: how many examples at once; None for all

    Keyword arguments are not mapped over. Raises ValueError for in_dims and out_dims that do not fit, RuntimeError where the
    function asks for the values of a tensor (`item()`, `if`), writes in place to a tensor that all examples share, or draws
    random numbers that were not allowed.

    >>> x, y = ts.arange(6.0).reshape(2, 3), ts.ones(2, 3)
    >>> ts.func.vmap(ts.dot)(x, y)
    tensor([ 3., 12.])
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}")
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")
    name = getattr(func, "__name__", type(func).__name__)

    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes, leaves, spec, extent = _examples(name, in_dims, args)
        if chunk_size is None or extent <= chunk_size:
            flat, out_spec, places = _run(func, name, axes, leaves, spec, extent, out_dims, randomness, kwargs)
            return unflatten(flat, out_spec)
        pieces = -(-extent // chunk_size)
        sizes = [min(chunk_size, extent - i * chunk_size) for i in range(pieces)]
        bounds = [sum(sizes[:i]) for i in range(1, pieces)]
        split = [
            [leaf] * pieces if axis is None else tensor_split(leaf, bounds, dim=axis) for leaf, axis in zip(leaves, axes)
        ]
        parts: list[list[Any]] = []
        for i, size in enumerate(sizes):
            chunk = [each[i] for each in split]
            flat, out_spec, places = _run(func, name, axes, chunk, spec, size, out_dims, randomness, kwargs)
            parts.append(flat)
        joined = [each[0] if place is None else cat(list(each), dim=place) for each, place in zip(zip(*parts), places)]
        return unflatten(joined, out_spec)

    return mapped


def _examples(name: str, in_dims: Dims, args: tuple) -> tuple[list[int | None], list[Any], Spec, int]:
    """The batch axis of every leaf of the arguments, the leaves, their structure and the number of examples."""
    where = f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): "
    if not isinstance(in_dims, int | tuple):
        raise ValueError(
            f"{where}expected `in_dims` to be int or a (potentially nested) tuple matching the structure of inputs, got: "
            f"{type(in_dims)}."
        )
    if not args:
        raise ValueError(
            f"{where}got no inputs. Maybe you forgot to add inputs, or you are trying to vmap over a function with no inputs. "
            "The latter is unsupported."
        )
    leaves, spec = flatten(args)
    given = broadcast(in_dims, spec)
    if given is None:
        raise ValueError(
            f"{where}in_dims is not compatible with the structure of `inputs`. in_dims has structure {flatten(in_dims)[1]} but "
            f"inputs has structure {spec}."
        )
    axes: list[int | None] = []
    for leaf, axis in zip(leaves, given):
        if axis is None:
            axes.append(None)
            continue
        if not isinstance(axis, int) or isinstance(axis, bool):
            raise ValueError(
                f"{where}Got in_dim={axis} for an input but in_dim must be either an integer dimension or None."
            )
        if not isinstance(leaf, Tensor):
            raise ValueError(
                f"{where}Got in_dim={axis} for an input but the input is of type {type(leaf)}. We cannot vmap over non-Tensor "
                "arguments, please use None as the respective in_dim"
            )
        if not -leaf.ndim <= axis < leaf.ndim:
            raise ValueError(
                f"{where}Got in_dim={axis} for some input, but that input is a Tensor of dimensionality {leaf.ndim} so "
                f"expected in_dim to satisfy -{leaf.ndim} <= in_dim < {leaf.ndim}."
            )
        axes.append(axis % leaf.ndim)
    extents = [leaf.layout.shape[axis] for leaf, axis in zip(leaves, axes) if axis is not None]
    if not extents:
        raise ValueError("vmap: Expected at least one Tensor to vmap over")
    if any(n != extents[0] for n in extents):
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{extents} for the mapped dimension"
        )
    return axes, leaves, spec, extents[0]


def _run(
    func: Callable, name: str, axes: Sequence[int | None], leaves: Sequence[Any], spec: Spec, extent: int, out_dims: Dims,
    randomness: str, kwargs: dict[str, Any],
) -> tuple[list[Any], Spec, list[int | None]]:  # fmt: skip
    """The leaves of the results, their structure, and the axis that counts examples in each."""
    with VmapLevel(extent, randomness) as level:
        wrapped = [
            leaf if axis is None else level.wrap(movedim(leaf, axis, 0) if axis else leaf) for leaf, axis in zip(leaves, axes)
        ]
        results, out_spec = flatten(func(*unflatten(wrapped, spec), **kwargs))
        given = _out_dims(name, out_dims, out_spec)
        found = [_result(level, name, leaf, axis) for leaf, axis in zip(results, given)]
    return [leaf for leaf, _ in found], out_spec, [place for _, place in found]


def _out_dims(name: str, out_dims: Dims, spec: Spec) -> list[Any]:
    """The axis for every leaf of the results."""
    lone = spec.kind is None and isinstance(out_dims, tuple) and len(out_dims) == 1
    found = list(out_dims) if lone else broadcast(out_dims, spec)
    if found is None:
        raise ValueError(
            f"vmap({name}, ..., out_dims={out_dims}): out_dims is not compatible with the structure of `outputs`. out_dims has "
            f"structure {flatten(out_dims)[1]} but outputs has structure {spec}."
        )
    for axis in found:
        if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
            raise ValueError(
                f"vmap({name}, ..., out_dims={out_dims}): `out_dims` must be an int, None or a nest of them that represents "
                "where in the outputs the vmapped dimension should appear."
            )
    return found


def _result(level: VmapLevel, name: str, leaf: Any, axis: int | None) -> tuple[Any, int | None]:
    """A result with its batch axis in place, and that place."""
    if axis is None:
        if level.owns(leaf):
            raise ValueError(f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None")
        return leaf, None
    if not isinstance(leaf, Tensor):
        raise ValueError(
            f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(leaf)}. Did you mean to set out_dims= to "
            "None for output?"
        )
    rank = leaf.ndim + 1
    if not -rank <= axis < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {axis})"
        )
    axis %= rank
    if level.owns(leaf):
        whole = level.lower(leaf)
    else:
        whole = expand(unsqueeze(leaf, 0), level.extent, *leaf.layout.shape)
    return movedim(whole, 0, axis) if axis else whole, axis
