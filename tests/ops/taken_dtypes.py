"""The dtypes that each public operator takes, found by calling it; docs/generate shows them in docs/operators.md.

    python tests/ops/taken_dtypes.py --write            # measures all operators and writes docs/generate/taken_dtypes.json
    python tests/ops/taken_dtypes.py --write --missing  # only those that are not in the file
    python tests/ops/taken_dtypes.py --ops "^sum$"      # prints those of the operators whose name matches

An operator is called on the first samples of its entry in PyTorch's operator database, with the tensors of the sample's own
dtype cast to the one tried. What has no entry is called as `CALLS` says, or on the sample of its graph in the tests' harness.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import sys
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent))
import harness  # noqa: E402
from database import carry, entries, ours, tensors_of, torch  # noqa: E402

import tensorsmith as ts  # noqa: E402
from tensorsmith.core.dtypes import ALL, DType  # noqa: E402
from tensorsmith.ops.registry import TABLE, Public  # noqa: E402

KEPT = Path(__file__).parents[2] / "docs" / "generate" / "taken_dtypes.json"
sys.path.append(str(KEPT.parent))
from anatomy import anatomy  # noqa: E402

SAMPLES = 3  # of a variant of an entry, of those that are not empty

# Calls of what the database has no entry of, or has it with other dtypes than the ones that are asked for: of (2, 3).
CALLS: dict[str, Callable[[Any, DType], Any]] = {
    **{
        name: lambda x, dtype, name=name: getattr(ts, name)(x)
        for name in ("is_conj", "is_neg", "numel", "is_tensor", "is_floating_point", "is_complex", "is_inference",
                     "as_tensor")
    },
    **{
        f"{name}_window": lambda x, dtype, name=name: getattr(ts, f"{name}_window")(5, dtype=dtype)
        for name in ("hann", "blackman", "bartlett", "hamming", "kaiser")
    },
    "is_nonzero": lambda x, dtype: ts.is_nonzero(x[0, 0]),
    "result_type": lambda x, dtype: ts.result_type(x, x),
    "can_cast": lambda x, dtype: ts.can_cast(dtype, ts.float64),
    "tensor": lambda x, dtype: ts.tensor([1, 0], dtype=dtype),
    "rand": lambda x, dtype: ts.rand(2, dtype=dtype),
    "randperm": lambda x, dtype: ts.randperm(2, dtype=dtype),
    "chain_matmul": lambda x, dtype: ts.chain_matmul(x, x.mT),
    "vander": lambda x, dtype: ts.vander(x[0]),
    "segment_reduce": lambda x, dtype: ts.segment_reduce(x, "sum", lengths=ts.tensor([1, 1])),
    "nn.functional.triplet_margin_with_distance_loss": lambda x, dtype: (
        ts.nn.functional.triplet_margin_with_distance_loss(x, x, x)
    ),
    "pdist": lambda x, dtype: ts.pdist(x),
    "_unsafe_masked_index": lambda x, dtype: ts._unsafe_masked_index(x, ts.ones(2, 1, dtype=ts.bool), [ts.tensor([0, 1])], 0),
}


@functools.cache
def _entries() -> dict[str, list[Any]]:
    """The entries of the database by the names that they have."""
    found: dict[str, list[Any]] = {}
    for entry in entries():
        for name in {entry.name, *(alias.name for alias in entry.aliases)}:
            found.setdefault(name, []).append(entry)
    return found


def _variants(entry: Public) -> list[Any]:
    space = f"{entry.namespace}." if entry.namespace else ""
    for prefix, name in itertools.product((space, "nn.functional."), (entry.name, *entry.aliases, entry.name.rstrip("_"))):
        if prefix + name in _entries():
            return _entries()[prefix + name]
    return []


def _made_in(variant: Any) -> Any:
    return next((d for d in (torch.float32, torch.int64, torch.complex64, torch.bool) if d in variant.dtypes), None)


def _cast(value: Any, of: DType, dtype: DType) -> Any:
    if isinstance(value, ts.Tensor):
        return value.detach().to(dtype) if value.dtype is of else value
    if value is of:
        return dtype
    if isinstance(value, dict):
        return {key: _cast(each, of, dtype) for key, each in value.items()}
    return type(value)(_cast(each, of, dtype) for each in value) if type(value) in (list, tuple) else value


def _runs(function: Callable[[], Any]) -> bool:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            function()
        except Exception:  # whatever is raised, the dtype is not taken
            return False
    return True


def _attempts(entry: Public) -> list[Callable[[DType], Any]]:
    """Calls that are given a dtype; the operator takes it where one of them runs."""
    key = f"{entry.namespace}.{entry.name}".lstrip(".")
    if key in CALLS:
        call = CALLS[key]
        return [lambda dtype: call(ts.tensor([[1, 0, 1], [1, 1, 0]]).to(dtype), dtype)]
    found: list[Callable[[DType], Any]] = []
    for variant in _variants(entry):
        made = _made_in(variant)
        if made is None:
            continue
        samples = (s for s in variant.sample_inputs("cpu", made) if all(t.numel() for t in tensors_of((s.input, s.args))))
        for sample in itertools.islice(samples, SAMPLES):
            try:
                args, kwargs = carry(((sample.input, *sample.args), sample.kwargs))
            except NotImplementedError:
                continue  # arguments that we have no counterpart of
            of, function = carry(made), ours(variant)
            found.append(lambda dtype, args=args, kwargs=kwargs, of=of, function=function: function(
                *_cast(args, of, dtype), **_cast(kwargs, of, dtype)
            ))  # fmt: skip
    return found or [
        lambda dtype, operator=operator, sample=sample: harness.program_of(operator, [
            harness.as_tensor(x) if isinstance(x, np.ndarray) else x
            for x in harness.arrays(sample, dtype, harness.BASIC, np.random.default_rng(0))
        ], sample.attrs)
        for operator in anatomy(entry).operators for sample in harness.samples(operator)
    ]  # fmt: skip


def taken(entry: Public) -> list[str]:
    """The names of the dtypes that a public operator takes."""
    attempts = _attempts(entry)
    return [dtype.name for dtype in ALL if any(_runs(lambda call=call, dtype=dtype: call(dtype)) for call in attempts)]


def measured(pattern: str, known: Collection[str]) -> dict[str, list[str]]:
    """The dtypes of every operator whose key in the table matches, and that is not known."""
    rows = {key: entry for key, entry in TABLE.items() if entry.family != "custom" and re.search(pattern, key)}
    return {key: taken(entry) for key, entry in sorted(rows.items()) if key not in known}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", metavar="REGEX", help="only operators whose name matches")
    parser.add_argument("--write", action="store_true", help="keep what was found, beside what is kept of other operators")
    parser.add_argument("--missing", action="store_true", help="only operators of which nothing is kept")
    arguments = parser.parse_args()
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    found = measured(arguments.ops, kept if arguments.missing else ())
    if arguments.write:
        known = {key: names for key, names in {**kept, **found}.items() if key in TABLE}
        lines = [f"  {json.dumps(key)}: {json.dumps(' '.join(names) if isinstance(names, list) else names)}"
                 for key, names in sorted(known.items())]  # fmt: skip
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    else:
        for key, names in found.items():
            print(f"{key:40s} {' '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
