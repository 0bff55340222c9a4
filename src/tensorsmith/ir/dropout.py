"""Which elements dropout drops: those whose 32 random bits lie below p 2^32, a function of a key and a counter (Philox).

Weights of attention exist in blocks inside a kernel only, so the bits of each must be found from its place. A batch b has a
stream (key, first counter); its weight of query i and key j is word j // 16 % 4 of Philox block

    first / 4 + (i n + j // 64 * 64) / 4 + j % 16,          n = keys rounded up to whole groups of 64

so that the four words of a vector of blocks, up to sixteen of them, are four vectors of weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorsmith.core.dtypes import DType, uint32
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.scalar import functions as f

GROUP = 64  # keys whose bits are those of consecutive blocks
BLOCKS = 16  # of a group: each gives the words of four keys


def limit(p: float) -> int:
    """Bits below it are dropped."""
    return min(round(p * 2.0**32), 2**32 - 1)


def whole_groups(keys: int) -> int:
    """Words of the stream that a row of weights takes."""
    return -(-keys // GROUP) * GROUP


def streams(key: Node, offset: Node, lead: Sequence[int], rows: int, keys: int) -> Node:
    """(..., 2) of int64: the key and the first counter of every batch, those of a run that starts at `offset`."""
    lead = tuple(lead)
    count = math.prod(lead)
    first = key.graph.iota(count) * (rows * whole_groups(keys)) + f.bitwise_and(offset, -4)
    pairs = [build.broadcast_to(build.reshape(each, (each.numel, 1)), (count, 1)) for each in (key, first)]
    return build.reshape(build.concat(pairs, 1), (*lead, 2))


def factors(streams: Node, rows: int, keys: int, p: float, dtype: DType) -> Node:
    """(..., rows, keys): 0 where a weight is dropped, 1 / (1 - p) elsewhere."""
    graph, lead, words = streams.graph, streams.shape[:-1], whole_groups(keys)
    key, first = (build.reshape(build.slice_(streams, len(lead), part, 1), (*lead, 1, 1)) for part in (0, 1))
    word = build.permute(build.reshape(graph.iota(words), (words // GROUP, BLOCKS, 4)), (0, 2, 1))
    word = build.slice_(build.reshape(word, (words,)), 0, 0, keys)
    counter = build.reshape(graph.iota(rows) * words, (rows, 1)) + build.reshape(word, (1, keys)) + first
    bits = graph.add(Primitive.RANDOM, (build.broadcast_to(key, counter.shape), counter))
    kept = f.ge(bits, build.full(graph, bits.shape, limit(p), uint32))
    return build.where(kept, build.full(graph, (), 1.0 / (1.0 - p), dtype), build.full(graph, (), 0.0, dtype))
