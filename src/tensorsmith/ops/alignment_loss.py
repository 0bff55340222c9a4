"""ctc_loss: the loss of a sequence of labels whose places in time are not known (Graves et al., 2006).

    loss = -log sum over alignments of exp(sum over frames t of log_probs[t, class of the alignment at t])

An alignment spells the labels, each for one frame or more, with any number of blanks between them and at least one between
equal labels. Computed in float64 by the forward recursion; gradients are the expected numbers of classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.core.device import Device
from tensorsmith.core.dtypes import int64, type_name
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import need_tensors
from tensorsmith.ops.creation import tensor
from tensorsmith.ops.device_copies import to_device
from tensorsmith.ops.loss_reduction import finish, reduction_mode
from tensorsmith.ops.registry import public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.tensor import Tensor


def _ctc(x: Node, targets: Node, frames: Node, lengths: Node, mode: str, blank: int, zero_infinity: bool) -> Node:
    frames, lengths, targets = (build.cast(each, int64) for each in (frames, lengths, targets))
    losses = x.graph.add(
        Primitive.LIBRARY, (x, targets, frames, lengths), name="ctc_loss", blank=blank, zero_infinity=zero_infinity,
        shape=(x.shape[1],), dtype=x.dtype,
    )  # fmt: skip
    if mode == "mean":
        losses = losses / build.cast(f.maximum(lengths, 1), x.dtype)
    return finish(losses, mode, x.dtype)


_ctc_operator = Operator("ctc_loss", _ctc)


def _lengths(given: Tensor | Sequence[int], name: str, batch: int, device: Device) -> Tensor:
    found = given if isinstance(given, Tensor) else tensor(list(given), dtype=int64, device=device)
    if found.dtype.kind not in "iu":
        raise RuntimeError(f"{name} must be integral")
    if not found.ndim:
        found = found.reshape(1)
    if found.layout.shape != (batch,):
        raise RuntimeError(f"{name} must be of size batch_size: got {list(found.layout.shape)} for a batch of {batch}")
    return found


@public("losses", namespace="nn.functional", method=False, kind="library")
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int],
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Connectionist temporal classification: -log of the probability of the labels over all alignments.

    log_probs:      (T, N, C), or (T, C) for one example: logarithms of probabilities, as from `log_softmax`
    targets:        labels (N, S), or one after the other (sum of target_lengths); never `blank`
    input_lengths:  frames of every example that count (N); target_lengths: labels of every example (N)
                    targets and lengths may be on the CPU, wherever log_probs is
    reduction:      "mean" divides every loss by the number of its labels first
    zero_infinity:  0, with gradient 0, where the frames are too few for the labels, instead of infinity and NaN

    The gradient is the derivative by log_probs; behind `log_softmax` it is PyTorch's, which adds exp(log_probs) to it.
    Raises RuntimeError for lengths, labels or a blank out of range, NotImplementedError for half precision.

    >>> x = ts.tensor([[0.0, 1.0], [0.0, 1.0]]).log_softmax(1)
    >>> ts.nn.functional.ctc_loss(x, ts.tensor([1]), ts.tensor(2), ts.tensor(1))
    tensor(0.0750)
    """
    need_tensors("ctc_loss", log_probs=log_probs, targets=targets)
    mode = reduction_mode(reduction)
    if log_probs.dtype.kind != "f" or log_probs.dtype.is_half:
        raise NotImplementedError(f"\"ctc_loss_cpu\" not implemented for '{type_name(log_probs.dtype)}'")
    if targets.dtype.kind not in "iu":
        raise RuntimeError(
            "Expected tensor for argument #2 'targets' to have one of the following scalar types: Long, Int; but got "
            f"tensorsmith.{type_name(targets.dtype)}Tensor instead (while checking arguments for ctc_loss)"
        )
    if log_probs.ndim not in (2, 3):
        raise RuntimeError(f"log_probs should be 2D or 3D: (T, C) or (T, N, C), got {log_probs.ndim}D")
    x = log_probs if log_probs.ndim == 3 else log_probs.unsqueeze(1)
    _, batch, classes = x.layout.shape
    if not batch:
        raise RuntimeError("batch_size must be greater than 0")
    if not 0 <= blank < classes:
        raise RuntimeError(f"blank must be in label range: got {blank} for {classes} classes")
    if targets.ndim not in (1, 2) or (targets.ndim == 2 and targets.layout.shape[0] != batch):
        raise RuntimeError(
            f"ctc_loss: targets must have shape (N, S) with N = {batch}, or (sum of target_lengths), got "
            f"{list(targets.layout.shape)}"
        )
    device = x.layout.device
    lengths = [
        _lengths(input_lengths, "input_lengths", batch, device), _lengths(target_lengths, "target_lengths", batch, device)
    ]  # fmt: skip
    operands = (x, *(to_device(each, device) for each in (targets, *lengths)))  # they are usually on the CPU
    found = call(_ctc_operator, operands, {"mode": mode, "blank": blank, "zero_infinity": bool(zero_infinity)})
    return found.squeeze(0) if log_probs.ndim == 2 and mode == "none" else found
