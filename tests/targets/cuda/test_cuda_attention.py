"""Attention on CUDA: what its kernels compute, and that NVRTC takes their text; no GPU is needed."""

import math

import pytest
from cuda_compiles import quick_cubin

from tensorsmith.core.dtypes import DType, bfloat16, bool_, float16, float32, float64
from tensorsmith.core.views import Strided
from tensorsmith.targets.cuda.attention import lower_attention
from tensorsmith.targets.cuda.attention_spec import AttentionSpec
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties, TensorMap, Word

ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")


def contiguous(*shape: int) -> Strided:
    return Strided(shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))), 0)


def spec(
    dtype: DType, backward: bool = False, causal: bool = False, outer: int = 1, inner: int = 2, L: int = 70, S: int = 90,
    E: int = 40, F: int = 40, mask: DType | None = None, dropout: float = 0.0, beside: bool = False,
    result: DType | None = None, aligned: bool = True, strided: dict[str, Strided] | None = None,
) -> AttentionSpec:  # fmt: skip
    """Attention of contiguous operands, or of those that are given otherwise."""
    lead = (outer, inner)
    operands = {"q": contiguous(*lead, L, E), "k": contiguous(*lead, S, E), "v": contiguous(*lead, S, F)}
    if backward:
        operands |= {"g": contiguous(*lead, L, F), "lse": contiguous(*lead, L, 1), "delta": contiguous(*lead, L, 1)}
    if mask is not None:
        operands["mask"] = contiguous(*lead, L, S)
    if dropout:
        operands["streams"] = contiguous(*lead, 2, 1)
    operands |= strided or {}
    return AttentionSpec(
        dtype, backward, causal, 1 / math.sqrt(E), outer, inner, L, S, E, F, tuple(operands.items()), mask, dropout, beside,
        result, aligned,
    )  # fmt: skip


SWEEP = {
    "float32": spec(float32),
    "float32 backward": spec(float32, backward=True, causal=True),
    "bool mask and dropout": spec(float32, mask=bool_, dropout=0.1, E=70),
    "its backward": spec(float32, backward=True, mask=bool_, dropout=0.1, E=70),
    "float64, mask of numbers": spec(float64, causal=True, mask=float64),
    "float64 backward": spec(float64, backward=True),
    "bfloat16": spec(bfloat16, causal=True, result=bfloat16, aligned=False),
    "bfloat16 of 64 columns": spec(bfloat16, causal=True, L=300, E=64, F=64, result=bfloat16),
    "float16 of 128 columns": spec(float16, causal=True, E=128, F=128),
    "bfloat16 of 256 columns": spec(bfloat16, E=256, F=256),
    "halves, bool mask and dropout": spec(bfloat16, mask=bool_, dropout=0.1, E=80, F=24),
    "halves, mask of numbers": spec(float16, mask=float32, E=64, F=128, beside=True),
    "bfloat16 of 64 columns, backward": spec(bfloat16, backward=True, causal=True, E=64, F=64, result=bfloat16),
    "float16 of 128 columns, backward": spec(float16, backward=True, causal=True, E=128, F=128),
    "bfloat16 of 256 columns, backward": spec(bfloat16, backward=True, E=256, F=256),
    "halves, bool mask and dropout, backward": spec(bfloat16, backward=True, mask=bool_, dropout=0.1, E=64, F=24),
    "halves, mask of numbers, backward": spec(float16, backward=True, mask=float32, E=64, F=128, beside=True),
    "float16 backward": spec(float16, backward=True, mask=float32, dropout=0.5, aligned=False),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", SWEEP)
def test_nvrtc_takes_the_text(name: str, architecture: str) -> None:
    for launch in lower_attention(SWEEP[name], DeviceProperties(architecture)).launches:
        assert quick_cubin(launch.source, launch.name, architecture).startswith(b"\x7fELF")


def test_a_new_shape_is_no_compilation() -> None:
    first, second = (
        lower_attention(spec(float32, causal=True, L=n, S=n + 3, E=n % 64), DeviceProperties("sm_80")) for n in (100, 933)
    )
    assert first.launches[0].source == second.launches[0].source
    assert first.launches[0].arguments != second.launches[0].arguments


def test_hopper_gets_tensor_maps_where_operands_lie_so() -> None:
    taken = lower_attention(spec(bfloat16), DeviceProperties("sm_90a")).launches[0]
    assert [type(each) for each in taken.arguments[:3]] == [TensorMap] * 3
    odd = {"k": Strided((1, 2, 90, 40), (3690 * 2, 41 * 90, 41, 1), 0)}
    for other in (spec(bfloat16, strided=odd), spec(float32), spec(bfloat16, E=300)):
        launch = lower_attention(other, DeviceProperties("sm_90a")).launches[0]
        assert not any(isinstance(each, TensorMap) for each in launch.arguments)
    assert lower_attention(spec(bfloat16), DeviceProperties("sm_80")).launches[0].name == "attention_forward_mma"
    assert lower_attention(spec(bfloat16), DeviceProperties("sm_75")).launches[0].name == "attention"


def test_where_addresses_are_not_known_another_kernel_follows() -> None:
    first, second = lower_attention(spec(bfloat16, aligned=False), DeviceProperties("sm_90a")).launches
    assert first.name == "attention_forward_hopper" and second.name == "attention_forward_mma"
    assert "& 15) != 0) return;" in first.source and "& 15) != 0)) return;" in second.source


def test_arguments_are_the_operands_in_order() -> None:
    launch = lower_attention(spec(float32, backward=True, mask=bool_), DeviceProperties("sm_80")).launches[0]
    *words, sizes = launch.arguments
    assert words == [Word(n) for n in range(8)] and isinstance(sizes, Constant)


def test_operands_that_do_not_fit_are_refused() -> None:
    good = spec(float32, backward=True)
    bad = AttentionSpec(**{**good.__dict__, "backward": False})
    with pytest.raises(ValueError, match="attention takes"):
        lower_attention(bad, DeviceProperties())
    with pytest.raises(ValueError, match="no results of"):
        lower_attention(spec(float32, result=bfloat16), DeviceProperties())
