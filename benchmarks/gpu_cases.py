"""The cases of `gpu.py`: what is computed here and in PyTorch on the same memory, how it is checked, how much work it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import gpu_models
import tensorsmith as ts
from training_models import perceptron

Call = Callable[[], Any]
F, TF = ts.nn.functional, torch.nn.functional


@dataclass
class Case:
    """One line of the table. `bytes` and `flops` are those of one call; `check()` gives the error, at most `tolerance`."""

    ours: Call
    theirs: dict[str, Call]
    check: Callable[[], float] | None = None
    tolerance: float = 1e-4
    bytes: float = 0.0
    flops: float = 0.0
    host: bool = False  # the host's time is measured
    over_link: bool = False  # the bytes go between host and device
    keep: list[Any] = field(default_factory=list)


@dataclass
class Place:
    """Where cases run. In a rehearsal sizes are divided and the device is the CPU."""

    device: str
    small: bool
    compiles: bool  # whether torch.compile takes part

    def size(self, n: int, least: int = 16) -> int:
        """A size of the table, or a small one."""
        return n if not self.small else max(least, min(n // 64, 64))

    def pair(self, *shape: int, dtype: str = "float32", grad: bool = False, scale: float = 1.0) -> tuple[Any, Any]:
        """One random tensor of both libraries, over one memory."""
        theirs = torch.randn(*shape, device=self.device, dtype=torch.float32).mul_(scale).to(getattr(torch, dtype))
        ours = ts.from_dlpack(theirs)
        return (ours.requires_grad_(), theirs.requires_grad_()) if grad else (ours, theirs)

    def peers(self, eager: Call, function: Callable[..., Any], *arguments: Any) -> dict[str, Call]:
        """PyTorch's ways to run it."""
        found = {"eager": eager}
        if self.compiles:
            compiled = torch.compile(function)
            found["compile"] = lambda: compiled(*arguments)
        return found


def as_torch(x: Any) -> Any:
    """Our tensor as PyTorch's, over the same memory."""
    if x.device.type == "cuda":
        ts.cuda.synchronize()
    return torch.from_dlpack(x.detach())


def error(ours: Any, theirs: Any) -> float:
    """The largest difference, over the largest value."""
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs), (len(ours), len(theirs))
        return max(error(a, b) for a, b in zip(ours, theirs))
    a, b = as_torch(ours), theirs.detach()
    assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, b.shape, a.dtype, b.dtype)
    if not torch.isfinite(a).all():
        return float("inf")
    parts = zip(a.reshape(-1).split(1 << 26), b.reshape(-1).split(1 << 26))
    return max((p.float() - q.float()).abs().max().item() for p, q in parts) / max(b.abs().max().item(), 1e-30)


def allow_tf32(allowed: bool) -> None:
    """Let float32 products of both libraries use TF32, or not."""
    for lib in (ts, torch):
        lib.set_float32_matmul_precision("high" if allowed else "highest")


HALF = {"bfloat16": 1.6e-2, "float16": 4e-3, "float32": 1e-4}
ITEM = {"bfloat16": 2, "float16": 2, "float32": 4}


# --- memory-bound -----------------------------------------------------------------------------------------------------


def copy(place: Place) -> Case:
    a, ta = place.pair(place.size(1 << 28))
    b, tb = ts.empty_like(a), torch.empty_like(ta)
    return Case(
        lambda: b.copy_(a), {"eager": lambda: tb.copy_(ta)}, lambda: error(b.copy_(a), ta), 0.0, bytes=2 * 4 * ta.numel()
    )


def gelu_of_scaled(dtype: str, tensors: bool) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        n = place.size(1 << 28)
        x, tx = place.pair(n, dtype=dtype)
        if not tensors:
            run = ts.compile(lambda x: F.gelu(x * 0.7 + 0.3))
            arguments, theirs = (x,), (tx,)
            function: Callable[..., Any] = lambda x: TF.gelu(x * 0.7 + 0.3)  # noqa: E731
        else:
            (a, ta), (b, tb) = place.pair(n, dtype=dtype), place.pair(n, dtype=dtype)
            run = ts.compile(lambda x, a, b: F.gelu(a * x + b))
            arguments, theirs = (x, a, b), (tx, ta, tb)
            function = lambda x, a, b: TF.gelu(a * x + b)  # noqa: E731
        moved = (len(arguments) + 1) * n * ITEM[dtype]
        return Case(
            lambda: run(*arguments), place.peers(lambda: function(*theirs), function, *theirs),
            lambda: error(run(*arguments), function(*theirs)), HALF[dtype], bytes=moved,
        )  # fmt: skip

    return build


def swish_both_ways(dtype: str) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        n = place.size(1 << 28)
        (x, tx), (g, tg) = place.pair(n, dtype=dtype), place.pair(n, dtype=dtype)

        def function(lib: Any, x: Any, g: Any) -> Any:
            x = x.detach().requires_grad_()
            y = lib.nn.functional.silu(x)
            (gradient,) = lib.autograd.grad(y, x, g)
            return y, gradient

        run = ts.compile(lambda x, g: function(ts, x, g))
        return Case(
            lambda: run(x, g), {"eager": lambda: function(torch, tx, tg)},
            lambda: error(tuple(run(x, g)), function(torch, tx, tg)), HALF[dtype], bytes=4 * n * ITEM[dtype],
        )  # fmt: skip

    return build


def softmax(dtype: str, rows: int, columns: int, dim: int) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        x, tx = place.pair(place.size(rows), place.size(columns), dtype=dtype)
        return Case(
            lambda: F.softmax(x, dim), place.peers(lambda: TF.softmax(tx, dim), lambda t: TF.softmax(t, dim), tx),
            lambda: error(F.softmax(x, dim), TF.softmax(tx, dim)), HALF[dtype], bytes=2 * tx.numel() * ITEM[dtype],
        )  # fmt: skip

    return build


def layer_norm(dtype: str, backward: bool) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        rows, width = place.size(65536), place.size(1024)
        x, tx = place.pair(rows, width, dtype=dtype)
        (w, tw), (b, tb) = place.pair(width, dtype=dtype), place.pair(width, dtype=dtype)
        if not backward:

            def normalised(x: Any, w: Any, b: Any) -> Any:
                return TF.layer_norm(x, (width,), w, b)

            return Case(
                lambda: F.layer_norm(x, (width,), w, b),
                place.peers(lambda: normalised(tx, tw, tb), normalised, tx, tw, tb),
                lambda: error(F.layer_norm(x, (width,), w, b), normalised(tx, tw, tb)), HALF[dtype],
                bytes=2 * tx.numel() * ITEM[dtype],
            )  # fmt: skip
        g, tg = place.pair(rows, width, dtype=dtype)

        def function(lib: Any, x: Any, w: Any, b: Any, g: Any) -> Any:
            x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
            y = lib.nn.functional.layer_norm(x, (width,), w, b)
            return (y, *lib.autograd.grad(y, (x, w, b), g))

        run = ts.compile(lambda x, w, b, g: function(ts, x, w, b, g))
        return Case(
            lambda: run(x, w, b, g), {"eager": lambda: function(torch, tx, tw, tb, tg)},
            lambda: error(tuple(run(x, w, b, g)), function(torch, tx, tw, tb, tg)), 2 * HALF[dtype],
            bytes=5 * tx.numel() * ITEM[dtype],  # x twice or kept, y, g, dx
        )  # fmt: skip

    return build


def sum_all(dtype: str) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        n = place.size((1 << 30) // ITEM[dtype])
        x, tx = place.pair(n, dtype=dtype)
        norm = tx.float().norm().item()

        def check() -> float:
            return abs(as_torch(x.sum()).double().item() - tx.double().sum().item()) / norm

        return Case(
            lambda: x.sum(), place.peers(lambda: tx.sum(), lambda t: t.sum(), tx), check, 0.05, bytes=n * ITEM[dtype]
        )

    return build


# --- products ---------------------------------------------------------------------------------------------------------


def product(dtype: str, n: int, tf32: bool = False) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        m = place.size(n)
        (a, ta), (b, tb) = place.pair(m, m, dtype=dtype), place.pair(m, m, dtype=dtype)
        allow_tf32(tf32)

        def check() -> float:
            return error(a @ b, (ta.double() @ tb.double()).to(ta.dtype))

        tolerance = {"bfloat16": 8e-3, "float16": 2e-3, "float32": 2e-3 if tf32 else 1e-5}[dtype]
        return Case(lambda: a @ b, {"cuBLAS": lambda: ta @ tb}, check, tolerance, flops=2.0 * m**3)

    return build


def gelu_of_linear(place: Place) -> Case:
    rows, inside, outside = place.size(8192), place.size(4096), place.size(16384)
    x, tx = place.pair(rows, inside, dtype="bfloat16")
    w, tw = place.pair(outside, inside, dtype="bfloat16", scale=0.02)
    b, tb = place.pair(outside, dtype="bfloat16")
    run = ts.compile(lambda x, w, b: F.gelu(F.linear(x, w, b)))

    def function(x: Any, w: Any, b: Any) -> Any:
        return TF.gelu(TF.linear(x, w, b))

    return Case(
        lambda: run(x, w, b), place.peers(lambda: function(tx, tw, tb), function, tx, tw, tb),
        lambda: error(run(x, w, b), function(tx, tw, tb)), 1.6e-2, flops=2.0 * rows * inside * outside,
    )  # fmt: skip


def attention(width: int, backward: bool) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        batch, heads, length = 4, 16, place.size(4096)
        shape = batch, heads, length, width
        (q, tq), (k, tk), (v, tv), (g, tg) = (place.pair(*shape, dtype="bfloat16") for _ in range(4))
        forward = 2.0 * batch * heads * length * length * width  # 4 n^2 d, half of it for a causal mask

        def sdpa(lib: Any, q: Any, k: Any, v: Any) -> Any:
            return lib.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        kernels = torch.nn.attention.SDPBackend

        def by(kernel: Any, call: Call) -> Call:
            def run() -> Any:
                with torch.nn.attention.sdpa_kernel(kernel):
                    return call()

            return run

        if not backward:
            peers: dict[str, Call] = {"default": lambda: sdpa(torch, tq, tk, tv)}
            if place.device == "cuda":
                peers["FlashAttention-2"] = by(kernels.FLASH_ATTENTION, peers["default"])
            return Case(
                lambda: sdpa(ts, q, k, v), peers, lambda: error(sdpa(ts, q, k, v), sdpa(torch, tq, tk, tv)), 2e-2,
                flops=forward,
            )  # fmt: skip
        ours = [t.detach().requires_grad_() for t in (q, k, v)]
        theirs = [t.detach().requires_grad_() for t in (tq, tk, tv)]
        y, ty = sdpa(ts, *ours), sdpa(torch, *theirs)
        peers = {"default": lambda: torch.autograd.grad(ty, theirs, tg, retain_graph=True)}
        if place.device == "cuda":
            with torch.nn.attention.sdpa_kernel(kernels.FLASH_ATTENTION):
                flash = sdpa(torch, *theirs)
            peers["FlashAttention-2"] = lambda: torch.autograd.grad(flash, theirs, tg, retain_graph=True)
        return Case(
            lambda: ts.autograd.grad(y, ours, g, retain_graph=True), peers,
            lambda: error(ts.autograd.grad(y, ours, g, retain_graph=True), peers["default"]()), 4e-2, flops=2.5 * forward,
        )  # fmt: skip

    return build


# --- training steps ---------------------------------------------------------------------------------------------------


def training(
    place: Place, build: Callable[[Any], Any], x: Any, y: Any, optimizer: Any, options: dict[str, Any], tolerance: float,
    autocast: bool = False, convert: Callable[[Any, Any], Any] = lambda lib, model: model,
) -> Case:  # fmt: skip
    """Our compiled step beside PyTorch's as a graph, from the same weights."""
    torch.manual_seed(0)
    model = convert(torch, build(torch.nn).to(place.device))
    mine = gpu_models.as_theirs(convert(ts, build(ts.nn).to(place.device)), model)
    capturable = {"capturable": True, "fused": True} if optimizer is torch.optim.AdamW and place.device == "cuda" else {}
    theirs = gpu_models.step_of(
        torch, model, x, y, optimizer(model.parameters(), **options, **capturable), autocast, place.device
    )
    own = getattr(ts.optim, optimizer.__name__)(mine.parameters(), **options)
    step = ts.compile(gpu_models.step_of(ts, mine, ts.from_dlpack(x), ts.from_dlpack(y), own, autocast, place.device))

    def check() -> float:
        """Losses of the first steps, both eager and compiled count."""
        found = [(float(as_torch(step())), float(theirs())) for _ in range(4)]
        return max(abs(a - b) / max(abs(b), 1e-6) for a, b in found)

    graph: list[Call] = []

    def peer() -> Any:
        if not graph:
            graph.append(gpu_models.captured(theirs, place.device))
        return graph[0]()

    return Case(step, {"graph": peer}, check, tolerance)


def mlp(optimizer: str) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        torch.manual_seed(1)
        x, y = torch.randn(64, 784, device=place.device), torch.randint(0, 10, (64,), device=place.device)
        kind = getattr(torch.optim, optimizer)
        options = {"lr": 0.1} if optimizer == "SGD" else {"lr": 1e-3}
        return training(place, perceptron(784, 256, 256, 10), x, y, kind, options, 1e-3)

    return build


def resnet(place: Place) -> Case:
    batch = 512 if not place.small else 4
    torch.manual_seed(1)
    x = torch.randn(batch, 3, 32, 32, device=place.device).bfloat16().contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), device=place.device)

    def convert(lib: Any, model: Any) -> Any:
        return model.to(lib.bfloat16).to(memory_format=lib.channels_last)

    width = 64 if not place.small else 8
    return training(
        place, lambda nn: gpu_models.resnet18(nn, width), x, y, torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}, 0.05,
        convert=convert,
    )  # fmt: skip


def gpt(place: Place) -> Case:
    batch, length, words = (8, 1024, 50304) if not place.small else (2, 16, 64)
    width, heads, layers = (768, 12, 12) if not place.small else (32, 4, 2)
    torch.manual_seed(1)
    tokens = torch.randint(0, words, (batch, length), device=place.device)
    targets = torch.randint(0, words, (batch * length,), device=place.device)
    return training(
        place, lambda nn: gpu_models.gpt2(nn, words, length, width, heads, layers), tokens, targets, torch.optim.AdamW,
        {"lr": 1e-4}, 0.03, autocast=True,
    )  # fmt: skip


# --- the host ---------------------------------------------------------------------------------------------------------


def launch(what: str) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        x, tx = place.pair(64, 64)
        w, tw = place.pair(64, 64, grad=True)
        ours, theirs = {
            "x * x": (lambda: x * x, lambda: tx * tx), "x + 1": (lambda: x + 1, lambda: tx + 1),
            "x.add_(1)": (lambda: x.add_(1), lambda: tx.add_(1)), "w * w with gradient": (lambda: w * w, lambda: tw * tw),
            "x @ x": (lambda: x @ x, lambda: tx @ tx), "softmax": (lambda: x.softmax(-1), lambda: tx.softmax(-1)),
            "sum": (lambda: x.sum(), lambda: tx.sum()),
        }[what]  # fmt: skip
        return Case(ours, {"eager": theirs}, lambda: error(ours(), theirs()) if what != "x.add_(1)" else 0.0, 1e-3, host=True)

    return build


def pinned(to_device: bool) -> Callable[[Place], Case]:
    def build(place: Place) -> Case:
        n = place.size(1 << 26)
        host, theirs_host = ts.randn(n), torch.randn(n)
        if place.device == "cuda":
            host, theirs_host = host.pin_memory(), theirs_host.pin_memory()
        device, theirs_device = ts.randn(n, device=place.device), torch.randn(n, device=place.device)
        mine = (device, host) if to_device else (host, device)
        other = (theirs_device, theirs_host) if to_device else (theirs_host, theirs_device)

        def ours() -> Any:
            return mine[0].copy_(mine[1], non_blocking=True)

        def theirs() -> Any:
            return other[0].copy_(other[1], non_blocking=True)

        def check() -> float:
            ours()
            if place.device == "cuda":
                ts.cuda.synchronize()
            return float((host - device.cpu()).abs().max().item())

        return Case(ours, {"eager": theirs}, check, 0.0, bytes=4.0 * n, over_link=True)

    return build


def cases() -> Iterator[tuple[str, Callable[[Place], Case]]]:
    """Name and builder of every case, in the order of the table."""
    yield "copy 1 GiB", copy
    for dtype in ("float32", "bfloat16"):
        yield f"gelu(a*x+b) scalars {dtype}", gelu_of_scaled(dtype, False)
        yield f"gelu(A*x+B) tensors {dtype}", gelu_of_scaled(dtype, True)
        yield f"swish forward and backward {dtype}", swish_both_ways(dtype)
    for dtype in ("float32", "bfloat16"):
        for rows, columns in ((8192, 8192), (65536, 1024)):
            for dim in (1, 0):
                yield f"softmax ({rows}, {columns}) dim {dim} {dtype}", softmax(dtype, rows, columns, dim)
    yield "layer_norm (65536, 1024) forward bfloat16", layer_norm("bfloat16", False)
    yield "layer_norm (65536, 1024) forward and backward bfloat16", layer_norm("bfloat16", True)
    yield "sum 1 GiB float32", sum_all("float32")
    yield "sum 1 GiB bfloat16", sum_all("bfloat16")
    for n in (1024, 2048, 4096, 8192):
        yield f"matmul {n} bfloat16", product("bfloat16", n)
    for n in (2048, 4096):
        yield f"matmul {n} float16", product("float16", n)
    for n in (1024, 4096, 8192):
        yield f"matmul {n} float32", product("float32", n)
        yield f"matmul {n} tf32", product("float32", n, tf32=True)
    yield "gelu(linear) 8192x4096x16384 bfloat16", gelu_of_linear
    for width in (64, 128):
        yield f"attention causal d{width} forward bfloat16", attention(width, False)
        yield f"attention causal d{width} backward bfloat16", attention(width, True)
    for what in ("x * x", "x + 1", "x.add_(1)", "sum", "softmax", "w * w with gradient", "x @ x"):
        yield f"launch {what}", launch(what)
    yield "pinned host to device 256 MiB", pinned(True)
    yield "pinned device to host 256 MiB", pinned(False)
    yield "training MLP batch 64 SGD", mlp("SGD")
    yield "training MLP batch 64 AdamW", mlp("AdamW")
    yield "training ResNet-18 batch 512 bfloat16", resnet
    yield "training GPT-2-small 8x1024 autocast", gpt
