"""Recording: one node per operator call, with what its gradient needs.

The node keeps saved inputs as the tensors themselves with the version their storage had; everything rarer (outputs,
tensors under a saved-tensor hook) is a `SavedTensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd.node import Node, _sequence, gradient_edge
from tensorsmith.autograd.saved import FREED, SavedTensor, modified_message
from tensorsmith.eager.operator import Program
from tensorsmith.ir.vjp import Saved
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

Entry = Callable[..., Any]
NUMBERS: frozenset[type] = frozenset({float, int, bool})


class OperatorNode(Node):
    """The recorded call of a program.

    saved:    tensors, numbers and SavedTensors, in the order of `table`; None once the buffers are freed
    versions: the storage version of each saved tensor
    """

    __slots__ = ("program", "needs", "output_count", "table", "saved", "versions")  # type: ignore[misc]

    program: Program
    needs: tuple[bool, ...]
    table: tuple[Saved, ...]
    saved: tuple | None
    versions: tuple

    def name(self) -> str:
        return self.program.name

    def release(self) -> None:
        self.saved = None

    def apply(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Gradients of the operands, by the program's backward operator."""
        backward = self.program.backward(self.needs, tuple([g is not None for g in grads]))
        if not backward.backward.graph.outputs:
            return (None,) * len(self.edges)
        operands = self.saved_values(backward.saved)
        operands += [grads[i] for i in backward.grad_outputs]
        results = backward(*operands)
        if results.__class__ is Tensor:
            results = (results,)
        return [results[k] if k is not None else None for k in backward.results]

    def saved_values(self, wanted: Sequence[Saved]) -> list[Any]:
        """The saved operands of a backward, after checking that nobody wrote over them."""
        if self.saved is None:
            raise RuntimeError(FREED)
        values = []
        table = self.table
        for position, which in enumerate(wanted):
            if table[position] is not which and table[position] != which:
                position = table.index(which)
            value = self.saved[position]
            if isinstance(value, Tensor):
                version = self.versions[position]
                if value.storage.version != version:
                    raise RuntimeError(modified_message(value.layout, value.storage.version, version, self.name()))
            elif isinstance(value, SavedTensor):
                value = value.get(self)
            values.append(value)
        return values


def recorder(
    program: Program, run: Entry, needs: tuple[bool, ...], differentiable: tuple[bool, ...]
) -> Entry:
    """`run` with a node recorded on its differentiable outputs while grad mode is on."""
    table = saved_table(program, needs, differentiable)
    saves_nothing = not table
    plain = all(which.kind == "input" for which in table)
    single = len(differentiable) == 1
    new = OperatorNode.__new__
    output_count = len(differentiable)

    def record_one(*operands: Any) -> Any:
        result = run(*operands)
        if not modes.grad:
            return result
        node = new(OperatorNode)
        node.program = program
        node.needs = needs
        node.output_count = 1
        node.table = table
        node.edges = tuple([gradient_edge(x) if need else None for x, need in zip(operands, needs)])
        node.sequence = next(_sequence)
        node.attached = None
        layout = result.layout
        result.layout = layout.twin or layout.with_tracking(True)
        result.node = node
        save(node, table, operands, (result,))
        if modes.anomaly:
            note_user_line(node)
        return result

    # Calls of one and of two operands again, without loops: recording is half the cost of a small operator.
    first, second = (needs + (False, False))[:2]

    def record_unary(a: Any) -> Any:
        result = run(a)
        if not modes.grad:
            return result
        node = new(OperatorNode)
        node.program = program
        node.needs = needs
        node.output_count = 1
        node.table = table
        node.edges = (gradient_edge(a),)
        node.sequence = next(_sequence)
        node.attached = None
        layout = result.layout
        result.layout = layout.twin or layout.with_tracking(True)
        result.node = node
        if saves_nothing:
            node.saved = node.versions = ()
        elif plain and not modes.saved_hooks:
            node.saved = (a,)
            node.versions = (a.storage.version,)
        else:
            save(node, table, (a,), (result,))
        if modes.anomaly:
            note_user_line(node)
        return result

    def record_binary(a: Any, b: Any) -> Any:
        result = run(a, b)
        if not modes.grad:
            return result
        node = new(OperatorNode)
        node.program = program
        node.needs = needs
        node.output_count = 1
        node.table = table
        node.edges = (gradient_edge(a) if first else None, gradient_edge(b) if second else None)
        node.sequence = next(_sequence)
        node.attached = None
        layout = result.layout
        result.layout = layout.twin or layout.with_tracking(True)
        result.node = node
        if saves_nothing:
            node.saved = node.versions = ()
        else:
            save(node, table, (a, b), (result,))
        if modes.anomaly:
            note_user_line(node)
        return result

    def record_several(*operands: Any) -> Any:
        results = run(*operands)
        if not modes.grad:
            return results
        node = new(OperatorNode)
        node.program = program
        node.needs = needs
        node.output_count = output_count
        node.table = table
        node.edges = tuple([gradient_edge(x) if need else None for x, need in zip(operands, needs)])
        node.sequence = next(_sequence)
        node.attached = None
        for number, tensor in enumerate(results):
            if differentiable[number]:
                tensor.layout = tensor.layout.with_tracking(True)
                tensor.node = node
                tensor.output_number = number
        save(node, table, operands, results)
        if modes.anomaly:
            note_user_line(node)
        return results

    if not single:
        return record_several
    return {1: record_unary, 2: record_binary}.get(len(needs), record_one)


def save(node: OperatorNode, table: Sequence[Saved], operands: Sequence[Any], results: Sequence[Tensor]) -> None:
    """Put what the backward needs into the node."""
    hooked = modes.saved_hooks
    values: list[Any] = []
    versions: list[int] = []
    for which in table:
        if which.kind == "input":
            value = operands[which.number]
            if value.__class__ in NUMBERS:
                versions.append(0)
            elif hooked:
                value = SavedTensor(value, None)
                versions.append(0)
            else:
                versions.append(value.storage.version)
            values.append(value)
        else:
            values.append(SavedTensor(results[which.number], which.number))
            versions.append(0)
    node.saved = tuple(values)
    node.versions = tuple(versions)


def note_user_line(node: Node) -> None:
    """Keep the user's line with a node (anomaly mode)."""
    from tensorsmith.autograd.anomaly import user_trace

    node.trace = user_trace()


def saved_table(program: Program, needs: tuple[bool, ...], differentiable: tuple[bool, ...]) -> tuple[Saved, ...]:
    """Everything any backward of this call may need: with all gradients, or with some outputs' missing."""
    found = list(program.backward(needs, differentiable).saved)
    if sum(differentiable) > 1:
        for number, flag in enumerate(differentiable):
            if flag:
                alone = tuple(i == number for i in range(len(differentiable)))
                found += [w for w in program.backward(needs, alone).saved if w not in found]
    return tuple(found)
