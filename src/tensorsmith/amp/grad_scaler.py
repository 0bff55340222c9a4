"""`GradScaler`: losses are scaled so that float16 gradients do not underflow; gradients are scaled back before a step.

    scaler = ts.amp.GradScaler("cuda")
    with ts.autocast("cuda"):
        loss = loss_function(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)                       # not made where a gradient is infinite or NaN
    scaler.update()                              # a smaller scale then; a larger one after many good steps

Scale, count of good steps and what was found are tensors on the device of the losses. The host reads one number a step, whether
the optimiser is to run; what follows for the scale it reckons itself, so that it never waits for it.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import float16, float32, float64, int32
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.creation import full
from tensorsmith.ops.fused_updates import FusedUpdate
from tensorsmith.scalar import functions as f
from tensorsmith.targets.cuda.devices import is_available
from tensorsmith.tensor.modes import modes, no_grad
from tensorsmith.tensor.tensor import Tensor


def _not_finite(*grads: Node) -> Node:
    """1.0 where some element of some gradient is infinite or NaN, else 0.0."""
    parts = [build.reduce(build.cast(f.logical_not(f.isfinite(g)), float32), "max") for g in grads]
    return functools.reduce(f.maximum, parts)


def _updated(scale: Node, good: Node, found: Node, growth: Node, backoff: Node, interval: Node) -> tuple[Node, Node]:
    """The scale, and how many good steps there were, after a step: products in float64, and no growth to infinity."""
    bad = f.gt(found, 0)
    wide = build.cast(scale, float64)
    smaller, larger = build.cast(wide * backoff, float32), build.cast(wide * growth, float32)
    count = good + 1
    full_count = f.eq(count, build.cast(interval, int32))
    grown = build.where(f.logical_and(full_count, f.isfinite(larger)), larger, scale)
    return build.where(bad, smaller, grown), build.where(f.logical_or(bad, full_count), 0, count)


_NOT_FINITE = Operator("amp.not_finite", _not_finite)
_UPDATE_SCALE = InplaceOperation(Operator("amp.update_scale", _updated), writes=(0, 1))
_UNSCALE = FusedUpdate("amp.unscale_gradient", lambda grad, factor: [grad * factor], (0,), 1)
_UNSCALE_BY_TENSOR = InplaceOperation(Operator("amp.unscale_by_tensor", lambda grad, factor: grad * factor, pointwise=True))


class OptState(Enum):
    """What was done with an optimiser since the last `update()`."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


def _fresh() -> dict[str, Any]:
    return {"stage": OptState.READY, "found_inf_per_device": {}}


class GradScaler:
    """Scales losses, and gradients back, by a factor that follows what float16 can hold.

    device: "cuda" or "cpu", where the losses are
    init_scale: the first scale; growth_factor, backoff_factor: what `update()` multiplies it by, after `growth_interval` good
        steps in a row, and after a step that was not made
    enabled: where it is False, `step` is the optimiser's and the rest does nothing
    Raises AssertionError for a growth_factor <= 1 or a backoff_factor >= 1; warns, and is not enabled, for "cuda" without one.

    >>> scaler = ts.amp.GradScaler("cpu", init_scale=8.0)
    >>> scaler.scale(ts.tensor(0.5))
    tensor(4.)
    """

    def __init__(
        self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        self._device = device
        self._enabled = enabled
        if enabled and device == "cuda" and not is_available():
            warnings.warn("ts.amp.GradScaler is enabled for CUDA, but CUDA is not available. Disabling.", stacklevel=2)
            self._enabled = False
        if not self._enabled:
            return
        if growth_factor <= 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if backoff_factor >= 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        self._init_scale = float(init_scale)
        self._scale: Tensor | None = None
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._init_growth_tracker = 0
        self._growth_tracker: Tensor | None = None
        self._known: tuple[float, int] | None = None  # both as Python numbers, where the host knows them
        self._per_optimizer_states: dict[int, dict[str, Any]] = defaultdict(_fresh)

    # --- scaling ------------------------------------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """A loss, or a nest of lists and tuples of them, times the scale. ValueError for anything else."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale_on(outputs)  # type: ignore[operator]
        if isinstance(outputs, Iterable) and not isinstance(outputs, str):
            found = map(self.scale, outputs)
            return type(outputs)(found) if isinstance(outputs, list | tuple) else found  # type: ignore[call-arg]
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def _scale_on(self, x: Tensor) -> Tensor:
        """The scale on the device of a tensor; made there where there is none yet."""
        if self._scale is None:
            if self._growth_tracker is not None:
                raise AssertionError("_growth_tracker initialized before _scale")
            self._scale = full((), self._init_scale, dtype=float32, device=x.device)
            self._growth_tracker = full((), self._init_growth_tracker, dtype=int32, device=x.device)
            self._known = float(float32.numpy.type(self._init_scale)), self._init_growth_tracker
        return _on(self._scale, x.device)

    def _checked(self, name: str) -> tuple[Tensor, Tensor]:
        fix = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
        if self._scale is None or self._growth_tracker is None:
            missing = "_scale" if self._scale is None else "_growth_tracker"
            raise AssertionError(f"Attempted {name} but {missing} is None.  {fix}")
        return self._scale, self._growth_tracker

    # --- scaling back -------------------------------------------------------------------------------------------------

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimiser's parameters by the scale, and look whether all are finite.

        `step` does it where it was not done, to clip gradients, say. Raises RuntimeError for a second time before `update()`,
        and after `step`; ValueError for float16 gradients.
        """
        if not self._enabled:
            return
        scale, _ = self._checked("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        state["found_inf_per_device"] = self._look(optimizer, scale, True)
        state["stage"] = OptState.UNSCALED

    @no_grad()
    def _look(self, optimizer: Any, scale: Tensor, unscales: bool) -> dict[Any, Tensor]:
        """Whether a gradient is not finite, by device: one look at all gradients of a device; and scale them back."""
        by_device: dict[Any, list[Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not isinstance(parameter, Tensor):
                    raise AssertionError(f"expected param to be Tensor, got {type(parameter).__name__}")
                grad = parameter.grad  # type: ignore[attr-defined]
                if grad is None:
                    continue
                if unscales and grad.dtype is float16:
                    raise ValueError("Attempting to unscale FP16 gradients.")
                if grad.layout.numel:
                    by_device.setdefault(grad.device, []).append(grad)
                else:
                    by_device.setdefault(grad.device, [])
        found = {}
        for device, grads in by_device.items():
            found[device] = _NOT_FINITE(*grads) if grads else full((), 0.0, dtype=float32, device=device)
            if unscales:
                _unscale(grads, scale, None if self._known is None else self._known[0])
        return found

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Scale gradients back if that was not done, and run `optimizer.step(*args, **kwargs)` if all are finite.

        Raises RuntimeError for a closure, and for a second time before `update()`; AssertionError where there are no gradients.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._checked("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            return self._step_that_scales(optimizer, state, args, kwargs)
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        if not state["found_inf_per_device"]:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        result = self._maybe_opt_step(optimizer, state, *args, **kwargs)
        state["stage"] = OptState.STEPPED
        return result

    def _maybe_opt_step(self, optimizer: Any, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        bad = any([found.item() for found in optimizer_state["found_inf_per_device"].values()])
        optimizer_state["overflowed"] = bad
        if bad:
            return None
        return optimizer.step(*args, **kwargs)

    def _step_that_scales(self, optimizer: Any, state: dict[str, Any], args: Any, kwargs: Any) -> Any:
        """An optimiser that scales back itself: it finds the scale in `grad_scale`, and what was found in `found_inf`."""
        scale, _ = self._checked("step")
        if state["stage"] is OptState.READY:
            self._check_inf_per_device(optimizer)
        found = [_on(each, scale.device) for each in state["found_inf_per_device"].values()]
        scaled = state["stage"] is not OptState.UNSCALED
        theirs = getattr(optimizer, "grad_scale", 1 if scaled else None)
        optimizer.grad_scale = scale * theirs if scaled else theirs  # type: ignore[operator]
        optimizer.found_inf = functools.reduce(lambda a, b: a + b, found)
        try:
            result = optimizer.step(*args, **kwargs)
        finally:
            del optimizer.grad_scale
            del optimizer.found_inf
        state["stage"] = OptState.STEPPED
        return result

    def _check_inf_per_device(self, optimizer: Any) -> dict[Any, Tensor]:
        scale, _ = self._checked("_check_inf_per_device")
        state = self._per_optimizer_states[id(optimizer)]
        state["found_inf_per_device"] = self._look(optimizer, scale, False)
        return state["found_inf_per_device"]  # type: ignore[no-any-return]

    def _found_inf_per_device(self, optimizer: Any) -> dict[Any, Tensor]:
        return self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]  # type: ignore[no-any-return]

    # --- the scale ----------------------------------------------------------------------------------------------------

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Set the scale for the next step: smaller if a step was not made, larger after `growth_interval` good ones in a row.

        new_scale: the scale itself, a float or a tensor of one element. Raises AssertionError where no step was looked at.
        """
        if not self._enabled:
            return
        scale, good = self._checked("update")
        if new_scale is not None:
            self._set_scale(scale, new_scale)
        else:
            found = [
                _on(each, scale.device)
                for state in self._per_optimizer_states.values()
                for each in state["found_inf_per_device"].values()
            ]
            if not found:
                raise AssertionError("No inf checks were recorded prior to update.")
            seen = [state.get("overflowed") for state in self._per_optimizer_states.values() if state["found_inf_per_device"]]
            if self._known is not None and None not in seen:
                self._follow(scale, good, any(seen))
            else:
                self._known = None
                _UPDATE_SCALE(
                    scale, good, functools.reduce(lambda a, b: a + b, found), float(self._growth_factor),
                    float(self._backoff_factor), int(self._growth_interval),
                )  # fmt: skip
        self._per_optimizer_states = defaultdict(_fresh)

    def _follow(self, scale: Tensor, good: Tensor, overflowed: bool) -> None:
        """The same by the host, which has read whether gradients overflowed: bit for bit what `_updated` computes."""
        assert self._known is not None
        value, count = self._known
        as_float = float32.numpy.type
        after = value
        if overflowed:
            after, count = float(as_float(value * self._backoff_factor)), 0
        else:
            count += 1
            if count == self._growth_interval:
                with np.errstate(over="ignore"):
                    larger = float(as_float(value * self._growth_factor))
                after, count = larger if math.isfinite(larger) else value, 0
        if after != value:
            scale.fill_(after)  # type: ignore[attr-defined]
        good.fill_(count)  # type: ignore[attr-defined]
        self._known = after, count

    def _set_scale(self, scale: Tensor, new_scale: float | Tensor) -> None:
        if isinstance(new_scale, float):
            scale.fill_(new_scale)  # type: ignore[attr-defined]
            if self._known is not None:
                self._known = float(float32.numpy.type(new_scale)), self._known[1]
            return
        reason = (
            "new_scale should be a float or a 1-element CUDA FloatTensor or FloatTensor with requires_grad=False, on the "
            "scaler's device."
        )
        fits = isinstance(new_scale, Tensor) and new_scale.device.type == self._device and new_scale.layout.numel == 1
        if not fits or new_scale.layout.tracked:
            raise AssertionError(reason)
        self._known = None
        scale.copy_(new_scale.reshape(()))  # type: ignore[attr-defined]

    def _get_scale_async(self) -> Tensor | None:
        return self._scale

    def get_scale(self) -> float:
        """The scale as a Python float; 1.0 where it is not enabled."""
        if not self._enabled:
            return 1.0
        if self._scale is None:
            return self._init_scale
        return self._scale.item() if self._known is None else self._known[0]  # type: ignore[attr-defined, no-any-return]

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after enough good steps."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Choose that factor."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after a step that was not made."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Choose that factor."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """How many good steps in a row let the scale grow."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Choose that number."""
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        good = self._growth_tracker
        if self._known is not None:
            return self._known[1]
        return self._init_growth_tracker if good is None else good.item()  # type: ignore[attr-defined, no-any-return]

    def is_enabled(self) -> bool:
        """Whether it scales at all."""
        return self._enabled

    # --- state --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Scale, factors, interval and the number of good steps as Python numbers; {} where it is not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(), "growth_factor": self._growth_factor, "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval, "_growth_tracker": self._get_growth_tracker(),
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over such a state. Raises RuntimeError for {}, that of a scaler which is not enabled."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        self._init_scale = state_dict["scale"]
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._init_growth_tracker = state_dict["_growth_tracker"]
        if self._scale is not None and self._growth_tracker is not None:
            self._scale.fill_(self._init_scale)  # type: ignore[attr-defined]
            self._growth_tracker.fill_(self._init_growth_tracker)  # type: ignore[attr-defined]
            self._known = float(float32.numpy.type(self._init_scale)), self._init_growth_tracker

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._enabled:
            if self._per_optimizer_states:
                raise AssertionError(
                    "A GradScaler instance may only be pickled at the beginning of an iteration, or at the end after "
                    "scaler.update()."
                )
            state |= {
                "_init_scale": self.get_scale(), "_init_growth_tracker": self._get_growth_tracker(), "_scale": None,
                "_growth_tracker": None, "_known": None,
            }  # fmt: skip
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _on(number: Tensor, device: Any) -> Tensor:
    """A number on a device."""
    return number if number.device == device else number.to(device)  # type: ignore[attr-defined, no-any-return]


def _unscale(grads: Sequence[Tensor], scale: Tensor, known: float | None) -> None:
    """Multiply gradients in place by the reciprocal of the scale, which is taken in float64. known: the scale, to the host."""
    if not grads:
        return
    if modes.tracer is None and (known is not None or grads[0].device.type == "cpu"):  # one native call for all
        value = scale.item() if known is None else known  # type: ignore[attr-defined]
        for each in _alike(grads):
            _UNSCALE.on_all([each], (float(float32.numpy.type(1.0 / value)),))
        return
    inverse = _on(scale.double().reciprocal().float(), grads[0].device)  # type: ignore[attr-defined]
    for grad in grads:
        _UNSCALE_BY_TENSOR(grad, inverse)


def _alike(grads: Sequence[Tensor]) -> list[list[Tensor]]:
    """Gradients by dtype."""
    found: dict[Any, list[Tensor]] = {}
    for grad in grads:
        found.setdefault(grad.dtype, []).append(grad)
    return list(found.values())
