"""`state_dict` and `load_state_dict`: a module's parameters and persistent buffers by dotted name.

Loading is in two parts: everything is checked first, and only then is anything written, so that a state that does not
fit leaves the module as it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorsmith.nn.parameter import Parameter
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tensorsmith.nn.module import Module

EXTRA_STATE = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` did not find (missing) and did not want (unexpected)."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def local_state(module: Module) -> dict[str, Tensor]:
    """A module's own parameters and persistent buffers that exist."""
    members = [
        *module._parameters.items(),
        *((name, b) for name, b in module._buffers.items() if name not in module._non_persistent_buffers),
    ]
    return {name: member for name, member in members if member is not None}


def has_extra_state(module: Module, method: str) -> bool:
    """Whether a subclass defines `get_extra_state` or `set_extra_state`."""
    from tensorsmith.nn.module import Module

    return getattr(type(module), method) is not getattr(Module, method)


def save_state(module: Module, destination: dict[str, Any], prefix: str, keep_vars: bool) -> dict[str, Any]:
    """Enter the state of a module and what is below it into `destination`."""
    hooks = module._hooks
    if hooks is not None:
        for hook in list(hooks.state_pre.values()):
            hook(module, prefix, keep_vars)
    for name, tensor in local_state(module).items():
        destination[prefix + name] = tensor if keep_vars else tensor.detach()
    if has_extra_state(module, "get_extra_state"):
        destination[prefix + EXTRA_STATE] = module.get_extra_state()
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    if hooks is not None:
        for hook in list(hooks.state_post.values()):
            changed = hook(module, destination, prefix, {})
            if changed is not None:
                raise RuntimeError("state_dict post-hook must return None")
    return destination


@dataclass
class _Loading:
    """What a state would change, and what is wrong with it."""

    state: dict[str, Any]
    strict: bool
    writes: list[tuple[Module, str, Tensor, Tensor]] = field(default_factory=list)  # module, name, target, source
    extras: list[tuple[Module, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def check(self, module: Module, state: dict[str, Any], prefix: str) -> None:
        """Collect what concerns one module and those below it; `state` holds the keys below `prefix`."""
        if module._hooks is not None:
            for hook in list(module._hooks.load_pre.values()):
                hook(module, state, prefix, {}, self.strict, self.missing, self.unexpected, self.errors)
        module._before_load(state, prefix)
        own = local_state(module)
        for name, target in own.items():
            key = prefix + name
            if key not in state:
                self.missing.append(key)
                continue
            source = state[key]
            if not isinstance(source, Tensor):
                self.errors.append(
                    f'While copying the parameter named "{key}", expected tensorsmith.Tensor from checkpoint but '
                    f"received {type(source)}"
                )
            elif source.shape != target.shape:
                self.errors.append(
                    f"size mismatch for {key}: copying a param with shape {source.shape} from checkpoint, the shape in "
                    f"current model is {target.shape}."
                )
            elif source.is_complex() and not target.is_complex():
                self.errors.append(f"dtype mismatch for {key}: {source.dtype} cannot become {target.dtype}.")
            else:
                self.writes.append((module, name, target, source))
        extra = prefix + EXTRA_STATE
        wants_extra = has_extra_state(module, "set_extra_state")
        if wants_extra and extra in state:
            self.extras.append((module, state[extra]))
        elif wants_extra:
            self.missing.append(extra)
        elif extra in state:
            self.unexpected.append(extra)
        for key in state:
            if key.startswith(prefix) and key != extra:
                name, dot, _ = key[len(prefix) :].partition(".")
                if name not in (module._modules if dot else own):
                    self.unexpected.append(key)
        for name, child in module._modules.items():
            if child is not None:
                below = f"{prefix}{name}."
                self.check(child, {k: v for k, v in state.items() if k.startswith(below)}, below)

    def messages(self) -> list[str]:
        """The errors as PyTorch words them; missing and unexpected keys are errors only when strict."""
        found = []
        if self.strict and self.missing:
            found.append("Missing key(s) in state_dict: {}. ".format(", ".join(f'"{k}"' for k in self.missing)))
        if self.strict and self.unexpected:
            found.append("Unexpected key(s) in state_dict: {}. ".format(", ".join(f'"{k}"' for k in self.unexpected)))
        return found + self.errors

    @no_grad()
    def write(self, assign: bool) -> None:
        """Carry it out."""
        for module, name, target, source in self.writes:
            if not assign:
                target.copy_(source)
            elif isinstance(target, Parameter):
                tracked = target.layout.tracked
                if isinstance(source, Parameter):
                    setattr(module, name, source.requires_grad_(tracked))
                else:
                    setattr(module, name, Parameter(source, tracked))
            else:
                setattr(module, name, source)
        for module, extra in self.extras:
            module.set_extra_state(extra)


def load_state(module: Module, state_dict: Mapping[str, Any], strict: bool, assign: bool) -> IncompatibleKeys:
    """Write a state into a module (`Module.load_state_dict`). RuntimeError, nothing changed, where it does not fit."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
    loading = _Loading(OrderedDict(state_dict), strict)
    loading.check(module, loading.state, "")
    keys = IncompatibleKeys(loading.missing, loading.unexpected)
    for each in reversed(list(module.modules())):
        if each._hooks is not None:
            for hook in list(each._hooks.load_post.values()):
                if hook(each, keys) is not None:
                    raise RuntimeError(
                        "Hooks registered with `register_load_state_dict_post_hook` are not expected "
                        "to return new values; "
                        "change incompatible_keys in place."
                    )
    messages = loading.messages()
    if messages:
        raise RuntimeError(
            "Error(s) in loading state_dict for {}:\n\t{}".format(type(module).__name__, "\n\t".join(messages))
        )
    loading.write(assign)
    return keys
