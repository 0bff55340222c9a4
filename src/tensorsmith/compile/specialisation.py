"""Specialisation: a trace that runs: whether it still fits what it is called with, its plan, where its results go."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd.accumulate import dense_like
from tensorsmith.compile.difference import check_agreement
from tensorsmith.compile.nest import unflatten
from tensorsmith.compile.old_gradients import OldGradients, Successor
from tensorsmith.compile.planned import Question, planned
from tensorsmith.compile.saved import record, table_of
from tensorsmith.compile.source_lines import line_of_change
from tensorsmith.compile.trace import Memory, Pinned, RandomConstant, Trace
from tensorsmith.compile.tracer import Effect
from tensorsmith.core.device import CPU
from tensorsmith.core.layout import Layout, layout_of
from tensorsmith.core.views import Strided
from tensorsmith.runtime.plan import Plan
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.storage import storage_type
from tensorsmith.tensor.tensor import Tensor, make_tensor, make_view

_layout_of = operator.attrgetter("layout")


def specialise(
    name: str, function: Callable, arguments: list[Tensor], nest: Any, count: int | None = None, options: Any = None
) -> Specialisation:
    """The function for these arguments. Arguments that it also captures are no arguments then, but captured only."""
    pinned: frozenset[int] = frozenset()
    while True:
        try:
            return Specialisation(name, function, arguments, nest, count, pinned, options)
        except Pinned as found:
            pinned |= found.numbers
        except RandomConstant as problem:  # everything is as it was: run it again, looking
            again = functools.partial(Specialisation, name, function, arguments, nest, count, pinned, options)
            line = line_of_change(problem.moved, again)
            raise RandomConstant(problem.stream, problem.moved, line) from None


class Specialisation(Trace):
    """A trace that runs: the plan is made at the first run."""

    def fits(self, arguments: Sequence[Tensor]) -> bool:
        """Whether what was captured still is as it was traced."""
        return self.unfit(arguments) is None

    def unfit(self, arguments: Sequence[Tensor]) -> str | None:
        """What of that has changed, as kind and description; None where nothing has."""
        captured, layouts = self.captured
        if not all(map(operator.is_, map(_layout_of, captured), layouts)):
            before, after = next((b, t.layout) for t, b in zip(captured, layouts) if t.layout is not b)
            return differing("a captured tensor", before, after)
        if self.lost_state:
            return "the optimiser's state"
        for i, tensor in self.pinned:
            if arguments[i] is not tensor:
                return f"argument {i}, which the function also captures, is another tensor"
        if self.captured_storages and len(self.pinned) < len(arguments):
            kept = {i for i, _ in self.pinned}
            for i, t in enumerate(arguments):
                if id(t.storage) in self.captured_storages and i not in kept:
                    return f"argument {i} shares memory with a captured tensor"
        for optimizer, choices in self.choices:
            if optimizer.choices() != choices:
                return f"the options of {type(optimizer).__name__}"
        for leaf, had in self.had_grad:
            if (leaf.state is not None and leaf.state.grad is not None) != had:
                return "whether a captured leaf has a gradient"
        changed = self.tracer.guards.changed()
        if changed is None or changed.startswith(("module structure", "the mode", "the hooks", "the attributes")):
            return changed
        return f"the Python value {changed}"

    def operands(self, arguments: Sequence[Tensor]) -> list[Any]:
        """The values of the graph's inputs. What changes from run to run is asked for in the order of the function."""
        asked: dict[int, Any] = {}
        for event in self.events:
            if isinstance(event, Effect):
                event.act()
            else:
                asked[id(event)] = event.ask()
        operands: list[Any] = []
        for source in self.tracer.sources:
            if source.tensor is not None:
                operands.append(source.tensor)
            elif source.number is not None:
                operands.append(asked[id(source.number)])
            elif source.region:
                argument = arguments[source.argument]
                assert source.layout is not None
                operands.append(make_tensor(source.layout, argument.storage, argument.ptr))
            else:
                operands.append(arguments[source.argument])
        return operands

    @property
    def is_for_once(self) -> bool:
        """Whether another run would not do what the function does: what it makes is kept, or it changes Python state."""
        return bool(self.escaped) or self.gives_once or self.result_is_new or self.changes is not None

    def run(self, arguments: Sequence[Tensor]) -> Any:
        """Run it. What raises has changed nothing."""
        self.check_leaves(arguments)
        for i, tracked in self.switched:
            arguments[i].requires_grad_(tracked)
        kept = [effect.keep() for effect in self.effects]
        drawn = [(generator, generator.offset) for generator in self.tracer.drawn]
        try:
            operands = self.operands(arguments)
            if not self.runs and self.tracer.lines is not None:
                check_agreement(self.name, self.tracer.graph, self.places, operands, self.left_out, self.tracer.lines)
            if self.gradient is not None and modes.grad:
                outputs = self.recorded(operands)
            else:
                outputs = self.execute(*operands)
        except BaseException:
            for i, tracked in self.switched:
                arguments[i].requires_grad_(not tracked)
            for put_back in reversed(kept):
                put_back()
            for generator, offset in drawn:
                generator.offset = offset
            if not self.runs:
                self.lost_state = self.tracer.forget_state()
                self.abandon()
            raise
        self.runs += 1
        return self.deliver(outputs, operands, arguments)

    def abandon(self) -> None:
        """The first run failed: tensors that escaped from the trace get memory, of zeros, so that they can be looked at."""
        for tensor, _, _ in self.escaped:
            nbytes = tensor.layout.extent * tensor.layout.dtype.itemsize
            tensor.storage = storage_type(tensor.layout.device).zeros(nbytes)
            tensor.ptr = tensor.storage.ptr
            tensor.__dict__.pop("_traced", None)

    def recorded(self, operands: list[Any]) -> Sequence[Tensor]:
        """Run the plan, and record the run for autograd."""
        found = self.execute(*operands)
        if self.recording is None:
            needs = tuple([isinstance(x, Tensor) and x.layout.tracked for x in operands])
            self.recording = needs, self.differentiable, table_of(self.lean, self.plain, needs, self.differentiable)
        record(self.lean, self.plain, *self.recording, operands, found)
        return found

    @functools.cached_property
    def differentiable(self) -> tuple[bool, ...]:
        """Which outputs are results with a gradient."""
        results = {number for (number, _), tracked in zip(self.results, self.tracked) if tracked}
        return tuple(i in results for i in range(len(self.plain.graph.outputs)))

    @functools.cached_property
    def places(self) -> list[Strided | None]:
        """How the graph's inputs lie; None for numbers."""
        return [
            None if source.layout is None else Strided(source.layout.shape, source.layout.strides)
            for source in self.tracer.sources
        ]

    @functools.cached_property
    def plan(self) -> Plan:
        required = {}
        for output, number in self.updates:
            place = self.places[number]
            assert place is not None
            required[output] = place
        device = self.tracer.device or CPU
        if device is not CPU:  # whose kernels write gradients as their leaves lie, at no cost
            for target, gradient, _ in self.grads:
                if isinstance(target, Tensor) and gradient is not None and gradient not in required:
                    wanted = dense_like(target.layout)
                    required[gradient] = Strided(wanted.shape, wanted.strides)
        lasting, stamped = set[int](), set[int]()
        if not any(self.tracked):  # in training, weights are about to change
            replaced = {number for _, number in self.updates}
            trained = {id(target) for target, _, _ in self.grads}
            for number, source in enumerate(self.tracer.sources):
                if source.tensor is not None and number not in replaced and id(source.tensor) not in trained:
                    known = source.tensor.storage.stamp() is not None
                    (stamped if known else lasting).add(number)
        if os.environ.get("TENSORSMITH_DEBUG"):
            from tensorsmith.compile.explain import announce  # what explains programs is made of this module

            announce(self.name, self.tracer.graph, self.places, self.left_out, device)
        verified = self.options is not None and self.options.verify
        question = Question(
            self.tracer.graph, self.places, required, dict(self.updates), lasting, self.left_out, stamped, device
        )
        plan, self.report = planned(question, verified)
        return plan

    @functools.cached_property
    def successors(self) -> list[Successor]:
        """Captured leaves whose gradient a run sets to a new buffer that it writes after it can raise."""
        plan = self.plan
        found: dict[int, Tensor] = {}
        for target, number, _ in self.grads:
            if isinstance(target, Tensor) and number is not None:
                output = plan.outputs[number]
                if output.input is None and output.buffer in plan.written_late:
                    found.setdefault(output.buffer, target)
        return [(leaf, buffer) for buffer, leaf in found.items()]

    def execute(self, *operands: Any) -> list[Tensor]:
        """Run the plan; one tensor per output of the graph."""
        plan = self.plan
        stamps = None
        if plan.prepared is not None:
            stamps = [operands[i].storage.stamp() for i in plan.prepared.inputs]
            if None in stamps:  # lent since the plan was made, which is to compare now, or to keep nothing
                self.__dict__.pop("plan", None)
                self.__dict__.pop("successors", None)
                self.written = None
                return self.execute(*operands)
        old = OldGradients(self.successors, plan.new_bytes)
        try:
            taken, new = old.storages, storage_type(plan.device)
            storages = [taken[k] if k in taken else new(n) for k, n in enumerate(plan.new_bytes)]
            words = [operands[i].ptr for i in plan.tensor_inputs]
            words += [s.ptr for s in storages]
            words += plan.number_words(operands)
            plan.run(words, stamps)
        except BaseException:
            old.put_back()
            raise
        old.let_go()
        written = dict(self.updates)
        tensors = []
        for number, output in enumerate(plan.outputs):
            layout = layout_of(output.dtype, output.strided.shape, output.strided.strides, device=plan.device)
            if number in written:
                operands[written[number]].storage.version += 1
                tensors.append(operands[written[number]])
            elif output.input is not None:
                tensors.append(make_view(operands[output.input], layout, output.strided.offset))
            else:
                storage = storages[output.buffer]
                tensors.append(make_tensor(layout, storage, storage.ptr + output.strided.offset * output.dtype.itemsize))
        return tensors

    def deliver(self, outputs: Sequence[Tensor], operands: Sequence[Any], arguments: Sequence[Tensor]) -> Any:
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
        for target, grad, memory in self.grads:
            leaf = arguments[target] if isinstance(target, int) else target
            leaf.ensure_state().grad = None if grad is None else own(grad, memory)
        for tensor, number, memory in self.escaped:
            if isinstance(memory, int):
                operand = operands[memory]
                tensor.storage, tensor.ptr = operand.storage, operand.ptr + number
                if tensor.base is None:
                    tensor.stamp = operand.storage.version
            else:
                real = own(number, memory)
                tensor.storage, tensor.ptr = real.storage, real.ptr
                tensor.layout = real.layout.with_tracking(tensor.layout.tracked)
            tensor.__dict__.pop("_traced", None)

        def result(place: int) -> Tensor:
            """A result of the function; what shows an input that has a new value is a view of it."""
            number, memory = self.results[place]
            if place not in self.shown or self.tracked[place] or not isinstance(memory, int):
                return own(number, memory)
            operand, (layout, start) = operands[memory], self.shown[place]
            if operand.layout.with_tracking(False) is layout and not start:
                return operand
            view = make_view(operand, layout, 0)
            view.ptr += start
            return view

        return unflatten(self.result_nest, [result(place) for place in range(len(self.results))])


def differing(where: str, before: Layout, after: Layout) -> str:
    """What differs between two layouts, the most telling first."""
    if before.dtype is not after.dtype:
        return f"dtype of {where}: {before.dtype.name}, now {after.dtype.name}"
    if len(before.shape) != len(after.shape):
        return f"rank of {where}: shape {before.shape}, now {after.shape}"
    if before.tracked is not after.tracked:
        return f"requires_grad of {where}: {before.tracked}, now {after.tracked}"
    if before.shape != after.shape:
        return f"shape of {where}: {before.shape}, now {after.shape}"
    return f"strides of {where}: {before.strides}, now {after.strides}"


def distance(a: Layout, b: Layout) -> int:
    """In how many ways two layouts differ."""
    return (a.dtype is not b.dtype) + (len(a.shape) != len(b.shape)) + (a.tracked is not b.tracked) + (a.shape != b.shape)
