"""`ts.compile(fn)`: trace once per kind of arguments, then run the whole function as one plan.

What a function may do: compute on tensors, write in place, call `backward()`, step an optimiser. Captured tensors
(parameters, buffers, optimiser state) are read from where they are at each run, and written where they are; gradients of
captured leaves are set after each run as the function set them.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tensorsmith.autograd.anomaly import PACKAGE
from tensorsmith.compile.nest import Leaf, Nest, flatten, hashable
from tensorsmith.compile.specialisation import Specialisation, differing, distance, specialise
from tensorsmith.compile.trace import has_gradient
from tensorsmith.compile.tracer import Uninitialized, ValueNeeded
from tensorsmith.compile.written import written
from tensorsmith.core.dtypes import get_default_dtype
from tensorsmith.passes import winograd
from tensorsmith.passes.manager import check_names, switched_off
from tensorsmith.targets.cuda import precision
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
MOST_PLANS = 64  # of one compiled function; what was not used for longest gives way
MOST_WRITTEN = 4  # kinds of calls that are tried first
MANY = 8  # plans for the same arguments, from which on that is announced
_ANNOUNCED = ("dtype", "rank", "device", "module structure", "requires_grad")


class RecompileWarning(UserWarning):
    """A compiled function was compiled again for something that seldom changes on purpose; said once for each cause."""


class BreakWarning(UserWarning):
    """A compiled function runs eagerly, because a line of it needs the value of a tensor; said once for each line."""


@dataclass(frozen=True)
class Options:
    """What `ts.compile` was asked for beside the function."""

    allow_breaks: bool = False
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    verify: bool = False
    most_plans: int = MOST_PLANS


COMPILED: weakref.WeakSet[Compiled] = weakref.WeakSet()  # all that there are


class Compiled:
    """A compiled function: specialisations by kind of arguments."""

    def __init__(self, function: Callable, name: str, options: Options = Options()) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.specialisations: dict[Any, list[Specialisation]] = {}
        self._broken: set[Any] = set()  # kinds of arguments that run eagerly
        self._said: set[str] = set()
        self._written: tuple[Any, ...] = ()  # calls written out, the last one first
        self._reasons: dict[Any, int] = {}  # why it was traced without a plan to keep, and how often
        self._lock = threading.RLock()  # held while tracing and while the table changes; runs overlap
        self._clock = itertools.count(1)
        functools.update_wrapper(self, function, updated=())
        COMPILED.add(self)

    def forget(self) -> None:
        """Let go of all plans, and of what was announced."""
        with self._lock:
            self.specialisations, self._written = {}, ()
            self._broken, self._said, self._reasons = set(), set(), {}

    def __getattr__(self, name: str) -> Any:
        """Everything else is the function's own: `parameters()`, `eval()`, `state_dict()` of a compiled model."""
        if name == "function":  # not set yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.function, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A compiled method."""
        return self if instance is None else types.MethodType(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """A copy traces anew: its parameters are other tensors."""
        return Compiled(copy.deepcopy(self.function, memo), self.name, self.options)

    def __reduce__(self) -> Any:
        return Compiled, (self.function, self.name, self.options)

    def __repr__(self) -> str:
        return f"compile({self.function!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if modes.tracer is not None:
            return self.function(*args, **kwargs)
        if not kwargs:
            for accepts, launch, specialisation in self._written:
                if accepts(args):
                    specialisation.used = next(self._clock)
                    return launch(args)
        if not kwargs and all([isinstance(x, Tensor) for x in args]):
            tensors, (nest, shape) = list(args), _of_tensors(len(args))
        else:
            tensors, nest = flatten((args, kwargs))
            shape = hashable(nest)
        count = len(tensors)
        leaves = tuple([i for i, t in enumerate(tensors) if t.layout.tracked and has_gradient(t)])
        tensors += [tensors[i].state.grad for i in leaves]  # type: ignore[union-attr,misc]
        layouts = tuple([t.layout for t in tensors])
        key = (
            layouts, sharing(tensors), shape, leaves, modes.grad, modes.autocast, get_default_dtype(), winograd.mode(),
            precision.mode(), switched_off(),
        )  # fmt: skip
        try:
            known = self.specialisations.get(key, ())
            if self._broken and key in self._broken:
                return self.function(*args, **kwargs)
        except TypeError:  # an argument whose value cannot be compared: traced at every call
            return self._specialised(tensors, nest, count).run(tensors)
        for specialisation in known:
            if specialisation.fits(tensors):
                specialisation.used = next(self._clock)
                result = specialisation.run(tensors)
                if not kwargs and count == len(args) and not leaves:
                    self._write_out(specialisation, args)
                return result
        with self._lock:
            for specialisation in self.specialisations.get(key, ()):  # another thread may have made it meanwhile
                if specialisation.fits(tensors):
                    break
            else:
                self._announce(key, tensors)
                try:
                    specialisation = self._specialised(tensors, nest, count)
                except Uninitialized:  # lazy modules take their sizes, and draw their weights, as ever
                    return self.function(*args, **kwargs)
                except ValueNeeded as problem:
                    if not self.options.allow_breaks:
                        raise
                    self._broken.add(key)
                    self._say(
                        f"break {problem.line}", f"compile: {self.name} runs eagerly: the value of a tensor is needed at "
                        f"{problem.line}", BreakWarning,
                    )  # fmt: skip
                    return self.function(*args, **kwargs)
                self._note_side_effects(key, specialisation)
                if specialisation.is_for_once:
                    return specialisation.run(tensors)
                self._remember(key, specialisation)
        return specialisation.run(tensors)

    def _specialised(self, tensors: list[Tensor], nest: Any, count: int) -> Specialisation:
        return specialise(self.name, self.function, tensors, nest, count, self.options)

    def _write_out(self, specialisation: Specialisation, args: tuple[Any, ...]) -> None:
        """Let calls like this one, whose arguments are tensors themselves, go the short way from now on."""
        if specialisation.written is None:
            specialisation.written = written(specialisation, args) or ()
        if specialisation.written:
            others = [each for each in self._written if each[2] is not specialisation]
            self._written = ((*specialisation.written, specialisation), *others[: MOST_WRITTEN - 1])

    def _remember(self, key: Any, specialisation: Specialisation) -> None:
        specialisation.used = next(self._clock)
        usable = [each for each in self.specialisations.get(key, ()) if not each.lost_state]
        self.specialisations[key] = [*usable, specialisation]
        everything = [(each.used, k, each) for k, kept in self.specialisations.items() for each in kept]
        if len(everything) > self.options.most_plans:
            _, oldest, unused = min(everything, key=lambda item: item[0])
            left = [each for each in self.specialisations[oldest] if each is not unused]
            if left:
                self.specialisations[oldest] = left
            else:
                del self.specialisations[oldest]
            self._written = tuple(each for each in self._written if each[2] is not unused)

    def _announce(self, key: Any, tensors: Sequence[Tensor]) -> None:
        """Say why it is compiled again, where that is seldom meant."""
        cause = None
        if self.specialisations.get(key):
            cause = self.specialisations[key][-1].unfit(tensors)
        else:
            alike = [k for k in self.specialisations if len(k[0]) == len(key[0]) and k[1:] == key[1:]]
            if alike:
                nearest = min(alike, key=lambda k: sum(map(distance, k[0], key[0])))
                pairs = enumerate(zip(nearest[0], key[0]))
                cause = next((differing(f"argument {i}", a, b) for i, (a, b) in pairs if a is not b), None)
        if len(self.specialisations.get(key, ())) >= MANY and cause is not None:
            self._say("many", f"compile: {self.name} has been compiled {MANY} times for the same arguments; now because of "
                      f"{cause}. Pass what changes at every call as a tensor.", RecompileWarning)  # fmt: skip
            return
        kind = next((kind for kind in _ANNOUNCED if cause is not None and cause.startswith(kind)), None)
        if kind is not None:
            self._say(kind, f"compile: {self.name} is compiled again: {cause}", RecompileWarning)

    def _note_side_effects(self, key: Any, specialisation: Specialisation) -> None:
        """Say that a function is traced at every call, when that has happened twice for the same reason."""
        what = specialisation.changes
        if what is not None:
            line = specialisation.tracer.reach.line_that_stores(what)
            what = f"it changes {what}" + (f" (at {line})" if line else "")
        elif specialisation.escaped:
            tensor = specialisation.escaped[0][0]
            what = f"something outside of it keeps a tensor of it, {tensor.layout.dtype.name}{list(tensor.layout.shape)}"
        elif specialisation.result_is_new:
            what = "its result holds an object that is no tensor, container or number"
        else:
            return
        self._reasons[key, what] = self._reasons.get((key, what), 0) + 1
        if self._reasons[key, what] == 2:
            self._say("side effect", f"compile: {self.name} is traced at every call, because {what}. Return what it makes, "
                      "count outside of it, or keep counts and averages in tensors.", RecompileWarning)  # fmt: skip

    def _say(self, once: str, message: str, category: type[Warning]) -> None:
        if once not in self._said:
            self._said.add(once)
            frame, depth = sys._getframe(1), 2
            while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
                frame, depth = frame.f_back, depth + 1
            warnings.warn(message, category, stacklevel=depth)

    @property
    def plans(self) -> list[Specialisation]:
        """What was compiled so far, the plan that was used last first."""
        return sorted((s for kept in self.specialisations.values() for s in kept), key=lambda s: -s.used)


def _check_kind(function: Any) -> None:
    """Refuse a function whose body does not run when it is called."""
    for each in (function, getattr(function, "forward", None), type(function).__call__):
        what = "generator" if inspect.isgeneratorfunction(each) else "coroutine" if inspect.iscoroutinefunction(each) else None
        what = "asynchronous generator" if inspect.isasyncgenfunction(each) else what
        if what is not None:
            name = getattr(function, "__name__", type(function).__name__)
            raise NotImplementedError(
                f"compile: {name} is a {what} function, which computes nothing when it is called; compile a function that "
                "returns a list or tuple of its results, and call it from there"
            )


@functools.cache
def _of_tensors(count: int) -> tuple[Any, Any]:
    """The nest of so many arguments that are tensors themselves, and as a key."""
    nest = Nest(tuple, (Nest(tuple, tuple([Leaf(i) for i in range(count)])), Nest(dict, ())))
    return nest, hashable(nest)


def sharing(tensors: Sequence[Tensor]) -> tuple:
    """Which arguments share memory, and how far apart they start; () where none do."""
    if len({id(t.storage) for t in tensors}) == len(tensors):
        return ()
    first: dict[int, int] = {}
    found = []
    for i, tensor in enumerate(tensors):
        k = first.setdefault(id(tensor.storage), i)
        found.append((k, tensor.ptr - tensors[k].ptr, next(j for j, t in enumerate(tensors) if t is tensor)))
    return tuple(found)


@functools.cache
def _compiled_class(kind: type) -> Any:
    """The class of compiled modules of a class: a subclass whose call runs the program."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._program(*args, **kwargs)

    def deep_copy(self: Any, memo: dict[int, Any]) -> Any:
        return compiled_module(copy.deepcopy(self._program.function, memo), self._program.options)

    def reduce(self: Any, protocol: Any = None) -> Any:
        return compiled_module, (self._program.function, self._program.options)

    return type(kind.__name__, (kind,), {
        "__slots__": ("_program",), "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__,
        "__call__": call, "__deepcopy__": deep_copy, "__reduce_ex__": reduce,
        "_orig_mod": property(lambda self: self._program.function), "plans": property(lambda self: self._program.plans),
    })  # fmt: skip


def compiled_module(module: Any, options: Options) -> Any:
    """A module of the class of `module` and with its very attributes, which runs as a program when it is called."""
    made = object.__new__(_compiled_class(type(module)))  # type: ignore[arg-type]
    object.__setattr__(made, "__dict__", module.__dict__)
    object.__setattr__(made, "_program", Compiled(module, type(module).__name__, options))
    return made


def _is_module(function: Any) -> bool:
    return "_modules" in getattr(function, "__dict__", {}) and hasattr(function, "forward")


_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _check_hints(mode: Any, backend: Any, options: Any) -> None:
    """Refuse what PyTorch's arguments ask for and nothing here does."""
    if mode not in _MODES:
        raise ValueError(f"compile: unrecognized mode={mode}; PyTorch's are {', '.join(map(repr, _MODES[1:]))}, all one here")
    if backend not in (None, "inductor", "tensorsmith"):
        raise ValueError(
            f"compile: backend {backend!r} is not one of Tensorsmith's; there is one, 'tensorsmith'. Plain execution is "
            "disable=True, checks of every plan are verify=True, and a graph is shown by ts.explain(function, *arguments)"
        )
    if options:
        raise ValueError(
            f"compile: options {sorted(options)} are those of PyTorch's Inductor; passes are left out by disable=(...) and "
            "added by enable=(...), ts.passes.names() lists them"
        )


def compile(  # noqa: A001 - PyTorch's name
    function: F | None = None,
    *,
    fullgraph: bool = True,
    dynamic: bool | None = None,
    backend: str | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool | Sequence[str] = False,
    enable: Sequence[str] = (),
    verify: bool = False,
    allow_breaks: bool = False,
    most_plans: int = MOST_PLANS,
) -> Any:
    """A function that is traced at its first call with each kind of arguments, and then runs as one program.

    function:     a function or a module; without one, a decorator
    disable:      names of passes to leave out, `ts.passes.names()`; True gives the function back as it is
    enable:       names of passes that are off by default ("unsafe-algebra")
    verify:       check graphs between passes, and every new plan against the operators run one by one without passes
    allow_breaks: run calls eagerly, with a BreakWarning, where the function needs the value of a tensor
    most_plans:   how many plans are kept; the one that was not used for longest gives way
    fullgraph:    PyTorch's name: False is allow_breaks=True
    `dynamic` and `mode` are PyTorch's hints, and change nothing: a plan is made for the shapes it was called with, and kernels
    are shared by all shapes. What the function reads of its surroundings is guarded, and traced anew where it has changed. A
    compiled module is a module of the same class, with the attributes of the one that is given.

    Raises TraceError (ValueNeeded) where a Python decision needs the value of a tensor; ValueError for a pass or mode that
    does not exist, another backend, options of Inductor; NotImplementedError for generators and
    coroutines. A run that raises has changed no tensor, gradient, random generator or schedule.

    >>> step = ts.compile(lambda x: (x * 2).sum())
    """
    if function is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable,
            enable=enable, verify=verify, allow_breaks=allow_breaks, most_plans=most_plans,
        )  # fmt: skip
    _check_hints(mode, backend, options)
    if disable is True:
        return function
    if not callable(function):
        raise TypeError(f"compile: expected a function or a module, but got {type(function).__name__}")
    off = () if disable is False else (disable,) if isinstance(disable, str) else tuple(disable)
    on = (enable,) if isinstance(enable, str) else tuple(enable)
    check_names((*off, *on))
    _check_kind(function)
    asked = Options(allow_breaks or not fullgraph, off, on, verify, most_plans)
    if isinstance(function, Compiled):
        function = function.function  # type: ignore[assignment]
    if _is_module(function):
        return compiled_module(getattr(function, "_orig_mod", function), asked)
    return Compiled(function, getattr(function, "__name__", "function"), asked)
