"""Modules as functions: `functional_call` with given parameters, `stack_module_state` for ensembles.

Modules are met through their tables of members only; this room knows no module class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tensorsmith.ops.joining import stack
from tensorsmith.tensor.tensor import Tensor

State = Mapping[str, Tensor]


def functional_call(
    module: Any, parameter_and_buffer_dicts: State | Sequence[State], args: Any = None, kwargs: dict[str, Any] | None = None,
    *, tie_weights: bool = True, strict: bool = False,
) -> Any:  # fmt: skip
    """`module(*args, **kwargs)` with its parameters and buffers replaced by those given, by dotted name.

    parameter_and_buffer_dicts: a dict, or a tuple of dicts that have no name in common; what is not given stays
    args:        a tuple of arguments, or the only argument
    tie_weights: a member that the module has under several names is replaced under all of them
    strict:      the names must be exactly the module's

    The module is as before afterwards; what it writes in place goes into the tensors given. Raises ValueError for a name in two
    dicts, or two values for tied names, AttributeError for a name that the module does not have, and RuntimeError where strict
    names do not match.

    >>> linear = ts.nn.Linear(2, 1)
    >>> state = {"weight": ts.ones(1, 2), "bias": ts.zeros(1)}
    >>> ts.func.functional_call(linear, state, ts.tensor([[1.0, 2.0]]))
    tensor([[3.]])
    """
    dicts = (parameter_and_buffer_dicts,) if isinstance(parameter_and_buffer_dicts, Mapping) else parameter_and_buffer_dicts
    if not isinstance(dicts, Sequence) or not all(isinstance(d, Mapping) for d in dicts):
        raise ValueError(
            "Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got "
            f"{type(parameter_and_buffer_dicts)}"
        )
    state: dict[str, Tensor] = {}
    for each in dicts:
        for name, value in each.items():
            if name in state:
                raise ValueError(f"{name} appears in multiple dictionaries; behavior of functional call is ambiguous")
            state[name] = value
    given = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, state, tie_weights, strict):
        return module(*given, **(kwargs or {}))


def _members(module: Any, prefix: str = "", seen: frozenset[int] = frozenset()) -> Iterator[tuple[str, dict, str, Tensor]]:
    """(dotted name, table, name in it, tensor) of every parameter and buffer, under every name it has."""
    for table in (module._parameters, module._buffers):
        for name, value in table.items():
            if value is not None:
                yield prefix + name, table, name, value
    for name, child in module._modules.items():
        if child is not None and id(child) not in seen:
            yield from _members(child, f"{prefix}{name}.", seen | {id(child)})


@contextmanager
def _replaced(module: Any, state: State, tie_weights: bool, strict: bool) -> Iterator[None]:
    members = list(_members(module))
    places = {full: (table, name, value) for full, table, name, value in members}
    unexpected = [name for name in state if name not in places]
    if strict:
        missing = [name for name in places if name not in state]
        if missing or unexpected:
            faults = [f"Unexpected key(s): {unexpected}"] * bool(unexpected) + [f"Missing key(s): {missing}"] * bool(missing)
            raise RuntimeError(f"Error(s) in reparametrizing for {type(module).__name__}: " + "; ".join(faults))
    if unexpected:
        raise AttributeError(f"'{type(module).__name__}' object has no parameter or buffer '{unexpected[0]}'")
    wanted = dict(state)
    if tie_weights:
        by_tensor: dict[int, str] = {}
        for name in state:
            other = by_tensor.setdefault(id(places[name][2]), name)
            if state[other] is not state[name]:
                raise ValueError(f"functional_call got multiple values for keys {[other, name]}, which are tied.")
        for full, _, _, value in members:
            if full not in wanted and id(value) in by_tensor:
                wanted[full] = state[by_tensor[id(value)]]
    changed = [(places[name], value) for name, value in wanted.items()]
    try:
        for (table, name, _), value in changed:
            table[name] = value
        yield
    finally:
        for (table, name, before), _ in changed:
            table[name] = before


def stack_module_state(models: Sequence[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, buffers) of several models of one class, each stacked along a new first axis, for `vmap` over models.

    The stacked parameters are new leaves that require a gradient where the models' do. Raises RuntimeError for no models, for
    models of different classes or modes, and where only some of a parameter require a gradient.

    >>> models = [ts.nn.Linear(3, 2) for _ in range(4)]
    >>> parameters, buffers = ts.func.stack_module_state(models)
    >>> parameters["weight"].shape
    tensorsmith.Size([4, 2, 3])
    """
    models = list(models)
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if any(m.training != models[0].training for m in models):
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    if any(type(m) is not type(models[0]) for m in models):
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    parameters = _stacked([dict(m.named_parameters()) for m in models])
    buffers = _stacked([dict(m.named_buffers()) for m in models])
    return parameters, buffers


def _stacked(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    found = {}
    for name in states[0]:
        tensors = [state[name] for state in states]
        tracked = [t.layout.tracked for t in tensors]
        if any(tracked) and not all(tracked):
            raise RuntimeError(
                f"Expected {name} from each model to have the same .requires_grad attribute, got {tracked}"
            )
        leaf = stack([t.detach() for t in tensors], 0)
        leaf.layout = leaf.layout.with_tracking(tracked[0])
        found[name] = leaf
    return found
