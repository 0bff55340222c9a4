"""What compiled functions take: arguments that share memory, leaves with gradients, containers, values of the surroundings."""

import dataclasses
import threading
import warnings
from collections import OrderedDict, defaultdict

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.compile.compiled import RecompileWarning


def overlapping(a, b):
    a.add_(1)
    c = b * 2
    b.mul_(3)
    return c, a.clone(), a.sum()


def swapped(a, b):
    a[0] = b[-1]
    b[1:2].sub_(a[:1] * 2)
    return a * b.sum()


PLACES = {
    "the same": lambda x: (x, x),
    "two views of the same": lambda x: (x[:], x[:]),
    "shifted": lambda x: (x[:5], x[1:6]),
    "disjoint": lambda x: (x[:4], x[4:]),
    "inside": lambda x: (x, x[2:5]),
    "every other": lambda x: (x[::2], x[1::2]),
    "one element": lambda x: (x[3:4], x[:4]),
}


@pytest.mark.parametrize("place", PLACES)
def test_arguments_that_share_memory(place):
    for function in (overlapping, swapped) if place not in ("inside", "one element") else (overlapping,):
        compiled = ts.compile(function)
        for start in (0.0, 4.0):
            ours, eager = ts.arange(start, start + 8.0), ts.arange(start, start + 8.0)
            found, expected = compiled(*PLACES[place](ours)), function(*PLACES[place](eager))
            assert str(found) == str(expected) and ours.tolist() == eager.tolist()
        assert len(compiled.plans) == 1


def test_another_way_of_sharing_is_another_plan():
    compiled = ts.compile(overlapping)
    x, y = ts.zeros(6), ts.zeros(6)
    for a, b in ((x[:3], x[3:]), (x[:3], x[2:5]), (x[:3], y[:3]), (x[:3], x[:3])):
        x.zero_(), y.zero_()
        expected = overlapping(a, b)
        x.zero_(), y.zero_()
        assert str(compiled(a, b)) == str(expected)
    assert len(compiled.plans) == 4
    with pytest.raises(NotImplementedError, match="different dtypes that share memory: argument 0 is complex64"):
        z = ts.ones(2, dtype=ts.complex64)
        ts.compile(overlapping)(z, ts.view_as_real(z)[:, 0])
    with pytest.raises(NotImplementedError, match=r"share memory and are tracked by autograd \(numbers 0, 1\)"):
        ts.compile(lambda a, b: a * b)(x.requires_grad_(), x[:])


def test_two_matrices_of_one_tensor():
    x, y = ts.arange(24.0).reshape(4, 6), ts.arange(24.0).reshape(4, 6)

    def function(a, b):
        a.mul_(2)
        b.t().add_(a[0, 0])
        return a @ b.t()

    compiled = ts.compile(function)
    for _ in range(2):
        assert compiled(x[1:, ::2], x[:3, 1:4]).tolist() == function(y[1:, ::2], y[:3, 1:4]).tolist()
        assert x.tolist() == y.tolist()


def test_an_argument_that_the_function_also_captures():
    w = ts.ones(3)
    compiled = ts.compile(lambda x: w.add_(x) + x)
    for _ in range(2):
        w.fill_(1.0)
        assert compiled(w).tolist() == [4.0] * 3 and w.tolist() == [2.0] * 3
    assert compiled(ts.ones(3)).tolist() == [4.0] * 3 and w.tolist() == [3.0] * 3
    assert compiled(w[:]).tolist() == [12.0] * 3  # w is 3: 6, and again 6


def test_gradients_of_arguments():
    def function(x):
        (x * x).sum().backward()

    eager, ours = (ts.ones(3).requires_grad_() for _ in range(2))
    compiled = ts.compile(function)
    for _ in range(3):  # the second adds to the gradient that there is
        function(eager), compiled(ours)
        assert ours.grad.tolist() == eager.grad.tolist()
    kept = ours.grad
    compiled(ours)
    assert kept is ours.grad or kept.tolist() == [6.0] * 3
    other = ts.full((3,), 2.0).requires_grad_()
    compiled(other)
    assert other.grad.tolist() == [4.0] * 3 and len(compiled.plans) <= 2
    with pytest.raises(NotImplementedError, match=r"reaches argument 0, which was computed outside"):
        compiled(other * 1)
    ts.compile(lambda x: setattr(x, "grad", None))(other)
    assert other.grad is None


@dataclasses.dataclass
class Batch:
    x: ts.Tensor
    scale: float = 1.0
    rest: list = dataclasses.field(default_factory=list)


def test_dataclasses_and_kinds_of_dicts():
    def function(batch, named, grouped):
        y = batch.x * batch.scale + batch.rest[0]
        return Batch(y, 2.0, [y.sum()]), OrderedDict(b=named["a"] * 2), grouped

    compiled = ts.compile(function)
    for scale in (1.0, 3.0, 1.0):
        grouped = defaultdict(list, {"k": [ts.ones(1)]})
        out, named, back = compiled(Batch(ts.ones(2), scale, [ts.ones(2)]), {"a": ts.ones(1)}, grouped)
        assert isinstance(out, Batch) and out.x.tolist() == [1.0 + scale] * 2 and out.rest[0].item() == 2 + 2 * scale
        assert type(named) is OrderedDict and type(back) is defaultdict and back["new"] == []
    assert len(compiled.plans) == 2


@pytest.mark.parametrize("write", [
    lambda d: d.update(new=d["x"] * 2), lambda d: d.pop("x"), lambda d: d.update(x=d["x"] + 1), lambda d: d["y"].append(1)
], ids=["added", "removed", "replaced", "inside"])  # fmt: skip
def test_containers_that_the_function_changes_are_refused(write):
    with pytest.raises(NotImplementedError, match="puts something into, or takes something out of, a list, dict"):
        ts.compile(lambda d: (write(d), None)[1])({"x": ts.ones(2), "y": [ts.ones(1)]})


FACTOR = 2.0


def helper(x):
    return x * FACTOR


class Settings:
    def __init__(self):
        self.shift, self.names = 1.0, ("a", "b")


class Layer(ts.nn.Module):
    def __init__(self):
        super().__init__()
        self.power = 2

    def forward(self, x):
        return x**self.power


def test_python_values_of_the_surroundings_are_guarded(monkeypatch):
    numbers, settings, layer, extra = [1.0, 2.0], Settings(), Layer(), 0.5

    def function(x):
        return helper(x) + numbers[1] + settings.shift + layer(x) + extra

    compiled = ts.compile(function)
    x = ts.full((2,), 3.0)

    def check(plans):
        assert compiled(x).tolist() == function(x).tolist() and len(compiled.plans) == plans

    check(1)
    check(1)
    numbers[1] = 5.0
    check(2)
    settings.shift = -1.0
    check(3)
    layer.power = 3
    check(4)
    monkeypatch.setitem(globals(), "FACTOR", 7.0)
    check(5)
    extra = 0.25
    check(6)
    numbers[1], settings.shift, layer.power, extra = 2.0, 1.0, 2, 0.5
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    check(6)  # the first plan fits again
    numbers.append(1.0)
    check(7)


def test_attributes_of_the_object_of_a_method():
    class Model:
        gain = 1.0

        def __init__(self):
            self.bias, self.calls = 1.0, 0

        def run(self, x):
            self.calls += 1
            return x * self.bias + self.calls

    eager, model = Model(), Model()
    compiled = ts.compile(model.run)
    with pytest.warns(RecompileWarning, match="run is traced at every call, because it changes self.calls"):
        for bias in (1.0, 1.0, 2.0):
            eager.bias = model.bias = bias
            assert compiled(ts.ones(2)).tolist() == eager.run(ts.ones(2)).tolist()
    assert model.calls == eager.calls and not compiled.plans
    scaled = ts.compile(lambda x: x * model.bias)
    with pytest.warns(RecompileWarning, match="compiled 8 times for the same arguments; now because of the Python"):
        for model.bias in range(9):
            scaled(ts.ones(2))


def test_recompiles_are_announced_once_with_the_cause():
    compiled = ts.compile(lambda x: x * 2)
    x = ts.ones(2, 3)
    compiled(x)
    for other, cause in (
        (x.double(), "dtype of argument 0: float32, now float64"), (x[0], r"rank of argument 0: shape \(2, 3\), now \(3,\)"),
        (x.clone().requires_grad_(), "requires_grad of argument 0: False, now True"),
    ):  # fmt: skip
        with pytest.warns(RecompileWarning, match=f"compiled again: {cause}"):
            compiled(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(ts.ones(5, 3))  # another shape is nothing to speak of
        compiled(x.half())  # said once
    model = ts.nn.Sequential(ts.nn.Linear(2, 2))
    whole = ts.compile(model)
    whole(ts.ones(1, 2))
    model[0] = ts.nn.Linear(2, 2)
    with pytest.warns(RecompileWarning, match="module structure: the parameters, buffers or submodules of Sequential"):
        whole(ts.ones(1, 2))


def test_plans_are_few_and_the_unused_one_gives_way():
    compiled = ts.compile(lambda x: x + 1, most_plans=3)
    for n in (1, 2, 3, 1, 4, 1):
        assert compiled(ts.zeros(n)).tolist() == [1.0] * n
    assert [plan.places[0].shape for plan in compiled.plans] == [(1,), (4,), (3,)]


def test_in_several_threads():
    compiled, failures = ts.compile(lambda x: (x @ x).relu().sum(0) + 1), []

    def work(seed):
        for k in range(6):
            x = ts.full((4 + k, 4 + k), 1.0 + seed)
            expected = (4 + k) ** 2 * (1.0 + seed) ** 2 + 1
            if not np.allclose(compiled(x).tolist(), expected):
                failures.append((seed, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(compiled.plans) == 6


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 3)])
def test_an_empty_slice_of_a_written_value_may_start_anywhere(shape):
    def written(x):
        x = x * 1
        x.t()[1:].add_(1)
        x[1:].mul_(2)
        return x

    assert ts.compile(written)(ts.ones(shape)).tolist() == written(ts.ones(shape)).tolist()
