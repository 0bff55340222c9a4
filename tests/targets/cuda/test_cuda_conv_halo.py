"""Convolutions that read a patch once for all taps, on the emulated device."""

import pytest
from conv_cases import problem, spec_only
from cuda_compiles import quick_cubin

from emulator.run import run_lowered
from tensorsmith.core.dtypes import bfloat16
from tensorsmith.targets.cuda.conv import lower_conv
from tensorsmith.targets.cuda.conv_halo import Squares, halo_launches, pays_halo
from tensorsmith.targets.cuda.kernel import DeviceProperties, Lowered

HOPPER = DeviceProperties("sm_90a", multiprocessors=2, shared_bytes=163 * 1024)  # what the emulated device has


@pytest.fixture(scope="module")
def emulated():
    import emulator

    emulator.activate()


SIZES = [
    ((2, 64, 16, 16), (64, 64, 3, 3), dict(padding=1), Squares(1, 2, 2, 64, True)),
    ((2, 96, 13, 9), (72, 96, 3, 3), dict(padding=1), Squares(1, 2, 1, 128, False)),
    ((5, 64, 8, 8), (136, 64, 3, 3), dict(padding=1), Squares(2, 1, 1, 128, False)),
    ((3, 64, 8, 16), (64, 64, 5, 3), dict(padding=(2, 0)), Squares(1, 1, 2, 64, True)),
    ((2, 64, 12, 12), (64, 64, 3, 3), dict(padding=2, dilation=2), Squares(1, 1, 2, 64, False)),
]


@pytest.mark.parametrize("kind", ["forward", "input"])
@pytest.mark.parametrize("x, w, attrs, squares", SIZES, ids=str)
def test_numbers(x, w, attrs, squares, kind, emulated):
    made = problem(kind, bfloat16, x, w, layout="nhwc", **attrs)
    launches, scratch = halo_launches(made.spec, HOPPER, squares)
    assert run_lowered(Lowered("conv", launches, 3, scratch), made.arrays) == 0
    assert made.error < 8e-3


def test_it_is_chosen_where_there_are_tiles_enough(emulated):
    made = problem("forward", bfloat16, (4, 64, 16, 16), (64, 64, 3, 3), padding=1, layout="nhwc")
    lowered = lower_conv(made.spec, HOPPER)
    assert [launch.name for launch in lowered.launches] == ["conv_halo"]
    assert run_lowered(lowered, made.arrays) == 0
    assert made.error < 8e-3


def test_text_compiles():
    for x, w in (((512, 64, 32, 32), (64, 64, 3, 3)), ((512, 256, 8, 8), (256, 256, 3, 3))):
        for kind in ("forward", "input"):
            spec = spec_only(kind, bfloat16, x, w, padding=1, layout="nhwc")
            assert pays_halo(spec, DeviceProperties())
            (launch,), _ = halo_launches(spec, DeviceProperties())
            assert launch.shared_bytes <= DeviceProperties().shared_bytes
            assert quick_cubin(launch.source, launch.name, "sm_90a")


def test_where_it_does_not_pay():
    sizes = [((512, 512, 4, 4), (512, 512, 3, 3), 1)]
    sizes += [((512, 64, 32, 32), (64, 64, 1, 1), 0), ((2, 64, 32, 32), (64, 64, 3, 3), 1)]
    for x, w, padding in sizes:
        assert not pays_halo(spec_only("forward", bfloat16, x, w, padding=padding, layout="nhwc"), DeviceProperties())
    strided = spec_only("forward", bfloat16, (512, 64, 32, 32), (64, 64, 3, 3), padding=1, stride=2, layout="nhwc")
    assert not pays_halo(strided, DeviceProperties())
