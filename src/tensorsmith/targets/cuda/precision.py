"""How products and convolutions are computed on CUDA: settings of the process, the ones about TF32 under PyTorch's names.

Tensor cores multiply float32 after rounding both factors to TF32, 10 bits of mantissa; sums stay in float32. Products do that
only where they are told to, convolutions unless they are told not to, as PyTorch's.

Products take the kernel and the tile that a table says, or, tuned, the fastest of several that are measured on the device.
"""

from __future__ import annotations

from collections.abc import Callable

_PRECISIONS = ("highest", "high", "medium")
_products = "highest"
_convolutions = True
_tuned = False

when_changes: list[Callable[[], object]] = []  # whoever keeps plans forgets them


def mode() -> tuple[str, bool, bool]:
    """All settings: part of what a kept plan depends on."""
    return _products, _convolutions, _tuned


def float32_matmul_precision() -> str:
    """How float32 products are computed: "highest" in float32, "high" and "medium" with operands rounded to TF32."""
    return _products


def set_float32_matmul_precision(precision: str) -> None:
    """Choose it, for what is planned from then on. ValueError for anything but "highest", "high" and "medium"."""
    global _products
    if precision not in _PRECISIONS:
        raise ValueError(f"float32 products have the precisions {', '.join(_PRECISIONS)}, not {precision!r}")
    changes, _products = precision != _products, precision
    _announce(changes)


def products_allow_tf32() -> bool:
    """Whether float32 products may round their operands to 10 bits of mantissa."""
    return _products != "highest"


def convolutions_allow_tf32() -> bool:
    """Whether convolutions of float32 may."""
    return _convolutions


def set_convolutions_allow_tf32(allowed: bool) -> None:
    """Choose it, for what is planned from then on."""
    global _convolutions
    changes, _convolutions = bool(allowed) != _convolutions, bool(allowed)
    _announce(changes)


def products_are_tuned() -> bool:
    """Whether products take the fastest kernel that was measured."""
    return _tuned


def set_products_tuned(tuned: bool) -> None:
    """Choose it, for what is planned from then on."""
    global _tuned
    changes, _tuned = bool(tuned) != _tuned, bool(tuned)
    _announce(changes)


def _announce(changes: bool) -> None:
    if changes:
        for call in when_changes:
            call()
