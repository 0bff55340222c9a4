"""A traced function as an operation and a program, so that it is differentiated like any operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.compile.gradient import TracedGradient
from tensorsmith.eager.operator import BackwardOperator, Operation, Program
from tensorsmith.ir.graph import Graph
from tensorsmith.passes.manager import optimise


class TracedProgram(Program):
    """A traced function as a program. Its gradient's graph no longer says where autograd stopped, or followed another rule."""

    __slots__ = ()

    def simplified(self, graph: Graph) -> Graph:
        return optimise(graph, self.operation.left_out)[0]

    def backward(self, needs: tuple[bool, ...], grads: tuple[bool, ...]) -> BackwardOperator:
        saves_nothing = not self.operation.rule.saved
        if saves_nothing and self.operation.rule.replaced:
            raise NotImplementedError(
                f"compile: the second derivative of {self.operation.name}, which writes over an input whose old value its "
                "gradient needs; return what it becomes instead of writing it"
            )
        found = super().backward(needs, (*grads, *(False for _ in self.graph.outputs[len(grads) :])))  # of what is saved
        if saves_nothing and self.operation.stops:
            found.override = _refuse_second  # type: ignore[method-assign]
        return found


def _refuse_second(attrs: dict[str, Any]) -> Any:
    raise NotImplementedError(
        "compile: the second derivative of a compiled function that uses detach(), no_grad or an autograd.Function on tracked "
        "tensors; take the inner gradient inside the compiled function"
    )


class TracedOperation(Operation):
    """A traced function as an operation, so that a forward function is differentiated like any operator.

    rule: its gradient, for runs of the function with what that saves as further outputs, or without
    """

    def __init__(self, name: str, graph: Graph, rule: TracedGradient, stops: bool, left_out: frozenset[str]) -> None:
        self.name = name
        self.rule = rule
        self.stops = stops
        self.left_out = left_out
        self._program = TracedProgram(self, graph, {}, f"Compiled{name.title()}Backward")

    def program(self, kinds: Sequence[Any], attrs: dict[str, Any]) -> Program:
        return self._program

    def override(self, attrs: dict[str, Any]) -> Any:
        return self.rule
