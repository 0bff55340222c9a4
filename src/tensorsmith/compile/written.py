"""Calls of a compiled function, written out: the text of what is checked and done at every call, with every loop unrolled.

Small programs take microseconds, so that what surrounds them counts. As `eager/template.py` does for operators, the text is
made from the plan and what it was traced for, compiled once per distinct text, and can be printed (`accepts.source`).
`accepts(arguments)` compares by identity, so it may say no where the general way (`Compiled.__call__`) finds equal values.
What is not written out goes the general way too: results that show an input, arguments that share memory.

    def accepts(args):                                 def launch(args):
        if len(args) != 1: return False                    a0, = args
        a0, = args                                         ... allocate p0, s0
        return (a0.__class__ is Tensor                     run((t0.ptr, a0.ptr, p0))
                and a0.layout is l0                        o0 = ... a tensor over s0
                and modes.grad is False                    leaf0.state.grad = o0
                and t0.layout is k0 ...)                   return o0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from tensorsmith.compile.nest import Leaf, unflatten
from tensorsmith.compile.old_gradients import OldGradients
from tensorsmith.compile.saved import record
from tensorsmith.compile.tracer import Effect
from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import get_default_dtype
from tensorsmith.core.layout import layout_of
from tensorsmith.passes import winograd
from tensorsmith.passes.manager import switched_off
from tensorsmith.targets.cpu.memory import allocate, free_list
from tensorsmith.targets.cuda import precision
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.storage import Storage, storage_type
from tensorsmith.tensor.tensor import Tensor, make_view

if TYPE_CHECKING:
    from tensorsmith.compile.specialisation import Specialisation

MOST_ARGUMENTS = 16
_codes: dict[str, CodeType] = {}


class _Text:
    """Lines of a function and the objects that they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}

    def name(self, prefix: str, value: Any) -> str:
        """A name for an object."""
        found = f"{prefix}{len(self.names)}"
        self.names[found] = value
        return found

    def function(self, head: str) -> Callable[..., Any]:
        """The function of this text."""
        source = f"def {head}:\n" + "".join(f"    {line}\n" for line in self.lines)
        code = _codes.get(source)
        if code is None:
            code = _codes[source] = compile(source, "<compiled call>", "exec")
        exec(code, self.names)
        made = self.names[head.partition("(")[0]]
        made.source = source
        return made


def written(plan: Specialisation, arguments: Sequence[Tensor]) -> tuple[Callable, Callable] | None:
    """`accepts` and `launch` of a plan that has run with these arguments; None where its calls are not written out."""
    if not 1 <= len(arguments) <= MOST_ARGUMENTS or plan.pinned or plan.had or plan.switched or plan.tracer.lines is not None:
        return None
    if any(type(each) is not Tensor for each in arguments) or len({id(t.storage) for t in arguments}) < len(arguments):
        return None
    launch = _launch(plan, len(arguments))
    return None if launch is None else (_accepts(plan, arguments), launch)


# --- what is checked ------------------------------------------------------------------------------------------------


def _accepts(plan: Specialisation, arguments: Sequence[Tensor]) -> Callable[[Sequence[Any]], bool]:
    text = _Text()
    text.names |= {
        "Tensor": Tensor, "modes": modes, "get_default_dtype": get_default_dtype, "default": get_default_dtype(),
        "winograd_mode": winograd.mode, "winograd": winograd.mode(),
        "precision_mode": precision.mode, "precision": precision.mode(), "switched_off": switched_off, "off": switched_off(),
        "captured": frozenset(plan.captured_storages),
    }  # fmt: skip
    count = len(arguments)
    checks = [
        f"{text.name('made', plan.__dict__)}.get('plan') is {text.name('plan', plan.plan)}",  # it is given up for another
        f"modes.grad is {modes.grad}",
        f"modes.autocast is {text.name('autocast', modes.autocast)}",
        "get_default_dtype() is default",
        "winograd_mode() == winograd",
        "precision_mode() == precision",
        "switched_off() == off",
    ]
    for i, tensor in enumerate(arguments):
        checks += [f"a{i}.__class__ is Tensor", f"a{i}.layout is {text.name('l', tensor.layout)}"]
        if tensor.layout.tracked:  # a leaf with a gradient would be another kind of argument
            checks.append(f"(a{i}.node is not None or a{i}.state is None or a{i}.state.grad is None)")
        checks.append(f"id(a{i}.storage) not in captured")
    if count > 1:
        checks.append("len({" + ", ".join(f"id(a{i}.storage)" for i in range(count)) + f"}}) == {count}")
    for source in plan.tracer.sources:
        if source.tensor is not None:
            checks.append(f"{text.name('t', source.tensor)}.layout is {text.name('l', source.tensor.layout)}")
    for optimizer, choices in plan.choices:
        checks.append(f"{text.name('o', optimizer)}.choices() == {text.name('c', choices)}")
    for leaf, had in plan.had_grad:
        where = text.name("t", leaf)
        has = f"{where}.state is not None and {where}.state.grad is not None"
        checks.append(f"({has})" if had else f"not ({has})")
    checks += plan.tracer.guards.conditions(text.name)
    text.lines = [f"if len(args) != {count}:", "    return False", f"{_given(count)} = args"]
    text.lines += ["try:", "    return (", *(f"        {check} and" for check in checks), "        True", "    )"]
    text.lines += ["except RuntimeError:  # a container changes its size in another thread", "    return False"]
    return text.function("accepts(args)")


def _given(count: int) -> str:
    return "".join(f"a{i}, " for i in range(count)).rstrip()


# --- what is done ---------------------------------------------------------------------------------------------------


def _launch(plan: Specialisation, count: int) -> Callable[[Sequence[Any]], Any] | None:
    if any(isinstance(target, int) for target, _, _ in plan.grads):
        return None
    program, text = plan.plan, _Text()
    text.names |= {
        "Tensor": Tensor, "Storage": Storage, "new": object.__new__, "allocate": allocate, "run": program.run,
        "make_view": make_view,
    }  # fmt: skip
    lines = [f"{_given(count)} = args"]
    operands, drawn = _operands(plan, text)
    stamps = ""
    if program.prepared is not None:
        text.names["general"] = plan.run
        lines.append(f"stamps = [{', '.join(f'{operands[i]}.storage.stamp()' for i in program.prepared.inputs)}]")
        lines += ["if None in stamps:", "    return general(args)"]
        stamps = ", stamps"
    lines += [f"before{i} = {name}.offset" for i, name in enumerate(drawn)]
    lines += [f"kept{i} = {text.name('keep', effect.keep)}()" for i, effect in enumerate(plan.effects)]
    asking = [
        f"{text.name('act', event.act)}()" if isinstance(event, Effect) else f"n{i} = {text.name('ask', event.ask)}()"
        for i, event in enumerate(plan.events)
    ]
    lent = {buffer for _, buffer in plan.successors}  # which may be given the memory of old gradients
    if lent:
        text.names |= {"OldGradients": OldGradients, "successors": plan.successors, "new_bytes": program.new_bytes}
        lines += ["old = OldGradients(successors, new_bytes)", "lent = old.storages"]
    for i, nbytes in enumerate(program.new_bytes):
        made = _storage(i, nbytes, text, plan.plan.device)
        if i in lent:
            made = [f"s{i} = lent.get({i})", f"if s{i} is None:", *(f"    {line}" for line in made), f"p{i} = s{i}.ptr"]
        lines += made
    words = [f"{operands[i]}.ptr" for i in program.tensor_inputs] + [f"p{i}" for i in range(len(program.new_bytes))]
    for i in program.params:
        words += [f"{operands[i]}.real", f"{operands[i]}.imag"] if i in program.complex_params else [operands[i]]
    running = [*asking, f"run(({''.join(word + ', ' for word in words)}){stamps})"]
    undone = [f"    kept{i}()" for i in reversed(range(len(plan.effects)))]
    undone += [f"    {name}.offset = before{i}" for i, name in enumerate(drawn)]
    if lent:
        undone.append("    old.put_back()")
    if undone:
        lines += ["try:", *(f"    {line}" for line in running), "except BaseException:", *undone, "    raise"]
    else:
        lines += running
    if lent:
        lines.append("old.let_go()")
    written_to = dict(plan.updates)
    lines += [f"{operands[number]}.storage.version += 1" for number in written_to.values()]

    outputs = _Outputs(plan, text, operands, lines)
    for target, number, memory in plan.grads:
        leaf = text.name("leaf", target)
        if number is None:
            lines.append(f"{leaf}.ensure_state().grad = None")
            continue
        if not outputs.own(number, memory):
            return None
        lines.append(f"{leaf}.ensure_state().grad = o{number}")
    for place, (number, memory) in enumerate(plan.results):
        if place in plan.shown or not outputs.own(number, memory):
            return None
    if plan.gradient is not None and modes.grad:
        if plan.recording is None:
            return None
        for number in range(len(program.outputs)):
            outputs.make(number)
        everything = "".join(f"o{number}, " for number in range(len(program.outputs)))
        text.names |= {"record": record, "lean": plan.lean, "plain": plan.plain, "recording": plan.recording}
        lines.append(f"record(lean, plain, *recording, ({''.join(x + ', ' for x in operands)}), ({everything}))")
    results = [f"o{number}" for number, _ in plan.results]
    if isinstance(plan.result_nest, Leaf):
        lines.append(f"return {results[plan.result_nest]}")
    else:
        text.names |= {"unflatten": unflatten, "nest": plan.result_nest}
        lines.append(f"return unflatten(nest, ({''.join(x + ', ' for x in results)}))")
    text.lines = lines
    return text.function("launch(args)")


def _storage(number: int, nbytes: int, text: _Text, device: Device) -> list[str]:
    """The lines that allocate a buffer: its address is p{number}, its storage s{number}."""
    if device is not CPU:  # whose free lists depend on the current stream
        return [f"s{number} = {text.name('storage', storage_type(device))}({nbytes})", f"p{number} = s{number}.ptr"]
    free, size = text.name("free", free_list(nbytes)), text.name("size", nbytes)
    return [
        "try:", f"    p{number} = {free}.pop()", "except IndexError:", f"    p{number} = allocate({size})",
        f"s{number} = new(Storage)", f"s{number}.ptr = p{number}", f"s{number}.nbytes = {size}", f"s{number}.free = {free}",
        f"s{number}.version = 0", f"s{number}.owner = None",
    ]  # fmt: skip


def _operands(plan: Specialisation, text: _Text) -> tuple[list[str], list[str]]:
    """What the graph's inputs are called, and the generators that the run draws from."""
    numbers = {id(event): f"n{i}" for i, event in enumerate(plan.events)}
    operands = []
    for source in plan.tracer.sources:
        if source.tensor is not None:
            operands.append(text.name("t", source.tensor))
        elif source.number is not None:
            operands.append(numbers[id(source.number)])
        else:
            operands.append(f"a{source.argument}")
    return operands, [text.name("generator", generator) for generator in plan.tracer.drawn]


class _Outputs:
    """The lines that make tensors of the plan's outputs, each once."""

    def __init__(self, plan: Specialisation, text: _Text, operands: Sequence[str], lines: list[str]) -> None:
        self.plan, self.text, self.operands, self.lines = plan, text, operands, lines
        self.made: set[int] = set()
        self.written = dict(plan.updates)
        self.owner: dict[int, Any] = {}  # buffer -> whose memory of the trace it is

    def make(self, number: int) -> None:
        """`o{number}`: the tensor of an output."""
        if number in self.made:
            return
        self.made.add(number)
        output = self.plan.plan.outputs[number]
        name = f"o{number}"
        if number in self.written:
            self.lines.append(f"{name} = {self.operands[self.written[number]]}")
            return
        seen, device = output.strided, self.plan.plan.device
        layout = self.text.name("l", layout_of(output.dtype, seen.shape, seen.strides, device=device))
        if output.input is not None:
            self.lines.append(f"{name} = make_view({self.operands[output.input]}, {layout}, {output.strided.offset})")
            return
        offset = output.strided.offset * output.dtype.itemsize
        self.lines += [
            f"{name} = new(Tensor)", f"{name}.layout = {layout}", f"{name}.storage = s{output.buffer}",
            f"{name}.ptr = p{output.buffer}" + (f" + {offset}" if offset else ""), f"{name}.node = None",
            f"{name}.output_number = 0", f"{name}.base = None", f"{name}.state = None",
        ]  # fmt: skip

    def own(self, number: int, memory: Any) -> bool:
        """The same for what is handed out; False where it is no memory of its own, which the general way sees to."""
        output = self.plan.plan.outputs[number]
        if number in self.written or output.input is not None or isinstance(memory, int):
            return False
        if self.owner.setdefault(output.buffer, memory) != memory:
            return False
        self.make(number)
        return True
