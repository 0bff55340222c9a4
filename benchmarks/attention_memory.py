"""Peak memory of attention as the sequence grows: linear here, since scores are never held.

    python benchmarks/attention_memory.py [--lengths 512,1024,2048,4096] [--heads 4] [--width 64] [--forward]

For every length a process of its own runs attention (and its gradient) once and prints by how much its peak memory rose over
what it held before; beside it what the scores of all heads would need, and the same for PyTorch. The last line is the growth
of the peak for a doubled length, at the end of the list: 2 is linear, 4 quadratic. The exit code is 1 where ours is above 2.3.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys


def peak() -> int:
    """Most memory this process ever held, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(library: str, length: int, heads: int, width: int, backward: bool) -> int:
    """KiB by which the peak rises; run in a fresh process."""
    if library == "torch":
        import torch as lib
    else:
        import tensorsmith as lib  # type: ignore[no-redef]
    attention = lib.nn.functional.scaled_dot_product_attention

    def run(n: int) -> None:
        q, k, v = (lib.randn(1, heads, n, width).requires_grad_(backward) for _ in range(3))
        y = attention(q, k, v)
        if backward:
            y.sum().backward()

    run(192 + length % 96)  # compiles the same kernels, and makes the pools
    before = peak()
    run(length)
    return peak() - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="512,1024,2048,4096")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--forward", action="store_true", help="without the gradient")
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "LENGTH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(measure(given.one[0], int(given.one[1]), given.heads, given.width, not given.forward))
        return 0
    lengths = [int(n) for n in given.lengths.split(",")]
    print(f"{'length':>8} {'ours MiB':>10} {'torch MiB':>10} {'scores MiB':>11}")
    found = []
    for length in lengths:
        row = []
        for library in ("tensorsmith", "torch"):
            command = [sys.executable, __file__, "--one", library, str(length), "--heads", str(given.heads)]
            command += ["--width", str(given.width), *(["--forward"] if given.forward else [])]
            row.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024)
        print(f"{length:>8} {row[0]:>10.1f} {row[1]:>10.1f} {given.heads * length * length * 4 / 2**20:>11.1f}")
        found.append(row[0])
    growth = (found[-1] / found[-2]) ** (1 / (lengths[-1] / lengths[-2] / 2)) if len(found) > 1 and found[-2] else 0.0
    print(f"growth for a doubled length: {growth:.2f}")
    return int(growth > 2.3)


if __name__ == "__main__":
    sys.exit(main())
