"""All operators of the package under vmap: a batched call gives what a loop over the examples gives, and so do gradients."""

from __future__ import annotations

import itertools
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.eager.operator import Operator, operators
from tensorsmith.ops.creation import array_of

sys.path.append(str(Path(__file__).parents[1] / "ops"))
import harness  # noqa: E402

NAMES = harness.names()
BATCH = 3


def batches(sample: harness.Sample) -> Iterator[tuple[bool, ...]]:
    """Which operands are batched: all tensors, and every tensor alone."""
    tensors = [isinstance(o, harness.Data) for o in sample.operands]
    yield tuple(tensors)
    if sum(tensors) > 1:
        for i, is_tensor in enumerate(tensors):
            if is_tensor:
                yield tuple(j == i for j in range(len(tensors)))


def examples(operator: Operator, sample: harness.Sample, flags: tuple[bool, ...]) -> list[list[Any]]:
    """Operands of every example as arrays; those that are not batched are the same."""
    random = np.random.default_rng(zlib.crc32(operator.name.encode()))
    rows = [harness.arrays(sample, ts.float64, harness.BASIC, random) for _ in range(BATCH)]
    return [[row[i] if flag else rows[0][i] for i, flag in enumerate(flags)] for row in rows]


def call(operator: Operator, sample: harness.Sample, operands: list[Any]) -> tuple[ts.Tensor, ...]:
    found = operator(*operands, **sample.attrs)
    return (found,) if isinstance(found, ts.Tensor) else tuple(found)


def over_examples(operator: Operator, sample: harness.Sample, rows: list[list[Any]], flags: tuple[bool, ...], axis: int = 0):
    """Operands with the batch at `axis`, and the mapped call on them."""
    stacked = [ts.tensor(np.stack([row[i] for row in rows], axis)) if flag else rows[0][i] for i, flag in enumerate(flags)]
    operands = [ts.tensor(x) if isinstance(x, np.ndarray) else x for x in stacked]
    dims = tuple(axis if flag else None for flag in flags)
    return operands, ts.vmap(lambda *xs: call(operator, sample, list(xs)), in_dims=dims)


@pytest.mark.parametrize("name", NAMES)
def test_batched_is_the_loop(name: str):
    operator = operators()[name]
    for sample in harness.samples(operator):
        for flags in batches(sample):
            if not any(flags):
                continue
            rows = examples(operator, sample, flags)
            loop = [call(operator, sample, [ts.tensor(x) if isinstance(x, np.ndarray) else x for x in row]) for row in rows]
            last = min(o.shape != () for o, flag in zip(sample.operands, flags) if flag)
            for axis in (0, 1) if last else (0,):
                operands, mapped = over_examples(operator, sample, rows, flags, axis)
                for number, found in enumerate(mapped(*operands)):
                    expected = np.stack([array_of(result[number]) for result in loop])
                    harness.compare(array_of(found), expected, f"result {number} of {name} {sample} batched {flags} at {axis}")


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_batched_calls(name: str):
    """Through the batched operation (a backward outside of vmap), and inside (vjp under vmap)."""
    operator = operators()[name]
    for sample, level in itertools.product(harness.samples(operator), ("outside", "inside")):
        flags = next(batches(sample))
        rows = examples(operator, sample, flags)
        wanted = [i for i, x in enumerate(rows[0]) if isinstance(x, np.ndarray) and x.dtype == np.float64]
        wanted = [i for i in wanted if i not in sample.unknown]
        if not wanted:
            continue
        expected = []
        seeds = None
        for row in rows:
            operands = [ts.tensor(x) if isinstance(x, np.ndarray) else x for x in row]
            for i in wanted:
                operands[i].requires_grad_()
            results = [r for r in call(operator, sample, operands) if r.requires_grad]
            if seeds is None:
                random = np.random.default_rng(5)
                seeds = [ts.tensor(random.uniform(-1, 1, r.shape)).to(r.dtype) for r in results]
            if not results:
                return
            expected.append(
                ts.autograd.grad(results, [operands[i] for i in wanted], seeds, allow_unused=True, materialize_grads=True)
            )
        operands, mapped = over_examples(operator, sample, rows, flags)
        if level == "outside":
            for i in wanted:
                operands[i].requires_grad_()
            results = [r for r in mapped(*operands) if r.requires_grad]
            spread = [ts.stack([seed] * BATCH) for seed in seeds]
            found = ts.autograd.grad(
                results, [operands[i] for i in wanted], spread, allow_unused=True, materialize_grads=True
            )
        else:
            found = ts.vmap(lambda *xs: pulled(operator, sample, xs, wanted, seeds), in_dims=tuple(
                0 if flag else None for flag in flags
            ))(*operands)  # fmt: skip
        for place, gradient in enumerate(found):
            right = np.stack([array_of(example[place]) for example in expected])
            harness.compare(array_of(gradient), right, f"gradient {place} of {name} {sample} {level} of vmap")


def pulled(operator: Operator, sample: harness.Sample, operands: Any, wanted: list[int], seeds: list[ts.Tensor]) -> Any:
    """Gradients of one example by `ts.func.vjp`."""

    def function(*chosen: ts.Tensor) -> tuple[ts.Tensor, ...]:
        given = list(operands)
        for i, x in zip(wanted, chosen):
            given[i] = x
        return tuple(r for r in call(operator, sample, given) if r.dtype.kind in "fc")

    _, pull = ts.func.vjp(function, *[operands[i] for i in wanted])
    return pull(tuple(seeds))


@pytest.mark.parametrize("name", NAMES)
def test_two_levels_with_gradients(name: str):
    """vmap of vmap, and the gradient of it: a batch of batched operations."""
    operator = operators()[name]
    sample = harness.samples(operator)[0]
    flags = next(batches(sample))
    wanted = [i for i, o in enumerate(sample.operands) if isinstance(o, harness.Data) and o.dtype is None]
    if not wanted or set(wanted) & set(sample.unknown):
        return
    rows = [examples(operator, sample, flags), examples(operator, sample, flags)[::-1]]
    once, twice = [], []
    for found, nested in ((once, False), (twice, True)):
        operands = [
            ts.tensor(np.stack([np.stack([row[i] for row in block]) for block in rows])) if flag else rows[0][0][i]
            for i, flag in enumerate(flags)
        ]
        for i in wanted:
            operands[i].requires_grad_()
        dims = tuple(0 if flag else None for flag in flags)
        mapped = ts.vmap(lambda *xs: call(operator, sample, list(xs)), in_dims=dims)
        if nested:
            results = ts.vmap(mapped, in_dims=dims)(*operands)
        else:
            blocks = [mapped(*[x[k] if flag else x for x, flag in zip(operands, flags)]) for k in range(2)]
            results = [ts.stack(parts) for parts in zip(*blocks)]
        found.extend(results)
        tracked = [r for r in results if r.requires_grad]
        if tracked:
            seeds = [ts.tensor(np.random.default_rng(2).uniform(-1, 1, r.shape)).to(r.dtype) for r in tracked]
            found.extend(ts.autograd.grad(
                tracked, [operands[i] for i in wanted], seeds, allow_unused=True, materialize_grads=True
            ))  # fmt: skip
    for number, (a, b) in enumerate(zip(twice, once, strict=True)):
        harness.compare(array_of(a.detach()), array_of(b.detach()), f"value {number} of {name} {sample}")
