"""Pruning: elements of parameters held at zero by a mask.

A pruned parameter `name` becomes `name_orig`, which is learned, and the buffer `name_mask`; a hook makes `name` their product
before every call. Pruned again, what the mask left is pruned. `remove` makes it an ordinary parameter again, with its zeros.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from tensorsmith.nn.module import Module
from tensorsmith.nn.parameter_vector import parameters_to_vector
from tensorsmith.ops.creation import full_like
from tensorsmith.ops.random import rand
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor


def _ones(like: Tensor) -> Tensor:
    return full_like(like.detach(), 1)


class BasePruningMethod(ABC):
    """Base of pruning methods: subclasses define PRUNING_TYPE and `compute_mask`.

    PRUNING_TYPE: "unstructured" (elements), "structured" (slices along `dim`) or "global" (the mask is final)
    """

    PRUNING_TYPE: str
    _tensor_name: str = ""

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask for the importance of elements `t`, within a mask that is there already."""

    def apply_mask(self, module: Module) -> Tensor:
        """name_mask * name_orig."""
        mask, own = (getattr(module, self._tensor_name + end) for end in ("_mask", "_orig"))
        return mask.to(own.dtype) * own

    @classmethod
    def apply(cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None, **kwargs: Any) -> Any:
        """Prune a parameter of a module; the method (or the container of all its methods) is returned.

        importance_scores: what decides instead of the parameter's own values, in its shape (else AssertionError).
        """
        method: BasePruningMethod = cls(*args, **kwargs)
        method._tensor_name = name
        own = getattr(module, name)
        if importance_scores is not None and importance_scores.shape != own.shape:
            raise AssertionError(
                f"importance_scores should have the same shape as parameter {name} of {module}, got "
                f"{importance_scores.shape} vs {own.shape}"
            )
        earlier = _hook_of(module, name)
        if earlier is not None:
            method = _joined(earlier[1], method)
            mask = getattr(module, name + "_mask").detach().clone()
        else:
            mask = _ones(own)
        with no_grad():
            scores = own if importance_scores is None else importance_scores
            mask = method.compute_mask(scores.detach(), default_mask=mask)
        if earlier is not None and module._hooks is not None:
            del module._hooks.forward_pre[earlier[0]]
        else:
            del module._parameters[name]
            module.register_parameter(name + "_orig", own)
        module.register_buffer(name + "_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None) -> Tensor:
        """A tensor times its mask, without any module."""
        if importance_scores is not None and importance_scores.shape != t.shape:
            raise AssertionError(
                f"importance_scores should have the same shape as tensor t, got {importance_scores.shape} vs {t.shape}"
            )
        scores = t if importance_scores is None else importance_scores
        return t * self.compute_mask(scores, default_mask=_ones(t) if default_mask is None else default_mask)

    def remove(self, module: Module) -> None:
        """Make the parameter an ordinary one, with its zeros."""
        name = self._tensor_name
        weight = self.apply_mask(module)
        delattr(module, name)
        own = module._parameters.pop(name + "_orig")
        assert own is not None
        own.data = weight.detach()
        del module._buffers[name + "_mask"]
        module.register_parameter(name, own)


def _joined(earlier: BasePruningMethod, method: BasePruningMethod) -> PruningContainer:
    container = earlier if isinstance(earlier, PruningContainer) else PruningContainer(earlier)
    container.add_pruning_method(method)
    return container


class PruningContainer(BasePruningMethod):
    """Several methods, one after the other, for one parameter; a mask is computed by the last within the others'."""

    PRUNING_TYPE = "container"

    def __init__(self, *args: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        if args:
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        """Add a method of the same parameter. TypeError for anything else, ValueError for another parameter's."""
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if self._tensor_name != method._tensor_name:
            raise ValueError(
                f"Can only add pruning methods acting on the parameter named '{self._tensor_name}' to PruningContainer "
                f"{self}. Found '{method._tensor_name}'"
            )
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, idx: int) -> BasePruningMethod:
        return self._pruning_methods[idx]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of the last method for what `default_mask` left."""
        method = self._pruning_methods[-1]
        place: Any
        if method.PRUNING_TYPE == "unstructured":
            place = default_mask == 1
        elif method.PRUNING_TYPE == "structured":
            if not hasattr(method, "dim"):
                raise AttributeError(
                    'Pruning methods of PRUNING_TYPE "structured" need to have the attribute `dim` defined.'
                )
            dim = method.dim + t.ndim if method.dim < 0 else method.dim
            if dim < 0:
                raise IndexError(f"Index is out of bounds for tensor with dimensions {t.ndim}")
            kept = default_mask.sum([d for d in range(t.ndim) if d != dim]) != 0
            place = (*[slice(None)] * dim, kept)
        elif method.PRUNING_TYPE == "global":
            place = slice(None)
        else:
            raise ValueError(f"Unrecognized PRUNING_TYPE {method.PRUNING_TYPE}")
        mask = default_mask.to(t.dtype).clone()
        mask[place] = method.compute_mask(t[place], default_mask=default_mask[place]).to(mask.dtype)
        return mask


# --- methods ----------------------------------------------------------------------------------------------------------


class Identity(BasePruningMethod):
    """Prunes nothing, but has the mask."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _Amount(BasePruningMethod):
    """amount: a number of elements (or slices), or their share as a float in [0, 1]."""

    amount: Any

    def __init__(self, amount: float) -> None:
        if not isinstance(amount, numbers.Real):
            raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
        whole = isinstance(amount, numbers.Integral)
        if amount < 0 or (not whole and amount > 1.0):
            raise ValueError(
                f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer"
            )
        self.amount = amount

    def _count(self, size: int) -> int:
        count = int(self.amount) if isinstance(self.amount, numbers.Integral) else round(self.amount * size)
        if count > size:
            raise ValueError(f"amount={count} should be smaller than the number of parameters to prune={size}")
        return count


class _Elements(_Amount):
    PRUNING_TYPE = "unstructured"

    def _scores(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        count = self._count(t.numel())
        if not count:
            return default_mask.clone()
        flat = default_mask.reshape(-1).clone()
        flat[self._scores(t).reshape(-1).topk(count, largest=False).indices] = 0
        return flat.reshape(default_mask.shape)


class RandomUnstructured(_Elements):
    """Prunes elements at random."""

    def _scores(self, t: Tensor) -> Tensor:
        return rand(t.numel(), device=t.device)


class L1Unstructured(_Elements):
    """Prunes the elements of the smallest magnitude."""

    def _scores(self, t: Tensor) -> Tensor:
        return t.abs()


class _Slices(_Amount):
    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def _scores(self, t: Tensor, dim: int) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if t.ndim <= 1:
            raise ValueError(
                "Structured pruning can only be applied to multidimensional tensors. Found tensor of shape "
                f"{t.shape} with {t.ndim} dims"
            )
        if not -t.ndim <= self.dim < t.ndim:
            raise IndexError(f"Invalid index {self.dim} for tensor of size {t.shape}")
        dim = self.dim % t.ndim
        size = t.shape[dim]
        count = self._count(size)
        if not count:
            return default_mask
        mask = full_like(t, 0)
        mask[(*[slice(None)] * dim, self._scores(t, dim).topk(size - count).indices)] = 1
        return mask * default_mask.to(mask.dtype)


class RandomStructured(_Slices):
    """Prunes slices along `dim` at random."""

    def _scores(self, t: Tensor, dim: int) -> Tensor:
        return rand(t.shape[dim], device=t.device)


class LnStructured(_Slices):
    """Prunes the slices along `dim` of the smallest n-norm."""

    def __init__(self, amount: float, n: Any, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def _scores(self, t: Tensor, dim: int) -> Tensor:
        return t.norm(p=self.n, dim=[d for d in range(t.ndim) if d != dim])


class CustomFromMask(BasePruningMethod):
    """Prunes where a mask of the same shape is zero."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if default_mask.shape != self.mask.shape:
            raise AssertionError(
                f"default_mask shape {default_mask.shape} must match self.mask shape {self.mask.shape}"
            )
        return default_mask * self.mask.to(default_mask.dtype)


# --- functions --------------------------------------------------------------------------------------------------------


def identity(module: Module, name: str) -> Module:
    """Give a parameter a mask of ones."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: float) -> Module:
    """Prune `amount` elements (a number, or a share) at random."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: Module, name: str, amount: float, importance_scores: Tensor | None = None) -> Module:
    """Prune the `amount` elements of the smallest magnitude (or importance).

    >>> layer = ts.nn.utils.prune.l1_unstructured(ts.nn.Linear(4, 4), "weight", amount=0.25)
    >>> int((layer.weight == 0).sum()), [name for name, _ in layer.named_parameters()]
    (4, ['bias', 'weight_orig'])
    """
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: float, dim: int) -> Module:
    """Prune `amount` slices along `dim` at random."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Module, name: str, amount: float, n: Any, dim: int, importance_scores: Tensor | None = None
) -> Module:
    """Prune the `amount` slices along `dim` of the smallest n-norm."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prune where `mask` is zero."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]], pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None, **kwargs: Any,
) -> None:  # fmt: skip
    """Prune elements of several parameters, (module, name) pairs, as if they were one vector.

    Raises TypeError for a method that is not "unstructured", for parameters that are no iterable and scores that are no dict.
    """
    if not isinstance(parameters, Iterable):
        raise TypeError("global_unstructured(): parameters is not an Iterable")
    importance_scores = {} if importance_scores is None else importance_scores
    if not isinstance(importance_scores, dict):
        raise TypeError("global_unstructured(): importance_scores must be of type dict")
    pairs = list(parameters)
    values = [importance_scores.get((module, name), getattr(module, name)).detach() for module, name in pairs]
    masks = [getattr(module, name + "_mask", None) for module, name in pairs]
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method '
            f"{pruning_method} of type {method.PRUNING_TYPE}"
        )
    earlier = parameters_to_vector([_ones(v) if m is None else m.detach() for v, m in zip(values, masks)])
    final = PruningContainer(method).compute_mask(parameters_to_vector(values), earlier)
    start = 0
    for (module, name), value in zip(pairs, values):
        custom_from_mask(module, name, final[start : start + value.numel()].reshape(value.shape))
        start += value.numel()


def _hook_of(module: Module, name: str | None = None) -> tuple[int, BasePruningMethod] | None:
    for number, (hook, _) in module._hooks.forward_pre.items() if module._hooks is not None else ():
        if isinstance(hook, BasePruningMethod) and name in (None, hook._tensor_name):
            return number, hook
    return None


def remove(module: Module, name: str) -> Module:
    """Make a pruned parameter an ordinary one, with its zeros. ValueError where it is not pruned."""
    found = _hook_of(module, name)
    if found is None or module._hooks is None:
        raise ValueError(
            f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed"
        )
    found[1].remove(module)
    del module._hooks.forward_pre[found[0]]
    return module


def is_pruned(module: Module) -> bool:
    """Whether a parameter of the module, or of one below it, is pruned."""
    return any(_hook_of(each) is not None for each in module.modules())
