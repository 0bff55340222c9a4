"""Recording: one node per operator call, with what its gradient needs.

The node keeps saved inputs as the tensors themselves with the version their storage had, and saved outputs as bare memory
(the tensor would keep the node alive, and the node the tensor).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd.node import Node, _sequence, gradient_edge
from tensorsmith.eager.operator import Program
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor, make_tensor

Entry = Callable[..., Any]


class OperatorNode(Node):
    """The recorded call of a program. `saved` holds, in the order of the backward operator, tensors, numbers and outputs."""

    __slots__ = ("program", "needs", "output_count", "saved", "versions", "unpack")  # type: ignore[misc]

    program: Program
    needs: tuple[bool, ...]
    saved: tuple | None
    versions: tuple
    unpack: Any

    def name(self) -> str:
        return self.program.name

    def release(self) -> None:
        self.saved = None

    def apply(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Gradients of the operands, by the program's backward operator."""
        present = tuple(g is not None for g in grads)
        if not any(present):
            return [None] * len(self.edges)
        backward = self.program.backward(self.needs, present)
        values = self.saved_values(backward.saved)
        results = backward(*values, *(grads[i] for i in backward.grad_outputs)) if backward.backward.graph.outputs else ()
        if isinstance(results, Tensor):
            results = (results,)
        return [results[k] if k is not None else None for k in backward.results]

    def saved_values(self, wanted: Sequence[Any]) -> list[Any]:
        """The saved operands of a backward, after checking that nobody wrote over them."""
        if self.saved is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time (or directly access saved tensors after they have "
                "already been freed). Saved intermediate values of the graph are freed when you call .backward() or "
                "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time or "
                f"if you need to access saved tensors after calling backward. ({self.name()})"
            )
        values = []
        for which in wanted:
            value = self.saved[self.position(which)]
            if isinstance(value, SavedOutput):
                value = value.tensor(self)
            elif isinstance(value, Packed):
                value = value.unpack_tensor(self)
            elif isinstance(value, Tensor):
                self.check(value, self.versions[self.position(which)])
            values.append(value)
        return values

    def position(self, which: Any) -> int:
        """Where a saved value stands in `saved`."""
        return self.unpack[which.kind, which.number]

    def check(self, tensor: Tensor, version: int) -> None:
        if tensor.storage.version != version:
            raise RuntimeError(modified_message(tensor.layout, tensor.storage.version, version, self.name()))


def modified_message(layout: Any, version: int, expected: int, name: str) -> str:
    """PyTorch's words for a saved tensor that was written in place."""
    kind = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long"}.get(
        layout.dtype.name, layout.dtype.name.capitalize()
    )
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[tensorsmith.{kind}Tensor {list(layout.shape)}], which was saved by {name}, is at version {version}; expected "
        f"version {expected} instead. Hint: clone the tensor before changing it, or enable anomaly detection to find the "
        "operation that failed to compute its gradient, with tensorsmith.autograd.set_detect_anomaly(True)."
    )


class SavedOutput:
    """An output kept for the backward, without the tensor."""

    __slots__ = ("layout", "storage", "ptr", "version", "number")

    def __init__(self, tensor: Tensor, number: int) -> None:
        self.layout = tensor.layout
        self.storage = tensor.storage
        self.ptr = tensor.ptr
        self.version = tensor.storage.version
        self.number = number

    def tensor(self, node: OperatorNode) -> Tensor:
        if self.storage.version != self.version:
            raise RuntimeError(modified_message(self.layout, self.storage.version, self.version, node.name()))
        found = make_tensor(self.layout, self.storage, self.ptr)
        found.node = node
        found.output_number = self.number
        return found


class Packed:
    """A value that a saved-tensor hook took over."""

    __slots__ = ("value", "unpack", "output")

    def __init__(self, hooks: tuple, tensor: Tensor, output: int | None) -> None:
        pack, self.unpack = hooks
        with_detached = tensor if output is None else make_tensor(tensor.layout.with_tracking(False), tensor.storage, tensor.ptr)
        self.value = pack(with_detached)
        self.output = output

    def unpack_tensor(self, node: OperatorNode) -> Tensor:
        tensor = self.unpack(self.value)
        if not isinstance(tensor, Tensor):
            raise TypeError("Output of saved tensor unpack_hook expected to be a Tensor but got " + type(tensor).__name__)
        if self.output is not None:
            tensor = make_tensor(tensor.layout.with_tracking(True), tensor.storage, tensor.ptr)
            tensor.node = node
            tensor.output_number = self.output
        return tensor


def recorder(
    program: Program, run: Entry, needs: tuple[bool, ...], differentiable: tuple[bool, ...], count: int
) -> Entry:
    """`run` with a node recorded on its differentiable outputs while grad mode is on."""
    backward = program.backward(needs, differentiable)
    saved = saved_table(program, needs, differentiable)
    unpack = {(which.kind, which.number): i for i, which in enumerate(saved)}
    inputs = tuple((i, which.number) for i, which in enumerate(saved) if which.kind == "input")
    kept_outputs = any(which.kind == "output" for which in saved)
    single = len(differentiable) == 1
    new = OperatorNode.__new__
    del backward

    def record(*operands: Any) -> Any:
        result = run(*operands)
        if not modes.grad:
            return result
        node = new(OperatorNode)
        node.program = program
        node.needs = needs
        node.output_count = len(differentiable)
        node.edges = tuple([gradient_edge(x) if need else None for x, need in zip(operands, needs)])
        node.sequence = next(_sequence)  # after the edges: they lead to smaller numbers
        node.attached = None
        node.unpack = unpack
        results = (result,) if single else result
        for number, tensor in enumerate(results):
            if differentiable[number]:
                tensor.layout = tensor.layout.with_tracking(True)
                tensor.node = node
                tensor.output_number = number
        fill_saved(node, saved, operands, results, inputs, kept_outputs)
        if modes.anomaly:
            from tensorsmith.autograd.anomaly import user_trace

            node.trace = user_trace()
        return result

    return record


def fill_saved(
    node: OperatorNode, saved: Sequence[Any], operands: Sequence[Any], results: Sequence[Tensor], inputs: Sequence[tuple],
    kept_outputs: bool,
) -> None:  # fmt: skip
    """Put what the backward needs into the node."""
    if modes.saved_hooks:
        hooks = modes.saved_hooks[-1]
        values = []
        for which in saved:
            value = operands[which.number] if which.kind == "input" else results[which.number]
            if isinstance(value, Tensor):
                values.append(Packed(hooks, value, which.number if which.kind == "output" else None))
            else:
                values.append(value)
        node.saved = tuple(values)
        node.versions = ()
        return
    if not kept_outputs:
        values = [operands[number] for _, number in inputs]
    else:
        values = [
            operands[which.number] if which.kind == "input" else SavedOutput(results[which.number], which.number)
            for which in saved
        ]
    node.saved = tuple(values)
    node.versions = tuple([v.storage.version if v.__class__ not in _PLAIN else 0 for v in values])


_PLAIN = frozenset({float, int, bool, SavedOutput})


def saved_table(program: Program, needs: tuple[bool, ...], differentiable: tuple[bool, ...]) -> tuple:
    """Everything any backward of this call may need: with all gradients, or with some outputs' missing."""
    found = list(program.backward(needs, differentiable).saved)
    if sum(differentiable) > 1:
        for number, flag in enumerate(differentiable):
            if flag:
                alone = tuple(i == number for i in range(len(differentiable)))
                found += [w for w in program.backward(needs, alone).saved if w not in found]
    return tuple(found)
