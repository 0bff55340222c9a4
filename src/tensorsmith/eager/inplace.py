"""Writing over tensors: in-place operators and their checks.

An `InplaceOperation` runs an operator's graph with some outputs laid over operands. Before anything is written the checks of
PyTorch run: a leaf that requires a gradient, memory written twice (an expanded tensor), operands that overlap partially.
After it, the storage's version is counted up and the history is *rebased*: a tensor that owns its data gets the new node; for
a view the base does, by `view_history.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd.node import origin_message, rebase_history
from tensorsmith.autograd.saved import SavedTensor
from tensorsmith.core.device import Device
from tensorsmith.core.dtypes import DType, category, of_python_scalar, promote_operands, type_name
from tensorsmith.core.layout import Layout
from tensorsmith.core.shapes import broadcast_shapes
from tensorsmith.core.views import Strided, covers_once, may_overlap_itself
from tensorsmith.eager import dispatch
from tensorsmith.eager.devices import device_of, to_move
from tensorsmith.eager.large_ints import call_again
from tensorsmith.eager.operator import Kind, Operation, Operator, Program, program_key
from tensorsmith.eager.record import OperatorNode, note_user_line, save, saved_table
from tensorsmith.eager.view_history import copy_of
from tensorsmith.ir.graph import Graph, Node as Value, Primitive
from tensorsmith.runtime import profiler
from tensorsmith.runtime.plan import Output, Plan, build_plan
from tensorsmith.runtime.requests import KernelStep
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.storage import storage_type
from tensorsmith.tensor.tensor import Tensor


class InplaceOperation(Operation):
    """An operator whose outputs are written over operands: `writes[k]` is the operand under output k."""

    def __init__(self, operator: Operator, writes: Sequence[int] = (0,), name: str | None = None) -> None:
        self.operator = operator
        self.writes = tuple(writes)
        self.name = name or operator.name + "_"
        self._programs: dict[tuple, Program] = {}

    def program(self, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Program:
        key = program_key(kinds, attrs)
        found = self._programs.get(key)
        if found is None:
            inner = self.operator.program(kinds, attrs)
            graph = inner.graph
            targets: list[Layout] = [kinds[i] for i in self.writes]  # type: ignore[misc]
            if any(n.dtype is not t.dtype or n.op is Primitive.INPUT for n, t in zip(graph.outputs, targets)):
                graph = Graph()
                nodes = [graph.input(n.shape, n.dtype, n.attrs["param"]) for n in inner.graph.inputs]
                outputs = self.operator.build(*nodes, **attrs)
                outputs = (outputs,) if isinstance(outputs, Value) else tuple(outputs)
                graph.outputs = tuple(graph.add(Primitive.CAST, (n,), dtype=t.dtype) for n, t in zip(outputs, targets))
            found = self._programs[key] = Program(self, graph, attrs, self.operator.node_name)
        return found

    def override(self, attrs: dict[str, Any]) -> Any:
        return self.operator.override(attrs)

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        if modes.tracer is not None:
            return modes.tracer.call_inplace(self, operands, attrs)
        kinds = [dispatch.kind_of(x) for x in operands]
        key = (self, *kinds, *attrs.items())
        entry = dispatch.FAST.get(key)
        if entry is None:
            entry = _make_entry(self, kinds, attrs)
            dispatch.remember(key, entry)
        return entry(*operands)


def check_result(name: str, dtype: DType, shape: tuple[int, ...], target: Layout) -> None:
    """Refuse a result that does not fit the tensor it is written to."""
    if category(dtype) > category(target.dtype):
        raise RuntimeError(
            f"{name}: result type {type_name(dtype)} can't be cast to the desired output type {type_name(target.dtype)}"
        )
    if shape != target.shape:
        raise RuntimeError(
            f"{name}: output with shape {list(target.shape)} doesn't match the broadcast shape {list(shape)}"
        )


def _promoted(kinds: Sequence[Kind]) -> DType:
    layouts = [k for k in kinds if isinstance(k, Layout)]
    weak = [of_python_scalar(k(0)) for k in kinds if not isinstance(k, Layout)]
    return promote_operands([k.dtype for k in layouts if k.shape], [k.dtype for k in layouts if not k.shape], weak)


Write = Callable[[Sequence[Any]], None]


def _make_entry(operation: InplaceOperation, kinds: list[Kind], attrs: dict[str, Any]) -> Callable[..., Any]:
    moved = to_move(kinds)
    if moved is not None and not set(moved[1]) & set(operation.writes):
        return lambda *operands: operation(*(x.to(moved[0]) if i in moved[1] else x for i, x in enumerate(operands)), **attrs)
    targets = check_operands(operation, kinds, attrs)
    return recording_entry(operation, kinds, attrs, _writer(operation, kinds, attrs, targets))


def check_operands(operation: InplaceOperation, kinds: Sequence[Kind], attrs: dict[str, Any]) -> list[Layout]:
    """The layouts written over, after the checks that need no data."""
    targets: list[Layout] = [kinds[i] for i in operation.writes]  # type: ignore[misc]
    try:
        inner = operation.operator.program(kinds, attrs)
    except NotImplementedError:  # that the result would not fit is the first thing to say, as PyTorch has it
        if operation.operator.pointwise:
            shape = broadcast_shapes(*(k.shape for k in kinds if isinstance(k, Layout)))
            check_result(operation.name, _promoted(kinds), shape, targets[0])
        raise
    for node, target in zip(inner.graph.outputs, targets):
        if target.dtype.is_complex and node.op is Primitive.MAP and node.attrs["fn"] is Fn.ABS:
            raise RuntimeError(f"In-place {operation.operator.name} is not supported for complex tensors: its result is real")
        check_result(operation.name, node.dtype, node.shape, target)
        if may_overlap_itself(Strided(target.shape, target.strides)):
            raise RuntimeError(
                f"{operation.name}: unsupported operation: more than one element of the written-to tensor refers to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )
    return targets


def _writer(operation: InplaceOperation, kinds: Sequence[Kind], attrs: dict[str, Any], targets: list[Layout]) -> Write:
    """What runs the plan: straight over the operands where one kernel does it, through new memory otherwise."""
    program = operation.program(kinds, attrs)
    writes = operation.writes
    inputs = [Strided(k.shape, k.strides) if isinstance(k, Layout) else None for k in kinds]
    direct = operation.operator.pointwise and not any(_may_fail(node) for node in program.graph.live_nodes())
    required = {k: Strided(t.shape, t.strides) for k, t in enumerate(targets)} if direct else {}
    device = device_of(operation.name, kinds, attrs)
    plan = build_plan(program.graph, inputs, required, device=device)
    plan.name = operation.name
    direct = direct and len(plan.steps) <= 1 and plan.workspace_bytes == 0
    buffers = [o.buffer for o in plan.outputs]
    tensor_inputs = plan.tensor_inputs
    copies = [_copy_plan(o, targets[k], device) for k, o in enumerate(plan.outputs)] if not direct else []
    ordered = [w for _, w in sorted(zip(buffers, writes))]  # operands in the order of the plan's new buffers
    run = plan.run
    if direct and not profiler.active and len(plan.steps) == 1 and isinstance(plan.steps[0], KernelStep):
        return _single_writer(plan, ordered) if plan.single is not None else _step_writer(plan, ordered)

    def write(operands: Sequence[Any]) -> None:
        words = [operands[i].ptr for i in tensor_inputs]
        if direct:
            words += [operands[i].ptr for i in ordered]
            words += plan.number_words(operands)
            run(words)
            return
        storages = [storage_type(device)(n) for n in plan.new_bytes]
        words += [s.ptr for s in storages]
        words += plan.number_words(operands)
        run(words)
        for output, copy, w in zip(plan.outputs, copies, writes):
            source = operands[output.input].ptr if output.input is not None else storages[output.buffer].ptr
            copy.run([source, operands[w].ptr])

    return write


def _may_fail(node: Value) -> bool:
    """Whether a value can be an error (an integer division by zero): then nothing may be written before all is computed."""
    divides = node.op is Primitive.MAP and node.attrs["fn"] in (Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD)
    return divides and node.dtype.kind in "iu"


def _single_writer(plan: Plan, ordered: Sequence[int]) -> Write:
    """A single launch over the operands."""
    from tensorsmith.targets.cpu.launch import launch

    assert plan.single is not None
    recipe, keep = plan.single.address, plan
    pointers, params = (*plan.tensor_inputs, *ordered), plan.params

    if len(pointers) == 2 and len(params) == 1 and not plan.complex_params:  # x.add_(2.0)
        first, second, number = *pointers, *params

        def write_scalar(operands: Sequence[Any]) -> None:
            try:
                code = launch(recipe, operands[first].ptr, operands[second].ptr, operands[number])
            except OverflowError:
                raise keep.overflow((operands[number],)) from None
            if code is not None:
                keep.fail(0, code, (operands[first].ptr, operands[second].ptr, operands[number]))

        return write_scalar

    if len(pointers) == 3 and not params:  # x.add_(y)
        first, second, third = pointers

        def write_two(operands: Sequence[Any]) -> None:
            code = launch(recipe, operands[first].ptr, operands[second].ptr, operands[third].ptr)
            if code is not None:
                keep.fail(0, code, [operands[i].ptr for i in pointers])

        return write_two

    def write(operands: Sequence[Any]) -> None:
        words = [operands[i].ptr for i in pointers]
        words += plan.number_words(operands)
        try:
            code = launch(recipe, *words)
        except OverflowError:
            raise keep.overflow(words) from None
        if code is not None:
            keep.fail(0, code, words)

    return write


def _step_writer(plan: Plan, ordered: Sequence[int]) -> Write:
    """A single launch whose words are the operands' in another order, or with offsets (the parts of complex numbers)."""
    from tensorsmith.targets.cpu.launch import launch

    step, pointers = plan.steps[0], (*plan.tensor_inputs, *ordered)
    assert isinstance(step, KernelStep)
    recipe, sources, numbers = step.recipe.address, step.sources, plan.number_words if plan.params else None

    def write(operands: Sequence[Any]) -> None:
        words = [operands[i].ptr for i in pointers]
        if numbers is not None:
            words += numbers(operands)
        try:
            code = launch(recipe, *[words[w] + o if o else words[w] for w, o in sources])
        except OverflowError:
            raise plan.overflow(words) from None
        if code is not None:
            plan.fail(0, code, words)

    return write


def recording_entry(
    operation: InplaceOperation, kinds: Sequence[Kind], attrs: dict[str, Any], write: Write, recording: bool = True
) -> Callable[..., Any]:
    """The entry around `write`: checks, version, history (`recording`: whether gradients may be recorded when it runs)."""
    program, writes, name = operation.program(kinds, attrs), operation.writes, operation.name
    targets: list[Layout] = [kinds[i] for i in writes]  # type: ignore[misc]
    needs = tuple(isinstance(k, Layout) and k.tracked for k in kinds)
    tracked = recording and any(needs) and all(t.dtype.kind in "fc" for t in targets)
    backward = program.backward(needs, (True,) * len(targets)) if tracked else None
    table = saved_table(program, needs, (True,) * len(targets)) if tracked else ()
    others = [i for i, k in enumerate(kinds) if isinstance(k, Layout) and i not in writes]
    overwritten = [i for i in writes if any(w.kind == "input" and w.number == i for w in table)]

    def untracked(*operands: Any) -> Any:
        target = operands[only]
        for i in others:
            if operands[i].storage.ptr == target.storage.ptr:  # `.data` has a storage of its own over it
                check_overlap(name, operands[i], target)
        try:
            write(operands)
        except OverflowError:
            return call_again(operation, kinds, attrs, operands)
        target.storage.version += 1
        return target

    if not tracked and len(writes) == 1:
        only = writes[0]
        return untracked

    def entry(*operands: Any) -> Any:
        for i in others:
            for k in writes:
                if operands[i].storage.ptr == operands[k].storage.ptr:
                    check_overlap(name, operands[i], operands[k])
        node = start_node(operands) if tracked and modes.grad else None
        try:
            write(operands)
        except OverflowError:
            return call_again(operation, kinds, attrs, operands)
        results = [operands[i] for i in writes]
        for target in results:
            target.storage.version += 1
        if node is not None:
            for number, target in enumerate(results):
                rebase_history(target, node, number)
            save_outputs(node, results)
            if modes.anomaly:
                note_user_line(node)
        return results[0] if len(results) == 1 else tuple(results)

    def start_node(operands: Sequence[Any]) -> OperatorNode:
        """The node of a call that is about to write: edges and inputs as they are before."""
        assert backward is not None
        for i in writes:
            check_writable(name, operands[i])
        node = OperatorNode(program, needs, backward, table, operands)
        if overwritten:  # the gradient needs values that are about to be written over: it gets a copy, with their history
            operands = [copy_of(x) if i in overwritten else x for i, x in enumerate(operands)]
        save(node, [w for w in table if w.kind == "input"], operands, ())
        return node

    def save_outputs(node: OperatorNode, results: Sequence[Tensor]) -> None:
        """Add what is saved of the results, as they are after the write."""
        assert node.saved is not None
        if len(node.saved) == len(table):
            return
        rest = iter(zip(node.saved, node.versions))
        pairs = [next(rest) if w.kind == "input" else (SavedTensor(results[w.number], w.number), 0) for w in table]
        node.saved, node.versions = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)

    return entry


def _copy_plan(output: Output, target: Layout, device: Device) -> Plan:
    """The plan that copies an output of another plan to the tensor it is for."""
    graph = Graph()
    graph.outputs = (graph.add(Primitive.CAST, (graph.input(output.strided.shape, output.dtype),), dtype=target.dtype),)
    place = Strided(target.shape, target.strides)
    return build_plan(graph, [output.strided], {0: place}, device=device)  # the strides carry the offset


def check_writable(name: str, target: Tensor) -> None:
    """Refuse to write over a leaf that requires a gradient, directly or through a view."""
    if target.base is None:
        if target.layout.tracked and target.node is None:
            raise RuntimeError(f"{name}: a leaf Variable that requires grad is being used in an in-place operation.")
        return
    if target.origin is not None:
        raise RuntimeError(f"{name}: {origin_message(target, 'is being')}")
    if target.layout.tracked and target.base.node is None:
        raise RuntimeError(f"{name}: a view of a leaf Variable that requires grad is being used in an in-place operation.")


def check_overlap(name: str, source: Tensor, target: Tensor) -> None:
    """Refuse an operand that shares some, but not exactly the same, memory with what is written."""
    if source.ptr == target.ptr and source.layout.strides == target.layout.strides and (
        source.layout.shape == target.layout.shape
    ):
        return
    if source.layout.numel == 0 or target.layout.numel == 0:
        return
    a0, b0 = source.ptr, target.ptr
    a1 = a0 + source.layout.extent * source.layout.dtype.itemsize
    b1 = b0 + target.layout.extent * target.layout.dtype.itemsize
    if a1 <= b0 or b1 <= a0:
        return
    dense = all(covers_once(Strided(t.layout.shape, t.layout.strides)) for t in (source, target))
    if dense:
        raise RuntimeError(
            f"{name}: unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
            "memory location. Please clone() the tensor before performing the operation."
        )
