"""The kernels of attention on their own: any sizes and strides against NumPy in float64, threads, memory, instruction sets."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.core import dtypes
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir.dropout import whole_groups
from tensorsmith.targets.cpu import attention_backward, attention_forward
from tensorsmith.targets.cpu.attention import AttentionSizes, AttentionStructure, plan_attention
from tensorsmith.targets.cpu.attention_blocks import COLUMNS, ROWS
from tensorsmith.targets.reference.primitives import dropout_factors


def attend(q, k, v, mask=None, causal=False, scale=None):
    """(result, gradients of q, k and v for g) in float64."""
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale

    def run(g):
        s = q @ k.swapaxes(-1, -2) * scale
        if mask is not None:
            s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
        if causal:
            s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
        top = s.max(-1, keepdims=True)
        p = np.exp(s - np.where(np.isneginf(top), 0, top))
        total = p.sum(-1, keepdims=True)
        p = p / np.where(total == 0, 1, total)
        out = p @ v
        ds = p * (g @ v.swapaxes(-1, -2) - (g * out).sum(-1, keepdims=True)) * scale
        return out, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g

    return run


def compare(arrays, g, mask, causal, dtype, tolerance, strided=lambda t: t):
    tensors = [ts.tensor(a).to(getattr(ts, dtype)) for a in arrays]
    wide = [t.double().numpy() for t in tensors]
    leaves = [t.requires_grad_() for t in tensors]
    given_mask = None if mask is None else ts.tensor(mask)
    if given_mask is not None and mask.dtype != bool:
        given_mask = given_mask.to(getattr(ts, dtype))
        mask = given_mask.double().numpy()
    q, k, v = (strided(t) for t in leaves)
    result = ts.nn.functional.scaled_dot_product_attention(q, k, v, given_mask, is_causal=causal)
    cotangent = ts.tensor(g).to(getattr(ts, dtype))
    result.backward(cotangent)
    expected = attend(*wide, mask, causal)(cotangent.double().numpy())
    for a, b in zip((result, *(t.grad for t in leaves)), expected):
        assert tuple(a.shape) == b.shape and a.dtype is getattr(ts, dtype)
        largest = max(1.0, np.abs(b).max())
        np.testing.assert_allclose(a.detach().double().numpy(), b, rtol=tolerance, atol=tolerance * largest)


# A gradient that is 0 is a difference of rounded sums over the width, summed over the queries.
TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_size_and_stride(data):
    number = st.integers(1, 4)
    batch, heads = data.draw(number), data.draw(number)
    length, keys = data.draw(st.integers(1, 230)), data.draw(st.integers(1, 420))
    width, values = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    lead = (batch, heads)
    arrays = [rng.standard_normal((*lead, *s)) for s in ((length, width), (keys, width), (keys, values))]
    kind = data.draw(st.sampled_from(["none", "causal", "bool", "float", "row", "key", "hidden"]))
    mask = {
        "bool": lambda: rng.random((*lead, length, keys)) < 0.6,
        "float": lambda: rng.standard_normal((length, keys)),
        "row": lambda: rng.random((batch, 1, length, 1)) < 0.7,
        "key": lambda: rng.random((batch, 1, 1, keys)) < 0.7,
        "hidden": lambda: (rng.random((length, keys)) < 0.5) & (np.arange(length) % 2 == 0)[:, None],
    }.get(kind, lambda: None)()
    way = data.draw(st.sampled_from(["as it is", "heads inside", "transposed"]))

    def strided(t):
        """The same values, lying otherwise."""
        if way == "heads inside":
            return t.transpose(1, 2).contiguous().transpose(1, 2)
        return t.transpose(-1, -2).contiguous().transpose(-1, -2) if way == "transposed" else t

    dtype = data.draw(st.sampled_from(["float64", "float32"]))
    g = rng.standard_normal((*lead, length, values))
    compare(arrays, g, mask, kind == "causal", dtype, TOLERANCE[dtype], strided)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_is_computed_in_float32(dtype, causal):
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((2, 100, 32)) for _ in range(3)]
    compare(arrays, rng.standard_normal((2, 100, 32)), None, causal, dtype, TOLERANCE[dtype])


@pytest.mark.parametrize("length", [ROWS // 2 + 1, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS])
@pytest.mark.parametrize("keys", [COLUMNS - 1, COLUMNS, COLUMNS + 1])
def test_borders_of_blocks(length, keys):
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal((n, 20)) for n in (length, keys, keys)]
    for causal in (False, True):
        compare(arrays, rng.standard_normal((length, 20)), None, causal, "float64", 1e-12)


def test_scores_that_are_large_or_not_finite():
    q = np.zeros((4, 2))
    q[:, 0] = [1e4, -1e4, np.inf, np.nan]
    k = np.array([[1.0, 0.0], [-1.0, 0.0], [0.5, 0.0]])
    found = ts.nn.functional.scaled_dot_product_attention(ts.tensor(q), ts.tensor(k), ts.tensor(np.eye(3)), scale=1.0).numpy()
    np.testing.assert_array_equal(found[:2], np.eye(3)[:2])
    assert np.isnan(found[2:]).all()


def test_derivatives_over_several_blocks():
    """The rule of the kernel's gradient, and tangents, are compositions: they agree with differences of the kernels."""
    rng = np.random.default_rng(3)
    q, k, v = (ts.tensor(rng.standard_normal((n, 3))).requires_grad_() for n in (ROWS + 5, COLUMNS + 4, COLUMNS + 4))
    directions = [ts.tensor(rng.standard_normal(t.shape)) for t in (q, k, v)]

    def loss(*x):
        y = ts.nn.functional.scaled_dot_product_attention(*x, is_causal=True)
        return (y * y.cos()).sum()

    def along(step):
        moved = [(t + step * d).detach().requires_grad_() for t, d in zip((q, k, v), directions)]
        return [g.numpy() for g in ts.autograd.grad(loss(*moved), moved)]

    gradients = ts.autograd.grad(loss(q, k, v), (q, k, v), create_graph=True)
    slope = sum((g * d).sum() for g, d in zip(gradients, directions))
    second = ts.autograd.grad(slope, (q, k, v))
    for found, above, below in zip(second, along(1e-5), along(-1e-5)):
        np.testing.assert_allclose(found.numpy(), (above - below) / 2e-5, rtol=1e-6, atol=1e-7)
    _, tangent = ts.func.jvp(loss, (q.detach(), k.detach(), v.detach()), tuple(directions))
    np.testing.assert_allclose(float(tangent), float(slope), rtol=1e-10)


def test_examples_at_once_are_examples_one_by_one():
    rng = np.random.default_rng(4)
    q, k, v = (ts.tensor(rng.standard_normal((3, 2, n, 4))) for n in (5, 7, 7))
    attention = ts.nn.functional.scaled_dot_product_attention
    found = ts.vmap(attention)(q, k, v)
    np.testing.assert_allclose(found.numpy(), attention(q, k, v).numpy(), rtol=1e-13)
    found = ts.vmap(attention, (0, None, 0))(q, k[0], v)
    np.testing.assert_allclose(found.numpy(), attention(q, k[:1], v).numpy(), rtol=1e-13)

    def gradients(q, k, v):
        return ts.func.grad(lambda *x: attention(*x).cos().sum(), (0, 1, 2))(q, k, v)

    for a, b in zip(ts.vmap(gradients)(q, k, v), zip(*(gradients(q[i], k[i], v[i]) for i in range(3)))):
        np.testing.assert_allclose(a.numpy(), np.stack([each.numpy() for each in b]), rtol=1e-11, atol=1e-13)


def kept(lead, length, keys, p, seed):
    """Zeros and factors of dropout, from the definition of the random bits."""
    words = length * whole_groups(keys)
    first = np.arange(int(np.prod(lead))).reshape(lead) * words
    return dropout_factors(np.stack([np.full(lead, seed), first], -1), length, keys, p)


@pytest.mark.parametrize(("length", "keys", "kind"), [(5, 7, "float"), (ROWS + 34, COLUMNS + 58, "causal"), (3, 64, "bool")])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_dropout(length, keys, kind, dtype):
    """Kernels drop what the definition says, forward and backward: the parts one by one give the same, derivatives too."""
    rng = np.random.default_rng(6)
    arrays = [rng.standard_normal((2, 3, *s)) for s in ((length, 8), (keys, 8), (keys, 5))]
    added, visible = rng.standard_normal((length, keys)), rng.random((length, keys)) < 0.7
    factors = ts.tensor(kept((2, 3), length, keys, 0.25, 9))

    def whole(q, k, v):
        ts.manual_seed(9)
        mask = {"float": ts.tensor(added).to(q.dtype), "bool": ts.tensor(visible)}.get(kind)
        return ts.nn.functional.scaled_dot_product_attention(q, k, v, mask, 0.25, kind == "causal")

    def parts(q, k, v):
        scores = q @ k.transpose(-1, -2) / 8**0.5
        if kind == "float":
            scores = scores + ts.tensor(added)
        else:
            seen = visible if kind == "bool" else np.tri(length, keys, dtype=bool)
            scores = scores.masked_fill(ts.tensor(~seen), -np.inf)
        return (scores.softmax(-1) * factors) @ v

    results = []
    for function, work in ((whole, dtype), (parts, "float64")):
        operands = [ts.tensor(a).to(getattr(ts, work)).requires_grad_() for a in arrays]
        y = function(*operands)
        first = ts.autograd.grad((y * y.cos()).sum(), operands, create_graph=True)
        second = ts.autograd.grad(sum((g * g).sum() for g in first), operands) if dtype == "float64" else ()
        results.append([y, *first, *second])
    for a, b in zip(*results):
        b = b.detach().numpy()
        np.testing.assert_allclose(a.detach().double().numpy(), b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * abs(b).max())


def test_dropout_compiled_and_for_examples_at_once():
    attention, q = ts.nn.functional.scaled_dot_product_attention, ts.ones(3, 2, 5, 4)

    def step(x):
        y = attention(x, x, x, dropout_p=0.5)
        return y, ts.autograd.grad((y * y).sum(), x)[0]

    compiled, results = ts.compile(step), []
    for seed, function in ((0, step), (0, compiled), (1, step), (1, compiled)):
        ts.manual_seed(seed)
        results.append([t.detach().numpy() for t in function(q.clone().requires_grad_())])
    for eager, again in (results[:2], results[2:]):
        np.testing.assert_array_equal(eager[0], again[0])
        np.testing.assert_array_equal(eager[1], again[1])
    assert (results[0][0] != results[2][0]).any()  # the compiled function draws at every run
    each = {way: ts.vmap(lambda x: attention(x, x, x, dropout_p=0.5), randomness=way)(q) for way in ("same", "different")}
    assert each["same"].std(0).max() == 0 and each["different"].std(0).max() > 0


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_threads_do_not_change_a_bit(dropout):
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal((2, 3, 300, 40)).astype("float32") for _ in range(3)]
    found, before = [], ts.get_num_threads()
    try:
        for threads in (1, 2):
            ts.set_num_threads(threads)
            leaves = [ts.tensor(a).requires_grad_() for a in arrays]
            ts.manual_seed(0)
            y = ts.nn.functional.scaled_dot_product_attention(*leaves, dropout_p=dropout, is_causal=True)
            y.backward(y.detach())
            found.append([y.detach().numpy(), *(t.grad.numpy() for t in leaves)])
    finally:
        ts.set_num_threads(before)
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


def plan(length, backward, batch=1, dropout=0.0):
    shape = (batch, 1, length, 64)
    seen = Strided(shape, contiguous_strides(shape), 0)
    row = Strided((batch, 1, length, 1), contiguous_strides((batch, 1, length, 1)), 0)
    operands = {"q": seen, "k": seen, "v": seen, **({"g": seen, "lse": row, "delta": row} if backward else {})}
    structure = AttentionStructure(dtypes.float32, True, "", False, backward, dropout > 0)
    return plan_attention(structure, AttentionSizes(batch, 1, length, length, 64, 64), 0.125, operands, dropout=dropout)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_workspace_does_not_grow_with_the_sequence(backward, dropout):
    one, other = plan(4096, backward, 4, dropout), plan(16384, backward, 4, dropout)
    assert max(one.workspace_bytes, other.workspace_bytes) < 32 << 20  # 32 chunks at most, each of one block
    assert one.function_address == other.function_address  # sizes are words of the launch


@pytest.mark.parametrize("direction", [attention_forward, attention_backward])
def test_blocks_of_a_short_causal_sequence_are_short(direction):
    """A block's product takes all keys up to its last query."""
    rows = [plan(n, direction is attention_backward).constants[direction.WORDS.index("rows")] for n in (128, 4096)]
    assert rows == [ROWS // 2, ROWS]


@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_other_instruction_sets(isa):
    """The same text for shorter vectors, in a process of its own."""
    if isa == "avx2" and "avx2" not in open("/proc/cpuinfo").read():
        pytest.skip("the CPU has no AVX2")
    script = (
        "import sys, numpy as np; sys.path.append(sys.argv[1]); from test_attention_kernels import compare, test_dropout\n"
        "rng = np.random.default_rng(0)\n"
        "for L, S, E, F in ((1, 1, 1, 1), (100, 203, 19, 33), (97, 64, 32, 16)):\n"
        "    arrays = [rng.standard_normal((2, *s)) for s in ((L, E), (S, E), (S, F))]\n"
        "    for causal, mask in ((True, None), (False, rng.random((L, S)) < 0.5)):\n"
        "        for dtype, tolerance in (('float64', 1e-12), ('float32', 1e-5)):\n"
        "            compare(arrays, rng.standard_normal((2, L, F)), mask, causal, dtype, tolerance)\n"
        "test_dropout(5, 70, 'causal', 'float32')\n"
    )
    environment = {**os.environ, "TENSORSMITH_ISA": isa}
    done = subprocess.run(
        [sys.executable, "-c", script, os.path.dirname(__file__)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
