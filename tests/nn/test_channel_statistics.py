"""Layers that normalise by channel, against PyTorch's: text, state, results and gradients over steps and in evaluation."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import tensorsmith as ts

LINE, ROWS, IMAGE, VOLUME = (4, 3, 5), (4, 3), (2, 3, 4, 4), (2, 3, 2, 3, 4)
LAYERS = [
    ("BatchNorm1d", (3,), {}, LINE),
    ("BatchNorm1d", (3,), {"momentum": None}, ROWS),
    ("BatchNorm1d", (3,), {"affine": False, "track_running_stats": False}, LINE),
    ("BatchNorm2d", (3,), {"bias": False, "eps": 1e-2}, IMAGE),
    ("BatchNorm3d", (3,), {"momentum": 0.7}, VOLUME),
    ("InstanceNorm1d", (3,), {}, LINE),
    ("InstanceNorm1d", (3,), {"affine": True}, LINE[1:]),
    ("InstanceNorm2d", (3,), {"affine": True, "track_running_stats": True}, IMAGE),
    ("InstanceNorm2d", (3,), {}, IMAGE[1:]),
    ("InstanceNorm3d", (3,), {"track_running_stats": True, "momentum": 0.5}, VOLUME),
    ("GroupNorm", (3, 6), {}, (2, 6, 5)),
    ("GroupNorm", (2, 6), {"affine": False}, (2, 6, 2, 2)),
    ("LocalResponseNorm", (3,), {}, (2, 6, 2, 2)),
    ("LocalResponseNorm", (4,), {"alpha": 0.1, "beta": 0.5, "k": 2.0}, (2, 6, 3)),
    ("LazyBatchNorm1d", (), {}, ROWS),
    ("LazyBatchNorm2d", (), {"momentum": None, "bias": False}, IMAGE),
    ("LazyBatchNorm3d", (), {"affine": False}, VOLUME),
    ("LazyInstanceNorm1d", (), {"affine": True}, LINE),
    ("LazyInstanceNorm2d", (), {"track_running_stats": True}, IMAGE),
    ("LazyInstanceNorm3d", (), {}, VOLUME),
]
RANDOM = np.random.default_rng(3)


def same_state(ours, theirs):
    mine, expected = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(expected)
    for key, value in expected.items():
        assert mine[key].dtype.name == str(value.dtype).split(".")[-1]
        np.testing.assert_allclose(mine[key].numpy(), value.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "args", "options", "shape"), LAYERS, ids=lambda v: v if isinstance(v, str) else "")
def test_steps_and_evaluation(name, args, options, shape):
    theirs, ours = getattr(torch.nn, name)(*args, **options), getattr(ts.nn, name)(*args, **options)
    assert repr(ours) == repr(theirs)
    for step in range(4):
        if step == 3:
            theirs.eval(), ours.eval()
        x = RANDOM.standard_normal(shape).astype(np.float32)
        a, b = ts.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        found, wanted = ours(a), theirs(b)
        assert repr(ours) == repr(theirs)
        np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
        (found**3).sum().backward()
        (wanted**3).sum().backward()
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-3, atol=1e-3)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-3, atol=1e-3)
        same_state(ours, theirs)


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("BatchNorm1d", (3,), (2, 3, 4, 4)), ("BatchNorm2d", (3,), (2, 3, 4)), ("BatchNorm3d", (3,), (2, 3, 4)),
        ("BatchNorm1d", (3,), (1, 3)), ("BatchNorm1d", (4,), (2, 3)), ("InstanceNorm1d", (3,), (3,)),
        ("InstanceNorm2d", (3,), (3, 4)), ("InstanceNorm2d", (4, 1e-5, 0.1, True), (2, 3, 4, 4)),
        ("InstanceNorm1d", (3,), (2, 3, 1)), ("GroupNorm", (2, 6), (2, 4, 3)), ("LocalResponseNorm", (2,), (2, 3)),
    ],
)  # fmt: skip
def test_refusals_are_pytorchs(name, args, shape):
    with pytest.raises(Exception) as wanted:
        getattr(torch.nn, name)(*args)(torch.ones(shape))
    with pytest.raises(type(wanted.value)):
        getattr(ts.nn, name)(*args)(ts.ones(*shape))


def test_groups_that_do_not_divide_the_channels():
    with pytest.raises(ValueError, match=r"num_channels \(5\) must be divisible by num_groups \(2\)"):
        ts.nn.GroupNorm(2, 5)


def test_an_empty_batch():
    assert ts.nn.GroupNorm(2, 4)(ts.ones(0, 4, 3)).shape == (0, 4, 3)
    assert ts.nn.BatchNorm1d(4).eval()(ts.ones(0, 4)).shape == (0, 4)


def test_the_window_of_cross_map_normalisation():
    x = RANDOM.standard_normal((2, 5, 2, 2))
    found = ts.nn.CrossMapLRN2d(4, alpha=0.2, beta=0.5, k=2.0)(ts.tensor(x)).numpy()
    padded = np.pad(x**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    sums = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    np.testing.assert_allclose(found, x / np.sqrt(2.0 + 0.2 / 4 * sums), rtol=1e-12)
    odd, local = ts.nn.CrossMapLRN2d(3, alpha=0.2), ts.nn.LocalResponseNorm(3, alpha=0.2)
    np.testing.assert_allclose(odd(ts.tensor(x)).numpy(), local(ts.tensor(x)).numpy(), rtol=1e-14)
    with pytest.raises(ValueError, match="4D, got 3D"):
        odd(ts.ones(2, 3, 4))


def test_a_state_without_the_count_of_batches():
    layer = ts.nn.BatchNorm1d(2)
    layer(ts.tensor([[1.0, 2.0], [3.0, 4.0]]))
    state = {key: value for key, value in ts.nn.BatchNorm1d(2).state_dict().items() if key != "num_batches_tracked"}
    layer.load_state_dict(state)
    assert layer.num_batches_tracked.item() == 1 and layer.running_mean.tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="running_mean.*track_running_stats=False"):
        ts.nn.InstanceNorm1d(2).load_state_dict(ts.nn.InstanceNorm1d(2, track_running_stats=True).state_dict())


def test_compiled_steps_move_the_running_statistics():
    eager, layer = ts.nn.BatchNorm1d(3), ts.nn.BatchNorm1d(3)
    compiled = ts.compile(layer)
    for _ in range(3):
        x = ts.tensor(RANDOM.standard_normal((5, 3)).astype(np.float32))
        np.testing.assert_allclose(compiled(x).detach().numpy(), eager(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    for key, value in eager.state_dict().items():
        np.testing.assert_allclose(layer.state_dict()[key].numpy(), value.numpy(), rtol=1e-6)


def test_batch_norm_of_one_process():
    """SyncBatchNorm without a process group is batch norm, converted layers too; a group is refused."""
    x, found = RANDOM.standard_normal((4, 3, 5)).astype(np.float32), []
    for lib in (ts, torch):
        nn = lib.nn
        inner = nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Tanh())
        net = nn.Sequential(nn.BatchNorm1d(3, eps=1e-3, affine=False), inner)
        weight = net[1][0].weight
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
        assert isinstance(net[1][0], nn.SyncBatchNorm) and net[1][0].weight is weight and net[0].eps == 1e-3
        assert isinstance(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(2)), nn.SyncBatchNorm)
        y = net(lib.tensor(x))
        net.eval()
        found.append([y.detach().numpy(), net(lib.tensor(x)).detach().numpy(), net[1][0].running_var.numpy(), repr(net)])
        with pytest.raises(ValueError, match="at least 2D input"):
            nn.SyncBatchNorm(3)(lib.ones(3))
        with pytest.raises(ValueError, match="channels should be non-zero"):
            nn.SyncBatchNorm(0)(lib.ones(3, 0))
    assert found[0].pop() == found[1].pop()
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    with pytest.raises(NotImplementedError, match="process_group"):
        ts.nn.SyncBatchNorm(3, process_group=object())


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype):
    layer = ts.nn.BatchNorm2d(3, dtype=getattr(ts, dtype))
    x = RANDOM.standard_normal(IMAGE)
    found = layer(ts.tensor(x, dtype=getattr(ts, dtype)))
    assert found.dtype is layer.running_mean.dtype is getattr(ts, dtype)
    mean, deviation = x.mean((0, 2, 3), keepdims=True), x.std((0, 2, 3), keepdims=True)
    tolerance = {"float64": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(
        found.detach().to(ts.float64).numpy(), (x - mean) / deviation, rtol=tolerance, atol=tolerance
    )


# --- lazy layers ------------------------------------------------------------------------------------------------------


def test_a_lazy_linear_takes_its_size_from_the_input():
    layer = ts.nn.LazyLinear(3)
    assert repr(layer) == repr(torch.nn.LazyLinear(3))
    assert list(layer.state_dict()) == ["weight", "bias"]
    model = ts.nn.Sequential(layer, ts.nn.Tanh(), ts.nn.LazyLinear(2, bias=False)).double()
    assert layer.weight.dtype is ts.float64
    optimizer = ts.optim.SGD(model.parameters(), lr=0.1)
    assert model(ts.ones(4, 5, dtype=ts.float64)).shape == (4, 2)
    assert type(layer) is ts.nn.Linear and type(layer.weight) is ts.nn.Parameter
    assert layer.weight.shape == (3, 5) and layer.weight.dtype is ts.float64 and layer.weight.requires_grad
    before = layer.weight.detach().clone()
    model(ts.ones(4, 5, dtype=ts.float64)).sum().backward()
    optimizer.step()
    assert not np.array_equal(before.numpy(), layer.weight.detach().numpy()), "the optimiser has the same parameter"


def test_what_has_no_shape_yet_is_not_used():
    layer = ts.nn.LazyLinear(3)
    with pytest.raises(ValueError, match="uninitialized parameter"):
        layer.weight + 1
    with pytest.raises(RuntimeError, match="Can't access the shape"):
        str(layer.weight.shape)
    with pytest.raises(RuntimeError, match="Can't access the shape"):
        ts.nn.Linear(2, 3).load_state_dict(layer.state_dict())
    assert repr(layer.weight) == "<UninitializedParameter>"


def test_a_state_with_sizes_gives_them():
    full = ts.nn.Linear(4, 3)
    for layer in (ts.nn.LazyLinear(3), copy.deepcopy(ts.nn.LazyLinear(3)), pickle.loads(pickle.dumps(ts.nn.LazyLinear(3)))):
        layer.load_state_dict(full.state_dict())
        x = ts.tensor(RANDOM.standard_normal((2, 4)).astype(np.float32))
        np.testing.assert_array_equal(layer(x).detach().numpy(), full(x).detach().numpy())
        assert repr(layer) == repr(full)


def test_a_lazy_module_of_the_users_must_give_all_sizes():
    class Forgetful(ts.nn.LazyLinear):
        def initialize_parameters(self, input):
            self.weight.materialize((self.out_features, input.shape[-1]))

    with pytest.raises(RuntimeError, match="has not been fully initialized"):
        Forgetful(3)(ts.ones(2, 4))


@pytest.mark.parametrize(("name", "args", "options", "shape"), [
    ("Conv1d", (4, 3), {}, (2, 6, 7)), ("Conv2d", (4, 3), {"groups": 2, "padding": "same", "bias": False}, (2, 6, 5, 5)),
    ("Conv2d", (4, (3, 1)), {"stride": 2}, (6, 5, 5)), ("Conv3d", (2, 2), {}, (1, 3, 3, 4, 4)),
    ("ConvTranspose1d", (4, 3), {"stride": 2, "output_padding": 1}, (2, 6, 7)),
    ("ConvTranspose2d", (4, 3), {"groups": 2, "dilation": 2}, (2, 6, 5, 5)), ("ConvTranspose3d", (2, 2), {}, (1, 3, 3, 4, 4)),
])  # fmt: skip
def test_lazy_convolutions(name, args, options, shape):
    theirs, ours = getattr(torch.nn, "Lazy" + name)(*args, **options), getattr(ts.nn, "Lazy" + name)(*args, **options)
    assert repr(ours) == repr(theirs) and list(ours.state_dict()) == list(theirs.state_dict())
    other = getattr(ts.nn, "Lazy" + name)(*args, **options)
    x = RANDOM.standard_normal(shape).astype(np.float32)
    ours(ts.tensor(x)), theirs(torch.tensor(x))
    assert repr(ours) == repr(theirs) and type(ours) is getattr(ts.nn, name)
    state = {key: ts.tensor(value.numpy()) for key, value in theirs.state_dict().items()}
    for layer in (ours, other):
        layer.load_state_dict(state)
        wanted = theirs(torch.tensor(x)).detach().numpy()
        np.testing.assert_allclose(layer(ts.tensor(x)).detach().numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_inputs_that_a_lazy_convolution_refuses():
    with pytest.raises(RuntimeError, match=r"Expected 3D \(unbatched\) or 4D \(batched\) input to LazyConv2d.*\[2, 3\]"):
        ts.nn.LazyConv2d(4, 3)(ts.ones(2, 3))
    with pytest.raises(ValueError, match="divisible by groups, got 3 and 2"):
        ts.nn.LazyConv2d(4, 3, groups=2)(ts.ones(2, 3, 5, 5))
