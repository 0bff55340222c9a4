"""What a product's kernel computes of its results before it stores them, as CUDA C++ text.

The body is a function `finished(value, operands beside...)` on values in registers. Around it the kernel says which
element it has: `batch_lines` moves the pointers to a batch, `element` stores one result.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.core.dtypes import DType, compute_dtype
from tensorsmith.kernels.epilogue import Body
from tensorsmith.kernels.spec import Kind
from tensorsmith.kernels.spec_gemm import GemmSpec, Strides
from tensorsmith.targets.cuda.scalars import apply_expression, c_type, cast_expression, literal

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
    """The structure of what is stored: dtype, body, and along which axes each operand (C first) has a stride of 0 or 1."""

    dtype: DType
    body: Body | None
    steps: tuple[tuple[str, ...], ...]  # of C and the operands beside, by axis: "0", "1" or "" for any other stride

    @classmethod
    def of(cls, spec: GemmSpec) -> Epilogue:
        """That of a spec."""
        return cls(spec.dtype, spec.body, tuple(_steps(strides) for strides in (spec.c, *spec.beside)))

    @property
    def count(self) -> int:
        """How many operands lie beside the results."""
        return len(self.steps) - 1

    def parameters(self) -> str:
        """The kernel's parameters for C and the operands beside."""
        element = c_type(self.dtype)
        beside = [f"const {element}* __restrict__ beside{k}" for k in range(1, self.count + 1)]
        return ", ".join([f"{element}* __restrict__ C", *beside])

    def batch_lines(self) -> list[str]:
        """Lines that point `to0` at C and `to1`, ... at the operands beside, of batch (`outer`, `inner`)."""
        element, lines = c_type(self.dtype), []
        for k in range(self.count + 1):
            name, const = ("C", "") if k == 0 else (f"beside{k}", "const ")
            lines.append(f"{const}{element}* const to{k} = {self._place(k, name, {'outer': 'outer', 'inner': 'inner'})};")
        return lines

    def element(self, value: str, row: str, column: str) -> str:
        """A statement that stores what is computed of one result; row and column are 64-bit."""
        at = {"row": row, "column": column}
        operands = [f"*({self._place(k, f'to{k}', at)})" for k in range(1, self.count + 1)]
        result = f"finished({', '.join([value, *operands, 'error'])})"
        return f"*({self._place(0, 'to0', at)}) = {result};"

    def _place(self, k: int, base: str, at: dict[str, str]) -> str:
        """Address of an element: a stride of 0 or 1 is not multiplied by."""
        terms = [base]
        for axis, coordinate in at.items():
            step = self.steps[k][_AXES.index(axis)]
            if step != "0":
                terms.append(coordinate if step == "1" else f"{coordinate} * sizes.strides[{k}][{_AXES.index(axis)}]")
        return " + ".join(terms)

    def sizes(self) -> str:
        """The member of the struct of sizes that holds the strides."""
        return f"long long strides[{self.count + 1}][4];  // of C and what lies beside it: batch, batch, rows, columns"

    def function(self) -> str:
        """The text of `finished`."""
        accumulator, element = accumulator_type(self.dtype), c_type(self.dtype)
        parameters = ", ".join(
            [f"{accumulator} x0", *(f"{element} x{k}" for k in range(1, self.count + 1)), "long long* error"]
        )
        head = f"__device__ __forceinline__ {element} finished({parameters}) {{"
        if self.body is None:
            if self.dtype.kind == "f":
                stored = cast_expression(compute_dtype(self.dtype), self.dtype, "x0")
            else:
                stored = f"({element})x0"
            return f"{head}\n    return {stored};\n}}"
        lines, result = _body_lines(self.body)
        kept = cast_expression(self.body.body[self.body.value].dtype, self.dtype, result)
        if self._is_result(self.body.value):
            kept = cast_expression(compute_dtype(self.dtype), self.dtype, "x0")
        return "\n".join([head, *(f"    {line}" for line in lines), f"    return {kept};", "}"])

    def _is_result(self, position: int) -> bool:
        assert self.body is not None
        instr = self.body.body[position]
        return instr.kind is Kind.LOAD and instr.index == 0


def _body_lines(body: Body) -> tuple[list[str], str]:
    """A body as lines of C++, and the name of its value. The result itself is in the compute dtype from the start."""
    lines: list[str] = []
    known: dict[int, tuple[str, DType]] = {}
    for position, instr in enumerate(body.body):
        args = [known[a][0] for a in instr.args]
        if instr.kind is Kind.LOAD:
            known[position] = f"x{instr.index}", compute_dtype(instr.dtype) if instr.index == 0 else instr.dtype
            continue
        if instr.kind is Kind.CAST and known[instr.args[0]][1] is instr.dtype:
            known[position] = known[instr.args[0]]
            continue
        if instr.kind is Kind.CONST:
            assert instr.value is not None
            expression = literal(instr.dtype, instr.value)
        elif instr.kind is Kind.CAST:
            expression = cast_expression(known[instr.args[0]][1], instr.dtype, args[0])
        elif instr.kind is Kind.APPLY:
            assert instr.fn is not None
            expression = apply_expression(instr.fn, known[instr.args[-1]][1], args)
        else:
            raise NotImplementedError(f"a product computes no {instr.kind.value} of its results on CUDA")
        lines.append(f"const {c_type(instr.dtype)} v{position} = {expression};")
        known[position] = f"v{position}", instr.dtype
    return lines, known[body.value][0]


def _steps(strides: Strides) -> tuple[str, ...]:
    return tuple(str(stride) if stride in (0, 1) else "" for stride in strides)


def stride_words(spec: GemmSpec) -> list[int]:
    """The words of `Epilogue.sizes`."""
    return [stride for strides in (spec.c, *spec.beside) for stride in strides]


