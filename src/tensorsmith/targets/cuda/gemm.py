"""Matrix products on CUDA: the launches of a spec.

`lower_gemm` is arithmetic on shapes and strides; the texts depend on structure alone. The ladder, fastest first, of which
`gemm_choice.py` takes the first that takes a product:

* wgmma: halves and tf32 on Hopper, operands through tensor maps (`gemm_wgmma.py`), copied first (`gemm_copy.py`) where
  they do not fit those and the product is large;
* mma:   halves from sm_80 on, any strides (`gemm_mma.py`);
* tiled: 4- and 8-byte elements, in tf32 where that is allowed (`gemm_tiled.py`);
* naive: everything (`gemm_naive.py`).
"""

from __future__ import annotations

from dataclasses import replace

from tensorsmith.kernels.spec_gemm import GemmSpec, Strides
from tensorsmith.targets.cuda import gemm_wgmma
from tensorsmith.targets.cuda.gemm_choice import Choice, choose, is_worth_copying
from tensorsmith.targets.cuda.gemm_copy import Copied, copied
from tensorsmith.targets.cuda.gemm_mma import MmaTile, mma_launch
from tensorsmith.targets.cuda.gemm_naive import naive_launch
from tensorsmith.targets.cuda.gemm_sum import sum_launch
from tensorsmith.targets.cuda.gemm_tiled import Tile, tiled_launch
from tensorsmith.targets.cuda.gemm_wgmma import WgmmaTile, wgmma_launch
from tensorsmith.targets.cuda.kernel import Argument, DeviceProperties, Launch, Lowered, TensorMap, Word


def lower_gemm(spec: GemmSpec, properties: DeviceProperties, choice: Choice | None = None) -> Lowered:
    """The launches of a batch of products; words: A, B, C, then the operands beside the results.

    choice: the kernel and its tile for the operands as they lie, instead of what `choose` says
    Errors: NotImplementedError for a dtype without products (bool, complex).
    """
    words = 3 + len(spec.beside)
    if spec.results == 0:
        return Lowered("matmul", (), words)
    spec = _without_unused_strides(spec)
    exchanged = spec.c[3] != 1 and spec.c[2] == 1 and spec.M > 1
    if exchanged:  # results lie side by side along columns: the transposed product stores rows
        spec = spec.transposed()
    moved, flops = spec.bytes_moved, spec.flops
    spec = _with_fewer_batches(spec)
    copies: tuple[Copied, ...] = ()
    places = {0: 1, 1: 0} if exchanged else {}
    if choice is None and is_worth_copying(spec, properties):
        spec, copies, places = _with_copies(spec, words, places)
    choice = choice or choose(spec, properties)
    launches, scratch = _launches(spec, properties, choice, words + len(copies))
    launches = tuple(_with_words(launch, places) for launch in launches)
    launches = (*(each.launch for each in copies), *launches)
    return Lowered("matmul", launches, words, (*(each.nbytes for each in copies), *scratch), moved, flops)


def _without_unused_strides(spec: GemmSpec) -> GemmSpec:
    """The same work with stride 0 along axes of extent 1: it aligns with everything. Of C's columns it is 1."""

    def used(strides: Strides, rows: int, columns: int) -> Strides:
        outer, inner, row, column = strides
        return outer, inner, row if rows > 1 else 0, column if columns > 1 else 0

    outer, inner, row, column = spec.c
    c = (outer, inner, row if spec.M > 1 else 0, column if spec.N > 1 else 1)
    return replace(spec, a=used(spec.a, spec.M, spec.K), b=used(spec.b, spec.K, spec.N), c=c)


def _with_fewer_batches(spec: GemmSpec) -> GemmSpec:
    """The same work with batches that share B among the rows, where their strides go on from those of the rows."""
    for axis in (1, 0):
        extent, M = spec.batch[axis], spec.M
        if extent == 1 or spec.b[axis] or (axis == 0 and spec.batch[1] > 1):
            continue
        if M == 1 or all(each[axis] == M * each[2] for each in (spec.a, spec.c, *spec.beside)):

            def joined(each: Strides, axis: int = axis, M: int = M) -> Strides:
                row = each[axis] if M == 1 else each[2]
                return (each[0] if axis else 0, 0, row, each[3])

            batch = (spec.batch[0], 1) if axis else (1, 1)
            beside = tuple(joined(each) for each in spec.beside)
            spec = replace(spec, M=M * extent, batch=batch, a=joined(spec.a), c=joined(spec.c), beside=beside)
    return spec


def _with_copies(
    spec: GemmSpec, words: int, places: dict[int, int]
) -> tuple[GemmSpec, tuple[Copied, ...], dict[int, int]]:
    """The same work on copies of the operands that fit no tensor map; the copies; which words the kernel takes for A and B."""
    found: list[Copied] = []
    places = dict(places)
    b = gemm_wgmma.by_k(spec.b)
    for word, strides, rows in ((0, spec.a, spec.M), (1, b, spec.N)):
        if gemm_wgmma.takes(spec.dtype, strides, rows, spec.K):
            continue
        to = words + len(found)
        each = copied(spec.dtype, strides, spec.batch, rows, spec.K, places.get(word, word), to)
        found.append(each)
        places[word] = to
        spec = replace(spec, a=each.strides) if word == 0 else replace(spec, b=gemm_wgmma.by_k(each.strides))
    return spec, tuple(found), places


def _launches(
    spec: GemmSpec, properties: DeviceProperties, choice: Choice, partial_word: int
) -> tuple[tuple[Launch, ...], tuple[int, ...]]:
    """The launches, and the bytes of their scratch buffers."""
    tile, splits, depth = choice.tile, choice.splits, choice.depth
    if isinstance(tile, WgmmaTile):
        first = wgmma_launch(spec, tile, properties, splits, depth, partial_word)
    elif isinstance(tile, MmaTile):
        first = mma_launch(spec, tile, splits, depth, partial_word)
    elif isinstance(tile, Tile):
        first = tiled_launch(spec, tile, splits, depth, partial_word)
    else:
        return (naive_launch(spec),), ()
    if splits == 1 or (isinstance(tile, Tile) and tile.parts > 1):
        return (first,), ()
    size = 8 if spec.dtype.itemsize == 8 else 4
    return (first, sum_launch(spec, splits, partial_word)), (splits * spec.results * size,)


def _with_words(launch: Launch, places: dict[int, int]) -> Launch:
    """The launch with other words in the places of some."""

    def placed(argument: Argument) -> Argument:
        if isinstance(argument, Word | TensorMap):
            return replace(argument, index=places.get(argument.index, argument.index))
        return argument

    return replace(launch, arguments=tuple(placed(argument) for argument in launch.arguments)) if places else launch
