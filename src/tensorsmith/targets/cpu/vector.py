"""Vectors in LLVM text: `Lanes` writes element-wise instructions on a fixed number of lanes.

Values are names of vector values or `splat (...)` constants; every method takes the LLVM element type ("float", "i32").
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu.build import Function, double_literal, float_literal
from tensorsmith.targets.cpu.machine import Machine

# How a value of each dtype is held in registers; bool is one bit, the half types are their 16 bits until converted.
ELEMENTS: dict[DType, str] = {
    dtypes.bool_: "i1",
    dtypes.uint8: "i8",
    dtypes.int8: "i8",
    dtypes.int16: "i16",
    dtypes.uint16: "i16",
    dtypes.int32: "i32",
    dtypes.uint32: "i32",
    dtypes.int64: "i64",
    dtypes.uint64: "i64",
    dtypes.float16: "i16",
    dtypes.bfloat16: "i16",
    dtypes.float32: "float",
    dtypes.float64: "double",
}
_MANGLED = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16"}
_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16}


def element_of(dtype: DType) -> str:
    """The LLVM element type that holds a dtype; NotImplementedError for the complex types."""
    found = ELEMENTS.get(dtype)
    if found is None:
        raise NotImplementedError(f"CPU kernels on {dtype.name} are not implemented")
    return found


def literal(element: str, value: bool | int | float) -> str:
    """A scalar constant of an LLVM element type; integers wrap to its width."""
    if element == "float":
        return float_literal(float(value))
    if element == "double":
        return double_literal(float(value))
    if element == "i1":
        return "true" if value else "false"
    bits = int(element[1:])
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


class Lanes:
    """Element-wise instructions on `count` lanes of `function`, for one machine."""

    def __init__(self, function: Function, count: int, machine: Machine) -> None:
        self.function = function
        self.count = count
        self.machine = machine

    def type(self, element: str) -> str:
        """The vector type."""
        return f"<{self.count} x {element}>"

    def mangled(self, element: str) -> str:
        """The vector type as intrinsic names spell it."""
        return f"v{self.count}{_MANGLED.get(element, element)}"

    def constant(self, element: str, value: bool | int | float) -> str:
        """The same constant in every lane."""
        return f"splat ({element} {literal(element, value)})"

    def splat(self, element: str, scalar: str | int) -> str:
        """A scalar SSA value in every lane."""
        vector = self.type(element)
        first = self.function.value(f"insertelement {vector} poison, {element} {scalar}, i64 0")
        return self.function.value(
            f"shufflevector {vector} {first}, {vector} poison, <{self.count} x i32> zeroinitializer"
        )

    def iota(self, element: str) -> str:
        """0, 1, 2, ... as a constant."""
        return "<" + ", ".join(f"{element} {k}" for k in range(self.count)) + ">"

    def op(self, name: str, element: str, a: str, b: str) -> str:
        """A binary instruction (fadd, add, shl, ...)."""
        return self.function.value(f"{name} {self.type(element)} {a}, {b}")

    def negate(self, element: str, a: str) -> str:
        """-a of floats."""
        return self.function.value(f"fneg {self.type(element)} {a}")

    def compare(self, predicate: str, element: str, a: str, b: str) -> str:
        """A vector of i1: fcmp for float and double, icmp otherwise."""
        name = "fcmp" if element in _BITS else "icmp"
        return self.function.value(f"{name} {predicate} {self.type(element)} {a}, {b}")

    def select(self, condition: str, element: str, a: str, b: str) -> str:
        """condition ? a : b, per lane."""
        vector = self.type(element)
        return self.function.value(f"select {self.type('i1')} {condition}, {vector} {a}, {vector} {b}")

    def convert(self, name: str, source: str, target: str, a: str) -> str:
        """A conversion instruction (sext, fpext, bitcast, ...) between equal lane counts."""
        if source == target:
            return a
        return self.function.value(f"{name} {self.type(source)} {a} to {self.type(target)}")

    def bits(self, element: str, a: str) -> str:
        """The bits of floats as integers."""
        return self.convert("bitcast", element, f"i{_BITS[element]}", a)

    def from_bits(self, element: str, a: str) -> str:
        """The floats with these bits."""
        return self.convert("bitcast", f"i{_BITS[element]}", element, a)

    def intrinsic(self, name: str, element: str, *arguments: str) -> str:
        """`llvm.<name>` of vectors that all have one type."""
        vector = self.type(element)
        return self.function.call(vector, f"llvm.{name}.{self.mangled(element)}", *((vector, a) for a in arguments))

    def fma(self, element: str, a: str, b: str, c: str) -> str:
        """a * b + c with one rounding."""
        return self.intrinsic("fma", element, a, b, c)

    def multiply_add(self, element: str, a: str, b: str, c: str) -> str:
        """a * b + c, fused where the machine can; for our own polynomials, never for users' arithmetic."""
        if self.machine.name == "generic":
            return self.op("fadd", element, self.op("fmul", element, a, b), c)
        return self.fma(element, a, b, c)

    def polynomial(self, element: str, x: str, coefficients: Sequence[float]) -> str:
        """Horner's scheme; coefficients from the highest power down to the constant."""
        total = self.constant(element, coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.multiply_add(element, total, x, self.constant(element, coefficient))
        return total

    def any(self, mask: str) -> str:
        """A scalar i1: whether any lane of a mask is set."""
        return self.function.call("i1", f"llvm.vector.reduce.or.v{self.count}i1", (self.type("i1"), mask))

    def extract(self, element: str, a: str, lane: int = 0) -> str:
        """One lane as a scalar."""
        return self.function.value(f"extractelement {self.type(element)} {a}, i64 {lane}")

    def insert(self, element: str, a: str, scalar: str, lane: int) -> str:
        """`a` with one lane replaced."""
        return self.function.value(f"insertelement {self.type(element)} {a}, {element} {scalar}, i64 {lane}")

    def rotate(self, element: str, a: str, distance: int) -> str:
        """Lane k of the result is lane (k xor distance) of `a`: one step of a reduction tree."""
        vector = self.type(element)
        order = ", ".join(f"i32 {k ^ distance}" for k in range(self.count))
        return self.function.value(f"shufflevector {vector} {a}, {vector} poison, <{self.count} x i32> <{order}>")

    def reverse(self, element: str, a: str) -> str:
        """The lanes from the last to the first."""
        vector = self.type(element)
        order = ", ".join(f"i32 {k}" for k in reversed(range(self.count)))
        return self.function.value(f"shufflevector {vector} {a}, {vector} poison, <{self.count} x i32> <{order}>")

    def below(self, limit: str | int) -> str:
        """The mask of the first `limit` lanes (an i64, at least 1; more than the lane count means all)."""
        f = self.function
        clamped = f.minimum(limit, self.count)
        narrow = f.value(f"trunc i64 {clamped} to i32")
        return self.compare("ult", "i32", self.iota("i32"), self.splat("i32", narrow))

    # -------------------------------------------------------------------------------------------------------- memory

    def load(self, element: str, pointer: str, mask: str | None = None) -> str:
        """`count` consecutive elements; lanes outside the mask are zero and not touched in memory."""
        if mask is None:
            return self.function.load(self.type(element), pointer, size_of(element))
        vector = self.type(element)
        return self.function.call(
            vector,
            f"llvm.masked.load.{self.mangled(element)}.p0",
            (f"ptr align {size_of(element)}", pointer),
            (self.type("i1"), mask),
            (vector, "zeroinitializer"),
        )

    def store(self, element: str, value: str, pointer: str, mask: str | None = None) -> None:
        """Write `count` consecutive elements, or those in the mask."""
        if mask is None:
            self.function.store(value, self.type(element), pointer, size_of(element))
            return
        self.function.call(
            "void",
            f"llvm.masked.store.{self.mangled(element)}.p0",
            (self.type(element), value),
            (f"ptr align {size_of(element)}", pointer),
            (self.type("i1"), mask),
        )

    def load_pairs(self, element: str, pointer: str, mask: str | None = None) -> tuple[str, str]:
        """`count` pairs of consecutive elements as the vectors of their first and of their second elements.

        Pairs outside the mask are zero and not touched in memory.
        """
        masks = self._masks_of_pairs(mask)
        low = self.load(element, pointer, masks[0])
        high = self.load(element, self.function.offset(pointer, self.count * size_of(element)), masks[1])
        even, odd = range(0, 2 * self.count, 2), range(1, 2 * self.count, 2)
        return self._shuffled(element, low, high, even), self._shuffled(element, low, high, odd)

    def store_pairs(self, element: str, first: str, second: str, pointer: str, mask: str | None = None) -> None:
        """Write `count` pairs, side by side, or those in the mask."""
        masks = self._masks_of_pairs(mask)
        order = [k // 2 + (k % 2) * self.count for k in range(2 * self.count)]
        self.store(element, self._shuffled(element, first, second, order[: self.count]), pointer, masks[0])
        behind = self.function.offset(pointer, self.count * size_of(element))
        self.store(element, self._shuffled(element, first, second, order[self.count :]), behind, masks[1])

    def _masks_of_pairs(self, mask: str | None) -> list[str | None]:
        """A mask of pairs as those of the two vectors in which the pairs lie."""
        if mask is None:
            return [None, None]
        lanes = [[half * self.count // 2 + k // 2 for k in range(self.count)] for half in range(2)]
        return [self._shuffled("i1", mask, "poison", order) for order in lanes]

    def _shuffled(self, element: str, a: str, b: str, order: Sequence[int]) -> str:
        """The lanes of `a`, then of `b`, in this order."""
        vector = self.type(element)
        lanes = ", ".join(f"i32 {k}" for k in order)
        return self.function.value(f"shufflevector {vector} {a}, {vector} {b}, <{self.count} x i32> <{lanes}>")

    def _addresses(self, pointer: str, stride: str) -> str:
        """Vector of addresses pointer + lane * stride (bytes)."""
        steps = self.op("mul", "i64", self.iota("i64"), self.splat("i64", stride))
        return self.function.value(f"getelementptr i8, ptr {pointer}, {self.type('i64')} {steps}")

    def gather(self, element: str, pointer: str, stride: str, mask: str | None = None) -> str:
        """Elements `stride` bytes apart; lanes outside the mask are zero and not touched in memory.

        Without a mask these are single loads: gather instructions are slower on most CPUs.
        """
        if mask is None:
            vector = "poison"
            for lane in range(self.count):
                scalar = self.function.load(element, pointer, size_of(element))
                vector = self.insert(element, vector, scalar, lane)
                pointer = self.function.offset(pointer, stride)
            return vector
        return self.gather_addresses(element, self._addresses(pointer, stride), mask)

    def gather_addresses(self, element: str, addresses: str, mask: str | None = None) -> str:
        """One element from each address of a vector of pointers."""
        vector = self.type(element)
        return self.function.call(
            vector,
            f"llvm.masked.gather.{self.mangled(element)}.v{self.count}p0",
            (f"{self.type('ptr')} align {size_of(element)}", addresses),
            (self.type("i1"), mask or "splat (i1 true)"),
            (vector, "zeroinitializer"),
        )

    def scatter(self, element: str, value: str, pointer: str, stride: str, mask: str | None = None) -> None:
        """Write elements `stride` bytes apart."""
        if mask is None:
            for lane in range(self.count):
                self.function.store(self.extract(element, value, lane), element, pointer, size_of(element))
                pointer = self.function.offset(pointer, stride)
            return
        self.function.call(
            "void",
            f"llvm.masked.scatter.{self.mangled(element)}.v{self.count}p0",
            (self.type(element), value),
            (f"{self.type('ptr')} align {size_of(element)}", self._addresses(pointer, stride)),
            (self.type("i1"), mask or "splat (i1 true)"),
        )


def size_of(element: str) -> int:
    """Bytes of one element in memory."""
    return _BITS[element] // 8 if element in _BITS else max(int(element[1:]) // 8, 1)
