"""Function transforms with the API of `torch.func`: `grad`, `vjp`, `jacrev`, `vmap`, which nest in any order."""

from tensorsmith.func import lend_to_autograd as _lend_to_autograd  # noqa: F401 - importing it installs them
from tensorsmith.func.forward import hessian as hessian, jacfwd as jacfwd, jvp as jvp, linearize as linearize
from tensorsmith.func.levels import debug_unwrap as debug_unwrap
from tensorsmith.func.modules import functional_call as functional_call, stack_module_state as stack_module_state
from tensorsmith.func.reverse import grad as grad, grad_and_value as grad_and_value, jacrev as jacrev, vjp as vjp
from tensorsmith.func.vmap import vmap as vmap

__all__ = [
    "debug_unwrap", "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "stack_module_state", "vjp", "vmap",
]  # fmt: skip


def __getattr__(name: str) -> object:
    from sys import modules

    from tensorsmith.core.missing import missing

    raise missing(modules[__name__], name)
