"""Convolutions on CUDA: which kernels compute one."""

from __future__ import annotations

from tensorsmith.kernels.spec_conv import ConvSpec, without_zeros
from tensorsmith.targets.cuda.conv_direct import direct_launch
from tensorsmith.targets.cuda.conv_gather import fits
from tensorsmith.targets.cuda.conv_halo import halo_launches, pays_halo
from tensorsmith.targets.cuda.conv_mma import fits_mma, mma_launches
from tensorsmith.targets.cuda.conv_simt import simt_launches
from tensorsmith.targets.cuda.conv_split import finishing_launch
from tensorsmith.targets.cuda.conv_wgmma import pays_wgmma, wgmma_launches
from tensorsmith.targets.cuda.kernel import DeviceProperties, Launch, Lowered, Word

MOST_TAPS = 64  # of a channel by itself, up to which a thread sums them


def lower_conv(spec: ConvSpec, properties: DeviceProperties) -> Lowered:
    """The launches of a convolution; words: x, w, y, then the others of its body.

    Errors: NotImplementedError for a dtype without convolutions (complex).
    """
    words = 3 + len(spec.others)
    if 0 in spec.y:
        return Lowered("conv", (), words)
    launches: list[Launch] = []
    scratch: tuple[int, ...] = ()
    for part in without_zeros(spec):
        more, needed = _launches(part, properties, words + len(scratch))
        launches += more
        scratch += needed
    return Lowered("conv", tuple(launches), words, scratch, spec.bytes_moved, spec.flops)


def _launches(spec: ConvSpec, properties: DeviceProperties, scratch: int) -> tuple[tuple[Launch, ...], tuple[int, ...]]:
    """The launches of a part, whose first scratch buffer is word `scratch`, and the bytes of each."""
    if spec.dtype.is_floating_point and fits(spec):
        if not spec.taps * spec.w[1]:  # sums over nothing
            return (finishing_launch(spec, 0, Word(2)),), ()
        if _is_depthwise(spec):
            return (direct_launch(spec),), ()
        if pays_halo(spec, properties):
            return halo_launches(spec, properties)
        if pays_wgmma(spec, properties):
            return wgmma_launches(spec, properties, scratch)
        if fits_mma(spec, properties):
            return mma_launches(spec, properties, scratch)
        return simt_launches(spec, properties, scratch)
    return (direct_launch(spec),), ()


def _is_depthwise(spec: ConvSpec) -> bool:
    """Whether every result is a short sum over one channel, of which no tile could be shared."""
    return spec.w[1] == 1 and spec.w[0] <= 2 * spec.groups and spec.groups > 1 and spec.taps <= MOST_TAPS
