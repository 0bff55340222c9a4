"""Random programs of views, writes in place, hooks and gradients: every step does what PyTorch does (`random_programs.py`).

TENSORSMITH_FUZZ sets how many programs of the fixed sequence of seeds are run; hypothesis, which shrinks what fails, adds
a few.
"""

import os
import random

import pytest
import random_programs
from hypothesis import HealthCheck, given, settings, strategies as st

PROGRAMS = int(os.environ.get("TENSORSMITH_FUZZ", "300"))
FIRST = int(os.environ.get("TENSORSMITH_FUZZ_SEED", "0"))
A_TEST = 50

number = st.integers(0, 11)
small = st.integers(0, 5)
leaves = st.lists(st.tuples(number, st.integers(0, 8), st.integers(0, 2)), min_size=2, max_size=3)
step = st.tuples(st.integers(0, 8), st.integers(0, 239), number, number, small, small, small)
program = st.tuples(leaves, st.lists(step, min_size=3, max_size=10))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, A_TEST))
def test_programs_of_fixed_seeds(first):
    for seed in range(first, first + A_TEST):
        drawn = random_programs.draw(random.Random(seed))
        try:
            random_programs.run(drawn)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {drawn}") from error


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program)
def test_random_programs(drawn):
    random_programs.run(drawn)


# What once differed, shrunk: (leaves, steps).
FOUND = {
    "a second backward where nothing was saved": (
        [(0, 0, 1), (0, 0, 0)], [(7, 2, 0, 0, 0, 0, 1), (0, 18, 2, 0, 0, 0, 1), (8, 4, 3, 0, 1, 0, 1)]),
    "requires_grad of what an operator made": ([(0, 0, 0), (0, 0, 1)], [(4, 8, 0, 1, 0, 0, 1), (8, 10, 0, 0, 0, 0, 0)]),
    "a view made without gradients, written without them, asked to retain": (
        [(0, 0, 1), (0, 0, 0)], [(2, 14, 0, 0, 0, 0, 0), (4, 5, 0, 0, 0, 0, 0), (8, 2, 2, 0, 0, 0, 0)]),
    "the gradient of a view made without gradients": (
        [(0, 0, 1), (0, 0, 0)], [(0, 8, 0, 0, 0, 0, 0), (0, 15, 0, 0, 0, 0, 0), (8, 6, 0, 3, 0, 0, 1)]),
    "a view, made without gradients, of a view whose base was detached": (
        [(0, 0, 0), (0, 0, 1)], [(0, 9, 1, 0, 0, 0, 1), (8, 0, 1, 0, 0, 0, 0), (1, 6, 2, 0, 0, 0, 0)]),
    "as_strided where an axis of extent one comes first in memory": ([(11, 0, 1), (0, 0, 0)], [(2, 20, 0, 0, 0, 0, 0)]),
    "zeros_like is not a write": ([(0, 0, 0), (0, 0, 0)], [(6, 25, 0, 0, 0, 0, 0)]),
    "masked_fill of integers with a fraction": ([(0, 4, 0), (0, 0, 0)], [(5, 15, 0, 0, 0, 0, 0)]),
    "view(dtype) is no view to autograd": ([(0, 0, 0), (0, 0, 0)], [(2, 33, 0, 0, 0, 0, 0)]),
    "movedim of a number": ([(6, 0, 0), (0, 0, 0)], [(2, 27, 0, 0, 0, 0, 0)]),
    "a write over memory that is read through .data": (
        [(0, 0, 0), (3, 0, 0)], [(0, 11, 1, 0, 0, 0, 0), (2, 38, 1, 0, 0, 0, 0), (7, 20, 0, 0, 0, 0, 0),
                                 (5, 12, 8, 7, 0, 0, 0)]),
    "a complex number written over bool": ([(4, 5, 0), (0, 0, 0)], [(4, 40, 0, 0, 0, 0, 1)]),
    "view(dtype) of one element between others": (
        [(3, 6, 0), (0, 0, 0)], [(2, 9, 0, 0, 0, 0, 1), (2, 44, 2, 0, 0, 0, 1)]),
    "nothing is freed where gradients go to nobody": (
        [(10, 2, 2), (4, 3, 1)], [(1, 37, 0, 1, 1, 2, 0), (7, 7, 2, 2, 5, 4, 3), (8, 9, 3, 1, 5, 5, 5)]),
    "ravel copies, and views the copy": ([(2, 0, 0), (0, 0, 0)], [(2, 0, 0, 0, 0, 0, 0), (0, 35, 2, 0, 0, 0, 0)]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FOUND)
def test_found(name):
    random_programs.run(FOUND[name])
