"""Which way `scaled_dot_product_attention` may take: PyTorch's names, of which two are ways of this package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from enum import IntEnum


class SDPBackend(IntEnum):
    """Ways to compute attention. MATH: its parts one by one; FLASH_ATTENTION: one kernel that never holds the scores.

    The others are of targets that are not here: they may be allowed, but are never taken.
    """

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


_USUAL = (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
_ALLOWED: ContextVar[tuple[SDPBackend, ...]] = ContextVar("attention_backends", default=_USUAL)


@contextlib.contextmanager
def sdpa_kernel(backends: list[SDPBackend] | SDPBackend, set_priority: bool = False) -> Iterator[dict[str, object]]:
    """Within it `scaled_dot_product_attention` takes one of these ways; without it one kernel where that can be, else MATH.

    set_priority: the first that can be is taken, in the order given, rather than the kernel first. It holds for the thread; a
    compiled function keeps the way that was taken when it was traced. Raises AssertionError for what is no SDPBackend, and, at
    the call of attention, RuntimeError where none of them can be: FLASH_ATTENTION alone for tensors without elements, or
    only ways of other targets (EFFICIENT_ATTENTION, CUDNN_ATTENTION, OVERRIDEABLE).

    >>> from tensorsmith.nn.attention import SDPBackend, sdpa_kernel
    >>> q = ts.ones(1, 2, 4)
    >>> with sdpa_kernel(SDPBackend.MATH):
    ...     ts.nn.functional.scaled_dot_product_attention(q, q, q).shape
    tensorsmith.Size([1, 2, 4])
    """
    given = [backends] if isinstance(backends, SDPBackend) else backends
    if not isinstance(given, list) or not all(isinstance(each, SDPBackend) for each in given):
        raise AssertionError(
            "Backend must be an instance of SDPBackend or a list of SDPBackend instances, got "
            f"{type(backends).__name__}{'' if not isinstance(given, list) else f' {given}'}"
        )
    allowed = tuple(dict.fromkeys(given)) if set_priority else tuple([each for each in _USUAL if each in given])
    before = _ALLOWED.set(allowed)
    try:
        yield {}
    finally:
        _ALLOWED.reset(before)


def takes_one_kernel(possible: bool) -> bool:
    """Whether attention is one kernel, where that is possible, or made of its parts; RuntimeError where neither is allowed."""
    for each in _ALLOWED.get():
        if each is SDPBackend.MATH:
            return False
        if each is SDPBackend.FLASH_ATTENTION and possible:
            return True
    raise RuntimeError(
        "No viable backend for scaled_dot_product_attention was found. This is likely due to turning off both the math kernel "
        "and the fused kernels. Here SDPBackend.MATH is always there, and FLASH_ATTENTION for tensors that have elements and "
        "dropout below 1"
    )
