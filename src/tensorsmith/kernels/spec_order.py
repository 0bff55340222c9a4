"""RankSpec and SearchSpec: where the elements of some ranks stand, and where values belong among sorted ones."""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.core.dtypes import DType


@dataclass(frozen=True)
class RankSpec:
    """Positions (int64) of the elements of ranks start .. start + length - 1 along one axis.

    Rank 0 is the smallest, or with `descending` the largest; NaN counts as largest and -0.0 as equal to 0.0. Of equal
    elements the one that stands first has the lower rank, both ways. Launch words: addresses of source, result, workspace.

    domain: extents of the source, all >= 1. source, result: element strides per axis; the result has `length` elements
    along the axis.
    """

    dtype: DType
    descending: bool
    domain: tuple[int, ...]
    axis: int
    start: int
    length: int
    source: tuple[int, ...]
    result: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.start + self.length <= self.domain[self.axis]:
            raise ValueError(f"RankSpec: no ranks {self.start} to {self.start + self.length} of {self.domain[self.axis]}")


@dataclass(frozen=True)
class SearchSpec:
    """Places (int64) of values in sorted sequences: how many elements are smaller, or with `right` not larger.

    NaN counts as largest. Launch words: addresses of sequences, values, result.

    domain: extents of the values, all >= 1. sequence, values, result: element strides per axis of the domain, of the
    sequence those from one sequence to the next. extent: elements of a sequence, which are consecutive.
    """

    dtype: DType
    right: bool
    extent: int
    domain: tuple[int, ...]
    sequence: tuple[int, ...]
    values: tuple[int, ...]
    result: tuple[int, ...]
