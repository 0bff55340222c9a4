"""`utils.checkpoint`: gradients of a part that is run again, in both forms."""

import importlib
import warnings

import pytest
from torch_twin import outcome, twin

import tensorsmith as ts

FORMS = [True, False]


def module(library):
    return importlib.import_module(library.__name__ + ".utils.checkpoint")


def kind(function):
    found = outcome(function)
    return type(found).__name__ if isinstance(found, Exception) else None


@pytest.mark.parametrize("reentrant", FORMS)
def test_values_gradients_and_runs(reentrant):
    def program(library, log):
        checkpoint, runs = module(library).checkpoint, []
        x = library.tensor([0.5, 1.0, 2.0], dtype=library.float64, requires_grad=True)
        w = library.tensor([1.0, 2.0, 3.0], dtype=library.float64, requires_grad=True)

        def part(a, factor, b):
            runs.append(library.is_grad_enabled())
            return (a * w).exp() * factor + b

        y = checkpoint(part, x, 2.0, w, use_reentrant=reentrant)
        log(y, y.requires_grad, runs)
        y.sum().backward()
        log(x.grad, w.grad, runs)
        y = checkpoint(part, x, 2.0, w, use_reentrant=reentrant)
        log(kind(lambda: library.autograd.grad(y.sum(), x)))
        pair = checkpoint(lambda a: (a * 2, a * a), x, use_reentrant=reentrant)
        pair[1].sum().backward()
        log(len(pair), x.grad)
        with library.no_grad():
            log(checkpoint(part, x, 2.0, w, use_reentrant=reentrant).requires_grad)
        log(kind(lambda: checkpoint(lambda a, factor=1: a * factor, x, factor=2, use_reentrant=reentrant)))

    twin(program)


@pytest.mark.parametrize("reentrant", FORMS)
def test_random_numbers_are_the_same_in_both_runs(reentrant):
    x = ts.ones(200, requires_grad=True)
    y = ts.utils.checkpoint.checkpoint(
        lambda a: ts.nn.functional.dropout(a * 1, 0.5) * a, x, use_reentrant=reentrant
    )  # fmt: skip
    before = ts.get_rng_state().clone()
    y.sum().backward()
    assert (x.grad == 2 * y).all() and 0 < int((y == 0).sum()) < 200
    assert (ts.get_rng_state() == before).all()
    x.grad = None
    y = ts.utils.checkpoint.checkpoint(
        lambda a: ts.nn.functional.dropout(a * 1, 0.5) * a, x, use_reentrant=reentrant, preserve_rng_state=False
    )  # fmt: skip
    y.sum().backward()
    assert not (x.grad == 2 * y).all()


def test_nested_and_repeated():
    def program(library, log):
        checkpoint = module(library).checkpoint
        x = library.tensor([0.5, 1.0], dtype=library.float64, requires_grad=True)

        def inner(a):
            return a.sin().exp()

        def outer(a):
            return checkpoint(inner, a * 2, use_reentrant=False).tanh() * a

        checkpoint(outer, x, use_reentrant=False).sum().backward()
        log(x.grad)
        y = checkpoint(inner, x, use_reentrant=False)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        log(x.grad)
        (first,) = library.autograd.grad(checkpoint(inner, x, use_reentrant=False).sum(), x, create_graph=True)
        log(first, library.autograd.grad(first.sum(), x))

    twin(program)


@pytest.mark.parametrize("second", [lambda a: (a * a)[:2].exp(), lambda a: a * a, lambda a: (a * a).exp().exp()])
def test_a_part_that_does_something_else_the_second_time(second):
    def program(library, log):
        runs = []

        def part(a):
            runs.append(1)
            return second(a) if len(runs) > 1 else (a * a).exp()

        checkpoint = module(library)
        with checkpoint.set_checkpoint_early_stop(False):
            y = checkpoint.checkpoint(part, library.ones(3, requires_grad=True), use_reentrant=False)
        log(kind(lambda: y.sum().backward()))

    twin(program)


def test_the_second_run_ends_early():
    reached = []

    def part(a):
        y = (a * a).exp()
        reached.append(1)
        return y + 1

    x = ts.ones(2, requires_grad=True)
    ts.utils.checkpoint.checkpoint(part, x, use_reentrant=False).sum().backward()
    assert reached == [1]


def test_nothing_is_kept_between():
    """What the part computes is freed when it has run, and again after the backward."""
    import gc
    import weakref

    kept = []

    def part(a):
        middle = a * a
        kept.append(weakref.ref(middle.storage))
        return (middle * a).exp()

    x = ts.ones(1000, requires_grad=True)
    y = ts.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
    gc.collect()
    assert kept[0]() is None
    y.sum().backward()
    del y
    gc.collect()
    assert kept[1]() is None


@pytest.mark.parametrize("reentrant", FORMS)
def test_a_chain_in_segments(reentrant):
    def program(library, log):
        chain = [lambda v: v * 2, lambda v: v.exp(), lambda v: v + 1, lambda v: v * v, lambda v: v.sin()]
        for segments in (1, 2, 3):
            x = library.tensor([0.1, 0.2], dtype=library.float64, requires_grad=True)
            y = module(library).checkpoint_sequential(chain, segments, x, use_reentrant=reentrant)
            y.sum().backward()
            log(y, x.grad)

    twin(program)


def test_warnings_and_wrong_arguments():
    def program(library, log):
        checkpoint, x = module(library).checkpoint, library.ones(2, requires_grad=True)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            checkpoint(lambda a: a * 2, library.ones(2), use_reentrant=True)
            checkpoint(lambda a: a * 2, x)
        log([str(w.message).split(": ")[0] for w in seen])
        log(kind(lambda: checkpoint(lambda a: a, x, use_reentrant=False, determinism_check="all")))
        log(module(library).CheckpointError.__mro__[1].__name__)

    twin(program)
