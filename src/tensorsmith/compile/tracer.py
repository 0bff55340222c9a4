"""Tracing: run a function once with tensors that have no data, and keep the graph of everything it did.

Operators reach the tracer instead of a launch. Every storage has a *current value* in the graph; a tensor is a view of its
storage's value; a write makes a new current value. So a function full of in-place updates becomes a pure graph, whose last
values of the captured storages are its *updates* (functionalisation). Autograd records as ever: its backward operators are
operators, and land in the same graph.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tensorsmith.autograd.memory import as_array
from tensorsmith.autograd.node import accumulates
from tensorsmith.compile.again import RunsAgain
from tensorsmith.compile.guards import Guards, same
from tensorsmith.compile.nest import flatten
from tensorsmith.compile.printing import listening
from tensorsmith.compile.reach import Reach
from tensorsmith.compile.source_lines import users_frame
from tensorsmith.core import views
from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import Layout, contiguous_strides, layout_of
from tensorsmith.core.memory_format import result_strides
from tensorsmith.core.views import Strided, extent
from tensorsmith.eager import dispatch, fast
from tensorsmith.eager.devices import NAME, device_of
from tensorsmith.eager.entries import elementwise_strides, in_format_of
from tensorsmith.eager.inplace import InplaceOperation, check_operands, recording_entry
from tensorsmith.eager.operator import Kind, Operation, scalar_dtype
from tensorsmith.eager.record import recorder
from tensorsmith.eager.view_history import view_value, written_value
from tensorsmith.ir.build import full
from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, copy_into
from tensorsmith.tensor.modes import modes, traced_by
from tensorsmith.tensor.storage import Storage
from tensorsmith.tensor.tensor import Tensor, unrecorded_origin

_SHARING = VIEWS | {Primitive.AS_REAL, Primitive.AS_COMPLEX}  # what shows memory that exists
_fake_addresses = itertools.count(1 << 60, 1 << 40)


class TraceError(RuntimeError):
    """A function that cannot be traced: the message says what it asked for and what to do."""


class ValueNeeded(TraceError):
    """A function asks for a value that is known only when it runs; `line` is the user's line that does."""

    line: str = ""


class Uninitialized(TraceError):
    """A lazy module is called that has no sizes yet: its first call is made eagerly."""


class TracedStorage(Storage):
    """A storage without memory: its address only serves to tell offsets."""

    __slots__ = ()
    traced = True


@dataclass
class Current:
    """The value of a storage: a node, seen with the geometry of the tensor that owns the data."""

    node: Node
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    ptr: int
    storage: Storage
    writes: int = 0
    owner: Tensor | None = None  # the captured tensor, for storages that existed before


class HostFloat(float):
    """A Python number of a step (a bias correction, a random offset) that is asked for again at each run."""

    kind = float
    ask: Callable[[], float]
    node: Node | None = None  # the graph input, once an operator used the number


class HostInt(int):
    """The same for integers."""

    kind = int
    ask: Callable[[], int]
    node: Node | None = None


@dataclass
class Effect:
    """What a function does to Python state that belongs to a step (a schedule's next epoch): done at every run.

    act: does it; keep: remembers that state, and returns a function that puts it back
    """

    act: Callable[[], Any]
    keep: Callable[[], Callable[[], None]]


@dataclass
class Source:
    """Where a graph input comes from: a captured tensor, a host scalar, an argument or the memory that several share."""

    tensor: Tensor | None = None
    ask: Callable[[], float | int] | None = None
    layout: Layout | None = None
    tracked: bool = False  # of a captured tensor
    argument: int = -1  # the number of an argument; with `region`, of the one that starts the shared memory
    region: bool = False
    number: HostFloat | HostInt | None = None  # what `ask` answers for


@dataclass
class Tracer:
    """The state of one trace."""

    graph: Graph = field(default_factory=Graph)
    device: Device | None = None  # of all its tensors, once one was met
    sources: list[Source] = field(default_factory=list)
    storages: dict[int, Current] = field(default_factory=dict)
    captured: list[tuple[Tensor, Any]] = field(default_factory=list)  # leaves met, with the gradient they had
    made: list[weakref.ref] = field(default_factory=list)
    grad_set: set[int] = field(default_factory=set)  # leaves (by id) whose gradient the function set itself
    drawn: dict[Any, int] = field(default_factory=dict)  # generators, with the offset they had before
    events: list[HostFloat | HostInt | Effect] = field(default_factory=list)  # in the order of the function
    shared: dict[Any, Any] = field(default_factory=dict)  # host numbers by who asks
    went_back: bool = False  # whether the function calls backward()
    undone: bool = False
    rates: dict[int, tuple[Any, list[Any]]] = field(default_factory=dict)  # of optimisers, before the function
    rate_set: Any = None  # an optimiser whose rate the function sets
    notes: dict[Any, Any] = field(default_factory=dict)  # what optimisers remember from one step to the next
    kept: list[Callable[[], None]] = field(default_factory=list)  # put back what effects did while tracing
    optimizers: dict[int, tuple[Any, tuple, dict]] = field(default_factory=dict)  # that step: choices and state before
    stops: bool = False  # whether autograd stopped somewhere, or followed a rule of the user's, on tracked tensors
    guards: Guards = field(default_factory=Guards)  # the Python values that the function read
    runs_again: RunsAgain = field(default_factory=RunsAgain)
    constants: dict[int, Storage] = field(default_factory=dict)  # made inside of Python's data, by id
    refused: ValueNeeded | None = None  # the first error for a value, even if the function caught it
    casts: dict | None = None  # what autocast kept before
    lines: list[tuple[int, str]] | None = None  # from which node on a line of the user made nodes, where asked for
    reach: Reach = field(init=False)  # finds them

    def __post_init__(self) -> None:
        self.reach = Reach(self.guards)

    # --- values -----------------------------------------------------------------------------------------------------

    def current(self, tensor: Tensor) -> Current:
        """The value of a tensor's storage; a storage met for the first time becomes an input."""
        found = self.storages.get(id(tensor.storage))
        if found is None:
            owner = tensor.base if tensor.base is not None else tensor
            layout = owner.layout
            self.on(layout.device)
            node = self.graph.input(layout.shape, layout.dtype)
            self.sources.append(Source(tensor=owner, layout=layout.with_tracking(False), tracked=layout.tracked))
            found = Current(node, layout.shape, layout.strides, owner.ptr, tensor.storage, owner=owner)
            self.storages[id(tensor.storage)] = found
        if found.owner is not None:
            self.note_leaf(tensor)
        return found

    def note_constant(self, made: Tensor, array: Any = None) -> None:
        """The function makes a tensor of Python's data: memory that starts with these values at every run.

        array: whose memory it is, where it shares it; the surroundings' own are captured as tensors are
        """
        if array is None or array not in self.reach:
            self.constants[id(made.storage)] = made.storage

    def is_held(self, current: Current) -> bool:
        """Whether somebody still refers to such a tensor after the function: beside its owner, source and value here."""
        return sys.getrefcount(current.owner) > 3 or sys.getrefcount(current.storage) > 4

    def note_leaf(self, tensor: Tensor) -> None:
        """Remember the gradient a captured leaf had before."""
        if accumulates(tensor) and not any(t is tensor for t, _ in self.captured):
            self.captured.append((tensor, tensor.state.grad if tensor.state is not None else None))

    def note_backward(self) -> None:
        """A backward accumulates into leaves, through the hooks that they have."""
        self.went_back = True

    def note_saved_hooks(self) -> None:
        """What nodes save goes through hooks of the user."""

    def note_requires_grad(self) -> None:
        """A tensor is made a leaf, or no leaf."""

    def note_grad_set(self, tensor: Tensor) -> None:
        """The function sets a gradient: what it was before does not matter to it."""
        if isinstance(tensor.storage, TracedStorage):
            return
        if not any(t is tensor for t, _ in self.captured):
            self.captured.append((tensor, tensor.state.grad if tensor.state is not None else None))
            self.grad_set.add(id(tensor))

    def value(self, tensor: Tensor) -> Node:
        """The node of a tensor now."""
        current = self.current(tensor)
        cached = tensor.__dict__.get("_traced")
        if cached is not None and cached[0] is self and cached[1] == current.writes:
            return cached[2]
        layout = tensor.layout
        same_dtype = layout.dtype is current.node.dtype
        if same_dtype and (layout.shape, layout.strides, tensor.ptr) == (current.shape, current.strides, current.ptr):
            return current.node
        offset = self.offset_in(current, tensor)
        node = view_value(current.node, layout.shape, layout.strides, offset, current.strides, layout.dtype)
        tensor.__dict__["_traced"] = (self, current.writes, node)
        return node

    @staticmethod
    def offset_in(current: Current, tensor: Tensor) -> int:
        """Where a tensor starts in the value of its storage, in elements of its own dtype."""
        layout = tensor.layout
        if not tensor.numel():  # nothing is read or written: an empty slice may start anywhere
            return 0
        known = extent(Strided(current.shape, current.strides)) * current.node.dtype.itemsize
        start = tensor.ptr - current.ptr
        if start < 0 or start + extent(Strided(layout.shape, layout.strides)) * layout.dtype.itemsize > known:
            raise NotImplementedError(
                "compile: two captured tensors share memory, and neither is a view of the other that reaches as far "
                f"({layout.dtype.name}{list(layout.shape)} starts {start} bytes from the first); capture the tensor that "
                "both are parts of"
            )
        return start // layout.dtype.itemsize

    def write(self, tensor: Tensor, node: Node) -> None:
        """Make `node` the value of a tensor, in its storage too."""
        current = self.current(tensor)
        layout = tensor.layout
        same_dtype = layout.dtype is current.node.dtype
        if same_dtype and (layout.shape, layout.strides, tensor.ptr) == (current.shape, current.strides, current.ptr):
            current.node = node
        else:
            offset = self.offset_in(current, tensor)
            current.node = written_value(
                current.node, node, layout.shape, layout.strides, offset, current.strides, layout.dtype
            )
        current.writes += 1

    def argument(self, operand: Any) -> Node:
        """The node of an operand: a tensor's value, or a number as a constant (a host number as an input)."""
        if isinstance(operand, Tensor):
            return self.value(operand)
        if isinstance(operand, HostFloat | HostInt):
            if operand.node is None:  # one input for all uses: the backward of dropout needs the forward's offset
                operand.node = self.graph.input((), scalar_dtype(operand.kind), param=True)
                self.sources.append(Source(ask=operand.ask, number=operand))
            return operand.node
        return self.graph.constant(operand, scalar_dtype(operand.__class__))

    def host(self, ask: Callable[[], Any], key: Any = None) -> Any:
        """A number that changes from run to run: `ask()` gives it, now and at every run.

        key: what asks; it gets the same number again until an effect may have changed it.
        """
        if key is not None:
            if key not in self.shared:
                self.shared[key] = self.host(ask)
            return self.shared[key]
        value = ask()
        found: Any = HostInt(value) if isinstance(value, int) else HostFloat(value)
        found.ask = ask
        self.events.append(found)
        return found

    def effect(self, act: Callable[[], Any], keep: Callable[[], Callable[[], None]]) -> Any:
        """Python state that belongs to the step changes: now, to be put back when the trace ends, and at every run."""
        self.kept.append(keep())
        self.shared.clear()
        self.events.append(Effect(act, keep))
        with traced_by(None):
            return act()

    def later(self, act: Callable[[], Any], tensors: Sequence[Any], what: str) -> None:
        """Something is said: at every run, and not now, for it cannot be taken back. What is said must be known now."""
        for each in flatten(tensors)[0]:
            self.refuse(each, what)
        self.events.append(Effect(act, lambda: _nothing))

    def writes_to(self, tensor: Tensor) -> int:
        """How often the function has written a tensor so far."""
        found = self.storages.get(id(tensor.storage))
        return 0 if found is None else found.writes

    def note_optimizer(self, optimizer: Any) -> None:
        """An optimiser steps: what is traced holds for its choices; the state it makes is let go if the trace fails."""
        if id(optimizer) not in self.optimizers:
            before = {key: dict(state) for key, state in optimizer.state.items()}
            self.optimizers[id(optimizer)] = (optimizer, optimizer.choices(), before)
            self.note_rates(optimizer)

    def note_rates(self, optimizer: Any) -> None:
        """The rates that an optimiser has before the function."""
        self.rates.setdefault(id(optimizer), (optimizer, [group.get("lr") for group in optimizer.param_groups]))

    def draw(self, generator: Any, count: int) -> tuple[Any, Any]:
        """Key and offset of a generator, asked for again at every run; the trace hands back what it draws itself."""
        found = self.runs_again.drawn_before()
        if found is None:
            self.drawn.setdefault(generator, generator.offset)
            found = self.host(lambda: generator.key), self.host(lambda: generator._advance(count))
        return self.runs_again.note(found)

    def noting_draws(self, drawn: list[Any]) -> AbstractContextManager[None]:
        """A part of the function that may be run again; `drawn` collects what it draws."""
        return self.runs_again.noting_draws(drawn)

    def computing_again(self, drawn: Sequence[Any] | None) -> AbstractContextManager[None]:
        """Such a part is run again, for values that were not kept. drawn: what it drew before; None: it draws anew."""
        return self.runs_again.computing_again(self.graph, drawn)

    def call_function(self, function: Any, arguments: Sequence[Any]) -> Any:
        """A custom `autograd.Function` is traced like anything else."""
        self.stops = True
        return NotImplemented

    def note_uninitialized(self, module: Any) -> None:
        """A lazy module is called for the first time."""
        raise Uninitialized(
            f"compile: {type(module).__name__} has no sizes before its first call, at {user_line()}; call it once eagerly"
        )

    def note_module(self, module: Any) -> None:
        """A module is called: what is traced holds for its mode and what it holds now."""
        self.reach.value(type(module).__name__, module)

    # --- operators --------------------------------------------------------------------------------------------------

    def on(self, device: Device, said: bool = True) -> None:
        """A tensor of the function is on a device (`said`: not only because none was named).

        Errors: NotImplementedError for a second device.
        """
        if self.device is None:
            self.device = device if said else None
        elif said and device is not self.device:
            raise NotImplementedError(
                f"compile: a function whose tensors are on {self.device} and on {device}, at {user_line()}: a plan runs on one "
                "device; move tensors before the call"
            )

    def kinds(self, operands: Sequence[Any]) -> list[Kind]:
        return [x.kind if isinstance(x, HostFloat | HostInt) else dispatch.kind_of(x) for x in operands]

    def call(self, operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Add an operator to the graph; results are tensors without data."""
        kinds = self.kinds(operands)
        self.on(device_of(operation.name, kinds, attrs), any(isinstance(k, Layout) for k in kinds) or NAME in attrs)
        program = operation.program(kinds, attrs)

        def run(*given: Any) -> Any:
            if self.lines is not None:
                self.lines.append((len(self.graph.nodes), user_line()))
            mapping = copy_into(self.graph, program.graph, self.runs_again.operands([self.argument(x) for x in given]))
            results = [
                self.wrap(operation, number, node, mapping, given, kinds) for number, node in enumerate(program.graph.outputs)
            ]
            return results[0] if len(results) == 1 else tuple(results)

        needs = tuple([isinstance(k, Layout) and k.tracked for k in kinds])
        if not modes.grad:
            self.stops = self.stops or any(needs)
            return run(*operands)
        differentiable = tuple(node.dtype.kind in "fc" for node in program.graph.outputs)
        if not any(needs) or not any(differentiable):
            return run(*operands)
        return recorder(program, run, needs, differentiable)(*operands)

    def call_inplace(self, operation: InplaceOperation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Add an in-place operator: its results become the values of the tensors it writes."""
        kinds = self.kinds(operands)
        check_operands(operation, kinds, attrs)
        program = operation.program(kinds, attrs)

        def write(given: Sequence[Any]) -> None:
            if self.lines is not None:
                self.lines.append((len(self.graph.nodes), user_line()))
            mapping = copy_into(self.graph, program.graph, self.runs_again.operands([self.argument(x) for x in given]))
            for node, i in zip(program.graph.outputs, operation.writes):
                self.write(given[i], mapping[node])

        return recording_entry(operation, kinds, attrs, write, modes.grad)(*operands)

    def wrap(
        self, operation: Operation, number: int, node: Node, mapping: dict[Node, Node], operands: Sequence[Any],
        kinds: Sequence[Kind],
    ) -> Tensor:  # fmt: skip
        """The tensor of a result: a view of an operand where eager execution makes one, else of new memory."""
        value = mapping[node]
        base, chain = node, []
        while base.op in _SHARING:
            chain.append(base)
            base = base.inputs[0]
        chain.reverse()
        layouts = [k for k in kinds if isinstance(k, Layout)]
        if operation.keeps_format is not None and layouts:
            dense = result_strides(operation.keeps_format(layouts), node.shape)
            return self.tensor(value, node, Strided(node.shape, dense), None)
        if number in operation.orders:
            return self.tensor(value, node, in_format_of(kinds[operation.orders[number]], node.shape), None)
        if not operation.pointwise and not operation.fresh:
            if base.op is Primitive.INPUT and not base.attrs["param"]:
                source = operands[base.attrs["number"]]
                seen = _follow(Strided(source.layout.shape, source.layout.strides), chain)
                if seen is not None:
                    return self.tensor(value, node, seen, source)
            elif base.op not in (Primitive.CONST, Primitive.IOTA, Primitive.INPUT):
                seen = _follow(Strided(base.shape, contiguous_strides(base.shape)), chain)
                if seen is not None:
                    root = self.tensor(mapping[base], base, Strided(base.shape, contiguous_strides(base.shape)), None)
                    return root if base is node else self.detached(self.tensor(value, node, seen, root))
        strides = elementwise_strides(node.shape, layouts) if operation.pointwise else contiguous_strides(node.shape)
        return self.tensor(value, node, Strided(node.shape, strides), None)

    def detached(self, tensor: Tensor) -> Tensor:
        """A tensor that shares memory with another result, but is no view to autograd."""
        tensor.base = None
        tensor.layout = tensor.layout.with_tracking(False)
        return tensor

    def tensor(self, value: Node, node: Node, seen: Strided, source: Tensor | None) -> Tensor:
        result = Tensor.__new__(Tensor)
        result.layout = layout_of(node.dtype, seen.shape, seen.strides, device=self.device or CPU)
        result.node = None
        result.output_number = 0
        result.state = None
        if source is None:
            ptr = next(_fake_addresses)
            storage = TracedStorage.foreign(ptr, 0, None)
            result.storage, result.ptr, result.base = storage, ptr, None
            self.storages[id(storage)] = Current(value, seen.shape, seen.strides, ptr, storage)
        else:
            result.storage = source.storage
            result.ptr = source.ptr + seen.offset * node.dtype.itemsize
            result.base, result.origin = (source, None) if source.base is None else (source.base, source.origin)
            result.base.viewed = True
            if not modes.grad:
                result.origin = unrecorded_origin()
                if result.base.layout.tracked and node.dtype.kind in "fc":
                    result.layout = result.layout.with_tracking(True)
            result.stamp = source.storage.version
            result.__dict__["_traced"] = (self, self.storages[id(source.storage)].writes, value)
        self.made.append(weakref.ref(result))
        return result

    def blank(self, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None, device: Device = CPU) -> Tensor:
        """A tensor that the function makes and then writes; it starts as zeros."""
        self.on(device)
        node = full(self.graph, shape, 0, dtype)
        return self.tensor(node, node, Strided(shape, strides or contiguous_strides(shape)), None)

    # --- what cannot be traced --------------------------------------------------------------------------------------

    def refuse(self, tensor: Tensor, what: str) -> None:
        """Raise where the value of a traced tensor is asked for; tensors that exist outside the trace may be read."""
        current = self.storages.get(id(tensor.storage))
        if current is None or (current.owner is not None and not current.writes):
            here = as_array(tensor) if tensor.layout.device is CPU else None  # a device's values are copied at every call
            get = (lambda: as_array(tensor)) if here is None else (lambda: here)
            self.guards.array(get, f"of a {tensor.layout.dtype.name}{list(tensor.layout.shape)} that it reads")
            return
        self.give_up(what)

    def give_up(self, what: str) -> NoReturn:
        """Raise for something that cannot be done before the program runs."""
        problem = ValueNeeded(
            f"compile: {what} needs the value of a tensor while the function is traced, at {user_line()}\n"
            "Ways out: choose between values with ts.where(condition, a, b); choose between computations with "
            "ts.cond(condition, f, g, operands), repeat one with ts.while_loop(condition, body, carried); or let such calls "
            "run eagerly, with a notice: ts.compile(f, allow_breaks=True)."
        )
        problem.line = user_line()
        self.refused = self.refused or problem
        raise problem

    def hides(self, tensor: Tensor) -> bool:
        """Whether there are no values to print."""
        return True

    def detach(self, tensor: Tensor) -> Tensor:
        """An untracked tensor over the same storage."""
        self.stops = self.stops or tensor.layout.tracked
        value = self.value(tensor)
        result = Tensor.__new__(Tensor)
        result.layout = tensor.layout.with_tracking(False)
        result.storage, result.ptr = tensor.storage, tensor.ptr
        result.node, result.output_number, result.base, result.state = None, 0, None, None
        result.__dict__["_traced"] = (self, self.current(tensor).writes, value)
        self.made.append(weakref.ref(result))
        return result

    def undo(self) -> None:
        """Give back what the trace changed of tensors that existed before: it computed nothing and wrote nothing."""
        if self.undone:
            return
        self.undone = True
        for leaf, before in self.captured:
            if leaf.state is not None:
                leaf.state.grad = before
            if self.went_back:
                self.guards.ask(functools.partial(_hooks_of, leaf), f"hooks of a leaf, {list(leaf.layout.shape)}")
        self.captured.clear()  # which keeps the gradients of then
        for current in self.storages.values():
            if current.owner is not None and current.writes:
                current.storage.version -= current.writes
        for generator, offset in self.drawn.items():
            generator.offset = offset
        for put_back in reversed(self.kept):
            put_back()
        self.kept.clear()
        for optimizer, rates in self.rates.values():
            for group, rate in zip(optimizer.param_groups, rates):
                if not same(group.get("lr"), rate):
                    group["lr"], self.rate_set = rate, optimizer

    def forget_state(self) -> bool:
        """Let go of optimiser state that was made by a trace, or a first run, that failed; whether there was some."""
        found = False
        for optimizer, _, before in self.optimizers.values():
            for key in list(optimizer.state):
                if key not in before:
                    found = found or bool(optimizer.state[key])
                    del optimizer.state[key]
                else:
                    found = found or optimizer.state[key].keys() != before[key].keys()
                    optimizer.state[key] = before[key]
        return found

    # --- running ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Tracer:
        if modes.tracer is not None:
            raise TraceError("compile: a compiled function is already being traced in this thread")
        fast.start_tracing()
        modes.tracer = self
        if modes.casts is not None:  # casts of weights are part of the graph: none are taken from outside, or left there
            self.casts, modes.casts = modes.casts, {}
        listening.start()
        return self

    def __exit__(self, *exc: object) -> None:
        listening.stop()
        modes.tracer = None
        modes.casts = self.casts
        fast.stop_tracing()


def tracing(tracer: Any) -> Tracer | None:
    """Who traces for `ts.compile` where `tracer` sees the calls of a thread, a function transform in between or not."""
    while tracer is not None and not isinstance(tracer, Tracer):
        tracer = getattr(tracer, "before", None)
    return tracer


def _hooks_of(leaf: Tensor) -> tuple[int, ...]:
    """The numbers of the hooks on a leaf's gradient."""
    state = leaf.state
    if state is None or not (state.hooks or state.post_hooks):
        return ()
    found = (*(state.hooks or ()), -1, *(state.post_hooks or ()))
    return _numbers.setdefault(found, found)  # one object, so that it is compared quickly


_numbers: dict[tuple[int, ...], tuple[int, ...]] = {}


def _nothing() -> None:
    """Puts nothing back."""


def user_line() -> str:
    """The user's line that is running, as `file:line: text`."""
    frame = users_frame()
    if frame is None:
        return "an unknown line"
    return f"{frame.filename}:{frame.lineno}: {frame.line or ''}".rstrip(": ")


def _follow(start: Strided, chain: Sequence[Node]) -> Strided | None:
    """Strides after a chain of views; None where they cannot be expressed, or would run backwards."""
    seen: Strided | None = start
    for view in chain:
        assert seen is not None
        seen = views.RULES[view.op.value](seen, view.attrs)
        if seen is None or any(s < 0 for s in seen.strides):
            return None
    return seen
