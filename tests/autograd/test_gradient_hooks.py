"""Hooks against PyTorch: which run, in which order, what they may return."""

from torch_twin import outcome, twin


def leaf(t):
    return t.tensor([1.0, 2.0], requires_grad=True)


def test_tensor_hooks_replace_in_order_and_are_removable():
    def program(t, log):
        x = leaf(t)
        a = x * 2
        first = a.register_hook(lambda g: g * 10)
        a.register_hook(lambda g: log("second", g))
        handle = x.register_hook(lambda g: g + 1)
        a.sum().backward(retain_graph=True)
        log(x.grad)
        first.remove()
        first.remove()
        handle.remove()
        a.sum().backward()
        log(x.grad)

    twin(program)


def test_order_of_all_hooks():
    def program(t, log):
        x = leaf(t)
        a = x * 2
        a.grad_fn.register_prehook(lambda gs: log("node before", gs))
        a.grad_fn.register_hook(lambda gi, go: log("node after", gi[0], go))
        a.register_hook(lambda g: log("tensor 1", g))
        a.retain_grad()
        a.register_hook(lambda g: g * 2)
        accumulator = a.grad_fn.next_functions[0][0]
        accumulator.register_prehook(lambda gs: log("leaf node before", gs))
        accumulator.register_hook(lambda gi, go: log("leaf node after", list(gi), go))
        x.register_hook(lambda g: log("leaf", g))
        x.register_post_accumulate_grad_hook(lambda leaf: log("accumulated", leaf.grad))
        (a * a).sum().backward()
        log(a.grad, x.grad)

    twin(program)


def test_node_hooks_replace():
    def program(t, log):
        x = leaf(t)
        a = x.exp()
        a.grad_fn.register_prehook(lambda gs: (gs[0] * 2,))
        a.grad_fn.register_hook(lambda gi, go: (gi[0] * 3,))
        handle = a.grad_fn.register_hook(lambda gi, go: (gi[0] * 100,))
        handle.remove()
        a.sum().backward()
        log(x.grad)

    twin(program)


def test_leaf_hooks_outlive_the_graph():
    def program(t, log):
        x = leaf(t)
        x.register_hook(lambda g: log("hook", g))
        x.register_post_accumulate_grad_hook(lambda leaf: log("post", leaf.grad))
        for _ in range(2):
            (x * 3).sum().backward()
        log(t.autograd.grad((x * 3).sum(), x))

    twin(program)


def test_hook_sees_the_whole_sum():
    def program(t, log):
        x = leaf(t)
        a = x * 2
        a.register_hook(lambda g: log(g))
        (a * 3 + a.exp() + a * a).sum().backward()

    twin(program)


def test_capture_after_hooks():
    def program(t, log):
        x = leaf(t)
        a = x * 2
        a.register_hook(lambda g: g * 10)
        log(t.autograd.grad((a * a).sum(), a))

    twin(program)


def test_messages():
    def program(t, log):
        x = leaf(t)

        def run(hook):
            a = x * 2
            a.register_hook(hook)
            return outcome(lambda: a.sum().backward())

        log(run(lambda g: g.sum()))
        log(run(lambda g: g.double()))
        log(run(lambda g: 3))
        log(outcome(lambda: t.tensor([1.0]).register_hook(log)))
        log(outcome(lambda: t.tensor([1.0]).register_post_accumulate_grad_hook(log)))
        log(outcome(lambda: (x * 2).register_post_accumulate_grad_hook(log)))
        a = x.exp()
        a.grad_fn.register_hook(lambda gi, go: (gi[0], gi[0], gi[0]))
        log(outcome(lambda: a.sum().backward()))
        a = x.exp()
        a.grad_fn.register_hook(lambda gi, go: gi[0])
        log(outcome(lambda: a.sum().backward()))
        a = x.exp()
        a.grad_fn.register_prehook(lambda go: (go[0], go[0]))
        log(outcome(lambda: a.sum().backward()))

    twin(program)


def test_handle_as_context_manager():
    def program(t, log):
        x = leaf(t)
        with x.register_hook(lambda g: g * 5):
            (x * 1).sum().backward()
        (x * 1).sum().backward()
        log(x.grad)

    twin(program)


def test_optimizer_in_backward():
    def program(t, log):
        x = leaf(t)

        def step(leaf):
            with t.no_grad():
                leaf.sub_(leaf.grad * 0.1)
            leaf.grad = None

        x.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            (x * x).sum().backward()
        log(x, x.grad)

    twin(program)


def test_retained_gradient_follows_an_in_place_write():
    def program(t, log):
        x = leaf(t)
        a = x * 2
        a.register_hook(lambda g: log("before the write", g))
        a.retain_grad()
        a.mul_(3)
        a.register_hook(lambda g: log("after the write", g))
        (a * a).sum().backward()
        log(a.grad, x.grad)

    twin(program)


def test_retained_gradient_of_a_view_follows_a_write_to_its_base():
    def program(t, log):
        x = leaf(t)
        a = x * 1
        view = a.view(2, 1)
        view.retain_grad()
        a.mul_(2)
        (view * view).sum().backward()
        log(view.grad, x.grad)

    twin(program)


def test_retained_gradients_follow_a_write_through_a_view():
    def program(t, log):
        x = leaf(t)
        a = x * 1
        a.retain_grad()
        view = a.view(2, 1)
        view.retain_grad()
        view.mul_(2)
        (view * view).sum().backward()
        log(a.grad, view.grad, x.grad)

    twin(program)


def test_saved_tensors_hooks():
    def program(t, log):
        x = leaf(t)

        def pack(tensor):
            log("pack", tensor.requires_grad)
            return tensor.tolist()

        def unpack(values):
            return t.tensor(values)

        with t.autograd.graph.saved_tensors_hooks(pack, unpack):
            a = x.exp()
        (g,) = t.autograd.grad(a.sum(), x, create_graph=True)
        log(g)
        g.sum().backward()
        log(x.grad)

    twin(program)


def test_innermost_saved_tensors_hooks_win():
    def program(t, log):
        x = leaf(t)
        hooks = t.autograd.graph.saved_tensors_hooks
        with hooks(lambda v: v, lambda v: v * 100), hooks(lambda v: v, lambda v: v * 2):
            a = x.exp()
        a.sum().backward()
        log(x.grad)

    twin(program)
