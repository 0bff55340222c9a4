"""Decisions and loops of a plan: steps that run plans of their own.

Results of one decision or loop (`ir/control.py`) are one step: `joined` puts them together, and `control_steps` makes it.
The host decides. On a CUDA device it waits for one element at every decision; everything else, the values that a loop carries
too, stays on the device and is written by plans, which are graphs of their own where they are long (`cuda_graph.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir.build import full, map_
from tensorsmith.ir.control import is_control, same_control
from tensorsmith.ir.graph import Graph, Node, Primitive, base_of, copy_into, touches_complex
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime.requests import PythonStep, Request
from tensorsmith.scalar.table import Fn

if TYPE_CHECKING:
    from tensorsmith.runtime.target import Target

Run = Callable[[Sequence[int], Sequence[int]], None]  # of addresses of inputs and of outputs


def joined(groups: Sequence[Group]) -> list[Group]:
    """The steps with the results of each decision and loop in one group, where the first of them stood."""
    found: list[Group] = []
    for group in groups:
        anchor = group.anchor
        if anchor is not None and is_control(anchor) and not touches_complex(anchor):  # NumPy steps have one result
            home = next((g for g in found if g.anchor is not None and _same(g.anchor, anchor)), None)
            if home is not None:
                home.roots.append(group.roots[0])
                continue
            group = group.copy()
        found.append(group)
    return found


def _same(a: Node, b: Node) -> bool:
    return is_control(a) and same_control(a, b)


def prepared(
    graph: Graph, outputs: Sequence[int], inputs: Sequence[Strided], places: Sequence[Strided], device: Device = CPU
) -> Run:
    """Some outputs of a graph as a plan that writes them where it is told."""
    from tensorsmith.runtime.plan import build_plan

    part = graph.empty()
    mapping = copy_into(part, graph, [part.input(x.shape, x.dtype) for x in graph.inputs])
    made: list[Node] = []
    for k in outputs:
        node = mapping[graph.outputs[k]]
        while base_of(node).op is Primitive.INPUT or any(node is other for other in made):
            node = part.add(Primitive.CAST, (node,), dtype=node.dtype)  # a value of its own
        made.append(node)
    part.outputs = tuple(made)
    plan = build_plan(part, list(inputs), dict(enumerate(places)), device=device)
    order = [next(k for k, output in enumerate(plan.outputs) if output.buffer == number) for number in range(len(made))]

    def run(given: Sequence[int], written: Sequence[int]) -> None:
        plan.run([*(given[i] for i in plan.tensor_inputs), *(written[k] for k in order)])

    return run


def _copies(nodes: Sequence[Node], inputs: Sequence[Strided], places: Sequence[Strided], device: Device) -> Run:
    """Values like some nodes, written as they are to other places."""
    graph = Graph()
    graph.outputs = tuple([graph.input(x.shape, x.dtype) for x in nodes])
    return prepared(graph, range(len(nodes)), inputs, places, device)


def control_steps(fusion: Fusion, group: Group, device: Device = CPU) -> list[Request]:
    """The step of a decision or a loop."""
    from tensorsmith.runtime.target import target_of

    anchor = group.anchor
    assert anchor is not None
    located = [fusion.locate(operand) for operand in anchor.inputs]
    for operand, (_, seen) in zip(anchor.inputs, located):
        if any(stride < 0 for stride in seen.strides):
            raise NeedsBuffer(operand)
    inputs = [seen._replace(offset=0) for _, seen in located]
    places = [fusion.place(root) for root in group.roots]
    words: list[tuple[Node | None, int]] = [(node, seen.offset * node.dtype.itemsize) for node, seen in located]
    words += [(root, place.offset * root.dtype.itemsize) for root, place in zip(group.roots, places)]
    makers = {"cond": _decision, "while_loop": _loop, "while_loop_gradient": _loop_gradient}
    name = anchor.attrs["name"]
    call, scratch = makers[name](anchor, group, inputs, [p._replace(offset=0) for p in places], device, target_of(device))
    if scratch:
        words.append((None, 0))
    how = f"plans of their own{_WAITS if device is not CPU else ''}"
    return [Request(words, lambda sources: PythonStep(name, sources, call, how=how), scratch)]


_WAITS = "; the host waits for what decides, so the whole is not one CUDA graph"
_Made = tuple[Callable[[Sequence[Any]], None], int]  # what runs a step, and bytes of scratch memory, its last word


def _decision(
    anchor: Node, group: Group, inputs: list[Strided], places: list[Strided], device: Device, target: Target
) -> _Made:
    wanted = [root.attrs["output"] for root in group.roots]
    branches = [prepared(anchor.attrs[key], wanted, inputs[1:], places, device) for key in ("other", "then")]
    predicate, count = anchor.inputs[0].dtype, len(inputs)

    def decide(addresses: Sequence[Any]) -> None:
        branches[bool(target.element(addresses[0], predicate))](addresses[1:count], addresses[count:])

    return decide, 0


def _loop(anchor: Node, group: Group, inputs: list[Strided], places: list[Strided], device: Device, target: Target) -> _Made:
    carried, count = anchor.attrs["carried"], len(inputs)
    nodes = anchor.inputs[:carried]
    dense = [_dense(x) for x in nodes]
    condition, body = anchor.attrs["condition"], anchor.attrs["body"]
    flag = condition.outputs[0]
    starts, size = _side_by_side([flag, *nodes, *nodes], target)
    seen = [*dense, *inputs[carried:]]
    enters = _copies(nodes, inputs[:carried], dense, device)
    asks = prepared(condition, [0], seen, [_dense(flag)], device)
    advances = prepared(body, range(carried), seen, dense, device)
    wanted = [root.attrs["output"] for root in group.roots]
    leaves = _copies([nodes[k] for k in wanted], [dense[k] for k in wanted], places, device)

    def loop(addresses: Sequence[Any]) -> None:
        block = addresses[-1]
        asked, *both = (block + start for start in starts)
        now, after = both[:carried], both[carried:]
        enters(addresses[:carried], now)
        captured = list(addresses[carried:count])
        while True:
            asks([*now, *captured], [asked])
            if not target.element(asked, flag.dtype):
                break
            advances([*now, *captured], after)
            now, after = after, now
        leaves([now[k] for k in wanted], addresses[count : count + len(wanted)])

    return loop, size


def _loop_gradient(
    anchor: Node, group: Group, inputs: list[Strided], places: list[Strided], device: Device, target: Target
) -> _Made:
    carried, count, pull = anchor.attrs["carried"], len(inputs), anchor.attrs["pull"]
    nodes = anchor.inputs[:carried]
    dense = [_dense(x) for x in nodes]
    captured_places = inputs[carried : count - 1]
    condition, body = anchor.attrs["condition"], anchor.attrs["body"]
    flag = condition.outputs[0]
    enters = _copies(nodes, inputs[:carried], dense, device)
    asks = prepared(condition, [0], [*dense, *captured_places], [_dense(flag)], device)
    advances = prepared(body, range(carried), [*dense, *captured_places], dense, device)
    results = [_dense(x) for x in pull.outputs]
    given = len(pull.inputs) - (count - 1)  # gradients of what is carried, the first of the results
    starts = prepared(_first_gradients(pull, anchor.attrs["of"]), range(len(results)), inputs[-1:], results, device)
    adding = _adding_up(pull, given)
    back = prepared(adding, range(len(results)), [*dense, *captured_places, *results], results, device)
    wanted = [root.attrs["output"] for root in group.roots]
    leaves = _copies([pull.outputs[k] for k in wanted], [results[k] for k in wanted], places, device)

    def go_back(addresses: Sequence[Any]) -> None:
        captured = list(addresses[carried : count - 1])
        asked = _Block([flag], target)
        rounds = [_Block(nodes, target)]
        enters(addresses[:carried], rounds[0].addresses)
        while True:
            asks([*rounds[-1].addresses, *captured], asked.addresses)
            if not target.element(asked.addresses[0], flag.dtype):
                break
            after = _Block(nodes, target)
            advances([*rounds[-1].addresses, *captured], after.addresses)
            rounds.append(after)
        rounds.pop()
        now, after = _Block(pull.outputs, target), _Block(pull.outputs, target)
        starts(addresses[count - 1 : count], now.addresses)
        while rounds:
            back([*rounds.pop().addresses, *captured, *now.addresses], after.addresses)
            now, after = after, now
        leaves([now.addresses[k] for k in wanted], addresses[count:])

    return go_back, 0


def _first_gradients(pull: Graph, which: int) -> Graph:
    """What the way back starts with, of the gradient of result number `which`: that, and zeros."""
    graph = Graph()
    grad = graph.input(pull.outputs[which].shape, pull.outputs[which].dtype)
    graph.outputs = tuple(grad if k == which else full(graph, x.shape, 0, x.dtype) for k, x in enumerate(pull.outputs))
    return graph


def _adding_up(pull: Graph, given: int) -> Graph:
    """The gradients of a round; those of what is captured, after the first `given`, added to what they were."""
    graph = Graph()
    inputs = [graph.input(x.shape, x.dtype) for x in (*pull.inputs, *pull.outputs[given:])]
    mapping = copy_into(graph, pull, inputs[: len(pull.inputs)])
    found = [mapping[x] for x in pull.outputs]
    sums = [map_(Fn.ADD, before, x) for before, x in zip(inputs[len(pull.inputs) :], found[given:])]
    graph.outputs = (*found[:given], *sums)
    return graph


def _dense(node: Node) -> Strided:
    return Strided(node.shape, contiguous_strides(node.shape))


def _side_by_side(nodes: Sequence[Node], target: Target) -> tuple[list[int], int]:
    """Where values like some nodes begin in one block, and its size."""
    unit = target.align
    ends = list(accumulate(-(-(x.numel * x.dtype.itemsize) // unit) * unit + unit for x in nodes))
    return [0, *ends[:-1]], ends[-1]


class _Block:
    """Memory for values like some nodes, of which it is not known beforehand how often they are there."""

    def __init__(self, nodes: Sequence[Node], target: Target) -> None:
        starts, size = _side_by_side(nodes, target)
        self._free = target.free_list(size)
        self._start = target.allocate(size)
        self.addresses = [self._start + start for start in starts]

    def __del__(self) -> None:
        self._free.append(self._start)
