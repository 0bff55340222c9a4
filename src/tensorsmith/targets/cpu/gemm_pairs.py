"""bfloat16 in pairs along k, as the matrix unit of x86 CPUs (AMX) takes them: elements k and k + 1 in place of one float32.

A row of A holds its pairs where it lies in memory; a packed panel of B has the pairs of a column in a lane.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.core.dtypes import DType, bfloat16
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors
from tensorsmith.targets.cpu.machine import Machine


class PairVectors(Vectors):
    """Vectors of bfloat16 whose packed form is pairs along k, one to a lane (as the bits of a float32)."""

    depth = 2

    def steps(self, f: Function, count: Value) -> Value:
        """Half of `count`, rounded up."""
        return f.udiv(f.add(count, 1), 2)

    def load_along(self, f: Function, pointer: str, mask: Mask | None = None) -> str:
        """Pairs as they lie in memory; the mask, of `along_mask`, counts elements."""
        if mask is None:
            return f.load(self.type, pointer, self.storage_size)
        count = self.depth * self.lanes
        kind, bits, name = f"<{count} x i16>", f"<{count} x i1>", f"@llvm.masked.load.v{count}i16.p0"
        self.declarations.add(f"declare {kind} {name}(ptr, {bits}, {kind})")
        raw = f.value(f"call {kind} {name}(ptr align 2 {pointer}, {bits} {mask.bits}, {kind} zeroinitializer)")
        return f.value(f"bitcast {kind} {raw} to {self.type}")

    def load_across(self, f: Function, pointers: Sequence[str], masks: Sequence[Mask | None]) -> str:
        """Pairs of one row each at `pointers`; of one row alone, paired with zero."""
        ints = f"<{self.lanes} x i32>"
        raw = [self._raw(f, pointer, mask) for pointer, mask in zip(pointers, masks)]
        low, *rest = (f.value(f"zext <{self.lanes} x i16> {each} to {ints}") for each in raw)
        for high in rest:
            low = f.value(f"or {ints} {low}, {f.value(f'shl {ints} {high}, {self._ints(16)}')}")
        return f.value(f"bitcast {ints} {low} to {self.type}")


def uses_tiles(dtype: DType, machine: Machine) -> bool:
    """Whether products of a dtype go through the matrix unit."""
    return dtype is bfloat16 and machine.name == "avx512" and machine.has("amx-bf16") and machine.has("amx-tile")


__all__ = ["PairVectors", "uses_tiles"]
