"""Custom `autograd.Function`s under transforms.

At a grad level `forward` runs below and the call is recorded on the wrappers, with a context of its own; that is why `forward`
and `setup_context` have to be apart. Under vmap either the Function says in `vmap` what a batch means, or (with
`generate_vmap_rule = True`) its `forward`, `setup_context` and `backward` run under vmap themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensorsmith.autograd.function import Function, FunctionCtx
from tensorsmith.tensor.tensor import Tensor


class VmapInfo(NamedTuple):
    """What a `vmap` staticmethod is told of the batch."""

    batch_size: int
    randomness: str


@dataclass(frozen=True, eq=False)
class Mapping:
    """A Function to be run for every example: which arguments have the batch (first axis), how many examples."""

    function: Any
    in_dims: tuple[int | None, ...]
    extent: int
    randomness: str

    def run(self, inner: Callable[..., Any], flags: Sequence[bool], values: Sequence[Any]) -> tuple[Any, ...]:
        """`inner` of the values of one example, under vmap: results, whose tensors have the batch first."""
        from tensorsmith.func.vmap_level import VmapLevel

        with VmapLevel(self.extent, self.randomness) as level:
            results = inner(*[level.wrap(x) if flag else x for x, flag in zip(values, flags)])
            several = results if isinstance(results, tuple) else (results,)
            return tuple([_whole(level, x) if isinstance(x, Tensor) else x for x in several])


def _whole(level: Any, x: Tensor) -> Tensor:
    if level.owns(x):
        return level.lower(x)
    return x.unsqueeze(0).expand(level.extent, *x.shape)  # type: ignore[attr-defined]


class _Context(FunctionCtx):
    """The context of one example."""

    pushing = False  # whether `jvp` runs

    @property
    def saved_tensors(self) -> tuple:
        return self.for_forward or () if self.pushing else self.to_save


class Mapped(Function):
    """A Function run for every example: `apply(mapping, *arguments)`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mapping: Mapping, *arguments: Any) -> Any:
        lone = []

        def one(*given: Any) -> Any:
            results = mapping.function.forward(*given)
            lone.append(not isinstance(results, tuple))
            return results

        results = mapping.run(one, [d is not None for d in mapping.in_dims], arguments)
        return results[0] if lone[0] else results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        mapping, *arguments = inputs
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.mapping, ctx.count, ctx.lone = mapping, len(arguments), not isinstance(output, tuple)
        ctx.others = [None if isinstance(x, Tensor) else x for x in arguments + list(outputs)]
        constant: list[bool] = []

        def one(*given: Any) -> Any:
            context = _Context()
            context.needs_input_grad = ctx.needs_input_grad[1:]
            _set_up(mapping.function, context, given, ctx)
            if context.dirty:
                raise NotImplementedError(f"vmap over {mapping.function.__name__}: mark_dirty with generate_vmap_rule")
            marked = {id(x) for x in context.non_differentiable}
            constant.extend([id(x) in marked for x in given[len(arguments) :]])
            return ()

        mapping.run(one, _flags(mapping, outputs), [*arguments, *outputs])
        ctx.mark_non_differentiable(*[x for x, flag in zip(outputs, constant) if flag])
        kept = [x if isinstance(x, Tensor) else None for x in [*arguments, *outputs]]
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        mapping = ctx.mapping
        kept = [x if x is not None else other for x, other in zip(ctx.saved_tensors, ctx.others)]
        outputs = kept[ctx.count :]

        def one(*given: Any) -> Any:
            context = _Context()
            context.needs_input_grad = ctx.needs_input_grad[1:]
            _set_up(mapping.function, context, given[: len(kept)], ctx)
            return mapping.function.backward(context, *given[len(kept) :])

        flags = [*_flags(mapping, outputs), *[isinstance(g, Tensor) for g in grads]]
        found = mapping.run(one, flags, [*kept, *grads])
        summed = [
            g.sum(0) if isinstance(g, Tensor) and dim is None else g for g, dim in zip(found, mapping.in_dims)
        ]
        return (None, *summed)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        mapping, moving = ctx.mapping, tangents[1:]
        kept = [x if x is not None else other for x, other in zip(ctx.saved_tensors, ctx.others)]

        def one(*given: Any) -> Any:
            context = _Context()
            _set_up(mapping.function, context, given[: len(kept)], ctx)
            context.pushing = True
            return mapping.function.jvp(context, *given[len(kept) :])

        flags = [d is not None and isinstance(t, Tensor) for d, t in zip(mapping.in_dims, moving)]
        found = mapping.run(one, [*_flags(mapping, kept[ctx.count :]), *flags], [*kept, *moving])
        return found[0] if ctx.lone else found


def _flags(mapping: Mapping, outputs: Sequence[Any]) -> list[bool]:
    return [*[d is not None for d in mapping.in_dims], *[isinstance(x, Tensor) for x in outputs]]


def _set_up(function: Any, context: _Context, given: Sequence[Any], ctx: Any) -> None:
    outputs = tuple(given[ctx.count :])
    function.setup_context(context, tuple(given[: ctx.count]), outputs[0] if ctx.lone else outputs)


def need_setup_context(function: Any) -> None:
    """Refuse a Function whose `forward` takes the context."""
    if function.setup_context is Function.setup_context:
        raise RuntimeError(
            "In order to use an autograd.Function with function transforms (vmap, grad, jvp, jacrev, ...), it must override "
            f"the setup_context staticmethod; {function.__name__} does not."
        )


def vmap_rule(function: Any) -> Any:
    """The `vmap` staticmethod of a Function; None where its rule is to be generated. RuntimeError for both or neither."""
    rule, generated = function.vmap, function.generate_vmap_rule
    has_rule = rule is not Function.vmap
    if generated and has_rule:
        raise RuntimeError(
            f"You tried to vmap over {function.__name__}, but it has both generate_vmap_rule=True and an overriden vmap "
            "staticmethod. Please set generate_vmap_rule=False or delete the overriden vmap staticmethod to avoid ambiguity."
        )
    if not generated and not has_rule:
        raise RuntimeError(
            f"You tried to vmap over {function.__name__}, but it does not have vmap support. Please override and implement the "
            "vmap staticmethod or set generate_vmap_rule=True."
        )
    return None if generated else rule
