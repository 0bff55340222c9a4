"""Recurrent layers with PyTorch's weights, padded and packed: same text, same state, same results and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import tensorsmith as ts

T, N, INPUTS, HIDDEN = 5, 3, 4, 6
rng = np.random.default_rng(0)
X = rng.standard_normal((T, N, INPUTS))
LENGTHS = [5, 3, 2]


def matched(name, *args, **keywords):
    theirs = getattr(torch.nn, name)(*args, **keywords, dtype=torch.float64)
    ours = getattr(ts.nn, name)(*args, **keywords, dtype=ts.float64)
    assert repr(ours) == repr(theirs)
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict({key: ts.tensor(value.numpy()) for key, value in state.items()})
    return theirs, ours


def flat(result):
    """Every tensor of a result, without the integers of packed sequences."""
    if isinstance(result, (ts.nn.utils.rnn.PackedSequence, torch.nn.utils.rnn.PackedSequence)):
        return [result.data]
    return [each for part in result for each in flat(part)] if isinstance(result, (tuple, list)) else [result]


def check(theirs, ours, run, *arrays):
    found = []
    for library, module in ((torch, theirs), (ts, ours)):
        inputs = [library.tensor(a).requires_grad_() for a in arrays]
        results = flat(run(library, module, *inputs))
        sum((r * r.detach().cos()).sum() for r in results).backward()
        grads = [x.grad for x in (*inputs, *module.parameters())]
        found.append([r.detach() for r in results] + grads)
    for a, b in zip(*found, strict=True):
        assert tuple(a.shape) == tuple(b.shape)
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-8, atol=1e-10)


KINDS = [("RNN", {}), ("RNN", {"nonlinearity": "relu"}), ("GRU", {}), ("LSTM", {}), ("LSTM", {"proj_size": 2})]
SHAPES = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 2, "bias": False, "batch_first": True},
    {"bidirectional": True, "batch_first": True},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_sequences(name, options, shape):
    theirs, ours = matched(name, INPUTS, HIDDEN, **options, **shape)
    x = X.swapaxes(0, 1).copy() if shape.get("batch_first") else X
    check(theirs, ours, lambda library, module, x: module(x), x)
    count = shape.get("num_layers", 1) * (2 if shape.get("bidirectional") else 1)
    states = [rng.standard_normal((count, N, options.get("proj_size", HIDDEN)))]
    states += [rng.standard_normal((count, N, HIDDEN))] if name == "LSTM" else []

    def with_states(library, module, x, *states):
        return module(x, states if name == "LSTM" else states[0])

    check(theirs, ours, with_states, x, *states)
    check(theirs, ours, with_states, X[:, 0].copy(), *(state[:, 0].copy() for state in states))


@pytest.mark.parametrize("lengths", [LENGTHS, [2, 5, 3]], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_packed_sequences(name, options, shape, lengths):
    theirs, ours = matched(name, INPUTS, HIDDEN, **options, **shape)
    count = shape.get("num_layers", 1) * (2 if shape.get("bidirectional") else 1)
    states = [rng.standard_normal((count, N, options.get("proj_size", HIDDEN)))]
    states += [rng.standard_normal((count, N, HIDDEN))] if name == "LSTM" else []

    def run(library, module, x, *states):
        rnn = library.nn.utils.rnn
        packed = rnn.pack_padded_sequence(x, lengths, enforce_sorted=lengths == LENGTHS)
        given = () if not states else (states if name == "LSTM" else states[0],)
        result, ends = module(packed, *given)
        return rnn.pad_packed_sequence(result)[0], ends

    check(theirs, ours, run, X)
    check(theirs, ours, run, X, *states)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["RNNCell", "GRUCell", "LSTMCell"])
def test_cells(name, bias):
    theirs, ours = matched(name, INPUTS, HIDDEN, bias=bias)
    state = [rng.standard_normal((N, HIDDEN)) for _ in range(2 if name == "LSTMCell" else 1)]

    def run(library, module, x, *state):
        return module(x, *([] if not state else [state if name == "LSTMCell" else state[0]]))

    check(theirs, ours, run, X[0])
    check(theirs, ours, run, X[0], *state)
    check(theirs, ours, run, X[0, 0], *(each[0] for each in state))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_lengths(data):
    """Packed sequences of drawn lengths and sizes, as PyTorch's."""
    name = data.draw(st.sampled_from(["RNN", "GRU", "LSTM"]))
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    inputs, hidden = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 20))
    shape = {"bidirectional": data.draw(st.booleans()), "num_layers": data.draw(st.integers(1, 2))}
    theirs, ours = matched(name, inputs, hidden, **shape)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))

    def run(library, module, x):
        rnn = library.nn.utils.rnn
        result, ends = module(rnn.pack_padded_sequence(x, lengths, True, False))
        return rnn.pad_packed_sequence(result, True)[0], ends

    check(theirs, ours, run, random.standard_normal((len(lengths), max(lengths), inputs)))


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_derivatives_of_sequences(name):
    layer = getattr(ts.nn, name)(2, 2, bidirectional=True, dtype=ts.float64)
    x = ts.tensor(rng.standard_normal((3, 2, 2))).requires_grad_()

    def run(x):
        packed = ts.nn.utils.rnn.pack_padded_sequence(x, [3, 2])
        return layer(packed)[0].data, layer(x)[0]

    assert ts.autograd.gradcheck(run, (x,)) and ts.autograd.gradgradcheck(run, (x,))


def test_relu_cell():
    theirs, ours = matched("RNNCell", INPUTS, HIDDEN, nonlinearity="relu")
    check(theirs, ours, lambda library, module, x: module(x), X[0])


@pytest.mark.parametrize("name", ["rnn_tanh_cell", "rnn_relu_cell", "gru_cell", "lstm_cell"])
def test_derivatives_of_cells(name):
    rows = {"gru_cell": 6, "lstm_cell": 8}.get(name, 2)
    shapes = [(2, 3), (2, 2), *([(2, 2)] if name == "lstm_cell" else []), (rows, 3), (rows, 2), (rows,), (rows,)]
    given = [ts.tensor(rng.standard_normal(shape)).requires_grad_() for shape in shapes]

    def call(x, *rest):
        states, weights = rest[:-4], rest[-4:]
        return getattr(ts, name)(x, states if name == "lstm_cell" else states[0], *weights)

    assert ts.autograd.gradcheck(call, given) and ts.autograd.gradgradcheck(call, given)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_dtypes(dtype):
    layer = ts.nn.LSTM(INPUTS, HIDDEN, dtype=ts.float64)
    expected = layer(ts.tensor(X))[0].detach().numpy()
    narrow = layer.to(getattr(ts, dtype))
    found = narrow(ts.tensor(X).to(getattr(ts, dtype)))[0].detach()
    assert found.dtype is getattr(ts, dtype)
    tolerance = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 1e-6}[dtype]
    np.testing.assert_allclose(found.double().numpy(), expected, atol=tolerance)


def test_dropout_between_layers():
    with pytest.warns(UserWarning, match="num_layers greater"):
        ts.nn.GRU(3, 3, dropout=0.5)
    layer = ts.nn.GRU(3, 16, 2, dropout=0.5)
    x = ts.ones(4, 2, 3)
    assert not np.array_equal(layer(x)[0].detach().numpy(), layer(x)[0].detach().numpy())
    layer.eval()
    np.testing.assert_array_equal(layer(x)[0].detach().numpy(), layer(x)[0].detach().numpy())


def test_padding_and_packing():
    sequences = [rng.standard_normal((n, 2)) for n in (2, 4, 3)]
    for library in (torch, ts):
        rnn = library.nn.utils.rnn
        given = [library.tensor(a) for a in sequences]
        packed = rnn.pack_sequence(given, enforce_sorted=False)
        for a, b in zip(rnn.unpack_sequence(packed), sequences, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    theirs, ours = (
        [
            library.nn.utils.rnn.pad_sequence([library.tensor(a) for a in sequences], first, 7.0, side).numpy()
            for first in (True, False)
            for side in ("left", "right")
        ]
        for library in (torch, ts)
    )
    for a, b in zip(ours, theirs):
        np.testing.assert_array_equal(a, b)
    for order in ([5, 3, 2], [3, 2, 5]):
        found = []
        for library in (torch, ts):
            rnn = library.nn.utils.rnn
            packed = rnn.pack_padded_sequence(library.tensor(X.swapaxes(0, 1).copy()), order, True, False)
            padded, lengths = rnn.pad_packed_sequence(packed, True, -1.0, 7)
            found.append([padded, lengths, packed.data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices])
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(b.numpy(), a.numpy())
    assert ts.nn.utils.rnn.invert_permutation(ts.tensor([2, 0, 1])).tolist() == [1, 2, 0]
    assert packed.double() is not packed and packed.to(packed.data.dtype) is packed


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda lib: lib.nn.LSTM(0, 3), ValueError),
        (lambda lib: lib.nn.LSTM(3, 3, proj_size=3), ValueError),
        (lambda lib: lib.nn.GRU(3, 3, proj_size=2), ValueError),
        (lambda lib: lib.nn.GRU(3, 3.0), TypeError),
        (lambda lib: lib.nn.GRU(3, 3, dropout=2.0), ValueError),
        (lambda lib: lib.nn.RNN(3, 3, nonlinearity="gelu"), ValueError),
        (lambda lib: lib.nn.RNN(3, 3)(lib.ones(3)), ValueError),
        (lambda lib: lib.nn.LSTM(3, 3)(lib.ones(2, 2, 4)), RuntimeError),
        (lambda lib: lib.nn.LSTM(3, 3)(lib.ones(2, 2, 3).double()), ValueError),
        (lambda lib: lib.nn.GRU(3, 3)(lib.ones(2, 2, 3), lib.ones(1, 3, 3)), RuntimeError),
        (lambda lib: lib.nn.GRU(3, 3)(lib.ones(2, 2, 3), lib.ones(2, 3)), RuntimeError),
        (lambda lib: lib.nn.LSTM(3, 3)(lib.ones(2, 2, 3), (lib.ones(1, 2, 3), lib.ones(1, 2, 2))), RuntimeError),
        (lambda lib: lib.nn.LSTMCell(3, 3)(lib.ones(2, 2, 3)), ValueError),
        (lambda lib: lib.nn.GRUCell(3, 3)(lib.ones(2, 4)), RuntimeError),
        (lambda lib: lib.nn.GRUCell(3, 3)(lib.ones(2, 3), lib.ones(3, 3)), RuntimeError),
        (lambda lib: lib.nn.utils.rnn.pack_padded_sequence(lib.ones(3, 2, 1), [2, 3]), RuntimeError),
        (lambda lib: lib.nn.utils.rnn.pack_padded_sequence(lib.ones(3, 2, 1), [2, 0]), RuntimeError),
        (lambda lib: lib.nn.utils.rnn.pack_padded_sequence(lib.ones(3, 2, 1), [2]), RuntimeError),
        (lambda lib: lib.nn.utils.rnn.pad_sequence([]), RuntimeError),
    ],
)
def test_what_is_refused(call, error):
    for library in (torch, ts):
        with pytest.raises(error) as found:
            call(library)
        assert type(found.value) is error and str(found.value)


def test_empty_batches():
    for name in ("RNN", "GRU", "LSTM"):
        result, _ = getattr(ts.nn, name)(3, 4)(ts.ones(2, 0, 3))
        assert result.shape == (2, 0, 4)


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_float32_layers_of_real_sizes(name):
    """One and two layers, both directions and several chunks of the batch, as close to float64 as rounding allows."""
    theirs, ours = matched(name, 24, 72, num_layers=2, bidirectional=True)
    ours.float()
    x = rng.standard_normal((7, 19, 24))
    found = ours(ts.tensor(x, dtype=ts.float32).requires_grad_())[0]
    expected = theirs(torch.tensor(x))[0]
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), atol=1e-6)
    found.sum().backward()
    expected.sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), atol=2e-6 * float(b.grad.abs().max()) + 1e-5)


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_transforms_of_layers(name):
    """vmap, forward mode and gradients in a transform are those of the layer itself."""
    layer = getattr(ts.nn, name)(2, 3, dtype=ts.float64)
    x, v = (ts.tensor(rng.standard_normal((4, 5, 2, 2))) for _ in range(2))
    each = ts.stack([layer(one)[0] for one in x])
    np.testing.assert_allclose(ts.vmap(lambda one: layer(one)[0])(x).detach().numpy(), each.detach().numpy(), rtol=1e-12)

    def loss(one):
        return layer(one)[0].cos().sum()

    leaf = x[0].clone().requires_grad_()
    loss(leaf).backward()
    np.testing.assert_allclose(ts.func.grad(loss)(x[0]).detach().numpy(), leaf.grad.numpy(), rtol=1e-10)
    _, tangent = ts.func.jvp(loss, (x[0],), (v[0],))
    np.testing.assert_allclose(float(tangent), float((leaf.grad * v[0]).sum()), rtol=1e-10)
    weights = {key: ts.stack([value, 2 * value]) for key, value in layer.state_dict().items()}
    found = ts.vmap(lambda state: ts.func.functional_call(layer, state, (x[0],))[0])(weights)
    for k in range(2):
        expected = ts.func.functional_call(layer, {key: value[k] for key, value in weights.items()}, (x[0],))[0]
        np.testing.assert_allclose(found[k].detach().numpy(), expected.detach().numpy(), rtol=1e-12)


def test_a_result_does_not_hold_what_the_gradient_keeps():
    layer = ts.nn.LSTM(2, 3)
    out, (h, c) = layer(ts.ones(5, 2, 2))
    assert [x.storage.nbytes for x in (out, h, c)] == [4 * x.numel() for x in (out, h, c)]
    h.zero_()
    out.sum().backward()  # nor is it what is kept
