"""A kernel that is written around the tiles of the matrix product: its words, its vectors and the pieces it calls.

Attention and recurrent layers are such kernels: products on tiles, packed as the matrix product packs, and between them loops
over rows in vectors. Every extent and stride is a word of the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cpu.body import ARGUMENTS
from tensorsmith.targets.cpu.build import Function, Value, module_text
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.context import Context
from tensorsmith.targets.cpu.gemm_kernels import Kernels
from tensorsmith.targets.cpu.lower import CompiledKernel
from tensorsmith.targets.cpu.machine import Machine
from tensorsmith.targets.cpu.scalars import RENDERINGS
from tensorsmith.targets.cpu.vector import Lanes, element_of


class TiledKernel:
    """A kernel while it is written.

    launch, words: names of what a launch gives (addresses) and of the constant words after it; those in `numbers` are doubles.
    The words `pack_transposed` and `pack_rows` are addresses of the packing functions, `space` the bytes of a chunk's
    workspace.
    """

    def __init__(
        self, pieces: Kernels, name: str, launch: Sequence[str], words: Sequence[str], numbers: Sequence[str] = ()
    ) -> None:
        self.pieces = pieces
        self.dtype = pieces.dtype
        self.f = f = Function(name, ARGUMENTS)
        self.lanes = Lanes(f, pieces.lanes, pieces.machine)
        self.element = element_of(self.dtype)
        self.vector = self.lanes.type(self.element)
        self.size = self.dtype.itemsize
        self.at = {each: f.word("%args", k, "ptr") for k, each in enumerate(launch)}
        self.first_word = len(launch) + 1
        self.w = {
            each: f.word("%args", self.first_word + k, "double" if each in numbers else "i64") for k, each in enumerate(words)
        }
        self.context = Context(self.lanes, f.word("%args", len(launch), "ptr"))
        self.zero = self.lanes.constant(self.element, 0.0)
        self.one = self.lanes.constant(self.element, 1.0)
        self.workspace = f.offset(self.at["workspace"], f.mul(f.value("zext i32 %chunk to i64"), self.w["space"]))

    def apply(self, fn: Fn, *values: str) -> str:
        """A scalar function of vectors."""
        return RENDERINGS[fn](self.context, self.dtype, values)

    def op(self, name: str, a: str, b: str) -> str:
        """A binary instruction of vectors."""
        return self.lanes.op(name, self.element, a, b)

    def splat_from(self, pointer: str) -> str:
        """One element of memory in every lane."""
        return self.lanes.splat(self.element, self.f.load(self.element, pointer, self.size))

    def pack(
        self, transposed: bool, source: str, target: str, depth: Value, stride: Value, columns: Value, slot: Value
    ) -> None:
        """Panels of `columns` columns: of rows, or of the columns of a transposed operand, `stride` bytes apart."""
        f = self.f
        function = f.value(f"inttoptr i64 {self.w['pack_transposed' if transposed else 'pack_rows']} to ptr")
        f.do(f"call void {function}(ptr {source}, ptr {target}, i64 {depth}, i64 {stride}, i64 {columns}, i64 {slot})")

    def along(self, width: Value, carried: Sequence[str], step: Callable[..., list[str]]) -> list[Value]:
        """Vectors along a row, the last one masked: `step(column, mask, *carried)` gives the next values."""
        f, count = self.f, self.lanes.count
        whole = f.round_down(width, count)
        with f.loop(0, whole, count, [(self.vector, value) for value in carried]) as loop:
            loop.next = list(step(loop.index, None, *loop.carried))
        with f.loop(whole, width, count, [(self.vector, value) for value in loop.out]) as rest:
            rest.next = list(step(rest.index, self.lanes.below(f.sub(width, rest.index)), *rest.carried))
        return rest.out


def compile_with_product(product: Function, kernel: Function, launch_words: int, machine: Machine) -> CompiledKernel:
    """A kernel and the product on tiles that it calls, compiled as one module."""
    text = module_text([product, kernel])
    (address,) = compile_functions(text, [kernel.name], machine)
    return CompiledKernel(kernel.name, address, launch_words, text, kernel.structure)


def round_up(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple
