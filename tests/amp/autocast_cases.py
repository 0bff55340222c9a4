"""Calls of operators that autocast has a policy for, and of some that it leaves alone, written once for both libraries.

Each case is a name and a function of a library `t` (ours or PyTorch) and of `x(*shape)`, which makes operands of the dtype
of the run; `half(*shape)` and `full(*shape)` make operands in the dtype of autocast and in float32, whatever the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Case = Callable[[Any, Any, Any, Any], Any]


def _losses() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss"):
        found[name] = lambda t, x, half, full, name=name: getattr(t.nn.functional, name)(x(4, 3), x(4, 3))
    found["kl_div"] = lambda t, x, half, full: t.nn.functional.kl_div(x(4, 3), x(4, 3).abs(), reduction="sum")
    found["soft_margin_loss"] = lambda t, x, half, full: t.nn.functional.soft_margin_loss(x(4, 3), full(4, 3).sign())
    found["hinge_embedding_loss"] = lambda t, x, half, full: t.nn.functional.hinge_embedding_loss(x(4, 3), full(4, 3).sign())
    found["margin_ranking_loss"] = lambda t, x, half, full: t.nn.functional.margin_ranking_loss(x(4), x(4), full(4).sign())
    found["cosine_embedding_loss"] = lambda t, x, half, full: t.nn.functional.cosine_embedding_loss(
        x(4, 3), x(4, 3), full(4).sign()
    )
    found["triplet_margin_loss"] = lambda t, x, half, full: t.nn.functional.triplet_margin_loss(x(4, 3), x(4, 3), x(4, 3))
    found["multi_margin_loss"] = lambda t, x, half, full: t.nn.functional.multi_margin_loss(x(2, 3), t.tensor([0, 2]))
    found["multilabel_margin_loss"] = lambda t, x, half, full: t.nn.functional.multilabel_margin_loss(
        x(2, 3), t.tensor([[0, 2, -1], [1, -1, 0]])
    )
    found["multilabel_soft_margin_loss"] = lambda t, x, half, full: t.nn.functional.multilabel_soft_margin_loss(
        x(2, 3), (full(2, 3) > 0).float()
    )
    found["gaussian_nll_loss"] = lambda t, x, half, full: t.nn.functional.gaussian_nll_loss(x(4, 3), x(4, 3), x(4, 3).abs())
    found["cross_entropy"] = lambda t, x, half, full: t.nn.functional.cross_entropy(x(2, 3), t.tensor([0, 2]))
    found["cross_entropy weighted"] = lambda t, x, half, full: t.nn.functional.cross_entropy(
        x(2, 3), t.tensor([0, 2]), weight=full(3).abs()
    )
    found["cross_entropy of probabilities"] = lambda t, x, half, full: t.nn.functional.cross_entropy(
        x(2, 3), full(2, 3).softmax(1)
    )
    found["nll_loss"] = lambda t, x, half, full: t.nn.functional.nll_loss(x(2, 3), t.tensor([0, 2]))
    found["nll_loss weighted"] = lambda t, x, half, full: t.nn.functional.nll_loss(
        x(2, 3), t.tensor([0, 2]), weight=full(3).abs()
    )
    found["nll_loss2d"] = lambda t, x, half, full: t.nn.functional.nll_loss(x(2, 3, 2), t.tensor([[0, 2], [1, 1]]))
    found["binary_cross_entropy_with_logits"] = lambda t, x, half, full: t.nn.functional.binary_cross_entropy_with_logits(
        x(4, 3), full(4, 3).sigmoid()
    )
    found["binary_cross_entropy"] = lambda t, x, half, full: t.nn.functional.binary_cross_entropy(
        x(4, 3).sigmoid(), full(4, 3).sigmoid()
    )
    found["ctc_loss"] = lambda t, x, half, full: t.nn.functional.ctc_loss(
        x(5, 2, 4).float().log_softmax(2), t.tensor([[1, 2], [2, 3]]), t.tensor([5, 5]), t.tensor([2, 2])
    )
    return found


def _products() -> dict[str, Case]:
    return {
        "matmul": lambda t, x, half, full: t.matmul(x(3, 4), x(4, 5)),
        "matmul mixed": lambda t, x, half, full: t.matmul(half(3, 4), full(4, 5)),
        "matmul operator": lambda t, x, half, full: full(3, 4) @ half(4, 5),
        "matmul vectors": lambda t, x, half, full: t.matmul(half(4), full(4)),
        "matmul batch": lambda t, x, half, full: t.matmul(x(2, 3, 4), x(4, 5)),
        "mm": lambda t, x, half, full: t.mm(half(3, 4), full(4, 5)),
        "bmm": lambda t, x, half, full: t.bmm(half(2, 3, 4), full(2, 4, 5)),
        "addmm": lambda t, x, half, full: t.addmm(full(3, 5), half(3, 4), full(4, 5)),
        "addbmm": lambda t, x, half, full: t.addbmm(full(3, 5), half(2, 3, 4), full(2, 4, 5)),
        "baddbmm": lambda t, x, half, full: t.baddbmm(full(2, 3, 5), half(2, 3, 4), full(2, 4, 5)),
        "mv": lambda t, x, half, full: t.mv(x(3, 4), x(4)),
        "addmv": lambda t, x, half, full: t.addmv(x(3), x(3, 4), x(4)),
        "addr": lambda t, x, half, full: t.addr(x(3, 4), x(3), x(4)),
        "dot": lambda t, x, half, full: t.dot(x(4), x(4)),
        "vdot": lambda t, x, half, full: t.vdot(x(4), x(4)),
        "outer": lambda t, x, half, full: t.outer(x(4), x(3)),
        "inner": lambda t, x, half, full: t.inner(x(2, 4), x(3, 4)),
        "kron": lambda t, x, half, full: t.kron(x(2, 2), x(2, 3)),
        "einsum": lambda t, x, half, full: t.einsum("ij,jk->ik", half(3, 4), full(4, 5)),
        "einsum three": lambda t, x, half, full: t.einsum("bij,bjk,bk->bi", x(2, 3, 4), x(2, 4, 5), x(2, 5)),
        "tensordot": lambda t, x, half, full: t.tensordot(x(3, 4), x(4, 5), 1),
        "chain_matmul": lambda t, x, half, full: t.linalg.multi_dot([x(3, 4), x(4, 5), x(5, 2)]),
        "vecdot": lambda t, x, half, full: t.linalg.vecdot(x(3, 4), x(3, 4)),
        "linear": lambda t, x, half, full: t.nn.functional.linear(half(3, 4), full(5, 4), full(5)),
        "linear without bias": lambda t, x, half, full: t.nn.functional.linear(x(3, 4), x(5, 4)),
        "bilinear": lambda t, x, half, full: t.nn.functional.bilinear(x(3, 4), x(3, 2), x(5, 4, 2)),
        "conv1d": lambda t, x, half, full: t.nn.functional.conv1d(half(2, 3, 8), full(4, 3, 3), full(4)),
        "conv2d": lambda t, x, half, full: t.nn.functional.conv2d(half(2, 3, 6, 6), full(4, 3, 3, 3), full(4)),
        "conv2d same": lambda t, x, half, full: t.nn.functional.conv2d(x(2, 3, 6, 6), x(4, 3, 3, 3), padding="same"),
        "conv3d": lambda t, x, half, full: t.nn.functional.conv3d(x(1, 2, 4, 4, 4), x(3, 2, 3, 3, 3)),
        "conv_transpose1d": lambda t, x, half, full: t.nn.functional.conv_transpose1d(half(2, 3, 8), full(3, 4, 3)),
        "conv_transpose2d": lambda t, x, half, full: t.nn.functional.conv_transpose2d(x(2, 3, 5, 5), x(3, 4, 3, 3)),
        "conv_transpose3d": lambda t, x, half, full: t.nn.functional.conv_transpose3d(x(1, 3, 2, 2, 2), x(3, 2, 2, 2, 2)),
        "conv_tbc": lambda t, x, half, full: t.conv_tbc(x(6, 2, 3), x(3, 3, 4), x(4)),
        "prelu": lambda t, x, half, full: t.nn.functional.prelu(half(2, 3), full(3)),
        "scaled_dot_product_attention": lambda t, x, half, full: t.nn.functional.scaled_dot_product_attention(
            half(2, 3, 4, 8), full(2, 3, 4, 8), full(2, 3, 4, 8)
        ),
        "attention with a mask": lambda t, x, half, full: t.nn.functional.scaled_dot_product_attention(
            x(2, 3, 4, 8), x(2, 3, 4, 8), x(2, 3, 4, 8), attn_mask=full(4, 4)
        ),
        "gru_cell": lambda t, x, half, full: t.gru_cell(x(2, 4), x(2, 3), x(9, 4), x(9, 3)),
        "lstm_cell": lambda t, x, half, full: t.lstm_cell(x(2, 4), (x(2, 3), x(2, 3)), x(12, 4), x(12, 3))[0],
        "rnn_tanh_cell": lambda t, x, half, full: t.rnn_tanh_cell(x(2, 4), x(2, 3), x(3, 4), x(3, 3)),
        "rnn_relu_cell": lambda t, x, half, full: t.rnn_relu_cell(x(2, 4), x(2, 3), x(3, 4), x(3, 3)),
    }


def _pointwise() -> dict[str, Case]:
    found: dict[str, Case] = {}
    names = (
        "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
        "abs asinh atan ceil cos erf erfc exp2 floor frac lgamma neg relu round sigmoid sign sin sqrt square tanh trunc"
    )
    for name in names.split():
        found[name] = lambda t, x, half, full, name=name: getattr(t, name)(x(3, 4).sigmoid() * 0.5 + 0.25)
    for name in "softplus gelu silu mish elu hardtanh leaky_relu logsigmoid softsign tanhshrink hardswish".split():
        found[name] = lambda t, x, half, full, name=name: getattr(t.nn.functional, name)(x(3, 4))
    for name in "add mul sub div maximum minimum atan2 hypot".split():
        found[name] = lambda t, x, half, full, name=name: getattr(t, name)(x(3, 4), x(3, 4))
        found[name + " mixed"] = lambda t, x, half, full, name=name: getattr(t, name)(half(3, 4), full(3, 4))
    return found | {
        "pow number": lambda t, x, half, full: x(3, 4).abs() ** 1.5,
        "pow of number": lambda t, x, half, full: 2.0 ** x(3, 4),
        "pow tensors": lambda t, x, half, full: t.pow(x(3, 4).abs(), x(3, 4)),
        "float_power": lambda t, x, half, full: t.float_power(x(3, 4).abs(), 1.5),
        "addcmul": lambda t, x, half, full: t.addcmul(x(3), half(3), full(3)),
        "addcdiv": lambda t, x, half, full: t.addcdiv(x(3), half(3), full(3).abs() + 1),
        "lerp": lambda t, x, half, full: t.lerp(x(3), x(3), 0.5),
        "where": lambda t, x, half, full: t.where(full(3) > 0, half(3), full(3)),
        "clamp": lambda t, x, half, full: x(3).clamp(-0.5, 0.5),
        "glu": lambda t, x, half, full: t.nn.functional.glu(x(3, 4)),
        "dropout": lambda t, x, half, full: t.nn.functional.dropout(x(3, 4), 0.5, False),
    }


def _reductions() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for name in "sum prod mean std var amax argmax logsumexp nansum max".split():
        found[name] = lambda t, x, half, full, name=name: getattr(x(3, 4), name)(*((1,) if name == "logsumexp" else ()))
    for name in "sum mean amax logsumexp std softmax log_softmax cumsum cumprod logcumsumexp argsort".split():
        found[name + " of a dim"] = lambda t, x, half, full, name=name: getattr(x(3, 4), name)(1)
    for name in "softmax log_softmax sum cumsum".split():
        found[name + " with dtype"] = lambda t, x, half, full, name=name: getattr(x(3, 4), name)(1, dtype=t.bfloat16)
    return found | {
        "prod of a dim": lambda t, x, half, full: x(3, 4).prod(1),
        "softmin": lambda t, x, half, full: t.nn.functional.softmin(x(3, 4), 1),
        "functional softmax": lambda t, x, half, full: t.nn.functional.softmax(x(3, 4), -1),
        "norm": lambda t, x, half, full: x(3, 4).norm(),
        "norm of a dim": lambda t, x, half, full: t.norm(x(3, 4), 2, 1),
        "norm of fro": lambda t, x, half, full: t.norm(x(3, 4), "fro"),
        "norm of nuc": lambda t, x, half, full: t.norm(full(3, 4), "nuc"),
        "vector_norm": lambda t, x, half, full: t.linalg.vector_norm(x(3, 4)),
        "matrix_norm": lambda t, x, half, full: t.linalg.matrix_norm(x(3, 4)),
        "matrix_norm 1": lambda t, x, half, full: t.linalg.matrix_norm(x(3, 4), 1),
        "linalg.norm": lambda t, x, half, full: t.linalg.norm(x(3, 4)),
        "normalize": lambda t, x, half, full: t.nn.functional.normalize(x(3, 4)),
        "dist": lambda t, x, half, full: t.dist(x(3, 4), x(3, 4)),
        "cdist": lambda t, x, half, full: t.cdist(x(3, 4), x(5, 4)),
        "pdist": lambda t, x, half, full: t.nn.functional.pdist(x(3, 4)),
        "pairwise_distance": lambda t, x, half, full: t.nn.functional.pairwise_distance(x(3, 4), x(3, 4)),
        "cosine_similarity": lambda t, x, half, full: t.cosine_similarity(x(3, 4), x(3, 4)),
        "renorm": lambda t, x, half, full: t.renorm(x(3, 4), 2, 0, 1.0),
        "trace": lambda t, x, half, full: t.trace(x(3, 3)),
        "quantile": lambda t, x, half, full: t.quantile(x(5), 0.3),
        "nanquantile": lambda t, x, half, full: t.nanquantile(x(5), 0.3),
        "var_mean": lambda t, x, half, full: t.var_mean(x(3, 4))[0],
        "layer_norm": lambda t, x, half, full: t.nn.functional.layer_norm(x(3, 4), (4,), full(4), full(4)),
        "layer_norm plain": lambda t, x, half, full: t.nn.functional.layer_norm(x(3, 4), (4,)),
        "rms_norm": lambda t, x, half, full: t.nn.functional.rms_norm(x(3, 4), (4,), x(4)),
        "group_norm": lambda t, x, half, full: t.nn.functional.group_norm(x(2, 4, 3), 2, x(4), x(4)),
        "batch_norm": lambda t, x, half, full: t.nn.functional.batch_norm(
            x(4, 3, 2), full(3), full(3).abs(), full(3), full(3), True
        ),
        "batch_norm evaluation": lambda t, x, half, full: t.nn.functional.batch_norm(
            x(4, 3, 2), full(3), full(3).abs(), full(3), full(3)
        ),
        "instance_norm": lambda t, x, half, full: t.nn.functional.instance_norm(x(2, 3, 4)),
        "local_response_norm": lambda t, x, half, full: t.nn.functional.local_response_norm(x(2, 3, 4), 3),
    }


def _arranging() -> dict[str, Case]:
    return {
        "cat": lambda t, x, half, full: t.cat([half(2, 3), full(2, 3)]),
        "cat alike": lambda t, x, half, full: t.cat([x(2, 3), x(2, 3)]),
        "stack": lambda t, x, half, full: t.stack([half(2, 3), full(2, 3)]),
        "hstack": lambda t, x, half, full: t.hstack([half(2, 3), full(2, 3)]),
        "index_copy": lambda t, x, half, full: t.index_copy(full(3, 2), 0, t.tensor([2, 0]), half(2, 2)),
        "index_put": lambda t, x, half, full: t.index_put(x(3, 2), (t.tensor([2, 0]),), x(2, 2)),
        "index_put mixed": lambda t, x, half, full: t.index_put(full(3, 2), (t.tensor([2, 0]),), half(2, 2)),
        "scatter_add": lambda t, x, half, full: t.scatter_add(full(3, 2), 0, t.tensor([[2, 0]]), half(1, 2)),
        "scatter_add alike": lambda t, x, half, full: t.scatter_add(x(3, 2), 0, t.tensor([[2, 0]]), x(1, 2)),
        "index_add": lambda t, x, half, full: t.index_add(x(3, 2), 0, t.tensor([2, 0]), x(2, 2)),
        "gather": lambda t, x, half, full: t.gather(x(3, 2), 0, t.tensor([[2, 0]])),
        "cross": lambda t, x, half, full: t.cross(x(2, 3), x(2, 3), dim=1),
        "cross mixed": lambda t, x, half, full: t.cross(half(2, 3), full(2, 3), dim=1),
        "grid_sample": lambda t, x, half, full: t.nn.functional.grid_sample(
            x(1, 2, 4, 4), x(1, 3, 3, 2), align_corners=False
        ),
        "grid_sample mixed": lambda t, x, half, full: t.nn.functional.grid_sample(
            half(1, 2, 4, 4), full(1, 3, 3, 2), align_corners=False
        ),
        "interpolate nearest": lambda t, x, half, full: t.nn.functional.interpolate(x(1, 2, 4, 4), scale_factor=2),
        "interpolate bilinear": lambda t, x, half, full: t.nn.functional.interpolate(
            x(1, 2, 4, 4), scale_factor=2, mode="bilinear"
        ),
        "interpolate linear": lambda t, x, half, full: t.nn.functional.interpolate(x(1, 2, 4), scale_factor=2, mode="linear"),
        "avg_pool1d": lambda t, x, half, full: t.nn.functional.avg_pool1d(x(1, 2, 4), 2),
        "avg_pool2d": lambda t, x, half, full: t.nn.functional.avg_pool2d(x(1, 2, 4, 4), 2),
        "avg_pool3d": lambda t, x, half, full: t.nn.functional.avg_pool3d(x(1, 2, 4, 4, 4), 2),
        "max_pool2d": lambda t, x, half, full: t.nn.functional.max_pool2d(x(1, 2, 4, 4), 2),
        "max_pool3d": lambda t, x, half, full: t.nn.functional.max_pool3d(x(1, 2, 4, 4, 4), 2),
        "adaptive_avg_pool2d": lambda t, x, half, full: t.nn.functional.adaptive_avg_pool2d(x(1, 2, 4, 4), 2),
        "adaptive_avg_pool3d": lambda t, x, half, full: t.nn.functional.adaptive_avg_pool3d(x(1, 2, 4, 4, 4), 3),
        "adaptive_max_pool2d": lambda t, x, half, full: t.nn.functional.adaptive_max_pool2d(x(1, 2, 4, 4), 3),
        "adaptive_max_pool3d": lambda t, x, half, full: t.nn.functional.adaptive_max_pool3d(x(1, 2, 4, 4, 4), 3),
        "max_unpool2d": lambda t, x, half, full: t.nn.functional.max_unpool2d(
            *t.nn.functional.max_pool2d(x(1, 2, 4, 4), 2, return_indices=True), 2
        ),
        "pad reflect": lambda t, x, half, full: t.nn.functional.pad(x(1, 2, 4, 4), (1, 1, 1, 1), mode="reflect"),
        "pad replicate": lambda t, x, half, full: t.nn.functional.pad(x(1, 2, 4), (1, 1), mode="replicate"),
        "pad circular": lambda t, x, half, full: t.nn.functional.pad(x(1, 2, 4), (1, 1), mode="circular"),
        "pad constant": lambda t, x, half, full: t.nn.functional.pad(x(1, 2, 4), (1, 1)),
        "embedding": lambda t, x, half, full: t.nn.functional.embedding(t.tensor([1, 0]), x(3, 2)),
        "fold": lambda t, x, half, full: t.nn.functional.fold(x(1, 8, 4), (3, 3), (2, 2)),
        "unfold": lambda t, x, half, full: t.nn.functional.unfold(x(1, 2, 3, 3), (2, 2)),
        "polar": lambda t, x, half, full: t.polar(full(3).abs(), full(3)),
        "view_as_complex": lambda t, x, half, full: t.view_as_complex(full(3, 2)),
        "sort": lambda t, x, half, full: x(5).sort()[0],
        "topk": lambda t, x, half, full: x(5).topk(2)[0],
        "tril": lambda t, x, half, full: x(3, 3).tril(),
        "solve": lambda t, x, half, full: t.linalg.solve(full(3, 3), x(3, 3)),
        "svdvals": lambda t, x, half, full: t.linalg.svdvals(x(3, 3)),
        "householder_product": lambda t, x, half, full: t.linalg.householder_product(full(3, 2), full(2)),
        "matrix_exp": lambda t, x, half, full: t.linalg.matrix_exp(full(3, 3)),
    }


CASES: dict[str, Case] = {**_products(), **_losses(), **_pointwise(), **_reductions(), **_arranging()}
