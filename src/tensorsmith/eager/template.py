"""Entries written out: the source text of the closure for one operator call, with every loop unrolled.

Eager speed is decided in these few lines, and they differ for every call in what they pass on, save and link. So they are
generated, as `dataclasses` generates `__init__`: the text is built from the plan, compiled once per distinct text, and can be
printed (`entry.source`). Covered are the two commonest shapes of a call, a few launches into one new output and one view;
everything else takes the general closures of `entries.py` and `record.py`.

The text of `x * y` for an x that is tracked:

    def entry(a0, a1):
        try:
            ptr = pop()
        except IndexError:
            ptr = allocate(nbytes)
        storage = new(Storage)
        ...
        code = launch(recipe0, a0.ptr, a1.ptr, ptr)
        if code is not None:
            fail(0, code, (a0.ptr, a1.ptr, ptr))
        tensor = new(Tensor)
        ...
        if modes.grad:
            node = new(OperatorNode)
            node.edges = (gradient_edge(a0), None)
            node.saved = (a1,)
            node.versions = (a1.storage.version,)
            ...
        return tensor
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from tensorsmith.autograd.node import _sequence, gradient_edge
from tensorsmith.core.device import CPU
from tensorsmith.core.layout import Layout
from tensorsmith.eager.operator import Operation, Program
from tensorsmith.eager.record import OperatorNode, ViewNode, note_user_line, save
from tensorsmith.runtime.plan import Plan
from tensorsmith.runtime.requests import KernelStep
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.storage import current_place, storage_type
from tensorsmith.tensor.tensor import Tensor, unrecorded_origin

_codes: dict[str, CodeType] = {}


def launch_entry(
    plan: Plan, steps: Sequence[KernelStep], is_tensor: Sequence[bool], layout: Layout, nbytes: int,
    program: Program | None, needs: tuple[bool, ...], again: Callable[[Sequence[Any]], Any],
) -> Callable[..., Tensor]:  # fmt: skip
    """The entry of a plan of launches, mostly one, into one new output.

    program: what to record, None for nothing.
    again: makes the call with operands of which an int has more than 63 bits.
    """
    from tensorsmith.targets.cpu.launch import launch
    from tensorsmith.targets.cpu.memory import allocate, free_list

    operand_of_word = [*(f"a{i}.ptr" for i in plan.tensor_inputs), "ptr"]
    for i in plan.params:
        operand_of_word += [f"a{i}.real", f"a{i}.imag"] if i in plan.complex_params else [f"a{i}"]
    launched: list[str] = []
    for number, step in enumerate(steps):
        given = ", ".join(operand_of_word[w] + (f" + {o}" if o else "") for w, o in step.sources)
        line = f"code = launch(recipe{number}, {given})"
        if plan.params:
            operands = "".join(f"a{i}, " for i in range(len(is_tensor)))
            launched += ["try:", f"    {line}", "except OverflowError:", f"    return again(({operands}))"]
        else:
            launched.append(line)
        launched += ["if code is not None:", f"    fail({number}, code, ({', '.join(operand_of_word)},))"]
    free: list[int] = []
    place: Any = None
    if plan.device is CPU:
        free = free_list(nbytes)
        memory = ["try:", "    ptr = pop()"]
    else:  # whose free list depends on the current stream
        allocate, place = storage_type(plan.device).allocate, current_place(nbytes, plan.device)
        memory = ["free = place.free", "try:", "    ptr = free.pop()"]
    body = [
        *memory,
        "except IndexError:",
        "    ptr = allocate(nbytes)",
        "storage = new(Storage)",
        "storage.ptr = ptr",
        "storage.nbytes = nbytes",
        "storage.free = free",
        "storage.version = 0",
        *launched,
        "tensor = new(Tensor)",
        "tensor.ptr = ptr",
        "tensor.storage = storage",
        "tensor.output_number = 0",
        "tensor.base = None",
        "tensor.state = None",
    ]
    names = {
        "pop": free.pop, "free": free, "place": place, "allocate": allocate, "nbytes": nbytes,
        "Storage": storage_type(plan.device), "launch": launch, "keep": steps,
        "fail": plan.fail, "again": again, "layout": layout, "new": object.__new__, "Tensor": Tensor,
        **{f"recipe{number}": step.recipe.address for number, step in enumerate(steps)},
    }  # fmt: skip
    return _finish(body, len(is_tensor), names, layout, program, needs)


def view_entry(
    count: int, source: int, layout: Layout, offset_bytes: int, program: Program | None, needs: tuple[bool, ...],
    recorded: tuple[Operation, Layout, dict[str, Any]] | None = None,
) -> Callable[..., Tensor]:  # fmt: skip
    """The entry of a call whose result is a view of operand number `source`.

    recorded: operation, layout of its one operand and attributes, where a ViewNode is to be recorded.
    """
    body = [
        "tensor = new(Tensor)",
        f"storage = tensor.storage = a{source}.storage",
        f"ptr = tensor.ptr = a{source}.ptr" + (" + offset" if offset_bytes else ""),
        f"base = a{source}.base",
        "if base is None:",
        f"    tensor.base = a{source}",
        f"    a{source}.viewed = True",
        "    tensor.origin = None if modes.grad else unrecorded_origin()",
        "else:",
        "    tensor.base = base",
        f"    tensor.origin = a{source}.origin if modes.grad else unrecorded_origin()",
        "tensor.stamp = storage.version",
        "tensor.output_number = 0",
        "tensor.state = None",
    ]
    if needs and needs[source] and layout.dtype.kind in "fc":
        layout = layout.with_tracking(True)  # recorded or not: without a node where it is not
    names = {
        "new": object.__new__, "Tensor": Tensor, "layout": layout, "offset": offset_bytes, "modes": modes,
        "unrecorded_origin": unrecorded_origin, "untracked": layout.with_tracking(False),
    }  # fmt: skip
    if recorded is not None:
        operation, operand, attrs = recorded
        names |= {
            "ViewNode": ViewNode, "gradient_edge": gradient_edge, "next_number": _sequence.__next__,
            "operation": operation, "operand": operand.with_tracking(False), "attrs": attrs,
            "note_user_line": note_user_line,
        }  # fmt: skip
        body += [
            "if modes.grad:",
            "    node = tensor.node = new(ViewNode)",
            "    node.operation = operation",
            "    node.source = operand",
            "    node.attrs = attrs",
            "    node.edges = (gradient_edge(a0),)",
            "    node.sequence = next_number()",
            "    node.attached = None",
            "    if modes.anomaly:",
            "        note_user_line(node)",
            "    tensor.layout = layout",
            "else:",
            "    tensor.node = None",
            "    tensor.layout = layout if tensor.base.layout.tracked else untracked",
        ]
        return _written(body, count, names)
    return _finish(body, count, names, layout, program, needs)


def _finish(
    body: list[str], count: int, names: dict[str, Any], layout: Layout, program: Program | None, needs: tuple[bool, ...]
) -> Callable[..., Tensor]:
    if program is None:
        body += ["tensor.layout = layout", "tensor.node = None"]
    else:
        body += _recording(count, names, layout, program, needs)
    return _written(body, count, names)


def _written(body: list[str], count: int, names: dict[str, Any]) -> Callable[..., Tensor]:
    """The function of this text."""
    arguments = ", ".join(f"a{i}" for i in range(count))
    source = f"def entry({arguments}):\n" + "".join(f"    {line}\n" for line in [*body, "return tensor"])
    code = _codes.get(source)
    if code is None:
        code = _codes[source] = compile(source, "<entry>", "exec")
    exec(code, names)
    entry = names["entry"]
    entry.source = source
    return entry


def _recording(
    count: int, names: dict[str, Any], layout: Layout, program: Program, needs: tuple[bool, ...]
) -> list[str]:
    """The lines that record the call."""
    backward = program.backward(needs, (True,))
    tracked = layout.with_tracking(True)
    names |= {
        "modes": modes, "OperatorNode": OperatorNode, "program": program, "needs": needs, "backward": backward,
        "gradient_edge": gradient_edge, "next_number": _sequence.__next__, "save": save, "tracked": tracked,
        "note_user_line": note_user_line, "table": backward.saved,
    }  # fmt: skip
    scalar = [node.attrs["param"] for node in program.graph.inputs]
    saved, versions = [], []
    for which in backward.saved:
        if which.kind == "output":
            saved.append("(storage, ptr, tracked)")
            versions.append("storage.version")
        else:
            saved.append(f"a{which.number}")
            versions.append("0" if scalar[which.number] else f"a{which.number}.storage.version")
    edges = [f"gradient_edge(a{i})" if need else "None" for i, need in enumerate(needs)]
    operands = "".join(f"a{i}, " for i in range(count))
    return [
        "if modes.grad:",
        "    node = tensor.node = new(OperatorNode)",
        "    node.program = program",
        "    node.needs = needs",
        "    node.output_count = 1",
        "    node.backward = backward",
        "    node.table = table",
        f"    node.edges = ({''.join(edge + ', ' for edge in edges)})",
        "    node.sequence = next_number()",
        "    node.attached = None",
        "    tensor.layout = tracked",
        "    if modes.saved_hooks:",
        f"        save(node, table, ({operands}), (tensor,))",
        "    else:",
        f"        node.saved = ({''.join(value + ', ' for value in saved)})",
        f"        node.versions = ({''.join(value + ', ' for value in versions)})",
        "    if modes.anomaly:",
        "        note_user_line(node)",
        "else:",
        "    tensor.layout = layout",
        "    tensor.node = None",
    ]
