"""Attention on the card: which kernels an attention, or its gradient, becomes."""

from __future__ import annotations

from tensorsmith.targets.cuda import (
    attention_hopper,
    attention_hopper_backward,
    attention_hopper_forward,
    attention_simt,
)
from tensorsmith.targets.cuda.attention_spec import AttentionSpec, check
from tensorsmith.targets.cuda.kernel import DeviceProperties, Lowered


def lower_attention(spec: AttentionSpec, properties: DeviceProperties) -> Lowered:
    """The launches of an attention, or of its gradient.

    Words: the operands in the order of the spec, then the results. ValueError for a spec that does not fit together.
    """
    check(spec)
    name = "attention_gradient" if spec.backward else "attention"
    hopper = properties.architecture == "sm_90a" and attention_hopper.takes(spec)
    if hopper:
        hopper_launches = (attention_hopper_backward if spec.backward else attention_hopper_forward).launches
        launches = hopper_launches(spec, properties.multiprocessors)
        if not spec.aligned:  # each finds out by itself which of them is to work
            launches += attention_simt.launches(spec, attention_hopper.misaligned_text(spec))
    else:
        launches = attention_simt.launches(spec)
    words = len(spec.operands) + 1
    return Lowered(name, launches, words, bytes_moved=spec.bytes_moved, flops=spec.flops)
