"""`ts.profiler`: events of operators, programs and kernels, their nesting, tables and traces."""

from __future__ import annotations

import json
import threading

import pytest

import tensorsmith as ts
from tensorsmith.runtime import profiler


def names(prof, category):
    return [event.name for event in prof.events() if event.category == category]


def test_operators_contain_their_kernels():
    x = ts.rand(24, 16)
    with ts.profiler.profile() as prof:
        (x @ x.t()).softmax(1)
    assert names(prof, "operator") == ["matmul", "softmax"]
    assert [name.split(":")[0] for name in names(prof, "kernel")] == ["matmul", "softmax"]
    for event in prof.events():
        assert 0 <= event.self_seconds <= event.seconds
    operator, kernel = prof.events()[:2]
    assert operator.start <= kernel.start and kernel.seconds <= operator.seconds
    assert operator.self_seconds == pytest.approx(operator.seconds - kernel.seconds)
    assert kernel.flops == 2 * 24 * 24 * 16
    assert not profiler.active


def test_compiled_programs_and_backward_are_events():
    weight = ts.ones(8, 4, requires_grad=True)
    step = ts.compile(lambda x: (x @ weight).tanh().sum())
    step(ts.ones(3, 8))
    with ts.profiler.profile() as prof:
        step(ts.ones(3, 8)).backward()
    assert any("compiled" in name for name in names(prof, "operator"))
    assert len(names(prof, "kernel")) >= 3
    assert weight.grad is not None


def test_names_of_the_user_enclose_what_runs_in_them():
    x = ts.rand(50)

    @ts.profiler.record_function("inner")
    def doubled():
        return x * 2

    with ts.profiler.profile() as prof, ts.profiler.record_function("outer"):
        doubled()
        doubled()
    found = {(entry.category, entry.key): entry for entry in prof.key_averages()}
    assert found["user", "inner"].count == 2 and found["operator", "mul"].count == 2
    outer, inner = found["user", "outer"], found["user", "inner"]
    assert outer.self_cpu_time_total == pytest.approx(outer.cpu_time_total - inner.cpu_time_total)
    total = sum(entry.self_cpu_time_total for entry in prof.key_averages())
    assert total == pytest.approx(outer.cpu_time_total)


def test_tables_are_sorted_and_cut():
    x = ts.rand(300, 300)
    with ts.profiler.profile() as prof:
        x @ x
        x + 1
    text = prof.key_averages().table(sort_by="count", row_limit=1)
    assert len(text.splitlines()) == 6 and "Self CPU time total" in text
    totals = {(e.category, e.key): e.cpu_time_total for e in prof.key_averages()}
    lines = [line.split() for line in prof.key_averages().table(sort_by="cpu_time_total").splitlines()[3:-2]]
    sorted_totals = [totals[line[1], line[0]] for line in lines]
    assert len(lines) == 4 and sorted_totals == sorted(totals.values(), reverse=True)
    with pytest.raises(ValueError, match="sort_by is one of .* not 'cuda_time'"):
        prof.key_averages().table(sort_by="cuda_time")


def test_traces_are_what_chrome_reads(tmp_path):
    def other():
        ts.rand(20).exp()

    with ts.profiler.profile() as prof:
        ts.rand(10).exp()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    prof.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["cat"] for event in spans} == {"operator", "kernel"}
    assert len({event["tid"] for event in spans}) == 2
    assert min(event["ts"] for event in spans) == 0 and all(event["dur"] >= 0 for event in spans)


def test_profiles_nest_and_tell_of_their_end():
    seen = []
    x = ts.ones(4)
    outer = ts.profiler.profile(on_trace_ready=seen.append)
    with outer:
        x + 1
        with ts.profiler.profile() as inner:
            x * 3
        x - 1
    assert names(outer, "operator") == ["add", "sub"] and names(inner, "operator") == ["mul"]
    assert seen == [outer]
    with pytest.raises(RuntimeError, match="was not started"):
        outer.stop()


@pytest.mark.parametrize("skipped", [{}, {"skip_first": 2}, {"skip_first": 1, "skip_first_wait": 1}, {"repeat": 2}])
def test_a_schedule_is_pytorchs(skipped):
    import torch

    plan = {"wait": 1, "warmup": 2, "active": 3, **skipped}
    ours, theirs = ts.profiler.schedule(**plan), torch.profiler.schedule(**plan)
    assert [ours(step).name for step in range(30)] == [theirs(step).name for step in range(30)]
    with pytest.raises(ValueError, match="active at least 1"):
        ts.profiler.schedule(wait=0, warmup=0, active=0)


def test_steps_are_recorded_by_the_schedule_and_each_cycle_is_handed_over(tmp_path):
    traces, write = [], ts.profiler.tensorboard_trace_handler(tmp_path, "worker")

    def ready(prof):
        traces.append([event.name for event in prof.events() if event.category != "kernel"])
        write(prof)

    plan = ts.profiler.schedule(wait=1, warmup=1, active=2)
    with ts.profiler.profile(activities=[ts.profiler.ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready) as prof:
        for _ in range(8):
            ts.ones(3).exp()
            prof.step()
    step = ["exp"]
    seen = [[name for name in trace if name == "exp" or name.startswith("ProfilerStep")] for trace in traces]
    assert seen == [[f"ProfilerStep#{a}", *step, f"ProfilerStep#{a + 1}", *step] for a in (2, 6)]
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2 and all(file.name.startswith("worker.") for file in files)
    assert "traceEvents" in json.loads(files[0].read_text())


def test_what_a_profile_cannot_do_is_said():
    with pytest.raises(NotImplementedError, match="with_stack=True"):
        ts.profiler.profile(with_stack=True)
    with pytest.raises(ValueError, match="nothing but the CPU"):
        ts.profiler.profile(activities=[ts.profiler.ProfilerActivity.CUDA])
    with pytest.raises(RuntimeError, match="was not started"):
        ts.profiler.profile().step()


def test_workers_of_the_pool_are_threads_of_their_own(tmp_path):
    threads = ts.get_num_threads()
    x = ts.rand(1 << 20)
    ts.set_num_threads(2)
    try:
        expected = (x.exp() * x).tolist()[-3:]
        with ts.profiler.profile() as prof:
            for _ in range(20):  # a worker that wakes late may find nothing to do
                found = x.exp() * x
    finally:
        ts.set_num_threads(threads)
    assert found.tolist()[-3:] == expected
    parts = [event for event in prof.events() if event.category == "worker"]
    kernels = [event for event in prof.events() if event.category == "kernel"]
    assert parts and {event.thread for event in parts} == {-1} and all(event.chunks >= 1 for event in parts)
    for part in parts:  # each lies within a kernel of its name
        assert any(
            k.name == part.name and k.start <= part.start and part.start + part.seconds <= k.start + k.seconds + 1e-6
            for k in kernels
        )
    assert "worker" not in {entry.category for entry in prof.key_averages()}
    prof.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (row,) = [event["tid"] for event in events if event["ph"] == "M" and event["args"]["name"] == "pool worker 1"]
    assert len([event for event in events if event["ph"] == "X" and event["tid"] == row]) == len(parts)


def test_a_kernel_that_fails_under_a_profile_says_so():
    x, index = ts.rand(100_000), ts.arange(100_000)
    index[77_777] = 100_000
    with ts.profiler.profile(), pytest.raises(IndexError, match="100000 is out of bounds"):
        x[index]
