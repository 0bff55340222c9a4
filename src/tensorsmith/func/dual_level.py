"""The level of forward-mode differentiation: every operator also runs on tangents.

A wrapper is a *dual*: what it stands for is its primal, and beside it lies the tangent, both tensors of lower levels. An
operator runs on the primals, and the operator of its tangents (`ir/jvp.py`) on what that needs of them. Both reach the levels
below, which see plain arithmetic: so a tangent can be differentiated, batched or pushed forward itself, and tangents of
different levels do not mix.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.autograd.forward_ad import check_dual
from tensorsmith.autograd.node import gradient_edge
from tensorsmith.core.layout import Layout, layout_of
from tensorsmith.core.views import Strided, covers_once, may_overlap_itself
from tensorsmith.eager import dispatch
from tensorsmith.eager.inplace import InplaceOperation, check_operands, recording_entry
from tensorsmith.eager.operator import Kind, Operation
from tensorsmith.eager.record import recorder
from tensorsmith.func.dual_function import call_function
from tensorsmith.func.levels import Level, become, view_below
from tensorsmith.ops.inplace import copy_operation
from tensorsmith.tensor.modes import modes, no_grad
from tensorsmith.tensor.printing import with_suffix
from tensorsmith.tensor.tensor import Tensor, alias_of, make_view


class Cell:
    """The tangent of a dual, shared by all tensor objects that are this dual; None for zero."""

    __slots__ = ("tangent",)

    def __init__(self, tangent: Tensor | None) -> None:
        self.tangent = tangent


class DualLevel(Level):
    """Duals and what happens to them.

    records: reverse mode records the duals themselves, once, so that gradients of duals are duals (`autograd.forward_ad`).
        Otherwise the levels below record primals and tangents as they meet them (`func.jvp`).
    """

    title = "DualTensor"

    def __init__(self, records: bool = False) -> None:
        super().__init__()
        self.records = records
        self.refuses_backward = not records
        self.muted = False

    # --- duals ------------------------------------------------------------------------------------------------------

    def dual(self, primal: Tensor, tangent: Tensor | None, operands: Sequence[Any] = ()) -> Tensor:
        """A new dual; its tangent lies in memory as its primal does, so that whatever is a view of one is one of the other."""
        found = self.wrap(primal, operands)
        found.__dict__["dual"] = Cell(None)
        if tangent is not None:
            self.set_tangent(found, tangent)
        return found

    def set_tangent(self, dual: Tensor, tangent: Tensor) -> None:
        if tangent.layout.strides != dual.layout.strides and tangent.layout.level is None:
            tangent = _laid_out_as(tangent, dual.layout)
        dual.__dict__["dual"].tangent = tangent

    def tangent(self, x: Any) -> Tensor | None:
        """The tangent of a dual of this level; None for a zero tangent and for what is no dual."""
        if self.muted or not self.owns(x):
            return None
        return x.__dict__["dual"].tangent

    def primal(self, x: Any) -> Any:
        """The primal of a dual as part of the graph that the dual is part of; anything else as it is."""
        if not self.owns(x):
            return x
        below = self.lower(x)
        if not x.layout.tracked:
            return below
        found = alias_of(below, True)
        edge = gradient_edge(x)
        assert edge is not None
        found.node, found.output_number = edge
        return found

    def make(self, tensor: Tensor, tangent: Tensor) -> Tensor:
        """A dual that is a view of `tensor`. Raises what `check_dual` raises, RuntimeError for a dual of this level."""
        check_dual(tensor, tangent)
        if self.owns(tensor) and self.tangent(tensor) is not None:
            raise RuntimeError(
                "Making a dual Tensor based on a Tensor that already has a forward gradient at the same level is not supported."
            )
        if self.owns(tangent) and self.tangent(tangent) is not None:
            raise RuntimeError(
                "Setting a forward grad that itself has a forward gradient at the same level is not supported. Take its primal "
                "with unpack_dual first."
            )
        seen = tensor.view(tensor.layout.shape)
        below = alias_of(seen, False) if self.records else seen
        found = self.dual(below, tangent)
        found.base = tensor if tensor.base is None else tensor.base
        found.base.viewed = True
        found.stamp = tensor.storage.version
        if self.records and seen.layout.tracked:
            found.layout = found.layout.with_tracking(True)
            found.node, found.output_number = seen.node, seen.output_number
        return found

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Primal and tangent, neither a dual of this level."""
        return self.primal(x), self.tangent(x)

    def keep(self, copy: Tensor, wrapper: Tensor) -> None:
        super().keep(copy, wrapper)
        copy.__dict__["dual"] = wrapper.__dict__["dual"]

    def detach(self, wrapper: Tensor) -> Tensor:
        """Without tangent, as in PyTorch."""
        return self.lower(wrapper).detach()

    def view(self, wrapper: Tensor, layout: Layout, offset: int) -> Tensor:
        plain = self.layout_below(wrapper, layout)
        tangent = self.tangent(wrapper)
        seen = None if tangent is None else _same_place(tangent, wrapper.layout, plain, offset)
        return self.dual(view_below(self.lower(wrapper), plain, offset), seen, (wrapper,))

    def text(self, wrapper: Tensor) -> str:
        """As its primal, with the tangent."""
        tangent, text = self.tangent(wrapper), repr(self.primal(wrapper))
        return text if tangent is None else with_suffix(text, f"tangent={tangent!r}")

    def abandon(self, wrapper: Tensor) -> None:
        """The tangent is gone; what was recorded stays."""
        below = self.lower(wrapper)
        del wrapper.__dict__["dual"]
        if not self.records:
            become(wrapper, below)
            return
        wrapper.layout = below.layout.with_tracking(wrapper.layout.tracked)
        del wrapper.__dict__["below"]
        if below.layout.level is not None:
            below.layout.level.keep(wrapper, below)

    # --- operators --------------------------------------------------------------------------------------------------

    def kinds(self, operands: Sequence[Any]) -> list[Kind]:
        return [dispatch.kind_of(x) for x in operands] if self.records else super().kinds(operands)

    def call(self, operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        program = operation.program(self.kinds(operands), attrs)
        moves = tuple([self.tangent(x) is not None for x in operands])

        def run(*given: Any) -> Any:
            results = self.below(operation, given, attrs)
            if not any(moves):
                return results
            if isinstance(results, Tensor):
                return self.dual(results, None, given)
            return tuple([self.dual(x, None, given) for x in results])

        needs = tuple([isinstance(x, Tensor) and x.layout.tracked for x in operands])
        differentiable = tuple(node.dtype.kind in "fc" for node in program.graph.outputs)
        if self.records and modes.grad and any(needs) and any(differentiable):
            found = recorder(program, run, needs, differentiable)(*operands)
        else:
            found = run(*operands)
        if not any(moves):
            return found
        results = [found] if isinstance(found, Tensor) else list(found)
        tangents = self.push(operation, program, operands, results, attrs)
        for number, (result, tangent) in enumerate(zip(results, tangents)):
            if tangent is not None:
                self.set_tangent(result, tangent)
            else:
                results[number] = self.primal(result)
        return results[0] if isinstance(found, Tensor) else tuple(results)

    def below(self, operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Run an operation on primals; unrecorded where the duals are recorded."""
        lowered = [self.lower(x) for x in operands]
        if not self.records:
            return self.stack.call(operation, lowered, attrs)
        with no_grad():
            return self.stack.call(operation, lowered, attrs)

    def push(
        self, operation: Operation, program: Any, operands: Sequence[Any], results: Sequence[Tensor] | None,
        attrs: dict[str, Any],
    ) -> list[Tensor | None]:  # fmt: skip
        """The tangents of results; None for `results` where they are not there yet."""
        tangents = [self.tangent(x) for x in operands]
        if results is not None and tangents[0] is not None and results[0].storage is operands[0].storage:
            # A view of the first operand. The tangent's is the same view, of the same memory as the operand's tangent.
            moved = self.stack.call(operation, [tangents[0], *[self.primal(x) for x in operands[1:]]], attrs)
            return [moved] if isinstance(moved, Tensor) else list(moved)
        forward = program.forward(tuple([t is not None for t in tangents]), results is not None)
        if not forward.computes:
            return [None] * len(forward.results)
        given = [self.primal(operands[s.number] if s.kind == "input" else results[s.number]) for s in forward.saved]  # type: ignore[index]
        for i in forward.tangents:
            tangent = tangents[i]
            assert tangent is not None
            given.append(tangent if tangent.layout.dtype is operands[i].layout.dtype else tangent.to(operands[i].layout.dtype))
        moved = self.stack.call(forward, given, {})
        moved = (moved,) if isinstance(moved, Tensor) else moved
        return [None if place is None else moved[place] for place in forward.results]

    # --- writing in place -------------------------------------------------------------------------------------------

    def call_inplace(self, operation: InplaceOperation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        program = operation.program(self.kinds(operands), attrs)
        targets = [operands[i] for i in operation.writes]
        moving = any([self.tangent(x) is not None for x in operands])
        tangents = self.push(operation, program, operands, None, attrs) if moving else [None] * len(targets)

        def write(given: Sequence[Any]) -> None:
            lowered = [self.lower(x) for x in given]
            if self.records:
                with no_grad():
                    self.stack.call_inplace(operation, lowered, attrs)
            else:
                self.stack.call_inplace(operation, lowered, attrs)

        for target, tangent in zip(targets, tangents):
            if tangent is not None:
                self.adopt(target)
        if self.records and modes.grad and any([isinstance(x, Tensor) and x.layout.tracked for x in operands]):
            kinds = self.kinds(operands)
            check_operands(operation, kinds, attrs)
            recording_entry(operation, kinds, attrs, write)(*operands)
        else:
            write(operands)
        for target, tangent in zip(targets, tangents):
            self.write_tangent(target, tangent)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def write_tangent(self, target: Tensor, tangent: Tensor | None) -> None:
        """Make `tangent` the tangent of what was just written, in the memory of the old one: views share it."""
        before = self.tangent(target)
        if before is None:
            if tangent is not None:
                self.set_tangent(target, tangent)
        elif tangent is None:
            self.stack.call_inplace(copy_operation, (before, 0), {})
        elif _holds(before, tangent):
            self.stack.call_inplace(copy_operation, (before, tangent), {})
        else:
            self.set_tangent(target, tangent)

    def adopt(self, target: Tensor) -> None:
        """Make a tensor that a dual is about to be written to a dual; for a view its base, which it then moves with."""
        if self.owns(target):
            if self.tangent(target) is None and target.base is not None:
                self.adopt_view(target)
            return
        below = alias_of(target, target.layout.tracked and not self.records)
        below.node, below.output_number, below.state = target.node, target.output_number, target.state
        if target.base is not None:
            self.adopt(target.base)
            below.base, below.stamp = self.lower(target.base), target.stamp
        tracked = target.layout.tracked and self.records
        target.layout = self.layout_over(below.layout).with_tracking(tracked)
        if not self.records:
            target.node, target.output_number, target.state = None, 0, None
        target.__dict__["below"], target.__dict__["dual"] = below, Cell(None)
        self.made.append(weakref.ref(target))
        if target.base is not None:
            self.adopt_view(target)

    def adopt_view(self, target: Tensor) -> None:
        """Give a view the tangent that the same place of its base has, which starts as zero."""
        base = target.base
        assert base is not None
        if not self.owns(base):
            return
        if self.tangent(base) is None:
            base.__dict__["dual"].tangent = _zeros_like(self.lower(base))
        offset = (target.ptr - base.ptr) // target.layout.dtype.itemsize
        tangent = self.tangent(base)
        assert tangent is not None
        plain = self.layout_below(target, target.layout)
        target.__dict__["dual"].tangent = _same_place(tangent, base.layout, plain, offset)

    # --- custom functions -------------------------------------------------------------------------------------------

    def call_function(self, function: Any, arguments: Sequence[Any]) -> Any:
        return call_function(self, function, arguments)

    @contextlib.contextmanager
    def mute(self) -> Iterator[None]:
        """Duals have no tangents: as the `forward` of a custom Function sees them."""
        before, self.muted = self.muted, True
        try:
            yield
        finally:
            self.muted = before


def _laid_out_as(tangent: Tensor, layout: Layout) -> Tensor:
    """The tangent with the strides of its primal; as it is where elements of that share memory."""
    if may_overlap_itself(Strided(layout.shape, layout.strides)):
        return tangent
    wanted = layout_of(tangent.layout.dtype, layout.shape, layout.strides, device=layout.device)
    if covers_once(Strided(layout.shape, layout.strides)):
        return arithmetic.clone(tangent, wanted)
    flat = arithmetic.zeros(layout_of(wanted.dtype, (wanted.extent,), device=wanted.device))  # with the primal's gaps
    return arithmetic.copy_(make_view(flat, wanted, 0), tangent)


def _same_place(tangent: Tensor, primal: Layout, view: Layout, offset: int) -> Tensor:
    """The view of a tangent that lies in it as a view of the primal lies in that."""
    start = tangent.storage_offset() + offset
    inside = start >= 0 and (start + view.extent) * view.dtype.itemsize <= tangent.storage.nbytes
    if tangent.layout.strides != primal.strides or (tangent.layout.level is None and not inside):
        raise NotImplementedError(
            f"forward mode: a view of shape {view.shape}, strides {view.strides} at {offset} of a dual whose tangent lies "
            f"otherwise in memory (strides {tangent.layout.strides} instead of {primal.strides}, or fewer elements)"
        )
    return view_below(tangent, view, offset)


def _zeros_like(primal: Tensor) -> Tensor:
    """Zeros that lie in memory as a primal does."""
    return arithmetic.zeros(primal.layout.with_tracking(False))


def _depth(x: Tensor) -> int:
    return 0 if x.layout.level is None else x.layout.level.depth


def _holds(target: Tensor, value: Tensor) -> bool:
    """Whether a value can be written into a tensor: its level is no higher (one value does not hold one per example)."""
    return _depth(value) <= _depth(target)
