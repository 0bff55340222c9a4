"""What `gradcheck` checks besides backward: forward mode, and derivatives batched by vmap."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.autograd import forward_ad
from tensorsmith.autograd.backward import grad
from tensorsmith.autograd.memory import as_array, from_array
from tensorsmith.autograd.transforms import transforms
from tensorsmith.core.layout import Layout
from tensorsmith.tensor.tensor import Tensor


class GradcheckError(RuntimeError):
    """A gradient is wrong."""


def reals(array: np.ndarray) -> np.ndarray:
    """A copy of the values as a flat float64 array: of complex ones the parts, one after the other."""
    if array.dtype.kind == "c":
        return np.array(array, dtype=np.complex128).reshape(-1).view(np.float64)
    return np.array(array, dtype=np.float64).reshape(-1)


def directions(layout: Layout) -> tuple[complex, ...]:
    """The directions in which an element moves."""
    return (1, 1j) if layout.dtype.is_complex else (1,)


def check_modes(
    forward: bool, backward: bool, batched: bool, batched_forward: bool,
) -> None:  # fmt: skip
    """Refuse arguments of gradcheck that check nothing."""
    if not (forward or backward):
        raise AssertionError("Expected at least one of check_forward_ad or check_backward_ad to be True")
    if batched and not backward:
        raise AssertionError("Setting check_batched_grad=True requires check_backward_ad to be True")
    if batched_forward and not forward:
        raise AssertionError("Setting check_batched_forward_grad=True requires check_forward_ad to be True")


def _detached(arguments: Sequence[Any]) -> list[Any]:
    return [a.detach() if isinstance(a, Tensor) else a for a in arguments]


def _pushed(func: Callable, arguments: Sequence[Any], moving: dict[int, Tensor]) -> list[tuple[Tensor, Tensor | None]]:
    """Primal and tangent of every floating output, for tangents of the inputs in `moving`."""
    given = _detached(arguments)
    with forward_ad.dual_level():
        for position, tangent in moving.items():
            given[position] = forward_ad.make_dual(given[position], tangent)
        outputs = func(*given)
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        found = [forward_ad.unpack_dual(o) for o in outputs if isinstance(o, Tensor) and o.layout.dtype.kind in "fc"]
    return [(primal, tangent) for primal, tangent in found]


def forward_jacobians(func: Callable, arguments: Sequence[Any], position: int) -> list[np.ndarray]:
    """Jacobian of every floating output for one input, a forward run per element: [elements of input, of output]."""
    layout = arguments[position].layout
    rows: list[list[np.ndarray]] = []
    for index, direction in itertools.product(np.ndindex(layout.shape), directions(layout)):
        unit = np.zeros(layout.shape, layout.dtype.numpy)
        unit[index] = direction
        parts = _pushed(func, arguments, {position: from_array(unit, layout.dtype, device=layout.device)})
        rows.append([np.zeros(reals(as_array(p)).shape) if t is None else reals(as_array(t)) for p, t in parts])
    if not rows:
        return [np.zeros((0, reals(as_array(p)).size)) for p, _ in _pushed(func, arguments, {})]
    return [np.stack(each) for each in zip(*rows)]


def check_forward(
    func: Callable, arguments: Sequence[Any], checked: Sequence[int], floating: Sequence[int],
    numerical: Sequence[Sequence[np.ndarray]], atol: float, rtol: float,
) -> None:  # fmt: skip
    """Compare forward mode with differences. floating: the numbers of the floating outputs."""
    for place, position in enumerate(checked):
        for number, analytical in zip(floating, forward_jacobians(func, arguments, position)):
            expected = numerical[place][number]
            if not np.allclose(analytical, expected, rtol=rtol, atol=atol, equal_nan=True):
                raise GradcheckError(
                    f"Jacobian computed with forward mode mismatch for output {number} with respect to input {position},\n"
                    f"numerical:{expected}\nanalytical:{analytical}\n"
                )


def _vectors(tensor: Tensor, count: int, seed: int) -> list[Tensor]:
    random = np.random.default_rng(seed)
    layout = tensor.layout

    def drawn() -> np.ndarray:
        values = np.asarray(random.standard_normal(layout.shape))
        return values + 1j * random.standard_normal(layout.shape) if layout.dtype.is_complex else values

    return [from_array(drawn(), layout.dtype, device=layout.device) for _ in range(count)]


def check_missing_tangents(func: Callable, arguments: Sequence[Any], checked: Sequence[int]) -> None:
    """A missing tangent must act as one of zeros."""
    moving = {position: _vectors(arguments[position], 1, position)[0] for position in checked}
    for position in checked:
        zero = _or_zeros(None, arguments[position])
        with_zero = _pushed(func, arguments, moving | {position: zero})
        without = _pushed(func, arguments, {p: t for p, t in moving.items() if p != position})
        for number, ((_, a), (_, b)) in enumerate(zip(with_zero, without)):
            if a is not None and b is not None and not np.allclose(as_array(a), as_array(b), equal_nan=True):
                raise GradcheckError(
                    f"Mismatch in tangent values for output with index: {number} when input {position} has an undefined "
                    f"tangent value. Got: {b} but expected: {a}"
                )


_BATCHED = "gradcheck failed while testing batched gradient computation{}: a derivative under vmap differs from one by one."


def _compare(function: Callable, vectors: Sequence[Tensor], mode: str, where: str) -> None:
    """`function` of each vector against vmap of it."""
    expected = [function(v) for v in vectors]
    layout = vectors[0].layout
    stacked = from_array(np.stack([as_array(v) for v in vectors]), layout.dtype, device=layout.device)
    try:
        found = transforms.vmap(function)(stacked)
    except RuntimeError as error:
        raise GradcheckError(f"While computing batched gradients, got: {error}\n\n{_BATCHED.format(mode)}") from error
    for number, batched in enumerate(found):
        single = np.stack([as_array(each[number]) for each in expected])
        if not np.allclose(as_array(batched), single, equal_nan=True):
            raise GradcheckError(
                f"For {where.format(number)}:\n\n{_BATCHED.format(mode)}\n\nGot:\n{as_array(batched)}\n\nExpected:\n{single}"
            )


def check_batched_backward(output: Tensor, number: int, inputs: Sequence[Tensor]) -> None:
    """vmap of the backward from one output, against one backward after the other."""

    def pull(seed: Tensor) -> tuple[Tensor, ...]:
        found = grad(output, inputs, seed, retain_graph=True, allow_unused=True)
        return tuple(_or_zeros(g, x) for g, x in zip(found, inputs))

    _compare(pull, _vectors(output, 2, number), "", f"output {number} and input {{}}")


def check_batched_forward(func: Callable, arguments: Sequence[Any], checked: Sequence[int]) -> None:
    """vmap of forward mode, against one run after the other."""
    for position in checked:

        def push(tangent: Tensor, position: int = position) -> tuple[Tensor, ...]:
            return tuple(_or_zeros(t, p) for p, t in _pushed(func, arguments, {position: tangent}))

        vectors = _vectors(arguments[position], 2, position)
        _compare(push, vectors, " with forward-mode AD", f"output {{}} and input {position}")


def _or_zeros(tensor: Tensor | None, like: Tensor) -> Tensor:
    if tensor is not None:
        return tensor
    return from_array(np.zeros(like.layout.shape), like.layout.dtype, device=like.layout.device)
