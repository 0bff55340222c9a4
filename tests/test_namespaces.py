"""The public names of PyTorch's packages for models and training are here, but for those named below."""

from __future__ import annotations

import importlib

import pytest
import torch

import tensorsmith as ts

MISSING: dict[str, set[str]] = {
    "nn": {"Container", "DataParallel", "NLLLoss2d"},
    "nn.functional": {"grouped_mm", "scaled_grouped_mm", "scaled_mm"},
    "nn.init": set(),
    "nn.attention": {
        "WARN_FOR_UNFUSED_KERNELS", "activate_flash_attention_impl", "current_flash_attention_impl",
        "list_flash_attention_impls", "register_flash_attention_impl", "restore_flash_attention_impl",
        "can_use_efficient_attention", "can_use_flash_attention", "SDPAParams",
    },
    "nn.utils": set(),
    "nn.utils.stateless": set(),
    "nn.utils.rnn": set(),
    "nn.utils.parametrize": set(),
    "nn.utils.parametrizations": set(),
    "nn.utils.prune": set(),
    "optim": {"swap_in_optimizer_params_and_state"},
    "optim.lr_scheduler": set(),
    "optim.swa_utils": set(),
    "utils.data": {  # pipes of data, which PyTorch develops no further
        "DFIterDataPipe", "DataChunk", "IterDataPipe", "MapDataPipe", "_DatasetKind", "argument_validation",
        "functional_datapipe", "guaranteed_datapipes_determinism", "non_deterministic", "runtime_validation",
        "runtime_validation_disabled",
    },
}
# What PyTorch's modules import for their own use, and types of arguments of functions that are not here.
IMPORTED = {
    "Any", "Callable", "Generic", "Iterable", "Literal", "NamedTuple", "ParamSpec", "TypeVar", "Union", "assert_int_or_pair",
    "ScalingType", "SwizzleType", "Tensor", "Module", "Optimizer", "Parameter", "ABC", "abstractmethod", "OrderedDict",
    "Container_", "PackedSequence_", "bind", "copy_method_params", "factory_kwargs", "Size", "OpaqueBase", "Enum", "auto",
    "contextmanager", "deepcopy", "cast", "overload", "handle_torch_function", "has_torch_function",
    "has_torch_function_unary", "has_torch_function_variadic", "boolean_dispatch", "get_swap_module_params_on_conversion",
    "NamedMemberAccessor", "is_opaque_reference_type", "is_traceable_wrapper_subclass",
}  # fmt: skip


def public(module) -> set[str]:
    """The names that a module of PyTorch declares, or defines itself, or that its functions are."""
    found = set(getattr(module, "__all__", ()))
    for name, value in vars(module).items():
        owner = str(getattr(value, "__module__", ""))
        if not name.startswith("_") and callable(value) and (owner.startswith("torch") or owner == "None"):
            found.add(name)
    return found - IMPORTED


@pytest.mark.parametrize("name", MISSING)
def test_names(name):
    here = ts
    for part in name.split("."):
        here = getattr(here, part)
    absent = set()
    for each in public(importlib.import_module(f"{torch.__name__}.{name}")):
        try:
            getattr(here, each)
        except (AttributeError, NotImplementedError):
            absent.add(each)
    assert absent == MISSING[name]
