"""Philox4x32-10, the definition of RANDOM: counter-based random bits that every target must reproduce exactly.

Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011); its test vectors are in the
tests. Element counter c (int64, read as unsigned) is word c % 4 of the block whose 128-bit counter is c // 4: words
(low 32 bits of c // 4, high 32 bits of c // 4, 0, 0). The key (int64) is the two words (low 32 bits, high 32 bits).
"""

from __future__ import annotations

import numpy as np

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the two key words after each round: golden ratio, sqrt(3) - 1

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)

Words = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def philox_block(counter: Words, key: tuple[np.ndarray, np.ndarray]) -> Words:
    """The four 32-bit words (held as uint64) of a block: ten rounds over four counter words and two key words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = np.uint64(MULTIPLIERS[0]) * c0, np.uint64(MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (second >> _SHIFT) ^ c1 ^ k0, second & _LOW, (first >> _SHIFT) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + np.uint64(WEYL[0])) & _LOW, (k1 + np.uint64(WEYL[1])) & _LOW
    return c0, c1, c2, c3


def random_bits(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """uint32 bits of each element counter under its key; both int64, of equal shape."""
    keys, counters = key.astype(np.uint64), counter.astype(np.uint64)
    block, word = counters >> np.uint64(2), counters & np.uint64(3)
    zero = np.zeros_like(block)
    words = philox_block((block & _LOW, block >> _SHIFT, zero, zero), (keys & _LOW, keys >> _SHIFT))
    return np.select([word == i for i in range(4)], list(words)).astype(np.uint32)
