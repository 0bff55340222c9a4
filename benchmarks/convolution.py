"""Convolutions of every form beside PyTorch: forward, the gradient of x, the gradient of w; checked against float64.

    python benchmarks/convolution.py [--only "3x3,stem"] [--what y,dx,dw] [--batch 1,16] [--winograd fast] [--compiled]

Forms are layers of ResNet-18 and 50, MobileNet, U-Net and their relatives in one and three dimensions. A case is wrong where
its largest error is more than eight times PyTorch's (and above 3e-6 of the largest value; twice that in mode "fast").
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from timing import Report, compare, make_parser, selected

# name: (function, shape of x without the batch, of w, the other arguments)
FORMS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, int]]] = {
    "stem 7x7/2 3->64@224": ("conv2d", (3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "stem 3x3/2 3->32@224": ("conv2d", (3, 224, 224), (32, 3, 3, 3), {"stride": 2, "padding": 1}),
    "3x3 64@56": ("conv2d", (64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    "3x3 128@28": ("conv2d", (128, 28, 28), (128, 128, 3, 3), {"padding": 1}),
    "3x3 256@14": ("conv2d", (256, 14, 14), (256, 256, 3, 3), {"padding": 1}),
    "3x3 512@7": ("conv2d", (512, 7, 7), (512, 512, 3, 3), {"padding": 1}),
    "3x3/2 64->128@56": ("conv2d", (64, 56, 56), (128, 64, 3, 3), {"stride": 2, "padding": 1}),
    "3x3/2 128@28": ("conv2d", (128, 28, 28), (128, 128, 3, 3), {"stride": 2, "padding": 1}),
    "3x3/2 256->512@14": ("conv2d", (256, 14, 14), (512, 256, 3, 3), {"stride": 2, "padding": 1}),
    "1x1 64->256@56": ("conv2d", (64, 56, 56), (256, 64, 1, 1), {}),
    "1x1/2 64->128@56": ("conv2d", (64, 56, 56), (128, 64, 1, 1), {"stride": 2}),
    "depthwise 3x3 144@56": ("conv2d", (144, 56, 56), (144, 1, 3, 3), {"padding": 1, "groups": 144}),
    "depthwise 3x3/2 96@112": ("conv2d", (96, 112, 112), (96, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 96}),
    "depthwise 5x5 240@28": ("conv2d", (240, 28, 28), (240, 1, 5, 5), {"padding": 2, "groups": 240}),
    "depthwise 3x3 576@7": ("conv2d", (576, 7, 7), (576, 1, 3, 3), {"padding": 1, "groups": 576}),
    "groups 32 3x3 256@28": ("conv2d", (256, 28, 28), (256, 8, 3, 3), {"padding": 1, "groups": 32}),
    "dilated 3x3 128@28": ("conv2d", (128, 28, 28), (128, 128, 3, 3), {"padding": 2, "dilation": 2}),
    "unet 3x3 64@97x131": ("conv2d", (64, 97, 131), (64, 64, 3, 3), {}),
    "5x5 32->64@31": ("conv2d", (32, 31, 31), (64, 32, 5, 5), {"padding": 2}),
    "lenet 5x5 6->16@14": ("conv2d", (6, 14, 14), (16, 6, 5, 5), {}),
    "transposed 2x2/2 128->64@28": ("conv_transpose2d", (128, 28, 28), (128, 64, 2, 2), {"stride": 2}),
    "transposed 4x4/2 256->128@8": ("conv_transpose2d", (256, 8, 8), (256, 128, 4, 4), {"stride": 2, "padding": 1}),
    "transposed 3x3/2 64->32@33": ("conv_transpose2d", (64, 33, 33), (64, 32, 3, 3), {"stride": 2, "padding": 1}),
    "conv1d 3 64@1000": ("conv1d", (64, 1000), (64, 64, 3), {"padding": 1}),
    "conv1d 10/5 1->128@8000": ("conv1d", (1, 8000), (128, 1, 10), {"stride": 5}),
    "conv1d 3/2 128@501": ("conv1d", (128, 501), (128, 128, 3), {"stride": 2, "padding": 1}),
    "conv1d 3 dilation 4 64@700": ("conv1d", (64, 700), (64, 64, 3), {"padding": 4, "dilation": 4}),
    "conv3d 3 16->32@16": ("conv3d", (16, 16, 16, 16), (32, 16, 3, 3, 3), {"padding": 1}),
    "conv3d 3/2 16->32@17x24": ("conv3d", (16, 17, 24, 24), (32, 16, 3, 3, 3), {"stride": 2, "padding": 1}),
}


def error(result: np.ndarray, exact: np.ndarray) -> float:
    """The largest absolute difference in units of the largest exact value; infinite for another shape."""
    if result.shape != exact.shape:
        return float("inf")
    return float(np.abs(result.astype(np.float64) - exact).max()) / max(float(np.abs(exact).max()), 1e-30)


def call(lib: Any, form: str, what: str, x: Any, w: Any, g: Any, compiled: bool) -> Callable[[], Any]:
    """What is measured: the result, or the gradient of one operand for the gradient g of the result."""
    function, attrs = getattr(lib.nn.functional, FORMS[form][0]), FORMS[form][3]
    if what == "y":
        run = lambda x: function(x, w, **attrs)  # w is captured, so a compiled function keeps what it makes of it
        if compiled and lib is ts:
            run = ts.compile(run)

        def forward() -> Any:
            with lib.no_grad():
                return run(x)

        return forward
    wanted = x if what == "dx" else w
    other = w if what == "dx" else x
    wanted, other = wanted.detach().requires_grad_(), other.detach()
    y = function(*((wanted, other) if what == "dx" else (other, wanted)), **attrs)
    return lambda: lib.autograd.grad(y, [wanted], g, retain_graph=True)[0]


def measure(report: Report, form: str, batch: int, what: str, options: Any, generator: np.random.Generator) -> None:
    """Check one case and time it."""
    normal = lambda shape: generator.standard_normal(shape, dtype=np.float32)
    x, w = normal((batch, *FORMS[form][1])), normal(FORMS[form][2])
    exact_x, exact_w = (torch.from_numpy(a).double() for a in (x, w))
    g = normal(call(torch, form, "y", exact_x, exact_w, None, False)().shape)
    exact = call(torch, form, what, exact_x, exact_w, torch.from_numpy(g).double(), False)().numpy()
    calls = {
        "torch": call(torch, form, what, *(torch.from_numpy(a) for a in (x, w, g)), False),
        "ours": call(ts, form, what, *(ts.from_numpy(a) for a in (x, w, g)), options.compiled),
    }
    errors = {name: error(run().numpy(), exact) for name, run in calls.items()}
    name = f"{form} batch {batch} {what}"
    if not errors["ours"] <= max(8 * errors["torch"], 3e-6 * (1 + (options.winograd == "fast"))):
        report.fail(name, f"error {errors['ours']:.1e}, PyTorch's {errors['torch']:.1e}")
        return
    taken = compare(calls, options.turns, 0.01, threads=options.threads)
    report.add(name, taken["torch"], taken["ours"], f"error {errors['ours']:.0e} ({errors['torch']:.0e})")


def main() -> int:
    """Run the cases; 1 where one is wrong or slower than asked for."""
    parser = make_parser(__doc__)
    parser.add_argument("--what", default="y,dx,dw", help="y, dx or dw (comma separated)")
    parser.add_argument("--batch", default="1,16", help="sizes of batches (comma separated)")
    parser.add_argument("--winograd", default=ts.backends.cpu.winograd, help="the setting backends.cpu.winograd")
    parser.add_argument("--compiled", action="store_true", help="results by a compiled function, which keeps weights")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ts.set_num_threads(options.threads)
    ts.backends.cpu.winograd = options.winograd
    report, generator = Report("convolution"), np.random.default_rng(0)
    of_part: dict[str, list[str]] = {}
    for what in options.what.split(","):
        for batch in map(int, options.batch.split(",")):
            for form in selected(FORMS, options.only):
                before = set(report.ratios)
                try:
                    measure(report, form, batch, what, options, generator)
                except Exception as problem:  # noqa: BLE001 - a case that does not run is a wrong one, not the end
                    report.fail(f"{form} batch {batch} {what}", f"{type(problem).__name__}: {problem}")
                of_part.setdefault(f"{what}, batch {batch}", []).extend(set(report.ratios) - before)
    for part, names in of_part.items():
        if names:
            worst = min(names, key=lambda name: report.ratios[name])
            mean = statistics.geometric_mean(report.ratios[name] for name in names)
            print(f"{part}: geometric mean {mean:.2f}, worst {report.ratios[worst]:.2f} in '{worst}'")
    return report.finish(options.floor, options.mean)


if __name__ == "__main__":
    sys.exit(main())
