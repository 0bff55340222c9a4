"""Reading and writing along one axis at given positions: gather, scatter, index_select and their kin.

`gather` and `scatter` take one position an element, `index_select` and the `index_*` family one position a slice. A position
outside its axis is an IndexError, and then nothing has been written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import bool_, int64, type_name
from tensorsmith.core.shapes import normalise_axis
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.indexing import out_of_range, wrapped
from tensorsmith.ops.pointwise import as_operand
from tensorsmith.ops.raw_keys import as_int
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

# --- graphs -----------------------------------------------------------------------------------------------------------


def lifted(x: Node) -> Node:
    """A zero-dim value as one axis."""
    return x if x.ndim else build.reshape(x, (1,))


def _positions(index: Node) -> Node:
    return build.cast(lifted(index), int64)


def _gather(x: Node, index: Node, axis: int) -> Node:
    found = x.graph.add(Primitive.GATHER, (lifted(x), _positions(index)), axis=axis)
    return build.reshape(found, index.shape)


def _scatter(x: Node, index: Node, source: Any, axis: int, reduce: str) -> Node:
    positions = _positions(index)
    source = build.cast(source, x.dtype)
    if source.shape == ():
        source = build.broadcast_to(source, positions.shape)
    for i, n in enumerate(positions.shape):  # the source may be larger than the index: its first part is meant
        source = build.slice_(source, i, 0, n)
    base = lifted(x)
    found = x.graph.add(Primitive.SCATTER, (base, positions, source), axis=axis, reduce=reduce)
    return build.reshape(found, x.shape)


def _index_select(x: Node, index: Node, axis: int) -> Node:
    found = x.graph.add(Primitive.TAKE, (lifted(x), _positions(index)), axis=axis)
    return found if x.ndim else build.reshape(found, ())


def _index_write(x: Node, index: Node, source: Any, axis: int, reduce: str, alpha: Any) -> Node:
    base = lifted(x)
    positions = _positions(index)
    source = build.cast(source, x.dtype)
    shape = (*base.shape[:axis], positions.numel, *base.shape[axis + 1 :])
    source = build.broadcast_to(source, shape) if source.shape == () else build.reshape(source, shape)
    if alpha != 1:
        source = build.cast(source * alpha, x.dtype)
    found = x.graph.add(Primitive.PUT, (base, positions, source), axis=axis, reduce=reduce)
    return build.reshape(found, x.shape)


def _index_fill(x: Node, index: Node, value: Any, axis: int) -> Node:
    base = lifted(x)
    extent = base.shape[axis]
    positions = wrapped(lifted(index), extent)
    # Marked first and then chosen, so that a position given twice counts once in the gradient of the value.
    nothing, ones = build.full(x.graph, (extent,), False, bool_), build.full(x.graph, positions.shape, True, bool_)
    marked = x.graph.add(Primitive.PUT, (nothing, positions, ones), axis=0, reduce="set")
    marked = build.reshape(marked, [extent if i == axis else 1 for i in range(base.ndim)])
    return build.reshape(build.where(marked, build.cast(value, x.dtype, x.graph), base), x.shape)


gather_operator = Operator("gather", _gather)
scatter_operator = Operator("scatter", _scatter)
scatter_add_operator = Operator("scatter_add", _scatter)
index_select_operator = Operator("index_select", _index_select)
index_add_operator = Operator("index_add", _index_write)
index_copy_operator = Operator("index_copy", _index_write)
index_fill_operator = Operator("index_fill", _index_fill)


# --- checks -----------------------------------------------------------------------------------------------------------


def index_dtype(name: str, index: Any, any_width: bool = False) -> Tensor:
    """The index, which has to be int64 (or int32 with `any_width`)."""
    allowed = ("int64", "int32") if any_width else ("int64",)
    if need_tensor(name, index, "index", 3).dtype.name not in allowed:
        what = "int32 or int64" if any_width else "int64"
        raise RuntimeError(f"{name}(): Expected dtype {what} for index, got {type_name(index.dtype)}")
    return index


def checked_sizes(name: str, x: Tensor, axis: int, index: Tensor, source: Any, outside: bool) -> None:
    """Elementwise positions: equal ranks, and an index no larger than what it reads from and writes to."""
    if index.layout.numel == 0:
        return
    of_x, of_index = x.layout.shape or (1,), index.layout.shape or (1,)
    if len(of_x) != len(of_index):
        raise RuntimeError(
            f"Index tensor must have the same number of dimensions as {'input' if outside else 'self'} tensor"
        )
    for i, (n, m) in enumerate(zip(of_index, of_x)):
        if i != axis and n > m:
            raise RuntimeError(
                f"{name}(): Expected index {list(of_index)} to be no larger than self {list(of_x)} apart from dimension {axis}"
                if not outside
                else f"Size does not match at dimension {i} expected index {list(of_index)} to be no larger than self "
                f"{list(of_x)} apart from dimension {axis}"
            )
    if isinstance(source, Tensor):
        of_source = source.layout.shape or (1,)
        if len(of_source) != len(of_index):
            raise RuntimeError("Index tensor must have the same number of dimensions as src tensor")
        if any(n > m for n, m in zip(of_index, of_source)):
            raise RuntimeError(
                f"Expected index {list(of_index)} to be no larger than self {list(of_x)} apart from dimension {axis} and to be "
                f"no larger size than src {list(of_source)}"
            )


def guarded(
    name: str, run: Callable[[], Tensor], x: Tensor, axis: int, index: Tensor, negative: bool = False
) -> Tensor:
    """Run, and name the position where one is outside its axis."""
    try:
        return run()
    except IndexError:
        found = out_of_range(name, x, (axis,), (index,), negative)
        raise (RuntimeError(str(found)) if name.startswith(_RUNTIME) else found) from None


# PyTorch's class of error for a position outside its axis is not the same everywhere.
_RUNTIME = ("gather", "scatter", "index_add", "take_along_dim")


# --- one position an element ------------------------------------------------------------------------------------------


@public("indexing", out=True)
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:  # noqa: A002
    """out[i][j] = input[index[i][j]][j] for dim 0, and so on for other axes; as large as the index."""
    if isinstance(input, Tensor) and isinstance(index, Tensor) and dim.__class__ is int:
        entry = FAST.get((gather_operator, input.layout, index.layout, ("axis", dim)))
        if entry is not None:
            try:
                return entry(input, index)
            except IndexError:
                pass  # said below, in the words of this operator
    axis = normalise_axis(as_int("gather", dim, "dim"), need_tensor("gather", input).ndim)
    if need_tensor("gather", index, "index", 3).layout.numel == 0:
        flat = input.reshape((input.layout.numel,)).narrow(0, 0, 0)
        return flat.reshape(index.layout.shape)
    checked_sizes("gather", input, axis, index_dtype("gather", index, True), None, True)
    return guarded("gather", lambda: call(gather_operator, (input, index), {"axis": axis}), input, axis, index)


def _scatter_source(name: str, x: Tensor, source: Any) -> Any:
    operand = as_operand(source)
    if operand is None:
        raise TypeError(f"{name}(): argument 'src' must be Tensor or Number, not {type(source).__name__}")
    if isinstance(operand, Tensor) and operand.dtype is not x.dtype:
        raise RuntimeError(f"{name}(): Expected self.dtype to be equal to src.dtype")
    return operand


def _scattering(name: str, operator: Operator, always: str | None, what: str) -> Any:
    inplace = InplaceOperation(operator)

    def prepared(x: Tensor, dim: int, index: Tensor, source: Any, reduce: str | None) -> tuple[int, Any, str]:
        axis = normalise_axis(as_int(name, dim, "dim"), need_tensor(name, x).ndim)
        source = _scatter_source(name, x, source)
        checked_sizes(name, x, axis, index_dtype(name, index, True), source, False)
        kind = always or reduce or "set"
        if kind not in ("set", "add", "multiply"):
            raise RuntimeError(f"reduce argument must be either add or multiply, got {reduce!r}")
        return axis, source, kind

    def function(
        input: Tensor,
        dim: int,
        index: Tensor,
        src: Any = None,
        *,
        value: Any = None,
        reduce: str | None = None,  # noqa: A002
    ) -> Tensor:
        source = value if src is None else src
        if modes.autocast is not None:
            input, source = modes.autocast.operands(name, input, source)
        axis, source, kind = prepared(input, dim, index, source, reduce)
        if kind == "multiply":
            return _multiplied(input, axis, index, source)
        if index.layout.numel == 0:
            return input.clone()
        attrs = {"axis": axis, "reduce": kind}
        return guarded(name, lambda: call(operator, (input, index, source), attrs), input, axis, index)

    def function_(
        self: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
    ) -> Tensor:
        source = value if src is None else src
        axis, source, kind = prepared(self, dim, index, source, reduce)
        if kind == "multiply":
            return self.copy_(_multiplied(self, axis, index, source))
        if index.layout.numel == 0:
            return self
        return guarded(name + "_", lambda: inplace(self, index, source, axis=axis, reduce=kind), self, axis, index)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    found = public("indexing", out=True)(function)
    inplace_method(name, function_)
    return found


def _multiplied(x: Tensor, axis: int, index: Tensor, source: Any) -> Tensor:
    from tensorsmith.ops.scattering import scatter_reduce

    if not isinstance(source, Tensor):
        source = x.new_full(index.layout.shape, source)
    return scatter_reduce(x, axis, index, source, "prod")


scatter = _scattering(
    "scatter", scatter_operator, None,
    "A copy with src (or a value) written at index along dim: the inverse of gather. With reduce='add' it is added.",
)  # fmt: skip
scatter_add = _scattering("scatter_add", scatter_add_operator, "add", "A copy with src added at index along dim.")


# --- one position a slice ---------------------------------------------------------------------------------------------


@public("indexing", out=True)
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:  # noqa: A002
    """The slices of an axis at the positions of a vector."""
    try:
        entry = FAST.get((index_select_operator, input.layout, index.layout, ("axis", dim)))
    except AttributeError:
        entry = None
    if entry is not None and dim.__class__ is int:
        return guarded("index_select", lambda: entry(input, index), input, dim, index)
    axis = normalise_axis(as_int("index_select", dim, "dim"), need_tensor("index_select", input).ndim)
    if index_dtype("index_select", index, True).ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if not input.ndim and index.layout.numel != 1:
        raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {index.layout.numel} value(s)")
    attrs = {"axis": axis}
    return guarded("index_select", lambda: call(index_select_operator, (input, index), attrs), input, axis, index)


def _check_slices(name: str, x: Tensor, axis: int, index: Tensor, source: Tensor) -> None:
    if index.ndim > 1:
        raise IndexError(f"{name}(): Index is supposed to be a vector, but got dim: {index.ndim}")
    if source.dtype is not x.dtype:
        raise RuntimeError(
            f"{name}(): self and source expected to have the same dtype, but got (self) {type_name(x.dtype)} and (source) "
            f"{type_name(source.dtype)}"
        )
    wanted = (
        (*x.layout.shape[:axis], index.layout.numel, *x.layout.shape[axis + 1 :]) if x.ndim else (index.layout.numel,)
    )
    if source.layout.shape != wanted and not (math.prod(wanted) == 1 and source.layout.numel == 1):
        raise (RuntimeError if name == "index_add" else IndexError)(
            f"{name}(): source of shape {list(source.layout.shape)} does not fit {index.layout.numel} positions of dimension "
            f"{axis} of a tensor of shape {list(x.layout.shape)}; expected {list(wanted)}"
        )


def _writing(name: str, operator: Operator, reduce: str, what: str) -> None:
    inplace = InplaceOperation(operator)

    def prepared(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any) -> dict[str, Any]:
        axis = normalise_axis(as_int(name, dim, "dim"), need_tensor(name, x).ndim)
        _check_slices(
            name, x, axis, index_dtype(name, index, name == "index_add"), need_tensor(name, source, "source", 4)
        )
        if isinstance(alpha, float) and x.dtype.kind in "iub":
            raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
        return {"axis": axis, "reduce": reduce, "alpha": alpha}

    def function(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:  # noqa: A002
        if modes.autocast is not None:
            input, source = modes.autocast.operands(name, input, source)
        attrs = prepared(input, dim, index, source, alpha)
        return guarded(name, lambda: call(operator, (input, index, source), attrs), input, attrs["axis"], index)

    def function_(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
        attrs = prepared(self, dim, index, source, alpha)
        return guarded(name + "_", lambda: inplace(self, index, source, **attrs), self, attrs["axis"], index)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    public("indexing", out=True)(function)
    inplace_method(name, function_)


_writing("index_add", index_add_operator, "add", "A copy with alpha * source added to the slices of dim at index.")
_writing("index_copy", index_copy_operator, "set", "A copy with source written over the slices of dim at index.")

_index_fill_ = InplaceOperation(index_fill_operator)


def _fill_operands(x: Tensor, dim: int, index: Tensor, value: Any) -> tuple[int, Any]:
    axis = normalise_axis(as_int("index_fill", dim, "dim"), need_tensor("index_fill", x).ndim)
    if index_dtype("index_fill", index).ndim > 1:
        raise IndexError("index_fill_(): Index is supposed to be a vector")
    operand = as_operand(value)
    if isinstance(operand, Tensor) and operand.ndim:
        raise RuntimeError(
            f"index_fill_ only supports a 0-dimensional value tensor, but got tensor with {operand.ndim} dimension(s)."
        )
    return axis, operand


@public("indexing")
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:  # noqa: A002
    """A copy with one value in the slices of dim at index."""
    axis, operand = _fill_operands(input, dim, index, value)
    attrs = {"axis": axis}
    return guarded(
        "index_fill", lambda: call(index_fill_operator, (input, index, operand), attrs), input, axis, index, True
    )


def index_fill_(self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Write one value into the slices of dim at index."""
    axis, operand = _fill_operands(self, dim, index, value)
    return guarded("index_fill_", lambda: _index_fill_(self, index, operand, axis=axis), self, axis, index, True)


inplace_method("index_fill", index_fill_)
