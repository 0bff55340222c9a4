"""Wrong calls from PyTorch's operator database are refused with PyTorch's class of error, and change nothing."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tensorsmith.core.dtypes import uint8
from tensorsmith.core.layout import layout_of
from tensorsmith.ops.host_data import array_of
from tensorsmith.tensor.tensor import make_tensor

sys.path.append(str(Path(__file__).parent))
from database import carry, entries, ours, tensors_of, torch  # noqa: E402

# Calls whose refusal we do not copy, with the reason.
ON_PURPOSE = {
    "narrow_copy": "a dim out of range is an IndexError everywhere else; here it is PyTorch's internal assertion",
}


def refusal(function: Any, args: Any, kwargs: Any) -> BaseException | None:
    """What a call raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*args, **kwargs)
        except Exception as error:
            return error
    return None


def differences(entry: Any) -> list[str]:
    """The wrong calls of one entry that we do not refuse as PyTorch does."""
    found = []
    for wrong in entry.error_inputs("cpu"):
        sample = wrong.sample_input
        given = (sample.input, *sample.args)
        try:
            args, kwargs = carry((given, sample.kwargs))
        except NotImplementedError:
            continue  # a sparse or quantised tensor, a device that we do not have
        theirs = refusal(entry.op, given, sample.kwargs)
        if theirs is None:
            continue  # refused on another device only
        before = contents((args, kwargs))
        error = refusal(ours(entry), args, kwargs)
        if not isinstance(error, type(theirs)) and not (entry.name in ON_PURPOSE and error is not None):
            got = "accepted" if error is None else f"{type(error).__name__}: {str(error)[:150]}"
            call = [str(describe(x)) for x in given] + [f"{k}={describe(v)}" for k, v in sample.kwargs.items()]
            found.append(f"{entry.name}({', '.join(call)}): {type(theirs).__name__}: {str(theirs)[:150]!r}; here {got}")
        elif not str(error):
            found.append(f"{entry.name}: a {type(error).__name__} without words")
        if contents((args, kwargs)) != before:
            found.append(f"{entry.name}: the refused call changed its arguments")
    return found


def contents(given: Any) -> list[Any]:
    """Geometry and memory of all tensors in the arguments."""
    return [(x.layout, x._version, bytes_of(x.storage)) for x in tensors_of(given)]


def bytes_of(storage: Any) -> bytes:
    """All of a storage, on whatever device."""
    layout = layout_of(uint8, (storage.nbytes,), device=storage.device)
    return array_of(make_tensor(layout, storage, storage.ptr)).tobytes()


def describe(value: Any) -> Any:
    """An argument in a line."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return [describe(x) for x in value] if isinstance(value, list | tuple) else value


ENTRIES = [entry for entry in entries() if entry.error_inputs_func is not None and not entry.name.startswith("__r")]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.formatted_name)
def test_refused_as_pytorch_refuses(entry):
    found = differences(entry)
    assert not found, "\n".join(found)


def test_the_database_has_calls_to_refuse():
    assert len(ENTRIES) > 130


if __name__ == "__main__":
    for each in ENTRIES:
        try:
            print("".join(line + "\n" for line in differences(each)), end="")
        except Exception as error:
            print(f"{each.name}: the check itself failed: {error!r}")
