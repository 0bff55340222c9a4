"""What one eager operator call costs on tensors so small that nothing else counts, beside PyTorch.

    python benchmarks/eager.py [--only add,view] [--turns 11]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from timing import Report, compare, make_parser, selected


def calls(lib: Any, grad: bool) -> dict[str, Callable[[], Any]]:
    """The same calls on PyTorch or on this package."""
    F = lib.nn.functional
    x = lib.tensor([1.0, -2.0, 3.0, 4.0, 0.5], requires_grad=grad)
    y = lib.tensor([0.5, 0.25, 2.0, 1.0, -1.0])
    matrix = lib.tensor([[1.0, 2.0, 0.5], [3.0, 4.0, -1.0]], requires_grad=grad)
    square = lib.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=grad)
    row = lib.tensor([1.0, 2.0, 3.0])
    weight = lib.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [1.0, 0.0, -1.0]], requires_grad=grad)
    whole = lib.tensor([3, 1, 2, 5, 4])
    target = lib.tensor([2, 0])
    written = lib.tensor([1.0, 2.0, 3.0, 4.0])
    found = {
        "add": lambda: x + y,
        "sub number": lambda: x - 1.5,
        "mul by an integer tensor": lambda: x * whole,
        "exp": lambda: x.exp(),
        "relu": lambda: F.relu(x),
        "gelu": lambda: F.gelu(x),
        "sum": lambda: x.sum(),
        "mean of rows": lambda: matrix.mean(1),
        "softmax": lambda: F.softmax(matrix, dim=-1),
        "broadcast mul": lambda: matrix * row,
        "add transposed": lambda: square + square.t(),
        "matmul": lambda: matrix @ weight,
        "linear": lambda: F.linear(matrix, weight, row),
        "cross_entropy": lambda: F.cross_entropy(matrix, target),
        "view": lambda: matrix.view(3, 2),
        "transpose": lambda: matrix.t(),
        "index": lambda: matrix[1],
        "slice": lambda: x[1:4],
    }
    if not grad:
        return found | {"add_ in place": lambda: written.add_(0.0), "mul_ in place": lambda: written.mul_(1.0)}

    def backward() -> Any:
        x.grad = None
        ((x * y).exp() + x).sum().backward()
        return x.grad

    def layer() -> Any:
        weight.grad = None
        F.relu(F.linear(matrix, weight, row)).sum().backward()
        return weight.grad

    return {f"{name} +grad": call for name, call in found.items()} | {
        "backward through 4 nodes": backward,
        "backward through a layer": layer,
    }


def main() -> int:
    """Run the cases; 1 where one is wrong or slower than asked for."""
    options = make_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    ts.set_num_threads(1)
    report = Report("eager calls")
    for grad in (False, True):
        theirs, ours = calls(torch, grad), calls(ts, grad)
        for name in selected(theirs, options.only):
            try:
                expected, found = theirs[name]().detach().numpy(), ours[name]().detach().numpy()
                if expected.shape != found.shape or not np.allclose(found, expected, rtol=1e-5, atol=1e-6):
                    report.fail(name, f"{found} instead of {expected}")
                    continue
                taken = compare({"torch": theirs[name], "ours": ours[name]}, options.turns)
            except Exception as error:  # noqa: BLE001 - a case that does not run is a wrong one, not the end
                report.fail(name, f"{type(error).__name__}: {error}")
                continue
            report.add(name, taken["torch"], taken["ours"])
    return report.finish(options.floor, options.mean)


if __name__ == "__main__":
    sys.exit(main())
