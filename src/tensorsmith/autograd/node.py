"""Nodes of the recorded graph: what the backward engine walks.

A node takes the gradients of the outputs of one recorded call and gives the gradients of its inputs. `edges[i]` says
where gradient i goes: (node, number of that node's output), or None where it is not wanted.

The engine relies on one rule: *edges lead to smaller sequence numbers*. So take the edges of the inputs first (that may
make new nodes: accumulators, nodes of views written in place) and the node's own number after.
"""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.autograd import accumulate
from tensorsmith.autograd.hooks import RemovableHandle, move_retained, new_hooks
from tensorsmith.tensor.tensor import Origin, Tensor

Edge = tuple["Node", int]

_sequence = itertools.count()


class Attachments:
    """What few nodes have: hooks, a dict for the user, the user's line."""

    __slots__ = ("tensor_hooks", "retained", "pre_hooks", "hooks", "metadata", "trace")

    def __init__(self) -> None:
        self.tensor_hooks: dict[int, dict[int, Callable]] | None = None  # by output number: hooks of that tensor
        self.retained: dict[int, weakref.ref[Tensor]] | None = None  # by output number: tensor that wants its gradient
        self.pre_hooks: dict[int, Callable] | None = None  # before `apply`: gradients of the outputs
        self.hooks: dict[int, Callable] | None = None  # after `apply`: gradients of inputs and outputs
        self.metadata: dict | None = None
        self.trace: Any = None  # lines of the forward call, in anomaly mode


class Node:
    """One recorded call. Subclasses say in `apply` how gradients flow back through it.

    edges:     where the gradient of every input goes
    sequence:  number of the call; the engine runs the highest first
    attached:  hooks and the like, or None
    """

    __slots__ = ("edges", "sequence", "attached", "__weakref__")

    edges: tuple[Edge | None, ...]
    sequence: int
    attached: Attachments | None
    output_count: int = 1
    accepts_missing: bool = False  # `apply` is also run where no output has a gradient

    def __init__(self, edges: tuple[Edge | None, ...] = ()) -> None:
        self.edges = edges
        self.sequence = next(_sequence)
        self.attached = None

    def apply(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        """Gradients of the inputs (as many as edges) from the gradients of the outputs; None is a zero gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def release(self) -> None:
        """Forget what was saved for the backward."""

    def name(self) -> str:
        """The name that PyTorch prints: AddBackward0 and so on."""
        return type(self).__name__

    def attach(self) -> Attachments:
        """The Attachments, made where there are none."""
        if self.attached is None:
            self.attached = Attachments()
        return self.attached

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """(node, output number) of every input, as PyTorch shows them."""
        return tuple(edge if edge is not None else (None, 0) for edge in self.edges)

    @property
    def metadata(self) -> dict:
        """A dict for the user."""
        attached = self.attach()
        if attached.metadata is None:
            attached.metadata = {}
        return attached.metadata

    @property
    def trace(self) -> Any:
        """The user's lines that made this node, in anomaly mode."""
        return self.attached.trace if self.attached is not None else None

    @trace.setter
    def trace(self, lines: Any) -> None:
        self.attach().trace = lines

    def register_hook(self, hook: Callable) -> RemovableHandle:
        """`hook(grad_inputs, grad_outputs)` after this node ran; what it returns (not None) replaces grad_inputs."""
        attached = self.attach()
        if attached.hooks is None:
            attached.hooks = new_hooks()
        return RemovableHandle.register(attached.hooks, hook)

    def register_prehook(self, hook: Callable) -> RemovableHandle:
        """`hook(grad_outputs)` before this node runs; what it returns (not None) replaces grad_outputs."""
        attached = self.attach()
        if attached.pre_hooks is None:
            attached.pre_hooks = new_hooks()
        return RemovableHandle.register(attached.pre_hooks, hook)

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"


class AccumulateGrad(Node):
    """The end of the road: adds the gradient into `variable.grad` of a leaf."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor) -> None:
        super().__init__(())
        self.variable = variable

    def apply(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        accumulate.into_leaf(self.variable, grads)
        return ()


def gradient_edge(tensor: Tensor) -> Edge | None:
    """Where the gradient of a tensor goes; None where it needs none."""
    if not tensor.layout.tracked:
        return None
    if tensor.base is not None and tensor.stamp != tensor.storage.version:
        derive_view_node(tensor)
    node = tensor.node
    if node is not None:
        return node, tensor.output_number
    if not accumulates(tensor):
        return None
    return accumulator(tensor), 0


def accumulates(tensor: Tensor) -> bool:
    """Whether a gradient that reaches this tensor is added into its `grad`: a leaf that was asked to.

    A view made under no_grad is tracked because its base is; nothing was recorded, so no gradient reaches anybody.
    """
    if not tensor.layout.tracked or tensor.node is not None:
        return False
    return tensor.base is None or (tensor.state is not None and tensor.state.own)


def accumulator(tensor: Tensor) -> AccumulateGrad:
    """The node that accumulates into a leaf; one lives as long as a graph refers to it."""
    state = tensor.state or tensor.ensure_state()
    reference = state.accumulator
    if reference is not None:
        found = reference()
        if found is not None:
            return found
    # Two threads may come here at once and make two: both accumulate into the same leaf, under its lock.
    made = AccumulateGrad.__new__(AccumulateGrad)
    made.edges = ()
    made.sequence = next(_sequence)
    made.attached = None
    made.variable = tensor
    state.accumulator = weakref.ref(made)
    return made


def derive_view_node(view: Tensor) -> None:
    """The node of a view after its base was written in place: the view as taken from the base as it is now.

    RuntimeError for a view whose origin forbids it.
    """
    base = view.base
    assert base is not None
    before = view.node
    if before is None and not base.layout.tracked:
        return
    if view.origin is not None:
        raise RuntimeError(origin_message(view, "its base or another view of its base has been"))
    _rules["view"](view)
    if view.state is not None and view.state.retains_grad:
        move_retained(view, before)


def rebase_history(target: Tensor, node: Node, number: int) -> None:
    """Make output `number` of `node` the history of a tensor that was written in place (of its base, for a view)."""
    owner = target if target.base is None else target.base
    before, was_tracked = owner.node, owner.layout.tracked
    if target.base is not None:
        _rules["rebase"](target, node, number)
    else:
        target.node = node
        target.output_number = number
        target.layout = target.layout.with_tracking(True)
    move_retained(owner, before)
    if not was_tracked:
        tell_views(owner, 1 if owner is target else 2)


def tell_views(owner: Tensor, tensors: int = 1) -> None:
    """Have the views of a tensor that has just become tracked, or is no longer, follow it.

    Nothing leads from a tensor to its views, so they are searched for among all objects there are, which takes long; but
    only where a view was made and the count of references says that more than `tensors` lie over the storage.
    """
    if not hasattr(owner, "viewed") or sys.getrefcount(owner.storage) <= tensors + 1:  # theirs, and the argument's
        return
    for view in gc.get_referrers(owner):
        if isinstance(view, Tensor) and view.base is owner and view.layout.dtype.kind in "fc":
            own = view.state is not None and view.state.own
            view.layout = view.layout.with_tracking(owner.layout.tracked or view.node is not None or own)


def origin_message(view: Tensor, what: str) -> str:
    """PyTorch's words where a view is written to that must not be (`what`: "is being")."""
    origin, node = view.origin, view.node
    assert origin is not None
    unrecorded = origin in (Origin.NO_GRAD, Origin.INFERENCE)
    if unrecorded or node is None:
        where = "inference mode" if origin is Origin.INFERENCE else "no_grad mode"
        made = f"Output {view.output_number} of {_short_name(node)} is a view of a view which was" if node else "A view was"
        mode = "in normal mode" if origin is Origin.INFERENCE else "with grad mode enabled"
        text = f"{made} created in {where} and {what} modified inplace {mode}."
    else:
        text = f"Output {view.output_number} of {_short_name(node)} is a view and {what} modified inplace."
    return f"{text} {_WHY_NOT[origin]}"


def _short_name(node: Node) -> str:
    """The name of the operator that a node belongs to: Split for SplitBackward0."""
    head, mark, tail = node.name().rpartition("Backward")
    return head if mark and (not tail or tail.isdigit()) else node.name()


_AMBIGUOUS = (
    "Given that this use case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving both the view "
    "and the inplace either both inside the {mode} block (if you don't want the inplace to be tracked) or both outside (if you "
    "want the inplace to be tracked)."
)
_WHY_NOT = {
    Origin.NO_GRAD: _AMBIGUOUS.format(mode="no_grad"),
    Origin.INFERENCE: _AMBIGUOUS.format(mode="inference_mode"),
    Origin.MULTIPLE: (
        "This view is the output of a function that returns multiple views. Such functions do not allow the output views to "
        "be modified inplace. You should replace the inplace operation by an out-of-place one."
    ),
    Origin.FUNCTION: (
        "This view was created inside a custom Function (or because an input was returned as-is) and the autograd logic to "
        "handle view+inplace would override the custom backward associated with the custom Function, leading to incorrect "
        "gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
    ),
}


def set_view_node_rule(rule: Callable[[Tensor], None]) -> None:
    """Install how `derive_view_node` works (called once by the room that executes operators)."""
    _rules["view"] = rule


def set_rebase_rule(rule: Callable[[Tensor, Node, int], None]) -> None:
    """Install how `rebase_history` works for views (called once by the room that executes operators)."""
    _rules["rebase"] = rule


def _no_rule(*args: Any) -> None:
    raise NotImplementedError("views of tensors written in place need the eager room")


_rules: dict[str, Callable[..., None]] = {"view": _no_rule, "rebase": _no_rule}
