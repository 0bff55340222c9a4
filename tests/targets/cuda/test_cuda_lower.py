"""Launches of fused kernels: their words, arguments and geometry; no GPU is needed."""

import pytest

from tensorsmith.core.dtypes import float32, float64, int64
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.compile import compile_cubin
from tensorsmith.targets.cuda.kernel import Constant, ErrorWord, Word
from tensorsmith.targets.cuda.lower import lower


def scaled_sum(rows: int, length: int) -> KernelSpec:
    """sum(x * p) along the rows."""
    body = (
        Instr(Kind.LOAD, float32, index=0), Instr(Kind.PARAM, float32, index=0),
        Instr(Kind.APPLY, float32, (0, 1), fn=Fn.MUL), Instr(Kind.REDUCE, float32, (2,), reduction="sum"),
    )  # fmt: skip
    store = Store(Operand(float32, (1, 0)), 3, row=True)
    return KernelSpec((rows, length), 1, (Operand(float32, (length, 1)),), body, (store,), (float64,), "scaled_sum")


@pytest.mark.parametrize("rows, length", [(1000, 8), (1000, 5000)])
def test_words_are_operands_then_scalars(rows, length):
    lowered = lower(scaled_sum(rows, length))
    assert lowered.words == 3
    for launch in lowered.launches:
        assert ErrorWord() in launch.arguments
        assert any(isinstance(argument, Constant) for argument in launch.arguments)
        indices = [argument.index for argument in launch.arguments if isinstance(argument, Word)]
        assert indices == sorted(indices) and max(indices) < lowered.words + len(lowered.scratch)
        assert compile_cubin(launch.source, launch.name)


def test_bytes_and_operations_are_counted_once():
    lowered = lower(scaled_sum(1000, 500))
    assert lowered.bytes_moved == 4 * (1000 * 500 + 1000)
    assert lowered.flops == 2 * 1000 * 500


def test_a_coordinate_moves_no_memory():
    body = (Instr(Kind.INDEX, int64, index=0),)
    lowered = lower(KernelSpec((100,), None, (), body, (Store(Operand(int64, (1,)), 0),), name="arange"))
    assert (lowered.words, lowered.bytes_moved, lowered.flops) == (1, 800, 0)
