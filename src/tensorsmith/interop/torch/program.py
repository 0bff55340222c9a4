"""Program: one FX graph of ATen operators as plans, one for each shape it is called with.

The graph is run once with traced tensors, which stand for PyTorch's; what that leaves is a graph of ours, and its plan reads
and writes PyTorch's memory by address. Results are allocated by PyTorch, with the strides that PyTorch's own operators give.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node as FxNode

from tensorsmith.compile.tracer import Source, Tracer
from tensorsmith.core.dtypes import ALL, DType
from tensorsmith.core.layout import contiguous_strides, layout_of
from tensorsmith.core.views import Strided, extent
from tensorsmith.interop.torch.operators import OPERATORS, aten
from tensorsmith.passes.manager import off, optimise
from tensorsmith.runtime.plan import Plan, build_plan
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor

DTYPES: dict[torch.dtype, DType] = {
    found: dtype for dtype in ALL if isinstance(found := getattr(torch, dtype.name, None), torch.dtype)
}
TORCH_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}
WHERE_NOT_WHAT = ("device", "layout", "pin_memory", "memory_format")
SIZES: dict[Any, Callable[..., Any]] = {
    aten.sym_size.int: lambda x, dim: x.shape[dim],
    aten.sym_stride.int: lambda x, dim: x.stride(dim),
    aten.sym_numel.default: lambda x: x.numel(),
}


class Refused(NotImplementedError):
    """An operator of the graph has no counterpart for these arguments."""

    def __init__(self, node: FxNode, reason: str) -> None:
        super().__init__(f"{node.target}: {reason}")
        self.node = node


@dataclass(frozen=True)
class _Result:
    """One result of a run: how it is made from the arguments and the new buffers.

    kind: "argument", "view" (of an argument), "buffer" (the whole of a new one), "part" (of a new one), "value" (a constant);
    copied: it is copied, because its memory is somebody else's, or lies otherwise than PyTorch's would
    """

    kind: str
    number: int = 0
    value: Any = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    copied: tuple[int, ...] | None = None


@dataclass
class _Trace:
    """A graph of ours, with what its operands and results are in PyTorch."""

    tracer: Tracer
    operands: list[int] = field(default_factory=list)  # numbers of the arguments that are tensors
    constants: list[torch.Tensor] = field(default_factory=list)
    places: list[Strided] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)  # traced tensors, numbers, None, or the number of an argument
    wanted: list[tuple[int, ...] | None] = field(default_factory=list)


@dataclass(frozen=True)
class _Argument:
    number: int


class Program:
    """A callable in place of a GraphModule. lasting: numbers of the arguments that seldom change (parameters)."""

    def __init__(self, module: GraphModule, lasting: frozenset[int] = frozenset(), training: bool = False) -> None:
        self.module = module
        self.lasting = frozenset() if training else lasting
        self.nodes = list(module.graph.nodes)
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.runs: dict[Any, Callable[[Sequence[Any]], tuple[Any, ...]]] = {}
        values = [node.meta.get("val") for node in self.placeholders]
        self.dynamic = any(_is_symbolic(value) for value in values)
        tensors = [number for number, value in enumerate(values) if isinstance(value, torch.Tensor)]
        # What Dynamo's own guards hold fixed is not looked at again.
        self.asked = tensors if self.dynamic else [number for number in tensors if number not in lasting]
        self.numbers = [number for number, value in enumerate(values) if not isinstance(value, torch.Tensor)]

    def key(self, arguments: Sequence[Any]) -> Any:
        """What a plan holds for."""
        if self.dynamic:
            sizes = tuple([arguments[i].shape for i in self.asked])
            return sizes, tuple([arguments[i].stride() for i in self.asked]), tuple([arguments[i] for i in self.numbers])
        return tuple([arguments[i].stride() for i in self.asked])

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        key = self.key(arguments)
        run = self.runs.get(key)
        if run is None:
            run = self.runs[key] = self.planned(arguments)
        return run(arguments)

    # --- planning ---------------------------------------------------------------------------------------------------

    def trace(self, arguments: Sequence[Any]) -> _Trace:
        """Run the graph with traced tensors. Raises Refused for a call that has no counterpart."""
        found = _Trace(Tracer())
        tracer = found.tracer
        values: dict[FxNode, Any] = {}
        symbols: dict[Any, int] = {}
        given = iter(enumerate(arguments))

        def stand_in(tensor: torch.Tensor) -> Tensor:
            dtype, shape, strides = DTYPES[tensor.dtype], _plain(tensor.shape), _plain(tensor.stride())
            layout = layout_of(dtype, shape, strides)
            node = tracer.graph.input(shape, dtype)
            tracer.sources.append(Source(layout=layout))
            found.places.append(Strided(shape, strides))
            return tracer.tensor(node, node, Strided(shape, strides), None)

        def value_of(argument: Any) -> Any:
            if isinstance(argument, FxNode):
                return values[argument]
            if isinstance(argument, tuple | list):
                return [value_of(each) for each in argument]
            return DTYPES[argument] if isinstance(argument, torch.dtype) else argument

        pending: list[tuple[FxNode, torch.Tensor]] = []
        with tracer, no_grad():
            for node in self.nodes:
                if node.op == "placeholder":
                    number, argument = next(given)
                    _learn(node.meta.get("val"), argument, symbols)
                    if isinstance(argument, torch.Tensor):
                        found.operands.append(number)
                        values[node] = stand_in(argument)
                    else:
                        values[node] = _plain((argument,))[0]
                elif node.op == "get_attr":
                    pending.append((node, _attribute(self.module, str(node.target))))
                    values[node] = None
            for node, constant in pending:  # behind the arguments, so that words keep their order
                found.constants.append(constant)
                values[node] = stand_in(constant)
            for node in self.nodes:
                if node.op == "call_function":
                    values[node] = self.call(node, value_of)
            (output,) = [node for node in self.nodes if node.op == "output"]
            single = not isinstance(output.args[0], tuple | list)
            for result in (output.args[0],) if single else output.args[0]:  # type: ignore[union-attr]
                if isinstance(result, FxNode) and result.op == "placeholder":
                    found.results.append(_Argument(self.placeholders.index(result)))
                    found.wanted.append(None)
                    continue
                value = value_of(result)
                found.results.append(value)
                found.wanted.append(_strides(result, value, symbols))
            outputs = [tracer.value(value) for value in found.results if isinstance(value, Tensor)]
        tracer.graph.outputs = tuple(outputs)
        return found

    def call(self, node: FxNode, value_of: Callable[[Any], Any]) -> Any:
        """One operator on traced tensors (or on sizes, which are numbers by now)."""
        args = [value_of(argument) for argument in node.args]
        target = node.target
        if target in SIZES:
            return SIZES[target](*args)
        function = OPERATORS.get(target)
        if function is None:
            return target(*args)  # type: ignore[operator] # arithmetic on sizes, getitem: see `partition.py`
        kwargs = {name: value_of(x) for name, x in node.kwargs.items() if name not in WHERE_NOT_WHAT}
        try:
            return function(*args, **kwargs)
        except NotImplementedError as missing:
            raise Refused(node, str(missing)) from missing

    def planned(self, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """The plan for arguments like these, as a function of arguments."""
        trace = self.trace(arguments)
        tracer, graph = trace.tracer, trace.tracer.graph
        tensors = [value for value in trace.results if isinstance(value, Tensor)]
        wanted = [w for value, w in zip(trace.results, trace.wanted) if isinstance(value, Tensor)]
        required: dict[int, Strided] = {}
        for number, (node, tensor, strides) in enumerate(zip(graph.outputs, tensors, wanted)):
            fresh = tensor.base is None and not any(other is node for other in graph.outputs[:number])
            if strides is not None and fresh and not same_layout(node.shape, strides, contiguous_strides(node.shape)):
                required[number] = Strided(node.shape, strides)
        captured = [source.tensor for source in tracer.sources if source.tensor is not None]
        places = [*trace.places, *(Strided(t.layout.shape, t.layout.strides) for t in captured)]
        lasting = {place for place, number in enumerate(trace.operands) if number in self.lasting}
        graph, _ = optimise(graph, off())
        plan = build_plan(graph, places, required, {}, lasting, off())
        return _runner(plan, self.described(trace, plan, tensors, wanted), trace, captured)

    def described(
        self, trace: _Trace, plan: Plan, tensors: list[Tensor], wanted: list[tuple[int, ...] | None]
    ) -> list[_Result]:
        """How every result of the FX graph is made."""
        inputs = trace.tracer.graph.inputs
        storages = trace.tracer.storages
        owner: dict[Any, Any] = {}
        found: list[_Result] = []
        given = iter(zip(plan.outputs, tensors, wanted))
        for value in trace.results:
            if isinstance(value, _Argument):
                found.append(_Result("argument", value.number))
            elif not isinstance(value, Tensor):
                found.append(_Result("value", value=value))
            else:
                output, tensor, strides = next(given)
                current = storages[id(tensor.storage)]
                of_input = next((i for i, node in enumerate(inputs) if node is current.node), None)
                shape, offset = output.strided.shape, output.strided.offset
                copied = strides if strides is not None and not same_layout(shape, strides, output.strided.strides) else None
                if output.input is not None:
                    if copied is None and output.input != of_input:
                        copied = strides or contiguous_strides(shape)  # a new tensor, that happens to equal an argument
                    found.append(_Result("view", output.input, None, shape, output.strided.strides, offset, copied))
                    continue
                memory = id(tensor.storage)
                if owner.setdefault(output.buffer, memory) != memory and copied is None:
                    copied = strides or contiguous_strides(shape)
                found.append(_Result("part", output.buffer, None, shape, output.strided.strides, offset, copied))
        return found


def same_layout(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether strides place elements alike; those of extents 0 and 1 say nothing."""
    return 0 in shape or all(x == y for n, x, y in zip(shape, a, b) if n != 1)


def _runner(
    plan: Plan, results: list[_Result], trace: _Trace, captured: list[Tensor]
) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Allocate, run, and hand out: what a call costs beside the kernels."""
    operands = tuple(trace.operands)
    fixed = [tensor.data_ptr() for tensor in trace.constants] + [tensor.ptr for tensor in captured]
    made: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]] = []
    whole: dict[int, int] = {}
    for number, nbytes in enumerate(plan.new_bytes):
        users = [r for r in results if r.kind == "part" and r.number == number]
        output = next(o for o in plan.outputs if o.buffer == number and o.input is None)
        dtype = TORCH_DTYPES[output.dtype]
        first = users[0]
        filled = extent(Strided(first.shape, first.strides)) * output.dtype.itemsize == nbytes  # else a part of it is shown
        if len(users) == 1 and filled and not first.offset and first.copied is None:
            made.append((first.shape, first.strides, dtype))
            whole[number] = len(whole)
        else:
            made.append(((nbytes // output.dtype.itemsize,), (1,), dtype))
    run, empty = plan.run, torch.empty_strided
    recipes = [_Result("buffer", r.number) if r.kind == "part" and r.number in whole else r for r in results]
    held = (trace.constants, captured, *[each for each in recipes if each.kind != "buffer"])

    def argument(arguments: Sequence[Any], number: int) -> Any:
        return arguments[operands[number]] if number < len(operands) else trace.constants[number - len(operands)]

    def hand_out(recipe: _Result, arguments: Sequence[Any], new: list[Any]) -> Any:
        if recipe.kind == "buffer":
            return new[recipe.number]
        if recipe.kind == "argument":
            return arguments[recipe.number]
        if recipe.kind == "value":
            return recipe.value
        base = new[recipe.number] if recipe.kind == "part" else argument(arguments, recipe.number)
        seen = base.as_strided(recipe.shape, recipe.strides, base.storage_offset() + recipe.offset)
        if recipe.copied is None:
            return seen
        return empty(recipe.shape, recipe.copied, dtype=seen.dtype).copy_(seen)

    def call(arguments: Sequence[Any]) -> tuple[Any, ...]:
        new = [empty(shape, strides, dtype=dtype) for shape, strides, dtype in made]
        words = [arguments[number].data_ptr() for number in operands]
        words += fixed
        words += [tensor.data_ptr() for tensor in new]
        run(words)
        return tuple([new[r.number] if r.kind == "buffer" else hand_out(r, arguments, new) for r in recipes])

    call.held = held  # type: ignore[attr-defined] # alive as long as their addresses are in use
    return call


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return value is not None


def _plain(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes as numbers: of a symbol the size that PyTorch saw when it traced."""
    return tuple([n.node.hint if isinstance(n, torch.SymInt) else n for n in sizes])


def _learn(seen: Any, argument: Any, symbols: dict[Any, int]) -> None:
    """What the symbols in a placeholder's sizes are in this call."""
    if isinstance(seen, torch.Tensor):
        pairs = zip((*seen.shape, *seen.stride()), (*argument.shape, *argument.stride()))
    else:
        pairs = zip((seen,), (argument,))
    for symbol, number in pairs:
        if isinstance(symbol, torch.SymInt) and symbol.node.expr.is_symbol:
            symbols[symbol.node.expr] = _plain((number,))[0]


def _strides(result: Any, value: Any, symbols: dict[Any, int]) -> tuple[int, ...] | None:
    """The strides that PyTorch would give a result; None where it does not say."""
    seen = result.meta.get("val") if isinstance(result, FxNode) else None
    if not isinstance(seen, torch.Tensor) or not isinstance(value, Tensor):
        return None
    found = [int(n.node.expr.xreplace(symbols)) if isinstance(n, torch.SymInt) else int(n) for n in seen.stride()]
    return tuple(found)


def _attribute(module: Any, path: str) -> torch.Tensor:
    return operator.attrgetter(path)(module)  # type: ignore[no-any-return]


