"""Steps of matrix products: what is multiplied, what a product absorbs, and right operands that are packed beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorsmith.core import views
from tensorsmith.ir.graph import Node
from tensorsmith.kernels.assemble import Read, assemble_epilogue
from tensorsmith.kernels.epilogue import EXTRAS
from tensorsmith.passes.epilogues import results_place
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, NeedsBuffer
from tensorsmith.runtime.requests import (
    KernelStep,
    NoError,
    Request,
    Step,
)
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu.recipe import RELEASE_GIL, Recipe


def matmul_steps(fusion: Fusion, group: Group) -> list[Request]:
    anchor = group.anchor
    assert anchor is not None
    root = group.roots[0]
    located = [fusion.locate(operand) for operand in anchor.inputs]
    *batch_shape, M, K = anchor.inputs[0].shape
    N = anchor.inputs[1].shape[-1]
    batch = int(np.prod(batch_shape, dtype=np.int64)) if batch_shape else 1
    flat = []
    for operand, (_, seen) in zip(anchor.inputs, located):
        joined = views.reshape(seen, (batch, *seen.shape[-2:]))
        if joined is None:
            raise NeedsBuffer(operand)
        flat.append(joined)
    a, b = flat
    packed = anchor.attrs.get("packed", False)
    if not (b.strides[1] == 1 or b.strides[2] == 1 or K == 1 or N == 1):
        raise NeedsBuffer(anchor.inputs[1])
    if root.dtype.itemsize < 4 and root.dtype.kind == "f" and not (a.strides[1] == 1 or a.strides[2] == 1):
        raise NeedsBuffer(anchor.inputs[0])
    results = results_place(fusion, anchor, root) if group.absorbed else fusion.place(root)
    c = None if results is None else views.reshape(results, (batch, M, N))
    if c is None or (c.strides[2] != 1 and N > 1):
        raise NeedsBuffer(root)  # written contiguously, and copied from there
    names = [*(["bias"] if group.bias is not None else []), *(["relu"] if group.activation is Fn.RELU else [])]
    from tensorsmith.targets.cpu.gemm import plan_matmul

    body, beside = assemble_epilogue(fusion, group) if group.absorbed else (None, [])
    kernel = plan_matmul(
        anchor.dtype,
        batch,
        M,
        N,
        K,
        a.strides,
        b.strides,
        c.strides,
        epilogue=body or "_".join(names) or None,
        packed=packed,
    )
    size = anchor.dtype.itemsize
    where: dict[str, tuple[Node | None, int]] = {
        "A": (located[0][0], a.offset * size),
        "B": (located[1][0], b.offset * size),
        "C": (root, c.offset * size),
        "workspace": (None, 0),
    }
    if group.bias is not None:
        node, seen = fusion.locate(group.bias)
        where["bias"] = (node, seen.offset * size)
    if body is not None:
        where |= extra_words(where["C"], beside)
        names.append(absorbed_name(group))
    words = [where[name] for name in kernel.launch_order]
    bytes_moved = size * (batch * (M * K + K * N + M * N) + sum(read.node.numel for read in beside))
    long = kernel.flops > 1 << 22
    recipe = Recipe(kernel.function_address, kernel.chunks, len(words), kernel.constants, RELEASE_GIL if long else 0)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep("_".join(["matmul", *names]), recipe, sources, bytes_moved, kernel.flops, NoError("matmul"), kernel)

    return [Request(words, step, kernel.workspace_bytes)]


def extra_words(results: tuple[Node | None, int], beside: Sequence[Read]) -> dict[str, tuple[Node | None, int]]:
    """The launch words of an epilogue's body: the results again, and the operands beside them."""
    places = [(read.node, read.offset * read.node.dtype.itemsize) for read in beside]
    return dict(zip(EXTRAS, [results, *places, *[results] * len(EXTRAS)]))


def absorbed_name(group: Group) -> str:
    """The last function that a product computes of its results."""
    return str(group.roots[0].attrs["fn"].name.lower())


def packed_right(fusion: Fusion, group: Group) -> list[Request]:
    """The right operand of products, in the panels that they read."""
    from tensorsmith.targets.cpu.gemm import plan_packing

    root = group.roots[0]
    node, b = fusion.locate(root.inputs[0])
    if 1 not in b.strides:
        raise NeedsBuffer(root.inputs[0])
    K, N = root.shape
    kernel = plan_packing(root.dtype, K, N, b.strides)
    size, name = root.dtype.itemsize, "packed_right"
    where: dict[str, tuple[Node | None, int]] = {"B": (node, b.offset * size), "packed": (root, 0)}
    words = [where[word] for word in kernel.launch_order]
    recipe = Recipe(kernel.function_address, kernel.chunks, len(words), kernel.constants, RELEASE_GIL)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(name, recipe, sources, 2 * size * root.numel, 0, NoError(name), kernel)

    return [Request(words, step)]
