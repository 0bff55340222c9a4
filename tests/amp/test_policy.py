"""Result dtypes and values under autocast beside PyTorch's: on the CPU by running both, for CUDA by PyTorch's fake tensors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from autocast_cases import CASES
from torch._subclasses.fake_tensor import FakeTensorMode

import tensorsmith as ts
from tensorsmith.amp import autocast_mode, casting
from tensorsmith.amp.policy import CPU, CUDA, Policy, listed, policies
from tensorsmith.eager.operator import operators
from tensorsmith.ops.registry import TABLE

# What PyTorch cannot do on fake CUDA tensors without a card, or refuses and we do: {case: why}
NO_PEER = {
    "cpu": {"pdist": "PyTorch refuses bfloat16 there"},
    "cuda": {
        "gru_cell": "fused kernel", "lstm_cell": "fused kernel", "gaussian_nll_loss": "reads values",
        "ctc_loss": "reads lengths", "batch_norm": "asks for cuDNN", "grid_sample": "asks for cuDNN",
        "grid_sample mixed": "asks for cuDNN", "unfold": "no meta function",
        "index_copy": "fake tensors let two dtypes pass", "avg_pool3d": "refused here in half precision",
        "svdvals": "refused here in half precision",
    },
}  # fmt: skip


def operands(lib, dtype, low, device="cpu"):
    """`x`, `half` and `full` of a case, drawn in the order in which they are asked for."""
    rng = np.random.default_rng(0)

    def of(name):
        def make(*shape):
            values = rng.standard_normal(shape).astype(np.float32)
            if device == "cuda":
                return torch.empty(shape, dtype=getattr(torch, name), device="cuda")
            made = torch.from_numpy(values) if lib is torch else ts.tensor(values)
            return made.to(getattr(lib, name))

        return make

    return of(dtype), of(low), of("float32")


def first(result):
    return result[0] if isinstance(result, tuple) else result


def outcome(run):
    """The first result, or the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return first(run())
        except Exception as error:  # noqa: BLE001 - whether both raise is compared
            return error


def name_of(dtype):
    return str(dtype).split(".")[-1]


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES)
def test_on_the_cpu(case, low):
    for dtype in ("float32", low):
        with torch.autocast("cpu", dtype=getattr(torch, low)):
            theirs = outcome(lambda: CASES[case](torch, *operands(torch, dtype, low)))  # noqa: B023
        with ts.autocast("cpu", dtype=getattr(ts, low)):
            ours = outcome(lambda: CASES[case](ts, *operands(ts, dtype, low)))  # noqa: B023
        if case in NO_PEER["cpu"] and isinstance(theirs, Exception):
            assert not isinstance(ours, Exception)
            continue
        assert isinstance(ours, Exception) == isinstance(theirs, Exception), (ours, theirs)
        if isinstance(theirs, Exception):
            continue
        assert name_of(ours.dtype) == name_of(theirs.dtype)
        ours, theirs = (x if x.dtype.is_complex else x.float() for x in (ours, theirs))
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=2e-2, atol=2e-2)


def count_as_cuda(monkeypatch):
    """Our tensors count as those of a GPU."""
    monkeypatch.setattr(casting, "device_type_of", lambda layout: "cuda")
    monkeypatch.setattr(casting, "_castings", {})
    monkeypatch.setattr(autocast_mode, "is_available", lambda: True)


@pytest.fixture
def on_cuda(monkeypatch):
    count_as_cuda(monkeypatch)


@pytest.mark.parametrize("case", [case for case in CASES if case not in NO_PEER["cuda"]])
def test_dtypes_on_cuda(case, on_cuda, monkeypatch):
    for dtype in ("float32", "float16"):
        monkeypatch.setattr(torch, "tensor", lambda *a, made=torch.tensor, **k: made(*a, device="cuda", **k))
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.set_autocast_enabled("cuda", True)
        try:
            with FakeTensorMode():
                theirs = outcome(lambda: CASES[case](torch, *operands(torch, dtype, "float16", "cuda")))  # noqa: B023
        finally:
            torch.set_autocast_enabled("cuda", False)
            monkeypatch.undo()
            count_as_cuda(monkeypatch)
        with ts.autocast("cuda", dtype=ts.float16):
            ours = outcome(lambda: CASES[case](ts, *operands(ts, dtype, "float16")))  # noqa: B023
        assert isinstance(ours, Exception) == isinstance(theirs, Exception), (ours, theirs)
        if not isinstance(theirs, Exception):
            assert name_of(ours.dtype) == name_of(theirs.dtype)


def test_the_table_names_what_exists():
    functions = {*TABLE, *(entry.name for entry in TABLE.values())}
    for table in (CPU, CUDA):
        names = [name for each in table.values() for name in each.split()]
        assert len(names) == len(set(names)), "a name has one policy"
        assert not [name for name in names if name not in operators() and name not in functions]
    assert {operation.name for operation in listed()} <= {*policies("cpu"), *policies("cuda")}


def test_every_operator_that_pytorch_lists_has_a_case():
    """What PyTorch registers for its CUDA key: each is a case here, or is named with the reason."""
    registered = set()
    for full_name in torch._C._dispatch_get_all_op_names():
        dump = torch._C._dispatch_dump(full_name)
        if any(line.startswith("AutocastCUDA") and "fallthrough" not in line for line in dump.splitlines()):
            registered.add(full_name.removeprefix("aten::").partition(".")[0])
    not_public = {
        "_convolution", "convolution", "cudnn_convolution", "cudnn_convolution_transpose", "native_layer_norm",
        "_scaled_dot_product_flash_attention", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "nuclear_norm",
        "frobenius_norm", "norm", "linalg_vector_norm", "linalg_matrix_norm", "chain_matmul", "linalg_multi_dot",
        "linalg_vecdot", "grid_sampler",
    }  # fmt: skip
    cases = {case.split()[0] for case in CASES} | not_public
    missing = {name for name in registered if name not in cases and not name.lstrip("_").startswith("upsample")}
    assert not missing


def test_binary_cross_entropy_is_refused_on_cuda(on_cuda):
    x = ts.rand(3)
    with ts.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        ts.nn.functional.binary_cross_entropy(x, x)
    assert policies("cuda")["binary_cross_entropy"] is Policy.BANNED
    with ts.autocast("cuda", enabled=False):
        ts.nn.functional.binary_cross_entropy(x, x)


def test_operands_of_another_half_type_are_refused_where_they_have_to_agree(on_cuda):
    with ts.autocast("cuda", dtype=ts.float16), pytest.raises(RuntimeError, match="BFloat16"):
        ts.cat([ts.ones(2).half(), ts.ones(2).bfloat16()])
