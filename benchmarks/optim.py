"""One step of an optimiser, and the handling of all gradients at once, beside the faster of PyTorch's ways of each.

    python benchmarks/optim.py [--only adamw,resnet] [--threads 1]

PyTorch runs its loop (foreach=False), foreach=True and, where it has one, fused=True. Parameters and gradients are the same
on both sides, and the parameters after three steps must agree.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from timing import Report, compare, make_parser, selected

OPTIMIZERS: dict[str, tuple[str, dict[str, float]]] = {
    "sgd": ("SGD", {"lr": 1e-3}),
    "sgd momentum": ("SGD", {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4}),
    "adam": ("Adam", {"lr": 1e-4}),
    "adamw": ("AdamW", {"lr": 1e-4, "weight_decay": 0.1}),
    "rmsprop": ("RMSprop", {}), "adagrad": ("Adagrad", {}), "adadelta": ("Adadelta", {}), "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}), "adamax": ("Adamax", {}), "asgd": ("ASGD", {}), "rprop": ("Rprop", {"lr": 1e-4}),
}  # fmt: skip
ALL_SIZES = ("sgd", "sgd momentum", "adam", "adamw")  # the others with the small tensors of ResNet-20 only
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


def resnet20() -> list[tuple[int, ...]]:
    """Weights of ResNet-20 for 32x32 images."""
    shapes: list[tuple[int, ...]] = [(16, 3, 3, 3), (16,), (16,)]
    before = 16
    for width in (16, 32, 64):
        for _ in range(3):
            shapes += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            before = width
    return [*shapes, (10, 64), (10,)]


def gpt(width: int = 768, layers: int = 4) -> list[tuple[int, ...]]:
    """Weights of a decoder: two embeddings and twelve tensors a layer."""
    layer = [
        (width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,),
        (width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,),
    ]  # fmt: skip
    return [(256, width), (128, width), *layer * layers]


MODELS: dict[str, list[tuple[int, ...]]] = {
    "mlp": [(256, 784), (256,), (256, 256), (256,), (10, 256), (10,)],
    "lenet": [(16, 1, 5, 5), (16,), (32, 16, 5, 5), (32,), (120, 1568), (120,), (10, 120), (10,)],
    "resnet20": resnet20(),
    "gpt": gpt(),
}


def clipping_ever_lower(lib: Any, params: list[Any]) -> Callable[[], Any]:
    """Clip the norm by a limit that falls at every call, so that every call has something to clip."""
    falling = (0.1 * 0.999**number for number in itertools.count())
    return lambda: lib.nn.utils.clip_grad_norm_(params, next(falling))


def zeroing(lib: Any, params: list[Any]) -> Callable[[], Any]:
    """Fill all gradients with zeros."""
    optimizer = lib.optim.SGD(params, lr=0.1)
    return lambda: optimizer.zero_grad(set_to_none=False)


GRADIENTS: dict[str, Callable[[Any, list[Any]], Callable[[], Any]]] = {
    "clip_grad_norm_ within": lambda lib, params: lambda: lib.nn.utils.clip_grad_norm_(params, 1e9),
    "clip_grad_norm_ beyond": clipping_ever_lower,
    "clip_grad_value_": lambda lib, params: lambda: lib.nn.utils.clip_grad_value_(params, 1e-3),
    "zero_grad to zeros": zeroing,
}


def parameters(lib: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """The same parameters and gradients for either library."""
    rng = np.random.default_rng(0)
    params = []
    for shape in shapes:
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
        p = lib.nn.Parameter(lib.from_numpy(values))
        p.grad = lib.from_numpy(values[::-1] * np.float32(0.1) if values.ndim == 1 else values * np.float32(0.1))
        params.append(p)
    return params


def measure(report: Report, model: str, name: str, turns: int, threads: int) -> None:
    """Check and time one optimiser on the parameters of one model."""
    cls, options = OPTIMIZERS[name]
    ways: dict[str, tuple[Any, dict[str, Any]]] = {"ours": (ts, {}), "loop": (torch, {"foreach": False})}
    ways["foreach"] = (torch, {"foreach": True})
    if cls in FUSED:
        ways["fused"] = (torch, {"fused": True})
    calls, after = {}, {}
    for way, (lib, more) in ways.items():
        params = parameters(lib, MODELS[model])
        calls[way] = step = getattr(lib.optim, cls)(params, **options, **more).step
        for _ in range(3):
            step()
        after[way] = [p.detach().numpy().copy() for p in params]
    for number, (ours, theirs) in enumerate(zip(after["ours"], after["loop"])):
        if not np.allclose(ours, theirs, rtol=1e-4, atol=1e-6):
            report.fail(f"{model} {name}", f"parameter {number} differs after three steps")
            return
    taken = compare(calls, turns, threads=threads)
    fastest = min((way for way in taken if way != "ours"), key=lambda way: taken[way])
    report.add(f"{model} {name}", taken[fastest], taken["ours"], f"torch: {fastest}")


def measure_gradients(report: Report, model: str, name: str, turns: int, threads: int) -> None:
    """Check and time one treatment of all gradients."""
    make, calls, after = GRADIENTS[name], {}, {}
    for way, lib in (("torch", torch), ("ours", ts)):
        params = parameters(lib, MODELS[model])
        calls[way] = make(lib, params)
        calls[way]()
        after[way] = [p.grad.numpy().copy() for p in params]
    # A norm of 28 million elements is off by 3e-5 in PyTorch.
    if not all(np.allclose(a, b, rtol=1e-3, atol=1e-9) for a, b in zip(after["ours"], after["torch"])):
        report.fail(f"{model} {name}", "gradients differ")
        return
    taken = compare(calls, turns, threads=threads)
    report.add(f"{model} {name}", taken["torch"], taken["ours"])


def main() -> int:
    """Run the cases; 1 where one is wrong or slower than asked for."""
    options = make_parser(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    ts.set_num_threads(options.threads)
    report = Report("optim")
    steps = {f"{m} {n}": (measure, m, n) for m in MODELS for n in OPTIMIZERS if n in ALL_SIZES or m == "resnet20"}
    steps |= {f"{m} {n}": (measure_gradients, m, n) for m in MODELS for n in GRADIENTS}
    for case in selected(steps, options.only):
        run, model, name = steps[case]
        run(report, model, name, options.turns, options.threads)
    return report.finish(options.floor, options.mean)


if __name__ == "__main__":
    sys.exit(main())
