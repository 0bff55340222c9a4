"""What a node saved, under PyTorch's names: `y.grad_fn._saved_self`, for programs that draw or inspect a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorsmith.ir.vjp import Saved

if TYPE_CHECKING:
    from tensorsmith.eager.record import OperatorNode

# Names of the operands where they are not self and other.
_OPERANDS = {
    "PowBackward0": ("self", "exponent"), "MmBackward0": ("self", "mat2"), "BmmBackward0": ("self", "mat2"),
    "MvBackward0": ("self", "vec"), "DotBackward0": ("self", "tensor"), "AddmmBackward0": ("self", "mat1", "mat2"),
    "AddcmulBackward0": ("self", "tensor1", "tensor2"), "AddcdivBackward0": ("self", "tensor1", "tensor2"),
    "WhereBackward0": ("condition", "self", "other"), "LerpBackward0": ("self", "end", "weight"),
    "LinearBackward0": ("input", "weight", "bias"),
}  # fmt: skip


def saved_names(node: OperatorNode) -> dict[str, Saved]:
    """What the node saved, by attribute name."""
    operands = _OPERANDS.get(node.name(), ("self", "other"))
    found = {}
    for which in node.table:
        if which.kind == "output":
            name = "result" if which.number == 0 else f"result{which.number}"
        else:
            name = operands[which.number] if which.number < len(operands) else f"operand{which.number}"
        found[f"_saved_{name}"] = which
    return found


def saved_attribute(node: OperatorNode, name: str) -> Any:
    """The value of `node._saved_...`.

    Raises AttributeError, naming what there is, for what the node did not save; RuntimeError after the buffers were freed, and
    where the value was written over since.
    """
    names = saved_names(node) if name.startswith("_saved_") else {}
    which = names.get(name)
    if which is None:
        there = f"; it saved {', '.join(names)}" if names else ""
        raise AttributeError(f"'{node.name()}' object has no attribute '{name}'{there}")
    return node.saved_values([which])[0]
