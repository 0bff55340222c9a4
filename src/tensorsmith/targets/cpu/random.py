"""Philox4x32-10 random bits on vectors.

Element counter c takes word c % 4 of block c // 4. A block is Philox4x32 with ten rounds of the counter
(low 32 bits of the block number, its high 32 bits, 0, 0) under the key (low 32 bits, high 32 bits).
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.targets.cpu.vector import Lanes

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def round_keys(lanes: Lanes, key: str) -> list[tuple[str, str]]:
    """The two key words of every round, in every lane, from an int64 key in every lane."""
    words = [_low(lanes, key), _high(lanes, key)]
    found = []
    for _ in range(ROUNDS):
        found.append((words[0], words[1]))
        words = [_low(lanes, lanes.op("add", "i64", k, lanes.constant("i64", step))) for k, step in zip(words, KEY_STEPS)]
    return found


def block(lanes: Lanes, keys: Sequence[tuple[str, str]], number: str) -> list[str]:
    """The four words of a block in each lane, as int64."""
    # Everything stays in 64-bit lanes whose upper half is zero: the products are then single 32 x 32 -> 64 multiplies.
    words = [_low(lanes, number), _high(lanes, number), lanes.constant("i64", 0), lanes.constant("i64", 0)]
    for key in keys:
        first = lanes.op("mul", "i64", words[0], lanes.constant("i64", MULTIPLIERS[0]))
        second = lanes.op("mul", "i64", words[2], lanes.constant("i64", MULTIPLIERS[1]))
        words = [
            lanes.op("xor", "i64", lanes.op("xor", "i64", _high(lanes, second), words[1]), key[0]),
            _low(lanes, second),
            lanes.op("xor", "i64", lanes.op("xor", "i64", _high(lanes, first), words[3]), key[1]),
            _low(lanes, first),
        ]
    return words


def philox(lanes: Lanes, key: str, counter: str) -> str:
    """32 random bits per lane from an int64 key and an int64 element counter."""
    words = block(lanes, round_keys(lanes, key), lanes.op("lshr", "i64", counter, lanes.constant("i64", 2)))
    one, two = lanes.constant("i64", 1), lanes.constant("i64", 2)
    odd = lanes.compare("ne", "i64", lanes.op("and", "i64", counter, one), lanes.constant("i64", 0))
    upper = lanes.compare("ne", "i64", lanes.op("and", "i64", counter, two), lanes.constant("i64", 0))
    pair = [lanes.select(upper, "i64", words[2 + k], words[k]) for k in range(2)]
    return lanes.convert("trunc", "i64", "i32", lanes.select(odd, "i64", pair[1], pair[0]))


def _low(lanes: Lanes, a: str) -> str:
    return lanes.op("and", "i64", a, lanes.constant("i64", 0xFFFFFFFF))


def _high(lanes: Lanes, a: str) -> str:
    return lanes.op("lshr", "i64", a, lanes.constant("i64", 32))
