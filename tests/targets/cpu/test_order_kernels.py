"""Kernels of ranks and of searches on their own: which way they go, what they are compiled of, what they refuse."""

import pytest

from tensorsmith.core import dtypes
from tensorsmith.kernels.spec_order import RankSpec, SearchSpec
from tensorsmith.targets.cpu.compiled_once import CompiledOnce
from tensorsmith.targets.cpu.compiler import emit_object
from tensorsmith.targets.cpu.machine import Machine
from tensorsmith.targets.cpu.ranks import lower_ranks
from tensorsmith.targets.cpu.search import lower_search


def ranks(extent, start, length, dtype=dtypes.float32, rows=10):
    return RankSpec(dtype, True, (rows, extent), 1, start, length, (extent, 1), (length, 1))


def test_the_way_follows_the_ranks():
    def way(*arguments):
        return lower_ranks(ranks(*arguments)).schedule.rpartition("_")[2]

    assert way(4096, 0, 4096) == "all"
    assert way(4096, 0, 10) == "least"
    assert way(4096, 0, 2000) == "some"
    assert way(4096, 2000, 1) == "some"
    assert way(32, 0, 2) == "all"  # compared with each other


def test_one_kernel_serves_all_sizes():
    a, b = lower_ranks(ranks(4096, 0, 10)), lower_ranks(ranks(1000, 0, 3, rows=7))
    assert a.function_address == b.function_address
    assert a.function_address != lower_ranks(ranks(4096, 0, 10, dtypes.int32)).function_address
    one, two = (lower_search(SearchSpec(dtypes.int64, True, n, (5,), (0,), (1,), (1,))) for n in (10, 1000))
    assert one.function_address == two.function_address


def test_ranks_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="no ranks 3 to 6 of 5"):
        ranks(5, 3, 3)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16, dtypes.uint8])
@pytest.mark.parametrize(("name", "cpu", "width"), [("generic", "x86-64", 16), ("avx512", "skylake-avx512", 64)])
def test_other_widths_compile(monkeypatch, dtype, name, cpu, width):
    from tensorsmith.targets.cpu import ranks as module

    machine = Machine(name, cpu, "", width, 32, "x86_64-unknown-linux-gnu")
    monkeypatch.setattr(module, "compile_functions", lambda text, names, machine: [len(emit_object(text, machine))])
    monkeypatch.setattr(module, "_kernels", CompiledOnce())
    for spec in (ranks(4096, 0, 4096, dtype), ranks(4096, 0, 10, dtype), ranks(4096, 7, 10, dtype)):
        assert module.lower_ranks(spec, machine).function_address > 1000
