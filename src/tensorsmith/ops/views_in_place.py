"""A tensor itself in another shape: `unsqueeze_`, `squeeze_`, `t_`, `transpose_`, `resize_` and their kin.

The memory stays what and where it is; only the layout of this tensor changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorsmith.core.layout import layout_of
from tensorsmith.core.memory_format import contiguous_format, format_of, format_strides, preserve_format, suggested
from tensorsmith.eager.inplace import check_writable
from tensorsmith.ops import transposing, views
from tensorsmith.ops.registry import inplace_method, method
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor, need_memory


def _laid_out_anew(name: str, view: Callable[..., Tensor]) -> None:
    def function(self: Tensor, *args: Any, **keywords: Any) -> Tensor:
        if modes.tracer is not None and self.layout.level is None and modes.tracer.hides(self):
            raise NotImplementedError(f"{name}_() inside a compiled function; use {name}(), a view")
        recorded = modes.grad and self.layout.tracked
        if recorded:
            check_writable(f"{name}_", self)
        found = view(self, *args, **keywords)
        self.layout = found.layout.with_tracking(self.layout.tracked)
        self.ptr = found.ptr
        if self.layout.level is not None:  # a function transform's wrapper: it stands for the view from now on
            self.__dict__.update(found.__dict__)
        self.storage.version += 1
        if recorded:
            self.node, self.output_number = found.node, found.output_number
            if self.base is not None:
                self.stamp = self.storage.version
        return self

    function.__name__ = function.__qualname__ = f"{name}_"
    function.__doc__ = f"This tensor becomes its own `{name}`; its history too."
    inplace_method(name, function)


_VIEWS: dict[str, Callable[..., Tensor]] = {
    "unsqueeze": views.unsqueeze,
    "squeeze": views.squeeze,
    "t": transposing.t,
    "transpose": transposing.transpose,
    "swapaxes": transposing.swapaxes,
    "swapdims": transposing.transpose,
    "as_strided": views.as_strided,
}
for _name, _view in _VIEWS.items():
    _laid_out_anew(_name, _view)


@method()
def resize_(self: Tensor, *sizes: Any, memory_format: Any = None) -> Tensor:
    """Another shape over the same storage, which grows where it is too small; new elements hold anything."""
    need_memory("resize_", self)
    if self.layout.tracked:
        raise RuntimeError("cannot resize variables that require grad")
    shape = views.sizes_of("resize_", sizes)
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    form = format_of("resize_", memory_format, contiguous_format)
    layout = layout_of(self.layout.dtype, shape, format_strides(form, shape), device=self.layout.device)
    offset = self.ptr - self.storage.ptr
    if layout.nbytes + offset > self.storage.nbytes:
        storage = self.storage.copy(layout.nbytes + offset)
        self.storage, self.ptr = storage, storage.ptr + offset
    self.layout = layout
    return self


@method()
def resize_as_(self: Tensor, the_template: Tensor, memory_format: Any = None) -> Tensor:
    """`resize_` to the shape of another tensor."""
    form = format_of("resize_as_", memory_format, contiguous_format)
    form = suggested(the_template.layout.shape, the_template.layout.strides) if form is preserve_format else form
    return resize_(self, the_template.layout.shape, memory_format=form)
