"""Neural networks: modules with PyTorch's names."""

import sys as _sys
import typing as _typing
from types import ModuleType as _ModuleType

from tensorsmith.core.missing import missing as _missing
from tensorsmith.func import functional_call as _functional_call
from tensorsmith.nn import (
    functional as functional,
    init as init,
    modules as modules,
    parametrizations as _parametrizations,
    parametrize as _parametrize,
    prune as _prune,
)
from tensorsmith.nn.activations import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    RReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)  # fmt: skip
from tensorsmith.nn.attention import MultiheadAttention
from tensorsmith.nn.batch_normalisation import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    LazyBatchNorm1d,
    LazyBatchNorm2d,
    LazyBatchNorm3d,
    SyncBatchNorm,
)  # fmt: skip
from tensorsmith.nn.class_scores import AdaptiveLogSoftmaxWithLoss, LinearCrossEntropyLoss, LinearCrossEntropyOptions
from tensorsmith.nn.clipping import clip_grad_norm, clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from tensorsmith.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from tensorsmith.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    convert_conv2d_weight_memory_format,
    convert_conv3d_weight_memory_format,
)  # fmt: skip
from tensorsmith.nn.distances import CosineSimilarity, PairwiseDistance
from tensorsmith.nn.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout
from tensorsmith.nn.embedding import Embedding, EmbeddingBag
from tensorsmith.nn.flatten import Flatten, Unflatten
from tensorsmith.nn.fusing import (
    fuse_conv_bn_eval,
    fuse_conv_bn_weights,
    fuse_linear_bn_eval,
    fuse_linear_bn_weights,
    skip_init,
)
from tensorsmith.nn.group_normalisation import CrossMapLRN2d, GroupNorm, LocalResponseNorm
from tensorsmith.nn.instance_normalisation import (
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LazyInstanceNorm1d,
    LazyInstanceNorm2d,
    LazyInstanceNorm3d,
)  # fmt: skip
from tensorsmith.nn.lazy import LazyLinear
from tensorsmith.nn.lazy_convolution import (
    LazyConv1d,
    LazyConv2d,
    LazyConv3d,
    LazyConvTranspose1d,
    LazyConvTranspose2d,
    LazyConvTranspose3d,
)  # fmt: skip
from tensorsmith.nn.linear import Bilinear, Identity, Linear
from tensorsmith.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    CTCLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)  # fmt: skip
from tensorsmith.nn.margin_losses import (
    CosineEmbeddingLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    MarginRankingLoss,
    MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    PoissonNLLLoss,
    SoftMarginLoss,
    TripletMarginLoss,
    TripletMarginWithDistanceLoss,
)  # fmt: skip
from tensorsmith.nn.module import Module
from tensorsmith.nn.normalisation import LayerNorm, RMSNorm
from tensorsmith.nn.orthogonal import orthogonal as _orthogonal
from tensorsmith.nn.packed_sequences import (
    PackedSequence,
    invert_permutation,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpack_sequence,
    unpad_sequence,
)  # fmt: skip
from tensorsmith.nn.padding import (
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)  # fmt: skip
from tensorsmith.nn.parameter import Buffer, Parameter
from tensorsmith.nn.parameter_vector import parameters_to_vector, vector_to_parameters
from tensorsmith.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    FractionalMaxPool2d,
    FractionalMaxPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
)  # fmt: skip
from tensorsmith.nn.recurrent import GRU, LSTM, RNN, RNNBase
from tensorsmith.nn.recurrent_cells import GRUCell, LSTMCell, RNNCell, RNNCellBase
from tensorsmith.nn.resizing import (
    ChannelShuffle,
    Fold,
    PixelShuffle,
    PixelUnshuffle,
    Unfold,
    Upsample,
    UpsamplingBilinear2d,
    UpsamplingNearest2d,
)  # fmt: skip
from tensorsmith.nn.transformer import Transformer, TransformerDecoder, TransformerEncoder
from tensorsmith.nn.transformer_layers import TransformerDecoderLayer, TransformerEncoderLayer
from tensorsmith.nn.uninitialized import UninitializedBuffer, UninitializedParameter
from tensorsmith.nn.weight_hooks import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm

# PyTorch's `nn.utils` as a namespace: what is in it lives in files named after what they hold.
utils = _ModuleType("tensorsmith.nn.utils", "Functions on the parameters of models and their gradients.")
for _function in (
    clip_grad_norm, clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, convert_conv2d_weight_memory_format,
    convert_conv3d_weight_memory_format, fuse_conv_bn_eval, fuse_conv_bn_weights, fuse_linear_bn_eval,
    fuse_linear_bn_weights, get_total_norm, parameters_to_vector, remove_spectral_norm, remove_weight_norm, skip_init,
    spectral_norm, vector_to_parameters, weight_norm,
):  # fmt: skip
    setattr(utils, _function.__name__, _function)
_sys.modules[utils.__name__] = utils
_rnn = _ModuleType("tensorsmith.nn.utils.rnn", "Sequences of different lengths: padded, and packed.")
for _entry in (
    PackedSequence, invert_permutation, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence,
    unpack_sequence, unpad_sequence,
):  # fmt: skip
    setattr(_rnn, _entry.__name__, _entry)
_sys.modules[_rnn.__name__] = _rnn
utils.rnn = _rnn  # type: ignore[attr-defined]
_stateless = _ModuleType("tensorsmith.nn.utils.stateless", "The older address of `func.functional_call`.")
_stateless.functional_call = _functional_call  # type: ignore[attr-defined]
_parametrizations.orthogonal = _orthogonal  # type: ignore[attr-defined]
for _name, _module in (
    ("parametrizations", _parametrizations), ("parametrize", _parametrize), ("prune", _prune), ("stateless", _stateless),
):  # fmt: skip
    setattr(utils, _name, _module)
    _sys.modules[f"{utils.__name__}.{_name}"] = _module

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveLogSoftmaxWithLoss",
    "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AlphaDropout", "AvgPool1d", "AvgPool2d",
    "AvgPool3d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Bilinear", "Buffer",
    "CELU", "CTCLoss", "ChannelShuffle", "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d",
    "ConstantPad2d", "ConstantPad3d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
    "ConvTranspose3d", "CosineEmbeddingLoss", "CosineSimilarity", "CrossEntropyLoss", "CrossMapLRN2d", "Dropout",
    "Dropout1d", "Dropout2d", "Dropout3d", "ELU", "Embedding", "EmbeddingBag", "FeatureAlphaDropout", "Flatten",
    "Fold", "FractionalMaxPool2d", "FractionalMaxPool3d", "GELU", "GLU", "GRU", "GRUCell", "GaussianNLLLoss",
    "GroupNorm", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "HingeEmbeddingLoss", "HuberLoss",
    "Identity", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "KLDivLoss", "L1Loss", "LPPool1d", "LPPool2d",
    "LPPool3d", "LSTM", "LSTMCell", "LayerNorm", "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d",
    "LazyConv1d", "LazyConv2d", "LazyConv3d", "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d",
    "LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d", "LazyLinear", "LeakyReLU", "Linear",
    "LinearCrossEntropyLoss", "LinearCrossEntropyOptions", "LocalResponseNorm", "LogSigmoid", "LogSoftmax",
    "MSELoss", "MarginRankingLoss", "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d",
    "MaxUnpool3d", "Mish", "Module", "ModuleDict", "ModuleList", "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss",
    "MultiMarginLoss", "MultiheadAttention", "NLLLoss", "PReLU", "PackedSequence", "PairwiseDistance", "Parameter",
    "ParameterDict", "ParameterList", "PixelShuffle", "PixelUnshuffle", "PoissonNLLLoss", "RMSNorm", "RNN",
    "RNNBase", "RNNCell", "RNNCellBase", "RReLU", "ReLU", "ReLU6", "ReflectionPad1d", "ReflectionPad2d",
    "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "SELU", "Sequential", "SiLU",
    "Sigmoid", "SmoothL1Loss", "SoftMarginLoss", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink",
    "Softsign", "SyncBatchNorm", "Tanh", "Tanhshrink", "Threshold", "Transformer", "TransformerDecoder",
    "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer", "TripletMarginLoss",
    "TripletMarginWithDistanceLoss", "Unflatten", "Unfold", "UninitializedBuffer", "UninitializedParameter",
    "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d", "functional",
    "init", "utils",
]  # fmt: skip

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _missing(_sys.modules[__name__], name)
