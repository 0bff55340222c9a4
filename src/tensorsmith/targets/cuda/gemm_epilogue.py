"""What a product's kernel computes of its results before it stores them, as CUDA C++ text.

The body is a function `finished(sum, operands beside...)` on values in registers, in the compute dtype. Around it the
kernel says which element it has: `batch_lines` points `to0` at C and `to1`, ... at the operands beside, of one batch;
`element` stores one result, `pair_lines` two that lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType, compute_dtype
from tensorsmith.kernels.epilogue import Body
from tensorsmith.kernels.spec import Kind
from tensorsmith.kernels.spec_gemm import GemmSpec, Strides
from tensorsmith.targets.cuda.epilogue import body_lines
from tensorsmith.targets.cuda.scalars import c_type, cast_expression

_AXES = ("outer", "inner", "row", "column")


def accumulator_type(dtype: DType) -> str:
    """The C++ type in which products are summed: integers wrap, halves are summed in float."""
    if dtype.kind not in "fiu":
        raise NotImplementedError(f"matrix multiplication of {dtype.name} has no CUDA kernel")
    if dtype.kind == "f":
        return c_type(compute_dtype(dtype))
    return "unsigned long long" if dtype.itemsize == 8 else "unsigned int"


def loaded(dtype: DType, element: str) -> str:
    """An element of A or B as a summand's factor."""
    if dtype.kind == "f":
        return cast_expression(dtype, compute_dtype(dtype), element)
    return f"({accumulator_type(dtype)}){element}"


@dataclass(frozen=True)
class Epilogue:
    """The structure of what is stored.

    dtype: of C and what lies beside; body: computed of a sum, or None
    steps: of C and the operands beside, by axis: "0", "1" or "" for any other stride
    pairs: of each of these, whether two results side by side are two elements side by side at an address of that size
    """

    dtype: DType
    body: Body | None
    steps: tuple[tuple[str, ...], ...]
    pairs: tuple[bool, ...]

    @classmethod
    def of(cls, spec: GemmSpec) -> Epilogue:
        """That of a spec."""
        places = (spec.c, *spec.beside)
        return cls(
            spec.dtype, spec.body, tuple(_steps(place) for place in places),
            tuple(_in_pairs(place) and spec.N % 2 == 0 for place in places),
        )  # fmt: skip

    @classmethod
    def of_partial_sums(cls, spec: GemmSpec) -> Epilogue:
        """Sums stored as they are, contiguous, for a kernel that adds up several."""
        return cls(compute_dtype(spec.dtype), None, (("", "", "", "1"),), (spec.N % 2 == 0,))

    @property
    def count(self) -> int:
        """How many operands lie beside the results."""
        return len(self.steps) - 1

    def parameters(self) -> str:
        """The kernel's parameters for C and the operands beside."""
        element = c_type(self.dtype)
        beside = [f"const {element}* __restrict__ beside{k}" for k in range(1, self.count + 1)]
        return ", ".join([f"{element}* __restrict__ C", *beside])

    def arguments(self) -> str:
        """The same as arguments of a function that takes them."""
        return ", ".join(["C", *(f"beside{k}" for k in range(1, self.count + 1))])

    def batch_lines(self, split: str = "") -> list[str]:
        """Lines that point `to0` at C and `to1`, ... at the operands beside, of batch (`outer`, `inner`).

        split: the number of a part of K, whose partial sums lie behind those of the parts before
        """
        element, lines = c_type(self.dtype), []
        for k in range(self.count + 1):
            name, const = ("C", "") if k == 0 else (f"beside{k}", "const ")
            place = self._place(k, name, {"outer": "outer", "inner": "inner"})
            if split and k == 0:
                place += f" + {split} * sizes.part"
            lines.append(f"{const}{element}* const to{k} = {place};")
        return lines

    def element(self, value: str, row: str, column: str) -> str:
        """A statement that stores what is computed of one sum; row and column are 64-bit."""
        operands = [f"*({self.address(k, row, column)})" for k in range(1, self.count + 1)]
        return f"*({self.address(0, row, column)}) = {self.stored(self.finished(value, operands))};"

    def pair_lines(self, sums: tuple[str, str], row: str, column: str) -> list[str]:
        """Lines that set `x0` and `x1` to what is computed of the sums at `column` and the next one, in the compute dtype.

        Operands are read where `inside` (both columns, or with an odd N the first) and `inside1` (the second) are true.
        """
        element, lines = c_type(self.dtype), []
        names: list[list[str]] = [[], []]
        for k in range(1, self.count + 1):
            if self.steps[k][3] == "0":
                lines.append(f"const {element} y{k} = inside ? *({self.address(k, row, column)}) : ({element})0;")
                both = (f"y{k}", f"y{k}")
            elif self.pairs[k] and self.dtype.is_half:
                pair = f"*(const unsigned int*)({self.address(k, row, column)})"
                lines.append(f"const unsigned int y{k} = inside ? {pair} : 0u;")
                both = (f"(unsigned short)y{k}", f"(unsigned short)(y{k} >> 16)")
            else:
                at = self.address(k, row, column)
                lines.append(f"const {element} y{k} = inside ? *({at}) : ({element})0;")
                step = "1" if self.steps[k][3] == "1" else f"sizes.strides[{k}][3]"
                lines.append(f"const {element} z{k} = inside1 ? *({at} + {step}) : ({element})0;")
                both = (f"y{k}", f"z{k}")
            for name, each in zip(names, both):
                name.append(each)
        for number in (0, 1):
            total = accumulator_type(self.dtype)
            lines.append(f"const {total} x{number} = {self.finished(sums[number], names[number])};")
        return lines

    def store_pair_lines(self, row: str, column: str, aligned: str = "") -> list[str]:
        """Lines that store `x0` and `x1` where `inside` and `inside1` say.

        aligned: a condition without which pairs are not stored as one; "" where the kernel has made sure of it
        """
        at = self.address(0, row, column)
        step = "1" if self.steps[0][3] == "1" else "sizes.strides[0][3]"
        apart = [
            f"if (inside) *({at}) = {self.stored('x0')};",
            f"if (inside1) *({at} + {step}) = {self.stored('x1')};",
        ]
        if self.pairs[0] and self.dtype.is_half:
            both = f"if (inside) *(unsigned int*)({at}) = {self.packed('x0', 'x1')};"
        elif self.pairs[0] and self.dtype is dtypes.float32:
            both = f"if (inside) *(float2*)({at}) = make_float2(x0, x1);"
        else:
            return apart
        return [f"if ({aligned}) {{", f"    {both}", "} else {", *apart, "}"] if aligned else [both]

    def packed(self, first: str, second: str) -> str:
        """Two values of a half type in one word."""
        return f"pack_{self.dtype.name}({first}, {second})"

    def finished(self, value: str, operands: list[str]) -> str:
        """The value, in the compute dtype, of a sum and the elements beside it."""
        return f"finished({', '.join([value, *operands, 'error'])})"

    def stored(self, value: str) -> str:
        """A value of the compute dtype as an element of C."""
        if self.dtype.kind != "f":
            return f"({c_type(self.dtype)})({value})"
        return cast_expression(compute_dtype(self.dtype), self.dtype, value)

    def address(self, k: int, row: str, column: str) -> str:
        """Where operand k (0: C) has the element of a result."""
        return self._place(k, f"to{k}", {"row": row, "column": column})

    def _place(self, k: int, base: str, at: dict[str, str]) -> str:
        terms = [base]
        for axis, coordinate in at.items():
            step = self.steps[k][_AXES.index(axis)]
            if step != "0":
                terms.append(coordinate if step == "1" else f"{coordinate} * sizes.strides[{k}][{_AXES.index(axis)}]")
        return " + ".join(terms)

    def misaligned(self, whole_rows: bool = False) -> str:
        """A condition: some operand that is accessed in pairs is not aligned for it; whole_rows: C in units of 16 bytes."""
        size = 2 * self.dtype.itemsize
        tests = []
        for k, pairs in enumerate(self.pairs):
            mask = 15 if k == 0 and whole_rows else size - 1 if pairs and (k == 0 or self.dtype.is_half) else 0
            if mask:
                tests.append(f"((unsigned long long){'C' if k == 0 else f'beside{k}'} & {mask})")
        return " | ".join(tests) or "0"

    def sizes(self) -> str:
        """The members of the struct of sizes that hold the strides."""
        return (
            f"long long strides[{self.count + 1}][4];  // of C and what lies beside it: batch, batch, rows, columns\n"
            "    long long part;  // elements of the partial sums of one part of K"
        )

    def function(self) -> str:
        """The text of `finished`."""
        total, element = accumulator_type(self.dtype), c_type(self.dtype)
        parameters = ", ".join([f"{total} x0", *(f"{element} x{k}" for k in range(1, self.count + 1)), "long long* error"])
        head = f"__device__ __forceinline__ {total} finished({parameters}) {{"
        if self.body is None:
            return f"{head}\n    return x0;\n}}"
        lines, result, dtype = body_lines(self.body, _stored(self.body))
        value = cast_expression(dtype, compute_dtype(self.dtype), result)
        return "\n".join([head, *(f"    {line}" for line in lines), f"    return {value};", "}"])


def _stored(body: Body) -> int:
    """The instruction whose value is stored: not the last one where that only rounds as storing does."""
    last = body.body[body.value]
    rounds = last.kind is Kind.CAST and body.body[last.args[0]].dtype is compute_dtype(last.dtype)
    return last.args[0] if rounds else body.value


def _steps(strides: Strides) -> tuple[str, ...]:
    return tuple(str(stride) if stride in (0, 1) else "" for stride in strides)


def _in_pairs(strides: Strides) -> bool:
    return strides[3] == 1 and all(stride % 2 == 0 for stride in strides[:3])


def stride_words(spec: GemmSpec) -> list[int]:
    """The words of `Epilogue.sizes`."""
    return [*(stride for strides in (spec.c, *spec.beside) for stride in strides), 0]


def partial_stride_words(spec: GemmSpec) -> list[int]:
    """The same for partial sums."""
    outer, inner = spec.batch
    return [inner * spec.M * spec.N, spec.M * spec.N, spec.N, 1, spec.results]
