"""Sequences of different lengths: padded in one tensor, or packed, step by step, without the padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tensorsmith.core.dtypes import int64
from tensorsmith.ops.creation import arange, as_tensor, full, tensor, zeros
from tensorsmith.ops.joining import cat, stack
from tensorsmith.tensor.tensor import Tensor


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """What a recurrent layer reads of sequences of different lengths, the longest first.

    data: the elements of step 0 of all sequences, then those of step 1 of the sequences that have one, and so on
    batch_sizes: how many sequences have step t; sorted_indices: the order of the sequences; unsorted_indices: its inverse
    """

    __slots__ = ()

    def __new__(
        cls, data: Any, batch_sizes: Tensor | None = None, sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:  # fmt: skip
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        if batch_sizes is None:
            if not (isinstance(data, (list, tuple)) and len(data) == 2):
                raise AssertionError("Expected data to be a list or tuple of length 2")
            data, batch_sizes = data
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """`data.to(...)`; this object where nothing changes."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        orders = [order if order is None else order.to(data.device) for order in (self.sorted_indices, self.unsorted_indices)]
        return type(self)(data, self.batch_sizes, *orders)

    def cpu(self) -> PackedSequence:
        """On the CPU; batch_sizes are always there."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> PackedSequence:
        """On a CUDA device, the current one where none is given."""
        return self.to("cuda" if device is None else device)

    @property
    def is_cuda(self) -> bool:
        """Whether the data is on a CUDA device."""
        return self.data.is_cuda

    def double(self) -> PackedSequence:
        """data in float64."""
        return type(self)(self.data.double(), *self[1:])

    def float(self) -> PackedSequence:
        """data in float32."""
        return type(self)(self.data.float(), *self[1:])

    def half(self) -> PackedSequence:
        """data in float16."""
        return type(self)(self.data.half(), *self[1:])

    def long(self) -> PackedSequence:
        """data in int64."""
        return type(self)(self.data.long(), *self[1:])

    def int(self) -> PackedSequence:
        """data in int32."""
        return type(self)(self.data.int(), *self[1:])

    def short(self) -> PackedSequence:
        """data in int16."""
        return type(self)(self.data.short(), *self[1:])

    def char(self) -> PackedSequence:
        """data in int8."""
        return type(self)(self.data.char(), *self[1:])

    def byte(self) -> PackedSequence:
        """data in uint8."""
        return type(self)(self.data.byte(), *self[1:])


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes this one; None for None."""
    if permutation is None:
        return None
    return zeros(permutation.shape, dtype=int64, device=permutation.device).scatter_(
        0, permutation, arange(permutation.numel(), device=permutation.device)
    )


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True,  # noqa: A002
) -> PackedSequence:  # fmt: skip
    """Pack (T, N, *) (N first with batch_first) whose sequence n has `lengths[n]` steps.

    enforce_sorted: lengths have to fall; otherwise the sequences are sorted here.
    RuntimeError for lengths that do not, that are not positive, or that do not fit.
    """
    lengths = as_tensor(lengths, dtype=int64)
    order = None
    if not enforce_sorted:
        lengths, order = lengths.sort(descending=True)
        input = input.index_select(0 if batch_first else 1, order)  # noqa: A001
    steps = input.transpose(0, 1) if batch_first else input
    if input.numel() == 0:
        raise RuntimeError("Cannot pack empty tensors.")
    counts = lengths.tolist()
    if len(counts) != steps.shape[1]:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(counts)} (batch_size={steps.shape[1]})"
        )
    if counts[-1] <= 0:
        raise RuntimeError(
            f"Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0: {counts[-1]}"
        )
    if any(a < b for a, b in zip(counts, counts[1:])):
        raise RuntimeError(
            f"`lengths` array must be sorted in decreasing order when `enforce_sorted` is True, got {counts}. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you do not "
            "need ONNX exportability."
        )
    if counts[0] > steps.shape[0]:
        raise RuntimeError(
            f"Expected `len(lengths)` entries of at most the sequences' {steps.shape[0]} steps, but got {counts[0]}"
        )
    sizes = [sum(n > t for n in counts) for t in range(counts[0])]
    data = cat([steps[t, :n] for t, n in enumerate(sizes)])
    return PackedSequence(data, tensor(sizes), order)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """The inverse of `pack_padded_sequence`: (T, N, *) with `padding_value` behind the ends, and the lengths.

    total_length: T; ValueError where it is below the longest length.
    """
    sizes = sequence.batch_sizes.tolist()
    steps = len(sizes)
    if total_length is not None:
        if total_length < steps:
            raise ValueError(
                "Expected total_length to be at least the length of the longest sequence in input, but got "
                f"total_length={total_length} and max sequence length being {steps}"
            )
        steps = total_length
    lengths = tensor([sum(size > n for size in sizes) for n in range(sizes[0])])
    parts = list(sequence.data.split(sizes))
    ends = [0, *(sum(sizes[: t + 1]) for t in range(len(sizes)))]
    data = sequence.data
    ragged = cat([*parts, full((1, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)])
    nothing = ends[-1]
    places = [[ends[t] + n if t < len(sizes) and n < sizes[t] else nothing for n in range(sizes[0])] for t in range(steps)]
    order = tensor(places)
    if batch_first:
        order = order.transpose(0, 1)
    padded = ragged[order]
    if sequence.unsorted_indices is not None:
        back = sequence.unsorted_indices
        return padded.index_select(0 if batch_first else 1, back), lengths[back]
    return padded, lengths


def pad_sequence(
    sequences: Tensor | Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:  # fmt: skip
    """Stack tensors (L_n, *) as (T, N, *), T the longest, (N, T, *) with batch_first, with padding on one side.

    RuntimeError where there is none, or their other axes differ.
    """
    if not isinstance(sequences, Iterable):
        raise RuntimeError(
            f"pad_sequence: Expected iterable for input sequences, but got arg of type: {type(sequences)}"
        )
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    given = tuple(sequences)
    if not given:
        raise RuntimeError("received an empty list of sequences")
    longest = max(each.shape[0] for each in given)
    rows = []
    for each in given:
        missing = longest - each.shape[0]
        if missing:
            padding = full((missing, *each.shape[1:]), padding_value, dtype=each.dtype, device=each.device)
            each = cat([each, padding] if padding_side == "right" else [padding, each])
        rows.append(each)
    return stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded tensor, each without its padding."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [row[:length] for row, length in zip(rows.unbind(0), lengths.tolist(), strict=True)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack tensors (L_n, *), the longest first unless enforce_sorted=False."""
    lengths = [each.shape[0] for each in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed one, in the order they were given."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
