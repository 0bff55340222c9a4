"""What may be applied to a tile of results before it is stored.

An epilogue is named by joined words, `bias` first: `bias`, `relu`, `bias_relu`. The bias row is where the sums start,
so it costs next to nothing; the function is emitted on the registers that hold the tile. Adding an entry to `FUNCTIONS`
makes a new function available to every kernel of the matrix multiplication.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_vectors import Vectors

# (function being written, its vectors, LLVM vector type, a vector of results) -> the vector to store
Emit = Callable[[Function, Vectors, str, Value], str]


def relu(f: Function, vectors: Vectors, kind: str, x: Value) -> str:
    """max(x, 0), NaN kept."""
    compare = "fcmp ogt" if vectors.is_float else "icmp sgt"
    if vectors.dtype.kind == "u":
        return str(x)
    negative = f.value(f"{compare} {kind} zeroinitializer, {x}")
    lanes = kind[1:].split(" ", 1)[0]
    return f.value(f"select <{lanes} x i1> {negative}, {kind} zeroinitializer, {kind} {x}")


FUNCTIONS: dict[str, Emit] = {"relu": relu}


def parse(epilogue: str | None) -> tuple[bool, str]:
    """(has a bias, name of the function or '') of an epilogue's name.

    Raises:
        NotImplementedError: no such epilogue.
    """
    bias = epilogue is not None and (epilogue == "bias" or epilogue.startswith("bias_"))
    rest = (epilogue or "").removeprefix("bias").removeprefix("_") if bias else (epilogue or "")
    if rest and rest not in FUNCTIONS:
        known = ", ".join(["bias", *FUNCTIONS, *(f"bias_{name}" for name in FUNCTIONS)])
        raise NotImplementedError(f"matrix multiplication has no epilogue {epilogue!r}; it has {known}")
    return bias, rest


def apply(f: Function, vectors: Vectors, name: str, values: list[Value], kind: str | None = None) -> list[Value]:
    """The function `name` ('' for none) on a list of vectors."""
    if not name:
        return values
    emit = FUNCTIONS[name]
    return [emit(f, vectors, kind or vectors.type, value) for value in values]
