"""scatter_reduce and index_reduce: several values meet at one place and are reduced there, by NumPy routines."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import compute_dtype, int64
from tensorsmith.core.shapes import normalise_axis
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.gradients import scatter
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.library_gradients import products_of_the_others
from tensorsmith.ops.checks import refuse
from tensorsmith.ops.gathering import checked_sizes, guarded, index_dtype, lifted
from tensorsmith.ops.raw_keys import as_int
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _parts(x: Node, index: Node, source: Node) -> tuple[Node, Node, Node]:
    base, positions, source = lifted(x), build.cast(lifted(index), int64), lifted(source)
    for i, n in enumerate(positions.shape):
        source = build.slice_(source, i, 0, n)
    return base, positions, source


def _counts(base: Node, positions: Node, axis: int, include_self: bool) -> Node:
    """How many values meet at every place (at least 1), no narrower than float32."""
    dtype = compute_dtype(base.dtype)
    ones = build.full(base.graph, positions.shape, 1, dtype)
    start = build.full(base.graph, base.shape, 1 if include_self else 0, dtype)
    found = scatter(start, positions, ones, axis, "add")
    return build.where(build.map_(Fn.EQ, found, 0), 1, found)


def _cleared(base: Node, positions: Node, axis: int, value: Any) -> Node:
    """The base with the identity of the reduction where something will be written."""
    neutral = build.full(base.graph, positions.shape, value, base.dtype)
    return scatter(base, positions, neutral, axis, "set")


def _scatter_reduce(x: Node, index: Node, source: Node, axis: int, reduce: str, include_self: bool) -> Node:
    base, positions, source = _parts(x, index, source)
    if reduce in ("sum", "mean"):
        base, source = build.wide(base), build.wide(source)
        start = base if include_self else _cleared(base, positions, axis, 0)
        found = scatter(start, positions, source, axis, "add")
        if reduce == "mean":
            count = _counts(base, positions, axis, include_self)
            touched = build.map_(Fn.FLOOR_DIVIDE if x.dtype.kind in "iu" else Fn.DIV, found, count)
            found = touched
        found = build.cast(found, x.dtype)
    else:
        found = x.graph.add(
            Primitive.LIBRARY, (base, positions, source), name="scatter_reduce", axis=axis, reduce=reduce,
            include_self=include_self, shape=base.shape, dtype=base.dtype,
        )  # fmt: skip
    return build.reshape(found, x.shape)


def _scatter_reduce_vjp(
    inputs: list[Node], outputs: list[Node], grads: list[Node], axis: int, reduce: str, include_self: bool
) -> list[Node | None]:
    x, index, given = inputs
    base, positions, source = _parts(x, index, given)
    out, grad = build.reshape(outputs[0], base.shape), build.reshape(grads[0], base.shape)
    base, source, out, grad = (build.wide(part) for part in (base, source, out, grad))

    def gathered(value: Node) -> Node:
        return value.graph.add(Primitive.GATHER, (value, positions), axis=axis)

    if reduce == "sum":
        to_base, to_source = grad, gathered(grad)
    elif reduce == "mean":
        scaled = grad / _counts(base, positions, axis, include_self)
        to_base, to_source = scaled, gathered(scaled)
    elif reduce == "prod":
        start = base if include_self else _cleared(base, positions, axis, 1)
        of_base, of_source = products_of_the_others(start, positions, source, axis)
        to_base, to_source = grad * build.conj(of_base), gathered(grad) * build.conj(of_source)
    else:
        hit = build.cast(build.map_(Fn.EQ, base, out), base.dtype)
        hits = build.cast(build.map_(Fn.EQ, source, gathered(out)), base.dtype)
        start = hit if include_self else _cleared(hit, positions, axis, 0)
        count = scatter(start, positions, hits, axis, "add")
        share = grad / build.where(build.map_(Fn.EQ, count, 0), 1, count)
        to_base, to_source = start * share, hits * gathered(share)
    if not include_self:
        to_base = _cleared(to_base, positions, axis, 0)
    low, high = [0] * source.ndim, [n - m for n, m in zip(lifted(given).shape, source.shape)]
    to_source = build.pad(to_source, low, high)
    return [build.reshape(to_base, x.shape), None, build.reshape(to_source, given.shape)]


scatter_reduce_operator = Operator("scatter_reduce", _scatter_reduce, vjp=_scatter_reduce_vjp)
_scatter_reduce_ = InplaceOperation(scatter_reduce_operator)


def _prepared(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool) -> dict[str, Any]:
    axis = normalise_axis(as_int("scatter_reduce", dim, "dim"), need_tensor("scatter_reduce", x).ndim)
    if need_tensor("scatter_reduce", src, "src", 4).dtype is not x.dtype:
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")
    if reduce not in REDUCTIONS:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    if reduce == "mean":
        refuse("scatter_gather_tensor_cpu_reduce_mean", x.dtype, "b")
    checked_sizes("scatter_reduce", x, axis, index_dtype("scatter_reduce", index, True), src, False)
    return {"axis": axis, "reduce": reduce, "include_self": bool(include_self)}


@public("indexing", kind="library", out=True)
def scatter_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,  # noqa: A002
) -> Tensor:
    """A copy in which the values of src that meet at a place of dim are reduced: sum, prod, mean, amax or amin.

    include_self: whether what stood there takes part. Gradients of extremes are shared among equals.
    """
    attrs = _prepared(input, dim, index, src, reduce, include_self)
    if index.layout.numel == 0:
        return input.clone()
    return guarded(
        "scatter_reduce", lambda: call(scatter_reduce_operator, (input, index, src), attrs), input, attrs["axis"], index
    )


def scatter_reduce_(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """scatter_reduce in place."""
    attrs = _prepared(self, dim, index, src, reduce, include_self)
    if index.layout.numel == 0:
        return self
    return guarded("scatter_reduce_", lambda: _scatter_reduce_(self, index, src, **attrs), self, attrs["axis"], index)


inplace_method("scatter_reduce", scatter_reduce_)


# --- one position a slice ---------------------------------------------------------------------------------------------


def _spread(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A vector of positions as one position an element of source."""
    axis = normalise_axis(dim, x.ndim)
    if index.ndim > 1:
        raise IndexError("index_reduce(): Index is supposed to be a vector")
    if not x.ndim:
        return index.reshape(source.layout.shape)
    shape = tuple(index.layout.numel if i == axis else 1 for i in range(x.ndim))
    return index.reshape(shape).expand(source.layout.shape)


@public("indexing", kind="library", out=True)
def index_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,  # noqa: A002
) -> Tensor:
    """A copy in which slices of source that meet at a position of dim are reduced: prod, mean, amax or amin."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    positions = _spread(need_tensor("index_reduce", input), dim, index, source)
    refuse("index_func_", input.dtype, "bc")
    return scatter_reduce(input, dim, positions, source, reduce, include_self=include_self)


def _index_reduce_in_place(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`index_reduce` written over the tensor."""
    refuse("index_func_", self.dtype, "bc")
    return scatter_reduce_(self, dim, _spread(self, dim, index, source), source, reduce, include_self=include_self)


inplace_method(
    "index_reduce",
    _index_reduce_in_place,
)
