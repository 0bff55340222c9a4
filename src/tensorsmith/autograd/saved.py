"""Tensors kept for a backward: with the version they had, without reference cycles, through the user's pack hooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tensorsmith.core.dtypes import type_name
from tensorsmith.core.layout import Layout
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor, alias_of, make_tensor

if TYPE_CHECKING:
    from tensorsmith.autograd.node import Node

FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


def tensor_type_name(layout: Layout) -> str:
    """PyTorch's name of a tensor's type: tensorsmith.FloatTensor."""
    return f"tensorsmith.{type_name(layout.dtype)}Tensor"


def modified_message(layout: Layout, version: int, expected: int, saver: str) -> str:
    """PyTorch's words for a saved tensor that was written in place."""
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor_type_name(layout)} {list(layout.shape)}], which was saved by {saver}, is at version {version}; expected "
        f"version {expected} instead. Hint: enable anomaly detection to find the operation that failed to compute its "
        "gradient, with tensorsmith.autograd.set_detect_anomaly(True)."
    )


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Count a write that autograd cannot see, so that what saved the tensor notices it."""
    for each in (tensor,) if isinstance(tensor, Tensor) else tensor:
        each.storage.version += 1


class SavedTensor:
    """One tensor kept by a node.

    An output of the node itself is kept as bare memory: the tensor would keep the node alive, and the node the tensor.
    Under `saved_tensors_hooks` the values are whatever the hook made of them; their place in the graph is kept beside.
    """

    __slots__ = ("tensor", "storage", "ptr", "layout", "version", "output", "unpack", "edge", "alias")

    def __init__(self, tensor: Tensor, output: int | None) -> None:
        """Keep `tensor`; `output` is its number where the keeping node made it."""
        self.output = output
        self.layout = tensor.layout
        self.ptr = tensor.ptr
        self.storage: Any = tensor.storage
        self.version = tensor.storage.version
        self.tensor: Any = tensor if output is None else None
        self.alias: Any = None  # of an output that is the wrapper of a transform: bare memory would not say of what
        if output is not None and tensor.layout.level is not None:
            self.alias = alias_of(tensor, tensor.layout.tracked)
        self.unpack: Any = None
        self.edge: Any = None
        if modes.saved_hooks:
            from tensorsmith.autograd.node import gradient_edge

            pack, self.unpack = modes.saved_hooks[-1]
            self.edge = gradient_edge(tensor) if output is None else None
            given = tensor
            if output is not None:  # an alias: the tensor that the user holds must not live on here
                given = alias_of(tensor, tensor.layout.tracked)
                given.node, given.output_number = tensor.node, output
            before, modes.grad = modes.grad, False
            try:
                self.tensor = pack(given)
            finally:
                modes.grad = before
            if self.storage.version != self.version:
                raise RuntimeError(
                    "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook "
                    "can not be modified by in-place operations as this can lead to unexpected side-effects."
                )
            self.storage = None  # the hook may have moved the values elsewhere

    def get(self, node: Node) -> Tensor:
        """The tensor again, as part of the graph. RuntimeError where it was written in place meanwhile."""
        if self.unpack is None:
            if self.storage.version != self.version:
                raise RuntimeError(modified_message(self.layout, self.storage.version, self.version, node.name()))
            if self.output is None:
                return self.tensor
            if self.alias is not None:
                over = self.alias.layout.level is not self.layout.level
                if over and (self.alias.node is not None or not self.alias.layout.tracked):
                    return self.alias  # the transform is over: what the wrapper stood for is left, with its own history
                made = alias_of(self.alias, self.layout.tracked)
            else:
                made = make_tensor(self.layout, self.storage, self.ptr)
        else:
            found = self.unpack(self.tensor)
            if not isinstance(found, Tensor):
                raise TypeError(
                    f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type {type(found)}"
                )
            made = alias_of(found, self.layout.tracked)
        if self.layout.tracked:
            made.node, made.output_number = (node, self.output) if self.output is not None else self.edge
        return made
