"""Dtypes that PyTorch's operators refuse are refused here with the same class of error, but for what is meant to be wider.

A dtype is refused where PyTorch raises for a sample of the operator's database entry, made in a dtype that the entry has and
cast to the one in question.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts

sys.path.append(str(Path(__file__).parent))
from database import carry, entries, ours, tensors_of, torch  # noqa: E402

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.complex64,
)  # fmt: skip
# Refusals that we do not copy, with the reason.
ON_PURPOSE = {
    "nn_functional_triplet_margin_with_distance_loss": "the distance of its samples is PyTorch's own function",
    "nn_functional_linear_cross_entropy_chunked": "the dtype in which it accumulates is refused first there: ValueError",
    "nn_functional_linear_cross_entropy_chunked_none": "the same",
}
# Dtypes that we take where PyTorch has no kernel of them, by entry.
WIDER = {
    f"nn_functional_conv_transpose{n}d": ("uint8", "int8", "int32") for n in (1, 2, 3)  # of integers it has int64 alone
}
SAMPLES = 2  # of an entry, of those that are not empty


def kept_dtype(entry: Any) -> Any:
    """The dtype in which samples are made."""
    preferred = (torch.float32, torch.int64, torch.complex64, torch.bool)
    return next((dtype for dtype in preferred if dtype in entry.dtypes), None)


def cast(value: Any, of: Any, dtype: Any) -> Any:
    """The same arguments with the tensors of one dtype in another; Python numbers stay."""
    if isinstance(value, torch.Tensor):
        with warnings.catch_warnings():  # of imaginary parts that are lost
            warnings.simplefilter("ignore")
            return value.detach().to(dtype) if value.dtype is of else value.detach()
    if value is of:
        return dtype
    if isinstance(value, dict):
        return {key: cast(each, of, dtype) for key, each in value.items()}
    return type(value)(cast(each, of, dtype) for each in value) if type(value) in (list, tuple) else value


def attempt(function: Any, args: Any, kwargs: Any) -> BaseException | None:
    """What a call raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*args, **kwargs)
        except Exception as error:
            return error
    return None


def differences(entry: Any) -> Iterator[tuple[str, str]]:
    """Dtypes whose refusal differs, and how; at most one line a dtype."""
    made = kept_dtype(entry)
    samples = (s for s in entry.sample_inputs("cpu", made) if all(t.numel() for t in tensors_of((s.input, s.args))))
    samples = list(itertools.islice(samples, SAMPLES))
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        if dtype in entry.dtypes or name in WIDER.get(entry.formatted_name, ()):
            continue
        for sample in samples:
            args, kwargs = cast(((sample.input, *sample.args), sample.kwargs), made, dtype)
            try:
                our_args, our_kwargs = carry((args, kwargs))
            except NotImplementedError:
                continue  # arguments that we have no counterpart of
            wanted = attempt(entry.op, args, kwargs)
            if wanted is None:
                continue
            error = attempt(ours(entry), our_args, our_kwargs)
            if not isinstance(error, type(wanted)):
                got = "accepted" if error is None else f"{type(error).__name__}: {str(error)[:130]}"
                yield name, f"{entry.formatted_name} {name}: {type(wanted).__name__}: {str(wanted)[:130]!r}; here {got}"
                break


ENTRIES = [entry for entry in entries() if kept_dtype(entry) and entry.formatted_name not in ON_PURPOSE]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.formatted_name)
def test_dtypes_are_refused_as_pytorch_refuses_them(entry):
    found = [line for _, line in differences(entry)]
    assert not found, "\n".join(found)


def test_the_database_has_dtypes_to_refuse():
    assert sum(dtype not in entry.dtypes for entry in ENTRIES for dtype in DTYPES) > 500


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_wide_unsigned_integers_are_taken_where_pytorch_has_no_kernel(name):
    x = ts.tensor([3, 1, 2], dtype=getattr(ts, name))
    with pytest.raises(NotImplementedError):
        torch.tensor([3, 1, 2], dtype=getattr(torch, name)).amax()
    assert x.amax().item() == 3 and x.amax().dtype is x.dtype


INTEGERS = [[1, 2, 3], [3, 4, 1]]


@pytest.mark.parametrize("call", [
    lambda f, x, y: f.margin_ranking_loss(x, x + 1, x, margin=0.5, reduction="none"),
    lambda f, x, y: f.margin_ranking_loss(x, x + 1, x),
    lambda f, x, y: f.hinge_embedding_loss(x, x, reduction="none"),
    lambda f, x, y: f.poisson_nll_loss(x, x, log_input=False, reduction="none"),
    lambda f, x, y: f.poisson_nll_loss(x, x, full=True),
    lambda f, x, y: f.cosine_embedding_loss(x, x + 1, y, margin=0.25, reduction="none"),
    lambda f, x, y: f.triplet_margin_loss(x, x + 1, x * x),
    lambda f, x, y: f.pairwise_distance(x, x + 1),
])  # fmt: skip
def test_losses_of_integers_are_floats_where_pytorchs_are(call):
    wanted = call(torch.nn.functional, torch.tensor(INTEGERS), torch.tensor([1, -1]))
    found = call(ts.nn.functional, ts.tensor(INTEGERS), ts.tensor([1, -1]))
    assert str(found.dtype).split(".")[-1] == str(wanted.dtype).split(".")[-1]
    assert found.shape == tuple(wanted.shape)
    assert np.allclose(found.numpy(), wanted.numpy(), rtol=1e-4)



if __name__ == "__main__":
    for each in ENTRIES:
        try:
            for _, line in differences(each):
                print(line, flush=True)
        except Exception as error:
            print(f"{each.formatted_name}: the check itself failed: {error!r}")
