"""Attention on the card: which kernels an attention, or its gradient, becomes."""

from __future__ import annotations

from tensorsmith.targets.cuda import (
    attention_hopper,
    attention_hopper_backward,
    attention_hopper_forward,
    attention_mma,
    attention_simt,
)
from tensorsmith.targets.cuda.attention_spec import AttentionSpec, check
from tensorsmith.targets.cuda.kernel import DeviceProperties, Launch, Lowered


def lower_attention(spec: AttentionSpec, properties: DeviceProperties) -> Lowered:
    """The launches of an attention, or of its gradient.

    Words: the operands in the order of the spec, then the results. ValueError for a spec that does not fit together.
    """
    check(spec)
    if properties.architecture == "sm_90a" and attention_hopper.takes(spec):
        module = attention_hopper_backward if spec.backward else attention_hopper_forward
        launches = module.launches(spec)
        if not spec.aligned:  # each finds out by itself which of them is to work
            launches += _elsewhere(spec, properties, attention_hopper.misaligned_text(spec))
    else:
        launches = _elsewhere(spec, properties, "")
    name = "attention_gradient" if spec.backward else "attention"
    return Lowered(name, launches, len(spec.operands) + 1, bytes_moved=spec.bytes_moved, flops=spec.flops)


def _elsewhere(spec: AttentionSpec, properties: DeviceProperties, only_if: str) -> tuple[Launch, ...]:
    """The launches for operands that tensor maps do not take."""
    if attention_mma.takes(spec, properties):
        return attention_mma.launches(spec, properties, only_if)
    return attention_simt.launches(spec, only_if)
