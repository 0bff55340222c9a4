"""Winograd's convolution with sizes at run time beside the same kernel compiled with them as constants.

    python benchmarks/winograd.py [--only "64@56"]

Constants are the words of the loops and transforms; the register tile of the products, a function of its own, takes its sizes
as arguments in both.
A ratio is constant / run time: 1 where nothing is lost by kernels that take every size. Results must be equal bit for bit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import numpy as np

import tensorsmith as ts
from tensorsmith.core.dtypes import float32
from tensorsmith.targets.cpu import launch
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.conv import ConvKernel
from tensorsmith.targets.cpu.machine import machine
from tensorsmith.targets.cpu.recipe import Recipe
from tensorsmith.targets.cpu.winograd import DONE, WORDS
from tensorsmith.targets.cpu.winograd_plan import plan_weight, plan_winograd
from timing import Report, compare, make_parser, selected

CASES = {
    f"F({outputs},3) {channels}@{size} batch {batch}": (outputs, batch, channels, size)
    for outputs in (2, 4)
    for batch, channels, size in ((1, 64, 56), (8, 64, 56), (1, 128, 28), (1, 256, 14))
}


def with_constants(kernel: ConvKernel) -> int:
    """The address of the kernel's loops compiled with its constant words in place of their loads."""
    text, first = kernel.pieces[0].text, 8 * (len(kernel.launch_order) + 1)
    name = kernel.pieces[0].functions[0].name
    for i, value in enumerate(kernel.constants):
        if WORDS[i] == DONE:  # which chunks count up
            continue
        place = rf"(%\w+) = getelementptr i8, ptr %args, i64 {first + 8 * i}\n\s*(%\w+) = load i64, ptr \1, align 8"
        text, found = re.subn(place, rf"\2 = add i64 0, {value}", text)
        assert found == 1, f"the word {WORDS[i]} is loaded {found} times"
    text = text.replace(f"@{name}(", f"@{name}_constant(")
    return compile_functions(text, [f"{name}_constant"], machine())[0]


def measure(report: Report, name: str, turns: int) -> None:
    """Check that both kernels give the same, and time them."""
    outputs, batch, channels, size = CASES[name]
    generator = np.random.default_rng(0)
    x = generator.standard_normal((batch, channels, size, size), dtype=np.float32)
    w = generator.standard_normal((channels, channels, 3, 3), dtype=np.float32)
    u = np.zeros((outputs + 2) ** 2 * channels * channels + 64, np.float32)
    strides = lambda a: [n // a.itemsize for n in a.strides]
    weight = plan_weight(float32, outputs, w.shape, strides(w))
    recipe = Recipe(weight.function_address, weight.chunks, 2, weight.constants)
    launch.launch(recipe.address, w.ctypes.data, u.ctypes.data)
    kernel = plan_winograd(float32, outputs, x.shape, x.shape, (1, 1), strides(x), strides(x))
    workspace = np.zeros(kernel.workspace_bytes + 64, np.uint8)
    results: dict[str, np.ndarray] = {}
    calls: dict[str, Callable[[], object]] = {}
    for which, address in (("constant", with_constants(kernel)), ("run time", kernel.function_address)):
        y = results[which] = np.zeros_like(x)
        made = Recipe(address, kernel.chunks, len(kernel.launch_order), kernel.constants)
        given = (x.ctypes.data, u.ctypes.data, y.ctypes.data, -(-workspace.ctypes.data // 64) * 64)
        calls[which] = lambda made=made, given=given: launch.launch(made.address, *given)
        calls[which]()
    if not results["constant"].any() or not np.array_equal(*results.values()):
        report.fail(name, "other results with constants")
        return
    taken = compare(calls, turns, 0.005)
    report.add(name, taken["constant"], taken["run time"])


def main() -> int:
    """Run the cases; 1 where one is wrong or slower than asked for."""
    options = make_parser(__doc__).parse_args()
    ts.set_num_threads(1)
    report = Report("winograd", "constant")
    for name in selected(CASES, options.only):
        measure(report, name, options.turns)
    return report.finish(options.floor, options.mean)


if __name__ == "__main__":
    sys.exit(main())
