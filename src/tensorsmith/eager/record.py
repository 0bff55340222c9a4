"""Recording: one node per operator call, with what its gradient needs.

The node keeps saved inputs as the tensors themselves with the version their storage had; everything rarer (outputs,
tensors under a saved-tensor hook) is a `SavedTensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.autograd.node import Node, gradient_edge
from tensorsmith.autograd.saved import FREED, SavedTensor, modified_message
from tensorsmith.core.device import CPU
from tensorsmith.core.layout import Layout, layout_of
from tensorsmith.core.views import Strided, may_overlap_itself
from tensorsmith.eager.devices import NAME
from tensorsmith.eager.fast import FAST, NUMBERS
from tensorsmith.eager.operator import BackwardOperator, Program
from tensorsmith.eager.saved_names import saved_attribute, saved_names
from tensorsmith.ir.vjp import Saved
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor, make_tensor, make_view

Entry = Callable[..., Any]


class OperatorNode(Node):
    """The recorded call of a program.

    backward: the operator that computes the gradients where every differentiable output has one
    table:    which inputs and outputs are saved
    saved:    in the order of `table`: tensors, numbers, SavedTensors, or (storage, address, layout) of the call's own
              output, which as a tensor would keep the node alive; None once the buffers are freed
    versions: the storage version of each when it was saved
    """

    __slots__ = ("program", "needs", "output_count", "backward", "table", "saved", "versions")  # type: ignore[misc]

    program: Program
    needs: tuple[bool, ...]
    backward: BackwardOperator
    table: tuple[Saved, ...]
    saved: tuple | None
    versions: tuple

    def __init__(
        self, program: Program, needs: tuple[bool, ...], backward: BackwardOperator, table: tuple[Saved, ...],
        operands: Sequence[Any],
    ) -> None:  # fmt: skip
        """A node with its edges; `template.py` writes the same out for the hot calls. `save` fills in the rest."""
        super().__init__(tuple([gradient_edge(x) if need else None for x, need in zip(operands, needs)]))
        self.program = program
        self.needs = needs
        self.output_count = len(program.graph.outputs)
        self.backward = backward
        self.table = table

    def name(self) -> str:
        return self.program.name

    def __getattr__(self, name: str) -> Any:
        return saved_attribute(self, name)

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *saved_names(self)])

    def release(self) -> None:
        if self.saved and any(self.edges):  # where nothing was saved, or for nobody, the graph may be walked again
            self.saved = None

    def apply(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Gradients of the operands, by the program's backward operator."""
        backward = self.backward
        for grad in grads:
            if grad is None:  # some output has no gradient: a smaller backward
                backward = self.program.backward(self.needs, tuple([g is not None for g in grads]))
                break
        if not backward.computes:
            return (None,) * len(self.edges)
        operands = self.saved_values(backward.saved)
        operands += [grads[i] for i in backward.grad_outputs]
        if backward.grad_outputs:
            key = (backward, *[x.layout if isinstance(x, Tensor) else x.__class__ for x in operands])
            entry = FAST.get(key)
            results = entry(*operands) if entry is not None else backward(*operands)
        else:
            results = backward(*operands, **_device_of(operands, grads))
        if results.__class__ is not tuple:
            results = (results,)
        return [results[k] if k is not None else None for k in backward.results]

    def saved_values(self, wanted: Sequence[Saved]) -> list[Any]:
        """The saved operands of a backward, after checking that nobody wrote over them."""
        saved = self.saved
        if saved is None:
            raise RuntimeError(FREED)
        if wanted is self.table:
            pairs = zip(saved, self.versions)
        else:
            positions = [self.table.index(which) for which in wanted]
            pairs = zip([saved[i] for i in positions], [self.versions[i] for i in positions])
        values = []
        for value, version in pairs:
            kind = value.__class__
            if kind is SavedTensor:
                value = value.get(self)
            elif kind is tuple:
                storage, ptr, layout = value
                if storage.version != version:
                    raise RuntimeError(modified_message(layout, storage.version, version, self.name()))
                value = make_tensor(layout, storage, ptr)
                value.node = self
            elif kind not in NUMBERS and isinstance(value, Tensor) and value.storage.version != version:
                raise RuntimeError(modified_message(value.layout, value.storage.version, version, self.name()))
            values.append(value)
        return values


def _device_of(operands: Sequence[Any], grads: Sequence[Tensor | None]) -> dict[str, Any]:
    """The attribute that says where gradients are that depend on no tensor (zeros): where the gradients came from."""
    if any([isinstance(x, Tensor) for x in operands]):
        return {}
    device = next((g.layout.device for g in grads if g is not None), CPU)
    return {} if device is CPU else {NAME: device}


class ViewNode(Node):
    """The recorded call of an operator that makes one view. Its gradient is derived when it is first needed.

    Nothing is saved. A view of some of the elements (a slice) sends its gradient back by writing it into zeros, which needs no
    graph for every position; any other goes through the program's backward operator.
    """

    __slots__ = ("operation", "source", "attrs")

    operation: Any
    source: Layout
    attrs: dict[str, Any]

    def name(self) -> str:
        return self.operation.recorded_name(self.attrs)

    def apply(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        grad = grads[0]
        if grad is None:
            return (None,)
        source = self.source
        if not modes.grad and modes.tracer is None and grad.layout.dtype is source.dtype:
            whole = layout_of(source.dtype, source.shape, device=source.device)
            seen = self.operation.places([whole], self.attrs)
            if isinstance(seen, Strided) and grad.layout.numel < whole.numel and not may_overlap_itself(seen):
                result = arithmetic.zeros(whole)
                inside = layout_of(source.dtype, seen.shape, seen.strides, device=source.device)
                arithmetic.copy_(make_view(result, inside, seen.offset), grad)
                return (result,)
        backward = self.operation.program([source], self.attrs).backward((True,), (True,))
        if not backward.computes:
            return (None,)
        return (backward(grad),)


def recorder(
    program: Program, run: Entry, needs: tuple[bool, ...], differentiable: tuple[bool, ...]
) -> Entry:
    """`run` with a node recorded on its differentiable outputs while grad mode is on."""
    table = saved_table(program, needs, differentiable)
    backward = program.backward(needs, differentiable)

    def record(*operands: Any) -> Any:
        result = run(*operands)
        if not modes.grad:
            return result
        results = result if result.__class__ is tuple else (result,)
        node = OperatorNode(program, needs, backward, table, operands)
        attach(node, table, differentiable, operands, results)
        return result

    return record


def attach(
    node: OperatorNode, table: Sequence[Saved], differentiable: Sequence[bool], operands: Sequence[Any],
    results: Sequence[Tensor],
) -> None:  # fmt: skip
    """Make `node` what the differentiable results come from, with what its backward needs.

    differentiable: which of the results have a gradient; those after them are only saved
    """
    for number, flag in enumerate(differentiable):
        if flag:
            tensor = results[number]
            tensor.layout = tensor.layout.with_tracking(True)
            tensor.node = node
            tensor.output_number = number
    save(node, table, operands, results)
    if modes.anomaly:
        note_user_line(node)


def save(node: OperatorNode, table: Sequence[Saved], operands: Sequence[Any], results: Sequence[Tensor]) -> None:
    """Put what the backward needs into the node."""
    hooked = modes.saved_hooks
    values: list[Any] = []
    versions: list[int] = []
    for which in table:
        if which.kind == "input":
            value = operands[which.number]
            if value.__class__ in NUMBERS or not isinstance(value, Tensor):  # a traced step's numbers are of other classes
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
    saved = program.backward(needs, differentiable).saved
    found = list(saved)
    if sum(differentiable) > 1:
        for number, flag in enumerate(differentiable):
            if flag:
                alone = tuple(i == number for i in range(len(differentiable)))
                found += [w for w in program.backward(needs, alone).saved if w not in found]
    return saved if len(found) == len(saved) else tuple(found)
