"""What a compiled function depends on beside its arguments: where it changes, eager execution and the compiled one still agree.

A program is given `compiles`, which compiles a function or leaves it as it is; what the program returns must not depend on it.
"""

import argparse
import collections
import dataclasses
import enum
import functools
import types

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.compile.compiled import RecompileWarning

PROGRAMS = {}
SCALE = 2.0


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def seen(value):
    """A value as plain Python data."""
    if isinstance(value, ts.Tensor):
        return [str(value.dtype), list(value.shape), np.round(np.array(value.detach().tolist(), dtype=float), 4).tolist()]
    if isinstance(value, dict):
        return {key: seen(each) for key, each in value.items()}
    return [seen(each) for each in value] if isinstance(value, list | tuple) else value


def x3(k=0):
    return ts.arange(3.0) + k


def changed(compiles, function, change):
    """Results before and after a change."""
    compiled = compiles(function)
    found = [compiled(x3())]
    change()
    return [*found, compiled(x3()), compiled(x3())]


# --- numbers and settings, wherever they are ----------------------------------------------------------------------------


class Scaled(ts.nn.Module):
    scale = 2.0

    def forward(self, x):
        return self.helper(x)

    def helper(self, x):
        return x * SCALE * self.scale


def set_scale(value):
    globals()["SCALE"] = value


@program
def a_global_that_a_method_reads(compiles):
    set_scale(2.0)
    return changed(compiles, Scaled(), lambda: set_scale(3.0))


@program
def a_global_that_a_submodule_reads(compiles):
    set_scale(2.0)
    model = ts.nn.Sequential(Scaled(), ts.nn.ReLU())
    return changed(compiles, lambda x: model(x), lambda: set_scale(3.0))


@program
def a_global_that_the_method_of_an_object_reads(compiles):
    class Helper:
        def helper(self, x):
            return x * SCALE

    set_scale(2.0)
    helper = Helper()
    return changed(compiles, lambda x: helper.helper(x), lambda: set_scale(3.0))


@program
def a_global_that_a_compiled_function_reads(compiles):
    scale = 2.0

    def change():
        nonlocal scale
        scale = 3.0

    inner = compiles(lambda x: x * scale)
    return changed(compiles, lambda x: inner(x), change)


@program
def an_attribute_of_an_attribute(compiles):
    holder = types.SimpleNamespace(inner=types.SimpleNamespace(scale=2.0))
    return changed(compiles, lambda x: x * holder.inner.scale, lambda: setattr(holder.inner, "scale", 3.0))


@program
def options_of_the_command_line(compiles):
    options = argparse.Namespace(scale=2.0)
    return changed(compiles, lambda x: x * options.scale, lambda: setattr(options, "scale", 3.0))


@program
def an_entry_of_an_entry(compiles):
    settings = {"a": {"b": 2.0}}
    return changed(compiles, lambda x: x * settings["a"]["b"], lambda: settings["a"].update(b=3.0))


@program
def settings_that_a_module_holds(compiles):
    @dataclasses.dataclass
    class Settings:
        scale: float = 2.0

    class Model(ts.nn.Module):
        def __init__(self):
            super().__init__()
            self.settings, self.table, self._private = Settings(), {"shift": [1.0]}, 1.0

        @property
        def private(self):
            return self._private

        def forward(self, x):
            return x * self.settings.scale + self.table["shift"][0] - self.private

    model = Model()
    compiled = compiles(model)
    found = [compiled(x3())]
    for change in (
        lambda: setattr(model.settings, "scale", 3.0), lambda: model.table["shift"].__setitem__(0, 4.0),
        lambda: setattr(model, "_private", 7.0), lambda: setattr(model, "table", {"shift": [0.5]}),
    ):  # fmt: skip
        change()
        found += [compiled(x3()), compiled(x3())]
    return found


@program
def an_attribute_of_a_class(compiles):
    model = Scaled()
    try:
        return changed(compiles, model, lambda: setattr(Scaled, "scale", 3.0))
    finally:
        Scaled.scale = 2.0


@program
def an_attribute_of_a_class_by_its_name(compiles):
    class Constants:
        scale = 2.0

    return changed(compiles, lambda x: x * Constants.scale, lambda: setattr(Constants, "scale", 3.0))


@program
def slots(compiles):
    class Slotted:
        __slots__ = ("scale",)

    holder = Slotted()
    holder.scale = 2.0
    return changed(compiles, lambda x: x * holder.scale, lambda: setattr(holder, "scale", 3.0))


@program
def defaults_and_partials(compiles):
    def function(x, scale=[2.0]):  # noqa: B006
        return x * scale[0]

    given = {"scale": 2.0}
    bound = functools.partial(lambda given, x: x * given["scale"], given)
    found = changed(compiles, function, lambda: function.__defaults__[0].__setitem__(0, 3.0))
    return found + changed(compiles, bound, lambda: given.update(scale=3.0))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@program
def attributes_by_strings(compiles):
    holder = types.SimpleNamespace(scale=2.0)
    found = changed(compiles, lambda x: x * getattr(holder, "scale"), lambda: setattr(holder, "scale", 3.0))  # noqa: B009
    return found + changed(compiles, lambda x: x * sum(vars(holder).values()), lambda: setattr(holder, "scale", 4.0))


@program
def tensors_that_are_made_of_data_inside(compiles):
    kept = []

    def written(x):
        total, array = ts.tensor([0.0]), ts.from_numpy(np.zeros(3, np.float32))
        total += x.sum()
        array += x
        return total, array.sum(), ts.tensor([1.0]), ts.as_tensor(np.ones(2))

    def held(x):
        total = ts.tensor([0.0])
        total += x.sum()
        kept.append(total)

    compiled = compiles(written)
    found = [compiled(x3()), compiled(x3()), compiled(x3(1))]
    found[0][2].add_(1)
    found.append(compiled(x3()))
    compiled = compiles(held)
    compiled(x3()), compiled(x3(1)), compiled(x3())
    return found, kept


@program
def an_array_that_is_shared(compiles):
    array = np.zeros(3, np.float32)

    def function(x):
        ts.from_numpy(array).add_(x)

    compiled = compiles(function)
    for k in range(3):
        compiled(x3(k))
    return array.tolist()


@program
def a_mode_that_the_function_sets(compiles):
    model = ts.nn.Sequential(ts.nn.Linear(3, 4), ts.nn.Dropout(0.5))

    def function(x):
        model.eval()
        return model(x)

    compiled, found = compiles(function), []
    for _ in range(3):
        model.train()
        found += [compiled(x3()), model.training]
    return found


@program
def a_member_of_an_enumeration(compiles):
    colour = Colour.RED

    def change():
        nonlocal colour
        colour = Colour.BLUE

    return changed(compiles, lambda x: x * 2 if colour is Colour.RED else x * 3, change)


@program
def an_object_among_the_arguments(compiles):
    settings = types.SimpleNamespace(scale=2.0, weight=ts.ones(3))
    compiled = compiles(lambda settings, x: x * settings.scale + settings.weight)
    found = [compiled(settings, x3())]
    settings.scale = 3.0
    found.append(compiled(settings, x3()))
    settings.weight = ts.full((3,), 4.0)
    return [*found, compiled(settings, x3())]


@program
def an_array(compiles):
    array = np.ones(3, np.float32)
    return changed(compiles, lambda x: x * ts.tensor(array), lambda: array.fill(5.0))


@program
def the_value_of_a_tensor_that_is_read(compiles):
    scale = ts.tensor(2.0)
    return changed(compiles, lambda x: x * float(scale), lambda: scale.fill_(3.0))


# --- what stands where --------------------------------------------------------------------------------------------------


@program
def another_tensor_in_a_cell(compiles):
    weight = ts.ones(3)

    def change():
        nonlocal weight
        weight = ts.full((3,), 5.0)

    return changed(compiles, lambda x: x * weight, change)


@program
def another_tensor_in_an_object_and_a_dict(compiles):
    holder, table = types.SimpleNamespace(weight=ts.ones(3)), {"weight": ts.ones(3)}
    found = changed(compiles, lambda x: x * holder.weight, lambda: setattr(holder, "weight", ts.full((3,), 5.0)))
    return found + changed(compiles, lambda x: x * table["weight"], lambda: table.update(weight=ts.full((3,), 5.0)))


@program
def another_tensor_in_a_module(compiles):
    class Model(ts.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = ts.ones(3)

        def forward(self, x):
            return x * self.weight

    model = Model()
    return changed(compiles, model, lambda: setattr(model, "weight", ts.full((3,), 5.0)))


@program
def another_module(compiles):
    model, models = ts.nn.Linear(3, 1), {"a": ts.nn.Linear(3, 1)}

    def change():
        nonlocal model
        model = ts.nn.Linear(3, 1)

    found = changed(compiles, lambda x: model(x), change)
    return found + changed(compiles, lambda x: models["a"](x), lambda: models.update(a=ts.nn.Linear(3, 1)))


@program
def another_function(compiles):
    def helper(x):
        return x * 2

    def change():
        nonlocal helper
        helper = lambda x: x * 3  # noqa: E731

    return changed(compiles, lambda x: helper(x), change)


@program
def a_longer_list_of_modules(compiles):
    class Model(ts.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = ts.nn.ModuleList([ts.nn.Linear(3, 3)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model = Model()
    return changed(compiles, model, lambda: model.layers.append(ts.nn.Linear(3, 1)))


@program
def a_module_that_is_asked_and_not_called(compiles):
    model = ts.nn.Sequential(ts.nn.Linear(3, 2))
    found = changed(
        compiles, lambda x: ts.nn.functional.linear(x, model[0].weight), lambda: model.__setitem__(0, ts.nn.Linear(3, 2))
    )
    return found + changed(compiles, lambda x: x * 2 if model.training else x, model.eval)


@program
def hooks_that_come_and_go(compiles):
    model = ts.nn.Sequential(ts.nn.Linear(3, 4), ts.nn.ReLU())
    compiled = compiles(model)
    found = [compiled(x3())]
    handle = model[0].register_forward_hook(lambda module, args, output: output * 2)
    found.append(compiled(x3()))
    handle.remove()
    return [*found, compiled(x3())]


# --- what the function does beside computing -----------------------------------------------------------------------------


def calls(compiles, function, what):
    """What a function has done to something after four calls, and its results."""
    compiled = compiles(function)
    found = [compiled(x3(k)) for k in range(4)]
    return found, what()


@program
def counters(compiles):
    numbers, table, nested, members = [], {}, {"a": {"n": 0}}, set()
    queue, counts, groups = collections.deque(maxlen=3), collections.Counter(), collections.defaultdict(list)
    long = [0] * 1000

    def function(x):
        numbers.append(len(x))
        table[len(table)] = 5
        nested["a"]["n"] += 1
        members.add(len(members))
        queue.append(len(queue))
        counts["a"] += 1
        groups["a"].append(1)
        return x * 2

    def only_long(x):
        long.append(1)
        return x

    state = lambda: [numbers, table, nested, sorted(members), list(queue), dict(counts), dict(groups), len(long)]  # noqa: E731
    return calls(compiles, function, state), calls(compiles, only_long, state)


@program
def a_global_counter(compiles):
    globals().pop("CALLS", None)

    def function(x):
        global CALLS
        CALLS = globals().get("CALLS", 0) + 1
        return x * 2

    return calls(compiles, function, lambda: CALLS)


@program
def attributes_that_are_new(compiles):
    class Model(ts.nn.Module):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            self.last, self.doubled = x, x * 2
            return x + 1

    model = Model()
    return calls(compiles, model, lambda: (model.calls, model.last, model.doubled))


@program
def tensors_that_are_kept(compiles):
    kept = []

    def function(x):
        kept.append((x, x.detach(), x * 2))
        return x[1:]

    return calls(compiles, function, lambda: kept)


@program
def results_that_compute_later(compiles):
    compiled = compiles(lambda x: (map(lambda i: x * i, range(3)), lambda y: x + y, x))
    found = []
    for k in range(3):
        several, add, same = compiled(x3(k))
        found += [list(several), add(ts.ones(3)), same]
    return found


@program
def results_that_are_made_anew(compiles):
    compiled = compiles(lambda x: (np.ones(3), types.SimpleNamespace(a=1), [1], {"b": {2}}))
    first = compiled(x3())
    first[0][0], first[1].a = 7.0, 7
    first[2].append(7)
    first[3]["b"].add(7)
    again = compiled(x3())
    return [again[0].tolist(), again[1].a, again[2], sorted(again[3]["b"])]


@program
def a_captured_tensor_as_result(compiles):
    weight = ts.ones(3)
    compiled = compiles(lambda x: weight)
    return [compiled(x3()) is weight for _ in range(3)]


@pytest.mark.filterwarnings("ignore:compile")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_agree(name):
    found = []
    for compiles in (lambda f: f, ts.compile):
        ts.manual_seed(0)
        found.append(seen(PROGRAMS[name](compiles)))
    assert found[0] == found[1]


# --- that it stays quick, and says what it does --------------------------------------------------------------------------


def test_what_no_code_mentions_is_no_dependence():
    class Trainer:
        def __init__(self):
            self.scale, self.epoch = 2.0, 0

        def step(self, x):
            return x * self.scale

    trainer = Trainer()
    compiled = ts.compile(trainer.step)
    for trainer.epoch in range(3):
        assert compiled(x3()).tolist() == [0.0, 2.0, 4.0]
    assert len(compiled.plans) == 1


def test_equal_numbers_are_the_same():
    holder = types.SimpleNamespace(size=100_000, rate=0.5, pair=(1.5, "a"))
    compiled = ts.compile(lambda x: x * holder.size * holder.rate * holder.pair[0])
    for _ in range(3):
        holder.size, holder.rate, holder.pair = int("100000"), float("0.5"), (float("1.5"), "a")
        compiled(x3())
    assert len(compiled.plans) == 1


def test_a_function_that_is_traced_at_every_call_says_why():
    kept, counted = [], types.SimpleNamespace(calls=0)

    def count(x):
        counted.calls += 1  # this line
        return x * 2

    def keep(x):
        kept.append(x * 2)

    for function, problem in (
        (count, r"count is traced at every call, because it changes counted.calls \(at test_surroundings.py:\d+: "
                r"counted.calls \+= 1  # this line\)"),
        (keep, "keep is traced at every call, because it changes kept"),
        (lambda x: {"a": np.ones(3)}, "because its result holds an object that is no tensor, container or number"),
    ):  # fmt: skip
        compiled = ts.compile(function)
        compiled(x3())
        with pytest.warns(RecompileWarning, match=problem):
            compiled(x3())


def test_gradients_of_leaves_are_nothing_that_is_kept():
    compiled = ts.compile(lambda x: (x * x).sum().backward())
    x = ts.ones(3, requires_grad=True)
    for _ in range(4):
        compiled(x)
    assert len(compiled.plans) == 2 and x.grad.tolist() == [8.0] * 3


# --- a trace that fails leaves Python as it was ----------------------------------------------------------------------------


def test_a_failed_trace_puts_back_what_it_changed():
    numbers, table, holder, cell = [1], {"a": 1}, types.SimpleNamespace(n=0), 0
    array, members, model = np.zeros(2), {1}, ts.nn.Linear(2, 2)

    def function(x):
        nonlocal cell
        numbers.append(2)
        table["b"] = 2
        table["a"] = 5
        holder.n, holder.new, cell = 1, 1, 1
        array[0] = 1.0
        members.add(2)
        model.eval()
        model.extra = 1
        return x.sum().item()

    with pytest.raises(RuntimeError, match="needs the value of a tensor"):
        ts.compile(function)(x3())
    assert (numbers, table, vars(holder), cell) == ([1], {"a": 1}, {"n": 0}, 0)
    assert array.tolist() == [0.0, 0.0] and members == {1} and model.training and not hasattr(model, "extra")
    with pytest.warns(UserWarning, match="runs eagerly"):
        assert ts.compile(function, allow_breaks=True)(x3()) == 3.0
    assert numbers == [1, 2] and cell == 1 and array.tolist() == [1.0, 0.0]
