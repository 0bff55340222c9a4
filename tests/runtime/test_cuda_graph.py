"""Which steps of a graph come after which."""

import numpy as np
import pytest

from tensorsmith.runtime.cuda_graph import order_of, tail_of


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


def test_what_reads_changing_numbers_and_what_comes_after_is_left_behind():
    order = [[], [0], [1], [1], [2, 3], [0]]
    assert tail_of(order, {3}) == [3, 4]
    assert tail_of(order, {4, 5}) == [4, 5]
    assert tail_of(order, {1}) == []  # nearly everything
    assert tail_of(order, set()) == []


def test_steps_that_count_are_launched_behind_the_graph():
    """Adam's numbers change at every step: its kernels follow the graph, and the weights are those of eager steps."""
    import emulator
    import tensorsmith as ts

    emulator.activate()
    x, y = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32), [0, 2, 1, 1, 0]

    def trained(compiles):
        ts.manual_seed(0)
        model = ts.nn.Sequential(ts.nn.Linear(6, 8), ts.nn.ReLU(), ts.nn.Linear(8, 3)).to("cuda")
        optimizer = ts.optim.AdamW(model.parameters(), lr=0.05)

        def step(x, y):
            optimizer.zero_grad()
            loss = ts.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run = ts.compile(step) if compiles else step
        losses = [run(ts.tensor(x * k, device="cuda"), ts.tensor(y, device="cuda")).item() for k in range(1, 8)]
        return run, losses, [p.detach().cpu().numpy() for p in model.parameters()]

    _, eager, expected = trained(False)
    run, losses, found = trained(True)
    np.testing.assert_allclose(losses, eager, rtol=1e-5)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    plan = run.plans[0].plan
    (replay,) = plan.replays.graphs.values()
    assert replay.tail is not None and 4 <= len(replay.behind) <= len(plan.steps) / 2
    assert len(replay.sources) + len(replay.behind) == len(plan.steps)
