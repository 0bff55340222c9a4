"""Random programs of views, writes in place, hooks and backward calls, run by both libraries step by step.

A program is plain data: leaves, and steps of small numbers that pick an operation and its tensors from what exists so far.
After every step the libraries must agree on what happened (a result, an error of the same class) and on every tensor:
values, dtype, strides, offset, version, what is tracked, leaf, view, history, gradient.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

import tensorsmith as ts

SHAPES = ((2, 3), (3,), (3, 2), (1, 3), (2, 2, 2), (4,), (), (0,), (2, 0), (4, 2), (1,), (2, 1, 2))
DTYPES = ("float64", "float64", "float64", "float32", "int64", "bool", "complex128", "complex128", "complex64")
ERRORS = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, KeyError)


def leaf(library: Any, spec: tuple[int, int, int], number: int) -> Any:
    """A leaf: (shape, dtype, whether tracked) as numbers."""
    shape, dtype = SHAPES[spec[0] % len(SHAPES)], DTYPES[spec[1] % len(DTYPES)]
    count = int(np.prod(shape))
    values = np.arange(count) * 0.25 - 0.5 + 0.125 * number
    made_of = {"bool": values > 0, "int64": values * 4, "complex128": values + 0.5j * values[::-1] ** 2 + 0.25j}
    array = made_of.get(dtype.replace("64", "128") if dtype == "complex64" else dtype, values).reshape(shape)
    tracked = bool(spec[2]) and dtype.startswith(("float", "complex"))
    made = library.empty(shape, dtype=getattr(library, dtype))
    made.copy_(library.tensor(array.tolist(), dtype=made.dtype).view(shape))  # a list does not tell (2, 0) from (2,)
    return made.requires_grad_() if tracked else made


# --- what a step may do: f(library, x, y, a, b) ------------------------------------------------------------------------


def _reshape(method: str) -> Any:
    def function(library: Any, x: Any, y: Any, a: int, b: int) -> Any:
        n = x.numel()
        options = [(-1,), (1, n), (n, 1), (n,)] + [(k, n // k) for k in (2, 3) if n and n % k == 0]
        return getattr(x, method)(options[a % len(options)])

    return function


def _as_strided(library: Any, x: Any, y: Any, a: int, b: int) -> Any:
    n = x.numel()
    if not n or not x.is_contiguous():
        return x.view_as(x)
    options = [((n,), (1,)), ((max(n // 2, 1),), (2,)), ((1, n), (n, 1)), ((max(n - 1, 0),), (1,)), ((n // 2, 2), (2, 1))]
    size, stride = options[a % len(options)]
    return x.as_strided(size, stride, x.storage_offset() + (b % 2 if a % len(options) == 3 else 0))


# No halves of numbers, nor their bits as integers: the last bit of a sine would become a great difference.
VIEWED = {"float64": "complex128", "float32": "complex64", "complex128": "float64", "complex64": "float32", "int64": "float64",
          "bool": "uint8"}  # fmt: skip
VIEWS = [
    lambda L, x, y, a, b: x.t(),
    lambda L, x, y, a, b: x[a % (x.shape[0] + 1) : a % (x.shape[0] + 1) + 1 + b % 2],
    lambda L, x, y, a, b: x[..., a % 2 :: 2],
    _reshape("reshape"), _reshape("view"),
    lambda L, x, y, a, b: x.expand(2 + a % 2, *x.shape),
    lambda L, x, y, a, b: x.unsqueeze(-1).expand(*x.shape, 2),
    lambda L, x, y, a, b: x[a % 3], lambda L, x, y, a, b: x[None], lambda L, x, y, a, b: x[..., 0],
    lambda L, x, y, a, b: x.unsqueeze(a % 3), lambda L, x, y, a, b: x.squeeze(), lambda L, x, y, a, b: x.squeeze(a % 3),
    lambda L, x, y, a, b: x.transpose(0, -1), lambda L, x, y, a, b: x.select(-1, a % 2),
    lambda L, x, y, a, b: x.narrow(0, a % 2, 1), lambda L, x, y, a, b: x.diagonal(), lambda L, x, y, a, b: x.flatten(),
    lambda L, x, y, a, b: x.view_as(x), lambda L, x, y, a, b: x.expand_as(y), _as_strided,
    lambda L, x, y, a, b: x.unbind(a % 2), lambda L, x, y, a, b: x.split(1 + a % 3, b % 2),
    lambda L, x, y, a, b: x.chunk(1 + a % 3, b % 2), lambda L, x, y, a, b: x.split([1, x.shape[0] - 1]),
    lambda L, x, y, a, b: x.tensor_split(1 + a % 3), lambda L, x, y, a, b: x.unfold(b % 2, 1 + a % 2, 1 + a % 3),
    lambda L, x, y, a, b: x.movedim(0, -1), lambda L, x, y, a, b: x.permute(*reversed(range(x.dim()))),
    lambda L, x, y, a, b: x.diagonal(a % 2, -2, -1), lambda L, x, y, a, b: x.swapaxes(0, -1), lambda L, x, y, a, b: x.mT,
    lambda L, x, y, a, b: x.unflatten(0, (1, -1)), lambda L, x, y, a, b: x.view(x.dtype),
    lambda L, x, y, a, b: x.reshape_as(y), lambda L, x, y, a, b: x.ravel(), lambda L, x, y, a, b: x.hsplit(1 + a % 2),
    lambda L, x, y, a, b: L.broadcast_to(x, y.shape), lambda L, x, y, a, b: x.data, lambda L, x, y, a, b: x.detach(),
    lambda L, x, y, a, b: x.real, lambda L, x, y, a, b: x.imag, lambda L, x, y, a, b: L.view_as_real(x),
    lambda L, x, y, a, b: L.view_as_complex(x),
    lambda L, x, y, a, b: x.view(getattr(L, VIEWED[str(x.dtype).rpartition(".")[2]])),
    lambda L, x, y, a, b: x.unflatten(-1, ((-1, 1), (2, -1), (1, -1, 1))[a % 3]),
]  # fmt: skip
WRITES = [
    lambda L, x, y, a, b: x.add_(y), lambda L, x, y, a, b: x.mul_(y), lambda L, x, y, a, b: x.copy_(y),
    lambda L, x, y, a, b: x.zero_(), lambda L, x, y, a, b: x.mul_(0.5), lambda L, x, y, a, b: x.add_(1),
    lambda L, x, y, a, b: x.fill_(0.25), lambda L, x, y, a, b: x.sin_(), lambda L, x, y, a, b: x.sub_(y, alpha=2),
    lambda L, x, y, a, b: x.__setitem__(a % 2, y), lambda L, x, y, a, b: x.__setitem__(slice(a % 2, None), 2.0),
    lambda L, x, y, a, b: x.__setitem__(Ellipsis, y), lambda L, x, y, a, b: x.div_(y),
    lambda L, x, y, a, b: x.clamp_(-1.0, 0.75), lambda L, x, y, a, b: x.tanh_(),
    lambda L, x, y, a, b: x.masked_fill_(y > 0, 0.5),
    lambda L, x, y, a, b: x.sigmoid_(), lambda L, x, y, a, b: x.neg_(), lambda L, x, y, a, b: x.relu_(),
    lambda L, x, y, a, b: x.fill_(y.sum().detach()), lambda L, x, y, a, b: x.mul_(y * 2),
    lambda L, x, y, a, b: x.unsqueeze_(a % 2), lambda L, x, y, a, b: x.squeeze_(), lambda L, x, y, a, b: x.t_(),
    lambda L, x, y, a, b: x.transpose_(0, -1), lambda L, x, y, a, b: x.index_fill_(0, L.tensor([0]), 1.5),
    lambda L, x, y, a, b: x.index_add_(0, L.tensor([0] * min(x.dim(), 1)), y[:1]), lambda L, x, y, a, b: x.lerp_(y, 0.25),
    lambda L, x, y, a, b: x.__iadd__(y), lambda L, x, y, a, b: x.__imul__(3), lambda L, x, y, a, b: x.diagonal().add_(1),
    lambda L, x, y, a, b: x.flatten().mul_(2), lambda L, x, y, a, b: x.__setitem__(y > 0, 1.0),
    lambda L, x, y, a, b: x.real.mul_(y.real), lambda L, x, y, a, b: x.imag.add_(y.real), lambda L, x, y, a, b: x.mul_(1 + 2j),
    lambda L, x, y, a, b: L.view_as_real(x).sin_(), lambda L, x, y, a, b: setattr(x, "imag", y), lambda L, x, y, a, b: x.exp_(),
    lambda L, x, y, a, b: setattr(x, "real", y.real), lambda L, x, y, a, b: x.__setitem__(Ellipsis, 1 - 1j),
]  # fmt: skip
FUNCTIONS = [
    lambda L, x, y, a, b: x * y, lambda L, x, y, a, b: x + y, lambda L, x, y, a, b: x.clone(), lambda L, x, y, a, b: x * 2,
    lambda L, x, y, a, b: x.tanh(), lambda L, x, y, a, b: x.sum(), lambda L, x, y, a, b: x.sum(0),
    lambda L, x, y, a, b: x - x * y,
    lambda L, x, y, a, b: x.sin(), lambda L, x, y, a, b: x.contiguous(), lambda L, x, y, a, b: x.to(L.float64),
    lambda L, x, y, a, b: L.cat([x, x]), lambda L, x, y, a, b: L.where(x > y, x, y), lambda L, x, y, a, b: x.sigmoid(),
    lambda L, x, y, a, b: x / (y * y + 1), lambda L, x, y, a, b: L.stack([x, x], -1), lambda L, x, y, a, b: x > y,
    lambda L, x, y, a, b: x.float(), lambda L, x, y, a, b: x.to(x.dtype), lambda L, x, y, a, b: x.relu(),
    lambda L, x, y, a, b: x.detach().clone().requires_grad_(a % 2 == 0), lambda L, x, y, a, b: x[None].max(-1)[0][0],
    lambda L, x, y, a, b: x.cumsum(0),
    lambda L, x, y, a, b: x.contiguous()[L.tensor([0, 0][: x.numel()], dtype=L.int64)], lambda L, x, y, a, b: x.flip(0),
    lambda L, x, y, a, b: L.zeros_like(x), lambda L, x, y, a, b: x.new_ones(2, 3),
    lambda L, x, y, a, b: x.abs(), lambda L, x, y, a, b: x.conj().resolve_conj() * y,
    lambda L, x, y, a, b: L.complex(x, x.cos()), lambda L, x, y, a, b: x * (0.5 - 1j),
    lambda L, x, y, a, b: x.clone().contiguous().angle(), lambda L, x, y, a, b: x.to(L.complex128),
    lambda L, x, y, a, b: L.view_as_complex(L.stack([x, x * 2], -1)),
]  # fmt: skip


def _hook(L: Any, x: Any, y: Any, a: int, b: int, seen: list) -> Any:
    number = len(seen)

    def hook(grad: Any) -> Any:
        seen.append((number, plain(grad)))
        return grad * 2 if a % 3 == 0 else None

    seen.append("registered")
    handle = x.register_hook(hook)
    if b % 4 == 0:
        handle.remove()


def _real(L: Any, x: Any) -> Any:
    return L.view_as_real(x) if x.is_complex() else x


def _backward(L: Any, x: Any, y: Any, a: int, b: int, seen: list) -> Any:
    _real(L, x).sum().backward(retain_graph=a % 2 == 0)


def _backward_with_graph(L: Any, x: Any, y: Any, a: int, b: int, seen: list) -> Any:
    _real(L, x * x).sum().backward(create_graph=True)


def _twice(L: Any, x: Any, y: Any, a: int, b: int, seen: list) -> Any:
    (first,) = L.autograd.grad(_real(L, x * x * 0.5 + x.sin()).sum(), y, create_graph=True, allow_unused=a % 2 == 0)
    if first is not None:
        seen.append(plain(first))
        found = L.autograd.grad(_real(L, first).sum(), y, allow_unused=True, retain_graph=b % 2 == 0)[0]
        seen.append(None if found is None else plain(found))


AUTOGRAD = [
    lambda L, x, y, a, b, seen: x.detach_(), lambda L, x, y, a, b, seen: x.requires_grad_(a % 3 != 0),
    lambda L, x, y, a, b, seen: x.retain_grad(), _hook, _backward, _backward_with_graph, _twice, _hook,
    lambda L, x, y, a, b, seen: setattr(x, "grad", None), _backward,
    lambda L, x, y, a, b, seen: setattr(x, "requires_grad", a % 2 == 0),
]  # fmt: skip
KINDS = (VIEWS, VIEWS, VIEWS, WRITES, WRITES, WRITES, FUNCTIONS, FUNCTIONS, AUTOGRAD)


# --- running and comparing ---------------------------------------------------------------------------------------------


def perform(library: Any, tensors: list, instruction: tuple, seen: list) -> tuple:
    """One step: ("new", how many tensors now), ("same", which) or ("error", class, text)."""
    kind, which, i, j, a, b, mode = instruction
    x, y = tensors[i % len(tensors)], tensors[j % len(tensors)]
    operations: list[Any] = KINDS[kind % len(KINDS)]
    operation = operations[which % len(operations)]
    extra = (seen,) if operations is AUTOGRAD else ()
    try:
        if mode == 0:
            with library.no_grad():
                result = operation(library, x, y, a, b, *extra)
        else:
            result = operation(library, x, y, a, b, *extra)
    except ERRORS as error:
        return "error", type(error), str(error)
    known = next((k for k, t in enumerate(tensors) if t is result), None)
    if result is None or known is not None:
        return "same", known, None
    found = result if isinstance(result, tuple | list) else (result,)
    tensors.extend((found[0], found[-1]) if len(found) > 1 else found)
    return "new", len(tensors), [len(found)]


def shares_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def repeats_itself(x: torch.Tensor) -> bool:
    """Whether two elements share memory other than by a stride of zero: PyTorch writes over such tensors, we refuse."""
    strides = [(s, n) for s, n in zip(x.stride(), x.shape) if n > 1]
    if 0 in x.shape:
        return False
    where = np.zeros(1, np.int64)
    for s, n in strides:
        if s:
            where = (where[:, None] + np.arange(n) * s).reshape(-1)
    return len(np.unique(where)) < len(where)


def undefined(tensors: list, instruction: tuple) -> bool:
    """Whether a write reads memory that it writes, in an order that neither library promises, or repeats itself."""
    operations = KINDS[instruction[0] % len(KINDS)]
    if operations is not WRITES:
        return False
    x, y = tensors[instruction[2] % len(tensors)], tensors[instruction[3] % len(tensors)]
    name = instruction[1] % len(WRITES)
    if name in _LAID_OUT_ANEW and instruction[6] == 0:
        return True  # a leaf would take gradients of its former shape
    if y.requires_grad and not (x.is_floating_point() or x.is_complex()):
        return True  # PyTorch gives an integer tensor a history
    if repeats_itself(x) or (0 in x.stride() and (name in (15, 25, 32) or x is y)):
        return True  # repeated elements, which PyTorch only warns of in these
    if y.is_floating_point() and not x.is_floating_point() and not _asked(lambda: bool(y.abs().lt(1e9).all())):
        return True  # no value of the integer dtype
    if name in (25, 26) and (not x.numel() or x.dim() != y.dim()):
        return True  # an index of nothing: whether it is looked at depends on PyTorch's path
    exactly = x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride()
    ordered = x.is_contiguous() and y.is_contiguous() and (x.numel() > 1 or x.shape == y.shape)
    if name in _SETS or name in _PARTIAL:  # what is written is a part of x
        return shares_memory(x, y)
    return shares_memory(x, y) and not exactly and not ordered


_SETS = (9, 10, 11, 32, 37, 39, 40)
_PARTIAL = (25, 26, 30, 33, 34)
_LAID_OUT_ANEW = (21, 22, 23, 24)


def plain(x: Any) -> tuple:
    return tuple(x.shape), x.detach().tolist()


def _asked(function: Any) -> Any:
    """What a property says, or the class of error that it raises."""
    try:
        return function()
    except ERRORS as error:
        return type(error).__name__


def facts(x: Any) -> dict[str, Any]:
    """What a tensor looks like from outside."""
    return {
        "shape": tuple(x.shape), "dtype": str(x.dtype).rpartition(".")[2],
        "strides": tuple(s for n, s in zip(x.shape, x.stride()) if n > 1) if x.numel() else (),
        "offset": x.storage_offset() if x.numel() else 0, "version": x._version, "view": x._is_view(),
        "requires_grad": x.requires_grad, "leaf": _asked(lambda: x.is_leaf), "history": _asked(lambda: x.grad_fn is not None),
        "retains": x.retains_grad, "grad": _asked(lambda: x.grad is not None),
    }  # fmt: skip


def _parts(x: Any) -> np.ndarray:
    """Every number as its two parts: NaN in one says nothing of the other."""
    array = np.array(x, dtype=complex)
    return np.stack([array.real, array.imag])


def close(a: Any, b: Any, single: bool, where: str) -> None:
    """Two nested lists of numbers, or logs of them."""
    tolerance = dict(rtol=1e-4, atol=1e-5) if single else dict(rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(_parts(a), _parts(b), err_msg=where, **tolerance)


def check(ours: list, theirs: list, where: str, single: bool) -> None:
    """All tensors alike."""
    for k, (a, b) in enumerate(zip(ours, theirs)):
        first, second = facts(a), facts(b)
        differing = {name: (first[name], second[name]) for name in second if first[name] != second[name]}
        assert not differing, f"{where}: tensor {k}: (ours, PyTorch's) {differing}"
        close(a.detach().tolist(), b.detach().tolist(), single, f"{where}: values of {k}")
        if second["grad"] is True:
            assert tuple(a.grad.shape) == tuple(b.grad.shape), f"{where}: shape of the gradient of {k}"
            if b.numel():  # of nothing, PyTorch's as_strided has a gradient without history
                assert a.grad.requires_grad == b.grad.requires_grad, f"{where}: whether the gradient of {k} is tracked"
            close(a.grad.detach().tolist(), b.grad.detach().tolist(), single, f"{where}: gradient of {k}")


# What PyTorch's backward cannot follow, by words of its message: ours may go on.
UNABLE = ("detached in-place", "refers to a single memory location", "moved into the graph interior", "INTERNAL ASSERT",
          "returned an invalid gradient", "isFloatingType(grad.scalar_type())", "last dimension with stride 1")  # fmt: skip


def total(tensors: list) -> Any:
    """A scalar that weighs every element of every tracked tensor differently."""
    result = None
    for k, x in enumerate(tensors):
        if x.requires_grad:
            x = _real(torch if isinstance(x, torch.Tensor) else ts, x)
            term = (x * x * (0.5 + k)).sum() + x.sum() * (1.0 + k)
            result = term if result is None else result + term
    return result


def outcome(function: Any) -> tuple:
    try:
        function()
    except ERRORS as error:
        return type(error), str(error)
    return None, ""


def run(program: tuple) -> None:
    """Both libraries; AssertionError at the first difference."""
    leaves, steps = program
    ours = [leaf(ts, spec, n) for n, spec in enumerate(leaves)]
    theirs = [leaf(torch, spec, n) for n, spec in enumerate(leaves)]
    single = any(DTYPES[spec[1] % len(DTYPES)] != "float64" for spec in leaves)
    seen_ours: list = []
    seen_theirs: list = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for position, instruction in enumerate(steps):
            where = f"step {position} {instruction}"
            if undefined(theirs, instruction):
                continue
            b = perform(torch, theirs, instruction, seen_theirs)
            if b[0] == "error" and any(words in b[2] for words in UNABLE):
                return
            single = single or any(x.dtype in (torch.float32, torch.complex64) for x in theirs)
            a = perform(ts, ours, instruction, seen_ours)
            if a[0] == b[0] == "error" and {a[1], b[1]} == {RuntimeError, NotImplementedError}:
                if "not implemented for" in a[2] + b[2]:  # a dtype that a kernel lacks, and another fault: either class
                    b = a
            if a[0] == b[0] == "error" and ("inplace" in b[2] or "in-place" in b[2]):
                b = a  # two faults at once: either may be named
            assert a[:2] == b[:2], f"{where}: ours {a}, PyTorch's {b}"
            assert len(seen_ours) == len(seen_theirs), f"{where}: hooks saw {seen_ours}, PyTorch's {seen_theirs}"
            for left, right in zip(seen_ours, seen_theirs):
                _same_log(left, right, single, where)
            if b[0] == "error" and KINDS[instruction[0] % len(KINDS)] is AUTOGRAD and "backward" in b[2] + str(instruction[1]):
                return  # gradients that a failed backward left behind depend on its order
            check(ours, theirs, where, single)
        first = outcome(lambda: total(ours).backward() if total(ours) is not None else None)
        second = outcome(lambda: total(theirs).backward() if total(theirs) is not None else None)
        if any(words in second[1] for words in UNABLE):
            return
        assert first[0] == second[0], f"backward: ours {first}, PyTorch's {second}"
        if first[0] is None:
            check(ours, theirs, "backward", single)


def _same_log(left: Any, right: Any, single: bool, where: str) -> None:
    if isinstance(right, tuple) and len(right) == 2 and isinstance(right[0], tuple):
        assert left[0] == right[0], f"{where}: {left}, PyTorch's {right}"
        close(left[1], right[1], single, where)
    elif isinstance(right, tuple):
        assert left[0] == right[0], f"{where}: {left}, PyTorch's {right}"
        _same_log(left[1], right[1], single, where)
    else:
        assert left == right, f"{where}: {left}, PyTorch's {right}"


def draw(random: Any) -> tuple:
    """A program from a `random.Random`."""
    number = lambda n: random.randrange(n)  # noqa: E731
    leaves = [(number(12), number(len(DTYPES)), number(3)) for _ in range(2 + number(2))]
    steps = [(number(9), number(240), number(12), number(12), number(6), number(6), number(6)) for _ in range(3 + number(8))]
    return leaves, steps
