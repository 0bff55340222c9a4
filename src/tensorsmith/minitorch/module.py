"""Module 0: modules as a tree, and the parameters they hold.

As in MiniTorch, `train()` and `eval()` return nothing. Unlike there, an attribute that a module lacks is an
AttributeError, not None: a misspelt layer is found where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Parameter:
    """A named place for a value that training replaces: a Scalar, a Tensor, or anything.

    A value that has `requires_grad_` is told to require a gradient, and takes the parameter's name.
    """

    def __init__(self, x: Any, name: str | None = None) -> None:
        self.name = name
        self.update(x)

    def update(self, x: Any) -> None:
        """Put `x` in the place of the old value."""
        self.value = x
        if hasattr(x, "requires_grad_"):
            x.requires_grad_(True)
            if self.name:
                x.name = self.name

    def __repr__(self) -> str:
        return repr(self.value)

    def __str__(self) -> str:
        return str(self.value)


class Module:
    """A node of a tree of modules. Assigned parameters and modules are found by name, in the order of assignment.

    training: whether the module is in training mode
    """

    _modules: dict[str, Module]
    _parameters: dict[str, Parameter]
    training: bool

    def __init__(self) -> None:
        self.__dict__.update(_modules={}, _parameters={}, training=True)

    @property
    def mode(self) -> str:
        """"train" or "eval"."""
        return "train" if self.training else "eval"

    def modules(self) -> list[Module]:
        """The direct children."""
        return list(self._modules.values())

    def train(self) -> None:
        """Training mode for this module and all below it."""
        self._set_training(True)

    def eval(self) -> None:
        """Evaluation mode for this module and all below it."""
        self._set_training(False)

    def _set_training(self, training: bool) -> None:
        self.training = training
        for module in self.modules():
            module.train() if training else module.eval()

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """(dotted name, Parameter) of this module's own parameters, then of its children's."""
        return list(self._named(""))

    def _named(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, parameter in self._parameters.items():
            yield prefix + name, parameter
        for name, module in self._modules.items():
            yield from module._named(f"{prefix}{name}.")

    def parameters(self) -> list[Parameter]:
        """The parameters, in the order of `named_parameters`."""
        return [parameter for _, parameter in self.named_parameters()]

    def add_parameter(self, k: str, v: Any) -> Parameter:
        """Make a parameter of `v` under the name `k`, and return it."""
        parameter = Parameter(v, k)
        self._storage_of("_parameters", k)[k] = parameter
        return parameter

    def _storage_of(self, kind: str, key: str) -> dict[str, Any]:
        if kind not in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__}: call super().__init__() before you assign the parameter or module {key!r}"
            )
        return self.__dict__[kind]  # type: ignore[no-any-return]

    def __setattr__(self, key: str, val: Any) -> None:
        if isinstance(val, Parameter):
            self._storage_of("_parameters", key)[key] = val
        elif isinstance(val, Module):
            self._storage_of("_modules", key)[key] = val
        else:
            super().__setattr__(key, val)

    def __getattr__(self, key: str) -> Any:
        for kind in ("_parameters", "_modules"):
            if key in self.__dict__.get(kind, ()):
                return self.__dict__[kind][key]
        raise AttributeError(f"{type(self).__name__} has no attribute, parameter or module {key!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What calling the module computes: define it in the subclass."""
        raise NotImplementedError(f"{type(self).__name__} has no forward(); define it to call the module")

    def __repr__(self) -> str:
        children = [f"({name}): " + repr(module).replace("\n", "\n  ") for name, module in self._modules.items()]
        inside = "".join(f"\n  {child}" for child in children) + ("\n" if children else "")
        return f"{type(self).__name__}({inside})"
