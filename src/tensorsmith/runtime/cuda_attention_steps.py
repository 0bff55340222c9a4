"""Steps of attention and its gradient on CUDA: how operands lie, and the buffer of every word of the launches."""

from __future__ import annotations

import math

from tensorsmith.core import views
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime.cuda_requests import lowered_request
from tensorsmith.runtime.requests import NoError, Request
from tensorsmith.targets.cuda.attention import lower_attention
from tensorsmith.targets.cuda.attention_hopper import ALIGNMENT
from tensorsmith.targets.cuda.attention_spec import BACKWARD, FORWARD, AttentionSpec
from tensorsmith.targets.cuda.kernel import DeviceProperties

_MATRICES = ("q", "k", "v", "g")
_COLUMNS_OF_ONE = ("lse", "delta", "streams")  # a number a row


def attention_steps(fusion: Fusion, group: Group, properties: DeviceProperties) -> list[Request]:
    """The step of an attention or of its gradient."""
    spec, words = attention_spec(fusion, group)
    name = "attention_gradient" if spec.backward else "attention"
    return [lowered_request(lower_attention(spec, properties), words, NoError(name))]


def attention_spec(fusion: Fusion, group: Group) -> tuple[AttentionSpec, list[tuple[Node | None, int]]]:
    """An attention as a spec, and the buffer and byte offset of each of its words."""
    anchor = group.anchor
    assert anchor is not None
    backward, dropout = anchor.op is Primitive.ATTENTION_GRADIENT, anchor.attrs["dropout"]
    names = list(BACKWARD if backward else FORWARD)
    masked = len(anchor.inputs) - len(names) - bool(dropout)
    names += ["mask"] * masked + ["streams"] * bool(dropout)
    queries, keys, values = anchor.inputs[:3]
    *lead, length, width = queries.shape
    outer, inner = (math.prod(lead[:-1]), lead[-1]) if lead else (1, 1)
    operands, words = [], []
    aligned = True
    for name, operand in zip(names, anchor.inputs):
        node, seen = fusion.locate(operand)
        flat = _flat(name, seen, outer, inner)
        if flat is None:
            raise NeedsBuffer(operand)
        operands.append((name, flat._replace(offset=0)))
        start = flat.offset * node.dtype.itemsize
        words.append((node, start))
        if name in _MATRICES:  # what the plan allocates starts at whole lines, an argument anywhere
            aligned = aligned and start % ALIGNMENT == 0 and node.op is not Primitive.INPUT
    mask = anchor.inputs[len(BACKWARD if backward else FORWARD)].dtype if masked else None
    spec = AttentionSpec(
        queries.dtype, backward, anchor.attrs["causal"], anchor.attrs["scale"], outer, inner, length, keys.shape[-2], width,
        values.shape[-1], tuple(operands), mask, dropout, anchor.attrs["beside"], anchor.dtype, aligned,
    )  # fmt: skip
    results: tuple[Node | None, int] = (anchor, fusion.place(anchor).offset * anchor.dtype.itemsize)
    return spec, [*words, results]


def _flat(name: str, seen: Strided, outer: int, inner: int) -> Strided | None:
    """An operand as (outer, inner, rows, columns); None where its leading axes do not join."""
    if name in _COLUMNS_OF_ONE:
        seen = seen._replace(shape=(*seen.shape, 1), strides=(*seen.strides, 1))
    found = views.reshape(seen, (outer, inner, *seen.shape[-2:]))
    if found is None:
        return None
    return found._replace(strides=tuple(0 if n == 1 else s for n, s in zip(found.shape, found.strides)))
