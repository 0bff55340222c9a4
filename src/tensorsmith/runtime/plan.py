"""Plan: a graph made executable for given input layouts, as a list of native launches and library calls.

The words of one run are, in this order: addresses of the tensor inputs, addresses of the new outputs, the run-time
scalars (a complex one as its two parts); then, where there are such, the addresses of the values that were prepared, of the
workspace that holds all temporaries, and of what steps compare from run to run. Each step names its words by number and byte
offset, so a run is one native call over a fixed table; a plan of a single kernel is a single launch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided, as_complex, as_real, extent
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive, replay
from tensorsmith.kernels.assemble import Kernel, assemble_copy
from tensorsmith.passes.complex_pairs import lower_pairs
from tensorsmith.passes.fusion import Fusion, fuse
from tensorsmith.passes.lasting import Part as LastingPart, split_lasting
from tensorsmith.passes.layout import TO_FIRST, TO_LAST
from tensorsmith.passes.reductions import prepare_reductions
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime import profiler
from tensorsmith.runtime.arena import Arena, Part
from tensorsmith.runtime.checked_steps import in_safe_order, index_check, separate_updates
from tensorsmith.runtime.kept import ALIGN, Compared, Maker, Prepared
from tensorsmith.runtime.requests import (
    LONG_WORK,
    KernelStep,
    PythonStep,
    Request,
    Step,
    array_at,
    buffer_bytes,
)
from tensorsmith.runtime.target import Target, target_of
from tensorsmith.targets.cpu import launch as launching
from tensorsmith.targets.cpu.recipe import RELEASE_GIL, Given, NativePlan, Recipe, decode_error
from tensorsmith.targets.cpu.traced_launch import launch_traced


@dataclass(frozen=True)
class Output:
    """Where a result lies: in new memory (input None) or in the memory of input number `input`."""

    strided: Strided
    dtype: Any
    input: int | None
    buffer: int = -1  # number among the new buffers


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of a plan beside its inputs, and what was saved."""

    temporaries: int  # touched of the block that holds all temporaries, which the allocator hands out again at every run
    bound: int  # what temporaries are alive at the fullest step: no placement needs less
    without_reuse: int  # all temporaries side by side
    results: int  # new tensors
    kept: int  # from run to run
    in_place: int  # updates written straight over the old value
    at_the_end: int  # updates kept apart until nothing can fail any more
    reused: int  # results of kernels in the memory of an operand

    @property
    def peak(self) -> int:
        """Bytes that a run needs beside its arguments and what the function captures."""
        return self.temporaries + self.results + self.kept

    def __str__(self) -> str:
        share = f"{self.temporaries / self.bound:.2f} of the bound of {self.bound:,}" if self.bound else "none needed"
        return (
            f"temporaries {self.temporaries:,} bytes ({share}; {self.without_reuse:,} side by side), results {self.results:,}, "
            f"kept {self.kept:,}\nupdates in place {self.in_place}, at the end {self.at_the_end}; "
            f"results in the memory of an operand {self.reused}"
        )


@dataclass
class Plan:
    """An executable graph. `run(words)` takes the words listed above up to the run-time scalars."""

    graph: Graph  # with the copies that the steps turned out to need, and of complex numbers on pairs of real ones
    places: list[Strided | None]  # how that graph's inputs lie
    tensor_inputs: list[int]
    params: list[int]
    outputs: list[Output]
    new_bytes: list[int]
    workspace_bytes: int
    steps: list[Step]
    single: Recipe | None = None
    native: list[NativePlan | PythonStep] = field(default_factory=list)
    native_first: list[int] = field(default_factory=list)
    name: str = ""  # of the operation it belongs to, for the profiler
    compared: Compared | None = None  # what steps keep from run to run, beside a copy of what it is made of
    prepared: Prepared | None = None  # what is made of lasting inputs once
    memory: MemoryReport | None = None
    written_late: frozenset[int] = frozenset()  # new buffers that no step writes until the last that may raise has run
    complex_params: frozenset[int] = frozenset()  # arguments that are complex run-time scalars, of two words each
    device: Device = CPU  # where inputs, results and temporaries are
    replays: Any = None  # of a plan on a CUDA device, where it may run as a graph
    replays_of_parts: dict[int, Any] = field(default_factory=dict)  # the same of steps in a row, by the first of them

    @property
    def target(self) -> Target:
        """The target it was made for."""
        return target_of(self.device)

    def number_words(self, operands: Sequence[Any]) -> list[Any]:
        """The words of the run-time scalars among the operands: of a complex number its real and its imaginary part."""
        if not self.complex_params:
            return [operands[i] for i in self.params]
        words: list[Any] = []
        for i in self.params:
            words += (operands[i].real, operands[i].imag) if i in self.complex_params else (operands[i],)
        return words

    def run(self, words: Sequence[int | float], stamps: Sequence[object | None] | None = None) -> None:
        """Run every step; an error of a kernel is raised as the exception its step names.

        stamps: for every input of `prepared` what differs after every write of it; None where there is no such thing, or for
            all, has the values made anew.
        """
        if self.prepared is not None:
            words = (*words, self.prepared.ready(words, stamps))
        if self.workspace_bytes:
            target = self.target
            free = target.free_list(self.workspace_bytes)
            workspace = target.allocate(self.workspace_bytes)
            try:
                if self.compared is None:
                    self._run((*words, workspace))
                else:
                    with self.compared.taken() as compared:
                        self._run((*words, workspace, compared))
            except OverflowError:
                raise self.overflow(words) from None
            finally:
                free.append(workspace)
            return
        try:
            self._run(words)
        except OverflowError:
            raise self.overflow(words) from None

    def _run(self, words: Sequence[int | float]) -> None:
        if profiler.active:
            self._run_profiled(words)
            return
        if self.replays is not None and self.replays.run(words):
            return
        if self.single is not None:
            code = launching.launch(self.single.address, *words)
            if code is not None:
                self.fail(0, code, words)
            return
        for first, part in zip(self.native_first, self.native):
            if isinstance(part, PythonStep):
                part.run(words)
            elif first not in self.replays_of_parts or not self.replays_of_parts[first].run(words):
                code = launching.launch_many(part.address, *words)
                if code is not None:
                    step, code = decode_error(code)
                    self.fail(first + step, code, words)

    def _run_profiled(self, words: Sequence[int | float]) -> None:
        """Step by step, each timed."""
        began = profiler.clock()
        for number, step in enumerate(self.steps):
            name = step.name if not self.name else self.name if len(self.steps) == 1 else f"{self.name}: {step.name}"
            start = profiler.clock()
            if isinstance(step, PythonStep):
                step.run(words)
            else:
                given = [words[w] + o if o else words[w] for w, o in step.sources]
                if profiler.follows_workers() and self.device is CPU:
                    code, worked = launch_traced(step.recipe, given)
                    profiler.worked(name, worked)
                else:
                    code = launching.launch(step.recipe.address, *given)
                if code is not None:
                    self.fail(number, code, words)
                if self.device is not CPU:
                    self.target.wait()
            profiler.record(name, profiler.clock() - start, step.bytes_moved, step.flops)
        profiler.ran(self.name or "compiled program", began)

    def fail(self, step: int, code: int, words: Sequence[int | float]) -> None:
        """Raise the exception for an error code of a step in a run over `words`."""
        found = self.steps[step]
        assert isinstance(found, KernelStep)
        raise found.error(code, [int(words[w]) + o for w, o in found.sources])

    def overflow(self, words: Sequence[int | float]) -> OverflowError:
        """The error for a run whose words include an int of more than 64 bits."""
        found = next((w for w in words if isinstance(w, int) and not -(1 << 63) <= w < 1 << 63), "given")
        return OverflowError(f"{self.name or 'plan'}: the int {found} does not fit into 64 bits")

    def describe(self) -> str:
        """Steps as text."""
        return "\n".join(f"{number}: {step.describe()}" for number, step in enumerate(self.steps)) or "(views only)"


def requests_of(fusion: Fusion, group: Group, device: Device = CPU) -> list[Request]:
    """The steps of a group before their buffers have addresses."""
    return target_of(device).requests(fusion, group)


class _Builder:
    """Places buffers and collects steps."""

    def __init__(
        self, graph: Graph, inputs: Mapping[Node, Strided], outputs: Mapping[Node, Strided], updates: Mapping[Node, Node],
        left_out: Collection[str] = (), prepared: Mapping[Node, int] | None = None, device: Device = CPU,
    ) -> None:  # fmt: skip
        """prepared: inputs whose memory the plan has, with their offsets in it."""
        self.graph = graph
        self.device = device
        self.target = target_of(device)
        self.left_out = left_out
        self.prepared_at = prepared or {}
        self.updates = updates
        self.written_over: dict[Node, Node] = {}
        self.fusion: Fusion = fuse(
            graph, inputs, outputs, self.target.library, "fusion" not in left_out, self.target.halves, self.target.places,
            self.target.repeats,
        )
        self.steps: list[Step] = []
        self.tensor_inputs = [n for n in graph.inputs if not n.attrs["param"] and n not in self.prepared_at]
        self.params = [n for n in graph.inputs if n.attrs["param"]]
        places = self.fusion.output_places()
        self.new = list(dict.fromkeys(n for n, _ in places if n.op is not Primitive.INPUT and n not in updates))
        self.word_of: dict[Node, int] = {}
        words = 0
        for node in self.tensor_inputs + self.new + self.params:
            self.word_of[node] = words
            words += 2 if node.dtype.is_complex and node.attrs.get("param") else 1
        self.position = {node: i for i, node in enumerate(self.new)}
        self.prepared_word = words
        self.workspace_word = words + (1 if self.prepared_at else 0)
        self.arena = Arena("reuse" not in left_out, self.target.align)
        self.part_of: dict[Node, Part] = {}
        self.last_use: dict[Node, int] = {}
        self.last_failing = -1
        self.taken_over: list[Part] = []
        self.reused = 0  # results that lie in the memory of a temporary
        self.kept_at: dict[Node, int] = {}
        self.kept_bytes = 0

    def build(self) -> Plan:
        groups, front, checks, self.last_failing = in_safe_order(
            self.fusion, self.updates, self.target.groups(self.fusion)
        )  # fmt: skip
        if not self.target.checks_first:
            checks, self.last_failing = [], -1
        for number, group in enumerate(groups):
            for node in (*group.leaves, *group.roots):
                self.last_use[node] = number
        shown = {base for base, _ in self.fusion.output_places()}
        placed: list[tuple[Request, Part | None]] = []
        written: list[Sequence[Node]] = []  # by each of them

        def place(request: Request, number: int, writes: Sequence[Node] = ()) -> None:
            scratch = None
            if request.scratch_bytes:
                scratch = self.arena.take(request.scratch_bytes - request.untouched, number, request.untouched)
                self.arena.give(scratch, number)
            placed.append((request, scratch))
            written.append(writes)

        for number, group in enumerate(groups):
            if number == front:
                for anchor in checks:
                    place(index_check(self.fusion, anchor), number)
            made = [] if all(node.numel == 0 for node in group.roots) else self.target.requests(self.fusion, group)
            if group.anchor is None and made and not group.parts:
                self.write_over_inputs(number, made[0].kernel, shown)
                self.write_over_temporaries(number, made[0].kernel)
            for node in group.roots:
                if node.attrs.get("kept"):
                    self.keep(node)
                elif node not in self.word_of and node not in self.part_of:
                    self.part_of[node] = self.arena.take(buffer_bytes(node, self.fusion.place(node)), number)
            for request in made:
                place(request, number, group.roots)
        end = len(groups)
        for root, target in self.updates.items():
            if root not in self.written_over and root.numel:
                self.last_use[root] = end
                place(self.commit(root, target), end, (target,))
        for node, part in self.part_of.items():
            part.last = max(part.last, self.last_use[node])
        for number, group in enumerate(groups):
            for node in group.roots:
                if node in self.position:
                    nbytes = buffer_bytes(node, self.fusion.place(node))
                    self.arena.lend(node, nbytes, self.last_failing + 1, number - 1)
        self.arena.solve(end)
        self.target.prepare([request for request, _ in placed])
        for request, scratch in placed:
            sources = [self.source(word, offset, scratch) for word, offset in request.words]
            self.steps.append(request.step(sources))
        new_bytes = [buffer_bytes(n, self.fusion.place(n)) for n in self.new]
        late = {root for group in groups[self.last_failing + 1 :] for root in group.roots}
        plan = Plan(
            graph=self.graph,
            places=[self.fusion.inputs.get(n) for n in self.graph.inputs],
            tensor_inputs=[n.attrs["number"] for n in self.tensor_inputs],
            params=[n.attrs["number"] for n in self.params],
            outputs=[
                self.output(node, base, seen)
                for node, (base, seen) in zip(self.graph.outputs, self.fusion.output_places())
            ],
            new_bytes=new_bytes,
            workspace_bytes=self.arena.extent,
            steps=self.steps,
            compared=Compared(self.kept_bytes) if self.kept_bytes else None,
            written_late=frozenset(k for k, node in enumerate(self.new) if node in late),
            complex_params=frozenset(n.attrs["number"] for n in self.params if n.dtype.is_complex),
            device=self.device,
            memory=MemoryReport(
                self.arena.peak, self.arena.bound, self.arena.total, sum(new_bytes), self.kept_bytes, len(self.written_over),
                len(self.updates) - len(self.written_over), self.reused,
            ),
        )  # fmt: skip
        assert self.arena.peak or not self.kept_bytes, "what reads kept values has a workspace"
        self.target.finish(plan, lambda: [self.access(*each, writes) for each, writes in zip(placed, written)])
        link(plan, self.workspace_word + (1 if self.arena.peak else 0) + (1 if self.kept_bytes else 0))
        return plan

    def access(self, request: Request, scratch: Part | None, writes: Sequence[Node]) -> tuple[list[Any], list[Any]]:
        """What a step reads and what it writes: word, first byte, end."""
        found: tuple[list[Any], list[Any]] = [], []
        for node, _ in request.words:
            if node is None:
                word, start = self.within(scratch, 0) if scratch is not None else (self.workspace_word, 0)
                found[1].append((word, start, start + (scratch.size if scratch is not None else 0)))
            elif not node.attrs.get("param"):
                word, start = self.source(node, 0, scratch)
                place = (word, start, start + buffer_bytes(node, self.fusion.place(node)))
                found[any(node is each for each in writes)].append(place)
        return found

    def commit(self, root: Node, target: Node) -> Request:
        """The step that writes a new value, kept apart until now, over the input it replaces."""
        if root.dtype.is_complex and self.device is CPU:
            seen, where = self.fusion.place(root), self.fusion.place(target)

            def call(addresses: Sequence[Any]) -> None:
                array_at(addresses[1], where, root.dtype)[...] = array_at(addresses[0], seen, root.dtype)

            return Request([(root, 0), (target, 0)], lambda sources: PythonStep("copy", sources, call))
        return self.target.kernel_request(assemble_copy(self.fusion, root, Group([target]), self.fusion.place(target)))

    def keep(self, node: Node) -> None:
        """Give the weights of a convolution memory that lasts from run to run, beside a copy of what they are made of."""
        from tensorsmith.targets.cpu.winograd_plan import kept_bytes

        self.kept_at[node] = self.kept_bytes
        needed = kept_bytes(node.attrs["outputs"], node.shape[1], node.shape[2], node.dtype.itemsize)
        self.kept_bytes += -(-needed // ALIGN) * ALIGN

    def write_over_inputs(self, number: int, kernel: Kernel, shown: Collection[Node]) -> None:
        """Let results that replace an input be written straight over it, where nobody reads the old value after that.

        Safe where no later step may raise, no later step and no output reads the input, and this kernel reads it only at the
        point it writes.
        """
        spec = kernel.spec
        if number <= self.last_failing or "in-place" in self.left_out or spec.reduce_axis is not None:
            return
        for (root, offset), store in zip(kernel.writes, spec.stores):
            target = self.updates.get(root)
            if target is None or self.last_use.get(target, -1) > number or target in shown:
                continue
            reads = [(o.strides, r.offset) for o, r in zip(spec.inputs, kernel.reads) if r.node is target]
            if any(read != (store.operand.strides, offset) for read in reads):
                continue
            self.written_over[root] = target
            self.word_of[root] = self.word_of[target]

    def write_over_temporaries(self, number: int, kernel: Kernel) -> None:
        """Let a result take the memory of a temporary that this kernel is the last to read, at the point it writes."""
        spec = kernel.spec
        if spec.reduce_axis is not None or "reuse" in self.left_out:
            return
        for (root, offset), store in zip(kernel.writes, spec.stores):
            if root in self.word_of or root in self.part_of or root.attrs.get("kept"):
                continue
            for read in kernel.reads:
                part = self.part_of.get(read.node)
                last = self.last_use[read.node] == number and read.node not in self.updates  # those are read at the end
                if part is None or not last or part in self.taken_over:
                    continue
                fits = read.node.numel == root.numel and read.node.dtype.itemsize == root.dtype.itemsize
                fits = fits and extent(self.fusion.place(read.node)) == extent(self.fusion.place(root))
                same = [(o.strides, r.offset) for o, r in zip(spec.inputs, kernel.reads) if r.node is read.node]
                if fits and all(place == (store.operand.strides, offset) for place in same):
                    self.part_of[root] = part
                    self.taken_over.append(part)
                    self.reused += 1
                    break
        self.taken_over.clear()

    def source(self, node: Node | None, offset: int, scratch: Part | None) -> tuple[int, int]:
        """Word number and byte offset of a buffer; None stands for the scratch space of the step.

        The words of a run-time scalar are counted from its first by `offset`.
        """
        if node is None:
            return self.within(scratch, offset) if scratch is not None else (self.workspace_word, offset)
        if node.attrs.get("param"):
            return self.word_of[node] + offset, 0
        if node in self.word_of:
            return self.word_of[node], offset
        if node in self.prepared_at:
            return self.prepared_word, self.prepared_at[node] + offset
        if node in self.kept_at:
            return self.workspace_word + 1, self.kept_at[node] + offset
        return self.within(self.part_of[node], offset)

    def within(self, part: Part, offset: int) -> tuple[int, int]:
        """Word number and byte offset of a place in a part of the block, or of a result that lends its memory."""
        return self.workspace_word if part.owner is None else self.word_of[part.owner], part.offset + offset

    def output(self, node: Node, base: Node, seen: Strided) -> Output:
        if base.op is Primitive.INPUT:
            return Output(seen, node.dtype, base.attrs["number"])
        if base in self.updates:
            return Output(seen, node.dtype, self.updates[base].attrs["number"])
        return Output(seen, node.dtype, None, self.position[base])


def link(plan: Plan, words: int) -> None:
    """Join native steps to native plans; a plan of one kernel in the order of the words becomes a single launch."""
    steps = plan.steps
    if len(steps) == 1 and isinstance(steps[0], KernelStep):
        if steps[0].sources == [(i, 0) for i in range(words)]:
            plan.single = steps[0].recipe
            return
    run: list[KernelStep] = []
    for number, step in enumerate((*steps, None)):
        if isinstance(step, KernelStep):
            run.append(step)
            continue
        if run:
            long = any(s.bytes_moved >= LONG_WORK for s in run)
            table = [(s.recipe, [Given(w, o) for w, o in s.sources]) for s in run]
            plan.native_first.append(number - len(run))
            plan.native.append(NativePlan(table, words, (), RELEASE_GIL if long else 0))
            run = []
        if step is not None:
            plan.native_first.append(number)
            plan.native.append(step)


def build_plan(
    graph: Graph, inputs: Sequence[Strided | None], outputs: Mapping[int, Strided] | None = None,
    updates: Mapping[int, int] | None = None, lasting: Collection[int] = (), left_out: Collection[str] = (),
    stamped: Collection[int] = (), device: Device = CPU,
) -> Plan:  # fmt: skip
    """The plan of a graph whose tensor inputs lie as given (None for run-time scalars).

    outputs: strides that output number k must be written with; the others are the plan's choice (contiguous, or a view).
    updates: output k replaces input updates[k], which its Output then names; where a run raises, no input is replaced.
    lasting: inputs that seldom change from run to run, of which the plan may keep what it made beside a copy of them.
    stamped: inputs that seldom change, of which `Plan.run` is told when they did: what is made of them alone is prepared.
    left_out: what planning does without: "fusion", "in-place", "reuse" (`passes/manager.py`).
    device: where the inputs are, and the results will be.
    """
    if not target_of(device).keeps:
        lasting = stamped = ()
    lowered = lower_pairs(graph, outputs or ())
    if lowered is not None:
        return _plan_of_pairs(graph, lowered, inputs, outputs or {}, updates or {}, left_out, device)
    return _plan(graph, inputs, outputs or {}, updates or {}, lasting, left_out, stamped, device)


def _plan(
    graph: Graph, inputs: Sequence[Strided | None], outputs: Mapping[int, Strided], updates: Mapping[int, int],
    lasting: Collection[int] = (), left_out: Collection[str] = (), stamped: Collection[int] = (), device: Device = CPU,
) -> Plan:  # fmt: skip
    apart = {k for k, seen in enumerate(inputs) if seen is not None and seen.strides[-1:] != (1,)}
    graph = target_of(device).lowered_graph(graph, apart, lasting, stamped, "fusion" not in left_out)
    graph = separate_updates(prepare_reductions(graph, target_of(device).splits_reductions), updates)
    for _ in range(2 * len(graph.nodes) + 2):
        rest, parts, origin = split_lasting(graph, stamped)
        try:
            return _with_prepared(rest, parts, inputs, outputs, updates, left_out, device)
        except NeedsBuffer as need:  # a step cannot read an operand as it lies
            graph = _with_copy(graph, origin.get(need.node, need.node), need.last)
    raise AssertionError(f"planning does not end: a step asks for ever another copy in\n{graph}")


def _built(
    graph: Graph, inputs: Sequence[Strided | None], outputs: Mapping[int, Strided], updates: Mapping[int, int],
    left_out: Collection[str], prepared: Mapping[Node, int] | None = None, device: Device = CPU,
) -> Plan:  # fmt: skip
    placed = {node: seen for node, seen in zip(graph.inputs, inputs) if seen is not None}
    required = {graph.outputs[k]: seen for k, seen in outputs.items()}
    replaced = {graph.outputs[k]: graph.inputs[i] for k, i in updates.items()}
    return _Builder(graph, placed, required, replaced, left_out, prepared, device).build()


def _with_prepared(
    graph: Graph, parts: Sequence[LastingPart], inputs: Sequence[Strided | None], outputs: Mapping[int, Strided],
    updates: Mapping[int, int], left_out: Collection[str], device: Device = CPU,
) -> Plan:  # fmt: skip
    """The plan of a graph whose last inputs are what the parts make of the others."""
    if not parts:
        return _built(graph, inputs, outputs, updates, left_out, device=device)
    numbers = tuple(sorted({number for part in parts for number in part.inputs}))
    makers, nbytes, prepared = [], 0, {}
    for part in parts:
        plan = _part_plan(part.graph, [inputs[number] for number in part.inputs], left_out)
        offsets = []
        for made, size in zip(part.made, plan.new_bytes, strict=True):
            prepared[graph.inputs[len(inputs) + made]] = nbytes
            offsets.append(nbytes)
            nbytes += -(-size // ALIGN) * ALIGN
        makers.append(Maker([numbers.index(number) for number in part.inputs], offsets, plan))
    kept = [graph.inputs[number].shape for number in range(len(inputs), len(graph.inputs))]
    places = [*inputs, *(Strided(shape, contiguous_strides(shape)) for shape in kept)]
    plan = _built(graph, places, outputs, updates, left_out, prepared)
    plan.prepared = Prepared(numbers, [plan.tensor_inputs.index(number) for number in numbers], makers, nbytes)
    assert plan.memory is not None
    plan.memory = replace(plan.memory, kept=plan.memory.kept + nbytes)
    return plan


def _part_plan(graph: Graph, inputs: Sequence[Strided | None], left_out: Collection[str]) -> Plan:
    """The plan that makes kept values, each in a buffer of its own."""
    while True:
        try:
            plan = _built(graph, inputs, {}, {}, left_out)
        except NeedsBuffer as need:
            graph = _with_copy(graph, need.node)
            continue
        plan.name = "prepare"
        assert [output.buffer for output in plan.outputs] == list(range(len(plan.new_bytes)))
        return plan


def _plan_of_pairs(
    graph: Graph, lowered: Graph, inputs: Sequence[Strided | None], outputs: Mapping[int, Strided],
    updates: Mapping[int, int], left_out: Collection[str] = (), device: Device = CPU,
) -> Plan:  # fmt: skip
    """The plan of a complex graph through the same graph on pairs; inputs are counted, and outputs are complex, as before."""
    is_complex = [node.dtype.is_complex for node in graph.outputs]
    number_of: list[int] = []  # of the input before, for every input of the lowered graph
    places: list[Strided | None] = []
    for number, (node, place) in enumerate(zip(graph.inputs, inputs)):
        count = 2 if place is None and node.dtype.is_complex else 1
        number_of += [number] * count
        places += [as_real(place) if place is not None and node.dtype.is_complex else place] * count
    required = {k: as_real(seen) if is_complex[k] else seen for k, seen in outputs.items()}
    replaced = {k: number_of.index(i) for k, i in updates.items()}
    while True:
        plan = _plan(lowered, places, required, replaced, left_out=left_out, device=device)
        seen = [as_complex(o.strided) if pairs else o.strided for pairs, o in zip(is_complex, plan.outputs)]
        apart = [k for k, place in enumerate(seen) if place is None]
        if not apart:
            break
        for k in apart:  # seen as pairs that do not lie side by side: they are written anew
            shape = (*graph.outputs[k].shape, 2)
            required[k] = Strided(shape, contiguous_strides(shape))
            if plan.outputs[k].input is not None:  # an operand as it lies
                lowered = _with_copy(lowered, lowered.outputs[k])
    plan.outputs = [
        replace(o, strided=place, dtype=node.dtype, input=None if o.input is None else number_of[o.input])
        for node, place, o in zip(graph.outputs, seen, plan.outputs)
        if place is not None
    ]
    plan.tensor_inputs = [number_of[i] for i in plan.tensor_inputs]
    plan.params = list(dict.fromkeys(number_of[i] for i in plan.params))
    plan.complex_params = frozenset(i for i in plan.params if graph.inputs[i].dtype.is_complex)
    return plan


def _with_copy(graph: Graph, node: Node, last: bool = False) -> Graph:
    """The same graph with a copy of one value: every reader reads a contiguous new buffer instead.

    last: of an image, whose channels lie side by side in the buffer.
    """
    copied = graph.empty()
    arguments = [copied.input(n.shape, n.dtype, n.attrs["param"]) for n in graph.inputs]
    mapping: dict[Node, Node] = {}
    for old in graph.live_nodes():
        if old.op is Primitive.INPUT:
            new = arguments[old.attrs["number"]]
        else:
            new = replay(copied, old, [mapping[x] for x in old.inputs])
        mapping[old] = new
        if old is node:
            lying = build.permute(new, TO_LAST) if last else new
            lying = copied.add(Primitive.CAST, (lying,), dtype=new.dtype)
            mapping[old] = build.permute(lying, TO_FIRST) if last else lying
    copied.outputs = tuple(mapping[node] for node in graph.outputs)
    return copied
