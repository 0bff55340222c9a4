"""Plans that another process left in the cache folder: the same results, errors and memory; what is not taken from there."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.views import Strided
from tensorsmith.runtime.plan_file import LoadedPlan, pack, unpack
from tensorsmith.scalar import functions as f
from tensorsmith.targets.cpu.disk_cache import DiskCache
from tensorsmith.targets.cpu.image import images_run_here
from tensorsmith.targets.cpu.machine import machine

planned = importlib.import_module("tensorsmith.compile.planned")
pytestmark = pytest.mark.skipif(not images_run_here(), reason="plans are kept where kernels are images")
F = ts.nn.functional


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache folder of its own, in which the smallest plans are kept too."""
    cache = DiskCache(tmp_path)
    monkeypatch.setattr(planned, "disk_cache", lambda: cache)
    monkeypatch.setattr(planned, "FEWEST_STEPS", 0)
    return cache


def files(cache: DiskCache) -> list[Path]:
    return sorted(cache.folder.iterdir())


def classifier():
    """Convolutions of every kind, pooling, normalisation, dropout, products, labels: tables, workspaces, checks, numbers."""
    ts.manual_seed(0)
    nn = ts.nn
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 32, 5, stride=2, bias=False), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.25), nn.Linear(32 * 36, 10),
    )  # fmt: skip
    optimizer = ts.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    @ts.compile
    def step(x, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step


IMAGES = np.random.default_rng(0).standard_normal((4, 3, 28, 28), dtype=np.float32)


def trained():
    """Losses and parameters after some steps, and the compiled step."""
    model, step = classifier()
    ts.manual_seed(1)
    x, labels = ts.tensor(IMAGES), ts.tensor([1, 9, 0, 3])
    losses = [step(x, labels).item() for _ in range(3)]
    return losses, [t.detach().numpy().copy() for t in (*model.parameters(), *model.buffers())], step


def test_a_loaded_plan_does_what_the_planned_one_did(folder):
    first, second = trained(), trained()
    assert not isinstance(first[2].plans[0].plan, LoadedPlan) and isinstance(second[2].plans[0].plan, LoadedPlan)
    assert first[0] == second[0]
    for a, b in zip(first[1], second[1], strict=True):
        np.testing.assert_array_equal(a, b)
    before, after = first[2].plans[0], second[2].plans[0]
    assert before.plan.memory == after.plan.memory
    assert before.report == after.report and before.report.fired
    # What a run does not need is planned again where it is asked for.
    assert str(before.plan.graph) == str(after.plan.graph) and before.plan.places == after.plan.places
    assert before.plan.describe() == after.plan.describe()
    kernels = [each.steps[0].kernel for each in (before.plan, after.plan)]
    assert kernels[0].chunks == kernels[1].chunks


def test_an_error_of_a_loaded_plan(folder):
    messages = []
    for _ in range(2):
        model, step = classifier()
        before = [p.tolist() for p in model.parameters()]
        with pytest.raises(IndexError) as caught:
            step(ts.tensor(IMAGES), ts.tensor([1, 9, 10, 3]))
        messages.append(str(caught.value))
        assert [p.tolist() for p in model.parameters()] == before
    assert messages[0] == messages[1] and "index 10 at position [2" in messages[0]


def test_recurrent_layers_attention_and_integers(folder):
    ts.manual_seed(0)
    lstm = ts.nn.LSTM(5, 7)

    def function(x, n, d):
        y = F.scaled_dot_product_attention(*[lstm(x)[0].permute(1, 0, 2)] * 3)
        return y, n // d, y.sum(0).softmax(-1)

    arguments = ts.randn(6, 2, 5), ts.arange(4), ts.tensor([1, 2, 3, 4])
    expected = [t.tolist() for t in function(*arguments)]
    for loaded in (False, True):
        with ts.no_grad():
            compiled = ts.compile(function)
            for found, known in zip(compiled(*arguments), expected, strict=True):
                np.testing.assert_allclose(found.tolist(), known, rtol=1e-5, atol=1e-6)
            assert isinstance(compiled.plans[0].plan, LoadedPlan) is loaded
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                compiled(*arguments[:2], ts.tensor([1, 0, 3, 4]))


@pytest.mark.parametrize("damage", ["truncated", "a bit", "empty", "another header"])
def test_damaged_files_are_planned_again(folder, damage):
    expected = trained()
    (path,) = files(folder)
    raw = path.read_bytes()
    if damage == "another header":  # whole, but not the file of a plan
        folder.store(path.stem, b"\x02" + bytes(7) + b"{}" + b"\x02" + bytes(7) + b"{}")
    else:
        flipped = bytearray(raw)
        flipped[len(raw) // 2] ^= 4
        path.write_bytes({"truncated": raw[: len(raw) // 2], "a bit": bytes(flipped), "empty": b""}[damage])
    found = trained()
    assert not isinstance(found[2].plans[0].plan, LoadedPlan)
    assert found[0] == expected[0]
    assert path.read_bytes() == raw  # written anew
    assert isinstance(trained()[2].plans[0].plan, LoadedPlan)


def test_what_a_key_holds(folder, monkeypatch):
    def question(shape=(3, 4), value=2.0, places=None, **changed):
        graph = ts.compile(lambda x: (x * value).sum(1))
        with ts.no_grad():
            graph(ts.ones(*shape))
        tracer = graph.plans[0]
        given = {"lasting": (), "updates": {}, "left_out": frozenset(), "outputs": {}, **changed}
        return planned.Question(tracer.tracer.graph, places or tracer.places, **given)

    key = planned.key_of_question
    base = key(question())
    assert base == key(question())
    others = [key(question((4, 3))), key(question(value=2)), key(question(value=3.0)), key(question(lasting={0}))]
    others.append(key(question(left_out=frozenset({"fusion"}))))
    others.append(key(question(places=[Strided((3, 4), (1, 3))])))
    monkeypatch.setenv("TENSORSMITH_OPTIMISATION", "2")
    others.append(key(question()))
    monkeypatch.undo()
    monkeypatch.setattr(planned, "_sources", lambda: "changed")
    others.append(key(question()))
    monkeypatch.undo()
    monkeypatch.setattr(planned, "machine", lambda: replace(machine(), features="+other"))
    others.append(key(question()))
    monkeypatch.undo()
    assert None not in others and len({base, *others}) == 1 + len(others)
    monkeypatch.setenv("TENSORSMITH_CACHE_BYTES", "1000000")  # decides no plan
    assert key(question()) == base


def test_changed_sources_are_another_key(tmp_path, monkeypatch):
    for room in planned._ROOMS:
        (tmp_path / "tensorsmith" / room).mkdir(parents=True)
    source = tmp_path / "tensorsmith" / "passes" / "fusion.py"
    source.write_text("1\n")
    (tmp_path / "tensorsmith" / "compile").mkdir()
    monkeypatch.setattr(planned, "__file__", str(tmp_path / "tensorsmith" / "compile" / "planned.py"))
    sources = planned._sources.__wrapped__
    before = sources()
    assert sources() == before
    source.write_text("12\n")
    assert sources() != before


def test_what_only_this_process_knows_is_planned_here(folder):
    def branches(x):
        return ts.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    for _ in range(2):
        assert ts.compile(branches)(ts.ones(3)).tolist() == [2.0] * 3
    assert not files(folder)
    ts.passes.register("twice", pattern=lambda x: f.sinh(x), rewrite=lambda x: f.exp(x))
    try:
        ts.compile(lambda x: x.sinh())(ts.ones(3))
    finally:
        ts.passes.unregister("twice")
    assert not files(folder)
    ts.compile(lambda x: ts.special.zeta(x, 2.0))(ts.ones(2))  # a step in Python
    assert not files(folder)


def test_files_hold_every_field_of_a_plan_and_refuse_others():
    compiled = ts.compile(lambda x: (x * 2).softmax(-1) @ x)
    with ts.no_grad():
        compiled(ts.ones(8, 8))
    plan = compiled.plans[0].plan
    raw = pack(plan)
    assert raw is not None
    again = unpack(raw, lambda: plan)
    assert again.outputs == plan.outputs and again.tensor_inputs == plan.tensor_inputs
    for damaged in (b"", raw[:40], raw[:8] + b"[]" + raw[10:]):
        with pytest.raises(ValueError, match="not the file of a plan"):
            unpack(damaged, lambda: plan)


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import importlib
import tensorsmith as ts
planned = importlib.import_module("tensorsmith.compile.planned")
planned.FEWEST_STEPS = 0
from test_planned import trained
losses, values, step = trained()
from tensorsmith.runtime.plan_file import LoadedPlan
print(isinstance(step.plans[0].plan, LoadedPlan), losses, sum(v.sum() for v in values))
"""


def test_two_processes_at_once_and_a_third(tmp_path):
    environment = dict(os.environ, TENSORSMITH_CACHE=str(tmp_path / "shared"), TENSORSMITH_OPTIMISATION="0")
    command = [sys.executable, "-c", PROGRAM.format(tests=str(Path(__file__).parent))]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [each.communicate(timeout=300)[0].split(maxsplit=1) for each in both]
    loaded, third = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300).stdout.split(
        maxsplit=1
    )
    assert loaded == "True"
    assert said[0][1] == said[1][1] == third


def test_images_with_channels_last():
    """The addresses of tiles and of a row of zeros are among their constants."""
    single, one = ts.randn(20, 1, 3, 3), ts.randn(6, 20, 1, 1)

    def forward(x):
        y = F.relu6(F.conv2d(x, single, stride=2, padding=1, groups=20))
        return F.conv2d(F.relu(F.conv2d(y, single, padding=1, groups=20)), one).sum((2, 3))

    x = ts.randn(2, 20, 15, 13)
    found = []
    for kind in (False, True):
        compiled = ts.compile(forward)
        found.append(compiled(x).numpy())
        plan = compiled.plans[0].plan
        assert isinstance(plan, LoadedPlan) == kind and any(step.name.startswith("conv_depthwise_") for step in plan.steps)
    assert np.array_equal(*found)
    np.testing.assert_allclose(found[0], forward(x).numpy(), rtol=1e-4, atol=1e-4)
