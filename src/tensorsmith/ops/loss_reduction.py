"""How a loss ends: what `reduction=` (and the older `size_average=`, `reduce=`) means."""

from __future__ import annotations

import warnings

from tensorsmith.core.dtypes import DType
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node

MODES = ("none", "mean", "sum")


def reduction_mode(reduction: str, size_average: bool | None = None, reduce: bool | None = None) -> str:
    """ "none", "mean" or "sum"; ValueError for another word."""
    if size_average is not None or reduce is not None:
        by_average = True if size_average is None else size_average
        by_reduce = True if reduce is None else reduce
        mode = "none" if not by_reduce else "mean" if by_average else "sum"
        warnings.warn(
            f"size_average and reduce args will be deprecated, please use reduction='{mode}' instead.", stacklevel=3
        )
        return mode
    if reduction not in MODES:
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return reduction


def finish(terms: Node, mode: str, dtype: DType) -> Node:
    """The terms, their mean or their sum, in `dtype`."""
    if mode == "none":
        return build.cast(terms, dtype)
    total = build.reduce(terms, "sum")
    return build.cast(total / float(terms.numel) if mode == "mean" else total, dtype)


def share(grad: Node, mode: str, shape: tuple[int, ...], numel: int) -> Node:
    """The gradient of every term from that of the reduced result."""
    if mode == "mean":
        grad = grad / float(numel)
    return build.broadcast_to(grad, shape)
