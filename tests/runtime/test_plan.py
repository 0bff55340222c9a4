"""Plans: temporaries, several steps, updates over inputs, errors."""

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.runtime import profiler
from tensorsmith.runtime.arena import Arena
from tensorsmith.runtime.plan import build_plan
from tensorsmith.scalar import functions as f
from tensorsmith.targets.reference import interpret


class Buffers:
    """Float32 arrays as a plan's inputs, and new arrays as its outputs."""

    def __init__(self, plan, arrays):
        self.plan = plan
        self.arrays = [np.array(a, np.float32) for a in arrays]
        self.new = [np.zeros(max(n // 4, 1), np.float32) for n in plan.new_bytes]

    def run(self):
        words = [ts.from_numpy(self.arrays[i]).ptr for i in self.plan.tensor_inputs]
        self.plan.run(words + [ts.from_numpy(n).ptr for n in self.new])
        return [self.output(k) for k in range(len(self.plan.outputs))]

    def output(self, k):
        output = self.plan.outputs[k]
        memory = self.new[output.buffer] if output.input is None else self.arrays[output.input].reshape(-1)
        seen = output.strided
        return np.lib.stride_tricks.as_strided(memory[seen.offset :], seen.shape, [4 * s for s in seen.strides]).copy()


def places(graph):
    return [Strided(n.shape, contiguous_strides(n.shape)) for n in graph.inputs]


# --- temporaries -------------------------------------------------------------------------------------------------------


def test_temporaries_take_the_place_of_dead_ones():
    graph = Graph()
    x = graph.input((64, 64), ts.float32)
    y = x
    for _ in range(12):
        y = build.matmul(y, x) * 0.1
        y = build.reduce(y, "max", (0,), keepdim=True) + y
    graph.outputs = (y,)
    plan = build_plan(graph, places(graph))
    assert len(plan.steps) >= 24
    assert plan.workspace_bytes <= 4 * (64 * 64 * 4 + 256)  # not one buffer a step
    array = np.random.default_rng(0).random((64, 64), np.float32) * 0.1
    np.testing.assert_allclose(Buffers(plan, [array]).run()[0], interpret(graph, [array])[0], rtol=1e-4)


@pytest.mark.parametrize("reuse", [True, False])
def test_live_temporaries_never_overlap(reuse):
    random = np.random.default_rng(0)
    arena, live, everything = Arena(reuse), [], []
    for step in range(600):
        if live and random.random() < 0.48:
            arena.give(live.pop(random.integers(len(live))), step)
        else:
            live.append(arena.take(int(random.integers(1, 5000)), step))
            everything.append(live[-1])
    arena.solve(600)
    for i, a in enumerate(everything):
        assert a.offset % 64 == 0 and a.offset + a.size <= arena.peak
        for b in everything[:i]:
            if a.first <= b.last and b.first <= a.last:
                assert a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
    assert arena.bound <= arena.peak <= (1.15 * arena.bound if reuse else arena.total)
    assert reuse or arena.peak == arena.total == arena.bound


def test_what_nobody_touches_lies_behind_all_that_is_alive():
    random = np.random.default_rng(1)
    arena, live, everything = Arena(), [], []
    for step in range(300):
        if live and random.random() < 0.48:
            arena.give(live.pop(random.integers(len(live))), step)
        else:
            live.append(arena.take(int(random.integers(1, 5000)), step))
            everything.append(live[-1])
        if random.random() < 0.2:
            everything.append(arena.take(int(random.integers(1, 3000)), step, int(random.integers(1, 90000))))
            arena.give(everything[-1], step)
    arena.solve(300)
    for i, a in enumerate(everything):
        assert a.offset % 64 == 0 and a.offset + a.size <= arena.peak and a.end <= arena.extent
        for b in everything[:i]:
            if a.first <= b.last and b.first <= a.last:
                assert a.end <= b.offset or b.end <= a.offset
    assert arena.bound <= arena.peak <= 1.2 * arena.bound < arena.extent


def test_results_lend_their_memory_until_they_are_written():
    arena, large = Arena(), 10 << 20
    parts = [arena.take(large, 0), arena.take(large, 1), arena.take(large, 2)]
    for part, last in zip(parts, (9, 4, 3)):
        arena.give(part, last)
    arena.lend("early", 4 * large, 0, 1)
    arena.lend("late", large, 0, 5)
    arena.solve(10)
    assert [part.owner for part in parts] == [None, "late", None]
    assert arena.peak == arena.bound == parts[0].size + parts[2].size


def test_a_plan_whose_results_lend_memory_is_right(monkeypatch):
    graph = Graph()
    x = graph.input((1024, 1024), ts.float32)
    kept = [x]
    for _ in range(6):
        kept.append(f.tanh(build.matmul(kept[-1], x)))
    total = kept[0]
    for value in kept[1:]:
        total = build.matmul(total, value) * 0.01
    graph.outputs = (total, *(build.matmul(total, value) for value in kept[:3]))
    plan = build_plan(graph, places(graph))
    monkeypatch.setattr("tensorsmith.runtime.arena.LEAST_LENT", 1 << 40)
    apart = build_plan(graph, places(graph))
    assert plan.memory.bound < apart.memory.bound
    array = np.random.default_rng(0).standard_normal((1024, 1024), np.float32) * 0.03
    for one, other in zip(Buffers(plan, [array]).run(), Buffers(apart, [array]).run()):
        np.testing.assert_array_equal(one, other)


def test_scratch_space_of_workers_that_do_not_exist_is_no_memory():
    def convolved(x, w):
        return ts.nn.functional.conv2d(ts.nn.functional.conv2d(x, w, padding=1), w, padding=1)

    compiled = ts.compile(convolved)
    x, w = ts.randn(2, 64, 56, 56), ts.randn(64, 64, 3, 3)
    result = compiled(x, w)
    plan = compiled.plans[0].plan
    assert any("winograd" in step.name for step in plan.steps)
    assert plan.memory.temporaries < plan.workspace_bytes / 2
    assert ts.allclose(result, convolved(x, w), rtol=1e-4, atol=1e-3)


def test_the_largest_are_placed_first_where_that_needs_less():
    arena = Arena()
    small, large = arena.take(1000, 0), arena.take(4000, 0)
    arena.give(small, 0), arena.give(large, 1)
    middle = arena.take(2000, 1)
    arena.give(middle, 2)
    last = arena.take(3000, 2)
    arena.give(last, 2)
    arena.solve(2)
    assert arena.peak == arena.bound


def test_a_result_takes_the_memory_of_the_temporary_it_is_made_of():
    graph = Graph()
    x = graph.input((64, 64), ts.float32)
    y = x
    for _ in range(3):
        y = build.transpose(f.relu(build.matmul(y, y)), 0, 1) + y
    graph.outputs = (build.matmul(y, y),)
    plans = [build_plan(graph, places(graph), left_out=off) for off in ((), ("reuse",))]
    memory = plans[0].memory
    assert memory.reused and memory.temporaries < plans[1].memory.temporaries == plans[1].memory.without_reuse
    assert memory.bound <= memory.temporaries and str(memory).startswith("temporaries ")
    array = np.random.default_rng(0).random((64, 64), np.float32) * 0.1
    results = [Buffers(plan, [array]).run()[0] for plan in plans]
    assert np.array_equal(*results)


def test_a_plan_runs_again_and_within_itself():
    graph = Graph()
    x = graph.input((5, 5), ts.float32)
    graph.outputs = (build.matmul(build.matmul(x, x), x),)
    plan = build_plan(graph, places(graph))
    assert plan.workspace_bytes
    array = np.random.default_rng(0).random((5, 5), np.float32)
    for _ in range(3):
        np.testing.assert_allclose(Buffers(plan, [array]).run()[0], array @ array @ array, rtol=1e-5)


def test_profiled_runs_compute_the_same():
    x = ts.rand(40, 30)
    expected = (x @ x.t()).softmax(1)
    with profiler.profile() as events:
        found = (x @ x.t()).softmax(1)
    rows = events.rows
    assert np.array_equal(found.numpy(), expected.numpy())
    assert {name.split(":")[0] for name in rows} >= {"matmul", "softmax"}
    assert all(row.calls == 1 and row.seconds > 0 for row in rows.values())


# --- updates: outputs that replace inputs ------------------------------------------------------------------------------


def apply_updates(graph, updates, arrays):
    """The last values of all inputs and the outputs, by a plan with updates and by the reference."""
    required = {k: places(graph)[i] for k, i in updates.items()}
    plan = build_plan(graph, places(graph), required, updates)
    buffers = Buffers(plan, arrays)
    found = buffers.run()
    expected = interpret(graph, [np.array(a, np.float32) for a in arrays])
    for k, right in enumerate(expected):
        np.testing.assert_allclose(found[k], right, rtol=1e-5, err_msg=f"output {k}")
    for k, i in updates.items():
        np.testing.assert_allclose(buffers.arrays[i], expected[k], rtol=1e-5, err_msg=f"input {i}")
    return plan


def overwritten(plan, k=0):
    assert plan.outputs[k].input is not None
    return plan.memory.in_place > 0


A = np.arange(12, dtype=np.float32).reshape(3, 4) / 7 - 1
B = np.arange(12, dtype=np.float32)[::-1].reshape(3, 4) / 5


def two_inputs():
    graph = Graph()
    return graph, graph.input((3, 4), ts.float32), graph.input((3, 4), ts.float32)


def test_an_elementwise_update_is_written_in_place():
    graph, p, g = two_inputs()
    graph.outputs = (p - g * 0.1,)
    assert overwritten(apply_updates(graph, {0: 0}, [A, B]))


def test_two_updates_of_one_kernel():
    graph, p, g = two_inputs()
    momentum = g * 0.9 + p
    graph.outputs = (p - momentum, momentum)
    apply_updates(graph, {0: 0, 1: 1}, [A, B])


def test_swapped_inputs():
    graph, p, g = two_inputs()
    graph.outputs = (g + 0.0, p + 0.0)
    apply_updates(graph, {0: 0, 1: 1}, [A, B])


def test_one_value_for_two_inputs():
    graph, p, g = two_inputs()
    graph.outputs = (p + g, f.exp(p + g))
    apply_updates(graph, {0: 0, 1: 1}, [A, B])


def test_a_shifted_read_is_not_written_over():
    graph, p, _ = two_inputs()
    rolled = build.concat([build.slice_(p, 0, 1, 2), build.slice_(p, 0, 0, 1)], 0)
    graph.outputs = (rolled,)
    apply_updates(graph, {0: 0}, [A, B])
    graph, p, _ = two_inputs()
    graph.outputs = (build.flip(p, (0,)) + p,)
    assert not overwritten(apply_updates(graph, {0: 0}, [A, B]))


def test_a_transposed_read_is_not_written_over():
    graph = Graph()
    p = graph.input((4, 4), ts.float32)
    graph.outputs = (p + build.transpose(p, 0, 1),)
    assert not overwritten(apply_updates(graph, {0: 0}, [np.arange(16).reshape(4, 4)]))


def test_a_row_read_by_every_row_is_not_written_over():
    graph, p, g = two_inputs()
    first = build.broadcast_to(build.slice_(p, 0, 0, 1), (3, 4))
    graph.outputs = (p * first + g,)
    assert not overwritten(apply_updates(graph, {0: 0}, [A, B]))


def test_a_later_reader_keeps_the_old_value():
    graph, p, g = two_inputs()
    updated = p - g
    graph.outputs = (updated, build.matmul(build.transpose(p, 0, 1), updated))
    apply_updates(graph, {0: 0}, [A, B])


def test_an_old_value_that_is_returned_stays():
    graph, p, g = two_inputs()
    graph.outputs = (p - g, build.transpose(p, 0, 1))
    assert not overwritten(apply_updates(graph, {0: 0}, [A, B]))


def test_a_reduction_of_what_it_replaces():
    graph, p, _ = two_inputs()
    graph.outputs = (p / build.reduce(p, "sum", (1,), keepdim=True),)
    apply_updates(graph, {0: 0}, [A + 2, B])
    graph, p, g = two_inputs()
    graph.outputs = (p - build.reduce(p * g, "sum", (0,), keepdim=True), build.reduce(p, "max", (0,)))
    apply_updates(graph, {0: 0}, [A, B])


def test_a_written_product():
    graph = Graph()
    p, q = graph.input((4, 4), ts.float32), graph.input((4, 4), ts.float32)
    graph.outputs = (build.matmul(p, q),)
    apply_updates(graph, {0: 0}, [np.eye(4) * 2, np.arange(16).reshape(4, 4)])


@pytest.mark.parametrize("seed", range(40))
def test_random_updates(seed):
    """Small random graphs in which every input is replaced by something."""
    random = np.random.default_rng(seed)
    graph = Graph()
    inputs = [graph.input((4, 4), ts.float32) for _ in range(3)]
    values = list(inputs)
    for _ in range(int(random.integers(3, 9))):
        a, b = (values[i] for i in random.integers(len(values), size=2))
        kind = random.integers(8)
        values.append(
            a + b if kind == 0 else a * 0.5 if kind == 1 else build.transpose(a, 0, 1) if kind == 2
            else f.tanh(a) if kind == 3 else build.matmul(a, b) * 0.1 if kind == 4
            else build.broadcast_to(build.reduce(a, "sum", (1,), keepdim=True), (4, 4)) * 0.2 if kind == 5
            else build.flip(a, (1,)) if kind == 6 else f.maximum(a, b)
        )  # fmt: skip
    chosen = [values[int(i)] for i in random.integers(3, len(values), size=3)]
    graph.outputs = tuple(graph.add(Primitive.CAST, (v * (1.0 + k),), dtype=ts.float32) for k, v in enumerate(chosen))
    apply_updates(graph, {0: 0, 1: 1, 2: 2}, [random.uniform(-1, 1, (4, 4)) for _ in inputs])


# --- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_division_of_integers_by_zero(name):
    x, y = ts.arange(6), ts.tensor([1, 2, 0, 1, 1, 1])
    with pytest.raises(RuntimeError, match=f"ZeroDivisionError: .*{name}"):
        getattr(x, name)(y)
    with pytest.raises(RuntimeError, match=f"ZeroDivisionError: .*{name}"):
        getattr(x, name)(0)
    if hasattr(x, name + "_"):
        with pytest.raises(RuntimeError, match=f"ZeroDivisionError: .*{name}"):
            getattr(x, name + "_")(y)
    assert x.tolist() == [0, 1, 2, 3, 4, 5] and x._version == 0
    assert getattr(x, name)(ts.ones(6, dtype=ts.int64)).tolist() is not None  # and the next call works


@pytest.mark.parametrize("index, shown", [(9, "9"), (-5, "-5")])
def test_an_index_out_of_range_says_operator_index_and_size(index, shown):
    x = ts.arange(4).float()
    bad = ts.tensor([0, 1, index])
    kept = x.tolist()
    for call in (lambda: x[bad], lambda: x.gather(0, bad), lambda: x.index_select(0, bad)):
        with pytest.raises((IndexError, RuntimeError), match=rf"{shown}.*out of (bounds|range).*4"):
            call()
    for write in (lambda: x.__setitem__(bad, 1.0), lambda: x.scatter_(0, bad, ts.ones(3)),
                  lambda: x.index_add_(0, bad, ts.ones(3)), lambda: x.index_fill_(0, bad, 2.0)):  # fmt: skip
        with pytest.raises((IndexError, RuntimeError), match=rf"{shown}.*out of (bounds|range).*4"):
            write()
        assert x.tolist() == kept and x._version == 0


def test_an_error_in_the_middle_of_a_plan_names_its_step():
    with pytest.raises(IndexError, match="7.*out of bounds"):
        ts.nn.functional.cross_entropy(ts.zeros(2, 3), ts.tensor([0, 7]))
    assert ts.nn.functional.cross_entropy(ts.zeros(2, 3), ts.tensor([0, 2])).item() == pytest.approx(np.log(3))


def test_memory_that_cannot_be_had():
    with pytest.raises(MemoryError, match="bytes"):
        ts.empty(1 << 55)
    assert ts.zeros(3).tolist() == [0, 0, 0]
