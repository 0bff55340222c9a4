"""Random numbers: Philox4x32-10 bits of (key, counter), made into distributions.

A `Generator` is a key (the seed) and an offset: how many counters have been used. An operator draws a run of counters, so
that the same seed gives the same numbers on every target and for any number of threads, and a backward can make the same
numbers again. Key and offset are run-time scalars: drawing again needs no new plan.

The numbers are not PyTorch's (its generators are others, and differ between its own devices); the distributions are.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.core import dtypes
from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType, get_default_dtype, int64, real_dtype, type_name
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.ops.checks import c_name, refuse
from tensorsmith.ops.complex_numbers import view_as_complex, view_as_real
from tensorsmith.ops.creation import accepts_out, array_of, copy_array, like_strides, shape_of
from tensorsmith.ops.index_steps import from_host
from tensorsmith.ops.joining import cat
from tensorsmith.ops.memory_formats import copied_with
from tensorsmith.ops.raw_keys import as_int
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.placement import device_from, on, place_of
from tensorsmith.tensor.tensor import Tensor

_MASK = (1 << 64) - 1


class Generator:
    """A stream of random numbers: `key` and `offset`.

    >>> g = ts.Generator().manual_seed(0)
    >>> ts.rand(2, generator=g).shape
    tensorsmith.Size([2])
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.device = device_from(device)
        self.key = 67280421310721  # PyTorch's default seed
        self.offset = 0

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of this seed."""
        seed = int(seed)
        if not -(1 << 63) <= seed <= _MASK:
            raise RuntimeError(f"manual_seed expected a seed of 64 bits, got {seed}")
        self._go_to(lambda: (_signed(seed & _MASK), 0))
        return self

    def _go_to(self, place: Callable[[], tuple[int, int]]) -> None:
        """Go on from a key and an offset; a compiled function does so at every run."""
        if modes.tracer is None:
            self.key, self.offset = place()
            return

        def keep() -> Callable[[], None]:
            before = self.key, self.offset

            def put_back() -> None:
                self.key, self.offset = before

            return put_back

        modes.tracer.effect(lambda: self._go_to(place), keep)

    def seed(self) -> int:
        """Start the stream of a seed from the operating system, and return the seed."""
        seed = int.from_bytes(os.urandom(8), "little") >> 1
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """The seed of this stream."""
        return self.key & _MASK

    def get_state(self) -> Tensor:
        """Key and offset as a uint8 tensor of 16 bytes."""
        state = copy_array(np.array([self.key, self.offset], np.int64).view(np.uint8))
        later = getattr(modes.tracer, "later", None)
        if later is not None:  # a compiled function goes back to what it was in the same run
            state.__dict__["_of_run"] = kept = threading.local()

            def keep() -> None:
                kept.state = self.key, self.offset

            keep()
            later(keep, (), "get_state()")
        return state

    def set_state(self, state: Tensor) -> None:
        """Go on where `get_state` was called."""
        if not isinstance(state, Tensor) or state.dtype is not dtypes.uint8 or state.numel() != 16:
            raise TypeError("expected a generator state: a uint8 tensor of 16 elements, as get_state() returns it")
        of_run = state.__dict__.get("_of_run")
        if modes.tracer is not None and of_run is not None:
            self._go_to(lambda: of_run.state)
        else:
            found = tuple(np.ascontiguousarray(array_of(state)).view(np.int64).tolist())
            self._go_to(lambda: found)

    def draw(self, count: int) -> tuple[Any, Any]:
        """(key, first counter) of `count` fresh counters."""
        if modes.tracer is not None:  # asked again at every run of the compiled function
            return modes.tracer.draw(self, count)
        return self.key, self._advance(count)

    def _advance(self, count: int) -> int:
        if modes.capture is not None:
            raise RuntimeError(
                "random numbers cannot be drawn while a CUDA graph is captured: every replay would draw the same; a function "
                "of ts.compile draws anew in its replays"
            )
        first = self.offset
        self.offset = first + -(-count // 4) * 4  # whole blocks of four words
        return first


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default generator from the operating system."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The state of the default generator."""
    return default_generator.get_state()


def set_rng_state(state: Tensor) -> None:
    """Set the state of the default generator."""
    default_generator.set_state(state)


def draw(count: int, generator: Generator | None = None) -> tuple[Any, Any]:
    """(key, first counter) from a generator, the default one where none is given."""
    return (generator or default_generator).draw(count)


# --- graphs -----------------------------------------------------------------------------------------------------------


def bits(key: Node, offset: Node, shape: Sequence[int], stride: int = 1, start: int = 0) -> Node:
    """uint32 bits of shape `shape`: element i is word offset + stride * i + start of the stream."""
    graph: Graph = key.graph
    shape = tuple(shape)
    numel = math.prod(shape)
    counter = graph.iota(numel) * stride + (offset + start)
    flat = graph.add(Primitive.RANDOM, (build.broadcast_to(key, (numel,)), counter))
    return build.reshape(flat, shape)


def words_of(dtype: DType) -> int:
    """Words of the stream that one uniform number of a dtype takes."""
    return 2 if dtype is dtypes.float64 else 1


def uniform_graph(key: Node, offset: Node, shape: Sequence[int], dtype: DType, stride: int = 0, start: int = 0) -> Node:
    """Uniform in [0, 1): as many of the top bits as the dtype has in its mantissa."""
    stride = stride or words_of(dtype)
    if dtype is dtypes.float64:
        high = build.cast(_top(bits(key, offset, shape, stride, start), 27), dtypes.float64)
        low = build.cast(_top(bits(key, offset, shape, stride, start + 1), 26), dtypes.float64)
        return (high * 2.0**26 + low) * 2.0**-53
    top = _top(bits(key, offset, shape, stride, start), dtype.digits)
    value = build.cast(top, dtypes.float32) * 2.0**-dtype.digits
    return build.cast(value, dtype)


def _top(word: Node, digits: int) -> Node:
    shifted = build.map_(Fn.RIGHT_SHIFT, build.cast(word, int64), 32 - digits)
    return build.cast(shifted, int64)


def normal_graph(key: Node, offset: Node, shape: Sequence[int], dtype: DType) -> Node:
    """Standard normal by Box and Muller: sqrt(-2 ln u) cos(2 pi v), u in (0, 1]."""
    work = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    words = words_of(work)
    u = 1.0 - uniform_graph(key, offset, shape, work, 2 * words)
    v = uniform_graph(key, offset, shape, work, 2 * words, words)
    radius = build.map_(Fn.SQRT, build.map_(Fn.LOG, u) * -2.0)
    return build.cast(radius * build.map_(Fn.COS, v * (2.0 * math.pi)), dtype)


def integer_graph(key: Node, offset: Node, low: Node, high: Node, shape: Sequence[int], dtype: DType) -> Node:
    """Uniform integers in [low, high) from 62 bits of two words."""
    first = build.map_(Fn.RIGHT_SHIFT, build.cast(bits(key, offset, shape, 2), int64), 1)
    second = build.map_(Fn.RIGHT_SHIFT, build.cast(bits(key, offset, shape, 2, 1), int64), 1)
    wide = first * (1 << 31) + second
    return build.cast(low + build.map_(Fn.REMAINDER, wide, high - low), dtype)


_rand = Operator("rand", lambda key, offset, shape, dtype: uniform_graph(key, offset, shape, dtype), fresh=True)
_randn = Operator("randn", lambda key, offset, shape, dtype: normal_graph(key, offset, shape, dtype), fresh=True)
_randint = Operator("randint", integer_graph, fresh=True)


def _distribution(sample: Any) -> Any:
    """An in-place operator that writes samples over its first operand, whose values do not matter."""

    def graph(target: Node, key: Node, offset: Node, *parameters: Any) -> Node:
        work = dtypes.float64 if target.dtype is dtypes.float64 else dtypes.float32
        return build.cast(sample(key, offset, target.shape, work, *parameters), target.dtype)

    return graph


def _uniform(key: Node, offset: Node, shape: Any, work: DType, low: Node, high: Node) -> Node:
    low, high = build.cast(low, work), build.cast(high, work)
    return low + uniform_graph(key, offset, shape, work) * (high - low)


def _normal(key: Node, offset: Node, shape: Any, work: DType, mean: Node, std: Node) -> Node:
    return build.cast(mean, work) + normal_graph(key, offset, shape, work) * build.cast(std, work)


def _exponential(key: Node, offset: Node, shape: Any, work: DType, rate: Node) -> Node:
    return build.map_(Fn.LOG, 1.0 - uniform_graph(key, offset, shape, work)) / -build.cast(rate, work)


def _log_normal(key: Node, offset: Node, shape: Any, work: DType, mean: Node, std: Node) -> Node:
    return build.map_(Fn.EXP, _normal(key, offset, shape, work, mean, std))


def _cauchy(key: Node, offset: Node, shape: Any, work: DType, median: Node, sigma: Node) -> Node:
    u = uniform_graph(key, offset, shape, work)
    return build.cast(median, work) + build.map_(Fn.TAN, (u - 0.5) * math.pi) * build.cast(sigma, work)


def _geometric(key: Node, offset: Node, shape: Any, work: DType, p: Node) -> Node:
    u = 1.0 - uniform_graph(key, offset, shape, work)
    return build.map_(Fn.MAXIMUM, build.map_(Fn.CEIL, build.map_(Fn.LOG, u) / build.map_(
        Fn.LOG1P, -build.cast(p, work))), 1.0)  # fmt: skip


def _bernoulli(key: Node, offset: Node, shape: Any, work: DType, p: Node) -> Node:
    return build.cast(uniform_graph(key, offset, shape, work) < build.broadcast_to(build.cast(p, work), shape), work)


_inplace = {
    name: InplaceOperation(Operator(name, _distribution(sample), lambda i, o, g: [None] * len(i), pointwise=True), (0,))
    for name, sample in {
        "uniform": _uniform, "normal": _normal, "exponential": _exponential, "log_normal": _log_normal,
        "cauchy": _cauchy, "geometric": _geometric, "bernoulli": _bernoulli,
    }.items()
}  # fmt: skip


# --- public functions -------------------------------------------------------------------------------------------------


def _finish(tensor: Tensor, requires_grad: bool) -> Tensor:
    return tensor.requires_grad_(True) if requires_grad else tensor


def _floating(name: str, dtype: DType | None) -> DType:
    dtype = dtype or get_default_dtype()
    if dtype.kind != "f":
        raise NotImplementedError(f"\"{name}\" not implemented for '{dtype.name}': it makes floating-point numbers")
    return dtype


def _of_parts(make: Any, shape: tuple[int, ...], dtype: DType, generator: Generator | None, place: Device) -> Tensor:
    """A complex tensor whose parts `make` drew."""
    return view_as_complex(make((*shape, 2), dtype=real_dtype(dtype), generator=generator, device=place))


@public("random", method=False, differentiable=False)
@accepts_out
def rand(
    *size: Any, generator: Generator | None = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Uniform in [0, 1); of a complex dtype both parts are."""
    place = place_of(device)
    if dtype is not None and dtype.is_complex:
        return _finish(_of_parts(rand, shape_of("rand", size), dtype, generator, place), requires_grad)
    shape, dtype = shape_of("rand", size), _floating("rand", dtype)
    key, offset = draw(math.prod(shape) * words_of(dtype), generator)
    return _finish(_rand(key, offset, shape=shape, dtype=dtype, **on(place)), requires_grad)


@public("random", method=False, differentiable=False)
@accepts_out
def randn(
    *size: Any, generator: Generator | None = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Normal with mean 0 and standard deviation 1; of a complex dtype the parts have variance 1/2 each."""
    place = place_of(device)
    if dtype is not None and dtype.is_complex:
        return _finish(_of_parts(randn, shape_of("randn", size), dtype, generator, place) * math.sqrt(0.5), requires_grad)
    shape, dtype = shape_of("randn", size), _floating("randn", dtype)
    key, offset = draw(math.prod(shape) * 2 * words_of(dtype), generator)
    return _finish(_randn(key, offset, shape=shape, dtype=dtype, **on(place)), requires_grad)


@public("random", method=False, differentiable=False)
@accepts_out
def randint(
    low: int, high: Any = None, size: Any = None, *, generator: Generator | None = None, dtype: DType | None = None,
    device: Any = None, requires_grad: bool = False, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Integers in [low, high): `randint(high, size)` or `randint(low, high, size)`."""
    place = place_of(device)
    if size is None:
        low, high, size = 0, low, high
    if dtype is not None and dtype.is_complex:
        raise RuntimeError(f"randint: integers are not drawn in a complex dtype, got {dtype.name}")
    if high <= low:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    if not isinstance(size, tuple | list):
        raise TypeError(f"randint(): argument 'size' must be tuple of ints, not {type(size).__name__}")
    _check_bounds(low, high, dtype or int64)
    shape = shape_of("randint", (size,))
    key, offset = draw(math.prod(shape) * 2, generator)
    made = _randint(key, offset, int(low), int(high), shape=shape, dtype=dtype or int64, **on(place))
    return _finish(made, requires_grad)


def _check_bounds(low: int, high: int, dtype: DType) -> None:
    """Refuse integers that the dtype does not hold."""
    if dtype.kind == "f":
        least, most = -dtypes.finfo(dtype).max, dtypes.finfo(dtype).max
    else:
        least, most = (0, 1) if dtype.kind == "b" else (dtypes.iinfo(dtype).min, dtypes.iinfo(dtype).max)
    for words, value in (("from", low), ("to - 1", high - 1)):
        if not least <= value <= most:
            raise RuntimeError(f"{words} is out of bounds for {c_name(dtype)}: {value} is not in [{least}, {most}]")


@public("random", method=False, kind="library", differentiable=False)
@accepts_out
def randperm(
    n: int, *, generator: Generator | None = None, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A random permutation of 0 ... n-1: the order that sorts random words."""
    place = place_of(device)
    n = as_int("randperm", n, "n")
    if n < 0:
        raise RuntimeError(f"n must be non-negative, got {n}")
    if dtype is not None:
        refuse("randperm", dtype, "bc")
        if dtype.kind in "iu" and n - 1 > dtypes.iinfo(dtype).max:
            raise RuntimeError(f"randperm: value {n - 1} cannot be converted to type {c_name(dtype)} without overflow")
    words = randint(0, 1 << 62, (n,), generator=generator, device=CPU)
    if words.layout.level is not None or words.storage.traced:  # an order for every example of a vmap, or at every run
        return words.argsort(stable=True).to(dtype or int64)  # type: ignore[attr-defined]
    return copy_array(np.argsort(array_of(words), kind="stable").astype((dtype or int64).numpy), None, place)


def _laid_like(made: Tensor, source: Tensor, name: str, memory_format: Any) -> Tensor:
    """What was drawn, lying as another tensor does or in the format asked for."""
    strides = like_strides(source, name, memory_format)
    return made if strides == made.layout.strides else copied_with(made, strides)


def _like(name: str, make: Any) -> None:
    def function(
        input: Tensor, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False,  # noqa: A002
        memory_format: Any = None, generator: Generator | None = None,
    ) -> Tensor:  # fmt: skip
        source = need_tensor(name, input)
        place = source.layout.device if device is None else device
        made = make(source.layout.shape, dtype=dtype or source.dtype, device=place, generator=generator)
        return _finish(_laid_like(made, source, name, memory_format), requires_grad)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name.removesuffix('_like')}` with the shape and dtype of another tensor."
    public("random", method=False, differentiable=False)(function)


_like("rand_like", rand)
_like("randn_like", randn)


@public("random", method=False, differentiable=False)
def randint_like(
    input: Tensor, low: int, high: int | None = None, *, dtype: DType | None = None, device: Any = None,  # noqa: A002
    requires_grad: bool = False, memory_format: Any = None, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Integers in [low, high) with the shape and dtype of another tensor."""
    if high is None:
        low, high = 0, low
    place = input.layout.device if device is None else device
    made = randint(low, high, input.layout.shape, dtype=dtype or input.dtype, device=place, generator=generator)
    return _finish(_laid_like(made, input, "randint_like", memory_format), requires_grad)


def _in_place(name: str, words: int, defaults: dict[str, float], check: Any = None) -> None:
    operation = _inplace[name]

    def method(self: Tensor, *args: Any, generator: Generator | None = None, **kwargs: Any) -> Tensor:
        if self.dtype.is_complex and name in ("uniform", "normal"):
            return _parts_in_place(name, self, args, kwargs, generator)
        if self.dtype.kind in "iub" and name in ("exponential", "cauchy"):
            raise RuntimeError(
                f"{name}_: a continuous distribution; dtype must be floating point but you specified {self.dtype.name}"
            )
        if self.dtype.kind != "f" and not (name == "bernoulli" or (name == "geometric" and self.dtype.kind in "iu")):
            raise NotImplementedError(f"\"{name}_\" not implemented for '{self.dtype.name}'")
        unknown = set(kwargs) - set(defaults)
        if unknown or len(args) > len(defaults):
            raise TypeError(f"{name}_(): takes {list(defaults)}, got {args} {kwargs}")
        values = dict(defaults) | dict(zip(defaults, args)) | kwargs
        parameters = [v if isinstance(v, Tensor) else float(v) for v in values.values()]
        if check is not None:
            check(name, *parameters)
        key, offset = draw(self.layout.numel * words * words_of(self.dtype), generator)
        return operation(self, key, offset, *parameters)

    method.__name__ = method.__qualname__ = name + "_"
    method.__doc__ = f"Write samples of the {name.replace('_', '-')} distribution ({', '.join(defaults)}) over this tensor."
    inplace_method(name, method)


def _parts_in_place(name: str, x: Tensor, args: Sequence[Any], kwargs: dict[str, Any], generator: Generator | None) -> Tensor:
    """Both parts of complex numbers: uniform in the same interval, or normal with half the variance around the mean."""
    if name == "uniform":
        view_as_real(x).uniform_(*args, generator=generator, **kwargs)
        return x
    values = dict(zip(("mean", "std"), args)) | kwargs
    view_as_real(x).normal_(0.0, float(values.get("std", 1.0)) * math.sqrt(0.5), generator=generator)
    return x.add_(values["mean"]) if values.get("mean") else x


def _check_uniform(name: str, low: float, high: float) -> None:
    if not low <= high:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}")


def _check_std(name: str, mean: float, std: float) -> None:
    if std < 0.0:
        raise RuntimeError(f"{name} expects std >= 0.0, but found std {std}")


def _check_rate(name: str, rate: float) -> None:
    if rate <= 0.0:
        raise RuntimeError(f"{name}_ expects lambda > 0.0, but found lambda={rate}")


def _check_probability(name: str, p: Any) -> None:
    if isinstance(p, float) and not 0.0 <= p <= 1.0:
        raise RuntimeError(f"{name}_ expects p to be in [0, 1], but got p={p}")


_in_place("uniform", 1, {"from": 0.0, "to": 1.0}, _check_uniform)
_in_place("normal", 2, {"mean": 0.0, "std": 1.0}, _check_std)
_in_place("exponential", 1, {"lambd": 1.0}, _check_rate)
_in_place("log_normal", 2, {"mean": 1.0, "std": 2.0}, _check_std)
_in_place("cauchy", 1, {"median": 0.0, "sigma": 1.0})
_in_place("geometric", 1, {"p": 0.5}, _check_probability)
_in_place("bernoulli", 1, {"p": 0.5}, _check_probability)


def random_(self: Tensor, *args: int, generator: Generator | None = None) -> Tensor:
    """Integers in [from, to) over this tensor: `random_()`, `random_(to)` or `random_(from, to)`."""
    if len(args) == 2:
        low, high = args
    elif len(args) == 1:
        low, high = 0, args[0]
    else:
        digits = 1 if self.dtype is dtypes.bool_ else self.dtype.digits
        low, high = 0, (1 << digits) if digits else min(int(np.iinfo(self.dtype.numpy).max), (1 << 62) - 1) + 1
    return self.copy_(randint(low, high, self.layout.shape, generator=generator, device=self.layout.device))


inplace_method("random", random_)


@public("random", method=True, differentiable=False, out=True)
def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:  # noqa: A002
    """1 with the probability that `input` holds (or `p`), else 0."""
    source = need_tensor("bernoulli", input)
    refuse("bernoulli_tensor_cpu_p_", source.dtype, "b")
    probability = source.detach() if p is None else p
    result = source.detach().clone()
    if modes.tracer is not None:  # a new tensor rather than a write: under vmap the draws may be one for every example
        key, offset = draw(result.layout.numel * words_of(result.dtype), generator)
        return _inplace["bernoulli"].operator(result, key, offset, probability)
    return result.bernoulli_(probability, generator=generator)


@public("random", method=False, differentiable=False)
@accepts_out
def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Generator | None = None, dtype: DType | None = None,
    device: Any = None, requires_grad: bool = False, out: Tensor | None = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Normal numbers; mean and std are numbers (with size) or tensors that broadcast."""
    if not isinstance(mean, Tensor) and not isinstance(std, Tensor):
        if std < 0.0:
            raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
        sample = randn(tuple(size) if size is not None else (), generator=generator, dtype=dtype, device=device)
        return _finish(sample * float(std) + float(mean), requires_grad)
    if not isinstance(std, Tensor) and std < 0.0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    if isinstance(std, Tensor) and std.dtype.is_complex:
        raise RuntimeError("normal expects standard deviation to be non-complex")
    if isinstance(std, Tensor) and std.layout.numel and float(array_of(std.detach()).min()) < 0.0:
        raise RuntimeError("normal expects all elements of std >= 0.0")
    shape = (mean * 0 + std * 0).layout.shape
    source = mean if isinstance(mean, Tensor) else std
    sample = randn(shape, generator=generator, dtype=dtype or source.dtype, device=source.layout.device)
    return sample * std + mean


@public("random", method=True, kind="library", differentiable=False, out=True)
def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,  # noqa: A002
) -> Tensor:
    """Indices drawn with the probabilities that the rows of `input` are proportional to."""
    source = need_tensor("multinomial", input)
    if not source.dtype.is_floating_point:
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {type_name(source.dtype)}")
    if source.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    shape = source.layout.shape
    rows, columns = (1, *shape)[-2:]
    if not replacement and num_samples > columns:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    uniform = rand(rows, num_samples if replacement else columns, generator=generator, dtype=dtypes.float64)
    given = cat([source.detach().to(dtypes.float64).reshape((rows, columns)), uniform], 1)  # type: ignore[attr-defined]

    def indices(values: np.ndarray) -> np.ndarray:
        weights, uniform = values[:, :columns], values[:, columns:]
        _check_weights(weights, num_samples, replacement)
        if replacement:
            cumulated = np.cumsum(weights, axis=1)
            found = np.stack([np.searchsorted(c, u * c[-1], side="right") for c, u in zip(cumulated, uniform)])
            found = np.minimum(found, columns - 1)
        else:
            with np.errstate(divide="ignore"):  # the order of exponential arrival times
                arrival = -np.log1p(-uniform) / weights
            found = np.argsort(arrival, axis=1, kind="stable")[:, :num_samples]
        return found.astype(np.int64).reshape((*shape[:-1], num_samples))

    return from_host(given, "multinomial", indices)


def _check_weights(weights: np.ndarray, num_samples: int, replacement: bool) -> None:
    """Refuse what are no probabilities."""
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if (weights.sum(1) <= 0).any():
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if not replacement and ((weights > 0).sum(1) < num_samples).any():
        raise RuntimeError("invalid multinomial distribution (with replacement=False, not enough non-negative category "
                           "to sample)")  # fmt: skip
