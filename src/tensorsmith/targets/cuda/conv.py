"""Convolutions on CUDA: which kernels compute one."""

from __future__ import annotations

from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.conv_direct import direct_launch
from tensorsmith.targets.cuda.kernel import DeviceProperties, Lowered

_allow_tf32 = True


def allows_tf32() -> bool:
    """Whether convolutions of float32 may round their operands to TF32, as PyTorch's do unless told otherwise."""
    return _allow_tf32


def set_allow_tf32(allowed: bool) -> None:
    """Choose it, for what is planned from then on: `backends.cudnn.allow_tf32`."""
    global _allow_tf32
    _allow_tf32 = bool(allowed)


def lower_conv(spec: ConvSpec, properties: DeviceProperties) -> Lowered:
    """The launches of a convolution; words: x, w, y, then the others of its body.

    Errors: NotImplementedError for a dtype without convolutions (complex).
    """
    words = 3 + len(spec.others)
    if 0 in spec.y:
        return Lowered("conv", (), words)
    return Lowered("conv", (direct_launch(spec),), words, (), spec.bytes_moved, spec.flops)
