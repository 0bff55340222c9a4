"""NVRTC on the texts that a run of the emulated device kept (EMULATED_KEEP): what runs there must compile for devices.

    EMULATED_KEEP=folder pytest tests/ops/test_operators.py --device cuda-emulated
    python tests/emulator/compile_kept.py folder --most 60

Every architecture gets the same texts, evenly taken from all; what a text asks of an architecture is known by its instructions.
"""

from __future__ import annotations

import argparse
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tensorsmith.targets.cuda.compile import CudaCompileError, compile_cubin

ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")
NEEDS = {
    "sm_80": re.compile(r"\bbf16|\.tf32|cp\.async|m16n8k16|__reduce_\w+_sync"),
    "sm_90a": re.compile(r"wgmma|mbarrier|cp\.async\.bulk|stmatrix|setmaxnreg|\.cluster\b|tensormap"),
}


def runs_on(text: str, architecture: str) -> bool:
    """Whether the instructions of a text exist on an architecture."""
    number = int(architecture.removeprefix("sm_").rstrip("a"))
    return all(number >= int(least.removeprefix("sm_").rstrip("a")) or not used.search(text) for least, used in NEEDS.items())


def check(path: Path, architecture: str) -> str:
    """The compiler's message, or "" where it has none."""
    try:
        compile_cubin(path.read_text(), path.stem, architecture)
    except CudaCompileError as error:
        return f"{path.name} for {architecture}:\n{error.log}"
    return ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=10**6, help="so many texts at most")
    options = parser.parse_args(arguments)
    kept = sorted(options.folder.glob("*.cu"))
    if not kept:
        print(f"no texts in {options.folder}")
        return 1
    step = max(1, -(-len(kept) // options.most))
    jobs = [(path, a) for path in kept[::step] for a in ARCHITECTURES if runs_on(path.read_text(), a)]
    with ThreadPoolExecutor(2) as pool:
        messages = [m for m in pool.map(lambda job: check(*job), jobs) if m]
    for message in messages:
        print(message)
    print(f"{len(jobs)} compilations of {len(kept[::step])} of {len(kept)} texts, {len(messages)} refused")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
