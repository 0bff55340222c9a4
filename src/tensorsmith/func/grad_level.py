"""The level of reverse-mode differentiation: operators run below, and are recorded on the wrappers.

The recorded nodes hold wrappers, their backward operators are called on wrappers and so run below too: whatever is there,
another gradient, vmap or forward mode, sees plain arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.autograd.node import Edge, gradient_edge
from tensorsmith.eager.inplace import InplaceOperation, check_operands, recording_entry
from tensorsmith.eager.operator import Operation
from tensorsmith.eager.record import recorder
from tensorsmith.func.custom import need_setup_context
from tensorsmith.func.levels import Level
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


class GradLevel(Level):
    """Records what happens to its wrappers. Grad mode is on inside; `no_grad` counts below it too, inside or outside."""

    title = "GradTrackingTensor"
    pulling = False  # gradients are being computed: they are results of this level, which need no record of their own

    def __enter__(self) -> GradLevel:
        if modes.saved_hooks:
            self.check_saved_hooks()
        super().__enter__()
        self.outer_grad, modes.grad = modes.grad, True
        return self

    def __exit__(self, *exc: object) -> None:
        modes.grad = self.outer_grad
        super().__exit__(*exc)

    def check_saved_hooks(self) -> None:
        raise RuntimeError("ts.func.{grad, vjp, jacrev, hessian} don't yet support saved tensor hooks.")

    def track(self, x: Tensor) -> Tensor:
        """A wrapper that gradients are wanted for: a leaf of this level."""
        wrapper = self.wrap(x)
        if wrapper.layout.dtype.kind in "fc":
            wrapper.layout = wrapper.layout.with_tracking(True)
        return wrapper

    def edge(self, x: Tensor) -> Edge | None:
        """Where the gradient of a wrapper goes at this level."""
        return gradient_edge(x) if self.owns(x) else None

    def below(self, function: Any, *args: Any) -> Any:
        """Call a function with the grad mode of the levels below."""
        before = modes.grad
        modes.grad = before and self.outer_grad
        try:
            return function(*args)
        finally:
            modes.grad = before

    def call(self, operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        kinds = self.kinds(operands)

        def run(*given: Any) -> Any:
            results = self.below(self.stack.call, operation, [self.lower(x) for x in given], attrs)
            return self.wrapped(results, given)

        needs = tuple([self.owns(x) and x.layout.tracked for x in operands])
        if not modes.grad or self.pulling or not any(needs):
            return run(*operands)
        program = operation.program(kinds, attrs)
        differentiable = tuple(node.dtype.kind in "fc" for node in program.graph.outputs)
        if not any(differentiable):
            return run(*operands)
        return recorder(program, run, needs, differentiable)(*operands)

    def call_inplace(self, operation: InplaceOperation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        def write(given: Sequence[Any]) -> None:
            self.below(self.stack.call_inplace, operation, [self.lower(x) for x in given], attrs)

        targets = [operands[i] for i in operation.writes]
        recorded = modes.grad and not self.pulling and any([self.owns(x) and x.layout.tracked for x in operands])
        if not recorded and not any([self.owns(t) for t in targets]):
            write(operands)
            return targets[0] if len(targets) == 1 else tuple(targets)
        for target in targets:
            self.adopt(target)
        kinds = self.kinds(operands)
        check_operands(operation, kinds, attrs)
        return recording_entry(operation, kinds, attrs, write)(*operands)

    def call_function(self, function: Any, arguments: Sequence[Any]) -> Any:
        need_setup_context(function)
        mode = modes.grad

        def run(node: Any) -> Any:
            lowered = [self.lower(x) for x in arguments]
            inside, modes.grad = modes.grad, mode and self.outer_grad
            try:
                results = function.apply(*lowered)
            finally:
                modes.grad = inside
            many = isinstance(results, tuple)
            given = {id(x): original for x, original in zip(lowered, arguments)}
            found = []
            for x in results if many else (results,):
                if id(x) in given and x.__class__ is Tensor:  # written over, and marked dirty
                    found.append(given[id(x)])
                else:
                    found.append(self.wrap(x, arguments) if isinstance(x, Tensor) else x)
            return tuple(found) if many else found[0]

        modes.grad = mode and not self.pulling
        try:
            return function._recorded(tuple(arguments), run, self.owns)
        finally:
            modes.grad = mode

    def adopt(self, target: Tensor) -> None:
        """Make a tensor from outside that is about to be written a wrapper of this level, with the one it is a view of."""
        if self.owns(target):
            return
        if target.base is not None:
            self.adopt(target.base)
        below = Tensor.__new__(Tensor)
        for name in ("layout", "storage", "ptr", "node", "output_number", "base", "state"):
            setattr(below, name, getattr(target, name))
        if target.base is not None:
            below.stamp, below.origin = target.stamp, target.origin
            below.base = self.lower(target.base)
            below.base.viewed = True
        if "below" in target.__dict__:
            below.layout.level.keep(below, target)
        wrapper = self.wrap(below)
        target.layout, target.node, target.output_number, target.state = wrapper.layout, None, 0, None
        if target.base is not None:
            target.stamp = target.storage.version
        self.keep(target, wrapper)
