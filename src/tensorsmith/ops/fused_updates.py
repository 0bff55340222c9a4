"""In-place operators over groups of tensors: the updates of all parameters by an optimiser, the clipping of all gradients.

They are run thousands of times a second on the same tensors, so the checks and look-ups of an ordinary in-place call are
made once per combination of layouts and kept. A step is then one native call, which launches the kernels of all parameters
one after the other (`fused_sequence.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from tensorsmith.core.dtypes import real_dtype
from tensorsmith.core.layout import Layout, layout_of
from tensorsmith.core.views import Strided, as_real, covers_once
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.complex_numbers import view_as_real
from tensorsmith.ops.fused_sequence import Launch, Sequenced
from tensorsmith.runtime import profiler
from tensorsmith.runtime.plan import Plan, build_plan
from tensorsmith.runtime.requests import KernelStep
from tensorsmith.tensor.modes import modes, no_grad
from tensorsmith.tensor.tensor import Tensor

MOST_LAYOUTS = 4096  # combinations of one parameter's layouts that are kept
MOST_SEQUENCES = 256  # the same for whole groups


class FusedUpdate:
    """An update rule with its static choices.

    rule(*tensors, *numbers, **choices): nodes of the new values, one per entry of `writes`
    writes: which tensors are written; tensors: how many there are
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
        self.launches: dict[tuple, Launch | None] = {}
        self.sequences: dict[tuple, Sequenced | None] = {}

    def __call__(self, tensors: Sequence[Tensor], numbers: tuple[Any, ...]) -> None:
        """Run it on one parameter. `numbers` are Python floats, or zero-dim tensors while a step is traced."""
        if modes.tracer is None:
            launch = self._launch(tuple([t.layout for t in tensors]), numbers)
            if launch is not None:
                for i in self.writes:
                    tensors[i].storage.version += 1
                launch([t.ptr for t in tensors], numbers)
                return
        if tensors[0].layout.dtype.is_complex:
            tensors = _in_real_parts(tensors)
        self.operation(*tensors, *numbers, **self.choices)

    def on_all(self, columns: Sequence[Sequence[Tensor]], numbers: tuple[float, ...]) -> None:
        """Run it on several parameters that take the same numbers, bit for bit as one after the other.

        columns: the parameters, their gradients, their first state tensors, ... in the order of one call.
        """
        tensors = list(chain.from_iterable(columns))
        layouts = tuple([t.layout for t in tensors])
        sequence = self.sequences.get(layouts)
        if sequence is None or modes.tracer is not None or profiler.active:
            for row in zip(*columns):
                self(row, numbers)
            self._note(layouts, len(columns[0]), numbers)
            return
        for i in self.writes:
            for tensor in columns[i]:
                tensor.storage.version += 1
        sequence([t.ptr for t in tensors], numbers)

    def _note(self, layouts: tuple[Layout, ...], rows: int, numbers: tuple[float, ...]) -> None:
        """Keep a sequence for a group that is met for the second time: groups may be another at every step."""
        if modes.tracer is not None or profiler.active:
            return
        if layouts not in self.sequences:
            if len(self.sequences) >= MOST_SEQUENCES:
                self.sequences.clear()
            self.sequences[layouts] = None
            return
        launches = [self._launch(layouts[row::rows], numbers) for row in range(rows)]
        found = [launch for launch in launches if launch is not None]
        if len(found) == rows:
            self.sequences[layouts] = Sequenced(found, self.tensors, len(numbers))

    def _launch(self, layouts: tuple[Layout, ...], numbers: tuple[Any, ...]) -> Launch | None:
        """The kernel for one parameter's layouts; None where the ordinary in-place call has to run, or say what is wrong."""
        try:
            return self.launches[layouts]
        except KeyError:
            if len(self.launches) >= MOST_LAYOUTS:
                self.launches.clear()
            launch = self.launches[layouts] = self._prepared(layouts, numbers)
            return launch

    def _prepared(self, given: Sequence[Layout], numbers: tuple[Any, ...]) -> Launch | None:
        layouts = [_of_real_parts(t) if t.dtype.is_complex else t for t in given]
        targets = [Strided(layouts[i].shape, layouts[i].strides) for i in self.writes]
        if not all(covers_once(t) for t in targets) or len({(t.shape, t.device) for t in layouts}) > 1:
            return None
        program = self.operation.program([*layouts, *(type(x) for x in numbers)], self.choices)
        inputs = [*(Strided(t.shape, t.strides) for t in layouts), *(None for _ in numbers)]
        plan = build_plan(program.graph, inputs, dict(enumerate(targets)), device=layouts[0].device)
        plan.name = self.operation.operator.name
        # Words of a plan: tensors, outputs by their buffers, numbers; a kernel takes them in its own order.
        words = [*plan.tensor_inputs, *(self.writes[i] for i in _order(plan)), *plan.params]
        if not plan.steps:  # nothing to compute for tensors without elements
            return Launch(plan, words, None, ())
        only = plan.steps[0]
        if len(plan.steps) > 1 or not isinstance(only, KernelStep) or plan.workspace_bytes or plan.complex_params:
            return None
        if any(offset for _, offset in only.sources):
            return None
        return Launch(plan, words, only, tuple([words[word] for word, _ in only.sources]))


@no_grad()
def _in_real_parts(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same memory as real numbers: the parts of a complex parameter are updated as two real parameters."""
    return tuple([view_as_real(t) for t in tensors])


def _of_real_parts(layout: Layout) -> Layout:
    """The layout of the same memory as real numbers."""
    seen = as_real(Strided(layout.shape, layout.strides))
    return layout_of(real_dtype(layout.dtype), seen.shape, seen.strides, layout.tracked, layout.device)


def _order(plan: Plan) -> list[int]:
    """Outputs in the order of the plan's new buffers."""
    return sorted(range(len(plan.outputs)), key=lambda k: plan.outputs[k].buffer)
