"""Which convolutions Winograd's algorithm computes, by a fixed rule, and with how large a tile.

`mode()` is the setting of the process, `ts.backends.cpu.winograd`. The rule compares counts of work, in multiply-adds of one
lane, for every pair of an input and an output channel; what a machine's vectors are wide divides all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorsmith.core.dtypes import float32
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.winograd import FORMS

MODES = {"off": (), "default": (2,), "fast": (2, 4)}  # which tiles may be chosen

# Of a tile of results: a product, the transforms of an input and an output channel; of a pair of channels: its weights. A
# product counts more than one of the direct sum, because it is written to memory.
_PRODUCT = 1.19
_TRANSFORMS = {2: 90, 4: 900}
_WEIGHT = {2: 530, 4: 1300}
_KEPT = {"compared": 40, "prepared": 0}  # the same, where weights are only compared with what they were, or not looked at

_mode = "default"
when_mode_changes: list[Callable[[], object]] = []


def mode() -> str:
    """Which tiles convolutions may have: a key of MODES."""
    return _mode


def set_mode(value: str) -> None:
    """Choose for convolutions that are planned from now on; ValueError for what is no key of MODES."""
    global _mode
    if not isinstance(value, str) or value not in MODES:
        raise ValueError(f"backends.cpu.winograd is one of {', '.join(map(repr, MODES))}, got {value!r}")
    _mode = value
    for call in when_mode_changes:
        call()


def winograd_outputs(node: Node, kept: str = "") -> int:
    """Rows and columns of the tiles of results of a convolution; 0 where the direct sum computes it.

    kept: how its weights, transformed once, are kept: a key of `_KEPT`; "" where they are transformed at every run.
    """
    x, w = node.inputs
    attrs = node.attrs
    if node.dtype is not float32 or w.shape[2:] != (3, 3) or attrs["groups"] != 1:
        return 0
    if set(attrs["stride"] + attrs["dilation"] + attrs["step"]) != {1}:
        return 0
    batch, out, down, across = node.shape
    work = {m: _work(m, batch * -(-down // m) * -(-across // m), x.shape[1], out, kept) for m in MODES[_mode]}
    work[0] = 9 * batch * down * across
    return min(work, key=lambda m: work[m])


def _work(outputs: int, tiles: int, channels: int, out: int, kept: str) -> float:
    products = _PRODUCT * FORMS[outputs].products
    return tiles * (products + _TRANSFORMS[outputs] * (1 / channels + 1 / out)) + _KEPT.get(kept, _WEIGHT[outputs])


def transformed_weight(w: Node, outputs: int, kept: bool) -> Node:
    """G w G' of every kernel (points, O, C), in the order that the kernel of the convolution reads; nothing else may.

    kept: its memory belongs to the plan, which computes it anew where w has changed.
    """
    shape = (FORMS[outputs].products, *w.shape[:2])
    return w.graph.add(
        Primitive.LIBRARY, (w,), name="winograd_weight", outputs=outputs, kept=kept, shape=shape, dtype=w.dtype
    )
