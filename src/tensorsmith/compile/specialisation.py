"""Specialisation: one traced function for one kind of arguments, and how it runs.

Tracing decides the outputs of the graph: results, new values of captured storages (updates), gradients of captured leaves, and
tensors that escaped into the surroundings. Running executes the plan and puts each of them where it belongs.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.compile.nest import flatten, unflatten
from tensorsmith.compile.tracer import Current, Source, TracedStorage, TraceError, Tracer, module_state
from tensorsmith.core.layout import Layout, layout_of
from tensorsmith.core.views import Strided
from tensorsmith.eager.operator import Operation, Program
from tensorsmith.eager.record import recorder
from tensorsmith.ir.graph import Node
from tensorsmith.passes.simplify import simplify
from tensorsmith.runtime.plan import Plan, build_plan
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.storage import Storage
from tensorsmith.tensor.tensor import Tensor, make_tensor, make_view

Memory = int | tuple[str, int]


class _Traced(Operation):
    """A traced function as an operation, so that a forward function is differentiated like any operator."""

    def __init__(self, name: str, tracer: Tracer) -> None:
        self.name = name
        self._program = Program(self, tracer.graph, {}, f"Compiled{name.title()}Backward")

    def program(self, kinds: Sequence[Any], attrs: dict[str, Any]) -> Program:
        return self._program


class Specialisation:
    """One traced function for one kind of arguments."""

    def __init__(self, name: str, function: Callable, arguments: list[Tensor], nest: Any) -> None:
        self.tracer = tracer = Tracer()
        stand_ins = [self.stand_in(t) for t in arguments]
        with tracer:
            try:
                results = self.trace(function, nest, stand_ins)
            except BaseException:
                tracer.undo()
                raise
            self.collect(arguments, stand_ins, results)
            while results:  # let go of the recorded graph: real results take their place
                results.pop().node = None
            self.escaped = self.find_escaped(stand_ins)
        self.operation = _Traced(name, tracer)
        self.runs = 0

    def trace(self, function: Callable, nest: Any, stand_ins: list[Tensor]) -> list[Tensor]:
        """Run the function once; the tensors of its result."""
        args, kwargs = unflatten(nest, stand_ins)
        tensors, self.result_nest = flatten(function(*args, **kwargs), "result")
        return tensors

    def find_escaped(self, stand_ins: list[Tensor]) -> list[tuple[Tensor, int, Memory]]:
        """Traced tensors that somebody still holds (a new optimiser state, say), as outputs: the first run makes them real.

        By now nothing of the trace refers to a traced tensor but the arguments' stand-ins.
        """
        known = {id(t) for t in stand_ins}

        def alive() -> list[Tensor]:
            return [t for t in (ref() for ref in self.tracer.made) if t is not None and id(t) not in known]

        if alive():
            gc.collect()
        outputs = list(self.tracer.graph.outputs)
        found: list[tuple[Tensor, int, Memory]] = [
            (t, self.output(self.tracer.value(t), outputs), ("made", id(t.storage))) for t in alive()
        ]
        self.tracer.graph.outputs = tuple(outputs)
        return found

    def stand_in(self, tensor: Tensor) -> Tensor:
        """A tensor without data in an argument's place; it is the same leaf to autograd."""
        tracer = self.tracer
        node = tracer.graph.input(tensor.layout.shape, tensor.layout.dtype)
        seen = Strided(tensor.layout.shape, tensor.layout.strides)
        result = tracer.tensor(node, node, seen, None)
        result.layout = tensor.layout
        tracer.sources.append(Source(layout=tensor.layout.with_tracking(False)))
        return result

    def collect(self, arguments: list[Tensor], stand_ins: list[Tensor], results: list[Tensor]) -> None:
        """Decide the outputs of the graph: results, new values of captured storages, gradients."""
        tracer = self.tracer
        graph = tracer.graph
        outputs: list[Node] = []
        number_of = {id(node): i for i, node in enumerate(graph.inputs)}
        self.results = [(self.output(tracer.value(t), outputs), self.memory_of(t, stand_ins, number_of)) for t in results]
        self.tracked = [t.layout.tracked and not _is_released(t) for t in results]
        self.updates: list[tuple[int, int]] = []  # (output, input)
        originals = {i: node for i, node in enumerate(graph.inputs)}
        for current in list(tracer.storages.values()):
            if not current.writes:
                continue
            source = self.input_of(current, stand_ins, number_of)
            if source is not None and current.node is not originals[source]:
                self.updates.append((self.output(current.node, outputs), source))
        self.grads: list[tuple[Tensor, int | None, Memory]] = []
        for leaf, before in self.leaves(arguments, stand_ins):
            grad = leaf.state.grad if leaf.state is not None else None
            if grad is before:
                continue
            if grad is None:
                self.grads.append((leaf, None, -1))
            elif isinstance(grad.storage, TracedStorage):
                memory = self.memory_of(grad, stand_ins, number_of)
                self.grads.append((leaf, self.output(tracer.value(grad), outputs), memory))
        self.had_grad = [(leaf, before is not None) for leaf, before in tracer.captured if id(leaf) not in tracer.grad_set]
        tracer.undo()
        graph.outputs = tuple(outputs)

    def memory_of(self, tensor: Tensor, stand_ins: list[Tensor], number_of: dict[int, int]) -> Memory:
        """Whose memory a tensor of the trace is: an input's (its number), or a storage made by the trace."""
        source = self.input_of(self.tracer.current(tensor), stand_ins, number_of)
        return source if source is not None else ("made", id(tensor.storage))

    def leaves(self, arguments: list[Tensor], stand_ins: list[Tensor]) -> list[tuple[Tensor, Any]]:
        found = list(self.tracer.captured)
        for stand_in in stand_ins:
            if stand_in.state is not None and stand_in.state.grad is not None:
                raise TraceError(
                    "compile: the function computes a gradient into an argument's .grad; return ts.autograd.grad(...) "
                    "instead, or let the function capture the tensor"
                )
        return found

    def input_of(self, current: Current, stand_ins: list[Tensor], number_of: dict[int, int]) -> int | None:
        """The graph input whose memory a storage is; None for storages made by the trace."""
        for i, stand_in in enumerate(stand_ins):
            if stand_in.storage is current.storage:
                return i
        if current.owner is None:
            return None
        for i, source in enumerate(self.tracer.sources):
            if source.tensor is current.owner:
                return i
        return None

    @staticmethod
    def output(node: Node, outputs: list[Node]) -> int:
        for i, known in enumerate(outputs):
            if known is node:
                return i
        outputs.append(node)
        return len(outputs) - 1

    # --- running ----------------------------------------------------------------------------------------------------

    def fits(self) -> bool:
        """Whether what was captured still is as it was traced."""
        for source in self.tracer.sources:
            if source.tensor is not None:
                layout = source.tensor.layout
                if layout.tracked is not source.tracked or layout.with_tracking(False) is not source.layout:
                    return False
        for module, state in self.tracer.modules:
            if module_state(module) != state:
                return False
        return all((leaf.state is not None and leaf.state.grad is not None) == had for leaf, had in self.had_grad)

    def operands(self, arguments: Sequence[Tensor]) -> list[Any]:
        given = iter(arguments)
        operands: list[Any] = []
        for source in self.tracer.sources:
            if source.tensor is not None:
                operands.append(source.tensor)
            elif source.ask is not None:
                operands.append(source.ask())
            else:
                operands.append(next(given))
        return operands

    def run(self, arguments: Sequence[Tensor]) -> Any:
        operands = self.operands(arguments)
        if any(self.tracked) and modes.grad:
            outputs = self.recorded(operands)
        else:
            outputs = self.execute(*operands)
        self.runs += 1
        return self.deliver(outputs, operands)

    def recorded(self, operands: list[Any]) -> Sequence[Tensor]:
        kinds = [x.layout if isinstance(x, Tensor) else x.__class__ for x in operands]
        needs = tuple(isinstance(k, Layout) and k.tracked for k in kinds)
        count = len(self.tracer.graph.outputs)
        results = {number for (number, _), tracked in zip(self.results, self.tracked) if tracked}
        differentiable = tuple(i in results for i in range(count))
        program = self.operation.program(kinds, {})

        def run(*given: Any) -> Any:
            found = self.execute(*given)
            return found[0] if count == 1 else tuple(found)

        found = recorder(program, run, needs, differentiable)(*operands)
        return [found] if count == 1 else list(found)

    @functools.cached_property
    def plan(self) -> Plan:
        inputs: list[Strided | None] = []
        for node, source in zip(self.tracer.graph.inputs, self.tracer.sources):
            if node.attrs["param"]:
                inputs.append(None)
            else:
                layout = source.layout
                assert layout is not None
                inputs.append(Strided(layout.shape, layout.strides))
        required = {}
        for output, number in self.updates:
            layout = self.tracer.sources[number].layout
            assert layout is not None
            required[output] = Strided(layout.shape, layout.strides)
        lasting = set()
        if not any(self.tracked):  # in training, weights are about to change
            lasting = {number for number, source in enumerate(self.tracer.sources) if source.tensor is not None}
            lasting -= {number for _, number in self.updates}
        return build_plan(simplify(self.tracer.graph), inputs, required, dict(self.updates), lasting)

    def execute(self, *operands: Any) -> list[Tensor]:
        """Run the plan; one tensor per output of the graph."""
        plan = self.plan
        storages = [Storage(n) for n in plan.new_bytes]
        words = [operands[i].ptr for i in plan.tensor_inputs]
        words += [s.ptr for s in storages]
        words += plan.number_words(operands)
        plan.run(words)
        written = dict(self.updates)
        tensors = []
        for number, output in enumerate(plan.outputs):
            layout = layout_of(output.dtype, output.strided.shape, output.strided.strides)
            if output.input is not None and written.get(number) == output.input:
                operands[output.input].storage.version += 1
                tensors.append(operands[output.input])
            elif output.input is not None:
                tensors.append(make_view(operands[output.input], layout, output.strided.offset))
            else:
                storage = storages[output.buffer]
                tensors.append(make_tensor(layout, storage, storage.ptr + output.strided.offset * output.dtype.itemsize))
        before, modes.grad = modes.grad, False
        try:
            late = [(number, source) for number, source in self.updates if plan.outputs[number].input != source]
            overwritten = {source for _, source in late}
            for number, output in enumerate(plan.outputs):  # results that show a value about to be replaced
                if output.input in overwritten:
                    tensors[number] = tensors[number].clone()
            for number, source in late:
                operands[source].copy_(tensors[number])
        finally:
            modes.grad = before
        return tensors

    def deliver(self, outputs: Sequence[Tensor], operands: Sequence[Any]) -> Any:
        """Set gradients, make escaped tensors real, build the result.

        Two tensors share memory exactly where those of the trace did: equal values may have become one buffer of the plan,
        or an input's own, and are copied then.
        """
        owner: dict[int, Memory] = {}
        for number, operand in enumerate(operands):
            if isinstance(operand, Tensor):
                owner.setdefault(id(operand.storage), number)

        def own(number: int, memory: Memory) -> Tensor:
            tensor = outputs[number]
            if isinstance(memory, int):
                operand = operands[memory]
                if operand.layout.with_tracking(False) is tensor.layout.with_tracking(False) and memory in whole:
                    return operand  # the argument itself
            if owner.setdefault(id(tensor.storage), memory) != memory:
                tensor = tensor.clone()
                owner[id(tensor.storage)] = memory
                kept.append(tensor)
            return tensor

        plan_outputs = self.plan.outputs
        updated = dict(self.updates)
        whole = {  # inputs that come back whole: as they were, or with their new value
            memory
            for number, memory in self.results
            if isinstance(memory, int)
            and (updated.get(number) == memory or (plan_outputs[number].input == memory and not
                 plan_outputs[number].strided.offset))
        }  # fmt: skip
        kept: list[Tensor] = []  # alive while ids are compared
        for leaf, grad, memory in self.grads:
            leaf.ensure_state().grad = None if grad is None else own(grad, memory)
        for tensor, number, memory in self.escaped:
            real = own(number, memory)
            tensor.storage, tensor.ptr = real.storage, real.ptr
            tensor.layout = real.layout.with_tracking(tensor.layout.tracked)
            tensor.__dict__.pop("_traced", None)
        return unflatten(self.result_nest, [own(number, memory) for number, memory in self.results])


def _is_released(tensor: Tensor) -> bool:
    node = tensor.node
    return node is None or getattr(node, "saved", ()) is None
