"""Convolutions on CUDA: launches are arithmetic, texts compile, nothing needs a GPU."""

import math

import numpy as np
import pytest
from conv_cases import KINDS, problem, spec_only
from cuda_compiles import quick_cubin

from emulator.run import emulated_properties, run_lowered
from tensorsmith.core.dtypes import bfloat16, float16, float32, float64, int8, int64
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.ir.convolution import result_shape
from tensorsmith.kernels.epilogue import COLUMN, Body
from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.kernels.spec_conv import ConvSpec, without_zeros
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.conv import lower_conv
from tensorsmith.targets.cuda.kernel import DeviceProperties

AMPERE = DeviceProperties("sm_80", multiprocessors=4, shared_bytes=163 * 1024)  # whose kernels later cards run too


@pytest.fixture(scope="module")
def emulated():
    import emulator

    emulator.activate()


def conv_spec(dtype, x, w, stride=1, low=0, high=None, dilation=1, step=1, groups=1, strides=contiguous_strides, **more):
    """A spec of operands that all lie one way."""
    rank = len(x) - 2
    each = {"stride": stride, "low": low, "high": low if high is None else high, "dilation": dilation, "step": step}
    attrs = {name: (value,) * rank if isinstance(value, int) else value for name, value in each.items()}
    y = result_shape(x, w, {**attrs, "groups": groups})
    del attrs["high"]
    return ConvSpec(dtype, x, w, y, strides(x), strides(w), strides(y), groups=groups, **attrs, **more)


def biased_relu(dtype):
    """relu(sum + bias), in float32."""
    body = (
        Instr(Kind.LOAD, dtype, index=0), Instr(Kind.CAST, float32, (0,)), Instr(Kind.LOAD, dtype, index=1),
        Instr(Kind.CAST, float32, (2,)), Instr(Kind.APPLY, float32, (1, 3), fn=Fn.ADD),
        Instr(Kind.APPLY, float32, (4,), fn=Fn.RELU),
    )  # fmt: skip
    return Body(body, 5, (COLUMN,))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16, int8, int64], ids=lambda d: d.name)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_text_compiles(dtype, rank, architecture):
    spec = conv_spec(dtype, (2, 4) + (9,) * rank, (6, 2) + (3,) * rank, low=1, step=(2,) + (1,) * (rank - 1), groups=2)
    launches = lower_conv(spec, DeviceProperties(architecture)).launches
    for source, name in {launch.source: launch.name for launch in launches}.items():
        assert quick_cubin(source, name, architecture)


def test_body_is_in_the_text():
    spec = conv_spec(float32, (2, 4, 9, 9), (6, 4, 3, 3), body=biased_relu(float32), others=((0, 1, 0, 0),))
    lowered = lower_conv(spec, DeviceProperties())
    assert lowered.words == 4
    for launch in lowered.launches:
        assert quick_cubin(launch.source, launch.name)


def test_shape_changes_no_text():
    small, large = (conv_spec(float32, (2, 4, n, n), (6, 4, 3, 3), low=1) for n in (9, 14))
    texts = [[launch.source for launch in lower_conv(spec, DeviceProperties()).launches] for spec in (small, large)]
    assert texts[0] == texts[1]


def test_complex_is_refused_by_name():
    from tensorsmith.core.dtypes import complex64

    with pytest.raises(NotImplementedError, match="complex64"):
        lower_conv(conv_spec(complex64, (1, 1, 3), (1, 1, 2)), DeviceProperties())


@pytest.mark.parametrize("low, dilation, step, kernel", [(0, 1, 2, 3), (1, 2, 2, 3), (2, 1, 3, 2), (-1, 2, 4, 5), (1, 3, 3, 1)])
def test_parts_without_zeros_are_the_convolution(low, dilation, step, kernel):
    """Every result is in one part, and its taps there are those that meet an element."""
    spec = conv_spec(float32, (1, 1, 7), (1, 1, kernel), low=low, high=3, dilation=dilation, step=step)
    x, w = np.arange(1.0, 8.0), np.arange(1.0, kernel + 1)
    written = np.zeros(spec.y[2], int)
    for part in without_zeros(spec):
        _, of_w, of_y = part.starts
        assert part.step == (1,)
        for p in range(part.y[2]):
            at = of_y + p * part.y_strides[2]
            written[at] += 1
            places = [(p + k * part.dilation[0] - part.low[0], of_w + k * part.w_strides[2]) for k in range(part.w[2])]
            found = sum(x[i] * w[j] for i, j in places if 0 <= i < 7)
            spread = [at + k * dilation - low for k in range(kernel)]
            wanted = sum(x[i // step] * w[k] for k, i in enumerate(spread) if i % step == 0 and 0 <= i // step < 7)
            assert math.isclose(found, wanted)
    assert written.tolist() == [1] * spec.y[2]


# ------------------------------------------------------------------------------------------------ numbers, emulated

SIZES = [
    ((4, 3, 12, 12), (8, 3, 5, 5), dict(padding=2)),
    ((8, 16, 8, 8), (32, 16, 3, 3), dict(padding=1)),
    ((8, 16, 9, 9), (70, 16, 3, 3), dict(padding=1, stride=2)),
    ((2, 64, 6, 6), (130, 64, 1, 1), dict(stride=2)),
    ((2, 12, 10, 10), (12, 1, 3, 3), dict(padding=1, groups=12)),
    ((2, 12, 10, 7), (24, 4, 3, 2), dict(padding=(1, 0), stride=(2, 1), groups=3)),
    ((3, 5, 20), (6, 5, 4), dict(padding=3, stride=3, dilation=2)),
    ((2, 4, 5, 6, 7), (9, 4, 2, 3, 3), dict(padding=1, stride=(1, 2, 1), dilation=(2, 1, 1))),
]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("x, w, attrs", SIZES, ids=str)
def test_float32(x, w, attrs, kind, layout, emulated):
    made = problem(kind, float32, x, w, layout=layout, **attrs)
    lowered = lower_conv(made.spec, emulated_properties())
    assert run_lowered(lowered, made.arrays) == 0
    assert made.error < 2e-6
    if attrs.get("groups") == x[1] and kind != "weight":
        assert [launch.name for launch in lowered.launches] == ["conv_direct"]


@pytest.mark.parametrize("dtype, most", [(float64, 1e-14), (float16, 1e-3), (bfloat16, 8e-3), (int8, 0), (int64, 0)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(dtype, most, kind, emulated):
    small = dtype is int8  # sums that do not wrap
    attrs = {} if small else {"stride": 2, "padding": 1, "groups": 2, "out": "nhwc"}
    made = problem(kind, dtype, *(((1, 1, 2, 2), (1, 1, 2, 2)) if small else ((2, 4, 7, 9), (6, 2, 3, 2))), **attrs)
    assert run_lowered(lower_conv(made.spec, emulated_properties()), made.arrays) == 0
    assert made.error <= most


ON_TENSOR_CORES = [
    ((2, 16, 8, 8), (32, 16, 3, 3), dict(padding=1)),
    ((2, 24, 7, 9), (72, 24, 3, 3), dict(padding=1, stride=2)),
    ((3, 8, 6, 6), (130, 8, 1, 1), dict(stride=2)),
    ((2, 12, 10, 10), (24, 4, 3, 3), dict(padding=1, stride=2, groups=3)),
    ((2, 3, 9, 9), (16, 3, 3, 3), dict(dilation=2)),
    ((3, 16, 20), (24, 16, 5), dict(padding=2, stride=2)),
    ((2, 8, 3, 4, 5), (8, 8, 2, 2, 2), dict(padding=1)),
]


@pytest.mark.parametrize("dtype, layout", [(bfloat16, "nhwc"), (float16, "nchw"), (float32, "nhwc")], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("x, w, attrs", ON_TENSOR_CORES, ids=str)
def test_tensor_cores(x, w, attrs, kind, layout, dtype, emulated):
    made = problem(kind, dtype, x, w, layout=layout, tf32=True, **attrs)
    lowered = lower_conv(made.spec, AMPERE)
    assert "conv_mma" in {launch.name for launch in lowered.launches}
    assert run_lowered(lowered, made.arrays) == 0
    assert made.error < (8e-3 if dtype is bfloat16 else 1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_tensor_cores_read_what_is_not_aligned(kind, emulated):
    made = problem(kind, bfloat16, (2, 16, 8, 8), (32, 16, 3, 3), padding=1, layout="nhwc")
    for number in range(2):
        array = made.arrays[number]
        made.arrays[number] = np.concatenate([array[:1], array])[1:]
    assert run_lowered(lower_conv(made.spec, AMPERE), made.arrays) == 0
    assert made.error < 8e-3


@pytest.mark.parametrize("architecture, dtype", [("sm_75", float32), ("sm_80", bfloat16), ("sm_90a", float32)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_implicit_products_compile(layout, kind, architecture, dtype):
    for x, w in [((8, 64, 8, 8), (64, 64, 3, 3)), ((64, 128, 32, 32), (256, 128, 3, 3)), ((8, 16, 16, 16), (8, 16, 3, 3))]:
        spec = spec_only(kind, dtype, x, w, padding=1, layout=layout, tf32=True)
        for launch in lower_conv(spec, DeviceProperties(architecture)).launches:
            assert quick_cubin(launch.source, launch.name, architecture)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_body_is_computed(layout, dtype, emulated):
    """relu(sum + bias): a bias a channel, in a kernel of one part and in one whose depth is split."""
    for x in ((2, 8, 5, 5), (40, 8, 16, 16)):
        w = (24, 8, 3, 3)
        made = problem("forward", dtype, x, w, layout=layout, body=biased_relu(dtype), others=((0, 1, 0, 0),))
        bias = np.random.default_rng(1).standard_normal(24).astype(np.float32).astype(dtype.numpy)
        assert run_lowered(lower_conv(made.spec, emulated_properties()), [*made.arrays, bias]) == 0
        made.wanted = np.maximum(made.wanted + bias.astype(np.float64)[:, None, None], 0)
        assert made.error < (8e-3 if dtype is bfloat16 else 1e-5)
