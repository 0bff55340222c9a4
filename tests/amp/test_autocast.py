"""`autocast` as a mode: nesting, casts that are kept, gradients, compiled functions, transforms, checkpoints, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import tensorsmith as ts
from tensorsmith.amp import autocast_mode
from tensorsmith.eager import fast
from tensorsmith.eager.fast import FAST
from tensorsmith.tensor.modes import modes
from tensorsmith.utils.checkpoint import checkpoint

F = ts.nn.functional


@pytest.fixture(autouse=True)
def off_afterwards():
    yield
    assert modes.autocast is None and not fast._routing
    assert not modes.casts


def weights(lib, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((6, 4), (6,), (3, 6), (3,))
    return [lib.tensor(rng.standard_normal(s).astype("float32"), requires_grad=True) for s in shapes]


def network(lib, x, w):
    hidden = lib.nn.functional.gelu(lib.nn.functional.linear(x, w[0], w[1]))
    return lib.nn.functional.linear(hidden, w[2], w[3])


def loss_of(lib, x, w, labels=(0, 2, 1, 1, 0)):
    return lib.nn.functional.cross_entropy(network(lib, x, w), lib.tensor(list(labels)))


def batch(lib, seed=1):
    return lib.tensor(np.random.default_rng(seed).standard_normal((5, 4)).astype("float32"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_training_step_as_pytorch(dtype):
    found = []
    for lib in (torch, ts):
        w = weights(lib)
        with lib.autocast("cpu", dtype=getattr(lib, dtype)):
            output = network(lib, batch(lib), w)
            loss = loss_of(lib, batch(lib), w)
        loss.backward()
        found.append((output, loss, [each.grad for each in w]))
    (output, loss, grads), (our_output, our_loss, our_grads) = found
    assert our_output.dtype is getattr(ts, dtype) and our_loss.dtype is ts.float32
    np.testing.assert_allclose(our_loss.item(), loss.item(), rtol=1e-2)
    for ours, theirs in zip(our_grads, grads):
        assert ours.dtype is ts.float32
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=3e-2, atol=1e-2)


def test_nesting_and_switches():
    x = ts.ones(2, 2)
    assert not ts.is_autocast_enabled("cpu") and ts.get_autocast_dtype("cpu") is ts.bfloat16
    assert ts.get_autocast_dtype("cuda") is ts.float16
    with ts.autocast("cpu"):
        assert ts.is_autocast_enabled("cpu") and not ts.is_autocast_enabled("cuda")
        assert (x @ x).dtype is ts.bfloat16
        with ts.autocast("cpu", dtype=ts.float16):
            assert (x @ x).dtype is ts.float16 and ts.get_autocast_dtype("cpu") is ts.float16
            with ts.autocast("cpu", enabled=False):
                assert (x @ x).dtype is ts.float32 and not ts.is_autocast_enabled("cpu")
        assert (x @ x).dtype is ts.bfloat16
        ts.set_autocast_enabled("cuda", True)
        assert (x @ x).dtype is ts.bfloat16 and ts.is_autocast_enabled("cuda")
        ts.set_autocast_enabled("cuda", False)
    assert (x @ x).dtype is ts.float32


def test_one_object_nests_in_itself_and_decorates():
    mode = ts.amp.autocast("cpu")
    x = ts.ones(2, 2)

    @mode
    def double(x):
        return x @ x

    with mode, mode:
        assert (x @ x).dtype is ts.bfloat16
    assert double(x).dtype is ts.bfloat16 and double.__name__ == "double"
    assert (x @ x).dtype is ts.float32
    with pytest.raises(TypeError, match="requires a callable"):
        mode(3)


def test_the_mode_is_left_when_the_region_raises():
    with pytest.raises(ZeroDivisionError), ts.autocast("cpu"):
        1 / 0  # noqa: B018
    assert (ts.ones(2, 2) @ ts.ones(2, 2)).dtype is ts.float32


def test_functions_that_switch():
    ts.set_autocast_enabled("cpu", True)
    try:
        assert (ts.ones(2, 2) @ ts.ones(2, 2)).dtype is ts.bfloat16
        ts.set_autocast_dtype("cpu", ts.float16)
        assert (ts.ones(2, 2) @ ts.ones(2, 2)).dtype is ts.float16
    finally:
        ts.set_autocast_enabled("cpu", False)
        ts.set_autocast_dtype("cpu", ts.bfloat16)
        ts.clear_autocast_cache()
    ts.set_autocast_enabled(True)
    assert ts.is_autocast_enabled() and ts.is_autocast_enabled("cuda")
    ts.set_autocast_enabled(False)
    assert ts.is_autocast_cache_enabled()
    ts.set_autocast_cache_enabled(False)
    assert not ts.is_autocast_cache_enabled()
    ts.set_autocast_cache_enabled(True)
    with pytest.warns(DeprecationWarning, match="get_autocast_dtype"):
        assert ts.get_autocast_gpu_dtype() is ts.float16


def test_bad_arguments():
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        ts.autocast(ts.device("cpu"))
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'tpu'"):
        ts.autocast("tpu")
    with pytest.warns(UserWarning, match="In CPU autocast, but the target dtype is not supported"):
        mode = ts.autocast("cpu", dtype=ts.float64)
    with mode:
        assert (ts.ones(2, 2) @ ts.ones(2, 2)).dtype is ts.float32
    with pytest.raises(RuntimeError, match="unknown device type"):
        ts.is_autocast_enabled("tpu")


def test_float64_and_integers_are_left_alone():
    with ts.autocast("cpu"):
        x = ts.ones(2, 2, dtype=ts.float64)
        assert (x @ x).dtype is ts.float64
        assert (ts.ones(2, 2, dtype=ts.int64) @ ts.ones(2, 2, dtype=ts.int64)).dtype is ts.int64
        with pytest.raises(RuntimeError, match="same dtype"):
            x @ ts.ones(2, 2)


def test_writes_in_place_and_into_out_are_not_seen():
    x = ts.ones(2, 2)
    with ts.autocast("cpu"):
        out = ts.empty(2, 2)
        assert ts.mm(x, x, out=out).dtype is ts.float32 and out[0, 0].item() == 2.0
        y = ts.ones(2, 2)
        y.addmm_(x, x)
        assert y.dtype is ts.float32 and y[0, 0].item() == 3.0


# --- casts that are kept ----------------------------------------------------------------------------------------------


def saved_weight(y):
    """The weight that a product's node keeps for the gradient of its input."""
    return next(saved for saved in y.node.saved if getattr(saved, "shape", None) == (6, 4))


def test_a_weight_is_cast_once():
    w, x = weights(ts)[0], ts.ones(2, 4, requires_grad=True)
    with ts.autocast("cpu"):
        first, second = F.linear(x, w), F.linear(x, w)
        assert saved_weight(first) is saved_weight(second)
        assert len(modes.casts) == 2  # x is a leaf too
        with ts.autocast("cpu"):
            third = F.linear(x, w)
        assert saved_weight(third) is saved_weight(first)
        ts.clear_autocast_cache()
        assert saved_weight(F.linear(x, w)) is not saved_weight(first)
    (first.float().sum() + second.float().sum()).backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.full((6, 4), 4.0))


def test_without_keeping_it_is_cast_each_time():
    w, x = weights(ts)[0], ts.ones(2, 4, requires_grad=True)
    with ts.autocast("cpu", cache_enabled=False):
        assert not ts.is_autocast_cache_enabled()
        assert saved_weight(F.linear(x, w)) is not saved_weight(F.linear(x, w))
    assert ts.is_autocast_cache_enabled()


def test_a_weight_that_is_written_is_cast_again():
    w = ts.ones(3, 3, requires_grad=True)
    x = ts.ones(3)
    with ts.autocast("cpu"):
        before = F.linear(x, w)
        with ts.no_grad():
            w.mul_(2)
        after = F.linear(x, w)
    assert before[0].item() == 3.0 and after[0].item() == 6.0


def test_a_cast_without_gradients_is_not_used_with_them():
    w = weights(ts)[0]
    x = ts.ones(2, 4)
    with ts.autocast("cpu"):
        with ts.no_grad():
            assert not F.linear(x, w).requires_grad
        F.linear(x, w).float().sum().backward()
    assert w.grad is not None


def test_two_backwards_through_one_cast():
    w = weights(ts)[0]
    with ts.autocast("cpu"):
        a, b = F.linear(ts.ones(2, 4), w).float().sum(), F.linear(ts.ones(2, 4), w).float().sum()
    a.backward()
    b.backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.full((6, 4), 4.0))


# --- FAST -------------------------------------------------------------------------------------------------------------


def test_entries_outlive_a_region():
    x = ts.ones(7, 7)
    y, z = x @ x, x + x  # noqa: F841
    product = next(key for key in FAST if getattr(key[0], "name", "") == "matmul" and key[1] is x.layout)
    total = next(key for key in FAST if getattr(key[0], "name", "") == "add" and key[1] is x.layout)
    entry, adding = FAST[product], FAST[total]
    with ts.autocast("cpu"):
        assert product not in FAST, "a routed operator has no entry while some thread is in the mode"
        assert FAST[total] is adding, "others keep theirs"
        x @ x  # noqa: B018
        assert product not in FAST
    x @ x  # noqa: B018 - the first call without the mode gives FAST its entries back
    assert FAST[product] is entry and not fast.routed and not fast.ASIDE


def test_another_thread_is_not_in_the_mode():
    x = ts.ones(5, 5)
    entered, done = threading.Event(), threading.Event()
    seen = []

    def other():
        entered.wait()
        seen.append((x @ x).dtype)
        seen.append((x @ x).dtype)
        with ts.autocast("cpu", dtype=ts.float16):
            seen.append((x @ x).dtype)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with ts.autocast("cpu"):
        entered.set()
        done.wait()
        assert (x @ x).dtype is ts.bfloat16
    thread.join()
    assert seen == [ts.float32, ts.float32, ts.float16]


# --- compiled functions -----------------------------------------------------------------------------------------------


def test_compiled_under_the_mode_and_without():
    w = [each.detach() for each in weights(ts)]
    compiled = ts.compile(lambda x: network(ts, x, w))
    x = batch(ts)
    for _ in range(3):
        plain = compiled(x)
        with ts.autocast("cpu"):
            lower = compiled(x)
            eager = network(ts, x, w)
        assert plain.dtype is ts.float32 and lower.dtype is ts.bfloat16
        np.testing.assert_allclose(lower.float().numpy(), eager.float().numpy(), rtol=2e-2, atol=2e-2)
    assert len(compiled.plans) == 2


def test_the_mode_inside_of_a_compiled_step():
    def step(x, w):
        with ts.autocast("cpu"):
            loss = loss_of(ts, x, w)
        for each in w:
            each.grad = None
        loss.backward()
        return loss

    w, v = weights(ts), weights(ts)
    compiled = ts.compile(lambda x: step(x, v))
    for seed in range(3):
        eager_loss, compiled_loss = step(batch(ts, seed), w), compiled(batch(ts, seed))
        np.testing.assert_allclose(compiled_loss.item(), eager_loss.item(), rtol=1e-2)
        for a, b in zip(w, v):
            assert b.grad.dtype is ts.float32
            np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy(), rtol=3e-2, atol=1e-2)
    assert len(compiled.plans) == 2  # the weights had no gradients at first


def test_a_compiled_function_does_not_keep_the_casts_of_its_surroundings():
    w = ts.ones(3, 3, requires_grad=True)
    compiled = ts.compile(lambda x: F.linear(x, w))
    x = ts.ones(3)
    with ts.autocast("cpu"):
        F.linear(x, w)  # the cast is kept now
        assert compiled(x)[0].item() == 3.0
        kept = len(modes.casts)
        with ts.no_grad():
            w.mul_(2)
        assert compiled(x)[0].item() == 6.0
        assert len(modes.casts) == kept
    assert len(compiled.plans) == 1


# --- transforms, checkpoints, Function --------------------------------------------------------------------------------


def test_function_transforms():
    w, x = ts.randn(4, 4), ts.randn(3, 4)
    with ts.autocast("cpu"):
        grads = ts.func.grad(lambda w: F.linear(x, w).float().pow(2).sum())(w)
        rows = ts.vmap(lambda row: F.linear(row, w))(x)
        assert grads.dtype is ts.float32 and rows.dtype is ts.bfloat16
        leaf = w.clone().requires_grad_()
        F.linear(x, leaf).float().pow(2).sum().backward()
    np.testing.assert_allclose(grads.numpy(), leaf.grad.numpy(), rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(rows.float().numpy(), (x @ w.T).numpy(), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_computes_again_in_the_mode_of_the_first_run(reentrant):
    dtypes, w = [], weights(ts)[0]

    def part(x):
        y = F.linear(x, w)
        dtypes.append(y.dtype)
        return y.float().sin()

    x = ts.ones(2, 4, requires_grad=True)
    with ts.autocast("cpu"):
        y = checkpoint(part, x, use_reentrant=reentrant)
    y.sum().backward()
    assert dtypes == [ts.bfloat16, ts.bfloat16]
    y = checkpoint(part, x, use_reentrant=reentrant)
    with ts.autocast("cpu"):
        y.sum().backward()
    assert dtypes[2:] == [ts.float32, ts.float32]


@pytest.mark.parametrize("cast_inputs", [None, "float32"])
def test_custom_functions(cast_inputs):
    found = {}
    for lib in (torch, ts):
        dtypes = []

        class Product(lib.autograd.Function):
            @staticmethod
            @lib.amp.custom_fwd(device_type="cpu", cast_inputs=cast_inputs and getattr(lib, cast_inputs))
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                product = a @ b
                dtypes.append(product.dtype)  # noqa: B023
                return product

            @staticmethod
            @lib.amp.custom_bwd(device_type="cpu")
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                left = grad @ b.T
                dtypes.append(left.dtype)  # noqa: B023
                return left, a.T @ grad

        a = lib.ones(2, 3, requires_grad=True)
        b = lib.ones(3, 4, requires_grad=True)
        with lib.autocast("cpu"):
            y = Product.apply(a.half() if cast_inputs else a, b)
        y.float().sum().backward()
        z = Product.apply(a, b)
        z.sum().backward()
        found[lib] = [str(d).split(".")[-1] for d in (*dtypes, y.dtype, z.dtype, a.grad.dtype, b.grad.dtype)]
    assert found[ts] == found[torch]


def test_without_a_device_cuda_is_not_on(monkeypatch):
    monkeypatch.setattr(autocast_mode, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="CUDA is not available. Disabling autocast"):
        mode = ts.amp.autocast("cuda")
    with mode:
        assert not ts.is_autocast_enabled("cuda")
    assert ts.amp.is_autocast_available("cuda") and not ts.amp.is_autocast_available("tpu")


def test_the_older_names_of_cuda_warn():
    from tensorsmith.cuda.amp import GradScaler, autocast, custom_bwd, custom_fwd

    assert ts.cuda.amp.autocast is autocast
    with pytest.warns(FutureWarning, match=r"Please use `ts.amp.autocast\('cuda', args...\)` instead"):
        assert autocast(enabled=False).device == "cuda"
    with pytest.warns(FutureWarning, match="GradScaler"):
        assert not GradScaler(enabled=False).is_enabled()
    with pytest.warns(FutureWarning, match="custom_fwd"):
        custom_fwd(lambda ctx, x: x)
    with pytest.warns(FutureWarning, match="custom_bwd"):
        custom_bwd(lambda ctx, x: x)


@pytest.mark.parametrize("remembers", [ts.sum, ts.linalg.vector_norm], ids=["sum", "vector_norm"])
def test_an_argument_that_no_key_can_hold_leaves_the_next_region_whole(remembers):
    """A call with a list among its arguments is not kept; a region that is entered later lists only what was kept."""
    x = ts.ones(2, 3)
    with ts.autocast("cpu"):
        pass  # routable operators are known from here on
    fast.forget()
    remembers(x, dim=[0, 1])
    before = list(fast._keys)
    with pytest.raises(TypeError):
        fast.remember((next(iter(fast._routable)), [0, 1]), lambda: None)
    assert fast._keys == before
    with ts.autocast("cpu"):
        assert (x @ x.T).dtype is ts.bfloat16
    assert (x @ x.T).dtype is ts.float32
