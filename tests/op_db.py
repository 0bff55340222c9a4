"""PyTorch's operator database on any real dtype, bfloat16 included: values, shapes, dtypes and gradients of every sample.

    python tests/op_db.py --dtype bfloat16                 # one line an entry that does not pass, and the counts
    python tests/op_db.py --dtype float16 --ops "^sum$"    # only these entries

An entry counts if the package has a function or a method of its name in one of the families of `FAMILIES`. A value passes if
it is PyTorch's to two units in the last place, or if it is that near to what PyTorch computes in float64 from the same inputs:
in half precision PyTorch rounds between the steps of many operators, where ours rounds once. Gradients, whose steps are more,
may be twice as far.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map

import tensorsmith as ts
from tensorsmith.ops.creation import array_of
from tensorsmith.ops.registry import TABLE

FAMILIES = (
    "pointwise", "comparing", "complex", "selecting", "reductions", "statistics", "sorting", "indexing", "views", "joining",
    "creation", "conversion", "random", "methods",
)  # fmt: skip
RANDOM = re.compile(r"rand|empty|resize|multinomial|normal|bernoulli|cauchy|exponential|geometric|uniform")
# Composites that are called in another way than their entries say, or that are PyTorch's own internals.
LEFT_OUT = re.compile(r"^_|jiterator|\.|lowrank|^pinverse$|^norm$|^(svd|qr|lu|cholesky|geqrf|einsum|item)")


@dataclasses.dataclass
class Record:
    """One entry: how many of its samples passed, forward and backward, and the first faults."""

    name: str
    family: str
    forward: tuple[int, int] = (0, 0)
    gradient: tuple[int, int] = (0, 0)
    errors: list[str] = dataclasses.field(default_factory=list)

    def count(self, kind: str, message: str) -> None:
        """Count a sample of "forward" or "gradient", which passed where the message is empty."""
        passed, total = getattr(self, kind)
        setattr(self, kind, (passed + (not message), total + 1))
        if message and len(self.errors) < 4:
            self.errors.append(f"{kind}[{total}]: {message}")


# --- carrying tensors over ----------------------------------------------------------------------------------------------


def to_ours(value: Any) -> Any:
    """A tensor, dtype or size of PyTorch as ours; anything else as it is."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous()
        if plain.dtype is torch.bfloat16:
            array = plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        else:
            array = plain.numpy()
        tensor = ts.from_numpy(np.array(array, copy=True).reshape(tuple(value.shape)))
        return tensor.requires_grad_() if value.requires_grad else tensor
    if isinstance(value, torch.dtype):
        return getattr(ts, str(value).split(".")[-1])
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return None
    return value


def to_torch(tensor: ts.Tensor) -> torch.Tensor:
    """Our tensor as one of PyTorch."""
    array = np.array(array_of(tensor.detach()), copy=True)
    if tensor.dtype is ts.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _in_place(name: str) -> Callable[..., Any]:
    return lambda x, *a, **k: getattr(x.clone(), name)(*a, **k)


SPECIAL: dict[str, Callable[..., Any]] = {
    "__getitem__": lambda x, i: x[i], "__radd__": lambda x, y: y + x, "__rsub__": lambda x, y: y - x,
    "__rmul__": lambda x, y: y * x, "__rdiv__": lambda x, y: y / x, "__rpow__": lambda x, y: y**x,
    "__rmod__": lambda x, y: y % x, "__rand__": lambda x, y: y & x, "__ror__": lambda x, y: y | x,
    "__rxor__": lambda x, y: y ^ x, "polygamma": lambda x, n: ts.polygamma(n, x),
    "fill": lambda x, value: x.clone().fill_(value),
    "where": lambda x, condition, other: ts.where(condition, x, other),
    **{name: _in_place(name + "_") for name in ("cauchy", "exponential", "geometric", "log_normal", "uniform")},
    **{name: _in_place(name) for name in ("resize_", "resize_as_", "zero_")},
}  # fmt: skip


# Entries of one name whose variants are called differently.
VARIANTS: dict[tuple[str, str], Callable[..., Any]] = {("normal", "in_place"): _in_place("normal_")}


def operator(name: str) -> tuple[Callable[..., Any] | None, str]:
    """Our function under PyTorch's name, and its family."""
    found = TABLE.get(name) or next((e for e in TABLE.values() if name in e.aliases and not e.namespace), None)
    family = found.family if found is not None else "methods"
    if name in SPECIAL or name.startswith("__"):
        return SPECIAL.get(name), family
    function = getattr(ts, name, None) or getattr(ts.Tensor, name, None)
    if isinstance(function, property):
        return function.__get__, family
    return (function if callable(function) else None), family


# --- comparing ----------------------------------------------------------------------------------------------------------


def flat(outputs: Any) -> list[Any]:
    """The outputs of an operator in a list."""
    return tree_flatten(tuple(outputs) if isinstance(outputs, tuple) else outputs)[0]


def near(got: torch.Tensor, want: torch.Tensor, unit: float) -> torch.Tensor:
    """Which values agree to `unit` of themselves, or of 1 and the largest value divided by two."""
    a, b = got.to(torch.complex128), want.to(torch.complex128)
    finite = b[torch.isfinite(b)].abs()
    scale = min(max(1.0, float(finite.max())), 1e6) if finite.numel() else 1.0
    return torch.isclose(a, b, rtol=unit, atol=unit / 2 * scale, equal_nan=True)


def difference(got: list[Any], want: list[Any], exact: Callable[[], list[Any]], units: int) -> str:
    """How outputs differ from PyTorch's; empty where they agree, or where they are what float64 gives."""
    if len(got) != len(want):
        return f"{len(got)} outputs, expected {len(want)}"
    true: list[Any] | None = None
    for number, (g, w) in enumerate(zip(got, want)):
        if not isinstance(w, torch.Tensor) or w.layout is not torch.strided:
            continue
        if not isinstance(g, torch.Tensor):
            return f"{type(g).__name__}, expected a tensor"
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"{g.dtype} {tuple(g.shape)}, expected {w.dtype} {tuple(w.shape)}"
        floating = w.is_floating_point() or w.is_complex()
        unit = units * torch.finfo(w.dtype).eps if floating else 0.0
        right = near(g, w, unit)
        if floating and not right.all():
            true = true if true is not None else exact()
            right |= near(g, true[number].to(w.dtype), unit)
        if not right.all():
            return f"{int((~right).sum())} of {g.numel()} differ"
    return ""


def mapped(sample: Any, change: Callable[[Any], Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Input, arguments and keywords of a sample with every value changed."""
    return tree_map(change, (sample.input, sample.args, sample.kwargs))


def fresh(value: Any, dtype: torch.dtype | None = None, wide: torch.dtype | None = None) -> Any:
    """A leaf of its own; values of `dtype` become `wide`."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone()
        return (copy.to(wide) if wide is not None and copy.dtype is dtype else copy).requires_grad_(value.requires_grad)
    return wide if wide is not None and value is dtype else value


def leaves_of(tree: Any, kind: type) -> list[Any]:
    """The tensors that gradients are wanted of."""
    return [x for x in tree_flatten(tree)[0] if isinstance(x, kind) and x.requires_grad]


class Sweep:
    """Runs the samples of one entry."""

    def __init__(self, op: Any, function: Callable[..., Any], dtype: torch.dtype, record: Record) -> None:
        self.op, self.function, self.dtype, self.record = op, function, dtype, record

    def reference(self, sample: Any, wide: torch.dtype | None = None) -> tuple[list[Any], list[Any]]:
        """PyTorch's outputs and the leaves they come from."""
        input_, args, kwargs = tree = mapped(sample, lambda v: fresh(v, self.dtype, wide))
        torch.manual_seed(1)
        return flat(self.op.op(input_, *args, **kwargs)), leaves_of(tree, torch.Tensor)

    def forward(self, sample: Any) -> None:
        """Compare the outputs of one sample."""
        try:
            want, _ = self.reference(sample)
        except Exception:  # PyTorch refuses the sample itself
            return
        try:
            input_, args, kwargs = mapped(sample, to_ours)
            got = [to_torch(x) if isinstance(x, ts.Tensor) else x for x in flat(self.function(input_, *args, **kwargs))]
        except Exception as error:
            self.record.count("forward", f"{type(error).__name__}: {error}"[:160])
            return
        if RANDOM.search(self.op.name):
            want = [torch.empty_like(w) if isinstance(w, torch.Tensor) else w for w in want]
            same = [(g.shape, g.dtype) for g in got] == [(w.shape, w.dtype) for w in want]
            self.record.count("forward", "" if same else "shape or dtype differs")
            return
        message = difference(got, want, lambda: self.reference(sample, torch.float64)[0], 2)
        self.record.count("forward", message)

    def pulled_back(self, sample: Any, wide: torch.dtype | None = None) -> list[Any]:
        """PyTorch's gradients of a weighted sum of the outputs."""
        outputs, leaves = self.reference(sample, wide)
        outputs = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
        weights = [w.to(x.dtype) for w, x in zip(self.weights(outputs), outputs)]
        found = torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves)]

    def weights(self, outputs: list[Any]) -> list[torch.Tensor]:
        """The weights of the outputs: numbers of the swept dtype."""
        generator = torch.Generator().manual_seed(7)
        return [torch.randn(tuple(x.shape), generator=generator).to(self.dtype) for x in outputs]

    def gradient(self, sample: Any) -> None:
        """Compare the gradients of one sample."""
        try:
            want = self.pulled_back(sample)
        except Exception:
            return
        try:
            input_, args, kwargs = tree = mapped(sample, to_ours)
            outputs = [x for x in flat(self.function(input_, *args, **kwargs)) if isinstance(x, ts.Tensor) and x.requires_grad]
            leaves = leaves_of(tree, ts.Tensor)
            weights = [to_ours(w).to(x.dtype) for w, x in zip(self.weights(outputs), outputs)]
            found = ts.autograd.grad(outputs, leaves, weights, allow_unused=True)
            got = [torch.zeros_like(w) if g is None else to_torch(g) for g, w in zip(found, want)]
        except Exception as error:
            self.record.count("gradient", f"{type(error).__name__}: {error}"[:160])
            return
        exact = lambda: self.pulled_back(sample, torch.float64)  # noqa: E731
        self.record.count("gradient", difference(got, want, exact, 4))


def entries(dtype: torch.dtype, pattern: str = "") -> Iterator[tuple[Any, Callable[..., Any], Record]]:
    """The entries of the database that the package has in `FAMILIES`."""
    from torch.testing._internal.common_methods_invocations import op_db

    import torch_samples  # noqa: F401

    for op in op_db:
        if LEFT_OUT.search(op.name) and not op.name.startswith("__"):
            continue
        function, family = operator(op.name)
        function = VARIANTS.get((op.name, op.variant_test_name), function)
        if function is None or family not in FAMILIES or not re.search(pattern, op.name):
            continue
        if dtype in op.supported_dtypes("cpu"):
            yield op, function, Record("/".join(filter(None, (op.name, op.variant_test_name))), family)


def samples_of(op: Any, dtype: torch.dtype, requires_grad: bool, most: int) -> list[Any]:
    """The samples of an entry, or `most` of them spread over all."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    try:
        found = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    except Exception:
        return []
    return found if not most or len(found) <= most else found[:: -(-len(found) // most)]


def sweep(dtype: torch.dtype, pattern: str = "", most: int = 0, part: tuple[int, int] = (0, 1)) -> list[Record]:
    """A record for every entry, or for the entries of part (number, of how many)."""
    records = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for op, function, record in itertools.islice(entries(dtype, pattern), part[0], None, part[1]):
            run = Sweep(op, function, dtype, record)
            for sample in samples_of(op, dtype, False, most):
                run.forward(sample)
            if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu") and not RANDOM.search(op.name):
                for sample in samples_of(op, dtype, True, most):
                    run.gradient(sample)
            if record.forward[1]:
                records.append(record)
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ops", default="", metavar="REGEX", help="only entries whose name matches")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="samples of an entry; 0 for all")
    parser.add_argument("--json", metavar="FILE", help="write every record")
    arguments = parser.parse_args()
    records = sweep(getattr(torch, arguments.dtype), arguments.ops, arguments.most)
    for record in records:
        if record.errors:
            print(f"{record.name:32s} forward {record.forward} gradient {record.gradient} {record.errors[0]}")
    whole = {kind: [getattr(r, kind) for r in records if getattr(r, kind)[1]] for kind in ("forward", "gradient")}
    for kind, counts in whole.items():
        print(f"{arguments.dtype} {kind}: {sum(p == t for p, t in counts)} of {len(counts)} entries, "
              f"{sum(p for p, _ in counts)} of {sum(t for _, t in counts)} samples")  # fmt: skip
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([dataclasses.asdict(r) for r in records], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
