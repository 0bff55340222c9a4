"""In which dtype each operator runs under `autocast`: the one table of mixed precision, by device.

PyTorch states its choice by ATen operators (documentation: "Automatic Mixed Precision package, Autocast Op Reference"); here
are the operators of ours that stand for them, some for several: `convolution` for conv1d to conv3d, `fractional_max_pool` for
both ranks. A function that PyTorch composes of listed operators and we describe as one is listed under what its result is
there: `einsum` on the CPU is a batched product, `normalize` divides by a norm. What is not listed runs in the dtypes it is
given, and promotes as ever. A few functions are made of several operators here and are one in PyTorch; they are listed by their
own name (`trace`, `cdist`), and ask `Casting.operands` for their operands.

    LOWER     every floating-point operand but float64 is cast to the dtype of autocast: products, which tensor cores do
    FLOAT32   the same to float32: exponentials, norms, losses, sums, whose values need the range or the digits
    RESULT    a reduction that takes `dtype`: float32, unless the caller says another
    WIDEST    operands that have to agree are cast to the widest of theirs, at least the dtype of autocast
    BANNED    refused: values of a lower dtype would be wrong without notice
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from tensorsmith.eager.operator import Operation, operators


class Policy(Enum):
    """What autocast does to the operands of an operator."""

    LOWER = "lower precision"
    FLOAT32 = "float32"
    RESULT = "float32 result"
    WIDEST = "widest"
    BANNED = "banned"


_PRODUCTS = (
    "addbmm addmm baddbmm bmm convolution conv_transpose einsum linalg.vecdot linear matmul mm prelu "
    "scaled_dot_product_attention"
)
_RECURRENT = (
    "gru_cell gru_layer gru_step lstm_cell lstm_layer lstm_step rnn_relu_cell rnn_relu_layer rnn_relu_step rnn_tanh_cell "
    "rnn_tanh_layer rnn_tanh_step"
)
_LOSSES = (
    "binary_cross_entropy_with_logits cosine_embedding_loss hinge_embedding_loss huber_loss kl_div l1_loss "
    "margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss poisson_nll_loss smooth_l1_loss "
    "soft_margin_loss triplet_margin_loss cross_entropy cross_entropy_of_probabilities"
)

CUDA: Mapping[Policy, str] = {
    Policy.LOWER: f"{_PRODUCTS} {_RECURRENT} addmv addr linalg.multi_dot mv",
    Policy.FLOAT32: (
        f"{_LOSSES} acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh softplus square tan "
        "cdist cosine_similarity group_norm layer_norm logsumexp normalize nuclear_norm pairwise_distance local_response_norm "
        "gaussian_nll_loss multilabel_soft_margin_loss upsample_nearest upsample_weighed"
    ),
    Policy.RESULT: "cumprod cumsum log_softmax prod softmax softmin sum vector_norm",
    Policy.WIDEST: (
        "addcdiv addcmul atan2 bilinear cat dot grid_sample index_put linalg_cross scatter_add stack tensordot"
    ),
    Policy.BANNED: "binary_cross_entropy",
}

CPU: Mapping[Policy, str] = {
    Policy.LOWER: f"{_PRODUCTS} linalg.multi_dot rnn_relu_cell rnn_relu_step rnn_tanh_cell rnn_tanh_step tensordot",
    Policy.FLOAT32: (
        f"{_LOSSES} adaptive_avg_pool adaptive_max_pool avg_pool binary_cross_entropy cdist complex ctc_loss "
        "fractional_max_pool grid_sample householder_product max_pool max_pool_with_indices max_unpool nanquantile pad_taking "
        "polar prod quantile solve svdvals trace view_as_complex"
    ),
    Policy.WIDEST: "cat index_copy stack",
}

# On the CPU with three axes of space only: PyTorch lists `avg_pool3d` there, but not `avg_pool2d`.
_THREE_AXES = frozenset({"adaptive_avg_pool", "adaptive_max_pool", "avg_pool", "max_pool", "max_pool_with_indices"})

WHY_BANNED = (
    "ts.nn.functional.binary_cross_entropy and ts.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using ts.nn.functional.binary_cross_entropy_with_logits\n"
    "or ts.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


@cache
def policies(device_type: str) -> dict[str, Policy]:
    """The policy of every listed name on a device."""
    table = CUDA if device_type == "cuda" else CPU
    return {name: policy for policy, names in table.items() for name in names.split()}


def policy_of(operation: Operation, attrs: Mapping[str, Any], device_type: str) -> Policy | None:
    """What autocast does to the operands of a call; None where it leaves them as they are."""
    if device_type == "cpu" and operation.name in _THREE_AXES and len(attrs.get("kernel", attrs.get("output", ()))) < 3:
        return None
    if operation.name == "pad_taking" and attrs["mode"] == "circular":
        return None
    return policies(device_type).get(operation.name)


@cache
def listed() -> frozenset[Operation]:
    """Every operator that some device has a policy for."""
    known = operators()
    return frozenset(known[name] for device in ("cpu", "cuda") for name in policies(device) if name in known)
