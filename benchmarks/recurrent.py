"""Recurrent layers and cells, forward and with gradients: checked against float64, then timed beside PyTorch.

    python benchmarks/recurrent.py [--only "LSTM","training"] [--threads 2]

Sequences have 32 steps of 64 inputs. A case is wrong where a result or a gradient is further from PyTorch's in float64 than
1e-4 of its largest value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from timing import Report, compare, make_parser, selected

STEPS, INPUTS = 32, 64
SIZES = [(batch, hidden) for batch in (1, 16) for hidden in (32, 128, 256)]


def cases() -> Iterator[tuple[str, str, dict[str, Any], tuple[int, ...], int]]:
    """Name, class, its options, shape of the input and hidden size."""
    for kind in ("LSTM", "GRU", "RNN"):
        for batch, hidden in SIZES:
            for text, options in (
                ("", {}), (" 2 layers", {"num_layers": 2}), (" bidirectional", {"bidirectional": True}),
            ):  # fmt: skip
                yield f"{kind} {batch}x{hidden}{text}", kind, options, (STEPS, batch, INPUTS), hidden
        for batch, hidden in SIZES:
            yield f"{kind}Cell {batch}x{hidden}", f"{kind}Cell", {}, (batch, INPUTS), hidden


def first(result: Any) -> Any:
    """The states of the last layer, or of the cell."""
    return result[0] if isinstance(result, tuple) else result


def runs(library: Any, module: Any, x: Any) -> dict[str, Callable[[], Any]]:
    """Forward without gradients, and forward and backward."""

    def forward() -> Any:
        with library.no_grad():
            return first(module(x))

    def training() -> Any:
        result = first(module(x))
        for parameter in module.parameters():
            parameter.grad = None
        result.backward(weight)
        return next(module.parameters()).grad

    weight = library.ones_like(forward())
    return {"forward": forward, "training": training}


def error(ours: Any, exact: Any, x: np.ndarray) -> float:
    """The largest difference of results and gradients, as a share of the largest value."""
    found = []
    for library, module, dtype in ((ts, ours, np.float32), (torch, exact, np.float64)):
        result = first(module(library.tensor(x.astype(dtype))))
        result.sum().backward()
        found.append([result.detach().numpy(), *(p.grad.numpy() for p in module.parameters())])
    return max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-9)) for a, b in zip(*found))


def main() -> int:
    """Run the chosen cases."""
    arguments = make_parser(__doc__).parse_args()
    ts.set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    generator = np.random.default_rng(0)
    report = Report("recurrent")
    everything = {name: rest for name, *rest in cases()}
    names = [f"{name} {way}" for name in everything for way in ("forward", "training")]
    checked: dict[str, tuple[Any, Any, Any, float]] = {}
    for full in selected(names, arguments.only):
        name, way = full.rsplit(" ", 1)
        if name not in checked:
            kind, options, shape, hidden = everything[name]
            theirs = getattr(torch.nn, kind)(INPUTS, hidden, **options)
            ours = getattr(ts.nn, kind)(INPUTS, hidden, **options)
            ours.load_state_dict({key: ts.tensor(value.numpy()) for key, value in theirs.state_dict().items()})
            exact = getattr(torch.nn, kind)(INPUTS, hidden, **options).double()
            exact.load_state_dict(theirs.state_dict())
            x = generator.standard_normal(shape, dtype=np.float32)
            checked[name] = ours, theirs, x, error(ours, exact, x)
        ours, theirs, x, wrong = checked[name]
        if not wrong < 1e-4:
            report.fail(full, f"off by {wrong:.1e} of the largest value")
            continue
        found = compare(
            {"torch": runs(torch, theirs, torch.tensor(x))[way], "ours": runs(ts, ours, ts.tensor(x))[way]},
            arguments.turns, threads=arguments.threads,
        )  # fmt: skip
        report.add(full, found["torch"], found["ours"])
    return report.finish(arguments.floor, arguments.mean)


if __name__ == "__main__":
    sys.exit(main())
