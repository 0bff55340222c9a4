"""Here and in PyTorch on one GPU, in one process, in turn: memory-bound kernels, products, attention, training steps, launches.

    python benchmarks/gpu.py --quick
    python benchmarks/gpu.py --only "matmul|attention" --json gpu.json
    python benchmarks/gpu.py --rehearse            # on the CPU with small sizes: whether every case runs and is right

Every case is checked before it is timed; one that fails prints why, and the rest goes on. A line is

    case    ours    peer ...    ratio of the fastest peer's time to ours    GB/s and its fraction of the copy's, or TFLOP/s

Peers are PyTorch's eager operators (`--peer-compile`: torch.compile too), cuBLAS for products, FlashAttention-2 and what
PyTorch chooses for attention, and for training steps PyTorch's step as one CUDA graph.
(The name `cuda.py` would hide NVIDIA's package `cuda` from every program of this folder.)
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
import time
from typing import Any

import torch

import tensorsmith as ts
from gpu_cases import Case, Place, allow_tf32, cases
from gpu_timing import measure, wait


def run(name: str, case: Case, place: Place, turns: int, shortest: float, copy: float | None) -> dict[str, Any]:
    """Check and time a case; what was found."""
    found: dict[str, Any] = {"case": name}
    if case.check is not None:
        found["error"] = case.check()
        if not found["error"] <= case.tolerance:
            raise AssertionError(f"error {found['error']:.3g}, at most {case.tolerance:.3g} is right")
    candidates = {"ours": (ts, case.ours), **{peer: (torch, call) for peer, call in case.theirs.items()}}
    found["ms"] = times = measure(candidates, place.device, turns, shortest, case.host)
    peers = {peer: ms for peer, ms in times.items() if peer != "ours"}
    found["ratio"] = min(peers.values()) / times["ours"]
    if case.bytes:
        found["GB/s"] = case.bytes / times["ours"] / 1e6
        if copy is not None and not case.over_link:
            found["of copy"] = found["GB/s"] / copy
    if case.flops:
        found["TFLOP/s"] = case.flops / times["ours"] / 1e9
    return found


def line(found: dict[str, Any]) -> str:
    """One line of the table."""

    def duration(ms: float) -> str:
        return f"{ms * 1e3:.2f} us" if ms < 1 else f"{ms:.3f} ms"

    times = "  ".join(f"{who} {duration(ms)}" for who, ms in found["ms"].items())
    rates = ""
    if "GB/s" in found:
        rates = f"{found['GB/s']:.0f} GB/s" + (f" ({found['of copy']:.2f} of copy)" if "of copy" in found else "")
    if "TFLOP/s" in found:
        rates = f"{found['TFLOP/s']:.1f} TFLOP/s"
    return f"{found['case']:52s} {times}  ratio {found['ratio']:.2f}  {rates}  error {found.get('error', 0):.1e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name this regular expression finds")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples")
    parser.add_argument("--peer-compile", action="store_true", help="torch.compile as a peer too, which takes long")
    parser.add_argument("--json", default=None, help="write what was found to this file")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so many seconds")
    parser.add_argument("--rehearse", action="store_true", help="small sizes on the CPU")
    options = parser.parse_args()
    device = "cpu" if options.rehearse else "cuda"
    if device == "cuda" and not (ts.cuda.is_available() and torch.cuda.is_available()):
        print("no CUDA device; --rehearse runs small sizes on the CPU")
        return 1
    if options.rehearse:
        torch.set_num_threads(1)
    place = Place(device, options.rehearse, options.peer_compile)
    turns, shortest = (3, 0.2) if options.rehearse else (5, 2.0) if options.quick else (11, 5.0)
    names = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{names}, torch {torch.__version__}, tensorsmith {ts.__version__}", flush=True)
    start, copy, results, wrong = time.perf_counter(), None, [], 0
    for name, build in cases():
        if name != "copy 1 GiB" and options.only and not re.search(options.only, name):
            continue
        if time.perf_counter() - start > options.seconds:
            print(f"{name:52s} not begun: {options.seconds:.0f} s are over", flush=True)
            continue
        try:
            case = build(place)
            found = run(name, case, place, turns, shortest, copy)
        except Exception as problem:  # noqa: BLE001 - printed, and the rest goes on
            wrong += 1
            text = str(problem).strip().split("\n")[0]
            print(f"{name:52s} FAILED {type(problem).__name__}: {text[:160]}", flush=True)
            results.append({"case": name, "failed": f"{type(problem).__name__}: {problem}"})
            continue
        finally:
            case = None  # type: ignore[assignment]
            allow_tf32(False)
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
                ts.cuda.empty_cache()
        if name == "copy 1 GiB":
            copy = max(found["GB/s"], found["GB/s"] * found["ratio"] ** -1)
        results.append(found)
        print(line(found), flush=True)
    wait(device)
    print(f"{len(results)} cases, {wrong} failed, {time.perf_counter() - start:.0f} s")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": names, "torch": torch.__version__, "results": results}, file, indent=1)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
