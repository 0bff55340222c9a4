"""Module: the base class of everything that has parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tensorsmith.autograd.hooks import RemovableHandle
from tensorsmith.compile.compiled import compile as compile_function
from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.ir import build
from tensorsmith.nn.global_hooks import CALLS
from tensorsmith.nn.hooks import ModuleHooks, call_with_hooks, register
from tensorsmith.nn.members import Members
from tensorsmith.nn.state import IncompatibleKeys, load_state, save_state
from tensorsmith.ops.conversion import cuda_device, destination
from tensorsmith.ops.fused_updates import FusedUpdate
from tensorsmith.tensor.modes import modes, no_grad
from tensorsmith.tensor.placement import device_from
from tensorsmith.tensor.tensor import Tensor

T = TypeVar("T", bound="Module")

_ZERO = FusedUpdate("zero_gradient", lambda grad: [build.full(grad.graph, grad.shape, 0.0, grad.dtype)], (0,), 1)


class Module(Members):
    """Base class of layers and models.

    Subclasses call `super().__init__()`, assign parameters, buffers and submodules as attributes, and define `forward`.
    Calling the module calls `forward` between its hooks.

    >>> class Affine(ts.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.scale = ts.nn.Parameter(ts.ones(3))
    ...     def forward(self, x):
    ...         return x * self.scale
    """

    _hooks: ModuleHooks | None = None  # made with the first hook, so that a call without hooks costs one look

    def __init__(self) -> None:
        super().__init__()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every subclass defines it."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if modes.tracer is not None:
            modes.tracer.note_module(self)
        hooks = self._hooks
        if hooks is None and not CALLS:
            return self.forward(*args, **kwargs)
        if hooks is not None and hooks.compiled is not None and modes.tracer is None:
            return hooks.compiled(*args, **kwargs)
        return call_with_hooks(self, hooks, args, kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Have calls of this module run as one program from now on; the arguments are those of `ts.compile`.

        Copies and pickles of the module are not compiled.

        >>> model = ts.nn.Linear(3, 2)
        >>> model.compile()
        >>> model(ts.ones(1, 3)).shape
        tensorsmith.Size([1, 2])
        """
        self._ensure_hooks().compiled = compile_function(self._call_impl, *args, **kwargs)

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return call_with_hooks(self, self._hooks, args, kwargs)

    # --- modes and conversions --------------------------------------------------------------------------------------

    def train(self: T, mode: bool = True) -> T:
        """Set training mode (dropout active) here and below."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self: T) -> T:
        """Set evaluation mode: `train(False)`."""
        return self.train(False)

    def requires_grad_(self: T, requires_grad: bool = True) -> T:
        """Have autograd track every parameter, or none."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or (set_to_none=False) fill them with zeros."""
        clear_grads(self.parameters(), set_to_none)

    def apply(self: T, fn: Callable[[Module], None]) -> T:
        """`fn(module)` for every module below, children before parents, and this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    @no_grad()
    def _apply(self: T, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> T:
        """Replace the data of parameters (in place: the Parameter stays), their gradients and buffers by `fn` of it."""
        if recurse:
            for module in self.children():
                module._apply(fn)
        for parameter in self._parameters.values():
            if parameter is None:
                continue
            grad = parameter.state.grad if parameter.state is not None else None
            parameter.data = fn(parameter.data)
            if grad is not None:
                assert parameter.state is not None
                parameter.state.grad = fn(grad.detach())
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    def to(self: T, *args: Any, **kwargs: Any) -> T:
        """`to(dtype)`, `to(device)`, `to(device, dtype)` or `to(tensor)`: floating members get the dtype.

        Raises TypeError for a dtype that is not floating or complex.
        """
        dtype, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
        form = kwargs.pop("memory_format", None)
        non_blocking = kwargs.pop("non_blocking", False)
        if kwargs:
            raise TypeError(f"to() got unexpected keyword arguments: {', '.join(kwargs)}")
        dtype, place = destination(args, dtype, device)
        if form is not None:  # of images and their kernels
            self._apply(lambda t: t.to(memory_format=form) if t.ndim in (4, 5) else t)
        if place is not None:
            self._apply(lambda t: t.to(place, non_blocking=non_blocking))
        if dtype is None:
            return self
        if dtype.kind not in "fc":
            raise TypeError(
                f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={dtype}"
            )
        return self._convert(dtype)

    def _convert(self: T, dtype: DType) -> T:
        return self._apply(lambda t: t.to(dtype) if t.layout.dtype.kind in "fc" else t)

    def float(self: T) -> T:
        """Floating members in float32."""
        return self._convert(dtypes.float32)

    def double(self: T) -> T:
        """Floating members in float64."""
        return self._convert(dtypes.float64)

    def half(self: T) -> T:
        """Floating members in float16."""
        return self._convert(dtypes.float16)

    def bfloat16(self: T) -> T:
        """Floating members in bfloat16."""
        return self._convert(dtypes.bfloat16)

    def type(self: T, dst_type: DType) -> T:
        """Every parameter and buffer in a dtype."""
        return self._apply(lambda t: t.to(dst_type))

    def to_empty(self: T, *, device: Any, recurse: bool = True) -> T:
        """New memory, with any values, for every parameter and buffer."""
        place = device_from(device)
        return self._apply(lambda t: t.new_empty(t.layout.shape, device=place), recurse)

    def cpu(self: T) -> T:
        """Every parameter and buffer on the CPU."""
        return self._apply(lambda t: t.cpu())

    def cuda(self: T, device: Any = None) -> T:
        """Every parameter and buffer on a CUDA device, the current one where none is given."""
        place = cuda_device(device)
        return self._apply(lambda t: t.to(place))

    # --- state ------------------------------------------------------------------------------------------------------

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by dotted name, as detached tensors over the same memory.

        keep_vars: the parameters themselves instead; destination, prefix: enter into this dict, under this prefix.
        """
        return save_state(self, OrderedDict() if destination is None else destination, prefix, keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy values from a `state_dict` (of this module's structure) into parameters and buffers.

        strict: missing and unexpected keys are errors; assign: take the tensors over instead of copying their values.
        Raises RuntimeError naming every missing, unexpected and wrongly shaped key; the module is then unchanged.
        """
        return load_state(self, state_dict, strict, assign)

    def _before_load(self, state: dict[str, Any], prefix: str) -> None:
        """What a layer does to a state before it is compared with the module: entries that older states lack, sizes."""

    def get_extra_state(self) -> Any:
        """What a subclass wants to keep in `state_dict()` besides its tensors."""
        raise RuntimeError("get_extra_state() is only called where a subclass defines it")

    def set_extra_state(self, state: Any) -> None:
        """Take back what `get_extra_state` gave."""
        raise RuntimeError("set_extra_state() is only called where a subclass defines it")

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _ensure_hooks(self) -> ModuleHooks:
        self._need_tables("hooks")
        if self._hooks is None:
            self._hooks = ModuleHooks()
        return self._hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """`hook(module, args)` or `hook(module, args, kwargs)` before `forward`; what it returns replaces args."""
        return register(self._ensure_hooks().forward_pre, (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """`hook(module, args, output)` after `forward`; what it returns (not None) replaces the output.

        always_call: also when `forward` or another hook raises.
        """
        return register(self._ensure_hooks().forward, (hook, with_kwargs, always_call), prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """`hook(module, grad_input, grad_output)` when the gradients of the module's inputs are known.

        The gradients are tuples with one entry a positional argument and one an output, None for what is no tensor;
        a tuple it returns replaces grad_input. Raises RuntimeError beside `register_backward_hook`.
        """
        self._one_kind_only("legacy")
        return register(self._ensure_hooks().backward, hook, prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """The older form, at the last operator of the module: grad_input is what that operator's operands get.

        Raises RuntimeError beside `register_full_backward_hook`, which is the one to use.
        """
        self._one_kind_only("backward")
        return register(self._ensure_hooks().legacy, hook)

    def _one_kind_only(self, other: str) -> None:
        if getattr(self._ensure_hooks(), other):
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single Module. Please use only one of "
                "them."
            )

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """`hook(module, grad_output)` before the backward of the module; what it returns replaces grad_output."""
        return register(self._ensure_hooks().backward_pre, hook, prepend)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`hook(module, prefix, keep_vars)` before `state_dict` collects."""
        return register(self._ensure_hooks().state_pre, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`hook(module, state_dict, prefix, local_metadata)` after `state_dict` collected; it may change the dict."""
        return register(self._ensure_hooks().state_post, hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`hook(module, state_dict, prefix, metadata, strict, missing_keys, unexpected_keys, error_msgs)` first."""
        return register(self._ensure_hooks().load_pre, hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`hook(module, incompatible_keys)` after the checks of `load_state_dict`; it may change the lists in place.

        It runs before anything is written, because a load that fails changes nothing.
        """
        return register(self._ensure_hooks().load_post, hook)

    # --- text -------------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses; subclasses define it."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr().split("\n") if self.extra_repr() else []
        children = [f"({name}): {indented(repr(module))}" for name, module in self._modules.items()]
        if len(extra) == 1 and not children:
            return f"{self._get_name()}({extra[0]})"
        if not extra and not children:
            return f"{self._get_name()}()"
        return f"{self._get_name()}(\n  " + "\n  ".join(extra + children) + "\n)"


def indented(text: str, spaces: int = 2) -> str:
    """All lines but the first moved to the right."""
    first, *rest = text.split("\n")
    return "\n".join([first, *(" " * spaces + line for line in rest)])


def clear_grads(parameters: Iterable[Tensor], set_to_none: bool) -> None:
    """Forget gradients, or fill them with zeros (detached from their graph)."""
    if set_to_none:
        for parameter in parameters:
            if modes.tracer is not None:
                parameter.grad = None
            elif parameter.state is not None:
                parameter.state.grad = None
        return
    grads = []
    for parameter in parameters:
        state = parameter.state
        if state is None or state.grad is None:
            continue
        if state.grad.node is not None or state.grad.layout.tracked:
            state.grad = state.grad.detach()
        grads.append(state.grad)
    with no_grad():
        if grads:
            _ZERO.on_all([grads], ())
