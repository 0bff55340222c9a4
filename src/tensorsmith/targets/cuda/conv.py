"""Convolutions on CUDA: which kernels compute one."""

from __future__ import annotations

from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.conv_direct import direct_launch
from tensorsmith.targets.cuda.kernel import DeviceProperties, Lowered


def lower_conv(spec: ConvSpec, properties: DeviceProperties) -> Lowered:
    """The launches of a convolution; words: x, w, y, then the others of its body.

    Errors: NotImplementedError for a dtype without convolutions (complex).
    """
    words = 3 + len(spec.others)
    if 0 in spec.y:
        return Lowered("conv", (), words)
    return Lowered("conv", (direct_launch(spec),), words, (), spec.bytes_moved, spec.flops)
