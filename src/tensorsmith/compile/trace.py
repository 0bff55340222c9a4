"""One trace of a function for one kind of arguments, and what it decides: the outputs of the graph.

They are results, new values of captured storages (updates), gradients of captured leaves, and tensors that escaped into the
surroundings.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorsmith.compile.gradient import TracedGradient, traced_gradient
from tensorsmith.compile.nest import flatten, hashable, is_made_anew, objects, unflatten
from tensorsmith.compile.traced_program import TracedOperation
from tensorsmith.compile.tracer import Current, Effect, Source, TracedStorage, TraceError, Tracer
from tensorsmith.core.layout import layout_of
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.ir.vjp import Saved
from tensorsmith.passes.manager import off
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor, make_tensor

Memory = int | tuple[str, int]


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


class Trace:
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
            if modes.casts is not None:
                modes.casts.clear()  # of weights, which autocast around the function kept for it
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
        tracer.on(tensor.layout.device)
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
        layout = layout_of(dtype, (length,), device=tensors[0].layout.device)
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
        # What the function steps, or whose gradient it sets, is no other leaf than the argument.
        touched = {id(leaf.storage) for leaf, _ in tracer.captured}
        touched |= {id(p.storage) for o, *_ in tracer.optimizers.values() for group in o.param_groups for p in group["params"]}
        both = {i for storage, i in storages.items() if storage in tracer.storages or storage in touched}
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
        self.lean = TracedOperation(self.name, graph, rule, stops, left_out).program((), {})
        self.plain = TracedOperation(self.name, plain, rule.from_inputs(), stops, left_out).program((), {})

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

    @property
    def left_out(self) -> frozenset[str]:
        """The passes that do not run."""
        return off() if self.options is None else off(self.options.disable, self.options.enable)


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
