"""conv_tbc: convolution along time of (time, batch, channels)."""

from __future__ import annotations

from tensorsmith.ops.convolution import conv1d
from tensorsmith.ops.raw_keys import as_int
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.tensor.tensor import Tensor


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:  # noqa: A002 - PyTorch's name
    """`conv1d` of a sequence whose first axis is time.

    input (T, N, C), weight (K, C, O), bias (O): the result is (T + 2 pad - K + 1, N, O).
    Raises RuntimeError for other numbers of axes and for channels that do not fit.

    >>> ts.conv_tbc(ts.ones(3, 1, 2), ts.ones(2, 2, 1), ts.zeros(1)).flatten()
    tensor([4., 4.])
    """
    for name, value in (("self", input), ("weight", weight), ("bias", bias)):
        need_tensor("conv_tbc", value, name)
    pad = as_int("conv_tbc", pad, "pad")
    x, w, b = input.layout.shape, weight.layout.shape, bias.layout.shape
    if len(x) != 3:
        raise RuntimeError(f"conv_tbc: Input must have 3 dims: time, batch, in_channel. Got {list(x)}")
    if len(w) != 3:
        raise RuntimeError(f"conv_tbc: Weight tensor must have 3 dims: kernel_width, in_channels, out_channels. Got {list(w)}")
    if len(b) != 1:
        raise RuntimeError(f"conv_tbc: Bias must be 1-D. Got {list(b)}")
    if x[2] != w[1]:
        raise RuntimeError(f"conv_tbc: Input dim 2 (input channels, {x[2]}) is not == dim 1 in the weight tensor ({w[1]})")
    if b[0] != w[2]:
        raise RuntimeError(f"conv_tbc: Bias size {b[0]} must equal dim 2 in the weight tensor (output channels, {w[2]}).")
    return conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(2, 0, 1).contiguous()


for _place in ("", "nn.functional"):
    public("convolution", namespace=_place, method=False, kind="composite")(conv_tbc)
