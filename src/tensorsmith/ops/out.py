"""`out=`: results written over tensors that the caller gives, checked as PyTorch checks them.

The result is computed first, so that a refused call changes nothing. Then `out` is resized where its shape differs (with a
warning where it had elements) and written in its own strides.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.dtypes import DType, bool_, category, type_name, uint8
from tensorsmith.core.layout import Layout, layout_of
from tensorsmith.core.views import Strided, may_overlap_itself
from tensorsmith.ops.checks import c_name
from tensorsmith.ops.inplace import copy_operation
from tensorsmith.ops.registry import TABLE
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.storage import storage_type
from tensorsmith.tensor.tensor import Tensor, need_memory

# Operators whose `out` must have the dtype of the result, as must every `out` of several; all others convert to any dtype
# of the same kind or a higher one.
SAME_DTYPE = frozenset("""
    abs addbmm addmm addmv alias_copy all amax amin any argmax argmin as_strided_copy baddbmm bitwise_not bmm bucketize ceil
    complex conj_physical cross diag diagonal_copy diff dot expand_copy floor frac gather hardshrink hash_tensor heaviside
    histc index_add index_copy index_reduce index_select inner isin isneginf isposinf linalg.cross linalg.matrix_norm
    linalg.multi_dot linalg.norm linalg.solve linalg.svdvals linalg.vecdot linalg.vector_norm log_softmax logcumsumexp
    masked_select matmul mm msort multinomial mv nan_to_num nanquantile narrow_copy neg nn.functional.gelu
    nn.functional.hardshrink nn.functional.linear nn.functional.logsigmoid nn.functional.softplus nn.functional.softshrink
    nonzero norm permute_copy polar quantile renorm round scatter scatter_add scatter_reduce searchsorted select_copy sgn
    sign signbit slice_copy slice_scatter softmax squeeze_copy t_copy take take_along_dim tensordot transpose_copy tril triu
    trunc unfold_copy unsqueeze_copy vdot view_copy where nn.functional.avg_pool2d nn.functional.avg_pool3d
""".split())

# Operators that read their input after they have begun to write, in PyTorch: `out` may be no operand of theirs.
_NOT_AN_OPERAND = frozenset({"cat", "gather", "index_select", "kthvalue", "masked_select", "take"})

_COMPUTED_IN_OUT = frozenset({"cumprod", "cumsum"})  # these have the dtype of `out` where no other is given
_ANY_DTYPE = frozenset({"bernoulli"})
_QUIET = frozenset({"addbmm", "bernoulli", "multinomial", "narrow_copy", "nn.functional.logsigmoid"})  # resize without a word
_ERRORS: dict[str, type[Exception]] = {  # of a dtype that does not fit, where it is no RuntimeError
    **dict.fromkeys(("cat", "column_stack", "concat", "concatenate", "dstack", "hstack", "stack", "vstack"), TypeError),
    **dict.fromkeys(("nanmean", "nansum"), NotImplementedError),
}


def run_into(name: str, function: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any], out: Any) -> Any:
    """Call an operator and write what it gives over `out`: a tensor, or a tuple of as many as there are results.

    Raises RuntimeError for a tracked operand or `out`, a dtype that `out` cannot hold, and memory that overlaps;
    TypeError where `out` is no tensor.
    """
    targets = out if isinstance(out, tuple | list) else (out,)
    for target in targets:
        if not isinstance(target, Tensor):
            raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(target).__name__}")
        _check_memory(name, target)
    if name in _COMPUTED_IN_OUT and keywords.get("dtype") is None:
        if out.layout.dtype is bool_:
            raise NotImplementedError(f"\"{name}_out_cpu\" not implemented for 'Bool'")
        keywords = {**keywords, "dtype": out.layout.dtype}
    casting, modes.autocast = modes.autocast, None  # it does not see calls with `out`, whose dtype the caller chose
    try:
        result = function(*args, **keywords)
    finally:
        modes.autocast = casting
    for target, one in zip(targets, result if isinstance(result, tuple | list) else (result,)):
        _check_operands(name, target, one.layout.shape, (*args, *keywords.values()))
    return write_out(name, result, out)


def write_out(name: str, result: Any, out: Any) -> Any:
    """Write results over the tensors given as `out=`; gives `out`."""
    if isinstance(result, tuple | list):
        if not isinstance(out, tuple | list) or len(out) != len(result):
            raise TypeError(f"{name}(): argument 'out' must be a tuple of {len(result)} Tensors, not {_kind(out)}")
        for each, target in zip(result, out):
            _check(name, target, each, True)
        for each, target in zip(result, out):
            _write(name, target, each)
        return type(result)(*out) if hasattr(result, "_fields") else out
    _check(name, out, result)
    _write(name, out, result)
    return out


def _kind(out: Any) -> str:
    return f"{len(out)} of them" if isinstance(out, tuple | list) else type(out).__name__


def _check(name: str, out: Any, result: Tensor, exact: bool = False) -> None:
    """Everything that can be wrong with one target, before anything is written."""
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if result.layout.tracked or (out.layout.tracked and modes.grad and result.layout.dtype is not bool_):
        _refuse_tracking(name)
    _check_dtype(name, result.layout.dtype, out.layout.dtype, exact or name in SAME_DTYPE)


def _refuse_tracking(name: str) -> None:
    raise RuntimeError(
        f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments "
        "requires grad."
    )


def _check_dtype(name: str, result: DType, out: DType, exact: bool) -> None:
    """Refuse an `out` that cannot hold a result."""
    if name in _ANY_DTYPE or (name in ("all", "any") and out in (bool_, uint8)):
        return
    if exact:
        if result is not out:
            raise RuntimeError(
                f"{name}(): Expected out tensor to have dtype {c_name(result)}, but got {c_name(out)} instead"
            )
    elif category(result) > category(out):
        raise _ERRORS.get(name, RuntimeError)(
            f"{name}(): result type {type_name(result)} can't be cast to the desired output type {type_name(out)}"
        )


def _tensors(operands: Sequence[Any]) -> list[Tensor]:
    """Tensors among operands, those of a list too."""
    flat = [y for x in operands for y in (x if isinstance(x, list | tuple) else (x,))]
    return [x for x in flat if isinstance(x, Tensor)]


def _check_memory(name: str, out: Tensor) -> None:
    """Refuse memory that would be written twice."""
    if may_overlap_itself(Strided(out.layout.shape, out.layout.strides)):
        raise RuntimeError(
            f"{name}(): unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )


def _check_operands(name: str, out: Tensor, shape: tuple[int, ...], operands: Sequence[Any]) -> None:
    """Refuse an `out` that lies, in the shape it will have, over what PyTorch still reads while it writes."""
    entry = TABLE.get(name)
    pointwise = entry is not None and entry.family == "pointwise"
    if not pointwise and name not in _NOT_AN_OPERAND:
        return
    layout = out.layout if out.layout.shape == shape else layout_of(out.layout.dtype, shape, device=out.layout.device)
    first, last = out.ptr, out.ptr + _bytes(layout)
    for x in _tensors(operands):
        same = x is out or (x.ptr == first and (x.layout.shape, x.layout.strides) == (layout.shape, layout.strides))
        if x.storage is not out.storage or not layout.numel or (same and pointwise) or not (x is out or x.layout.numel):
            continue
        apart = x.ptr >= last or first >= x.ptr + _bytes(x.layout)
        if x is out or not apart and (same or _dense(x.layout) and _dense(layout)):
            raise RuntimeError(
                f"{name}(): unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )


def _bytes(layout: Layout) -> int:
    return layout.extent * layout.dtype.itemsize


def _dense(layout: Layout) -> bool:
    return layout.extent == layout.numel


def resize_out(out: Tensor, shape: tuple[int, ...], quiet: bool = False) -> None:
    """Give `out` another shape, in new memory where the old is too small; a warning where it had elements."""
    if out.layout.shape == shape:
        return
    if out.layout.numel and not quiet:
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(out.layout.shape)}, which does not "
            f"match the required output shape {list(shape)}. Such outputs will be refused one day; resize it to no elements "
            "yourself, with out.resize_(0), to have it reused.",
            UserWarning,
            stacklevel=5,
        )
    need_memory("resizing out", out)
    layout = layout_of(out.layout.dtype, shape, device=out.layout.device)
    if layout.nbytes > out.storage.nbytes - (out.ptr - out.storage.ptr):
        out.storage = storage_type(layout.device)(layout.nbytes)
        out.ptr = out.storage.ptr
    out.layout = layout


_COUNTING = frozenset({"arange", "linspace", "logspace"})  # an `out` of as many elements keeps its shape
_WARNING = frozenset({"arange", "normal"})  # the others resize `out` without a word


@functools.cache
def _takes_device(function: Callable[..., Tensor]) -> bool:
    return "device" in inspect.signature(function).parameters


def create_into(
    function: Callable[..., Tensor], args: Sequence[Any], keywords: dict[str, Any], dtype: DType | None, out: Any
) -> Tensor:
    """Make a tensor in the dtype of `out` and write it over `out`."""
    name = function.__name__
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if dtype is not None and dtype is not out.dtype:
        raise RuntimeError(f"{name}(): dtype {dtype.name} does not match dtype of out parameter ({out.dtype.name})")
    track = keywords.pop("requires_grad", False)
    _check_memory(name, out)
    if out.layout.tracked and modes.grad:
        _refuse_tracking(name)
    if keywords.get("device") is None and _takes_device(function):
        keywords = {**keywords, "device": out.layout.device}
    result = function(*args, dtype=out.dtype, **keywords)
    if name in _COUNTING and result.layout.numel == out.layout.numel:
        result = result.reshape(out.layout.shape)  # type: ignore[attr-defined]
    resize_out(out, result.layout.shape, quiet=name not in _WARNING)
    copy_operation(out, result)
    return out.requires_grad_(True) if track else out  # type: ignore[attr-defined]


def _write(name: str, out: Tensor, result: Tensor) -> None:
    resize_out(out, result.layout.shape, quiet=name in _QUIET)
    before, modes.grad = modes.grad, False  # the result of an operator without a gradient is written over leaves too
    try:
        copy_operation(out, result)
    finally:
        modes.grad = before


__all__ = ["SAME_DTYPE", "create_into", "resize_out", "run_into", "write_out"]
