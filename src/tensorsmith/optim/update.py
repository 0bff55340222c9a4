"""The update of one parameter as one kernel: an in-place operator that writes the parameter and its state.

An optimiser runs the same few kernels thousands of times a second on tensors that it owns, so the checks and look-ups
of an ordinary in-place call are made once per combination of layouts and kept; a step is then one launch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.layout import Layout
from tensorsmith.core.views import Strided, covers_once
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.complex_numbers import view_as_real
from tensorsmith.runtime import profiler
from tensorsmith.runtime.plan import Plan, build_plan
from tensorsmith.runtime.steps import KernelStep
from tensorsmith.tensor.modes import modes, no_grad
from tensorsmith.tensor.tensor import Tensor

MOST_LAYOUTS = 4096

Run = Callable[[Sequence[Tensor], tuple], None]


class FusedUpdate:
    """An update rule with its static choices.

    rule(*tensors, *numbers, **choices): nodes of the new values, one per entry of `writes`
    writes: which tensors are written; tensors: how many there are, the parameter first
    Half types are computed in float32 and rounded once. Complex tensors are updated as pairs of real numbers.
    """

    def __init__(
        self, name: str, rule: Callable[..., Sequence[Node]], writes: Sequence[int], tensors: int, **choices: Any
    ) -> None:
        def widened(*operands: Node, **attrs: Any) -> tuple[Node, ...]:
            wide = [build.wide(x) for x in operands]
            # Behind a cast of its own no new value is read by the formula of another: all are roots of one kernel.
            return tuple(
                node.graph.add(Primitive.CAST, (node,), dtype=operands[i].dtype)
                for i, node in zip(writes, rule(*wide, **attrs))
            )

        self.operation = InplaceOperation(Operator(name, widened, pointwise=True), writes=writes)
        self.choices = choices
        self.writes = tuple(writes)
        self.tensors = tensors
        self.runs: dict[tuple, Run] = {}

    def __call__(self, tensors: tuple[Tensor, ...], numbers: tuple[Any, ...]) -> None:
        """Run it. `numbers` are Python floats, or zero-dim tensors while a step is traced."""
        if modes.tracer is not None:
            if tensors[0].layout.dtype.is_complex:
                tensors = _in_real_parts(tensors)
            self.operation(*tensors, *numbers, **self.choices)
            return
        key = tuple([t.layout for t in tensors])
        run = self.runs.get(key)
        if run is None:
            if len(self.runs) >= MOST_LAYOUTS:
                self.runs.clear()
            run = self.runs[key] = self._prepare(key, numbers)
        run(tensors, numbers)

    def _prepare(self, layouts: Sequence[Layout], numbers: tuple[Any, ...]) -> Run:
        """The launch for tensors of these layouts."""
        operation, writes, choices = self.operation, self.writes, self.choices
        if layouts[0].dtype.is_complex:
            return lambda tensors, numbers: self(_in_real_parts(tensors), numbers)

        def ordinary(tensors: Sequence[Tensor], numbers: tuple) -> None:
            operation(*tensors, *numbers, **choices)

        targets = [Strided(layouts[i].shape, layouts[i].strides) for i in writes]
        if not all(covers_once(t) for t in targets) or len({t.shape for t in layouts}) > 1:
            return ordinary  # which says what is wrong
        program = operation.program([*layouts, *(type(x) for x in numbers)], choices)
        inputs = [*(Strided(t.shape, t.strides) for t in layouts), *(None for _ in numbers)]
        plan = build_plan(program.graph, inputs, dict(enumerate(targets)))
        plan.name = operation.operator.name
        only = plan.steps[0] if len(plan.steps) == 1 else None
        if not isinstance(only, KernelStep) or plan.workspace_bytes or any(offset for _, offset in only.sources) or (
            plan.complex_params
        ):
            return ordinary
        from tensorsmith.targets.cpu.launch import launch

        # Words of a plan: tensors, outputs by their buffers, numbers; a kernel takes them in its own order.
        given = [*plan.tensor_inputs, *(writes[i] for i in _order(plan)), *plan.params]
        pick = operator.itemgetter(*(given[word] for word, _ in only.sources))
        address = only.recipe.address

        def run(tensors: Sequence[Tensor], numbers: tuple) -> None:
            words = [t.ptr for t in tensors]
            words += numbers
            for i in writes:
                tensors[i].storage.version += 1
            if profiler.active:
                plan.run([words[i] for i in given])
                return
            code = launch(address, *pick(words))
            if code is not None:
                plan.fail(0, code, [words[i] for i in given])

        return run


@no_grad()
def _in_real_parts(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same memory as real numbers: the parts of a complex parameter are updated as two real parameters."""
    return tuple([view_as_real(t) for t in tensors])


def _order(plan: Plan) -> list[int]:
    """Outputs in the order of the plan's new buffers."""
    return sorted(range(len(plan.outputs)), key=lambda k: plan.outputs[k].buffer)


def direction(param: Node, grad: Node, weight_decay: Node, *, maximize: bool, decayed: bool) -> Node:
    """The gradient to follow: turned round to maximise, with the parameter's share where it decays."""
    grad = -grad if maximize else grad
    return grad + weight_decay * param if decayed else grad
