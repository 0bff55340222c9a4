"""Entries: the closures that execute one operation on operands of known layouts.

An entry allocates the outputs, launches the plan and wraps the results; where an operand is tracked and grad mode is on it
also records a node. The commonest calls, one launch into one new output and one view, are written out by `template.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.layout import Layout, contiguous_strides, layout_of
from tensorsmith.core.memory_format import format_of_first, result_strides
from tensorsmith.core.views import Strided, covers_once, same_strides
from tensorsmith.eager.devices import device_of, to_move
from tensorsmith.eager.large_ints import call_again
from tensorsmith.eager.operator import BackwardOperator, Kind, Operation, Program
from tensorsmith.eager.record import recorder
from tensorsmith.eager.template import launch_entry, view_entry
from tensorsmith.runtime import profiler
from tensorsmith.runtime.plan import Plan, build_plan
from tensorsmith.runtime.requests import KernelStep
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.storage import storage_type
from tensorsmith.tensor.tensor import Origin, Tensor, make_view

Entry = Callable[..., Any]


MOST_LAUNCHES = 4  # that are written out one by one


def make_entry(operation: Operation, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Entry:
    """The entry for operands of these kinds."""
    moved = to_move(kinds)
    if moved is not None:
        return _moving_entry(operation, *moved, attrs)
    if isinstance(operation, BackwardOperator) and any(isinstance(k, Layout) and k.tracked for k in kinds):
        return _gradient_entry(operation, kinds, attrs)
    return _entry(operation, kinds, attrs)


def _moving_entry(operation: Operation, device: Device, lone: tuple[int, ...], attrs: dict[str, Any]) -> Entry:
    """The call with some operands on another device."""

    def entry(*operands: Any) -> Any:
        return operation(*(x.to(device) if i in lone else x for i, x in enumerate(operands)), **attrs)

    return entry


def _gradient_entry(operation: Operation, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Entry:
    """Gradients are rarely differentiated again: their own gradient is derived where grad mode is on for the first time."""
    plain = _entry(operation, [k.with_tracking(False) if isinstance(k, Layout) else k for k in kinds], attrs)
    recorded: Entry | None = None

    def entry(*operands: Any) -> Any:
        nonlocal recorded
        if not modes.grad:
            return plain(*operands)
        if recorded is None:
            recorded = _entry(operation, kinds, attrs)
        return recorded(*operands)

    return entry


def _entry(operation: Operation, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Entry:
    needs = tuple(isinstance(k, Layout) and k.tracked for k in kinds)
    seen = operation.places(kinds, attrs)
    if seen is not None:
        source = kinds[0]
        assert isinstance(source, Layout)
        dtype = operation.view_dtype(source.dtype)
        tracked = any(needs) and dtype.kind in "fc"
        if isinstance(seen, Strided):
            layout = layout_of(dtype, seen.shape, seen.strides, device=source.device)
            recorded_view = (operation, source, attrs) if tracked else None
            return view_entry(len(kinds), 0, layout, seen.offset * dtype.itemsize, None, needs, recorded_view)
        program = operation.program(kinds, attrs) if tracked else None
        run = _views_entry(source, seen, tracked)
        return run if program is None else recorder(program, run, needs, (True,) * len(seen))
    program = operation.program(kinds, attrs)
    device = device_of(operation.name, kinds, attrs)
    plan = plan_for(operation, program, kinds, device)
    differentiable = tuple(node.dtype.kind in "fc" for node in program.graph.outputs)
    recorded = program if any(needs) and any(differentiable) else None
    if len(plan.outputs) == 1 and len(plan.steps) <= MOST_LAUNCHES and not plan.workspace_bytes:
        (only,) = plan.outputs
        if not plan.steps and only.input is not None:
            return _view(only.dtype, only.strided, only.input, len(kinds), recorded, needs, device)
        launches = [step for step in plan.steps if isinstance(step, KernelStep)]
        written_out = bool(launches) and len(launches) == len(plan.steps) and not profiler.active  # which `Plan.run` times
        if written_out and only.input is None and only.strided.offset == 0:
            layout = layout_of(only.dtype, only.strided.shape, only.strided.strides, device=device)
            is_tensor = [isinstance(k, Layout) for k in kinds]
            again = partial(call_again, operation, kinds, attrs)
            return launch_entry(plan, launches, is_tensor, layout, plan.new_bytes[0], recorded, needs, again)
    run = _general_entry(plan)
    entry = run if recorded is None else recorder(recorded, run, needs, differentiable)
    return _with_large_ints(entry, operation, kinds, attrs) if int in kinds else entry


def _with_large_ints(entry: Entry, operation: Operation, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Entry:
    def checked(*operands: Any) -> Any:
        try:
            return entry(*operands)
        except OverflowError:
            return call_again(operation, kinds, attrs, operands)

    return checked


def _view(
    dtype: Any, seen: Strided, source: int, count: int, program: Program | None, needs: tuple[bool, ...], device: Device
) -> Entry:
    layout = layout_of(dtype, seen.shape, seen.strides, device=device)
    return view_entry(count, source, layout, seen.offset * dtype.itemsize, program, needs)


def plan_for(operation: Operation, program: Program, kinds: Sequence[Kind], device: Device = CPU) -> Plan:
    """The plan of a program for operands that lie as their layouts say."""
    inputs = [Strided(k.shape, k.strides) if isinstance(k, Layout) else None for k in kinds]
    required: dict[int, Strided] = {}
    layouts = [k for k in kinds if isinstance(k, Layout)]
    form = operation.keeps_format(layouts) if operation.keeps_format is not None and layouts else None
    for number, node in enumerate(program.graph.outputs):
        if operation.pointwise:
            required[number] = Strided(node.shape, elementwise_strides(node.shape, layouts))
        elif form is not None:
            required[number] = Strided(node.shape, result_strides(form, node.shape))
        elif number in operation.orders:
            required[number] = in_format_of(kinds[operation.orders[number]], node.shape)
        elif operation.fresh:
            required[number] = Strided(node.shape, layout_of(node.dtype, node.shape).strides)
    plan = build_plan(program.graph, inputs, required, device=device)
    plan.name = operation.name
    return plan


def in_format_of(operand: Kind, shape: tuple[int, ...]) -> Strided:
    """Where a result lies that takes the memory format of an operand of its shape."""
    assert isinstance(operand, Layout)
    return Strided(shape, result_strides(format_of_first([operand]), shape))


def elementwise_strides(shape: tuple[int, ...], operands: Sequence[Layout]) -> tuple[int, ...]:
    """Strides of an elementwise result, as PyTorch's TensorIterator chooses them.

    Axes keep the order they have in memory in the operands (the first operand decides, the next where it is ambiguous);
    the result is dense in that order.
    """
    same = [o for o in operands if o.shape == shape]
    if len(same) == len(operands):
        if all(o.contiguous for o in same):
            return contiguous_strides(shape)
        channels_last = channels_last_strides(shape)
        if channels_last and all(same_strides(shape, o.strides, channels_last) for o in same):
            return channels_last
        first = same[0]
        if len({o.strides for o in same}) == 1 and covers_once(Strided(first.shape, first.strides)):
            return first.strides
    ndim = len(shape)
    strides = [_broadcast_strides(o, shape) for o in operands]
    order = list(reversed(range(ndim)))  # innermost first

    def should_swap(a: int, b: int) -> int:
        for s in strides:
            x, y = s[a], s[b]
            if x == 0 or y == 0:
                continue
            if x < y:
                return -1
            if x > y:
                return 1
            if shape[a] > shape[b]:
                return 1
        return 0

    for i in range(1, ndim):
        dim1 = i
        for dim0 in range(i - 1, -1, -1):
            comparison = should_swap(order[dim0], order[dim1])
            if comparison > 0:
                order[dim0], order[dim1] = order[dim1], order[dim0]
                dim1 = dim0
            elif comparison < 0:
                break
    result = [0] * ndim
    step = 1
    for axis in order:
        result[axis] = step
        step *= max(shape[axis], 1)
    return tuple(result)


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of (N, C, H, W) with the channels innermost; None for other ranks."""
    if len(shape) != 4:
        return None
    _, c, h, w = shape
    return (h * w * c, 1, w * c, c)


def _broadcast_strides(operand: Layout, shape: tuple[int, ...]) -> list[int]:
    """An operand's stride along every axis of the result: 0 where it is repeated."""
    lead = len(shape) - operand.ndim
    strides = [0 if n == 1 and m != 1 else s for n, m, s in zip(operand.shape, shape[lead:], operand.strides)]
    return [0] * lead + strides


def _views_entry(operand: Layout, seen: Sequence[Strided], tracked: bool) -> Entry:
    views = [_view(operand.dtype, each, 0, 1, None, (tracked,), operand.device) for each in seen]

    def split(source: Tensor) -> tuple[Tensor, ...]:
        found = tuple([view(source) for view in views])
        if modes.grad:
            for view in found:
                view.origin = Origin.MULTIPLE
        return found

    return split


def _general_entry(plan: Plan) -> Entry:
    """Any plan: several outputs, views among them, several steps."""
    tensor_inputs, params, new_bytes = plan.tensor_inputs, plan.params, plan.new_bytes
    outputs = [
        (o.input, o.buffer, layout_of(o.dtype, o.strided.shape, o.strided.strides, device=plan.device), o.strided.offset)
        for o in plan.outputs
    ]
    new_storage = storage_type(plan.device)
    # A buffer seen by one output from its start is that tensor's own storage; otherwise the output is a plain tensor
    # over the shared storage, which is not a view to autograd.
    single = len(outputs) == 1
    run = plan.run

    def general(*operands: Any) -> Any:
        storages = [new_storage(n) for n in new_bytes]
        words = [operands[i].ptr for i in tensor_inputs]
        words += [s.ptr for s in storages]
        if params:
            words += plan.number_words(operands)
        run(words)
        results = []
        for number, buffer, layout, offset in outputs:
            if number is not None:
                results.append(make_view(operands[number], layout, offset))
                continue
            storage = storages[buffer]
            tensor = Tensor.__new__(Tensor)
            tensor.layout = layout
            tensor.storage = storage
            tensor.ptr = storage.ptr + offset * layout.dtype.itemsize
            tensor.node = None
            tensor.output_number = 0
            tensor.base = None
            tensor.state = None
            results.append(tensor)
        return results[0] if single else tuple(results)

    return general

