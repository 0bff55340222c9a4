"""Attention and transformers with PyTorch's weights: same text, same state, same results and gradients."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
import torch

import tensorsmith as ts

L, S, N, E = 5, 4, 2, 8
rng = np.random.default_rng(0)
QUERY, KEY = rng.standard_normal((L, N, E)), rng.standard_normal((S, N, E))
PADDING = np.array([[False, False, True, False], [False, True, False, False]])
MASK = rng.random((L, S)) < 0.3
MASK[:, 0] = False
FULL = np.broadcast_to(MASK, (N * 4, L, S)).copy()


def tensors(library, value):
    if isinstance(value, np.ndarray):
        return library.tensor(value)
    return value


def matched(theirs, ours):
    assert repr(ours) == repr(theirs)
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict({key: ts.tensor(value.numpy()) for key, value in state.items()})


def check(theirs, ours, arrays, keywords=None, tolerance=1e-8):
    """Results and all gradients of modules of float64."""
    matched(theirs, ours)
    found = []
    for library, module in ((torch, theirs), (ts, ours)):
        inputs = [library.tensor(a).requires_grad_() for a in arrays]
        given = {k: tensors(library, v) for k, v in (keywords or {}).items()}
        result = module(*inputs, **given)
        results = [r for r in (result if isinstance(result, tuple) else (result,)) if r is not None]
        sum((r * r.detach().cos()).sum() for r in results).backward()
        gradients = [x.grad for x in (*inputs, *module.parameters())]
        found.append([r.detach() for r in results] + [g for g in gradients if g is not None])
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found):
        assert tuple(a.shape) == tuple(b.shape)
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=tolerance, atol=tolerance)


def both(name, *args, **keywords):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = getattr(torch.nn, name)(*args, **keywords, dtype=torch.float64)
    for parameter in theirs.parameters():  # biases start at zero, norms at one
        torch.nn.init.normal_(parameter, std=0.4)
    return theirs, getattr(ts.nn, name)(*args, **keywords, dtype=ts.float64)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    ("made", "given"),
    [
        ({}, {}),
        ({"bias": False}, {}),
        ({"add_bias_kv": True}, {"attn_mask": MASK}),
        ({"add_zero_attn": True}, {"key_padding_mask": PADDING}),
        ({"add_bias_kv": True, "add_zero_attn": True}, {"key_padding_mask": PADDING, "attn_mask": MASK}),
        ({}, {"attn_mask": FULL, "average_attn_weights": False}),
        ({}, {"attn_mask": MASK * -1.5}),
        ({}, {"attn_mask": MASK * -1.5, "key_padding_mask": PADDING * -0.5}),
    ],
)
def test_multi_head_attention(made, given, need_weights):
    theirs, ours = both("MultiheadAttention", E, 4, **made)
    check(theirs, ours, [QUERY, KEY, KEY[::-1].copy()], {**given, "need_weights": need_weights})


def test_other_widths_batch_first_and_no_batch():
    theirs, ours = both("MultiheadAttention", E, 2, kdim=3, vdim=5, batch_first=True)
    arrays = [QUERY.swapaxes(0, 1).copy(), rng.standard_normal((N, S, 3)), rng.standard_normal((N, S, 5))]
    check(theirs, ours, arrays)
    check(theirs, ours, [a[0] for a in arrays], {"attn_mask": MASK})


@pytest.mark.parametrize("same", ["all", "key and value"])
def test_one_tensor_in_several_places(same):
    theirs, ours = both("MultiheadAttention", E, 2)
    results = []
    for library, module in ((torch, theirs), (ts, ours)):
        q, k = library.tensor(QUERY).requires_grad_(), library.tensor(KEY).requires_grad_()
        if library is ts:
            matched(theirs, ours)
        y, _ = module(q, q, q) if same == "all" else module(q, k, k)
        (y * y.detach().cos()).sum().backward()
        results.append([y.detach().numpy(), *(t.grad.numpy() for t in (q, k, *module.parameters()) if t.grad is not None)])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-8, atol=1e-9)


def test_causal_hint_is_the_causal_mask():
    theirs, ours = both("MultiheadAttention", E, 2)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64).numpy()
    np.testing.assert_array_equal(ts.nn.Transformer.generate_square_subsequent_mask(L).numpy(), mask)
    check(theirs, ours, [QUERY] * 3, {"attn_mask": mask, "is_causal": True, "need_weights": False})
    check(theirs, ours, [QUERY] * 3, {"attn_mask": mask, "is_causal": True})


def test_inference_has_the_values_of_training():
    """PyTorch's fast path in evaluation, too."""
    theirs, ours = both("MultiheadAttention", E, 2, batch_first=True)
    matched(theirs, ours)
    padding = np.zeros((N, L), bool)
    padding[1, 3:] = True
    for keywords in ({}, {"key_padding_mask": padding}):
        with torch.no_grad(), ts.no_grad():
            q = torch.tensor(QUERY.swapaxes(0, 1).copy())
            expected = theirs.eval()(q, q, q, **{k: torch.tensor(v) for k, v in keywords.items()})
            p = ts.tensor(q.numpy())
            found = ours.eval()(p, p, p, **{k: ts.tensor(v) for k, v in keywords.items()})
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-8, atol=1e-10)


def test_dropout_of_weights_only_while_training():
    layer = ts.nn.MultiheadAttention(E, 2, dropout=0.5)
    x = ts.tensor(QUERY.astype("float32"))
    ts.manual_seed(0)
    _, weights = layer(x, x, x, average_attn_weights=False)
    assert 0.2 < float((weights == 0).float().mean()) < 0.8
    assert not (layer.eval()(x, x, x)[1] == 0).any()


SETTINGS = [{}, {"norm_first": True}, {"activation": "gelu"}, {"batch_first": True, "bias": False}, {"layer_norm_eps": 1e-2}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_layers(settings):
    batch_first = settings.get("batch_first")
    arrays = [a.swapaxes(0, 1).copy() if batch_first else a for a in (QUERY, KEY)]
    theirs, ours = both("TransformerEncoderLayer", E, 2, 16, dropout=0.0, **settings)
    own = np.triu(np.ones((S, S), bool), 1)
    check(theirs, ours, arrays[1:])
    check(theirs, ours, arrays[1:], {"src_mask": own, "src_key_padding_mask": PADDING & (np.arange(S) > 0)})
    theirs, ours = both("TransformerDecoderLayer", E, 2, 16, dropout=0.0, **settings)
    check(theirs, ours, arrays)
    given = {"memory_mask": MASK, "memory_key_padding_mask": np.zeros_like(PADDING)}
    check(theirs, ours, arrays, {**given, "tgt_mask": np.triu(np.ones((L, L), bool), 1)})


@pytest.mark.parametrize("settings", SETTINGS[:3], ids=str)
def test_transformer(settings):
    theirs, ours = both("Transformer", E, 2, 2, 1, 16, dropout=0.0, **settings)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64).numpy()
    check(theirs, ours, [KEY, QUERY], {"tgt_mask": mask})
    check(theirs, ours, [KEY, QUERY], {"tgt_mask": mask, "tgt_is_causal": True, "src_key_padding_mask": PADDING})


def test_stacks_are_copies_of_a_layer():
    layer = ts.nn.TransformerEncoderLayer(E, 2, 16, batch_first=True)
    stack = ts.nn.TransformerEncoder(layer, 3, ts.nn.LayerNorm(E))
    assert len(stack.layers) == 3
    for one in stack.layers:
        assert one is not layer
        np.testing.assert_array_equal(one.linear1.weight.detach().numpy(), layer.linear1.weight.detach().numpy())
    assert copy.deepcopy(stack).layers[0].activation is ts.nn.functional.relu


def test_derivatives():
    layer = ts.nn.MultiheadAttention(4, 2, dtype=ts.float64)
    x, y = (ts.tensor(rng.standard_normal((n, 2, 4))).requires_grad_() for n in (3, 2))
    for need_weights in (True, False):

        def run(x, y, need_weights=need_weights):
            return [each for each in layer(x, y, y, need_weights=need_weights) if each is not None]

        assert ts.autograd.gradcheck(run, (x, y)) and ts.autograd.gradgradcheck(run, (x, y))


def test_static_keys():
    shapes = {"q": (3, 2, 4), "w": (12, 4), "o": (4, 4), "k": (4, 3, 2)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    results = []
    for library in (torch, ts):
        q, w, o, k = (library.tensor(a) for a in arrays.values())
        y, weights = library.nn.functional.multi_head_attention_forward(
            q, q, q, 4, 2, w, None, None, None, False, 0.0, o, None, static_k=k, static_v=k * 2
        )
        results.append((y.numpy(), weights.numpy()))
    for a, b in zip(*results):
        np.testing.assert_allclose(b, a, rtol=1e-8)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda lib: lib.nn.MultiheadAttention(5, 2), AssertionError),
        (lambda lib: lib.nn.MultiheadAttention(0, 2), ValueError),
        (lambda lib: lib.nn.MultiheadAttention(4, 2)(*[lib.ones(3, 1, 6)] * 3), AssertionError),
        (lambda lib: lib.nn.MultiheadAttention(4, 2)(lib.ones(4), lib.ones(4), lib.ones(4)), AssertionError),
        (lambda lib: lib.nn.MultiheadAttention(4, 2)(lib.ones(3, 1, 4), lib.ones(3, 4), lib.ones(3, 4)), AssertionError),
        (
            lambda lib: lib.nn.MultiheadAttention(4, 2)(*[lib.ones(3, 1, 4)] * 3, attn_mask=lib.ones(2, 3)),
            RuntimeError,
        ),
        (
            lambda lib: lib.nn.MultiheadAttention(4, 2)(*[lib.ones(3, 1, 4)] * 3, key_padding_mask=lib.ones(2, 3) > 0),
            AssertionError,
        ),
        (
            lambda lib: lib.nn.MultiheadAttention(4, 2)(*[lib.ones(3, 1, 4)] * 3, attn_mask=lib.ones(3, 3).int()),
            AssertionError,
        ),
        (lambda lib: lib.nn.MultiheadAttention(4, 2)(*[lib.ones(3, 1, 4)] * 3, is_causal=True), RuntimeError),
        (lambda lib: lib.nn.TransformerEncoderLayer(4, 2, activation="tanh"), RuntimeError),
        (lambda lib: lib.nn.Transformer(4, 2, 1, 1, 8)(lib.ones(3, 1, 4), lib.ones(3, 2, 4)), RuntimeError),
        (lambda lib: lib.nn.Transformer(4, 2, 1, 1, 8)(lib.ones(3, 1, 6), lib.ones(3, 1, 6)), RuntimeError),
    ],
)
def test_what_is_refused(call, error):
    for library in (torch, ts):
        with pytest.raises(error) as found:
            call(library)
        assert type(found.value) is error and str(found.value)


def test_masks_of_different_kinds_warn():
    layer = ts.nn.MultiheadAttention(4, 2)
    x = ts.ones(3, 1, 4)
    with pytest.warns(UserWarning, match="mismatched key_padding_mask and attn_mask"):
        layer(x, x, x, key_padding_mask=ts.zeros(1, 3), attn_mask=ts.zeros(3, 3) > 0)


def test_empty_batches():
    layer = ts.nn.MultiheadAttention(4, 2)
    y, weights = layer(*[ts.ones(3, 0, 4)] * 3)
    assert y.shape == (3, 0, 4) and weights.shape == (0, 3, 3)
    assert ts.nn.TransformerEncoderLayer(4, 2, 8)(ts.ones(3, 0, 4)).shape == (3, 0, 4)


def test_half_precision():
    x = (QUERY * 0.5).astype("float32")
    for dtype, tolerance in (("float16", 4e-3), ("bfloat16", 4e-2)):
        layer = ts.nn.TransformerEncoderLayer(E, 2, 16, dropout=0.0)
        expected = layer(ts.tensor(x)).detach().numpy()
        found = layer.to(getattr(ts, dtype))(ts.tensor(x).to(getattr(ts, dtype)))
        np.testing.assert_allclose(found.detach().float().numpy(), expected, atol=tolerance * math.sqrt(E), rtol=tolerance)
