"""Matrix products on CUDA: the launches of a spec.

`lower_gemm` is arithmetic on shapes and strides; the texts depend on structure alone. The ladder, fastest first, of which
`gemm_choice.py` takes the first that takes a product:

* wgmma: halves on Hopper, operands through tensor maps (`gemm_wgmma.py`);
* mma:   halves from sm_80 on, any strides (`gemm_mma.py`);
* tiled: 4- and 8-byte elements, in tf32 where that is allowed (`gemm_tiled.py`);
* naive: everything (`gemm_naive.py`).
"""

from __future__ import annotations

from dataclasses import replace

from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.targets.cuda.gemm_choice import Choice, choose
from tensorsmith.targets.cuda.gemm_mma import MmaTile, mma_launch
from tensorsmith.targets.cuda.gemm_naive import naive_launch
from tensorsmith.targets.cuda.gemm_sum import sum_launch
from tensorsmith.targets.cuda.gemm_tiled import Tile, tiled_launch
from tensorsmith.targets.cuda.gemm_wgmma import WgmmaTile, wgmma_launch
from tensorsmith.targets.cuda.kernel import Argument, DeviceProperties, Launch, Lowered, TensorMap, Word


def lower_gemm(spec: GemmSpec, properties: DeviceProperties, choice: Choice | None = None) -> Lowered:
    """The launches of a batch of products; words: A, B, C, then the operands beside the results.

    choice: the kernel and its tile, instead of what `choose` says
    Errors: NotImplementedError for a dtype without products (bool, complex).
    """
    words = 3 + len(spec.beside)
    if spec.results == 0:
        return Lowered("matmul", (), words)
    exchanged = spec.c[3] != 1 and spec.c[2] == 1 and spec.M > 1
    if exchanged:  # results lie side by side along columns: the transposed product stores rows
        spec = spec.transposed()
    choice = choice or choose(spec, properties)
    launches, scratch = _launches(spec, properties, choice, words)
    if exchanged:
        launches = tuple(_with_operands_exchanged(launch) for launch in launches)
    return Lowered("matmul", launches, words, scratch, spec.bytes_moved, spec.flops)


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


def _with_operands_exchanged(launch: Launch) -> Launch:
    """The launch with words 0 and 1 (A and B) in each other's place."""
    other = {0: 1, 1: 0}

    def exchanged(argument: Argument) -> Argument:
        if isinstance(argument, Word | TensorMap):
            return replace(argument, index=other.get(argument.index, argument.index))
        return argument

    return replace(launch, arguments=tuple(exchanged(argument) for argument in launch.arguments))
