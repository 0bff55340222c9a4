"""The plan of a graph as `explain` shows it: its groups with their steps, and for every value in memory the reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, base_of, format_node
from tensorsmith.kernels.joint import JointSpec
from tensorsmith.kernels.spec import KernelSpec
from tensorsmith.passes.complex_pairs import lower_pairs
from tensorsmith.passes.convolutions import lower_convolutions
from tensorsmith.passes.fusion import Fusion, fuse
from tensorsmith.passes.pooling import lower_pooling
from tensorsmith.passes.products import split_products
from tensorsmith.passes.reductions import prepare_reductions
from tensorsmith.passes.walk import LARGEST_BODY, Group, NeedsBuffer, Walk, inlined_inputs
from tensorsmith.runtime.plan import Plan, build_plan
from tensorsmith.runtime.requests import KernelStep, Request
from tensorsmith.runtime.target import target_of
from tensorsmith.targets.cuda.kernel import Launch, Lowered


@dataclass(frozen=True)
class ExplainedStep:
    """One step of a plan. spec, loops and llvm are None where the step has none (a library call, a matrix product).

    nodes: what an anchor computes, as nodes of the graph
    """

    title: str
    nodes: str
    spec: KernelSpec | JointSpec | None
    loops: str | None
    llvm: str | None
    launches: tuple[Launch, ...] = ()  # of a step on a CUDA device

    @property
    def cuda(self) -> str:
        """The CUDA C++ text, or why there is none."""
        if self.launches:
            return "\n\n".join(dict.fromkeys(launch.source.strip() for launch in self.launches))
        if self.spec is None:
            return "(only fused kernels have a CUDA rendering so far)"
        from tensorsmith.targets.cuda.joint import lower_joint
        from tensorsmith.targets.cuda.lower import lower

        try:
            launches = (lower(self.spec) if isinstance(self.spec, KernelSpec) else lower_joint(self.spec)).launches
        except NotImplementedError as missing:
            return f"(no CUDA rendering: {missing})"
        return "\n\n".join(launch.source.rstrip() for launch in launches)


@dataclass(frozen=True)
class ExplainedGroup:
    """One group of the plan: the values it writes, those it computes on the way, those it reads, and its steps.

    apart: of sums over the rows of another kernel, why that does not compute them
    """

    roots: tuple[Node, ...]
    inside: frozenset[Node]
    leaves: tuple[Node, ...]
    steps: tuple[ExplainedStep, ...]
    apart: str = ""

    def text(self) -> str:
        """The group as lines: what it writes, how many operations it fuses, what it reads."""
        fused = sum(node.op not in VIEWS for node in self.inside.difference(self.roots))
        names = ", ".join(step.title.split(" (")[0] for step in self.steps)
        lines = [f"{names}: writes {_values(self.roots)}, reads {_values(self.leaves) or 'nothing'}"]
        if fused:
            inner = sorted((n for n in self.inside.difference(self.roots) if n.op not in VIEWS), key=lambda n: n.index)
            lines.append("    computed on the way: " + ", ".join(f"%{n.index} {_name(n)}" for n in inner))
        if self.apart:
            lines.append(f"    no part of the kernel along these rows: {self.apart}")
        return "\n".join(lines)


@dataclass
class ExplainedPlan:
    """A plan with the decisions that led to it. refusals: values in memory that fusion did not want there, and why."""

    plan: Plan
    fusion: Fusion
    groups: list[ExplainedGroup] = field(default_factory=list)
    refusals: list[tuple[Node, str]] = field(default_factory=list)

    @property
    def steps(self) -> list[ExplainedStep]:
        """All steps, in the order they run."""
        return [step for group in self.groups for step in group.steps]

    def text(self) -> str:
        """Groups and refusals as text."""
        if not self.groups:
            return "nothing to run, the results are views"
        lines = [f"group {number}: {group.text()}" for number, group in enumerate(self.groups, 1)]
        if self.refusals:
            lines += ["in memory between kernels:"]
            lines += [f"    %{n.index} {_name(n)} {n.dtype.name}{list(n.shape)}: {why}" for n, why in self.refusals]
        return "\n".join(lines)


def explained_plan(
    graph: Graph, inputs: Sequence[Strided | None], left_out: Collection[str] = (), device: Device = CPU
) -> ExplainedPlan:
    """The plan that runs a graph over inputs that lie as given, with its decisions. left_out: as in `build_plan`."""
    plan, target = build_plan(graph, inputs, left_out=left_out, device=device), target_of(device)
    settled = plan.graph
    placed = {node: seen for node, seen in zip(settled.inputs, plan.places) if seen is not None}
    fusion = fuse(settled, placed, {}, target.library, "fusion" not in left_out, target.halves, target.places,
                  target.repeats)  # fmt: skip
    found = ExplainedPlan(plan, fusion)
    groups = target.groups(fusion)
    for group in groups:
        if all(node.numel == 0 for node in group.roots):
            continue
        anchor = group.anchor
        nodes = [] if anchor is None else [anchor, *(root for root in group.roots if root is not anchor)]
        shown = "\n".join(f"  {node!r}" for node in nodes)
        steps = tuple(_explained(request, shown) for request in target.requests(fusion, group))
        inside = frozenset({*group.visited, *group.roots, *([anchor] if anchor is not None else [])})
        leaves = tuple(sorted(group.leaves, key=lambda node: node.index))
        found.groups.append(ExplainedGroup(tuple(group.roots), inside, leaves, steps, group.apart))
    found.refusals = refusals(fusion, groups)
    return found


def prepared(graph: Graph) -> list[str]:
    """What the planner's passes make of a graph, a line each."""
    lines = []
    for name, run in (
        ("complex numbers as pairs", lambda graph: lower_pairs(graph, ()) or graph),
        ("pooling", lower_pooling), ("convolutions without a kernel", lower_convolutions),
        ("deep products in parts", split_products),
        ("reductions of kernels", prepare_reductions),
    ):  # fmt: skip
        after = run(graph)
        before, now = len(graph.live_nodes()), len(after.live_nodes())
        lines.append(f"{name}: {f'{before} values became {now}' if str(after) != str(graph) else 'nothing to do'}")
        graph = after
    return lines


def explain_steps(graph: Graph, inputs: Sequence[Strided | None]) -> list[ExplainedStep]:
    """The steps of the plan that runs a graph over inputs that lie as given."""
    return explained_plan(graph, inputs).steps


def _explained(request: Request, nodes: str) -> ExplainedStep:
    step = request.step([(0, 0)] * len(request.words))
    if not isinstance(step, KernelStep):
        return ExplainedStep(f"{step.name}, by {step.how}", nodes, None, None, None)
    spec = request.kernel.spec if request.kernel is not None else None
    if request.lowered is not None:
        return _on_device(step, request.lowered, nodes, spec)
    lowered = step.kernel
    schedule = getattr(lowered, "schedule", None) or getattr(lowered, "method", None)
    facts = [
        *([f"schedule {schedule}"] if schedule else []),
        f"{step.recipe.chunks} chunk{'s' if step.recipe.chunks != 1 else ''}",
        f"{step.bytes_moved:,} bytes",
        f"{step.flops:,} operations",
    ]
    loops, llvm = getattr(lowered, "loops", None), getattr(lowered, "text", None)
    return ExplainedStep(f"{step.name} ({', '.join(facts)})", nodes, spec, loops, llvm)


def _on_device(step: KernelStep, lowered: Lowered, nodes: str, spec: KernelSpec | JointSpec | None) -> ExplainedStep:
    """A step of a CUDA device: its launches."""
    shapes = [f"{each.name} {_times(each.grid)} x {_times(each.block)} threads" for each in lowered.launches]
    facts = [*dict.fromkeys(shapes), f"{step.bytes_moved:,} bytes", f"{step.flops:,} operations"]
    return ExplainedStep(f"{step.name} ({', '.join(facts)})", nodes, spec, None, None, lowered.launches)


def _times(extents: tuple[int, ...]) -> str:
    used = extents[: max((i for i, n in enumerate(extents) if n > 1), default=0) + 1]
    return "(" + " x ".join(map(str, used)) + ")"


# --- why a value is in memory --------------------------------------------------------------------------------------------


def refusals(fusion: Fusion, groups: Sequence[Group]) -> list[tuple[Node, str]]:
    """Values between kernels that lie in memory, each with the reason that it was not computed where it is read."""
    results = {base_of(node) for node in fusion.graph.outputs} | set(fusion.graph.outputs)
    roots = {root for group in groups for root in group.roots}
    found = []
    for node in fusion.nodes:
        if node in roots and node in fusion.materialised and node.op is not Primitive.INPUT and node not in results:
            found.append((node, reason(fusion, node)))
    return found


def reason(fusion: Fusion, node: Node) -> str:
    """Why one value has memory of its own."""
    writer = next(group for group in fusion.groups if any(root is node for root in group.roots))
    if writer.anchor is not None:
        return f"{writer.anchor.op.value} is a step of its own and writes its result"
    readers = [group for group in fusion.groups if node in group.leaves]
    for group in readers:
        if group.anchor is not None and not any(base_of(x) is node for x in inlined_inputs(group.anchor)):
            return f"{group.anchor.op.value} reads its operands from memory"
    without = fusion.materialised - {node}
    for group in readers:
        refused = _refused(fusion, group, without)
        if refused:
            return refused
    if len(readers) > 1:
        return f"{len(readers)} kernels would each compute it"
    return "its kernel and its reader's do not walk the same points"


def _refused(fusion: Fusion, group: Group, materialised: set[Node]) -> str:
    """What stops a kernel from computing a value on the way; "" where nothing does."""
    for root in group.roots:
        trial = Group([root])
        walk = Walk(materialised, fusion.place, trial)
        try:
            walk.start(root)
        except NeedsBuffer as need:
            if walk.size > LARGEST_BODY:
                return f"the kernel would have more than {LARGEST_BODY} operations"
            trace = need.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            if trace is not None and trace.tb_frame.f_code is Walk.reduction.__code__:
                return "its reader reduces over other points than its kernel walks"
            return f"no strides express {need.node.op.value} over it"
    return ""


def _values(nodes: Sequence[Node]) -> str:
    return ", ".join(f"%{node.index} {node.dtype.name}{list(node.shape)}" for node in nodes)


def _name(node: Node) -> str:
    return format_node(node).split("(")[0]
