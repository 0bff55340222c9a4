"""The engine on nodes made by hand, long chains, threads, what is taken over and what is freed."""

import gc
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

import tensorsmith as ts
from tensorsmith.autograd import engine
from tensorsmith.autograd.memory import as_array
from tensorsmith.autograd.node import Node, gradient_edge


class Recorder(Node):
    """Passes its gradient on, and notes that it ran."""

    ran: list = []

    def __init__(self, name, *inputs):
        super().__init__(tuple((node, 0) for node in inputs))
        self.label = name

    def name(self):
        return self.label

    def apply(self, grads):
        Recorder.ran.append((self.label, grads[0].tolist()))
        return [grads[0]] * len(self.edges)


@pytest.fixture(autouse=True)
def nothing_ran():
    Recorder.ran = []


def one():
    return ts.tensor([1.0])


def test_each_node_runs_once_after_all_that_feed_it():
    a = Recorder("a")
    b = Recorder("b", a)
    c = Recorder("c", a, b)
    d = Recorder("d", c, b, a)
    engine.run([(d, 0, one())], False, False)
    assert Recorder.ran == [("d", [1.0]), ("c", [1.0]), ("b", [2.0]), ("a", [4.0])]


def test_only_nodes_towards_the_targets():
    a, other = Recorder("a"), Recorder("other")
    b = Recorder("b", a, other)
    c = Recorder("c", other)
    d = Recorder("d", c, b)
    needed = engine.nodes_towards([d], {a})
    assert {n.label for n in needed} == {"b", "d"}
    results = [None]
    engine.run_towards([(d, 0, one())], False, False, needed, {a: [(0, 0)]}, results)
    assert [name for name, _ in Recorder.ran] == ["d", "b"] and results[0].tolist() == [1.0]


def test_grad_mode_is_that_of_the_backward_and_comes_back():
    seen = []

    class Looks(Recorder):
        def apply(self, grads):
            seen.append(ts.is_grad_enabled())
            if self.label == "fails":
                raise ValueError("mine")
            return ()

    engine.run([(Looks("x"), 0, one())], False, False)
    engine.run([(Looks("x"), 0, one())], False, True)
    with pytest.raises(ValueError, match="mine"):
        engine.run([(Looks("fails"), 0, one())], False, False)
    assert seen == [False, True, False] and ts.is_grad_enabled()


def test_fresh_gradient_is_taken_over():
    class Fresh(Node):
        made: int

        def apply(self, grads):
            fresh = ts.tensor([5.0])
            self.made = fresh.data_ptr()
            return (fresh,)

    class Keeps(Node):
        kept: ts.Tensor

        def apply(self, grads):
            self.kept = ts.tensor([5.0])
            return (self.kept,)

    class SharesMemory(Node):
        kept: ts.Tensor

        def apply(self, grads):
            fresh = ts.tensor([5.0])
            self.kept = fresh.detach()
            return (fresh,)

    x = ts.tensor([1.0], requires_grad=True)
    node = Fresh((gradient_edge(x),))
    engine.run([(node, 0, one())], False, False)
    assert x.grad.data_ptr() == node.made
    for kind in (Keeps, SharesMemory):
        x.grad = None
        node = kind((gradient_edge(x),))
        engine.run([(node, 0, one())], False, False)
        assert x.grad.tolist() == [5.0] and x.grad.data_ptr() != node.kept.data_ptr(), kind


def test_numpy_view_of_a_gradient_forbids_taking_it_over():
    class Shows(Node):
        array: object

        def apply(self, grads):
            fresh = ts.tensor([5.0])
            self.array = fresh.numpy()
            return (fresh,)

    x = ts.tensor([1.0], requires_grad=True)
    node = Shows((gradient_edge(x),))
    engine.run([(node, 0, one())], False, False)
    x.grad.add_(1)
    assert node.array[0] == 5.0 and x.grad.tolist() == [6.0]


def test_long_chains_without_recursion():
    program = """
        import threading
        import tensorsmith as ts

        def run():
            x = ts.tensor([1.0], requires_grad=True)
            y = x
            for _ in range(100_000):
                y = y * 1.0
            y.sum().backward()
            assert x.grad.tolist() == [1.0]
            del y                        # freed after the backward
            y = x
            for _ in range(100_000):
                y = y.sin()              # saves its input
            del y                        # freed without one
            y = x
            for _ in range(100_000):
                y = y.exp() * 0.0        # saves its output
            ts.autograd.grad(y.sum(), x)
            print("done")

        threading.stack_size(256 * 1024)  # a recursion would not fit
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-2000:]


def test_graph_is_freed_with_its_last_tensor():
    gc.disable()
    try:
        x = ts.tensor([1.0, 2.0], requires_grad=True)
        a = x * 2
        middle = weakref.ref(a.grad_fn)
        loss = (a.exp() * a).sum()
        del a
        assert middle() is not None
        loss.backward()
        del loss
        assert middle() is None
    finally:
        gc.enable()


def test_cycles_through_hooks_are_collected():
    def cycle():
        a = ts.tensor([1.0], requires_grad=True) * 2
        a.register_hook(lambda g: a * g)
        return weakref.ref(a.grad_fn)

    node = cycle()
    assert node() is not None
    gc.collect()
    assert node() is None


def test_threads_that_share_leaves():
    x = ts.tensor([1.0, 2.0, 3.0], requires_grad=True)
    threads, steps = 6, 50
    failures = []

    def work():
        try:
            for _ in range(steps):
                (x * x).sum().backward()
        except Exception as error:  # reported below: an error in a thread is not one of the test
            failures.append(error)

    running = [threading.Thread(target=work) for _ in range(threads)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert as_array(x.grad).tolist() == [2.0 * n * threads * steps for n in (1, 2, 3)]


def test_grad_mode_is_per_thread():
    seen = []
    with ts.no_grad():
        thread = threading.Thread(target=lambda: seen.append(ts.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_missing_arithmetic_says_so():
    from tensorsmith.autograd.arithmetic import Arithmetic, set_arithmetic

    with pytest.raises(NotImplementedError, match="add"):
        Arithmetic().add(one(), one())
    with pytest.raises(TypeError, match="no function named 'divide'"):
        set_arithmetic(divide=None)


def test_a_node_without_apply():
    with pytest.raises(NotImplementedError, match="Node has no backward"):
        engine.run([(Node(), 0, one())], False, False)
