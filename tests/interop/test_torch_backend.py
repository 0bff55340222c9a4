"""`torch.compile(..., backend="tensorsmith")`: everything is as in eager mode."""

from __future__ import annotations

import copy
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorsmith.interop.torch import TensorsmithWarning, left_to_torch, partition
from tensorsmith.interop.torch.program import Program

F = nn.functional


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    partition._left.clear()
    yield
    torch._dynamo.reset()


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="tensorsmith", fullgraph=True, **options)


def agree(want: Any, got: Any, tolerance: float = 1e-5) -> None:
    want, got = ([x] if isinstance(x, torch.Tensor) else x for x in (want, got))
    assert len(want) == len(got)
    for a, b in zip(want, got):
        assert (a.shape, a.stride(), a.dtype, a.requires_grad) == (b.shape, b.stride(), b.dtype, b.requires_grad)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return F.log_softmax(self.head(F.gelu(x)), -1)


def models() -> dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]]:
    return {
        "mlp": lambda: (nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)), torch.randn(5, 6)),
        "cnn": lambda: (
            nn.Sequential(
                nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=4),
                nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
            ),
            torch.randn(2, 3, 10, 10),
        ),
        "transformer": lambda: (Attention(), torch.randint(0, 11, (2, 5))),
    }  # fmt: skip


@pytest.mark.parametrize("name", models())
def test_models_train_and_evaluate_as_in_eager_mode(name: str):
    model, x = models()[name]()
    other = copy.deepcopy(model)
    fast = compiled(other)
    for _ in range(2):
        want, got = model(x), fast(x)
        agree(want, got)
        grad = torch.randn_like(want)
        want.backward(grad)
        got.backward(grad)
        agree([p.grad for p in model.parameters()], [p.grad for p in other.parameters()], 1e-4)
        agree(list(model.buffers()), list(other.buffers()))
    model.eval(), other.eval()
    with torch.no_grad():
        agree(model(x), fast(x))
        for p, q in zip(model.parameters(), other.parameters()):
            p.mul_(1.5), q.mul_(1.5)  # what a plan keeps of weights follows them
        agree(model(x), fast(x), 1e-4)
    assert left_to_torch() == {}


def test_shapes_may_change():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    other = copy.deepcopy(model)
    fast = compiled(other, dynamic=True)
    for rows in (3, 5, 2):
        x = torch.randn(rows, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        model(x).square().mean().backward()
        fast(y).square().mean().backward()
        agree(x.grad, y.grad)

    def with_sizes(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x.reshape(-1)[: x.shape[0] + 1] * x.shape[0], x.shape[1] * 2

    fast = compiled(with_sizes, dynamic=True)
    for x in (torch.randn(3, 4), torch.randn(6, 4), torch.randn(5, 3).t()):
        (want, number), (got, found) = with_sizes(x), fast(x)
        agree(want, got)
        assert number == found


def test_memory_is_shared_as_in_eager_mode():
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        return [x, x[1:], x.t(), x.clone(), x * 1, y, y.clone(), y[:, 1:], x.sum(0).expand(3, 6), y.t() + 1]

    fast = compiled(function)
    base = torch.randn(8, 12)
    for x in (torch.randn(4, 6), torch.randn(6, 4).t(), base[2:6, ::2], base[0, :6].expand(4, 6)):
        want, got = function(x), fast(x)
        agree(want, got)
        of_x = [[tensor.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for tensor in r] for r in (want, got)]
        assert of_x[0] == of_x[1]
        with torch.no_grad():
            got[6].fill_(7.0)
        agree(want[5], got[5])


def test_writes_reach_the_arguments():
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y[1:3].add_(x[0])
        return x + 1

    fast = compiled(function)
    given = [torch.randn(4, 5), torch.randn(4, 5)]
    copies = [x.clone() for x in given]
    agree(function(*given), fast(*copies))
    agree(given, copies)


def test_what_is_missing_stays_in_pytorch_and_is_named_once():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    other = copy.deepcopy(model)
    fast, x = compiled(other), torch.randn(3, 4)
    torch.manual_seed(3)
    want = model(x)
    torch.manual_seed(3)
    with pytest.warns(TensorsmithWarning, match="aten.bernoulli.p"):
        got = fast(x)
    agree(want, got)
    want.sum().backward(), got.sum().backward()
    agree([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])
    assert left_to_torch() == {"aten.bernoulli.p": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error", TensorsmithWarning)
        fast(x)


def test_arguments_that_an_operator_refuses_stay_in_pytorch():
    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x + 1).index_put((mask,), x[0, :2]) * 2

    x = torch.tensor([[1.0, -1.0, -2.0], [-1.0, 2.0, -0.5]])
    with pytest.warns(TensorsmithWarning, match=r"index_put with a mask, but for one mask"):
        agree(function(x, x > 0), compiled(function)(x, x > 0))


def test_tensors_that_are_seen_as_conjugates_stay_in_pytorch():
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(x.conj() * 2)

    x = torch.randn(3, 4, dtype=torch.complex64)
    with pytest.warns(TensorsmithWarning, match="_conj"):
        agree(function(x), compiled(function)(x))


KNOWN = """
import sys, torch
from importlib.metadata import EntryPoint
from torch._dynamo.backends import registry

registry._lazy_import()
registry._BACKENDS["tensorsmith"] = EntryPoint("tensorsmith", {value!r}, "torch_dynamo_backends")
assert "tensorsmith" not in sys.modules
double = torch.compile(lambda x: x * 2, backend="tensorsmith")
assert double(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
import tensorsmith.interop.torch
assert tensorsmith.interop.torch.left_to_torch() == {{}}
"""


def test_pytorch_knows_the_backend_without_an_import():
    """What PyTorch does with the entry point of an installed package, in a process of its own."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    value = project["project"]["entry-points"]["torch_dynamo_backends"]["tensorsmith"]
    done = subprocess.run([sys.executable, "-c", KNOWN.format(value=value)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tensorsmith" in torch._dynamo.list_backends()


def test_random_numbers_are_pytorchs_and_do_not_cut_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.dropout((x * 2).transpose(0, 1), 0.3).sin()
        return nn.functional.dropout(hidden, 0.2) + torch.randn_like(x).t() * torch.rand_like(hidden)

    programs: list[Any] = []
    monkeypatch.setattr(partition, "Program", lambda *given: programs.append(given) or Program(*given))
    x = torch.randn(5, 4)
    torch.manual_seed(1)
    want = noisy(x)
    torch.manual_seed(1)
    agree(want, compiled(noisy)(x))
    assert len(programs) == 1


def test_writes_by_masks_and_beside_kept_axes_are_ours() -> None:
    def written(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[x < 0] = 0.5
        x[:, i] += 1
        return x

    x, i = torch.randn(4, 5, 3), torch.tensor([1, 3])
    agree(written(x, i), compiled(written)(x, i))
    assert left_to_torch() == {}
