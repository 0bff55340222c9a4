"""Convolutions by tensor maps and warpgroups: boxes, launches, numbers on the emulated device."""

import itertools

import numpy as np
import pytest
from conv_cases import KINDS, problem, spec_only
from cuda_compiles import quick_cubin

from emulator.run import run_lowered
from tensorsmith.core.dtypes import bfloat16, float16, float32
from tensorsmith.kernels.epilogue import COLUMN, WHOLE, Body
from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.kernels.spec_conv import without_zeros
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.conv import lower_conv
from tensorsmith.targets.cuda.conv_maps import box_of, fits_boxes, maps_take_w, maps_take_x
from tensorsmith.targets.cuda.conv_tiles import WgmmaTile
from tensorsmith.targets.cuda.conv_wgmma import pays_wgmma, wgmma_launches
from tensorsmith.targets.cuda.kernel import DeviceProperties, Lowered, TensorMap

HOPPER = DeviceProperties("sm_90a", multiprocessors=4, shared_bytes=160 * 1024)  # the emulated device has no more


@pytest.fixture(scope="module")
def emulated():
    import emulator

    emulator.activate()


@pytest.mark.parametrize(
    "space, images", [((32, 32), 512), ((7, 7), 30), ((14, 14), 3), ((112, 112), 1), ((5,), 9), ((3, 4, 5), 6)], ids=str
)
@pytest.mark.parametrize("most, dividing", [(128, False), (64, True)])
def test_boxes_cover_everything(space, images, most, dividing):
    box = box_of(space, images, most, dividing)
    assert box.lines <= most
    assert all(tiles * extent >= n for tiles, extent, n in zip(box.tiles, (*box.space, box.images), (*space, images)))
    if dividing:
        assert all(n % extent == 0 for extent, n in zip(box.space, space))


def test_boxes_are_full_where_sizes_allow():
    for side, images in ((32, 512), (16, 512), (8, 512), (4, 512)):
        assert box_of((side, side), images, 128, False).lines == 128
        assert box_of((side, side), images, 64, True).lines == 64
    assert box_of((7, 7), 3, 64, True).lines >= 49


SIZES = [
    ((2, 64, 8, 8), (64, 64, 3, 3), dict(padding=1)),
    ((2, 64, 8, 8), (72, 64, 3, 3), dict(padding=1, stride=2)),
    ((3, 32, 6, 6), (136, 32, 1, 1), dict(stride=2)),
    ((3, 40, 7, 7), (72, 40, 3, 3), dict(padding=1)),
    ((2, 32, 9, 11), (40, 32, 3, 3), dict(padding=1, dilation=2)),
    ((2, 128, 9, 5), (128, 64, 3, 3), dict(padding=1, groups=2)),
    ((2, 32, 30), (32, 32, 5), dict(padding=2, stride=2)),
    ((2, 32, 3, 4, 5), (264, 32, 3, 3, 3), dict(padding=1)),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("x, w, attrs", SIZES, ids=str)
def test_numbers(x, w, attrs, kind, emulated):
    made = problem(kind, bfloat16, x, w, layout="nhwc", **attrs)
    lowered = lower_conv(made.spec, HOPPER)
    assert run_lowered(lowered, made.arrays) == 0
    assert made.error < 8e-3
    if attrs.get("groups", 1) == 1:
        assert "conv_wgmma" in {launch.name for launch in lowered.launches}


@pytest.mark.parametrize("rows, columns, alternating", list(itertools.product((64, 128), (64, 128), (False, True))))
def test_tiles(rows, columns, alternating, emulated):
    for kind in KINDS:
        made = problem(kind, float16, (3, 64, 8, 8), (96, 64, 3, 3), padding=1, layout="nhwc")
        launches, scratch = wgmma_launches(made.spec, HOPPER, 3, WgmmaTile(rows, columns, alternating, 3))
        assert run_lowered(_lowered(launches, scratch), made.arrays) == 0
        assert made.error < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_that_maps_do_not_take(kind, emulated):
    for x in ((2, 64, 8, 8), (40, 64, 8, 8)):  # a depth in parts, and whole
        made = problem(kind, bfloat16, x, (64, 64, 3, 3), padding=1, layout="nhwc")
        for number in range(2):
            array = made.arrays[number]
            made.arrays[number] = np.concatenate([array[:1], array])[1:]
        assert run_lowered(lower_conv(made.spec, HOPPER), made.arrays) == 0
        assert made.error < 8e-3


@pytest.mark.parametrize("kind", KINDS)
def test_text_compiles(kind):
    for w in ((64, 64, 3, 3), (256, 64, 3, 3)):
        for part in without_zeros(spec_only(kind, bfloat16, (64, 64, 32, 32), w, stride=2, padding=1, layout="nhwc")):
            for launch in wgmma_launches(part, DeviceProperties(), 3)[0]:
                assert quick_cubin(launch.source, launch.name, "sm_90a")
                assert launch.shared_bytes <= DeviceProperties().shared_bytes
                maps = [each for each in launch.arguments if isinstance(each, TensorMap)]
                assert all(stride % 16 == 0 for each in maps for stride in each.strides)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("x, w, attrs", [SIZES[0], SIZES[1], SIZES[3], SIZES[6], SIZES[7]], ids=str)
def test_operands_that_maps_do_not_take_are_copied(x, w, attrs, kind, emulated):
    made = problem(kind, bfloat16, x, w, layout="nchw", **attrs)
    launches, scratch = [], ()
    for part in without_zeros(made.spec):
        assert not maps_take_x(part)
        more, needed = wgmma_launches(part, HOPPER, 3 + len(scratch))
        launches += more
        scratch += needed
    assert "conv_pack" in {launch.name for launch in launches}
    assert run_lowered(_lowered(tuple(launches), scratch), made.arrays) == 0
    assert made.error < 8e-3


def test_what_maps_take():
    spec = spec_only("forward", bfloat16, (2, 64, 8, 8), (64, 64, 3, 3), layout="nhwc")
    assert maps_take_x(spec) and maps_take_w(spec) and pays_wgmma(spec, HOPPER)
    assert not pays_wgmma(spec, DeviceProperties("sm_80"))
    spec = spec_only("forward", bfloat16, (2, 64, 8, 8), (64, 64, 3, 3), layout="nchw")
    assert not maps_take_x(spec) and not maps_take_w(spec)
    assert not maps_take_x(spec_only("forward", bfloat16, (2, 12, 8, 8), (64, 12, 3, 3), layout="nhwc"))  # 24 bytes a pixel
    assert not fits_boxes(spec_only("forward", bfloat16, (2, 64, 20, 20), (64, 64, 3, 3), stride=3, layout="nhwc"))


def _lowered(launches, scratch):
    return Lowered("conv", launches, 3, scratch)


def bias_residual_relu(dtype):
    """relu(sum + bias + residual), in float32."""
    loads = [instr for k in range(3) for instr in (Instr(Kind.LOAD, dtype, index=k), Instr(Kind.CAST, float32, (2 * k,)))]
    body = (
        *loads, Instr(Kind.APPLY, float32, (1, 3), fn=Fn.ADD), Instr(Kind.APPLY, float32, (6, 5), fn=Fn.ADD),
        Instr(Kind.APPLY, float32, (7,), fn=Fn.RELU),
    )  # fmt: skip
    return Body(body, 8, (COLUMN, WHOLE))


@pytest.mark.parametrize("x, columns", [((2, 64, 8, 8), 72), ((30, 64, 8, 8), 72), ((30, 64, 8, 8), 260)])
def test_body(x, columns, emulated):
    plain = problem("forward", bfloat16, x, (columns, 64, 3, 3), padding=1, layout="nhwc")
    others = ((0, 1, 0, 0), plain.spec.y_strides)
    made = problem("forward", bfloat16, x, (columns, 64, 3, 3), padding=1, layout="nhwc", body=bias_residual_relu(bfloat16),
                   others=others)  # fmt: skip
    rng = np.random.default_rng(1)
    bias, residual = (rng.standard_normal(n).astype(np.float32).astype(bfloat16.numpy) for n in (columns, plain.arrays[2].size))
    lowered = lower_conv(made.spec, HOPPER)
    assert "conv_wgmma" in {launch.name for launch in lowered.launches}
    assert run_lowered(lowered, [*made.arrays, bias, residual]) == 0
    beside = np.lib.stride_tricks.as_strided(residual, made.spec.y, [2 * s for s in made.spec.y_strides]).astype(np.float64)
    made.wanted = np.maximum(made.wanted + bias.astype(np.float64)[:, None, None] + beside, 0)
    assert made.error < 8e-3


def test_body_of_parts(emulated):
    """The gradient of a strided convolution is in parts, some of them sums over nothing; each has its own of the others."""
    for w, padding in (((64, 64, 3, 3), 1), ((64, 64, 1, 1), 0)):
        plain = problem("input", bfloat16, (2, 64, 8, 8), w, padding=padding, stride=2, layout="nhwc")
        others = ((0, 1, 0, 0), plain.spec.y_strides)
        made = problem("input", bfloat16, (2, 64, 8, 8), w, padding=padding, stride=2, layout="nhwc",
                       body=bias_residual_relu(bfloat16), others=others)  # fmt: skip
        rng = np.random.default_rng(1)
        bias, residual = (rng.standard_normal(n).astype(np.float32).astype(bfloat16.numpy) for n in (64, plain.arrays[2].size))
        assert run_lowered(lower_conv(made.spec, HOPPER), [*made.arrays, bias, residual]) == 0
        beside = np.lib.stride_tricks.as_strided(residual, made.spec.y, [2 * s for s in made.spec.y_strides])
        made.wanted = np.maximum(made.wanted + bias.astype(np.float64)[:, None, None] + beside.astype(np.float64), 0)
        assert made.error < 8e-3
