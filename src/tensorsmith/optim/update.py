"""The update of one parameter as one kernel: an in-place operator that writes the parameter and its state.

An optimiser runs the same few kernels thousands of times a second on tensors that it owns, so the checks and the look-ups
of an ordinary in-place call are made once per combination of layouts and kept; a step is then one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.layout import Layout
from tensorsmith.core.views import Strided, covers_once
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.core.dtypes import float32
from tensorsmith.runtime import profiler
from tensorsmith.runtime.plan import build_plan
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

MOST_LAYOUTS = 4096


class FusedUpdate:
    """An update rule with its static choices.

    rule(*tensors, *numbers, **choices): nodes of the new values, one per entry of `writes`
    writes: which tensors are written
    Half types are computed in float32 and rounded once.
    """

    def __init__(self, name: str, rule: Callable[..., Sequence[Node]], writes: Sequence[int], tensors: int, **choices: Any) -> None:
        def widened(*operands: Node, **attrs: Any) -> Sequence[Node]:
            wide = [build.cast(x, float32) if x.dtype.itemsize < 4 and x.dtype.kind == "f" else x for x in operands]
            return rule(*wide, **attrs)

        self.operation = InplaceOperation(Operator(name, widened, pointwise=True), writes=writes)
        self.choices = choices
        self.writes = tuple(writes)
        self.tensors = tensors
        self.runs: dict[tuple, Callable[[Sequence[Tensor], tuple], None]] = {}

    def __call__(self, tensors: tuple[Tensor, ...], numbers: tuple[Any, ...]) -> None:
        """Run it. `numbers` are Python floats, or zero-dim tensors while a step is traced."""
        if modes.tracer is not None:
            self.operation(*tensors, *numbers, **self.choices)
            return
        key = tuple([t.layout for t in tensors])
        run = self.runs.get(key)
        if run is None:
            if len(self.runs) >= MOST_LAYOUTS:
                self.runs.clear()
            run = self.runs[key] = self._prepare(key, numbers)
        run(tensors, numbers)

    def _prepare(self, layouts: Sequence[Layout], numbers: tuple[Any, ...]) -> Callable[[Sequence[Tensor], tuple], None]:
        """The launch for tensors of these layouts."""
        operation, writes, choices = self.operation, self.writes, self.choices

        def ordinary(tensors: Sequence[Tensor], numbers: tuple) -> None:
            operation(*tensors, *numbers, **choices)

        targets = [layouts[i] for i in writes]
        if not all(covers_once(Strided(t.shape, t.strides)) for t in targets) or len({t.shape for t in layouts}) > 1:
            return ordinary  # which says what is wrong
        program = operation.program([*layouts, *(type(x) for x in numbers)], choices)
        inputs = [*(Strided(t.shape, t.strides) for t in layouts), *(None for _ in numbers)]
        plan = build_plan(program.graph, inputs, {k: Strided(t.shape, t.strides) for k, t in enumerate(targets)})
        buffers = [output.buffer for output in plan.outputs]
        if plan.single is None or plan.workspace_bytes or buffers != list(range(len(writes))):
            return ordinary
        if plan.tensor_inputs != list(range(self.tensors)):
            return ordinary
        from tensorsmith.targets.cpu.launch import launch

        address, params, first = plan.single.address, plan.params, self.tensors
        in_order = params == list(range(first, first + len(numbers)))

        def run(tensors: Sequence[Tensor], numbers: tuple) -> None:
            words = [t.ptr for t in tensors]
            for i in writes:
                words.append(words[i])
                tensors[i].storage.version += 1
            scalars = numbers if in_order else [numbers[i - first] for i in params]
            if profiler.active:
                plan.run([*words, *scalars])
                return
            code = launch(address, *words, *scalars)
            if code is not None:
                plan.fail(0, code)

        return run
