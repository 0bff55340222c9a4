"""Views with the axes in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.shapes import normalise_axis
from tensorsmith.eager.dispatch import FAST, remember
from tensorsmith.eager.operator import Operator
from tensorsmith.ops.complex_numbers import conj
from tensorsmith.ops.raw_keys import as_int, as_ints, exact, find, run
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.ops.view_operators import (
    permute_operator,
    t_operator,
    transpose_operator,
)
from tensorsmith.ops.views import sizes_of
from tensorsmith.tensor.tensor import Tensor


def _exchange(operator: Operator, x: Tensor, a: int, b: int, raw: tuple) -> Tensor:
    axes = list(range(x.ndim))
    if axes:
        axes[a], axes[b] = axes[b], axes[a]
    return run(operator, x, raw, {"axes": tuple(axes)})


@public("views", kind="view", aliases=("swapdims",))
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:  # noqa: A002
    """Axes dim0 and dim1 exchanged."""
    entry = find((transpose_operator, need_tensor("transpose", input).layout, dim0, dim1))
    if entry is not None and dim0.__class__ is int and dim1.__class__ is int:
        return entry(input)
    a, b = (normalise_axis(as_int("transpose", d, "dim"), input.ndim) for d in (dim0, dim1))
    return _exchange(transpose_operator, input, a, b, (dim0, dim1))


@public("views", kind="view")
def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:  # noqa: A002
    """Axes axis0 and axis1 exchanged; NumPy's name of `transpose`."""
    return transpose(input, axis0, axis1)


@public("views", kind="view")
def t(input: Tensor) -> Tensor:  # noqa: A002
    """The transpose of a matrix; vectors and zero-dim tensors as they are."""
    entry = find((t_operator, need_tensor("t", input).layout))
    if entry is not None:
        return entry(input)
    if input.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return run(t_operator, input, (), {"axes": tuple(reversed(range(input.ndim)))})


_REVERSED = "T"  # raw key of the property


def _all_reversed(self: Tensor) -> Tensor:
    """The axes in reverse order."""
    entry = FAST.get((_REVERSED, self.layout))
    if entry is not None:
        return entry(self)
    entry = FAST.get((permute_operator, self.layout, ("axes", tuple(reversed(range(self.ndim))))))
    if entry is not None:
        remember((_REVERSED, self.layout), entry)
        return entry(self)
    return permute(self, tuple(reversed(range(self.ndim))))


def _matrix_transpose(self: Tensor) -> Tensor:
    """The last two axes exchanged."""
    if not self.ndim:
        return self
    if self.ndim < 2:
        raise RuntimeError(f"tensor.mT is only supported on matrices or batches of matrices. Got {self.ndim}-D tensor.")
    return transpose(self, -2, -1)


def _conjugate_transpose(self: Tensor) -> Tensor:
    """The transpose of a matrix (conjugated where it is complex)."""
    if self.ndim not in (0, 2):
        raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors). Got {self.ndim}-D tensor.")
    return t(conj(self))


def _matrix_adjoint(self: Tensor) -> Tensor:
    """The last two axes exchanged, conjugated where complex."""
    if self.ndim < 2:
        raise RuntimeError(f"tensor.mH is only supported on matrices or batches of matrices. Got {self.ndim}-D tensor.")
    return transpose(conj(self), -2, -1)


Tensor.T = property(_all_reversed)  # type: ignore[assignment, method-assign]
Tensor.mT = property(_matrix_transpose)  # type: ignore[assignment, method-assign]
Tensor.H = property(_conjugate_transpose)  # type: ignore[assignment, method-assign]
Tensor.mH = property(_matrix_adjoint)  # type: ignore[assignment, method-assign]


@public("views", kind="view")
def adjoint(input: Tensor) -> Tensor:  # noqa: A002
    """The last two axes exchanged, conjugated where complex."""
    return _matrix_adjoint(need_tensor("adjoint", input))


@public("views", kind="view")
def permute(input: Tensor, *dims: Any) -> Tensor:  # noqa: A002
    """Axis i of the result is axis dims[i]."""
    try:
        entry = FAST.get((permute_operator, need_tensor("permute", input).layout, dims))
    except TypeError:
        entry = None
    if entry is not None:
        for d in dims:
            if d.__class__ is not int and not exact(d):
                break
        else:
            return entry(input)
    if not dims:
        raise TypeError("permute() missing 1 required positional arguments: \"dims\"")
    wanted = sizes_of("permute", dims)
    if len(wanted) != input.ndim:
        raise RuntimeError(
            f"permute: number of dimensions in the tensor input does not match the length of the desired ordering of "
            f"dimensions i.e. input.dim() = {input.ndim} is not equal to len(dims) = {len(wanted)}"
        )
    axes = tuple(normalise_axis(d, input.ndim) for d in wanted)
    if len(set(axes)) != len(axes):
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    return run(permute_operator, input, (dims,), {"axes": axes})


@public("views", kind="view", aliases=("moveaxis",))
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:  # noqa: A002
    """Axes `source` at positions `destination`, the others in their order."""
    ndim = need_tensor("movedim", input).ndim
    old = [normalise_axis(a, ndim) for a in as_ints("movedim", source, "source")]
    new = [normalise_axis(a, ndim) for a in as_ints("movedim", destination, "destination")]
    if len(old) != len(new):
        raise RuntimeError(
            f"movedim: Invalid source or destination dims: source ({source} dims) should contain the same number of dims as "
            f"destination ({destination} dims)"
        )
    if len(set(old)) != len(old):
        raise RuntimeError(f"movedim: repeated dim in `source` ({source})")
    if len(set(new)) != len(new):
        raise RuntimeError(f"movedim: repeated dim in `destination` ({destination})")
    if not ndim:
        return permute(input, ())
    axes: list[int] = [-1] * ndim
    for a, b in zip(old, new):
        axes[b] = a
    rest = iter([a for a in range(ndim) if a not in old])
    return permute(input, tuple(next(rest) if a < 0 else a for a in axes))
