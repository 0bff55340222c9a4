"""Attention in several heads, and PyTorch's address of what chooses the way of attention."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.nn import functional as F, init
from tensorsmith.nn.linear import Linear, new_parameter
from tensorsmith.nn.module import Module
from tensorsmith.ops.attention_backends import SDPBackend as SDPBackend, sdpa_kernel as sdpa_kernel
from tensorsmith.ops.multi_head_attention import added_mask
from tensorsmith.tensor.tensor import Tensor


class NonDynamicallyQuantizableLinear(Linear):
    """The projection behind attention: a Linear, with PyTorch's name."""


class MultiheadAttention(Module):
    """softmax(Q_h K_hᵀ / sqrt(d)) V_h in every head h, d = embed_dim / num_heads, and a projection of all heads (Vaswani et al., 2017).

    Shapes: query (L, N, embed_dim), key (S, N, kdim), value (S, N, vdim), without N, or with batch_first N before L and S
    -> (L, N, embed_dim), and the weights (N, L, S), or (N, num_heads, L, S) with average_attn_weights=False.
    in_proj_weight (3 embed_dim, embed_dim), or q_, k_ and v_proj_weight where kdim or vdim differ; out_proj: a Linear.
    dropout: of the weights. add_bias_kv: a learned key and value behind the others; add_zero_attn: one of zeros.
    Initialisation: projections Xavier uniform, their biases zeros; bias_k and bias_v Xavier normal.
    """  # noqa: E501

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        super().__init__()
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise AssertionError("embed_dim must be divisible by num_heads")
        shapes = {
            "q_proj_weight": (embed_dim, embed_dim), "k_proj_weight": (embed_dim, self.kdim),
            "v_proj_weight": (embed_dim, self.vdim), "in_proj_weight": (3 * embed_dim, embed_dim),
        }  # fmt: skip
        for name, shape in shapes.items():
            wanted = (name == "in_proj_weight") == self._qkv_same_embed_dim
            self.register_parameter(name, new_parameter(shape, dtype, device) if wanted else None)
        self.register_parameter("in_proj_bias", new_parameter((3 * embed_dim,), dtype, device) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias, device, dtype)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, new_parameter((1, 1, embed_dim), dtype, device) if add_bias_kv else None)
        self.add_zero_attn = add_zero_attn
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
        attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        batched = query.ndim == 3
        beside = None if attn_mask is None else attn_mask.dtype
        key_padding_mask = added_mask(key_padding_mask, "key_padding_mask", query.dtype, beside, "attn_mask")
        attn_mask = added_mask(attn_mask, "attn_mask", query.dtype)
        if self.batch_first and batched:
            same = key is query, value is key
            query = query.transpose(1, 0)
            key = query if same[0] else key.transpose(1, 0)
            value = key if same[1] else value.transpose(1, 0)
        result, weights = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, self.bias_k,
            self.bias_v, self.add_zero_attn, self.dropout, self.out_proj.weight, self.out_proj.bias,
            training=self.training, key_padding_mask=key_padding_mask, need_weights=need_weights, attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim, q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight, v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights, is_causal=is_causal,
        )  # fmt: skip
        return (result.transpose(1, 0) if self.batch_first and batched else result), weights

    def merge_masks(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, query: Tensor
    ) -> tuple[Tensor | None, int | None]:
        """Both masks as one (N, num_heads, L, L), for a query (N, L, E); and which there were: 1 padding, 2 attention."""
        kind, merged = (None, None) if key_padding_mask is None else (1, key_padding_mask)
        if attn_mask is not None:
            batch, length, _ = query.shape
            kind = 2
            if attn_mask.ndim == 3:
                merged = attn_mask.reshape(batch, -1, length, length)
            else:
                merged = attn_mask.reshape(1, 1, length, length).expand(batch, self.num_heads, -1, -1)
            if key_padding_mask is not None:
                spread = key_padding_mask.reshape(batch, 1, 1, length).expand(-1, self.num_heads, -1, -1)
                merged = merged + spread
        return merged, kind
