"""Transformers: stacks of layers, and encoder and decoder together."""

from __future__ import annotations

import copy
import math
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.nn import functional as F, init
from tensorsmith.nn.containers import ModuleList
from tensorsmith.nn.module import Module
from tensorsmith.nn.normalisation import LayerNorm
from tensorsmith.nn.transformer_layers import Activation, TransformerDecoderLayer, TransformerEncoderLayer
from tensorsmith.ops.creation import full
from tensorsmith.ops.multi_head_attention import added_mask
from tensorsmith.tensor.tensor import Tensor


def _copies(layer: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


def _causal(size: int, dtype: DType | None = None, device: Any = None) -> Tensor:
    return full((size, size), -math.inf, dtype=dtype, device=device).triu(1)


def _length(x: Tensor, batch_first: bool) -> int:
    return x.shape[1 if x.ndim == 3 and batch_first else 0]


def _is_causal(mask: Tensor | None, given: bool | None, size: int) -> bool:
    """What the caller says, or else whether the mask is the causal one."""
    if given is not None or mask is None:
        return given is True
    expected = _causal(size, mask.dtype, mask.device)
    return mask.shape == expected.shape and bool((mask == expected).all())


class TransformerEncoder(Module):
    """`num_layers` copies of a layer, one after the other, and a norm behind them.

    Shapes: src and the result as the layer's. is_causal: whether `mask` is the causal one; looked up where None.
    enable_nested_tensor and mask_check are taken for PyTorch's sake: there are no nested tensors, values are the same.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.mask_check = mask_check

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        beside = None if mask is None else mask.dtype
        padding = added_mask(src_key_padding_mask, "src_key_padding_mask", src.dtype, beside, "mask")
        mask = added_mask(mask, "mask", src.dtype)
        causal = _is_causal(mask, is_causal, _length(src, self.layers[0].self_attn.batch_first))
        found = src
        for layer in self.layers:
            found = layer(found, src_mask=mask, is_causal=causal, src_key_padding_mask=padding)
        return found if self.norm is None else self.norm(found)


class TransformerDecoder(Module):
    """`num_layers` copies of a decoder's layer, one after the other, and a norm behind them.

    Shapes: tgt, memory and the result as the layer's. tgt_is_causal: whether `tgt_mask` is causal; looked up where None.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        causal = _is_causal(tgt_mask, tgt_is_causal, _length(tgt, self.layers[0].self_attn.batch_first))
        found = tgt
        for layer in self.layers:
            found = layer(
                found, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=causal, memory_is_causal=memory_is_causal,
            )  # fmt: skip
        return found if self.norm is None else self.norm(found)


class Transformer(Module):
    """Encoder and decoder (Vaswani et al., 2017): decoder(tgt, encoder(src)).

    Shapes: src (S, N, d_model), tgt (T, N, d_model) -> (T, N, d_model); N first with batch_first, or without N.
    custom_encoder, custom_decoder: modules to use instead. Initialisation: every weight of two axes or more Xavier uniform.
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: str | Activation = F.relu,
        custom_encoder: Any = None, custom_decoder: Any = None, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first)
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        if custom_encoder is not None:
            self.encoder = custom_encoder
        else:
            norm = LayerNorm(d_model, layer_norm_eps, **made)
            self.encoder = TransformerEncoder(TransformerEncoderLayer(*sizes, **made), num_encoder_layers, norm)
        if custom_decoder is not None:
            self.decoder = custom_decoder
        else:
            norm = LayerNorm(d_model, layer_norm_eps, **made)
            self.decoder = TransformerDecoder(TransformerDecoderLayer(*sizes, **made), num_decoder_layers, norm)
        self._reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None, tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        axis = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[axis] != tgt.shape[axis]:
            raise RuntimeError(
                f"the batch number of src and tgt must be equal, got {src.shape[axis]} and {tgt.shape[axis]}"
            )
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError(
                f"the feature number of src and tgt must be equal to d_model, got {src.shape[-1]} and {tgt.shape[-1]} "
                f"for {self.d_model}"
            )
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(  # type: ignore[no-any-return]
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: DType | None = None) -> Tensor:
        """The causal mask (sz, sz): -inf above the diagonal, zeros elsewhere."""
        return _causal(sz, dtype, device)

    def _reset_parameters(self) -> None:
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)
