"""What `ts.explain` says beyond text levels: decisions with their reasons, times, MLIR, the page, and TENSORSMITH_DEBUG."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest

import tensorsmith as ts
from tensorsmith.compile.page import layers
from tensorsmith.compile.source_lines import Line, carried
from tensorsmith.compile.timed import TimedStep, table
from tensorsmith.ir.graph import Primitive
from tensorsmith.passes.manager import optimise
from tensorsmith.runtime import roof as roofs
from tensorsmith.runtime.roof import Roof

F = ts.nn.functional
LIMIT = Roof(1e10, 1e11, 2)
TIMED = sys.modules["tensorsmith.compile.timed"]  # `ts.compile` is the function


def perceptron(x, w, v):
    hidden = (x @ w).relu()
    scores = hidden @ v
    return (scores * 2).softmax(1) * 1


@pytest.fixture(scope="module")
def explained():
    return ts.explain(perceptron, ts.ones(6, 5), ts.ones(5, 4), ts.ones(4, 3))


def why(function, *args):
    found = ts.explain(function, *args).forward_plan
    return {node.op: text for node, text in found.refusals}


def test_passes_name_the_rewrites_that_fired(explained):
    assert re.search(r"algebra: .*x \* 1 ×1", explained.passes())
    assert "convolutions without a kernel: nothing to do" in explained.passes()
    big = ts.explain(lambda x, w: F.conv2d(x, w), ts.ones(1, 8, 4, 4), ts.ones(8, 8, 1, 1))
    assert re.search(r"convolutions without a kernel: \d+ values became \d+", big.passes())
    assert "an operator's own program" in ts.explain(ts.softmax, ts.ones(4, 7), dim=1).passes()


def test_groups_say_what_they_compute_and_read(explained):
    text = explained.fusion()
    assert text.startswith("forward:\ngroup 1: matmul_relu: writes") and "gradient:\ngroup 1" in text
    assert len(explained.forward_plan.groups) == 3
    last = explained.forward_plan.groups[-1]
    assert {node.op for node in last.inside} >= {Primitive.REDUCE, Primitive.MAP}
    assert [step.title for step in last.steps] == [explained.forward_steps[-1].title]


def test_every_value_between_kernels_has_a_reason(explained):
    reasons = [text for _, text in explained.forward_plan.refusals]
    assert reasons == ["matmul is a step of its own and writes its result"] * 2
    x = ts.ones(40, 30)
    assert why(lambda x: x.exp() @ ts.ones(30, 2), x)[Primitive.MAP] == "matmul reads its operands from memory"
    assert why(lambda x: (x.exp().sum(0), x.exp().sum(1)), x)[Primitive.MAP] == "2 kernels would each compute it"
    reshaped = why(lambda x: x.sum(1, keepdim=True).exp() - x.sum(0, keepdim=True), x)
    assert "reduces over other points" in reshaped[Primitive.REDUCE] or "same points" in reshaped[Primitive.REDUCE]
    long = why(lambda x: _deep(x), x)
    assert set(long.values()) == {"the kernel would have more than 96 operations"}


def _deep(x):
    for number in range(70):
        x = (x * (number + 2.5)).sin()
    return x


# --- times ---------------------------------------------------------------------------------------------------------------


def test_every_step_is_timed(explained, monkeypatch):
    monkeypatch.setattr(TIMED, "roof", lambda again=False: LIMIT)
    steps = explained.times()
    assert [step.name for step in steps] == [step.title.split(" ")[0] for step in explained.forward_steps]
    assert all(step.seconds > 0 for step in steps)
    assert steps[0].flops == 2 * 6 * 5 * 4
    text = explained.text(["time"])
    assert text.count("of roof") == 2 and "roof of 2 threads: 10.0 GB/s from memory, more from a cache, 100 GFLOP/s" in text


def test_times_do_not_write_over_what_was_given(monkeypatch):
    monkeypatch.setattr(TIMED, "roof", lambda again=False: LIMIT)
    x, index = ts.ones(5), ts.tensor([4, 0, 2])
    found = ts.explain(lambda x, index: x.mul_(3)[index], x, index)
    assert found.times() and x.tolist() == [1.0] * 5
    found.operands = None  # random numbers, and zeros for indices
    assert found.times()


def test_the_roof_bounds_time_from_two_sides():
    assert LIMIT.least_seconds(10**10, 0) == 1.0 and LIMIT.bound(10**10, 10**9) == "memory"
    assert LIMIT.least_seconds(0, 10**11) == 1.0 and LIMIT.bound(10, 10**9) == "arithmetic"
    assert TimedStep("a", 2.0, 10**10, 0).of_roof(LIMIT) == 0.5
    lines = table([TimedStep("a", 2.0, 10**10, 10**9), TimedStep("b", 2.0, 0, 0)], LIMIT).splitlines()
    assert lines[1].split() == ["1", "a", "2000000.0", "50.0%", "5.0", "0.5", "50%", "memory"]
    assert lines[2].split() == ["2", "b", "2000000.0", "50.0%", "-", "-", "-", "-"]


def test_a_cache_has_a_roof_of_its_own():
    cached = Roof(10e9, 100e9, 2, ((1000, 40e9), (10_000, 20e9)))
    assert [cached.bandwidth(size) for size in (10, 1000, 1001, 10_000, 10_001)] == [40e9, 40e9, 20e9, 20e9, 10e9]


def test_the_roof_is_measured_once_and_kept_and_again_where_a_step_is_above_it(monkeypatch, tmp_path):
    from tensorsmith.targets.cpu.disk_cache import DiskCache

    monkeypatch.setattr(roofs, "disk_cache", lambda: DiskCache(tmp_path))
    monkeypatch.setattr(roofs, "ELEMENTS", 1 << 12)
    monkeypatch.setattr(roofs, "STEPS", 1000)
    monkeypatch.setattr(roofs, "SECONDS", 0.001)
    monkeypatch.setattr(roofs, "_roofs", {})
    first = roofs.roof()
    assert first.bytes_per_second > 1e6 and first.flops_per_second > 1e6 and len(first.cached) == len(roofs.SMALLER)
    roofs._roofs.clear()
    with monkeypatch.context() as patch:
        patch.setattr(roofs, "_bandwidth", lambda elements: pytest.fail("measured again"))
        assert roofs.roof() == first
    monkeypatch.setattr(roofs, "_peak", lambda threads: 1e15)
    monkeypatch.setattr(roofs, "_bandwidth", lambda elements: 1.0)
    table([TimedStep("fast", 1e-9, 0, 10**9)])  # 1e18 operations a second: what was kept is too low
    again = roofs.roof()
    assert again.flops_per_second == 1e15 and again.bytes_per_second == first.bytes_per_second


# --- MLIR ----------------------------------------------------------------------------------------------------------------

TYPE = r"tensor<(?:\d+x)*(?:i1|i\d+|ui\d+|f\d+|bf16|complex<f\d+>)>"
TYPES = rf"\((?:{TYPE}(?:, {TYPE})*)?\)"
OPERATION = re.compile(rf'    (%\d+) = "[a-z_]+\.[a-z_0-9]+"\(((?:%\w+(?:, %\w+)*)?)\)(?: {{.*}})? : ({TYPES}) -> ({TYPE})')


def check_mlir(text):
    """The grammar of what is written, definitions before uses, and types that agree."""
    lines = text.splitlines()
    assert lines[:2] == ['"builtin.module"() ({', '  "func.func"() ({'] and lines[-1] == "}) : () -> ()"
    types = dict(re.findall(rf"(%arg\d+): ({TYPE})", lines[2]))
    for line in lines[3:-3]:
        result, operands, given, type_ = OPERATION.fullmatch(line).groups()
        assert [types[name] for name in filter(None, operands.split(", "))] == re.findall(TYPE, given)
        assert result not in types
        types[result] = type_
    returned, given = re.fullmatch(rf'    "func.return"\((.*)\) : ({TYPES}) -> \(\)', lines[-3]).groups()
    assert [types[name] for name in returned.split(", ")] == re.findall(TYPE, given)
    assert re.search(r'function_type = .*, sym_name = "main"', lines[-2])


def test_graphs_are_written_as_mlir(explained):
    text = explained.mlir()
    check_mlir(text)
    assert '"tensorsmith.matmul"(%arg0, %arg1)' in text and '"stablehlo.exponential"' in text and 'kind = "max"' in text
    check_mlir(ts.explain(lambda x: (x.to(ts.bfloat16) * float("nan"), x > 0, x.to(ts.uint8)), ts.ones(4)).mlir())
    mixed = ts.explain(lambda x: (x * (2 - 1j)).abs() + float("-inf"), ts.ones(4, dtype=ts.complex64)).mlir()
    check_mlir(mixed)
    assert re.search(r"dense<\(2.0, -1.0\)> : tensor<complex<f\d+>>", mixed)
    assert re.search(r"dense<0xFF800000> : tensor<f32>|dense<0xFFF0000000000000> : tensor<f64>", mixed)
    check_mlir(ts.explain(lambda x: x.flip(1)[:, ::2].t().cumsum(0), ts.ones(3, 6)).mlir())


# --- the page, and lines of the program ----------------------------------------------------------------------------------


def test_values_know_the_line_they_come_from(explained):
    first = perceptron.__code__.co_firstlineno
    by_op = {node.op: line.number - first for node, line in explained.lines.items() if node.op is not Primitive.MAP}
    assert by_op[Primitive.MATMUL] == 2 and by_op[Primitive.REDUCE] == 3
    line = next(line for node, line in explained.lines.items() if node.op is Primitive.REDUCE)
    assert str(line).endswith("return (scores * 2).softmax(1) * 1") and str(line).startswith("test_seeing.py:")
    graph = explained.forward
    settled, _ = optimise(graph)
    after = carried(explained.lines, graph, settled)
    assert {node.op for node in after} >= {Primitive.MATMUL, Primitive.REDUCE}
    matmuls = [after[node].number - first for node in settled.live_nodes() if node.op is Primitive.MATMUL]
    assert matmuls == [1, 2]
    assert isinstance(line, Line)


def test_the_page_is_whole_by_itself(explained, tmp_path, monkeypatch):
    monkeypatch.setattr(TIMED, "roof", lambda again=False: LIMIT)
    explained.html(tmp_path / "page.html", ["fusion", "time"])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href|url\()|https?://", text)
    drawing = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    titles = [title.text for title in drawing.iter("title")]
    drawn = [n for n in explained.forward_plan.plan.graph.live_nodes() if n.op is not Primitive.CONST]
    assert len(titles) == len(drawn)
    assert any("hidden = (x @ w).relu()" in title and "in memory: matmul is a step" in title for title in titles)
    fills = {rect.get("fill") for rect in drawing.iter("rect")}
    assert len([fill for fill in fills if fill.startswith("hsl")]) == 3
    with pytest.raises(ValueError, match="no level 'bytecode'"):
        explained.html(tmp_path / "page.html", ["bytecode"])


# --- TENSORSMITH_DEBUG ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level, said", [(0, 0), (1, 0), (2, 2), (3, 3), (5, 6)])
def test_programs_say_what_became_of_them(level, said, monkeypatch, capsys):
    monkeypatch.setenv("TENSORSMITH_DEBUG", str(level))

    def doubled(x):
        return x * 2 + 1

    ts.compile(doubled)(ts.ones(3))
    found = capsys.readouterr().err
    assert found.count("\n=== ") == said
    assert found.startswith("tensorsmith: compiled doubled: " if level else "")
    assert bool(found) is bool(level) and ("define void" in found) is (level == 5)


def test_the_tools_of_the_page_find_what_they_work_on(explained, tmp_path):
    explained.html(tmp_path / "page.html", [])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    asked = set(re.findall(r'getElementById\("(\w+)"\)', text))
    assert asked == {"search", "count", "zoom"} and all(f'id="{name}"' in text for name in asked)
    groups = re.findall(r'data-group="(group \d+)"', text)
    assert len(groups) == len(explained.forward_plan.groups)
    assert all(f"\n{group}\n" in text for group in groups)  # a line of what hovering over its values shows


def test_inputs_are_drawn_above_their_first_reader():
    found = ts.explain(lambda x, y: (x.exp().sin() @ y).cos(), ts.ones(3, 3), ts.ones(3, 3))
    drawn = layers([n for n in found.forward_plan.plan.graph.live_nodes() if n.op is not Primitive.CONST])
    assert [len(layer) for layer in drawn] == [1, 1, 2, 1, 1]


def test_a_step_that_changes_state_has_no_gradient_of_its_own():
    w = ts.ones(3, requires_grad=True)

    def step(x):
        w.grad = None
        (w * x).sum().backward()
        return w.grad

    found = ts.explain(step, ts.ones(3))
    assert found.backward is None and "the function changes state" in found.graph() and found.names == ("x", "w")
    with ts.no_grad():
        assert ts.explain(lambda x: w * x, ts.ones(3)).no_gradient == "no result requires a gradient"
    assert ts.explain(lambda x: w * x, ts.ones(3)).backward is not None


def test_captured_tensors_are_called_what_the_program_calls_them():
    model = ts.nn.Sequential(ts.nn.Linear(3, 4), ts.nn.BatchNorm1d(4))
    optimizer = ts.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    names = ts.explain(step, ts.ones(2, 3)).names
    assert {"model.0.weight", "model.1.running_mean", "optimizer: exp_avg of model.0.bias"} <= set(names)
    assert "0.weight" in ts.explain(model, ts.ones(2, 3)).names


def test_a_text_is_shown_once_and_long_titles_are_cut():
    w = [ts.ones(4, 4) for _ in range(9)]

    def chain(x):
        for each in w:
            x = (x @ each).exp()
        return x

    found = ts.explain(chain, ts.ones(4, 4))
    assert found.title.count("float32[4, 4]") == 7 and found.title.endswith(", and 3 more")
    assert found.llvm().count("(the same as of forward, step 1)") >= 8
