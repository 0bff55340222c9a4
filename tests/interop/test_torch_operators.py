"""The table of ATen operators: values, dtypes and strides are PyTorch's."""

from __future__ import annotations

import math

import pytest
import torch
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from tensorsmith.interop.torch.operators import OPERATORS
from tensorsmith.interop.torch.partition import Support
from tensorsmith.interop.torch.program import Program

aten = torch.ops.aten
F = torch.nn.functional


def rand(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * (high - low) + low


def every(names: str, *args: object) -> list[torch.Tensor]:
    return [getattr(torch, name)(*args) for name in names.split()]


def unary(x: torch.Tensor) -> list[torch.Tensor]:
    positive, small = x.abs() + 1.25, x * 0.4
    return [
        *every("abs atan ceil cos cosh erf erfc exp exp2 expm1 floor frac isfinite isinf isnan neg reciprocal relu round", x),
        *every("sgn sigmoid sign signbit sin sinh square tan tanh trunc logical_not asinh", x),
        *every("log log10 log1p log2 rsqrt sqrt acosh lgamma digamma", positive),
        *every("acos asin atanh erfinv", small),
        *[getattr(F, n)(x) for n in "silu mish leaky_relu hardswish hardsigmoid hardtanh softplus elu celu relu6 gelu".split()],
        F.gelu(x, approximate="tanh"), x.round(decimals=1), ~(x > 0), x.clamp(-1, 0.5), x.clamp(min=0.25), x.clamp_max(0.5),
    ]  # fmt: skip


def binary(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    i, j = (x * 8).to(torch.int32), (y * 8).to(torch.int64)
    return [
        *every("sub mul div fmod remainder eq ne lt le gt ge atan2 hypot maximum minimum copysign", x, y),
        *every("mul div fmod remainder eq ne lt le gt ge", x, 1.5), *every("bitwise_and bitwise_or bitwise_xor add mul", i, j),
        *every("logical_and logical_or logical_xor", x > 0, y > 0), torch.add(x, y, alpha=2), torch.rsub(x, 3), 2.5 - x,
        x.abs() ** y, x.abs() ** 1.5, 2.0**x, torch.div(x, y, rounding_mode="floor"), torch.div(i, 3, rounding_mode="trunc"),
        torch.lerp(x, y, 0.25), torch.lerp(x, y, y), torch.addcmul(x, y, y, value=2), torch.addcdiv(x, y, y + 3),
        torch.where(x > 0, x, y), torch.where(x > 0, 1.0, y), x.masked_fill(x > 0, 3.0), x.clamp(y, y + 1), x + i, i + 1.5,
        x.to(torch.float64) + y, x.to(torch.bfloat16) * 3, (x > 0) + j, x.to(torch.int8),
    ]  # fmt: skip


def views(x: torch.Tensor) -> list[torch.Tensor]:
    a, b = x.split([1, 3], 1)
    return [
        x.permute(2, 0, 1), x.transpose(0, 1) + 1, x[0].t(), x.unsqueeze(1), x[:1].squeeze(0), x[:, :1].squeeze(), x[:, 1:4:2],
        x.reshape(-1, 3) * 2, x.transpose(0, 1).reshape(-1), x[:, 0], x[..., -1] * 2, x[:1].expand(4, 4, 3), a, b + 1,
        *x.unbind(0), x.diagonal(0, 1, 2), x.flip(0, 2), x.roll(1, 1), x.tril(), x.triu(1), torch.cat([x, x * 2], 1),
        torch.stack([x, x + 1]), F.pad(x, (1, 2, 0, 1), value=0.5), x.repeat(2, 1, 1), x, x.clone(),
        torch.slice_scatter(x, x[:, :2] * 3, 1, 1, 3), torch.select_scatter(x, x[0] * 2, 0, 1), x.view(2, 2, 2, 3)[:, 1],
        torch.full((2, 3), 1.5), torch.zeros(2, dtype=torch.int64), torch.ones_like(x), torch.arange(2, 9, 3), x.new_zeros(3),
    ]  # fmt: skip


def reductions(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.mean(), x.mean(-1), x.amax(1), x.amin((0, 1)), x.max(), x.min(),
        *x.max(1), *x.min(2, keepdim=True), x.argmax(), x.argmin(1), (x > 0).any(), (x > 0).all(1), x.prod(2), x.var(1),
        x.std(), *torch.var_mean(x, 0, correction=0), x.cumsum(1), x.logsumexp(2), x.softmax(-1), x.log_softmax(1),
        *x.sort(1, descending=True), *x.topk(2, 1), x.norm(),
    ]  # fmt: skip


def products(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    return [
        x[0] @ y[0], x @ y, torch.addmm(b, x[0], y[0], beta=0.5, alpha=2), x[0] @ y[0, :, 0], x[0, 0] @ y[0, :, 0],
        torch.baddbmm(b.expand(2, 4, 5), x, y), F.linear(x, y[0].t(), b),
    ]  # fmt: skip


def indexing(x: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
    volume = x * x[:, None, None]
    volume = volume[:, 0] + volume[:, 0].transpose(0, 1) * 2
    return [
        x.gather(1, index), x.index_select(0, index[0]), x[index[0]], x[index, index], x[:, index[0]], F.embedding(index, x),
        x.scatter(1, index, x + 1), x.scatter(0, index, 5.0), x.scatter_add(1, index, x), x.index_put((index[0],), x[:3] * 2),
        x.index_put((index[0], index[1]), x[0, :3], accumulate=True), aten.index_put(x, [None, index[0]], x[:, :3] * 2),
        aten.index_put(x, [x > 0.5], x[0, 0]), aten.index_put(x, [x[0] > 0.5], x[:1, 0], True),
        aten.index_put(volume, [None, index[0], index], volume[0, :3, :3] + 2, True),
        aten.index_put(volume, [index[0], None, index], x[:3, :1], True),
    ]  # fmt: skip


def layers(x: torch.Tensor, w: torch.Tensor, d: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
    q = x.reshape(2, 4, 9, 9)
    return [
        F.conv2d(x, w, s, stride=2, padding=1), F.conv2d(x, d, None, groups=4), F.conv_transpose2d(x, w, padding=1, stride=2),
        F.conv1d(x[:, :, 0], w[:, :, 0], s), *F.max_pool2d(x, 3, 2, 1, return_indices=True), F.avg_pool2d(x, 2, ceil_mode=True),
        F.adaptive_avg_pool2d(x, 3), F.group_norm(x, 2, s, s), F.layer_norm(x, (9, 9)),
        aten._native_batch_norm_legit_no_training(x, s, s, s, s.abs() + 1, 0.1, 1e-5)[0],
        *aten._native_batch_norm_legit_functional(x, s, s, s, s.abs(), True, 0.1, 1e-5),
        *aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5),
        F.scaled_dot_product_attention(q, q, q, is_causal=True), F.scaled_dot_product_attention(q, q, q, q[..., :1, :]),
    ]  # fmt: skip


CASES = {
    "unary": (unary, (rand(3, 5),)),
    "binary": (binary, (rand(3, 5), rand(3, 5, seed=1))),
    "views": (views, (rand(2, 4, 3),)),
    "reductions": (reductions, (rand(2, 4, 3),)),
    "products": (products, (rand(2, 4, 3), rand(2, 3, 5), rand(5))),
    "indexing": (indexing, (rand(4, 4), torch.tensor([[0, 2, 1], [3, 1, 0], [2, 0, 3]]))),
    "layers": (layers, (rand(2, 4, 9, 9), rand(4, 4, 3, 3), rand(4, 1, 3, 3), rand(4))),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_are_pytorchs(name: str):
    function, arguments = CASES[name]
    rules = {target: rule for target, rule in core_aten_decompositions().items() if target not in OPERATORS}
    with torch.no_grad():
        graph = make_fx(function, rules, tracing_mode="fake")(*arguments)
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        assert [str(n.target) for n in calls if not Support().is_node_supported({}, n)] == []
        wanted, found = function(*arguments), Program(graph)(*arguments)
    assert len(wanted) == len(found)
    for number, (want, got) in enumerate(zip(wanted, found)):
        where = f"{name} {number}: {got} instead of {want}"
        assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype), where
        tolerance = 2e-2 if want.dtype is torch.bfloat16 else 3e-5
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True, msg=where)


def test_backward_operators_are_pytorchs():
    """Every operator that AOTAutograd meets in a backward graph and PyTorch does not decompose, by its own arguments."""
    x, w, g = rand(2, 4, 6, 6), rand(4, 4, 3, 3), rand(2, 4, 4, 4, seed=2)
    s, rows, index = rand(4), rand(5, 4), torch.tensor([1, 0, 1, 2, 2])
    _, places = F.max_pool2d(x, 2, 2, return_indices=True)
    mean, scale = x.mean((0, 2, 3)), 1 / (x.var((0, 2, 3), correction=0) + 1e-5).sqrt()
    q = x.reshape(2, 4, 6, 6)
    row_mean, row_scale = rows.mean(1, keepdim=True), 1 / rows.std(1, keepdim=True)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, True)

    def backward(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        half = g[:, :, :3, :3].contiguous()
        return [
            *aten.convolution_backward(g, x, w, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]),
            aten.max_pool2d_with_indices_backward(half, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places),
            aten.avg_pool2d_backward(half, x, [2, 2], [2, 2], [0, 0], False, True, None),
            aten._adaptive_avg_pool2d_backward(half, x),
            *aten.native_batch_norm_backward(x * 2, x, s, None, None, mean, scale, True, 1e-5, [True, True, True]),
            *aten.native_batch_norm_backward(x * 2, x, s, mean, scale, None, None, False, 1e-5, [True, True, True]),
            *aten.native_layer_norm_backward(rows * 2, rows, [4], row_mean, row_scale, s, s, [True, True, True]),
            aten.embedding_dense_backward(rows, index, 3, 2, False),
            *aten._scaled_dot_product_flash_attention_for_cpu_backward(q * 2, q, q, q, out, lse, 0.0, True),
        ]  # fmt: skip

    with torch.no_grad():
        graph = make_fx(backward, tracing_mode="real")(x, w, g)
        assert {n.target for n in graph.graph.nodes if "backward" in str(n.target)} <= OPERATORS.keys()
        for number, (want, got) in enumerate(zip(backward(x, w, g), Program(graph)(x, w, g), strict=True)):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=f"result {number}")


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_is_one_operator_without_gradients(norm_first: bool):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu").eval()
    a, x = layer.self_attn, rand(2, 3, 8)
    norms = [p for norm in (layer.norm1, layer.norm2) for p in (norm.weight, norm.bias)]
    linears = [p for linear in (layer.linear1, layer.linear2) for p in (linear.weight, linear.bias)]

    def operator(x: torch.Tensor) -> torch.Tensor:
        weights = a.in_proj_weight, a.in_proj_bias, a.out_proj.weight, a.out_proj.bias
        return aten._transformer_encoder_layer_fwd(x, 8, 2, *weights, True, norm_first, 1e-5, *norms, *linears)

    with torch.no_grad():
        torch.testing.assert_close(Program(make_fx(operator)(x))(x)[0], layer(x), rtol=1e-5, atol=1e-5)


def test_special_values_pass_through():
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0])
    with torch.no_grad():
        graph = make_fx(lambda x: [x.relu(), x.max(), x.sign(), x * 0, 1 / x, x.clamp(-1, 1), x.softmax(0)])(x)
        for want, got in zip(graph(x), Program(graph)(x)):
            torch.testing.assert_close(got, want, equal_nan=True)
            assert torch.equal(torch.signbit(got[got == 0]), torch.signbit(want[want == 0]))
