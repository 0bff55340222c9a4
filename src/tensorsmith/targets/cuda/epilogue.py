"""What a product or a convolution computes of a sum before it stores it, as lines of CUDA C++."""

from __future__ import annotations

from tensorsmith.core.dtypes import DType, compute_dtype
from tensorsmith.kernels.epilogue import Body
from tensorsmith.kernels.spec import Kind
from tensorsmith.targets.cuda.scalars import apply_expression, c_type, cast_expression, literal, memory_type


def finished_function(body: Body | None, dtype: DType, others: int) -> str:
    """The text of `finished(sum, other1, ..., error)`: what is stored of a sum, which is in the compute dtype."""
    total, element = c_type(compute_dtype(dtype)), memory_type(dtype)
    parameters = ", ".join([f"{total} x0", *(f"{element} x{k}" for k in range(1, others + 1)), "long long* error"])
    lines, value, given = ([], "x0", compute_dtype(dtype)) if body is None else body_lines(body, body.value)
    head = f"__device__ __forceinline__ {element} finished({parameters}) {{"
    return "\n".join([head, *(f"    {line}" for line in lines), f"    return {cast_expression(given, dtype, value)};", "}"])


def body_lines(body: Body, last: int) -> tuple[list[str], str, DType]:
    """The instructions up to `last` as lines of C++, the name of its value and its dtype.

    The sum itself is in the compute dtype from the start.
    """
    lines: list[str] = []
    known: list[tuple[str, DType]] = []
    for position, instr in enumerate(body.body[: last + 1]):
        args = [known[a][0] for a in instr.args]
        if instr.kind is Kind.LOAD:
            known.append((f"x{instr.index}", compute_dtype(instr.dtype) if instr.index == 0 else instr.dtype))
            continue
        if instr.kind is Kind.CAST and known[instr.args[0]][1] is instr.dtype:
            known.append(known[instr.args[0]])
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
            raise NotImplementedError(f"products and convolutions compute no {instr.kind.value} of their results on CUDA")
        lines.append(f"const {c_type(instr.dtype)} v{position} = {expression};")
        known.append((f"v{position}", instr.dtype))
    return lines, *known[last]
