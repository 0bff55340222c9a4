"""Nodes of the recorded graph: what the backward engine walks.

A node takes the gradients of the outputs of one recorded call and gives the gradients of its inputs. `edges[i]` says where
gradient i goes: (node, number of that node's output), or None where it is not wanted.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from tensorsmith.tensor.tensor import Tensor

_sequence = itertools.count()


class Node:
    """One recorded call. Subclasses say in `apply` how gradients flow back through it."""

    __slots__ = ("edges", "sequence", "pre_hooks", "hooks", "metadata_", "trace", "__weakref__")

    edges: tuple[tuple[Node, int] | None, ...]
    sequence: int
    output_count: int = 1

    def __init__(self, edges: tuple[tuple[Node, int] | None, ...] = ()) -> None:
        self.edges = edges
        self.sequence = next(_sequence)
        self.pre_hooks: dict[int, Any] | None = None  # before: gradients of the outputs
        self.hooks: dict[int, Any] | None = None  # after: gradients of inputs and outputs
        self.metadata_: dict | None = None
        self.trace: Any = None  # the user's lines, in anomaly mode

    def apply(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Gradients of the inputs (as many as edges) from the gradients of the outputs."""
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def release(self) -> None:
        """Forget what was saved for the backward."""

    def name(self) -> str:
        """The name that PyTorch prints: AddBackward0 and so on."""
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """(node, output number) of every input, as PyTorch shows them."""
        return tuple(edge if edge is not None else (None, 0) for edge in self.edges)

    @property
    def metadata(self) -> dict:
        """A dict for the user."""
        if self.metadata_ is None:
            self.metadata_ = {}
        return self.metadata_

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"


class AccumulateGrad(Node):
    """The end of the road: adds the gradient into `variable.grad` of a leaf."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor) -> None:
        super().__init__(())
        self.variable = variable


def gradient_edge(tensor: Tensor) -> tuple[Node, int] | None:
    """Where the gradient of a tensor goes; None where it needs none."""
    if not tensor.layout.tracked:
        return None
    if tensor.base is not None and tensor.stamp != tensor.storage.version:
        derive_view_node(tensor)
    node = tensor.node
    if node is not None:
        return node, tensor.output_number
    return accumulator(tensor), 0


def accumulator(tensor: Tensor) -> AccumulateGrad:
    """The node that accumulates into a leaf; one lives as long as a graph refers to it."""
    state = tensor.ensure_state()
    found = state.accumulator() if state.accumulator is not None else None
    if found is None:
        found = AccumulateGrad(tensor)
        state.accumulator = weakref.ref(found)
    return found


def derive_view_node(view: Tensor) -> None:
    """The node of a view after its base was written in place: the view as taken from the base as it is now.

    Replaced at import of `eager/inplace.py`, which knows how views are differentiated.
    """
    _view_nodes[0](view)


def set_view_node_rule(rule: Any) -> None:
    """Install how `derive_view_node` works (called once by the room that executes operators)."""
    _view_nodes[0] = rule


def _no_rule(view: Tensor) -> None:
    raise NotImplementedError("views of tensors written in place need the eager room")


_view_nodes: list[Any] = [_no_rule]
