"""The older `weight_norm` and `spectral_norm`: a hook computes the weight before every call of the layer.

`parametrizations.weight_norm` and `spectral_norm` do the same whenever the weight is read.
"""

from __future__ import annotations

import warnings
from typing import Any

from tensorsmith.nn import functional as F
from tensorsmith.nn.module import Module
from tensorsmith.nn.parameter import Parameter
from tensorsmith.nn.parametrizations import as_matrix, direction_and_length, norm_except_dim, output_axis, unit_vector
from tensorsmith.nn.uninitialized import is_lazy
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor


def hook_of(module: Module, kind: type, name: str) -> tuple[int, Any] | None:
    """The number and the object of a module's hook of a class for a parameter."""
    for number, (hook, _) in module._hooks.forward_pre.items() if module._hooks is not None else ():
        if isinstance(hook, kind) and getattr(hook, "name", None) == name:
            return number, hook
    return None


def _own(module: Module, name: str, kind: str) -> Tensor:
    weight = getattr(module, name)
    if is_lazy(weight):
        raise ValueError(
            f"The module passed to `{kind}` can't have uninitialized parameters. Make sure to run the dummy forward before "
            "applying it"
        )
    return weight


class WeightNorm:
    """Computes `name` from `name_g` and `name_v` before every call."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name = name
        self.dim = -1 if dim is None else dim

    def compute_weight(self, module: Module) -> Tensor:
        """g v / |v|."""
        return direction_and_length(getattr(module, self.name + "_v"), getattr(module, self.name + "_g"), self.dim)

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """weight = g v / |v|, the norm over all axes but `dim`; `weight_g` and `weight_v` are learned (Salimans, Kingma, 2016).

    Deprecated, as in PyTorch: use `parametrizations.weight_norm`. Raises RuntimeError where it is registered twice.
    """
    warnings.warn(
        "`nn.utils.weight_norm` is deprecated in favor of `nn.utils.parametrizations.weight_norm`.", FutureWarning, stacklevel=2
    )
    if hook_of(module, WeightNorm, name) is not None:
        raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
    hook = WeightNorm(name, dim)
    weight = _own(module, name, "WeightNorm")
    del module._parameters[name]
    module.register_parameter(name + "_g", Parameter(norm_except_dim(weight.detach(), hook.dim)))
    module.register_parameter(name + "_v", Parameter(weight.detach()))
    setattr(module, name, hook.compute_weight(module))
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight an ordinary parameter again. ValueError where there is no weight_norm."""
    found = hook_of(module, WeightNorm, name)
    if found is None or module._hooks is None:
        raise ValueError(f"weight_norm of '{name}' not found in {module}")
    weight = found[1].compute_weight(module).detach()
    delattr(module, name)
    for each in (name + "_g", name + "_v"):
        del module._parameters[each]
    module.register_parameter(name, Parameter(weight))
    del module._hooks.forward_pre[found[0]]
    return module


class SpectralNorm:
    """Computes `name` from `name_orig` and the buffers `name_u` and `name_v` before every call."""

    def __init__(self, name: str = "weight", n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.name = name
        self.dim = dim
        self.n_power_iterations = n_power_iterations
        self.eps = eps

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        """weight_orig / u^T W v."""
        weight, u, v = (getattr(module, f"{self.name}_{each}") for each in ("orig", "u", "v"))
        matrix = as_matrix(weight, self.dim)
        if do_power_iteration:
            with no_grad():
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(matrix.detach().t().mv(u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(matrix.detach().mv(v), dim=0, eps=self.eps))
                u, v = u.clone(), v.clone()  # the next call writes over the buffers
        return weight / u.dot(matrix.mv(v))

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module, module.training))


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """weight_orig / sigma, sigma its largest singular value by power iterations while training (Miyato et al., 2018).

    Raises RuntimeError where it is registered twice, ValueError for a parameter that is None.
    """
    if hook_of(module, SpectralNorm, name) is not None:
        raise RuntimeError(f"Cannot register two spectral_norm hooks on the same parameter {name}")
    hook = SpectralNorm(name, n_power_iterations, output_axis(module, dim), eps)
    weight = module._parameters[name]
    if weight is None:
        raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{name}` is None")
    _own(module, name, "SpectralNorm")
    rows, columns = as_matrix(weight.detach(), hook.dim).shape
    delattr(module, name)
    module.register_parameter(name + "_orig", weight)
    setattr(module, name, weight.detach())
    module.register_buffer(name + "_u", unit_vector(weight, rows, eps))
    module.register_buffer(name + "_v", unit_vector(weight, columns, eps))
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight an ordinary parameter again. ValueError where there is no spectral_norm."""
    found = hook_of(module, SpectralNorm, name)
    if found is None or module._hooks is None:
        raise ValueError(f"spectral_norm of '{name}' not found in {module}")
    with no_grad():
        weight = found[1].compute_weight(module, False)
    for each in ("", "_u", "_v", "_orig"):
        delattr(module, name + each)
    module.register_parameter(name, Parameter(weight.detach()))
    del module._hooks.forward_pre[found[0]]
    return module
