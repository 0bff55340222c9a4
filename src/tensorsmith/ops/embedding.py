"""embedding: rows of a table at given positions.

out[i..., :] = weight[index[i...], :]          dweight[r, :] = sum of the gradients of the rows taken from r
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorsmith.core.device import CPU
from tensorsmith.core.dtypes import compute_dtype, int32, int64, type_name
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import need_tensors
from tensorsmith.ops.creation import arange, array_of, from_numpy
from tensorsmith.ops.index_steps import host
from tensorsmith.ops.registry import public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _flat(index: Node) -> Node:
    return build.reshape(build.cast(index, int64), (index.numel,))


def _embedding(index: Node, weight: Node, padding: int, by_frequency: bool) -> Node:
    taken = weight.graph.add(Primitive.TAKE, (weight, _flat(index)), axis=0)
    return build.reshape(taken, (*index.shape, weight.shape[1]))


def _embedding_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], padding: int, by_frequency: bool
) -> list[Node | None]:
    index, weight = inputs
    graph, positions = weight.graph, _flat(index)
    rows = build.reshape(grads[0], (index.numel, weight.shape[1]))
    if padding >= 0:
        rows = build.where(build.reshape(f.ne(positions, padding), (index.numel, 1)), rows, 0)
    if by_frequency:
        none, ones = (
            build.full(graph, (n,), value, compute_dtype(weight.dtype)) for n, value in ((weight.shape[0], 0), (index.numel, 1))
        )
        counts = graph.add(Primitive.PUT, (none, positions, ones), axis=0, reduce="add")
        own = graph.add(Primitive.TAKE, (counts, positions), axis=0)
        rows = build.cast(build.wide(rows) / build.reshape(own, (index.numel, 1)), weight.dtype)
    zeros = build.full(graph, weight.shape, 0, weight.dtype)
    return [None, graph.add(Primitive.PUT, (zeros, positions, rows), axis=0, reduce="add")]


# The padding row has no gradient, but a tangent, as in PyTorch.
EMBEDDING = Operator("embedding", _embedding, _embedding_gradient, derived_tangent=True)


def renormalise(index: Tensor, weight: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows that are used and longer than max_norm to that length, in place."""
    table = array_of(weight)
    table = table if weight.layout.device is CPU else table.copy()
    used = np.unique(array_of(index))
    if used.size and not 0 <= used[0] <= used[-1] < table.shape[0]:
        wrong = used[0] if used[0] < 0 else used[-1]
        raise IndexError(f"index out of range in self: embedding() of {table.shape[0]} rows got index {wrong}")
    rows = table[used].astype(np.float64)
    lengths = np.linalg.norm(rows, norm_type, axis=1)
    longer = lengths > max_norm
    table[used[longer]] = (rows[longer] * (max_norm / (lengths[longer] + 1e-7))[:, None]).astype(table.dtype)
    if weight.layout.device is not CPU:
        weight.detach().copy_(from_numpy(table))  # type: ignore[attr-defined]
        return
    weight.storage.version += 1


@public("linear", namespace="nn.functional", method=False)
def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,  # noqa: A002
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """weight[input]: the rows of weight (number, size) at the positions `input` (any shape, int64 or int32).

    padding_idx: a row that gets no gradient. max_norm: rows used are first scaled, in place, to at most this norm.
    scale_grad_by_freq: gradients are divided by how often their row was used.
    Raises IndexError for a position out of range, NotImplementedError for sparse=True where a
    gradient is recorded (there are no sparse gradients).
    """
    padding = -1
    if padding_idx is not None:
        rows = weight.layout.shape[0]
        if not -rows <= padding_idx < rows:
            raise AssertionError("Padding_idx must be within num_embeddings")
        padding = padding_idx % rows
    attrs = {"padding": padding, "by_frequency": bool(scale_grad_by_freq)}
    try:
        entry = FAST.get((EMBEDDING, input.layout, weight.layout, *attrs.items()))
    except AttributeError:
        need_tensors("embedding", input=input, weight=weight)
        raise
    if sparse and modes.grad and weight.layout.tracked:
        raise NotImplementedError("embedding: a sparse gradient (sparse=True); gradients are dense")
    if entry is None:
        need_tensors("embedding", input=input, weight=weight)
        if weight.ndim != 2:
            raise RuntimeError("'weight' must be 2-D")
        if input.dtype not in (int64, int32):
            raise RuntimeError(
                "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but "
                f"got tensorsmith.{type_name(input.dtype)}Tensor instead (while checking arguments for embedding)"
            )
    if max_norm is not None:
        renormalise(input, weight, max_norm, norm_type)
    try:
        return entry(input, weight) if entry is not None else call(EMBEDDING, (input, weight), attrs)
    except IndexError as error:
        raise IndexError(f"index out of range in self: embedding() of {weight.layout.shape[0]} rows; {error}") from None


@public("linear", namespace="nn.functional", method=False, kind="composite", differentiable=False)
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 of shape (*tensor.shape, num_classes): 1 at the class of each element, 0 elsewhere.

    num_classes: -1 takes the highest class and one
    Raises RuntimeError for another dtype than int64, and for a class below 0 or not below num_classes.
    """
    need_tensors("one_hot", tensor=tensor)
    if tensor.dtype is not int64:
        raise RuntimeError(f"one_hot is only applicable to index tensor of type LongTensor, got {tensor.dtype.name}")
    if modes.tracer is None or num_classes < 0:
        classes = host(tensor, "one_hot")
        if not classes.size and num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        if classes.size and classes.min() < 0:
            raise RuntimeError(f"Class values must be non-negative, got {classes.min()}.")
        if num_classes == -1:
            num_classes = int(classes.max()) + 1
        elif num_classes < 1:
            raise RuntimeError(f"num_classes should be positive, got {num_classes}")
        elif classes.size and classes.max() >= num_classes:
            raise RuntimeError(f"Class values must be smaller than num_classes={num_classes}, got {classes.max()}.")
    return (tensor.unsqueeze(-1) == arange(num_classes, device=tensor.device)).to(int64)
