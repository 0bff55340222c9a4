"""What the rendering of a scalar function works with: where instructions go, and how a kernel reports an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu.vector import Lanes


@dataclass
class Context:
    """Where instructions go, which lanes count, and how a kernel reports an error (`kernels/errors.py`)."""

    lanes: Lanes
    error_word: str | None = None  # pointer to the error word
    mask: str | None = None  # active lanes; None means all

    def report(self, faulty: str, code: int) -> None:
        """Store `code` in the error word if an active lane of the mask `faulty` is set."""
        if self.error_word is None:
            raise NotImplementedError("this function can fail and needs a kernel with an error word")
        if self.mask is not None:
            faulty = self.lanes.op("and", "i1", faulty, self.mask)
        with self.lanes.function.if_(self.lanes.any(faulty)):
            self.lanes.function.store(code, "i64", self.error_word, 8)


Rendering = Callable[[Context, DType, Sequence[str]], str]  # (context, dtype of the arguments, values) -> value
