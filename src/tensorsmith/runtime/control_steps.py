"""Decisions and loops of a plan: steps that run plans of their own.

Results of one decision or loop (`ir/control.py`) are one step: `joined` puts them together, and `control_steps` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir.control import is_control, same_control
from tensorsmith.ir.graph import Graph, Node, Primitive, base_of, copy_into, touches_complex
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime.arena import ALIGN
from tensorsmith.runtime.requests import PythonStep, Request, array_at

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


def prepared(graph: Graph, outputs: Sequence[int], inputs: Sequence[Strided], places: Sequence[Strided]) -> Run:
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
    plan = build_plan(part, list(inputs), dict(enumerate(places)))
    order = [next(k for k, output in enumerate(plan.outputs) if output.buffer == number) for number in range(len(made))]

    def run(given: Sequence[int], written: Sequence[int]) -> None:
        plan.run([*(given[i] for i in plan.tensor_inputs), *(written[k] for k in order)])

    return run


def control_steps(fusion: Fusion, group: Group) -> list[Request]:
    """The step of a decision or a loop."""
    anchor = group.anchor
    assert anchor is not None
    located = [fusion.locate(operand) for operand in anchor.inputs]
    for operand, (_, seen) in zip(anchor.inputs, located):
        if any(stride < 0 for stride in seen.strides):
            raise NeedsBuffer(operand)
    inputs = [seen._replace(offset=0) for _, seen in located]
    places = [fusion.place(root) for root in group.roots]
    wanted = [root.attrs["output"] for root in group.roots]
    words: list[tuple[Node | None, int]] = [(node, seen.offset * node.dtype.itemsize) for node, seen in located]
    words += [(root, place.offset * root.dtype.itemsize) for root, place in zip(group.roots, places)]
    count = len(located)
    if anchor.attrs["name"] == "cond":
        branches = [
            prepared(anchor.attrs[key], wanted, inputs[1:], [p._replace(offset=0) for p in places]) for key in ("other", "then")
        ]

        def decide(addresses: Sequence[Any]) -> None:
            chosen = bool(array_at(addresses[0], inputs[0], anchor.inputs[0].dtype).reshape(()))
            branches[chosen](addresses[1:count], addresses[count:])

        return [Request(words, lambda sources: PythonStep("cond", sources, decide))]
    if anchor.attrs["name"] == "while_loop_gradient":
        return [_loop_gradient(anchor, group, inputs, places, wanted, words)]
    return [_loop(anchor, group, inputs, places, wanted, words)]


def _loop(
    anchor: Node, group: Group, inputs: list[Strided], places: list[Strided], wanted: list[int],
    words: list[tuple[Node | None, int]],
) -> Request:  # fmt: skip
    carried, count = anchor.attrs["carried"], len(inputs)
    kinds = [x.dtype for x in anchor.inputs[:carried]]
    dense = [Strided(x.shape, contiguous_strides(x.shape)) for x in anchor.inputs[:carried]]
    sizes = [-(-(x.numel * x.dtype.itemsize) // ALIGN) * ALIGN + ALIGN for x in anchor.inputs[:carried]]
    starts = [int(n) for n in np.cumsum([ALIGN, *sizes, *sizes])]
    seen = [*dense, *inputs[carried:]]
    condition, body = anchor.attrs["condition"], anchor.attrs["body"]
    asks = prepared(condition, [0], seen, [Strided(condition.outputs[0].shape, (1,) * condition.outputs[0].ndim)])
    advances = prepared(body, range(carried), seen, dense)
    flag_dtype = condition.outputs[0].dtype

    def loop(addresses: Sequence[Any]) -> None:
        block = addresses[-1]
        now, after = ([block + start for start in starts[k * carried : (k + 1) * carried]] for k in range(2))
        for i in range(carried):
            array_at(now[i], dense[i], kinds[i])[...] = array_at(addresses[i], inputs[i], kinds[i])
        captured = list(addresses[carried:count])
        while True:
            asks([*now, *captured], [block])
            if not array_at(block, Strided((), ()), flag_dtype):
                break
            advances([*now, *captured], after)
            now, after = after, now
        for k, root, place, address in zip(wanted, group.roots, places, addresses[count:]):
            array_at(address, place._replace(offset=0), root.dtype)[...] = array_at(now[k], dense[k], root.dtype)

    return Request([*words, (None, 0)], lambda sources: PythonStep("while_loop", sources, loop), starts[-1])


def _loop_gradient(
    anchor: Node, group: Group, inputs: list[Strided], places: list[Strided], wanted: list[int],
    words: list[tuple[Node | None, int]],
) -> Request:  # fmt: skip
    carried, count, pull = anchor.attrs["carried"], len(inputs), anchor.attrs["pull"]
    kinds = [x.dtype for x in anchor.inputs[:carried]]
    dense = [_dense(x) for x in anchor.inputs[:carried]]
    captured_places = inputs[carried : count - 1]
    condition, body = anchor.attrs["condition"], anchor.attrs["body"]
    asks = prepared(
        condition, [0], [*dense, *captured_places], [Strided(condition.outputs[0].shape, (1,) * condition.outputs[0].ndim)]
    )
    advances = prepared(body, range(carried), [*dense, *captured_places], dense)
    results = [_dense(x) for x in pull.outputs]
    given = pull.inputs[count - 1 :]  # the gradients of what is carried
    back = prepared(pull, range(len(results)), [*dense, *captured_places, *map(_dense, given)], results)
    flag_dtype = condition.outputs[0].dtype

    def go_back(addresses: Sequence[Any]) -> None:
        captured = list(addresses[carried : count - 1])
        flag = _Block([condition.outputs[0]])
        rounds = [_Block(anchor.inputs[:carried])]
        for i, address in enumerate(rounds[0].addresses):
            array_at(address, dense[i], kinds[i])[...] = array_at(addresses[i], inputs[i], kinds[i])
        while True:
            asks([*rounds[-1].addresses, *captured], flag.addresses)
            if not array_at(flag.addresses[0], Strided((), ()), flag_dtype):
                break
            after = _Block(anchor.inputs[:carried])
            advances([*rounds[-1].addresses, *captured], after.addresses)
            rounds.append(after)
        rounds.pop()
        grads, found, total = _Block(given), _Block(pull.outputs), _Block(pull.outputs)
        kept = [array_at(address, seen, x.dtype) for address, seen, x in zip(total.addresses, results, pull.outputs)]
        for array in kept:
            array[...] = 0
        first = anchor.attrs["of"]
        kept[first][...] = array_at(addresses[count - 1], inputs[count - 1], anchor.inputs[-1].dtype)
        new = [array_at(address, seen, x.dtype) for address, seen, x in zip(found.addresses, results, pull.outputs)]
        for state in reversed(rounds):
            for address, array, x in zip(grads.addresses, kept, given):
                array_at(address, _dense(x), x.dtype)[...] = array
            back([*state.addresses, *captured, *grads.addresses], found.addresses)
            for k, (array, value) in enumerate(zip(kept, new)):
                array[...] = value if k < len(given) else array + value
        for k, root, place, address in zip(wanted, group.roots, places, addresses[count:]):
            array_at(address, place._replace(offset=0), root.dtype)[...] = kept[k]

    return Request(words, lambda sources: PythonStep("while_loop_gradient", sources, go_back))


def _dense(node: Node) -> Strided:
    return Strided(node.shape, contiguous_strides(node.shape))


class _Block:
    """Memory for values like some nodes, of which it is not known beforehand how often they are there."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        sizes = [-(-(x.numel * x.dtype.itemsize) // ALIGN) * ALIGN + ALIGN for x in nodes]
        self._memory = np.empty(sum(sizes) + ALIGN, np.uint8)
        start = -(-self._memory.ctypes.data // ALIGN) * ALIGN
        self.addresses = [start + int(n) for n in np.cumsum([0, *sizes])[:-1]]
