"""`out=` of every operator of PyTorch's database that takes it: both libraries get the same `out` and do the same with it.

Compared are the class of the error, whether there is a warning, and dtype, shape, strides and values of `out` afterwards.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))
from database import carry, entries, ours, tensors_of, torch  # noqa: E402

from tensorsmith.ops.creation import array_of  # noqa: E402

RANDOM = {"bernoulli", "multinomial", "normal", "randn", "rand", "randint", "randperm", "empty", "empty_permuted"}
# Where PyTorch does something else than it does everywhere, by entry and kind of `out`.
ON_PURPOSE = {
    ("nn_functional_linear", "equal"): "warns of a resized out that has the right shape",
    ("nn_functional_linear", "strided"): "warns of a resized out that has the right shape",
    ("nn_functional_gelu", "strided"): "writes wrong values over strided memory",
    ("narrow_copy", "strided"): "ignores the strides of out",
    ("nn_functional_avg_pool3d", "strided"): "ignores the strides of out",
    ("normal_number_mean", "another shape"): "resizes without the warning of other forms of normal",
    ("inner", "float64"): "whether the dtypes must be equal depends on the number of dimensions",
    **dict.fromkeys(
        [("linalg_householder_product", "empty"), ("linalg_solve", "empty"), ("linalg_solve", "another shape")],
        "a matrix that LAPACK writes lies column by column",
    ),
    ("nonzero", "empty"): "an index of no coordinates has the strides (1, 0)",
    ("nonzero", "another shape"): "an index of no coordinates has the strides (1, 0)",
}
SAMPLES = 2  # of an entry, of those that are not empty


def dtype_of(entry: Any) -> Any:
    """A dtype that the operator takes."""
    return next((d for d in (torch.float32, torch.int64, torch.bool) if d in entry.dtypes), None)


def outs(result: Any) -> Iterator[tuple[str, Any]]:
    """What is given as `out=`, by name: one tensor, or as many as there are results."""
    kinds: dict[str, Callable[[Any], Any]] = {
        "equal": torch.empty_like,
        "strided": lambda r: torch.zeros((*r.shape, 2), dtype=r.dtype)[..., 1],
        "empty": lambda r: torch.empty(0, dtype=r.dtype),
        "another shape": lambda r: torch.zeros((*r.shape, 3), dtype=r.dtype),
        "int32": lambda r: torch.zeros(r.shape, dtype=torch.int32),
        "float64": lambda r: torch.zeros(r.shape, dtype=torch.float64),
        "bool": lambda r: torch.zeros(r.shape, dtype=torch.bool),
        "tracked": lambda r: torch.zeros(r.shape, dtype=torch.float32, requires_grad=True),
    }
    for name, make in kinds.items():
        yield name, tuple(make(r) for r in result) if isinstance(result, tuple) else make(result)


def outcome(function: Any, args: Any, kwargs: Any, out: Any) -> tuple[Any, bool]:
    """The error or None, and whether there was a warning of a resized `out`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            returned = function(*args, **kwargs, out=out)  # `unbind_copy` and its kin give None
        except Exception as error:
            return error, False
    for one, given in zip(tensors_of(returned), tensors_of(out), strict=returned is not None):
        assert one is given, "what is returned is not out"
    return None, any("resized" in str(w.message) for w in caught)


def differences(entry: Any) -> list[str]:
    """Where `out=` of one entry does something else than PyTorch's."""
    found = []
    samples = (s for s in entry.sample_inputs("cpu", dtype_of(entry)) if all(t.numel() for t in tensors_of(s.input)))
    for sample in itertools.islice(samples, SAMPLES):
        given = (sample.input, *sample.args)
        try:
            carry((given, sample.kwargs))
            result = entry.op(*given, **sample.kwargs)
        except Exception:
            continue  # arguments that we have no counterpart of
        if isinstance(refusal(entry, given, sample.kwargs), NotImplementedError) or sample.kwargs.get("as_tuple"):
            continue  # the operator itself is not there for these arguments; a tuple of any length cannot be given
        result = tuple(result) if isinstance(result, tuple | list) else result
        if not all(isinstance(r, torch.Tensor) for r in (result if isinstance(result, tuple) else (result,))):
            continue
        for name, out in outs(result):
            args, kwargs, our_out = carry((given, sample.kwargs, out))
            wanted, wanted_warning = outcome(entry.op, given, sample.kwargs, out)
            got, warned = outcome(ours(entry), args, kwargs, our_out)
            title = f"{entry.formatted_name} out={name}"
            if (entry.formatted_name, name) in ON_PURPOSE:
                continue
            if name == "tracked" and wanted is None and isinstance(got, RuntimeError):
                continue  # written over a leaf that requires a gradient, whose history is then wrong
            if type(wanted) is not type(got) and not (wanted is not None and isinstance(got, type(wanted))):
                found.append(f"{title}: {brief(wanted)}; here {brief(got)}")
            elif wanted is None and warned != wanted_warning:
                found.append(f"{title}: {'a' if wanted_warning else 'no'} warning; here {'one' if warned else 'none'}")
            elif wanted is None:
                found += [f"{title}: {words}" for words in compared(entry.name, our_out, out)]
    return found


def refusal(entry: Any, given: Any, keywords: Any) -> Exception | None:
    """Our error for a call without `out`."""
    args, kwargs = carry((given, keywords))
    try:
        ours(entry)(*args, **kwargs)
    except Exception as error:
        return error
    return None


def brief(error: Any) -> str:
    """An error in a line."""
    return "accepted" if error is None else f"{type(error).__name__}: {str(error)[:110]}"


def compared(name: str, mine: Any, theirs: Any) -> Iterator[str]:
    """What differs between two `out`s."""
    for a, b in zip(tensors_of(mine), tensors_of(theirs), strict=True):
        mine_is = (str(a.dtype).split(".")[-1], tuple(a.shape), a.stride())
        theirs_is = (str(b.dtype).split(".")[-1], tuple(b.shape), b.stride())
        if mine_is != theirs_is:
            yield f"{theirs_is}; here {mine_is}"
        elif name not in RANDOM:
            left, right = array_of(a.detach()), b.detach().numpy()
            scale = max(1.0, float(np.abs(right[np.isfinite(right)]).max(initial=0)))
            if not np.allclose(left, right, rtol=1e-4, atol=1e-5 * scale, equal_nan=True):
                yield "the values differ"


ENTRIES = [entry for entry in entries() if entry.supports_out and dtype_of(entry)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.formatted_name)
def test_out_is_written_as_pytorch_writes_it(entry):
    found = differences(entry)
    assert not found, "\n".join(found)


if __name__ == "__main__":
    for each in ENTRIES:
        try:
            print("".join(line + "\n" for line in differences(each)), end="", flush=True)
        except Exception as error:
            print(f"{each.formatted_name}: the check itself failed: {error!r}")
