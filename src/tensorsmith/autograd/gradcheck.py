"""`gradcheck` and `gradgradcheck`: gradients against central differences.

A complex tensor counts as its real and imaginary parts, of which every entry of the Jacobian is a real derivative.
For every output o and input x the Jacobian is computed twice. Analytically row by row, by backward from unit vectors.
Numerically column by column: (f(x + eps) - f(x - eps)) / (2 eps), x being changed where it lies in memory. Both must
agree to |analytical - numerical| <= atol + rtol * |numerical|.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.autograd import engine
from tensorsmith.autograd.backward import grad
from tensorsmith.autograd.derivative_checks import (
    GradcheckError,
    check_batched_backward,
    check_batched_forward,
    check_forward,
    check_missing_tangents,
    check_modes,
    directions,
    reals,
)
from tensorsmith.autograd.memory import Elements, as_array, from_array
from tensorsmith.autograd.node import gradient_edge
from tensorsmith.core.dtypes import complex128, float64
from tensorsmith.core.layout import contiguous_strides, layout_of
from tensorsmith.core.views import Strided, may_overlap_itself
from tensorsmith.tensor.tensor import Tensor, make_tensor


def gradcheck(
    func: Callable[..., Any], inputs: Tensor | Sequence[Any], *, eps: float = 1e-6, atol: float = 1e-5,
    rtol: float = 1e-3, raise_exception: bool = True, nondet_tol: float = 0.0, check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False, check_batched_grad: bool = False, check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False, check_backward_ad: bool = True, fast_mode: bool = False, masked: bool | None = None,
) -> bool:  # fmt: skip
    """Whether the gradients of `func(*inputs)` for its floating inputs that require one agree with differences.

    func: a function or a module (whose parameters are checked only where they are among the inputs).
    nondet_tol: how much two runs of the same backward may differ. check_undefined_grad: also with missing gradients of
    outputs. fast_mode: accepted; the full check is made. An input that is not float64 warns, and is named.
    check_forward_ad: also forward mode. check_batched_grad, check_batched_forward_grad: also derivatives under vmap.
    Raises GradcheckError (or returns False without raise_exception); ValueError, RuntimeError for unusable inputs;
    AssertionError where nothing is checked.
    """
    check_modes(check_forward_ad, check_backward_ad, check_batched_grad, check_batched_forward_grad)
    arguments = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    checked = _checked_inputs(func, arguments)
    try:
        outputs = _tuple(func(*arguments))
        if not all(isinstance(o, Tensor) for o in outputs):
            raise ValueError("Expected Tensor outputs from the function under gradcheck")
        differentiable = [i for i, o in enumerate(outputs) if o.layout.tracked]
        numerical = [_numerical(func, arguments, i, eps) for i in checked]
        if not differentiable:
            _check_constant(numerical)
            return True
        if check_forward_ad:
            floating = [i for i, o in enumerate(outputs) if o.layout.dtype.kind in "fc"]
            check_forward(func, arguments, checked, floating, numerical, atol, rtol)
            if check_undefined_grad:
                check_missing_tangents(func, arguments, checked)
            if check_batched_forward_grad:
                check_batched_forward(func, arguments, checked)
        if check_backward_ad:
            inputs_checked = [arguments[i] for i in checked]
            _check_jacobians(inputs_checked, checked, outputs, differentiable, numerical, atol, rtol, nondet_tol)
            if check_batched_grad:
                for number in differentiable:
                    check_batched_backward(outputs[number], number, inputs_checked)
            if check_grad_dtypes:
                _check_dtypes(inputs_checked, [outputs[i] for i in differentiable])
            if check_undefined_grad:
                _check_undefined(func, arguments, checked)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Any], inputs: Tensor | Sequence[Any], grad_outputs: Tensor | Sequence[Tensor] | None = None, *,
    eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3, gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True, nondet_tol: float = 0.0, check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False, check_batched_grad: bool = False, check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True, fast_mode: bool = False, masked: bool = False,
) -> bool:  # fmt: skip
    """`gradcheck` of the gradients themselves: second derivatives of `func` for its inputs and for grad_outputs.

    grad_outputs: the gradients of the outputs at which it is checked; random where not given.
    check_fwd_over_rev: second derivatives by forward mode of the gradients; check_rev_over_rev: by two backwards.
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError("Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True")
    arguments = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    outputs = [o for o in _tuple(func(*arguments)) if isinstance(o, Tensor) and o.layout.tracked]
    if grad_outputs is None:
        random = np.random.default_rng(0)
        seeds = []
        for output in outputs:
            values = random.standard_normal(output.layout.shape)
            if output.layout.dtype.is_complex:
                values = values + 1j * random.standard_normal(output.layout.shape)
            seeds.append(from_array(np.asarray(values), output.layout.dtype, True, output.layout.device))
        if gen_non_contig_grad_outputs:
            seeds = [_with_gaps(seed) for seed in seeds]
    else:
        seeds = list(_tuple(grad_outputs))
    count = len(arguments)

    wanted = [i for i, a in enumerate(arguments) if isinstance(a, Tensor) and a.layout.tracked]
    tracked = [isinstance(a, Tensor) and a.layout.tracked for a in (*arguments, *seeds)]

    def gradients(*args: Any) -> tuple[Tensor, ...]:
        # Forward mode gives the inputs detached.
        args = tuple([a.requires_grad_() if need else a for a, need in zip(args, tracked)])
        results = [o for o in _tuple(func(*args[:count])) if isinstance(o, Tensor) and o.layout.tracked]
        found = grad(results, [args[i] for i in wanted], args[count:], create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    return gradcheck(
        gradients, (*arguments, *seeds), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception,
        nondet_tol=nondet_tol, check_undefined_grad=check_undefined_grad, check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad, check_forward_ad=check_fwd_over_rev, check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode, masked=masked,
    )  # fmt: skip


def _tuple(values: Any) -> tuple:
    return tuple(values) if isinstance(values, tuple | list) else (values,)


def _with_gaps(tensor: Tensor) -> Tensor:
    """The same values, every second place of memory along the last axis."""
    layout = tensor.layout
    if not layout.shape:
        return tensor
    *outer, last = layout.shape
    wide = np.zeros((*outer, 2 * last), layout.dtype.numpy)
    wide[..., ::2] = as_array(tensor)
    memory = from_array(wide, layout.dtype, device=layout.device)
    strides = tuple(2 * s for s in contiguous_strides(layout.shape))
    return make_tensor(layout_of(layout.dtype, layout.shape, strides, True, layout.device), memory.storage, memory.ptr)


def _checked_inputs(func: Callable, arguments: tuple) -> list[int]:
    """Positions of the inputs to check; warns and raises about unusable ones."""
    found = []
    for position, tensor in enumerate(arguments):
        if not isinstance(tensor, Tensor) or not tensor.layout.tracked:
            continue
        found.append(position)
        layout = tensor.layout
        if layout.dtype not in (float64, complex128):
            warnings.warn(
                f"Input #{position} requires gradient and is not a double precision floating point or complex. This "
                f"check will likely fail if all the inputs are not of double precision floating point or complex. "
                f"(It is {layout.dtype.name}.)",
                stacklevel=3,
            )
        if tensor.numel() and any(s == 0 and n > 1 for s, n in zip(layout.strides, layout.shape)):
            raise RuntimeError(
                f"The {position}th input has a dimension with stride 0. gradcheck only supports inputs that are "
                "non-overlapping to be able to compute the numerical gradients correctly. You should call .contiguous "
                "on the input before passing it to gradcheck."
            )
        if may_overlap_itself(Strided(layout.shape, layout.strides)):
            raise RuntimeError(
                f"The {position}th input has elements that share memory. gradcheck only supports inputs that are "
                "non-overlapping. You should call .contiguous on the input before passing it to gradcheck."
            )
    if not found:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them have requires_grad=True."
        )
    named_parameters = getattr(func, "named_parameters", None)
    if named_parameters is not None:
        for name, parameter in named_parameters():
            if parameter.layout.tracked and parameter.layout.dtype is not float64:
                warnings.warn(
                    f"Parameter {name!r} of {type(func).__name__} is {parameter.layout.dtype.name}, not double "
                    "precision: this check will likely fail. Call .double() on the module first.",
                    stacklevel=3,
                )
    return found


def _numerical(func: Callable, arguments: tuple, position: int, eps: float) -> list[np.ndarray]:
    """Jacobian of every output for one input by central differences: arrays [elements of input, elements of output]."""
    array = Elements(arguments[position])
    columns: list[list[np.ndarray]] = []
    for index in np.ndindex(array.values.shape):
        kept = array[index]
        for step in (eps, eps * 1j) if array.values.dtype.kind == "c" else (eps,):
            try:
                array[index] = kept + step
                above = _values(func(*arguments))
                array[index] = kept - step
                below = _values(func(*arguments))
            finally:
                array[index] = kept
            columns.append([(a - b) / (2 * eps) for a, b in zip(above, below, strict=True)])
    if not columns:
        return [np.zeros((0, v.size)) for v in _values(func(*arguments))]
    return [np.stack(rows) for rows in zip(*columns)]


def _values(outputs: Any) -> list[np.ndarray]:
    """Every output as a flat array of its own in float64."""
    return [reals(as_array(o)) for o in _tuple(outputs)]


def _analytical(output: Tensor, inputs: list[Tensor]) -> list[np.ndarray]:
    """Jacobian of one output for every input by backward: arrays [elements of input, elements of output]."""
    layout = output.layout
    parts = directions(layout)
    found = [np.zeros((t.layout.numel * len(directions(t.layout)), layout.numel * len(parts))) for t in inputs]
    for place, (index, direction) in enumerate(itertools.product(np.ndindex(layout.shape), parts)):
        unit = np.zeros(layout.shape, layout.dtype.numpy)
        unit[index] = direction
        grads = grad(output, inputs, from_array(unit, layout.dtype, device=layout.device), retain_graph=True, allow_unused=True)
        for jacobian, gradient, tensor in zip(found, grads, inputs):
            if gradient is None:
                continue
            if gradient.layout.shape != tensor.layout.shape:
                raise GradcheckError(
                    f"Analytical gradient has incorrect size: {list(gradient.layout.shape)} for an input of size "
                    f"{list(tensor.layout.shape)}"
                )
            jacobian[:, place] = reals(as_array(gradient))
    return found


def _check_jacobians(
    inputs: list[Tensor], checked: list[int], outputs: tuple, differentiable: list[int],
    numerical: list[list[np.ndarray]], atol: float, rtol: float, nondet_tol: float,
) -> None:  # fmt: skip
    for o in differentiable:
        analytical = _analytical(outputs[o], inputs)
        again = _analytical(outputs[o], inputs)
        for place, position in enumerate(checked):
            a, n = analytical[place], numerical[place][o]
            if not np.allclose(a, n, rtol=rtol, atol=atol, equal_nan=True):
                raise GradcheckError(
                    f"Jacobian mismatch for output {o} with respect to input {position},\n"
                    f"numerical:{n}\nanalytical:{a}\n"
                )
            if np.abs(a - again[place]).max(initial=0.0) > nondet_tol:
                raise GradcheckError(
                    "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times "
                    "gives different values, although analytical gradient matches numerical gradient. The tolerance "
                    f"for nondeterminism was {nondet_tol}."
                )


def _check_constant(numerical: list[list[np.ndarray]]) -> None:
    """No output requires a gradient: then none may depend on an input."""
    if any(np.any(jacobian) for jacobians in numerical for jacobian in jacobians):
        raise GradcheckError("Numerical gradient for function expected to be zero")


def _check_dtypes(inputs: list[Tensor], outputs: list[Tensor]) -> None:
    """The gradient of every input must have its dtype."""
    for output in outputs:
        ones = from_array(np.ones(output.layout.shape), output.layout.dtype, device=output.layout.device)
        for tensor, gradient in zip(inputs, grad(output, inputs, ones, retain_graph=True, allow_unused=True)):
            if gradient is not None and gradient.layout.dtype is not tensor.layout.dtype:
                raise GradcheckError(
                    f"Gradient of dtype {gradient.layout.dtype.name} for an input of {tensor.layout.dtype.name}"
                )


def _check_undefined(func: Callable, arguments: tuple, checked: list[int]) -> None:
    """Missing gradients of outputs must act as zeros."""
    inputs = [arguments[i] for i in checked]
    outputs = [o for o in _tuple(func(*arguments)) if o.layout.tracked]
    cases = [range(len(outputs))] + ([[i] for i in range(len(outputs))] if len(outputs) > 1 else [])
    for missing in cases:
        outputs = [o for o in _tuple(func(*arguments)) if o.layout.tracked]
        roots: list[Any] = []
        for number, output in enumerate(outputs):
            edge = gradient_edge(output)
            assert edge is not None
            zeros = from_array(np.zeros(output.layout.shape), output.layout.dtype, device=output.layout.device)
            roots.append((*edge, None if number in missing else zeros))
        for gradient in _towards(roots, inputs):
            if gradient is not None and np.any(as_array(gradient)):
                raise GradcheckError(
                    "Expected all input grads to be undefined or zero when all output grads are undefined or zero."
                )


def _towards(roots: list[Any], inputs: list[Tensor]) -> list[Tensor | None]:
    captures: engine.Captures = {}
    for place, tensor in enumerate(inputs):
        edge = gradient_edge(tensor)
        assert edge is not None
        captures.setdefault(edge[0], []).append((edge[1], place))
    results: list[Tensor | None] = [None] * len(inputs)
    needed = engine.nodes_towards([root[0] for root in roots], captures)
    try:
        engine.run_towards(roots, False, False, needed, captures, results)
    except Exception as error:
        raise GradcheckError("Expected backward function to handle undefined output grads.") from error
    return results
