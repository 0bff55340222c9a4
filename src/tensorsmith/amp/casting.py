"""What autocast does to a call: casts of operands, kept for weights.

A `Casting` stands for the dtypes that are on in a thread, one for each device, and is what `modes.autocast` holds. The calls of
operators that have a policy reach it in `eager/dispatch.py`; it makes entries, as `eager/entries.py` does, which cast and then
run the same operator. The casts are ordinary operators: autograd records them, a trace has them in its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.amp.policy import WHY_BANNED, Policy, policies, policy_of
from tensorsmith.core.dtypes import DType, float32, float64, type_name
from tensorsmith.core.layout import Layout, LevelLayout
from tensorsmith.eager import fast
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operation
from tensorsmith.ops.conversion import cast_operator
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


class Casting:
    """The dtypes of autocast that are on, by device; one object for each choice."""

    def __init__(self, dtypes: dict[str, DType]) -> None:
        self.dtypes = dtypes
        self.entries: dict[tuple, fast.Entry] = {}
        self._kept: dict[tuple, list[tuple[int, DType]]] = {}  # what `operands` decided
        fast.when_forgotten.append(self.entries.clear)

    def __repr__(self) -> str:
        return f"Casting({', '.join(f'{device}: {dtype.name}' for device, dtype in self.dtypes.items())})"

    def entry(self, operation: Operation, kinds: Sequence[Any], attrs: dict[str, Any]) -> fast.Entry | None:
        """The entry of a call in this mode; None where it casts nothing."""
        casts, changed = self._decided(operation, kinds, attrs)
        if not casts and changed is attrs:
            return None
        entries, items = self.entries, tuple(changed.items())
        numbers = not all([isinstance(kind, Layout) for kind in kinds])

        def entry(*operands: Any) -> Any:
            given = list(operands)
            for place, dtype in casts:
                given[place] = cast(given[place], dtype)
            if numbers:
                return call(operation, given, changed)
            found = entries.get((operation, *[x.layout for x in given], *items))
            return call(operation, given, changed) if found is None else found(*given)

        return entry

    def run(self, operation: Operation, operands: tuple[Any, ...], check: Callable[..., None]) -> Any:
        """Run an operator of tensors without attributes whose function checks operands: once, as they will be cast."""
        if modes.tracer is None:
            entry = self.entries.get((operation, *[x.layout for x in operands]))
            if entry is not None:
                return entry(*operands)
        check(*self.operands(operation.name, *operands))
        return call(operation, operands, {})

    def prepared(
        self, operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """Operands and attributes of a call in this mode, for who traces."""
        kinds = [x.layout if isinstance(x, Tensor) else x.__class__ for x in operands]
        casts, changed = self._decided(operation, kinds, attrs)
        if casts:
            operands = list(operands)
            for place, dtype in casts:
                operands[place] = cast(operands[place], dtype)
        return operands, changed

    def operands(self, name: str, *operands: Any) -> tuple[Any, ...]:
        """The operands of a function, in the dtypes that it runs in: for functions that look at dtypes themselves."""
        kinds = tuple([x.layout if isinstance(x, Tensor) else None for x in operands])
        key = (name, kinds)
        casts = self._kept.get(key)
        if casts is None:
            device = self._device(kinds)
            policy = None if device is None else policies(device).get(name)
            casts = [] if device is None or policy is None else self._casts(policy, kinds, device)
            if not any([kind.__class__ is LevelLayout for kind in kinds]):
                self._kept[key] = casts
        if not casts:
            return operands
        found = list(operands)
        for place, dtype in casts:
            found[place] = cast(found[place], dtype)
        return tuple(found)

    def _decided(
        self, operation: Operation, kinds: Sequence[Any], attrs: dict[str, Any]
    ) -> tuple[list[tuple[int, DType]], dict[str, Any]]:
        """Which operands are cast to what, and the attributes."""
        device = self._device(kinds)
        policy = None if device is None else policy_of(operation, attrs, device)
        if device is None or policy is None:
            return [], attrs
        if policy is Policy.RESULT and "dtype" in attrs:
            first = kinds[0]
            if attrs["dtype"] is not None or not is_eligible(first, device) or first.dtype is float32:
                return [], attrs
            return [], {**attrs, "dtype": float32}
        return self._casts(policy, kinds, device), attrs

    def _casts(self, policy: Policy, kinds: Sequence[Any], device: str) -> list[tuple[int, DType]]:
        """Which operands a policy casts to what."""
        if policy is Policy.BANNED:
            raise RuntimeError(WHY_BANNED)
        lower = self.dtypes[device]
        eligible = [(i, k.dtype) for i, k in enumerate(kinds) if is_eligible(k, device)]
        if policy is Policy.LOWER:
            target = lower
        elif policy is Policy.WIDEST:
            target = _widest(lower, [dtype for _, dtype in eligible])
        else:
            target = float32
        return [(i, target) for i, dtype in eligible if dtype is not target]

    def _device(self, kinds: Sequence[Any]) -> str | None:
        """The device of a call, if autocast is on for it: the GPU where both are among the operands."""
        for device in ("cuda", "cpu"):
            if device in self.dtypes and any(isinstance(k, Layout) and device_type_of(k) == device for k in kinds):
                return device
        return None


def device_type_of(layout: Layout) -> str:
    """The kind of device that a tensor of this layout lives on."""
    return layout.device.type


def is_eligible(kind: Any, device: str) -> bool:
    """Whether autocast may cast such an operand: a real floating-point tensor of the device, but no float64."""
    return (
        isinstance(kind, Layout) and kind.dtype.kind == "f" and kind.dtype is not float64 and device_type_of(kind) == device
    )


def _widest(lower: DType, dtypes: Sequence[DType]) -> DType:
    for dtype in dtypes:
        if dtype is not lower and dtype is not float32:
            raise RuntimeError(
                f"autocast to {type_name(lower)}: an operand of {type_name(dtype)} has no common dtype with it; convert one"
            )
    return float32 if float32 in dtypes else lower


def cast(x: Tensor, dtype: DType) -> Tensor:
    """A tensor in another dtype; the cast of a weight (a float32 leaf that requires a gradient, no view) is kept."""
    layout = x.layout
    if layout.dtype is dtype:  # the same tensor may stand at two places
        return x
    kept = modes.casts
    if kept is None or not layout.tracked or x.node is not None or x.base is not None or layout.level is not None or (
        layout.dtype is not float32
    ):
        return _cast(x, dtype)
    key = (id(x), dtype, modes.grad)  # without a gradient it is another tensor
    found = kept.get(key)
    if found is None or found[1] != x.storage.version:
        found = kept[key] = (x, x.storage.version, _cast(x, dtype))
    return found[2]


def _cast(x: Tensor, dtype: DType) -> Tensor:
    entry = fast.FAST.get((cast_operator, x.layout, ("dtype", dtype)))
    return cast_operator(x, dtype=dtype) if entry is None else entry(x)


_castings: dict[tuple, Casting] = {}


def casting(dtypes: dict[str, DType]) -> Casting | None:
    """The one object for these dtypes by device; None where there are none."""
    if not dtypes:
        return None
    key = dtypes.get("cpu"), dtypes.get("cuda")
    found = _castings.get(key)
    return found if found is not None else _castings.setdefault(key, Casting(dtypes))
