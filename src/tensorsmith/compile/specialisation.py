"""Specialisation: one traced function for one kind of arguments, and how it runs.

Tracing decides the outputs of the graph: results, new values of captured storages (updates), gradients of captured leaves, and
tensors that escaped into the surroundings. Running executes the plan and puts each of them where it belongs.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import operator
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorsmith.compile.difference import check_agreement
from tensorsmith.compile.gradient import TracedGradient, traced_gradient
from tensorsmith.compile.nest import flatten, hashable, is_made_anew, objects, unflatten
from tensorsmith.compile.old_gradients import OldGradients, Successor
from tensorsmith.compile.planned import Question, planned
from tensorsmith.compile.saved import record, table_of
from tensorsmith.compile.source_lines import line_of_change
from tensorsmith.compile.tracer import Current, Effect, Source, TracedStorage, TraceError, Tracer
from tensorsmith.core.layout import Layout, layout_of
from tensorsmith.core.views import Strided
from tensorsmith.eager.operator import BackwardOperator, Operation, Program
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.ir.vjp import Saved
from tensorsmith.passes.manager import off, optimise
from tensorsmith.runtime.plan import Plan
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.storage import Storage
from tensorsmith.tensor.tensor import Tensor, make_tensor, make_view

Memory = int | tuple[str, int]
_layout_of = operator.attrgetter("layout")


class _TracedProgram(Program):
    """A traced function as a program. Its gradient's graph no longer says where autograd stopped, or followed another rule."""

    __slots__ = ()

    def simplified(self, graph: Graph) -> Graph:
        return optimise(graph, self.operation.left_out)[0]

    def backward(self, needs: tuple[bool, ...], grads: tuple[bool, ...]) -> BackwardOperator:
        saves_nothing = not self.operation.rule.saved
        if saves_nothing and self.operation.rule.replaced:
            raise NotImplementedError(
                f"compile: the second derivative of {self.operation.name}, which writes over an input whose old value its "
                "gradient needs; return what it becomes instead of writing it"
            )
        found = super().backward(needs, (*grads, *(False for _ in self.graph.outputs[len(grads) :])))  # of what is saved
        if saves_nothing and self.operation.stops:
            found.override = _refuse_second  # type: ignore[method-assign]
        return found


def _refuse_second(attrs: dict[str, Any]) -> Any:
    raise NotImplementedError(
        "compile: the second derivative of a compiled function that uses detach(), no_grad or an autograd.Function on tracked "
        "tensors; take the inner gradient inside the compiled function"
    )


class _Traced(Operation):
    """A traced function as an operation, so that a forward function is differentiated like any operator.

    rule: its gradient, for runs of the function with what that saves as further outputs, or without
    """

    def __init__(self, name: str, graph: Graph, rule: TracedGradient, stops: bool, left_out: frozenset[str]) -> None:
        self.name = name
        self.rule = rule
        self.stops = stops
        self.left_out = left_out
        self._program = _TracedProgram(self, graph, {}, f"Compiled{name.title()}Backward")

    def program(self, kinds: Sequence[Any], attrs: dict[str, Any]) -> Program:
        return self._program

    def override(self, attrs: dict[str, Any]) -> Any:
        return self.rule


@contextmanager
def _older_objects_left_alone() -> Iterator[None]:
    """Let collections look at objects that are made meanwhile only: what is let go of a trace is looked for among those.

    Where somebody has frozen objects for good, they stay so.
    """
    mine = gc.get_freeze_count() == 0
    if mine:
        gc.freeze()
    try:
        yield
    finally:
        if mine:
            gc.unfreeze()


class Pinned(Exception):
    """Raised after a trace: these arguments share memory with tensors that the function captured."""

    def __init__(self, numbers: frozenset[int]) -> None:
        self.numbers = numbers


class RandomConstant(TraceError):
    """Raised after a trace: the function drew numbers that are not ours, which would be constants."""

    def __init__(self, stream: str, moved: Callable[[], bool], line: str = "") -> None:
        super().__init__(
            f"compile: the function draws random numbers from {stream}{line and ', at '}{line}; they would be drawn once, "
            "while it is traced.\n"
            "Ways out: draw with ts.rand, ts.randint or ts.randn; or draw outside of the function, and pass it a tensor."
        )
        self.stream, self.moved = stream, moved


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


class Specialisation:
    """One traced function for one kind of arguments.

    count:  how many of the arguments the nest has; the others are gradients that leaves among them have
    pinned: arguments that are captured as they are
    """

    def __init__(
        self, name: str, function: Callable, arguments: list[Tensor], nest: Any, count: int | None = None,
        pinned: frozenset[int] = frozenset(), options: Any = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.options = options
        self.tracer = tracer = Tracer(Graph(interning="cse" not in self.left_out))
        self.pinned = [(i, arguments[i]) for i in sorted(pinned)]
        if options is not None and options.verify:
            tracer.lines = []
        self.had: dict[int, Tensor | None] = {}  # gradients that leaves among the arguments have, by the leaf's stand-in
        self.gives_once = False  # whether its first run completes something that the trace made and somebody keeps
        self.result_is_new = False  # whether the result holds an object that eager execution would make anew at every call
        self.numbers: dict[int, int] = {}  # the graph input that is a traced storage (by id)
        count = len(arguments) if count is None else count
        tracer.reach.function(function)
        for each in objects(nest):
            tracer.reach.value("an argument", each)
        for optimizer in tracer.reach.optimizers:
            tracer.note_rates(optimizer)
        stand_ins = self.stand_ins_of(arguments, pinned)
        with _older_objects_left_alone(), tracer:
            try:
                self.lend_gradients(arguments, stand_ins, count)
                results = self.trace(function, nest, stand_ins[:count])
                self.collect(arguments, stand_ins, results)
                if tracer.rate_set is not None:
                    raise NotImplementedError(
                        f"compile: the function sets the rate of {type(tracer.rate_set).__name__}; use a schedule of "
                        "ts.optim.lr_scheduler, whose step() is a part of the program, or set it outside of the function"
                    )
            except BaseException:
                tracer.undo()
                tracer.forget_state()
                tracer.guards.put_back()
                raise
            while results:  # let go of the recorded graph: real results take their place
                results.pop().node = None
            self.let_go(stand_ins)
            stand_ins.clear()
            self.had = dict.fromkeys(self.had)
            self.escaped = self.find_escaped()
        self.changes = tracer.guards.changed()  # what the function itself changes of what it depends on
        self.events = [e for e in tracer.events if isinstance(e, Effect) or e.node is not None]
        self.effects = [e for e in self.events if isinstance(e, Effect)]
        self.recording: tuple[tuple[bool, ...], tuple[bool, ...], tuple[Saved, ...]] | None = None  # needs, outputs, table
        if self.gradient is not None:
            self.save_for(self.gradient)
        self.choices = [(optimizer, choices) for optimizer, choices, _ in tracer.optimizers.values()]
        tensors = [(s.tensor, s.layout.with_tracking(s.tracked)) for s in tracer.sources if s.tensor is not None and s.layout]
        self.captured = [tensor for tensor, _ in tensors], [layout for _, layout in tensors]
        self.captured_storages = {id(s.tensor.storage) for s in tracer.sources if s.tensor is not None}
        self.runs = 0
        self.lost_state = False  # whether it refers to optimiser state that went with its first run, which failed
        self.written: Any = None  # how its calls are written out; () where they are not
        self.used = 0  # when it was used last, by the count of its compiled function

    def trace(self, function: Callable, nest: Any, stand_ins: list[Tensor]) -> list[Tensor]:
        """Run the function once; the tensors of its result."""
        args, kwargs = unflatten(nest, stand_ins)
        grad = modes.grad
        try:
            result = function(*args, **kwargs)
        finally:
            left, modes.grad = modes.grad, grad
        if self.tracer.refused is not None:  # the function went on after an error that was meant for its author
            raise self.tracer.refused
        if left is not grad:
            raise TraceError(
                f"compile: the function leaves gradient recording switched {'on' if left else 'off'}, which would happen only "
                "while it is traced; use `with ts.set_grad_enabled(...)`, or set it outside of the function"
            )
        moved = self.tracer.guards.drawn()
        if moved is not None:
            raise RandomConstant(*moved)
        tensors, self.result_nest = flatten(result, "result")
        self.check_containers(nest, (args, kwargs), stand_ins)
        known = {id(each) for each in objects(nest)}
        self.result_is_new = any(
            is_made_anew(each) and id(each) not in known and each not in self.tracer.reach for each in objects(self.result_nest)
        )
        return tensors

    @staticmethod
    def check_containers(nest: Any, given: Any, stand_ins: list[Tensor]) -> None:
        """The function saw copies of the lists and dicts that it was given: what it puts into them would be lost."""
        tensors, after = flatten(given)
        try:
            same = hashable(after) == hashable(nest)
        except TypeError:
            same = str(after) == str(nest)
        if not same or len(tensors) != len(stand_ins) or any(a is not b for a, b in zip(tensors, stand_ins)):
            raise NotImplementedError(
                "compile: the function puts something into, or takes something out of, a list, dict or dataclass among its "
                "arguments; return the new container instead, or let the function capture it"
            )

    def find_escaped(self) -> list[tuple[Tensor, int, Memory]]:
        """Traced tensors that somebody still holds (a list of results, say): the first run makes them real.

        With each goes the output that it is, or, where it shows an input, how many bytes from that input's start. By now
        nothing of the trace refers to a traced tensor.
        """

        def alive() -> list[Tensor]:
            return [t for t in (ref() for ref in self.tracer.made) if t is not None and isinstance(t.storage, TracedStorage)]

        if alive():
            gc.collect()
        outputs = list(self.tracer.graph.outputs)
        found: list[tuple[Tensor, int, Memory]] = []
        for tensor in alive():
            memory = self.memory_of(tensor)
            if isinstance(memory, int):
                found.append((tensor, tensor.ptr - self.tracer.current(tensor).ptr, memory))
            else:
                found.append((tensor, self.output(self.tracer.value(tensor), outputs), memory))
        for current in self.tracer.storages.values():
            if id(current.storage) in self.tracer.constants and current.writes and self.tracer.is_held(current):
                outputs.append(current.node)
                self.updates.append((len(outputs) - 1, self.numbers[id(current.storage)]))
                self.gives_once = True
        self.tracer.graph.outputs = tuple(outputs)
        return found

    def stand_ins_of(self, arguments: list[Tensor], pinned: frozenset[int]) -> list[Tensor]:
        """Tensors without data in the arguments' places; those that share memory are views of one input."""
        sharing: dict[int, list[int]] = {}
        for i, tensor in enumerate(arguments):
            if i not in pinned:
                sharing.setdefault(id(tensor.storage), []).append(i)
        found: dict[int, Tensor] = {i: arguments[i] for i in pinned}
        for numbers in sharing.values():
            tensors = [arguments[i] for i in numbers]
            first = tensors[0]
            place = (first.ptr, first.layout.with_tracking(False))
            if modes.grad and any(t is not first and (t.layout.tracked or first.layout.tracked) for t in tensors):
                raise NotImplementedError(
                    "compile: arguments that share memory and are tracked by autograd (numbers "
                    f"{', '.join(map(str, numbers))}); give the function one of them, or detach() them"
                )
            if all((t.ptr, t.layout.with_tracking(False)) == place for t in tensors):
                root, start = self.stand_in(first, Source(layout=place[1], argument=numbers[0])), first.ptr
                made = {id(first): root}
            else:
                root, start = self.region(tensors, numbers)
                made = {}
            for i, tensor in zip(numbers, tensors):
                if id(tensor) not in made:
                    made[id(tensor)] = self.part(root, tensor, start)
                found[i] = made[id(tensor)]
        return [found[i] for i in range(len(arguments))]

    def stand_in(self, tensor: Tensor, source: Source) -> Tensor:
        """A tensor without data over a new graph input; it is the same leaf to autograd."""
        tracer = self.tracer
        node = tracer.graph.input(tensor.layout.shape, tensor.layout.dtype)
        result = tracer.tensor(node, node, Strided(tensor.layout.shape, tensor.layout.strides), None)
        result.layout = tensor.layout
        self.numbers[id(result.storage)] = len(tracer.sources)
        tracer.sources.append(source)
        return result

    def region(self, tensors: list[Tensor], numbers: list[int]) -> tuple[Tensor, int]:
        """The memory that several arguments lie in, as a vector, and where it starts."""
        dtype = tensors[0].layout.dtype
        if any(t.layout.dtype is not dtype for t in tensors):
            raise NotImplementedError(
                "compile: arguments of different dtypes that share memory: "
                + ", ".join(f"argument {i} is {t.layout.dtype.name}" for i, t in zip(numbers, tensors))
            )
        first = min(range(len(tensors)), key=lambda k: tensors[k].ptr)
        start = tensors[first].ptr
        length = max((t.ptr - start) // dtype.itemsize + t.layout.extent for t in tensors)
        layout = layout_of(dtype, (length,))
        source = Source(layout=layout, argument=numbers[first], region=True)
        return self.stand_in(make_tensor(layout, tensors[first].storage, start), source), start

    def part(self, root: Tensor, tensor: Tensor, start: int) -> Tensor:
        """The stand-in of an argument in memory that others share, which starts at `start`."""
        result = make_tensor(tensor.layout, root.storage, root.ptr + tensor.ptr - start)
        self.tracer.made.append(weakref.ref(result))
        return result

    def lend_gradients(self, arguments: list[Tensor], stand_ins: list[Tensor], count: int) -> None:
        """Leaves among the arguments have the gradients that they have; `had` remembers them."""
        self.had = {}
        given = iter(stand_ins[count:])
        for argument, stand_in in zip(arguments[:count], stand_ins):
            if has_gradient(argument):
                grad = next(given)
                if argument is not stand_in:
                    stand_in.ensure_state().grad = grad
                    self.had[id(stand_in)] = grad

    def let_go(self, stand_ins: list[Tensor]) -> None:
        for stand_in in stand_ins:
            if isinstance(stand_in.storage, TracedStorage):
                stand_in.state = None

    def collect(self, arguments: list[Tensor], stand_ins: list[Tensor], results: list[Tensor]) -> None:
        """Decide the outputs of the graph: results, new values of captured storages, gradients."""
        tracer = self.tracer
        graph = tracer.graph
        outputs: list[Node] = []
        for tensor in results:  # a captured tensor that the function only returns is an input now
            tracer.value(tensor)
        for number, source in enumerate(tracer.sources):
            if source.tensor is not None:
                self.numbers[id(source.tensor.storage)] = number
        storages = {id(t.storage): i for i, t in enumerate(arguments) if arguments[i] is not stand_ins[i]}
        both = {i for storage, i in storages.items() if storage in tracer.storages}
        if both:
            shared = {id(arguments[i].storage) for i in both}
            raise Pinned(frozenset(i for i, t in enumerate(arguments) if id(t.storage) in shared))
        self.results = [(self.output(tracer.value(t), outputs), self.memory_of(t)) for t in results]
        self.tracked = [t.layout.tracked and not _is_released(t) for t in results]
        self.updates: list[tuple[int, int]] = []  # (output, input)
        for current in list(tracer.storages.values()):
            source_number = self.input_of(current)
            if current.writes and source_number is not None and current.node is not graph.inputs[source_number]:
                if any(node is current.node and k in dict(self.updates) for k, node in enumerate(outputs)):
                    outputs.append(current.node)  # the new value of two inputs
                    self.updates.append((len(outputs) - 1, source_number))
                else:
                    self.updates.append((self.output(current.node, outputs), source_number))
        replaced = {source_number for _, source_number in self.updates}
        self.shown = {  # results that show the new value of an input: their layout, and where they start in bytes
            place: (t.layout.with_tracking(False), t.ptr - tracer.current(t).ptr)
            for place, (t, (_, memory)) in enumerate(zip(results, self.results)) if memory in replaced
        }  # fmt: skip
        self.grads: list[tuple[Tensor | int, int | None, Memory]] = []  # an int is the number of an argument
        for leaf, target, before in self.leaves(stand_ins):
            grad = leaf.state.grad if leaf.state is not None else None
            if grad is before:
                continue
            if grad is None:
                self.grads.append((target, None, -1))
            elif isinstance(grad.storage, TracedStorage):
                self.grads.append((target, self.output(tracer.value(grad), outputs), self.memory_of(grad)))
        self.had_grad = [(leaf, before is not None) for leaf, before in tracer.captured if id(leaf) not in tracer.grad_set]
        self.check_leaves(arguments)
        self.switched = [  # arguments that the function makes leaves, or stops tracking
            (i, stand_in.layout.tracked)
            for i, (argument, stand_in) in enumerate(zip(arguments, stand_ins))
            if stand_in is not argument and stand_in.node is None and stand_in.base is None and argument.node is None
            and stand_in.layout.tracked is not argument.layout.tracked
        ]  # fmt: skip
        graph.outputs = tuple(outputs)
        self.gradient = None
        if any(self.tracked) and modes.grad:
            differentiable: dict[int, Tensor] = {}
            for tensor, (number, _), tracked in zip(results, self.results, self.tracked):
                if tracked:
                    differentiable.setdefault(number, tensor)
            self.gradient = traced_gradient(tracer, differentiable, stand_ins, replaced)
        tracer.undo()

    def save_for(self, rule: TracedGradient) -> None:
        """Make what the gradient reads further outputs of the graph, behind all others."""
        graph = self.tracer.graph
        plain = graph.with_outputs(graph.outputs)
        saved = [
            graph.add(Primitive.CAST, (node,), dtype=node.dtype) if node.op is Primitive.INPUT else node  # a copy
            for node in rule.values
        ]
        graph.outputs = (*graph.outputs, *saved)
        stops, left_out = self.tracer.stops, self.left_out
        self.lean = _Traced(self.name, graph, rule, stops, left_out).program((), {})
        self.plain = _Traced(self.name, plain, rule.from_inputs(), stops, left_out).program((), {})

    def memory_of(self, tensor: Tensor) -> Memory:
        """Whose memory a tensor of the trace is: an input's (its number), or a storage made by the trace."""
        source = self.input_of(self.tracer.current(tensor))
        return source if source is not None else ("made", id(tensor.storage))

    def leaves(self, stand_ins: list[Tensor]) -> list[tuple[Tensor, Tensor | int, Tensor | None]]:
        """Leaves that the function may have given a gradient: as traced, as known when it runs, the gradient before."""
        found: list[tuple[Tensor, Tensor | int, Tensor | None]] = [
            (leaf, leaf, before) for leaf, before in self.tracer.captured if not isinstance(leaf.storage, TracedStorage)
        ]
        seen = set()
        for i, stand_in in enumerate(stand_ins):
            if isinstance(stand_in.storage, TracedStorage) and id(stand_in) not in seen:
                seen.add(id(stand_in))
                found.append((stand_in, i, self.had.get(id(stand_in))))
        return found

    def check_leaves(self, arguments: Sequence[Tensor]) -> None:
        """A gradient for an argument that is computed from other tensors would have to flow on from there."""
        for target, _, _ in self.grads:
            if isinstance(target, int) and arguments[target].node is not None:
                raise NotImplementedError(
                    f"compile: backward() inside the function reaches argument {target}, which was computed outside of it; "
                    "give the function a leaf, or return ts.autograd.grad(...) with respect to the argument"
                )

    def input_of(self, current: Current) -> int | None:
        """The graph input whose memory a storage is; None for storages made by the trace."""
        if id(current.storage) in self.tracer.constants:
            return None
        return self.numbers.get(id(current.storage))

    @staticmethod
    def output(node: Node, outputs: list[Node]) -> int:
        for i, known in enumerate(outputs):
            if known is node:
                return i
        outputs.append(node)
        return len(outputs) - 1

    # --- running ----------------------------------------------------------------------------------------------------

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
            tensor.storage = Storage(nbytes)
            tensor.ptr = tensor.storage.ptr
            ctypes.memset(tensor.ptr, 0, nbytes)
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

    @property
    def left_out(self) -> frozenset[str]:
        """The passes that do not run."""
        return off() if self.options is None else off(self.options.disable, self.options.enable)

    @functools.cached_property
    def plan(self) -> Plan:
        required = {}
        for output, number in self.updates:
            place = self.places[number]
            assert place is not None
            required[output] = place
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

            announce(self.name, self.tracer.graph, self.places, self.left_out)
        verified = self.options is not None and self.options.verify
        question = Question(self.tracer.graph, self.places, required, dict(self.updates), lasting, self.left_out, stamped)
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
            taken = old.storages
            storages = [taken[k] if k in taken else Storage(n) for k, n in enumerate(plan.new_bytes)]
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
            layout = layout_of(output.dtype, output.strided.shape, output.strided.strides)
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


def _is_released(tensor: Tensor) -> bool:
    """Whether a backward() inside the function has freed what a gradient of the tensor needs, anywhere below it."""
    if tensor.node is None:
        return True
    seen, waiting = {tensor.node}, [tensor.node]
    while waiting:
        node = waiting.pop()
        if getattr(node, "saved", ()) is None:
            return True
        for below, _ in filter(None, node.edges):
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return False


def has_gradient(tensor: Tensor) -> bool:
    """Whether an argument is a leaf with a gradient, which a backward() inside the function adds to."""
    return tensor.layout.tracked and tensor.node is None and tensor.state is not None and tensor.state.grad is not None


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
