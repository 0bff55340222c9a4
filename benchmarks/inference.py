"""Inference of whole models: ours compiled, beside PyTorch eager, torch.compile and ONNX Runtime, with the same weights.

Each model is defined once (`inference_models.py`) and its outputs are compared before anything is measured. ONNX Runtime
runs what PyTorch exports. The ratio is the peer's time over ours: above 1 we are faster. Peers that are not installed, or do
not run here, are named and left out. `--kernels` lists, for each model, our slowest products and convolutions beside ONNX
Runtime's for the same work.

    python benchmarks/inference.py --only resnet18,vit --batch 1 --threads 1
    python benchmarks/inference.py --only resnet18 --kernels
"""

from __future__ import annotations

import io
import json
import os
import statistics
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tensorsmith as ts
from inference_models import MODELS, TOKENS, WORDS
from timing import compare, make_parser, selected

PEERS = ("eager", "inductor", "onnxruntime")
TOLERANCE = 2e-3  # of the largest output; the peers differ from each other by as much


def built(name: str, batch: int) -> tuple[torch.nn.Module, Any, np.ndarray]:
    """PyTorch's model, ours with the same weights, and an input."""
    torch.manual_seed(0)
    theirs, ours = MODELS[name](torch.nn).eval(), MODELS[name](ts.nn).eval()
    for module in theirs.modules():  # statistics as after training, so that normalisation does something
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    ours.load_state_dict({key: ts.from_numpy(value.numpy()) for key, value in theirs.state_dict().items()})
    random = np.random.default_rng(0)
    if name.startswith("encoder"):
        return theirs, ours, random.integers(0, WORDS, (batch, TOKENS))
    return theirs, ours, random.standard_normal((batch, 3, 224, 224), dtype=np.float32)


def onnx_session(model: torch.nn.Module, x: torch.Tensor, threads: int, profile: str | None = None) -> Any:
    """ONNX Runtime's session for the exported model."""
    import onnxruntime

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), file, opset_version=17, dynamo=False, input_names=["x"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])


def candidates(name: str, batch: int, threads: int, peers: set[str]) -> dict[str, Callable[[], Any]]:
    """What is measured, each checked against PyTorch's eager output."""
    theirs, ours, array = built(name, batch)
    x, y = torch.from_numpy(array), ts.from_numpy(array)
    compiled = ts.compile(ours)

    def run_ours() -> Any:
        with ts.no_grad():
            return compiled(y)

    found: dict[str, Callable[[], Any]] = {"eager": torch.no_grad()(lambda: theirs(x)), "ours": run_ours}
    if "inductor" in peers:
        try:
            fast = torch.compile(theirs)
            with torch.no_grad():
                fast(x)
            found["inductor"] = torch.no_grad()(lambda: fast(x))
        except Exception as error:  # its compiler is not there, or refuses
            print(f"torch.compile does not run here: {str(error).splitlines()[0]}")
    if "onnxruntime" in peers:
        try:
            session = onnx_session(theirs, x, threads)
            found["onnxruntime"] = lambda: session.run(None, {"x": array})[0]
        except ImportError as error:
            print(f"ONNX Runtime does not run here: {error}")
    wanted = found["eager"]().numpy()
    for peer, call in found.items():
        result = call()
        got = result if isinstance(result, np.ndarray) else result.numpy()
        worst = float(np.abs(got - wanted).max() / np.abs(wanted).max())
        if not worst < TOLERANCE:
            raise SystemExit(f"{name}, batch {batch}: {peer} differs from PyTorch by {worst:.1e} of the largest output")
    return found


# --- kernels beside those of ONNX Runtime ----------------------------------------------------------------------------------


def _work(event: dict[str, Any]) -> int:
    """Operations of a product or convolution from the shapes that ONNX Runtime's profile states; 0 for anything else."""
    kind = event["args"].get("op_name", "")
    inputs = [next(iter(each.values())) for each in event["args"].get("input_type_shape", [])]
    outputs = [next(iter(each.values())) for each in event["args"].get("output_type_shape", [])]
    if not outputs or len(inputs) < 2:
        return 0
    if "Conv" in kind:
        return 2 * int(np.prod(outputs[0])) * int(np.prod(inputs[1][1:]))
    if "MatMul" in kind or "Gemm" in kind:
        inner = inputs[0][-1]
        return 2 * int(np.prod(outputs[0])) * inner
    return 0


def kernels(name: str, batch: int, threads: int, rows: int = 8) -> None:
    """Times of our steps by name, and the products and convolutions where ONNX Runtime is furthest ahead."""
    theirs, ours, array = built(name, batch)
    compiled, y, runs = ts.compile(ours), ts.from_numpy(array), 7
    by_work: dict[int, list[tuple[str, float]]] = defaultdict(list)
    by_name: dict[str, float] = defaultdict(float)
    with ts.no_grad():
        compiled(y)
        profiles = []
        for _ in range(runs):
            with ts.profiler.profile() as prof:
                compiled(y)
            profiles.append([event for event in prof.recorded if event.category == "kernel"])
    for events in zip(*profiles):
        seconds = statistics.median(event.seconds for event in events)
        kernel = events[0].name
        by_name[kernel] += seconds
        if any(word in kernel for word in ("matmul", "conv", "winograd", "depthwise")):
            by_work[events[0].flops].append((kernel, seconds))
    peer_work: dict[int, list[float]] = defaultdict(list)
    peer_name: dict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder:
        session = onnx_session(theirs, torch.from_numpy(array), threads, os.path.join(folder, "profile"))
        for _ in range(runs):
            session.run(None, {"x": array})
        with open(session.end_profiling(), encoding="utf-8") as file:
            events = [e for e in json.load(file) if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    each: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        each[event["name"]].append(event)
    for same in each.values():
        seconds = statistics.median(event["dur"] for event in same) * 1e-6
        peer_name[same[0]["args"]["op_name"]] += seconds
        if _work(same[0]):
            peer_work[_work(same[0])].append(seconds)
    print(f"\n{name}, batch {batch}, threads {threads}: our steps by name, and ONNX Runtime's nodes by kind, ms")
    for title, found in (("ours", by_name), ("onnxruntime", peer_name)):
        largest = sorted(found.items(), key=lambda item: -item[1])[:rows]
        print(f"  {title:12s} {sum(found.values()) * 1e3:8.2f}  " + ", ".join(f"{k} {v * 1e3:.2f}" for k, v in largest))
    lines = []
    for work, found in by_work.items():
        if len(peer_work[work]) == len(found):
            mine, other = sum(seconds for _, seconds in found), sum(peer_work[work])
            lines.append((other - mine, work, found, mine, other))
    print("  products and convolutions of the same work, those we lose most in first:")
    for _, work, found, mine, other in sorted(lines, key=lambda line: line[0])[:rows]:
        names = ", ".join(sorted({kernel for kernel, _ in found}))
        print(
            f"    {len(found):2d} x {work / 1e6:9.2f} MFLOP  ours {mine * 1e3:8.3f} ms  onnxruntime {other * 1e3:8.3f} ms  "
            f"ratio {other / mine:5.2f}  {names}"
        )
    unmatched = {kernel for work, found in by_work.items() if len(peer_work[work]) != len(found) for kernel, _ in found}
    if unmatched:
        print(f"    no node of equal work: {', '.join(sorted(unmatched))}")


def main() -> int:
    """Measure what was asked for and print ratios and their geometric means."""
    parser = make_parser(__doc__)
    parser.add_argument("--batch", default="1,8", help="batch sizes (default 1,8)")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"beside eager: of {', '.join(PEERS)}")
    parser.add_argument("--kernels", action="store_true", help="list our slowest kernels beside ONNX Runtime's instead")
    options = parser.parse_args()
    ts.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    names, batches = selected(MODELS, options.only), [int(n) for n in options.batch.split(",")]
    if options.kernels:
        for name in names:
            for batch in batches:
                kernels(name, batch, options.threads)
        return 0
    ratios: dict[str, list[float]] = defaultdict(list)
    low = False
    for name in names:
        for batch in batches:
            calls = candidates(name, batch, options.threads, set(options.peers.split(",")))
            times = compare(calls, turns=options.turns, threads=options.threads)
            texts = [f"{name:13s} batch {batch}  ours {times['ours'] * 1e3:8.2f} ms"]
            for peer in (p for p in PEERS if p in times):
                ratios[peer].append(times[peer] / times["ours"])
                texts.append(f"{peer} {times[peer] * 1e3:8.2f} ms ratio {ratios[peer][-1]:5.2f}")
                low = low or (options.floor is not None and ratios[peer][-1] < options.floor)
            print("   ".join(texts), flush=True)
    means = {peer: statistics.geometric_mean(found) for peer, found in ratios.items()}
    print("geometric means: " + ", ".join(f"{peer} {mean:.2f}" for peer, mean in means.items()))
    return int(low or (options.mean is not None and any(mean < options.mean for mean in means.values())))


if __name__ == "__main__":
    sys.exit(main())
