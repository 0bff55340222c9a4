"""`@ts.elementwise`: a scalar function in Python becomes an operator on tensors.

    @ts.elementwise
    def swish(x):
        return x * ts.scalar.sigmoid(x)

The function is lifted once to an expression of the scalar table. From that expression come the eager operator, its gradient
(and the gradient of that), the kernels of every target, and its row in the table of operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

from tensorsmith.eager.operator import Operator
from tensorsmith.ir.graph import Node
from tensorsmith.ops.pointwise import as_operand
from tensorsmith.ops.registry import TABLE, Public
from tensorsmith.scalar.expression import Expr, arity, derivative, evaluate
from tensorsmith.scalar.lift import lift
from tensorsmith.tensor.tensor import Tensor


class Elementwise:
    """A lifted scalar function, called on tensors and numbers that broadcast.

    expression: what was lifted; operator: the operator made of it
    """

    def __init__(self, function: Callable[..., Any], name: str, count: int | None) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name = name
        self.expression: Expr = lift(function, count)
        self.arity = arity(self.expression) if count is None else count
        partials: dict[int, Expr] = {}

        def build(*nodes: Any) -> Node:
            return evaluate(self.expression, nodes)

        def vjp(inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node]) -> list[Node | None]:
            # The whole expression is differentiated per input, so that the side of a branch that is not taken cannot
            # leak a NaN into the gradient.
            found: list[Node | None] = []
            for number, node in enumerate(inputs):
                if node.dtype.kind not in "fc":
                    found.append(None)
                    continue
                if number not in partials:
                    partials[number] = derivative(self.expression, number)
                found.append(grads[0] * evaluate(partials[number], inputs))
            return found

        self.operator = Operator(name, build, vjp, pointwise=True)
        documentation = (function.__doc__ or "").strip().splitlines()
        TABLE[name] = Public(name, self, "custom", method=False, kind="kernel")
        self.summary = documentation[0] if documentation else f"{name}: {self.expression}"

    def __call__(self, *args: Any) -> Tensor:
        operands = []
        for position, value in enumerate(args):
            operand = as_operand(value)
            if operand is None:
                raise TypeError(
                    f"{self.name}(): argument {position + 1} must be a Tensor or a number, not {type(value).__name__}"
                )
            operands.append(operand)
        if not any(isinstance(x, Tensor) for x in operands):
            from tensorsmith.ops.creation import tensor

            operands[0] = tensor(operands[0])
        return self.operator(*operands)

    def __repr__(self) -> str:
        return f"<elementwise {self.name}: {self.expression}>"


@overload
def elementwise(function: Callable[..., Any]) -> Elementwise: ...
@overload
def elementwise(
    *, name: str | None = None, arity: int | None = None
) -> Callable[[Callable[..., Any]], Elementwise]: ...


def elementwise(
    function: Callable[..., Any] | None = None, *, name: str | None = None, arity: int | None = None
) -> Any:
    """Make an operator of a scalar function; as a decorator, with or without arguments.

    name:  of the operator, by default the function's
    arity: number of tensor arguments, by default the parameters without a default value
    Raises LiftError at the user's line for what has no expression (a loop on a value, an unknown call).

    >>> @ts.elementwise
    ... def swish(x):
    ...     return x * ts.scalar.sigmoid(x)
    >>> swish(ts.tensor([0.0, 1.0]))
    tensor([0.0000, 0.7311])
    """
    if function is None:
        return lambda given: Elementwise(given, name or given.__name__, arity)
    return Elementwise(function, name or function.__name__, arity)
