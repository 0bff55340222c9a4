"""What run-time sizes cost a matrix product: the same schedule with its words as constants in the text, timed beside it.

    python benchmarks/gemm_constants.py [--only 128,1024] [--dtype float32,float64] [--floor 0.95]

Kernels of products are compiled once and get extents, strides and block sizes when they are launched. Here a plan's pieces
are written into one module in which every such word is a number, calls name the functions they reach and tiles know their
depth, strides and width. LLVM then makes what it can of the numbers, in two ways: constants folded, and its whole middle-end
(-O3). The peer is the faster of the two. Results must be equal to the last bit; a ratio of 1 says that sizes at run time
cost nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu import launch, pool
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.gemm import MatmulKernel, plan_matmul
from tensorsmith.targets.cpu.gemm_blocks import PACKED, WORDS, entry_name
from tensorsmith.targets.cpu.gemm_kernels import kernels
from tensorsmith.targets.cpu.machine import machine
from tensorsmith.targets.cpu.recipe import Recipe
from timing import Report, compare, make_parser, selected

SIZES = (128, 256, 384, 512, 768, 1024)
_CALLED = ("pack", "pack_left", "big_wide", "small_wide", "big_narrow", "small_narrow")  # words that are functions


def substitute(text: str, values: dict[str, str]) -> str:
    """The text with names of values replaced."""
    return re.sub(r"%[A-Za-z0-9_]+", lambda found: values.get(found[0], found[0]), text)


def constant_text(kernel: MatmulKernel, dtype: DType) -> str:
    """One module of the plan's pieces with all constant words in it."""
    words = dict(zip(WORDS, kernel.constants))
    pieces = kernels(dtype, machine())
    names = {address: name for piece in kernel.pieces for name, address in piece.addresses.items()}
    values = {w: f"ptrtoint (ptr @{names[v]} to i64)" if w in _CALLED and v else str(v) for w, v in words.items()}
    if words["K"] % words["k_block"] or words["N"] % pieces.panel:
        raise ValueError("only whole blocks and panels have constant depths and widths")
    computed, packs = pieces.compute_size, words["pack_all"]
    tile = {
        "%K": words["k_block"], "%a_k": words["a_k"], "%c_row": words["c_row"], "%width": pieces.panel,
        "%a_row": (words["k_block"] + pieces.lanes) * computed if words["pack_left"] else words["a_row"],
        "%b_row": pieces.panel * computed if packs else words["b_k"],
    }  # fmt: skip
    declarations, bodies = set(), []
    for piece in kernel.pieces:
        lines = piece.text.splitlines()
        declarations |= {line for line in lines if line.startswith("declare")}
        body = "\n".join(line for line in lines if not line.startswith("declare"))
        if any(f.name == "blocks" for f in piece.functions):
            loops, entries = body.split("\n}\n", 1)
            for i, word in enumerate(WORDS[: WORDS.index(PACKED)]):  # read by two lines: its address, then its value
                found = re.search(rf"  (%t\d+) = getelementptr i8, ptr %words, i64 {8 * i}\n", loops) if i else None
                place = found[1] if found else "%words"
                read = re.search(rf"  (%t\d+) = load i64, ptr {place}, align 8\n", loops)
                if read is None:
                    raise ValueError(f"the text of the loops does not read the word {word}")
                loops = substitute(loops.replace(read[0], "", 1), {read[1]: values[word]})
            body = f"{loops}\n}}\n{entries}"
        elif any(f.name.startswith("tile_") for f in piece.functions):
            head, rest = body.split("\n", 1)
            body = head + "\n" + substitute(rest, {name: str(value) for name, value in tile.items()})
        bodies.append(re.sub(r"define void @(?!matmul)", "define internal void @", body))
    return "\n".join([*sorted(declarations), *bodies, ""])


def folded(text: str, level: int) -> str:
    """The module after LLVM's middle-end: its whole pipeline of a level, or for level 0 the folding of constants alone."""
    on = machine()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(on.triple).create_target_machine(cpu=on.cpu, features=on.features, opt=3)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = on.triple, str(target.target_data)
    with llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=level)) as builder:
        if level:
            passes = builder.getModulePassManager()
        else:
            passes = llvm.create_new_module_pass_manager()
            passes.add_ipsccp_pass()
            passes.add_instruction_combine_pass()
            passes.add_simplify_cfg_pass()
            passes.add_global_dead_code_eliminate_pass()
        passes.run(module, builder)
    return str(module)


def launcher(address: int, kernel: MatmulKernel, places: dict[str, int], constants: tuple[int, ...]) -> Callable[[], None]:
    """A call that launches the product once."""
    recipe = Recipe(address, kernel.chunks, len(kernel.launch_order), constants)
    words = [places[name] for name in kernel.launch_order]
    return lambda: launch.launch(recipe.address, *words)


def measure(report: Report, n: int, dtype: DType, turns: int) -> None:
    """Check that constants change no bit of an n x n product, and time both."""
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((n, n)).astype(dtype.numpy) for _ in range(2))
    kernel = plan_matmul(dtype, 1, n, n, n, (0, n, 1), (0, n, 1), (0, n, 1))
    entry = entry_name(False, bool(kernel.workspace_bytes))
    text = constant_text(kernel, dtype)
    workspace = np.empty(kernel.workspace_bytes + 64, np.uint8)
    results, candidates = {}, {}
    texts = {"run-time": "", "constants": folded(text, 0), "constants -O3": folded(text, 3)}
    for name, folding in texts.items():
        results[name] = c = np.full((n, n), np.nan, dtype.numpy)
        places = {"A": a.ctypes.data, "B": b.ctypes.data, "C": c.ctypes.data, "workspace": -(-workspace.ctypes.data // 64) * 64}
        address = compile_functions(folding, [entry], machine())[0] if folding else kernel.function_address
        # The other texts hold their words; they are given others, so that a word still read shows in the result.
        candidates[name] = launcher(address, kernel, places, (0,) * len(WORDS) if folding else kernel.constants)
        candidates[name]()
        if not np.array_equal(c, results["run-time"]):
            report.fail(f"{n} {dtype.name}", f"'{name}' differs from the product of run-time sizes")
            return
    exact = a.astype(np.float64) @ b.astype(np.float64)
    if not np.allclose(results["run-time"], exact, rtol=0, atol=1e-6 * n):
        report.fail(f"{n} {dtype.name}", "the product is wrong")
        return
    taken = compare(candidates, turns, 0.01)
    ours = taken.pop("run-time")
    best = min(taken, key=lambda name: taken[name])
    report.add(f"{n} {dtype.name}", taken[best], ours, ", ".join(f"{k} {v * 1e6:.1f} us" for k, v in taken.items()))


def main() -> int:
    """Run the sizes; 1 where one is wrong or below the floor."""
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", default="float32", help="float32 (default) or float64; several by commas")
    options = parser.parse_args()
    pool.set_num_threads(1)
    report = Report("constant sizes over run-time sizes", peer="constants")
    for name in options.dtype.split(","):
        for n in selected([str(n) for n in SIZES], options.only):
            measure(report, int(n), getattr(dtypes, name), options.turns)
    return report.finish(options.floor, options.mean)


if __name__ == "__main__":
    sys.exit(main())
