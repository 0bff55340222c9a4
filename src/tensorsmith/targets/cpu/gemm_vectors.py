"""Vectors of one element type as the matrix multiplication uses them: loads, masks, multiply-add, transposes.

Values in registers have the *compute* type; memory may hold a *storage* type (float16 and bfloat16 are computed in
float32). How a masked access is written depends on the instruction set: mask registers (avx512), vector masks (avx2) or
element by element (generic), which is why `cheap_masks` steers what the kernels do with the last columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tensorsmith.core.dtypes import DType, bfloat16, float16, float64
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.machine import Machine

_VECTOR_BYTES = {"avx512": 64, "avx2": 32, "generic": 16}
_MAX_LANES = 16


@dataclass
class Mask:
    """The first lanes of a vector: as `<n x i1>` and, where the instruction set wants it, as a vector of integers."""

    bits: str
    wide: str | None = None
    count: int | None = None  # where it is known while the text is written


def _indices(numbers: Sequence[int]) -> str:
    return "<" + ", ".join(f"i32 {n}" for n in numbers) + ">"


@dataclass
class Vectors:
    """Emits vector code for one (dtype, instruction set); collects the intrinsics it used in `declarations`.

    dtype: element type in memory; compute type is float32 for the half types, else the dtype itself
    isa:   avx512, avx2 or generic
    """

    dtype: DType
    isa: str
    declarations: set[str] = field(default_factory=set)
    machine: Machine | None = None  # for the bodies of epilogues
    depth: ClassVar[int] = 1  # elements of k in a lane of packed operands

    def __post_init__(self) -> None:
        half = self.dtype in (float16, bfloat16)
        self.is_float = self.dtype.is_floating_point
        self.compute_size = 4 if half else self.dtype.itemsize
        self.scalar = ("double" if self.dtype is float64 else "float") if self.is_float else f"i{8 * self.compute_size}"
        self.lanes = min(_MAX_LANES, _VECTOR_BYTES[self.isa] // self.compute_size)
        self.type = f"<{self.lanes} x {self.scalar}>"
        self.registers = 32 if self.isa == "avx512" else 16
        self.converts = half
        self.storage_size = self.dtype.itemsize
        # Of 16 registers a mask would take one that the sums of a tile need, and they would be at a third of the speed.
        self.cheap_masks = self.isa == "avx512"
        # Stores through vector masks are slow on several CPUs, so only mask registers are used unconditionally.
        self.cheap_masked_stores = self.isa == "avx512"

    # Arithmetic -------------------------------------------------------------------------------------------------------

    @property
    def zero(self) -> str:
        """The vector of zeros."""
        return "zeroinitializer"

    def multiply_add(self, f: Function, a: Value, b: Value, c: Value) -> str:
        """a * b + c: fused where the machine fuses (`fmuladd`), wrapping for integers."""
        if self.is_float:
            name = f"@llvm.fmuladd.v{self.lanes}f{8 * self.compute_size}"
            self.declarations.add(f"declare {self.type} {name}({self.type}, {self.type}, {self.type})")
            return f.value(f"call {self.type} {name}({self.type} {a}, {self.type} {b}, {self.type} {c})")
        return f.value(f"add {self.type} {f.value(f'mul {self.type} {a}, {b}')}, {c}")

    def steps(self, f: Function, count: Value) -> Value:
        """How many lanes of packed operands hold `count` elements of k."""
        return count

    def plus(self, f: Function, a: Value, b: Value, kind: str | None = None) -> str:
        """a + b."""
        return f.value(f"{'fadd' if self.is_float else 'add'} {kind or self.type} {a}, {b}")

    def splat(self, f: Function, scalar: Value) -> str:
        """A scalar of the compute type in every lane."""
        first = f.value(f"insertelement {self.type} poison, {self.scalar} {scalar}, i64 0")
        return f.value(f"shufflevector {self.type} {first}, {self.type} poison, <{self.lanes} x i32> zeroinitializer")

    def load_splat(self, f: Function, pointer: str) -> str:
        """One element of the compute type from memory, in every lane."""
        return self.splat(f, f.load(self.scalar, pointer, self.compute_size))

    # Masks ------------------------------------------------------------------------------------------------------------

    def along_mask(self, f: Function, count: Value) -> Mask:
        """For `load_along`: the first `count` elements of k."""
        return self.mask(f, count, self.lanes * self.depth)

    def mask(self, f: Function, count: Value, lanes: int | None = None) -> Mask:
        """The first `count` lanes (of `lanes`); any integer: below 0 none, above the lane count all."""
        lanes = lanes or self.lanes
        if isinstance(count, int):
            size = 8 if self.storage_size == 8 else 4
            bits = ", ".join(f"i1 {int(k < count)}" for k in range(lanes))
            wide = ", ".join(f"i{8 * size} {-int(k < count)}" for k in range(lanes))
            return Mask(f"<{bits}>", f"<{wide}>", count)
        if self.isa == "avx512":
            low = f.select(f.compare("sgt", count, 0), "i64", count, 0)
            few = f.minimum(low, lanes)
            ones = f.sub(f.value(f"shl i64 1, {few}"), 1)
            return Mask(f.value(f"bitcast i{lanes} {f.value(f'trunc i64 {ones} to i{lanes}')} to <{lanes} x i1>"))
        size = 8 if self.storage_size == 8 else 4
        kind = f"<{lanes} x i{8 * size}>"
        number = count if size == 8 else f.value(f"trunc i64 {f.add(count, 0)} to i32")
        first = f.value(f"insertelement {kind} poison, i{8 * size} {number}, i64 0")
        every = f.value(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")
        order = "<" + ", ".join(f"i{8 * size} {k}" for k in range(lanes)) + ">"
        bits1 = f.value(f"icmp slt {kind} {order}, {every}")
        return Mask(bits1, f.value(f"sext <{lanes} x i1> {bits1} to {kind}"))

    def _vector_mask(self) -> tuple[str, str, str] | None:
        """AVX2's own masked accesses for whole vectors of 4- or 8-byte elements: intrinsic stem, suffix, mask type."""
        if self.isa != "avx2" or self.lanes * self.storage_size != 32 or self.storage_size < 4:
            return None
        if self.is_float:
            stem, suffix = "llvm.x86.avx", "ps.256" if self.storage_size == 4 else "pd.256"
        else:
            stem, suffix = "llvm.x86.avx2", "d.256" if self.storage_size == 4 else "q.256"
        return stem, suffix, f"<{self.lanes} x i{8 * self.storage_size}>"

    # Memory -----------------------------------------------------------------------------------------------------------

    def load(self, f: Function, pointer: str, mask: Mask | None = None, compute: bool = False) -> str:
        """A vector from memory (lanes outside the mask read as zero and are not touched).

        compute: the memory already holds the compute type.
        """
        raw = self._raw(f, pointer, mask, compute)
        return self._widen(f, raw) if self.converts and not compute else raw

    def _raw(self, f: Function, pointer: str, mask: Mask | None, compute: bool = False) -> str:
        """The same before half types are widened."""
        converts = self.converts and not compute
        kind = f"<{self.lanes} x i16>" if converts else self.type
        size = 2 if converts else self.compute_size
        if mask is None:
            return f.load(kind, pointer, size)
        special = self._vector_mask() if not converts else None
        if special and mask.wide:
            stem, suffix, mask_type = special
            self.declarations.add(f"declare {kind} @{stem}.maskload.{suffix}(ptr, {mask_type})")
            return f.value(f"call {kind} @{stem}.maskload.{suffix}(ptr {pointer}, {mask_type} {mask.wide})")
        short = f"v{self.lanes}i16" if converts else self._short()
        name, bits = f"@llvm.masked.load.{short}.p0", f"<{self.lanes} x i1>"
        self.declarations.add(f"declare {kind} {name}(ptr, {bits}, {kind})")
        return f.value(f"call {kind} {name}(ptr align {size} {pointer}, {bits} {mask.bits}, {kind} zeroinitializer)")

    def load_along(self, f: Function, pointer: str, mask: Mask | None = None) -> str:
        """A vector of packed lanes from consecutive elements of k."""
        return self.load(f, pointer, mask)

    def load_across(self, f: Function, pointers: Sequence[str], masks: Sequence[Mask | None]) -> str:
        """A vector of packed lanes from one place for each k of a lane; places at the end may be missing."""
        return self.load(f, pointers[0], masks[0])

    def store(self, f: Function, value: Value, pointer: str, mask: Mask | None = None, compute: bool = False) -> None:
        """Store a vector; lanes outside the mask are not touched."""
        converts = self.converts and not compute
        kind = f"<{self.lanes} x i16>" if converts else self.type
        size = 2 if converts else self.compute_size
        if converts:
            value = self.narrow(f, value)
        if mask is None:
            f.store(value, kind, pointer, size)
            return
        if mask.count == 1:
            # Also because LLVM 22 stores too many bytes for a truncated vector under a constant mask of one element.
            element = kind[1:-1].split(" x ")[1]
            f.store(f.value(f"extractelement {kind} {value}, i64 0"), element, pointer, size)
            return
        special = self._vector_mask() if not converts else None
        if special and mask.wide:
            stem, suffix, mask_type = special
            self.declarations.add(f"declare void @{stem}.maskstore.{suffix}(ptr, {mask_type}, {kind})")
            f.do(f"call void @{stem}.maskstore.{suffix}(ptr {pointer}, {mask_type} {mask.wide}, {kind} {value})")
            return
        short = f"v{self.lanes}i16" if converts else self._short()
        name, bits = f"@llvm.masked.store.{short}.p0", f"<{self.lanes} x i1>"
        self.declarations.add(f"declare void {name}({kind}, ptr, {bits})")
        f.do(f"call void {name}({kind} {value}, ptr align {size} {pointer}, {bits} {mask.bits})")

    def load_scalar(self, f: Function, pointer: str) -> str:
        """One element of the storage type from memory, as the compute type."""
        if not self.converts:
            return f.load(self.scalar, pointer, self.compute_size)
        raw = f.load("i16", pointer, 2)
        vector = f.value(f"insertelement <{self.lanes} x i16> zeroinitializer, i16 {raw}, i64 0")
        return f.value(f"extractelement {self.type} {self._widen(f, vector)}, i64 0")

    def prefetch(self, f: Function, pointer: str, near: bool = True) -> None:
        """Ask for the line of `pointer`, in the first-level cache or (not near) the second."""
        self.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        f.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 {3 if near else 2}, i32 1)")

    def _short(self) -> str:
        return f"v{self.lanes}{'f' if self.is_float else 'i'}{8 * self.compute_size}"

    # Half types -------------------------------------------------------------------------------------------------------

    def _widen(self, f: Function, raw: str) -> str:
        """Vector of 16-bit patterns to float32 (exact)."""
        n = self.lanes
        ints, floats = f"<{n} x i32>", f"<{n} x float>"
        if self.dtype is float16 and self.isa != "generic":
            return f.value(f"fpext <{n} x half> {f.value(f'bitcast <{n} x i16> {raw} to <{n} x half>')} to {floats}")
        wide = f.value(f"zext <{n} x i16> {raw} to {ints}")
        if self.dtype is bfloat16:
            return f.value(f"bitcast {ints} {f.value(f'shl {ints} {wide}, {self._ints(16)}')} to {floats}")
        # float16 without a conversion instruction: move exponent and mantissa up and rescale by 2^112, which also makes
        # subnormals right; then restore the exponent of infinities and NaNs, and the sign.
        moved = f.value(f"shl {ints} {f.value(f'and {ints} {wide}, {self._ints(0x7FFF)}')}, {self._ints(13)}")
        scale = f.value(f"bitcast {ints} {self._ints(0x77800000)} to {floats}")
        scaled = f.value(f"fmul {floats} {f.value(f'bitcast {ints} {moved} to {floats}')}, {scale}")
        bits = f.value(f"bitcast {floats} {scaled} to {ints}")
        special = f.value(f"icmp uge {ints} {moved}, {self._ints(0x0F800000)}")
        patched = f.value(f"or {ints} {moved}, {self._ints(0x7F800000)}")
        bits = f.value(f"select <{n} x i1> {special}, {ints} {patched}, {ints} {bits}")
        sign = f.value(f"shl {ints} {f.value(f'and {ints} {wide}, {self._ints(0x8000)}')}, {self._ints(16)}")
        return f.value(f"bitcast {ints} {f.value(f'or {ints} {bits}, {sign}')} to {floats}")

    def narrow(self, f: Function, value: Value) -> str:
        """float32 vector to 16-bit patterns, rounding half to even."""
        n = self.lanes
        ints, floats, shorts = f"<{n} x i32>", f"<{n} x float>", f"<{n} x i16>"
        if self.dtype is float16 and self.isa != "generic":
            half = f.value(f"fptrunc {floats} {value} to <{n} x half>")
            return f.value(f"bitcast <{n} x half> {half} to {shorts}")
        bits = f.value(f"bitcast {floats} {value} to {ints}")
        nan = f.value(f"fcmp uno {floats} {value}, zeroinitializer")
        if self.dtype is bfloat16:
            odd = f.value(f"and {ints} {f.value(f'lshr {ints} {bits}, {self._ints(16)}')}, {self._ints(1)}")
            up = f.value(f"add {ints} {bits}, {f.value(f'add {ints} {odd}, {self._ints(0x7FFF)}')}")
            quiet = f.value(f"or {ints} {bits}, {self._ints(0x400000)}")
            chosen = f.value(f"select <{n} x i1> {nan}, {ints} {quiet}, {ints} {up}")
            return f.value(f"trunc {ints} {f.value(f'lshr {ints} {chosen}, {self._ints(16)}')} to {shorts}")
        magnitude = f.value(f"and {ints} {bits}, {self._ints(0x7FFFFFFF)}")
        sign = f.value(f"and {ints} {f.value(f'lshr {ints} {bits}, {self._ints(16)}')}, {self._ints(0x8000)}")
        # Normal results: re-bias the exponent, round on the 13 bits that fall off; a carry into infinity is right.
        odd = f.value(f"and {ints} {f.value(f'lshr {ints} {magnitude}, {self._ints(13)}')}, {self._ints(1)}")
        biased = f.value(f"add {ints} {magnitude}, {self._ints(0xFFF - ((127 - 15) << 23))}")
        normal = f.value(f"lshr {ints} {f.value(f'add {ints} {biased}, {odd}')}, {self._ints(13)}")
        # Subnormal results: adding 0.5 lets the floating-point adder round at 2^-24.
        half_bits = f.value(f"bitcast {ints} {self._ints(0x3F000000)} to {floats}")
        sum_ = f.value(f"fadd {floats} {f.value(f'bitcast {ints} {magnitude} to {floats}')}, {half_bits}")
        small = f.value(f"sub {ints} {f.value(f'bitcast {floats} {sum_} to {ints}')}, {self._ints(0x3F000000)}")
        is_small = f.value(f"icmp ult {ints} {magnitude}, {self._ints(0x38800000)}")
        is_large = f.value(f"icmp uge {ints} {magnitude}, {self._ints(0x47800000)}")
        result = f.value(f"select <{n} x i1> {is_small}, {ints} {small}, {ints} {normal}")
        result = f.value(f"select <{n} x i1> {is_large}, {ints} {self._ints(0x7C00)}, {ints} {result}")
        result = f.value(f"select <{n} x i1> {nan}, {ints} {self._ints(0x7E00)}, {ints} {result}")
        return f.value(f"trunc {ints} {f.value(f'or {ints} {result}, {sign}')} to {shorts}")

    def _ints(self, number: int) -> str:
        return "<" + ", ".join([f"i32 {number}"] * self.lanes) + ">"

    # Rearrangement ----------------------------------------------------------------------------------------------------

    def shuffle(self, f: Function, a: Value, b: Value, order: Sequence[int]) -> str:
        """Elements of a (0..lanes-1) and b (lanes..) in `order`."""
        return f.value(f"shufflevector {self.type} {a}, {self.type} {b}, <{len(order)} x i32> {_indices(order)}")

    def transpose(self, f: Function, rows: Sequence[Value]) -> list[str]:
        """`lanes` vectors as a square matrix, transposed.

        Interleaving inside 128-bit pieces first (doubling the run each time), then exchanging whole pieces: the cheap
        shuffles of every vector instruction set. Which element is where is followed in `where`, not assumed.
        """
        lanes = self.lanes
        piece = min(lanes, 16 // self.compute_size)
        state: list[tuple[str, list[tuple[int, int]]]] = [
            (str(row), [(r, k) for k in range(lanes)]) for r, row in enumerate(rows)
        ]

        def pair(low: list[int], high: list[int], distance: int) -> None:
            nonlocal state
            after = list(state)
            for i in range(lanes):
                if i & distance:
                    continue
                (a, wa), (b, wb) = state[i], state[i | distance]
                both = wa + wb
                for target, order in ((i, low), (i | distance, high)):
                    after[target] = (self.shuffle(f, a, b, order), [both[k] for k in order])
            state = after

        run = 1
        while run < piece:
            low: list[int] = []
            high: list[int] = []
            for start in range(0, lanes, piece):
                for part, offset in ((low, 0), (high, piece // 2)):
                    for at in range(0, piece // 2, run):
                        part += [start + offset + at + k for k in range(run)]
                        part += [lanes + start + offset + at + k for k in range(run)]
            pair(low, high, run)
            run *= 2
        pieces = lanes // piece
        distance = piece
        while distance < lanes:
            even = [p * piece + k for p in range(0, pieces, 2) for k in range(piece)]
            odd = [p * piece + k for p in range(1, pieces, 2) for k in range(piece)]
            pair(even + [lanes + k for k in even], odd + [lanes + k for k in odd], distance)
            distance *= 2
        out: list[str] = [""] * lanes
        for name, where in state:
            column = where[0][1]
            assert where == [(r, column) for r in range(lanes)], "transpose network is wrong"
            out[column] = name
        return out

    def sum_lanes(self, f: Function, vectors: Sequence[Value]) -> list[str]:
        """Horizontal sums: sum of vector i is lane i % lanes of result i // lanes.

        Each level adds the halves of every segment and joins two vectors, so n sums take 2n shuffles, not n log n.
        """
        lanes = self.lanes
        results: list[str] = []
        for start in range(0, len(vectors), lanes):
            level = [str(v) for v in vectors[start : start + lanes]]
            segments = 1
            while segments < lanes:
                length = lanes // segments
                half = length // 2
                first = [s * length + k for s in range(segments) for k in range(half)]
                second = [s * length + half + k for s in range(segments) for k in range(half)]
                joined = []
                for i in range(0, len(level), 2):
                    a, b = level[i], level[i + 1] if i + 1 < len(level) else "poison"
                    low = self.shuffle(f, a, b, first + [lanes + k for k in first])
                    high = self.shuffle(f, a, b, second + [lanes + k for k in second])
                    joined.append(self.plus(f, low, high))
                level = joined
                segments *= 2
            results.append(level[0])
        return results


__all__ = ["Mask", "Vectors"]
