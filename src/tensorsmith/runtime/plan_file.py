"""Plans as bytes, and back: what planning decided, and the machine code of all kernels as one image.

    length of the header (8 bytes) | header, JSON | code of the image | tables that kernels read

A file holds numbers, names and machine code, nothing that Python would execute. What a run does not need, the graph and what
kernels were made of, is planned again where somebody asks for it. Plans with steps in Python have no file.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import BY_NAME
from tensorsmith.core.views import Strided
from tensorsmith.runtime.kept import Compared, Maker, Prepared
from tensorsmith.runtime.plan import MemoryReport, Output, Plan, link
from tensorsmith.runtime.requests import KernelStep, NoError
from tensorsmith.runtime.steps import OutOfBounds
from tensorsmith.targets.cpu.compiler import image_of_functions, is_function
from tensorsmith.targets.cpu.image import ALIGN, Image, load
from tensorsmith.targets.cpu.pool import native_pool
from tensorsmith.targets.cpu.recipe import NativePlan, Recipe

FORMAT = 1
_POOL_WAIT = "pool_wait"
_LOWEST, _HIGHEST = 1 << 36, 1 << 47  # what may be an address: sizes are smaller, and the bits of a double larger
_WRITTEN = {
    "graph", "places", "tensor_inputs", "params", "outputs", "new_bytes", "workspace_bytes", "steps", "single", "native",
    "native_first", "name", "compared", "prepared", "memory", "written_late", "complex_params",
}  # fmt: skip


class LoadedPlan(Plan):
    """A plan from a file. `again` plans it anew, for those who look at its graph or at what kernels are made of."""

    again: Callable[[], Plan]

    def __getattr__(self, name: str) -> Any:
        if name not in ("graph", "places"):
            raise AttributeError(name)
        whole = self.again()
        self.graph, self.places = whole.graph, whole.places
        return getattr(self, name)


class _LoadedKernel:
    """What a kernel of a loaded plan was made of, planned again when it is asked for."""

    def __init__(self, plan: LoadedPlan, number: int) -> None:
        self._plan = plan
        self._number = number

    def __getattr__(self, name: str) -> Any:
        step = self._plan.again().steps[self._number]
        assert isinstance(step, KernelStep)
        return getattr(step.kernel, name)


def pack(plan: Plan) -> bytes | None:
    """The file of a plan; None for a plan that has none."""
    known = {*_WRITTEN, "device", "replays", "replays_of_parts"}  # the last three are of other devices
    assert known == {each.name for each in fields(Plan)}, "a field of plans that files do not hold"
    plans = [plan, *([] if plan.prepared is None else [maker.plan for maker in plan.prepared.makers])]
    steps = [step for each in plans for step in each.steps if isinstance(step, KernelStep)]
    meant = [_addresses_among(step) for step in steps]
    errors = [_packed_error(step.error) for step in steps]
    if len(steps) < sum(len(each.steps) for each in plans) or None in errors or None in meant:
        return None
    words = [word for found in meant if found is not None for word in found.values()]
    called = [step.recipe.function for step in steps] + [word for word in words if isinstance(word, int)]
    functions = list(dict.fromkeys(called))
    made = image_of_functions(functions)
    if made is None:
        return None
    image, places = made
    place_of: dict[int | str | bytes, int | str] = {_POOL_WAIT: _POOL_WAIT, **dict(zip(functions, places))}
    data = bytearray()
    for word in words:
        if isinstance(word, bytes) and word not in place_of:
            place_of[word] = image.data_at + len(data)
            data += word + bytes(-len(word) % ALIGN)
    packed = iter([_packed_step(step, place_of, found or {}, error) for step, found, error in zip(steps, meant, errors)])
    header = {
        "format": FORMAT,
        "code": len(image.code),
        "slots": image.slots,
        "zeros": image.zeros,
        "plans": [{**_numbers(each), "steps": list(itertools.islice(packed, len(each.steps)))} for each in plans],
        "prepared": None,
    }
    if plan.prepared is not None:
        kept = plan.prepared
        header["prepared"] = [kept.inputs, kept.words, [(m.inputs, m.offsets) for m in kept.makers], kept.nbytes]
    raw = json.dumps(header, separators=(",", ":")).encode()
    return len(raw).to_bytes(8, "little") + raw + image.code + bytes(data)


def unpack(raw: bytes, again: Callable[[], Plan]) -> LoadedPlan:
    """The plan of a file. ValueError for a file that `pack` did not write."""
    length = int.from_bytes(raw[:8], "little")
    try:
        header = json.loads(raw[8 : 8 + length])
        if header["format"] != FORMAT:
            raise KeyError("format")
        code, data = 8 + length, 8 + length + header["code"]
        base = load(Image(raw[code:data], header["slots"], header["zeros"], [], raw[data:]))
        first, *others = header["plans"]
        plan = _plan(first, base, again)
        if header["prepared"] is not None:
            inputs, words, makers, nbytes = header["prepared"]
            made = [
                Maker(numbers, offsets, _plan(each, base, functools.partial(_maker, again, k)))
                for k, ((numbers, offsets), each) in enumerate(zip(makers, others, strict=True))
            ]
            plan.prepared = Prepared(tuple(inputs), words, made, nbytes)
        return plan
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"not the file of a plan: {error!r}") from None


def _maker(again: Callable[[], Plan], number: int) -> Plan:
    """A plan that makes kept values of a plan that is planned again."""
    prepared = again().prepared
    assert prepared is not None
    found: Plan = prepared.makers[number].plan
    return found


def _numbers(plan: Plan) -> dict[str, Any]:
    """What a plan is, beside its steps."""
    native = [part for part in plan.native if isinstance(part, NativePlan)]
    return {
        "tensor_inputs": plan.tensor_inputs,
        "params": plan.params,
        "outputs": [[*o.strided, o.dtype.name, o.input, o.buffer] for o in plan.outputs],
        "new_bytes": plan.new_bytes,
        "workspace_bytes": plan.workspace_bytes,
        "words": plan.single.launch_words if plan.single is not None else max([part.words for part in native], default=0),
        "name": plan.name,
        "compared": 0 if plan.compared is None else plan.compared.nbytes,
        "memory": None if plan.memory is None else vars(plan.memory),
        "written_late": sorted(plan.written_late),
        "complex_params": sorted(plan.complex_params),
    }


def _plan(header: dict[str, Any], base: int, again: Callable[[], Plan]) -> LoadedPlan:
    plan = LoadedPlan(
        graph=None,  # type: ignore[arg-type]
        places=[],
        tensor_inputs=header["tensor_inputs"],
        params=header["params"],
        outputs=[
            Output(Strided(tuple(shape), tuple(strides), offset), BY_NAME[dtype], number, buffer)
            for shape, strides, offset, dtype, number, buffer in header["outputs"]
        ],
        new_bytes=header["new_bytes"],
        workspace_bytes=header["workspace_bytes"],
        steps=[],
        name=header["name"],
        compared=Compared(header["compared"]) if header["compared"] else None,
        memory=None if header["memory"] is None else MemoryReport(**header["memory"]),
        written_late=frozenset(header["written_late"]),
        complex_params=frozenset(header["complex_params"]),
    )
    plan.again = again
    del plan.graph, plan.places  # `__getattr__` finds them
    for number, step in enumerate(header["steps"]):
        name, place, chunks, launched, flags, constants, addresses, sources, moved, flops, error = step
        for at, word in addresses:
            constants[at] = native_pool().wait if word == _POOL_WAIT else base + word
        recipe = Recipe(base + place, chunks, launched, constants, flags)
        given = list(zip(sources[::2], sources[1::2], strict=True))
        kernel = _LoadedKernel(plan, number)
        plan.steps.append(KernelStep(name, recipe, given, moved, flops, _error(error), kernel))
    link(plan, header["words"])
    return plan


def _addresses_among(step: KernelStep) -> dict[int, int | str | bytes] | None:
    """What the addresses among the constants of a step are: functions, tables or the pool's; None where one is unknown."""
    found: dict[int, int | str | bytes] = {}
    kept = step.recipe.keep
    tables = [*getattr(step.kernel, "tables", ()), *([kept] if isinstance(kept, np.ndarray) else [])]
    at_address = {table.ctypes.data: table for table in tables}
    for at, word in enumerate(step.recipe.constants):
        if word in at_address:
            found[at] = at_address[word].tobytes()
        elif _LOWEST <= word < _HIGHEST:
            if word == native_pool().wait:
                found[at] = _POOL_WAIT
            elif is_function(word):
                found[at] = word
            else:
                return None
    return found


def _packed_step(
    step: KernelStep, place_of: Mapping[int | str | bytes, int | str], found: Mapping[int, int | str | bytes], error: Any
) -> list[Any]:
    recipe = step.recipe
    addresses = [(at, place_of[word]) for at, word in found.items()]
    constants = [0 if at in found else word for at, word in enumerate(recipe.constants)]
    sources = [number for source in step.sources for number in source]
    return [
        step.name, place_of[recipe.function], recipe.chunks, recipe.launch_words, recipe.flags, constants, addresses, sources,
        step.bytes_moved, step.flops, error,
    ]  # fmt: skip


def _packed_error(error: Any) -> list[Any] | None:
    if isinstance(error, NoError):
        return [error.name]
    if isinstance(error, OutOfBounds):
        return [error.name, *error.index, error.dtype.name, error.size, error.of_pairs]
    return None


def _error(packed: list[Any]) -> NoError | OutOfBounds:
    if len(packed) == 1:
        return NoError(packed[0])
    name, shape, strides, offset, dtype, size, of_pairs = packed
    return OutOfBounds(name, Strided(tuple(shape), tuple(strides), offset), BY_NAME[dtype], size, of_pairs)
