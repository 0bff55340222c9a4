"""`scaled_dot_product_attention`: values and gradients as PyTorch's, masks that hide a whole row, and what is refused."""

import numpy as np
import pytest
import torch

import tensorsmith as ts

MASK = np.ones((5, 3), bool)
MASK[1] = False
MASK[2, 0] = False
CASES = {
    "plain": ([(2, 3, 4)] * 3, {}),
    "other lengths and widths": ([(2, 5, 4), (2, 3, 4), (2, 3, 6)], {}),
    "no batch": ([(5, 4), (3, 4), (3, 6)], {"scale": 0.3}),
    "causal": ([(2, 5, 4), (2, 3, 4), (2, 3, 6)], {"is_causal": True}),
    "causal, more keys": ([(2, 3, 4), (2, 5, 4), (2, 5, 4)], {"is_causal": True}),
    "bool mask with a hidden row": ([(2, 5, 4), (2, 3, 4), (2, 3, 6)], {"attn_mask": MASK}),
    "added mask with a hidden row": ([(2, 5, 4), (2, 3, 4), (2, 3, 6)], {"attn_mask": np.where(MASK, 0.5, -np.inf)}),
    "broadcast mask": ([(2, 2, 5, 4), (2, 2, 3, 4), (2, 2, 3, 4)], {"attn_mask": MASK[:1]}),
    "everything hidden": ([(2, 3, 4)] * 3, {"attn_mask": np.zeros((3, 3), bool)}),
    "grouped heads": ([(1, 4, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2)], {"enable_gqa": True}),
    "no keys": ([(2, 3, 2), (2, 0, 2), (2, 0, 2)], {}),
    "no queries": ([(2, 0, 2), (2, 3, 2), (2, 3, 2)], {}),
    "large scores": ([(2, 3, 4)] * 3, {"scale": 1e5}),
    "a number of dropout 0": ([(2, 3, 4)] * 3, {"dropout_p": 0.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    shapes, keywords = CASES[name]
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=shape) for shape in shapes]
    found = []
    for library in (ts, torch):
        tensors = [library.from_numpy(a.copy()).requires_grad_() for a in arrays]
        given = {k: library.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for k, v in keywords.items()}
        result = library.nn.functional.scaled_dot_product_attention(*tensors, **given)
        (result * result.detach().cos()).sum().backward()
        found.append([result.detach().numpy(), *(t.grad.numpy() for t in tensors)])
    rounding = 1e-11 * max(keywords.get("scale", 1.0), 1.0)  # a gradient of 0 is a difference of rounded sums times the scale
    for ours, theirs in zip(*found):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=rounding)


def test_a_hidden_row_is_zero_and_so_are_its_gradients():
    q, k, v = (ts.randn(3, 4, requires_grad=True) for _ in range(3))
    mask = ts.tensor([[True, True, True], [False, False, False], [True, False, True]])
    result = ts.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    result.sum().backward()
    assert result[1].eq(0).all() and q.grad[1].eq(0).all()
    assert not any(t.grad.isnan().any() for t in (q, k, v))


def test_derivatives():
    q, k, v = (ts.randn(2, 3, 2, dtype=ts.float64, requires_grad=True) for _ in range(3))
    mask = ts.tensor([[True, False, True], [False, False, False], [True, True, True]])

    def attend(q, k, v):
        return ts.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    assert ts.autograd.gradcheck(attend, (q, k, v)) and ts.autograd.gradgradcheck(attend, (q, k, v))


def test_dropout_drops_weights():
    ts.manual_seed(1)
    q = ts.randn(1, 64, 8)
    whole = ts.nn.functional.scaled_dot_product_attention(q, q, ts.eye(64)[None])
    dropped = ts.nn.functional.scaled_dot_product_attention(q, q, ts.eye(64)[None], dropout_p=0.5)
    kept = dropped != 0
    assert 0.4 < float(kept.float().mean()) < 0.6
    np.testing.assert_allclose(dropped[kept].numpy(), (whole * 2)[kept].numpy(), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_dtypes(dtype):
    array = np.random.default_rng(0).normal(size=(2, 8, 16)).astype(np.float32)
    ours = ts.from_numpy(array).to(getattr(ts, dtype))
    theirs = torch.from_numpy(array).to(getattr(torch, dtype))
    a = ts.nn.functional.scaled_dot_product_attention(ours, ours, ours, is_causal=True)
    b = torch.nn.functional.scaled_dot_product_attention(theirs, theirs, theirs, is_causal=True)
    assert str(a.dtype).endswith(dtype)
    tolerance = {"float16": 3e-3, "bfloat16": 3e-2, "float32": 1e-5}[dtype]
    np.testing.assert_allclose(a.float().numpy(), b.float().numpy(), rtol=tolerance, atol=tolerance)


WRONG = {
    "a mask and causal": lambda L, q: (q, q, q, L.ones(3, 3, dtype=L.bool), 0.0, True),
    "keys and values of different length": lambda L, q: (q, q, L.ones(2, 4, 4, dtype=q.dtype)),
    "dtypes": lambda L, q: (q.float(), q, q), "vectors": lambda L, q: (q[0, 0], q[0, 0], q[0, 0]),
    "an integer mask": lambda L, q: (q, q, q, L.ones(3, 3, dtype=L.int64)),
    "integers": lambda L, q: (q.long(), q.long(), q.long()),
    "heads": lambda L, q: (L.ones(1, 3, 3, 2), L.ones(1, 2, 3, 2), L.ones(1, 2, 3, 2)),
    "a probability": lambda L, q: (q, q, q, None, 1.5), "widths": lambda L, q: (q, q[..., :2], q),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_have_pytorchs_class(name):
    for library in (ts, torch):
        arguments = WRONG[name](library, library.ones(2, 3, 4, dtype=library.float64))
        with pytest.raises(RuntimeError):
            library.nn.functional.scaled_dot_product_attention(*arguments, enable_gqa=name == "heads")


@pytest.mark.parametrize("beside", [True, False])
def test_the_result_lies_as_the_query_does(beside):
    """As in PyTorch: where the heads of a token are side by side, they still are, and one vector of them is a view."""
    strides = []
    for lib in (ts, torch):
        q = lib.ones(2, 8, 3, 4).transpose(1, 2) if beside else lib.ones(2, 3, 8, 4)
        q.requires_grad_()
        out = lib.nn.functional.scaled_dot_product_attention(q, q, q)
        assert (out.transpose(1, 2).reshape(2, 8, 12).data_ptr() == out.data_ptr()) is beside
        strides.append(tuple(out.stride()))
    assert strides[0] == strides[1]


@pytest.mark.parametrize("queries", [1, 49, 95, 130, 193])
@pytest.mark.parametrize("keys", [7, 96, 200])
def test_causal_blocks(queries, keys):
    """Lengths around those of the kernel's blocks, each the longer one in turn."""
    rng = np.random.default_rng(queries * keys)
    arrays = [rng.standard_normal((1, 2, n, 8)).astype("float32") for n in (queries, keys, keys, queries)]
    found = []
    for lib in (ts, torch):
        operands = [lib.from_numpy(a).requires_grad_() for a in arrays[:3]]
        q = operands[0] if keys == 7 else operands[0].transpose(1, 2).contiguous().transpose(1, 2)
        out = lib.nn.functional.scaled_dot_product_attention(q, *operands[1:], is_causal=True)
        out.backward(lib.from_numpy(arrays[3]))
        found.append([out.detach().numpy(), *(x.grad.numpy() for x in operands)])
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize(("shapes", "words"), [
    (((2, 3, 4), (2, 3, 5), (2, 3, 5)), "query has 4 features and key 5"),
    (((2, 3, 4), (2, 3, 4), (2, 6, 4)), "3 keys and 6 values"),
    (((2, 3, 4), (3, 3, 4), (3, 3, 4)), r"leading axes of \[2, 3, 4\]"),
    (((2, 3, 4), (2, 5, 4), (2, 5, 4), (3, 4)), r"attn_mask of shape \[3, 4\] does not broadcast .* 3 queries, 5 keys"),
    (((2, 3, 4), (2, 5, 4), (2, 5, 4), (4, 3, 5)), r"attn_mask of shape \[4, 3, 5\]"),
])  # fmt: skip
def test_sizes_that_do_not_fit_are_named(shapes, words):
    with pytest.raises(RuntimeError, match=words):
        ts.nn.functional.scaled_dot_product_attention(*(ts.ones(*shape) for shape in shapes))
    with pytest.raises(RuntimeError):
        torch.nn.functional.scaled_dot_product_attention(*(torch.ones(*shape) for shape in shapes))
