"""Steps that may fail, and the order in which a plan takes them: a run that raises has written over no input.

An index out of range, an integer division by zero, a matrix that cannot be inverted: where a plan replaces inputs, every such
step comes before the first write, or the writes are made at the end of the plan, from temporaries. An index that is known
early (labels, words) is checked by a step of its own at the start, so that what follows may write straight over its inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tensorsmith.core.layout import contiguous_strides
from tensorsmith.ir.constants import constant_value
from tensorsmith.ir.graph import Graph, Node, Primitive, base_of, copy_into
from tensorsmith.kernels.spec import Operand
from tensorsmith.kernels.spec_index import IndexOperand, IndexSpec
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group
from tensorsmith.runtime.control_steps import joined
from tensorsmith.runtime.requests import LONG_WORK, KernelStep, Request, Step
from tensorsmith.runtime.steps import LIBRARY_KERNELS, OutOfBounds
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu.recipe import RELEASE_GIL, Recipe

INDEXING = frozenset({Primitive.TAKE, Primitive.GATHER, Primitive.PUT, Primitive.SCATTER})
_DIVISIONS = frozenset({Fn.DIV, Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD})
_SAME_ELEMENTS = frozenset({Primitive.RESHAPE, Primitive.PERMUTE, Primitive.EXPAND})

Check = tuple[Node, int]  # the values of an index, and how many there are to choose from


def check_of(anchor: Node) -> Check:
    """What the index of an index operation has to be."""
    index = anchor.inputs[1]
    while index.op in _SAME_ELEMENTS:
        index = index.inputs[0]
    return index, anchor.inputs[0].shape[anchor.attrs["axis"]]


def may_fail(group: Group) -> bool:
    """Whether a step may report an error, other than an index out of range."""
    anchor = group.anchor
    if anchor is None:
        return any(_divides(node) for node in (*group.visited, *group.roots))
    if anchor.op is Primitive.LIBRARY:
        from tensorsmith.targets.reference.special import ROUTINES

        name = anchor.attrs["name"]
        safe = name in ROUTINES or name in LIBRARY_KERNELS or name == "winograd_weight"
        return not safe or name == "no_derivative"
    return False


def _divides(node: Node) -> bool:
    if node.op is not Primitive.MAP or node.attrs["fn"] not in _DIVISIONS or node.dtype.kind not in "iu":
        return False
    return not constant_value(node.inputs[1])


def in_safe_order(
    fusion: Fusion, updates: Mapping[Node, Node], given: Sequence[Group] | None = None
) -> tuple[list[Group], int, list[Node], int]:  # fmt: skip
    """The steps with what early checks need in front: (steps, how many those are, index operations to check, last failing).

    last failing: the number of the last step that may raise once the checks are made; -1 where none may.
    given: the steps, where they are not those of the fusion
    """
    groups = joined(fusion.groups if given is None else given)
    maker = {root: i for i, group in enumerate(groups) for root in group.roots}
    replacing = {i for root, i in maker.items() if root in updates}
    front: set[int] = set()
    checked: dict[Check, Node] = {}
    if replacing:
        first = min(replacing)
        for group in groups[first:]:
            if group.anchor is None or group.anchor.op not in INDEXING or not group.anchor.inputs[1].numel:
                continue
            needed = _needed(fusion, groups, maker, check_of(group.anchor)[0])
            if not needed & replacing:
                front |= needed
                checked.setdefault(check_of(group.anchor), group.anchor)
    order = [*sorted(front), *(i for i in range(len(groups)) if i not in front)]
    ordered = [groups[i] for i in order]
    known = set(checked)
    last = -1
    for number, group in enumerate(ordered):
        fails = may_fail(group)
        if group.anchor is not None and group.anchor.op in INDEXING and check_of(group.anchor) not in known:
            fails = True
            known.add(check_of(group.anchor))
        if fails:
            last = number
    return ordered, len(front), list(checked.values()), last


def _needed(fusion: Fusion, groups: Sequence[Group], maker: Mapping[Node, int], value: Node) -> set[int]:
    """The steps that a value depends on."""
    found: set[int] = set()
    waiting = [fusion.locate(value)[0]]
    while waiting:
        number = maker.get(waiting.pop())
        if number is not None and number not in found:
            found.add(number)
            waiting += groups[number].leaves
    return found


def index_check(fusion: Fusion, anchor: Node) -> Request:
    """A step that raises what the index operation would: it reads one word at every index, and keeps nothing of it."""
    operand, size = check_of(anchor)
    node, seen = fusion.locate(operand)
    varying = [(n, stride) for n, stride in zip(seen.shape, seen.strides) if stride] or [(1, 0)]
    domain, strides = tuple(n for n, _ in varying), tuple(stride for _, stride in varying)
    nothing = (0,) * len(domain)
    spec = IndexSpec(
        "gather", domain, Operand(node.dtype, nothing), (IndexOperand(Operand(node.dtype, strides), 0, size),),
        Operand(node.dtype, contiguous_strides(domain)), name=f"{anchor.op.value}_check",
    )  # fmt: skip
    from tensorsmith.targets.cpu.gather import lower_index

    lowered = lower_index(spec)
    offset = seen.offset * node.dtype.itemsize
    recipe = Recipe(
        lowered.function_address, lowered.chunks, 3, lowered.constants, RELEASE_GIL if lowered.bytes_moved >= LONG_WORK else 0
    )
    error = OutOfBounds(anchor.op.value, seen._replace(offset=0), node.dtype, size, anchor.attrs.get("of_pairs", False))

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(spec.name, recipe, sources, lowered.bytes_moved, lowered.flops, error, lowered)

    return Request([(node, offset), (node, offset), (None, 0)], step, operand.numel * node.dtype.itemsize)


def separate_updates(graph: Graph, updates: Mapping[int, int]) -> Graph:
    """The same graph, in which every output that replaces an input is a value of its own, computed by a step.

    An output that shows the old value of a replaced input becomes a copy. The graph itself where all is so already.
    """
    outputs = list(graph.outputs)
    targets: Collection[Node] = {graph.inputs[i] for i in updates.values()}
    apart = [
        k for k, node in enumerate(outputs)
        if (k in updates and (node.op is Primitive.INPUT or any(o is node for j, o in enumerate(outputs) if j != k)))
        or (k not in updates and base_of(node) in targets)
    ]  # fmt: skip
    if not apart:
        return graph
    result = graph.empty()
    mapping = copy_into(result, graph, [result.input(n.shape, n.dtype, n.attrs["param"]) for n in graph.inputs])
    made: list[Node] = []
    for k, node in enumerate(outputs):
        new = mapping[node]
        if k in apart:
            new = result.add(Primitive.CAST, (new,), dtype=new.dtype)
            while any(new is other for other in made):
                new = result.add(Primitive.CAST, (new,), dtype=new.dtype)
        made.append(new)
    result.outputs = tuple(made)
    return result
