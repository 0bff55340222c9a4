"""What may be applied to a tile of results before it is stored.

An epilogue is named by joined words, `bias` first: `bias`, `relu`, `bias_relu`. The bias row is where the sums start,
so it costs next to nothing; the function is emitted on the registers that hold the tile. Adding an entry to `FUNCTIONS`
makes a new function available to every kernel of the matrix multiplication.

Any other pointwise computation is a `Body`: instructions of a fused kernel on the result and on operands in memory, such as
the scale of a channel or what a residual connection adds. It computes bit for bit what a kernel of its own would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorsmith.kernels.epilogue import COLUMN, ONE, WHOLE, Body
from tensorsmith.targets.cpu.body import Values
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.context import Context
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors
from tensorsmith.targets.cpu.vector import Lanes


class Extras:
    """Where the operands of a body lie, read from the table of addresses that `%extras` points at (EXTRAS)."""

    def __init__(self, f: Function, vectors: Vectors, body: Body, column: Value, table: str = "%extras") -> None:
        self.f, self.vectors, self.body = f, vectors, body
        start = f.value(f"ptrtoint ptr {f.load('ptr', table, 8)} to i64")
        self.places: list[Value] = []  # of a column's first element, or how far an operand lies behind C
        for k, kind in enumerate(body.kinds, 1):
            address = f.load("ptr", f.offset(table, 8 * k), 8)
            if kind == WHOLE:
                self.places.append(f.sub(f.value(f"ptrtoint ptr {address} to i64"), start))
            else:
                self.places.append(address if kind == ONE else f.offset(address, column))

    def apply(self, cells: Sequence[tuple[Value, str, Value, Mask | None]]) -> list[str]:
        """The body at some vectors of results: (sums, their address in C, bytes from the column to theirs, mask) of each."""
        f, vectors, body = self.f, self.vectors, self.body
        assert vectors.machine is not None
        lanes = Lanes(f, vectors.lanes, vectors.machine)
        shared: dict[tuple[int, Value], str] = {}
        results = []
        for value, address, along, mask in cells:

            def load(
                index: int, value: Value = value, address: str = address, along: Value = along, mask: Mask | None = mask
            ) -> str:
                if index == 0:
                    return str(value)
                kind, place = self.body.kinds[index - 1], self.places[index - 1]
                if kind == WHOLE:
                    return vectors.load(f, f.offset(address, place), mask)
                key = index, along if kind == COLUMN else 0
                if key not in shared:
                    shared[key] = (
                        vectors.load(f, f.offset(str(place), along), mask) if kind == COLUMN
                        else vectors.load_splat(f, str(place))
                    )  # fmt: skip
                return shared[key]

            values = Values(body, Context(lanes), load, _no_coordinate, {})
            results.append(values.of(body.value))
        return results


def _no_coordinate(index: int) -> str:
    raise AssertionError("an epilogue has no coordinates")

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


def apply(f: Function, vectors: Vectors, name: str | Body, values: list[Value], kind: str | None = None) -> list[Value]:
    """The function `name` ('' for none) on a list of vectors."""
    if not name:
        return values
    assert isinstance(name, str)
    emit = FUNCTIONS[name]
    return [emit(f, vectors, kind or vectors.type, value) for value in values]
