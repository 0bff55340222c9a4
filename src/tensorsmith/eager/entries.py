"""Entries: the closures that execute one operation on operands of known layouts.

An entry allocates the outputs, launches the plan and wraps the results; where an operand is tracked and grad mode is on it
also records a node. The common shapes of a call (one kernel, one new output, one or two operands; a view) have their own
closures, because eager speed is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.layout import Layout, contiguous_strides, layout_of
from tensorsmith.core.views import Strided, covers_once
from tensorsmith.eager.operator import Kind, Operation, Program
from tensorsmith.eager.record import recorder
from tensorsmith.passes.fusion import same_strides
from tensorsmith.runtime.plan import Plan, build_plan
from tensorsmith.targets.cpu.memory import allocate, free_list
from tensorsmith.tensor.storage import Storage
from tensorsmith.tensor.tensor import Tensor, make_view

Entry = Callable[..., Any]


def make_entry(operation: Operation, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Entry:
    """The entry for operands of these kinds."""
    needs = tuple(isinstance(k, Layout) and k.tracked for k in kinds)
    seen = operation.places(kinds, attrs)
    if seen is not None:
        source = kinds[0]
        assert isinstance(source, Layout)
        run = _view_entry(source.dtype, seen) if isinstance(seen, Strided) else _views_entry(source.dtype, seen)
        if not any(needs):
            return run
        program = operation.program(kinds, attrs)
    else:
        program = operation.program(kinds, attrs)
        run = untracked_entry(plan_for(operation, program, kinds), [isinstance(k, Layout) for k in kinds])
    differentiable = tuple(node.dtype.kind in "fc" for node in program.graph.outputs)
    if not any(needs) or not any(differentiable):
        return run
    return recorder(program, run, needs, differentiable)


def plan_for(operation: Operation, program: Program, kinds: Sequence[Kind]) -> Plan:
    """The plan of a program for operands that lie as their layouts say."""
    inputs = [Strided(k.shape, k.strides) if isinstance(k, Layout) else None for k in kinds]
    required: dict[int, Strided] = {}
    for number, node in enumerate(program.graph.outputs):
        if operation.pointwise:
            strides = elementwise_strides(node.shape, [k for k in kinds if isinstance(k, Layout)])
            required[number] = Strided(node.shape, strides)
        elif operation.fresh:
            required[number] = Strided(node.shape, layout_of(node.dtype, node.shape).strides)
    return build_plan(program.graph, inputs, required)


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


def untracked_entry(plan: Plan, is_tensor: Sequence[bool]) -> Entry:
    """The closure that runs a plan and wraps its outputs, recording nothing."""
    new_outputs = [o for o in plan.outputs if o.input is None]
    if len(plan.outputs) == 1 and not plan.workspace_bytes:
        only = plan.outputs[0]
        if only.input is not None and not plan.steps and len(is_tensor) == 1:
            return _view_entry(only.dtype, only.strided)
        plain = only.input is None and only.strided.offset == 0
        if plain and plan.single is not None and len(plan.new_bytes) == 1 and all(is_tensor):
            layout = layout_of(only.dtype, only.strided.shape, only.strided.strides)
            if len(is_tensor) == 1:
                return _unary_entry(plan, layout, plan.new_bytes[0])
            if len(is_tensor) == 2:
                return _binary_entry(plan, layout, plan.new_bytes[0])
        if plain and plan.single is not None and list(is_tensor) == [True, False]:
            layout = layout_of(only.dtype, only.strided.shape, only.strided.strides)
            return _scalar_entry(plan, layout, plan.new_bytes[0])
    return _general_entry(plan, new_outputs)


def _view_entry(dtype: Any, strided: Strided) -> Entry:
    layout = layout_of(dtype, strided.shape, strided.strides)
    offset_bytes = strided.offset * dtype.itemsize
    new = Tensor.__new__

    def view(source: Tensor) -> Tensor:
        tensor = new(Tensor)
        tensor.layout = layout
        storage = tensor.storage = source.storage
        tensor.ptr = source.ptr + offset_bytes
        tensor.node = None
        tensor.output_number = 0
        base = source.base
        tensor.base = source if base is None else base
        tensor.stamp = storage.version
        tensor.state = None
        return tensor

    return view


def _views_entry(dtype: Any, seen: Sequence[Strided]) -> Entry:
    views = [_view_entry(dtype, each) for each in seen]

    def split(source: Tensor) -> tuple[Tensor, ...]:
        return tuple([view(source) for view in views])

    return split


# The next three differ only in how many words they pass on. They are written out: one more call or tuple a time is a tenth
# of an eager operator.


def _unary_entry(plan: Plan, layout: Layout, nbytes: int) -> Entry:
    from tensorsmith.targets.cpu.launch import launch

    assert plan.single is not None
    recipe, fail, free = plan.single.address, plan.fail, free_list(nbytes)
    new, new_storage, pop = Tensor.__new__, Storage.__new__, free.pop

    def unary(a: Tensor) -> Tensor:
        try:
            ptr = pop()
        except IndexError:
            ptr = allocate(nbytes)
        storage = new_storage(Storage)
        storage.ptr = ptr
        storage.nbytes = nbytes
        storage.free = free
        storage.version = 0
        code = launch(recipe, a.ptr, ptr)
        if code is not None:
            fail(0, code, (a.ptr, ptr))
        tensor = new(Tensor)
        tensor.layout = layout
        tensor.ptr = ptr
        tensor.storage = storage
        tensor.node = None
        tensor.output_number = 0
        tensor.base = None
        tensor.state = None
        return tensor

    return unary


def _binary_entry(plan: Plan, layout: Layout, nbytes: int) -> Entry:
    from tensorsmith.targets.cpu.launch import launch

    assert plan.single is not None
    recipe, fail, free = plan.single.address, plan.fail, free_list(nbytes)
    new, new_storage, pop = Tensor.__new__, Storage.__new__, free.pop

    def binary(a: Tensor, b: Tensor) -> Tensor:
        try:
            ptr = pop()
        except IndexError:
            ptr = allocate(nbytes)
        storage = new_storage(Storage)
        storage.ptr = ptr
        storage.nbytes = nbytes
        storage.free = free
        storage.version = 0
        code = launch(recipe, a.ptr, b.ptr, ptr)
        if code is not None:
            fail(0, code, (a.ptr, b.ptr, ptr))
        tensor = new(Tensor)
        tensor.layout = layout
        tensor.ptr = ptr
        tensor.storage = storage
        tensor.node = None
        tensor.output_number = 0
        tensor.base = None
        tensor.state = None
        return tensor

    return binary


def _scalar_entry(plan: Plan, layout: Layout, nbytes: int) -> Entry:
    from tensorsmith.targets.cpu.launch import launch

    assert plan.single is not None
    recipe, fail, free = plan.single.address, plan.fail, free_list(nbytes)
    new, new_storage, pop = Tensor.__new__, Storage.__new__, free.pop

    def with_scalar(a: Tensor, value: float) -> Tensor:
        try:
            ptr = pop()
        except IndexError:
            ptr = allocate(nbytes)
        storage = new_storage(Storage)
        storage.ptr = ptr
        storage.nbytes = nbytes
        storage.free = free
        storage.version = 0
        code = launch(recipe, a.ptr, ptr, value)
        if code is not None:
            fail(0, code, (a.ptr, ptr, value))
        tensor = new(Tensor)
        tensor.layout = layout
        tensor.ptr = ptr
        tensor.storage = storage
        tensor.node = None
        tensor.output_number = 0
        tensor.base = None
        tensor.state = None
        return tensor

    return with_scalar


def _general_entry(plan: Plan, new_outputs: Sequence[Any]) -> Entry:
    """Any plan: several outputs, views among them, several steps."""
    tensor_inputs, params, new_bytes = plan.tensor_inputs, plan.params, plan.new_bytes
    outputs = [
        (o.input, o.buffer, layout_of(o.dtype, o.strided.shape, o.strided.strides), o.strided.offset)
        for o in plan.outputs
    ]
    # A buffer seen by one output from its start is that tensor's own storage; otherwise the output is a plain tensor
    # over the shared storage, which is not a view to autograd.
    single = len(outputs) == 1
    run = plan.run

    def general(*operands: Any) -> Any:
        storages = [Storage(n) for n in new_bytes]
        words = [operands[i].ptr for i in tensor_inputs]
        words += [s.ptr for s in storages]
        words += [operands[i] for i in params]
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

