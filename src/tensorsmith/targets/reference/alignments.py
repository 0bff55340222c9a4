"""Sums over the alignments of label sequences with frames: connectionist temporal classification (Graves et al., 2006).

Of a sequence of labels l, the states are blank, l_1, blank, l_2, ..., blank. An alignment gives every frame a state: it stays,
goes on by one, or leaps over a blank between two labels that differ. With x the log-probabilities, logsumexp over alignments
of the sum of x is -loss; its first derivative by x[t, c] is the expected number of times that class c is given at frame t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Arrays = Sequence[np.ndarray]
Attrs = Mapping[str, Any]


def _examples(arrays: Arrays, attrs: Attrs) -> list[tuple[int, int, np.ndarray]]:
    """(number, frames, labels) of every example; labels stand in rows, or one after the other."""
    x, targets, frames, lengths = arrays[:4]
    most, _, classes = x.shape
    for name, values in (("input_lengths", frames), ("target_lengths", lengths)):
        if values.size and values.min() < 0:
            raise RuntimeError(f"Expected {name} to have value at least 0, but got value {values.min()} (ctc_loss)")
    if frames.size and frames.max() > most:
        raise RuntimeError(f"Expected input_lengths to have value at most {most}, but got value {frames.max()} (ctc_loss)")
    if targets.ndim == 1:
        if lengths.sum() > len(targets):
            raise RuntimeError(f"ctc_loss: targets hold {len(targets)} labels, but target_lengths sum to {lengths.sum()}")
        ends = np.cumsum(lengths)
        rows = [targets[end - n : end] for end, n in zip(ends, lengths)]
    else:
        if lengths.size and lengths.max() > targets.shape[1]:
            raise RuntimeError(
                f"Expected tensor to have size at least {lengths.max()} at dimension 1, but got size {targets.shape[1]} for "
                "argument #2 'targets' (ctc_loss)"
            )
        rows = [row[:n] for row, n in zip(targets, lengths)]
    for row in rows:
        if row.size and not 0 <= row.min() <= row.max() < classes:
            wrong = row.min() if row.min() < 0 else row.max()
            raise RuntimeError(f"ctc_loss: label {wrong} is out of range for {classes} classes")
    return [(i, int(n), row) for i, (n, row) in enumerate(zip(frames, rows))]


def _states(labels: np.ndarray, blank: int) -> tuple[np.ndarray, np.ndarray]:
    """The class of every state, and which states are reached by a leap over the blank before them."""
    classes = np.full(2 * len(labels) + 1, blank, np.int64)
    classes[1::2] = labels
    leaps = np.zeros(len(classes), bool)
    leaps[3::2] = labels[1:] != labels[:-1]
    return classes, leaps


def _arrivals(before: np.ndarray, leaps: np.ndarray, missing: float) -> np.ndarray:
    """What came into every state: from itself, from the one before, by a leap. Shape (3, states)."""
    came = np.full((3, len(before)), missing)
    came[0] = before
    came[1, 1:] = before[:-1]
    came[2, 2:] = np.where(leaps[2:], before[:-2], missing)
    return came


def _forward(emitted: np.ndarray, leaps: np.ndarray, moved: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """log of the sum over beginnings that end in each state at each frame, and its tangent. Shapes (frames, states)."""
    found, tangent = np.full(emitted.shape, -np.inf), np.zeros(emitted.shape)
    found[0, :2] = emitted[0, :2]
    if moved is not None:
        tangent[0, :2] = moved[0, :2]
    for t in range(1, len(emitted)):
        came = _arrivals(found[t - 1], leaps, -np.inf)
        most = came.max(0)
        shares = np.exp(came - np.where(np.isneginf(most), 0.0, most))
        total = shares.sum(0)
        with np.errstate(divide="ignore"):
            found[t] = np.log(total) + most + emitted[t]
        if moved is not None:
            weighted = (shares * _arrivals(tangent[t - 1], leaps, 0.0)).sum(0)
            tangent[t] = np.divide(weighted, total, out=np.zeros_like(total), where=total > 0) + moved[t]
    return found, tangent


def _likelihood(ends: np.ndarray) -> float:
    """log of the sum over whole alignments, from what ends in the last two states."""
    return float(np.logaddexp.reduce(ends[-2:]))


def ctc_loss(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """The loss of every example of log-probabilities (frames, batch, classes); infinite where no alignment fits.

    zero_infinity: 0 instead.
    """
    x = arrays[0]
    result = np.zeros(x.shape[1])
    for i, frames, labels in _examples(arrays, attrs):
        if frames:
            classes, leaps = _states(labels, attrs["blank"])
            with np.errstate(invalid="ignore"):
                result[i] = -_likelihood(_forward(x[:frames, i, classes], leaps, None)[0][-1])
        else:
            result[i] = 0.0 if not len(labels) else np.inf
    return np.where(np.isinf(result), 0.0, result) if attrs["zero_infinity"] else result


def _backwards(values: np.ndarray) -> np.ndarray:
    return values[::-1, ::-1]


def _expected(arrays: Arrays, attrs: Attrs, direction: np.ndarray | None) -> np.ndarray:
    """The expected numbers of every class at every frame, or their derivative along a direction of the input."""
    x = arrays[0]
    result = np.zeros(x.shape)
    for i, frames, labels in _examples(arrays, attrs):
        if not frames:
            continue
        classes, leaps = _states(labels, attrs["blank"])
        emitted = x[:frames, i, classes]
        moved = None if direction is None else direction[:frames, i, classes]
        back_leaps = np.zeros_like(leaps)  # a leap into state s is, backwards, one from it into s - 2
        back_leaps[2:] = leaps[2:][::-1]
        with np.errstate(invalid="ignore"):
            ahead, ahead_moved = _forward(emitted, leaps, moved)
            found = _forward(_backwards(emitted), back_leaps, None if moved is None else _backwards(moved))
            behind, behind_moved = (_backwards(each) for each in found)
            total = _likelihood(ahead[-1])
            if np.isneginf(total):
                result[:frames, i] = 0.0 if attrs["zero_infinity"] else np.nan
                continue
            impossible = np.isneginf(ahead) | np.isneginf(behind)
            shares = np.where(impossible, 0.0, np.exp(ahead + behind - np.where(impossible, 0.0, emitted) - total))
        if moved is not None:
            of_total = np.exp(ahead[-1, -2:] - total) @ ahead_moved[-1, -2:]
            shares = shares * (ahead_moved + behind_moved - moved - of_total)
        for state, label in enumerate(classes):
            result[:frames, i, label] += shares[:, state]
    return result


def ctc_expected(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """Minus the derivative of `ctc_loss` by the log-probabilities; NaN where the loss is infinite (0: zero_infinity)."""
    return _expected(arrays, attrs, None)


def ctc_expected_moved(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """The derivative of `ctc_expected` along a direction, the fifth operand; it is symmetric."""
    return _expected(arrays[:4], attrs, arrays[4])


ROUTINES = {"ctc_loss": ctc_loss, "ctc_expected": ctc_expected, "ctc_expected_moved": ctc_expected_moved}
