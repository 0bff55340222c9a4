"""Custom `autograd.Function`s on duals: `forward` runs on primals, then the Function's own `jvp` gives the tangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.autograd.function import Function
from tensorsmith.func.custom import need_setup_context
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def call_function(level: Any, function: type[Function], arguments: Sequence[Any]) -> Any:
    """The results of a Function as duals of `level`."""
    separate = function.setup_context is not Function.setup_context
    if not level.records:
        need_setup_context(function)
    mode, kept = modes.grad, []

    def run(node: Any) -> Any:
        kept.append(node)
        if not level.records:  # the levels below record it by its own backward
            lowered = [level.lower(x) for x in arguments]
            modes.grad = mode
            try:
                results = function.apply(*lowered)
            finally:
                modes.grad = False
            return _as_duals(level, results, arguments, {id(x): y for x, y in zip(lowered, arguments)})
        results = function.forward(*arguments) if separate else function.forward(node, *arguments)
        return _as_duals(level, results, arguments, {})

    tangents = [level.tangent(x) for x in arguments]
    with level.mute():
        outputs = function._recorded(tuple(arguments), run, lambda t: level.records)
    (node,) = kept
    many = isinstance(outputs, tuple)
    results = list(outputs) if many else [outputs]
    if any(t is not None for t in tangents):
        _push(level, function, node, arguments, tangents, results)
    node.for_forward = None
    results = [level.primal(y) if level.owns(y) and level.tangent(y) is None else y for y in results]
    return tuple(results) if many else results[0]


def _as_duals(level: Any, results: Any, arguments: Sequence[Any], given: dict[int, Any]) -> Any:
    """What `forward` returned as duals without tangent; an argument that comes back is that argument."""
    many, found = isinstance(results, tuple), []
    for y in results if many else (results,):
        if not isinstance(y, Tensor) or level.owns(y):
            found.append(y)
        elif id(y) in given:
            found.append(given[id(y)])
        elif level.records and y.base is None:  # the very tensor that the Function may have saved or marked
            level.adopt(y)
            found.append(y)
        else:
            found.append(level.dual(y, None, arguments))
    return tuple(found) if many else found[0]


def _push(
    level: Any, function: type[Function], node: Any, arguments: Sequence[Any], tangents: Sequence[Tensor | None],
    results: Sequence[Any],
) -> None:  # fmt: skip
    """Call `jvp` and give the results their tangents."""
    if node.for_forward is not None:
        node.seen_by_jvp = tuple([level.primal(x) for x in node.for_forward])
    try:
        found = function.jvp(node, *[_given(level, node, x, t) for x, t in zip(arguments, tangents)])
    finally:
        node.seen_by_jvp = None
    found = found if isinstance(found, tuple) else (found,)
    if len(found) != len(results):
        raise RuntimeError(
            f"{function.__name__}'s jvp returned an invalid number of forward gradients (expected {len(results)} but got "
            f"{len(found)})"
        )
    for number, (result, tangent) in enumerate(zip(results, found)):
        if tangent is None:
            continue
        if not isinstance(tangent, Tensor):
            raise RuntimeError(f"expected Variable or None (got {type(tangent).__name__}) for grad output {number}.")
        if not level.owns(result):
            continue
        if tangent.layout.shape != result.layout.shape:
            raise RuntimeError(
                "Trying to set a forward gradient that has a different size than that of the original Tensor, this is not "
                f"supported. Tensor is of size {list(result.layout.shape)} while the given forward gradient is of size "
                f"{list(tangent.layout.shape)} ({function.__name__}'s jvp, result {number})."
            )
        _check_memory(result, tangent, arguments, tangents)
        level.set_tangent(result, tangent)


def _check_memory(
    result: Tensor, tangent: Tensor, arguments: Sequence[Any], tangents: Sequence[Tensor | None]
) -> None:  # fmt: skip
    """A result that is an argument, or a view of one, needs a tangent that is the argument's, or a view."""
    for x, t in zip(arguments, tangents):
        if not isinstance(x, Tensor) or x.storage is not result.storage or t is None or tangent.storage is t.storage:
            continue
        if result is x:
            raise RuntimeError(
                "An inplace custom Function is not modifying the forward mode gradients inplace. If the forward is modifying "
                "an input inplace, then the jvp function must modify the corresponding gradient inplace."
            )
        if tangent.base is None:
            raise RuntimeError(
                "A custom Function's forward is returning a view (or an input as-is) but the jvp is not returning a view."
            )


def _given(level: Any, node: Any, argument: Any, tangent: Tensor | None) -> Tensor | None:
    """What `jvp` is given for an argument: its tangent, zeros, or None."""
    if tangent is not None or not isinstance(argument, Tensor) or not node.materialize_grads:
        return tangent
    if argument.layout.dtype.kind not in "fc":
        return None
    return arithmetic.zeros(level.lower(argument).layout.with_tracking(False))
