"""What a function says, draws and asks while it is traced: done at every run, or refused at the user's line."""

import contextlib
import copy
import io
import itertools
import logging
import pickle
import random
import threading

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.compile.tracer import TraceError, ValueNeeded


def test_printing_is_done_at_every_run():
    def function(x, scale):
        print("scale", scale, x.shape[0], sep="-", end="!")
        return x * scale

    compiled, said = ts.compile(function), []
    for call in (function, compiled):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            for scale in (2.0, 2.0, 3.0, 2.0):
                call(ts.ones(3), scale)
        said.append(out.getvalue())
    assert said[0] == said[1] and len(compiled.plans) == 2
    assert print.__module__ == "builtins" and "handle" in logging.Logger.handle.__qualname__


def test_logging_is_done_at_every_run():
    records = []
    logger = logging.getLogger("tensorsmith.test")
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        compiled = ts.compile(lambda x: (logger.info("%d rows", len(x)), logger.debug("not this"), x * 2)[2])
        for n in (2, 2, 3):
            compiled(ts.ones(n))
        assert records == ["2 rows", "2 rows", "3 rows"]
        with pytest.raises(ValueNeeded, match="logging to tensorsmith.test needs the value of a tensor.*test_side_effects.py"):
            ts.compile(lambda x: logger.info("%s", x.sum()))(ts.ones(2))
    finally:
        logger.removeHandler(handler)


def test_other_threads_print_at_once():
    out = io.StringIO()

    def function(x):
        other = threading.Thread(target=print, args=("other",), kwargs={"file": out})
        other.start()
        other.join()
        said = out.getvalue()
        print("own", file=out)
        assert out.getvalue() == said == "other\n"
        return x

    ts.compile(function)(ts.ones(1))
    assert out.getvalue() == "other\nown\n"


@pytest.mark.parametrize("use", [
    lambda x: print("sum", x.sum()), lambda x: print([x]), lambda x: f"{x.sum()}", lambda x: f"{x.sum():.2f}", str,
    pickle.dumps, lambda x: x.nonzero(), lambda x: list(range(x[0].int())),
], ids=["print", "print in a list", "f-string", "f-string with a format", "str", "pickle", "nonzero", "range"])  # fmt: skip
def test_uses_of_values_that_are_not_known(use, capsys):
    def function(x):
        y = x * 2
        use(y)
        return y

    with pytest.raises(ValueNeeded, match="needs the value of a tensor while .*, at .*test_side_effects.py"):
        ts.compile(function)(ts.ones(3))
    assert capsys.readouterr().out == ""


def test_an_error_that_the_function_catches_is_raised_all_the_same():
    def function(x):
        try:
            return x * x.sum().item()
        except Exception:  # the author's, for quite another error
            return -x

    with pytest.raises(ValueNeeded, match="x.sum\\(\\).item\\(\\)"):
        ts.compile(function)(ts.ones(3))

    def other(x):
        try:
            return x @ ts.ones(7)
        except RuntimeError:
            return x * 2

    assert ts.compile(other)(ts.ones(3)).tolist() == [2.0] * 3


def test_a_tensor_of_a_failed_trace_says_so():
    kept = []

    def function(x):
        kept.append(x * 2)
        raise KeyError

    holder = type("Holder", (), {"put": lambda self, x: kept.extend([x * 2])})()
    with pytest.raises(KeyError):
        ts.compile(function)(ts.ones(2))
    assert kept == []  # put back
    stolen = []
    holder.put = stolen.append

    def steal(x):
        threading.current_thread().stolen = x * 2
        raise KeyError

    with pytest.raises(KeyError):
        ts.compile(steal)(ts.ones(2))
    with pytest.raises(RuntimeError, match="made while a function was traced for ts.compile, and the trace failed"):
        threading.current_thread().stolen.tolist()


@pytest.mark.parametrize("draw, stream", [
    (lambda: random.random(), "the module random"), (lambda: random.choice([1.0, 2.0]), "the module random"),
    (lambda: float(np.random.beta(1.0, 1.0)), "numpy.random"), (lambda: NUMPY.random(), "NUMPY"),
    (lambda: PYTHON.random(), "PYTHON"),
], ids=["random", "choice", "beta", "Generator", "Random"])  # fmt: skip
def test_random_numbers_that_are_not_ours(draw, stream):
    def function(x):
        y = x + 1
        y = y * draw()  # this line
        return y * 2

    before = random.getstate(), np.random.get_state()[2], NUMPY.bit_generator.state, PYTHON.getstate()
    with pytest.raises(TraceError, match=rf"draws random numbers from {stream}, at test_side_effects.py:\d+: ") as caught:
        ts.compile(function)(ts.ones(2))
    assert "Ways out: draw with ts.rand" in str(caught.value)
    assert before == (random.getstate(), np.random.get_state()[2], NUMPY.bit_generator.state, PYTHON.getstate())


NUMPY, PYTHON = np.random.default_rng(0), random.Random(0)


def test_functions_that_compute_nothing_when_they_are_called():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    class Model(ts.nn.Module):
        def forward(self, x):
            yield x

    for function, kind in ((generator, "generator"), (coroutine, "coroutine"), (Model(), "Model is a generator")):
        with pytest.raises(NotImplementedError, match=f"{kind}"):
            ts.compile(function)


@pytest.mark.parametrize("make", [lambda: iter([1.0, 2.0]), lambda: (k for k in range(3)), itertools.count])
def test_iterators_that_a_call_would_move(make):
    values = make()
    with pytest.raises(NotImplementedError, match="the function uses values, a .*, whose next value would be taken once"):
        ts.compile(lambda x: x * next(values))(ts.ones(2))
    with pytest.raises(NotImplementedError, match="the function uses an argument, a "):
        ts.compile(lambda x, values: x * next(values))(ts.ones(2), values)
    assert next(values) == next(make())


def test_a_switch_that_the_function_leaves_switched():
    def function(x):
        ts.set_grad_enabled(False)
        return x * 2

    with pytest.raises(TraceError, match="leaves gradient recording switched off"):
        ts.compile(function)(ts.ones(2))
    assert ts.is_grad_enabled()


def test_seeding_and_permutations_inside():
    def function(x):
        ts.manual_seed(3)
        return x[ts.randperm(8)] + ts.rand(8)

    found = []
    for call in (function, ts.compile(function)):
        ts.manual_seed(0)
        found.append([call(ts.arange(8.0)).tolist(), call(ts.arange(8.0)).tolist(), ts.rand(2).tolist()])
    assert found[0] == found[1]
    shuffled = ts.compile(lambda x: x[ts.randperm(50)])
    assert shuffled(ts.arange(50)).tolist() != shuffled(ts.arange(50)).tolist()


def test_copies_and_data_inside():
    weight = ts.zeros(3)

    def function(x):
        weight.data = x * 2
        return copy.deepcopy(x) + weight.sum()

    compiled = ts.compile(function)
    for k in range(3):
        x = ts.full((3,), float(k))
        assert compiled(x).tolist() == [7.0 * k] * 3 and weight.tolist() == [2.0 * k] * 3
    with pytest.raises(NotImplementedError, match=r"setting the data .* of another kind: float32\[3\], now float32\[2\]"):
        ts.compile(lambda x: setattr(weight, "data", x[1:]))(ts.ones(3))
