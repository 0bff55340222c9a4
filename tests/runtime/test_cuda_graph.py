"""Which steps of a graph come after which."""

import numpy as np
import pytest

from tensorsmith.runtime.cuda_graph import order_of


def step(reads, writes):
    return [(word, 0, 8) for word in reads], [(word, 0, 8) for word in writes]


def test_branches_are_independent_and_joined():
    assert order_of([step("a", "b"), step("b", "c"), step("b", "d"), step("cd", "e")]) == [[], [0], [0], [1, 2]]


def test_writes_wait_for_readers_and_writers():
    assert order_of([step("a", "b"), step("c", "a")]) == [[], [0]]
    assert order_of([step("a", "b"), step("c", "b")]) == [[], [0]]
    assert order_of([step("a", "b"), step("a", "c")]) == [[], []]


def test_parts_of_a_block_that_do_not_meet():
    first, second, both = ([], [("w", 0, 64)]), ([], [("w", 64, 128)]), ([("w", 60, 70)], [])
    assert order_of([first, second, both]) == [[], [], [0, 1]]


@pytest.mark.parametrize("seed", range(20))
def test_what_conflicts_is_ordered_and_nothing_is_said_twice(seed):
    rng = np.random.default_rng(seed)
    steps = [step(rng.choice(6, 2), rng.choice(6, 1)) for _ in range(25)]
    order = order_of(steps)
    before: list[set[int]] = []
    for number, direct in enumerate(order):
        known = set(direct).union(*(before[k] for k in direct))
        assert sum(len({k} & before[j]) for j in direct for k in direct) == 0  # no detour
        before.append(known)
        for other in range(number):
            reads, writes = ({place[0] for place in part} for part in steps[number])
            earlier_reads, earlier_writes = ({place[0] for place in part} for part in steps[other])
            if reads & earlier_writes or writes & (earlier_reads | earlier_writes):
                assert other in known
